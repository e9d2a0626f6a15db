"""Names of kernels, cleaned tables and pooled rows: read, checked, and the same for everybody."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.needs import needs_data
from wattcast.features.errors import DataError
from wattcast.training.data.cleaning import MODEL_INPUTS, SM_COUNT, NamingRules, clean
from wattcast.training.data.datasets import KernelName, data_root, read_kernel_names
from wattcast.training.power_rows import power_rows

NAMES_HEADER = "source_file_stem,benchmark,kernel,kernel_id,kernel_group,family"


def names_file(folder: Path, *rows: str, header: str = NAMES_HEADER) -> Path:
    (folder / "power").mkdir(exist_ok=True)
    (folder / "power" / "kernel_names.csv").write_text("\n".join([header, *rows]) + "\n")
    return folder


@pytest.mark.parametrize(
    ("rows", "header", "row", "column"),
    [
        (("K20,b,k,b/k,b/k,b", "K20,b,k,,b/k,b"), NAMES_HEADER, 3, "kernel_id"),
        (("K20,b,k,b/k,b/k,b", "K20,b,k ,b/j,b/k,b"), NAMES_HEADER, 3, "kernel_id"),
        (("K20,,k,b/k,b/k,b",), NAMES_HEADER, 2, "benchmark"),
        (("K20,b,k,b/k,b/k",), NAMES_HEADER.removesuffix(",family"), None, "family"),
    ],
)
def test_a_defect_in_the_names_has_a_place(
    tmp_path: Path, rows: tuple[str, ...], header: str, row: int | None, column: str
) -> None:
    with pytest.raises(DataError) as caught:
        read_kernel_names(names_file(tmp_path, *rows, header=header))
    assert caught.value.context.get("file") == "kernel_names.csv"
    assert caught.value.context.get("row") == row
    assert caught.value.context.get("column") == column


def test_a_kernel_nobody_listed_is_named_by_rule() -> None:
    rules = NamingRules(
        {
            ("K20", "BFS", "BFSv1_4096"): KernelName("bfs/kernel1", "bfs/kernel1", "bfs"),
            ("K20", "Breadth First", "Two"): KernelName("bfs/kernel2", "bfs/kernel2", "bfs"),
            ("K20", "basic", "a"): KernelName("div/a", "div/a", "div"),
            ("K20", "basic", "b"): KernelName("vecadd/b", "vecadd/b", "vecadd"),
        }
    )
    # Another size of a kernel that has a name; a new kernel of a benchmark that has a family.
    assert rules.name("bfs", "BFSv1_65536") == KernelName("bfs/kernel1", "bfs/kernel1", "bfs")
    assert rules.name("breadth-first", "Three") == KernelName("bfs/three", "bfs/*", "bfs")
    assert rules.name("BFS", "four").group == rules.name("BFS", "three").group
    # A benchmark that stands for two families tells none.
    assert rules.name("basic", "c") == KernelName("basic/c", "basic/*", "basic")


@needs_data
def test_the_rule_finds_most_families_without_their_own_spelling() -> None:
    names = read_kernel_names()
    found = 0
    for (_, benchmark, kernel), name in names.items():
        others = {key: each for key, each in names.items() if key[1:] != (benchmark, kernel)}
        found += NamingRules(others).name(benchmark, kernel).family == name.family
    assert found / len(names) >= 0.85


@needs_data
@pytest.mark.parametrize("name", ["K20", "M60", "V100", *SM_COUNT])
def test_cleaned_tables_hold_what_cleaning_gives(name: str) -> None:
    """Somebody else cleaned the published rows, too."""
    frame = pd.read_csv(data_root() / "power" / "clean" / f"{name}.csv")
    ours = clean(name).frame
    np.testing.assert_array_equal(frame["power_w"], ours["power_w"])
    for column in MODEL_INPUTS:
        np.testing.assert_array_equal(frame[column], ours[column], err_msg=column)
    assert frame["flag"].fillna("").tolist() == ours["flag"].tolist()


@needs_data
def test_pooled_rows_keep_sources_and_kernels_apart() -> None:
    sources = ("K20", "M60", "PQ_Ada24")
    pooled = power_rows(sources)
    assert pooled.gpus is not None
    assert pooled.kernels is not None
    assert pooled.families is not None
    assert set(pooled.gpus.tolist()) == set(sources)
    assert pooled.vectors.shape == (len(pooled), len(MODEL_INPUTS))
    for source in sources:
        own = clean(source).training_rows
        of_source = np.flatnonzero(pooled.gpus == source)
        np.testing.assert_array_equal(pooled.watts[of_source], own["power_w"])
        assert len(np.unique(pooled.kernels[of_source])) == own["kernel_id"].nunique()
    # A kernel that two GPUs ran is one kernel; every group lies within one family.
    k20, m60 = (set(pooled.kernels[pooled.gpus == gpu].tolist()) for gpu in ("K20", "M60"))
    assert k20 & m60
    pairs = set(zip(pooled.groups.tolist(), pooled.families.tolist(), strict=True))
    assert len(pairs) == len(np.unique(pooled.groups))
