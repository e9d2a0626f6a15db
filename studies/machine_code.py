"""Machine instructions of PTX as we count them beside what ptxas makes of it, block by block.

    python -m studies machine-code                     the fixture kernels, sm_75 and sm_80
    python -m studies machine-code FILE.ptx ...        other kernels

Every PTX instruction gets its own line number, ptxas carries it into the machine code, and
nvdisasm prints it there; so every machine instruction is traced back to the PTX it stands for.
Compared are basic blocks of at least eight instructions whose memory accesses and multiply-adds
all appear equally often (ptxas unrolls small loops: their counts are divided by that). Divisions
and other calls are left out: their rare paths stand in the code and do not run.

Needs NVIDIA's ptxas (extra ``cuda``) and nvdisasm (wheel ``nvidia-cuda-nvdisasm``, or on the
search path).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from studies import parser_of
from studies.card_tables import table
from wattcast.features.cfg import build_cfg
from wattcast.features.cuda.isolation import find_ptxas, wheel_root
from wattcast.features.errors import DataError
from wattcast.features.isa import classify
from wattcast.features.loops import natural_loops
from wattcast.features.machine_code import machine_code
from wattcast.features.ptx import read_module
from wattcast.features.ptx.ir import Instruction, Module

KERNELS = Path(__file__).parents[1] / "tests" / "fixtures" / "kernels" / "ptx"
TARGETS = {"sm_75": "sm_70", "sm_80": "sm_80"}
"""Assembled for these, from fixtures compiled for those (nvdisasm 13 reads 7.5 and later)."""
LEAST_INSTRUCTIONS = 8
_CALLS = frozenset({"div", "sqrt", "rem", "tanh", "call"})
_ANCHORS = frozenset({"fma", "mad", "ld", "st", "atom", "red", "shfl", "tex"})
"""What ptxas neither splits nor joins: as often as these appear, so often is a block unrolled."""


class Compared(NamedTuple):
    """A basic block: machine instructions by our count, and by ptxas in one round of it."""

    file: str
    function: str
    line: int
    in_loop: bool
    ours: float
    ptxas: float


def find_nvdisasm() -> Path | None:
    """NVIDIA's disassembler: from its wheel, else from the search path."""
    root = wheel_root()
    found = sorted(root.glob("cu*/bin/nvdisasm")) if root is not None else []
    path = found[-1] if found else shutil.which("nvdisasm")
    return Path(path) if path else None


def numbered(text: str, module: Module, target: str) -> str:
    """The module's text with a line number of its own for every instruction. Pure."""
    wanted = {
        one.line for f in module.functions if not f.declaration for one in f.body.instructions
    }
    lines = []
    for number, line in enumerate(text.split("\n"), 1):
        start = line.strip()
        if start.startswith((".loc ", ".loc\t", ".file")):
            continue
        if start.startswith(".target"):
            line = f".target {target}"
        marked = number in wanted and not start.startswith((".reg", "{", "}"))
        lines.append(f".loc 1 {number} 0\n{line}" if marked else line)
        if start.startswith(".address_size"):
            lines.append('.file 1 "kernel.ptx"')
    return "\n".join(lines)


def machine_lines(text: str, module: Module, target: str) -> Mapping[str, Counter[int]]:
    """Machine instructions by PTX line, of each function. Raises DataError without the tools, or
    with what they say of a kernel they refuse."""
    ptxas, nvdisasm = find_ptxas(), find_nvdisasm()
    if ptxas is None or nvdisasm is None:
        raise DataError("needs ptxas (pip install 'wattcast[cuda]') and nvidia-cuda-nvdisasm")
    with tempfile.TemporaryDirectory() as folder:
        source, code = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(numbered(text, module, target), encoding="utf-8")
        _said(str(ptxas), "-arch", target, "-lineinfo", "-o", str(code), str(source))
        return _by_line(_said(str(nvdisasm), "-g", "-c", str(code)))


def _said(*command: str) -> str:
    done = subprocess.run(  # noqa: S603  # NVIDIA's tools, on files named by the caller
        command, capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode:
        raise DataError(done.stderr.strip().split("\n")[0])
    return done.stdout


def _by_line(listing: str) -> Mapping[str, Counter[int]]:
    found: dict[str, Counter[int]] = {}
    counted: Counter[int] = Counter()
    line = 0
    for text in listing.split("\n"):
        if section := re.match(r"\s*\.section\s+\.text\.([^,\s]+)", text):
            counted, line = found.setdefault(section[1].strip('"'), Counter()), 0
        elif place := re.search(r'//## File "[^"]*", line (\d+)', text):
            line = int(place[1])
        elif (one := re.match(r"\s*/\*[0-9a-f]+\*/\s+(.*?);", text)) and "NOP" not in one[1]:
            counted[line] += 1
    return found


def compared(path: Path, target: str) -> Iterator[Compared]:
    """The blocks of a file's kernels that can be compared. Raises DataError, PtxError."""
    text = path.read_text(encoding="utf-8")
    module = read_module(text)
    lines = machine_lines(text, module, target)
    for function in module.functions:
        counted = lines.get(function.name)
        if function.declaration or counted is None:
            continue
        cfg = build_cfg(function.body)
        loops, ours = natural_loops(cfg), machine_code(function.body).instructions
        for block in cfg.blocks:
            inside = cfg.instructions(block)
            rounds = _rounds(inside, counted)
            if rounds:
                yield Compared(
                    path.name, function.name, inside[0].line,
                    loops.innermost[block.index] >= 0,
                    float(ours[block.start : block.end].sum()),
                    sum(counted[one.line] for one in inside) / rounds,
                )  # fmt: skip


def _rounds(inside: Sequence[Instruction], counted: Mapping[int, int]) -> int:
    """How often a block stands in the machine code; 0 where that cannot be told."""
    facts = [classify(one.opcode) for one in inside]
    if len(inside) < LEAST_INSTRUCTIONS or any(
        one.entry in _CALLS or one.pipe == "tensor" for one in facts
    ):
        return 0
    times = {
        counted[one.line]
        for one, fact in zip(inside, facts, strict=True)
        if fact.entry in _ANCHORS and fact.space not in ("param", "const")
    }
    return times.pop() if len(times) == 1 else 0


def main(arguments: list[str] | None = None, write: Callable[[str], object] = print) -> int:
    """Run the command; the exit status. Raises DataError."""
    parser = parser_of("machine-code", __doc__)
    parser.add_argument("files", nargs="*", type=Path)
    options = parser.parse_args(arguments)
    rows = []
    for target, compiled in TARGETS.items():
        found, refused = [], []
        # The code for sm_70 is kept alone where that for sm_80 is the same.
        kept = {
            path.name.split(".")[0]: path
            for each in ("sm_70", compiled)
            for path in KERNELS.glob(f"*.{each}.ptx")
        }
        for path in options.files or sorted(kept.values()):
            try:
                found += list(compared(path, target))
            except DataError as error:
                refused.append(f"{path.name}: {error}")
        if not found:
            raise DataError(f"nothing to compare for {target}: {'; '.join(refused)}")
        rows += [[target, *_scores(found, in_loop)] for in_loop in (False, True)]
        write(f"{target}: {len(refused)} files refused: {'; '.join(refused) or 'none'}\n")
    titles = ("target", "blocks", "number", "median ratio", "within 15 %", "mean error %")
    write(table(titles, rows))
    return 0


def _scores(found: Sequence[Compared], in_loop: bool) -> list[str]:
    ratio = np.array([one.ours / one.ptxas for one in found if one.in_loop == in_loop])
    near = np.abs(ratio - 1) <= 0.15
    error = 100 * np.abs(ratio - 1)
    what = "in loops" if in_loop else "others"
    figures = (f"{np.median(ratio):.2f}", f"{near.mean():.0%}", f"{error.mean():.1f}")
    return [what, str(ratio.size), *figures]
