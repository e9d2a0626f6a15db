"""Liveness estimate against ptxas, its rules one by one, and declared shared memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from statistics import mean, median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.features.ptxas_registers import Row, table
from tests.needs import needs_ptxas
from wattcast.features.cfg import build_cfg
from wattcast.features.gpus import load_gpu
from wattcast.features.ptx import read_module
from wattcast.features.ptx.ir import Function, Module
from wattcast.features.statics import RegisterEstimate, estimate_registers, static_shared_bytes


def module(body: str, registers: str = "", directives: str = "", before: str = "") -> Module:
    return read_module(
        f"""
        .version 8.0
        .target sm_80
        .address_size 64
        {before}
        .visible .entry k(.param .u64 p, .param .u32 n) {directives}
        {{
        .reg .pred %p<9>; .reg .b32 %r<300>; .reg .b64 %rd<99>;
        .reg .f64 %d<99>; .reg .f32 %f<300>; .reg .b16 %h<9>;
        {registers}
        ld.param.u64 %rd1, [p];
        cvta.to.global.u64 %rd2, %rd1;
        ld.param.u32 %r1, [n];
        mov.u32 %r2, %tid.x;
        {body}
        ret;
        }}
        """
    )


def kernel(body: str, registers: str = "", directives: str = "") -> Function:
    return module(body, registers, directives).kernel()


def estimate(function: Function, gpu: str | None = None) -> RegisterEstimate:
    profile = load_gpu(gpu) if gpu else None
    return estimate_registers(function, build_cfg(function.body), gpu=profile)


def registers(body: str, gpu: str | None = None) -> int:
    return estimate(kernel(body), gpu).registers_per_thread


# --- against ptxas ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def compared() -> list[tuple[Row, RegisterEstimate]]:
    gpus = {"sm_52": "tesla-m60", "sm_70": "tesla-v100"}
    pairs = []
    for row in table():
        function = read_module(row.text()).kernel(row.kernel)
        # 8.0 and 9.0 have the register file of 7.0 (compute_capability.toml).
        pairs.append((row, estimate(function, gpus.get(row.target, "tesla-v100"))))
    return pairs


def test_median_error_against_ptxas(
    compared: list[tuple[Row, RegisterEstimate]], record_property: Callable[[str, object], None]
) -> None:
    errors: dict[str, list[float]] = defaultdict(list)
    for row, found in compared:
        error = abs(found.registers_per_thread - row.registers) / row.registers
        errors[row.target].append(error)
        errors["all"].append(error)
    lines = [
        f"registers vs ptxas {target}: {len(values)} kernels, median {median(values):.1%}, "
        f"mean {mean(values):.1%}"
        for target, values in sorted(errors.items())
    ]
    record_property("table", "\n".join(lines))
    assert len(errors["all"]) >= 200
    assert median(errors["all"]) <= 0.15
    assert all(median(values) <= 0.20 for values in errors.values())


def test_stated_range_holds_the_true_number_in_nine_of_ten(
    compared: list[tuple[Row, RegisterEstimate]],
) -> None:
    held = [found.low <= row.registers <= found.high for row, found in compared]
    assert mean(held) >= 0.88
    assert all(found.low <= found.registers_per_thread <= found.high for _, found in compared)


@needs_ptxas
@pytest.mark.parametrize("row", table()[::40], ids=lambda row: f"{row.kernel}-{row.target}")
def test_the_table_is_what_ptxas_says(row: Row) -> None:
    report = row.measured()
    assert report is not None
    assert report.registers_per_thread == row.registers
    assert report.static_shared_bytes == row.static_shared_bytes


def test_declared_shared_memory_is_what_ptxas_allocates() -> None:
    wrong = []
    for row in table():
        parsed = read_module(row.text())
        if static_shared_bytes(parsed, parsed.kernel(row.kernel)) != row.static_shared_bytes:
            wrong.append(row)
    assert not wrong


# --- rules, each by itself ------------------------------------------------------------------


def test_an_empty_kernel_takes_the_least() -> None:
    assert estimate(read_module(".version 8.0 .target sm_80 .entry k() { ret; }").kernel()) == (
        RegisterEstimate(5, 4, 7, "liveness")
    )


def sums(type_: str, prefix: str, count: int) -> str:
    """``count`` values computed from %tid, all alive until the last is stored."""
    lines = [f"cvt.{type_}.u32 {prefix}10, %r2;"]
    lines += [f"add.{type_} {prefix}{11 + i}, {prefix}{10 + i}, {prefix}10;" for i in range(count)]
    lines += [f"st.global.{type_} [%rd2+{8 * i}], {prefix}{11 + i};" for i in range(count)]
    return "\n".join(lines)


@pytest.mark.parametrize(("type_", "prefix", "words"), [("f32", "%f", 1), ("f64", "%d", 2)])
def test_a_live_value_costs_its_words(type_: str, prefix: str, words: int) -> None:
    # The cvt needs a rounding modifier in real PTX; the estimate does not look at it.
    few, many = registers(sums(type_, prefix, 10)), registers(sums(type_, prefix, 20))
    assert many - few == 10 * words


def test_parameters_and_constants_cost_nothing_until_combined() -> None:
    def uses(value: str) -> str:
        lines = (f"add.u32 %r3, %r2, {value.format(i)};" for i in range(10, 40))
        return "\n".join(line + "st.global.u32 [%rd2], %r3;" for line in lines)

    moves = "\n".join(f"mov.u32 %r{i}, {i};" for i in range(10, 40))
    assert registers(moves + uses("%r{}")) == registers(uses("{}"))
    assert registers(uses("%r1")) == registers(uses("{}"))


def test_values_that_live_through_a_loop_are_counted_in_it() -> None:
    around = "".join(f"add.u32 %r{i}, %r2, {i};" for i in range(10, 30))
    loop = "mov.u32 %r3, 0; L: add.u32 %r3, %r3, %r2; setp.lt.u32 %p1, %r3, %r1; @%p1 bra L;"
    after = "".join(f"st.global.u32 [%rd2], %r{i};" for i in range(10, 30))
    assert registers(around + loop + after) >= registers(loop) + 20


def test_a_counted_loop_that_loads_gathers_its_loads() -> None:
    def loop(step: str) -> str:
        return (
            "mov.u32 %r3, 0; mov.f32 %f1, 0f00000000; mul.wide.u32 %rd3, %r2, 4;"
            "add.s64 %rd4, %rd2, %rd3; L: ld.global.f32 %f2, [%rd4]; ld.global.f32 %f3, [%rd4+64];"
            f"fma.rn.f32 %f1, %f2, %f3, %f1; add.u32 %r3, %r3, {step};"
            "setp.lt.u32 %p1, %r3, %r1; @%p1 bra L; st.global.f32 [%rd2], %f1;"
        )

    assert registers(loop("1")) == registers(loop("%r2")) + 6 - 1  # %r2 need not stay


def test_latency_is_hidden_only_while_registers_are_free() -> None:
    """32 loads each followed by its use: gathered only where the GPU has room for it."""
    body = "mul.wide.u32 %rd3, %r2, 4; add.s64 %rd4, %rd2, %rd3; mov.f32 %f1, 0f00000000;"
    for i in range(64):
        body += f"ld.global.nc.f32 %f{i + 10}, [%rd4+{4 * i}]; add.f32 %f1, %f1, %f{i + 10};"
    body += "st.global.f32 [%rd4], %f1;"
    assert registers(body, "tesla-v100") == 65536 // 2048
    no_loads = "mov.f32 %f1, 0f00000000; st.global.f32 [%rd2], %f1;"
    assert registers(no_loads, "tesla-v100") < 10


def test_loads_do_not_pass_a_store_to_the_same_memory() -> None:
    def body(space: str) -> str:
        part = (
            f"ld.shared.f32 %f{{0}}, [{{0}}]; add.f32 %f1, %f1, %f{{0}}; st.{space}.f32 [0], %f1;"
        )
        return "mov.f32 %f1, 0f00000000;" + "".join(part.format(i) for i in range(10, 26))

    assert registers(body("shared")) < 10
    assert registers(body("global")) == registers(body("shared")) + 15


@pytest.mark.parametrize(
    ("opcode", "more"), [("div.rn.f32", 7), ("div.full.f32", 0), ("mul.f32", 0)]
)
def test_sequences_need_temporaries(opcode: str, more: int) -> None:
    body = "cvt.rn.f32.u32 %f1, %r2; {} %f2, %f1, %f1; st.global.f32 [%rd2], %f2;"
    plain = registers(body.format("add.f32"))
    # The store's address (two words) is the larger need of a plain instruction.
    assert registers(body.format(opcode)) == max(plain, plain + more - 2)


# --- caps ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("directives", "cap"),
    [
        (".maxnreg 24", 24),
        (".maxntid 1024, 1, 1", 64),
        (".maxntid 256, 1, 1 .minnctapersm 8", 32),
        (".maxntid 16, 16, 1 .minnctapersm 4", 64),
        (".reqntid 512, 1, 1 .minnctapersm 3", 40),
        ("", 255),
    ],
)
def test_performance_directives_cap_the_number(directives: str, cap: int) -> None:
    body = sums("f32", "%f", 280)
    found = estimate(kernel(body, directives=directives))
    assert found.registers_per_thread == cap
    assert found.high == cap


def test_capability_3_0_has_63_registers_a_thread() -> None:
    assert registers(sums("f32", "%f", 280), "quadro-k4200") == 63


@settings(deadline=None)  # a busy machine is no failure
@given(st.lists(st.integers(10, 60), min_size=1, max_size=40), st.integers(0, 3))
def test_estimate_is_between_the_least_and_all_registers(names: list[int], branches: int) -> None:
    """Any straight code, cut into blocks: never fewer than the least, never more than written."""
    body, targets = "", []
    for place, name in enumerate(names):
        if place % 10 == 9 and len(targets) < branches:
            targets.append(f"L{place}")
            body += f"setp.eq.u32 %p1, %r2, {place}; @%p1 bra L{place}; L{place}:"
        body += f"add.u32 %r{name}, %r{names[place - 1]}, %r2;"
    found = estimate(kernel(body + f"st.global.u32 [%rd2], %r{names[-1]};"))
    assert 4 <= found.registers_per_thread <= len(set(names)) + 1 + 2 + 5
    assert found.low <= found.registers_per_thread <= found.high
    assert found.how == "liveness"


def test_thousands_of_blocks_end() -> None:
    blocks = "".join(
        f"L{i}: add.u32 %r3, %r3, %r2; setp.eq.u32 %p1, %r3, {i}; @%p1 bra L{i * 7919 % 3000};"
        for i in range(3000)
    )
    assert estimate(kernel("mov.u32 %r3, 0;" + blocks)).registers_per_thread < 16


# --- static shared memory -------------------------------------------------------------------


def test_shared_variables_are_aligned_and_external_ones_left_out() -> None:
    before = (
        ".shared .align 1 .b8 small[3]; .shared .align 8 .b8 big[24];"
        ".extern .shared .align 16 .b8 dynamic[]; .shared .align 4 .b8 unused[4096];"
    )
    body = "mov.u32 %r3, small; mov.u32 %r4, big; mov.u32 %r5, dynamic; st.shared.u32 [%r4], %r3;"
    parsed = module(body, before=before)
    assert static_shared_bytes(parsed, parsed.kernel()) == 24 + 3


def test_shared_variables_of_called_functions_count() -> None:
    parsed = read_module(
        """
        .version 8.0
        .target sm_80
        .address_size 64
        .shared .align 4 .b8 inner[64];
        .shared .align 4 .b8 other[128];
        .func leaf() { st.shared.u32 [inner], 1; ret; }
        .func middle() { call leaf; call middle; ret; }
        .func stranger() { st.shared.u32 [other], 1; ret; }
        .visible .entry k() { .shared .align 4 .b8 own[16]; st.shared.u32 [own], 1;
          call middle; ret; }
        .visible .entry pointer() { .reg .b64 %rd<2>; mov.u64 %rd1, leaf; call %rd1, (); ret; }
        """
    )
    assert static_shared_bytes(parsed, parsed.kernel("k")) == 16 + 64
    assert static_shared_bytes(parsed, parsed.kernel("pointer")) == 64 + 128
