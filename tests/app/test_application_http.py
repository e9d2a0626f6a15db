"""``POST /applications``: code in archives and binaries, an older trace beside, reports."""

from __future__ import annotations

import csv
import gzip
import io
import json
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.conftest import Run, settings_at
from tests.app.live import running
from tests.app.measured import zipped
from tests.app.test_application import DEMO, PTX, SAMPLES, SOLVER, TRAINING, adds_up, kind_of
from tests.app.test_problems import json_of, problem
from tests.generated.traces import Launch, kineto, many, training_step
from wattcast.app.api import applications
from wattcast.features.errors import ServiceError, checkpoint
from wattcast.predictor.messages.application import ApplicationAnswer
from wattcast.predictor.traces.code import Library, add_text, plain

MIB = 1024 * 1024
Part = tuple[str, tuple[str, bytes]]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A service with small limits."""
    limits = {"max_unpacked_bytes": 2 * MIB, "max_upload_files": 4, "max_ptx_bytes": MIB}
    with running(settings_at(tmp_path_factory.mktemp("small"), **limits)) as opened:
        yield opened


def posted(
    client: httpx.Client, *code: tuple[str, bytes], trace: Path = TRAINING, **options: Any
) -> httpx.Response:
    parts: list[Part] = [("file", (trace.name, trace.read_bytes()))]
    parts += [("code", one) for one in code]
    return client.post("/applications", files=parts, data={"options": json.dumps(options)})


def tarred(files: Mapping[str, bytes], mode: str = "w", **header: Any) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            for key, value in header.items():
                setattr(member, key, value)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


PACKED: dict[str, Callable[[Mapping[str, bytes]], bytes]] = {
    "zip": zipped,
    "tar": tarred,
    "tar.gz": lambda files: tarred(files, "w:gz"),
    "old.tar": lambda files: tarred({"a folder/" + "x" * 120 + "/k": b"", **files}),
}


@pytest.mark.parametrize("kind", PACKED)
def test_a_cache_in_an_archive_is_that_cache(
    client: httpx.Client, run: Run, tmp_path: Path, kind: str
) -> None:
    """Two graphs of inductor with kernels of one name; Triton's metadata tell them apart."""
    cache = tmp_path / "cache"
    for folder, shared, sums in (("one", 0, 1), ("two", 4096, 40)):
        (cache / folder).mkdir(parents=True)
        text = PTX.format(name="k", block=128).replace("ret", "bar.sync 0;\n" * sums + "ret")
        (cache / folder / "k.ptx").write_text(text)
        (cache / folder / "k.json").write_text(json.dumps({"name": "k", "shared": shared}))
        (cache / folder / "k.ttir").write_text("module {}")
    launches = [
        Launch("k", 10_000 + 30_000 * at, 20_000, block=(128, 1, 1), registers=0, shared=shared)
        for at, shared in enumerate((4096, 0))
    ]
    trace = kineto(tmp_path / "t.json", launches)
    files = {
        path.relative_to(cache).as_posix(): path.read_bytes()
        for path in sorted(cache.rglob("*"))
        if path.is_file()
    }
    told = json_of(posted(client, (f"cache.{kind}", PACKED[kind](files)), trace=trace))
    assert told["kernels"][0]["code"] == "two/k.ptx"
    assert "code_not_read" not in {note["code"] for note in told["warnings"]}
    here = json.loads(run("app", str(trace), "--code", str(cache), "--json")[0])
    assert {**told, "changes": None} == {**here, "changes": None}


@pytest.mark.parametrize("kind", ["plain", "lz4", "zstd"])
def test_a_shared_library_is_looked_into(client: httpx.Client, vector_add: str, kind: str) -> None:
    """Containers as ``fatbinary`` of CUDA 13.0 makes them, with --compress-mode none, speed and
    size, in the middle of a shared library."""
    inside = (SAMPLES / f"vector_add.{kind}.fatbin").read_bytes()
    library = b"\x7fELF\2" + bytes(999) + inside + bytes(77)
    rows = []
    for code in (
        ("libours.so", library),
        ("build.zip", zipped({"lib/libours.so.1": library})),
        ("vector_add.ptx", vector_add.encode()),
    ):
        told = posted(client, code).json()
        adds_up(told)
        assert "code_not_read" not in {note["code"] for note in told["warnings"]}
        rows.append(next(row for row in told["kernels"] if row["name"] == "vector_add"))
    assert [row["code"] for row in rows] == [
        "libours.so (PTX 1)", "lib/libours.so.1 (PTX 1)", "vector_add.ptx",
    ]  # fmt: skip
    for row in rows:
        assert row["how"] == "code"
        assert row["joules"] == pytest.approx(rows[-1]["joules"], rel=1e-12)


def test_what_holds_no_code_is_told(client: httpx.Client) -> None:
    inner = zipped({"k.ptx": PTX.format(name="k", block=128).encode()})
    told = posted(
        client,
        ("a.zip", zipped({"inner.zip": inner, "readme.md": b"x"})),
        ("prog", b"\x7fELF" + bytes(500)),
        ("b.ptx", b"hello"),
    ).json()
    notes = [note["detail"] for note in told["warnings"] if note["code"] == "code_not_read"]
    assert notes[0] == "inner.zip: an archive inside an archive is not looked into"
    assert [note.partition(":")[0] for note in notes[1:]] == ["a.zip", "prog", "b.ptx"]
    assert all("no PTX" in note for note in notes[1:])


def test_bombs_and_what_tries_to_leave_are_refused(small: httpx.Client) -> None:
    zeros = bytes(3 * MIB)
    member = PTX.format(name="k", block=128).encode()
    for what, code, slug, why in (
        ("zeros in a zip", zipped({"a.so": zeros}), "too-large", "MAX_UNPACKED_BYTES"),
        ("zeros in a tar.gz", tarred({"a.so": zeros}, "w:gz"), "too-large", "MAX_UNPACKED_BYTES"),
        # What is passed over is unpacked as well.
        ("unread zeros", tarred({"a.bin": zeros}, "w:gz"), "too-large", "MAX_UNPACKED_BYTES"),
        ("long PTX", zipped({"a.ptx": zeros[: MIB + 1]}), "too-large", "MAX_PTX_BYTES"),
        ("long text", b" " * (MIB + 1), "too-large", "MAX_PTX_BYTES"),
        ("files", zipped({f"{n}.ptx": b"" for n in range(5)}), "too-large", "more than 4 files"),
        ("files", tarred({f"{n}.ptx": b"" for n in range(5)}), "too-large", "more than 4 files"),
        ("others", zipped({f"{n}.x": b"" for n in range(33)}), "too-large", "more than 32 files"),
        ("others", tarred({f"{n}.x": b"" for n in range(33)}), "too-large", "more than 32 files"),
        ("directory", zipped({f"{n}/": b"" for n in range(65)}), "too-large", "32 files"),
        ("up", zipped({"../a.ptx": member}), "data", "forbidden name '../a.ptx'"),
        ("up", tarred({"../a.ptx": member}), "data", "forbidden name '../a.ptx'"),
        ("root", tarred({"/etc/a.ptx": member}), "data", "forbidden name"),
        ("link", tarred({"a.ptx": b""}, type=tarfile.SYMTYPE, linkname="/etc/passwd"), "data",
         "'a.ptx' in the tar is a link"),
        ("device", tarred({"a.ptx": b""}, type=tarfile.CHRTYPE), "data", "or a device"),
        ("twice", tarred({"a.ptx": b""}) [:512] + tarred({"a.ptx": b""}), "data", "same name"),
        ("header", header_of(1 << 30), "data", "a header of 1,073,741,824 bytes"),
        ("cut", tarred({"a.ptx": member * 99})[:2000], "data", "is broken"),
        ("cut", tarred({"a.ptx": member}, "w:gz")[:-40], "data", "is broken"),
        ("gzip", gzip.compress(member), "data", "is broken"),
        ("zip", b"PK\3\4" + bytes(50), "data", "it has no directory"),
    ):  # fmt: skip
        start = time.monotonic()
        status = 413 if slug == "too-large" else 422
        told = problem(posted(small, ("code", code)), status, slug)
        assert why in told["detail"], (what, told)
        assert time.monotonic() - start < 20, what
    many_files = [("a.ptx", b"")] * 257
    assert problem(posted(small, *many_files), 413, "too-large")


def header_of(size: int) -> bytes:
    """A tar that begins with a long name of ``size`` bytes."""
    member = tarfile.TarInfo("././@LongLink")
    member.size, member.type = size, tarfile.GNUTYPE_LONGNAME
    return member.tobuf(tarfile.GNU_FORMAT) + bytes(512)


def test_ptx_in_binaries_counts_as_unpacked() -> None:
    found = Library(most_characters=100)
    add_text(found, "x" * 60, "a")
    with pytest.raises(ServiceError, match="more than 100 characters of PTX"):
        add_text(found, "x" * 60, "b")


@pytest.mark.parametrize(
    "text",
    [
        "\n" * 1_000_000,
        ".visible\n" * 200_000,
        ".visible .entry a\n" + " \n" * 500_000,
        ".entry a\n.reqntid " + "9" * 1_000_000,
    ],
)
def test_code_is_looked_through_in_the_time_of_its_length(text: str) -> None:
    """A pattern that tries every blank again held everyone up for hours."""
    start = time.monotonic()
    add_text(Library(), text, "a")
    plain("f<1" + "ul" * 1000 + "x>")
    assert time.monotonic() - start < 10  # 0.1 s; the square of a million is a day


def test_an_older_trace_is_compared(client: httpx.Client, run: Run, tmp_path: Path) -> None:
    launches, steps = training_step()
    older = kineto(tmp_path / "old.json", [*launches, Launch("extra", 6_000_000, 500_000)], steps)
    parts: list[Part] = [
        ("file", (TRAINING.name, TRAINING.read_bytes())),
        ("against", ("old.json", older.read_bytes())),
    ]
    told = json_of(client.post("/applications", files=parts), ApplicationAnswer)
    here = json.loads(run("app", str(TRAINING), "--against", str(older), "--json")[0])
    assert told["changes"] == here["changes"]
    assert told["changes"]["kernels"][0]["name"] == "extra"
    report = client.post("/applications", files=parts, params={"format": "html"}).text
    assert "Against the older trace" in report
    assert "<td>extra</td>" in report
    parts[1] = ("against", ("old.json", b"{}"))
    wrong = problem(client.post("/applications", files=parts), 422, "data")
    assert wrong["detail"].startswith("old.json: ")


def test_reports_are_those_of_the_command(
    client: httpx.Client, run: Run, tmp_path: Path, vector_add: str
) -> None:
    table, page = tmp_path / "k.csv", tmp_path / "r.html"
    run("app", str(SOLVER), "--code", str(DEMO), "--csv", str(table), "--html", str(page))
    parts: list[Part] = [
        ("file", (SOLVER.name, SOLVER.read_bytes())),
        ("code", ("vector_add.ptx", vector_add.encode())),
    ]
    for kind, media, written in (("csv", "text/csv", table), ("html", "text/html", page)):
        by_name = client.post("/applications", files=parts, params={"format": kind})
        by_header = client.post("/applications", files=parts, headers={"Accept": media})
        for answer in (by_name, by_header):
            assert answer.status_code == 200, answer.text
            assert answer.headers["content-type"] == f"{media}; charset=utf-8"
            assert answer.text == written.read_text(encoding="utf-8")
    assert "script-src" not in by_name.headers["content-security-policy"]
    assert "style-src 'sha256-" in by_name.headers["content-security-policy"]
    rows = list(csv.DictReader(io.StringIO(table.read_text(encoding="utf-8"))))
    assert {row["name"] for row in rows} >= {"vector_add", "(gaps)"}
    wrong = client.post("/applications", files=parts, params={"format": "pdf"})
    assert problem(wrong, 422, "validation")


def test_launches_travel_compressed(client: httpx.Client, tmp_path: Path) -> None:
    trace = kineto(tmp_path / "t.json", many(5_000))
    answers = [
        client.post(
            "/applications",
            files={"file": ("t.json", trace.read_bytes())},
            data={"options": '{"launches": true}'},
            headers={"Accept-Encoding": encoding},
        )
        for encoding in ("gzip", "identity")
    ]
    zipped_answer, whole = answers
    assert zipped_answer.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in whole.headers
    told = whole.json()
    assert zipped_answer.json() == told
    assert int(zipped_answer.headers["content-length"]) < len(whole.content) / 4
    columns = told["launch_columns"]
    by_stream = [0.0 for _ in told["streams"]]
    for stream, joules in zip(columns["stream"], columns["joules"], strict=True):
        by_stream[stream] += joules
    assert by_stream == pytest.approx([row["joules"] for row in told["streams"]], rel=1e-9)


def test_reading_ends_when_the_caller_hangs_up(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page asks anew before the old answer is there; one upload is read at a time."""
    begun, ended = threading.Event(), threading.Event()

    def endless(*given: Any, **named: Any) -> None:
        begun.set()
        try:
            while True:
                checkpoint()
                time.sleep(0.01)
        finally:
            ended.set()

    with monkeypatch.context() as patch:
        patch.setattr(applications, "read_trace", endless)
        with pytest.raises(httpx.ReadTimeout):
            client.post("/applications", files={"file": ("t.json", b"{}")}, timeout=3)
        assert begun.wait(30)
        assert ended.wait(30)
    assert posted(client).status_code == 200


def test_of_kernels_without_facts_the_first_by_name_is_taken() -> None:
    found = Library()
    for file in ("a", "b"):
        add_text(found, PTX.format(name="k", block=128), file)
    code = found.find(kind_of("k"))
    assert code is not None
    assert code.file == "a"
