"""Launches for tests of the time models: two kernels with measured times, and random ones."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from hypothesis import strategies as st

from wattcast.features.cfg import build_cfg
from wattcast.features.gpus import GpuProfile, load_gpu
from wattcast.features.launch import Launch
from wattcast.features.loops import natural_loops
from wattcast.features.ptx import read_module
from wattcast.models.clocks import ClockPair
from wattcast.models.papers.thesis.code import BlockCode, KernelCode, charge
from wattcast.models.papers.thesis.work import KernelWork
from wattcast.models.time.measured_work import Work, combined_seconds, part_seconds

KERNELS = Path(__file__).parents[1] / "fixtures" / "kernels" / "time"
ALL_GPUS = ("tesla-k20", "quadro-k4200", "tesla-m60", "gtx-1050", "tesla-v100")
K20 = load_gpu("tesla-k20")


@cache
def code_of(name: str) -> KernelCode:
    text = (KERNELS / name).read_text(encoding="utf-8")
    return code_of_text(text)


def code_of_text(text: str) -> KernelCode:
    kernel = read_module(text).kernel()
    cfg = build_cfg(kernel.body)
    return KernelCode.of(kernel.body, cfg, natural_loops(cfg))


def body(lines: str) -> KernelCode:
    return code_of_text(
        ".version 7.0\n.target sm_52\n.address_size 64\n.visible .entry k()\n{\n"
        ".reg .pred %p<9>;\n.reg .f32 %f<99>;\n.reg .b32 %r<99>;\n.reg .b64 %rd<99>;\n"
        f"{lines}\n}}\n"
    )


VECTOR_ADD = KernelWork(code_of("vector_add.ptx"), Launch.of(196, 256), (), 12, 0)
MATMUL = KernelWork(code_of("tiled_matmul.ptx"), Launch.of((32, 32), (32, 32)), (32,), 32, 8192)

OPCODES = (
    "ld.global.f32",
    "st.global.v2.f32",
    "ld.shared.f32",
    "st.shared.f32",
    "fma.rn.f32",
    "add.f64",
    "mul.lo.s32",
    "div.rn.f32",
    "sqrt.rn.f32",
    "cvt.rn.f32.s32",
    "setp.lt.s32",
    "bar.sync",
    "atom.global.add.u32",
    "ex2.approx.f32",
)


@st.composite
def codes(draw: st.DrawFn) -> KernelCode:
    """A kernel of a few random blocks in a row, some of them in two nested loops."""
    count = draw(st.integers(1, 4))
    made = []
    for _ in range(count):
        charges, before = [], []
        for at in range(draw(st.integers(0, 10))):
            cost = charge(draw(st.sampled_from(OPCODES)))
            assert cost is not None
            charges.append(cost)
            earlier = st.lists(st.integers(0, at - 1), unique=True, max_size=2)
            before.append(tuple(draw(earlier)) if at else ())
        made.append(BlockCode(tuple(charges), tuple(before)))
    successors = [tuple({min(b + 1, count - 1), min(b + 2, count - 1)} - {b}) for b in range(count)]
    return KernelCode(
        blocks=tuple(made),
        successors=tuple(successors),
        order=tuple(range(count)),
        loop_of=tuple(draw(st.integers(-1, 1)) for _ in range(count)),
        loop_parents=(-1, 0),
        loop_lines=(1, 2),
        unmeasured=(),
        calls=(),
    )


works = st.builds(
    KernelWork,
    code=st.one_of(codes(), st.just(MATMUL.code), st.just(VECTOR_ADD.code)),
    launch=st.builds(
        Launch.of, st.integers(1, 20_000), st.sampled_from([1, 32, 96, 128, 256, 768, 1024])
    ),
    # Trips of 1e-311 underflow in a time: none, as in a launch.
    trip_counts=st.tuples(
        st.integers(0, 2000), st.floats(0, 50).map(lambda trips: 0.0 if trips < 1e-9 else trips)
    ),
    registers_per_thread=st.integers(0, 64),
    shared_bytes_per_block=st.sampled_from([0, 1024, 8192, 30_000]),
)
gpus = st.sampled_from(ALL_GPUS).map(load_gpu)


def physical_seconds(work: Work, gpu: GpuProfile, clocks: ClockPair) -> float:
    """The physical estimate of measured work alone."""
    return combined_seconds(part_seconds(work, gpu, clocks))
