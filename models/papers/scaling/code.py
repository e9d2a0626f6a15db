"""Scaling over clocks from a kernel's code alone: tokens of its PTX and how often each runs.

    model = code_scaling(scaling_store(), "gtx-titan-x", "sequence")
    model.scales([stream], pairs, reference) -> [Scale(time=1.31, power=0.62), ...]

``sequence`` is Guerreiro's: an encoder (LSTM) reads the tokens, a head each for time, power and
energy follows it with the clocks. ``tokens`` counts core cycles and bytes of the same tokens, and
holds them against what the clocks leave of both. docs/frequency.md says what each is worth.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from wattcast.features.analysis import KernelAnalysis
from wattcast.features.checked import Frozen
from wattcast.features.errors import AnalysisError, ClockError, ModelError
from wattcast.models.cards import ScalingCard
from wattcast.models.clocks import ClockPair, CodeModel
from wattcast.models.intervals import Estimate
from wattcast.models.papers.scaling.card import TOKEN_SCHEMAS, Quantity, Token, tokens
from wattcast.models.papers.scaling.physical import Scale
from wattcast.models.papers.scaling.use import Floats
from wattcast.models.store import ONNX_NAME, Artifact, ArtifactStore, open_session

if TYPE_CHECKING:
    import onnxruntime

MOST_TOKENS = 256
"""Tokens of a kernel that the encoder reads, loops folded: 39 of 40 microbenchmarks have fewer."""

_BLOCKED = 5.0, 40.0
"""Core cycles of a warp in a division's subroutine and in a special function of doubles: about
20 instructions of 0.25, and of doubles."""


class Stream(NamedTuple):
    """A kernel's tokens in order, and how often a warp runs each (``[n]``, 1 or more)."""

    tokens: Sequence[Token]
    repeats: Floats


class Work(NamedTuple):
    """What a warp does: cycles of the busiest paths of an SM, bytes asked of L2, requests."""

    cycles: float
    bytes: float
    requests: float


def warp_work(stream: Stream) -> Work:
    """Work of a warp on compute capability 5.2, by its tokens.

    Lanes of an SM: CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions":
    128 for float32 and most integers, 64 for shifts, comparisons and bit fields, 32 for special
    functions and conversions, 4 for float64 and conversions of 64 bits.
    """
    totals = np.zeros(3)
    for token, times in zip(stream.tokens, stream.repeats, strict=True):
        totals += times * np.array(_work(token.name))
    return Work(*(float(total) for total in totals))


def stream_of(analysis: KernelAnalysis) -> Stream:
    """The tokens of an analysed kernel, without what no warp runs.

    Raises AnalysisError for a kernel of which no instruction has a token.
    """
    ran = analysis.counts.functions(analysis.counts.factors())[analysis.function.name]
    each = np.asarray(ran.warp_executions, dtype=np.float64)
    found = [
        (token, times)
        for token, times in zip(tokens(analysis.function.body.instructions), each, strict=True)
        if token is not None and times > 0
    ]
    if not found:
        raise AnalysisError("no instruction of this kernel has a token: nothing to scale by")
    warps = max(1.0, float(each[0]))
    return Stream(
        [token for token, _ in found],
        np.maximum(1.0, np.array([times for _, times in found]) / warps),
    )


def _work(name: str) -> tuple[float, float, float]:
    opcode, *rest = name.split(".")
    kind = rest[-1] if rest else ""
    wide = kind.endswith("64")
    if opcode in ("ld", "ldu", "st", "atom", "red"):
        space = rest[0] if len(rest) > 1 else ""
        if space in ("param", "const"):
            return 0.25, 0.0, 0.0
        size = int("".join(filter(str.isdecimal, kind)) or 32) / 8
        if space == "shared":
            return 0.25 + size / 4, 0.0, 0.0
        return 0.25, 32 * size, 1.0
    if opcode in ("rcp", "sqrt", "rsqrt", "sin", "cos", "lg2", "ex2"):
        return (_BLOCKED[1] if kind == "f64" else 1.0), 0.0, 0.0
    if opcode in ("div", "rem"):
        return _BLOCKED[0], 0.0, 0.0
    if opcode == "cvt":
        return (8.0 if wide else 1.0), 0.0, 0.0
    if kind == "f64" and opcode not in ("mov", "selp"):
        return 8.0, 0.0, 0.0
    if opcode in ("mul", "mad") and kind[:1] in ("s", "u"):
        return 0.75, 0.0, 0.0  # three XMAD
    if opcode in ("bfe", "bfi", "popc", "brev", "sad", "min", "max", "shl", "shr"):
        return 0.5, 0.0, 0.0
    return 0.25, 0.0, 0.0


class TokenForm(Frozen):
    """Parameters of ``tokens``: bytes a core cycle and SM that L2 and memory deliver at the
    reference, the order in which bounds add up, and the share of requests that memory serves,
    ``1 / (1 + exp(-(miss_offset + miss_slope (ln(1 + requests) - 4))))``: what is asked for often
    comes from caches. ``power`` maps (1, ln time at the lowest memory clock, ln time at the lowest
    core clock) to ln power, ``[memory clocks][core clocks][3]``."""

    l2_bytes: float = Field(gt=0)
    memory_bytes: float = Field(gt=0)
    order: float = Field(ge=1)
    miss_offset: float
    miss_slope: float
    power: list[list[tuple[float, float, float]]]


class CodeParameters(Frozen):
    """Clocks that a model was fitted at, and the parameters of ``tokens``."""

    gpu: str
    campaign: str
    reference: ClockPair
    core_mhz: tuple[float, ...]
    memory_mhz: tuple[float, ...]
    form: TokenForm | None = None

    def holds(self, pair: ClockPair) -> bool:
        """Whether a pair is one that the model answers at: between core clocks, at a memory
        clock that was measured."""
        low, high = self.core_mhz[0], self.core_mhz[-1]
        return low <= pair.core_mhz <= high and pair.memory_mhz in self.memory_mhz

    def check(self, pair: ClockPair) -> None:
        """Raises ClockError for a pair the model does not answer at."""
        if not self.holds(pair):
            raise ClockError(
                f"{pair.core_mhz:g}/{pair.memory_mhz:g} MHz: from code, {self.gpu} is told at "
                f"{self.core_mhz[0]:g} to {self.core_mhz[-1]:g} MHz core and "
                f"{' or '.join(f'{clock:g}' for clock in self.memory_mhz)} MHz memory",
                field="clocks",
            )


class CodeScaling(ABC):
    """What both models share: clocks, several kernels, the reference."""

    def __init__(self, parameters: CodeParameters) -> None:
        self.parameters = parameters

    @abstractmethod
    def logs(self, stream: Stream, clocks: Floats) -> Floats:
        """Logarithms of time and power, ``[m, 2]``, of one kernel at ``clocks [m, 2]`` in MHz."""

    def scales(
        self, streams: Sequence[Stream], pairs: Sequence[ClockPair], reference: ClockPair
    ) -> list[Scale]:
        """Time and power against ``reference``; of several kernels run one after the other, each
        weighted by its work there.

        Raises ClockError for clocks not fitted at.
        """
        every = [reference, *pairs]
        for pair in every:
            self.parameters.check(pair)
        clocks = np.array(every, dtype=np.float64)
        weights = np.array([warp_work(stream).cycles for stream in streams])
        logs = np.array([self.logs(stream, clocks) for stream in streams])
        factors = np.exp(logs - logs[:, :1])
        time = np.average(factors[:, :, 0], axis=0, weights=weights)
        energy = np.average(factors.prod(axis=2), axis=0, weights=weights)
        return [
            Scale(float(one), float(joules / one))
            for one, joules in zip(time[1:], energy[1:], strict=True)
        ]


class TokenScaling(CodeScaling):
    """The physical form on counted tokens."""

    def logs(self, stream: Stream, clocks: Floats) -> Floats:
        form = self.parameters.form
        assert form is not None, "written with the artifact"
        work = np.array([warp_work(stream)])
        time = log_times(form, work, self.parameters, clocks)[0]
        slow = [
            (self.parameters.reference.core_mhz, self.parameters.memory_mhz[0]),
            (self.parameters.core_mhz[0], self.parameters.reference.memory_mhz),
            self.parameters.reference,
        ]
        at = log_times(form, work, self.parameters, np.array(slow))[0]
        inputs = np.array([1.0, at[0] - at[2], at[1] - at[2]])
        rows = {
            memory: np.array(form.power[row]) @ inputs
            for row, memory in enumerate(self.parameters.memory_mhz)
        }
        power = [np.interp(core, self.parameters.core_mhz, rows[memory]) for core, memory in clocks]
        return np.stack([time, power], axis=1)


def log_times(form: TokenForm, work: Floats, parameters: CodeParameters, clocks: Floats) -> Floats:
    """Logarithm of time in core cycles of the reference, ``[n, m]``, of ``work [n, 3]``.

    Between all requests served by memory and none, weighted by the share that is.
    """
    cycles, asked, requests = work.T[:, :, None]
    core, memory = np.array(parameters.reference)[:, None] / clocks.T
    share = 1 / (1 + np.exp(-(form.miss_offset + form.miss_slope * (np.log1p(requests) - 4))))
    busy = np.maximum(cycles, asked / form.l2_bytes) * core
    missed = asked / form.memory_bytes * memory
    both = np.log(busy**form.order + missed**form.order) / form.order
    found: Floats = share * both + (1 - share) * np.log(busy)
    return found


class SequenceScaling(CodeScaling):
    """The encoder and its heads, run by ONNX Runtime."""

    def __init__(self, artifact: Artifact[ScalingCard]) -> None:
        super().__init__(artifact.parameters(CodeParameters))
        self._artifact = artifact

    @cached_property
    def _session(self) -> onnxruntime.InferenceSession:
        return open_session(self._artifact.read(ONNX_NAME))

    def heads(self, stream: Stream, clocks: Floats) -> NDArray[np.float32]:
        """Logarithms of time, power and energy, ``[m, 3]``, up to a constant each."""
        fields, repeats = encoded(stream)
        inputs = {
            "tokens": fields,
            "repeats": repeats,
            "clocks": (clocks / np.array(self.parameters.reference)).astype(np.float32),
        }
        found: NDArray[np.float32] = np.asarray(self._session.run(["logs"], inputs)[0])
        return found

    def logs(self, stream: Stream, clocks: Floats) -> Floats:
        return self.heads(stream, clocks)[:, :2].astype(np.float64)


def encoded(stream: Stream) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """What the encoder reads: fields ``[n, 6]`` of the first ``MOST_TOKENS`` tokens, and the
    binary logarithm of how often each runs ``[n]``, in eighths."""
    fields = np.array(stream.tokens[:MOST_TOKENS], dtype=np.int64).reshape(-1, 6)
    return fields, (np.log2(stream.repeats[:MOST_TOKENS]) / 8).astype(np.float32)


class ServedCode(NamedTuple):
    """A model from code and its card."""

    scaling: CodeScaling
    card: ScalingCard

    @property
    def one_in_ten(self) -> float:
        """Factor over energy scales: both widths of the card as of independent errors, wider than
        one kernel in ten. What these models choose costs energy (docs/frequency.md)."""
        both = [self.card.intervals.time, self.card.intervals.power]
        return float(np.exp(np.hypot(*(np.log(width.high_factor) for width in both if width))))

    def scaled(self, estimate: Estimate, quantity: Quantity, factor: float) -> Estimate:
        """An estimate at the reference taken to a pair whose scale is ``factor``, its interval
        wider by what the card says of scales."""
        intervals = self.card.intervals
        width = intervals.time if quantity == "time" else intervals.power
        low, high = (width.low_factor, width.high_factor) if width and factor != 1 else (1, 1)
        return replace(
            estimate,
            value=estimate.value * factor,
            low=estimate.low * factor * low,
            high=estimate.high * factor * high,
        )


def code_scaling(store: ArtifactStore[ScalingCard], gpu: str, family: CodeModel) -> ServedCode:
    """The model of a GPU from code. Raises ModelError where there is none, naming the GPUs."""
    cards = [card for card in store.list() if card.family == family]
    known = sorted({card.gpu for card in cards})
    if gpu not in known:
        raise ModelError(
            f"model {family}: none for {gpu}; there are some of {', '.join(known) or 'no GPU'}",
            gpu=gpu,
            known=known,
        )
    artifact = store.find(gpu, "scaling", family, TOKEN_SCHEMAS[family])
    if family == "tokens":
        return ServedCode(TokenScaling(artifact.parameters(CodeParameters)), artifact.card)
    return ServedCode(SequenceScaling(artifact), artifact.card)
