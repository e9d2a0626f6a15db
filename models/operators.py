"""Time and power of library operators: boosted trees on shapes, per GPU and pooled.

Trees tell how far a call stays behind its roofline (time) and which share of the board's limit it
draws (power, as NVML read it while the call was repeated). They step where training shapes change,
so a call between two shapes of the measured sweep is answered by interpolation of the logarithms
between its neighbours there, on a simplex; what the roofline knows is taken at the call itself.

An artifact (target ``operator``) holds for each operator the trees of its time and, where watts
were measured, of its power, with the sweep's values along its axes and the widths of intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from threading import Lock
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from wattcast.features.errors import ModelError, SchemaError
from wattcast.features.gpus import GpuProfile, load_gpu
from wattcast.features.operators import (
    FEATURE_NAMES,
    SCHEMA_ID,
    Board,
    Columns,
    Floats,
    Quantities,
    board_of,
    cached_seconds,
    features,
    operator_schema,
    roofline_seconds,
)
from wattcast.models.cards import Card, CardPart, FeatureFacts, Sha256, TrainingSize
from wattcast.models.clocks import held_back
from wattcast.models.explain import Background
from wattcast.models.intervals import Basis
from wattcast.models.power.physical import VoltageCurve
from wattcast.models.store import (
    PACKAGED_ARTIFACTS,
    Artifact,
    ArtifactStore,
    Xgboost,
    open_session,
    runner,
)

POOLED = "pooled"
"""In the place of a GPU: the model of boards nobody measured."""

LAUNCH_SECONDS = 2e-6
"""Added to the roofline in what the times of calls are set against: the shortest call measured
took 1.2 microseconds, so that a ratio to the bare roofline would run over six decades."""

AXES: Mapping[str, tuple[str, ...]] = {
    "gemm": ("rows", "columns", "depth"),
    "prefill": ("batch", "new", "heads"),
    "decode": ("batch", "cached", "heads"),
    "moe": ("tokens", "hidden", "inner"),
    "quantize": ("rows", "columns"),
    "gdn": ("batch", "new", "heads"),
    "mamba2": ("batch", "new", "heads"),
}
"""Values of a call between whose measured ones answers are interpolated."""

GROWS: Mapping[str, str] = {
    "gemm": "rows", "prefill": "new", "decode": "cached", "moe": "tokens", "quantize": "rows",
    "gdn": "new", "mamba2": "new",
}  # fmt: skip
"""What a call's tokens are counted by: along it, times learnt never fall."""
RISES: Mapping[str, tuple[str, ...]] = {
    name: (axis, *{"prefill": ("batch", "cached"), "decode": ("batch",), "gdn": ("batch",),
                   "mamba2": ("batch",)}.get(name, ()))
    for name, axis in GROWS.items()
}  # fmt: skip
"""Values of a call with which its tokens grow: along them, times told never fall."""

RISING_STEPS = 16
"""Lower sweep values that a time is held against along one axis; tokens have at most 30."""
BOTH_STEPS = (6, 2, 1)
"""The same where tokens grow along several axes: all combinations are asked."""
OWN_STEPS = np.array([0, 1, 2, 4, 8])
"""Steps down of products on boards of their own, whose 74 values lie near each other."""
TOLERANCE = 0.985
"""How far a time may stay below those it is held against: falls of 2 % are let pass, and held to
the percent mamba2 on H200 was .4 points further off on measured rows."""
LEAST_SHARE = 1 / 16
REGULAR = ("prefill", "decode", "quantize")
"""Operators whose ratio to the roofline varies little along the tokens: a lower sweep value whose
roofline and launch are below ``LEAST_SHARE`` of the call's time is not asked."""

SORTED_ROWS = 16
"""Fewer rows are asked of the trees as they are: sorting them takes as long (50 microseconds)."""

MOST_TOGETHER = 256
"""Calls of one run: tables of what they are held against then stay in the processor's cache."""
MOST_KEPT = 100_000
"""Sweep values whose answers are kept: some 35 MB."""

VOLTAGE = VoltageCurve(floor=0.75, slope=1.0)
"""Core voltage over the relative clock where nothing was measured: the pooled physical model's
(``models/artifacts/pooled``)."""

IDLE_SHARE = 0.2
"""Idle watts between calls over the limit, of boards that nobody measured: 129 of 700 W on H200,
241 of 1,000 W on B200."""

Quantity = Literal["time", "power"]


class OperatorScores(CardPart):
    """Errors on rows left out, in percent, beside two answers that need no model: the median of the
    training rows and, for times, the roofline. ``long`` counts calls of 0.1 ms and longer."""

    protocol: Literal["random", "shape_group", "board"]
    folds: int = Field(ge=1)
    rows: int = Field(ge=1)
    mean_percent: float = Field(ge=0)
    median_percent: float = Field(ge=0)
    long_mean_percent: float | None = Field(default=None, ge=0)
    long_median_percent: float | None = Field(default=None, ge=0)
    constant_mean_percent: float = Field(ge=0)
    roofline_mean_percent: float | None = Field(default=None, ge=0)


class Fitted(CardPart):
    """The trees of one operator and quantity. ``low`` and ``high`` are logarithms of what the 90 %
    interval's ends are over the answer, on shape groups left out; ``coverage`` what those held in
    folds not used for them."""

    file: str
    inputs: tuple[str, ...] = Field(min_length=1)
    trees: int = Field(ge=1)
    rows: int = Field(ge=1)
    groups: int = Field(ge=1)
    low: float = Field(le=0)
    high: float = Field(ge=0)
    coverage: float = Field(ge=0, le=1)
    cached_share: float = Field(default=0.0, ge=0, le=1)
    """Of times: how far what trees are set against lies, in logarithms, from the roofline to what
    operands in L2 take (``log_base``)."""
    held_back: tuple[float, float] | None = None
    """Of times: watts of an SM at 1 GHz and joules of 10^12 FLOPs of 16 bits, both at full clock,
    by which boards' limits hold products back (``held_clock``)."""
    scores: tuple[OperatorScores, ...]
    rivals: dict[str, OperatorScores] = Field(default_factory=dict)
    """Trees of other families, which do not serve, on the same shape groups left out."""


class Sustained(CardPart):
    """What a board draws while calls follow each other without a pause: ``idle`` and, of what is
    left up to the limit, the share 1 - exp(-x), since clocks fall as it is neared; x adds up what
    running at all takes (``busy``), arithmetic at its peak rate (``compute``) and memory at its
    peak bandwidth (``memory``). Fitted to the upper quarter of the readings of calls of 20
    microseconds and longer, since a reading after a pause is too low; readings at the limit are
    censored."""

    idle_watts: float = Field(ge=0)
    busy: float = Field(ge=0)
    compute: float = Field(ge=0)
    memory: float = Field(ge=0)


class OperatorFacts(CardPart):
    """One operator of an artifact: ranges and sweep values of its axes, and its trees."""

    frameworks: tuple[str, ...]
    formats: tuple[str, ...]
    knots: dict[str, tuple[float, ...]]
    longest_seconds: float = Field(gt=0)
    time: Fitted
    power: Fitted | None = None
    sustained: Sustained | None = None


class OperatorTraining(TrainingSize):
    """Rows as in the files; ``kernels`` are operators, ``kernel_groups`` shape groups."""

    limit_watts: float = Field(gt=0)
    idle_watts: float = Field(ge=0)
    power_rows: int = Field(ge=0)
    fingerprint: Sha256


class OperatorIntervals(CardPart):
    """Nominal level; the widths stand with each operator."""

    level: float = Field(gt=0, lt=1)
    extrapolated_widening: float = Field(ge=1)


class OperatorCard(Card):
    """Card of an operator model."""

    target: Literal["operator"]
    features: tuple[FeatureFacts, ...]
    training: OperatorTraining
    scores: tuple[OperatorScores, ...] = ()
    intervals: OperatorIntervals
    operators: dict[str, OperatorFacts]


def _hash(schema_id: str) -> str:
    if schema_id != SCHEMA_ID:
        raise SchemaError(f"unknown schema {schema_id!r} of operators")
    return operator_schema().sha256


def operator_store(roots: Sequence[Any] = (PACKAGED_ARTIFACTS,)) -> ArtifactStore[OperatorCard]:
    """Artifacts of operator models below ``roots``."""
    return ArtifactStore(roots, kind=OperatorCard, hash_of_schema=_hash)


class Told(NamedTuple):
    """Answers for calls ``[n]``. Watts are NaN where no watts were measured."""

    seconds: Floats
    watts: Floats
    sustained_watts: Floats
    inside: NDArray[np.bool_]
    quantities: Quantities
    roofline: Floats
    vectors: NDArray[np.float32]

    @classmethod
    def joined(cls, each: Sequence[Told]) -> Told:
        """Answers for calls that were told apart."""
        parts: list[Any] = [*zip(*each, strict=True)]
        told: list[Any] = [
            Quantities(*map(partial(np.concatenate, axis=-1), zip(*part, strict=True)))
            if isinstance(part[0], Quantities)
            else np.concatenate(part)
            for part in parts
        ]
        return cls(*told)


class Trees:
    """Trees of one operator and quantity: scored by ONNX Runtime, explained by their library."""

    def __init__(self, artifact: Artifact[OperatorCard], fitted: Fitted) -> None:
        self._artifact, self.fitted = artifact, fitted
        self.at = np.array([FEATURE_NAMES.index(name) for name in fitted.inputs])
        self._lock = Lock()

    @cached_property
    def _run(self) -> Callable[[NDArray[np.float32]], Any]:
        return runner(open_session(self._artifact.read(f"{self.fitted.file}.onnx")))

    @cached_property
    def native(self) -> Xgboost:
        """The library's own model; needs XGBoost."""
        return Xgboost(self._artifact.read(f"{self.fitted.file}.ubj"))

    def score(self, vectors: NDArray[np.float32]) -> Floats:
        """Logarithms ``[n]`` of vectors of the whole schema. Rows that are the same are asked once:
        calls between the same sweep values share their neighbours."""
        inputs = vectors.take(self.at, axis=1)
        if len(inputs) < SORTED_ROWS:
            return self.score_inputs(inputs)
        rows = inputs.view(np.dtype((np.void, inputs.itemsize * inputs.shape[1]))).ravel()
        _, first, whose = np.unique(rows, return_index=True, return_inverse=True)
        return self.score_inputs(inputs[first])[whose]

    def score_inputs(self, inputs: NDArray[np.float32]) -> Floats:
        """Logarithms ``[n]`` of vectors of ``fitted.inputs`` alone."""
        return np.asarray(self._run(inputs), dtype=np.float64).reshape(len(inputs))

    @cached_property
    def background(self) -> Background:
        """What LIME perturbs within: statistics of the operator's rows. Raises ModelError."""
        name = f"{self.fitted.file.rpartition('_')[0]}_background.json"
        return self._artifact.parameters(Background, name)

    def shap(self, vectors: NDArray[np.float32]) -> tuple[float, Floats]:
        """Base and contributions ``[n, inputs]``, of the logarithm."""
        return self.native.shap(vectors[:, self.at])


class Corners(NamedTuple):
    """Neighbours of calls ``[n]`` in the sweep: columns ``[m]``, their weights and whose they
    are, both ``[m]``; which calls lie inside the sweep, and the nearest values there,
    ``[axes, n]``."""

    call: dict[str, Floats]
    weights: Floats
    of: NDArray[np.intp]
    inside: NDArray[np.bool_]
    nearest: Floats


class Axis:
    """Sweep values of one axis. ``spans`` are logarithms of neighbours' ratios, 1 where there is
    one value alone; to all values one is added there: cached tokens may be none."""

    def __init__(self, values: Sequence[float]) -> None:
        self.values = np.array(values)
        self.inner, self.high = self.values[1:-1], self.values[min(1, len(values) - 1) :]
        spans = np.log((self.high + 1.0) / (self.values[: len(self.high)] + 1.0))
        self.spans = np.where(spans > 0, spans, 1.0)


UNSWEPT = Axis((0.0,))
"""Where a value was not varied: a time is held against that of none (no cached tokens)."""


def corners(call: Columns, axes: Mapping[str, Axis]) -> Corners:
    """The simplex of sweep values around each call: its corners step one axis after the other from
    the lower neighbours to the upper ones, the axis with the largest fraction first (Kuhn's
    triangulation). Beyond the ends of an axis the last value stands."""
    given = np.array([call[name] for name in axes])
    asked, low, high, span = np.empty((4, *given.shape))
    for row, axis in enumerate(axes.values()):
        known = axis.values
        np.minimum(np.maximum(given[row], known[0]), known[-1], out=asked[row])
        at = axis.inner.searchsorted(asked[row], "right")
        low[row], high[row], span[row] = known[at], axis.high[at], axis.spans[at]
    fraction = np.log((asked + 1.0) / (low + 1.0)) / span
    order = (-fraction).argsort(axis=0, kind="stable")
    levels = np.zeros((len(axes) + 2, asked.shape[1]))
    levels[0], levels[1:-1] = 1.0, -np.sort(-fraction, axis=0)
    weights = levels[:-1] - levels[1:]
    step, of = (weights > 1e-9).nonzero()
    found = {name: values[of] for name, values in call.items()}
    taken = np.where(step > order.argsort(axis=0)[:, of], high[:, of], low[:, of])
    _moved(found, axes, taken)
    return Corners(found, weights[step, of], of, (asked == given).all(axis=0), asked)


def _moved(call: dict[str, Floats], axes: Iterable[str], to: Floats) -> None:
    """Put values ``[axes, n]`` into a call's columns."""
    for name, value in zip(axes, to, strict=True):
        if name == "heads" and "kv_heads" in call:  # the same number of queries a key
            call["kv_heads"] = call["kv_heads"] * value / call["heads"]
        call[name] = value


def held_clock(board: Board, held_back: tuple[float, float]) -> float:
    """The clock, of the full one, that the limit leaves to products at peak rate. Formats of fewer
    bits draw as much: twice the FLOPs for half the energy each."""
    sm_watts, joules = held_back
    drawn = sm_watts * board.sm_gigahertz + joules * board.tensor[16] / 1e12
    idle = IDLE_SHARE * board.tdp_watts
    return limited(1.0, idle + drawn, idle, 1.0, board.tdp_watts).relative_clock


class Against(NamedTuple):
    """What times are set against, as ``Fitted`` tells."""

    cached_share: float = 0.0
    held_back: tuple[float, float] | None = None


def log_base(
    compute: Floats, memory: Floats, moved_bytes: Floats, board: Board, against: Against
) -> Floats:
    """Logarithm of what times are set against, ``[n]``: launch and roofline or, for boards nobody
    measured, nearer to what a call takes whose operands lie in L2, at the clock that the limit
    leaves. How much of the bandwidth of memory L2 brings differs sixfold between boards, and how
    far limits hold products back by a third: more than trees carry over."""
    cached_share, held = against
    if held is not None:
        compute = compute / held_clock(board, held)
    base = np.log(np.maximum(compute, memory) + LAUNCH_SECONDS)
    if cached_share:
        cached = np.log(cached_seconds(moved_bytes, compute, board) + LAUNCH_SECONDS)
        base += cached_share * (cached - base)
    return np.asarray(base, dtype=np.float64)


def _rising(
    operator: str, trees: Trees, near: NDArray[np.float32], of: NDArray[np.intp],
    below: NDArray[np.float32], bases: tuple[Floats, Floats],
) -> Floats:  # fmt: skip
    """Logarithms of the seconds of neighbours, none less than ``TOLERANCE`` of those of the values
    below them."""
    told, base = trees.score(near) + bases[0], bases[1]
    if operator in REGULAR:
        able = base > told[of] + np.log(LEAST_SHARE)
        of, below, base = of[able], below[able], base[able]
    if len(of):
        np.maximum.at(told, of, trees.score(below) + base + np.log(TOLERANCE))
    return told


Score = tuple[float, float, float]


class Kept:
    """What models told of sweep values, by the bytes of their columns: logarithms of seconds, of
    what these are set against, and of the share of the limit. Safe from any thread."""

    def __init__(self) -> None:
        self._of: dict[object, dict[bytes, Score]] = {}
        self._count = 0

    def of(self, asked: object) -> dict[bytes, Score]:
        """What is known for an operator, its models and a board."""
        return self._of.setdefault(asked, {})

    def add(self, known: dict[bytes, Score], more: Mapping[bytes, Score]) -> None:
        """Keep more; all is forgotten where it would be too much."""
        self._count += len(more)
        if self._count > MOST_KEPT:
            self._count, self._of = 0, {}
        known.update(more)


class OperatorModel:
    """The model of one artifact."""

    def __init__(
        self,
        artifact: Artifact[OperatorCard],
        widths_from: OperatorModel | None = None,
        kept: Kept | None = None,
    ) -> None:
        self.card, self._artifact = artifact.card, artifact
        self._kept = Kept() if kept is None else kept
        self._widths_from = widths_from
        self._knots = {
            operator: {
                name: Axis(facts.knots[name])
                for name in AXES.get(operator, ())
                if name in facts.knots
            }
            for operator, facts in artifact.card.operators.items()
        }
        self._trees = {
            (operator, quantity): Trees(artifact, fitted)
            for operator, facts in artifact.card.operators.items()
            for quantity, fitted in (("time", facts.time), ("power", facts.power))
            if fitted is not None
        }

    @property
    def pooled(self) -> bool:
        """Whether it answers for boards that it was not fitted on."""
        return self.card.gpu == POOLED or self._widths_from is not None

    def lent(self, pooled: OperatorModel) -> OperatorModel:
        """The same trees for another board, as sure as the pooled ones are of boards left out."""
        return OperatorModel(self._artifact, pooled, self._kept)

    def trees(self, operator: str, quantity: Quantity) -> Trees | None:
        """Trees of a quantity, ``None`` where it was not measured."""
        return self._trees.get((operator, quantity))

    def corners(self, operator: str, call: Columns) -> Corners:
        """Neighbours of calls in the sweep of an operator."""
        return corners(call, self._knots[operator])

    def has_power(self, operator: str) -> bool:
        """Whether watts of the operator were measured."""
        return (operator, "power") in self._trees

    def limit_watts(self, board: Board) -> float:
        """The power limit that its watts refer to."""
        return board.tdp_watts if self.pooled else self.card.training.limit_watts

    def predict(
        self, operator: str, call: Columns, board: Board, power_from: OperatorModel | None = None
    ) -> Told:
        """Seconds and watts of calls of one operator; ``power_from`` tells the watts if it is
        given. Raises ModelError for an operator it has not."""
        if operator not in self.card.operators:
            known = ", ".join(self.card.operators)
            raise ModelError(f"no model of {operator} on {self.card.gpu}; it has {known}")
        size = len(call["math_bits"])
        if size > MOST_TOGETHER:
            ends = range(0, size, MOST_TOGETHER)
            calls = [{key: of[at : at + MOST_TOGETHER] for key, of in call.items()} for at in ends]
            return Told.joined([self.predict(operator, one, board, power_from) for one in calls])
        other, trees = power_from or self, self.trees(operator, "time")
        assert trees is not None
        around = self.corners(operator, call)
        # Neighbours told before, for whatever call, are not asked again.
        kept = self._kept.of((operator, self, other, *board[:4], *board.tensor.values()))
        rows = np.array([*around.call.values()]).T.copy()
        width = rows.itemsize * rows.shape[1]
        keys: list[bytes] = rows.view(np.dtype((np.void, width))).ravel().tolist()  # type: ignore[assignment]
        told = {key: kept.get(key) for key in keys}
        fresh = {key: at for at, key in enumerate(keys) if told[key] is None}
        asked: list[Columns] = [call]
        if not around.inside.all():
            asked.append(nearest := dict(call))
            _moved(nearest, self._knots[operator], around.nearest)
        if fresh:
            near = {name: values[[*fresh.values()]] for name, values in around.call.items()}
            of, lower = self._lower(operator, near)
            asked += near, lower
        every = {name: np.concatenate([each[name] for each in asked]) for name in call}
        found, whole = features(operator, every, board)
        vectors, exact = found[:size], Quantities(*(part[..., :size] for part in whole))
        computes, memories = roofline_seconds(whole, every["math_bits"], board)
        against = Against(trees.fitted.cached_share, trees.fitted.held_back)
        base = log_base(computes, memories, whole.bytes, board, against)
        compute, memory = computes[:size], memories[:size]
        power = other.trees(operator, "power")
        if fresh:
            end = len(found) - len(of)
            start = end - len(fresh)
            own, bases = found[start:end], (base[start:end], base[end:])
            rising = _rising(operator, trees, own, of, found[end:], bases)
            shares = np.full(len(own), np.nan) if power is None else power.score(own)
            each = zip(rising.tolist(), bases[0].tolist(), shares.tolist(), strict=True)
            new = dict(zip(fresh, each, strict=True))
            told |= new
            self._kept.add(kept, new)
        rising, bases_, shares = np.array([told[key] for key in keys]).T

        def mean(scores: Floats) -> Floats:
            weighted = around.weights * scores
            return np.asarray(np.bincount(around.of, weighted, minlength=size), dtype=np.float64)

        edge, time = base[:size] if around.inside.all() else base[size : 2 * size], mean(rising)
        if self._by_roofline(operator):  # what the roofline knows, and no less than all neighbours
            np.minimum.at(lowest := np.full(size, np.inf), around.of, rising)
            time = np.maximum(mean(rising - bases_) + edge, lowest)
        time += base[:size] - edge  # beyond the sweep as far behind the roofline as at its end
        least = np.maximum(compute, np.maximum(exact.bytes - board.l2_bytes, 0) / board.bandwidth)
        seconds = np.maximum(np.exp(time), least)
        # Trees of power tell the logarithm of the share of the limit.
        limit = other.limit_watts(board)
        watts = np.minimum(np.exp(mean(shares)), 1.0) * limit
        steady = other._sustained(operator, compute / seconds, memory / seconds, limit)
        inside = around.inside if power_from is None else other.inside(operator, call)
        return Told(seconds, watts, steady, inside, exact, np.maximum(compute, memory), vectors)

    def inside(self, operator: str, call: Columns) -> NDArray[np.bool_]:
        """Which calls ``[n]`` lie inside the sweep of an operator."""
        each = [(call[name], axis.values) for name, axis in self._knots[operator].items()]
        within = [(v >= known[0]) & (v <= known[-1]) for v, known in each]
        return np.asarray(np.all(within, axis=0))

    def _by_roofline(self, operator: str) -> bool:
        return operator == "gemm" and self.card.gpu != POOLED

    def _lower(self, operator: str, near: Columns) -> tuple[NDArray[np.intp], Columns]:
        """Sweep values with fewer tokens than neighbours, all else equal, that their times are held
        against: whose they are, ``[m]``, and their columns."""
        axes = RISES[operator]
        of, lower, moved = np.arange(len(near["math_bits"])), dict(near), np.zeros(1, dtype=bool)
        for axis, count in zip(axes, BOTH_STEPS, strict=False):
            steps = np.arange(1 + (count if len(axes) > 1 else RISING_STEPS))
            steps = OWN_STEPS if self._by_roofline(operator) else steps
            known = self._knots[operator].get(axis, UNSWEPT).values
            below = known.searchsorted(lower[axis])[:, None] - steps
            row, step = ((below >= 0) | (steps == 0)).nonzero()
            value = np.where(step == 0, lower[axis][row], known.take(below[row, step], mode="clip"))
            of, moved = of[row], np.broadcast_to(moved, len(below))[row] | (step > 0)
            lower = {name: values[row] for name, values in lower.items()}
            lower[axis] = value
        return of[moved], {name: values[moved] for name, values in lower.items()}

    def _sustained(self, operator: str, compute: Floats, memory: Floats, limit: float) -> Floats:
        """Watts while calls follow each other without a pause, of shares of both peaks; NaN where
        no watts were measured."""
        found = self.card.operators[operator].sustained
        if found is None:
            return np.full_like(compute, np.nan)
        idle = found.idle_watts * limit / self.card.training.limit_watts
        x = found.busy + found.compute * compute + found.memory * memory
        return np.asarray(idle - (limit - idle) * np.expm1(-x))

    @lru_cache(maxsize=1024)  # noqa: B019  (models are opened once and kept)
    def width(self, operator: str, quantity: Quantity, inside: bool) -> tuple[float, float]:
        """Factors of the interval's ends. An operator measured on one board alone is as sure on
        others as the least sure one."""
        if self._widths_from is not None:
            return self._widths_from.width(operator, quantity, inside)
        own = self.trees(operator, quantity)
        every = (
            [own] if own else [one for (_, told), one in self._trees.items() if told == quantity]
        )
        widening = 1.0 if inside else self.card.intervals.extrapolated_widening
        return (
            float(np.exp(min(one.fitted.low for one in every) * widening)),
            float(np.exp(max(one.fitted.high for one in every) * widening)),
        )

    def basis(self, inside: bool) -> Basis:
        """What an answer rests on."""
        if self.pooled:
            return "uncalibrated"
        return "unseen_kernel" if inside else "extrapolated"


ALIKE_LIMITS = 1.5
"""By how much arithmetic for a watt of the power limit may differ where one board's rows answer for
another: they hold how far its limit let it come (an L40S stays at .56 of its peak in products, and
a GeForce board with its chip has less than half of its peak for a higher limit). A choice."""


class Operators:
    """Models of the artifacts below some roots, opened when first asked. Safe from any thread."""

    def __init__(self, roots: Sequence[Any] = (PACKAGED_ARTIFACTS,)) -> None:
        self._store = operator_store(roots)
        self._opened: dict[str, OperatorModel | None] = {}
        self._boards: dict[str, tuple[GpuProfile, Board]] = {}
        self._near: dict[tuple[str, str, Quantity], OperatorModel | None] = {}
        self._kept = Kept()
        self._lock = Lock()

    def of(self, gpu: str) -> OperatorModel | None:
        """The model of a GPU (or ``POOLED``), ``None`` where there is none."""
        with self._lock:
            if gpu not in self._opened:
                try:
                    found = self._store.find(gpu, "operator", "xgboost", SCHEMA_ID)
                    self._opened[gpu] = OperatorModel(found, kept=self._kept)
                except ModelError:
                    if any(card.gpu == gpu for card in self._store.list(gpu)):
                        raise
                    self._opened[gpu] = None
            return self._opened[gpu]

    def near(
        self, gpu: GpuProfile, operator: str, quantity: Quantity = "time"
    ) -> OperatorModel | None:
        """For a board without measurements the model of one that runs the same kernels: of the same
        compute capability and about as much arithmetic for a watt of its limit (``ALIKE_LIMITS``),
        with most formats, then with the most alike ratio of bandwidth to arithmetic. ``None`` where
        none was measured."""
        key = gpu.id, operator, quantity
        pooled = self.of(POOLED)
        if key not in self._near and pooled is not None:
            asked, able = self.board(gpu), list[tuple[int, float, str]]()
            for card in self.cards:
                facts = card.operators.get(operator)
                if card.gpu in (POOLED, gpu.id) or facts is None or not getattr(facts, quantity):
                    continue
                other = load_gpu(card.gpu)
                board = self.board(other)
                a_watt = board.tensor[16] / other.tdp_watts * gpu.tdp_watts / asked.tensor[16]
                alike = 1.0 / ALIKE_LIMITS <= a_watt <= ALIKE_LIMITS
                if alike and other.compute_capability == gpu.compute_capability:
                    balance = board.bandwidth / board.tensor[16]
                    apart = abs(np.log(balance * asked.tensor[16] / asked.bandwidth))
                    able.append((-len(facts.formats), apart, card.gpu))
            found = self.of(min(able)[2]) if able else None
            self._near[key] = found and found.lent(pooled)
        return self._near.get(key)

    def board(self, gpu: GpuProfile) -> Board:
        """What a GPU's profile says of it."""
        known = self._boards.get(gpu.id)
        if known is None or known[0] is not gpu:
            known = self._boards[gpu.id] = gpu, board_of(gpu)
        return known[1]

    @cached_property
    def cards(self) -> tuple[OperatorCard, ...]:
        """Cards of all, by folder. Listing reads and checks every file: it is done once."""
        return tuple(self._store.list())


# --- below the measured power limit ------------------------------------------------------------


class Limited(NamedTuple):
    """A call at a lower power limit."""

    seconds: float
    watts: float
    relative_clock: float


def limited(seconds: float, watts: float, idle: float, core_share: float, limit: float) -> Limited:
    """Time and power of a call that drew ``watts``, under a limit: the core clock falls along the
    voltage curve until it fits, as for code (``models/clocks.py``). ``core_share`` is the
    share of the time that goes with the core clock; memory's clock stays. Raises ClockError for a
    limit that idling alone exceeds."""
    if watts <= limit:
        return Limited(seconds, watts, 1.0)

    def at(clock: float) -> tuple[float, float]:
        longer = seconds * (core_share / clock + 1.0 - core_share)
        # Switching goes with the work done a second and the voltage squared.
        drawn = idle + (watts - idle) * VOLTAGE.at(clock) ** 2 * seconds / longer
        return longer, drawn

    low, high = 0.05, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if at(middle)[1] <= limit else (low, middle)
    longer, drawn = at(low)
    runs = held_back(limit, drawn, idle)
    return Limited(longer / runs, min(drawn, limit), low)
