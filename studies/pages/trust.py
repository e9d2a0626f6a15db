"""Predicted against measured: the figures of docs/accuracy.md and of the page's tab Accuracy.

cards, held_out.json, end_to_end.json, catalogue/results.json
  -> boards()   one entry for each GPU and quantity: errors, coverage, baseline, what was left out
  -> data()     app/web/static/accuracy.json, which the page draws
  -> figures()  the same as SVG, beside docs/accuracy.md

Of measurements without a licence nothing but quantiles of a ratio is written. Points are
shown of published figures (facts, cited in docs/catalogue.md) and of GeForce GTX Titan X (BSD-3).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from studies import end_to_end, held_out
from studies.card_tables import table
from studies.catalogue import study as catalogue
from studies.end_to_end import others_median
from studies.pages.figures import Figure, Points, Span, scatter, spans
from wattcast.features.gpus import load_gpu
from wattcast.models.cards import ModelCard

PAGE_DATA = Path(__file__).parents[2] / "app" / "web" / "static" / "accuracy.json"
NOTICE = Path(__file__).parents[1] / "data" / "LICENSE.lisboa.txt"
"""Licence of the measurements on GeForce GTX Titan X, which goes wherever they go."""
FEWEST = 4
"""Boards with fewer published figures are drawn together."""
FREE_LICENCE = (
    "BSD-3-Clause, Copyright (c) 2018 INESC-ID, Instituto Superior Técnico, Universidade de Lisboa "
    "(github.com/hpc-ulisboa/gpupowermodel); Guerreiro, Ilic, Roma, Tomás, GPGPU Power Modelling "
    "for Multi-Domain Voltage-Frequency Scaling, HPCA 2018"
)
CITED = "published figures, cited in docs/catalogue.md"
DATA = {
    "dvfs": "programs at many clocks",
    "thesis": "the thesis' data",
    "powerquant": "PowerQuant's data",
}
"""What a power model's rows are, by the source on its card."""
UNLICENSED = "no licence stated: quantiles only"

Board = dict[str, Any]


def boards(cards: Sequence[ModelCard]) -> list[Board]:
    """Every GPU and quantity: power by error on kernels not seen, then times."""
    return [*_power(cards), *_programs(), *_published()]


def _power(cards: Sequence[ModelCard]) -> list[Board]:
    scores = json.loads(held_out.RESULTS.read_text(encoding="utf-8"))["power"]
    found = []
    for gpu, parts in scores.items():
        card = held_out.default_card(cards, gpu)
        widths = {"grouped": card.intervals.unseen_kernel, "random": card.intervals.seen_kernel}
        splits: dict[str, Any] = {
            name: {**parts[name], "coverage_percent": _share(widths[name].coverage)}
            for name in held_out.PROTOCOLS
            if name in parts
        }
        if gpu == "pooled":
            splits["gpus"] = splits.pop("grouped")
        free = "points" in parts
        found.append(
            {
                "quantity": "power",
                "gpu": gpu,
                "name": "A GPU never measured" if gpu == "pooled" else _name(gpu),
                "model": f"{card.family}, version {card.version}",
                "against": "eight kinds of board, each left out in turn"
                if gpu == "pooled"
                else DATA[card.source],
                "licence": FREE_LICENCE if free else UNLICENSED,
                "splits": splits,
                **({"points": parts["points"], "unit": "W"} if free else {}),
            }
        )
    return sorted(found, key=lambda one: _first(one)["median_error_percent"])


def _programs() -> list[Board]:
    """Times of public programs, and of the sweep of multiply-adds below the power limit."""
    baselines = json.loads(held_out.RESULTS.read_text(encoding="utf-8"))["time_baselines"]
    found = []
    for gpu, score in json.loads(end_to_end.RESULTS.read_text(encoding="utf-8")).items():
        logs = [
            ratio
            for program in score["log_ratios"].values()
            for ratios in program.values()
            for ratio in ratios
        ]
        ratios = np.exp(-np.array(logs))  # the file holds ln(measured / predicted)
        inside = score.get("times_inside_interval")
        found.append(
            {
                "quantity": "time",
                "gpu": gpu,
                "name": _name(gpu),
                "model": "bottleneck",
                "against": "public programs"
                if "programs" in score
                else "one kernel, a sweep of multiply-adds",
                "licence": UNLICENSED,
                "splits": {
                    "unfitted": {
                        "rows": len(ratios),
                        "kernels": score.get("programs", 1),
                        **held_out.ratios_told(ratios),
                        "coverage_percent": None
                        if inside is None
                        else round(100 * inside / len(ratios), 1),
                        "baseline": baselines.get(gpu),
                    }
                },
            }
        )
    return found


def _published() -> list[Board]:
    """Times of the catalogue of well-known kernels, boards with few figures together."""
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in json.loads(catalogue.RESULTS.read_text(encoding="utf-8")):
        rows[row["gpu"]].append(row)
    few = [gpu for gpu, each in rows.items() if len(each) < FEWEST]
    together = [row for gpu in few for row in rows.pop(gpu)]
    found = [_catalogued(gpu, _name(gpu), each) for gpu, each in rows.items()]
    found.sort(key=lambda one: -_first(one)["rows"])
    return [*found, _catalogued("others", f"{len(few)} other boards", together)]


def _catalogued(gpu: str, name: str, rows: Sequence[Mapping[str, Any]]) -> Board:
    published = np.array([row["published_ms"] for row in rows])
    predicted = np.array([row["predicted_ms"] for row in rows])
    return {
        "quantity": "time",
        "gpu": gpu,
        "name": name,
        "model": "bottleneck",
        "against": "published figures of well-known kernels",
        "licence": CITED,
        "splits": {
            "unfitted": {
                "rows": len(rows),
                "kernels": len({row["kernel"] for row in rows}),
                **held_out.ratios_told(predicted / published),
                "coverage_percent": round(100 * float(np.mean([row["inside"] for row in rows])), 1),
                "baseline": held_out.ratios_told(others_median(published) / published),
            }
        },
        "unit": "ms",
        "points": [
            [
                row["kernel"] if gpu != "others" else f"{row['kernel']}, {row['gpu']}",
                row["published_ms"],
                row["predicted_ms"],
            ]
            for row in rows
        ],
    }


def _name(gpu: str) -> str:
    """The board as its profile calls it, without the maker."""
    return load_gpu(gpu).name.removeprefix("NVIDIA ")


def _first(board: Board) -> dict[str, Any]:
    """The scores of what was left out: kernels, GPUs, or nothing fitted at all."""
    found: dict[str, Any] = next(iter(board["splits"].values()))
    return found


def _share(coverage: Any) -> float | None:
    return None if coverage is None else round(100 * coverage.rows, 1)


SPLITS = {
    "grouped": "kernel not seen",
    "random": "kernel seen, launch not",
    "gpus": "kind of GPU not seen",
    "unfitted": "nothing fitted to kernels",
}
"""What was left out, in words."""


def data(found: Iterable[Board]) -> str:
    """The JSON file of the page."""
    lines = ",\n  ".join(json.dumps(one, ensure_ascii=False) for one in found)
    head = json.dumps(
        {
            "written_by": "python -m studies accuracy docs/accuracy.md",
            "near_factor": held_out.FACTOR,
            "quantiles": held_out.QUANTILES,
            "splits": SPLITS,
            "notice": NOTICE.read_text(encoding="utf-8"),
        },
        ensure_ascii=False,
    )
    return f'{head[:-1]},\n "boards": [\n  {lines}\n ]}}\n'


def headline(found: Iterable[Board]) -> str:
    """One line for each board and split, in Markdown."""
    lines = []
    for board in found:
        for split, one in board["splits"].items():
            base = one["baseline"]
            lines.append(
                [
                    board["quantity"], board["name"], board["against"], SPLITS[split],
                    str(one["kernels"]), str(one["rows"]), f"{one['median_error_percent']:.1f}",
                    f"{base['median_error_percent']:.1f}" if base else "-",
                    f"{one['near_percent']:.0f}", f"{base['near_percent']:.0f}" if base else "-",
                    "-" if one["coverage_percent"] is None else f"{one['coverage_percent']:.0f}",
                ]
            )  # fmt: skip
    titles = (
        "quantity", "board", "against", "left out", "kernels", "rows", "median error %",
        "baseline", f"within {held_out.FACTOR}x %", "baseline", "inside the 90 % interval, %",
    )  # fmt: skip
    return table(titles, lines)


def figures(found: Sequence[Board]) -> list[Figure]:
    """Ratios by board for both quantities, and the points that may be shown."""
    drawn = []
    for quantity in ("power", "time"):
        chosen = [one for one in found if one["quantity"] == quantity]
        drawn.append(
            spans(
                f"accuracy_{quantity}",
                f"Ratio of predicted to measured {quantity} by board, nothing of the kernel seen.",
                [f"{one['name']}, {_count(one)}" for one in chosen],
                {
                    "Wattcast": [Span(*_first(one)["quantiles"]) for one in chosen],
                    "baseline": [
                        Span(*_first(one)["baseline"]["quantiles"])
                        if _first(one)["baseline"]
                        else None
                        for one in chosen
                    ],
                },
                held_out.FACTOR,
                f"predicted over measured {quantity}",
            )
        )
    timed = [one for one in found if one["quantity"] == "time" and "points" in one]
    # Eight marks can be told apart.
    named, rest = timed[:7], [point for one in timed[7:] for point in one["points"]]
    series = [_points(one["gpu"], one["points"]) for one in named]
    drawn.append(
        scatter(
            "accuracy_points",
            "Predicted against published times of well-known kernels.",
            [*series, _points("other boards", rest)],
            "ms",
        )
    )
    return drawn


def _count(board: Board) -> str:
    """What was left out or asked: 12 kernels."""
    kinds = {"pooled": "kinds of GPU", "published": "figures", "public": "programs"}
    kind = kinds.get(board["gpu"]) or kinds.get(board["against"].split()[0], "kernels")
    count = _first(board)["kernels"] if kind != "figures" else _first(board)["rows"]
    return f"{count} {kind if count != 1 else 'kernel'}"


def _points(name: str, points: Sequence[Sequence[Any]]) -> Points:
    return Points(name, [point[1] for point in points], [point[2] for point in points])
