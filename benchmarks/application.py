"""A trace of a million launches of 300 kernels, all with code: time and memory, of both kinds of
file; and traces of a gigabyte, which are read as they stream.

Times are of the processor, user and system: another load on the machine does not change them.
"""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from benchmarks.measure import Row, at_most, fact
from benchmarks.ptx_text import kernel
from tests.generated.traces import kineto, many, nsys

LAUNCHES = 1_000_000
KERNELS = 300
GIGABYTE = 10**9

READ = """
import resource, sys
from pathlib import Path
from wattcast.predictor.traces import read_trace

counts = [0]

def tell(what, count):
    counts.append(count)
    print(f"{count:,} {what}", file=sys.stderr)

trace = read_trace(Path(sys.argv[1]), tell)
assert len(trace) == int(sys.argv[2])
assert len(counts) > 10, "no progress was shown"
"""

ANSWER = """
from wattcast.app.cli.output import predictor
from wattcast.predictor.application import application
from wattcast.predictor.messages.application import ApplicationRequest
from wattcast.predictor.traces.code import library

request, code = ApplicationRequest(gpu="v100"), library([Path(sys.argv[3])])
answer = application(predictor(registry=False), trace, request, code, tell)
assert answer["launches"] == int(sys.argv[2])
assert answer["coverage"][0]["how"] == "code"
assert answer["coverage"][0]["time_share"] > 0.999
assert answer["clocks"][0]["covers"] > 0.99
"""

USED = """
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
"""

KINDS = (("trace.json", kineto), ("trace.sqlite", nsys))


def rows() -> Iterator[Row]:
    """Every row of this part; each file is read by a process of its own, which shows progress."""
    with tempfile.TemporaryDirectory() as folder:
        code = Path(folder) / "code"
        code.mkdir()
        for number in range(KERNELS):
            name = f"kernel_{number}"
            mangled = f"_Z{len(name)}{name}IfEvPT_i"  # void kernel_0<float>(float*, int)
            text = re.sub(r"(\.entry\s+)[\w$]+", rf"\g<1>{mangled}", kernel(100 + number))
            (code / f"{name}.ptx").write_text(text)
        for kind, write in KINDS:
            path = write(Path(folder) / kind, many(LAUNCHES, KERNELS))
            what = f"{kind}, {LAUNCHES:,} launches"
            size = path.stat().st_size
            yield fact(f"{what}: size", size / 2**20, "MiB")
            seconds, memory = _used(READ + ANSWER + USED, path, LAUNCHES, code)
            yield at_most(f"{what}: answered in processor time", seconds, 300.0, "s")
            yield at_most(f"{what}: peak memory", memory, 2048.0, "MiB")
            launches = LAUNCHES
            if write is nsys:
                _filled(path, GIGABYTE)
            else:
                launches = int(LAUNCHES * GIGABYTE / size * 1.02)
                path = write(path, many(launches, KERNELS))
            what = f"{kind} of {path.stat().st_size / GIGABYTE:.2f} GB"
            seconds, memory = _used(READ + USED, path, launches)
            yield fact(f"{what}, {launches:,} launches: read in processor time", seconds, "s")
            yield at_most(f"{what}: peak memory", memory, 2048.0, "MiB")
            path.unlink()


def _filled(path: Path, size: int) -> None:
    """What an export holds beside launches (samples, calls of the system), up to ``size`` bytes."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE COMPOSITE_EVENTS (id INTEGER PRIMARY KEY, payload BLOB)")
        rows = max(0, size - path.stat().st_size) // 4000 + 1
        database.execute(
            "WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n WHERE id < ?) "
            "INSERT INTO COMPOSITE_EVENTS SELECT id, randomblob(4000) FROM n",
            (rows,),
        )
        database.commit()


def _used(script: str, *arguments: object) -> tuple[float, float]:
    """Seconds of the processor and MiB of memory of a script in a process of its own."""
    ran = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)], check=True, stdout=subprocess.PIPE
    )
    seconds, memory = map(float, ran.stdout.split())
    return seconds, memory
