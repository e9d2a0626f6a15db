"""Which model answers for Tesla K20 and M60: their trees or the physical one, kernels left out.

    python -m studies thesis-boards

The thesis measured kernels whose PTX is public now (``WATTCAST_PUBLIC_PTX``, the folder of
``end_to_end.toml``). Asked here is the physical model, pooled over other boards, by code and launch
as users ask; beside it trees of the kind that ships, fitted without the kernel's group. Launches
are those of the thesis' tables; sizes of the data follow from them and from the programs' sources.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from math import isqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.ensemble import ExtraTreesRegressor

from studies.end_to_end import FOLDER
from wattcast.app.settings import Settings
from wattcast.features.errors import DataError, WattcastError
from wattcast.models.store import ArtifactStore
from wattcast.predictor import Predictor
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.predict import predict
from wattcast.training.card_tables import table
from wattcast.training.power_rows import training_table

BOARDS = ("tesla-k20", "tesla-m60")
LAUNCHES = 4
"""Launches of a kernel that are asked, the first of its table."""
TREE_SETTINGS = ("n_estimators", "max_features", "min_samples_leaf", "max_depth")


class Asked(NamedTuple):
    """PTX file, entry, grid, block and arguments by position: whole numbers are lengths where the
    kernel wants a buffer (``buffers``)."""

    ptx: str
    entry: str
    grid: Sequence[int]
    block: Sequence[int]
    buffers: Mapping[int, int]
    scalars: Mapping[int, float]

    def body(self, folder: Path, gpu: str) -> dict[str, Any]:
        """What a user sends. Raises DataError where the PTX is absent."""
        path = folder / f"{self.ptx}.ptx"
        if not path.is_file():
            raise DataError(f"{path.name} is missing ({FOLDER})", file=path.name)
        arguments: dict[str, Any] = {str(at): {"elements": n} for at, n in self.buffers.items()}
        arguments |= {str(at): value for at, value in self.scalars.items()}
        launch = {"grid": self.grid, "block": self.block, "arguments": arguments}
        return {
            "ptx": path.read_text(encoding="utf-8"),
            "kernel": self.entry,
            "gpu": gpu,
            "model": "physical",
            "launch": launch,
        }


TRANSPOSES = {
    "tpose0": "_Z4copyPfS_ii",
    "tpose2": "_Z14transposeNaivePfS_ii",
    "tpose3": "_Z18transposeCoalescedPfS_ii",
    "tpose4": "_Z24transposeNoBankConflictsPfS_ii",
    "tpose5": "_Z22transposeCoarseGrainedPfS_ii",
    "tpose6": "_Z20transposeFineGrainedPfS_ii",
    "tpose7": "_Z17transposeDiagonalPfS_ii",
}


def asked(kernel: str, blocks: int, threads: int) -> Asked | None:
    """The launch of a row of the thesis; ``None`` where its PTX or its shape is not known."""
    family, _, name = kernel.partition("/")
    side, edge, count = isqrt(blocks), isqrt(threads), blocks * threads
    square = side * side == blocks and edge * edge == threads
    scalars: dict[int, float]
    if family == "transpose" and square and name in TRANSPOSES:
        width = edge * side
        buffers, scalars = dict.fromkeys((0, 1), width * width), {2: width, 3: width}
        return Asked("transpose", TRANSPOSES[name], [side] * 2, [edge] * 2, buffers, scalars)
    if kernel == "gaussian/fan2" and square:
        size = side * edge
        buffers = {0: size * size, 1: size * size, 2: size}
        scalars = {3: size, 4: size, 5: 0}
        return Asked("gaussian", "_Z4Fan2PfS_S_iii", [side] * 2, [edge] * 2, buffers, scalars)
    if kernel == "blackscholes/blackscholes":
        buffers, scalars = dict.fromkeys(range(5), count), {5: 0.02, 6: 0.3, 7: count}
        entry = "_Z15BlackScholesGPUPfS_S_S_S_ffi"
        return Asked("BlackScholes", entry, [blocks], [threads], buffers, scalars)
    if kernel == "vecadd/vecadd3":
        buffers, scalars = dict.fromkeys(range(3), count), {3: count}
        return Asked("vectorAdd", "_Z9vectorAddPKfS0_Pfi", [blocks], [threads], buffers, scalars)
    if kernel == "matrixmul/matrixmul" and square and edge == 32:
        width = 32 * side
        buffers, scalars = dict.fromkeys(range(3), width * width), {3: width, 4: width}
        return Asked(
            "matrixMul", "_Z13matrixMulCUDAPfS_S_ii", [side] * 2, [32] * 2, buffers, scalars
        )
    mesh: dict[str, tuple[str, dict[int, int], dict[int, float]]] = {
        "cfd/init": ("_Z25cuda_initialize_variablesiPf", {1: 5}, {0: count}),
        "cfd/stepf": ("_Z24cuda_compute_step_factoriPfS_S_", {1: 5, 2: 1, 3: 1}, {0: count}),
        "cfd/timestep": (
            "_Z14cuda_time_stepiiPfS_S_S_",
            {2: 5, 3: 5, 4: 1, 5: 5},
            {0: 1, 1: count},
        ),
    }
    if kernel in mesh:
        entry, each, scalars = mesh[kernel]
        buffers = {at: times * count for at, times in each.items()}
        return Asked("cfd", entry, [blocks], [threads], buffers, scalars)
    return None


def errors(gpu: str, predictor: Predictor, folder: Path) -> list[list[str]]:
    """Of the physical model, of trees and of the median of other kernels, one line each."""
    found = training_table(gpu)
    rows, frame = found.rows[found.served], found.frames[found.served]
    groups, watts = frame["kernel_group"].to_numpy(str), rows.watts
    card = ArtifactStore().find(gpu, "power", "extratrees", found.schema).card
    settings = {name: card.hyperparameters[name] for name in TREE_SETTINGS
                if name in card.hyperparameters}  # fmt: skip
    known = np.nan_to_num(np.asarray(rows.vectors, dtype=np.float64), nan=-1.0)
    chosen: dict[tuple[str, int, int], int] = {}
    for at, row in enumerate(frame.to_dict("records")):
        key = str(row["kernel_id"]), int(row["grid_size"]), int(row["block_size"])
        if sum(one[0] == key[0] for one in chosen) < LAUNCHES and asked(*key) is not None:
            chosen.setdefault(key, at)
    told: dict[str, list[float]] = {"physical model": [], "trees": [], "median": []}
    for key, at in chosen.items():
        launch, other = asked(*key), groups != groups[at]
        assert launch is not None, "only such are chosen"
        answer = predict(predictor, PredictRequest.model_validate(launch.body(folder, gpu)))
        told["physical model"].append(answer["power"]["watts"])
        trees = ExtraTreesRegressor(random_state=0, **settings).fit(known[other], watts[other])
        told["trees"].append(float(trees.predict(known[at : at + 1])[0]))
        told["median"].append(float(np.median(watts[other])))
    true = watts[list(chosen.values())]
    lines = []
    for name, values in told.items():
        wrong = np.abs(np.array(values) / true - 1) * 100
        count = f"{len(true)}, {len({key[0] for key in chosen})}"
        lines.append([gpu, count, name, f"{wrong.mean():.1f}", f"{np.median(wrong):.1f}"])
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    argparse.ArgumentParser("python -m studies thesis-boards").parse_args(arguments)
    folder = Path(os.environ.get(FOLDER, ""))
    try:
        with tempfile.TemporaryDirectory() as home:
            predictor = Predictor(Settings(home=Path(home)))
            lines = [line for gpu in BOARDS for line in errors(gpu, predictor, folder)]
    except WattcastError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    titles = ("GPU", "launches, kernels", "kernel left out of", "mean error %", "median error %")
    print(table(titles, lines))
    return 0
