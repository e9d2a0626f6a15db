"""Traces with a known truth, after the documented schemas.

    python -m tests.generated.traces FOLDER     writes the samples of the documentation

``kineto``: Chrome trace of the PyTorch profiler (schemaVersion 1, PyTorch 2.x). ``nsys``: SQLite
export of Nsight Systems (SQLite Export Schema Reference, 2021.5, and ``mangledName`` of later
ones).
"""

from __future__ import annotations

import gzip
import json
import sqlite3
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ORIGIN = 1_712_195_495_000_000_000
"""Nanoseconds since 1970 at which traces begin."""

V100 = "Tesla V100-PCIE-16GB"

CALLED = 2_500
"""Nanoseconds before its start at which a launch is called, within its operator."""


@dataclass(frozen=True)
class Launch:
    """One launch; times in ns from the beginning of the trace."""

    name: str
    start: int
    length: int
    grid: tuple[int, int, int] = (4096, 1, 1)
    block: tuple[int, int, int] = (256, 1, 1)
    registers: int = 16
    shared: int = 0
    stream: int = 7
    device: int = 0
    operator: str | None = None
    dims: tuple[object, ...] = ()
    types: tuple[object, ...] = ()
    what: str = "kernel"
    mangled: str | None = None
    pid: int = 100

    @property
    def end(self) -> int:
        return self.start + self.length


@dataclass(frozen=True)
class Span:
    """A step or another range of the host, in ns."""

    name: str
    start: int
    end: int


@dataclass(frozen=True)
class Gpu:
    """A device as the trace names it."""

    name: str = V100
    sms: int = 80


def microseconds(nanoseconds: int) -> str:
    """As Kineto writes them: three decimals."""
    whole = nanoseconds + ORIGIN
    return f"{whole // 1000}.{whole % 1000:03d}"


def kineto_events(
    launches: Iterable[Launch], steps: Sequence[Span] = (), *, external: bool = True
) -> Iterator[str]:
    """Events as text. Without ``external`` only the calls' place in time tells the operator."""

    def event(
        category: str, name: str, thread: object, start: int, length: int, **args: Any
    ) -> str:
        head = {"ph": "X", "cat": category, "name": name, "pid": 100, "tid": thread, "args": args}
        times = f', "ts": {microseconds(start)}, "dur": {length // 1000}.{length % 1000:03d}}}'
        return json.dumps(head)[:-1] + times

    for step in steps:
        yield event("user_annotation", step.name, 100, step.start, step.end - step.start)
    for number, one in enumerate(launches, 1):
        correlation, link = 5000 + number, number
        called = one.start - CALLED
        if one.operator is not None:
            told: dict[str, Any] = {"External id": link} if external else {}
            if one.dims:
                told |= {"Input Dims": one.dims, "Input type": one.types}
            yield event("cpu_op", one.operator, 100, called - 500, 1500, **told)
        yield event("cuda_runtime", "cudaLaunchKernel", 100, called, 500, correlation=correlation)
        args: dict[str, Any] = {
            "device": one.device, "context": 1, "stream": one.stream, "correlation": correlation,
        }  # fmt: skip
        if external and one.operator is not None:
            args["External id"] = link
        category = {"kernel": "kernel", "copy": "gpu_memcpy", "set": "gpu_memset"}[one.what]
        if one.what == "kernel":
            args |= {
                "registers per thread": one.registers, "shared memory": one.shared,
                "grid": list(one.grid), "block": list(one.block), "warps per SM": 1.5,
            }  # fmt: skip
        yield event(category, one.name, one.stream, one.start, one.length, **args)
        yield json.dumps({"ph": "f", "id": correlation, "cat": "ac2g", "name": "ac2g", "pid": 0})


def kineto(
    path: Path,
    launches: Iterable[Launch],
    steps: Sequence[Span] = (),
    gpus: Sequence[Gpu] = (Gpu(),),
    *,
    external: bool = True,
) -> Path:
    """A trace of the PyTorch profiler; gzipped where the name ends in ``.gz``."""
    properties = [
        {"id": number, "name": gpu.name, "computeMajor": 7, "computeMinor": 0, "numSms": gpu.sms}
        for number, gpu in enumerate(gpus)
    ]
    with path.open("wb") as raw:
        # No name and no time in the head of the gzip: the same launches make the same bytes.
        packed = gzip.GzipFile("", "wb", 6, raw, mtime=0) if path.suffix == ".gz" else raw
        packed.write(
            f'{{"schemaVersion": 1, "deviceProperties": {json.dumps(properties)},\n'
            '"traceEvents": [\n'.encode()
        )
        for number, line in enumerate(kineto_events(launches, steps, external=external)):
            packed.write((",\n" if number else "").encode() + line.encode())
        packed.write(f'\n], "traceName": "{path.name}"}}\n'.encode())
        if packed is not raw:
            packed.close()
    return path


SCHEMA = (Path(__file__).parents[1] / "fixtures" / "traces" / "nsys.sql").read_text("utf-8")


def nsys(
    path: Path,
    launches: Iterable[Launch],
    steps: Sequence[Span] = (),
    gpus: Sequence[Gpu] = (Gpu(),),
) -> Path:
    """An export of Nsight Systems."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as database:
        database.executescript(SCHEMA)
        strings: dict[str, int] = {}

        def text(value: str) -> int:
            number = strings.setdefault(value, len(strings) + 1)
            database.execute("INSERT OR IGNORE INTO StringIds VALUES (?, ?)", (number, value))
            return number

        def put(table: str, *values: object) -> None:
            marks = ", ".join("?" for _ in values)
            database.execute(f"INSERT INTO {table} VALUES ({marks})", values)

        put("META_DATA_EXPORT", "EXPORT_PRODUCT_VERSION", "2021.5.1")
        for number, gpu in enumerate(gpus):
            put("TARGET_INFO_GPU", number, gpu.name, gpu.sms, f"uuid-{number}")
        seen: set[tuple[int, int]] = set()
        for number, one in enumerate(launches, 1):
            process = (one.pid << 24) | (1 << 48)
            thread = process | one.pid
            if (one.pid, one.device) not in seen:
                seen.add((one.pid, one.device))
                put("TARGET_INFO_CUDA_DEVICE", one.device, one.device, one.pid, None,
                    gpus[one.device].sms)  # fmt: skip
            start, end = 10**9 + one.start, 10**9 + one.end
            where = (one.device, 1, one.stream, number, process)
            if one.what == "kernel":
                mangled = None if one.mangled is None else text(one.mangled)
                short = text(one.name.partition("(")[0])
                put("CUPTI_ACTIVITY_KIND_KERNEL", start, end, *where, text(one.name), short,
                    mangled, one.registers, *one.grid, *one.block, 0, one.shared)  # fmt: skip
            else:
                kind = 1 if one.name.endswith("HtoD") else 2
                put("CUPTI_ACTIVITY_KIND_MEMCPY", start, end, *where, 4096, kind)
            put("CUPTI_ACTIVITY_KIND_RUNTIME", start - CALLED, start - CALLED + 500, thread, number,
                text("cudaLaunchKernel_v7000"), 0)  # fmt: skip
            if one.operator is not None:
                put(
                    "NVTX_EVENTS",
                    start - CALLED - 500,
                    start - CALLED + 1000,
                    59,
                    one.operator,
                    thread,
                    None,
                )
        for step in steps:
            put("NVTX_EVENTS", 10**9 + step.start, 10**9 + step.end, 59, step.name,
                (100 << 24) | (1 << 48) | 100, None)  # fmt: skip
        database.commit()
    return path


def training_step() -> tuple[list[Launch], list[Span]]:
    """Two steps of a small network on a V100, with a communication that overlaps them."""
    launches, steps, at = [], [], 20_000
    for step in range(2):
        begin = at
        for layer in range(3):
            launches.append(
                Launch(
                    "volta_sgemm_128x64_nn",
                    at,
                    420_000 + 10_000 * layer,
                    (8, 32, 1),
                    (128, 1, 1),
                    122,
                    12_288,
                    operator="aten::mm",
                )
            )
            launches.append(
                Launch("vector_add", at + 430_000 + 10_000 * layer, 52_000, operator="aten::add")
            )
            launches.append(
                Launch(
                    "void at::native::vectorized_elementwise_kernel<4, at::native::relu<float>>"
                    "(int, float*)",
                    at + 490_000 + 10_000 * layer,
                    31_000,
                    (8192, 1, 1),
                    (128, 1, 1),
                    16,
                    operator="aten::relu",
                )
            )
            at += 540_000 + 10_000 * layer
        launches.append(
            Launch(
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
                at - 200_000,
                380_000,
                (24, 1, 1),
                (544, 1, 1),
                96,
                stream=20,
                operator="c10d::allreduce_",
            )
        )
        launches.append(
            Launch(
                "Memcpy HtoD (Pinned -> Device)",
                at + 200_000,
                90_000,
                operator="aten::copy_",
                what="copy",
            )
        )
        at += 400_000
        steps.append(Span(f"ProfilerStep#{step + 1}", begin - 10_000, at - 50_000))
    return launches, steps


def solver() -> tuple[list[Launch], list[Span]]:
    """Three iterations of a solver whose kernels have code, and one library call each."""
    launches, steps, at = [Launch("Memcpy HtoD", 0, 700_000, what="copy")], [], 800_000
    for number in range(3):
        begin = at
        for _ in range(4):
            launches.append(
                Launch("vector_add", at, 51_500, mangled="vector_add", operator="update")
            )
            at += 60_000
        launches.append(
            Launch(
                "void dot_kernel<float, 128, 0>(float const*, float*)",
                at,
                40_000,
                (640, 1, 1),
                (128, 1, 1),
                32,
                operator="residual",
            )
        )
        at += 75_000
        steps.append(Span(f"iteration {number}", begin - 8_000, at - 6_000))
    launches.append(Launch("Memcpy DtoH", at, 650_000, what="copy"))
    return launches, steps


def many(count: int, kernels: int = 300) -> Iterator[Launch]:
    """``count`` launches of ``kernels`` kernels on two streams, some of which overlap."""
    at = 10_000
    for number in range(count):
        which = (number * 7919) % kernels
        length = 4_000 + 37 * which
        yield Launch(
            f"void kernel_{which}<float>(float*, int)", at, length, (64 + which, 1, 1),
            operator=f"aten::op_{which % 40}", stream=7 if number % 10 else 20,
        )  # fmt: skip
        at += length + (500 if number % 10 else -length // 2)


def main(folder: Path) -> None:
    launches, steps = training_step()
    kineto(folder / "training_step.pt.trace.json.gz", launches, steps)
    launches, steps = solver()
    nsys(folder / "solver.sqlite", launches, steps)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
