"""What goes into ``POST /compare`` and what comes out: the same launch of old and new code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, model_validator

from wattcast.models.intervals import quantity
from wattcast.predictor import messages as shared
from wattcast.predictor import reports
from wattcast.predictor.messages.predict import Apart

MOST_KERNELS = 64
"""Kernels of one module that are compared."""

Percent = Annotated[float, Field(gt=-100, le=1e6, allow_inf_nan=False)]


class ComparedCode(shared.KernelTiming):
    """One side of a comparison."""


def with_common(given: Any, *sides: str) -> Any:
    """A body whose members of a kernel's request that stand beside ``sides`` are those of each."""
    if not isinstance(given, Mapping):
        return given
    names = set(shared.KernelTiming.model_fields) - set(shared.KernelTiming.sources())
    common = {name: given[name] for name in names & set(given)}
    both = {
        name: {**common, **given[name]} for name in sides if isinstance(given.get(name), Mapping)
    }
    return {**{name: given[name] for name in given if name not in common}, **both}


Limit = Literal["max_energy_percent", "max_time_percent", "max_power_percent"]
LIMITS: tuple[Limit, ...] = get_args(Limit)


class Limits(shared.Message):
    """How much more the new code may take, in percent of the old; below 0 it has to take less."""

    max_energy_percent: Percent | None = None
    """Largest change of the energy allowed; below 0 a saving is asked for."""
    max_time_percent: Percent | None = None
    """Largest change of the time allowed."""
    max_power_percent: Percent | None = None
    """Largest change of the power allowed."""


class CompareRequest(shared.OwnOrLike, shared.Conditions, shared.Asks["CompareAnswer"]):
    """Body of ``POST /compare``. What ``old`` and ``new`` have in common may stand beside them:
    ``launch``, ``loops``, ``kernel`` and every other member of a request about a kernel."""

    model_config = shared.examples("CompareRequest")

    old: ComparedCode
    new: ComparedCode
    limits: Limits = Limits()

    @model_validator(mode="before")
    @classmethod
    def _common_members(cls, given: Any) -> Any:
        return with_common(given, "old", "new")


class Measured(shared.Answer):
    """What one side takes."""

    kernel: shared.KernelName
    power: shared.Power
    time: shared.Time
    energy: shared.Energy


class Change(shared.Answer):
    """New over old, in percent; above 0 is more."""

    time_percent: float
    power_percent: float
    energy_percent: float


class Comparison(shared.Answer):
    """One kernel on one GPU."""

    gpu: str
    clocks: shared.ClocksAnswer
    model: shared.ModelReference
    old: Measured
    new: Measured
    change: Change
    components: dict[str, float] | None
    """Joules by component, new less old, the largest difference first; they sum to that of the
    energy. Null where the model does not tell components."""
    exceeded: list[Limit]
    """Limits that are exceeded."""

    def broken(self) -> str:
        """The limits that are exceeded, in words."""
        return f"breaks {', '.join(map(reports.words, self.exceeded))}" if self.exceeded else ""

    def largest(self, most: int = 4) -> list[str]:
        """The components that changed most, without what is rounding."""
        least = NOTHING * self.old.energy.joules
        return [
            f"{name} {'+' if joules > 0 else ''}{quantity(joules, 'J')}"
            for name, joules in list((self.components or {}).items())[:most]
            if abs(joules) > least
        ]


NOTHING = 1e-6
"""Share of the energy below which a change is rounding and not shown."""


class CompareAnswer(shared.Reported):
    """Answer of ``POST /compare``: kernels in the order of the new code, each on every GPU."""

    comparisons: list[Comparison]
    added: list[shared.KernelName]
    """Kernels of the new code only."""
    removed: list[shared.KernelName]
    """Kernels of the old code only."""
    passed: bool
    """No limit is exceeded."""
    apart: list[Apart]
    """GPUs whose power and energy are not to be ranked with the others', and why."""
    markdown: str
    """The same as a Markdown table, for a pull request."""
    warnings: list[shared.WarningLine]
    """Those of the new code."""

    def report(self) -> reports.Report:
        """Old and new beside each other, which components changed most, and what was not
        compared."""
        changes = (
            f"{each.gpu}, {each.new.kernel.demangled}: {', '.join(largest)}"
            for each in self.comparisons
            if (largest := each.largest())
        )
        return [
            compared(self.comparisons, broken=lambda each: each.broken()),
            *map(reports.Line, changes),
            *(reports.Line(f"added: {kernel.demangled}") for kernel in self.added),
            *(reports.Line(f"removed: {kernel.demangled}") for kernel in self.removed),
            reports.Warnings(self.warnings),
        ]

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """A row for each kernel and GPU."""
        for each in self.comparisons:
            sides = {
                f"{side}_{name}": getattr(getattr(each, side), name).data()
                for name in ("time", "power", "energy")
                for side in ("old", "new")
            }
            kernel = each.new.kernel.data()
            yield {"kernel": kernel, "gpu": each.gpu, **sides, **each.change.data()}


def compared(
    comparisons: Sequence[Comparison],
    name: Callable[[str], str] = str,
    broken: Callable[[Comparison], str] = lambda each: "",
) -> reports.Table:
    """Old and new beside each other; ``name`` writes a kernel's name, ``broken`` what is
    exceeded."""
    columns = [
        reports.Column("kernel", lambda each: name(each.new.kernel.demangled)),
        reports.word("GPU", "gpu"),
    ]
    for quantity_of in ("energy", "time", "power"):
        columns += _change(quantity_of)
    return reports.Table([*columns, reports.Column("", broken)], comparisons, most=MOST_KERNELS)


def _change(name: str) -> list[reports.Column]:
    def sides(each: Comparison) -> str:
        old, new = getattr(each.old, name), getattr(each.new, name)
        return f"{reports.value_of(old)} → {reports.value_of(new)}"

    def percent(each: Comparison) -> str:
        return f"{getattr(each.change, f'{name}_percent'):+.1f} %"

    return [reports.Column(name, sides, figures=True), reports.Column("", percent, figures=True)]


# What goes into ``POST /judge`` and what comes out: is a candidate better than a reference?

MOST_REASONS = 3
UNITS = ("time", "seconds"), ("power", "watts"), ("energy", "joules")

Saving = Annotated[float, Field(gt=-1e6, lt=100, allow_inf_nan=False)]
Speedup = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]


class JudgeRequest(shared.Conditions, shared.Asks["JudgeAnswer"]):
    """Body of ``POST /judge``. What both sides have in common may stand beside them, as in
    ``POST /compare``."""

    model_config = shared.examples("JudgeRequest")

    reference: ComparedCode
    candidate: ComparedCode
    gpu: shared.Name
    min_speedup: Speedup | None = None
    """Refuse a candidate that is less than so many times as fast: 1.05."""
    min_saving: Saving | None = None
    """Refuse a candidate that saves less than so many percent of the energy."""

    @model_validator(mode="before")
    @classmethod
    def _common_members(cls, given: Any) -> Any:
        return with_common(given, "reference", "candidate")


class Ratio(shared.Answer):
    """Candidate over reference; below 1 the candidate takes less."""

    ratio: float
    low: float
    high: float
    level: float
    """Nominal coverage of [low, high], 0 to 1."""
    less: float
    """Probability that the candidate takes less, 0 to 1."""


class Judged(shared.Answer):
    """One side, and what bounds its time."""

    kernel: shared.KernelName
    seconds: float
    watts: float
    joules: float
    bound: str | None
    written_bytes: float
    """Distinct bytes of device memory that it writes, in sectors of 32."""


class Reason(shared.Answer):
    """A unit of the GPU whose work changes most, and the line that takes most of it."""

    unit: str
    reference_seconds: float
    """At the unit's peak."""
    candidate_seconds: float
    side: Literal["reference", "candidate"]
    """Whose code the line is of."""
    line: int | None
    """Line in the PTX."""
    source_line: int | None
    text: str
    """The line, without control characters."""

    def __str__(self) -> str:
        before, after = (
            quantity(each, "s") for each in (self.reference_seconds, self.candidate_seconds)
        )
        where = "" if self.line is None else f"; {self.side}, line {self.line}: {self.text!r}"
        return f"{self.unit}: {before} → {after} at its peak{where}"


class Flag(shared.Answer):
    """Why the candidate may not do the reference's work."""

    code: Literal[
        "above_speed_of_light", "writes_less", "other_result_size", "unknown_instructions"
    ]
    detail: str


class JudgeAnswer(shared.Reported):
    """Answer of ``POST /judge``. Text out of the code stands in ``text`` and in names alone."""

    gpu: str
    accepted: bool
    """Both thresholds are kept, and no flag is raised."""
    time: Ratio
    energy: Ratio
    reference: Judged
    candidate: Judged
    reasons: Annotated[list[Reason], Field(max_length=MOST_REASONS)]
    flags: list[Flag]
    narrower: list[str]
    """What to give or do for a surer answer."""

    def report(self) -> reports.Report:
        """The verdict, ratios, reasons and flags."""
        blocks: list[reports.Block] = [
            reports.Title("accepted" if self.accepted else "refused", f"on {self.gpu}")
        ]
        for name, one in (("time", self.time), ("energy", self.energy)):
            blocks.append(
                reports.Line(
                    f"{name} x {one.ratio:.3f} ({one.low:.3f} .. {one.high:.3f}, "
                    f"{one.level:.0%}); less with a probability of {one.less:.0%}"
                )
            )
        bounds = self.reference.bound, self.candidate.bound
        blocks.append(reports.Line("bound by {} → {}".format(*(each or "?" for each in bounds))))
        blocks += [reports.Line(f"{each.code}: {each.detail}", "urgent") for each in self.flags]
        return [*blocks, *map(reports.Line, map(str, self.reasons)),
                *(reports.Line(f"narrower: {each}") for each in self.narrower)]  # fmt: skip
