"""Texture and surface instructions: fetched values are invented (PTX ISA 8.x, 9.7.10-11)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wattcast.features.execution.context import Context
from wattcast.features.execution.groups import Group
from wattcast.features.execution.operands import TRASH, Frame, Handler, Items, elements, store
from wattcast.features.execution.values import F32, S32, TYPES, U64, Array, as_type, spread
from wattcast.features.integers import UNSIGNED
from wattcast.features.ptx import ir

if TYPE_CHECKING:
    from wattcast.features.execution.machine import Machine


BASES = frozenset({"tex", "tld4", "txq", "suld", "sust", "sured", "suq"})
_RANDOM = np.random.default_rng(20260101).random(1 << 12)


def build(context: Context, base: str, modifiers: tuple[str, ...], items: Items) -> Handler:
    """A fetch gives each thread a value in [0, 1) (integers: [0, 256)) by its coordinates."""
    operands = context.operands
    types = [m for m in modifiers if m in TYPES]
    result = TYPES[types[0]] if types else F32
    if base == "tex" and len(types) > 1:
        result = TYPES[types[-2]]
    site = context.site("texture", 4, loads=base != "sust", stores=base in ("sust", "sured"))
    if base in ("sust", "sured"):

        def surface(frame: Frame, group: Group) -> None:
            group.machine.tallies[site.number].requests += group.warps

        return surface
    outs = [operands.target(o, result) for o in elements(items[0])]
    fits = [operands.writer(o, result) for o in outs]
    address = items[1]
    coordinates: list[int] = []
    if isinstance(address, ir.Address):
        for item in address.coordinates:
            parts = [p for p in elements(item) if isinstance(p, ir.Register | ir.Immediate)]
            coordinates += [operands.source(p, S32) for p in parts]
    texture = None
    if isinstance(address, ir.Address) and isinstance(address.base, ir.Register):
        texture = operands.source(address.base, U64)
    by_float = bool(types) and types[-1] == "f32"

    def texel(machine: Machine, frame: Frame) -> Array | None:
        """A texel of a given image: point sampling, clamped, coordinates not normalised."""
        if texture is None or not machine.textures:
            return None
        image = machine.textures.get(int(frame[texture].reshape(-1)[0]))
        if image is None:
            return None
        places = []
        for slot, size in zip(coordinates, reversed(image.shape), strict=False):
            held = as_type(frame[slot], F32 if by_float else S32)
            whole = np.floor(held.astype(np.float64)).astype(np.int64)
            places.append(np.clip(whole, 0, size - 1))
        return image[tuple(reversed(places))]

    def fetch(frame: Frame, group: Group) -> None:
        machine = group.machine
        machine.tallies[site.number].requests += group.warps
        found = texel(machine, frame) if base == "tex" else None
        if found is not None:
            for out, value in zip(outs, (found, 0, 0, 1), strict=False):
                if out != TRASH:
                    channel = spread(np.atleast_1d(np.asarray(value)).astype(result), machine.count)
                    store(frame, group, out, channel)
            return
        mixed: Array = np.zeros(1, dtype=np.uint64)
        for slot in coordinates:
            held = frame[slot]
            bits = as_type(held, UNSIGNED[held.dtype.itemsize]).astype(np.uint64)
            mixed = mixed * np.uint64(2654435761) + (bits ^ (bits >> np.uint64(15)))
        for k, (out, fit) in enumerate(zip(outs, fits, strict=True)):
            if out == TRASH:
                continue
            values = _RANDOM[((mixed + np.uint64(977 * k)) & np.uint64(0xFFF)).astype(np.intp)]
            whole = (values * 256).astype(result) if result.kind != "f" else values.astype(result)
            whole = spread(whole, machine.count)
            store(frame, group, out, fit(whole) if fit else whole)

    return fetch
