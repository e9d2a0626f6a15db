"""The command line: same answers as HTTP; one line and a status for what fails."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import wattcast
from tests.app.conftest import Run
from tests.needs import needs_nvrtc
from wattcast.app.cli.exits import Exit
from wattcast.app.settings import Settings
from wattcast.predictor.messages import EXAMPLE_CUDA

LAUNCH = ("--gpu", "tesla-v100", "--grid", "4096", "--block", "256")


def test_a_prediction_as_json_and_for_people(run: Run, file: str) -> None:
    out, _ = run("predict", file, *LAUNCH, "--registers", "12", "--json")
    answer = json.loads(out)
    assert answer["power"]["watts"] > 0
    python = wattcast.predict(
        Path(file), gpu="tesla-v100", grid=4096, block=256, registers_per_thread=12
    )
    assert python.power is not None
    assert python.power.watts == answer["power"]["watts"]
    out, _ = run("predict", file, *LAUNCH, "--explain")
    for word in ("vector_add", "tesla-v100", "power", "W", "energy", "occupancy", "base"):
        assert word in out


def test_units_near_their_peaks_and_what_lines_take_of_them(run: Run, file: str) -> None:
    out, _ = run("predict", file, *LAUNCH, "--details")
    told, _ = out.split("roofline fp32: ")
    assert "time model bottleneck, bound by DRAM bandwidth\n" in told
    assert "speed of light: bound by DRAM bandwidth\n" in told
    row = next(line for line in told.splitlines() if line.startswith("DRAM "))
    share, peak = float(row.split()[1].rstrip("%")), row.split()[-2:]
    assert 50 < share < 100
    assert peak == ["900", "GB/s"]
    assert "idle: shared memory, FP64" in told
    out, _ = run("hotspots", file, *LAUNCH, "--resources", "--rows", "3")
    table = out.splitlines()
    headings = table[1].split()
    assert headings[:3] == ["dram", "l2", "l1"]
    assert "shared" not in headings
    assert f"{share}%" in table[3]
    assert table[2].split()[-1] == "all"
    answer = json.loads(run("predict", file, *LAUNCH, "--details", "--json")[0])
    assert answer["speed_of_light"]["bound"] == "DRAM bandwidth"


def test_measured_work_and_known_launches(run: Run, file: str, tmp_path: Path) -> None:
    out, _ = run("predict", "--work", "dram_bytes=1e9,int_ops=4e9,runtime=cuda", *LAUNCH)
    assert out.startswith("measured work on tesla-v100\n")
    launch = {"grid": [4096], "block": [256]}
    known = tmp_path / "known.json"
    known.write_text(json.dumps([{"launch": launch, "time_seconds": 1.0}]), encoding="utf-8")
    out, _ = run("predict", file, "--known", str(known), *LAUNCH, "--json")
    assert json.loads(out)["time"]["seconds"] > 0.5
    for words in ((), (file, "--work", "int_ops=1")):
        _, err = run("predict", *words, *LAUNCH, status=2)
        assert err == "wattcast: give either FILE or --work\n"
    known.write_text("{}", encoding="utf-8")
    _, err = run("predict", file, "--known", str(known), *LAUNCH, status=2)
    assert "expected a JSON list" in err


def test_features_and_lists(run: Run, file: str, looping: str) -> None:
    out, _ = run("features", "-", *LAUNCH, "--loops", "$LOOP=9", "--json", stdin=looping)
    assert json.loads(out)["trip_counts"][0]["trips"] == 9
    out, _ = run("gpus")
    assert "tesla-k20" in out
    assert json.loads(run("gpus", "list", "--json")[0])[0]["id"]
    assert json.loads(run("gpus", "show", "k20")[0])["id"] == "tesla-k20"
    assert "alavani2023" in run("schemas")[0]
    assert re.fullmatch(
        r"\d+ profiles are valid, \d+ printed peaks agree\n", run("gpus", "check")[0]
    )


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (("predict", "FILE", *LAUNCH, "--loops", "x"), 2, "--loops"),
        (("predict", "FILE", *LAUNCH, "--kernel", "nope"), 2, "nope"),
        (("predict", "FILE", *LAUNCH, "--arg", "3=five"), 2, "'five' is not a number"),
        (("predict", "FILE", *LAUNCH, "--arg", "0=lements=x"), 2, "for a pointer NAME:elements=N"),
        (("predict", "FILE", *LAUNCH, "--arg", "0=lements=5"), 2, "arguments.0.lements"),
        (("predict", "FILE", *LAUNCH, "--arg", "0:elements"), 2, "--arg"),
        (("predict", "FILE", *LAUNCH, "--arg", "0=1", "--arg", "0:elements=2"), 2, "--arg"),
        (("analyze", "FILE", *LAUNCH, "--arg", "n=5"), 2, "vector_add_param_3"),
        (("analyze", "FILE", *LAUNCH, "--analysis", "magic"), 2, "analysis"),
        (("analyze", "FILE", *LAUNCH, "--analysis-seconds", "1e9"), 2, "analysis_seconds"),
        (
            ("predict", "FILE", *LAUNCH, "--arg", "3=8", "--analysis-seconds", "1e-9"),
            Exit.GIVEN_UP,
            "longer than allowed",
        ),
        (("predict", "FILE", *LAUNCH, "--model", "magic"), 2, "model"),
        (("features", "FILE", *LAUNCH, "--schema", "nope"), 2, "nope"),
    ],
)
def test_errors_are_one_line(
    run, file: str, words: tuple[str, ...], status: int, says: str
) -> None:
    out, err = run(*(file if word == "FILE" else word for word in words), status=status)
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("wattcast: ")
    assert says in err


def test_an_analysis_for_people_and_as_json(run: Run, file: str) -> None:
    words = ("--arg", "3=1048576", "--arg", "0:elements=1048576,values=zeros", "--registers", "12")
    out, _ = run("analyze", file, *LAUNCH, *words)
    assert run("analyze", file, *LAUNCH, *(one.replace(":", "=") for one in words))[0] == out
    lines = [re.sub(r" {2,}", " | ", line.strip()) for line in out.splitlines()]
    for line in (
        "vector_add on tesla-v100",
        "grid 4096 x 1 x 1 of blocks 256 x 1 x 1: 4,096 blocks, 1,048,576 threads",
        "0 vector_add_param_0 (u64) = 1,048,576 elements, zeros",
        "1 vector_add_param_1 (u64) = not given",
        "3 vector_add_param_3 (u32) = 1,048,576",
        "12 registers per thread, given; shared memory 0 bytes static, 0 bytes dynamic per block",
        "loops: none",
        "global_load | 65536 | 9.1%",
        "global_load_sectors | 262144 | sectors",
    ):
        assert line in lines, out
    assert any(line.startswith("occupancy 100%, limited by warps (blocks per SM") for line in lines)
    assert any("| ld.global.f32 | 32768 | 4 | - | 4 |" in line for line in lines), out
    ran, _ = run("analyze", file, *LAUNCH, *words, "--analysis", "executed")
    assert re.search(r"\d+ of 4,096 blocks executed; standard error", ran)
    answer = json.loads(run("analyze", file, *LAUNCH, *words, "--json")[0])
    assert answer["mix"]["global_load"] == 65536
    assert answer["launch"]["arguments"][0]["given"] == {
        "elements": 1048576, "values": "zeros", "low": 0.0, "high": 1.0,
    }  # fmt: skip


@needs_nvrtc
def test_cuda_files(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "scale.cu"
    path.write_text(EXAMPLE_CUDA)
    out, _ = run("analyze", str(path), *LAUNCH, "--arg", "n=1048576", "--analysis", "symbolic")
    assert "compiled by nvrtc for compute capability 7.0" in out
    assert "2 n (u32) = 1,048,576" in out
    assert "blocks executed" not in out
    answer = json.loads(run("predict", str(path), *LAUNCH, "--arg", "n=5", "--json")[0])
    assert answer["compiled"]["target"] == 70
    python = wattcast.predict(path, gpu="tesla-v100", grid=4096, block=256, arguments={"n": 5})
    assert python.power is not None
    assert python.power.watts == answer["power"]["watts"]
    analysis = wattcast.analyze(cuda=EXAMPLE_CUDA, gpu="v100", grid=1, block=32)
    assert analysis.function.demangled == "scale(float*, float, int)"
    path.write_text("__global__ void f() { nothing; }\n")
    _, err = run("predict", str(path), *LAUNCH, status=2)
    assert "line 1" in err
    assert "nothing" in err
    path.write_bytes(b"// fine\n\x7fELF\0x\n")
    _, err = run("predict", str(path), *LAUNCH, status=2)
    assert "line 2, column 1: no text but binary data" in err
    path.write_bytes(f"// \xa9 Jos\xe9\n{EXAMPLE_CUDA}".encode("latin-1"))
    again, _ = run("predict", str(path), *LAUNCH, "--arg", "n=5", "--json")
    assert json.loads(again)["power"] == answer["power"]
    assert wattcast.predict(path, gpu="v100", grid=4096, block=256).power is not None


def test_version_and_settings(run: Run) -> None:
    assert re.fullmatch(r"wattcast \d+\.\d+\.\d+\w*\n", run("--version")[0])
    out, _ = run("settings")
    for name, field in Settings.model_fields.items():
        assert f"WATTCAST_{name.upper()}" in out
        assert field.description


def test_settings_that_do_not_fit_are_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATTCAST_PORT", "ninety")
    _, err = run("serve", status=2)
    assert "port" in err
    assert err.count("\n") == 1


def test_the_python_face(vector_add: str, looping: str) -> None:
    both = wattcast.compare(vector_add, gpus=["v100", "gtx-1050"], grid=64, block=(16, 16))
    assert [one.gpu for one in both] == ["tesla-v100", "gtx-1050"]
    assert both[1].power is not None
    assert both[1].power.basis == "uncalibrated"
    vector = wattcast.vector(looping, gpu="k20", grid=4, block=32, loops=5)
    assert vector.trip_counts[0].trips == 5
    analysis = wattcast.analyze(looping, gpu="k20", grid=4, block=32, loops={"$LOOP": 5})
    assert analysis.trips() == (5,)


def test_help_lists_predict_first_and_each_command_on_one_whole_line(run: Run) -> None:
    out, _ = run("--help")
    shown = out.partition("Predict a launch:\n")[2].partition("\nExamples")[0]
    first, *panels = shown.split("\n\n")
    assert re.match(r"  predict +Predict the power, time and energy", first)
    listed = [line for panel in (first, *panels) for line in panel.splitlines() if line[:1] == " "]
    assert len(listed) > 20
    for line in listed:
        assert re.fullmatch(r"  [\w-]+ +[A-Z].*\w\.", line), line
    for status in map(int, Exit):
        assert re.search(rf"^  {status} ", out, re.M)


def test_the_option_that_a_note_prints_for_data_is_the_one_that_helps(run: Run) -> None:
    """Offsets of a CSR: ``--arg 1=...`` was told, which is refused for a pointer."""
    ptx = Path(__file__).parents[1] / "fixtures" / "ptx" / "effort" / "kernels.ptx"
    command = (
        "predict", str(ptx), "--kernel", "csr_rows", "--grid", "1024", "--block", "256",
        "--gpu", "v100", "--arg", "5=262144",
    )  # fmt: skip
    out, err = run(*command)
    told = " ".join((out + err).split())
    option, _, after = told.partition("Pass --arg ")[2].partition("LAST (offsets)")
    assert option == "1:values=sorted,low=0,high="
    assert after
    assert "trust: guess" in told
    # Places in no order are no offsets: they were answered with 27.6 s and "measured board".
    out, err = run(*command, "--arg", "1:values=index")
    assert "trust: guess" in " ".join((out + err).split())
    assert option in " ".join((out + err).split())
    out, err = run(*command, "--arg", f"{option}8388608")
    told = " ".join((out + err).split())
    assert "give csr_rows_param_1" not in told
    assert "trust: measured board" in told
