"""The facts of the PTX ISA: what `classify` tells, and that a broken table is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.tables import rows
from wattcast.features.errors import DataError
from wattcast.features.isa import TABLE, classify, isa, load_isa


@pytest.mark.parametrize(
    ("opcode", "opcode_class", "pipe"),
    rows("isa", "class_and_pipe"),
)
def test_class_and_pipe(opcode: str, opcode_class: str, pipe: str) -> None:
    facts = classify(opcode)
    assert (facts.known, facts.opcode_class, facts.pipe) == (True, opcode_class, pipe)


@pytest.mark.parametrize(
    ("opcode", "expected"),
    rows("isa", "bytes_per_lane"),
)
def test_bytes_per_lane(opcode: str, expected: int) -> None:
    assert classify(opcode).bytes_per_lane == expected


@pytest.mark.parametrize(
    ("opcode", "flops"),
    [
        ("fma.rn.f32", 2),
        ("mad.f64", 2),
        ("mad.lo.s32", 0),
        ("add.f64", 1),
        ("fma.rn.bf16x2", 4),
        ("sin.approx.f32", 1),
        ("setp.lt.f32", 0),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", 2 * 16 * 8 * 16 / 32),
        ("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32", 0),
        ("wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32", 2 * 16 * 16 * 16 / 32),
        ("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16", 2 * 64 * 128 * 16 / 128),
        ("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64", 2 * 8 * 8 * 4 / 32),
    ],
)
def test_flops_per_lane(opcode: str, flops: float) -> None:
    assert classify(opcode).flops_per_lane == flops


def test_a_copy_names_both_memories() -> None:
    facts = classify("cp.async.bulk.tensor.2d.shared::cluster.global.tile")
    assert (facts.space, facts.source_space) == ("shared", "global")
    back = classify("cp.async.bulk.global.shared::cta.bulk_group")
    assert (back.space, back.source_space) == ("global", "shared")


@given(st.text(max_size=40))
def test_any_text_is_classified_and_unknown_is_said(text: str) -> None:
    facts = classify(text)
    assert facts.opcode == text
    assert facts.known == (facts.category != "unknown") == (facts.pipe != "unknown")
    if not facts.known:
        assert facts.bytes_per_lane == 0
        assert facts.space is None


@pytest.mark.parametrize("opcode", ["", ".", "frobnicate.f32", "cp", "wgmma", "LD.global.f32"])
def test_unknown_opcodes(opcode: str) -> None:
    assert not classify(opcode).known


@given(
    st.sampled_from(sorted(isa().entries)),
    st.lists(st.sampled_from([*sorted(isa().type_bits), "global", "v4", "m16n8k16", "x2"])),
)
def test_every_entry_is_known_under_any_modifiers(opcode: str, modifiers: list[str]) -> None:
    facts = classify(".".join([opcode, *modifiers]))
    assert facts.known
    assert facts.entry.startswith(opcode)
    assert facts.section
    assert facts.sass_expansion >= 0
    assert facts.bytes_per_lane >= 0


TABLE_TEXT = TABLE.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('category = "compute"\npipe = "arithmetic"\nflops = 1\nopcodes = ["add"', None, None),
        ('"sub", "subc", "mul"]', '"sub", "sub", "mul"]', "groups.arithmetic.opcodes"),
        ('"sub", "subc", "mul"]', '"sub", "SUB", "mul"]', "groups.arithmetic.opcodes.3"),
        ("f64 = 64\n", "f64 = 0\n", "type_bits.f64"),
        ('f64 = "fp64"', 'f64 = "fp65"', "pipe_rules.arithmetic.f64"),
        ('pipe = "special_function"', 'pipe = "magic"', "groups.special_functions.pipe"),
        ('space = "tensor"', 'space = "moon"', "groups.tensor_memory_load.space"),
        ("weight = 0.4", "weight = -0.4", "expansion.0.weight"),
        ("weight = 0.4", "wieght = 0.4", "expansion.0.wieght"),
        ('opcodes = ["cvta", "isspacep"]', 'opcodes = ["cvta", "isspace"]', "expansion.2.opcodes"),
        ('category = "store"\n', "", "groups.store.category"),
        ("flops = 2\n", "flops = true\n", "groups.multiply_add.flops"),
    ],
)
def test_a_broken_table_is_named_by_key(
    tmp_path: Path, old: str, new: str | None, key: str | None
) -> None:
    assert old in TABLE_TEXT
    path = tmp_path / "isa.toml"
    if new is None:
        path.write_text(TABLE_TEXT, encoding="utf-8")
        assert len(load_isa(path).entries) == len(isa().entries)
        return
    path.write_text(TABLE_TEXT.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(DataError) as caught:
        load_isa(path)
    assert caught.value.context["key"] == key
    assert key is not None
    assert key in caught.value.detail


def test_a_table_that_is_no_toml(tmp_path: Path) -> None:
    path = tmp_path / "isa.toml"
    path.write_text("pipes = [", encoding="utf-8")
    with pytest.raises(DataError, match=r"isa\.toml is not TOML"):
        load_isa(path)
