"""Finds artifacts and checks them before anything is loaded.

An artifact is a folder with a card and exactly the files the card names::

    <root>/<gpu>/<target>/<family>-<schema>-<source>/<version>/
        card.json  model.ubj | model.cbm  model.onnx  background.json

A file may lie there compressed, with ``.gz`` or ``.xz`` after its name; the card's checksum is that
of its content; the large ones of the package are. ``Artifact.read`` reads all.

A store opens the artifacts of one target; power is the default, ``kind`` names another's card.
Roots are ordered: the packaged ``models/artifacts`` first, then what users trained
(``$WATTCAST_HOME/artifacts``); a later root wins over an earlier one.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError
from typing_extensions import TypeVar

from wattcast.features.errors import ModelError, SchemaError
from wattcast.models.cards import CARD_NAME, Card, Member, ModelCard, read_card, sha256_of

if TYPE_CHECKING:
    import onnxruntime


AnyCard = TypeVar("AnyCard", bound=Card, default=ModelCard)
Parameters = TypeVar("Parameters", bound=BaseModel)
Cards = list[AnyCard]  # the method ``list`` below hides the builtin inside its class
PACKAGED_ARTIFACTS = Path(__file__).parent / "artifacts"
"""Read-only artifacts of the package."""
PARAMETERS_NAME = "model.json"
"""File of an artifact that holds a model's parameters, where they are few."""
COMPRESSED = ".gz"
_OPENERS: dict[str, Any] = {COMPRESSED: gzip.open, ".xz": lzma.open}
MOST_BYTES = 1 << 28
"""Of one file; the largest that is packaged has 4 MB. gzip grows a small file 1000 times."""


@dataclass(frozen=True, slots=True)
class Artifact(Generic[AnyCard]):
    """A checked artifact: card, folder, and the artifacts it averages (if any)."""

    card: AnyCard
    folder: Path
    members: tuple[Artifact[AnyCard], ...] = ()

    def read(self, name: str) -> bytes:
        """Content of a file the card names. Raises ModelError for any other, and for one that
        is missing, no plain file, or not what it was."""
        label = _label(self.folder)
        if name not in self.card.files:
            raise ModelError(f"{label} has no file {name!r}")
        return _content(self.folder, name, self.card.files[name], label)

    def parameters(self, kind: type[Parameters], name: str = PARAMETERS_NAME) -> Parameters:
        """What a JSON file that the card names holds. Raises ModelError where it is not valid."""
        try:
            return kind.model_validate_json(self.read(name))
        except ValidationError as error:
            raise ModelError(f"{name} of {_label(self.folder)}: {error}") from error


def schema_hash(schema_id: str) -> str:
    """Hash of a schema of model inputs as the installed package defines it. Raises SchemaError."""
    from wattcast.features.schemas import get_schema
    from wattcast.models.time.measured_work import SCHEMA_ID, work_schema

    return work_schema().sha256 if schema_id == SCHEMA_ID else get_schema(schema_id).sha256


class ArtifactStore(Generic[AnyCard]):
    """Artifacts of one target in several roots; missing roots are empty ones.

    ``kind`` is the class of the target's cards, ``hash_of_schema`` maps a schema id to the hash
    a card must carry.
    """

    def __init__(
        self,
        roots: Sequence[Path] = (PACKAGED_ARTIFACTS,),
        *,
        kind: type[AnyCard] = ModelCard,  # type: ignore[assignment]  # as AnyCard's default
        hash_of_schema: Callable[[str], str] = schema_hash,
    ) -> None:
        self._roots = tuple(Path(root) for root in roots)
        self._kind = kind
        self._hash_of_schema = hash_of_schema

    def find(
        self,
        gpu: str,
        target: str,
        family: str,
        schema: str,
        *,
        source: str | None = None,
        version: int | None = None,
    ) -> Artifact[AnyCard]:
        """The newest matching artifact, checked: the last root wins, then the highest version.

        Raises ModelError if there is none, or if the one chosen fails a check: unreadable card,
        a file missing, unknown or with another checksum, a schema with another hash.
        """
        prefix = f"{family}-{schema}-"
        matches = [
            (at, number, folder)
            for at, folder, number in self._folders(gpu)
            if folder.parts[-4:-2] == (gpu, target)
            and folder.parts[-2].startswith(prefix)
            and (source is None or folder.parts[-2] == prefix + source)
            and (version is None or number == version)
        ]
        if not matches:
            which = f"{family} {target} model for {gpu} on schema {schema}"
            wanted = "".join(
                f", {name} {value}"
                for name, value in (("source", source), ("version", version))
                if value is not None
            )
            raise ModelError(
                f"no {which}{wanted}", gpu=gpu, target=target, family=family, schema=schema
            )
        _, _, folder = max(matches)
        return self._open(folder)

    def list(self, gpu: str = "*", names: str = "*") -> Cards[AnyCard]:
        """Cards of all artifacts of a GPU and in folders of such names (default: any) that pass
        their checks, by folder; see ``problems``."""
        return [found.card for found in self._all(gpu, names) if isinstance(found, Artifact)]

    def problems(self) -> tuple[str, ...]:
        """What is wrong with the artifacts that ``list`` leaves out."""
        return tuple(found.detail for found in self._all() if isinstance(found, ModelError))

    def _all(self, gpu: str = "*", names: str = "*") -> Iterator[Artifact[AnyCard] | ModelError]:
        for _, folder, _ in self._folders(gpu, names):
            try:
                yield self._open(folder)
            except ModelError as error:
                yield error

    def _folders(self, gpu: str = "*", names: str = "*") -> Iterator[tuple[int, Path, int]]:
        """(root index, version folder, version) of what looks like the target's artifacts."""
        for at, root in enumerate(self._roots):
            for folder in sorted(root.glob(f"{gpu}/{self._kind.target_name()}/{names}/*")):
                if folder.name.isdecimal() and folder.is_dir():
                    yield at, folder, int(folder.name)

    def _open(self, folder: Path) -> Artifact[AnyCard]:
        label = _label(folder)
        card = read_card(folder / CARD_NAME, self._kind)
        if card.folder.parts != folder.parts[-4:]:
            raise ModelError(f"{label}: its card is that of {card.folder.as_posix()}")
        self._check_schema(card, label)
        _check_files(card, folder, label)
        members = tuple(self._open_member(card, folder, member) for member in card.members)
        return Artifact(card, folder, members)

    def _open_member(self, card: AnyCard, folder: Path, which: Member) -> Artifact[AnyCard]:
        # Members lie beside the average in the same root; the card's checksum pins their files.
        name = f"{which.family}-{card.feature_schema.id}-{card.source}"
        place = folder.parent.parent / name / str(which.version)
        label = _label(folder)
        if place == folder:
            raise ModelError(f"{label}: its card names itself as a member")
        member = self._open(place)
        if member.members:
            raise ModelError(f"{label}: member {name} is itself an average")
        if sha256_of(place / CARD_NAME) != which.card_sha256:
            raise ModelError(f"{label}: the card of member {name} does not match its checksum")
        if member.card.feature_names != card.feature_names:
            raise ModelError(f"{label}: member {name} has other features")
        return member

    def _check_schema(self, card: Card, label: str) -> None:
        schema = card.feature_schema
        try:
            expected = self._hash_of_schema(schema.id)
        except SchemaError as error:
            raise ModelError(f"{label}: {error.detail}", schema=schema.id) from error
        if schema.sha256 != expected:
            raise ModelError(
                f"{label}: trained on another definition of schema {schema.id} "
                f"({schema.sha256[:12]}, here {expected[:12]}); train it again",
                schema=schema.id,
            )


def _check_files(card: Card, folder: Path, label: str) -> None:
    known = {CARD_NAME, *card.files, *(name + end for name in card.files for end in _OPENERS)}
    for path in sorted(folder.iterdir()):
        if path.name not in known:
            raise ModelError(f"{label}: file {path.name!r} is not in the card")
    for name, expected in card.files.items():
        _content(folder, name, expected, label)


def _content(folder: Path, name: str, expected: str, label: str) -> bytes:
    """What a file holds whose checksum must be ``expected``."""
    path = folder / name
    packed = {folder / (name + end): opener for end, opener in _OPENERS.items()}
    there = [each for each in (path, *packed) if each.exists() or each.is_symlink()]
    # A link could lead out of the root; artifacts are plain files.
    if not there or any(each.is_symlink() or not each.is_file() for each in there):
        raise ModelError(f"{label}: file {name!r} is missing or no plain file")
    if len(there) > 1:
        raise ModelError(f"{label}: file {name!r} is there twice, plain and compressed")
    try:
        with packed.get(there[0], open)(there[0], "rb") as file:
            content: bytes = file.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise ModelError(f"{label}: file {name!r} cannot be read: {error}") from error
    if len(content) > MOST_BYTES:
        raise ModelError(f"{label}: file {name!r} holds more than {MOST_BYTES} bytes")
    if hashlib.sha256(content).hexdigest() != expected:
        raise ModelError(f"{label}: file {name!r} does not match the checksum in its card")
    return content


def _label(folder: Path) -> str:
    return "artifact " + "/".join(folder.parts[-4:])


# One boosted tree model of an artifact: scored by ONNX Runtime, explained by its own library.
#
# Both are loaded when first needed. The native file is the truth, ONNX its faster copy.

Float32s = NDArray[np.float32]
Float64s = NDArray[np.float64]

ONNX_NAME = "model.onnx"
NATIVE_NAMES = {"xgboost": "model.ubj", "catboost": "model.cbm", "extratrees": "model.ubj"}


class TreeModel:
    """The trees of one artifact, in the unit of the target they were fitted to.

    Vectors are float32 ``[n, k]`` in the order of the card's features, checked by the caller.
    Raises ModelError for a family without trees or a file that does not load.
    """

    def __init__(self, artifact: Artifact[AnyCard]) -> None:
        self._family = artifact.card.family
        if self._family not in NATIVE_NAMES:
            raise ModelError(f"{self._family!r} is not a family of boosted trees")
        self._read = artifact.read
        self._features = len(artifact.card.features)

    @cached_property
    def session(self) -> onnxruntime.InferenceSession:
        """The ONNX session, made now if it is not there yet."""
        session = open_session(self._read(ONNX_NAME))
        width = session.get_inputs()[0].shape[-1]
        if width != self._features:
            raise ModelError(f"{ONNX_NAME} takes {width} features, its card {self._features}")
        return session

    @cached_property
    def _run(self) -> Callable[[Float32s], Any]:
        return runner(self.session)

    def score(self, vectors: Float32s) -> Float64s:
        """Predictions ``[n]`` by ONNX Runtime on one thread."""
        return np.asarray(self._run(vectors), dtype=np.float64).reshape(len(vectors))

    @cached_property
    def native(self) -> Xgboost | _Catboost:
        """The library's own model: ``score(vectors)`` and ``shap(vectors)``."""
        content = self._read(NATIVE_NAMES[self._family])
        return (_Catboost if self._family == "catboost" else Xgboost)(content)


def open_session(content: bytes) -> onnxruntime.InferenceSession:
    """An ONNX session of one thread. Raises ModelError for a model that does not load."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    # One vector is microseconds of work: handing it to threads costs more than it saves.
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.enable_mem_pattern = False  # planning its few bytes takes a quarter of a run
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 3  # errors only; warnings go to stderr unasked
    try:
        return ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime's own errors share no base class
        raise ModelError(f"{ONNX_NAME} does not load: {error}") from error


def runner(session: onnxruntime.InferenceSession) -> Callable[[Float32s], Any]:
    """What scores vectors ``[n, k]`` by a session."""
    source, target = session.get_inputs()[0].name, session.get_outputs()[0].name
    return lambda vectors: session.run([target], {source: vectors})[0]


class Xgboost:
    """A model as XGBoost itself has it, of the bytes of its file."""

    def __init__(self, content: bytes) -> None:
        import xgboost

        self._xgboost = xgboost
        self._booster = xgboost.Booster({"nthread": 1}, model_file=bytearray(content))

    def score(self, vectors: Float32s) -> Float64s:
        """Predictions ``[n]``."""
        return np.asarray(self._booster.predict(self._matrix(vectors)), dtype=np.float64)

    def shap(self, vectors: Float32s) -> tuple[float, Float64s]:
        """Base and contributions ``[n, k]``."""
        parts = self._booster.predict(self._matrix(vectors), pred_contribs=True)
        return _split_base(np.asarray(parts, dtype=np.float64))

    def _matrix(self, vectors: Float32s) -> Any:
        return self._xgboost.DMatrix(vectors, nthread=1)


class _Catboost:
    def __init__(self, content: bytes) -> None:
        import catboost

        self._catboost = catboost
        self._model = catboost.CatBoostRegressor()
        self._model.load_model(blob=content)

    def score(self, vectors: Float32s) -> Float64s:
        return np.asarray(self._model.predict(vectors, thread_count=1), dtype=np.float64)

    def shap(self, vectors: Float32s) -> tuple[float, Float64s]:
        parts = self._model.get_feature_importance(
            self._catboost.Pool(vectors), type="ShapValues", thread_count=1
        )
        return _split_base(np.asarray(parts, dtype=np.float64))


def _split_base(parts: Float64s) -> tuple[float, Float64s]:
    """Both libraries append the base value, the same in every row, as the last column."""
    return float(parts[0, -1]), parts[:, :-1]
