"""Cards of scaling models, and the store that opens their artifacts.

Per campaign (measurements of one GPU by one source) up to three artifacts below
``<gpu>/scaling/``: ``physical-<counters>1-<campaign>`` (``model.json``), and trees correcting it,
``catboost-<counters>_time1-<campaign>`` and ``catboost-<counters>_power1-<campaign>``. Trees of
another physical model than the one at hand are refused: their card names its checksum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from pydantic import Field, model_validator

from studies.scaling.physical import PARAMETERS_NAME, PhysicalScaling, read_scaling
from studies.scaling.residual import CorrectedScaling
from studies.scaling.use import UNITS, CounterKind
from wattcast.features.errors import ModelError, SchemaError
from wattcast.models.cards import Card, CardPart, Sha256, TrainingSize
from wattcast.models.store import PACKAGED_ARTIFACTS, Artifact, ArtifactStore
from wattcast.models.trees import TreeModel

# --- feature schemas of the scaling models: names of their inputs, by kind of counters --------
# They lie here and not among ``features/schemas``, which make vectors of PTX: these inputs come
# from hardware counters, or from the physical scaling model itself. ``<kind>1`` names the physical
# model's inputs, ``<kind>_time1`` and ``<kind>_power1`` those of the trees that correct it.


Quantity = Literal["time", "power"]

RISING: Mapping[Quantity, tuple[str, ...]] = MappingProxyType(
    {
        "time": ("log_time", "core_slowdown", "memory_slowdown"),
        "power": ("core_speed",),
    }
)
"""First inputs of the trees, with which a prediction may only rise: the logarithms of the physical
model's relative time and of the reference clocks over the clocks, which all fall as a clock rises;
for power that of the core clock."""

_BESIDE: Mapping[Quantity, tuple[str, ...]] = MappingProxyType(
    {
        "time": ("dram_share", "core_share", "core_latency_share"),
        "power": ("memory_speed", "use_dram"),
    }
)


def physical_schema(kind: CounterKind) -> str:
    """Schema id of the physical model's inputs."""
    return f"{kind}1"


def trees_schema(kind: CounterKind, quantity: Quantity) -> str:
    """Schema id of the inputs of the trees that correct a quantity."""
    return f"{kind}_{quantity}1"


def inputs(kind: CounterKind, quantity: Quantity | None = None) -> tuple[str, ...]:
    """Names of the physical model's inputs, or of those of a quantity's trees, in order."""
    uses = tuple(f"use_{unit}" for unit in UNITS[kind])
    if quantity is None:
        return (*uses, "use_dram", "time_seconds")
    return (*RISING[quantity], *_BESIDE[quantity], *uses)


_QUANTITIES: tuple[Quantity, ...] = ("time", "power")
SCHEMAS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {physical_schema(kind): inputs(kind) for kind in UNITS}
    | {
        trees_schema(kind, quantity): inputs(kind, quantity)
        for kind in UNITS
        for quantity in _QUANTITIES
    }
)
"""Schema id -> names of its inputs."""


def schema_hash(schema_id: str) -> str:
    """sha256 of a schema's input names. Raises SchemaError for an unknown one."""
    if schema_id not in SCHEMAS:
        raise SchemaError(f"unknown schema {schema_id!r}; known: {', '.join(SCHEMAS)}")
    return hashlib.sha256("\n".join(SCHEMAS[schema_id]).encode()).hexdigest()


# --- cards of scaling models, and the store that opens their artifacts ------------------------


TARGET = "scaling"
PHYSICAL = "physical"
TREES = "catboost"

ScalingProtocol = Literal["leave_programs_out", "micro_to_real"]
ScaledQuantity = Literal["time", "power", "energy"]


class ScalingTrainingFacts(TrainingSize):
    """What a scaling model was fitted on, and what cleaning left out or noted, rule by rule."""

    pairs: int = Field(ge=1)
    dropped: dict[str, int]
    noted: dict[str, int]


class ScalingErrors(CardPart):
    """Errors of a scale: mean and median in points (hundredths), share within ten points."""

    mean_points: float = Field(ge=0)
    median_points: float = Field(ge=0)
    mape_percent: float = Field(ge=0)
    close_percent: float = Field(ge=0, le=100)


class ScalingScores(CardPart):
    """Errors on kernels left out, beside the mean curve's, which knows no kernel.

    ``reference_mhz`` is the pair (core, memory) that the scales are against.
    """

    protocol: ScalingProtocol
    quantity: ScaledQuantity
    reference_mhz: tuple[float, float]
    kernels: int = Field(ge=1)
    model: ScalingErrors
    mean_curve: ScalingErrors


class ScalingChoice(CardPart):
    """Energy saved at the pair of least predicted energy, in percent of that at the reference."""

    protocol: ScalingProtocol
    saved_percent: float
    mean_curve_saved_percent: float
    oracle_percent: float
    hypervolume_ratio: float = Field(gt=0, le=1)


class ScaleWidth(CardPart):
    """Interval of a scale: ``[low_factor, high_factor]`` times the predicted one."""

    low_factor: float = Field(gt=0, le=1)
    high_factor: float = Field(ge=1)


class ScalingIntervals(CardPart):
    """Widths at a nominal ``level``, from kernels left out; ``None`` where nothing was scored."""

    level: float = Field(gt=0, lt=1)
    time: ScaleWidth | None
    power: ScaleWidth | None


class ScalingCard(Card):
    """Card of a scaling model. ``corrects_sha256``: for trees, the ``model.json`` under them."""

    target: Literal["scaling"]
    training: ScalingTrainingFacts
    scores: tuple[ScalingScores, ...]
    intervals: ScalingIntervals
    choice: tuple[ScalingChoice, ...]
    corrects_sha256: Sha256 | None = None

    @model_validator(mode="after")
    def _of_its_family(self) -> ScalingCard:
        if (self.family == PHYSICAL) != (self.corrects_sha256 is None):
            raise ValueError("trees name the physical model they correct, and only they do")
        return self


def scaling_store(roots: Sequence[Path] = (PACKAGED_ARTIFACTS,)) -> ArtifactStore[ScalingCard]:
    """The store of scaling artifacts."""
    return ArtifactStore(roots, kind=ScalingCard, hash_of_schema=schema_hash)


def load_physical(store: ArtifactStore[ScalingCard], gpu: str, campaign: str) -> PhysicalScaling:
    """The physical model of a campaign. Raises ModelError where there is none."""
    base = _physical_artifact(store, store.list(), gpu, campaign)
    return read_scaling(base.file(PARAMETERS_NAME))


def load_corrected(
    store: ArtifactStore[ScalingCard], gpu: str, campaign: str
) -> CorrectedScaling | PhysicalScaling:
    """The physical model with what trees the campaign has; alone where it has none.

    Raises ModelError where there is no physical model, or trees correct another one.
    """
    cards = store.list()
    base = _physical_artifact(store, cards, gpu, campaign)
    physical = read_scaling(base.file(PARAMETERS_NAME))
    trees: dict[Quantity, TreeModel] = {}
    quantities: tuple[Quantity, ...] = ("time", "power")
    for quantity in quantities:
        schema = trees_schema(physical.parameters.counters, quantity)
        wanted = (gpu, schema, campaign)
        if not any((one.gpu, one.feature_schema.id, one.source) == wanted for one in cards):
            continue
        artifact = store.find(gpu, TARGET, TREES, schema, source=campaign)
        if artifact.card.corrects_sha256 != base.card.files[PARAMETERS_NAME]:
            raise ModelError(
                f"the {quantity} trees of {gpu} by {campaign} correct another physical model",
                gpu=gpu,
            )
        trees[quantity] = TreeModel(artifact)
    if not trees:
        return physical
    return CorrectedScaling(physical, time=trees.get("time"), power=trees.get("power"))


def _physical_artifact(
    store: ArtifactStore[ScalingCard], cards: Sequence[ScalingCard], gpu: str, campaign: str
) -> Artifact[ScalingCard]:
    mine = [card for card in cards if (card.gpu, card.family) == (gpu, PHYSICAL)]
    schemas = [card.feature_schema.id for card in mine if card.source == campaign]
    if not schemas:
        known = sorted({card.source for card in mine})
        raise ModelError(
            f"no frequency model of {gpu} by {campaign!r}; there are {', '.join(known) or 'none'}",
            gpu=gpu,
            known=known,
        )
    return store.find(gpu, TARGET, PHYSICAL, schemas[-1], source=campaign)
