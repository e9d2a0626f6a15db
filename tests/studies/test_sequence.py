"""Tokens folded, families left out, the network and what ONNX Runtime makes of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from studies.papers.guerreiro.applications import REFERENCE
from studies.papers.guerreiro.sequence import (
    Network,
    Programs,
    code_of,
    counted,
    family,
    folded,
    left_out,
    mean_curve,
    programs,
    score,
    token_of,
    told_by,
    write_sequence,
)
from tests.needs import needs_data
from wattcast.models.clocks import ClockPair
from wattcast.models.papers.scaling.card import scaling_store
from wattcast.models.papers.scaling.code import MOST_TOKENS, SequenceScaling, Stream, code_scaling
from wattcast.training.data.datasets import find_data

CODES = ("000015310", "030015411", "054415210", "056415211")


def unfolded(stream: Stream) -> int:
    return int(stream.repeats.sum())


def test_an_unrolled_loop_is_its_body_so_many_times() -> None:
    stream = folded([CODES[0], *[CODES[2], CODES[3]] * 500, CODES[1]])
    assert [code_of(token) for token in stream.tokens] == [CODES[0], CODES[2], CODES[3], CODES[1]]
    assert list(stream.repeats) == [1, 500, 500, 1]


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(st.sampled_from(CODES), min_size=1, max_size=60))
def test_folding_loses_no_token(codes: list[str]) -> None:
    stream = folded(codes)
    assert unfolded(stream) == len(codes)
    totals = dict.fromkeys(CODES, 0.0)
    for token, times in zip(stream.tokens, stream.repeats, strict=True):
        totals[code_of(token)] += times
    assert totals == {code: float(codes.count(code)) for code in CODES}


def made(names: tuple[str, ...], *, pure: bool = False) -> Programs:
    """Programs whose time follows memory the more they load; ``pure``: every other only loads."""
    rng = np.random.default_rng(0)
    pairs = tuple(
        ClockPair(core, memory) for core in (595.0, 900.0, 1164.0) for memory in (810.0, 3505.0)
    )
    streams, logs = [], []
    for number, _ in enumerate(names):
        loads, sums = rng.integers(1, 40, 2) * ((number % 2, 1 - number % 2) if pure else (1, 1))
        codes = [CODES[2]] * int(loads) + [CODES[0], CODES[1]] * int(sums)
        streams.append((folded(codes),))
        share = loads / (loads + sums)
        logs.append(
            [
                (share * np.log(3505 / pair.memory_mhz), 0.5 * np.log(pair.core_mhz / 1164))
                for pair in pairs
            ]
        )
    return Programs(names, tuple(streams), np.array(logs), pairs)


NAMES = ("SP", "INT", "DRAM", "L2", "fma_32p_asm", "and_32p_asm", "sp_add_4", "int_mul_4")


def test_a_family_left_out_teaches_nothing_of_itself() -> None:
    micro = made(NAMES)
    seen: list[set[str]] = []

    def told(train: Programs, of: Programs) -> np.ndarray:
        seen.append({family(name) for name in train.names} & {family(name) for name in of.names})
        return mean_curve(train, of)

    left_out(micro, told)
    assert seen == [set()] * len({family(name) for name in NAMES})


@needs_data
@pytest.mark.slow
def test_the_programs_are_those_that_were_measured() -> None:
    micro, real = programs("micro"), programs("real")
    assert (len(micro.names), len(real.names)) == (140, 15)
    assert len(micro.pairs) == 32
    assert {family(name) for name in micro.names} == {
        "simple", "movement", "instructions", "streams", "loops"
    }  # fmt: skip
    assert all(len(streams) == 1 for streams in micro.streams)
    assert sum(len(streams) > 1 for streams in real.streams) == 9
    short = [len(streams[0].tokens) <= MOST_TOKENS for streams in micro.streams]
    assert np.mean(short) > 0.97


@needs_data
@pytest.mark.slow
def test_counted_tokens_meet_microbenchmarks_of_unseen_families() -> None:
    micro, real = programs("micro"), programs("real")
    kinds = np.array([family(name) for name in micro.names])
    for model, most in ((counted, 11), (mean_curve, 100)):
        found = left_out(micro, model)
        scores = [score(found[kinds == kind], micro.take(kinds == kind)) for kind in set(kinds)]
        assert np.mean([each.time for each in scores]) < most
    # As it is: of applications it saves more than the best fixed pair, and no scale is nearer.
    ours, mean = score(counted(micro, real), real), score(mean_curve(micro, real), real)
    assert ours.saved > 6.9
    assert ours.saved > mean.saved
    card = code_scaling(scaling_store(), "gtx-titan-x", "tokens").card
    (choice,) = card.choice
    assert choice.saved_percent == pytest.approx(ours.saved, abs=0.5)


@pytest.mark.slow
def test_a_network_learns_and_onnx_tells_the_same(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the extra `sequence` (PyTorch) is not installed")
    from studies.papers.guerreiro.sequence_net import export_sequence, predict_logs

    micro = made(NAMES, pure=True)
    network = Network(micro, 0, 60)
    found = told_by(network, micro)
    assert score(found, micro).time < 0.5 * score(mean_curve(micro, micro), micro).time
    assert np.array_equal(told_by(Network(micro, 0, 60), micro), found)
    assert not np.array_equal(told_by(Network(micro, 1, 60), micro), found)
    root = Path(find_data() or tmp_path)
    if find_data() is None:
        pytest.skip("no data sets: the card names their checksums")
    write_sequence(network, micro, micro, tmp_path, root, 60)
    served = code_scaling(scaling_store([tmp_path]), "gtx-titan-x", "sequence").scaling
    assert isinstance(served, SequenceScaling)
    clocks = micro.clocks
    for (stream,) in micro.streams:
        there = predict_logs(network.net, stream, clocks / np.array(REFERENCE))
        assert served.heads(stream, clocks) == pytest.approx(there, abs=1e-5)
    long = Stream([token_of(CODES[0])] * 400, np.ones(400))
    there = predict_logs(network.net, long, clocks / np.array(REFERENCE))
    assert served.heads(long, clocks) == pytest.approx(there, abs=1e-5)
    export_sequence(network.net, tmp_path / "again.onnx")
    (onnx,) = tmp_path.glob("*/*/*/*/model.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == onnx.read_bytes()
    assert onnx.stat().st_size < 5e6
