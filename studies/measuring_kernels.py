"""``python -m studies measuring-kernels [NAME ...]``: compiles the measuring kernels.

Every ``kernels/*.cu`` names the capability it is compiled for (``// target: 5.0``). In the PTX
beside it version and target are lowered as far as ``ptxas`` lets them, so that older drivers and
GPUs take it; any newer GPU's driver compiles it on. NVRTC 12.9 makes the PTX (extra ``cuda``).
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from wattcast.features.cuda import CompilerMissingError, compile_cuda
from wattcast.features.cuda.isolation import find_nvrtc
from wattcast.measure.micro import FOLDER

PTX_VERSIONS = {50: "6.0", 53: "6.0", 70: "6.3", 80: "7.0"}
"""PTX version by target: the first with ``shfl.sync`` (6.0), ``wmma`` with ``.aligned`` (6.3) and
the ``mma`` shapes of 8.0 (7.0); PTX ISA 9.0, "Release Notes". Drivers of CUDA 9.0, 10.0 and 11.0
take them."""

LOWEST: Mapping[tuple[int, int], tuple[int, int]] = {(5, 0): (3, 5)}
"""Capability that the PTX of a target is for, where that is a lower one: no compiler here goes
below 5.0, but these modules hold nothing that 3.5 lacks (ptxas 11.8 assembles all of them)."""

_TARGET = re.compile(r"^// target: (\d+)\.(\d+)$", re.M)
_INCLUDE = re.compile(r'^#include "([a-z_]+\.h)"\n', re.M)
_LINES = re.compile(r"^\s*\.(?:loc|file)\s.*\n", re.M)


def sources() -> list[Path]:
    """The CUDA sources, by name."""
    return sorted(FOLDER.glob("*.cu"))


def source_text(path: Path) -> str:
    """A source with the headers of its own folder in place. Raises OSError."""
    text = path.read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda found: (path.parent / found[1]).read_text(encoding="utf-8"), text)


def target(text: str) -> tuple[int, int]:
    """The compute capability a source is compiled for. Raises ValueError where it names none."""
    found = _TARGET.search(text)
    if found is None:
        raise ValueError("the source names no target")
    return int(found[1]), int(found[2])


def without_comments(ptx: str) -> str:
    """PTX without comments, line information and blank lines."""
    start = ptx.find(".section")
    text = ptx if start < 0 else ptx[:start]
    kept = (re.sub(r"\s*//.*", "", line) for line in _LINES.sub("", text).splitlines())
    return "\n".join(line for line in kept if line.strip()) + "\n"


def compile_source(path: Path) -> str:
    """PTX of a source. Raises CompileError, CompilerMissingError."""
    if find_nvrtc() is None:
        raise CompilerMissingError("NVRTC is not installed: pip install 'wattcast[cuda]'")
    text = source_text(path)
    major, minor = target(text)
    ptx = without_comments(compile_cuda(text, (major, minor)).ptx)
    version = PTX_VERSIONS[10 * major + minor]
    ptx = re.sub(r"^\.version .*$", f".version {version}", ptx, count=1, flags=re.M)
    major, minor = LOWEST.get((major, minor), (major, minor))
    return re.sub(r"^\.target .*$", f".target sm_{major}{minor}", ptx, count=1, flags=re.M)


def main(arguments: Sequence[str]) -> int:
    """Write the PTX of the sources named, or of all."""
    parser = argparse.ArgumentParser(prog="python -m studies measuring-kernels")
    parser.add_argument("names", nargs="*", metavar="NAME", help="sources, without .cu")
    chosen = set(parser.parse_args(arguments).names)
    for path in sources():
        if not chosen or path.stem in chosen:
            path.with_suffix(".ptx").write_text(compile_source(path), encoding="utf-8")
            print(path.with_suffix(".ptx").name)
    return 0
