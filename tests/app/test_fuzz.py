"""Mutated PTX through the whole prediction, and mutated files through every reader of what others
send: an answer, or an error meant for the user.

``WATTCAST_TEST_SEED`` picks other cases, ``WATTCAST_TEST_CASES`` as many of each reader.
"""

from __future__ import annotations

import ast
import gzip
import io
import json
import os
import random
import tarfile
import time
import zipfile
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

import pytest
from pydantic_core import to_json

from tests.app.conftest import settings_at
from wattcast.app.api.applications import FILES_BESIDE
from wattcast.app.services import Services
from wattcast.app.services.archives import Budget, Limits, archived, copy, members
from wattcast.app.services.measurements.upload import UploadOptions, read_upload
from wattcast.features.cuda.passed import passed
from wattcast.features.errors import WattcastError
from wattcast.predictor import counted, expressions
from wattcast.predictor.messages.predict import PredictAnswer, PredictRequest
from wattcast.predictor.predict import predict
from wattcast.predictor.traces import read_trace
from wattcast.predictor.traces.code import Library, add_file
from wattcast.predictor.traces.energy import read_energy
from wattcast.predictor.traces.fatbin import embedded
from wattcast.predictor.triton import cubin_registers
from wattcast.predictor.tuning_files import read_tuning

FIXTURES = Path(__file__).parents[1] / "fixtures"
SEEDS = tuple(
    text
    for path in (*sorted(FIXTURES.glob("ptx/*.ptx")), *sorted(FIXTURES.glob("kernels/ptx/*.ptx")))
    if len(text := path.read_text(encoding="utf-8")) < 12_000
)
"""Real PTX, short enough that many cases fit into a test."""

CASES = 600
SEED = int(os.environ.get("WATTCAST_TEST_SEED", "20260"))
OF_EACH = int(os.environ.get("WATTCAST_TEST_CASES", "150"))
JUNK = ("{", "}", ";", ":", "[", "]", "(", ")", ",", "%", "@", "!", ".", "<", '"', "\\", "\0", "é")
LINES = (
    "bra $L__BB0_1;",
    "$L__BB0_1:",
    "@!%p1 bra $L__BB0_1;",
    "mov.u32 %r1, %r999;",
    "ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1+16];",
    "wgmma.future.op %r1;",
    ".maxntid 2048, 1, 1",
    ".shared .align 4 .b8 s[99999999];",
    ".reg .b32 %q<4294967296>;",
    "ret;",
)


def mutated(rng: random.Random) -> str:
    """A seed with one to six mutations of characters or lines."""
    text = rng.choice(SEEDS)
    for _ in range(rng.randint(1, 6)):
        kind = rng.randrange(6)
        if kind < 2:
            at = rng.randrange(len(text) + 1)
            text = text[:at] + rng.choice(JUNK) + text[at + kind :]
        elif kind == 2:
            start = rng.randrange(len(text) + 1)
            text = text[:start] + text[start + rng.randint(1, 200) :]
        else:
            lines = text.split("\n")
            at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
            if kind == 3:
                lines[at], lines[other] = lines[other], lines[at]
            elif kind == 4:
                lines.insert(at, lines[other])
            else:
                lines.insert(at, rng.choice(LINES))
            text = "\n".join(lines)
    return text or " "


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Services:
    """Executions end early: a grid of 2**31 - 1 blocks would take most of the time."""
    home = tmp_path_factory.mktemp("home")
    return Services(settings_at(home, cache_bytes=0, analysis_effort=2_000_000))


@pytest.mark.slow
def test_mutated_ptx_is_answered_or_refused(services: Services) -> None:
    assert len(SEEDS) >= 5
    rng = random.Random(SEED)
    print(f"seed {SEED}")
    answered = refused = 0
    for case in range(CASES):
        ptx = mutated(rng)
        gpu = rng.choice(("tesla-k20", "tesla-m60", "tesla-v100", "gtx-1050", "quadro-k4200"))
        request = PredictRequest.model_validate(
            {
                "ptx": ptx,
                "gpu": gpu,
                "launch": {"grid": rng.choice((1, 64, 2**31 - 1)), "block": rng.choice((1, 256))},
                "loops": {"default": rng.choice((0, 1, 1e15))} if rng.random() < 0.5 else {},
            }
        )
        try:
            answer = predict(services, request)
        except WattcastError as error:
            refused += 1
            # What the problem would carry; a context that is no JSON raises here.
            to_json({"detail": error.detail, **error.context})
        except Exception as error:
            raise AssertionError(f"case {case}: {error!r}\n{ptx}") from error
        else:
            answered += 1
            PredictAnswer.model_validate_json(to_json(answer, inf_nan_mode="null"))
    assert answered > CASES / 10
    assert refused > CASES / 10


# --- readers of files ----------------------------------------------------------------------------

Reader = Callable[[bytes, Path], object]
MIB = 1 << 20
LIMITS = Limits(64 * MIB, 2_000, 16 * MIB, FILES_BESIDE)
TOKENS = (
    b"1e999", b"-1", b"9" * 400, b"9" * 5_000, b"NaN", b"null", b"[]", b"{}", b"[" * 2_000,
    b"\x00" * 9, b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"=1+1", b"<script>", b"\x1b[31m",
    b"\\ud800", b'"', b",", b":", b"1e-400", b"true", b"\xe2\x80\xae", b"0x7fffffff",
    b"18446744073709551616", b"'", b";", b"\n",
)  # fmt: skip


def damaged(rng: random.Random, seed: bytes) -> bytes:
    """A valid file with one to eight of its pieces changed, doubled, left out or replaced."""
    found = bytearray(seed)
    for _ in range(rng.randint(1, 8)):
        at, kind = rng.randrange(len(found) + 1), rng.randrange(6)
        if kind == 0 and at < len(found):
            found[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            found[at:at] = rng.choice(TOKENS)
        elif kind == 2:
            token = rng.choice(TOKENS)
            found[at : at + len(token)] = token
        elif kind == 3:
            del found[at : at + rng.choice((1, 4, 40, 4_000))]
        elif kind == 4:
            found[at:at] = found[at : at + rng.choice((1, 40, 400))] * rng.choice((1, 3))
        else:
            other = rng.randrange(len(found) + 1)
            found[at : at + 64] = found[other : other + 64]
    return bytes(found)


def traced(content: bytes, folder: Path) -> object:
    (folder / "trace").write_bytes(content)
    return read_trace(folder / "trace", most_characters=64 * MIB)


def in_binary(content: bytes, folder: Path) -> object:
    (folder / "binary").write_bytes(content)
    return [len(text) for text in embedded(folder / "binary", [])]


def unpacked(content: bytes, folder: Path) -> object:
    kind = archived(content[:4096])
    if kind is None:
        return None
    listed = members(io.BytesIO(content), kind, lambda name: True, LIMITS)
    for _, file in listed:
        copy(file, io.BytesIO(), Budget(64 * MIB))
    return None


def beside_ptx(content: bytes, folder: Path) -> object:
    (folder / "k.ptx").write_text(SEEDS[0], encoding="utf-8")
    (folder / "k.json").write_bytes(content)
    add_file(found := Library(), folder / "k.ptx", "k.ptx")
    return found.kernels


def formula(content: bytes, folder: Path) -> object:
    try:
        return expressions.read(content.decode("utf-8", "replace")).names
    except expressions.ExpressionError:
        return None


def zipped() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("a/k.ptx", SEEDS[0])
        packed.writestr("a/k.json", TOLD)
    return out.getvalue()


def tarred() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as packed:
        for name in ("k.ptx", "k.json"):
            header = tarfile.TarInfo(name)
            header.size = len(TOLD)
            packed.addfile(header, io.BytesIO(TOLD))
    return out.getvalue()


TRACES = FIXTURES / "traces"
TOLD = json.dumps({"name": "k", "shared": 4096, "registers": 32, "num_warps": 4}).encode()
PYTORCH = gzip.decompress((TRACES / "training_step.pt.trace.json.gz").read_bytes())
SPACE = {
    "tune_params": {"block_size_x": [32, 64], "tile": [1, 2, 4]},
    "restrictions": ["block_size_x * 2 <= 128 and tile != 1"],
    "problem_size": [4096],
}
TUNINGS = [
    SPACE,
    {"kernel_name": "k", "device_name": "A100", "problem_size": [9], "tune_params_keys": ["x"],
     "cache": {"1": {"x": 1, "time": 2.0, "nvml_energy": 0.3}, "2": {"x": 2, "time": "Failed"}}},
    {"schema_version": "1.0.0", "results": [{"configuration": {"x": 1}, "invalidity": "correct",
     "measurements": [{"name": "time", "value": 1.5, "unit": "ms"}]}]},
    {"ConfigurationSpace": {"TuningParameters": [{"Name": "x", "Type": "int", "Values": "[1, 2]"}],
     "Conditions": [{"Expression": "x < 2", "Parameters": ["x"]}]}},
]  # fmt: skip
TABLES = [
    b"gpu,kernel,power_watts,time_seconds\nv100,k,120.5,0.001\nv100,k2,1e2,2e-3\n",
    b'{"gpu": "v100", "kernel": "k", "power_watts": 100.0}\n' * 2,
]
COUNTED = b"""\
"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","k","smsp__inst_executed.sum","inst","7,000"
"0","k","gpu__time_duration.sum","us","1,234.5"
"""
ENERGY = [
    b"#Entity POWER TOTEC\nID W mJ\nGPU 0 71.25 1000\nGPU 0 72.5 76000\n",
    b"timestamp,gpu,DCGM_FI_DEV_POWER_USAGE\n2026-01-01T00:00:00,0,100\n1767225602000,0,200\n",
    b"JobID|ElapsedRaw|ConsumedEnergyRaw\n12|30|\n12.batch|30|9000\n12.0|29|8000\n",
]
CUDA = Path(__file__).parents[1] / "fixtures" / "cuda"
READERS: dict[str, tuple[Reader, list[bytes]]] = {
    "predictor/traces/kineto.py": (traced, [PYTORCH, gzip.compress(PYTORCH, 1)]),
    "predictor/traces/nsys.py": (traced, [(TRACES / "solver.sqlite").read_bytes()]),
    "predictor/traces/fatbin.py": (
        in_binary, [path.read_bytes() for path in sorted(TRACES.glob("*.fatbin"))]
    ),
    "predictor/traces/code.py": (beside_ptx, [TOLD]),
    "features/cuda/passed.py": (
        lambda content, folder: passed(content.decode("utf-8", "replace")),
        [(CUDA / "whole_file.cu").read_bytes()],
    ),
    "predictor/triton.py": (
        lambda content, folder: cubin_registers(content), [b"\x7fELF" + bytes(400)]
    ),
    "predictor/tuning_files.py": (
        lambda content, folder: read_tuning(content.decode("utf-8", "replace")),
        [json.dumps(each).encode() for each in TUNINGS],
    ),
    "predictor/expressions.py": (
        formula, [b"a * 2 + (b % 3) ** 2 <= max(c, 4) and not d or e == 'x'"]
    ),
    "predictor/counted.py": (
        lambda content, folder: counted.read_profile(content.decode("utf-8", "replace")), [COUNTED]
    ),
    "predictor/traces/energy.py": (
        lambda content, folder: read_energy(content.decode("utf-8", "replace")), ENERGY
    ),
    "app/services/archives.py": (unpacked, [zipped(), tarred(), gzip.compress(tarred(), 1)]),
    "app/services/measurements/tables.py": (lambda content, folder: None, TABLES),  # by services
}  # fmt: skip
"""A reader of what others send by its file, with valid files to begin from."""

OURS = {
    "what the readers call": ["features/checked.py"],
    "text of PTX, fuzzed above": ["features/findings/arithmetic.py", "features/ptx/lexing.py"],
    "files of the user's own, on the command line": [
        *("app/cli/*", "app/python/*", "predictor/forecasts.py", "features/cuda/own_files.py"),
    ],
    "rows of our database": [
        *("app/api/predictions.py", "app/services/measurements/upload.py"),
        *("app/services/models/*.py", "app/store/database.py", "app/store/tables.py"),
        *("predictor/hotspots.py", "predictor/explain/__init__.py", "predictor/advise/__init__.py"),
        *("predictor/parts/stored.py", "predictor/predict.py"),
    ],
    "texts that the trace's reader has made": ["predictor/traces/powers.py"],
    "what our own processes say to each other": [
        *("app/services/measurements/__main__.py", "app/services/measurements/readers.py"),
        *("app/services/measurements/parquet_rows.py", "features/cuda/jail.py"),
    ],
    "our own examples": ["predictor/messages/__init__.py", "predictor/messages/analyze.py"],
    "cells of the tables": ["app/services/measurements/rows.py"],
}
"""Files that parse something else than what others send, by what that is."""

PARSERS = {
    *(
        "json.loads",
        "json.load",
        "json_value",
        "raw_decode",
        "csv.reader",
        "csv.DictReader",
        "ast.parse",
    ),
    *("ast.literal_eval", "sqlite3.connect", "unpack_from", "zipfile.ZipFile", "tarfile.open"),
    *("yaml.safe_load", "pickle.load", "ElementTree.parse", "struct.unpack"),
}
"""Calls that read a format; a file with one of them is a reader."""


def parses(file: Path) -> bool:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return any(call == name or call.endswith(f".{name}") for call in calls for name in PARSERS)


def test_every_reader_has_fuzz_cases() -> None:
    root = Path(__file__).parents[2]
    found = {
        str(file.relative_to(root))
        for room in ("app", "features", "predictor")
        for file in (root / room).rglob("*.py")
        if parses(file)
    }
    ours = [pattern for files in OURS.values() for pattern in files]
    missing = [
        name
        for name in sorted(found - READERS.keys())
        if not any(fnmatch(name, pattern) for pattern in ours)
    ]
    assert not missing, "give each a valid file in READERS, or say in OURS what else it reads"
    assert READERS.keys() <= found | {"predictor/expressions.py"}


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_damaged_files_are_read_or_refused(name: str, services: Services, tmp_path: Path) -> None:
    read, seeds = READERS[name]
    rng = random.Random(f"{SEED} {name}")
    print(f"seed {SEED}, {OF_EACH} cases of {name}")
    for seed in seeds:
        read(seed, tmp_path)  # they are valid
    refused = 0
    for case in range(OF_EACH):
        content = damaged(rng, rng.choice(seeds))
        began = time.process_time()
        try:
            if name.endswith("tables.py"):
                options = UploadOptions(schema="alavani2023")
                read_upload(services, io.BytesIO(content), options)
            else:
                read(content, tmp_path)
        except WattcastError as error:
            refused += 1
            to_json({"detail": error.detail, **error.context})
        except Exception as error:
            (tmp_path / "case").write_bytes(content)
            raise AssertionError(f"case {case}: {error!r}: {tmp_path / 'case'}") from error
        assert time.process_time() - began < 20, case
    print(f"{refused} refused")
