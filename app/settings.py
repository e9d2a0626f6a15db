"""Settings of the service: every one is an environment variable ``WATTCAST_<NAME>``.

What each means is told by ``settings.toml``.
"""

from __future__ import annotations

import ipaddress
import os
from dataclasses import fields
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from wattcast.features.checked import read_toml
from wattcast.features.effort import DEFAULT_EFFORT, DEFAULT_LIMITS, SizeLimits

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

    model_config = SettingsConfigDict(env_prefix="WATTCAST_", extra="ignore", frozen=True)

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    home: Path = Field(default_factory=lambda: Path.home() / ".wattcast")
    database_url: SecretStr | None = None
    database_connections: int = Field(default=20, ge=2)
    database_seconds: float = Field(default=5.0, ge=1)
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["auto", "json", "console"] = "auto"
    api_keys: Literal["auto", "required", "off"] = "auto"
    key_cache_seconds: float = Field(default=5.0, ge=0)
    requests_per_second: float | None = Field(default=None, ge=0)
    requests_burst: int = Field(default=200, ge=1)
    requests_at_once: int = Field(default=512, ge=1)
    requests_at_once_per_caller: int = Field(default=64, ge=1)
    event_streams_per_caller: int = Field(default=16, ge=1)
    slow_bodies_per_caller: int = Field(default=16, ge=1)
    connections_per_address: int = Field(default=512, ge=1)
    failed_key_seconds: float = Field(default=8.0, ge=0)
    header_seconds: float = Field(default=10.0, gt=0)
    body_seconds: float = Field(default=60.0, gt=0)
    access_log: bool = True
    max_body_bytes: int = Field(default=16 * MEBIBYTE, ge=1)
    max_ptx_bytes: int = Field(default=16 * MEBIBYTE, ge=1)
    max_line_characters: int = Field(default=DEFAULT_LIMITS.max_line_characters, ge=1)
    max_statement_characters: int = Field(default=DEFAULT_LIMITS.max_statement_characters, ge=1)
    max_kernel_instructions: int = Field(default=DEFAULT_LIMITS.max_kernel_instructions, ge=1)
    max_kernel_labels: int = Field(default=DEFAULT_LIMITS.max_kernel_labels, ge=1)
    max_kernel_blocks: int = Field(default=DEFAULT_LIMITS.max_kernel_blocks, ge=1)
    max_kernel_edges: int = Field(default=DEFAULT_LIMITS.max_kernel_edges, ge=1)
    max_loop_nesting: int = Field(default=DEFAULT_LIMITS.max_loop_nesting, ge=1)
    max_kernel_liveness: int = Field(default=DEFAULT_LIMITS.max_kernel_liveness, ge=1)
    max_module_symbols: int = Field(default=DEFAULT_LIMITS.max_module_symbols, ge=1)
    max_cuda_bytes: int = Field(default=MEBIBYTE, ge=1)
    compile_seconds: float = Field(default=20.0, gt=0)
    compile_memory_bytes: int = Field(default=4096 * MEBIBYTE, ge=1)
    unsafe_compile: bool = False
    ptxas: Literal["auto", "off"] = "auto"
    max_upload_bytes: int = Field(default=256 * MEBIBYTE, ge=1)
    max_unpacked_bytes: int = Field(default=1024 * MEBIBYTE, ge=1)
    max_upload_rows: int = Field(default=100_000, ge=1)
    max_upload_files: int = Field(default=2_000, ge=1)
    uploads_at_once: int = Field(default=1, ge=1, le=64)
    upload_readers: Literal["processes", "threads"] = "processes"
    waiting_uploads: int = Field(default=64, ge=0)
    upload_seconds: float = Field(default=300.0, gt=0)
    parquet_memory_bytes: int = Field(default=2048 * MEBIBYTE, ge=1)
    max_gpus: int = Field(default=16, ge=1)
    analyses_at_once: int = Field(default=2, ge=1, le=256)
    waiting_analyses: int = Field(default=128, ge=0)
    analysis_seconds: float = Field(default=30.0, gt=0)
    analysis_effort: int = Field(default=DEFAULT_EFFORT, ge=1)
    max_analysis_effort: int = Field(default=10 * DEFAULT_EFFORT, ge=1)
    cache_bytes: int = Field(default=256 * MEBIBYTE, ge=0)
    store_queue_rows: int = Field(default=10_000, ge=1)
    answer_first: bool = False
    job_workers: int = Field(default=1, ge=0, le=16)
    job_lease_seconds: float = Field(default=30.0, gt=0)
    job_attempts: int = Field(default=5, ge=1)
    job_seconds: float = Field(default=3600.0, gt=0)
    job_threads: int = Field(default=2, ge=1, le=256)
    job_poll_seconds: float = Field(default=0.5, gt=0)
    job_priority: Literal["low", "idle"] = "low"
    registry_poll_seconds: float = Field(default=0.5, gt=0)
    registry: Literal["auto", "off"] = "auto"
    artifacts_url: str | None = None
    dask: str | None = None
    dask_rows: int = Field(default=500_000, ge=1)
    gate_alpha: float = Field(default=0.025, gt=0, lt=1)
    gate_old_margin: float = Field(default=0.02, ge=0)

    @property
    def keys_required(self) -> bool:
        """Whether calls need an API key."""
        if self.api_keys == "auto":
            return not is_loopback(self.host)
        return self.api_keys == "required"

    @property
    def size_limits(self) -> SizeLimits:
        """How large a PTX text and a kernel may be."""
        return SizeLimits(**{one.name: getattr(self, one.name) for one in fields(SizeLimits)})

    def environment(self) -> dict[str, str]:
        """These settings as variables for a process of one's own; holds the database's password."""
        found: dict[str, str] = {}
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, SecretStr):
                value = value.get_secret_value()
            if value is not None:
                found[f"WATTCAST_{name.upper()}"] = str(value)
        return found

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


_MEANINGS = read_toml(Path(__file__).with_name("settings.toml"))
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
