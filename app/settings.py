"""Settings of the service: every one is an environment variable ``WATTCAST_<NAME>``.

What each means is told by ``settings.toml``.
"""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from wattcast.features import checked, errors

MEBIBYTE = 1024 * 1024


def is_loopback(host: str) -> bool:
    """Whether a host name or address is reached from this machine alone."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class Settings(BaseSettings):
    """All settings with their defaults; ``wattcast settings`` prints them.

    Raises pydantic.ValidationError naming the variable whose value does not fit.
    """

    model_config = SettingsConfigDict(env_prefix="WATTCAST_", extra="forbid", frozen=True)

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    home: Path = Field(default_factory=lambda: Path.home() / ".wattcast")
    database_url: SecretStr | None = None
    database_connections: int = Field(default=20, ge=2)
    database_seconds: float = Field(default=5.0, ge=1)
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "json", "console"] = "auto"
    api_keys: Literal["auto", "required", "off"] = "auto"
    requests_per_second: float | None = Field(default=None, ge=0)
    requests_at_once_per_caller: int = Field(default=64, ge=1)
    access_log: bool = True
    max_body_bytes: int = Field(default=16 * MEBIBYTE, ge=1)
    max_ptx_bytes: int = Field(default=16 * MEBIBYTE, ge=1)
    compile_seconds: float = Field(default=20.0, gt=0)
    unsafe_compile: bool = False
    ptxas: Literal["auto", "off"] = "auto"
    max_upload_bytes: int = Field(default=256 * MEBIBYTE, ge=1)
    max_unpacked_bytes: int = Field(default=1024 * MEBIBYTE, ge=1)
    max_upload_rows: int = Field(default=100_000, ge=1)
    max_upload_files: int = Field(default=2_000, ge=1)
    upload_readers: Literal["processes", "threads"] = "processes"
    upload_seconds: float = Field(default=300.0, gt=0)
    analyses_at_once: int = Field(default=2, ge=1, le=256)
    waiting_analyses: int = Field(default=128, ge=0)
    analysis_seconds: float = Field(default=30.0, gt=0)
    analysis_effort: int = Field(default=errors.DEFAULT_EFFORT, ge=1)
    max_analysis_effort: int = Field(default=10 * errors.DEFAULT_EFFORT, ge=1)
    cache_bytes: int = Field(default=256 * MEBIBYTE, ge=0)
    job_workers: int = Field(default=1, ge=0, le=16)
    job_lease_seconds: float = Field(default=30.0, gt=0)
    job_attempts: int = Field(default=5, ge=1)
    job_seconds: float = Field(default=3600.0, gt=0)
    job_threads: int = Field(default=2, ge=1, le=256)
    job_priority: Literal["low", "idle"] = "low"
    registry: Literal["auto", "off"] = "auto"
    artifacts_url: str | None = None
    dask: str | None = None

    @property
    def keys_required(self) -> bool:
        """Whether calls need an API key."""
        if self.api_keys == "auto":
            return not is_loopback(self.host)
        return self.api_keys == "required"

    def environment(self) -> dict[str, str]:
        """These settings as variables for a process of one's own; holds the database's password."""
        own = {**dict(self), "database_url": self.database_url and self.sqlalchemy_url}
        return {f"WATTCAST_{name.upper()}": str(own[name]) for name in own if own[name] is not None}

    @property
    def sqlalchemy_url(self) -> str:
        """The database's URL; may hold a password, so it is never logged."""
        if self.database_url is not None:
            return self.database_url.get_secret_value()
        return f"sqlite:///{(self.home / 'wattcast.db').absolute()}"

    @property
    def database_file(self) -> Path | None:
        """The embedded database's file; ``None`` where a URL names another database."""
        return self.home / "wattcast.db" if self.database_url is None else None


_MEANINGS = checked.read_toml(Path(__file__).with_name("settings.toml"))
for _name, _field in Settings.model_fields.items():
    _field.description = _MEANINGS[_name]


def foreign_environment() -> dict[str, str]:
    """This process's variables but our own: what another process of ours may inherit."""
    return {name: value for name, value in os.environ.items() if not name.startswith("WATTCAST_")}


def installed_version() -> str:
    """Version of the installed package."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("wattcast")
    except PackageNotFoundError:
        return "unknown"
