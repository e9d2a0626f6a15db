"""The language of formulas and restrictions: what Python would say, in bounded work and memory."""

from __future__ import annotations

import json
import math
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.app.test_problems import problem
from wattcast.features.errors import DataError, GivenUpError, giving_up
from wattcast.predictor import expressions
from wattcast.predictor.tuning_files import Space, read_tuning

NAMES = ("a", "b", "c")
TABLE = {"a": [1, 2, 4, 7], "b": [0, -3, 5], "c": [0.5, 2, 1e6]}
ROWS = [dict(zip(TABLE, row, strict=True)) for row in product(*TABLE.values())]
COLUMNS = {name: expressions.column([row[name] for row in ROWS]) for name in TABLE}

leaves = st.sampled_from([*NAMES, "0", "1", "2", "3.5", "10", "True"])


def _larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    two = st.tuples(
        inner,
        st.sampled_from(
            ["+", "-", "*", "/", "//", "%", "==", "!=", "<", "<=", ">", ">=", "and", "or"]
        ),
        inner,
    )
    calls = st.tuples(st.sampled_from(["min", "max"]), st.lists(inner, min_size=2, max_size=3))
    one = st.tuples(st.sampled_from(["-", "not ", "abs", "ceil", "round"]), inner)
    listed = st.tuples(inner, st.sampled_from(["in", "not in"]), st.lists(inner, max_size=3))
    return (
        two.map(lambda p: f"({p[0]} {p[1]} {p[2]})")
        | calls.map(lambda p: f"{p[0]}({', '.join(p[1])})")
        | one.map(lambda p: f"({p[0]}({p[1]}))")
        | listed.map(lambda p: f"({p[0]} {p[1]} [{', '.join(p[2])}])")
    )


def _by_python(text: str, row: dict[str, Any]) -> Any:
    """What Python says, with ``and`` and ``or`` that come to true or false."""
    scope = {"__builtins__": {}, "min": min, "max": max, "abs": abs, "ceil": math.ceil}
    try:
        return bool(eval(text, {**scope, "round": round}, row))
    except ZeroDivisionError:
        return None


@settings(max_examples=300)
@given(st.recursive(leaves, _larger, max_leaves=8))
def test_columns_rows_and_python_agree(text: str) -> None:
    read = expressions.read(text)
    expected = [_by_python(f"({text})", row) for row in ROWS]
    found: list[bool | None] = []
    for place in range(len(ROWS)):
        alone = {name: column[[place]] for name, column in COLUMNS.items()}
        try:
            found += read.holds(alone, 1).tolist()
        except ZeroDivisionError:
            found.append(None)
        except ArithmeticError:
            return  # beyond 2^53: nothing is told
    # ``(a and b) + 1`` is a sum of truths here, of values in Python.
    if not any(word in text for word in (" and ", " or ")):
        assert found == expected
    if None not in found:
        assert read.holds(COLUMNS, len(ROWS)).tolist() == found


def test_what_is_not_asked_is_not_divided() -> None:
    read = expressions.read("b != 0 and a % b == 1 or 1 < 0 < a / 0")
    held = read.holds(COLUMNS, len(ROWS)).tolist()
    assert held == [bool(row["b"] and row["a"] % row["b"] == 1) for row in ROWS]


REFUSED = [
    "round(a, -1000000000)", "round(a, 2)", "-" * 1_999 + "1", "-" * 7_000 + "1",
    "not " * 480 + "a", "[" * 90 + "]" * 90 + " == 1",
    "a" + "+1" * 900, "*".join(["9" * 15] * 30), "9" * 1_900 + " == a", "1e308 * 10 == a",
    "1e400 == a", "a ** a", "2 ** 2 ** 2 ** 99", "a << 99999", "a.b", "a[0]", "f(a)",
    "a if a else 0", "lambda: a", "__import__('os').system('true')", "a >",
    "[x for x in a]", "f'{a:>9999999}' == 'x'", "'%99999999d' % a == 'x'",
    "'a' * 99999999 == 'b'", "'ab' in 'abc'", "a in a", "min()", "min(a=1)", "ceil(*a)", "a := 1",
    "a @ a", "~a", "b'x' == a", "1j == a", "... == a", "None == a", "abs('x')", "-'x' == 'x'",
    "a < 'x'", "a is b", "", "   ", "a;b", "\x00", "a\nb", "import os", "max(a, 'x') == 1",
]  # fmt: skip


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:24])
def test_what_is_no_restriction_is_refused_at_once(text: str) -> None:
    began = time.process_time()
    with pytest.raises(DataError, match="restriction"):
        read_tuning(json.dumps({"tune_params": TABLE, "restrictions": [text]}))
    assert time.process_time() - began < 2  # far above what it takes, far below what it took


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ({}, "neither T4 results"),
        ([], "expected a JSON object"),
        ({"results": []}, "no configurations"),
        ({"results": [{}]}, "results[0]"),
        ({"results": [{"configuration": {"a": []}}]}, "neither a"),
        ({"results": [{"configuration": {"a": float("nan")}}]}, "neither a number nor a text"),
        ({"results": [{"configuration": {n: 1}} for n in "ab"]}, "other parameters than ['a']"),
        ({"cache": {}}, "does not list"),
        ({"cache": {"a": {}}, "tune_params_keys": ["x"]}, "lacks one of x"),
        ({"tune_params": {}}, "no tunable parameters"),
        ({"tune_params": {"a": []}}, "needs a list"),
        ({"tune_params": {"a": 3}}, "needs a list"),
        ({"tune_params": {"a": [1]}, "restrictions": ["a / 0"]}, "division by zero"),
        ({"tune_params": {"a": [1]}, "restrictions": ["a > 2"]}, "no configurations"),
        ({"tune_params": {"a": [1]}, "restrictions": ["1" + "+1" * 900]}, "nested too deeply"),
        ({"tune_params": {"a": [1]}, "restrictions": ["'a' * 10000000000 == 'b'"]}, "numbers are"),
        ({"ConfigurationSpace": {"TuningParameters": [{"Name": "a"}]}}, "expected Tuning"),
        ({"tune_params": {f"p{n}": [0, 1] for n in range(20)}}, "more than 1,000,000"),
        ({"tune_params": {f"p{n}": [0, 1] for n in range(63)}}, "2^63"),
        ({"tune_params": {f"p{n}": [0] for n in range(2_019)}}, "2,019 tunable parameters"),
        ({"tune_params": {"a" * 201: [0]}}, "a name has 1 to 200 characters"),
        ({"tune_params": {"a": ["x" * 201]}}, "at most 200 characters"),
        ({"tune_params": {"a": [*range(50_001)]}}, "more than 50,000 values"),
        ({"tune_params": {"a": [10**400]}}, "neither a number"),
        ({"tune_params": {"a": [1, "x"]}, "restrictions": ["a == 1"]}, "are mixed"),
        ({"tune_params": {"a": [1]}, "restrictions": ["a == 1"] * 257}, "257 restrictions"),
        ({"tune_params": {"a": [1]}, "restrictions": [5]}, "a list of expressions"),
        ({"tune_params": [1]}, "neither T4"),
        ({"tune_params_keys": 5, "cache": {}}, "does not list"),
        ({"tune_params_keys": [5], "cache": {}}, "does not list"),
        ({"tune_params_keys": {"a": 1}, "cache": {"1": 5}}, "lacks one of a"),
        ({"tune_params": 5, "cache": {"1": {}}}, "does not list"),
        ({"tune_params_keys": ["a"], "cache": {"1": {"a": [1]}}}, "neither a number"),
        ({"tune_params_keys": ["a"], "cache": {"1": {"a": 1, "time": 10**400}}}, None),
        ({"results": [5]}, "results[0]"),
        ({"results": [{"configuration": {"a": 1}, "measurements": 5}]}, None),
        ({"results": [{"configuration": {"a": 1}, "measurements": [{"name": []}]}]}, None),
        ({"ConfigurationSpace": 5}, "expected"),
        ({"ConfigurationSpace": {"TuningParameters": 5}}, "expected"),
        ({"ConfigurationSpace": {"TuningParameters": [{"Name": "a", "Values": "[" * 900}]}},
         "expected"),
        ({"ConfigurationSpace": {"TuningParameters": [{"Name": "a", "Values": "1," * 99_999}]}},
         "characters of values"),
        ({"ConfigurationSpace": {"TuningParameters": [{"Name": "a", "Values": "[1]"}],
                                 "Conditions": {"Expression": "a"}}}, "expected"),
    ],
)  # fmt: skip
def test_what_is_no_space_is_refused(document: dict[str, Any], told: str | None) -> None:
    if told is None:
        assert read_tuning(json.dumps(document)).configurations[0].time_seconds is None
        return
    with pytest.raises(DataError) as refused:
        read_tuning(json.dumps(document))
    assert told in str(refused.value)


@settings(max_examples=60)
@given(
    st.dictionaries(
        st.sampled_from("abcd"), st.lists(st.integers(0, 9), min_size=1, max_size=6), min_size=1
    ),
    st.lists(
        st.sampled_from(
            [
                "a + b < 9",
                "c > a",
                "d % 2 == 0",
                "a == a",
                "b * c <= 12",
                "a in (1, 4) and not b",
                "1 < a <= 3 or a == 4 != b",
                "ceil(a / 2) == 1",
                "min(a, -b) < abs(b)",
                "a * 0.1 <= 0.1",
                "'x' not in ['x'] or a",
            ]
        )
    ),
)
def test_pruning_leaves_what_filtering_leaves(
    values: dict[str, list[int]], restrictions: list[str]
) -> None:
    rules = [each for each in restrictions if expressions.read(each).names <= values.keys()]
    every = (dict(zip(values, row, strict=True)) for row in product(*values.values()))
    expected = [row for row in every if all(eval(each, {"ceil": math.ceil}, row) for each in rules)]
    text = json.dumps({"tune_params": values, "restrictions": rules})
    if not expected:
        with pytest.raises(DataError, match="no configurations"):
            read_tuning(text)
        return
    assert [dict(one.parameters) for one in read_tuning(text).configurations] == expected


def test_a_space_is_numbers_until_it_is_looked_at() -> None:
    """2^19 configurations of 64 parameters took 5.9 GB."""
    wide = {f"p{n}": [0, 1] if n < 19 else [0] for n in range(64)}
    tracemalloc.start()
    found = read_tuning(json.dumps({"tune_params": wide})).configurations
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(found, Space)
    assert len(found) == 2**19
    assert most < 50e6
    assert list(found[2**19 - 1].parameters.values()) == [1] * 19 + [0] * 45
    assert found[3:5][1] == found[4]


def test_restrictions_prune_before_all_is_multiplied_out() -> None:
    values = {f"p{n}": [*range(10)] for n in range(18)}  # 10^18 combinations
    rules = [f"p{n} == p{n + 1}" for n in range(17)]
    found = read_tuning(json.dumps({"tune_params": values, "restrictions": rules}))
    assert [set(one.parameters.values()) for one in found.configurations] == [
        {value} for value in range(10)
    ]


def test_the_work_of_a_space_ends() -> None:
    values = {f"p{n}": [*range(10)] for n in range(18)}
    last = [f"{' + '.join(values)} == 3"]
    with pytest.raises(DataError, match="too many combinations"):
        read_tuning(json.dumps({"tune_params": values, "restrictions": last}))
    with giving_up(0), pytest.raises(GivenUpError):
        read_tuning(json.dumps({"tune_params": values, "restrictions": last}))


def test_numbers_are_exact_up_to_their_bound() -> None:
    most = 2**53 - 1
    column = {"a": expressions.column([most, most - 1, 2 - most])}
    held = expressions.read("a // 3 * 3 + a % 3 == a").holds(column, 3)
    assert held.all()
    with pytest.raises(ArithmeticError, match="too large"):
        expressions.read("a + 1 > 0").holds({"a": np.array([float(most)])}, 1)


@contextmanager
def _alive(client: httpx.Client) -> Iterator[list[float]]:
    """Seconds that ``/healthz`` takes meanwhile."""
    took: list[float] = []
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.02):
            began = time.monotonic()
            assert client.get("/healthz").status_code == 200
            took.append(time.monotonic() - began)

    thread = threading.Thread(target=look)
    thread.start()
    yield took
    done.set()
    thread.join()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"restrictions": ["round(block_size_x, -1e9) > 0"]}, "round does not take 2"),
        ({"restrictions": ["-" * 7_000 + "1"]}, "more than 2,000 characters"),
        ({"restrictions": ["*".join(["9" * 400] * 4)]}, "too large"),
        ({"tune_params": {f"p{n}": [0, 1][: 1 + (n < 19)] for n in range(64)}}, "at most 6,250"),
        ({"tune_params": None, "space": '{"tune_params_keys": 5, "cache": {}}'}, "does not list"),
    ],
    ids=["round", "signs", "digits", "wide", "cache"],
)
def test_hostile_spaces_over_http(
    client: httpx.Client, vector_add: str, changes: dict[str, Any], told: str
) -> None:
    body = {"ptx": vector_add, "gpu": "a100", "problem_size": [4096],
            "tune_params": {"block_size_x": [64, 128]}, **changes}  # fmt: skip
    given = {name: value for name, value in body.items() if value is not None}
    with _alive(client) as took:
        answer = client.post("/tunings", json=given)
    assert told in str(problem(answer, 422, "data"))
    assert all(seconds < 5 for seconds in took)
