"""Compare the interpreters on many seeded kernels, and cut down what fails.

    python -m tests.generated.hunt --first 0 --count 1000 [--save FOLDER]

Prints each failing seed with its differences and, unless ``--no-reduce``, the kernel with
every line removed that the failure does not need.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from tests.generated.compare import differences, reference
from tests.generated.programs import BODY, END, Generated, program

REDUCE_SECONDS = 60


def check(candidate: Generated) -> list[str] | None:
    """Differences; None if the kernel is too long for the reference."""
    expected = reference(candidate)
    return None if expected is None else differences(candidate, expected)


def reduced(failing: Generated, fails: Callable[[Generated], bool]) -> Generated:
    """The same failure with as few lines as removing some at a time gives.

    Declarations and what sets up registers stay: without them behaviour is undefined.
    """
    lines = failing.ptx.splitlines()
    step = len(lines) // 2
    stop = perf_counter() + REDUCE_SECONDS
    while step:
        at = 0
        while at < len(lines) and perf_counter() < stop:
            fixed = _fixed(lines)
            kept = [line for i, line in enumerate(lines) if not at <= i < at + step or fixed[i]]
            if len(kept) == len(lines):
                at += step
                continue
            candidate = dataclasses.replace(failing, ptx="\n".join(kept))
            try:
                bad = fails(candidate)
            except Exception:  # not a kernel any more
                bad = False
            if bad:
                lines = kept
            at += 0 if bad else step
        step //= 2
    return dataclasses.replace(failing, ptx="\n".join(lines))


def _fixed(lines: list[str]) -> list[bool]:
    """Which lines may not be removed."""
    fixed, inside = [], False
    for line in lines:
        inside = (inside or line == BODY) and line != END
        in_call = (
            ".param" in line
            or ".sync" in line
            or "activemask" in line
            or "(got)" in line
            or line.startswith("mov.u32 %t0,")
        )
        fixed.append(not inside or in_call or line[:1] in ("{", "}") or line == BODY)
    return fixed


def _kind(difference: str) -> str:
    """The sort of a difference, so that reducing does not slip to another one."""
    return difference.split()[0].split("[")[0] if "[" in difference else difference.split(":")[0]


def main() -> int:
    """The exit code is 1 if anything differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.generated.hunt", description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--no-reduce", action="store_true")
    parser.add_argument("--most", type=int, default=10, help="stop after so many failures")
    parser.add_argument("--save", type=Path, help="folder for the failing kernels")
    options = parser.parse_args()
    began = perf_counter()
    failed = skipped = 0
    for seed in range(options.first, options.first + options.count):
        candidate = program(seed)
        if seed > options.first and (seed - options.first) % 500 == 0:
            print(f"... {seed - options.first} kernels", flush=True)
        try:
            found = check(candidate)
        except Exception as error:  # report the seed and go on
            found = [f"{type(error).__name__}: {error}"]
        if found is None:
            skipped += 1
            continue
        if not found:
            continue
        failed += 1
        print(f"seed {seed}, grid {candidate.grid}, block {candidate.block}:", flush=True)
        print("\n".join(f"  {line}" for line in found[:6]), flush=True)
        if not options.no_reduce:
            kind = _kind(found[0])

            def same(other: Generated, kind: str = kind) -> bool:
                return kind in [_kind(line) for line in check(other) or []]

            small = reduced(candidate, same)
            print(small.ptx, "\n  ", (check(small) or ["?"])[:4], flush=True)
            if options.save:
                (options.save / f"{seed}.ptx").write_text(small.ptx)
        if failed >= options.most:
            break
    seconds = perf_counter() - began
    done = seed + 1 - options.first
    print(f"{done} kernels, {failed} differ, {skipped} too long, {seconds:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
