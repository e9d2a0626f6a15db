"""Uploads over HTTP: both forms, every format, and what a stranger's file cannot do."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.app.conftest import settings_at
from tests.app.databases import KINDS, database
from tests.app.live import running
from tests.app.measured import zipped
from wattcast.app.store.database import open_database
from wattcast.app.store.tables import entries
from wattcast.features.schemas import get_schema

LIMITS = {
    "max_upload_rows": 50,
    "max_upload_files": 20,
    "max_unpacked_bytes": 4 * 1024 * 1024,
    "max_upload_bytes": 2 * 1024 * 1024,
    "max_ptx_bytes": 200_000,
}


@pytest.fixture(scope="module", params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with database(request.param, tmp_path_factory.mktemp("data")) as made:
        yield made


@pytest.fixture(scope="module")
def service(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    settings = settings_at(tmp_path_factory.mktemp("home"), database_url=url, **LIMITS)
    with running(settings) as client:
        yield client


def upload(client: httpx.Client, content: bytes, **form: str) -> httpx.Response:
    return client.post("/measurements", files={"file": ("any.bin", content)}, data=form)


def as_csv(rows: list[dict[str, Any]]) -> bytes:
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().encode()


def as_jsonl(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def as_parquet(rows: list[dict[str, Any]]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), out)
    return out.getvalue()


def launches(n: int = 3, **more: Any) -> list[dict[str, Any]]:
    return [
        {
            "ptx": "kernels/add.ptx",
            "gpu": "v100",
            "grid": 1024 * (i + 1),
            "block": 256,
            "core_mhz": 1380,
            "power_watts": 100.5 + i,
            "time_seconds": 2e-5 * (i + 1),
            "repeats": 10,
            "board": "board-1",
            **more,
        }
        for i in range(n)
    ]


def vectors(n: int = 3, **more: Any) -> list[dict[str, Any]]:
    fields = get_schema("alavani2023").model_fields
    return [
        {
            "gpu": "tesla-v100",
            "kernel": f"void kernels::copy<float, {i}>(float*)",
            "power_watts": 90.0 + i,
            **{name: float(at + i) for at, name in enumerate(fields)},
            **more,
        }
        for i in range(n)
    ]


def batch_of(answer: httpx.Response, status: int = 201) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


DMON = "#Entity TOTEC\nID mJ\nGPU {gpu} 1000\nGPU {gpu} 3001000\n"
TIMED = "timestamp,gpu,DCGM_FI_DEV_POWER_USAGE\n" + "".join(f"{t},0,120\n" for t in range(11))


def test_a_log_of_the_board_is_a_row_s_power(service: httpx.Client, vector_add: str) -> None:
    """What DCGM wrote while the launches ran; what counts more than them is rejected."""
    logs = {
        "counter.log": DMON.format(gpu=0), "times.txt": TIMED,
        "two.log": DMON.format(gpu=0) + DMON.format(gpu=1),
        "slurm.txt": "JobID|ElapsedRaw|ConsumedEnergyRaw\n7|10|1000\n", "none.txt": "hello\n",
    }  # fmt: skip
    rows = []
    asked = [*logs, "times.txt", "gone.log"]
    for log, seconds in zip(asked, (2e-5, 1e-5, 1e-5, 1e-5, 1e-5, 2e-5, 1e-5), strict=True):
        (row,) = launches(1, energy_log=log, time_seconds=seconds, repeats=10**6)
        rows.append({name: value for name, value in row.items() if name != "power_watts"})
    answer = upload(service, zipped({"m.csv": as_csv(rows), "kernels/add.ptx": vector_add, **logs}))
    batch = batch_of(answer)
    assert (batch["accepted"], batch["rejected"]) == (2, 5)
    stored = csv.DictReader(io.StringIO(service.get(f"{answer.headers['Location']}/rows").text))
    assert [float(row["power_watts"]) for row in stored] == pytest.approx([150.0, 120.0])
    told = {
        one["row"]: one["reason"] for one in batch["rejections"] if one["column"] == "energy_log"
    }
    for row, words in enumerate(
        ("2 GPUs", "whole nodes", "no energy in the log", "covers 10 s", "no file"), 3
    ):
        assert words in told[row]
    (both,) = launches(1, energy_log="times.txt", time_seconds=1e-5, repeats=10**6)
    answer = upload(
        service, zipped({"m.csv": as_csv([both]), "kernels/add.ptx": vector_add, **logs})
    )
    assert answer.status_code == 422
    assert "beside power_watts" in answer.json()["detail"]


def test_measured_launches_get_their_features(service: httpx.Client, vector_add: str) -> None:
    content = zipped({"m.csv": as_csv(launches()), "kernels/add.ptx": vector_add})
    answer = upload(service, content)
    batch = batch_of(answer)
    assert answer.headers["Location"] == f"/measurements/{batch['id']}"
    assert (batch["accepted"], batch["rejected"], batch["form"]) == (3, 0, "ptx")
    assert set(batch["schemas"]) == {
        "activity1",
        "alavani2023",
        "powerquant2026",
        "powerquant2026r",
    }
    rows = list(csv.DictReader(io.StringIO(service.get(f"{answer.headers['Location']}/rows").text)))
    assert [row["grid"] for row in rows] == ["1024", "2048", "3072"]
    assert {row["kernel_group"] for row in rows} == {"vector_add"}
    # The very features that a prediction of this launch would be served.
    for schema in ("activity1", "alavani2023"):
        asked = {
            "ptx": vector_add,
            "gpu": "tesla-v100",
            "launch": {"grid": [2048], "block": [256]},
            "schema": schema,
        }
        served = service.post("/features", json=asked).json()["features"]
        for one in served:
            stored = rows[1][f"{schema}.{one['name']}"]
            assert (float(stored) if stored else None) == one["value"], one["name"]


@pytest.mark.parametrize("make", [as_csv, as_jsonl, as_parquet])
def test_the_same_rows_are_the_same_batch_in_any_format(service: httpx.Client, make: Any) -> None:
    first = upload(service, as_csv(vectors(board="same")), schema="alavani2023")
    assert first.status_code in (200, 201)
    content = make(vectors(board="same"))
    for again in (content, gzip.compress(content), zipped({f"t.{make.__name__[3:]}": content})):
        batch = batch_of(upload(service, again, schema="alavani2023"), 200)
        assert batch == first.json()


def test_stored_ptx_is_named_by_its_hash(service: httpx.Client, looping: str) -> None:
    import hashlib

    sha256 = hashlib.sha256(looping.encode()).hexdigest()
    rows = launches(2, ptx=sha256, loops='{"default": 7}')
    refused = upload(service, as_csv(rows))
    assert refused.status_code == 422
    assert refused.json()["rejections"][0]["column"] == "ptx"
    files = {"m.jsonl": as_jsonl(launches(1, ptx="l.ptx", board="other")), "l.ptx": looping}
    batch_of(upload(service, zipped(files)))
    assert batch_of(upload(service, as_csv(rows)))["accepted"] == 2


def test_what_is_wrong_with_a_row_is_told_and_the_others_stay(
    service: httpx.Client, vector_add: str
) -> None:
    wrong = [
        ({"grid": "0"}, "grid"),
        ({"grid": "many"}, "grid"),
        ({"block": 2048}, "block"),
        ({"block": "[1,2,3,4]"}, "block"),
        ({"gpu": "no-such-gpu"}, "gpu"),
        ({"ptx": "missing.ptx"}, "ptx"),
        ({"ptx": "../../etc/passwd"}, "ptx"),
        ({"kernel": "other"}, "kernel"),
        ({"power_watts": "-5"}, "power_watts"),
        ({"power_watts": "inf"}, "power_watts"),
        ({"power_watts": 98_000}, "power_watts"),
        ({"power_watts": 1e-300}, "power_watts"),
        ({"time_seconds": 1e-30}, "time_seconds"),
        ({"time_seconds": 86_401}, "time_seconds"),
        ({"power_watts": "", "time_seconds": ""}, None),
        ({"time_seconds": "soon"}, "time_seconds"),
        ({"core_mhz": 99_000}, "core_mhz"),
        ({"repeats": 0}, "repeats"),
        ({"repeats": 1.5}, "repeats"),
        ({"arguments": "{"}, "arguments"),
        ({"arguments": '{"99": 1}'}, "arguments"),
        ({"loops": '{"default": -1}'}, "loops"),
        ({"board": "a\tb"}, "board"),
    ]
    columns = {"kernel": "", "arguments": "", "loops": ""}
    (good,) = launches(1, board="mixed", **columns)
    rows = [good, *({**good, **change} for change, _ in wrong)]
    content = zipped({"m.csv": as_csv(rows), "kernels/add.ptx": vector_add})
    batch = batch_of(upload(service, content))
    assert (batch["accepted"], batch["rejected"]) == (1, len(wrong))
    told = {one["row"]: one for one in batch["rejections"]}
    for number, (change, column) in enumerate(wrong, start=2):
        assert told[number]["column"] == column, (change, told[number])
        assert told[number]["reason"]
    # What was rejected once is accepted once it is right: the batch is another.
    again = batch_of(upload(service, content), 200)
    assert again["id"] == batch["id"]


def test_odd_values_are_taken_and_told(service: httpx.Client, vector_add: str) -> None:
    """Less than a tenth of the idle power (43.7 W of a Titan V)."""
    columns = {"kernel": "", "arguments": "", "loops": ""}
    rows = launches(2, gpu="titan-v", board="odd", **columns)
    rows[1]["power_watts"] = 0.5
    batch = batch_of(
        upload(service, zipped({"m.csv": as_csv(rows), "kernels/add.ptx": vector_add}))
    )
    assert (batch["accepted"], batch["rejected"]) == (2, 0)
    (told,) = batch["rejections"]
    assert (told["row"], told["column"]) == (2, "power_watts")
    assert told["reason"].startswith("taken, but power_watts: 0.5 W is below 4.37 W")


def test_features_must_be_those_of_the_schema(service: httpx.Client) -> None:
    good, *rest = vectors(5, board="features")
    missing, text, endless, extra = rest
    del missing["branch"]
    text["branch"] = "many"
    endless["branch"] = 1e300
    extra["brnch"] = 1
    answer = upload(service, as_jsonl([good, *rest]), schema="alavani2023")
    batch = batch_of(answer)
    assert batch["accepted"] == 1
    columns = [(one["row"], one["column"]) for one in batch["rejections"]]
    assert columns == [(2, "branch"), (3, "branch"), (4, "branch"), (5, "brnch")]
    rows = service.get(f"/measurements/{batch['id']}/rows").text
    (row,) = csv.DictReader(io.StringIO(rows))
    assert row["kernel_group"] == "copy"
    assert float(row["alavani2023.branch"]) == good["branch"]


def test_defaults_of_the_form_hold_where_a_row_says_nothing(service: httpx.Client) -> None:
    rows = vectors(2, board="")
    for row in rows:
        del row["gpu"]
    rows[1]["board"] = "own"
    answer = upload(service, as_csv(rows), schema="alavani2023", gpu="v100", board="form's")
    batch = batch_of(answer)
    text = service.get(f"/measurements/{batch['id']}/rows").text
    stored = list(csv.DictReader(io.StringIO(text)))
    assert [row["board"] for row in stored] == ["form's", "own"]
    assert {row["gpu"] for row in stored} == {"tesla-v100"}


def test_batches_are_listed_read_and_deleted(service: httpx.Client, url: str) -> None:
    ids = [
        batch_of(upload(service, as_csv(vectors(1, board=f"list-{n}")), schema="alavani2023"))["id"]
        for n in range(3)
    ]
    page = service.get("/measurements", params={"limit": 2}).json()
    assert [one["id"] for one in page] == ids[:0:-1]
    rest = service.get("/measurements", params={"limit": 1, "before": ids[1]}).json()
    assert [one["id"] for one in rest] == ids[:1]
    assert service.get("/measurements", params={"before": str(uuid4())}).json() == []
    place = f"/measurements/{ids[0]}"
    assert service.get(place).json()["id"] == ids[0]
    assert service.delete(place).status_code == 204
    for answer in (service.get(place), service.delete(place), service.get(f"{place}/rows")):
        assert answer.status_code == 404
        assert answer.json()["type"] == "/problems/unknown-batch"
    assert len(service.get(f"/measurements/{ids[1]}/rows").text.splitlines()) == 2
    engine = open_database(url)
    latest, before = entries(engine, limit=2)
    engine.dispose()
    assert (latest.action, latest.subject) == ("measurements.delete", ids[0])
    assert latest.actor == "address:127.0.0.1"
    assert latest.request_id
    assert before.action == "measurements.upload"  # what deleted nothing left no trace
    # Uploaded again, the rows are a batch anew.
    answer = upload(service, as_csv(vectors(1, board="list-0")), schema="alavani2023")
    assert batch_of(answer)["id"] != ids[0]


BOMB = b"\0" * (64 * 1024 * 1024)


@pytest.mark.parametrize(
    "content",
    [
        gzip.compress(BOMB, 9),
        zipped({"m.csv": BOMB}),
        zipped({"m.csv.gz": gzip.compress(BOMB, 9)}),
        zipped(
            {"m.csv": "gpu\n", **{f"{n}.ptx": BOMB[:199_000] for n in range(18)}, "x.ptx": BOMB}
        ),
        zipped({"m.csv": "gpu\n", **{f"{n}.ptx": "" for n in range(30)}}),
        as_csv(vectors(51)),
        as_parquet(vectors(51)),
        b"x" * (2 * 1024 * 1024),
    ],
    ids=["gzip", "zip", "gzip-in-zip", "ptx", "files", "rows", "parquet-rows", "body"],
)
def test_what_is_too_large_is_refused(service: httpx.Client, content: bytes) -> None:
    answer = upload(service, content, schema="alavani2023")
    assert answer.status_code == 413, answer.text
    assert answer.json()["type"] == "/problems/too-large"
    assert "WATTCAST_" in answer.json()["detail"]


def test_a_parquet_bomb_ends_only_the_process_that_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One text of 900 kB, said 100,000 times: 90 GB in a file of a few kilobytes.
    said = pa.DictionaryArray.from_arrays(pa.array([0] * 100_000, pa.int32()), ["x" * 900_000])
    out = io.BytesIO()
    pq.write_table(pa.table({"kernel": said}), out, compression="zstd", store_schema=False)
    assert len(out.getvalue()) < 1024 * 1024
    limits = {**LIMITS, "max_unpacked_bytes": 2**40, "max_upload_rows": 10**6}
    settings = settings_at(tmp_path, **limits)
    limit = "wattcast.app.services.measurements.tables.PARQUET_MEMORY_BYTES"
    monkeypatch.setattr(limit, 512 * 1024 * 1024)
    with running(settings) as client:
        answer = upload(client, out.getvalue(), schema="alavani2023")
        assert answer.status_code == 422, answer.text
        assert answer.json()["type"] == "/problems/data"
        good = upload(client, as_parquet(vectors()), schema="alavani2023")
        assert good.status_code == 201, good.text


@pytest.mark.parametrize(
    "name",
    ["../../m.csv", "/etc/cron.d/m.csv", "a/../../m.csv", "..\\m.csv", "C:/m.csv", "a\nb.csv"],
)
def test_names_that_leave_the_archive_are_refused(service: httpx.Client, name: str) -> None:
    answer = upload(service, zipped({name: as_csv(vectors(1))}), schema="alavani2023")
    assert answer.status_code == 422, answer.text
    assert "forbidden name" in answer.json()["detail"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n\n",
        b"\xff\xfe",
        b"gpu,gpu\n1,2\n",
        b'gpu,kernel\n"open',
        b"gpu,kernel\r\n",
        b"PK\x03\x04",
        b"PK\x05\x06" + b"\0" * 18,
        b"\x1f\x8b",
        b"\x1f\x8b\x08\0\0\0\0\0\0\0junk",
        gzip.compress(b"gpu\n1\n")[:-6],
        zipped({}),
        zipped({"a.ptx": "//"}),
        zipped({"a.csv": "", "b.csv": ""}),
        zipped({"a.csv": "gpu\n", "run.exe": ""}),
        zipped({"a.csv": as_csv(vectors(1))})[:-30],
        b"PAR1",
        b"PAR1" + b"\0" * 100 + b"PAR1",
        as_parquet(vectors(1))[:-20] + b"\0" * 20,
        b"{}\n[]\n{\n",
        b'{"power_watts": NaN, "gpu": true}\n',
    ],
    # Named: compressed bytes hold the time, and each process of a run would name them otherwise.
    ids=lambda content: f"{len(content)}-bytes",
)
def test_files_that_are_no_measurements(service: httpx.Client, content: bytes) -> None:
    answer = upload(service, content, schema="alavani2023")
    assert answer.status_code == 422, answer.text
    assert answer.json()["type"] == "/problems/data"


def test_requests_that_are_no_upload(service: httpx.Client) -> None:
    assert service.post("/measurements", json={}).status_code == 422
    assert service.post("/measurements", content=b"a,b").status_code == 415
    headers = {"Content-Type": "multipart/form-data"}
    assert service.post("/measurements", content=b"a,b", headers=headers).status_code == 400
    assert upload(service, b"", gpu="").status_code == 422
    content = as_csv(vectors(1))
    assert upload(service, content, gpu="no-such").json()["type"] == "/problems/gpu"
    assert upload(service, content, schema="no-such").json()["type"] == "/problems/schema"
    for place in (f"/measurements/{uuid4()}", f"/measurements/{uuid4()}/rows"):
        assert service.get(place).status_code == 404
    assert service.get("/measurements/x").status_code == 422
    assert service.get("/measurements", params={"limit": 0}).status_code == 422


def test_no_cell_of_an_export_is_a_formula(service: httpx.Client) -> None:
    hostile = ["=1+1", "+1", "-1", "@SUM(A1)", '=HYPERLINK("http://x","y")', "  =1"]
    rows = [{**vectors(1)[0], "kernel": text, "board": text} for text in hostile]
    batch = batch_of(upload(service, as_csv(rows), schema="alavani2023"))
    text = service.get(f"/measurements/{batch['id']}/rows").text
    cells = [cell for row in csv.reader(io.StringIO(text)) for cell in row]
    assert len(cells) > 100
    for cell in cells:
        if cell[:1] in tuple("=+-@\t\r"):
            float(cell)  # a negative number is no formula


def test_many_uploads_at_once_are_all_taken(service: httpx.Client) -> None:
    def one(number: int) -> httpx.Response:
        content = as_csv(vectors(20, board=f"at-once-{number}"))
        files = {"file": ("any.bin", content)}
        url = f"{service.base_url}/measurements"
        return httpx.post(url, files=files, data={"schema": "alavani2023"}, timeout=60)

    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(one, range(32)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 32


def test_a_database_that_was_restarted_is_used_again(service: httpx.Client, url: str) -> None:
    if not url.startswith("postgresql"):
        pytest.skip("only a database server can be restarted")
    engine = open_database(url)
    with engine.connect() as connection:
        ended = connection.exec_driver_sql(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ).scalar_one()
    engine.dispose()
    assert ended > 0
    answer = upload(service, as_csv(vectors(1, board="restarted")), schema="alavani2023")
    assert answer.status_code == 201, answer.text
    assert service.get("/readyz").status_code == 200
