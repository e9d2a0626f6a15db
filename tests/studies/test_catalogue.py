"""Well-known kernels beside published figures: the manifest, the scores, the page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from studies.catalogue import study
from studies.catalogue.study import (
    HERE,
    PAGE,
    RESULTS,
    Outcome,
    figures,
    manifest,
    outcome,
    report,
    within,
)
from tests.app.conftest import settings_at
from wattcast.features.cuda.isolation import find_nvrtc
from wattcast.features.gpus import load_gpu
from wattcast.predictor import Predictor


def test_forty_kernels_with_cited_figures() -> None:
    kernels = manifest()["kernel"]
    names = [kernel["name"] for kernel in kernels]
    assert len(set(names)) == len(names) >= 40
    for kernel in kernels:
        text = (HERE / f"{kernel['file']}.cu").read_text(encoding="utf-8")
        assert kernel.get("entry", kernel["name"]) in text
        assert kernel["bound"] in ("compute", "memory", "latency")
        assert kernel["figures"]
        boards = [figure["gpu"] for figure in kernel["figures"]]
        assert len(set(boards)) == len(boards)
        for figure in kernel["figures"]:
            assert figure["source"] in manifest()["sources"]
            assert figure["says"]
    used = {figure.source for figure in figures()}
    assert used == set(manifest()["sources"])


def test_seconds_follow_from_each_kind_of_figure() -> None:
    found = {(one.kernel, one.gpu): one for one in figures()}
    v100 = load_gpu("tesla-v100")
    # 16 blocks of 256 threads on each of 80 SMs, 16384 multiply-adds each, at 14 TFLOP/s.
    flops = 2 * 16384 * 256 * 16 * 80
    assert found["peak_fp32", "tesla-v100"].seconds == pytest.approx(flops / 14e12)
    rate = 64 * 80 * v100.core_mhz * 1e6
    assert found["peak_add", "tesla-v100"].seconds == pytest.approx(flops / 2 / rate)
    # 100,000 loads of 215 cycles, one after the other.
    chase = found["chase_l2", "tesla-v100"]
    assert chase.seconds == pytest.approx(1e5 * 215 / (v100.core_mhz * 1e6))
    assert found["count_in_memory", "rtx-3080"].seconds == pytest.approx(36.16e-3, rel=1e-3)


def test_shares_within_a_factor_either_way() -> None:
    assert within([1.0, 1.5, 1 / 1.5, 1.6, 0.5], 1.5) == pytest.approx(0.6)
    assert within([1.0, 1.5, 1 / 1.5, 1.6, 0.5], 2.0) == pytest.approx(1.0)


def test_a_time_below_the_roofline_is_told() -> None:
    figure = next(one for one in figures() if one.kernel == "peak_fp32")
    fast = Outcome(figure, figure.seconds / 2, "memory", figure.seconds, True, (), {}, False)
    page = report([fast])
    assert "1 predictions lie above a peak rate; 0 of 1 are bound by" in page
    assert "| 0.50 | compute | **memory** | **yes** |" in page


def test_the_loops_do_the_work_the_manifest_says(tmp_path: Path) -> None:
    if find_nvrtc() is None:
        pytest.skip("needs NVRTC (requirements-cuda.lock)")
    predictor = Predictor(settings_at(tmp_path))
    for one in figures():
        if one.kernel in ("peak_fp32", "peak_multiply") and one.gpu == "a100-sxm4-80gb":
            found = outcome(predictor, one)
            assert found.parts["fma"] == pytest.approx(one.seconds, rel=0.02)
            assert found.bound_by == "compute"
            assert not found.above_peak


def test_the_page_shows_the_manifest() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for one in figures():
        row = f"| {one.kernel} | {one.gpu} | {1e3 * one.seconds:.4g} |"
        assert row in page, "python -m studies catalogue --write"
        assert f"{one.says} [{one.source}]" in page


def test_the_rows_are_those_of_the_page() -> None:
    page, found = PAGE.read_text(encoding="utf-8"), json.loads(RESULTS.read_text(encoding="utf-8"))
    assert len(found) == len(figures())
    for row in found:
        times = f"{row['published_ms']:.4g} | {row['predicted_ms']:.4g}"
        told = f"| {row['kernel']} | {row['gpu']} | {times} |"
        assert told in page, "python -m studies catalogue --write"


@pytest.mark.slow
def test_the_page_is_what_the_service_gives(capsys: pytest.CaptureFixture[str]) -> None:
    if find_nvrtc() is None:
        pytest.skip("needs NVRTC (requirements-cuda.lock)")
    assert study.main([]) == 0
    assert capsys.readouterr().out.strip() == PAGE.read_text(encoding="utf-8").strip()
