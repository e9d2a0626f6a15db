"""Schemas: the golden clock example, definitions, missing values, errors and properties."""

from __future__ import annotations

from math import isnan
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.papers.thesis.features import TABLE_5_4 as THESIS_TABLE
from tests.fixtures.tables import rows
from wattcast.features.errors import DataError, SchemaError
from wattcast.features.launch import Launch
from wattcast.features.ptx.reader import read_module
from wattcast.features.schemas import (
    FeatureVector,
    KernelFacts,
    formulas,
    get_schema,
    list_schemas,
    published_schemas,
)
from wattcast.features.schemas.counting import PtxCounts, count
from wattcast.features.schemas.tables import parse_definition, read_definition
from wattcast.training.data.cleaning import MODEL_INPUTS

FIXTURES = Path(__file__).parents[1] / "fixtures" / "ptx"

TABLE_5_4 = set(THESIS_TABLE) | {"sm_active", "n_warps"}
"""The study leaves out what the files fill with copies."""


def read_counts(path: str, kernel: str | None = None) -> PtxCounts:
    return count(read_module((FIXTURES / path).read_text()).kernel(kernel).body)


CLOCK = read_counts("clock.ptx")


def vector(
    schema_id: str,
    gpu_id: str,
    grid: int = 64,
    block: int = 256,
    counts: PtxCounts = CLOCK,
    n_loop: float = 0.0,
) -> FeatureVector:
    facts = KernelFacts(
        counts=counts,
        launch=Launch.of(grid, block),
        gpu_id=gpu_id,
        occupancy=0.5,
        registers_per_thread=18,
        shared_bytes_per_block=2048,
        n_loop=n_loop,
    )
    return get_schema(schema_id).vector(facts)


def test_clock_in_the_thesis_schema_by_hand() -> None:
    values = vector("alavani2023", "tesla-k20").values
    load = 0.004780 * 16384 + 251.7
    assert values["avg_glob_lat"] == pytest.approx(load)  # stores are charged as loads
    assert values["misc_inst_sm"] == 3 * 37 + 8 + 3 * 7 + 2 * 1 + 5
    assert values["inst_issue_cycles"] == 16384 * 192 / 65536
    assert values["cache_penalty"] == pytest.approx(16384 * 5 * load / (2 * 1310720 / 4))
    assert (values["waves"], values["n_warps"], values["sm_active"]) == (5, 2, 256)


@pytest.mark.parametrize(
    ("kernel", "total", "k20", "m60"),
    [
        ("nearest", 85, 33.0526, None),
        ("saxpy", 53, 12.6364, 642 / 11),
        ("vecAdd3", 74, 14.5, None),
        ("bfsFront", 73, 16.8667, None),
    ],
)
def test_compiled_kernels_have_their_published_averages(
    kernel: str, total: float, k20: float, m60: float | None
) -> None:
    counts = read_counts("schemas/published.ptx", kernel)
    values = vector("alavani2023", "tesla-k20", counts=counts).values
    parts = [values[f"{part}_inst_sm"] for part in ("comp", "glob", "shar", "misc")]
    assert sum(parts) == total
    assert values["avg_comp_lat"] == pytest.approx(k20, abs=5e-5)
    if m60 is not None:
        values = vector("alavani2023", "tesla-m60", counts=counts).values
        assert values["avg_comp_lat"] == pytest.approx(m60)


def test_the_thesis_schema_lists_table_5_4_and_its_bold_rows() -> None:
    schema = get_schema("alavani2023")
    assert {field.name for field in schema.fields} == TABLE_5_4
    assert list(schema.model_fields) == list(MODEL_INPUTS)
    inputs = vector("alavani2023", "tesla-k20").model_inputs()
    assert inputs.dtype == np.float32
    assert inputs.shape == (15,)
    assert inputs[MODEL_INPUTS.index("block_size")] == 256


def test_the_recomputed_schema_counts_issue_cycles_from_the_text() -> None:
    # 16384 * 1 * (37 + 5 + 5) / 16384, where the worked example has 48
    assert vector("powerquant2026r", "tesla-k80").values["inst_issue_cycles"] == 47
    tiny = vector("powerquant2026r", "tesla-k80", grid=1, block=32)
    assert tiny.values["inst_issue_cycles"] == 1


def test_columns_that_the_files_leave_blank_are_missing() -> None:
    def missing(gpu_id: str) -> set[str]:
        values = vector("alavani2023", gpu_id).values
        return {name for name, value in values.items() if isnan(value)}

    assert missing("tesla-k20") == set()
    assert missing("tesla-m60") == {"sm_active", "n_warps", "waves"}
    blank = {"sm_active", "n_warps", "waves", "glb_penalty", "sh_penalty"}
    assert missing("tesla-v100") == blank


def test_a_kernel_without_shared_loads_has_zero_or_no_shared_latency() -> None:
    counts = read_counts("schemas/published.ptx", "saxpy")
    assert vector("alavani2023", "tesla-k20", counts=counts).values["avg_shar_lat"] == 0
    assert isnan(vector("powerquant2026", "tesla-k80", counts=counts).values["avg_shar_lat"])
    assert vector("powerquant2026r", "tesla-k80", counts=counts).values["avg_shar_lat"] == 0


def test_an_empty_kernel_has_zero_counts_and_finite_features() -> None:
    text = ".version 7.0\n.target sm_70\n.visible .entry k_()\n{\n    ret;\n}\n"
    counts = count(read_module(text).kernel().body)
    values = vector("alavani2023", "tesla-k20", counts=counts).values
    assert values["comp_inst_kernel"] == values["avg_comp_lat"] == values["avg_glob_lat"] == 0
    assert values["cache_penalty"] == values["glb_penalty"] == values["sh_penalty"] == 0
    assert values["misc_inst_sm"] == 2


@pytest.mark.parametrize("gpu_id", ["quadro-k4200", "gtx-1050"])
def test_a_gpu_without_data_is_refused_with_the_covered_ones(gpu_id: str) -> None:
    for schema in published_schemas().values():
        with pytest.raises(SchemaError, match=f"{schema.id}.*{gpu_id}.*covers: ") as caught:
            vector(schema.id, gpu_id)
        assert caught.value.context["known"] == list(schema.gpus)


def test_an_unknown_schema_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SchemaError, match=r"alavani2022.*known: alavani2023"):
        get_schema("alavani2022")


def test_every_field_and_every_constant_names_its_source() -> None:
    for schema in published_schemas().values():
        for field in schema.fields:
            assert field.unit
            assert field.description
            assert field.source
        for gpu_id in schema.gpus:
            sources = schema.table(gpu_id).sources
            assert all(sources.values())
            assert {"sm_count", "l2_bytes", "issue_divisor", "div", "global_load"} <= set(sources)


def test_the_hash_follows_the_definition_but_not_its_comments() -> None:
    text = Path(formulas.__file__).with_name("alavani2023.toml").read_text(encoding="utf-8")
    same = parse_definition("# another comment\n" + text)
    assert same.sha256 == read_definition("alavani2023").sha256
    other = parse_definition(text.replace("value = 418", "value = 419"))
    assert other.sha256 != same.sha256
    assert len({schema.sha256 for schema in list_schemas()}) == 4


@pytest.mark.parametrize(
    ("old", "new", "key"),
    rows("mistakes", "schema"),
)
def test_a_broken_schema_file_is_named_by_key(old: str, new: str, key: str) -> None:
    text = Path(formulas.__file__).with_name("alavani2023.toml").read_text(encoding="utf-8")
    assert old in text
    with pytest.raises(DataError, match=r"alavani2023\.toml: ") as caught:
        parse_definition(text.replace(old, new, 1))
    assert caught.value.context["key"] == key


THREADS = st.integers(min_value=1, max_value=2**31)


@pytest.mark.parametrize(
    ("blocks", "threads", "waves"),
    [(1, 1, 1), (13, 1024, 1), (26, 1024, 1), (39, 1024, 2), (78, 1024, 3), (51, 1024, 2)],
)
def test_simulated_waves_round_blocks_down_and_waves_up(
    blocks: int, threads: int, waves: int
) -> None:
    # (78, 1024) is the thesis' own example in section 5.4.5.1
    assert formulas.simulated_waves(blocks, threads, 13) == waves


@given(THREADS, st.integers(0, 10**6), st.sampled_from([65536.0, 16384.0, 764411904.0]))
def test_issue_cycles_never_fall_with_threads(threads: int, total: int, divisor: float) -> None:
    pair = [threads, threads + 1]
    for rule in (formulas.issue_cycles_thesis, formulas.issue_cycles_powerquant):
        low, high = rule(pair, total, divisor)
        assert high >= low


@given(
    st.sampled_from([(s.id, gpu) for s in published_schemas().values() for gpu in s.gpus]),
    st.integers(1, 10**6),
    st.integers(1, 1024),
    st.floats(0, 1e6),
)
def test_model_inputs_are_finite_for_any_launch(
    where: tuple[str, str], grid: int, block: int, n_loop: float
) -> None:
    found = vector(*where, grid=grid, block=block, n_loop=n_loop)
    assert np.isfinite(found.model_inputs()).all()
    assert found.values["total_threads"] == grid * block
    assert (found.model_inputs() >= 0).all()
