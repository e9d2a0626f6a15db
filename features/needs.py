"""Which missing arguments matter most: those that decide trips, guards or what is touched."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from wattcast.features.attached import Attached
from wattcast.features.dataflow import arguments_of
from wattcast.features.launch import Launch, PointerHint
from wattcast.features.loops import Deciding, deciding
from wattcast.features.ptx.ir import Address, Function, Register
from wattcast.features.trips import TripCount

MOST_LINES = 3
"""Lines named of what an argument decides."""


@dataclass(frozen=True, slots=True)
class Need:
    """An argument that was not given and matters. ``argument`` is its name in the PTX.

    ``decides`` names the place, ``effect`` what it does to the answer, ``assumed`` what stands in
    for it: a value, or (``assumes`` is ``trips``) the trips of the loops it decides. Of a pointer
    ``by_data`` says that what it points to decides.
    """

    argument: str
    position: int
    decides: str
    effect: str
    assumed: float
    assumes: str
    by_data: bool = False


def missing(
    function: Function, launch: Launch, trips: Sequence[TripCount], filled: Launch
) -> tuple[Need, ...]:
    """What to ask for, the most consequential first: loops (the deepest), data that loops rest on,
    guards, addresses. Loops whose trips are given need no argument. ``filled`` is the launch
    ``with_guards``."""
    from wattcast.features.execution import assumed_integer

    known = deciding(function)
    open_loops = [trip for trip in trips if trip.how in ("assumed", "executed")]
    found: list[tuple[tuple[int, int], Need]] = []
    names = {parameter.name: at for at, parameter in enumerate(function.parameters)}
    told = launch.by_name(list(names))
    places = _places.set(function, {})
    for name, parameter in arguments_of(function).items():
        position = names[name.partition("+")[0]]
        given = told.get(name)
        described = isinstance(given, PointerHint) and given.describes(trips=True)
        if described or (given is not None and not isinstance(given, PointerHint)):
            continue
        loops = [t for t in open_loops if name in known.loops[t.loop].arguments]
        on_data = [t for t in open_loops if name in known.loops[t.loop].data]
        if loops and given is None:
            depth = _nesting(known, loops)
            grows = "linearly with" if depth == 1 else f"with power {depth} of"
            value = filled.arguments.get(name)
            stands = loops[0].source_count or loops[0].count, "trips"
            if isinstance(value, int):
                stands = value, "value"
            need = Need(name, position, _loops(loops), f"time grows about {grows} it", *stands)
            found.append(((0, -depth), need))
        elif on_data:
            need = Need(name, position, f"{_loops(on_data)}, by the data it points to",
                        "trips follow from the data: describe them, or give the loop's trips",
                        on_data[0].source_count or on_data[0].count, "trips", True)  # fmt: skip
            found.append(((1, 0), need))
        elif given is None and not parameter.is_pointer and parameter.type[:1] in "sub":
            value = assumed_integer(function, name, launch)
            if value is None:
                continue
            if name not in places:
                places[name] = _place(function, known, name)
            place = places[name]
            if place is None:
                continue
            rank, decides, effect = place
            found.append(((rank, 0), Need(name, position, decides, effect, value, "value")))
    return tuple(need for _, need in sorted(found, key=lambda one: (one[0], one[1].position)))


def with_assumed(
    function: Function, launch: Launch, wanted: Collection[str] | None = None
) -> Launch:
    """The launch with what an execution assumes of integers that nobody gave, or of some."""
    from wattcast.features.execution import assumed_integer

    given = launch.by_name([parameter.name for parameter in function.parameters])
    missing = (
        name
        for name in arguments_of(function)
        if name not in given and (wanted is None or name in wanted)
    )
    found = {name: assumed_integer(function, name, launch) for name in missing}
    known = {name: value for name, value in found.items() if value is not None}
    return replace(launch, arguments={**known, **launch.arguments}) if known else launch


FILLING = 1 << 17
"""Threads of launches that are made to fill a board, whatever there is to do (a V100 holds
163,840): a loop over the grid says nothing then of how often it is gone round. Of the public
programs of ``python -m studies code-alone`` with such loops, 8 of 14 with fewer threads took over
four times as long as one turn of them is told, and 4 of 13 with more."""
_BLOCKS = frozenset(f"%nctaid.{axis}" for axis in "xyz")


def with_guards(function: Function, launch: Launch) -> Launch:
    """The launch with integers that nobody gave, that decide loops, and that an index over blocks
    is compared with: threads are launched for what there is to do, so their number tells both."""
    known = deciding(function).loops
    given = launch.by_name([parameter.name for parameter in function.parameters]).keys()
    missing = [one.arguments - given for one in known]
    if not any(missing):
        return launch
    from wattcast.features.execution import guarding

    told = guarding(function)
    if launch.threads <= FILLING:
        strided = (one for one in known if not one.special.isdisjoint(_BLOCKS))
        told = told.difference(*(one.arguments for one in strided))
    wanted = frozenset[str]().union(*(one for one in missing if one <= told))
    return with_assumed(function, launch, wanted) if wanted else launch


def _nesting(known: Deciding, trips: Sequence[TripCount]) -> int:
    """How many of the loops lie in each other."""
    wanted, forest = {trip.loop for trip in trips}, known.forest
    around = (forest.around(forest.loops[loop].header) for loop in wanted)
    return max(len(wanted.intersection(loops)) for loops in around)


def _loops(trips: Sequence[TripCount]) -> str:
    lines = sorted({trip.source_line or trip.line for trip in trips})
    return _lines("loop", lines)


def _lines(what: str, lines: Sequence[int]) -> str:
    if len(lines) == 1:
        return f"{what} in line {lines[0]}"
    told = ", ".join(str(line) for line in lines[:MOST_LINES])
    return f"{what}s in lines {told}" + (" and more" if len(lines) > MOST_LINES else "")


_Place = tuple[int, str, str] | None


_places: Attached[Function, dict[str, _Place]] = Attached("places")


def _place(function: Function, known: Deciding, name: str) -> _Place:
    """Rank, place and effect of a guard or an address that an argument decides."""
    guards: set[int] = set()
    addresses: set[int] = set()
    origins: dict[str, bool] = {}

    def decided(register: str) -> bool:
        if register not in origins:
            origins[register] = name in known.of(register).arguments
        return origins[register]

    for one in function.body.instructions:
        line = one.location.line if one.location else one.line
        if one.predicate is not None and decided(one.predicate):
            guards.add(line)
        elif not one.opcode.startswith(("ld.param", "st.param")):
            for operand in one.operands:
                base = operand.base if isinstance(operand, Address) else None
                if isinstance(base, Register) and decided(base.name):
                    addresses.add(line)
    if guards:
        effect = "it tells which threads work"
        return 2, _lines("guard", sorted(guards)), effect
    if addresses:
        effect = "it tells which memory is touched, and how far apart"
        return 3, _lines("address", sorted(addresses)).replace("addresss", "addresses"), effect
    return None
