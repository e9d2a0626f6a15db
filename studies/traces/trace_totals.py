"""How sure the sum over an application is: random mixes of kernels left out, on every board.

    python -m studies trace-totals

An "application" is 3 to 50 different kernels of one board, at the same clocks, with random shares
of the time (uniform on the simplex); its energy is told by models that saw none of the kernels.

    code       programs left out (of every board), the board known: public programs as the service
               answers them on four boards; counted activities on two; feature tables on five, whose
               trees leave kernels out
    code, board never measured   the same programs by the weights of the other boards
    no code    ``predictor/traces/library.py``: families left out, and the board

Each power has the half width that is served. ``python -m studies unknown-kernels`` and the cards
say how those came about; those of boards that are known rest on the very kernels left out here.
A total's half width joins them (``predictor/traces/totals.py``), so that a share of their squares
is common to all. Shares compared: 1 (every error alike), 0 (all independent), and the least under
which each of the OTHER boards holds the level: boards are few and differ. A board that is known is
another one of its kind: all its powers are off by a common error of ``BOARD_SPREAD``.

Also: how much of the errors' variance is the board's, how much each kernel's; mixes of kernels of
one family. Needs WATTCAST_ACTIVITY as ``fit-physical`` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from studies import parser_of
from studies.card_tables import table
from studies.data.activity_tables import served_path
from studies.fitting.out_of_fold import evaluate
from studies.fitting.physical.artifacts import POOLED_SETTINGS, leave_gpu_out
from studies.fitting.physical.fit import Fits, cached_choice, leave_program_out
from studies.fitting.physical.rows import GpuRows, all_rows
from studies.fitting.trees.pooled import shipped_fit
from studies.held_out import default_card
from studies.traces.unknown_kernels import LEVEL, by_boards
from studies.traces.unknown_kernels import rows as unknown_rows
from wattcast.models.cards import ModelCard
from wattcast.models.intervals import BOARD_SPREAD, interval_bounds
from wattcast.models.power.physical import POOLED
from wattcast.models.store import PACKAGED_ARTIFACTS, ArtifactStore
from wattcast.predictor.traces.totals import SHARED, Told, joined
from wattcast.training.data.datasets import data_root

Floats = NDArray[np.float64]
Names = NDArray[np.str_]

MIXES = 400
"""Applications of each board."""
LEAST, MOST = 3, 50
"""Kernels of one."""
SHARES = np.round(np.arange(0.0, 1.001, 0.05), 2)
TREES = ("tesla-k20", "tesla-m60", "tesla-k80", "ampere-84sm", "ada-24sm")


@dataclass(frozen=True)
class Pool:
    """Launches of a board, ``[n]``: measured and predicted watts, ends over the prediction.

    Launches of one ``setting`` ran under the same conditions (campaign and clocks); ``kernels`` are
    what was left out together; ``spread`` is what another board of the kind may be off by.
    """

    told: Told
    board: str
    settings: Names
    kernels: Names
    families: Names
    watts: Floats
    predicted: Floats
    below: Floats
    above: Floats
    spread: float = 0.0

    @property
    def errors(self) -> Floats:
        """ln(measured / predicted)."""
        return np.log(self.watts / self.predicted)


@dataclass(frozen=True)
class Mix:
    """An application: joules measured and predicted, lower and upper half widths of its kernels."""

    true: float
    value: float
    lower: Floats
    upper: Floats

    def held(self, shared: float) -> bool:
        """Whether the total's interval holds the truth."""
        low, high = joined(self.lower, shared), joined(self.upper, shared)
        return bool(self.value - low <= self.true <= self.value + high)

    def width(self, shared: float) -> float:
        """High minus low, over the total."""
        return (joined(self.lower, shared) + joined(self.upper, shared)) / self.value


def known_boards() -> Iterator[Pool]:
    """Programs left out: of boards that are known, and by the weights of the others."""
    served_path("tesla-v100")
    cards = ArtifactStore((PACKAGED_ARTIFACTS,)).list()
    fits = Fits(all_rows())
    choice = cached_choice(fits)
    pooled = next(card for card in cards if card.gpu == POOLED)
    for gpu, rows in fits.tables.items():
        if gpu in fits.varied:
            watts = leave_program_out(fits, gpu, choice.settings).watts
            card = default_card(cards, gpu)
            yield _of_rows("code", gpu, rows, watts, card, BOARD_SPREAD)
        watts = leave_gpu_out(fits, gpu, POOLED_SETTINGS)
        yield _of_rows("code, board never measured", gpu, rows, watts, pooled, 0.0)


def _of_rows(
    told: Told, gpu: str, rows: GpuRows, watts: Floats, card: ModelCard, spread: float
) -> Pool:
    at = rows.scored & ~np.isnan(watts)
    # ``served PROGRAM CAMPAIGN`` or ``CAMPAIGN PROGRAM``
    labels = [str(label).split() for label in rows.labels]
    sources = [
        next((word for word in label if word.startswith(("wang_", "dcgm"))), "") for label in labels
    ]
    settings = [f"{s} {c:g} {m:g}" for s, (c, m) in zip(sources, rows.clocks_mhz, strict=True)]
    low, high = interval_bounds(watts[at], card.intervals.unseen_kernel, card.intervals.floor_watts)
    return Pool(
        told, gpu, np.array(settings)[at], rows.programs[at], rows.programs[at], rows.watts[at],
        watts[at], 1 - low / watts[at], high / watts[at] - 1, spread,
    )  # fmt: skip


def tree_boards() -> Iterator[Pool]:
    """Kernels left out of the boards whose default model are trees, one fold assignment."""
    cards = ArtifactStore((PACKAGED_ARTIFACTS,)).list()
    for gpu in TREES:
        card = default_card(cards, gpu)
        own, fit = shipped_fit(gpu, card.source)
        rows = own.launched[own.served]
        watts = evaluate(rows, fit, "grouped", [0]).predicted_watts[0]
        at = ~np.isnan(watts)
        frame, watts = own.frames[own.served][at], watts[at]
        width = card.intervals
        low, high = interval_bounds(watts, width.unseen_kernel, width.floor_watts)
        yield Pool(
            "code", gpu, np.full(len(watts), gpu), frame["kernel_group"].to_numpy(str),
            frame["family"].to_numpy(str), rows.watts[at], watts, 1 - low / watts,
            high / watts - 1, BOARD_SPREAD,
        )  # fmt: skip


def unknown_boards() -> Iterator[Pool]:
    """Kernels without code, family and board left out; boards nobody measured have wider ends."""
    found = list(unknown_rows(data_root()))
    boards = np.array([row.board for row in found])
    told = by_boards(found)
    for board in np.unique(boards):
        at = boards == board
        mine = [row for row in found if row.board == board]
        yield Pool(
            "no code", str(board), np.array([row.source for row in mine]),
            np.array([f"{row.family} {row.name}" for row in mine]),
            np.array([row.family for row in mine]), np.array([row.watts for row in mine]),
            told.watts[at], told.below[at], told.above[at],
        )  # fmt: skip


def mixes(pool: Pool, count: int, rng: np.random.Generator, one_family: bool = False) -> list[Mix]:
    """Random applications of a pool, of kernels of one family each if so wished."""
    groups = pool.families if one_family else pool.settings
    known = [name for name in np.unique(groups) if len(_kernels(pool, groups == name)) >= LEAST]
    return [_mix(pool, groups == rng.choice(known), rng) for _ in range(count if known else 0)]


def _kernels(pool: Pool, which: NDArray[np.bool_]) -> Names:
    return np.unique(pool.kernels[which])


def _mix(pool: Pool, which: NDArray[np.bool_], rng: np.random.Generator, share: float = 1.0) -> Mix:
    kernels = _kernels(pool, which)
    number = int(rng.integers(LEAST, min(MOST, len(kernels)) + 1))
    rows = np.array(
        [
            rng.choice(np.flatnonzero(which & (pool.kernels == kernel)))
            for kernel in rng.choice(kernels, number, replace=False)
        ]
    )
    seconds = share * rng.dirichlet(np.ones(number))
    told = seconds * pool.predicted[rows]
    factor = np.exp(rng.normal(0.0, pool.spread)) if pool.spread else 1.0
    true = factor * float(np.sum(seconds * pool.watts[rows]))
    return Mix(true, float(told.sum()), told * pool.below[rows], told * pool.above[rows])


def held(some: Sequence[Mix], shared: float) -> float:
    """How many of the totals their intervals hold, relative."""
    return float(np.mean([mix.held(shared) for mix in some]))


def least_share(boards: Sequence[Sequence[Mix]]) -> float:
    """The least share at which totals hold ``LEVEL`` on each of some boards; else 1."""
    enough = (one for one in SHARES if all(held(some, one) >= LEVEL for some in boards))
    return float(next(enough, 1.0))


def components(pool: Pool) -> tuple[float, float, int]:
    """Variance components of the errors: standard deviation of the board's part (over settings) and
    of a kernel's own, and how many kernels there are."""
    own, settings = [], []
    for setting in np.unique(pool.settings):
        at = pool.settings == setting
        means = [pool.errors[at & (pool.kernels == one)].mean() for one in _kernels(pool, at)]
        if len(means) >= LEAST:
            own.append(np.var(means, ddof=1))
            settings.append(np.mean(means) ** 2 - np.var(means, ddof=1) / len(means))
    common = max(0.0, float(np.mean(settings)))
    return float(np.sqrt(common)), float(np.sqrt(np.mean(own))), len(np.unique(pool.kernels))


def of_model(told: Told, pools: Sequence[Pool]) -> str:
    """Markdown: each board under the share of the others, beside both extremes."""
    drawn = [mixes(pool, MIXES, np.random.default_rng(n)) for n, pool in enumerate(pools)]
    known = [(pool, some) for pool, some in zip(pools, drawn, strict=True) if some]
    lines, scores = [], []
    for pool, some in known:
        share = least_share([other for board, other in known if board is not pool])
        common, own, kernels = components(pool)
        shares = (1.0, 0.0, share, SHARED[told])
        scores.append([held(some, one) for one in shares])
        widths = [np.mean([mix.width(one) for mix in some]) for one in shares]
        cells = [f"{one:.2f} ({wide:.2f})" for one, wide in zip(scores[-1], widths, strict=True)]
        alike = mixes(pool, MIXES, np.random.default_rng(0), one_family=True)
        near = f"{held(alike, SHARED[told]):.2f}" if alike else ""
        cells = [*cells[:2], f"{share:.2f}", *cells[2:], near]
        lines.append([pool.board, str(kernels), f"{common:.2f}", f"{own:.2f}", *cells])
    means = [f"{each:.2f}" for each in np.mean(scores, axis=0)]
    all_boards = f"of all {least_share([some for _, some in known]):.2f}"
    lines.append(["mean", "", "", "", *means[:2], all_boards, *means[2:], ""])
    head = ("board", "kernels", "board's sd", "kernel's sd", "full correlation", "independent",
            "share of the others", "held by it", f"by {SHARED[told]:g}", "one family")  # fmt: skip
    return f"{told}: held (width)\n\n{table(head, lines)}"


def main(arguments: Sequence[str]) -> int:
    """Run the command; the exit status. Raises DataError."""
    parser = parser_of("trace-totals", __doc__)
    parser.parse_args(arguments)
    pools = [*known_boards(), *tree_boards(), *unknown_boards()]
    for told in SHARED:
        print(of_model(told, [pool for pool in pools if pool.told == told]), end="\n\n")
    return 0
