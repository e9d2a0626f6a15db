"""Power, time and energy of a CUDA kernel from its PTX or CUDA source, before anyone runs it.

    >>> import wattcast
    >>> answer = wattcast.predict("kernel.ptx", gpu="tesla-v100", grid=4096, block=256)
    >>> answer.power.watts, answer.time.seconds, answer.energy.joules

    wattcast.features   PTX in, facts out: reader, control flow, execution, schemas, GPU profiles
    wattcast.models     facts in, numbers out: time, power, intervals, explanations, model files
    wattcast.predictor  a request in, an answer out: one file for each use case
    wattcast.training   tables in, models out: cleaning, evaluation, fitting, retraining
    wattcast.measure    a GPU in, recordings and profiles out (the extra ``measure``)
    wattcast.app        HTTP service, command line, this module's functions (app/python)

In the repository these folders are at the top and linked from here; the wheel holds them here.
CONTRIBUTING.md says which file to open for which change.
"""

import os
from typing import TYPE_CHECKING, Any

# Before anything can load an OpenMP runtime: spinning OpenMP threads cost factors of 100 on a
# busy core (docs/design.md, predictors).
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if TYPE_CHECKING:
    from wattcast.app.python import (
        advise,
        analyze,
        application,
        compare,
        dvfs,
        estimate,
        explain,
        fleet,
        fusion,
        gpus,
        hotspots,
        judge,
        language_model,
        operator,
        operators,
        predict,
        predict_many,
        rank_triton,
        sweep,
        vector,
    )

__all__ = [
    "advise",
    "analyze",
    "application",
    "compare",
    "dvfs",
    "estimate",
    "explain",
    "fleet",
    "fusion",
    "gpus",
    "hotspots",
    "judge",
    "language_model",
    "operator",
    "operators",
    "predict",
    "predict_many",
    "rank_triton",
    "sweep",
    "vector",
]


def __getattr__(name: str) -> Any:
    """The functions of ``wattcast.app.python``, loaded when first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from wattcast.app import python

    return globals().setdefault(name, getattr(python, name))
