"""Well-known kernels beside what others published of them.

    python -m studies catalogue                      tables as Markdown
    python -m studies catalogue --kernel sgemm_naive
    python -m studies catalogue --write              docs/catalogue.md, results.json beside this

Kernels (``*.cu``) are our own, written after the descriptions that the figures' authors give; what
each launches, on which boards, and what was published stands in ``catalogue.toml``. Predictions
come from the use case that HTTP calls, at the clocks a board runs at by default where the figure
names none. No constant of the time model was fitted to a figure of this catalogue. Some rates of
the profiles come from the same microbenchmarks: such figures are marked, they test the analysis
alone. Needs the extra ``cuda``.
"""

from __future__ import annotations

import json
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from studies import parser_of
from studies.card_tables import table
from studies.end_to_end import by_hand, others_median
from studies.measuring_kernels import target, without_comments
from wattcast.app.settings import Settings
from wattcast.features.cuda import CompilerMissingError, compile_cuda
from wattcast.features.cuda.isolation import find_nvrtc
from wattcast.features.gpus import GpuProfile, load_gpu
from wattcast.models.clocks import ClockPair, default_clocks
from wattcast.predictor import Predictor
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.predict import predict_one

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "catalogue.md"
RESULTS = HERE / "results.json"
WITHIN = (1.5, 2.0)
"""Factors between predicted and published time that count as near and as far."""
PEAK_SLACK = 0.98
"""A time at the peak rate is predicted no shorter than this: datasheets round their figures."""


@dataclass(frozen=True)
class Figure:
    """What was published of a kernel on a board: ``seconds`` of the launch asked."""

    kernel: str
    gpu: str
    seconds: float
    bound: str
    source: str
    says: str
    peak: bool
    profile: bool
    request: Mapping[str, Any]


@dataclass(frozen=True)
class Outcome:
    """A figure, the predicted seconds, what bounds them, and the roofline's seconds: by distinct
    bytes where they exceed L2, by operations else. ``inside``: the predicted interval holds what
    was published."""

    figure: Figure
    seconds: float
    bound_by: str
    by_hand_seconds: float
    above_peak: bool
    warnings: tuple[str, ...]
    parts: Mapping[str, float]
    inside: bool

    @property
    def ratio(self) -> float:
        """Predicted over published time."""
        return self.seconds / self.figure.seconds


@cache
def manifest() -> Mapping[str, Any]:
    """``catalogue.toml``."""
    return tomllib.loads((HERE / "catalogue.toml").read_text(encoding="utf-8"))


@cache
def ptx(name: str) -> str:
    """PTX of a source. Raises CompileError, CompilerMissingError."""
    if find_nvrtc() is None:
        raise CompilerMissingError("NVRTC is not installed: pip install 'wattcast[cuda]'")
    text = (HERE / f"{name}.cu").read_text(encoding="utf-8")
    return without_comments(compile_cuda(text, target(text)).ptx)


def figures() -> list[Figure]:
    """Every published figure of the manifest."""
    return [
        _figure(kernel, published)
        for kernel in manifest()["kernel"]
        for published in kernel["figures"]
    ]


def _figure(kernel: Mapping[str, Any], published: Mapping[str, Any]) -> Figure:
    given = {**kernel, **published}
    gpu = load_gpu(given["gpu"])
    clocks = given.get("clocks")
    hz = clocks["core_mhz"] * 1e6 if clocks else default_clocks(gpu).core_hz
    grid = given["grid"] if "grid" in given else [given["blocks_per_sm"] * gpu.sm_count]
    blocks = np.prod(grid)
    work = given["work"] if "work" in given else given["work_per_block"] * blocks
    if "seconds" in given:
        seconds = given["seconds"]
    elif "cycles" in given:
        seconds = work * given["cycles"] / hz
    elif "per_clock_of_sm" in given:
        seconds = work / (given["per_clock_of_sm"] * gpu.sm_count * hz)
    else:
        seconds = work / given["per_second"]
    request: dict[str, Any] = {
        "kernel": given.get("entry", given["name"]),
        "gpu": given["gpu"],
        "launch": {
            "grid": grid,
            "block": given["block"],
            "dynamic_shared_bytes": given.get("shared_bytes", 0),
            "arguments": given.get("arguments", {}),
        },
    }
    if clocks:
        request["clocks"] = clocks
    if "registers" in given:
        request["registers_per_thread"] = given["registers"]
    return Figure(
        given["name"],
        given["gpu"],
        float(seconds),
        given["bound"],
        given["source"],
        given["says"],
        given.get("peak", False),
        given.get("profile", False),
        {"file": given["file"], **request},
    )


def outcome(predictor: Predictor, figure: Figure) -> Outcome:
    """One figure asked of ``predictor``. Raises WattcastError."""
    request = {"model": "physical", **figure.request}  # whose features the roofline needs
    request["ptx"] = ptx(request.pop("file"))
    answer = predict_one(predictor, PredictRequest.model_validate(request)).data()
    gpu, made = load_gpu(figure.gpu), answer["clocks"]
    clocks = ClockPair(made["core_mhz"], made["memory_mhz"])
    time = answer["time"]
    seconds = time["seconds"]
    activity = answer["activity"] if "activity" in answer else answer["features"]
    hand = roofline(activity, gpu, clocks)
    above = seconds < PEAK_SLACK * (max(hand, figure.seconds) if figure.peak else hand)
    return Outcome(
        figure,
        seconds,
        answer["time_model"]["regime"],
        hand,
        above,
        tuple(sorted({warning["code"] for warning in answer["warnings"]})),
        answer["time_model"]["parts"],
        time["low"] <= figure.seconds <= time["high"],
    )


def roofline(activity: Mapping[str, float], gpu: GpuProfile, clocks: ClockPair) -> float:
    """``by_hand``, but what L2 holds from one launch to the next needs no device memory."""
    fits = activity["footprint_bytes"] <= gpu.l2_bytes
    return by_hand({**activity, "footprint_bytes": 0.0} if fits else activity, gpu, clocks)


def within(ratios: Iterable[float], factor: float) -> float:
    """Share of ratios within a factor either way."""
    logs = np.abs(np.log(np.fromiter(ratios, dtype=np.float64)))
    return float((logs <= np.log(factor) + 1e-9).mean()) if logs.size else 0.0


def shares(found: Sequence[Outcome]) -> list[list[str]]:
    """Rows of the summary: ours, one constant times the roofline per board, random choice."""
    true = np.array([one.figure.seconds for one in found])
    hand = np.array([one.by_hand_seconds for one in found])
    usual = np.full(len(found), np.nan)
    boards = np.array([one.figure.gpu for one in found])
    for board in set(boards):
        of_board = np.flatnonzero((boards == board) & (hand > 0))
        if of_board.size > 1:
            usual[of_board] = hand[of_board] * others_median(true[of_board] / hand[of_board])
    rolled = [
        np.mean([within(np.delete(true, place) / one, factor) for place, one in enumerate(true)])
        for factor in WITHIN
    ]
    known = np.flatnonzero(np.isfinite(usual))

    def row(name: str, ratios: Sequence[float]) -> list[str]:
        if not ratios:
            return [name, "0", *[""] * (len(WITHIN) + 1)]
        each = [f"{100 * within(ratios, factor):.0f}" for factor in WITHIN]
        spread = f"{np.exp(np.median(np.abs(np.log(ratios)))):.2f}"
        return [name, str(len(ratios)), *each, spread]

    ours = [one.ratio for one in found]
    free = [one.ratio for one in found if not one.figure.profile]
    return [
        row("as served", ours),
        row("as served, no rate of the profile from the same source", free),
        row("one constant for each board times its roofline", (usual / true)[known].tolist()),
        ["the time of another entry", str(len(found))]
        + [f"{100 * each:.0f}" for each in rolled]
        + [""],
    ]


def report(found: Sequence[Outcome]) -> str:
    """The page."""
    kernels = {one.figure.kernel: one.figure for one in found}
    above = [one for one in found if one.above_peak]
    same = sum(one.bound_by == one.figure.bound for one in found)
    lines = [
        [
            one.figure.kernel,
            one.figure.gpu,
            f"{1e3 * one.figure.seconds:.4g}",
            f"{1e3 * one.seconds:.4g}",
            f"{one.ratio:.2f}" + (" *" if one.figure.profile else ""),
            one.figure.bound,
            one.bound_by if one.bound_by == one.figure.bound else f"**{one.bound_by}**",
            "**yes**" if one.above_peak else "",
            f"{one.figure.says} [{one.figure.source}]",
        ]
        for one in found
    ]
    titles = (
        "kernel", "GPU", "published ms", "predicted ms", "ratio", "bound by, its authors",
        "predicted", "above peak", "published",
    )  # fmt: skip
    sources = "\n".join(f"* [{key}] {text}" for key, text in manifest()["sources"].items())
    head = (HERE / "head.md").read_text(encoding="utf-8")
    summary = table(
        ("answer", "figures", "within 1.5x, %", "within 2x, %", "median factor"), shares(found)
    )
    return (
        f"{head}\n{len(kernels)} kernels, {len(found)} figures on "
        f"{len({one.figure.gpu for one in found})} boards. {len(above)} predictions lie above a "
        f"peak rate; {same} of {len(found)} are bound by what the authors say.\n\n"
        f"{summary}\n\n## Figures\n\n{table(titles, lines)}\n\n"
        f"\\* a rate or latency of the board's profile comes from the same source.\n\n"
        f"## Sources\n\n{sources}\n"
    )


def rows(found: Sequence[Outcome]) -> str:
    """JSON of what docs/accuracy.md draws: published and predicted ms, figure by figure."""
    lines = [
        json.dumps(
            {
                "kernel": one.figure.kernel,
                "gpu": one.figure.gpu,
                "published_ms": float(f"{1e3 * one.figure.seconds:.4g}"),
                "predicted_ms": float(f"{1e3 * one.seconds:.4g}"),
                "inside": one.inside,
            }
        )
        for one in found
    ]
    return "[\n " + ",\n ".join(lines) + "\n]\n"


def main(arguments: list[str] | None = None, write: Callable[[str], object] = print) -> int:
    """Run the command; the exit status. Raises WattcastError."""
    parser = parser_of("catalogue", __doc__)
    parser.add_argument("--kernel", action="append", help="this one alone")
    parser.add_argument("--write", action="store_true", help=f"into docs/{PAGE.name}")
    options = parser.parse_args(arguments)
    chosen = [one for one in figures() if not options.kernel or one.kernel in options.kernel]
    with tempfile.TemporaryDirectory() as home:
        predictor = Predictor(Settings(home=Path(home)))
        found = [outcome(predictor, one) for one in chosen]
    page = report(found)
    if options.write:
        PAGE.write_text(page, encoding="utf-8")
        RESULTS.write_text(rows(found), encoding="utf-8")
    else:
        write(page)
    return 0
