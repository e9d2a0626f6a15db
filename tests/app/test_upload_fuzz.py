"""Uploads that nobody foresaw: accepted or refused with a reason, never a fault, never a trace."""

from __future__ import annotations

import contextlib
import gzip
import io
import sqlite3
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic_core import to_json

from tests.app.conftest import settings_at
from tests.app.live import running
from tests.app.test_cuda_hostile import ABSENT, HERE, SECRET, stored, unnamed
from wattcast.app.services import Services
from wattcast.app.services.archives import Limits
from wattcast.app.services.measurements.tables import unpacked
from wattcast.app.services.measurements.upload import UploadOptions, read_upload, store_upload
from wattcast.app.store.measurements import NewBatch
from wattcast.features.errors import DataError, ServiceError, WattcastError
from wattcast.features.schemas import get_schema

SCHEMA = "alavani2023"
FIELDS = get_schema(SCHEMA).model_fields
FEW = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
LIMIT = 256 * 1024


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    opened = Services.open(
        settings_at(
            tmp_path_factory.mktemp("home"),
            max_unpacked_bytes=LIMIT,
            max_upload_rows=200,
            max_upload_files=10,
            max_ptx_bytes=20_000,
        )
    )
    yield opened
    opened.close()


def tried(services: Services, content: bytes, schema: str | None = SCHEMA) -> NewBatch | None:
    """The batch of an upload, or ``None`` if it is refused as a user's mistake."""
    try:
        new = read_upload(services, io.BytesIO(content), UploadOptions(schema=schema))
    except WattcastError as error:
        to_json({"detail": error.detail, **error.context})
        return None
    assert new.rows
    # Whatever was accepted, the database takes.
    stored, _ = store_upload(services, io.BytesIO(content), UploadOptions(schema=schema), "test")
    assert stored.accepted == len(new.rows)
    assert services.data is not None
    read = [row for _, row in services.data.measurements.rows([stored.id])]
    assert [row.row for row in read] == [row.row for row in new.rows]
    return new


cells = st.one_of(
    st.text(max_size=12),
    st.integers(-(10**25), 10**25).map(str),
    st.floats().map(str),
    st.sampled_from(["", "tesla-v100", "64x8", "[1]", "{}", "1e400", "-0", "1_000", "٣", "true"]),
)
names = st.one_of(
    st.sampled_from(["gpu", "kernel", "power_watts", "time_seconds", "board", "grid", "block"]),
    st.sampled_from(FIELDS),
    st.text(max_size=8),
)


@FEW
@given(st.lists(names, max_size=8), st.lists(st.lists(cells, max_size=8), max_size=5))
@example(["gpu", "kernel"], [['"', "\r"], ["\0", "\ud7ff"]])
def test_csv(services: Services, header: list[str], rows: list[list[str]]) -> None:
    text = "\n".join(",".join(cell for cell in row) for row in (header, *rows))
    tried(services, text.encode("utf-8", "surrogatepass"))


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(10**25), 10**25), st.floats(), cells),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)
good_row = st.fixed_dictionaries(
    {"gpu": st.just("v100"), "kernel": st.just("k"), "power_watts": st.just(100.0)}
    | {name: st.floats(0, 1e6) for name in FIELDS}
)


@FEW
@given(good_row, st.dictionaries(names, values, max_size=3))
def test_json_rows_with_some_cells_replaced(
    services: Services, row: dict[str, object], change: dict[str, object]
) -> None:
    lines = [to_json(one, inf_nan_mode="constants") for one in (row, {**row, **change})]
    new = tried(services, b"\n".join(lines))
    assert new is not None
    assert new.rows[0].vectors[SCHEMA]
    assert new.rejected + len(new.rows) == 2
    assert bool(new.rejected) == bool(new.rejections)


@FEW
@given(
    change=st.dictionaries(
        st.sampled_from(
            ["grid", "block", "arguments", "loops", "kernel", "registers_per_thread", "core_mhz"]
        ),
        values,
        max_size=3,
    )
)
def test_launches_with_some_cells_replaced(
    services: Services, vector_add: str, change: dict[str, object]
) -> None:
    row = {"ptx": "a.ptx", "gpu": "k20", "grid": 4, "block": 32, "time_seconds": 1e-5}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        lines = [to_json(one, inf_nan_mode="constants") for one in (row, {**row, **change})]
        archive.writestr("m.jsonl", b"\n".join(lines))
        archive.writestr("a.ptx", vector_add)
    new = tried(services, out.getvalue(), schema=None)
    assert new is not None
    assert new.rejected + len(new.rows) == 2


@FEW
@given(
    st.lists(st.text("./\\:ab\n", min_size=1, max_size=8), max_size=4),
    st.binary(max_size=50),
    st.integers(0, 400_000),
)
def test_members_leave_no_trace_and_stay_within_the_limit(
    tmp_path_factory: pytest.TempPathFactory, members: list[str], content: bytes, zeros: int
) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in dict.fromkeys(members):
            archive.writestr(f"{name}.ptx", content)
        archive.writestr("t.csv", b"\0" * zeros)
    folder = tmp_path_factory.mktemp("empty")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        with contextlib.suppress(DataError):
            refused = zeros + len(content) * len(set(members)) > LIMIT
            expected = pytest.raises(ServiceError) if refused else contextlib.nullcontext()
            limits = Limits(LIMIT, files=10, ptx_bytes=100)
            with expected, unpacked(io.BytesIO(out.getvalue()), limits) as found:
                assert len(found.table.read()) == zeros
                assert set(found.ptx.values()) <= {content.decode("utf-8", "replace")}
    assert list(folder.iterdir()) == []


def parquet(columns: dict[str, list[object]]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out)
    return out.getvalue()


WHOLE = parquet(
    {
        "gpu": ["v100"] * 3,
        "kernel": ["k"] * 3,
        "power_watts": [1.0, 2.0, float("nan")],
        **{name: [1.0, 2.0, 3.0] for name in FIELDS},
    }
)


# Each example starts a process.
@settings(FEW, max_examples=5)
@given(
    st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=8)), max_size=3),
    st.floats(0.5, 1),
)
@example([], 1.0)
def test_parquet_with_some_bytes_replaced(
    services: Services, changes: list[tuple[float, bytes]], length: float
) -> None:
    content = bytearray(WHOLE)
    for at, new in changes:
        start = 4 + int(at * (len(content) - 8))
        content[start : start + len(new)] = new
    new_batch = tried(services, bytes(content[: int(length * len(content))]))
    if not changes and length == 1:
        assert new_batch is not None
        assert (len(new_batch.rows), new_batch.rejected) == (2, 1)


def test_parquet_of_odd_types_is_no_fault(services: Services, tmp_path: Path) -> None:
    odd: dict[str, list[object]] = {
        "gpu": [b"\xff", b"v100"],
        "kernel": [{"a": 1}, {"a": 2}],
        "power_watts": [[1.0], [2.0]],
        "board": [None, None],
    }
    assert tried(services, parquet(odd)) is None


# --- uploads that reach for a file of the machine ---------------------------------------------

ROW = '{{"gpu": "v100", "ptx": "{ptx}", "grid": 4, "block": 32, "time_seconds": 1e-5}}\n'
TABLE = parquet({"gpu": ["v100"], "kernel": [SECRET], **{name: [1.0] for name in FIELDS}})


def linked(links: dict[str, str], files: dict[str, str]) -> bytes:
    """A zip with symbolic links as Unix packs them: the content is where they lead."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, target in links.items():
            entry = zipfile.ZipInfo(name)
            entry.create_system, entry.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
            archive.writestr(entry, target)
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def elsewhere(path: Path) -> bytes:
    """Parquet without rows of its own: its metadata name another file that holds them."""
    found = pq.ParquetFile(io.BytesIO(TABLE)).metadata
    found.set_file_path(str(path))
    out = io.BytesIO()
    found.write_metadata_file(out)
    return out.getvalue()


def reaching(path: Path, ptx: str) -> dict[str, tuple[str, bytes, dict[str, str]]]:
    """Uploads that name a file: what the file is called, its content, other fields."""
    near = "../" * 30 + str(path).lstrip("/")
    row, vectors = ROW.format(ptx="a.ptx"), {"schema": SCHEMA}
    plain = ("rows.jsonl", b"", {})
    named = {
        "a table that is a link": linked({"m.jsonl": str(path)}, {"a.ptx": ptx}),
        "a Parquet that is a link": linked({"m.parquet": near}, {"a.ptx": ptx}),
        "PTX that is a link": linked({"a.ptx": str(path)}, {"m.jsonl": row}),
        "a folder that is a link": linked(
            {"d": str(path.parent)}, {"m.jsonl": ROW.format(ptx=f"d/{path.name}"), "a.ptx": ptx}
        ),
        "a link that is called a folder": linked({"d/": str(path.parent)}, {"m.jsonl": row}),
        "PTX that includes": linked({}, {"m.jsonl": row, "a.ptx": f'{ptx}\n.include "{path}"\n'}),
        "PTX of debug information": linked(
            {}, {"m.jsonl": row, "a.ptx": f'{ptx}\n.file 1 "{path}"\n'}
        ),
    }
    named |= {
        f"a row that names {name}": linked({}, {"m.jsonl": ROW.format(ptx=name), "a.ptx": ptx})
        for name in (str(path), near, f"file://{path}", f"/proc/self/root{path}")
    }
    found = {name: (plain[0], content, plain[2]) for name, content in named.items()}
    found["a file called a path"] = (str(path), b"gpu\n", vectors)
    found["a file called a near path"] = (near, b"gpu\n", vectors)
    found["a file called nothing"] = ("", b"gpu\n", vectors)
    found["Parquet elsewhere"] = ("m.parquet", elsewhere(path), vectors)
    found["Parquet beside"] = ("m.parquet", elsewhere(Path(near)), vectors)
    packed = io.BytesIO()
    with gzip.GzipFile(str(path), "wb", fileobj=packed) as file:
        file.write(b"gpu\n")
    found["a file packed as a path"] = ("m.gz", packed.getvalue(), vectors)
    found["a GPU"] = ("m.csv", b"gpu,kernel\n", {**vectors, "gpu": str(path)[-64:]})
    found["a schema"] = ("m.csv", b"gpu,kernel\n", {"schema": str(path)[-64:]})
    return found


def test_no_upload_reaches_a_file_of_the_machine(
    tmp_path: Path, vector_add: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each is sent twice, about a file that exists and one that does not: the answers are the
    same but for the name, and what the file says is in none, nor in the log, nor stored."""
    (tmp_path / HERE).write_bytes(TABLE)
    home = tmp_path / "home"
    settings = settings_at(
        home, ptxas="auto", log_level="debug", access_log=True, requests_per_second=0
    )
    answers: dict[str, list[str]] = {}
    accepted = 0
    with running(settings) as client:
        for name in (HERE, ABSENT):
            path = tmp_path / name
            for what, (called, content, form) in reaching(path, vector_add).items():
                sent: dict[str, Any] = {"files": {"file": (called, content)}, "data": form}
                for to in ("/measurements/check", "/measurements"):
                    answer = client.post(to, **sent)
                    assert answer.status_code < 500, answer.text
                    accepted += answer.status_code == 201
                    answers.setdefault(what.replace(name, "file") + to, []).append(
                        unnamed(answer.text, path)
                    )
    for what, (here, absent) in answers.items():
        assert here == absent, what
        assert SECRET not in here, what
    printed = capfd.readouterr()
    assert "POST" in printed.out + printed.err
    assert SECRET not in printed.out + printed.err
    with sqlite3.connect(home / "wattcast.db") as database:
        rows = stored(database)
    assert accepted, "some are stored: the PTX that names a file is plain text"
    assert SECRET.encode() not in rows
    print(f"{len(answers)} answers about a file that exists and one that does not")


def test_a_link_in_an_archive_is_refused_by_name(services: Services) -> None:
    content = linked({"m.jsonl": "/etc/hostname"}, {})
    with pytest.raises(DataError, match=r"'m\.jsonl' in the zip is a symbolic link"):
        read_upload(services, io.BytesIO(content), UploadOptions())
