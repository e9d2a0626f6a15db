"""A trace of a million launches of 300 kernels, all with code: time and memory, of both kinds of
file."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import Row, at_most, fact
from benchmarks.ptx_text import kernel
from tests.generated.traces import kineto, many, nsys

LAUNCHES = 1_000_000
KERNELS = 300

CODE = """
import resource, sys
from pathlib import Path
from wattcast.app.cli.output import predictor
from wattcast.predictor.application import application
from wattcast.predictor.messages.application import ApplicationRequest
from wattcast.predictor.traces import read_trace
from wattcast.predictor.traces.code import library

def tell(what, count):
    print(f"{count:,} {what}", file=sys.stderr)

trace = read_trace(Path(sys.argv[1]), tell)
request, code = ApplicationRequest(gpu="v100"), library([Path(sys.argv[3])])
answer = application(predictor(registry=False), trace, request, code, tell)
assert answer["launches"] == int(sys.argv[2])
assert answer["coverage"][0]["how"] == "code"
assert answer["coverage"][0]["time_share"] > 0.999
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


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
        for kind, write in (("trace.json", kineto), ("trace.sqlite", nsys)):
            path = write(Path(folder) / kind, many(LAUNCHES, KERNELS))
            what = f"{kind}, {LAUNCHES:,} launches"
            yield fact(f"{what}: size", path.stat().st_size / 2**20, "MiB")
            start = time.perf_counter()
            ran = subprocess.run(
                [sys.executable, "-c", CODE, str(path), str(LAUNCHES), str(code)],
                check=True,
                stdout=subprocess.PIPE,
            )
            yield at_most(f"{what}: answered in", time.perf_counter() - start, 300.0, "s")
            yield at_most(f"{what}: peak memory", float(ran.stdout), 2048.0, "MiB")
            path.unlink()
