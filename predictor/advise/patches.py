"""The user's own lines with a change made: compiled, predicted, and kept where that saves enough.

Each change is one that leaves results as they are. An array of shared memory gets longer rows only
where its name stands with both indices everywhere; ``__restrict__`` holds where no two pointers
overlap, which its remedy says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import unified_diff
from typing import Any

from wattcast.features.errors import WattcastError
from wattcast.predictor.advise.adviser import Adviser, gain
from wattcast.predictor.messages.advise import Patch
from wattcast.predictor.sweep import RESOLUTION

MOST_PATCHES = 12
"""Changed sources that are compiled for one answer."""

_WORDS = "float|int|unsigned|unsigned int|int32_t|uint32_t|double|float2"
_SHARED = re.compile(rf"__shared__\s+(?:volatile\s+)?(?:{_WORDS})\s+([^;]+);")
_INDEX = r"\s*\[((?:[^\[\]]|\[[^\[\]]*\])+)\]"
_ROWS = re.compile(rf"(\w+){_INDEX}{_INDEX}(?!\s*\[)")
_CAST = re.compile(r"_cast\s*<|\*\s*\)\s*\(?\s*&")
_FOR = re.compile(r"[ \t]*for\s*\(")

_Change = tuple[Any, str, str]
"""Code and remedy, as advice has them, and the whole source with the change made."""


def patches(adviser: Adviser, file: str) -> list[Patch]:
    """Changes to the CUDA source of a launch by what they save, the most joules first.

    ``file`` is what the differences call it. There are none for PTX, where a loop's trips are a
    guess, and none that saves less than two predictions are apart (``RESOLUTION``).
    """
    source = adviser.request.cuda
    if source is None or adviser.analysis.trips_assumed:
        return []
    found = []
    for number, (code, remedy, changed) in enumerate(_changes(adviser, source)):
        if number == MOST_PATCHES:
            break
        try:
            analysis, after = adviser.anew(adviser.request.model_copy(update={"cuda": changed}))
        except WattcastError:  # it does not compile, or cannot be launched
            continue
        saved = gain(adviser.before, after)
        apart = 100 * RESOLUTION
        if saved.energy_percent < apart or saved.time_percent < -apart or analysis.trips_assumed:
            continue
        old, new = (text.splitlines(keepends=True) for text in (source, changed))
        diff = "".join(unified_diff(old, new, f"a/{file}", f"b/{file}"))
        found.append(Patch(code=code, remedy=remedy, diff=diff, after=after.answer(), gain=saved))
    return sorted(found, key=lambda each: -each.gain.joules)


def _changes(adviser: Adviser, source: str) -> Iterator[_Change]:
    for told in () if _CAST.search(source) else _SHARED.finditer(source):
        for array in _ROWS.finditer(source, *told.span(1)):
            name = re.escape(array[1])
            # Nowhere without both indices, nor its address: nothing else knows how long a row is.
            both = re.findall(rf"(?<!&)(?<!& )\b{name}{_INDEX}{_INDEX}", source)
            if len(both) == len(re.findall(rf"\b{name}\b", source)):
                end = array.end(3)
                padded = f"{source[:end]} + 1{source[end:]}"
                yield "bank_conflicts", f"pad the rows of {name}", padded
    yield from _restricted(adviser, source)
    if adviser.request.loops:
        return  # they may be named by their lines
    run = {one.location.line for one in adviser.analysis.function.body.instructions if one.location}
    lines = source.splitlines(keepends=True)
    for at, line in enumerate(lines):
        if at + 1 in run and _FOR.match(line) and not (at and "#pragma" in lines[at - 1]):
            indent = line[: len(line) - len(line.lstrip())]
            unrolled = [*lines[:at], f"{indent}#pragma unroll 8\n", *lines[at:]]
            yield "unroll", f"unroll the loop of line {at + 1}", "".join(unrolled)


def _restricted(adviser: Adviser, source: str) -> Iterator[_Change]:
    """No pointer of the kernel named points where another does."""
    name = re.split(r"[<(]", adviser.analysis.function.demangled)[0].split()[-1].split("::")[-1]
    signature = re.search(rf"__global__[^;{{}}]*?\b{re.escape(name)}\s*\(([^()]*)\)", source)
    if signature is None or "restrict" in signature[1] or signature[1].count("*") < 2:
        return
    told = re.sub(r"\*\s*(\w+)", r"* __restrict__ \1", signature[1])
    at, end = signature.span(1)
    yield (
        "restrict",
        "declare the pointers __restrict__, if none points where another writes",
        source[:at] + told + source[end:],
    )
