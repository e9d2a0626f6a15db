"""Shares of time and energy by resource and instruction."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.ptx_text import stored_ptx
from wattcast.features.activity import Activity
from wattcast.features.activity.instructions import InstructionEvents, measure_instructions
from wattcast.features.analysis import analyse
from wattcast.features.gpus import load_gpu
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module
from wattcast.models.clocks import default_clocks
from wattcast.models.speed import attributed
from wattcast.models.time.bottleneck import (
    combined_seconds,
    predicted_seconds,
    resource_seconds,
    resource_shares,
)

GPU = load_gpu("tesla-v100")

HALF = stored_ptx("half_in_double")

seconds = st.floats(0, 1e3).map(lambda value: 0.0 if value < 1e-9 else value)


@given(st.dictionaries(st.sampled_from(["dram", "l2", "fma", "alu", "latency"]), seconds))
def test_shares_sum_to_the_combined_time(resources: dict[str, float]) -> None:
    shares = resource_shares(resources)
    assert sum(shares.values()) == pytest.approx(combined_seconds(resources))
    assert all(share >= 0 for share in shares.values())


def test_a_share_is_what_the_time_loses_first() -> None:
    resources = {"dram": 3.0, "fma": 2.0, "alu": 1.0, "latency": 0.5}
    step = 1e-6
    for name, share in resource_shares(resources).items():
        faster = {**resources, name: resources[name] * (1 - step)}
        slope = (combined_seconds(resources) - combined_seconds(faster)) / step
        assert share == pytest.approx(slope, rel=1e-4)


def test_where_waiting_is_longest_it_accounts_for_all() -> None:
    assert resource_shares({"dram": 1.0, "latency": 5.0}) == {"latency": 5.0}
    # Blocks that work and wait in turns: the work as it is, the rest is waiting.
    turns = {"fma": 4.0, "shared": 3.0, "latency": 2.0, "gaps": 1.0, "dram": 0.5}
    shares = resource_shares(turns)
    assert shares["latency"] == 1.0
    assert sum(shares.values()) == pytest.approx(combined_seconds(turns)) == pytest.approx(6.0)
    assert resource_shares({"dram": 0.0}) == {}


def events_and_activity() -> tuple[dict[str, InstructionEvents], Activity]:
    analysis = analyse(read_module(HALF), None, Launch.of(8192, 256), GPU, analysis="symbolic")
    functions = analysis.counts.functions(None)
    return measure_instructions(analysis.module, functions, analysis.activity), analysis.activity


def test_each_component_goes_to_the_instructions_that_cause_it() -> None:
    events, activity = events_and_activity()
    clocks = default_clocks(GPU)
    components = {"idle": 30.0, "clock": 20.0, "fp64": 12.0, "fp32": 3.0, "dram": 40.0}
    found = attributed(events, activity, GPU, clocks, components)
    total = predicted_seconds(activity, GPU, clocks)
    assert found.total_seconds == pytest.approx(total)
    assert found.total_joules == pytest.approx(total * sum(components.values()))
    opcodes = [one.opcode for one in read_module(HALF).kernel().body.instructions]
    rows = found.joules["half"]
    fp64 = rows[found.components.index("fp64")]
    assert {opcodes[at] for at in np.flatnonzero(fp64)} <= {"fma.rn.f64", "cvt.f64.f32"}
    dram = rows[found.components.index("dram")]
    assert [opcodes[at] for at in np.flatnonzero(dram)] == ["st.global.f64"]
    assert dram.sum() == pytest.approx(40.0 * total)
    idle = rows[found.components.index("idle")]
    assert idle / idle.sum() == pytest.approx(found.seconds["half"] / found.seconds["half"].sum())
    shares = resource_shares(resource_seconds(activity, GPU, clocks))
    assert found.start_seconds == pytest.approx(total - sum(shares.values()) + shares["blocks"])


def test_an_attribution_scales_to_another_answer() -> None:
    events, activity = events_and_activity()
    clocks = default_clocks(GPU)
    found = attributed(events, activity, GPU, clocks, {"idle": 30.0, "fp32": 3.0})
    other = found.scaled(2.0, 50.0)
    assert other.total_seconds == pytest.approx(2.0)
    assert other.total_joules == pytest.approx(50.0)
    ratio = other.joules["half"] / np.where(found.joules["half"] > 0, found.joules["half"], np.nan)
    assert np.nanmin(ratio) == pytest.approx(np.nanmax(ratio))
