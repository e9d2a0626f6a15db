"""The smallest parts of a GPU profile: one number with its unit and source, and typed units."""

from __future__ import annotations

from typing import Annotated, Any, Generic, NamedTuple, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

T = TypeVar("T")

PositiveInt = Annotated[int, Field(gt=0, strict=True)]
PositiveFloat = Annotated[float, Field(gt=0, strict=True)]
Text = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]


class Strict(BaseModel):
    """Frozen, and refusing keys it does not know: a misspelt key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Fact(Strict, Generic[T]):
    """One number: ``value`` in ``unit``, from the entry ``source`` of ``[sources]``."""

    value: T
    unit: Text
    source: Text
    note: Text | None = None


F = TypeVar("F", bound=Fact[Any])


class InUnit(NamedTuple):
    """Checks that a fact is given in the unit the loader calculates with."""

    unit: str

    def __call__(self, fact: F) -> F:
        if fact.unit != self.unit:
            raise ValueError(f"unit is {fact.unit!r}, must be {self.unit!r}")
        return fact


Count = Annotated[Fact[PositiveInt], AfterValidator(InUnit("count"))]
Bytes = Annotated[Fact[PositiveInt], AfterValidator(InUnit("byte"))]
Bits = Annotated[Fact[PositiveInt], AfterValidator(InUnit("bit"))]
Megahertz = Annotated[Fact[PositiveFloat], AfterValidator(InUnit("MHz"))]
BytesPerSecond = Annotated[Fact[PositiveFloat], AfterValidator(InUnit("byte/s"))]
BytesPerCycle = Annotated[Fact[PositiveFloat], AfterValidator(InUnit("byte/cycle"))]
Watts = Annotated[Fact[PositiveFloat], AfterValidator(InUnit("W"))]
Cycles = Annotated[Fact[PositiveFloat], AfterValidator(InUnit("cycle"))]
Share = Annotated[
    Fact[Annotated[float, Field(gt=0, le=1, strict=True)]], AfterValidator(InUnit("share"))
]

GpuId = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
CapabilityId = Annotated[str, StringConstraints(pattern=r"^\d{1,2}\.\d$")]
