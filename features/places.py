"""How two launches of a kernel differ, and values that a thread finds the same under both.

A value is a polynomial in the special registers and the parameters. Along an axis whose block
changes, a thread's place in the grid is ``g = ctaid * ntid + tid``. With ``tid = g - ctaid * ntid``
put in, the value is the same under both launches if ``ctaid`` and ``ntid`` cancel.
"""

from __future__ import annotations

from typing import NamedTuple

from wattcast.features.integers import wrap
from wattcast.features.launch import WARP_SIZE, Launch

AXES = "xyz"
MOST_TERMS = 32
"""Terms of a polynomial that is still followed; indices of real kernels have up to 9."""

MOST_DEGREE = 6
"""Factors of a term that is still followed: a place in a grid of three axes has up to 4."""


Term = tuple[str, ...]
Polynomial = dict[Term, int]


class Value(NamedTuple):
    """``polynomial`` (in what no thread ever changes), and if ``more``, something besides that
    does not depend on the block. ``None`` for the polynomial: it may depend on it in any way."""

    polynomial: tuple[tuple[Term, int], ...] | None
    more: bool = False

    @classmethod
    def of(cls, term: Term, factor: int = 1) -> Value:
        """A single term; the empty one is a number."""
        return cls(((term, factor),) if factor else ())


CLEAN = Value((), True)
LOST = Value(None)


def to_value(terms: Polynomial, more: bool = False) -> Value:
    """Factors count modulo 2**64, as registers of 64 and of 32 bits do."""
    kept = tuple(sorted((t, wrap(f, 64)) for t, f in terms.items() if wrap(f, 64)))
    if len(kept) > MOST_TERMS or any(len(term) > MOST_DEGREE for term, _ in kept):
        return LOST
    return Value(kept, more)


def added(left: Value, right: Value, sign: int = 1) -> Value:
    """The sum of two values, or (``sign`` -1) their difference."""
    if left.polynomial is None or right.polynomial is None:
        return LOST
    terms = dict(left.polynomial)
    for term, factor in right.polynomial:
        terms[term] = terms.get(term, 0) + sign * factor
    return to_value(terms, left.more or right.more)


def _times(left: Polynomial, right: Polynomial) -> Polynomial:
    product: Polynomial = {}
    for one, factor in left.items():
        for other, by in right.items():
            term = tuple(sorted(one + other))
            product[term] = product.get(term, 0) + factor * by
    return product


# Values that are no less than 0 and below 2**31, so that they are the same in 32 and 64 bits.
_WIDE = frozenset(
    [(f"{name}.{axis}",) for name in ("tid", "ntid", "ctaid", "nctaid") for axis in AXES]
    + [(f"ctaid.{axis}", f"ntid.{axis}") for axis in AXES]
    + [(f"nctaid.{axis}", f"ntid.{axis}") for axis in AXES]
)

PLACES = {f"%{name}.{axis}": f"{name}.{axis}" for name in ("tid", "ntid", "ctaid", "nctaid")
           for axis in AXES}  # fmt: skip
ATOMS = frozenset(PLACES.values())


def _fits(term: Term, factor: int) -> bool:
    if not term:
        return 0 <= factor < 2**31
    return factor == 1 and term in _WIDE


class Change(NamedTuple):
    """How one launch differs from another, as far as a kernel can tell.

    ``block``: the axes whose block differs. ``total``: the axes with as many threads as before.
    ``warps``: the axes along which both blocks are multiples of 32, the threads of a warp.
    """

    block: tuple[bool, bool, bool]
    total: tuple[bool, bool, bool]
    warps: tuple[bool, bool, bool]

    @property
    def whole_warps(self) -> bool:
        """Whether threads that were in one warp still are: 32 neighbours along x."""
        return not any(self.block) or self.warps[0]

    def bare(self, value: Value) -> Value:
        """A value without what does not depend on the block: that only says that there is more."""
        if value.polynomial is None:
            return LOST
        if self.clean(value):
            return CLEAN
        kept = {t: f for t, f in value.polynomial if any(atom in ATOMS for atom in t)}
        return to_value(kept, True)

    def clean(self, value: Value) -> bool:
        """Whether a value is the same under both launches."""
        return value.polynomial is not None and not self.left(dict(value.polynomial))

    def left(self, terms: Polynomial) -> Polynomial:
        """Terms that depend on the block once the thread's place in the grid is put in."""
        for axis in range(3):
            name = AXES[axis]
            if not self.block[axis]:
                continue
            place: Polynomial = {(f"g.{name}",): 1, (f"ctaid.{name}", f"ntid.{name}"): -1}
            while any(f"tid.{name}" in term for term in terms):
                replaced: Polynomial = {}
                for term, factor in terms.items():
                    inside = {term: factor}
                    if f"tid.{name}" in term:
                        rest = list(term)
                        rest.remove(f"tid.{name}")
                        inside = _times({tuple(rest): factor}, place)
                    for each, by in inside.items():
                        replaced[each] = replaced.get(each, 0) + by
                terms = replaced
        return {t: f for t, f in terms.items() if f and self._depends(t)}

    def _depends(self, term: Term) -> bool:
        """Whether a product depends on block or grid, where those differ."""
        atoms = list(term)
        for axis in range(3):
            name = AXES[axis]
            count, size = f"nctaid.{name}", f"ntid.{name}"
            if self.total[axis]:
                if not self.block[axis]:
                    atoms = [atom for atom in atoms if atom != count]
                while count in atoms and size in atoms:  # all threads along the axis
                    atoms.remove(count)
                    atoms.remove(size)
            if count in atoms:
                return True
            if self.block[axis] and (size in atoms or f"ctaid.{name}" in atoms):
                return True
        return False

    def product(self, left: Value, right: Value) -> Value:
        """The product of two values."""
        if left.polynomial is None or right.polynomial is None:
            return LOST
        # What is multiplied with something that is only known to be clean must be clean itself.
        if (left.more and not self.clean(right._replace(more=False))) or (
            right.more and not self.clean(left._replace(more=False))
        ):
            return LOST
        if len(left.polynomial) * len(right.polynomial) > MOST_TERMS**2:
            return LOST
        terms = _times(dict(left.polynomial), dict(right.polynomial))
        return to_value(terms, left.more or right.more)

    def widened(self, value: Value) -> Value:
        """The same value in more bits, where it cannot have wrapped."""
        simple = value.polynomial is not None and not value.more and len(value.polynomial) <= 1
        if simple and all(_fits(term, factor) for term, factor in value.polynomial or ()):
            return value
        return CLEAN if self.clean(value) else LOST


def change(base: Launch, other: Launch, *, strides: bool = False) -> Change | None:
    """From one launch to another, ``None`` if they are the same.

    ``strides``: the kernel loops over what its threads do not cover, so that their number does
    not matter.
    """
    if (base.grid, base.block) == (other.grid, other.block):
        return None
    pairs = list(zip(base.grid, base.block, other.grid, other.block, strict=True))
    block = [before != after for _, before, _, after in pairs]
    total = [strides or a * b == c * d for a, b, c, d in pairs]
    warps = [before % WARP_SIZE == after % WARP_SIZE == 0 for _, before, _, after in pairs]
    return Change(
        (block[0], block[1], block[2]),
        (total[0], total[1], total[2]),
        (warps[0], warps[1], warps[2]),
    )


def extra_threads(base: Launch, other: Launch) -> bool:
    """Whether a launch has threads along an axis that the other has not."""
    return any(
        c * d > a * b
        for a, b, c, d in zip(base.grid, base.block, other.grid, other.block, strict=True)
    )
