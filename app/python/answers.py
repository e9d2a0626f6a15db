"""Answers that can be asked further: a prediction tells its hotspots and its advice, that of an
operator other shapes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import Field, PrivateAttr

from wattcast.app.progress import advance, working
from wattcast.app.python.predictors import checked, crew, predictor
from wattcast.features.errors import ServiceError, WattcastError
from wattcast.predictor import Predictor, messages, predict, rank, reports, triton
from wattcast.predictor.messages import explain, tunings
from wattcast.predictor.messages.advise import AdviceAnswer
from wattcast.predictor.messages.compare import CompareAnswer
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
        request: PredictRequest | messages.operators.OperatorRequest,
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

    def hotspots(self, rows: int = 200) -> explain.HotspotsAnswer:
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
    ) -> messages.operators.OperatorSweepAnswer:
        """The operator with every combination of other values, ``sweep(m=[1, 64, 4096])``, on its
        own GPU or on ``gpus``. Raises as ``wattcast.operator``, and ServiceError for too many or
        where this is no operator."""
        from wattcast.predictor.operators import sweep_operator

        body = {**self._shaped(gpus), "vary": {name: list(each) for name, each in vary.items()}}
        request = checked(messages.operators.OperatorSweepRequest, body)
        return sweep_operator(predictor(self._registry), request)

    def compare(self, gpus: Sequence[str] = (), **changed: Any) -> CompareAnswer:
        """The operator beside itself with some values changed, ``compare(dtype="fp8")``. Raises
        as ``sweep``."""
        from wattcast.predictor.compare import compare

        body = self._shaped(gpus)
        old = body.pop("operator")
        sides = {"old": {"operator": old}, "new": {"operator": {**old, **changed}}}
        request = checked(messages.operators.OperatorCompareRequest, {**body, **sides})
        return compare(predictor(self._registry), request)

    def _shaped(self, gpus: Sequence[str]) -> dict[str, Any]:
        if not isinstance(self._request, messages.operators.OperatorRequest):
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


class Predictions(messages.Shown, list[Prediction]):
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


class GpuList(messages.Shown, list[dict[str, Any]]):
    """GPUs with a profile, by id."""

    def report(self) -> Report:
        """A row for each GPU."""
        names = ["id", "name", "architecture", "power_models", "compute_capability", "sm_count"]
        names += ["core_mhz", "memory_mhz"]
        table = reports.members_table(self, names, reports.MOST_ROWS)
        return [Title("GPUs", f"{len(self)} with a profile"), table]

    def to_frame(self) -> pd.DataFrame:
        """A pandas table with a row for each GPU; needs the extra ``notebook``."""
        return reports.frame(self)


# --- functions that lay choices before their caller ---


def gpus(search: str = "", *, registry: bool = True) -> GpuList:
    """GPUs with a profile, by id: what each is and which power models it has.

    ``search`` keeps those whose id, name, alias or architecture holds each of its words, in any
    case.
    """

    return GpuList(found_gpus(predictor(registry), search))


def found_gpus(predictor: Predictor, search: str) -> list[dict[str, Any]]:
    """The same as plain data."""
    from wattcast.predictor import catalog

    found = [each.data() for each in catalog.gpu_summaries(predictor.gpus, predictor.power.cards())]
    words = search.lower().split()

    def holds(one: Mapping[str, Any]) -> bool:
        told = " ".join([one["id"], one["name"], one["architecture"], *one["aliases"]]).lower()
        return all(word in told for word in words)

    return [one for one in found if holds(one)]


def rank_triton(
    kernels: Any,
    *,
    gpu: str,
    grid: triton.Grid,
    arguments: Mapping[str, Any] | None = None,
    configs: Sequence[Any] | None = None,
    signature: Mapping[str, str] | None = None,
    constexprs: Mapping[str, Any] | None = None,
    kernel: str | None = None,
    by: Literal["energy", "time"] = "energy",
    registry: bool = True,
    **options: Any,
) -> tunings.RankAnswer:
    """Configurations of a Triton kernel in the order of their predicted joules or seconds.

    ``kernels`` is a ``@triton.jit`` or autotuned function, which is compiled for ``gpu`` with each
    of ``configs`` (``triton.Config`` or mappings; default: of ``@triton.autotune``); or compiled
    kernels, or one of torch's inductor with all that it compiled; or the path of a folder as
    TRITON_CACHE_DIR, of which ``kernel`` names one. Only the first needs Triton (the extra
    ``triton``), none a GPU. ``grid`` are programs, or a function
    of constants and metadata as Triton's grids are. ``arguments`` are by name (by position
    in a cache): numbers, and hints such as ``{"elements": 4096}`` for pointers; ``signature`` are
    their types where no number tells them. ``options`` are other members of a prediction's
    request, such as ``clocks``.

    The answer holds ``configurations`` with ``rank``, ``configuration``, ``joules``, ``seconds``
    and ``watts``, and ``refused`` ones with their reasons. Raises DataError where none can be
    predicted, MissingExtraError without Triton, and as ``predict`` does.
    """
    from wattcast.app.python.code import inductor_kernels

    opened = predictor(registry)
    given = dict(arguments or {})
    if hasattr(kernels, "compile_results"):
        found: Any = inductor_kernels(kernels)
    elif isinstance(kernels, str | PathLike):
        found = triton.read_cache(Path(kernels).expanduser(), kernel)
    elif isinstance(kernels, Sequence):
        found = [triton.compiled(each) for each in kernels]
    elif hasattr(kernels, "asm"):
        found = [triton.compiled(kernels)]
    else:
        profile = opened.gpus.load(gpu)
        found = triton.compile_configurations(
            kernels, profile, configs, signature or {}, constexprs or {}, given
        )
    asked = triton.candidates(found, grid, given, {"gpu": gpu, **options})
    several = configs or getattr(kernels, "configs", None) or ()
    total = len(found) if isinstance(found, Sized) else len(several)
    with crew(registry=registry, variants=total) as many:
        return rank.ranked(opened, _counted(asked, total), by, crew=many)


_One = TypeVar("_One")


def _counted(asked: Iterable[_One], total: int) -> Iterator[_One]:
    """The same, with a bar on a terminal: compiling and predicting take a second for each."""
    with working("configurations"):
        for done, one in enumerate(asked):
            advance(done, max(total, done + 1))
            yield one


def estimate(*, gpu: str, registry: bool = True, **options: Any) -> Callable[[Any], Estimated]:
    """Decorates a ``@triton.jit`` or autotuned function: a launch predicts and runs nothing.

        @wattcast.estimate(gpu="h100")
        @triton.jit
        def add(x, y, out, n, BLOCK: tl.constexpr): ...

        answer = add[(4096,)](x, y, out, n, BLOCK=1024)   # wattcast's Prediction

    Grid, types and numbers are those of the launch: arrays are anything with ``dtype`` and
    ``shape`` (of PyTorch, on any device, ``meta`` too; NumPy; CuPy). The kernel is compiled for
    ``gpu`` by Triton (the extra ``triton``), which needs no GPU. ``estimates`` holds the answers in
    the order of launches. Under ``@triton.autotune`` the configuration answers that is predicted
    fastest; ``rankings`` holds them all. ``options`` are other members of a prediction's request,
    such as ``clocks``.
    """

    return lambda kernel: Estimated(kernel, gpu, registry, options)


# ``@wattcast.estimate``: a Triton kernel whose launches predict instead of running.


class Estimated:
    """A kernel under ``@wattcast.estimate``. ``fn`` is the kernel itself, ``estimates`` the answers
    in the order of launches, ``rankings`` those of launches with several configurations."""

    def __init__(self, kernel: Any, gpu: str, registry: bool, options: Mapping[str, Any]) -> None:
        self.fn = kernel
        self.estimates: list[Prediction] = []
        self.rankings: list[tunings.RankAnswer] = []
        self._gpu, self._registry, self._options = gpu, registry, dict(options)

    def __getitem__(self, grid: triton.Grid) -> Callable[..., Prediction]:
        """``kernel[grid](...)``: the prediction of the launch."""

        def launch(*arguments: Any, **keywords: Any) -> Prediction:
            return self._launch(grid, arguments, keywords)

        return launch

    def __call__(self, *arguments: Any, **keywords: Any) -> Prediction:
        """Refused, as Triton does."""
        raise RuntimeError("a Triton kernel is launched with a grid: kernel[grid](...)")

    def _launch(
        self, grid: triton.Grid, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> Prediction:
        opened = predictor(self._registry)
        asked = []
        each = triton.launched(self.fn, opened.gpus.load(self._gpu), grid, arguments, keywords)
        for configuration, body in _counted(each, len(getattr(self.fn, "configs", ()))):
            if isinstance(body, Mapping):
                body = {**self._options, "gpu": self._gpu, **body}
            asked.append((configuration, body))
        at = 0
        if len(asked) > 1:
            with crew(registry=self._registry, variants=len(asked)) as many:
                found = rank.ranked(opened, _counted(asked, len(asked)), "time", crew=many)
            self.rankings.append(found)
            best = found.configurations[0].configuration
            at = next(n for n, (one, _) in enumerate(asked) if dict(one.parameters) == best)
        configuration, body = asked[at]
        if not isinstance(body, Mapping):
            raise body
        request = checked(PredictRequest, body)
        answer = Prediction.of(predict.predict_one(opened, request), request, self._registry)
        answer = answer.model_copy(update={"configuration": dict(configuration.parameters)})
        self.estimates.append(answer)
        return answer
