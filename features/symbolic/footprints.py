"""Reuse in global memory, from the forms of its addresses alone.

An address that is a sum of multiples (of lane, block and loop counters) touches a box: its
dimensions are strides and how often each is taken. How many sectors or lines the iterations of a
loop, a block or some blocks touch, and how many two boxes have in common, follows in closed form
(cache analysis of affine loops: Wolf, Lam, A Data Locality Optimizing Algorithm, PLDI 1991).
What is touched again is told with its distance, in requests of the block since.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate
from math import gcd, prod
from operator import mul

from wattcast.features.attached import attached
from wattcast.features.counts import ReuseCurve, Run, Sharing, Stream, Traffic
from wattcast.features.execution.footprints import DIRECT
from wattcast.features.isa import classify
from wattcast.features.launch import Dim3, Launch, PointerHint, in_rows
from wattcast.features.memory import LINE_BYTES, SECTOR_BYTES
from wattcast.features.ptx.ir import Function, Module
from wattcast.features.symbolic.analyse import Arguments
from wattcast.features.symbolic.build import scheme
from wattcast.features.symbolic.forms import (
    Box,
    Form,
    Forms,
    IrregularError,
    form_of,
    in_lines,
)
from wattcast.features.symbolic.results import SymbolicResult, refused
from wattcast.features.symbolic.scheme import Access, Scheme
from wattcast.features.values import Node

_MOVES = {"load", "copy", "store", "atomic"}
_TOLD = {"global", "generic", "shared", "param", "const"}
NEAR, COALESCED, NEGLIGIBLE, EDGES = 512.0, 8.0, 0.01, 0.1
"""Where no cache matters: requests of a block within which data are touched again, by requests for
so many sectors; the share touched later or by far blocks; the share that the next block touches."""
FAR = 8
"""Blocks apart from which two are far from each other."""


@dataclass
class Group:
    """Accesses of one form that lie side by side in one loop: what a warp loads or stores."""

    form: Form
    width: int
    loops: tuple[int, ...]
    offsets: set[int] = field(default_factory=set)
    kept: float = 0.0
    direct: float = 0.0
    stored: float = 0.0
    atomic: float = 0.0
    requests: float = 0.0
    places: list[int] = field(default_factory=list)

    @property
    def loads(self) -> float:
        """Sectors asked for, of the launch."""
        return self.kept + self.direct + self.atomic

    def boxes(self, loops: Iterable[int], more: Iterable[tuple[int, float]] = ()) -> list[Box]:
        """What lanes, some loops and further dimensions touch, at offsets far apart."""
        inside = {-1, *loops}
        dims = [*((d.stride, d.times) for d in self.form.dims if d.loop in inside), *more]
        extent = Box(0, self.width, dims).extent
        found: list[Box] = []
        first = last = min(self.offsets)
        for offset in [*sorted(self.offsets), None]:
            if offset is not None and offset - last <= extent:
                last = offset
                continue
            found.append(Box(first, self.width + last - first, dims))
            if offset is not None:
                first = last = offset
        return found

    def units(self, boxes: list[Box], unit: int) -> float:
        """Distinct units of boxes that differ in where they start."""
        grain = gcd(*self.form.blocks, *(dim.stride for dim in self.form.dims if dim.loop >= 0))
        total = 0.0
        for before, here in zip([None, *boxes], boxes, strict=False):
            new = 1.0 if before is None else 1.0 - before.common(here.start - before.start, unit)
            total += here.units(unit, grain) * new
        return total


class _Launch:
    """Everything about one launch that groups are measured by."""

    def __init__(self, launch: Launch, result: SymbolicResult, groups: list[Group]) -> None:
        self.launch, self.groups = launch, groups
        self.trips = {loop.loop: max(1.0, loop.count) for loop in result.loops}
        self.period: dict[int, float] = {}  # requests of a block in one iteration of a loop
        for group in groups:
            share = group.requests / launch.blocks
            for loop in group.loops:
                share /= self.trips.get(loop, 1.0)
                self.period[loop] = self.period.get(loop, 0.0) + share
        self.whole = max(1.0, sum(group.requests for group in groups) / launch.blocks)

    def between(self, group: Group) -> float:
        """Requests of a block from one access of a group to the next, in one iteration."""
        count = len(group.places)
        low, high = min(group.places), max(group.places)
        times = prod(self.trips.get(loop, 1.0) for loop in group.loops)
        passed = sum(
            other.requests / len(other.places)
            for other in self.groups
            if other.loops == group.loops
            for place in other.places
            if low < place <= high
        )
        return max(1.0, passed / self.launch.blocks / times / max(1, count - 1))


class _Measured:
    """One group: distinct units by how much of the block's loops is looked at, and repeats."""

    def __init__(self, known: _Launch, group: Group) -> None:
        self.group = group
        blocks = known.launch.blocks
        asked = (group.loads + group.stored) / blocks
        times = [known.trips.get(loop, 1.0) for loop in group.loops]
        inner = asked / prod(times)
        boxes = [group.boxes(group.loops[place:]) for place in range(len(times), -1, -1)]
        cap = list(accumulate(reversed(times), mul, initial=inner))
        self.boxes = boxes
        self.sectors = [
            min(c, group.units(b, SECTOR_BYTES)) for b, c in zip(boxes, cap, strict=True)
        ]
        self.lines = [min(c, group.units(b, LINE_BYTES)) for b, c in zip(boxes, cap, strict=True)]
        periods = [known.period[loop] for loop in reversed(group.loops)]
        first = periods[0] if periods else known.whole
        # Repeats: (gap, sectors of a block), from inside an iteration to the outermost loop.
        self.repeats = [(known.between(group), (inner - self.sectors[0]) * prod(times))]
        self.points = [(0.0, 0.0), (first, self.lines[0])]
        for place, period in enumerate(periods):
            count = times[len(times) - 1 - place]
            outer = asked / cap[place + 1]
            again = (count * self.sectors[place] - self.sectors[place + 1]) * outer
            self.repeats.append((period, max(0.0, again)))
            self.points += [(period, self.lines[place]), (count * period, self.lines[place + 1])]
        self.points.append((known.whole, self.lines[-1]))
        near = NEAR if group.loads + group.stored <= COALESCED * group.requests else 0.0
        later = sum(sectors for gap, sectors in self.repeats if gap > near)
        self.once = later <= NEGLIGIBLE * asked
        self.asked, self.share = asked, 1.0
        # The same steps of the same counts, in whatever loop; and how blocks lie to each other.
        self.family = tuple(sorted((d.stride, d.times) for d in group.form.dims)), group.form.blocks
        self.leads, self.again = True, False
        self._over: list[Box] | None = None
        if periods:
            self.share = min(1.0, times[0] * periods[-1] / known.whole)

    def over(self, grid: Dim3) -> list[Box]:
        """The boxes of the whole grid."""
        if self._over is None:
            moves = [(s, float(n)) for s, n in zip(self.group.form.blocks, grid, strict=True)]
            self._over = self.group.boxes(self.group.loops, moves)
        return self._over

    def lines_in(self, window: float) -> float:
        """Distinct lines in a window of so many requests, on average."""
        below, above = self.points[0], self.points[-1]
        for point in self.points:
            if point[0] <= window:
                below = max(below, point)
            else:
                above = min(above, point)
        width = above[0] - below[0]
        if window >= self.points[-1][0] or width <= 0:
            return max(below[1], self.points[-1][1] if window >= self.points[-1][0] else 0.0)
        inside = below[1] + (above[1] - below[1]) * (window - below[0]) / width
        return inside * min(1.0, self.share + (1 - self.share) * window / self.points[-1][0])


def traffic(
    module: Module, function: Function, launch: Launch, result: SymbolicResult, row: int = 0
) -> Traffic:
    """What the launch does to each buffer; exact where no cache matters: nothing is touched again
    that one may have dropped. ``row``: see ``row_of``.

    Raises AnalysisError for an access whose address is no sum of multiples.
    """
    made = scheme(module, function)
    arguments = Arguments(made, launch, module)
    forms = Forms(made, launch, arguments.constant)
    forms.row = row
    groups = _grouped(forms, result)
    known = _Launch(in_rows(launch, row), result, groups)
    by_origin: dict[str, list[_Measured]] = {}
    for group in groups:
        by_origin.setdefault(group.form.origin, []).append(_Measured(known, group))
    found = [_stream(known, name, members, arguments) for name, members in by_origin.items()]
    once = not _others(made) and all(m.once for ms in by_origin.values() for m in ms)
    return Traffic(
        sum(s.kept_load_sectors + s.direct_load_sectors + s.atomic_sectors for s in found),
        sum(s.store_sectors + s.atomic_sectors for s in found),
        sum(stream.distinct_sectors for stream in found),
        launch.blocks,
        known.whole,
        tuple(found),
        known.launch.grid,
        once and all(_apart(one.sharing) for one in found),
    )


def _apart(sharing: Sharing) -> bool:
    """Whether blocks share nothing but the edges of those beside them, which run with them."""
    far = max(sharing.everyone, sharing.below, sharing.row, sharing.column)
    return far < NEGLIGIBLE and sharing.beside < EDGES


@attached
def _others(made: Scheme) -> bool:
    """Whether the kernel asks for memory in ways that no group tells of: textures, the stack."""
    kinds = [classify(one.opcode) for one in made.cfg.body.instructions]
    asked = {(kind.space, kind.category) for kind in kinds if kind.accesses_memory}
    return any(space not in _TOLD or kind not in _MOVES for space, kind in asked)


def _grouped(forms: Forms, result: SymbolicResult) -> list[Group]:
    """Accesses by form."""
    made = forms.scheme
    counts = result.functions[made.function.name]
    every, asked = counts.sectors.tolist(), counts.requests.tolist()
    trips = {loop.loop: max(1.0, loop.count) for loop in result.loops}
    loop_of = {phi.node: loop for loop, phis in made.loop_phis.items() for phi in phis}
    found: dict[object, Group] = {}
    known: dict[Node, tuple[Form, Form]] = {}
    for block, accesses in enumerate(made.accesses):
        loops = made.forest.around(block)
        for access in accesses:
            at = access.position
            sectors = every[at]
            if access.space not in ("global", "generic") or not sectors:
                continue
            if access.facts.category not in _MOVES:
                continue
            try:
                pair = known.get(access.address)
                if pair is None:
                    form = form_of(access.address, forms, trips, loop_of)
                    pair = known[access.address] = form, form._replace(offset=0)
                form, width = in_lines(pair[0], access, forms)
            except IrregularError:
                line = made.cfg.body.instructions[at].line
                why = "its address is no sum of multiples of lane, block and loop counters"
                what = f"the reuse of the access in line {line} of the PTX is not proven"
                raise refused(f"{what} ({why})") from None
            key = pair[1] if form is pair[0] else form._replace(offset=0), loops, width
            group = found.get(key)
            if group is None:
                group = found[key] = Group(form, width, loops)
            group.offsets.add(form.offset + access.offset)
            _add(group, access, made, sectors)
            group.requests += asked[at]
            group.places.append(at)
    return list(found.values())


def _add(group: Group, access: Access, made: Scheme, sectors: float) -> None:
    opcode = made.cfg.body.instructions[access.position].opcode
    if access.facts.category == "atomic":
        group.atomic += sectors
    elif access.facts.category == "store":
        group.stored += sectors
    elif DIRECT.isdisjoint(opcode.split(".")):
        group.kept += sectors
    else:
        group.direct += sectors


def _most(name: str, width: int, arguments: Arguments) -> float:
    """Sectors of a buffer whose elements are told."""
    hint = arguments.given.get(name)
    if isinstance(hint, PointerHint) and hint.elements:
        return max(1.0, hint.elements * width / SECTOR_BYTES)
    return float("inf")


def _curve(known: _Launch, mine: list[_Measured]) -> ReuseCurve:
    """How soon a block comes back to what some groups touch."""
    gaps = {gap for m in mine for gap, _ in m.repeats}
    windows = sorted(
        {0.0, known.whole}
        | {at for m in mine for at, _ in m.points}
        | {edge for gap in gaps for edge in (gap * 0.999, gap)}
    )

    def beyond(parts: list[tuple[float, float]]) -> tuple[float, ...]:
        total = sum(sectors for _, sectors in parts)
        return tuple(
            sum(s for gap, s in parts if gap > window) / total if total else 0.0
            for window in windows
        )

    def repeats(attribute: str) -> list[tuple[float, float]]:
        return [
            (gap, sectors * getattr(m.group, attribute) / max(1e-300, m.asked))
            for m in mine
            for gap, sectors in m.repeats
            if sectors > 0
        ]

    most = sum({m.family: m.lines[-1] for m in reversed(mine)}.values())
    return ReuseCurve(
        tuple(windows),
        tuple(min(most, sum(m.lines_in(window) for m in mine)) for window in windows),
        beyond(repeats("loads")),
        beyond([(g, s) for name in ("stored", "atomic") for g, s in repeats(name)]),
    )


def _sharing(known: _Launch, members: list[_Measured], unit: int) -> Sharing:
    """What blocks have in common, by the strides from block to block."""
    grid = known.launch.grid
    wide, high = grid[0] > 1, grid[1] * grid[2] > 1
    sums = [0.0] * 5
    total = 0.0
    for m in members:
        boxes, each = m.boxes[-1], m.sectors[-1]
        if m.again:
            continue
        total += each
        if not m.leads:  # what other blocks lead with
            sums[1], sums[2] = sums[1] + each, sums[2] + each
            continue
        x, y, z = (s if size > 1 else 0 for s, size in zip(m.group.form.blocks, grid, strict=True))
        down = y or z
        shares = (
            float(not (x or y or z)),
            wide * _moved(boxes, x, unit),
            high * _moved(boxes, down, unit),
            wide * _moved(boxes, _far(x, unit), unit),
            high * _moved(boxes, _far(down, unit), unit),
        )
        sums = [s + each * share for s, share in zip(sums, shares, strict=True)]
    everyone, beside, below, row, column = (s / max(total, 1e-300) for s in sums)

    def of_rest(share: float) -> float:
        return max(0.0, (share - everyone) / (1.0 - everyone)) if everyone < 1.0 else 0.0

    return Sharing(everyone, of_rest(beside), of_rest(below), of_rest(row), of_rest(column))


def _far(step: int, unit: int) -> int:
    """How far from each other far blocks lie: not in the same unit by chance."""
    return FAR * step if abs(FAR * step) >= unit or not step else unit


def _moved(boxes: list[Box], shift: int, unit: int) -> float:
    """The share of some boxes that, moved, they touch too."""
    if not shift:
        return 1.0
    found = (
        max(other.common(one.start + shift - other.start, unit) for other in boxes) for one in boxes
    )
    return sum(found) / len(boxes)


def _distinct(known: _Launch, members: list[_Measured], unit: int) -> float:
    """Distinct units of the whole launch."""
    total = 0.0
    for m in (m for m in members if m.leads):
        box = m.over(known.launch.grid)
        one = (m.sectors if unit == SECTOR_BYTES else m.lines)[-1]
        total += min(one * known.launch.blocks, max(one, m.group.units(box, unit)))
    return total


def _follow(known: _Launch, members: list[_Measured]) -> None:
    """Tell who touches first, what others touch again in another loop, and what lies at the edges
    of other blocks' data (halos)."""
    members.sort(key=lambda m: -m.sectors[-1])
    first: dict[object, _Measured] = {}
    for m in members:
        leader = first.setdefault(m.family[1], m)
        m.leads = leader is m
        m.again = m.family == leader.family and not m.leads
        if m.again:
            # Half a life of the block lies between two passes, more or less.
            for kind in ("loads", "stored"):
                if getattr(m.group, kind) and getattr(leader.group, kind):
                    m.repeats.append((known.whole / 2, m.sectors[-1]))


def _stream(known: _Launch, name: str, members: list[_Measured], arguments: Arguments) -> Stream:
    blocks = known.launch.blocks
    most = max(_most(name, m.group.width, arguments) for m in members)
    _follow(known, members)

    def unique(*kinds: str) -> float:
        """Sectors distinct within a block, summed over blocks, of groups that do such a thing."""
        found: dict[object, float] = {}
        for m in members:
            asked = sum(getattr(m.group, kind) for kind in kinds)
            found[m.family] = max(found.get(m.family, 0.0), min(blocks * m.sectors[-1], asked))
        return sum(found.values())

    def of(kind: str) -> float:
        return float(sum(getattr(m.group, kind) for m in members))

    loads = unique("kept", "direct", "atomic")
    every, kept = _curve(known, members), [m for m in members if m.group.kept]
    return Stream(
        name=name or "(no pointer)",
        kept_load_sectors=of("kept"),
        direct_load_sectors=of("direct"),
        store_sectors=of("stored"),
        atomic_sectors=of("atomic"),
        unique_kept_sectors=unique("kept"),
        unique_load_sectors=loads,
        unique_read_sectors=loads,
        unique_store_sectors=unique("stored", "atomic"),
        distinct_sectors=min(most, _distinct(known, members, SECTOR_BYTES)),
        distinct_lines=min(most, _distinct(known, members, LINE_BYTES)),
        sharing=_sharing(known, members, SECTOR_BYTES),
        line_sharing=_sharing(known, members, LINE_BYTES),
        kept=_curve(known, kept) if len(kept) < len(members) else every,
        all=every,
        run=_run(known.launch.grid, members),
    )


def _run(grid: Dim3, members: list[_Measured]) -> Run:
    """What lies side by side; blocks move on as those do that touch most."""
    total = pieces = 0.0
    for m in members:
        boxes = m.boxes[-1]
        total += m.sectors[-1]
        long = sum(max(box.extent, SECTOR_BYTES) for box in boxes) / len(boxes)
        pieces += m.sectors[-1] * SECTOR_BYTES / long
    x, y, z = (abs(step) / SECTOR_BYTES for step in members[0].group.form.blocks)
    return Run(total / max(pieces, 1e-300), x, y if grid[1] > 1 else z)
