"""Traces of whole applications: what ran on a GPU, when, and how it was launched.

    trace      the columns that both kinds of file are read into
    nsys       SQLite exports of Nsight Systems
    kineto     Chrome traces of the PyTorch profiler, also gzipped, read as they stream
    code       PTX of the kernels, found in folders and binaries
    unknown    power of kernels without code
    board      kernels that share a board: joules of each launch, gaps, power over time

``wattcast.predictor.application`` puts them together.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from wattcast.features.errors import DataError
from wattcast.predictor.traces import kineto, nsys
from wattcast.predictor.traces.trace import Trace

Progress = Callable[[str, int], None]
"""Told what is counted and how many there are so far."""

SQLITE = b"SQLite format 3\x00"
GZIP = b"\x1f\x8b"
REPORTS = {".nsys-rep": "nsys export --type sqlite", ".qdrep": "nsys export --type sqlite"}


def read_trace(path: Path, progress: Progress = lambda what, count: None) -> Trace:
    """A trace, told by its content and not by its name.

    Raises DataError for a file that is neither kind, is cut off or holds no kernel, saying where.
    """
    try:
        with path.open("rb") as file:
            start = file.read(4096)
    except OSError as error:
        raise DataError(f"{path.name}: {error.strerror}", file=path.name) from error
    if start.startswith(SQLITE):
        return nsys.read(path, progress)
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if start.startswith(GZIP) or text[:1] in (b"{", b"["):
        return kineto.read(path, progress)
    if not start:
        raise DataError(f"{path.name} is empty", file=path.name)
    export = REPORTS.get(path.suffix)
    what = f"export it first: {export} {path.name}" if export else "it is neither"
    raise DataError(
        f"{path.name}: expected a SQLite export of Nsight Systems or a JSON trace of the PyTorch "
        f"profiler; {what}",
        file=path.name,
    )
