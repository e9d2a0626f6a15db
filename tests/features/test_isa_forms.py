"""How far every instruction of the PTX ISA is followed: ``python -m tests.features.test_isa_forms``
prints the table."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple
from unittest.mock import patch

import pytest

from tests.fixtures.tables import table
from wattcast.features.execution import control, execute, matrix, program
from wattcast.features.execution.context import Context
from wattcast.features.execution.program import Program
from wattcast.features.isa import classify
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module
from wattcast.features.ptx.ir import Module

FORMS = Path(__file__).with_name("isa_forms.txt")
HEAD = table("bodies", "isa_forms")["head"]
Followed = Literal["values", "counts", "unknown"]

# Counted, but what they give is not followed.
COUNTS = (
    "mma.sp:", "mma.sp.sync", "mma.sync", "wmma.", "wgmma.mma_async", "ldmatrix", "stmatrix",
    "movmatrix",
)  # fmt: skip
# Not executed at all: their results keep old values, and a warning names them where that matters.
UNKNOWN = (
    "set.gtu.f16x2.f16x2", "atom.global.cas.b128", "== Video", "e4m3x", "e5m2x", "e3m2x", "e2m3x",
    "e2m1x", "ue8m0x",
)  # fmt: skip


class Form(NamedTuple):
    section: str
    text: str

    @property
    def opcode(self) -> str:
        return self.text.split()[0].rstrip(";")


def forms() -> Iterator[Form]:
    section = ""
    for line in FORMS.read_text().splitlines():
        if line.startswith("== "):
            section = line[3:]
        elif line and not line.startswith("#"):
            yield Form(section, line)


@cache
def module_of(form: Form) -> Module:
    return read_module(f"{HEAD}{form.text}\n ret;\n}}\n")


def followed(form: Form) -> Followed:
    """How far the form is followed where all it gives decides something."""
    told: list[Followed] = []

    def unknown(*_: object) -> object:
        told.append("unknown")
        return lambda *_: None

    def counts(context: Context) -> object:
        told.append("counts")
        return lambda *_: None

    with (
        patch.object(program, "_unsupported", unknown),
        patch.object(control, "_unknown", unknown),
        patch.object(matrix, "unfollowed", counts),
        patch.object(program, "is_plain", lambda _: False),
    ):
        Program(module_of(form).kernel("k"), module_of(form))
    return told[0] if told else "values"


def expected(form: Form) -> Followed:
    told = f"{form.text} == {form.section}"
    if any(name in form.text for name in COUNTS):
        return "counts"
    return "unknown" if any(name in told for name in UNKNOWN) else "values"


@pytest.mark.parametrize("form", list(forms()), ids=lambda form: form.text[:70])
def test_every_instruction_is_read_classified_and_followed_as_far_as_told(form: Form) -> None:
    module = module_of(form)
    assert module.diagnostics == ()
    inside = [one.opcode for one in module.kernel("k").body.instructions]
    assert [opcode for opcode in inside if not classify(opcode).known] == []
    assert followed(form) == expected(form)


@pytest.mark.parametrize(
    "form", [form for form in forms() if expected(form) == "unknown"], ids=lambda form: form.opcode
)
def test_what_is_not_executed_is_named_in_a_warning(form: Form) -> None:
    module = module_of(form)
    with patch.object(program, "is_plain", lambda _: False):
        ran = execute(module.kernel("k"), module, Launch.of(1, 32, 0, {}))
    told = [each.detail for each in ran.diagnostics if each.code == "unsupported_instruction"]
    assert len(told) == 1
    assert told[0].split()[0] in form.text


if __name__ == "__main__":
    for each in forms():
        print(f"{followed(each):8} {each.section[:40]:40} {each.text[:90]}")
