"""One number of a GPU profile, sourced and in its unit."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import AfterValidator, Field

from wattcast.features.checked import PositiveFloat, PositiveInt, Strict, Text


class Fact(Strict):
    """One number: ``value`` in ``unit``, from the entry ``source`` of ``[sources]``.

    What a value may be its subclasses say: for a generic class pydantic builds validators at once.
    """

    value: Any
    unit: Text
    source: Text
    note: Text | None = None


F = TypeVar("F", bound=Fact)


class InUnit(NamedTuple):
    """Checks that a fact is given in the unit the loader calculates with."""

    unit: str

    def __call__(self, fact: F) -> F:
        if fact.unit != self.unit:
            raise ValueError(f"unit is {fact.unit!r}, must be {self.unit!r}")
        return fact


class Integer(Fact):
    """A whole number."""

    value: int


class Whole(Fact):
    """A positive whole number."""

    value: PositiveInt


class Measure(Fact):
    """A positive number."""

    value: PositiveFloat


class Part(Fact):
    """A number above 0, at most 1."""

    value: Annotated[float, Field(gt=0, le=1, strict=True)]


Count = Annotated[Whole, AfterValidator(InUnit("count"))]
Bytes = Annotated[Whole, AfterValidator(InUnit("byte"))]
Bits = Annotated[Whole, AfterValidator(InUnit("bit"))]
Megahertz = Annotated[Measure, AfterValidator(InUnit("MHz"))]
BytesPerSecond = Annotated[Measure, AfterValidator(InUnit("byte/s"))]
BytesPerCycle = Annotated[Measure, AfterValidator(InUnit("byte/cycle"))]
Watts = Annotated[Measure, AfterValidator(InUnit("W"))]
Cycles = Annotated[Measure, AfterValidator(InUnit("cycle"))]
Share = Annotated[Part, AfterValidator(InUnit("share"))]
