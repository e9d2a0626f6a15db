"""The facts of the PTX ISA: what `classify` tells, and that a broken table is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattcast.features.errors import DataError
from wattcast.features.isa import TABLE, classify, isa, load_isa


@pytest.mark.parametrize(
    ("opcode", "opcode_class", "pipe"),
    [
        ("add.f32", "compute", "fma"),
        ("add.rn.ftz.f32", "compute", "fma"),
        ("mul.wide.s32", "compute", "int"),
        ("fma.rn.f64", "compute", "fp64"),
        ("fma.rn.f16x2", "compute", "fp16"),
        ("min.f32", "compute", "fp32"),
        ("setp.lt.f64", "compute", "fp64"),
        ("setp.ge.and.s32", "compute", "int"),
        ("set.lt.u32.f32", "compute", "fp32"),
        ("rsqrt.approx.f32", "compute", "sfu"),
        ("tanh.approx.bf16x2", "compute", "sfu"),
        ("lop3.b32", "compute", "int"),
        ("dp4a.u32.u32", "compute", "int"),
        ("vabsdiff4.u32.u32.u32.add", "compute", "int"),
        ("cvt.rn.f32.s32", "convert", "sfu"),
        ("cvt.f64.f32", "convert", "fp64"),
        ("cvt.u64.u32", "convert", "int"),
        ("cvta.to.global.u64", "convert", "int"),
        ("mov.u32", "move", "int"),
        ("shfl.sync.bfly.b32", "move", "lsu"),
        ("ld.f32", "generic_load", "lsu"),
        ("ld.global.nc.L1::no_allocate.v4.f32", "global_load", "lsu"),
        ("ld.param::entry.u64", "param_load", "lsu"),
        ("ld.const.f32", "const_load", "lsu"),
        ("st.shared::cta.u32", "shared_store", "lsu"),
        ("st.local.v2.u32", "local_store", "lsu"),
        ("atom.shared.cas.b32", "shared_atomic", "lsu"),
        ("red.async.relaxed.cluster.global.add.u64", "global_atomic", "lsu"),
        ("cp.async.cg.shared.global", "shared_copy", "lsu"),
        ("cp.async.commit_group", "barrier", "sync"),
        ("cp.async.bulk.prefetch.L2.global", "global_special", "lsu"),
        ("tex.2d.v4.f32.s32", "texture", "texture"),
        ("sust.b.2d.v4.b32.trap", "surface", "texture"),
        ("bar.sync", "barrier", "sync"),
        ("barrier.cluster.arrive", "barrier", "sync"),
        ("bar.warp.sync", "barrier", "sync"),
        ("membar.gl", "barrier", "sync"),
        ("fence.proxy.async", "barrier", "sync"),
        ("mbarrier.try_wait.parity.b64", "shared_barrier", "lsu"),
        ("vote.sync.ballot.b32", "special", "int"),
        ("bra.uni", "control", "control"),
        ("call.uni", "control", "control"),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", "compute", "tensor"),
        ("mma.sp::ordered_metadata.sync.aligned.m16n8k32.f32.f16.f16.f32", "compute", "tensor"),
        ("wgmma.wait_group.sync.aligned", "barrier", "sync"),
        ("tcgen05.mma.cta_group::1.kind::f16", "compute", "tensor"),
        ("tcgen05.ld.sync.aligned.32x32b.x8.b32", "tensor_load", "lsu"),
        ("setmaxnreg.inc.sync.aligned.u32", "special", "none"),
        ("griddepcontrol.wait", "barrier", "sync"),
        ("stacksave.u64", "special", "int"),
    ],
)
def test_class_and_pipe(opcode: str, opcode_class: str, pipe: str) -> None:
    facts = classify(opcode)
    assert (facts.known, facts.opcode_class, facts.pipe) == (True, opcode_class, pipe)


@pytest.mark.parametrize(
    ("opcode", "expected"),
    [
        ("ld.global.f32", 4),
        ("ld.global.v4.f32", 16),
        ("ld.global.v8.b32", 32),
        ("ld.shared.u8", 1),
        ("st.global.v2.f64", 16),
        ("atom.global.add.f16x2", 4),
        ("tex.2d.v4.f32.s32", 16),
        ("cp.async.cg.shared.global.L2::128B", 16),  # always 16 bytes
        ("cp.async.ca.shared.global", 0),  # 4, 8 or 16: an operand says
        # four 8x8 matrices of 2 bytes over 32 lanes: 4*64*2/32
        ("ldmatrix.sync.aligned.m8n8.x4.shared.b16", 16),
        # a 16x16 fragment of 2 bytes over 32 lanes: 16*16*2/32
        ("wmma.load.a.sync.aligned.row.m16n16k16.global.f16", 16),
        # an 8x32 accumulator of 4 bytes: 8*32*4/32
        ("wmma.store.d.sync.aligned.row.m8n32k16.global.f32", 32),
        # 32 lanes x 32 bits x 8 repetitions
        ("tcgen05.ld.sync.aligned.32x32b.x8.b32", 32),
        ("add.f32", 0),
        ("prefetch.global.L2", 0),
        ("mbarrier.init.shared.b64", 0),
    ],
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
