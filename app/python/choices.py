"""Python functions that lay choices before their caller: launch shapes, clocks, GPUs, and the
configurations of Triton kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

from wattcast.app.python.asked import predictor as _predictor
from wattcast.app.python.asked import typed as _typed

if TYPE_CHECKING:  # and below where needed: they are a tenth of the time to import everything
    from wattcast.app.python.code import Code, Dimensions, LaunchOptions
    from wattcast.app.python.launched import Estimated
    from wattcast.app.python.many import ClockSweep, GpuList, LaunchSweep, Ranking
    from wattcast.predictor.messages import ModelChoice, ScalingChoice
    from wattcast.predictor.triton import Grid


def sweep(
    ptx: Code | None = None,
    *,
    gpu: str | Sequence[str],
    grid: Dimensions | Grid,
    block: Dimensions | None = None,
    blocks: Sequence[Dimensions] | None = None,
    grids: Sequence[Dimensions] | None = None,
    registers: Sequence[int] | None = None,
    defines: Mapping[str, Sequence[int | str]] | None = None,
    grid_formula: Sequence[str] | None = None,
    block_formula: Sequence[str] | None = None,
    constraints: Mapping[str, float] | None = None,
    model: ModelChoice = "physical",
    registry: bool = True,
    options: Mapping[str, Any] | None = None,
    **launch: Unpack[LaunchOptions],
) -> LaunchSweep:
    """A kernel at many launch shapes, as ``POST /sweep`` answers; ``grid`` and ``block`` are the
    reference, and every shape does its work.

    ``gpu`` is one or several; ``blocks``, ``grids`` and ``registers`` are what to try (default:
    common blocks). ``defines`` are macros of CUDA source with the values to try, such as
    ``{"TILE": [8, 16, 32]}``: each combination is compiled, and launched as ``grid_formula`` and
    ``block_formula`` tell, such as ``["ceil(n / TILE)"]``. ``constraints`` are ``max_slowdown``,
    ``max_power_watts`` and ``deadline_seconds``; ``options`` the other members of the request, such
    as ``clocks`` or ``include_unproven``. Raises as ``predict`` does, ServiceError for too many
    shapes, and ConstraintError where no shape keeps to the constraints.
    """
    from wattcast.app.python.code import request_of
    from wattcast.app.python.many import LaunchSweep
    from wattcast.predictor.messages.sweep import SweepRequest
    from wattcast.predictor.sweep import sweep as swept

    one = {"gpu": gpu} if isinstance(gpu, str) else {"gpus": list(gpu)}
    tried: dict[str, Sequence[Any] | None]
    tried = {"blocks": _shapes(blocks), "grids": _shapes(grids), "registers": registers}
    tried |= {"grid_formula": grid_formula, "block_formula": block_formula}
    macros = {name: list(values) for name, values in (defines or {}).items()} or None
    body = {
        **{name: list(given) for name, given in tried.items() if given is not None},
        "defines": macros,
        **{"constraints": dict(constraints or {}), "model": model, **one, **(options or {})},
        **request_of(ptx, grid, block, **launch),
    }
    return _typed(LaunchSweep, swept(_predictor(registry), SweepRequest.model_validate(body)))


def dvfs(
    ptx: Code | None = None,
    *,
    gpu: str,
    grid: Dimensions | Grid,
    block: Dimensions | None = None,
    clocks: Any = "grid",
    power_limit_watts: float | Sequence[float] | None = None,
    constraints: Mapping[str, float] | None = None,
    model: ScalingChoice = "physical",
    registry: bool = True,
    options: Mapping[str, Any] | None = None,
    **launch: Unpack[LaunchOptions],
) -> ClockSweep:
    """A kernel at many clocks and power limits, as ``POST /dvfs`` answers.

    ``clocks`` are a pair ``{"core_mhz": ..., "memory_mhz": ...}``, a list of pairs, a range, or
    ``"grid"``: all that the GPU lists. ``constraints`` and ``options`` are as ``sweep`` takes them.
    Raises as ``predict`` does, and ConstraintError where no pair keeps to the constraints.
    """
    from wattcast.app.python.code import request_of
    from wattcast.app.python.many import ClockSweep
    from wattcast.predictor.dvfs import dvfs as scaled
    from wattcast.predictor.messages.dvfs import DvfsRequest

    limits = power_limit_watts
    body = {
        **{"gpu": gpu, "clocks": clocks, "model": model, "constraints": dict(constraints or {})},
        "power_limit_watts": list(limits) if isinstance(limits, Sequence) else limits,
        **(options or {}),
        **request_of(ptx, grid, block, **launch),
    }
    return _typed(ClockSweep, scaled(_predictor(registry), DvfsRequest.model_validate(body)))


def gpus(search: str = "", *, registry: bool = True) -> GpuList:
    """GPUs with a profile, by id: what each is and which power models it has.

    ``search`` keeps those whose id, name, alias or architecture holds each of its words, in any
    case.
    """
    from wattcast.app.python.many import GpuList
    from wattcast.predictor import catalog

    opened = _predictor(registry)
    found = catalog.gpu_summaries(opened.gpus, opened.power.cards())
    words = search.lower().split()

    def holds(one: Mapping[str, Any]) -> bool:
        told = " ".join([one["id"], one["name"], one["architecture"], *one["aliases"]]).lower()
        return all(word in told for word in words)

    return GpuList(one for one in found if holds(one))


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
) -> Ranking:
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
    from wattcast.app.python.many import Ranking
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
    return Ranking(rank.ranked(predictor, asked, by))


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
    from wattcast.app.python.launched import Estimated

    return lambda kernel: Estimated(kernel, gpu, registry, options)


def _shapes(given: Sequence[Dimensions] | None) -> list[int | list[int]] | None:
    if given is None:
        return None
    return [one if isinstance(one, int) else list(one) for one in given]
