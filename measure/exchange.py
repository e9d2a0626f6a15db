"""Recordings given and taken: an open data set (CC BY 4.0), files of Kernel Tuner and Zeus."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import zipfile
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from wattcast.features.errors import DataError
from wattcast.measure import recording as records
from wattcast.measure.device import Device
from wattcast.measure.workload import Board, Described
from wattcast.predictor.reports import comma_separated
from wattcast.predictor.tuning_files import TuningRun

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
    recordings: dict[str, records.Recording] = {}
    files: dict[str, bytes] = {}
    for path in paths:
        found = records.read_recording(path)
        for session in found.sessions:
            if session.licence != records.LICENCE:
                raise DataError(
                    f"{path.name} is under {session.licence}, not {records.LICENCE}: it cannot be "
                    "part of an open data set",
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
    files["recording.schema.json"] = (json.dumps(records.schema(), indent=1) + "\n").encode()
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


def _table(recordings: dict[str, records.Recording]) -> bytes:
    table = [
        {"recording": name, "provenance": found.provenance, **row}
        for name, found in sorted(recordings.items())
        for row in records.rows(found)
    ]
    if not table:
        raise DataError("the recordings hold no configuration")
    return comma_separated(list(table[0]), table).encode()


def _readme(
    recordings: dict[str, records.Recording], counts: dict[str, int], attribution: str
) -> str:
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


# --- Recordings from what others measured: Kernel Tuner's results and Zeus' --------------------


def from_tuning(run: TuningRun, kernel: str) -> list[records.Configuration]:
    """Configurations of a Kernel Tuner file; refused and failed ones are left out.

    Blocks are the parameters ``block_size_x``, ``_y``, ``_z``; grids the problem size over them
    (1 where it is not known). Raises DataError where none was measured.
    """
    made = []
    for number, one in enumerate(run.configurations):
        if not one.valid or one.time_seconds is None:
            continue
        block = tuple(int(one.parameters.get(f"block_size_{axis}", 1)) for axis in "xyz")
        sizes = (*(run.problem_size or ()), 1, 1, 1)[:3]
        grid = tuple(max(1, -(-size // width)) for size, width in zip(sizes, block, strict=True))
        told = ", ".join(f"{name}={value}" for name, value in one.parameters.items())
        key, measured = f"{_name(kernel)}-{number}", (one.time_seconds, one.energy_joules)
        made.append(_configuration(key, kernel, *measured, told, grid, block))
    if not made:
        raise DataError("the file has no measured configurations")
    return made


def from_zeus(text: str) -> list[records.Configuration]:
    """Windows of a ZeusMonitor log: ``start_time,window_name,elapsed_time,gpu<i>_energy`` (Zeus,
    zeus/monitor/energy.py, ``log_file``), seconds and joules. One GPU's energy.

    Raises DataError for another file, or several GPUs in one window.
    """
    reader = csv.DictReader(io.StringIO(text))
    names = reader.fieldnames or []
    energies = [name for name in names if re.fullmatch(r"gpu\d+_energy", name)]
    if "window_name" not in names or "elapsed_time" not in names:
        raise DataError("not a Zeus log: no window_name or elapsed_time")
    if len(energies) != 1:
        raise DataError(f"expected the energy of one GPU, found {len(energies)}")
    made = []
    for row, window in enumerate(reader, start=2):
        try:
            seconds, joules = float(window["elapsed_time"]), float(window[energies[0]])
        except (TypeError, ValueError) as error:
            raise DataError(f"line {row}: not numbers", row=row) from error
        if seconds <= 0:
            raise DataError(f"line {row}: elapsed_time is not above 0", row=row)
        name = str(window["window_name"])
        made.append(
            _configuration(f"{_name(name)}-{row - 2}", name, seconds, joules, "Zeus window")
        )
    if not made:
        raise DataError("the log has no windows")
    return made


def write_imported(
    path: Path,
    configurations: Sequence[records.Configuration],
    gpu: str,
    origin: str,
    licence: str,
    ptx: str | None = None,
) -> None:
    """Write a recording of imported configurations. Raises DataError where ``path`` exists, and for
    a value that cannot have been measured (on ``gpu``, where a profile has that name)."""
    if path.exists():
        raise DataError(f"{path} exists already", file=path.name)
    device = Device(
        name=gpu,
        label="imported",
        # Nobody told more of the board than its name.
        board=Board(
            sm_count=1,
            compute_capability=(0, 0),
            l2_bytes=1,
            memory_bytes=1,
            max_threads_per_sm=32,
        ),
    )
    head = records.Session(
        provenance="imported",
        licence=licence,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        device=device,
        software={"origin": origin},
        notes=("imported: the board's facts, clocks and raw samples are not known",),
    )
    for one in configurations:
        records.doubts_of(one, device, one.key)
    sha256 = hashlib.sha256(ptx.encode()).hexdigest() if ptx is not None else None
    with closing(records.Recorder(path, head)) as recorder:
        for one in configurations:
            recorder.write_configuration(one.model_copy(update={"ptx_sha256": sha256}), ptx)


def _configuration(
    key: str,
    kernel: str,
    seconds: float,
    joules: float | None,
    description: str,
    grid: tuple[int, ...] = (1, 1, 1),
    block: tuple[int, ...] = (1, 1, 1),
) -> records.Configuration:
    workload = Described(
        id=key,
        role="application",
        family=_name(kernel),
        kernel=kernel,
        grid=grid,  # type: ignore[arg-type]
        block=block,  # type: ignore[arg-type]
        description=description,
    )
    has_energy = joules is not None and joules > 0
    watts = joules / seconds if has_energy and joules is not None and seconds else None
    return records.Configuration(
        key=key,
        workload=workload,
        ptx_sha256=None,
        pattern="uniform",
        result=records.Result(
            time_seconds=seconds,
            power_watts=watts,
            energy_joules=joules if has_energy else None,
            unresolved=() if has_energy else ("energy_not_measured",),
        ),
    )


def _name(text: str) -> str:
    return re.sub(r"[^a-z0-9_.+-]+", "-", text.lower()).strip("-.+_")[:64] or "kernel"
