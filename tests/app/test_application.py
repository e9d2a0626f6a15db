"""``wattcast app``, ``POST /applications`` and ``wattcast.application``: energy from a trace."""

from __future__ import annotations

import csv
import gzip
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from math import exp, hypot, sqrt
from pathlib import Path
from types import FrameType
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wattcast
from tests.app.conftest import Run, settings_at
from tests.app.test_problems import json_of, problem
from tests.generated.traces import Gpu, Launch, Span, kineto, many, nsys, solver, training_step
from wattcast.app.services import Services
from wattcast.features.errors import DataError, GpuError
from wattcast.features.gpus import load_gpu
from wattcast.predictor.application import MOST_POINTS, application
from wattcast.predictor.messages.application import ApplicationAnswer, ApplicationRequest
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.predict import predict
from wattcast.predictor.traces import read_trace
from wattcast.predictor.traces.code import library, plain
from wattcast.predictor.traces.fatbin import BrokenError, lz4_block
from wattcast.predictor.traces.library import (
    BY_TIME,
    HIGH,
    LOW,
    PRODUCT_LOW,
    at_times,
    data_type_of,
    family_of,
    like,
    operator_called,
    unknown_power,
)
from wattcast.predictor.traces.totals import SHARED
from wattcast.predictor.traces.trace import Board, Kind, shared_board, timeline

DEMO = Path(__file__).parents[2] / "app" / "demo"
SAMPLES = Path(__file__).parents[1] / "fixtures" / "traces"
TRAINING = SAMPLES / "training_step.pt.trace.json.gz"
SOLVER = SAMPLES / "solver.sqlite"


def asked(services: Services, path: Path, *code: Path, **options: Any) -> dict[str, Any]:
    request = ApplicationRequest.model_validate(options)
    answer = application(services, read_trace(path), request, library(code))
    ApplicationAnswer.model_validate(answer)
    return answer


def gap_joules(answer: dict[str, Any]) -> float:
    return sum(device["gaps"]["joules"] for device in answer["devices"])


def adds_up(answer: dict[str, Any]) -> None:
    """Every way of sharing out the energy gives all of it, and loses no launch."""
    total = answer["energy"]["joules"]
    for name in ("kernels", "operators", "streams", "steps"):
        found = sum(row["joules"] for row in answer[name]) + gap_joules(answer)
        assert found == pytest.approx(total, rel=1e-9), name
        assert sum(row["launches"] for row in answer[name]) == answer["launches"], name
    covered = sum(one["joules"] for one in answer["coverage"]) + gap_joules(answer)
    assert covered == pytest.approx(total, rel=1e-9)
    assert sum(one["time_share"] for one in answer["coverage"]) == pytest.approx(1.0)
    boards = sum(device["energy"]["joules"] for device in answer["devices"])
    assert boards == pytest.approx(total, rel=1e-9)
    drawn = sum(
        watts * seconds
        for device in answer["devices"]
        for watts, seconds in zip(
            device["timeline"]["watts"], device["timeline"]["seconds"], strict=True
        )
    )
    assert drawn == pytest.approx(total, rel=1e-9)
    low, high = answer["energy"]["low"], answer["energy"]["high"]
    assert 0 < low < total < high


# --- kernels that share a board -----------------------------------------------------------------


def board_of(
    launches: Sequence[tuple[int, int, float, float]], idle: float = 40.0, limit: float = 250.0
) -> Board:
    """Launches as (start, length, standing watts, moving watts)."""
    start = np.array([one[0] for one in launches], dtype=np.int64)
    end = start + np.array([one[1] for one in launches], dtype=np.int64)
    standing = np.array([one[2] for one in launches])
    moving = np.array([one[3] for one in launches])
    ends = np.array([start.min(), end.max()], dtype=np.int64)
    return shared_board(start, end, standing, moving, idle, limit, ends)


def test_a_launch_alone_draws_its_own_power() -> None:
    board = board_of([(0, 1000, 70.0, 50.0), (3000, 500, 70.0, 100.0)])
    assert board.joules.tolist() == pytest.approx([120e-6, 85e-6], rel=1e-12)
    assert board.idle_joules == pytest.approx(40.0 * 2000e-9, rel=1e-12)
    assert board.shared_seconds == 0.0


def test_two_at_once_share_what_the_board_draws_anyway() -> None:
    board = board_of([(0, 1000, 70.0, 50.0), (0, 1000, 70.0, 30.0)])
    assert board.watts.tolist() == [150.0]  # not 220
    assert board.joules.tolist() == pytest.approx([85e-6, 65e-6], rel=1e-12)


def test_several_at_once_keep_to_the_limit() -> None:
    board = board_of([(0, 1000, 70.0, 150.0), (500, 1000, 70.0, 90.0)], limit=250.0)
    assert board.watts.tolist() == [220.0, 250.0, 160.0]
    assert board.limited_seconds == pytest.approx(500e-9)
    # In the 500 ns at the limit, 180 of 240 moving watts are left for both.
    first = 220e-6 * 0.5 + (35 + 150 * 180 / 240) * 0.5e-6
    assert board.joules[0] == pytest.approx(first, rel=1e-12)


@given(
    st.lists(
        st.tuples(
            st.integers(0, 100_000),
            st.integers(0, 20_000),
            st.floats(0, 80),
            st.floats(0, 200),
        ),
        min_size=1,
        max_size=60,
    )
)
@settings(max_examples=150, deadline=None)
def test_joules_of_launches_and_gaps_are_those_of_the_board(
    launches: list[tuple[int, int, float, float]],
) -> None:
    board = board_of(launches)
    drawn = float((board.watts * np.diff(board.times)).sum()) * 1e-9
    assert board.total_joules == pytest.approx(drawn, rel=1e-9, abs=1e-15)
    assert (board.joules >= -1e-15).all()
    several = board.active > 1
    assert (board.watts[several] <= max(250.0, max(one[2] for one in launches)) + 1e-6).all()
    if len(board.watts):
        line = timeline(board, 0, 7)
        assert len(line["watts"]) <= max(7, 0)
        kept = sum(w * s for w, s in zip(line["watts"], line["seconds"], strict=True))
        assert kept == pytest.approx(drawn, rel=1e-9, abs=1e-15)


# --- answers ------------------------------------------------------------------------------------


def test_sums_of_both_samples_agree(services: Services) -> None:
    for path in (TRAINING, SOLVER):
        adds_up(asked(services, path, DEMO))
        adds_up(asked(services, path))


def test_sums_agree_over_many_launches_that_overlap(services: Services, tmp_path: Path) -> None:
    answer = asked(services, kineto(tmp_path / "t.json", many(20_000)), gpu="v100")
    adds_up(answer)
    assert answer["launches"] == 20_000
    assert answer["devices"][0]["shared_seconds"] > 0
    assert len(answer["devices"][0]["timeline"]["watts"]) <= MOST_POINTS
    assert "launches_overlap" in {note["code"] for note in answer["warnings"]}


def test_power_of_a_kernel_with_code_is_that_of_a_prediction(
    services: Services, tmp_path: Path, vector_add: str
) -> None:
    """Its size is not known, so its rates are those of the launch as it is predicted."""
    path = kineto(tmp_path / "t.json", [Launch("vector_add", 10_000, 52_000)])
    answer = asked(services, path, DEMO)
    told = predict(
        services,
        PredictRequest.model_validate(
            {
                "ptx": vector_add,
                "gpu": "tesla-v100",
                "registers_per_thread": 16,
                "launch": {"grid": [4096, 1, 1], "block": [256, 1, 1]},
            }
        ),
    )
    row = answer["kernels"][0]
    assert row["how"] == "code"
    assert row["code"] == "vector_add.ptx"
    assert row["watts"] == pytest.approx(told["power"]["watts"], rel=1e-12)
    assert row["joules"] == pytest.approx(row["watts"] * 52e-6, rel=1e-6)
    assert row["trust"]["mark"] == "guess"
    assert "assumed" in row["why"]
    assert [one["code"] for one in row["advice"]] == ["lower_clocks"]  # no other launch: its size
    assert answer["energy"]["joules"] == pytest.approx(row["joules"], rel=1e-12)


def test_gaps_draw_the_idle_power_of_the_board(services: Services, tmp_path: Path) -> None:
    launches = [Launch("k", 10_000, 50_000), Launch("k", 1_060_000, 50_000)]
    device = asked(services, kineto(tmp_path / "t.json", launches))["devices"][0]
    assert device["gaps"]["seconds"] == pytest.approx(1e-3, rel=1e-9)
    assert device["gaps"]["joules"] == pytest.approx(device["idle_watts"] * 1e-3, rel=1e-9)
    assert device["gaps"]["high"] == pytest.approx(device["standing_watts"] * 1e-3, rel=1e-9)
    assert device["idle_watts"] == 37.5  # measured, features/gpus/tesla-v100.toml


def test_a_trace_without_any_code_gets_a_wide_answer(services: Services) -> None:
    answer = asked(services, TRAINING)
    hows = {one["how"] for one in answer["coverage"]}
    assert hows == {"name", "copy"}
    assert answer["trust"]["mark"] == "guess"
    energy = answer["energy"]
    assert energy["high"] / energy["low"] > 2
    for row in answer["kernels"]:
        assert row["joules"] > 0
        assert row["low"] < row["joules"] < row["high"]
        assert row["why"]
        assert row["family"] is not None


def test_errors_of_one_model_do_not_average_out(services: Services, tmp_path: Path) -> None:
    """A hundred kernels without code are no surer than one: all have the same model."""
    one = [Launch("k0", 10_000, 1_000_000)]
    hundred = [Launch(f"k{n}", 10_000 + 10_000 * n, 10_000) for n in range(100)]
    widths = []
    for number, launches in enumerate((one, hundred)):
        energy = asked(services, kineto(tmp_path / f"{number}.json", launches))["energy"]
        widths.append((energy["high"] / energy["joules"], energy["low"] / energy["joules"]))
    assert widths[0] == pytest.approx(widths[1], rel=1e-9)


def named(folder: Path, text: str, count: int) -> Path:
    """The same code as kernels k0, k1 ..."""
    folder.mkdir()
    for number in range(count):
        (folder / f"k{number}.ptx").write_text(text.replace("vector_add", f"k{number}"))
    return folder


def test_errors_of_kernels_with_code_average_out_as_far_as_was_measured(
    services: Services, tmp_path: Path, vector_add: str
) -> None:
    code = named(tmp_path / "code", vector_add, 9)
    one = [Launch("k0", 10_000, 90_000), Launch("k0", 100_000, 90_000, (64, 1, 1))]
    nine = [Launch(f"k{n}", 10_000 + 20_000 * n, 20_000) for n in range(9)]
    shared = SHARED["code"]
    halves = []
    for number, launches in enumerate((one[:1], one, nine)):
        path = kineto(tmp_path / f"{number}.json", launches)
        energy = asked(services, path, code)["energy"]
        halves.append((energy["high"] - energy["joules"]) / energy["joules"])
    assert halves[2] == pytest.approx(halves[0] * sqrt(shared + (1 - shared) / 9), rel=1e-9)
    assert halves[1] > 0.9 * halves[0]  # of one kernel all launches err alike


def test_a_gpu_has_the_interval_that_its_launches_alone_have(
    services: Services, tmp_path: Path
) -> None:
    launches = [Launch("k", 10_000, 300_000), Launch("volta_sgemm", 10_000, 300_000, device=1)]
    gpus = (Gpu(), Gpu("NVIDIA A40", 84))
    both = asked(services, nsys(tmp_path / "t.sqlite", launches, gpus=gpus))
    halves = []
    for number, launch in enumerate(launches):
        path = nsys(tmp_path / f"{number}.sqlite", [launch], gpus=gpus)
        alone, found = asked(services, path)["energy"], both["devices"][number]["energy"]
        assert found["joules"] == pytest.approx(alone["joules"], rel=1e-12)
        assert (found["low"], found["high"]) == pytest.approx((alone["low"], alone["high"]))
        halves.append(found["high"] - found["joules"])
    # What was measured of one kind of board errs for other reasons than the guess of another.
    assert both["energy"]["high"] - both["energy"]["joules"] == pytest.approx(hypot(*halves))


def test_the_same_trace_twice_gives_the_same_answer(services: Services, tmp_path: Path) -> None:
    again = Services(settings_at(tmp_path))
    answers = [asked(one, TRAINING, DEMO).json_bytes() for one in (services, services, again)]
    assert answers[0] == answers[1] == answers[2]


def test_two_gpus_are_kept_apart(services: Services, tmp_path: Path) -> None:
    launches = [Launch("k", 10_000, 100_000), Launch("k", 10_000, 300_000, device=1)]
    gpus = (Gpu(), Gpu("NVIDIA A40", 84))
    answer = asked(services, nsys(tmp_path / "t.sqlite", launches, gpus=gpus))
    adds_up(answer)
    first, second = answer["devices"]
    assert (first["gpu"], second["gpu"]) == ("tesla-v100", "a40")
    assert first["gaps"]["seconds"] == pytest.approx(200e-6)  # it idles while the other runs
    assert second["gaps"]["seconds"] == 0.0
    assert {row["device"] for row in answer["kernels"]} == {0, 1}
    same = asked(services, tmp_path / "t.sqlite", gpus={"1": "v100"})
    assert same["devices"][1]["gpu"] == "tesla-v100"


@pytest.mark.parametrize("write", [nsys, kineto])
def test_a_part_of_a_board_negative_gaps_and_missing_clocks_are_told(
    services: Services, tmp_path: Path, write: Callable[..., Path]
) -> None:
    launches = [Launch("k", 10_000, 100_000), Launch("k", 60_000, 100_000)]
    gpus = (Gpu("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 14),)
    answer = asked(services, write(tmp_path / "t", launches, gpus=gpus), gpu="a100-sxm4-40gb")
    adds_up(answer)
    notes = {note["code"]: note["detail"] for note in answer["warnings"]}
    assert "14 of 108 multiprocessors" in notes["part_of_a_board"]
    assert "1 launches begin before" in notes["negative_gaps"]
    assert "1410" in notes["clocks_assumed"]
    told = asked(services, tmp_path / "t", gpu="a100-sxm4-40gb", clocks={"core_mhz": 1005})
    assert "clocks_assumed" not in {note["code"] for note in told["warnings"]}
    assert told["energy"]["joules"] < answer["energy"]["joules"]


def test_a_gpu_that_nobody_names_is_asked_for(services: Services, tmp_path: Path) -> None:
    for name, why in (("", "does not name its GPU 0"), ("Foo 9000", "unknown GPU 'Foo 9000'")):
        path = kineto(tmp_path / "t.json", [Launch("k", 10, 10)], gpus=(Gpu(name),))
        with pytest.raises(GpuError, match=why):
            asked(services, path)
        assert asked(services, path, gpu="v100")["devices"][0]["gpu"] == "tesla-v100"


def test_the_best_clock_of_the_mix_keeps_to_the_slowdown(services: Services) -> None:
    for most in (1.0, 1.05, 1.5):
        mix, *steps = asked(services, SOLVER, DEMO, most_slowdown=most)["clocks"]
        assert 0 < mix["covers"] < 1
        # Of one kernel every mix is the same; steps have no copies, so that more of them has code.
        assert [one["step"] for one in (mix, *steps)] == [
            None,
            *(f"iteration {n}" for n in range(3)),
        ]
        for one in steps:
            assert one["covers"] > mix["covers"]
            assert one["points"][0]["energy"] == pytest.approx(mix["points"][0]["energy"])
        reference = mix["points"][-1]
        assert (reference["time"], reference["energy"]) == pytest.approx((1.0, 1.0))
        allowed = [point for point in mix["points"] if point["time"] <= most]
        least = min(point["energy"] for point in allowed)
        if mix["best"] is None:
            assert least == pytest.approx(1.0)
        else:
            assert mix["best"]["energy"] == least
            assert mix["best"]["time"] <= most


def test_a_clock_is_for_all_kernels_with_code(
    services: Services, tmp_path: Path, vector_add: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches, steps = [], []
    for number in range(45):
        at = 1_000_000 + 100_000 * number
        launches.append(Launch("vector_add", at, 50_000 + 100 * number, (64 + number, 1, 1)))
    code = tmp_path / "code"
    code.mkdir()
    (code / "a.ptx").write_text(vector_add)
    ends = (990_000, 1_990_000, 5_600_000)
    steps = [Span(f"step {n}", a, b) for n, (a, b) in enumerate(pairwise(ends))]
    path = kineto(tmp_path / "t.json", launches, steps)
    # The limit would be one that the board cannot be set to (100 to 250 W): here any can.
    monkeypatch.setattr("wattcast.models.clocks.checked_limit", lambda watts, gpu: watts)
    answer = asked(services, path, code, most_slowdown=1.5)
    whole, *each = answer["clocks"]
    assert [one["step"] for one in each] == ["step 0", "step 1"]
    assert whole["covers"] == pytest.approx(1.0)
    seconds = [sum(row.length for row in launches[:10]), sum(row.length for row in launches[10:])]
    for place, point in enumerate(whole["points"]):
        parts = [one["points"][place]["time"] * s for one, s in zip(each, seconds, strict=True)]
        assert point["time"] == pytest.approx(sum(parts) / sum(seconds), rel=1e-9)
    assert whole["best"] is not None
    assert {one["best"]["core_mhz"] for one in each} == {whole["best"]["core_mhz"]}
    limits = [one["power_limit_watts"] for one in (whole, *each)]
    assert limits[0] == max(limits[1:])
    assert (
        answer["devices"][0]["idle_watts"]
        < min(limits)
        <= limits[0]
        < answer["kernels"][0]["watts"]
    )
    monkeypatch.setattr("wattcast.predictor.traces.mixes.MOST_STEPS", 1)
    told = asked(services, path, code, most_slowdown=1.5)["clocks"]
    assert [one["step"] for one in told] == [None, "step 1"]  # the longest


def test_launches_are_told_by_columns(services: Services) -> None:
    answer = asked(services, TRAINING, launches=True)
    columns = answer["launch_columns"]
    assert {len(column) for column in columns.data().values()} == {answer["launches"]}
    by_kernel = np.bincount(columns["kernel"], columns["joules"])
    assert by_kernel.tolist() == pytest.approx([row["joules"] for row in answer["kernels"]])


# --- kernels without code -----------------------------------------------------------------------


KERNEL_NAMES = [
    line.split(" | ")
    for line in (SAMPLES / "kernel_names.txt").read_text().splitlines()
    if not line.startswith("#")
]


@pytest.mark.parametrize(("family", "kind", "name"), KERNEL_NAMES)
def test_names_of_public_kernels_are_read(family: str, kind: str, name: str) -> None:
    assert (family_of(name), data_type_of(name) or "-") == (family, kind)


def test_a_small_launch_draws_less_and_all_lie_within_the_board() -> None:
    gpu = load_gpu("tesla-v100")
    watts = []
    for grid in (1, 40, 4096):
        kind = Kind("k", "", "kernel", (grid, 1, 1), (256, 1, 1), 0, 0, 0)
        found = unknown_power(kind, gpu, 70.0, 37.5, 0.0).power
        assert 37.5 <= found.low < found.value < found.high <= gpu.tdp_watts
        assert found.low / found.value >= min(LOW, 37.5 / found.value) - 1e-9
        assert found.high / found.value <= HIGH + 1e-9
        watts.append(found.value)
    assert watts == sorted(watts)
    full = Kind("sgemm", "", "kernel", (4096, 1, 1), (256, 1, 1), 0, 0, 0)
    product = unknown_power(full, gpu, 70.0, 37.5, 0.0).power
    assert product.value > watts[-1]
    assert product.high == gpu.tdp_watts
    assert product.low == pytest.approx(PRODUCT_LOW * product.value)
    guess = unknown_power(full, gpu, 70.0, 37.5, 0.3).power
    assert guess.low < product.low
    small = Kind("sgemm", "", "kernel", (8, 1, 1), (256, 1, 1), 0, 0, 0)
    few = unknown_power(small, gpu, 70.0, 37.5, 0.0).power
    assert few.high < 0.6 * gpu.tdp_watts  # eight blocks do not bring it to its limit


def test_what_is_told_of_a_board_bounds_a_kernel_without_code() -> None:
    """A board was measured above its limit; the idle power of one that was not is a guess."""
    gpu = load_gpu("gtx-980")
    kind = Kind("sgemm", "", "kernel", (4096, 1, 1), (256, 1, 1), 0, 0, 0)
    assert unknown_power(kind, gpu, 100.0, 53.0, 0.0, 183.7).power.high == pytest.approx(183.7)
    tiny = Kind("k", "", "kernel", (1, 1, 1), (32, 1, 1), 0, 0, 0)
    assert unknown_power(tiny, gpu, 100.0, 53.0, 0.0).power.low == pytest.approx(53.0)
    guess = unknown_power(tiny, gpu, 100.0, 53.0, 0.1).power
    assert guess.low == pytest.approx(53.0 * exp(-0.1))


# --- kernels of libraries ------------------------------------------------------------------------

HALF = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute"
FLASH = "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>(Flash_fwd_params)"
BF16 = "c10::BFloat16"
H200 = Gpu("NVIDIA H200", 132)
GEMM: dict[str, Any] = {"name": "gemm", "m": 4096, "n": 4096, "k": 4096, "dtype": "bfloat16"}


def product(length: int = 220_000, **changed: Any) -> Launch:
    given: dict[str, Any] = {
        "operator": "aten::addmm", "dims": ([4096], [4096, 4096], [4096, 4096], [], []),
        "types": (BF16, BF16, BF16, "Scalar", "Scalar"), **changed,
    }  # fmt: skip
    return Launch(HALF, 100_000, length, grid=(132, 1, 1), block=(384, 1, 1), **given)


@pytest.mark.parametrize("external", [True, False])
def test_a_product_with_its_sizes_draws_what_the_operator_does(
    services: Services, tmp_path: Path, external: bool
) -> None:
    launches = [
        product(),
        Launch("reduce_kernel", 400_000, 50_000, operator="aten::sum"),
        Launch(
            FLASH, 500_000, 300_000, block=(128, 1, 1), operator="aten::_flash_attention_forward",
            dims=([4, 2048, 32, 128], [4, 2048, 8, 128], [4, 2048, 8, 128]), types=(BF16,) * 3,
        ),
    ]  # fmt: skip
    path = kineto(tmp_path / "x.json", launches, gpus=[H200], external=external)
    answer = asked(services, path)
    adds_up(answer)
    flash: dict[str, Any] = {
        "name": "attention", "phase": "prefill", "batch": 4, "new_tokens": 2048, "heads": 32,
        "kv_heads": 8, "head_size": 128,
    }  # fmt: skip
    rows = {row["name"]: row for row in answer["kernels"]}
    for name, operator, seconds in ((HALF, GEMM, 220e-6), (FLASH, flash, 300e-6)):
        power = wattcast.operator(**operator, gpu="h200-sxm5", registry=False).power
        assert power is not None
        row = rows[name]
        assert row["how"] == "operator"
        assert row["watts"] == pytest.approx(power.watts)
        assert row["joules"] == pytest.approx(power.watts * seconds)
        assert row["trust"]["mark"] == "measured board"
        assert row["data_type"] == "bfloat16"
        assert row["low"] == pytest.approx(power.low * seconds)
    assert rows["reduce_kernel"]["how"] == "operator, by time"
    covered = {one["how"]: one["energy_share"] for one in answer["coverage"]}
    found = sum(rows[name]["joules"] for name in (HALF, FLASH)) / answer["energy"]["joules"]
    assert covered["operator"] == pytest.approx(found)


@pytest.mark.parametrize(
    "changed",
    [
        {"types": ("float",) * 3},
        {"types": (BF16,)},
        {"types": ({}, [], 3)},
        {"dims": ([4096], [4096, 4096], [4095, 4096])},
        {"dims": ([4096], [4096, 4096.5], [4096, 4096])},
        {"dims": ([4096], [True, True], [True, True])},
        {"dims": ([4096], [10**30, 4096], [4096, 4096])},
        {"dims": ([4096], [0, 4096], [4096, 4096])},
        {
            "operator": "aten::_flash_attention_forward",
            "dims": ([4, -9 * 10**4299, 32, 128], *([4, 9 * 10**4299, 8, 128],) * 2),
            "types": (BF16,) * 3,
        },
        {"dims": "4096"},
        {"dims": ([4096], {"a": 1}, [[4096]])},
        {"operator": "aten::conv2d"},
        {"length": 20_000},  # no H200 is that fast
        {"length": 20_000_000},
    ],
)
def test_sizes_that_cannot_be_those_of_the_kernel_are_not_used(
    services: Services, tmp_path: Path, changed: dict[str, Any]
) -> None:
    answer = asked(services, kineto(tmp_path / "x.json", [product(**changed)], gpus=[H200]))
    assert [row["how"] for row in answer["kernels"]] == ["operator, by time"]
    adds_up(answer)


def test_kernels_beside_the_product_are_not_the_product(services: Services, tmp_path: Path) -> None:
    beside = product(operator="aten::mm", dims=([4096, 4096],) * 2, types=(BF16,) * 2)
    launches = [
        replace(beside, name=name)
        for name in ("void cublasLt::splitKreduce_kernel<32, 16>", "gemv2T_kernel_val<half>", "add")
    ]
    answer = asked(services, kineto(tmp_path / "x.json", launches[:1], gpus=[H200]))
    assert answer["kernels"][0]["how"] == "operator, by time"
    launches = [replace(one, start=at * 10**6) for at, one in enumerate(launches, 1)]
    answer = asked(services, kineto(tmp_path / "y.json", launches, gpus=[H200]))
    assert {row["how"] for row in answer["kernels"]} == {"operator, by time"}


def test_memory_bound_operators_are_told_by_their_bytes(services: Services, tmp_path: Path) -> None:
    """An addition of two bfloat16 matrices on H200, a copy, and one whose time is not that."""
    add = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
    copy = "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda>"
    sizes: dict[str, Any] = {"dims": ([8192, 8192],) * 2, "types": (BF16,) * 2}
    launches = [
        Launch(add, 500_000, 100_000, operator="aten::add", **sizes),
        Launch(copy, 1_000_000, 65_000, operator="aten::copy_", **sizes),
        Launch(add, 2_000_000, 5_000_000, grid=(9, 1, 1), operator="aten::mul", **sizes),
        Launch(HALF, 9_000_000, 100_000, operator="aten::add", **sizes),
    ]
    answer = asked(services, kineto(tmp_path / "x.json", launches, gpus=[H200]))
    adds_up(answer)
    hows = {one["how"]: one["launches"] for one in answer["coverage"]}
    assert hows == {"operator": 2, "operator, by time": 2}
    told = next(row for row in answer["kernels"] if row["how"] == "operator")
    assert told["watts"] > 500
    assert operator_called("aten::copy_", {"Input Dims": [[4, 4], [4, 4]],
                                           "Input type": ["float", BF16]}) == (
        '{"name": "elementwise", "read_bytes": 32, "write_bytes": 64}'
    )  # fmt: skip
    for odd in ({}, {"Input Dims": [[4]], "Input type": [None]}, {"Input Dims": 3}):
        assert operator_called("aten::add", odd) == ""


def test_a_row_times_a_matrix_is_done_by_gemv(services: Services, tmp_path: Path) -> None:
    """Decoding one sequence launches these kernels of cuBLAS."""
    row = ([1, 4096], [4096, 4096])
    one = product(14_000, operator="aten::mm", dims=row, types=(BF16,) * 2)
    gemv = replace(one, name="gemv2T_kernel_val<bf16>")
    path = kineto(tmp_path / "x.json", [gemv], gpus=[H200])
    assert [row["how"] for row in asked(services, path)["kernels"]] == ["operator"]


def test_sizes_on_boards_before_ampere_and_of_any_number_are_bounded(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = asked(services, kineto(tmp_path / "x.json", [product(length=2_000_000)]))
    assert old["kernels"][0]["how"] == "name"
    many_sizes = [
        replace(product(dims=([1], [m, 4096], [4096, 4096])), start=m * 10**6)
        for m in range(4000, 4010)
    ]
    path = kineto(tmp_path / "y.json", many_sizes, gpus=[H200])
    assert asked(services, path)["coverage"][0]["launches"] == 10
    monkeypatch.setattr("wattcast.predictor.traces.library.MOST_ASKED", 3)
    hows = {one["how"]: one["launches"] for one in asked(services, path)["coverage"]}
    assert hows == {"operator": 3, "operator, by time": 7}
    monkeypatch.setattr("wattcast.predictor.traces.trace.MOST_KINDS", 9)
    with pytest.raises(DataError, match="different launches"):
        read_trace(path)


# A layer of a language model as its profiler names it, without any sizes: microseconds of each.
LAYER = {
    "nvjet_tst_192x192_64x4_1x2_h_bz_coopB_TNN": 400,
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_nn>": 300,
    "sm80_xmma_fprop_implicit_gemm_indexed_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128": 90,
    "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>": 200,
    "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4> >": 40,
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>": 12,
    "gemv2T_kernel_val<int, int, __nv_bfloat16>": 30,
    "void at::native::vectorized_elementwise_kernel<4, at::native::silu_kernel>": 60,
    "triton_red_fused_native_layer_norm_0": 30,
    "triton_poi_fused_add_mul_1": 20,
    "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16>": 50,
    "void at::native::reduce_kernel<512, 1>": 15,
    "void split_embedding_codegen_forward_kernel<float>(fbgemm_gpu::FixedDivisor)": 80,
}
OTHERS = {
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL": 60,
    "ampere_sgemm_128x64_nn": 50,
    "cudnn_infer_ampere_scudnn_128x64_relu_xregs_large_nn_v1": 40,
    "void cudnn::some_convolution(int)": 10,
    "void cudnn::detail::dgrad_engine<float, 512, 6>(int)": 30,
    "mystery": 20,
}


def layer(names: dict[str, int]) -> list[Launch]:
    return [
        Launch(name, at * 1_000_000, length * 1000, grid=(132, 1, 1), block=(384, 1, 1))
        for at, (name, length) in enumerate(names.items())
    ]


@pytest.mark.parametrize("gpu", [H200, Gpu("NVIDIA A100-PG509-200", 108)])
def test_a_kernel_without_sizes_draws_what_its_kind_does_in_that_time(
    services: Services, tmp_path: Path, gpu: Gpu
) -> None:
    """Of the energy of a language model's kernels nothing is left to the name alone; kernels of
    which no operator was measured stay."""
    answer = asked(services, kineto(tmp_path / "x.json", layer(LAYER), gpus=[gpu]))
    adds_up(answer)
    assert {row["how"] for row in answer["kernels"]} == {"operator, by time"}
    assert {"guess"} == {row["trust"]["why"].rpartition("a ")[2] for row in answer["kernels"]}
    known = gpu is H200
    mark = "measured board" if known else "estimated board"
    for row in answer["kernels"]:
        assert row["trust"]["mark"] == mark
        assert row["low"] < row["joules"] < row["high"] or row["watts"] == 700
    both = asked(services, kineto(tmp_path / "y.json", layer(LAYER | OTHERS), gpus=[gpu]))
    hows = {row["name"]: row["how"] for row in both["kernels"]}
    assert {name for name, how in hows.items() if how == "name"} == set(OTHERS)
    share = {one["how"]: one["joules"] for one in both["coverage"]}
    assert share["operator, by time"] > 0.85 * sum(share.values())
    watts = {row["name"]: row["watts"] for row in answer["kernels"]}
    if known:  # long products near the limit, a pass of 12 us less than one of 80
        assert watts["nvjet_tst_192x192_64x4_1x2_h_bz_coopB_TNN"] > 600
        passes = sorted((length, watts[name]) for name, length in LAYER.items()
                        if like(kind_of(name)) == ("pass", ""))  # fmt: skip
        assert len(passes) == 7
        assert passes[0][1] < passes[-1][1]


def test_a_size_told_by_its_time_is_the_size(services: Services) -> None:
    """A call's own time leads back to its watts; without an end to sizes or times."""
    gpu = load_gpu("h200")
    call = wattcast.operator("gemm", m=4096, n=4096, k=4096, gpu="h200", registry=False)
    assert call.time is not None
    assert call.power is not None
    seconds = [call.time.seconds, 1e-12, 1e6]
    found, short, long = at_times(services, gpu, "product", "bfloat16", seconds)
    assert found.watts == pytest.approx(call.power.watts, rel=0.03)
    assert short.watts < found.watts
    assert long.watts <= gpu.tdp_watts
    for name in BY_TIME:
        told = at_times(services, gpu, name, "", np.geomspace(1e-9, 1e3, 50).tolist())
        assert all(0 < one.watts <= gpu.tdp_watts for one in told)
        assert {one.basis for one in told} == {"extrapolated"}
    assert at_times(services, load_gpu("a100"), "product", "fp8", [1e-3]) == []  # it has no fp8


# --- code ---------------------------------------------------------------------------------------

PTX = """.version 7.0
.target sm_70
.address_size 64
.visible .entry {name}(.param .u64 p0)
.reqntid {block}, 1, 1
{{ ret; }}
"""


def kind_of(name: str, mangled: str = "", block: int = 128, shared: int = 0) -> Kind:
    return Kind(name, mangled, "kernel", (1, 1, 1), (block, 1, 1), 16, 0, shared)


def test_code_is_found_by_every_name(tmp_path: Path) -> None:
    (tmp_path / "a.ptx").write_text(PTX.format(name="_Z5scaleIfEvPT_i", block=128))
    found = library([tmp_path])
    for kind in (
        kind_of("x", "_Z5scaleIfEvPT_i"),
        kind_of("_Z5scaleIfEvPT_i"),
        kind_of("void scale<float>(float*, int)"),
        kind_of("scale<float>(float *, int)"),
    ):
        code = found.find(kind)
        assert code is not None
        assert code.kernel == "_Z5scaleIfEvPT_i"
    assert found.find(kind_of("void scale<double>(double*, int)")) is None
    assert plain("void f<(int)128, 4u>(int)") == plain("f<(int)128, 4>(int)")


def test_of_kernels_with_one_name_that_of_the_launch_is_taken(tmp_path: Path) -> None:
    """Inductor calls kernels of several graphs alike; Triton's metadata tell them apart."""
    for folder, block, shared in (("one", 128, 0), ("two", 256, 0), ("three", 128, 4096)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "k.ptx").write_text(PTX.format(name="k", block=block))
        told = {"name": "k", "num_warps": block // 32, "shared": shared}
        (tmp_path / folder / "k.json").write_text(json.dumps(told))
    found = library([tmp_path])
    for block, shared, folder in ((128, 0, "one"), (256, 0, "two"), (128, 4096, "three")):
        code = found.find(kind_of("k", block=block, shared=shared))
        assert code is not None
        assert code.file == str(Path(folder) / "k.ptx")
    assert found.find(kind_of("k", block=512, shared=1)) is None


@pytest.mark.parametrize("kind", ["lz4", "zstd"])
def test_a_broken_container_is_told(tmp_path: Path, kind: str) -> None:
    container = bytearray((SAMPLES / f"vector_add.{kind}.fatbin").read_bytes())
    container[96:136] = bytes(40)
    (tmp_path / "broken.so").write_bytes(bytes(container))
    found = library([tmp_path])
    assert not found.kernels
    assert "cannot be unpacked" in found.skipped[0]
    (tmp_path / "broken.so").write_bytes(bytes(container[:300]))
    assert not library([tmp_path]).kernels


@given(st.binary(max_size=300), st.integers(0, 400))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_a_block_or_are_refused(packed: bytes, size: int) -> None:
    with suppress(BrokenError):
        assert len(lz4_block(packed, size)) == size


def test_code_that_cannot_be_analysed_is_told_and_the_kernel_answered(
    services: Services, tmp_path: Path
) -> None:
    (tmp_path / "k.ptx").write_text(PTX.format(name="k", block=128).replace("ret;", "ret"))
    path = kineto(tmp_path / "t.json", [Launch("k", 10_000, 10_000, block=(128, 1, 1))])
    answer = asked(services, path, tmp_path / "k.ptx")
    assert answer["kernels"][0]["how"] == "name"
    assert "code_not_used" in {note["code"] for note in answer["warnings"]}
    with pytest.raises(DataError, match="no such file"):
        library([tmp_path / "nowhere"])


# --- command line, HTTP, Python -----------------------------------------------------------------


def test_the_command_begins_with_coverage_and_writes_reports(run: Run, tmp_path: Path) -> None:
    table, page = tmp_path / "k.csv", tmp_path / "r.html"
    out = run(
        "app", str(TRAINING), "--code", str(DEMO), "--price", "0.3", "--currency", "EUR",
        "--co2", "400", "--csv", str(table), "--html", str(page),
    )[0]  # fmt: skip
    lines = out.splitlines()
    assert lines[0].startswith("coverage of the time of 22 launches: ")
    assert "by their code" in lines[0]
    assert "from launch and name alone" in lines[0]
    assert any(line.startswith("trust: guess") for line in lines)
    assert any(" EUR (" in line for line in lines)
    assert any("g CO2 (" in line for line in lines)
    answer = json.loads(run("app", str(TRAINING), "--code", str(DEMO), "--json")[0])
    rows = list(csv.DictReader(table.read_text().splitlines()))
    written = sum(float(row["joules"]) for row in rows)
    assert written == pytest.approx(answer["energy"]["joules"], rel=1e-9)
    text = page.read_text()
    assert "<script" not in text
    assert "coverage of the time of 22 launches" in text
    assert "vectorized_elementwise_kernel&lt;4" in text


def test_counter_tracks_hold_the_joules_of_the_answer(run: Run, tmp_path: Path) -> None:
    for name, trace in (
        ("few", TRAINING),
        ("many", nsys(tmp_path / "many.sqlite", many(3 * MOST_POINTS))),
    ):
        out = tmp_path / f"{name}.out.json"
        told, _ = run("app", str(trace), "--gpu", "v100", "--counters", str(out), "--json")
        answer = json.loads(told)
        assert answer["launch_columns"] is None
        events = json.loads(out.read_text(encoding="utf-8"))["traceEvents"]
        power = [each for each in events if each["ph"] == "C"]
        assert {each["name"] for each in power} == {"power"}
        assert len(power) <= len(answer["devices"]) * (MOST_POINTS + 1)
        joules = 0.0
        for device in {each["pid"] for each in power}:
            own = [each for each in power if each["pid"] == device]
            joules += sum(
                (after["ts"] - before["ts"]) * 1e-6 * before["args"]["watts"]
                for before, after in pairwise(own)
            )
            assert own[-1]["args"]["watts"] == 0
        assert joules == pytest.approx(answer["energy"]["joules"], rel=1e-6)
        launches = [each for each in events if each["ph"] == "X"]
        if name == "few":  # the trace's own events stand beside it, the operators of the CPU too
            own = json.loads(gzip.decompress(TRAINING.read_bytes()))["traceEvents"]
            assert len(events) == len(own) + len(power)
            assert any(each.get("cat") == "cpu_op" for each in launches)
            launches = [e for e in launches if e.get("cat") in ("kernel", "gpu_memcpy")]
            assert min(each["ts"] for each in launches) == 0
        assert len(launches) == answer["launches"]
        if name == "few":  # power changes where a launch begins or ends
            edges = {round(each["ts"], 3) for each in launches}
            edges |= {round(each["ts"] + each["dur"], 3) for each in launches}
            assert {round(each["ts"], 3) for each in power} == edges


def test_the_command_compares_two_traces(run: Run, tmp_path: Path) -> None:
    launches, steps = training_step()
    older = kineto(tmp_path / "old.json", [*launches, Launch("extra", 6_000_000, 500_000)], steps)
    found = json.loads(run("app", str(TRAINING), "--against", str(older), "--json")[0])["changes"]
    assert found["kernels"][0]["name"] == "extra"
    assert found["kernels"][0]["new_joules"] == 0
    assert found["joules"] == pytest.approx(found["new"]["joules"] - found["old"]["joules"])
    assert "Against the older trace" in run("app", str(TRAINING), "--against", str(older))[0]


def test_the_command_says_what_is_wrong(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    assert "no member traceEvents" in run("app", str(tmp_path / "x.json"), status=2)[1]
    assert "No such file" in run("app", str(tmp_path / "none.json"), status=2)[1]
    assert "unknown GPU" in run("app", str(TRAINING), "--gpu", "nothing", status=2)[1]
    assert run("app", str(TRAINING), "--gpu", "v100", "--gpu", "a100", status=2)[1]


def test_http_answers_as_the_command(client: httpx.Client, run: Run, vector_add: str) -> None:
    files = [
        ("file", ("t.json.gz", TRAINING.read_bytes())),
        ("code", ("vector_add.ptx", vector_add.encode())),
    ]
    options = {"grams_co2_per_kwh": 100}
    told = json_of(
        client.post("/applications", files=files, data={"options": json.dumps(options)}),
        ApplicationAnswer,
    )
    adds_up(told)
    assert told["co2"]["grams"] == pytest.approx(100 * told["kwh"])
    here = json.loads(run("app", str(TRAINING), "--code", str(DEMO), "--json")[0])
    assert here["energy"] == told["energy"]
    assert [row["joules"] for row in here["kernels"]] == [row["joules"] for row in told["kernels"]]


def test_http_tells_what_is_wrong(client: httpx.Client) -> None:
    def posted(content: bytes, name: str = "t.json", options: str = "{}") -> httpx.Response:
        files = {"file": (name, content)}
        return client.post("/applications", files=files, data={"options": options})

    cut = problem(posted(TRAINING.read_bytes()[:800], "t.json.gz"), 422, "data")
    assert "cut off" in cut["detail"]
    assert problem(posted(b"hello"), 422, "data")
    assert problem(posted(b"SQLite format 3\0" + bytes(99), "x.sqlite"), 422, "data")
    assert problem(posted(TRAINING.read_bytes(), options='{"gpu": "nothing"}'), 422, "gpu")
    assert problem(posted(TRAINING.read_bytes(), options='{"foo": 1}'), 422, "validation")
    assert problem(posted(TRAINING.read_bytes(), options="["), 400, "json")
    plain_body = client.post("/applications", json={"file": "x"})
    assert plain_body.status_code == 422


def test_python_answers_as_http(services: Services) -> None:
    answer = wattcast.application(SOLVER, code=[DEMO], registry=False, grams_co2_per_kwh=50.0)
    told = asked(services, SOLVER, DEMO)
    assert answer.energy.joules == told["energy"]["joules"]
    assert answer.coverage[0].how == "code"
    assert answer.co2 is not None
    assert [step.name for step in answer.steps] == [
        "iteration 0", "iteration 1", "iteration 2", None,
    ]  # fmt: skip


def test_steps_are_those_of_the_solver(services: Services) -> None:
    launches, steps = solver()
    answer = asked(services, SOLVER, DEMO)
    inside = [one for one in launches if one.operator is not None]
    assert len(inside) == 15
    assert sum(row["launches"] for row in answer["steps"] if row["name"]) == len(inside)
    assert {row["name"] for row in answer["steps"]} == {*(step.name for step in steps), None}
    assert isinstance(steps[0], Span)


def test_many_names_take_time_by_their_number(services: Services, tmp_path: Path) -> None:
    """Distinct kernels of a trace were looked through once for each of them."""

    def calls(count: int) -> int:
        events = [
            {"ph": "X", "cat": "kernel", "name": f"kernel_{n}", "ts": 20 * n, "dur": 12,
             "args": {"device": 0, "stream": 7, "grid": [64, 1, 1], "block": [256, 1, 1]}}
            for n in range(count)
        ]  # fmt: skip
        path = tmp_path / "t.json"
        path.write_text(json.dumps({"traceEvents": events}))
        trace = read_trace(path)
        asked = ApplicationRequest(gpu="a100")
        made = 0

        def line(frame: FrameType, event: str, arg: object) -> Any:
            nonlocal made
            made += event == "line"
            return line

        sys.settrace(line)
        try:
            assert len(application(services, trace, asked)["kernels"]) == count
        finally:
            sys.settrace(None)
        return made

    calls(10)
    assert calls(800) < 6 * calls(200)
