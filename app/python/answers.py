"""Answers that can be asked further: a prediction tells its hotspots and its advice, that of an
operator other shapes of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field, PrivateAttr

from wattcast.app.python.predictors import predictor
from wattcast.features.errors import ServiceError, WattcastError
from wattcast.predictor import reports
from wattcast.predictor.messages import Shown, operators
from wattcast.predictor.messages.advise import AdviceAnswer
from wattcast.predictor.messages.compare import CompareAnswer
from wattcast.predictor.messages.explain import HotspotsAnswer
from wattcast.predictor.messages.predict import PredictAnswer, PredictRequest
from wattcast.predictor.reports import Column, Line, Report, Table, Title

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


class Prediction(PredictAnswer):
    """Watts, seconds and joules of one launch on one GPU."""

    configuration: dict[str, Any] | None = Field(default=None, exclude=True)
    """Constants and options of a Triton kernel."""
    _request: Any = PrivateAttr(None)
    _registry: bool = PrivateAttr(True)
    _file: str | None = PrivateAttr(None)

    @classmethod
    def of(
        cls,
        answer: PredictAnswer,
        request: PredictRequest | operators.OperatorRequest,
        registry: bool,
        file: str | None = None,
    ) -> Prediction:
        """An answer for one GPU, its request, and the name of the file it came from."""
        made = cls.model_construct(answer.model_fields_set, **vars(answer))
        made._file = file
        made._request = request.model_copy(update={"gpu": made.gpu, "gpus": None})
        made._registry = registry
        return made

    def __repr__(self) -> str:
        known = [part for part in (self.power, self.time, self.energy) if part is not None]
        quantities = ", ".join(map(reports.value_of, known)) or "no answer"
        return f"<Prediction of {self.name} on {self.gpu}: {quantities}>"

    __str__ = __repr__

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """One row."""
        for row in super().rows():
            yield {**row, **(self.configuration or {})}

    def hotspots(self, rows: int = 200) -> HotspotsAnswer:
        """Where the launch spends its energy and time: by block, PTX line and source line, the
        ``rows`` costliest of each. Raises ServiceError where no energy was predicted from code, and
        AnalysisError."""
        from wattcast.predictor.hotspots import hotspots_of

        request = self._coded()
        answer = hotspots_of(predictor(self._registry), request, self, rows)
        if request.cuda is None:
            return answer
        lines = request.cuda.splitlines()
        named = [
            row.model_copy(
                update={
                    "file": self._file or row.file,
                    "text": lines[row.line - 1].strip() if 0 < row.line <= len(lines) else "",
                }
            )
            for row in answer.source_lines.rows
        ]
        ranking = answer.source_lines.model_copy(update={"rows": named})
        return answer.model_copy(update={"source_lines": ranking})

    def advise(self) -> AdviceAnswer:
        """What to change about the launch, and what each change saves. Raises ServiceError where
        the energy was not predicted from code, and AnalysisError."""
        from wattcast.predictor.advise import advise

        answer = advise(predictor(self._registry), self._coded())
        return answer.model_copy(update={"prediction_id": self.id})

    def sweep(
        self, gpus: Sequence[str] = (), **vary: Sequence[Any]
    ) -> operators.OperatorSweepAnswer:
        """The operator with every combination of other values, ``sweep(m=[1, 64, 4096])``, on its
        own GPU or on ``gpus``. Raises as ``wattcast.operator``, and ServiceError for too many or
        where this is no operator."""
        from wattcast.predictor.operators import sweep_operator

        body = {**self._shaped(gpus), "vary": {name: list(each) for name, each in vary.items()}}
        request = operators.OperatorSweepRequest.model_validate(body)
        return sweep_operator(predictor(self._registry), request)

    def compare(self, gpus: Sequence[str] = (), **changed: Any) -> CompareAnswer:
        """The operator beside itself with some values changed, ``compare(dtype="fp8")``. Raises
        as ``sweep``."""
        from wattcast.predictor.compare import compare

        body = self._shaped(gpus)
        old = body.pop("operator")
        sides = {"old": {"operator": old}, "new": {"operator": {**old, **changed}}}
        request = operators.OperatorCompareRequest.model_validate({**body, **sides})
        return compare(predictor(self._registry), request)

    def _shaped(self, gpus: Sequence[str]) -> dict[str, Any]:
        if not isinstance(self._request, operators.OperatorRequest):
            raise ServiceError("no-explanation", "this answer is not of an operator")
        asked = self._request.model_dump(exclude={"explain", "gpu"}, exclude_defaults=True)
        return {**asked, "gpus": list(gpus) or [self.gpu]}

    def _coded(self) -> PredictRequest:
        request = self._request
        if not isinstance(request, PredictRequest) or request.work is not None:
            raise ServiceError("no-explanation", "this answer does not rest on code")
        if self.energy is None:
            raise ServiceError("no-explanation", "the energy of this launch cannot be predicted")
        return request

    def _repr_html_(self) -> str:
        from wattcast.predictor.reports.html import card

        title, *rest = self.report()
        constants = ", ".join(
            f"{name}={value}" for name, value in (self.configuration or {}).items()
        )
        more = [Line(text) for text in (constants, self._hottest()) if text]
        return card([title, *more, *rest])

    def _hottest(self) -> str:
        """The line that takes most of the energy; empty where none can be told."""
        try:
            answer = self.hotspots(rows=1)
        except WattcastError:
            return ""
        for kind, ranking in (("source line", answer.source_lines), ("line", answer.lines)):
            for row in ranking.rows:
                most = next(iter(row.components), "")
                place = f"{row.energy_share:.0%} of the energy in {kind} {row.line}"
                return place + (f", mostly {most}" if most else "") + f": {row.text or ''}"
        return ""


class Predictions(Shown, list[Prediction]):
    """Answers for several GPUs, in the order asked."""

    def report(self) -> Report:
        """A row for each GPU."""
        columns = [
            reports.word("GPU", "gpu"),
            Column("trust", lambda each: each.trust.mark if each.trust else "-"),
            *reports.costs(),
        ]
        return [Title(self[0].name if self else "", f"on {len(self)} GPUs"), Table(columns, self)]

    def to_frame(self) -> pd.DataFrame:
        """A pandas table with a row for each GPU; needs the extra ``notebook``."""
        return reports.frame(row for each in self for row in each.rows())

    def plot(self) -> Figure:
        """Time against energy, as ``Prediction.plot``."""
        from wattcast.predictor import plots

        return plots.of_points([(each.gpu, each.time, each.energy, False) for each in self], "GPUs")


class GpuList(Shown, list[dict[str, Any]]):
    """GPUs with a profile, by id."""

    def report(self) -> Report:
        """A row for each GPU."""
        names = ["id", "name", "architecture", "power_models", "compute_capability", "sm_count"]
        names += ["core_mhz", "memory_mhz"]
        return [Title("GPUs", f"{len(self)} with a profile"), reports.members_table(self, names)]

    def to_frame(self) -> pd.DataFrame:
        """A pandas table with a row for each GPU; needs the extra ``notebook``."""
        return reports.frame(self)
