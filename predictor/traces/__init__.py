"""Traces of whole applications: what ran on a GPU, when, and how it was launched.

    trace      the columns that both kinds of file are read into, and kernels that share a board:
               joules of each launch, gaps, power over time
    nsys       SQLite exports of Nsight Systems
    kineto     Chrome traces of the PyTorch profiler, also gzipped, read as they stream
    code       PTX of the kernels, found in folders and binaries
    library    kernels of libraries as the operators they are, and power of kernels without code
    powers     power of every kind of launch on a board, also at other clocks
    totals     the sum of all with its interval; two answers beside each other
    mixes      the best clock for all of them

``wattcast.predictor.application`` puts them together.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from wattcast.features.errors import DataError
from wattcast.predictor.traces import kineto, nsys, trace

Progress = Callable[[str, int], None]
"""Told what is counted and how many there are so far."""

SQLITE = b"SQLite format 3\x00"
GZIP = b"\x1f\x8b"
REPORTS = {".nsys-rep": "nsys export --type sqlite", ".qdrep": "nsys export --type sqlite"}


def read_trace(
    path: Path,
    progress: Progress = lambda what, count: None,
    *,
    name: str | None = None,
    most_characters: int | None = None,
) -> trace.Trace:
    """A trace, told by its content and not by its name.

    ``name`` is what errors call it; ``most_characters`` limits what a gzip unpacks to, and with it
    the launches and ranges: for what others send.
    Raises DataError for a file that is neither kind, is cut off or holds no kernel, saying where;
    ServiceError ``too-large`` beyond the limit; GivenUpError where its caller gives up.
    """
    name = name or path.name
    try:
        with path.open("rb") as file:
            start = file.read(4096)
    except OSError as error:
        raise DataError(f"{name}: {error.strerror}", file=name) from error
    if start.startswith(SQLITE):
        return nsys.read(path, name, progress, most_characters is not None)
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if start.startswith(GZIP) or text[:1] in (b"{", b"["):
        return kineto.read(path, name, progress, most_characters)
    if not start:
        raise DataError(f"{name} is empty", file=name)
    export = REPORTS.get(Path(name).suffix)
    what = f"export it first: {export} {name}" if export else "it is neither"
    raise DataError(
        f"{name}: expected a SQLite export of Nsight Systems or a JSON trace of the PyTorch "
        f"profiler; {what}",
        file=name,
    )


def own_events(path: Path, most: int) -> list[dict[str, Any]]:
    """The first so many events of a JSON trace, as ``kineto.own_events``; none of other files.
    Raises DataError."""
    with path.open("rb") as file:
        return [] if file.read(len(SQLITE)) == SQLITE else kineto.own_events(path, most)
