"""Traces of Nsight Systems and of the PyTorch profiler, as they are read."""

from __future__ import annotations

import gzip
import json
import sqlite3
import tempfile
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import wattcast
from tests.app.conftest import Run
from tests.app.test_problems import problem
from tests.generated.traces import (
    CALLED,
    V100,
    Gpu,
    Launch,
    Span,
    kineto,
    many,
    nsys,
    solver,
    training_step,
)
from wattcast.features.errors import Clock, DataError, GivenUpError, ServiceError, giving_up
from wattcast.predictor.traces import kineto as kineto_reader
from wattcast.predictor.traces import read_trace
from wattcast.predictor.traces.energy import read_energy
from wattcast.predictor.traces.trace import NONE, Trace

LAUNCHES, STEPS = training_step()
SAMPLES = Path(__file__).parents[1] / "fixtures" / "traces"


def told(trace: Trace) -> list[tuple[object, ...]]:
    """What a trace says of each launch, with times from its first one."""
    origin = int(trace.start.min())
    return [
        (
            trace.kinds[kind].name, int(start) - origin, int(end - start),
            trace.kinds[kind].grid, trace.kinds[kind].block, trace.kinds[kind].registers,
            trace.kinds[kind].static_shared_bytes + trace.kinds[kind].dynamic_shared_bytes,
            trace.devices[device].id, trace.streams[stream],
            None if operator == NONE else trace.operators[operator],
            None if step == NONE else trace.steps[step],
        )
        for kind, start, end, device, stream, operator, step in zip(
            trace.kind, trace.start, trace.end, trace.device, trace.stream, trace.operator,
            trace.step, strict=True,
        )
    ]  # fmt: skip


def truth(launches: list[Launch], steps: list[Span], rename: Callable[[Launch], str]) -> object:
    """The same from what the trace was made of."""
    ordered = sorted(launches, key=lambda one: (one.start, one.end))
    origin = ordered[0].start

    def step_of(one: Launch) -> str | None:
        called = one.start - CALLED
        return next((s.name for s in reversed(steps) if s.start <= called < s.end), None)

    shape = lambda one: (one.grid, one.block, one.registers, one.shared)  # noqa: E731
    return [
        (
            rename(one), one.start - origin, one.length,
            *(shape(one) if one.what == "kernel" else ((0, 0, 0), (0, 0, 0), 0, 0)),
            one.device, f"stream {one.stream}", one.operator, step_of(one),
        )
        for one in ordered
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
@pytest.mark.parametrize("external", [True, False])
def test_a_pytorch_trace_is_read_to_the_nanosecond(
    tmp_path: Path, name: str, external: bool
) -> None:
    path = kineto(tmp_path / name, LAUNCHES, STEPS, external=external)
    trace = read_trace(path)
    assert told(trace) == truth(LAUNCHES, STEPS, lambda one: one.name)
    assert trace.devices[0].name == V100
    assert trace.devices[0].sm_count == 80


def test_an_export_of_nsight_systems_is_read_to_the_nanosecond(tmp_path: Path) -> None:
    launches, steps = solver()
    trace = read_trace(nsys(tmp_path / "t.sqlite", launches, steps))
    assert told(trace) == truth(launches, steps, lambda one: one.name)
    assert trace.source == "Nsight Systems 2021.5.1"
    assert {kind.mangled for kind in trace.kinds} == {"", "vector_add"}


def test_both_kinds_of_file_say_the_same(tmp_path: Path) -> None:
    launches = list(many(3000))
    one = read_trace(kineto(tmp_path / "a.json", launches))
    other = read_trace(nsys(tmp_path / "b.sqlite", launches))
    assert len(one) == len(other) == 3000
    assert told(one) == told(other)


def test_a_window_of_any_size_reads_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kineto(tmp_path / "t.json", LAUNCHES, STEPS)
    whole = told(read_trace(path))
    for size in (7, 64, 1000):
        monkeypatch.setattr(kineto_reader, "CHUNK", size)
        assert told(read_trace(path)) == whole


def test_a_list_of_events_is_a_trace_too(tmp_path: Path) -> None:
    path = kineto(tmp_path / "t.json", LAUNCHES, STEPS)
    events = json.loads(path.read_text())["traceEvents"]
    (tmp_path / "list.json").write_text(json.dumps(events))
    assert len(read_trace(tmp_path / "list.json")) == len(LAUNCHES)


def test_an_external_id_that_repeats_the_correlation_links_to_no_operator(tmp_path: Path) -> None:
    path = kineto(tmp_path / "t.json", LAUNCHES, STEPS)
    document = json.loads(path.read_text(), parse_float=lambda text: f"#{text}#")
    for event in document["traceEvents"]:
        given = event.get("args", {})
        if "correlation" in given:
            given["External id"] = given["correlation"] = given["correlation"] - 4999
    # Ids of operators are now those of other launches' correlations.
    for event in document["traceEvents"]:
        if event.get("cat") == "cpu_op":
            event["args"]["External id"] = 1 + event["args"]["External id"] % len(LAUNCHES)
    path.write_text(json.dumps(document).replace('"#', "").replace('#"', ""))
    assert told(read_trace(path)) == truth(LAUNCHES, STEPS, lambda one: one.name)


def test_devices_and_processes_are_kept_apart(tmp_path: Path) -> None:
    launches = [Launch("a", 1000, 500), Launch("a", 1200, 500, device=1),
                Launch("a", 3000, 500, pid=101)]  # fmt: skip
    gpus = (Gpu(), Gpu("NVIDIA A40", 84))
    trace = read_trace(nsys(tmp_path / "t.sqlite", launches, gpus=gpus))
    assert [device.name for device in trace.devices] == [V100, "NVIDIA A40"]
    assert trace.device.tolist() == [0, 1, 0]
    # CUDA_VISIBLE_DEVICES: what a second process calls device 0 is the other board.
    with closing(sqlite3.connect(tmp_path / "t.sqlite")) as database:
        database.execute("UPDATE TARGET_INFO_CUDA_DEVICE SET gpuId = 1 WHERE pid = 101")
        database.commit()
    assert read_trace(tmp_path / "t.sqlite").device.tolist() == [0, 1, 1]


def test_launches_without_a_time_are_counted(tmp_path: Path) -> None:
    launches = [Launch("a", 1000, 500), Launch("b", 3000, -10), Launch("c", -(10**9), 0)]
    trace = read_trace(nsys(tmp_path / "t.sqlite", launches))
    assert (len(trace), trace.untimed) == (1, 2)


def _broken(path: Path, edit: Callable[[bytes], bytes]) -> Path:
    path.write_bytes(edit(path.read_bytes()))
    return path


@pytest.mark.parametrize("share", [0.02, 0.3, 0.7, 0.999])
def test_a_cut_trace_says_where(tmp_path: Path, share: float) -> None:
    cut = lambda data: data[: int(share * len(data))]  # noqa: E731
    plain = _broken(kineto(tmp_path / "t.json", LAUNCHES, STEPS), cut)
    with pytest.raises(DataError, match=r"t\.json: character [\d,]+: .*cut off"):
        read_trace(plain)
    packed = _broken(kineto(tmp_path / "t.json.gz", LAUNCHES, STEPS), cut)
    with pytest.raises(DataError, match=r"t\.json\.gz: .*cut off"):
        read_trace(packed)


def test_a_cut_export_is_told(tmp_path: Path) -> None:
    path = nsys(tmp_path / "t.sqlite", list(many(2000)))
    _broken(path, lambda data: data[: len(data) // 2])
    with pytest.raises(DataError, match=r"t\.sqlite: SQLite cannot read it: .*malformed"):
        read_trace(path)


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.json", b"", "is empty"),
        ("a.json", b'{"a": 1}', "no member traceEvents"),
        ("a.json", b'{"traceEvents": []}', "no kernel ran"),
        ("a.json", b'{"traceEvents": [{"ph": "X"} 5]}', "character 29: expected ,"),
        ("a.json", b'{"traceEvents": [{"ph": }]}', "character 17: Expecting value"),
        ("a.json", b"[" * 100_000, "not a trace|cut off"),
        ("a.txt", b"hello", "expected a SQLite export"),
        ("a.nsys-rep", b"\x00\x01\x02", "nsys export --type sqlite a.nsys-rep"),
        ("a.sqlite", b"SQLite format 3\x00" + b"\x00" * 200, "SQLite cannot read it"),
    ],
)
def test_foreign_files_are_told(tmp_path: Path, name: str, content: bytes, why: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=why):
        read_trace(tmp_path / name)


def altered(path: Path, *statements: str) -> None:
    """An export that others have worked on."""
    with closing(sqlite3.connect(path)) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()


def test_another_database_is_told(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    altered(path, "CREATE TABLE people (name TEXT)")
    with pytest.raises(DataError, match="no table CUPTI_ACTIVITY_KIND_KERNEL"):
        read_trace(path)
    altered(path, "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, streamId INT)")
    with pytest.raises(DataError, match="CUPTI_ACTIVITY_KIND_KERNEL lacks end, deviceId"):
        read_trace(path)


def test_a_view_is_not_run(tmp_path: Path) -> None:
    """A file could hold a query that never ends where a table should be."""
    path = nsys(tmp_path / "t.sqlite", [Launch("a", 0, 5)])
    altered(
        path,
        "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL",
        "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE n(start) AS "
        "(SELECT 1 UNION ALL SELECT start + 1 FROM n) SELECT start, start AS end FROM n",
    )
    with pytest.raises(DataError, match="no table"):
        read_trace(path)


def test_a_generated_column_is_not_worked_out(tmp_path: Path) -> None:
    path = nsys(tmp_path / "t.sqlite", [Launch("a", 0, 5)])
    with closing(sqlite3.connect(path)) as database:
        database.execute("ALTER TABLE StringIds RENAME TO Texts")
        database.execute(
            "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value AS (hex(zeroblob(9))))"
        )
        database.execute("INSERT INTO StringIds (id) SELECT id FROM Texts")
        database.commit()
    assert [kind.name for kind in read_trace(path).kinds] == ["unnamed kernel"]


def test_a_file_is_given_up_within_a_statement(tmp_path: Path) -> None:
    path = nsys(tmp_path / "t.sqlite", [Launch("a", 0, 5)])
    clock = Clock()
    clock.give_up()
    with giving_up(clock=clock), pytest.raises(GivenUpError):
        read_trace(path)


@pytest.mark.parametrize("time", ["1e999999999", "1e999999999999999999999", "NaN", "-1e300"])
def test_a_time_of_any_size_is_none(tmp_path: Path, time: str) -> None:
    event = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2}
    text = json.dumps({"traceEvents": [event, {**event, "ts": "TIME"}]}).replace('"TIME"', time)
    (tmp_path / "t.json").write_text(text)
    assert read_trace(tmp_path / "t.json").untimed == 1


def test_names_and_launches_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    event = {"ph": "X", "cat": "kernel", "ts": 1, "dur": 2}
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": [{**event, "name": f"k{n}" * 9} for n in range(9)]}))
    assert len(read_trace(path)) == 9
    monkeypatch.setattr("wattcast.predictor.traces.trace.MOST_LAUNCHES", 8)
    assert len(read_trace(path)) == 9  # a file of one's own
    with pytest.raises(ServiceError, match="more than 8 launches"):
        read_trace(path, most_characters=10_000)
    monkeypatch.setattr("wattcast.predictor.traces.trace.MOST_NAMES", 100)
    with pytest.raises(DataError, match="100 characters"):
        read_trace(path)


def test_a_gzip_that_unpacks_to_more_than_is_allowed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.json.gz"
    with gzip.open(path, "wb") as file:
        file.write(b'{"traceEvents": [' + b" " * 50_000_000 + b"]}")
    with pytest.raises(ServiceError, match="unpacks to more than 10,000,000") as refused:
        read_trace(path, most_characters=10_000_000)
    assert refused.value.kind == "too-large"


_ODD = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
    st.just(2**70), st.just("\ud800"), st.lists(st.integers(), max_size=4),
    st.dictionaries(
        st.sampled_from(["device", "correlation", "grid", "block", "stream", "External id",
                         "shared memory", "registers per thread"]),
        st.one_of(st.integers(), st.text(max_size=3), st.just(-(2**65)),
                  st.lists(st.integers(), max_size=4)),
        max_size=6,
    ),
)  # fmt: skip


@given(
    st.lists(
        st.fixed_dictionaries(
            {"ph": st.just("X"), "cat": st.sampled_from(["kernel", "cpu_op", "cuda_runtime"])},
            optional=dict.fromkeys(("name", "ts", "dur", "args", "pid", "tid"), _ODD),
        ),
        max_size=5,
    )
)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_odd_events_are_left_out_or_told(events: list[dict[str, object]]) -> None:
    good = {"ph": "X", "cat": "kernel", "name": "k", "ts": 5, "dur": 3, "args": {"device": 0}}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.json"
        path.write_text(json.dumps({"traceEvents": [good, *events]}))
        trace = read_trace(path)
    kernels = 1 + sum(event["cat"] == "kernel" for event in events)
    assert len(trace) + trace.untimed == kernels
    assert all(name.encode() is not None for name in (*trace.streams, *trace.operators))
    assert (trace.end >= trace.start).all()


def test_progress_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto_reader, "EVERY", 10)
    seen: list[tuple[str, int]] = []
    path = kineto(tmp_path / "t.json", LAUNCHES)
    read_trace(path, lambda what, count: seen.append((what, count)))
    counts = [count for _, count in seen]
    assert counts == sorted(counts)
    assert counts[-1] >= 3 * len(LAUNCHES)


def test_the_samples_of_the_documentation_are_what_the_generator_makes(tmp_path: Path) -> None:
    launches, steps = training_step()
    made = read_trace(kineto(tmp_path / "t.json.gz", launches, steps))
    kept = read_trace(SAMPLES / "training_step.pt.trace.json.gz")
    assert told(kept) == told(made)
    launches, steps = solver()
    made, kept = (
        read_trace(path)
        for path in (nsys(tmp_path / "t.sqlite", launches, steps), SAMPLES / "solver.sqlite")
    )
    assert told(kept) == told(made)
    assert np.array_equal(kept.start, made.start)


def _events(**args: object) -> bytes:
    event = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2, "pid": 0, "tid": 7,
             "args": args}  # fmt: skip
    return json.dumps({"traceEvents": [event]}).encode()


@pytest.mark.parametrize("value", ["1e300", 1e300, "inf", "nan", 10**30, "9" * 400, True, [], {}])
@pytest.mark.parametrize("name", ["correlation", "External id", "device", "grid", "shared memory"])
def test_numbers_beyond_what_columns_hold_are_none(
    tmp_path: Path, name: str, value: object
) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(_events(**{name: [value] * 3 if name == "grid" else value}))
    (kind,) = read_trace(path).kinds
    assert kind.grid == (0, 0, 0)
    assert kind.dynamic_shared_bytes == 0


@pytest.mark.parametrize(
    "bomb",
    [
        b'{"traceEvents": [{"ph": "X", "args": "' + b"x" * (9 << 20) + b'"}]}',
        b'{"traceEvents": [{"ph": "X", "args": [' + b"[]," * (3 << 20) + b"1]}]}",
        b'{"traceEvents": [{"ph": "X", "args": ' + b'{"a":' * (2 << 20),
        b'{"other": "' + b"\\u0041" * (2 << 20) + b'"}',
        b'{"traceEvents": [' + b"9" * (9 << 20) + b"]}",
    ],
    ids=["text", "lists", "deep", "member", "digits"],
)
def test_a_value_that_is_no_event_is_not_held(tmp_path: Path, bomb: bytes) -> None:
    """64 MB of one value took 1.85 GB."""
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(bomb, 1))
    tracemalloc.start()
    with pytest.raises(DataError, match=r"longer than|not a trace"):
        read_trace(path)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 250e6


DMON = """\
#Entity   POWER                         TOTEC
ID        W                             mJ
GPU 0     71.250                        1000
GPU 7     80.000                        5000
#Entity   POWER                         TOTEC
ID        W                             mJ
GPU 0     N/A                           76000
GPU 7     80.000                        95000
"""
CSV = "Time,gpu,DCGM_FI_DEV_POWER_USAGE\n{},0,100\n{},0,200\n{},0,100\n"
SACCT = "JobID|ElapsedRaw|ConsumedEnergyRaw\n12|30|{}\n12.batch|30|9000\n12.0|29|8000\n"
DATES = [f"2026-01-01T00:00:0{at}+00:00" for at in (0, 2, 4)]


@pytest.mark.parametrize(
    ("text", "joules", "watts", "seconds"),
    [
        (DMON, 75 + 90, None, None),
        (DMON.replace("TOTEC", "GPUTL"), None, 71.25 + 80, None),  # no counter: mean power
        (CSV.format(*DATES), 600, None, 4),
        (CSV.format(10, 12, 14), 600, None, 4),
        (CSV.format(*(1767225600000 + each for each in (0, 2000, 4000))), 600, None, 4),
        (CSV.format("", "", ""), None, 400 / 3, None),
        (SACCT.format(9500), 9500, None, 30),
        (SACCT.format(""), 9000, None, 30),  # of its steps the one of the most
        (SACCT.format(2**64 - 2), 9000, None, 30),
    ],
)
def test_logs_of_energy(
    text: str, joules: float | None, watts: float | None, seconds: float | None
) -> None:
    log = read_energy(text)
    assert log.joules == pytest.approx(joules)
    assert log.watts == pytest.approx(watts)
    assert log.seconds == seconds
    assert read_energy(DMON, [0]).joules == 75
    assert read_energy(DMON, [3]).joules == 165


@pytest.mark.parametrize(
    ("text", "says"),
    [
        *((text, "no energy in the log") for text in ("", "x", "#", "GPU 0 1", "time,gpu\n1,0\n")),
        ("JobID|ConsumedEnergyRaw\n1|5\n2|5\n", "the log holds 2 jobs"),
        ("JobID|ConsumedEnergyRaw\n", "the log holds 0 jobs"),
        (f"JobID|ConsumedEnergyRaw\n1|{2**32 - 2}\n", "tells no ConsumedEnergyRaw"),
        ('a,b\n"c', "is not CSV"),
    ],
)
def test_what_is_no_log_of_energy(text: str, says: str) -> None:
    with pytest.raises(DataError, match=says):
        read_energy(text)


def test_measured_stands_beside_predicted(run: Run, tmp_path: Path, client: httpx.Client) -> None:
    trace = SAMPLES / "solver.sqlite"
    plain = wattcast.application(trace, gpu="v100", registry=False)
    log = tmp_path / "dmon.txt"
    for scale, inside in ((1.0, True), (9.0, False)):
        joules = plain.energy.joules * scale
        log.write_text(f"#Entity TOTEC\nID mJ\nGPU 0 0\nGPU 0 {joules * 1e3:.9f}\n")
        told = wattcast.application(trace, gpu="v100", energy=log, registry=False)
        assert told.measured is not None
        assert told.measured.ratio == pytest.approx(1 / scale)
        assert told.measured.inside is inside
        assert told.energy == plain.energy
    out, _ = run("app", str(trace), "--gpu", "v100", "--energy", str(log))
    assert "measured (dcgm): " in out
    assert "outside the interval; predicted / measured 0.111" in out
    files = {"file": trace.read_bytes(), "energy": log.read_bytes()}
    told_over_http = client.post("/applications", files=files, data={"options": '{"gpu": "v100"}'})
    assert told_over_http.json()["measured"] == told.measured.data()
    bad = {**files, "energy": b"nothing"}
    problem(
        client.post("/applications", files=bad, data={"options": '{"gpu": "v100"}'}), 422, "data"
    )
    slurm = "JobID|ElapsedRaw|ConsumedEnergyRaw\n1|100|5\n"
    log.write_text(slurm)
    out, _ = run("app", str(trace), "--gpu", "v100", "--energy", str(log))
    assert "whole nodes, not their GPUs alone; the log covers 100 s, the trace" in out
