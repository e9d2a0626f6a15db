"""The same code launched otherwise: another shape, other registers, options or clocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import unified_diff
from math import prod
from typing import Any

from wattcast.features import dataflow, errors
from wattcast.features.analysis import KernelAnalysis
from wattcast.features.assembled import assembled
from wattcast.features.launch import axes_of, covering_grid, usual_blocks
from wattcast.features.occupancy import occupancy
from wattcast.features.ptx.ir import Instruction, Register, Special
from wattcast.models.clocks import supported_pairs
from wattcast.models.time.base import DEFAULT, get_time_model
from wattcast.predictor.advise.adviser import Adviser, Otherwise, gain
from wattcast.predictor.messages.advise import Advice, Patch
from wattcast.predictor.sweep import RESOLUTION

MOST_SLOWDOWN = 1.05
"""How much longer a launch at lower clocks may take to be advised."""

TAIL = 1.05
"""Work of the busiest SM over the mean from which the tail is told of."""

_BLOCKS_TRIED = frozenset({64, 128, 192, 256, 384, 512, 768, 1024})


def others(adviser: Adviser) -> Iterator[Advice]:
    """The launch with another shape, other registers, other clocks; nothing where a loop's trips
    are a guess, as each would rest on it."""
    if adviser.analysis.trips_assumed:
        return
    grid = _grid(adviser)
    # A grid too small is no matter of the block's shape.
    shape = grid or _shape(adviser)
    for other in (shape, _registers(adviser), _options(adviser), _clocks(adviser)):
        if other is not None:
            yield adviser.advice(other, other.outcome, [], [], other.request)


def _grid(adviser: Adviser) -> Otherwise | None:
    """More blocks for a kernel that steps through its data by the size of the grid, where those of
    the launch leave room on the GPU."""
    analysis = adviser.analysis
    launch, resident = analysis.launch, analysis.occupancy.resident_blocks_per_sm
    room = adviser.gpu.sm_count * resident
    if launch.blocks >= room or launch.grid[0] != launch.blocks or not _strides(analysis):
        return None
    sizes = (each * adviser.gpu.sm_count for each in range(1, resident + 1))
    more = ({"grid": [blocks]} for blocks in sizes if blocks > launch.blocks)
    best = adviser.least(more, strides=True)
    if best is None:
        return None
    _, outcome, request = best
    blocks = request["launch"]["grid"][0]
    return Otherwise(
        "small_grid",
        f"{launch.blocks} blocks of {launch.threads_per_block} threads occupy "
        f"{min(launch.blocks, adviser.gpu.sm_count)} of {adviser.gpu.sm_count} SMs; there is room "
        f"for {room}. The loop steps by the size of the grid, so more blocks share its work",
        f"launch {blocks} blocks: as many as fit on each SM at once, times its SMs "
        "(cudaOccupancyMaxActiveBlocksPerMultiprocessor)",
        request,
        outcome,
    )


def _strides(analysis: KernelAnalysis) -> bool:
    """Whether a loop steps by something that is computed from the number of blocks."""
    grid, instructions = Special("%nctaid.x"), analysis.function.body.instructions
    users: dict[str, list[Instruction]] = {}
    for one in instructions:
        for name in dataflow.reads(one):
            users.setdefault(name, []).append(one)
    known = dataflow.closure(
        (name for one in instructions if grid in one.operands for name in dataflow.writes(one)),
        lambda name: (written for one in users.get(name, ()) for written in dataflow.writes(one)),
    )
    for block in {block for loop in analysis.loops.loops for block in loop.blocks}:
        for one in analysis.cfg.instructions(analysis.cfg.blocks[block]):
            result, *steps = one.operands or (None,)
            if one.base == "add" and result in steps:
                steps.remove(result)
                if any(isinstance(each, Register) and each.name in known for each in steps):
                    return True
    return False


def _shape(adviser: Adviser) -> Otherwise | None:
    """Another block size, where the code computes the same with it."""
    analysis = adviser.analysis
    launch = analysis.launch
    if axes_of(launch) > 1:
        return None
    shapes = (
        {"grid": list(covering_grid(launch, block)), "block": list(block)}
        for block in usual_blocks(1)
        if block[0] in _BLOCKS_TRIED and block != launch.block
    )
    # Work is not drawn together on fewer SMs: what a board saves there was never measured.
    least = min(launch.blocks, adviser.gpu.sm_count)
    shapes = (each for each in shapes if prod(each["grid"]) >= least)
    best = adviser.least(shapes, strides=_strides(analysis))
    if best is None or best[1].joules > (1 - RESOLUTION) * adviser.before.joules:
        return None
    other_analysis, outcome, request = best
    grid, block = request["launch"]["grid"][0], request["launch"]["block"][0]
    busiest = analysis.activity.sm_imbalance
    then = other_analysis.occupancy.occupancy
    code = "launch_shape"
    why = (
        f"{launch.blocks} blocks of {launch.threads_per_block} threads in {analysis.waves:g} "
        f"waves; {grid} of {block} take {other_analysis.waves:g}, at {then:.0%} occupancy"
    )
    if busiest > TAIL and other_analysis.activity.sm_imbalance < busiest:
        code = "tail_effect"
        why = (
            f"{launch.blocks} blocks on {adviser.gpu.sm_count} SMs: the busiest SM has "
            f"{busiest:.2f} times the mean to do, with the other shape "
            f"{other_analysis.activity.sm_imbalance:.2f}"
        )
    elif analysis.occupancy.limiter == "blocks" and then > analysis.occupancy.occupancy:
        code = "occupancy_limiter"
        why = (
            f"no more than {analysis.occupancy.resident_blocks_per_sm} blocks fit on an SM, "
            f"so small ones leave it {analysis.occupancy.occupancy:.0%} occupied"
        )
    remedy = f"launch {grid} blocks of {block} threads (wattcast sweep tries more shapes)"
    return Otherwise(code, why, remedy, request, outcome)


def _registers(adviser: Adviser) -> Otherwise | None:
    """As few registers as let one more block in, if the kernel can do with them."""
    analysis = adviser.analysis
    if analysis.occupancy.limiter != "registers":
        return None
    now = analysis.registers.registers_per_thread
    floor = analysis.static.registers(adviser.gpu).low
    for fewer in range(now - 1, floor - 1, -1):
        resident = occupancy(adviser.gpu, analysis.launch, fewer, analysis.static_shared_bytes)
        if resident.resident_blocks_per_sm > analysis.occupancy.resident_blocks_per_sm:
            found = adviser.asked_again(registers_per_thread=fewer)
            if found is None:
                return None
            capped = None
            if analysis.registers.how == "ptxas":
                capped = assembled(analysis.module, analysis.function, adviser.gpu, fewer)
            if capped is not None and capped.spills:
                return None  # what spilling takes is not predicted: no gain can be told
            return Otherwise(
                "occupancy_limiter",
                f"{now} registers a thread let {analysis.occupancy.resident_warps_per_sm} of "
                f"{adviser.gpu.max_warps_per_sm} warps reside on an SM",
                f"limit them to {fewer} (-maxrregcount or __launch_bounds__): "
                f"{resident.resident_warps_per_sm} warps; "
                + ("ptxas spills nothing then" if capped else "check that nothing is spilled"),
                {"registers_per_thread": fewer},
                found[1],
            )
    return None


def _options(adviser: Adviser) -> Otherwise | None:
    """CUDA source compiled for speed, where special functions or exact divisions run."""
    asked, fast = adviser.request, "--use_fast_math"
    given = asked.compiler_options
    exact = adviser.analysis.activity.sfu_instructions
    if asked.cuda is None or not exact or {fast, fast[1:]}.intersection(given):
        return None
    request = {"compiler_options": [*given, fast]}
    try:
        _, outcome = adviser.anew(asked.model_copy(update=request))
    except errors.WattcastError:
        return None
    return Otherwise(
        "compiler_options",
        f"divisions, roots and functions are computed exactly: {exact:.4g} instructions of the "
        "special function units (warps), and what corrects their results",
        f"compile with {fast}, if results may be a few units in the last place off",
        request,
        outcome,
    )


def _clocks(adviser: Adviser) -> Otherwise | None:
    """The clock pair that takes the least energy and hardly longer; none for a launch that is over
    before a clock matters."""
    activity, best = adviser.analysis.activity, None
    bound = get_time_model(DEFAULT).predict(adviser.analysis, adviser.gpu, adviser.clocks).bound
    if bound == "launch overhead":
        return None
    for pair in supported_pairs(adviser.gpu):
        outcome = adviser.outcome(activity, pair)
        near = outcome.seconds <= MOST_SLOWDOWN * adviser.before.seconds
        if near and (best is None or outcome.joules < best[1].joules):
            best = pair, outcome
    if best is None or best[0].core_mhz >= adviser.clocks.core_mhz:
        return None
    pair, outcome = best
    longer = 100 * (outcome.seconds / adviser.before.seconds - 1)
    return Otherwise(
        "lower_clocks",
        f"the launch is bound by {bound}: at {pair.core_mhz:g} instead of "
        f"{adviser.clocks.core_mhz:g} MHz it takes {longer:+.1f} % time",
        f"lock the core clock at {pair.core_mhz:g} MHz (nvidia-smi --lock-gpu-clocks)",
        {"clocks": pair._asdict()},
        outcome,
    )


# The user's own lines with a change made: compiled, predicted, and kept where that saves enough.
#
# Each change is one that leaves results as they are. An array of shared memory gets longer rows
# only where its name stands with both indices everywhere; ``__restrict__`` holds where no two
# pointers overlap, which its remedy says.

MOST_PATCHES = 12
"""Changed sources that are compiled for one answer."""

_WORDS = "float|int|unsigned|unsigned int|int32_t|uint32_t|double|float2"
_SHARED = re.compile(rf"__shared__\s+(?:volatile\s+)?(?:{_WORDS})\s+([^;]+);")
_INDEX = r"\s*\[((?:[^\[\]]|\[[^\[\]]*\])+)\]"
_ROWS = re.compile(rf"(\w+){_INDEX}{_INDEX}(?!\s*\[)")
_CAST = re.compile(r"_cast\s*<|\*\s*\)\s*\(?\s*&")
_FOR = re.compile(r"[ \t]*for\s*\(")

_LANES = re.compile(
    r"_sync\s*\(|\b(?:wmma|mma|cooperative_groups|warpSize)\b|\basm\b|%(?:laneid|tid)"
)
_TREE = re.compile(
    r"(?P<indent>[ \t]*)(?P<head>for\s*\(\s*(?:unsigned\s+int|unsigned|int)\s+(?P<step>\w+)\s*=\s*"
    r"blockDim\.x\s*(?:/\s*2|>>\s*1)\s*;\s*(?P=step)\s*>\s*0\s*;\s*(?P=step)\s*(?:>>=\s*1|/=\s*2)\s*\))"
    r"\s*\{\s*if\s*\(\s*(?P<thread>threadIdx\.x|\w+)\s*<\s*(?P=step)\s*\)\s*\{?\s*(?P<array>\w+)\[(?P=thread)\]"
    r"\s*\+=\s*(?P=array)\[(?P=thread)\s*\+\s*(?P=step)\]\s*;\s*\}?\s*__syncthreads\(\)\s*;\s*\}"
)
_SPREAD = re.compile(
    r"if\s*\(\s*(?P<thread>threadIdx\.x|\w+)\s*%\s*\(\s*2\s*\*\s*(?P<step>\w+)\s*\)\s*==\s*0\s*\)\s*"
    r"(?P<array>\w+)\[(?P=thread)\]\s*\+=\s*(?P=array)\[(?P=thread)\s*\+\s*(?P=step)\]\s*;"
)
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
        except errors.WattcastError:  # it does not compile, or cannot be launched
            continue
        saved = gain(adviser.before, after)
        apart = 100 * RESOLUTION
        if saved.energy_percent < apart or saved.time_percent < -apart or analysis.trips_assumed:
            continue
        old, new = (text.splitlines(keepends=True) for text in (source, changed))
        diff = "".join(unified_diff(old, new, f"a/{file}", f"b/{file}"))
        found.append(Patch(code=code, remedy=remedy, diff=diff, after=after, gain=saved))
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
    for change in (_restricted, _turned, _shuffled, _side_by_side, _known):
        yield from change(adviser, source)
    if adviser.request.loops:
        return  # they may be named by their lines
    run = {one.location.line for one in adviser.analysis.function.body.instructions if one.location}
    lines = source.splitlines(keepends=True)
    for at, line in enumerate(lines):
        if at + 1 in run and _FOR.match(line) and not (at and "#pragma" in lines[at - 1]):
            indent = line[: len(line) - len(line.lstrip())]
            unrolled = [*lines[:at], f"{indent}#pragma unroll 8\n", *lines[at:]]
            yield "unroll", f"unroll the loop of line {at + 1}", "".join(unrolled)


def _signature(adviser: Adviser, source: str) -> re.Match[str] | None:
    """The kernel's head, to the end of its parameters, which are the group."""
    name = re.split(r"[<(]", adviser.analysis.function.demangled)[0].split()[-1].split("::")[-1]
    return re.search(rf"__global__[^;{{}}]*?\b{re.escape(name)}\s*\(([^()]*)\)(?=\s*{{)", source)


def _body(adviser: Adviser, source: str) -> tuple[int, int]:
    """Where the kernel's lines stand; nowhere if that cannot be told."""
    signature = _signature(adviser, source)
    depth = 0
    for brace in re.finditer(r"[{}]", source[signature.end() :] if signature else ""):
        depth += 1 if brace[0] == "{" else -1
        if signature and not depth:
            return signature.end(), signature.end() + brace.end()
    return 0, 0


def _turned(adviser: Adviser, source: str) -> Iterator[_Change]:
    """Threads of a square block change places: each place is still taken by one of them."""
    first, second, third = adviser.analysis.launch.block
    at, end = _body(adviser, source)
    body = source[at:end]
    if first != second or third > 1 or _LANES.search(source):
        return
    if "threadIdx" in source[:at] + source[end:]:
        return  # what is called may use it too
    turned = re.sub(r"threadIdx\.([xy])", lambda one: "threadIdx." + "yx"[one[1] == "y"], body)
    remedy = "let threadIdx.x and threadIdx.y change places, so that neighbours touch neighbours"
    if turned != body:
        yield "uncoalesced_access", remedy, source[:at] + turned + source[end:]


def _shuffled(adviser: Adviser, source: str) -> Iterator[_Change]:
    """The last six steps of a reduction in shared memory, by the shuffles of one warp: the same
    sums in the same order."""
    threads, *others = adviser.analysis.launch.block
    at, end = _body(adviser, source)
    found = _TREE.search(source, at, end)
    if found is None or others != [1, 1] or threads < 64 or threads & (threads - 1):
        return
    head, step, thread, array = found["head"], found["step"], found["thread"], found["array"]
    kind = re.search(rf"__shared__\s+({_WORDS})\s+{array}\s*\[[^\[\]]*\]\s*;", source)
    if kind is None or (
        thread != "threadIdx.x"
        and not re.search(rf"\b{thread}\s*=\s*threadIdx\.x\s*[;,]", source[at:end])
    ):
        return
    indent = found["indent"]
    lines = (
        f"if ({thread} < 32) {{",
        f"    {kind[1]} value = {array}[{thread}] + {array}[{thread} + 32];",
        "    for (int apart = 16; apart > 0; apart >>= 1)",
        "        value += __shfl_down_sync(0xffffffffu, value, apart);",
        f"    if ({thread} == 0) {array}[0] = value;",
        "}",
        "__syncthreads();",
    )
    longer = found[0].replace(head, re.sub(rf"\b{step}\s*>\s*0", f"{step} > 32", head), 1)
    changed = longer + "".join(f"\n{indent}{line}" for line in lines)
    remedy = "let one warp do the last six steps by shuffles, with one barrier"
    yield "shared_reduction", remedy, source[: found.start()] + changed + source[found.end() :]


def _side_by_side(adviser: Adviser, source: str) -> Iterator[_Change]:
    """The adding threads of a reduction's step side by side: the same words are added in the same
    order, by other threads."""
    at, end = _body(adviser, source)
    found = _SPREAD.search(source, at, end)
    if found is None or adviser.analysis.launch.block[1:] != (1, 1):
        return
    thread, step, array = found["thread"], found["step"], found["array"]
    named = rf"\b{thread}\s*=\s*threadIdx\.x\s*[;,]"
    halved = rf"for\s*\([^;]*\b{step}\s*=\s*1\s*;\s*{step}\s*<\s*blockDim\.x\s*;[^;]*\)\s*{{\s*$"
    if not re.search(halved, source[at : found.start()]) or not (
        thread == "threadIdx.x" or re.search(named, source[at : found.start()])
    ):
        return
    place = f"2 * {step} * {thread}"
    line = f"if ({place} < blockDim.x) {array}[{place}] += {array}[{place} + {step}];"
    remedy = "let the first threads of the block add, side by side"
    yield "divergent_branch", remedy, source[: found.start()] + line + source[found.end() :]


def _known(adviser: Adviser, source: str) -> Iterator[_Change]:
    """Integers that others are divided by, known to the compiler as what the launch gives."""
    signature, (at, end) = _signature(adviser, source), _body(adviser, source)
    given = adviser.analysis.launch.arguments
    parameters = adviser.analysis.function.parameters
    told = signature[1].split(",") if signature else []
    if len(told) != len(parameters):
        return  # commas of something else
    for place, each in enumerate(told):
        name = each.split()[-1] if each.strip() else ""
        value = given.get(str(place), given.get(parameters[place].name))
        divides = name.isidentifier() and re.search(rf"[/%]=?\s*{name}\b", source[at:end])
        if not isinstance(value, int) or not divides:
            continue
        start = source.index("{", at) + 1
        line = f"\n    __builtin_assume({name} == {value});"
        remedy = f"tell the compiler that {name} is {value}, if it always is"
        yield "constant_division", remedy, source[:start] + line + source[start:]


def _restricted(adviser: Adviser, source: str) -> Iterator[_Change]:
    """No pointer of the kernel named points where another does."""
    signature = _signature(adviser, source)
    if signature is None or "restrict" in signature[1] or signature[1].count("*") < 2:
        return
    told = re.sub(r"\*\s*(\w+)", r"* __restrict__ \1", signature[1])
    at, end = signature.span(1)
    yield (
        "restrict",
        "declare the pointers __restrict__, if none points where another writes",
        source[:at] + told + source[end:],
    )
