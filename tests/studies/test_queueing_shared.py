"""Wang and Chu's cases with shared memory, with o and i from the analysis."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from studies.papers.wang_chu.shared import needed_accesses, shared_cases
from wattcast.features.gpus import load_gpu
from wattcast.models.clocks import ClockPair
from wattcast.models.papers.wang_chu.inputs import gpu_parameters
from wattcast.models.papers.wang_chu.model import case_form
from wattcast.models.papers.wang_chu.network import QueueingLaunch
from wattcast.training.data.datasets import find_data

CLOCKS = ClockPair(1000, 1000)


def test_the_accesses_found_give_the_time_asked_for() -> None:
    gpu = gpu_parameters(load_gpu("gtx-980")).gpu
    launch = QueueingLaunch(
        instructions=60, transactions=4, hit_rate=0.25, resident_warps=64, warps_per_block=8,
        blocks=1024, shared_transactions=64, outer_iterations=2, inner_iterations=32,
    )  # fmt: skip
    seconds = case_form(replace(launch, inner_iterations=500.0), gpu, CLOCKS).seconds
    assert needed_accesses(launch, gpu, CLOCKS, seconds) == pytest.approx(500)
    assert needed_accesses(launch, gpu, CLOCKS, 1e-9) is None


@pytest.mark.slow
@pytest.mark.skipif(
    find_data() is None or not os.environ.get("WATTCAST_PUBLIC_PTX"),
    reason="no data sets, or no PTX of the public programs (WATTCAST_PUBLIC_PTX)",
)
def test_iterations_follow_the_loops_of_the_programs() -> None:
    found = {one.program: one for one in shared_cases("tesla-v100")}
    assert found["transpose"].outer == 1  # a tile a block, no loop around it
    assert found["sortingNetworks"].inner > 500  # ten stages and their steps inside one tile
    errors = [abs(one.with_shared - 1) for one in found.values()]
    assert sum(errors) / len(errors) < 0.4
