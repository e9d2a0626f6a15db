"""Clocks chosen with few measurements: what ``wattcast tune`` loses of the best pair of a kernel.

    python -m studies tuning-clocks                  tables as Markdown
    python -m studies tuning-clocks --keep FILE      predictions remembered there (two minutes)

For each kernel of the frequency campaigns the space is the grid of clocks that was measured.
Predictions never saw the kernel (``clock_cases.py``: by code, by code on a board nobody measured,
by counters, by the median of the other kernels). A search gets one, two or three
measurements; the pair it then names has the least measured energy. Spread and reach of its process
are learnt on the other boards without the kernel's program family (``learnt``), beside those of
tuning spaces (``as in tuning spaces``).

A slowdown is bounded over the default clocks, so that their measurement comes first; so it does by
counters, which are counted there. Where no pair measured keeps the bound the default clocks are
named. Splits at random make no sense: other pairs of a kernel are what the search measures.

Beside them three pairs at random (worked out), the default and the two ends of the grid, the
default alone, and one pair for all: that of the least mean loss of the other kernels.

Needs the data folder, WATTCAST_ACTIVITY as ``fit-physical`` does, and the extras cuda and tune.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, astuple
from functools import partial
from math import comb
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize

from studies.clocks.clock_cases import SOURCES, Case, Told, all_cases
from studies.power.physical_rows import Floats
from wattcast.models.processes import NOISE, ClockErrors
from wattcast.models.search import Search
from wattcast.training.card_tables import table

Quantity = Callable[[Told], Floats]
MOST = 3
NEAR = (0.01, 0.02, 0.05)


class Objective(NamedTuple):
    """What is least at the best pair, and by what factor of the default's time it may be slower."""

    value: Quantity
    slowdown: float | None = None


OBJECTIVES = {
    "energy": Objective(lambda told: told.seconds * told.watts),
    "EDP": Objective(lambda told: told.seconds**2 * told.watts),
    "energy, at most 5 % slower": Objective(lambda told: told.seconds * told.watts, 1.05),
    "energy, at most 10 % slower": Objective(lambda told: told.seconds * told.watts, 1.10),
}


def losses(case: Case, objective: Objective) -> Floats:
    """What each pair loses of the best, a share, ``[n]``; infinite where it is too slow."""
    value = objective.value(case.measured)
    if objective.slowdown is not None:
        seconds = case.measured.seconds
        value = np.where(seconds <= objective.slowdown * seconds[case.reference], value, np.inf)
    return np.asarray(value / value.min() - 1)


def searched(
    case: Case, source: str, objective: Objective, clocks: ClockErrors | None
) -> list[int]:
    """The pair named after each measurement, ``[MOST]``."""
    told, value = case.told[source], objective.value(case.measured)
    if objective.slowdown is None:
        search = Search(case.clocks_mhz, objective.value(told), clocks=clocks)
    else:
        bound = objective.slowdown * float(case.measured.seconds[case.reference])
        aim = objective.value(told)
        search = Search(case.clocks_mhz, aim, told.seconds, bound, clocks=clocks)
    named: list[int] = []
    for number in range(MOST):
        known = number == 0 and (source == "counters" or objective.slowdown is not None)
        asked = [case.reference] if known else search.propose()
        for place in asked:
            seconds = None if search.bounded is None else float(case.measured.seconds[place])
            search.tell(place, float(value[place]), seconds)
        best = search.best()
        named.append(case.reference if best is None else best)
    return named


# --- what the process knows beforehand ------------------------------------------------------------


def residuals(case: Case, source: str) -> list[tuple[Floats, Floats]]:
    """Logarithms of clocks ``[n, 2]`` and of measured over predicted energy and time ``[n]``."""
    places = np.log(case.clocks_mhz / case.clocks_mhz.max(axis=0))
    told = case.told[source]
    return [
        (places, np.log(quantity(case.measured) / quantity(told)))
        for quantity in (OBJECTIVES["energy"].value, lambda each: each.seconds)
    ]


def learnt(
    known: Sequence[tuple[Floats, Floats]], first: ClockErrors, steps: int = 80
) -> ClockErrors:
    """The errors under which what is known is likeliest, every kernel weighing the same."""
    by_grid: dict[bytes, tuple[Floats, list[Floats]]] = {}
    for places, off in known:
        by_grid.setdefault(places.tobytes(), (places, []))[1].append(off)

    def unlikely(logs: Floats) -> float:
        process, total = ClockErrors(*np.exp(logs)).process(), 0.0
        for places, off in by_grid.values():
            count = len(places)
            lower = np.linalg.cholesky(process(places) + NOISE**2 * np.eye(count))
            half = np.linalg.solve(lower, np.transpose(off))
            total += (0.5 * (half**2).sum() + len(off) * np.log(np.diag(lower)).sum()) / count
        return float(total)

    options = {"maxiter": steps, "xatol": 0.05, "fatol": 1e-3}
    found = minimize(unlikely, np.log(astuple(first)), method="Nelder-Mead", options=options)
    return ClockErrors(*(float(f"{value:.3g}") for value in np.exp(found.x)))


FIRST = ClockErrors(slope=0.15, wave=0.05, reach=0.15)
"""Where the learning starts."""


def left_out(cases: Sequence[Case], source: str) -> dict[tuple[str, str], ClockErrors]:
    """By board and program family: learnt on the other boards' other families."""
    mine = [case for case in cases if source in case.told]
    known = {id(case): residuals(case, source) for case in mine}
    found = {}
    for gpu in sorted({case.gpu for case in mine}):
        others = [case for case in mine if case.gpu != gpu]
        first = learnt([each for case in others for each in known[id(case)]], FIRST)
        for group in sorted({case.group for case in mine if case.gpu == gpu}):
            kept = [each for case in others if case.group != group for each in known[id(case)]]
            found[gpu, group] = learnt(kept, first, 12)
    return found


# --- what needs no search -------------------------------------------------------------------------


def usual(cases: Sequence[Case], case: Case, objective: Objective) -> dict[str, list[float]]:
    """What is lost without a search: the share lost, or of draws at random the chance of each."""
    lost = losses(case, objective)
    at_hand = np.where(np.isfinite(lost), lost, lost[case.reference])
    others = [
        losses(other, objective)
        for other in cases
        if other.campaign == case.campaign and other.group != case.group
    ]
    slow = 1.0  # a pair that is too slow for a kernel counts as twice its energy
    mean = np.mean([np.where(np.isfinite(each), each, slow) for each in others], axis=0)
    core, memory = case.clocks_mhz.T
    if np.unique(memory).size > 1:
        ends = [np.lexsort((core, -memory))[0], np.lexsort((memory, -core))[0]]
    else:
        order = np.argsort(core)
        ends = [order[0], order[len(order) // 2]]
    return {
        "default clocks": [float(lost[case.reference])],
        "one pair for all": [float(at_hand[int(np.argmin(mean))])],
        "default and two ends": [float(min(at_hand[[case.reference, *ends]]))],
        "three at random": np.sort(at_hand).tolist(),
    }


def _drawn(lost: Sequence[float]) -> Floats:
    """Chance that each, from the best on, is the best of ``MOST`` drawn."""
    count = len(lost)
    if count == 1:
        return np.ones(1)
    chances = [comb(count - 1 - place, MOST - 1) / comb(count, MOST) for place in range(count)]
    return np.array(chances)


# --- tables ---------------------------------------------------------------------------------------


def _score(found: Sequence[Sequence[float]]) -> dict[str, float]:
    """Shares of kernels near the best, mean and worst loss, in percent; of each kernel one loss, or
    losses from the best on of which three are drawn."""
    shares = {
        f"within {near:.0%}": np.mean([_drawn(one) @ (np.array(one) <= near) for one in found])
        for near in NEAR
    }
    means = [_drawn(one) @ np.array(one) for one in found]
    return {
        **{name: round(100 * float(share), 1) for name, share in shares.items()},
        "mean loss": round(100 * float(np.mean(means)), 2),
        "worst loss": round(100 * float(np.max(means)), 1),
    }


def study(cases: Sequence[Case], jobs: int = 1) -> dict[str, Any]:
    """Scores by objective, source, campaign and way of choosing."""
    with ProcessPoolExecutor(jobs) as pool:
        parts = dict(zip(SOURCES, pool.map(partial(_of_source, cases), SOURCES), strict=True))
    return {
        name: {source: part[name] for source, part in parts.items()}
        for name in ("kernels", "errors", "scores")
    }


def _of_source(cases: Sequence[Case], source: str) -> dict[str, Any]:
    errors = left_out(cases, source)
    mine = [case for case in cases if source in case.told]
    everything = [each for case in mine for each in residuals(case, source)]
    named = {
        (name, how, case.campaign, case.kernel): searched(case, source, objective, clocks)
        for name, objective in OBJECTIVES.items()
        for case in mine
        for how, clocks in (("learnt", errors[case.gpu, case.group]), ("as in tuning spaces", None))
        if how == "learnt" or name == "energy"
    }
    campaigns = _by_campaign(mine)
    return {
        "errors": asdict(learnt(everything, FIRST)),
        "kernels": {campaign: len(chosen) for campaign, chosen in campaigns.items()},
        "scores": {
            name: {
                campaign: _scores(cases, chosen, named, name)
                for campaign, chosen in campaigns.items()
            }
            for name in OBJECTIVES
        },
    }


def _by_campaign(cases: Sequence[Case]) -> dict[str, list[Case]]:
    names = sorted({case.campaign for case in cases})
    return {
        "all": list(cases),
        **{name: [case for case in cases if case.campaign == name] for name in names},
    }


def _scores(
    cases: Sequence[Case],
    chosen: Sequence[Case],
    named: Mapping[tuple[str, str, str, str], Sequence[int]],
    name: str,
) -> dict[str, dict[str, float]]:
    scores = {}
    objective = OBJECTIVES[name]
    for how in sorted({key[1] for key in named if key[0] == name}, reverse=True):
        for count in range(1, MOST + 1):
            scores[f"{how}, {count}"] = _score(
                [
                    [float(losses(case, objective)[place])]
                    for case in chosen
                    for place in [named[name, how, case.campaign, case.kernel][count - 1]]
                ]
            )
    without = [usual(cases, case, objective) for case in chosen]
    return scores | {how: _score([one[how] for one in without]) for how in without[0]}


def report(found: Mapping[str, Any]) -> str:
    """The tables as Markdown: all boards by objective, then each campaign by energy."""
    titles = ["predicted by", "chosen by", "kernels", *(f"within {near:.0%}" for near in NEAR)]
    titles += ["mean loss, %", "worst, %"]
    said = []
    for name in OBJECTIVES:
        lines = [
            [source, how, str(found["kernels"][source]["all"]), *(f"{v:g}" for v in one.values())]
            for source, scores in found["scores"].items()
            for how, one in scores[name]["all"].items()
        ]
        said.append(f"**{name}**\n\n{table(titles, lines)}")
    lines = [
        [
            campaign, source, str(found["kernels"][source][campaign]),
            *(f"{one[f'learnt, {count}']['within 2%']:g}" for count in range(1, MOST + 1)),
            f"{one[f'learnt, {MOST}']['mean loss']:g}", f"{one[f'learnt, {MOST}']['worst loss']:g}",
            *(
                f"{one[how]['within 2%']:g}"
                for how in ("default and two ends", "three at random", "one pair for all")
            ),
        ]
        for source, scores in found["scores"].items()
        for campaign, one in scores["energy"].items()
    ]  # fmt: skip
    titles = ["campaign", "predicted by", "kernels", "within 2 % after 1", "2", "3", "mean loss",
              "worst", "default and two ends", "three at random", "one pair for all"]  # fmt: skip
    said.append(f"**energy, by campaign**\n\n{table(titles, lines)}")
    errors = [
        [source, *(f"{v:g}" for v in one.values())] for source, one in found["errors"].items()
    ]
    said.append(f"**learnt on all**\n\n{table(['predicted by', *ClockErrors.__slots__], errors)}")
    return "\n\n".join(said)


def kept_cases(file: Path | None, jobs: int) -> list[Case]:
    """All cases, from a file that has them. Raises DataError."""
    if file is not None and file.is_file():
        rows = json.loads(file.read_text(encoding="utf-8"))
        return [
            Case(
                row["campaign"],
                row["gpu"],
                row["kernel"],
                np.array(row["clocks_mhz"]),
                Told(*map(np.array, row["measured"])),
                row["reference"],
                {source: Told(*map(np.array, told)) for source, told in row["told"].items()},
            )
            for row in rows
        ]
    found = all_cases(jobs)
    if file is not None:
        text = json.dumps([asdict(case) for case in found], default=lambda values: values.tolist())
        file.write_text(text, encoding="utf-8")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; the exit status. Raises DataError."""
    parser = argparse.ArgumentParser(
        prog="python -m studies tuning-clocks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--keep", type=Path, metavar="FILE", help="remember predictions there")
    options = parser.parse_args(arguments)
    jobs = os.cpu_count() or 1
    found = study(kept_cases(options.keep, jobs), jobs)
    print(report(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
