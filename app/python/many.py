"""Answers about many launches, GPUs or clocks, as ``answers`` for one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from wattcast.app.python import cards
from wattcast.app.python.shown import Row, Shown, figures
from wattcast.models.estimate import quantity
from wattcast.predictor.messages.application import ApplicationAnswer
from wattcast.predictor.messages.batch import BatchAnswer
from wattcast.predictor.messages.compare import CompareAnswer
from wattcast.predictor.messages.dvfs import DvfsAnswer
from wattcast.predictor.messages.sweep import SweepAnswer

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class LaunchSweep(SweepAnswer, Shown):
    """A kernel at many launch shapes."""

    def rows(self) -> Iterator[Row]:
        """A row for each shape."""
        for point in self.model_dump()["points"]:
            macros = point.pop("defines") or {}
            yield {**macros, **point}

    def plot(self) -> Figure:
        """Time against energy, with the Pareto set; as ``Prediction.plot``."""
        from wattcast.app.python import plots

        return plots.of_points(
            [(_shape(each.model_dump()), each.time, each.energy, each.pareto)
             for each in self.points],
            self.kernel.demangled,
        )  # fmt: skip

    def _repr_html_(self) -> str:
        told = self.model_dump()
        points = sorted(told["points"], key=lambda point: point["energy"]["joules"])
        lines = [
            [_shape(point), ", ".join(n for n in ("pareto", "spills") if point[n]),
             f"{point['occupancy']:.0%}", *figures(point),
             cards.percent(-point['energy_saved_percent'])]
            for point in points[: cards.MOST_ROWS]
        ]  # fmt: skip
        headings = ["shape", "", "occupancy", "time", "power", "energy", "change"]
        base = told["reference"]
        best = [f"{_words(name)}: {_best(each)}"
                for name, each in told["best"].items() if not each["no_difference"]]  # fmt: skip
        refused = [f"{_shape(each)}: {each['reason']}"
                   for each in (*told["left_out"], *told["infeasible"])]  # fmt: skip
        return cards.card(
            self.kernel.demangled,
            f"reference {_shape(base)}: {', '.join(figures(base))}",
            *(cards.paragraph(each) for each in best or ["nothing better was found"]),
            cards.table(headings, lines, words=2, more=len(points) - len(lines)),
            cards.paragraph(f"differences below {self.resolution_percent:.2g} % are not told apart",
                            faint=True),
            cards.folded(f"left out: {len(refused)}", refused),
            cards.warnings(told["warnings"]),
        )  # fmt: skip


def _shape(of: Row) -> str:
    registers = of.get("registers_per_thread")
    capped = "" if registers is None else f", {registers} registers"
    macros = ", ".join(f"{name}={value}" for name, value in (of["defines"] or {}).items())
    launch = f"{cards.dims(of['grid'])} blocks of {cards.dims(of['block'])}" if of["grid"] else ""
    parted = f"{macros}:" if macros and launch else macros
    return " ".join(filter(None, (of["gpu"], parted, launch))) + capped


def _words(name: str) -> str:
    return name.replace("_", " ")


def _best(of: Row) -> str:
    return (
        f"{_shape(of)}, {cards.percent(-of['time_saved_percent'])} time, "
        f"{cards.percent(-of['energy_saved_percent'])} energy"
    )


class ClockSweep(DvfsAnswer, Shown):
    """A kernel at many clocks and power limits."""

    def rows(self) -> Iterator[Row]:
        """A row for each clock pair and limit."""
        told = self.model_dump()
        return iter({"gpu": self.gpu, **point} for point in told["points"])

    def plot(self) -> Figure:
        """Time against energy, with the Pareto set; as ``Prediction.plot``."""
        from wattcast.app.python import plots

        return plots.of_points(
            [(_pair(each.model_dump()), each.time, each.energy, each.pareto)
             for each in self.points],
            f"{self.kernel.demangled} on {self.gpu}",
        )  # fmt: skip

    def _repr_html_(self) -> str:
        told = self.model_dump()
        lines = [
            [_pair(point), "pareto" if point["pareto"] else "", *figures(point),
             cards.percent(100 * point['scale']['time'] - 100),
             cards.percent(100 * point['scale']['energy'] - 100)]
            for point in told["points"]
        ]  # fmt: skip
        base = told["reference"]
        best = [
            f"{_words(name)}: {_pair(each)}, {cards.percent(each['time_penalty_percent'])} time, "
            f"{cards.percent(-each['energy_saved_percent'])} energy"
            for name, each in told["best"].items()
        ]
        headings = ["core/memory MHz", "", "time", "power", "energy", "time", "energy"]
        return cards.card(
            self.kernel.demangled,
            f"on {self.gpu}; reference {_pair(base)}: {', '.join(figures(base))}",
            *(cards.paragraph(each) for each in best),
            cards.table(headings, lines[: cards.MOST_ROWS], words=2,
                        more=len(lines) - cards.MOST_ROWS),
            cards.warnings(told["warnings"]),
        )  # fmt: skip


def _pair(of: Row) -> str:
    return f"{of['core_mhz']:g}/{of['memory_mhz']:g}, {of['power_limit_watts']:g} W"


class CodeComparison(CompareAnswer, Shown):
    """Old code beside new code, on every GPU."""

    def rows(self) -> Iterator[Row]:
        """A row for each kernel and GPU."""
        for each in self.model_dump()["comparisons"]:
            sides = {
                f"{side}_{name}": each[side][name]
                for name in ("time", "power", "energy")
                for side in ("old", "new")
            }
            yield {"kernel": each["new"]["kernel"], "gpu": each["gpu"], **sides, **each["change"]}

    def _repr_html_(self) -> str:
        lines = []
        for each in self.model_dump()["comparisons"]:
            cells = [each["new"]["kernel"]["demangled"], each["gpu"]]
            for name in ("time", "power", "energy"):
                old, new = (cards.value_of(each[side][name]) for side in ("old", "new"))
                cells.append(f"{old} → {new}  {each['change'][f'{name}_percent']:+.1f} %")
            lines.append(cells)
        kernels = ", ".join(dict.fromkeys(line[0] for line in lines))
        headings = ["kernel", "GPU", "time", "power", "energy"]
        return cards.card("old code → new code", kernels, cards.table(headings, lines, words=2))


class Batch(BatchAnswer, Shown):
    """Many launches of one kernel."""

    def rows(self) -> Iterator[Row]:
        """A row for each launch, in the order asked; those that cannot run have a ``problem``."""
        names = ("time", "power", "energy", "regime", "occupancy", "waves")
        for each in self.model_dump()["predictions"]:
            told = {name: each[name] for name in names if each[name] is not None}
            yield {**told, "problem": each["problem"]["detail"] if each["problem"] else None}

    def _repr_html_(self) -> str:
        rows = list(self.rows())
        lines = [
            [str(at), row["problem"] or "",
             *(cards.value_of(row[name]) if name in row else "-"
               for name in ("time", "power", "energy"))]
            for at, row in enumerate(rows[: cards.MOST_ROWS])
        ]  # fmt: skip
        headings = ["launch", "problem", "time", "power", "energy"]
        return cards.card(
            self.kernel.demangled,
            f"{len(rows)} launches on {self.gpu}",
            cards.table(headings, lines, words=2, more=len(rows) - len(lines)),
            cards.warnings(self.model_dump()["warnings"]),
        )


class Application(ApplicationAnswer, Shown):
    """All kernels of an application, from its trace."""

    def rows(self) -> Iterator[Row]:
        """A row for each kernel, the costliest first."""
        return iter(self.model_dump()["kernels"])

    def _repr_html_(self) -> str:
        told = self.model_dump()
        kernels = told["kernels"]
        lines = [
            [row["name"], str(row["launches"]), quantity(row["seconds"], "s"),
             quantity(row["joules"], "J")]
            for row in kernels[: cards.MOST_ROWS]
        ]  # fmt: skip
        gpus = ", ".join(dict.fromkeys(each.gpu for each in self.devices))
        return cards.card(
            self.source,
            f"{self.launches} launches on {gpus} in {quantity(self.span_seconds, 's')}",
            cards.tiles([(name, told[name]) for name in ("energy", "power")]),
            cards.badges([(self.trust.mark, self.trust.why)]),
            cards.table(["kernel", "launches", "time", "energy"], lines,
                        more=len(kernels) - len(lines)),
            cards.warnings(told["warnings"]),
        )  # fmt: skip


class Ranking(dict[str, Any], Shown):
    """Configurations in predicted order, and those that are refused."""

    def rows(self) -> Iterator[Row]:
        """A row for each configuration; its constants and options are columns."""
        for each in self["configurations"]:
            chosen = each["configuration"]
            rest = {n: v for n, v in each.items() if n != "configuration" and n not in chosen}
            yield {**chosen, **{name: value for name, value in rest.items() if value is not None}}

    def _repr_html_(self) -> str:
        found = self["configurations"]
        lines = [
            [str(row["rank"]), ", ".join(f"{n}={v}" for n, v in row["configuration"].items()),
             quantity(row["seconds"], "s"), quantity(row["watts"], "W"),
             quantity(row["joules"], "J")]
            for row in found[: cards.MOST_ROWS]
        ]  # fmt: skip
        headings = ["rank", "configuration", "time", "power", "energy"]
        title = found[0]["kernel"] if found else "no configuration"
        refused = len(self["refused"])
        return cards.card(
            title,
            f"on {found[0]['gpu']}" if found else "",
            cards.table(headings, lines, words=2, more=len(found) - len(lines)),
            cards.paragraph(f"{refused} refused: see ['refused']", faint=True) if refused else "",
        )


class GpuList(list[dict[str, Any]], Shown):
    """GPUs with a profile, by id."""

    def rows(self) -> Iterator[Row]:
        """A row for each GPU."""
        return iter(self)

    def _repr_html_(self) -> str:
        lines = [
            [each["id"], each["name"], each["architecture"], ", ".join(each["power_models"]),
             each["compute_capability"], str(each["sm_count"]),
             f"{each['core_mhz']:g}/{each['memory_mhz']:g}"]
            for each in self[: cards.MOST_ROWS]
        ]  # fmt: skip
        headings = ["id", "name", "architecture", "power models", "capability", "SMs", "MHz"]
        table = cards.table(headings, lines, words=4, more=len(self) - len(lines))
        return cards.card("GPUs", f"{len(self)} with a profile", table)
