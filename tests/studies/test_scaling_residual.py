"""Trees over the physical model: order and bounds whatever they learned, files that agree."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from studies.fitting.scaling.trees import FittedTrees, ResidualRows, TreeSettings, fit_trees
from tests.studies.test_scaling_physical import PARAMETERS, use
from wattcast.features.errors import ModelError
from wattcast.models.cards import ScalingCard
from wattcast.models.clocks import ClockPair
from wattcast.models.papers.scaling.card import TREES, scaling_store, schema_hash, served
from wattcast.models.papers.scaling.physical import PhysicalScaling, time_bounds
from wattcast.models.papers.scaling.residual import CorrectedScaling, power_vectors
from wattcast.models.papers.scaling.use import UNITS, KernelUse, UseTable
from wattcast.models.store import ArtifactStore, TreeModel

RNG = np.random.default_rng(3)
PHYSICAL = PhysicalScaling(PARAMETERS)
CORE, MEMORY = np.meshgrid([600.0, 800.0, 1000.0, 1200.0], [800.0, 2000.0, 3500.0])


def noisy_trees() -> FittedTrees:
    """Trees fitted to nonsense: whatever they learned, the order must hold."""
    kernels, pairs = 40, CORE.size
    row = np.repeat(np.arange(kernels), pairs)
    core, memory = np.tile(CORE.ravel(), kernels), np.tile(MEMORY.ravel(), kernels)
    units = RNG.uniform(0, 0.9, (kernels, len(UNITS["utilisation"])))
    table = UseTable(
        UNITS["utilisation"], units, RNG.uniform(0, 0.9, kernels), np.full(kernels, 1e-3)
    ).take(row)
    vectors = power_vectors(table, core / 1000, memory / 3500)
    n = len(row)
    rows = ResidualRows(
        vectors=vectors,
        physical=np.ones(n),
        measured=np.exp(RNG.normal(0, 0.5, n)),
        weights=np.ones(n),
        groups=row.astype(str),
        reference_rows=np.repeat(np.flatnonzero((core == 1200) & (memory == 3500)), pairs),
    )
    trees = fit_trees(rows, np.ones(n, dtype=bool), TreeSettings(120, depth=4))
    assert trees is not None
    assert np.std(trees.score(vectors)) > 0.01, "the trees learned something"
    return trees


MODEL = CorrectedScaling(PHYSICAL, noisy_trees())
shares = st.floats(0.0, 0.9)


@settings(max_examples=60)
@given(shares, shares, shares, st.floats(600, 1200), st.floats(800, 3500), st.data())
def test_corrected_time_keeps_order_and_bounds_and_power_rises_with_the_core(
    dram: float, sp: float, l2: float, core: float, memory: float, data: st.DataObject
) -> None:
    kernel = use(dram=dram, sp=sp, l2=l2)
    slow = ClockPair(core, memory)
    more_core = ClockPair(data.draw(st.floats(core, 1200)), memory)
    more_memory = ClockPair(core, data.draw(st.floats(memory, 3500)))
    found = MODEL.scales(kernel, [slow, more_core, more_memory, PARAMETERS.reference])
    low, high = time_bounds(slow, PARAMETERS.reference)
    assert low <= found[0].time <= high
    assert found[1].time <= found[0].time * (1 + 1e-9)
    assert found[2].time <= found[0].time * (1 + 1e-9)
    assert (found[3].time, found[3].power) == (1.0, 1.0)
    assert found[1].power >= found[0].power * (1 - 1e-9)  # type: ignore[operator]


def test_trees_for_power_nobody_measured_are_refused() -> None:
    timed = PhysicalScaling(PARAMETERS.model_copy(update={"power": None}))
    with pytest.raises(ModelError, match="tells none"):
        CorrectedScaling(timed, noisy_trees())


# --- packaged trees ---------------------------------------------------------------------

STORE = scaling_store()
PACKAGED = [card for card in STORE.list() if card.family == TREES]


@pytest.mark.parametrize("card", PACKAGED, ids=lambda card: f"{card.gpu} {card.feature_schema.id}")
def test_onnx_and_native_trees_agree(card: ScalingCard) -> None:
    artifact = STORE.find(card.gpu, "scaling", TREES, card.feature_schema.id, source=card.source)
    trees = TreeModel(artifact)
    low, high = (
        np.array([getattr(f, end) for f in card.features]) for end in ("minimum", "maximum")
    )
    vectors = RNG.uniform(low, high, (200, len(low))).astype(np.float32)
    assert trees.score(vectors) == pytest.approx(trees.native.score(vectors), abs=1e-5)


@pytest.mark.parametrize("card", PACKAGED, ids=lambda card: f"{card.gpu} {card.feature_schema.id}")
def test_packaged_trees_are_served_over_their_physical_model(card: ScalingCard) -> None:
    model = served(STORE, card.gpu, card.source).scaling
    assert isinstance(model, CorrectedScaling)
    parameters = model.physical.parameters
    core = dict.fromkeys(UNITS[parameters.counters], 0.3)
    kernel = KernelUse(parameters.counters, core, 0.4, parameters.nominal, 1e-3)
    lowest = ClockPair(parameters.core_range_mhz[0], parameters.memory_range_mhz[0])
    scales = model.scales(kernel, [parameters.reference, lowest])
    assert (scales[0].time, scales[0].power) == (1.0, 1.0)
    assert scales[1].power != model.physical.scales(kernel, [lowest])[0].power


@pytest.mark.skipif(not PACKAGED, reason="no packaged trees")
def test_trees_of_another_physical_model_are_refused(tmp_path: Path) -> None:
    card = PACKAGED[0]
    root = Path(str(STORE.find(card.gpu, "scaling", TREES, card.feature_schema.id).folder)).parents[
        3
    ]
    for name in (card.folder, _physical_folder(card)):
        target = tmp_path / name
        target.mkdir(parents=True)
        for file in (root / name).iterdir():
            (target / file.name).write_bytes(file.read_bytes())
    other = card.model_copy(update={"corrects_sha256": "0" * 64})
    (tmp_path / card.folder / "card.json").write_text(other.to_json(), "utf-8")
    store = ArtifactStore([tmp_path], kind=ScalingCard, hash_of_schema=schema_hash)
    with pytest.raises(ModelError, match="another physical model"):
        served(store, card.gpu, card.source)


def _physical_folder(card: ScalingCard) -> Path:
    found = [
        one
        for one in STORE.list()
        if (one.gpu, one.source, one.family) == (card.gpu, card.source, "physical")
    ]
    return found[0].folder
