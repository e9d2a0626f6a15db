"""Scaling from code alone: counted tokens and the sequence model, as they are served."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattcast.features.errors import ClockError, ModelError
from wattcast.models.clocks import ClockPair, CodeModel
from wattcast.models.papers.scaling.card import Token, named, scaling_store
from wattcast.models.papers.scaling.code import Stream, code_scaling, warp_work

FAMILIES: tuple[CodeModel, ...] = ("tokens", "sequence")
REFERENCE = ClockPair(1164.0, 3505.0)
PAIRS = [ClockPair(core, memory) for memory in (810.0, 3505.0) for core in (595.0, 899.0, 1164.0)]
OPCODES = ("ld.global.f32", "st.global.f32", "fma.f32", "add.s32", "fma.f64", "ld.shared.f32")
STREAMS = st.lists(
    st.tuples(st.sampled_from(OPCODES), st.integers(1, 5000)), min_size=1, max_size=20
)


def stream(parts: list[tuple[str, int]]) -> Stream:
    found = [named(name, 3) for name, _ in parts]
    known: list[Token] = [token for token in found if token is not None]
    return Stream(known, np.array([float(times) for _, times in parts]))


def test_work_of_a_warp_by_hand() -> None:
    found = warp_work(stream([("ld.global.f64", 2), ("fma.f32", 8), ("fma.f64", 1)]))
    assert found.bytes == 2 * 32 * 8
    assert found.requests == 2
    assert found.cycles == pytest.approx(2 * 0.25 + 8 * 0.25 + 8)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=25, deadline=None)
@given(STREAMS)
def test_scales_are_finite_and_one_at_the_reference(
    family: CodeModel, parts: list[tuple[str, int]]
) -> None:
    model = code_scaling(scaling_store(), "gtx-titan-x", family).scaling
    told = model.scales([stream(parts)], [REFERENCE, *PAIRS], REFERENCE)
    assert told[0].time == pytest.approx(1)
    assert told[0].power == pytest.approx(1)
    assert all(0.05 < one.time < 20 and 0 < (one.power or 0) < 5 for one in told)
    # One kernel after itself is no other program; a program scales between its kernels.
    twice = model.scales([stream(parts)] * 2, PAIRS, REFERENCE)
    assert [one.time for one in twice] == pytest.approx([one.time for one in told[1:]])
    other = stream([("fma.f64", 1000)])
    alone = model.scales([other], PAIRS, REFERENCE)
    both = model.scales([stream(parts), other], PAIRS, REFERENCE)
    for one, two, mixed in zip(told[1:], alone, both, strict=True):
        least, most = sorted((one.time, two.time))
        assert least * (1 - 1e-9) <= mixed.time <= most * (1 + 1e-9)


@settings(max_examples=25, deadline=None)
@given(STREAMS)
def test_counted_tokens_never_run_faster_at_lower_clocks(parts: list[tuple[str, int]]) -> None:
    model = code_scaling(scaling_store(), "gtx-titan-x", "tokens").scaling
    found = dict(zip(PAIRS, model.scales([stream(parts)], PAIRS, REFERENCE), strict=True))
    for pair, one in found.items():
        for other, two in found.items():
            if pair.core_mhz <= other.core_mhz and pair.memory_mhz <= other.memory_mhz:
                assert one.time >= two.time * (1 - 1e-9)
        assert one.time <= max(1164 / pair.core_mhz, 3505 / pair.memory_mhz) * (1 + 1e-9)


def test_what_streams_follows_memory_and_what_computes_does_not() -> None:
    model = code_scaling(scaling_store(), "gtx-titan-x", "tokens").scaling
    slow = [ClockPair(1164.0, 810.0)]
    copy = stream([("ld.global.f32", 1), ("st.global.f32", 1), ("add.s32", 4)])
    sums = stream([("fma.f32", 4096), ("st.global.f32", 1)])
    assert model.scales([copy], slow, REFERENCE)[0].time > 3
    assert model.scales([sums], slow, REFERENCE)[0].time < 1.05


@pytest.mark.parametrize("family", FAMILIES)
def test_clocks_never_fitted_at_are_refused(family: CodeModel) -> None:
    model = code_scaling(scaling_store(), "gtx-titan-x", family).scaling
    for pair in (ClockPair(1164.0, 3300.0), ClockPair(400.0, 3505.0)):
        with pytest.raises(ClockError, match="810 or 3505 MHz memory"):
            model.scales([stream([("fma.f32", 1)])], [pair], REFERENCE)


def test_another_gpu_has_none() -> None:
    with pytest.raises(ModelError, match="gtx-titan-x"):
        code_scaling(scaling_store(), "tesla-v100", "sequence")
