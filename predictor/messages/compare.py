"""What goes into ``POST /compare`` and what comes out: the same launch of old and new code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, model_validator

from wattcast.predictor import messages as shared
from wattcast.predictor.messages.predict import Apart, Energy, Power, Time

MOST_KERNELS = 64
"""Kernels of one module that are compared."""

Percent = Annotated[float, Field(gt=-100, le=1e6, allow_inf_nan=False)]


class ComparedCode(shared.KernelTiming):
    """One side of a comparison."""


class Limits(shared.Message):
    """How much more the new code may take, in percent of the old; below 0 it has to take less."""

    max_energy_percent: Percent | None = None
    max_time_percent: Percent | None = None
    max_power_percent: Percent | None = None


class CompareRequest(shared.Message):
    """Body of ``POST /compare``. What ``old`` and ``new`` have in common may stand beside them:
    ``launch``, ``loops``, ``kernel`` and every other member of a request about a kernel."""

    model_config = shared.examples("CompareRequest")

    old: ComparedCode
    new: ComparedCode
    gpu: shared.Name | None = Field(None, description="GPU id or alias; or give `gpus`.")
    gpus: Annotated[list[shared.Name], Field(min_length=1)] | None = None
    clocks: shared.Clocks | None = None
    power_limit_watts: shared.PowerLimit = None
    model: shared.ModelChoice = "physical"
    board: shared.Board = None
    limits: Limits = Limits()

    @model_validator(mode="before")
    @classmethod
    def _common_members(cls, given: Any) -> Any:
        """Members of a kernel's request beside ``old`` and ``new`` are those of both."""
        if not isinstance(given, Mapping):
            return given
        names = set(shared.KernelTiming.model_fields) - set(shared.KernelTiming.sources())
        common = {name: given[name] for name in names & set(given)}
        sides = {
            name: {**common, **given[name]}
            for name in ("old", "new")
            if isinstance(given.get(name), Mapping)
        }
        return {**{name: given[name] for name in given if name not in common}, **sides}

    @model_validator(mode="after")
    def _one_kind_of_gpu(self) -> CompareRequest:
        if (self.gpu is None) == (self.gpus is None):
            raise ValueError("give either gpu or gpus")
        return self


class Measured(BaseModel):
    """What one side takes."""

    kernel: shared.KernelName
    power: Power
    time: Time
    energy: Energy


class Change(BaseModel):
    """New over old, in percent; above 0 is more."""

    time_percent: float
    power_percent: float
    energy_percent: float


class Comparison(BaseModel):
    """One kernel on one GPU."""

    gpu: str
    clocks: shared.ClocksAnswer
    model: shared.ModelReference
    old: Measured
    new: Measured
    change: Change
    components: dict[str, float] | None = Field(
        description="Joules by component, new less old, the largest difference first; they sum to "
        "that of the energy. Null where the model does not tell components."
    )
    exceeded: list[Literal["max_energy_percent", "max_time_percent", "max_power_percent"]] = Field(
        description="Limits that are exceeded."
    )


class CompareAnswer(BaseModel):
    """Answer of ``POST /compare``: kernels in the order of the new code, each on every GPU."""

    comparisons: list[Comparison]
    added: list[shared.KernelName] = Field(description="Kernels of the new code only.")
    removed: list[shared.KernelName] = Field(description="Kernels of the old code only.")
    passed: bool = Field(description="No limit is exceeded.")
    apart: list[Apart] = Field(
        description="GPUs whose power and energy are not to be ranked with the others', and why."
    )
    markdown: str = Field(description="The same as a Markdown table, for a pull request.")
    warnings: list[shared.WarningLine] = Field(description="Those of the new code.")
