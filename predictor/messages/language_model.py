"""What goes into ``POST /language-models`` and what comes out: a language model before it runs."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from wattcast.models.intervals import quantity
from wattcast.predictor import messages, reports
from wattcast.predictor import messages as shared
from wattcast.predictor.messages import operators, predict

MOST_TOKENS = 1 << 20
"""Longest prompt, and most tokens generated."""

MOST_ROWS = 12
"""Operators that a report shows; the answer lists all."""

MOST_POINTS = 100
"""Points of a curve."""

Batch = Annotated[int, Field(strict=True, ge=1, le=4096)]
Tokens = Annotated[int, Field(strict=True, ge=0, le=MOST_TOKENS)]
Phase = Literal["prefill", "decode", "forward", "backward", "optimizer"]


class LanguageModelWork(shared.Message):
    """A decoder by its ``config.json``, and what it is asked to do."""

    config: dict[str, Any] = Field(max_length=512)
    """Fields of a Hugging Face `config.json`; nothing is downloaded."""
    batch: Batch = 1
    """Sequences at once."""
    prompt: Annotated[int, Field(strict=True, ge=1, le=MOST_TOKENS)] = 1024
    """Tokens of each prompt; with `train` the length of a sequence."""
    generate: Tokens = 256
    """Tokens generated for each sequence."""
    dtype: operators.Format = "bfloat16"
    """Of weights and products; `fp8` and the like stay in the weights."""
    kv_dtype: Literal["bfloat16", "fp8"] = "bfloat16"
    """Of the cache."""
    train: bool = False
    """One training step in the place of an inference, whatever `generate` and `kv_dtype` say."""
    overhead_share: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] = 0.0
    """Added to times and energies for what is not in them, as a share."""

    @model_validator(mode="before")
    @classmethod
    def _formats_by_any_name(cls, given: Any) -> Any:
        return operators.with_formats(given)


class LanguageModelRequest(LanguageModelWork, shared.Asks["LanguageModelAnswer"]):
    """The same on a GPU."""

    gpu: shared.Name
    """GPU id or alias; see GET /gpus."""
    tensor_parallel: Annotated[int, Field(strict=True, ge=1, le=64)] = 1
    """GPUs that share each product; the answer is for all of them together."""
    power_limit_watts: shared.PowerLimit = None
    batches: list[Batch] = Field(default_factory=list[int], max_length=MOST_POINTS)
    """A curve over batch sizes."""
    power_limits_watts: list[Annotated[float, Field(gt=0, le=1e5, allow_inf_nan=False)]] = Field(
        default_factory=list[float], max_length=MOST_POINTS
    )
    """A curve over power limits, in watts."""

    @model_validator(mode="after")
    def _one_curve(self) -> Self:
        if self.batches and self.power_limits_watts:
            raise ValueError("give batches or power_limits_watts, not both")
        return self


class LanguageModelDvfsRequest(shared.Message, shared.Asks[messages.dvfs.DvfsAnswer]):
    """Body of ``POST /dvfs`` for a language model: only power limits are modelled."""

    language_model: LanguageModelWork
    gpu: shared.Name
    """GPU id or alias; see GET /gpus."""
    tensor_parallel: Annotated[int, Field(strict=True, ge=1, le=64)] = 1
    power_limit_watts: messages.dvfs.LimitsAsked = None
    """Of each GPU. Default: nine from half the board's limit to the limit."""
    constraints: messages.dvfs.ConstraintsRequest = messages.dvfs.ConstraintsRequest()
    """`max_power_watts` is of all GPUs together."""


class ModelFacts(shared.Answer):
    """What the config says of the model."""

    family: str
    """`model_type`."""
    parameters: int
    layers: int
    weight_bytes: float
    """On each GPU."""
    cache_bytes: float
    """On each GPU, at the end."""
    memory_bytes: float | None
    """Of each GPU."""


class OperatorRow(shared.Answer):
    """What one operator takes, over all layers and steps of its phase."""

    phase: Phase
    role: str
    """Its place in the model."""
    operator: str
    launches: int
    seconds: float
    joules: float
    energy_share: float
    """Of the whole, 0 to 1."""


class PhaseAnswer(shared.Answer):
    """Prefill, decoding, or a part of a training step; of all GPUs together."""

    phase: Phase
    time: messages.Time
    power: messages.Power
    energy: messages.Energy
    sustained_watts: float
    """Without pauses between calls; `power` is of readings, low for short calls after a pause."""
    tokens: int
    tokens_per_second: float
    joules_per_token: float


class StepPoint(shared.Answer):
    """One step of decoding at a length of the cache."""

    cached_tokens: int
    seconds: float
    watts: float
    joules: float


class CurvePoint(shared.Answer):
    """The whole at one batch size or power limit. ``None`` where it does not fit in memory."""

    batch: int
    power_limit_watts: float | None
    tokens_per_second: float | None
    joules_per_token: float | None
    watts: float | None
    pareto: bool
    """No other point has both more tokens/s and less J/token."""


class LanguageModelAnswer(shared.Reported):
    """Time and energy of a model's inference or training step, by phase and operator."""

    gpu: str
    gpus: int
    """How many share the work."""
    model: ModelFacts
    time: messages.Time
    power: messages.Power
    energy: messages.Energy
    sustained_watts: float
    """Without pauses between calls; `power` is of readings, low for short calls after a pause."""
    tokens: int
    """Tokens counted: generated ones, or of the training batch."""
    tokens_per_second: float
    joules_per_token: float
    phases: list[PhaseAnswer]
    operators: list[OperatorRow]
    steps: list[StepPoint]
    curve: list[CurvePoint]
    trust: predict.Trust
    not_included: list[str]
    warnings: list[shared.WarningLine]

    def report(self) -> reports.Report:
        """Phases and operators, with what each takes, and the curve if one was asked for."""
        facts = self.model
        boards = f"{self.gpus} x {self.gpu}" if self.gpus > 1 else self.gpu
        phases = [
            reports.word("phase", "phase"),
            *reports.costs(),
            reports.Column("interval", lambda row: reports.interval_of(row.energy), figures=True),
            _rate("tokens/s", "tokens_per_second", ",.0f"),
            _rate("J/token", "joules_per_token", ".3g"),
        ]
        operators = [
            reports.word("operator", "role"),
            reports.word("phase", "phase"),
            reports.count("launches", "launches"),
            reports.amount("time", "seconds", "s"),
            reports.amount("energy", "joules", "J"),
            reports.share("share", "energy_share"),
        ]
        curve = [
            reports.count("batch", "batch"),
            reports.amount("power limit", "power_limit_watts", "W"),
            _rate("tokens/s", "tokens_per_second", ",.0f"),
            _rate("J/token", "joules_per_token", ".3g"),
            reports.amount("power", "watts", "W"),
            reports.Column("", lambda row: "Pareto" if row.pareto else ""),
        ]
        names = ("time", "power", "energy", "tokens", "tokens_per_second", "joules_per_token")
        whole = PhaseAnswer.model_construct(
            phase="whole", **{name: getattr(self, name) for name in names}
        )
        missing = ", ".join(self.not_included)
        return [
            reports.Line(
                f"{facts.family or 'decoder'} of {facts.parameters / 1e9:.3g} billion parameters "
                f"on {boards}: {quantity(facts.weight_bytes, 'B')} of weights, "
                f"{quantity(facts.cache_bytes, 'B')} of cache on each"
            ),
            reports.Table(phases, [*self.phases, whole]),
            reports.Table(operators, self.operators, most=MOST_ROWS),
            *([reports.Table(curve, self.curve, most=MOST_POINTS)] if self.curve else []),
            reports.Line(f"trust: {self.trust.mark} ({self.trust.why})"),
            *([reports.Line(f"not included: {missing}")] if missing else []),
            reports.Warnings(self.warnings),
        ]


def _rate(heading: str, member: str, form: str) -> reports.Column:
    def cell(row: Any) -> str:
        value = getattr(row, member)
        return "does not fit" if value is None else format(value, form)

    return reports.Column(heading, cell, figures=True)
