"""Everything that can be wrong with what a user brings.

    WattcastError
    +-- PtxError             the text is not PTX at all (line, column)
    +-- KernelError          no kernel, several and none named, or an unknown name
    +-- LaunchError          a launch configuration the GPU refuses (field)
    |   +-- ClockError       clocks the GPU does not run at (field)
    +-- GpuError             an unknown GPU, or a profile that does not validate
    +-- SchemaError          an unknown feature schema, or one without a table for the GPU
    +-- AnalysisError        the kernel cannot be analysed dynamically (which analysis, where)
    +-- TooComplexError      a kernel beyond a limit of size (limit, line)
    +-- GivenUpError         work that took longer than its request allows
    +-- ModelError           no such model, or an artifact that fails its checks
    +-- ModelConfigError     a language model's config that cannot be forecast (field)
    +-- ConstraintError      constraints that no operating point keeps to
    +-- DataError            a defect in a data set (file, row, column)
    +-- ServiceError         a limit or state of the service (kind)
    +-- MissingExtraError    packages of an extra that is not installed

Each class has a stable ``slug``: the tail of the ``type`` of its RFC 9457 problem.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copyreg import __newobj__  # type: ignore[attr-defined]
from dataclasses import dataclass
from time import monotonic
from typing import ClassVar


class WattcastError(Exception):
    """Base of every error whose message is meant for the user.

    ``context`` holds what a program wants to know besides the sentence: ``line``,
    ``column``, ``field``, ``known`` and the like; every value is JSON-serialisable.
    """

    slug: ClassVar[str] = "error"

    def __init__(self, detail: str, **context: object) -> None:
        super().__init__(detail)
        self.detail = detail
        self.context = {key: value for key, value in context.items() if value is not None}

    def __reduce__(self) -> tuple[object, ...]:
        """As it is, whatever its class is made from: worker processes send errors back."""
        return __newobj__, (type(self), *self.args), vars(self)

    @property
    def about(self) -> str | None:
        """The part of the request that it is about, where it names one."""
        return str(self.context["field"]) if "field" in self.context else None


class RequestError(WattcastError, ValueError):
    """A part of a request is of the wrong kind; the message names it."""

    slug = "validation"


class PtxError(WattcastError):
    """The text is not PTX. Always carries ``line`` and ``column`` (1-based)."""

    slug = "ptx-syntax"

    def __init__(self, detail: str, *, line: int, column: int = 1) -> None:
        super().__init__(detail, line=line, column=column)
        self.line = line
        self.column = column

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}: {self.detail}"


class KernelError(WattcastError):
    """The module holds no kernel, or the one asked for cannot be told."""

    slug = "kernel"


class LaunchError(WattcastError):
    """A launch configuration that the GPU would refuse; ``field`` names the part."""

    slug = "launch"

    def __init__(self, detail: str, *, field: str, **context: object) -> None:
        super().__init__(detail, field=field, **context)
        self.field = field


class ClockError(LaunchError):
    """A clock that is not above 0, or beyond what is predicted for the GPU; ``field`` names it."""

    slug = "clocks"


class GpuError(WattcastError):
    """An unknown GPU id, or a profile file that does not validate."""

    slug = "gpu"


class SchemaError(WattcastError):
    """An unknown feature schema, or one that has no table for the GPU."""

    slug = "schema"


class AnalysisError(WattcastError):
    """A dynamic analysis cannot make sense of the kernel; ``analysis`` says which."""

    slug = "analysis"


class TooComplexError(WattcastError):
    """A text or kernel beyond a limit of size; context names ``limit`` (a setting) and ``line``."""

    slug = "too-complex"


class GivenUpError(WattcastError):
    """Work that took longer than its request allows, or whose caller is gone."""

    slug = "time-limit"


class ModelError(WattcastError):
    """No such model, or an artifact whose card or checksum does not hold."""

    slug = "model"


class ConstraintError(WattcastError):
    """Constraints that no operating point keeps to."""

    slug = "constraints"


class ModelConfigError(WattcastError):
    """A language model's configuration that cannot be forecast; ``field`` names the part."""

    slug = "model-config"


class DataError(WattcastError):
    """A defect in a data set; context names ``file``, ``row`` and ``column``."""

    slug = "data"


class ServiceError(WattcastError):
    """A limit or state of what answers, rather than of the domain; ``kind`` is its slug."""

    def __init__(self, kind: str, detail: str, **context: object) -> None:
        super().__init__(detail, **context)
        self.kind = kind


def refused(detail: str, field: str) -> ServiceError:
    """The error of a request whose ``field`` asks for what is not given."""
    return ServiceError("validation", detail, field=field)


class MissingExtraError(WattcastError):
    """Something needs a package that is not installed; the message has the pip command."""

    slug = "missing-extra"

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"this needs {package}, which is not installed: pip install 'wattcast[{extra}]'",
            extra=extra,
        )

    @classmethod
    def of(cls, error: ImportError) -> MissingExtraError | None:
        """What to say of a module that is missing; ``None`` if it comes with no extra."""
        from importlib.metadata import requires  # with all of email: a tenth of the time to import

        module = (error.name or "").partition(".")[0]
        wanted = _DISTRIBUTIONS.get(module, module.replace("_", "-"))
        for line in requires("wattcast") or ():
            package, _, marker = line.partition(";")
            extra = re.search(r"extra == ['\"]([a-z0-9]+)['\"]", marker)
            name = re.match(r"[\w.-]+", package)
            if extra and name and name[0].lower() == wanted and extra[1] not in ("all", "dev"):
                return cls(wanted, extra[1])
        return None


_DISTRIBUTIONS = {
    "cuda": "cuda-bindings",
    "multipart": "python-multipart",
    "psycopg": "psycopg[binary]",
    "pynvml": "nvidia-ml-py",
    "sklearn": "scikit-learn",
    "starlette": "fastapi",
}
"""Distributions whose modules have another name."""


NONSENSE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    StopIteration,
    TypeError,
    ValueError,
)
"""What code meets in text that is PTX to the reader and makes no sense all the same."""


# Warnings: everything guessed, assumed or unknown, all the way to the answer.

CUT_SHORT = "execution_cut_short"
"""Code of what tells that the executed analysis reached its cap."""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One warning with a stable ``code`` (snake_case) and its place in the PTX.

    ``line`` and ``column`` are 1-based; ``None`` where the warning has no place.
    """

    code: str
    detail: str
    line: int | None = None
    column: int | None = None


MOST_DIAGNOSTICS = 200
"""Warnings kept per body, module or pass; the rest are counted in a last one."""


def bounded(found: Sequence[Diagnostic]) -> tuple[Diagnostic, ...]:
    """The first of them, and one more that counts the rest: hostile text yields any number."""
    if len(found) <= MOST_DIAGNOSTICS:
        return tuple(found)
    left_out = len(found) - MOST_DIAGNOSTICS
    rest = Diagnostic("more_diagnostics", f"{left_out} further warnings are not listed")
    return (*found[:MOST_DIAGNOSTICS], rest)


# When a piece of work is given up, and how large an input may be.
#
#     with giving_up(seconds=30) as clock:     # the request's own clock, in whichever thread it
# runs
#         ...; checkpoint()                    # in every loop over text or graph: raises
# GivenUpError
#     clock.give_up()                          # from another thread: the caller is gone
#
# A clock never changes an answer: either the work is done, or there is no answer (docs/design.md,
# determinism). How much work an answer may hold is counted (``analysis_effort``), not timed.

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
    analysis within some 300 MB and ten seconds of one core (tests/app/test_hostile_http.py).
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
