"""What data are there: every table read, checked and counted.

inventory(root)   one ``TableFacts`` for each power table that can be read or should be there

Other tables are ``unread``: only studies read them.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import httpx

from wattcast.features.errors import DataError
from wattcast.models.cards import sha256_of
from wattcast.training.data import datasets
from wattcast.training.data.cleaning import MODEL_INPUTS, clean
from wattcast.training.data.datasets import SourceFile, sources
from wattcast.training.provenance import fingerprint

State = Literal["complete", "shortened", "sound", "defective", "missing", "unread"]
"""``complete``: the upstream file, by its checksum; ``shortened``: readable, but not that file;
``sound``: readable, and no upstream file to hold it against; ``unread``: nothing here reads it."""


@dataclass(frozen=True)
class TableFacts:
    """One table. ``rows`` as in the file, ``kept`` of them after cleaning.

    ``dropped`` counts rows by rule, ``noted`` what was kept although something is odd.
    ``fingerprint`` is a sha256 of the rows kept, the same however the file is written; that of a
    power file is of its vectors, watts and kernel groups, before any recomputing. ``problem``
    says what is wrong with a defective or missing table. Readers of sound tables leave ``path`` and
    ``sha256`` to ``inventory``.
    """

    path: str = ""
    state: State = "missing"
    sha256: str = ""
    rows: int = 0
    kept: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    noted: Mapping[str, int] = field(default_factory=dict)
    fingerprint: str = ""
    problem: str = ""


Readers = Mapping[str, Callable[[], TableFacts]]
"""Path of a table below the data folder -> what reads and counts it."""


def inventory(root: Path) -> list[TableFacts]:
    """Facts of every table below ``root``, sorted by path: also of those missing or defective."""
    readers = _readers(root)
    there = {path.relative_to(root).as_posix() for path in root.rglob("*.csv")}
    return [_facts(root, name, readers.get(name)) for name in sorted({*readers, *there})]


def data_folder(given: Path | None) -> Path:
    """``given``, else the folder of the data sets. Raises DataError where there is none."""
    folder = given or datasets.find_data()
    if folder is None or not folder.is_dir():
        raise DataError(
            f"there is no folder {folder}"
            if folder
            else "no training data: set WATTCAST_DATA, or name a folder"
        )
    return folder


def _readers(root: Path) -> Readers:
    readers: dict[str, Callable[[], TableFacts]] = {"power/kernel_names.csv": lambda: _names(root)}
    for source in datasets.sources().file:
        readers[f"power/raw/{source.name}"] = partial(_raw, source.id, root)
    return readers


def _facts(root: Path, name: str, read: Callable[[], TableFacts] | None) -> TableFacts:
    path = root / name
    if not path.is_file():
        return TableFacts(name, "missing", problem=f"{name} is not there")
    found_sha256 = sha256_of(path)
    if read is None:
        return TableFacts(name, "unread", found_sha256)
    try:
        found = read()
    except DataError as error:
        return TableFacts(name, "defective", found_sha256, problem=str(error))
    dropped = {rule: count for rule, count in found.dropped.items() if count}
    noted = {what: count for what, count in found.noted.items() if count}
    return replace(found, path=name, sha256=found_sha256, dropped=dropped, noted=noted)


def _raw(source_id: str, root: Path) -> TableFacts:
    raw, table = datasets.read_raw(source_id, root), clean(source_id, root)
    rows = table.training_rows
    idle = len(table.frame) - len(rows)
    flagged = {
        f"10 {flag}": int(table.frame["flag"].str.contains(flag).sum())
        for flag in ("iic_zero", "short_run", "time_not_kernel")
    }
    return TableFacts(
        state="complete" if raw.complete else "shortened",
        rows=len(raw.text),
        kept=len(rows),
        fingerprint=fingerprint(
            rows[list(MODEL_INPUTS)].to_numpy(float),
            rows["power_w"].to_numpy(float),
            rows["kernel_group"].tolist(),
        ),
        dropped={**table.dropped, "5 idle_power": idle},
        noted={"4 named by rule": table.named_by_rule, **flagged},
    )


def _names(root: Path) -> TableFacts:
    names = datasets.read_kernel_names(root)
    count, found = len(names), digest(sorted(map(repr, names.items())))
    return TableFacts(state="sound", rows=count, kept=count, fingerprint=found)


def digest(lines: Iterable[str]) -> str:
    """sha256 of lines of text."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


# Downloads the complete upstream files that ``sources.toml`` names. Nothing appears under its name
# before its sha256 is what the table says.

MAX_BYTES = 16 * 1024 * 1024
"""Largest file taken: the eight have half a megabyte or less, and no address may fill a disk."""

TIMEOUT = httpx.Timeout(30.0, connect=10.0)
"""Seconds to connect, and between two pieces."""

ATTEMPTS = 3
PAUSE_SECONDS = 1.0

Progress = Callable[[str], None]


class FetchError(DataError):
    """A file that could not be had, or is not what it should be; ``address`` says whence."""

    slug = "data-fetch"


class _BusyError(Exception):
    """A server that may answer another try."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """A file that is now there. ``received_bytes`` came over the network this time."""

    id: str
    path: Path
    sha256: str
    how: Literal["fetched", "present"]
    received_bytes: int


def address_of(source: SourceFile, base: str | None = None) -> str:
    """Where a file is had from: ``<base>/<commit>/<path>``, the path quoted."""
    root = (base or sources().raw_address).rstrip("/")
    if not root.startswith(("https://", "http://")):
        raise FetchError(f"{root} is not an http or https address", address=root)
    return f"{root}/{source.commit}/{quote(source.path)}"


def fetch(
    source: SourceFile,
    folder: Path,
    *,
    base: str | None = None,
    replace: bool = False,
    progress: Progress = lambda line: None,
) -> Fetched:
    """Have one complete file in ``folder`` (made if need be).

    A file that is there already is left alone if it is the complete one, and replaced by it only
    with ``replace``. ``base`` stands in for the address in ``sources.toml`` (a mirror). Raises
    FetchError saying what went wrong, after ``ATTEMPTS`` tries where trying again makes sense.
    """
    path, address = folder / source.name, address_of(source, base)
    if path.exists():
        found = sha256_of(path)
        if found == source.sha256:
            return Fetched(source.id, path, found, "present", 0)
        if not replace:
            raise FetchError(
                f"{path} is not the complete upstream file (a shortened copy?); it stays as it is "
                "unless it may be replaced",
                file=source.name,
                address=address,
            )
    progress(f"{source.id}: {address}")
    content = _received(source, address, progress)
    found = hashlib.sha256(content).hexdigest()
    if found != source.sha256:
        raise FetchError(
            f"{address} has sha256 {found}, not {source.sha256}: another file than the one named; "
            "nothing was kept",
            file=source.name,
            address=address,
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f".{source.name}.part"
        part.write_bytes(content)
        part.replace(path)
    except OSError as error:
        raise FetchError(f"{path} cannot be written: {error}", file=source.name) from error
    return Fetched(source.id, path, found, "fetched", len(content))


def _received(source: SourceFile, address: str, progress: Progress) -> bytes:
    """The file, in as many tries as it takes."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return _one_try(source, address)
        except (httpx.HTTPError, _BusyError) as error:
            reason = str(error) or type(error).__name__
            if attempt == ATTEMPTS:
                said = f"{address}: {reason}, {ATTEMPTS} times"
                raise FetchError(said, file=source.name, address=address) from error
            progress(f"{source.id}: {reason}; again")
            time.sleep(PAUSE_SECONDS * attempt)
    raise AssertionError("unreachable")


def _one_try(source: SourceFile, address: str) -> bytes:
    with httpx.stream("GET", address, timeout=TIMEOUT, follow_redirects=True) as response:
        status, content = response.status_code, bytearray()
        if status >= 500 or status == httpx.codes.TOO_MANY_REQUESTS:
            raise _BusyError(f"the server answers {status}")
        why = f"the server answers {status} {response.reason_phrase}".rstrip()
        if status == httpx.codes.OK:
            for piece in response.iter_bytes():
                content += piece
                if len(content) > MAX_BYTES:
                    why = f"more than {MAX_BYTES} bytes, the most that is taken"
                    break
            else:
                return bytes(content)
        raise FetchError(f"{address}: {why}", file=source.name, address=address)
