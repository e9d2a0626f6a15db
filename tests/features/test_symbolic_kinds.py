"""Warps told apart by kind count what a look at every address counts, to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattcast.features.isa import classify
from wattcast.features.launch import WARP_SIZE
from wattcast.features.symbolic.accesses import Ground, _kinds, _pattern
from wattcast.features.symbolic.evaluate import State
from wattcast.features.symbolic.scheme import Access
from wattcast.features.values import Graph

WARPS = 12


def access(opcode: str, offset: int) -> Access:
    facts = classify(opcode)
    address = Graph(1).constant(0, 64)
    return Access(0, address, offset, "global", facts.bytes_per_lane, facts)


def ground(base: Any, mask: Any, weights: Any) -> Ground:
    rows = np.linspace(0.3, 1.7, mask.shape[0])
    kinds = _kinds(base, mask)
    return Ground(State(mask), weights, base, [(0, rows)], kinds=kinds)


@given(st.data())
def test_kinds_of_warps_count_as_their_addresses_do(data: st.DataObject) -> None:
    lanes = st.lists(st.integers(0, 4096), min_size=WARP_SIZE, max_size=WARP_SIZE)
    layout = np.array(data.draw(lanes, "layout"))
    begins = data.draw(st.lists(st.sampled_from([0, 4, 96, 512, 1 << 33]), min_size=WARPS,
                                max_size=WARPS), "begins")  # fmt: skip
    held = data.draw(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=2), "lanes")
    who = np.array([held[n % len(held)] for n in range(WARPS)])
    mask = (who[:, None] >> np.arange(WARP_SIZE) & 1).astype(np.bool_).reshape(1, -1)
    base = (np.array(begins)[:, None] + layout).reshape(-1)
    found = ground(base, mask, np.linspace(1.1, 7.3, WARPS))
    assert found.kinds is not None
    for opcode in ("ld.global.f32", "ld.global.v4.f32", "st.global.f64"):
        one = access(opcode, data.draw(st.integers(-8, 300), "offset"))
        assert _pattern(one, found) == _pattern(one, found._replace(kinds=None))


def test_rows_of_iterations_have_kinds_too() -> None:
    lanes = np.arange(WARPS * WARP_SIZE)
    base = 4 * lanes + np.array([[0], [128], [52]])
    mask = np.stack([lanes % WARP_SIZE < 32, lanes % WARP_SIZE < 7, lanes % WARP_SIZE > 30])
    weights = np.linspace(1.1, 7.3, WARPS)
    found = ground(base, mask, weights)
    assert found.kinds is not None
    assert len(found.kinds.begins) == 3
    one = access("ld.global.f32", 8)
    told = _pattern(one, found)
    assert told == _pattern(one, found._replace(kinds=None))
    assert told.total == pytest.approx(weights.sum() * np.dot([5, 2, 1], np.linspace(0.3, 1.7, 3)))


def test_lanes_that_lie_in_no_one_way_have_none() -> None:
    scattered = np.random.default_rng(1).integers(0, 1 << 30, WARPS * WARP_SIZE)
    assert _kinds(scattered, np.ones((1, scattered.size), dtype=np.bool_)) is None
