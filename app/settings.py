"""Settings of the service: every one is an environment variable ``WATTCAST_<NAME>``."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

MEBIBYTE = 1024 * 1024


class Settings(BaseSettings):
    """All settings with their defaults; ``wattcast settings`` prints them.

    Raises pydantic.ValidationError naming the variable whose value does not fit.
    """

    model_config = SettingsConfigDict(env_prefix="WATTCAST_", extra="ignore", frozen=True)

    host: str = Field(default="127.0.0.1", description="Address the service listens on.")
    port: int = Field(
        default=8000, ge=0, le=65535, description="Port it listens on; 0 picks a free one."
    )
    home: Path = Field(
        default_factory=lambda: Path.home() / ".wattcast",
        description="Folder of what users add: database, GPU profiles, calibrated models.",
    )
    database_url: SecretStr | None = Field(
        default=None,
        description="SQLAlchemy URL of the database (PostgreSQL, say); "
        "a SQLite file in WATTCAST_HOME when unset.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least severe messages that are logged."
    )
    log_format: Literal["auto", "json", "console"] = Field(
        default="auto",
        description="Log lines as JSON or for people; auto asks whether stderr is a terminal.",
    )
    access_log: bool = Field(default=True, description="Whether every request is logged.")
    max_body_bytes: int = Field(
        default=16 * MEBIBYTE,
        ge=1,
        description="Largest request body; a larger one is answered 413.",
    )
    max_ptx_bytes: int = Field(
        default=16 * MEBIBYTE,
        ge=1,
        description="Largest PTX text (UTF-8); a larger one is answered 413.",
    )
    max_cuda_bytes: int = Field(
        default=MEBIBYTE,
        ge=1,
        description="Largest CUDA source (UTF-8); a larger one is answered 413.",
    )
    compile_seconds: float = Field(
        default=20.0, gt=0, description="Longest run of the compiler for one CUDA source."
    )
    compile_memory_bytes: int = Field(
        default=4096 * MEBIBYTE, ge=1, description="Most memory the compiler may take."
    )
    compile_cache_bytes: int = Field(
        default=8 * MEBIBYTE,
        ge=0,
        description="PTX of CUDA sources that is kept, so that they need not be compiled again.",
    )
    ptxas: Literal["auto", "off"] = Field(
        default="auto",
        description="Count registers with ptxas where the extra cuda is installed (once per "
        "kernel and capability, about 65 ms); off estimates them.",
    )
    max_gpus: int = Field(default=16, ge=1, description="Most GPUs one request may name.")
    analyses_at_once: int = Field(
        default=2, ge=1, le=256, description="PTX analyses that run at the same time (threads)."
    )
    waiting_analyses: int = Field(
        default=128,
        ge=0,
        description="Requests that may wait for an analysis; more are answered 429.",
    )
    analysis_seconds: float = Field(
        default=30.0,
        gt=0,
        description="Longest time a request waits for its analysis; then it gets 503.",
    )
    execution_seconds: float = Field(
        default=1.0,
        gt=0,
        description="Time cap of an executed analysis for requests that name no "
        "analysis_seconds; what it cuts short is extrapolated.",
    )
    max_execution_seconds: float = Field(
        default=10.0, gt=0, description="Largest analysis_seconds a request may ask for."
    )
    analysis_cache_bytes: int = Field(
        default=32 * MEBIBYTE,
        ge=0,
        description="Memory for analyses that are kept, so that a launch seen before is not "
        "analysed again.",
    )
    module_cache_bytes: int = Field(
        default=8 * MEBIBYTE,
        ge=0,
        description="PTX text whose parsed modules are kept (parsed, up to 15 times its size).",
    )
    recent_predictions: int = Field(
        default=1024, ge=1, description="Latest predictions kept in memory besides the database."
    )
    store_queue_rows: int = Field(
        default=10_000,
        ge=1,
        description="Predictions that may wait to be written; more are answered 503.",
    )
    store_flush_milliseconds: float = Field(
        default=20.0,
        ge=0,
        description="How long written predictions are gathered into one transaction.",
    )

    @property
    def sqlalchemy_url(self) -> str:
        """The database's URL; may hold a password, so it is never logged."""
        if self.database_url is not None:
            return self.database_url.get_secret_value()
        return f"sqlite:///{(self.home / 'wattcast.db').absolute()}"
