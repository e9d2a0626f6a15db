"""Explanations: how far LIME and SHAP agree, how far LIME repeats itself, and pictures.

The sample is fixed: every fourth kernel of the test fixtures, two launches each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np

from benchmarks.measure import Row, at_least, at_most, fact, median_seconds
from wattcast.features.analysis import analyse
from wattcast.features.errors import WattcastError
from wattcast.features.gpus import load_gpu
from wattcast.features.launch import Launch
from wattcast.features.ptx import read_module
from wattcast.models.explain import explain_lime, explain_shap, stability, strongest
from wattcast.models.power.boosted import BoostedPowerModel
from wattcast.models.store import ArtifactStore

KERNELS = Path(__file__).parents[1] / "tests" / "fixtures" / "kernels" / "ptx"
LAUNCHES = (Launch.of(64, 128), Launch.of(4096, 256))
SCHEMA = "alavani2023"


@dataclass(frozen=True, slots=True)
class Agreement:
    """LIME's five strongest features beside SHAP, over ``launches``.

    ``sign_share`` of these features have SHAP's sign; for ``all_five`` of the launches all of
    them have. ``selection`` and ``sign_stability`` are LIME's over seeds
    (``wattcast.models.explain``).
    """

    launches: int
    sign_share: float
    all_five: float
    selection: float
    sign_stability: float


def agreement(gpu: str, family: str, kernels: int = 17, seeds: int = 10) -> Agreement:
    """Agreement over the first ``kernels`` of the sample."""
    model = BoostedPowerModel(ArtifactStore().find(gpu, "power", family, SCHEMA))
    signs: list[list[bool]] = []
    stable = []
    for vector in _sample(gpu, kernels):
        shap = {
            part.feature: part.watts
            for part in explain_shap(model, model.card.feature_names, vector).contributions
        }
        runs = [
            {part.feature: part.watts for part in explain_lime(model, vector, seed=seed).weights}
            for seed in range(seeds)
        ]
        signs.append([runs[0][name] * shap.get(name, 0.0) > 0 for name in strongest(runs[0])])
        stable.append(stability(runs))
    return Agreement(
        launches=len(signs),
        sign_share=fmean([agrees for launch in signs for agrees in launch]),
        all_five=fmean([all(launch) for launch in signs]),
        selection=fmean([found.selection for found in stable]),
        sign_stability=fmean([found.sign_agreement for found in stable]),
    )


def _sample(gpu: str, kernels: int) -> Iterator[np.ndarray]:
    profile = load_gpu(gpu)
    for path in sorted(KERNELS.glob("*.sm_70.ptx"))[::4][:kernels]:
        module = read_module(path.read_text(encoding="utf-8"))
        for launch in LAUNCHES:
            try:
                analysis = analyse(
                    module, module.kernels[0], launch, profile,
                    loops={"default": 32}, registers_per_thread=32,
                )  # fmt: skip
                yield analysis.vector(SCHEMA).model_inputs()
            except WattcastError:
                continue  # the GPU refuses it, or the schema has no word for it


def rows() -> Iterator[Row]:
    """Every row of this part."""
    for gpu, family in (
        ("tesla-k20", "catboost"), ("tesla-m60", "catboost"), ("tesla-v100", "catboost"),
        ("tesla-v100", "xgboost"),
    ):  # fmt: skip
        found = agreement(gpu, family)
        name = f"{gpu}, {family}, {found.launches} launches"
        yield at_least(f"LIME's five strongest with SHAP's sign, {name}", found.sign_share, 0.8, "")
        yield fact(f"launches where all five have it, {name}", found.all_five, "")
        yield fact(f"LIME's five strongest the same over 10 seeds, {name}", found.selection, "")
        yield fact(f"their signs the same over 10 seeds, {name}", found.sign_stability, "")
    yield from _times_and_pictures()


def _times_and_pictures() -> Iterator[Row]:
    from wattcast.models.explain_time import combine_of, lime_terms, shapley_values
    from wattcast.models.time.bottleneck import combined_seconds
    from wattcast.predictor.explain.pictures import Chart, draw, png, svg

    parts = {
        name: 1.0 + at
        for at, name in enumerate(["dram", "l2", "l1", "issue", "fma", "alu", "sfu", "latency"])
    }
    combine = combine_of("bottleneck", parts, combined_seconds(parts))
    exact = median_seconds(lambda: shapley_values(parts, combine), 30)
    yield at_most("Shapley values of a time of 8 parts", exact * 1e3, 10.0, "ms")
    local = median_seconds(lambda: lime_terms(parts, combine), 10)
    yield at_most("LIME of a time of 8 parts", local * 1e3, 100.0, "ms")
    bars = [(f"part {number}", (-1.0) ** number * number) for number in range(15)]
    chart = Chart("a title", "a subtitle", "power", "W", ("base", 60.0), bars, ("end", 67.0))
    yield fact("explanation as SVG", median_seconds(lambda: svg(draw(chart)), 30) * 1e3, "ms")
    yield fact("explanation as PNG", median_seconds(lambda: png(draw(chart)), 5, 1) * 1e3, "ms")
