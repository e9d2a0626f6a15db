"""Kernels of a Volta with hardware counters asked as users ask, beside counts and elapsed cycles.

    python -m studies volta --ptx FOLDER            counts and time, kernel by kernel
    python -m studies volta --ptx FOLDER --kernel NAME --kernel NAME
    python -m studies volta --ptx FOLDER --write    also the errors of time, for intervals

Launches and arguments are those of ``counters/volta_launches.json`` of the data folder, counters
those of ``volta_kernels.csv`` beside it (a Quadro GV100; its README tells clocks and sources). The
folder holds KERNEL.ptx, compiled for compute capability 7.0 by the reader: the sources are not part
of this repository. A texture reference is a texture object there, the last parameter of its kernel.
Predicted cycles are those of the whole answer, its launch included: kernels of some microseconds
show that elapsed cycles hold a start too.
"""

from __future__ import annotations

import csv
import json
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from studies import parser_of
from studies.card_tables import table
from studies.end_to_end import log_ratios, percent
from wattcast.app.settings import Settings
from wattcast.features.errors import DataError
from wattcast.predictor import Predictor
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.predict import predict
from wattcast.training.data.datasets import find_data

GPU = "tesla-v100-sxm2-16gb"
"""The profile nearest to a Quadro GV100: its SMs, L2 and kind of memory."""
CORE_MHZ, MEMORY_MHZ = 1447.0, 850.0
"""Of the board measured (README of the data folder)."""
NEAR = 0.10
"""What counts as near a counter, relative."""
FEWEST = 1000
"""Counts below it are not scored: the DRAM reads of kernels that only write are 6 to 640."""

RESULTS = Path(__file__).with_suffix(".json")
CHOSEN_BY = ("dct8x8_k1", "parboil_mriq_k1")
"""Kernels that chose a constant of the time model (``bottleneck.CONSTANT_CYCLES``): their errors of
time are not kept for intervals."""

Counters = Mapping[str, float]

QUANTITIES: Mapping[str, tuple[Callable[[Counters], float], Callable[[Counters], float]]] = {
    "L1": (
        lambda c: c["global_load_sectors"] + c["global_store_sectors"],
        lambda m: m["L1_RH"] + m["L1_RM"] + m["L1_WH"] + m["L1_WM"],
    ),
    "L2": (
        lambda c: c["l2_sectors"],
        lambda m: m["L2_RH"] + m["L2_RM"] + m["L2_WH"] + m["L2_WM"],
    ),
    "DRAM read": (lambda c: c["dram_read_sectors"], lambda m: m["DRAM_Rd"]),
    "DRAM write": (lambda c: c["dram_write_sectors"], lambda m: m["DRAM_Wr"]),
    "shared": (lambda c: c["shared_requests"], lambda m: m["SHRD_ACC"]),
    "constant": (lambda c: c["constant_transactions"], lambda m: m["CC_ACC"]),
}
"""As predicted (``activity1``) and as measured."""


class Asked(NamedTuple):
    """One kernel: cycles measured and predicted with their interval, ratios of predicted to
    measured counts where there are any, seconds by resource, codes of warnings."""

    name: str
    measured: float
    cycles: float
    low: float
    high: float
    ratios: Mapping[str, float]
    parts: Mapping[str, float]
    warnings: tuple[str, ...]
    seconds_taken: float
    regime: str


def kernels() -> Iterator[tuple[str, Mapping[str, Any], Counters]]:
    """Name, launch and counters of every kernel with a launch. Raises DataError."""
    data = find_data()
    if data is None:
        raise DataError("no data folder: set WATTCAST_DATA")
    folder = data / "counters"
    launches = json.loads((folder / "volta_launches.json").read_text(encoding="utf-8"))
    with (folder / "volta_kernels.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["name"] in launches:
                numbers = {k: float(v) for k, v in row.items() if k[:1].isupper()}
                yield row["name"], launches[row["name"]], numbers


def _request(ptx: str, launch: Mapping[str, Any]) -> PredictRequest:
    found = re.findall(rf"\.entry (_Z\w*{launch['kernel']}\w*)", ptx)
    body = {
        "ptx": ptx,
        "kernel": found[0],
        "gpu": GPU,
        "clocks": {"core_mhz": CORE_MHZ, "memory_mhz": MEMORY_MHZ},
        "launch": {
            **{name: launch[name] for name in ("grid", "block", "dynamic_shared_bytes")},
            "l2": "cold",
            "arguments": {str(n): value for n, value in enumerate(launch["arguments"].values())},
        },
    }
    return PredictRequest.model_validate(body)


def ask(predictor: Predictor, folder: Path, chosen: Sequence[str]) -> Iterator[Asked]:
    """The kernels whose PTX is in the folder. Raises DataError."""
    for name, launch, measured in kernels():
        path = folder / f"{name}.ptx"
        if not path.is_file() or (chosen and name not in chosen):
            continue
        begun = time.process_time()
        answer = predict(predictor, _request(path.read_text(encoding="utf-8"), launch))
        taken = time.process_time() - begun
        counts, told = answer["features"], answer["time"]
        low, cycles, high = (told[end] * CORE_MHZ * 1e6 for end in ("low", "seconds", "high"))
        yield Asked(
            name, measured["Elapsed_Cycles"], cycles, low, high,
            {
                quantity: ours(counts) / theirs(measured)
                for quantity, (ours, theirs) in QUANTITIES.items()
                if theirs(measured) >= FEWEST
            },
            answer["time_model"]["parts"],
            tuple(sorted({warning["code"] for warning in answer["warnings"]})),
            taken, answer["time_model"]["regime"],
        )  # fmt: skip


def tables(found: Sequence[Asked]) -> str:
    """Predicted over measured by kernel; of each count how many are near; errors of time."""
    lines = []
    for one in found:
        parts = sorted(one.parts.items(), key=lambda part: -part[1])[:4]
        told = ", ".join(f"{name} {1e6 * part:.3g}" for name, part in parts)
        ratios = [f"{one.ratios[n]:.2f}" if n in one.ratios else "-" for n in QUANTITIES]
        lines.append(
            [
                one.name, f"{one.measured:.0f}", f"{one.cycles / one.measured:.2f}", *ratios,
                "yes" if one.low <= one.measured <= one.high else "no",
                f"{one.high / one.low:.1f}", told, f"{one.seconds_taken:.1f}",
                ", ".join(one.warnings),
            ]
        )  # fmt: skip
    titles = (
        "kernel", "cycles", "time", *QUANTITIES, "inside", "width", "longest parts, µs", "asked s",
        "warnings",
    )  # fmt: skip
    near = []
    for name in QUANTITIES:
        off = np.array([abs(one.ratios[name] - 1) for one in found if name in one.ratios])
        close = [int((off <= within).sum()) for within in (NEAR, NEAR / 2)]
        near.append([name, str(off.size), *map(str, close)])
    errors = percent([one.cycles for one in found], [one.measured for one in found])
    inside = sum(one.low <= one.measured <= one.high for one in found)
    width = float(np.median([one.high / one.low for one in found]))
    return (
        f"{table(titles, lines)}\n"
        f"{table(('count', 'kernels', 'within 10 %', 'within 5 %'), near)}\n"
        f"Time of {len(found)} kernels: mean error {errors.mean():.1f} %, median "
        f"{np.median(errors):.1f} %; {inside} inside, median high/low {width:.1f}.\n"
    )


def main(arguments: list[str] | None = None, write: Callable[[str], object] = print) -> int:
    """Run the command; the exit status. Raises DataError."""
    parser = parser_of("volta", __doc__)
    parser.add_argument("--ptx", type=Path, required=True, help="folder of KERNEL.ptx")
    parser.add_argument("--kernel", action="append", default=[])
    parser.add_argument("--write", action="store_true", help=f"errors of time into {RESULTS.name}")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as home:
        predictor = Predictor(Settings(home=Path(home)))
        found = list(ask(predictor, options.ptx, options.kernel))
    if not found:
        raise DataError(f"{options.ptx} holds no KERNEL.ptx of volta_launches.json")
    write(tables(found))
    if options.write:
        kept = {
            one.name: log_ratios([(one.regime, one.measured, one.cycles)])
            for one in found
            if one.name not in CHOSEN_BY
        }
        RESULTS.write_text(json.dumps({GPU: kept}, indent=2) + "\n", encoding="utf-8")
    return 0
