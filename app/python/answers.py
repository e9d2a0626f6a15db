"""Answers about one launch: messages of the service that show themselves in a notebook, and become
tables, pictures and further questions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, PrivateAttr

from wattcast.app.python import cards
from wattcast.app.python.asked import predictor, typed
from wattcast.app.python.shown import Row, Shown, frame
from wattcast.features.errors import ServiceError, WattcastError
from wattcast.models.estimate import quantity
from wattcast.predictor.messages.advise import AdviceAnswer
from wattcast.predictor.messages.hotspots import HotspotsAnswer
from wattcast.predictor.messages.predict import PredictAnswer, PredictRequest

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class Prediction(PredictAnswer, Shown):
    """Watts, seconds and joules of one launch on one GPU."""

    configuration: dict[str, Any] | None = Field(
        None, exclude=True, description="Constants and options of a Triton kernel."
    )
    _request: PredictRequest | None = PrivateAttr(None)
    _registry: bool = PrivateAttr(True)
    _file: str | None = PrivateAttr(None)

    @classmethod
    def of(
        cls,
        answer: dict[str, Any],
        request: PredictRequest,
        registry: bool,
        file: str | None = None,
    ) -> Prediction:
        """An answer for one GPU, what was asked, and the name of the file it came from."""
        made = typed(cls, answer)
        made._file = file
        made._request = request.model_copy(update={"gpu": made.gpu, "gpus": None})
        made._registry = registry
        return made

    def __repr__(self) -> str:
        figures = [
            cards.value_of(each.model_dump()) for each in self._quantities().values() if each
        ]
        return f"<Prediction of {self._name()} on {self.gpu}: {', '.join(figures) or 'no answer'}>"

    __str__ = __repr__

    def _name(self) -> str:
        return self.kernel.demangled if self.kernel else "measured work"

    def _quantities(self) -> dict[str, Any]:
        return {"power": self.power, "time": self.time, "energy": self.energy}

    def rows(self) -> Iterator[Row]:
        """One row."""
        told = self.model_dump()
        yield {
            "gpu": self.gpu,
            "kernel": self._name(),
            **told["clocks"],
            **{name: told[name] for name in ("power_limit_watts", "power", "time", "energy")},
            "trust": self.trust.mark if self.trust else None,
            "bound": _bound(self),
            "model": self.model.family if self.model else None,
            "occupancy": self.occupancy.occupancy if self.occupancy else None,
            "registers_per_thread": self.registers.value if self.registers else None,
            **(self.configuration or {}),
            **{f"{name}_watts": watts for name, watts in (self.components or {}).items()},
        }

    def hotspots(self, rows: int = 200) -> Hotspots:
        """Where the launch spends its energy and time: by block, PTX line and source line, the
        ``rows`` costliest of each. Raises ServiceError where no energy was predicted from code, and
        AnalysisError."""
        from wattcast.predictor.hotspots import hotspots_of

        request = self._asked("energy")
        found = hotspots_of(
            predictor(self._registry), request, self.model_dump(by_alias=True), rows
        )
        made = typed(Hotspots, {"prediction_id": self.id, **found})
        made._source = (request.cuda or "").splitlines()
        if request.cuda is not None and self._file is not None:
            for row in made.source_lines.rows:
                row.file = self._file
        return made

    def advise(self) -> AdviceList:
        """What to change about the launch, and what each change saves. Raises ServiceError where
        the energy was not predicted from code, and AnalysisError."""
        from wattcast.predictor.advise import advise

        found = advise(predictor(self._registry), self._asked("energy"))
        return typed(AdviceList, {**found, "prediction_id": self.id})

    def _asked(self, quantity_name: Literal["energy"]) -> PredictRequest:
        if self._request is None or self._request.work is not None:
            raise ServiceError("no-explanation", "this answer does not rest on code")
        if getattr(self, quantity_name) is None:
            raise ServiceError("no-explanation", "the energy of this launch cannot be predicted")
        return self._request

    def plot(self) -> Figure:
        """Power by component, and the intervals. A matplotlib figure; raises MissingExtraError
        without matplotlib (the extra ``notebook``)."""
        from wattcast.app.python import plots

        return plots.of_prediction(self)

    def _hottest(self) -> str:
        """The line that takes most of the energy; empty where none can be told."""
        try:
            found = self.hotspots(rows=1)
        except WattcastError:
            return ""
        for ranking in (found.source_lines, found.lines):
            for row in ranking.rows:
                text = getattr(row, "text", "").strip()
                place = f"line {row.line}" if text else f"source line {row.line}"
                text = text or found.source_text(row.line)
                most = next(iter(row.components), "")
                told = f"{row.energy_share:.0%} of the energy in {place}"
                return told + (f", mostly {most}" if most else "") + (f": {text}" if text else "")
        return ""

    def _speeds(self) -> list[list[str]]:
        """Each unit and its share of its peak, where ``details`` were asked for."""
        found = self.speed_of_light
        return [[unit.name, f"{unit.share:.0%}"] for unit in found.units] if found else []

    def _repr_html_(self) -> str:
        told = self.model_dump()
        marks: list[tuple[str, str]] = []
        if self.trust:
            marks.append((self.trust.mark, self.trust.why))
        if bound := _bound(self):
            marks.append((f"bound by {bound}", "what limits the launch"))
        if self.occupancy:
            marks.append((f"occupancy {self.occupancy.occupancy:.0%}", self.occupancy.limiter))
        chosen = ", ".join(f"{name}={value}" for name, value in (self.configuration or {}).items())
        hottest = self._hottest()
        model = f"power model {self.model.family} {self.model.version}" if self.model else ""
        return cards.card(
            self._name(),
            f"on {self.gpu} at {self.clocks.core_mhz:g}/{self.clocks.memory_mhz:g} MHz",
            cards.tiles([(name, told[name]) for name in ("power", "time", "energy")]),
            cards.badges(marks),
            cards.paragraph(chosen) if chosen else "",
            cards.shares(self.components or {}, "W"),
            cards.paragraph(hottest) if hottest else "",
            cards.table(["unit", "of its peak"], self._speeds()),
            *(cards.paragraph(f"give {need.argument}: it decides {need.decides}, and "
                              f"{need.assumed:g} is assumed") for need in self.needs),
            cards.warnings(told["warnings"]),
            cards.paragraph(model, faint=True) if model else "",
        )  # fmt: skip


def _bound(answer: PredictAnswer) -> str | None:
    """What limits the launch, in words."""
    found = answer.time_model
    return (found.bound or found.regime) if found else None


class Predictions(list[Prediction], Shown):
    """Answers for several GPUs, in the order asked."""

    def rows(self) -> Iterator[Row]:
        """A row for each GPU."""
        for each in self:
            yield from each.rows()

    def plot(self) -> Figure:
        """Time against energy with intervals, as ``Prediction.plot``."""
        from wattcast.app.python import plots

        return plots.of_points([(each.gpu, each.time, each.energy, False) for each in self], "GPUs")

    def _repr_html_(self) -> str:
        lines = []
        for each in self:
            told = each.model_dump()
            found = [
                cards.value_of(told[n]) if told[n] else "-" for n in ("time", "power", "energy")
            ]
            lines.append([each.gpu, each.trust.mark if each.trust else "-", *found])
        title = self[0]._name() if self else "no GPUs"
        headings = ["GPU", "trust", "time", "power", "energy"]
        return cards.card(title, f"on {len(self)} GPUs", cards.table(headings, lines, words=2))


class Hotspots(HotspotsAnswer, Shown):
    """Where a launch spends energy and time."""

    _source: list[str] = PrivateAttr(default_factory=list[str])

    def source_text(self, number: int) -> str:
        """A line of the CUDA source that was asked about; empty for PTX."""
        return self._source[number - 1].strip() if 0 < number <= len(self._source) else ""

    def rows(self) -> Iterator[Row]:
        """The lines of the PTX."""
        return iter(self.lines.model_dump()["rows"])

    def to_frame(self, by: Literal["lines", "source_lines", "blocks"] = "lines") -> pd.DataFrame:
        """A row for each PTX line, source line or basic block, the costliest first."""
        return frame(self._listed(by))

    def _listed(self, by: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = getattr(self, by).model_dump()["rows"]
        if by == "source_lines":
            for row in found:
                row["text"] = self.source_text(row["line"])
        return found

    def _repr_html_(self) -> str:
        figures = f"{quantity(self.joules, 'J')} in {quantity(self.seconds, 's')} on {self.gpu}"
        parts = []
        for by, heading in (("source_lines", "source line"), ("lines", "PTX line")):
            rows, left = self._listed(by), getattr(self, by).rest.rows
            lines = [
                [_place(row), next(iter(row["components"]), ""),
                 f"{row['energy_share']:.1%}", f"{row['time_share']:.1%}"]
                for row in rows[: cards.MOST_ROWS // 2]
            ]  # fmt: skip
            headings = [heading, "mostly", "energy", "time"]
            parts.append(cards.table(headings, lines, words=2, more=left + len(rows) - len(lines)))
        return cards.card(self.kernel.demangled, figures, *parts)


def _place(row: Row) -> str:
    file = "" if "text" in row and "file" not in row else f"{row['file'] or 'source'}:"
    return f"{file}{row['line']}  {row['text'].strip()}".rstrip()


class AdviceList(AdviceAnswer, Shown):
    """What to change about a launch, by gain in energy."""

    def rows(self) -> Iterator[Row]:
        """A row for each suggestion."""
        for each in self.model_dump()["advice"]:
            first = each["places"][0] if each["places"] else {}
            yield {
                **{name: each[name] for name in ("code", "detail", "remedy")},
                "line": first.get("line"),
                "source_line": first.get("source_line"),
                **{f"saved_{name}": value for name, value in each["gain"].items()},
                **{f"after_{name}": value for name, value in each["after"].items()},
            }

    def _repr_html_(self) -> str:
        before = f"{quantity(self.before.joules, 'J')} in {quantity(self.before.seconds, 's')}"
        lines = [
            [each.detail, each.remedy,
             f"{'at least ' if each.promise == 'at_least' else ''}"
             f"{cards.percent(-each.gain.energy_percent)}",
             cards.percent(-each.gain.time_percent)]
            for each in self.advice
        ]  # fmt: skip
        code = [
            cards.snippets(f"{each.code.replace('_', ' ')}, before and after",
                           each.snippet_before, each.snippet_after)
            for each in self.advice
            if each.snippet_before and each.snippet_after
        ]  # fmt: skip
        nothing = "" if lines else cards.paragraph("nothing found that would save noticeably")
        return cards.card(
            self.kernel.demangled,
            f"{before} on {self.gpu}",
            cards.table(["found", "to change", "energy", "time"], lines, words=2),
            *dict.fromkeys(code),
            nothing,
        )
