"""When a piece of work is given up, and how large an input may be.

    with giving_up(seconds=30) as clock:     # the request's own clock, in whichever thread it runs
        ...; checkpoint()                    # in every loop over text or graph: raises GivenUpError
    clock.give_up()                          # from another thread: the caller is gone

A clock never changes an answer: either the work is done, or there is no answer (docs/design.md,
determinism). How much work an answer may hold is counted (``analysis_effort``), not timed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from time import monotonic

from wattcast.features.errors import GivenUpError, TooComplexError

DEFAULT_EFFORT = 700_000_000
"""Budget of an executed analysis in units of ``Effort``: 1 to 3 s of one core. The fixture kernels
do at most 800 M units a second, so everything ends which a cap of one second let end."""


class Effort:
    """Work counted: one unit is one instruction carried out for one lane.

    ``limit`` is the budget (``None``: no end). The count depends on code, launch and arguments
    alone, so what a budget cuts short it always cuts at the same place.
    """

    __slots__ = ("limit", "spent")

    def __init__(self, limit: float | None = None) -> None:
        self.limit = float("inf") if limit is None else float(limit)
        self.spent = 0

    @property
    def gone(self) -> bool:
        """Whether the budget is spent."""
        return self.spent > self.limit


class Clock:
    """When work is given up: ``until`` (seconds of ``time.monotonic``), or as soon as told."""

    __slots__ = ("seconds", "until")

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = seconds
        self.until = float("inf") if seconds is None else monotonic() + seconds

    def give_up(self) -> None:
        """Let the next ``checkpoint`` of this clock's work raise; safe from any thread."""
        self.until = float("-inf")


_CLOCK: ContextVar[Clock | None] = ContextVar("clock", default=None)


@contextmanager
def giving_up(seconds: float | None = None, clock: Clock | None = None) -> Iterator[Clock]:
    """Work inside is given up after ``seconds`` (an outer clock that ends sooner counts too)."""
    own = clock if clock is not None else Clock(seconds)
    outer = _CLOCK.get()
    if outer is not None and outer.until < own.until:
        own.until = outer.until
    token = _CLOCK.set(own)
    try:
        yield own
    finally:
        _CLOCK.reset(token)


def checkpoint() -> None:
    """Raise GivenUpError where the work at hand is to be given up; about 0.1 microseconds.

    Call it in every loop whose turns grow with the input, once per some hundred microseconds.
    """
    clock = _CLOCK.get()
    if clock is not None and clock.until <= monotonic():
        raise GivenUpError("the work took longer than allowed and was given up")


@dataclass(frozen=True, slots=True)
class SizeLimits:
    """How large a PTX text and one kernel of it may be; what is larger raises TooComplexError.

    The defaults let through what compilers make (the largest kernels of CUTLASS, Triton and
    PyTorch have some 10^4 instructions, 10^3 blocks and ten loops inside each other) and keep one
    analysis within some 300 MB and ten seconds of one core (tests/app/test_hostile_ptx.py).
    """

    max_line_characters: int = 4_000_000
    max_statement_characters: int = 100_000
    max_kernel_instructions: int = 60_000
    max_kernel_labels: int = 100_000
    max_kernel_blocks: int = 20_000
    max_kernel_edges: int = 200_000
    max_loop_nesting: int = 64
    max_kernel_liveness: int = 200_000_000
    max_module_symbols: int = 50_000

    def hold(self, name: str, found: int, what: str, line: int) -> None:
        """Raise TooComplexError where ``found`` exceeds the limit ``name``.

        ``what`` ends the sentence "line 7: more than 100 ..."; ``line`` is where the text goes
        beyond it.
        """
        most: int = getattr(self, name)
        if found > most:
            raise TooComplexError(f"line {line}: more than {most:,} {what}", limit=name, line=line)


DEFAULT_LIMITS = SizeLimits()
"""What holds where nobody says otherwise."""
