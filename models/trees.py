"""One boosted tree model of an artifact: scored by ONNX Runtime, explained by its own library.

Both are loaded when first needed. The native file is the truth, ONNX its faster copy.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wattcast.features.errors import ModelError
from wattcast.models.store import AnyCard, Artifact

if TYPE_CHECKING:
    import onnxruntime

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
        session = self.session
        source, target = session.get_inputs()[0].name, session.get_outputs()[0].name
        return lambda vectors: session.run([target], {source: vectors})[0]

    def score(self, vectors: Float32s) -> Float64s:
        """Predictions ``[n]`` by ONNX Runtime on one thread."""
        return np.asarray(self._run(vectors), dtype=np.float64).reshape(len(vectors))

    @cached_property
    def native(self) -> _Xgboost | _Catboost:
        """The library's own model: ``score(vectors)`` and ``shap(vectors)``."""
        content = self._read(NATIVE_NAMES[self._family])
        return (_Catboost if self._family == "catboost" else _Xgboost)(content)


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


class _Xgboost:
    def __init__(self, content: bytes) -> None:
        import xgboost

        self._xgboost = xgboost
        self._booster = xgboost.Booster({"nthread": 1}, model_file=bytearray(content))

    def score(self, vectors: Float32s) -> Float64s:
        return np.asarray(self._booster.predict(self._matrix(vectors)), dtype=np.float64)

    def shap(self, vectors: Float32s) -> tuple[float, Float64s]:
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
