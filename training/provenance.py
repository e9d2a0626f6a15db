"""What goes with an artifact: background statistics of its rows, checksums, date, code revision.

An artifact's files are written all at once or not at all.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from statistics import NormalDist
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from pydantic import BaseModel
from scipy.stats import rankdata

from wattcast.models.cards import (
    CARD_NAME,
    AnyCard,
    FeatureFacts,
    Member,
    ModelCard,
    TrainingFacts,
    sha256_of,
)
from wattcast.models.explain import BACKGROUND_NAME, Background, Bin, FeatureStatistics
from wattcast.models.store import PARAMETERS_NAME
from wattcast.training.evaluation.scores import Floats


def write_artifact(card: AnyCard, out_dir: Path, write_files: Callable[[Path], None]) -> AnyCard:
    """Write the files and then the card of an artifact; it appears under its name at once."""
    folder = out_dir / card.folder
    building = folder.with_name(f".{folder.name}.building")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    write_files(building)
    files = {path.name: sha256_of(path) for path in sorted(building.iterdir())}
    card = type(card).model_validate({**card.model_dump(), "files": files})
    (building / CARD_NAME).write_text(card.to_json(), "utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    building.rename(folder)
    return card


def write_parameters(card: AnyCard, out_dir: Path, parameters: BaseModel) -> AnyCard:
    """The artifact of a model whose one file holds its parameters as JSON."""

    def write(folder: Path) -> None:
        (folder / PARAMETERS_NAME).write_text(parameters.model_dump_json(indent=1) + "\n", "utf-8")

    return write_artifact(card, out_dir, write)


def write_background(vectors: Floats, names: Sequence[str], folder: Path) -> None:
    """The background statistics of training vectors ``[n, k]``, beside a model's files."""
    background = summarise(vectors, names)
    (folder / BACKGROUND_NAME).write_text(background.model_dump_json() + "\n", "utf-8")


def average_of(cards: Sequence[ModelCard], out_dir: Path) -> tuple[Member, ...]:
    """Models whose artifacts lie below ``out_dir``, as members of their average."""
    return tuple(
        Member(
            family=card.family,
            version=card.version,
            card_sha256=sha256_of(out_dir / card.folder / CARD_NAME),
        )
        for card in cards
    )


def feature_facts(
    names: Sequence[str],
    vectors: Floats,
    notes: Mapping[str, str] = MappingProxyType({}),
    known: tuple[Floats, Floats] | None = None,
) -> tuple[FeatureFacts, ...]:
    """Range and missing share of each column of vectors ``[n, k]``, with a note by its name.
    ``known`` are the least and largest value ``[k]`` that a model knows without them."""
    low, high = np.fmin.reduce(vectors, axis=0), np.fmax.reduce(vectors, axis=0)
    if known is not None:
        low, high = np.fmin(low, known[0]), np.fmax(high, known[1])
    missing = np.isnan(vectors).mean(axis=0)
    return tuple(
        FeatureFacts(
            name=name,
            minimum=float(low[at]),
            maximum=float(high[at]),
            missing_share=float(missing[at]),
            reproduced_note=notes.get(name, ""),
        )
        for at, name in enumerate(names)
    )


def training_facts(vectors: Floats, watts: Floats, groups: ArrayLike, **more: Any) -> TrainingFacts:
    """Of rows: vectors ``[n, k]``, watts, and names or numbers of kernel groups ``[n]``; ``more``
    facts take the place of what follows from these."""
    kernels = len(np.unique(groups))
    facts: dict[str, Any] = {
        "rows": len(watts),
        "kernels": kernels,
        "kernel_groups": kernels,
        "power_minimum_watts": float(watts.min()),
        "power_median_watts": float(np.median(watts)),
        "power_maximum_watts": float(watts.max()),
        "fingerprint": fingerprint(vectors, watts, groups),
        "dropped": {},
        "recomputed": {},
    }
    return TrainingFacts(**{**facts, **more})


def today() -> date:
    """Today in UTC, or the day of SOURCE_DATE_EPOCH (reproducible-builds.org)."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    return (datetime.fromtimestamp(int(epoch), UTC) if epoch else datetime.now(UTC)).date()


def code_revision() -> str:
    """Commit of the code, marked when training's own files differ from it; else ``unknown``."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        result = subprocess.run(  # noqa: S603 - fixed arguments, no user input
            ["git", *arguments],  # noqa: S607 - the git of the user's PATH
            cwd=here,
            capture_output=True,
            text=True,
            check=True,
        )
        return result.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", str(here), str(here.parent / "features"))
        return git("rev-parse", "HEAD") + ("-modified" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


POINTS = 100
"""Synthetic points kept with a model."""
SEED = 7
_SIGNIFICANT = 6  # digits kept: enough for an explanation, small in the file


def summarise(vectors: Floats, names: Sequence[str]) -> Background:
    """Statistics of vectors ``[n, k]`` and synthetic points with their rank correlation."""
    statistics = tuple(_statistics(vectors[:, at], name) for at, name in enumerate(names))
    return Background(features=statistics, points=_synthetic(vectors, statistics))


def fingerprint(vectors: Floats, watts: Floats, groups: ArrayLike) -> str:
    """sha256 of the training table: float64 vectors and watts, and the kernel groups."""
    digest = hashlib.sha256()
    for array in (vectors, watts):
        digest.update(np.ascontiguousarray(array, dtype="<f8").tobytes())
    digest.update("\n".join(map(str, np.asarray(groups).tolist())).encode())
    return digest.hexdigest()


def _statistics(column: Floats, name: str) -> FeatureStatistics:
    values = column[~np.isnan(column)]
    quantiles = np.quantile(values, np.linspace(0, 1, 21))
    # As LIME's discretiser: searchsorted over the distinct quartiles.
    edges = np.unique(quantiles[[5, 10, 15]])
    index = np.searchsorted(edges, values)
    return FeatureStatistics(
        name=name,
        mean=_short(values.mean()),
        std=_short(values.std()),
        quantiles=tuple(_short(value) for value in quantiles),
        bins=tuple(_bin(values[index == at], int(at)) for at in np.unique(index)),
    )


def _bin(values: Floats, index: int) -> Bin:
    return Bin(
        index=index,
        count=len(values),
        mean=_short(values.mean()),
        std=_short(values.std()),
        minimum=_short(values.min()),
        maximum=_short(values.max()),
    )


def _synthetic(
    vectors: Floats, statistics: Sequence[FeatureStatistics]
) -> tuple[tuple[float, ...], ...]:
    normal = NormalDist()
    filled = np.where(np.isnan(vectors), np.nanmedian(vectors, axis=0), vectors)
    ranks = np.column_stack([rankdata(column) for column in filled.T])
    scores = np.vectorize(normal.inv_cdf)(ranks / (len(filled) + 1))
    scores += 1e-9 * np.random.default_rng(SEED).standard_normal(scores.shape)  # constant columns
    correlation = np.corrcoef(scores, rowvar=False)
    draws = np.random.default_rng(SEED).multivariate_normal(
        np.zeros(vectors.shape[1]), correlation, POINTS, method="eigh"
    )
    levels, cdf = np.linspace(0, 1, 21), np.vectorize(normal.cdf)
    columns = [
        np.interp(cdf(draws[:, at]), levels, feature.quantiles).tolist()
        for at, feature in enumerate(statistics)
    ]
    return tuple(tuple(_short(value) for value in point) for point in zip(*columns, strict=True))


def _short(value: float | np.floating) -> float:
    return float(f"{float(value):.{_SIGNIFICANT}g}")
