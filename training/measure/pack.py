"""An open data set of recordings: PTX, launches, raw samples, results (CC BY 4.0)."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path

from wattcast.features.errors import DataError
from wattcast.training.measure.lines import LICENCE, schema
from wattcast.training.measure.recording import Recording, read_recording, rows

_DAY = (1980, 1, 1, 0, 0, 0)
"""The least date a ZIP file holds: the same recordings make the same file."""

_README = Path(__file__).with_name("pack_readme.md")


def pack(paths: Sequence[Path], target: Path, attribution: str) -> dict[str, int]:
    """Write recordings as one ZIP file; counts of what went in.

    Raises DataError for a recording under another licence (imported ones are mostly), for two
    with one name, and where ``target`` exists.
    """
    if target.exists():
        raise DataError(f"{target} exists already", file=target.name)
    if not paths:
        raise DataError("no recording to pack")
    recordings: dict[str, Recording] = {}
    files: dict[str, bytes] = {}
    for path in paths:
        found = read_recording(path)
        for session in found.sessions:
            if session.licence != LICENCE:
                raise DataError(
                    f"{path.name} is under {session.licence}, not {LICENCE}: it cannot be part of "
                    "an open data set",
                    file=path.name,
                )
        if path.name in recordings:
            raise DataError(f"two recordings are called {path.name}", file=path.name)
        recordings[path.name] = found
        content = path.read_bytes()
        # A line that an interruption cut off is no part of the data.
        files[f"recordings/{path.name}"] = content[: content.rfind(b"\n") + 1]
        for name, ptx in found.modules.items():
            files[f"ptx/{name}.ptx"] = ptx.encode()
    files["results.csv"] = _table(recordings)
    files["recording.schema.json"] = (json.dumps(schema(), indent=1) + "\n").encode()
    counts = {
        "recordings": len(recordings),
        "modules": len({name for found in recordings.values() for name in found.modules}),
        "configurations": sum(len(found.configurations) for found in recordings.values()),
    }
    files["README.md"] = _readme(recordings, counts, attribution).encode()
    sums = [f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in sorted(files)]
    files["SHA256SUMS"] = "".join(sums).encode()
    partial = target.with_name(f".{target.name}.partial")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _DAY)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, files[name], zipfile.ZIP_DEFLATED, 9)
    partial.replace(target)
    return {**counts, "bytes": target.stat().st_size}


def _table(recordings: dict[str, Recording]) -> bytes:
    table = [
        {"recording": name, "provenance": found.provenance, **row}
        for name, found in sorted(recordings.items())
        for row in rows(found)
    ]
    if not table:
        raise DataError("the recordings hold no configuration")
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(table[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return text.getvalue().encode()


def _readme(recordings: dict[str, Recording], counts: dict[str, int], attribution: str) -> str:
    gpus = ", ".join(sorted({found.device.name for found in recordings.values()}))
    simulated = sorted(n for n, found in recordings.items() if found.provenance == "simulated")
    warning = (
        f"\n**Not measured:** {', '.join(simulated)} come from a simulated GPU.\n"
        if simulated
        else ""
    )
    return _README.read_text(encoding="utf-8").format(
        kernels=counts["modules"],
        configurations=counts["configurations"],
        gpus=gpus,
        warning=warning,
        attribution=attribution,
    )
