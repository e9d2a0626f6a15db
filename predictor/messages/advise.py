"""What ``GET /predictions/{id}/advice`` answers: what to change, and what that would gain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal
from uuid import UUID

from pydantic import Field

from wattcast.features.findings import Code
from wattcast.models.intervals import quantity
from wattcast.predictor import messages, reports


class Outcome(messages.Answer):
    """What a launch takes."""

    seconds: float
    watts: float
    joules: float

    @classmethod
    def of(cls, seconds: float, watts: float) -> Outcome:
        """Of so many seconds at so many watts."""
        return cls(seconds=seconds, watts=watts, joules=seconds * watts)

    @classmethod
    def together(cls, launches: Iterable[Outcome]) -> Outcome:
        """Of launches one after another."""
        told = list(launches)
        seconds = sum(each.seconds for each in told)
        return cls.of(seconds, sum(each.joules for each in told) / seconds)


class Gain(messages.Answer):
    """How much less is taken; negative is more."""

    seconds: float
    watts: float
    joules: float
    time_percent: float
    energy_percent: float


class AdvicePlace(messages.Answer):
    """Where in the code."""

    function: str
    line: int
    """Line in the PTX."""
    source_line: int | None
    opcode: str
    text: str
    """The PTX line."""

    def __str__(self) -> str:
        source = "" if self.source_line is None else f" (source line {self.source_line})"
        return reports.short(f"line {self.line}{source}: {self.text}")


class ChangedQuantity(messages.Answer):
    """A quantity of ``activity1`` that the remedy changes."""

    name: str
    before: float
    after: float


class Advised(messages.Answer):
    """One thing to change, whatever it saves."""

    code: Literal[
        Code, "small_grid", "occupancy_limiter", "tail_effect", "launch_shape", "compiler_options",
        "lower_clocks",
    ]  # fmt: skip
    detail: str
    """What was found, with the numbers of this launch."""
    remedy: str
    """What to change."""
    places: list[AdvicePlace]
    snippet_before: str | None = None
    """A few lines of CUDA C++ in the form that was found."""
    snippet_after: str | None = None
    """The same lines with the change made."""

    def lines(self) -> Iterator[reports.Block]:
        """What a report shows below its first line."""
        yield reports.Line(f"  {self.detail}")
        yield reports.Line(f"  {self.remedy}")
        yield from (reports.Line(f"  {place}") for place in self.places[:4])
        if self.snippet_before and self.snippet_after:
            yield reports.Code("  before", self.snippet_before)
            yield reports.Code("  after", self.snippet_after)


class Advice(Advised):
    """One thing to change. ``gain`` is the difference of two predictions of the same models."""

    activity: list[ChangedQuantity]
    """What the remedy changes in the launch's activity; empty if it changes the request."""
    request: dict[str, Any] | None
    """Members to change in the request of POST /predict; null where the code alone is changed."""
    changed_ptx: str | None = None
    """The module with the change made in its PTX, where the gain was predicted from that. It counts
    what the changed kernel does; it need not compute the same results."""
    after: Outcome
    gain: Gain
    promise: Literal["estimate", "at_least", "at_most"] = "estimate"
    """`estimate`: the prediction of the changed kernel or launch. `at_least` where part of what the
    change saves is not predicted, `at_most` where the change is not made in the code: what it costs
    elsewhere is not counted."""


class Patch(messages.Answer):
    """One change to the user's own lines, and what its prediction saves."""

    code: Literal[
        "bank_conflicts", "restrict", "unroll", "uncoalesced_access", "shared_reduction",
        "divergent_branch", "constant_division",
    ]  # fmt: skip
    remedy: str
    diff: str
    """A unified diff, as `patch -p1` takes it."""
    after: Outcome
    gain: Gain


class Fusion(messages.Answer):
    """Elementwise passes worth fusing with the product of matrices or the pass before them."""

    code: Literal["unfused_passes"]
    kernels: list[str]
    """The product or first pass, then the others, in order."""
    bytes: float
    """Of device memory, neither written nor read any more."""
    detail: str
    remedy: str
    before: Outcome
    after: Outcome
    gain: Gain


class AdviceAnswer(messages.Reported):
    """Advice by gain in energy, the largest first, before it what saves noticeably without taking
    longer; each alone, so gains do not add up. What rests on a guess has no gain."""

    prediction_id: UUID | None = None
    gpu: str
    kernel: messages.KernelName
    clocks: messages.ClocksAnswer
    model: messages.ModelReference
    """The power model of both predictions."""
    time_model: Literal["bottleneck"]
    before: Outcome
    advice: list[Advice]
    unpriced: list[Advised] = Field(default_factory=list)
    """What may be worth changing, but rests on a loop whose trips are a guess or on data that
    nobody described: give what `needs` names, and it gets its number."""
    needs: list[messages.Need] = Field(default_factory=list)
    """What to give first, where anything is `unpriced`."""
    patches: list[Patch] | None = None
    """Changes to the source as diffs, where they were asked for."""
    warnings: list[messages.WarningLine]

    def report(self) -> reports.Report:
        """Each change with what it saves, where, and the lines before and after it."""
        before = f"{quantity(self.before.joules, 'J')} in {quantity(self.before.seconds, 's')}"
        blocks: list[reports.Block] = [
            reports.Title(self.kernel.demangled, f"on {self.gpu}"),
            reports.Line(before),
        ]
        blocks += [reports.Line(str(need), "urgent") for need in self.needs]
        for other in self.unpriced:
            told = f"{reports.words(other.code)}: what it saves rests on what is not given"
            blocks += [reports.Line(""), reports.Line(told, "bold"), *other.lines()]
        if not self.advice and not self.unpriced:
            blocks.append(reports.Line("no change found that saves a noticeable amount"))
        for each in self.advice:
            saved = f"{reports.percent(-each.gain.energy_percent)} energy, "
            saved += f"{reports.percent(-each.gain.time_percent)} time"
            bound = "" if each.promise == "estimate" else f", {reports.words(each.promise)}"
            blocks += [
                reports.Line(""),
                reports.Line(f"{reports.words(each.code)}: {saved}{bound}", "bold"),
                *each.lines(),
            ]
        for patch in self.patches or ():
            saved = f"{reports.percent(-patch.gain.energy_percent)} energy, "
            saved += f"{reports.percent(-patch.gain.time_percent)} time"
            blocks += [reports.Line(""), reports.Code(f"{patch.remedy}: {saved}", patch.diff)]
        if self.patches == []:
            blocks.append(reports.Line("no change of these lines saves a noticeable amount"))
        return [*blocks, reports.Warnings(self.warnings)]

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """A row for each suggestion."""
        for each in self.advice:
            first = each.places[0] if each.places else None
            yield {
                **each.model_dump(include={"code", "detail", "remedy"}),
                "line": first and first.line,
                "source_line": first and first.source_line,
                **{f"saved_{name}": value for name, value in each.gain},
                **{f"after_{name}": value for name, value in each.after},
            }
