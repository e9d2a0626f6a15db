"""Python functions that lay choices before their caller: launch shapes, clocks, GPUs, and the
configurations of Triton kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from wattcast.app.python.answers import Prediction
from wattcast.app.python.predictors import predictor
from wattcast.app.python.predictors import predictor as _predictor
from wattcast.predictor import rank, triton
from wattcast.predictor.messages.predict import PredictRequest
from wattcast.predictor.messages.tunings import RankAnswer
from wattcast.predictor.predict import predict_one

if TYPE_CHECKING:
    from wattcast.app.python.answers import GpuList
    from wattcast.predictor import Predictor
    from wattcast.predictor.triton import Grid


def gpus(search: str = "", *, registry: bool = True) -> GpuList:
    """GPUs with a profile, by id: what each is and which power models it has.

    ``search`` keeps those whose id, name, alias or architecture holds each of its words, in any
    case.
    """
    from wattcast.app.python.answers import GpuList

    return GpuList(found_gpus(_predictor(registry), search))


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
    grid: Grid,
    arguments: Mapping[str, Any] | None = None,
    configs: Sequence[Any] | None = None,
    signature: Mapping[str, str] | None = None,
    constexprs: Mapping[str, Any] | None = None,
    kernel: str | None = None,
    by: Literal["energy", "time"] = "energy",
    registry: bool = True,
    **options: Any,
) -> RankAnswer:
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
    from wattcast.predictor import rank, triton

    predictor = _predictor(registry)
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
        profile = predictor.gpus.load(gpu)
        found = triton.compile_configurations(
            kernels, profile, configs, signature or {}, constexprs or {}, given
        )
    asked = triton.candidates(found, grid, given, {"gpu": gpu, **options})
    return rank.ranked(predictor, asked, by)


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
        self.rankings: list[RankAnswer] = []
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
        for configuration, body in triton.launched(
            self.fn, opened.gpus.load(self._gpu), grid, arguments, keywords
        ):
            if isinstance(body, Mapping):
                body = {**self._options, "gpu": self._gpu, **body}
            asked.append((configuration, body))
        at = 0
        if len(asked) > 1:
            found = rank.ranked(opened, asked, "time")
            self.rankings.append(found)
            best = found.configurations[0].configuration
            at = next(n for n, (one, _) in enumerate(asked) if dict(one.parameters) == best)
        configuration, body = asked[at]
        if not isinstance(body, Mapping):
            raise body
        request = PredictRequest.model_validate(body)
        answer = Prediction.of(predict_one(opened, request), request, self._registry)
        answer = answer.model_copy(update={"configuration": dict(configuration.parameters)})
        self.estimates.append(answer)
        return answer
