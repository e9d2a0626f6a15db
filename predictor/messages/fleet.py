"""What goes into ``POST /fleet`` and what comes out: jobs, boards, and which goes where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from wattcast.models.intervals import quantity
from wattcast.predictor import messages as shared
from wattcast.predictor import reports
from wattcast.predictor.messages import dvfs, language_model, operators

MOST_JOBS = 128
"""Jobs of one request."""

MOST_KINDS = 16
"""Kinds of boards."""

MOST_PLACES = 1_024
"""Jobs x kinds of boards x power limits: each is a prediction and a variable of the program."""

Boards = Annotated[int, Field(strict=True, ge=1, le=4096)]


class FleetJob(shared.Message):
    """Some work, and how often it is run. Exactly one of `kernel`, `operator` and `model`."""

    name: shared.Name
    runs: Annotated[int, Field(strict=True, ge=1, le=10**12)] = 1
    """Launches, calls, batches of inference or training steps. They may run on several boards at
    once."""
    together: bool = False
    """All runs on one board, one after the other, as the steps of a training."""
    kernel: shared.KernelTiming | None = None
    operator: operators.Operator | None = None
    model: language_model.LanguageModelWork | None = None
    deadline_seconds: dvfs.Positive | None = None
    """When the last run must be over, from the start of the fleet."""
    boards: list[shared.Name] = Field(default_factory=list[str], max_length=MOST_KINDS)
    """Kinds of boards it may run on. Default: all."""

    @model_validator(mode="after")
    def _one_kind_of_work(self) -> Self:
        if sum(each is not None for each in (self.kernel, self.operator, self.model)) != 1:
            raise ValueError("give exactly one of kernel, operator and model")
        return self


class FleetRequest(shared.Message, shared.Asks["FleetAnswer"]):
    """Body of ``POST /fleet``. The least joules are sought where the time is bounded: by
    ``makespan_seconds``, or by a deadline of every job; else the shortest makespan."""

    model_config = shared.examples("FleetRequest")

    jobs: list[FleetJob] = Field(min_length=1, max_length=MOST_JOBS)
    boards: dict[shared.Name, Boards] = Field(
        min_length=1, max_length=MOST_KINDS, examples=[{"h100-sxm5": 8, "l40s": 16}]
    )
    """How many boards of each kind there are, by GPU id or alias."""
    power_cap_watts: dvfs.Positive | None = None
    """Of all boards together at any time: limits of those at work, idle power of the others."""
    makespan_seconds: dvfs.Positive | None = None
    """When the last job must be over."""
    limits: Annotated[int, Field(strict=True, ge=1, le=16)] = 5
    """Power limits tried of each kind of board, from half its own limit up to that; 1: its own."""

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if len({job.name for job in self.jobs}) < len(self.jobs):
            raise ValueError("two jobs have the same name")
        count = len(self.jobs) * len(self.boards) * self.limits
        if count > MOST_PLACES:
            raise ValueError(
                f"{len(self.jobs)} jobs x {len(self.boards)} kinds of boards x {self.limits} "
                f"limits are {count}; at most {MOST_PLACES} are taken"
            )
        return self


# --- answer --------------------------------------------------------------------------------


class JobPlace(shared.Answer):
    """Runs of a job on boards of one kind at one power limit."""

    job: str
    gpu: str
    power_limit_watts: float
    runs: int
    time: shared.Time
    """Of one run."""
    power: shared.Power
    energy: shared.Energy
    """Of one run."""
    joules: float
    """Of all these runs."""


class JobEnd(shared.Answer):
    """When a job is over."""

    job: str
    seconds: float
    deadline_seconds: float | None


class BoardsAtLimit(shared.Answer):
    """Boards of one kind that are set to one power limit."""

    gpu: str
    power_limit_watts: float
    boards: int
    busy_seconds: float
    """Of all of them together."""
    joules: float


class FleetAnswer(shared.Reported):
    """Answer of ``POST /fleet``. Jobs that are due first run first; a board keeps its limit."""

    sought: Literal["energy", "makespan"]
    """What is least."""
    energy: shared.Energy
    """Of all runs."""
    makespan: shared.Time
    """Until the last job is over."""
    power_watts: float
    """The most that the fleet draws: limits of the boards at work, idle power of the others."""
    waiting_joules: float
    """What boards draw until then while they have no work, at idle power; not part of `energy`."""
    gap_percent: float
    """How far above the best possible the joules, or the makespan, may lie at most."""
    boards: list[BoardsAtLimit]
    places: list[JobPlace]
    """By job in the order of the request."""
    jobs: list[JobEnd]
    warnings: list[shared.WarningLine]

    def report(self) -> reports.Report:
        """Boards with their limits, and which runs of each job go where."""
        boards = [
            reports.word("boards of", "gpu"),
            reports.count("boards", "boards"),
            reports.amount("limit", "power_limit_watts", "W"),
            reports.amount("busy", "busy_seconds", "s"),
            reports.amount("energy", "joules", "J"),
        ]
        places = [
            reports.word("job", "job"),
            reports.word("on", "gpu"),
            reports.amount("limit", "power_limit_watts", "W"),
            reports.count("runs", "runs"),
            reports.Column("time a run", lambda row: reports.value_of(row.time), figures=True),
            reports.Column("energy a run", lambda row: reports.value_of(row.energy), figures=True),
            reports.amount("energy", "joules", "J"),
        ]
        ends = [
            reports.word("job", "job"),
            reports.amount("over after", "seconds", "s"),
            reports.amount("deadline", "deadline_seconds", "s"),
        ]
        sums = (
            f"{name} {reports.value_of(each)} ({reports.interval_of(each)})"
            for name, each in (("energy", self.energy), ("makespan", self.makespan))
        )
        return [
            reports.Line(
                f"least {self.sought} (within {self.gap_percent:.2g} % of the best possible), "
                f"at most {quantity(self.power_watts, 'W')}"
            ),
            *map(reports.Line, sums),
            reports.Table(boards, self.boards, most=len(self.boards)),
            reports.Table(places, self.places, most=len(self.places)),
            reports.Table(ends, self.jobs, most=len(self.jobs)),
            reports.Line(
                f"boards without work draw {quantity(self.waiting_joules, 'J')} meanwhile"
            ),
            reports.Warnings(self.warnings),
        ]

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """A row for each job and place."""
        return (place.data() for place in self.places)
