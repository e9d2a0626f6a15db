"""What one turn of each microbenchmark's loop executes, as its source says it (kernels/micro*.cu).

The loop's own three instructions and what stands before and behind it come on top; a test runs
every kernel by the executed analysis and compares.
"""

from __future__ import annotations

from collections.abc import Mapping

LOOP: Mapping[str, int] = {"sub.u32": 1, "setp.ne.u32": 1, "bra": 1}
"""What turns the loop."""

EVENTS = 64
"""Operations of one turn of arithmetic and shared memory loops."""

CHAIN: Mapping[str, str] = {
    "fma.f32": "fma.rn.f32",
    "fma.f64": "fma.rn.f64",
    "fma.f16x2": "fma.rn.f16x2",
    "mad.s32": "mad.lo.s32",
    "shf.b32": "shf.l.wrap.b32",
    "ex2.f32": "ex2.approx.ftz.f32",
    "add.s32": "add.s32",
    "add.f32": "add.rn.f32",
    "mul.f32": "mul.rn.f32",
    "add.f64": "add.rn.f64",
    "mul.f64": "mul.rn.f64",
    "rsqrt.f32": "rsqrt.approx.ftz.f32",
    "sqrt.f32": "sqrt.approx.ftz.f32",
    "lg2.f32": "lg2.approx.ftz.f32",
    "sin.f32": "sin.approx.ftz.f32",
    "div.f32": "div.rn.f32",
    "popc.b32": "popc.b32",
    "mulhi.u32": "mul.hi.u32",
    "prmt.b32": "prmt.b32",
    "shfl.b32": "shfl.sync.idx.b32",
}
"""Opcode of kernels ``<target with _>_i<chains>`` that run 64 of one operation a turn."""

WMMA_F32 = "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32"
WMMA_F16 = "wmma.mma.sync.aligned.row.col.m16n16k16.f16.f16"
MMA: Mapping[str, str] = {
    "mma_f16": "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
    "mma_bf16": "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
    "mma_tf32": "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32",
    "mma_s8": "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32",
    "mma_f64": "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64",
}

_NEXT = {"add.s64": 8, "and.b64": 4}
_SUM = {"add.rn.f32": 16}
_FMA, _ADD = "fma.rn.f32", "add.rn.f32"

_SINGLE: dict[str, dict[str, int]] = {
    "cvt_f32_i1": {"cvt.rzi.s32.f32": 32, "cvt.rn.f32.s32": 32},
    "selp_s32_i1": {"setp.lt.u32": 32, "selp.b32": 32},
    "bar_i1": {"bar.sync": 16},
    "fence_i1": {"membar.gl": 16},
    "atom_global": {"atom.global.add.u32": 16},
    "red_global": {"red.global.add.u32": 16},
    "atom_shared": {"atom.shared.add.u32": 16},
    "chase_ca": {"ld.global.ca.u64": 16},
    "chase_cg": {"ld.global.cg.u64": 16},
    "ld_shared_i1": {"ld.shared.u32": EVENTS},
    "ld_shared_i2": {"ld.shared.u32": EVENTS},
    "ld_shared_i4": {"ld.shared.u32": EVENTS},
    "st_shared_i4": {"st.shared.u32": EVENTS},
    "read_ca": {**_NEXT, **_SUM, "ld.global.ca.v4.f32": 4},
    "read_cg": {**_NEXT, **_SUM, "ld.global.cg.v4.f32": 4},
    "read_fma4": {**_NEXT, **_SUM, "ld.global.cg.v4.f32": 4, _FMA: 16},
    "read_fma16": {**_NEXT, **_SUM, "ld.global.cg.v4.f32": 4, _FMA: 64},
    "read_fma64": {**_NEXT, **_SUM, "ld.global.cg.v4.f32": 4, _FMA: 256},
    "write": {**_NEXT, "st.global.v4.f32": 4},
    "update": {
        **_NEXT, **_SUM, "ld.global.cg.v4.f32": 4, "neg.f32": 16, "st.global.v4.f32": 4,
    },
    "energy_fma_f32": {_FMA: EVENTS},
    "energy_fma_f64": {"fma.rn.f64": EVENTS},
    "energy_fma_f16x2": {"fma.rn.f16x2": EVENTS},
    "energy_add_f32": {_ADD: EVENTS},
    "energy_add_s32": {"add.s32": EVENTS},
    "energy_mad_s32": {"mad.lo.s32": EVENTS},
    "energy_shf_b32": {"shf.l.wrap.b32": EVENTS},
    "energy_ex2_f32": {"ex2.approx.ftz.f32": EVENTS},
    "energy_shfl_b32": {"shfl.sync.bfly.b32": EVENTS},
    "energy_popc_b32": {"popc.b32": EVENTS},
    "energy_fma_ex2": {_FMA: 48, "ex2.approx.ftz.f32": 16},
    "energy_branch_1": {_FMA: 1},
    "energy_branch_4": {_FMA: 4},
    "energy_diverge": {
        "mov.u32": 1, "and.b32": 1, "setp.ne.u32": 1, "bra": 2, _FMA: 32, _ADD: 32,
    },
    "energy_bar": {_FMA: 16, "bar.sync": 16},
    "wmma_f32_i1": {WMMA_F32: 16},
    "wmma_f32_i2": {WMMA_F32: 16},
    "wmma_f32_i4": {WMMA_F32: 16},
    "wmma_f16_i4": {WMMA_F16: 16},
    "mma_f16_i1": {MMA["mma_f16"]: 16},
    **{f"{name}_i4": {opcode: 16} for name, opcode in MMA.items()},
}  # fmt: skip


def body(kernel: str) -> dict[str, int]:
    """Instructions by full opcode that one turn of a kernel's loop executes, the loop's own three
    left out. Raises KeyError for a kernel without a loop."""
    if kernel in _SINGLE:
        return dict(_SINGLE[kernel])
    name, _, _ = kernel.rpartition("_i")
    return {CHAIN[name.replace("_", ".")]: EVENTS}
