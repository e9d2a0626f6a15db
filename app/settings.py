"""Settings of the service: every one is an environment variable ``WATTCAST_<NAME>``."""

from __future__ import annotations

import ipaddress
from dataclasses import fields
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

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

    host: str = Field(default="127.0.0.1", description="Address the service listens on.")
    port: int = Field(
        default=8000, ge=0, le=65535, description="Port it listens on; 0 picks a free one."
    )
    home: Path = Field(
        default_factory=lambda: Path.home() / ".wattcast",
        description="Folder for user data: database, GPU profiles, calibrated models.",
    )
    database_url: SecretStr | None = Field(
        default=None,
        description="SQLAlchemy URL of the database, e.g. PostgreSQL. "
        "Unset: a SQLite file in WATTCAST_HOME.",
    )
    database_connections: int = Field(
        default=20, ge=2, description="Most connections of one process to PostgreSQL."
    )
    database_seconds: float = Field(
        default=5.0,
        ge=1,
        description="Longest wait for a statement, a lock or a free connection of the database; "
        "then the request is answered 503.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Lowest severity that is logged."
    )
    log_format: Literal["auto", "json", "console"] = Field(
        default="auto",
        description="Log lines as JSON or readable; auto: JSON unless stderr is a terminal.",
    )
    api_keys: Literal["auto", "required", "off"] = Field(
        default="auto",
        description="Whether calls need an API key (wattcast keys create); auto: unless the "
        "service listens on the loopback only.",
    )
    key_cache_seconds: float = Field(
        default=5.0,
        ge=0,
        description="How long a checked key is cached; a revoked key works this much longer.",
    )
    requests_per_second: float | None = Field(
        default=None,
        ge=0,
        description="Requests a second that one key (without keys: one address) may make on "
        "average; more are answered 429. Unset: 100 where keys are required, else no limit; 0: no "
        "limit.",
    )
    requests_burst: int = Field(
        default=200, ge=1, description="Requests that one caller may make at once before that."
    )
    requests_at_once: int = Field(
        default=512, ge=1, description="Requests served at the same time; more are answered 429."
    )
    requests_at_once_per_caller: int = Field(
        default=64,
        ge=1,
        description="Requests of one key (without keys: one address) served at the same time; more "
        "are answered 429.",
    )
    event_streams_per_caller: int = Field(
        default=16,
        ge=1,
        description="Jobs that one caller may follow at the same time by /jobs/{job_id}/events; "
        "more are answered 429.",
    )
    slow_bodies_per_caller: int = Field(
        default=16,
        ge=1,
        description="Request bodies of one caller that may take longer than 2 s to arrive, at the "
        "same time; more are answered 429.",
    )
    connections_per_address: int = Field(
        default=512,
        ge=1,
        description="Connections that one address may hold, and never more than half of the files "
        "that the process may open; more are answered 429 and closed. A reverse proxy is one "
        "address.",
    )
    failed_key_seconds: float = Field(
        default=8.0,
        ge=0,
        description="Longest delay of the answer to a wrong key. After 5 wrong keys from an "
        "address the delay doubles each time; 0: no delay.",
    )
    header_seconds: float = Field(
        default=10.0,
        gt=0,
        description="Longest time the headers of a request may take to arrive; then the connection "
        "is answered 408 and closed.",
    )
    body_seconds: float = Field(
        default=60.0,
        gt=0,
        description="Longest time a request body may take to arrive; then it is answered 408.",
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
    max_line_characters: int = Field(
        default=DEFAULT_LIMITS.max_line_characters,
        ge=1,
        description="Longest line of PTX. A longer one is answered 422 too-complex, like "
        "everything beyond the size limits that follow.",
    )
    max_statement_characters: int = Field(
        default=DEFAULT_LIMITS.max_statement_characters,
        ge=1,
        description="Longest operand list of one PTX instruction.",
    )
    max_kernel_instructions: int = Field(
        default=DEFAULT_LIMITS.max_kernel_instructions,
        ge=1,
        description="Most instructions of a kernel or of a function it calls, and as many "
        "declarations.",
    )
    max_kernel_labels: int = Field(
        default=DEFAULT_LIMITS.max_kernel_labels,
        ge=1,
        description="Most labels of a kernel or function.",
    )
    max_kernel_blocks: int = Field(
        default=DEFAULT_LIMITS.max_kernel_blocks,
        ge=1,
        description="Most basic blocks of a kernel or function.",
    )
    max_kernel_edges: int = Field(
        default=DEFAULT_LIMITS.max_kernel_edges,
        ge=1,
        description="Most targets of branches in a kernel or function, switch tables included.",
    )
    max_loop_nesting: int = Field(
        default=DEFAULT_LIMITS.max_loop_nesting, ge=1, description="Deepest nesting of loops."
    )
    max_kernel_liveness: int = Field(
        default=DEFAULT_LIMITS.max_kernel_liveness,
        ge=1,
        description="Most values alive across basic blocks times blocks. Estimating registers "
        "takes five times as many bits of memory.",
    )
    max_module_symbols: int = Field(
        default=DEFAULT_LIMITS.max_module_symbols,
        ge=1,
        description="Most functions, variables and source files of one PTX module.",
    )
    max_cuda_bytes: int = Field(
        default=MEBIBYTE,
        ge=1,
        description="Largest CUDA source (UTF-8); a larger one is answered 413.",
    )
    compile_seconds: float = Field(
        default=20.0, gt=0, description="Time limit of the compiler for one CUDA source."
    )
    compile_memory_bytes: int = Field(
        default=4096 * MEBIBYTE, ge=1, description="Memory limit of the compiler."
    )
    unsafe_compile: bool = Field(
        default=False,
        description="Compile CUDA source over HTTP even where the kernel cannot isolate the "
        "compiler (/readyz, `compilers`): whoever may send it can then read the service's files.",
    )
    ptxas: Literal["auto", "off"] = Field(
        default="auto",
        description="Count registers with ptxas where the extra cuda is installed (once per "
        "kernel and capability, about 65 ms); off estimates them.",
    )
    max_upload_bytes: int = Field(
        default=256 * MEBIBYTE,
        ge=1,
        description="Largest upload of measurements as it is sent; a larger one is answered 413.",
    )
    max_unpacked_bytes: int = Field(
        default=1024 * MEBIBYTE,
        ge=1,
        description="Largest upload once unpacked; what unpacks to more is answered 413.",
    )
    max_upload_rows: int = Field(
        default=100_000, ge=1, description="Most rows of one upload; more are answered 413."
    )
    max_upload_files: int = Field(
        default=2_000, ge=1, description="Most files in a zip of measurements and PTX."
    )
    uploads_at_once: int = Field(
        default=1, ge=1, le=64, description="Uploads that are read at the same time."
    )
    upload_readers: Literal["processes", "threads"] = Field(
        default="processes",
        description="Whether uploads are read by processes beside the service or by its threads. "
        "With processes, predictions stay fast and a hostile upload ends only its reader; "
        "threads save about 90 MB while uploads come in.",
    )
    waiting_uploads: int = Field(
        default=64, ge=0, description="Uploads that may wait; more are answered 429."
    )
    upload_seconds: float = Field(
        default=300.0,
        gt=0,
        description="Longest time to wait for and read an upload; then it is answered 503.",
    )
    parquet_memory_bytes: int = Field(
        default=2048 * MEBIBYTE,
        ge=1,
        description="Memory limit of the process that reads an uploaded Parquet file.",
    )
    max_gpus: int = Field(default=16, ge=1, description="Most GPUs one request may name.")
    analyses_at_once: int = Field(
        default=2,
        ge=1,
        le=256,
        description="PTX analyses that run at the same time (threads), and one more for a caller "
        "with none running.",
    )
    waiting_analyses: int = Field(
        default=128,
        ge=0,
        description="Requests that may wait for an analysis; more are answered 429.",
    )
    analysis_seconds: float = Field(
        default=30.0,
        gt=0,
        description="Longest time a request waits for its analysis; then it gets 503. A request "
        "may ask for less.",
    )
    analysis_effort: int = Field(
        default=DEFAULT_EFFORT,
        ge=1,
        description="Budget of an executed analysis for requests that name no analysis_effort, in "
        "instructions times lanes; what is beyond is extrapolated, which the answer tells.",
    )
    max_analysis_effort: int = Field(
        default=10 * DEFAULT_EFFORT, ge=1, description="Largest analysis_effort a request may name."
    )
    cache_bytes: int = Field(
        default=256 * MEBIBYTE,
        ge=0,
        description="Memory for all caches: parsed PTX, compiled CUDA source, analyses, latest "
        "predictions. The least recently used entries go first; 0: no caching.",
    )
    store_queue_rows: int = Field(
        default=10_000,
        ge=1,
        description="Predictions that may wait to be written; more are answered 503.",
    )
    answer_first: bool = Field(
        default=False,
        description="Answer predictions before they are committed. This is about a millisecond "
        "faster and works through a database outage, but a killed process loses queued rows.",
    )

    job_workers: int = Field(
        default=1,
        ge=0,
        le=16,
        description="Jobs that this process runs at the same time, each in a child process; 0 "
        "leaves them to wattcast worker.",
    )
    job_lease_seconds: float = Field(
        default=30.0,
        gt=0,
        description="How long a job stays with a worker that no longer responds.",
    )
    job_attempts: int = Field(
        default=5, ge=1, description="How often a job is retried after its worker died."
    )
    job_seconds: float = Field(
        default=3600.0, gt=0, description="Time limit of a job; then it fails."
    )
    job_threads: int = Field(
        default=2, ge=1, le=256, description="Fits that one job runs at the same time."
    )
    job_poll_seconds: float = Field(
        default=0.5, gt=0, description="How often an idle worker looks for jobs."
    )
    job_priority: Literal["low", "idle"] = Field(
        default="low",
        description="`idle` gives a job only idle CPU time (Linux). Predictions stay fast; on a "
        "busy machine the job hardly advances.",
    )
    registry_poll_seconds: float = Field(
        default=0.5, gt=0, description="How often a service looks for promoted models."
    )
    registry: Literal["auto", "off"] = Field(
        default="auto",
        description="Whether the command line and Python use promoted models, if the database of "
        "these settings exists; a service always does.",
    )
    artifacts_url: str | None = Field(
        default=None,
        description="Second place for retrained models beside WATTCAST_HOME/registry, for services "
        "on other machines: s3://bucket/models, or any URL that fsspec supports.",
    )
    dask: str | None = Field(
        default=None,
        description="Address of a Dask scheduler whose workers run the fits of retrainings "
        "(tcp://host:8786); unset: threads of the job's process.",
    )
    dask_rows: int = Field(
        default=500_000,
        ge=1,
        description="Rows from which one XGBoost fit is spread over all workers of WATTCAST_DASK; "
        "fits on fewer rows run whole, side by side.",
    )
    gate_alpha: float = Field(
        default=0.025,
        gt=0,
        lt=1,
        description="Level of the test that a retrained model is better (training/retrain/).",
    )
    gate_old_margin: float = Field(
        default=0.02,
        ge=0,
        description="Largest allowed growth of its error on old data, in ln(watts).",
    )

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


def installed_version() -> str:
    """Version of the installed package."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("wattcast")
    except PackageNotFoundError:
        return "unknown"
