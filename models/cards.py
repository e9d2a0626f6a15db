"""Model cards: what a model is, what it was trained on and how well it does. No card, no loading.

``card.json`` lies beside the files of an artifact and is the only way to them: it names each
file with its sha256, and the feature schema with its hash, so that a model is never served
vectors it was not trained on.

    Card               what the card of any target holds
    +-- ModelCard      target power
    +-- TimeCard       target time (models/time/calibration.py)
    +-- ScalingCard    target scaling over clocks (models/papers/scaling/card.py)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    BaseModel,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from wattcast.features.checked import Frozen
from wattcast.features.errors import ModelError
from wattcast.models.intervals import IntervalCalibration

# What a model learned from, as marks by which a kernel is known again.
#
# A kernel has three kinds of marks: the hash of its PTX, its kernel group, and for each feature
# schema what of its vector follows from the code and not from the launch. Each is kept as the first
# digits of a hash: enough to tell whether a measured kernel was in training, and no row of the
# training data can be read from it. A kernel that shares any mark with a model is known to it: two
# kernels of one instruction mix count as one, which makes a score worse and never better than it
# is.

DIGITS = 12
"""Hex digits of a mark: of a million marks two agree by chance once in 500."""

Marks = frozenset[str]
StoredMarks = Annotated[str, StringConstraints(pattern=rf"^([0-9a-f]{{{DIGITS}}}( |$))*$")]
"""Marks in their order, one blank between."""

_MIX = ("comp_inst_kernel", "glob_inst_kernel", "misc_inst_kernel")
_PIPES = (
    "fma_pipe_instructions", "fp32_instructions", "alu_pipe_instructions", "fp64_instructions",
    "sfu_instructions", "branches", "lsu_requests",
)  # fmt: skip
CODE_FIELDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"alavani2023": _MIX, "powerquant2026": _MIX, "powerquant2026r": _MIX, "activity1": _PIPES}
)
"""Fields of a schema that tell the code: instructions of a thread by kind, or executed ones of each
pipe (as shares of ``_WHOLE``, so that a larger grid changes nothing). Registers, latencies and
shared memory hang on compiler and board and are left out."""

_WHOLE = "warp_instructions_ptx"
_SHARE_DIGITS, _COUNT_DIGITS = 3, 6
"""Significant digits of shares and counts that are compared."""


def stored(marks: Iterable[str]) -> str:
    """Marks as a card holds them."""
    return " ".join(sorted(set(marks)))


def marks_of(text: str | None) -> Marks | None:
    """The marks of a card; ``None`` where it tells none, so that nothing counts as unseen."""
    return frozenset(text.split()) if text else None


def group_mark(name: str) -> str:
    """Mark of a kernel group, by its name."""
    return _mark("group", name.strip().casefold())


def ptx_mark(sha256: str) -> str:
    """Mark of a PTX text, by its hash."""
    return _mark("ptx", sha256)


def code_marks(
    schema_id: str, names: Sequence[str], vectors: NDArray[np.float64]
) -> list[str | None]:
    """Mark of each vector ``[n, k]`` whose columns are ``names``; ``None`` for a vector that does
    not hold what tells the code, and for all of a schema without such fields."""
    fields = CODE_FIELDS.get(schema_id, ())
    if not fields or not set(fields) <= set(names):
        return [None] * len(vectors)
    columns = vectors[:, [names.index(field) for field in fields]]
    digits = _COUNT_DIGITS
    if fields == _PIPES:
        if _WHOLE not in names:
            return [None] * len(vectors)
        with np.errstate(divide="ignore", invalid="ignore"):
            columns = columns / vectors[:, [names.index(_WHOLE)]]
        digits = _SHARE_DIGITS
    return [
        _mark(schema_id, *(f"{value:.{digits}g}" for value in row))
        if np.isfinite(row).all() and row.any()
        else None
        for row in columns
    ]


def _mark(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:DIGITS]


CARD_NAME = "card.json"
CARD_FORMAT: Literal[1] = 1

Identifier = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_.]*(-[a-z0-9_.]+)*$")]
"""Lower-case kebab name; safe as one path component (no separator, never starting with a dot)."""
Word = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_]*$")]
"""Identifier without hyphens: the parts of ``<family>-<schema>-<source>``."""
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]
"""Plain file name inside the artifact's folder: no separator, so no way out of it."""

Table = Literal["as_published", "as_recomputed", "measured"]
"""Feature columns as the files print them, or recomputed by the serving rules (rule 5b); or rows
that users measured and uploaded (whatever other rows were in training)."""
ScoreName = Literal[
    "r2", "rmse_watts", "mae_watts", "mape_percent", "median_ape_percent",
    "kernel_macro_mape_percent",
]  # fmt: skip


class CardPart(Frozen):
    """A part of a card."""


class SchemaReference(CardPart):
    """Feature schema and the hash of its definition (``Schema.sha256``)."""

    id: Word
    sha256: Sha256


class FeatureFacts(CardPart):
    """One model input as the training rows have it.

    ``minimum`` and ``maximum`` span the training range, in the schema's unit; outside it the
    model extrapolates. ``missing_share`` is the share of rows without a value.
    ``reproduced_share`` is the share of the training rows (as recomputed) whose value is what
    the serving rule gives, ``reproduced_share_published`` that of the same rows as published;
    ``None`` where nothing in a row decides it. ``reproduced_note`` says by which rule or why not.
    """

    name: str
    minimum: float
    maximum: float
    missing_share: float = Field(ge=0, le=1)
    reproduced_share: float | None = Field(default=None, ge=0, le=1)
    reproduced_share_published: float | None = Field(default=None, ge=0, le=1)
    reproduced_note: str = ""


class Source(CardPart):
    """An upstream file. ``sha256`` is that of the complete upstream file;
    ``used_sha256`` that of the (possibly shorter) copy read for this training."""

    repository: str
    path: str
    sha256: Sha256
    used_sha256: Sha256
    licence: str


class TrainingSize(CardPart):
    """Rows, kernels, and groups of near-twin kernels that a model was fitted on."""

    rows: int = Field(ge=1)
    kernels: int = Field(ge=1)
    kernel_groups: int = Field(ge=1)


class TrainingFacts(TrainingSize):
    """What a power model was fitted on, and what cleaning left out, rule by rule."""

    power_minimum_watts: float
    power_median_watts: float
    power_maximum_watts: float
    fingerprint: Sha256
    dropped: dict[str, int]
    recomputed: dict[str, int]


class Spread(CardPart):
    """Mean and standard deviation over seeded fold assignments."""

    mean: float
    std: float = Field(ge=0)


class ProtocolScores(CardPart):
    """Scores of one protocol on one table, beside the same folds' median-watt baseline.

    A score is computed on the out-of-fold predictions of all rows of one assignment; the
    spread is over ``assignments`` of them.
    """

    table: Table
    protocol: Literal["random", "grouped"]
    folds: int = Field(ge=2)
    assignments: int = Field(ge=1)
    model: dict[ScoreName, Spread]
    baseline: dict[ScoreName, Spread]


class Member(CardPart):
    """A model that an ``average`` is made of: its artifact and the sha256 of its card."""

    family: Word
    version: int = Field(ge=1)
    card_sha256: Sha256


class Card(CardPart):
    """Everything known about one version of one model (docs/design.md, predictors).

    A subclass for each target says which ``target``, and narrows ``training``, ``scores`` and
    ``intervals`` to its own quantities. They stand here too, for the order of ``card.json``.
    """

    format: Literal[1] = CARD_FORMAT
    gpu: Identifier
    target: str
    family: Word
    source: Word
    version: int = Field(ge=1)
    feature_schema: SchemaReference
    features: tuple[FeatureFacts, ...] = Field(min_length=1)
    training: TrainingSize
    sources: tuple[Source, ...] = Field(min_length=1)
    hyperparameters: dict[str, bool | int | float | str]
    libraries: dict[str, str]
    scores: tuple[CardPart, ...]
    intervals: BaseModel
    members: tuple[Member, ...] = ()
    files: dict[FileName, Sha256]
    created: date
    code_revision: str

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = self.feature_names
        if len(set(names)) != len(names):
            raise ValueError("a feature is named twice")
        if CARD_NAME in self.files:
            raise ValueError("the card cannot hold its own checksum")
        if not self.files and not self.members:
            raise ValueError("a card needs files or members")
        return self

    @classmethod
    def target_name(cls) -> str:
        """The target of every card of this class: a part of its folder."""
        (name,) = get_args(cls.model_fields["target"].annotation)
        return str(name)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Model inputs in the order of the vector."""
        return tuple(feature.name for feature in self.features)

    @property
    def folder(self) -> Path:
        """Place below an artifact root: ``<gpu>/<target>/<family>-<schema>-<source>/<version>``."""
        return Path(self.place)

    @property
    def place(self) -> str:
        """The same as text, with ``/`` between its parts."""
        name = f"{self.family}-{self.feature_schema.id}-{self.source}"
        return f"{self.gpu}/{self.target}/{name}/{self.version}"

    def to_json(self) -> str:
        """Stable text of ``card.json``."""
        return _text(self.model_dump(mode="json"))


class BoardFacts(CardPart):
    """Of a model retrained on uploads: which board it is for, and how that board reads.

    ``label`` is the board's, empty for uploads without one. The trees predict watts of the board
    that the champion was trained on; ``watts_factor`` times that is the answer. ``batches`` are
    the ids of the uploads it was trained on; ``base_data`` tells whether the rows of the model
    before were, too.

    ``unseen_groups`` are the kernel groups of the uploads of which nothing was in any data that a
    part of the model had learned from before (``None``: made when this was not told). Where
    ``unseen_kernel`` is ``not measured`` they are too few for an interval: its widths are those of
    the model in ``widths_from``, or wider.
    """

    label: str = Field(max_length=64)
    watts_factor: float = Field(gt=0)
    batches: tuple[str, ...]
    base_data: bool
    unseen_groups: int | None = Field(default=None, ge=0)
    unseen_kernel: Literal["measured", "not measured"] = "measured"
    widths_from: str = ""


class ModelCard(Card):
    """Card of a power model. ``board`` is there for retrained models alone. ``learned`` are the
    marks of all kernels that it or any model it descends from was trained on."""

    target: Literal["power"]
    training: TrainingFacts
    scores: tuple[ProtocolScores, ...]
    intervals: IntervalCalibration
    board: BoardFacts | None = None
    learned: StoredMarks = ""

    def to_json(self) -> str:
        """Stable text of ``card.json``; a card without a board does not mention one."""
        data = self.model_dump(mode="json")
        for name in ("board", "learned"):
            if not data[name]:
                del data[name]
        return _text(data)

    @property
    def marks(self) -> Marks | None:
        """Of every kernel it learned from; ``None`` where nobody told."""
        return marks_of(self.learned)

    @property
    def watts_factor(self) -> float:
        """What the trees' watts are multiplied by."""
        return 1.0 if self.board is None else self.board.watts_factor

    def score(self, table: Table, protocol: str) -> ProtocolScores:
        """Scores of one table and protocol. Raises ModelError if the card has none."""
        for scores in self.scores:
            if (scores.table, scores.protocol) == (table, protocol):
                return scores
        raise ModelError(f"the card has no {protocol} scores {table.replace('_', ' ')}")


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
    """Widths at a nominal ``level``, from kernels left out; ``None`` where nothing was scored.

    ``energy_one_in_ten``: what measured energy scales over predicted ones exceed in one kernel of
    ten; it decides whether clocks are proposed (``models/choice.py``).
    """

    level: float = Field(gt=0, lt=1)
    time: ScaleWidth | None
    power: ScaleWidth | None
    energy_one_in_ten: float | None = Field(default=None, ge=1)


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
        if (self.family == "catboost") != (self.corrects_sha256 is not None):
            raise ValueError("trees name the physical model they correct, and only they do")
        return self


def _text(data: dict[str, Any]) -> str:
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


AnyCard = TypeVar("AnyCard", bound=Card)


def read_card(path: Path, kind: type[AnyCard]) -> AnyCard:
    """Read and validate ``card.json`` of a target. Raises ModelError saying what is wrong."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ModelError(f"no model card at {path}: {error.strerror}") from error
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the card"
        raise ModelError(f"model card {path}: {where}: {first['msg']}") from error


def sha256_of(path: Path) -> str:
    """Hex sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
