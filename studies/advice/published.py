"""Steps of optimisation that others published: ``python -m studies advice --published``.

A step is a kernel and the one after it, both measured on one board: figures of the catalogue
(``studies.catalogue``, with kernels and sources), and products of halves that CUDA-Learn-Notes
measured on an NVIDIA L20 (``pairs.cu``). The predicted speed-up stands beside the measured one, and
the first advice for the kernel before beside an expert's, where there is a rule for it. Advice may
name a change that the same author makes some steps later: what is measured there, with the steps
between, stands beside what it promises.

Two rules of the time model were chosen with a few of these figures in sight: that atomics on one
word go one lane a clock (``count_in_memory``), and what loads of ``wmma`` take (``wmma_naive``).
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log
from pathlib import Path
from typing import Any

from studies.catalogue.study import figures, ptx
from wattcast.predictor import Predictor
from wattcast.predictor.advise import advise
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.predict import predict_one

STEPS: list[tuple[str, str, str]] = [
    (before, after, code)
    for before, after, code in tomllib.loads(
        (Path(__file__).parent / "pairs.toml").read_text("utf-8")
    )["steps"]
]
"""Kernel before, kernel after, and the code of the advice for it."""

L20: Mapping[str, tuple[int, int, list[int], tuple[float, float]]] = {
    "half_naive": (32, 32, [32, 32], (18.93934, 300.8541)),
    "wmma_naive": (16, 16, [32], (3.005743, 46.26761)),
    "wmma_shared": (64, 32, [256], (1.493060, 23.35487)),
    "wmma_warps": (128, 128, [256], (0.958561, 13.64753)),
}
"""Results of a block along both sides, its threads, and ms of 4096 x 8192 x 1024 and 16384 x 16384
x 2048: f16(naive), f16wmma(naive), f16wmma(mma4x2), f16wmma(mma4x2+warp2x4) on an NVIDIA L20
(github.com/DefTruth/CUDA-Learn-Notes, 03cb535, hgemm/README.md)."""

BEYOND = 0.05
"""How far what was measured may lie beyond a bound, relative (``study.BEYOND``)."""

SIZE = 1.5
"""Factor within which a gain has the right size (issue 42)."""

NEVER = 0.02
"""Changes of time below which the sign of a prediction means nothing (``sweep.RESOLUTION``)."""


@dataclass(frozen=True)
class Measured:
    """A kernel with its published seconds on a board."""

    gpu: str
    seconds: float
    request: Mapping[str, Any]


def measured(pairs: str) -> dict[tuple[str, str], Measured]:
    """Every kernel of a step by its name and the board or size; ``pairs``: PTX of ``pairs.cu``."""
    named = {name for before, after, _ in STEPS for name in (before, after)}
    found = {}
    for one in figures():
        if one.kernel in named:
            request = {key: value for key, value in one.request.items() if key != "file"}
            request["ptx"] = ptx(one.request["file"])
            found[one.kernel, one.gpu] = Measured(one.gpu, one.seconds, request)
    for name, (rows, columns, block, every) in L20.items():
        for milliseconds, (m, n, k) in zip(
            every, ((4096, 8192, 1024), (16384, 16384, 2048)), strict=True
        ):
            sides = {"3": m, "4": n, "5": k}
            launch = {"grid": [n // columns, m // rows], "block": block, "arguments": sides}
            body = {"ptx": pairs, "kernel": name, "gpu": "l20", "launch": launch}
            found[name, f"l20, {m} x {n} x {k}"] = Measured("l20", milliseconds / 1e3, body)
    return found


@dataclass(frozen=True)
class Step:
    """Seconds before and after as published and as predicted, and the first advice before it with
    the speed-up that it promises; ``measured``: that of the first kernel after which the author had
    made the change that it names, if he did."""

    names: tuple[str, str, str]
    where: str
    published: tuple[float, float]
    predicted: tuple[float, float]
    first: str
    promised: float | None
    promise: str = ""
    measured: float | None = None

    @cached_property
    def gains(self) -> tuple[float, float]:
        """Speed-ups: published, predicted."""
        (before, after), (slow, fast) = self.published, self.predicted
        return before / after, slow / fast

    @property
    def signed(self) -> bool:
        """The prediction goes the way that was measured, by more than it can tell apart."""
        true, told = map(log, self.gains)
        return true * told > 0 and abs(told) > NEVER

    @property
    def sized(self) -> bool:
        """Speed-ups within ``SIZE`` of each other."""
        true, told = self.gains
        return 1 / SIZE <= told / true <= SIZE

    @property
    def kept(self) -> bool:
        """The measured speed-up is as promised: within ``SIZE``, or on its side of a bound."""
        if self.promised is None or self.measured is None:
            return False
        more = self.measured / self.promised
        least, most = 1 / SIZE, SIZE
        if self.promise == "at_most":
            least, most = 0.0, 1 + BEYOND
        if self.promise == "at_least":
            least, most = 1 - BEYOND, float("inf")
        return least <= more <= most


def _until(kernel: str, code: str) -> str | None:
    """The first kernel in which what ``code`` advises was done, from this one on."""
    for before, after, done in STEPS:
        if before == kernel:
            return after if done == code else _until(after, code)
    return None


def steps(predictor: Predictor, pairs: str) -> Iterator[Step]:
    """Every step on every board that measured both of its kernels."""
    every = measured(pairs)
    asked = {
        key: PredictRequest.model_validate({"model": "physical", **one.request})
        for key, one in every.items()
    }
    seconds = {key: predict_one(predictor, one)["time"]["seconds"] for key, one in asked.items()}
    for names in STEPS:
        for name, where in every:
            before, after = (name, where), (names[1], where)
            if name != names[0] or after not in every:
                continue
            advice = advise(predictor, asked[before])
            first = next(iter(advice["advice"]), None)
            done = every.get((_until(name, first["code"]) or "", where)) if first else None
            yield Step(
                names,
                where,
                (every[before].seconds, every[after].seconds),
                (seconds[before], seconds[after]),
                first["code"] if first else "nothing",
                advice["before"]["seconds"] / first["after"]["seconds"] if first else None,
                first["promise"] if first else "",
                every[before].seconds / done.seconds if done else None,
            )


TITLES = (
    "before", "after", "board", "speed-up measured", "predicted", "over", "sign", "size",
    "first advice", "it promises", "measured of it", "kept", "an expert's",
)  # fmt: skip


def rows(found: Sequence[Step]) -> Iterator[list[str]]:
    """Lines of the table."""
    for one in found:
        before, after, code = one.names
        true, told = one.gains
        yield [
            before, after, one.where, f"{true:.2f}", f"{told:.2f}", f"{told / true:.2f}",
            "yes" if one.signed else "no", "yes" if one.sized else "no", one.first,
            "" if one.promised is None else f"{one.promise} {one.promised:.2f}",
            "" if one.measured is None else f"{one.measured:.2f}",
            "" if one.measured is None else "yes" if one.kept else "no", code,
        ]  # fmt: skip


def score(found: Sequence[Step]) -> str:
    """What the table comes to."""
    many, told = len(found), [one for one in found if one.names[2]]
    named = [one for one in found if one.measured is not None]
    later = sum(one.first != one.names[2] for one in named)
    return (
        f"{many} published steps: sign right in {sum(one.signed for one in found)}, speed-up "
        f"within {SIZE}x in {sum(one.sized for one in found)}; first advice an expert's in "
        f"{sum(one.first == one.names[2] for one in told)} of {len(told)} that have a rule.\n"
        f"{len(named)} first advices name a change that was measured, {later} of them one that its "
        f"author makes later; {sum(one.kept for one in named)} promise what was measured."
    )
