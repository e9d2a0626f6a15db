"""The default time model and those beside it, on the programs of the activity tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from studies.data.activity_tables import ACTIVITY_GPUS
from studies.data.frequency import kernel_group
from studies.pages.dwarfs import NOT_CLASSIFIED, dwarf_of, our_choices
from studies.pages.figures import (
    Figure,
    Line,
    Panel,
    Points,
    bars,
    cumulative,
    curves,
    scatter,
)
from studies.pages.page import Section, Table
from studies.pages.targets import Chapter, Target
from studies.time.activity_errors import (
    BASELINE,
    DEFAULT,
    MEAN_CURVE,
    MODELS,
    ActivityErrors,
    ProgramError,
)
from studies.time.bottleneck_errors import (
    ABLATIONS,
    TimeErrors,
    bottleneck_with,
    summary,
    time_errors,
)

MEAN_BOUNDS: Mapping[str, float] = {
    "tesla-v100": 17.0, "quadro-rtx-8000": 17.0, "gtx-1080-ti": 32.0, "tesla-p100": 32.0,
}  # fmt: skip
MEDIAN_BOUNDS: Mapping[str, float] = {"tesla-v100": 12.0, "quadro-rtx-8000": 10.0}
SCALING_BOUND = 8.0
STRETCH_BOUND = 14.0
"""Targets in percent, at the highest clocks but for scaling: what the model was asked to reach,
and a bound for all GPUs that was to be tried for."""


def activity_chapter() -> Chapter:
    """The default model, the models beside it, families and dwarfs. Raises DataError."""
    found = [ActivityErrors.of(gpu) for gpu in ACTIVITY_GPUS]
    return Chapter(
        (
            _default_section(found),
            _missed_section(found),
            _models_section(found),
            _scaling_section(found),
            _families_section(found),
        ),
        tuple(_targets(found)),
    )


def _targets(found: Sequence[ActivityErrors]) -> Iterable[Target]:
    for each in found:
        at_reference = each.shipped.percent[each.shipped.at_reference]
        mean, median = float(at_reference.mean()), float(np.median(at_reference))
        if each.gpu in MEAN_BOUNDS:
            yield Target(f"time, {each.gpu}, mean error", mean, MEAN_BOUNDS[each.gpu])
        if each.gpu in MEDIAN_BOUNDS:
            yield Target(f"time, {each.gpu}, median error", median, MEDIAN_BOUNDS[each.gpu])
        scaling = float(each.shipped.scaling_percent.mean())
        yield Target(f"scaling between clocks, {each.gpu}, mean error", scaling, SCALING_BOUND)
        yield Target(f"time, {each.gpu}, mean error", mean, STRETCH_BOUND, stretch=True)


# --- sections ---------------------------------------------------------------------------------


def _default_section(found: Sequence[ActivityErrors]) -> Section:
    ratios = {each.gpu: {p.label: p.ratios[DEFAULT] for p in each.programs} for each in found}
    names = sorted({name for column in ratios.values() for name in column})
    points = [
        Points(
            each.gpu,
            (each.shipped.measured[each.shipped.at_reference] * 1e3).tolist(),
            (each.shipped.predicted[each.shipped.at_reference] * 1e3).tolist(),
        )
        for each in found
    ]
    return Section(
        "The default model",
        (
            "`bottleneck` (docs/bottleneck.md): every resource at its rate, the slowest counts "
            "most. Application programs of the activity tables, each measured at several clocks. "
            "**No constant was fitted to their times**, so every program is as good as left out "
            "and there is no random split to set beside a grouped one. But the overlap norm was "
            "chosen among equals with their errors in sight, and the share of re-reads is read off "
            "the counters of two of these GPUs. The activities were estimated from PTX by this "
            "project's prototype; what the analysis of this repository makes of a kernel differs.",
            _score_table(found, (DEFAULT, "roofline", BASELINE), mean_curve=True),
            scatter(
                "time-default-scatter",
                "Predicted over measured time at the highest clocks of each GPU, one point for "
                "each program; the band is a factor of 2.",
                points,
                "ms",
            ),
            Table(
                ("program", *ratios),
                [
                    [name, *(_ratio(column.get(name)) for column in ratios.values())]
                    for name in names
                ],
                "Predicted over measured time at the highest clocks.",
            ),
        ),
    )


def _missed_section(found: Sequence[ActivityErrors]) -> Section:
    ablations = {
        name: {each.gpu: time_errors(each.gpu, bottleneck_with(constants)) for each in found}
        for name, constants in ABLATIONS
    }
    rows = []
    for each in found:
        worst = sorted(each.programs, key=lambda p: p.percent(DEFAULT), reverse=True)
        percents = [p.percent(DEFAULT) for p in worst]
        least = min(ablations, key=lambda name: _at_reference(ablations[name][each.gpu]))
        mean = float(np.mean(percents))
        rows.append(
            [
                each.gpu,
                f"{mean:.1f}",
                f"{max(0.0, mean - STRETCH_BOUND):.1f}",
                *(_left_out(worst, percents, count) for count in (1, 2)),
                f"{_at_reference(ablations[least][each.gpu]):.1f} ({least})",
            ]
        )
    table = [
        [name, *("; ".join(np.array(summary(by_gpu[each.gpu]))[[0, 2]]) for each in found)]
        for name, by_gpu in ablations.items()
    ]
    return Section(
        "What each part of it is worth, and what is left",
        (
            "Mean error at the highest clocks without the one and the two programs that add most, "
            "and the least any ablation reaches: where that is above the bound, no single "
            "constant is to blame.",
            Table(
                (
                    *("GPU", "mean, %", f"above {STRETCH_BOUND:g} %"),
                    *(
                        "without the worst program",
                        "without the worst two",
                        "least of the ablations",
                    ),
                ),
                rows,
            ),
            Table(
                ("model", *(each.gpu for each in found)),
                table,
                "Without one part: mean (median) error at the highest clocks; that of scaling.",
            ),
            "Causes that were looked into (docs/bottleneck.md): `histogram` fights for the same "
            "bins, which only its data tell; `cfd` on P100 was counted with another, larger "
            "input than the launch that was analysed describes; `transpose` moves half-used "
            "bursts that the tables do not hold.",
        ),
    )


def _models_section(found: Sequence[ActivityErrors]) -> Section:
    pooled = {
        name: np.concatenate(
            [each.models[name].percent[each.shipped.at_reference] for each in found]
        ).tolist()
        for name in MODELS
    }
    return Section(
        "Other models on the same programs",
        (
            "Models that can run on the activity tables. `queueing` is Wang and Chu's as a "
            "network of servers, `queueing-cases` by the paper's cases (docs/frequency.md); both "
            "lack loops and dependences here, which the tables do not hold. `roofline` is peak "
            "rates alone. The last two lines of each GPU know nothing of the program; the last "
            "predicts scaling only.",
            _score_table(found, MODELS, mean_curve=True),
            cumulative(
                "time-models-errors",
                "Share of programs, all GPUs at their highest clocks, with at most that error.",
                pooled,
            ),
        ),
    )


def _scaling_section(found: Sequence[ActivityErrors]) -> Section:
    return Section(
        "Scaling with the core clock",
        (
            "Time over that at the highest clocks, at the highest memory clock: measured, "
            "predicted by the default model, and the mean curve of the other program families, "
            "which knows nothing of the program.",
            *(_scaling_figure(each) for each in found),
        ),
    )


def _scaling_figure(each: ActivityErrors) -> Figure:
    errors = each.shipped
    predicted = errors.predicted / errors.predicted[each.reference_rows]
    lines = {"measured": each.scale, "predicted": predicted, "mean of the others": each.mean_curve}
    rows_of: dict[str, list[int]] = {}
    for at, (label, row) in enumerate(zip(each.labels, errors.rows, strict=True)):
        if row.clocks.memory_mhz == errors.reference.memory_mhz:
            rows_of.setdefault(label, []).append(at)
    panels = [
        Panel(
            label,
            [
                Line(
                    name,
                    [errors.rows[at].clocks.core_mhz for at in chosen],
                    [float(values[at]) for at in chosen],
                )
                for name, values in lines.items()
            ],
        )
        for label, rows in sorted(rows_of.items())
        for chosen in [sorted(rows, key=lambda at: errors.rows[at].clocks.core_mhz)]
    ]
    return curves(
        f"time-scaling-{each.gpu}",
        f"{each.gpu}: time over that at {errors.reference.core_mhz:g} MHz core clock, "
        f"{errors.reference.memory_mhz:g} MHz memory clock.",
        panels,
        "core clock, MHz",
        "time over that at the highest clocks",
    )


def _families_section(found: Sequence[ActivityErrors]) -> Section:
    programs = [program for each in found for program in each.programs]
    families = _by(programs, lambda program: kernel_group(program.program))
    dwarfs = _by(programs, lambda program: dwarf_of(program.program).name)
    sources = {family: dwarf_of(members[0].program) for family, members in families.items()}
    titles = ("GPUs x programs", *(f"{name}, %" for name in MODELS))
    chosen = ("bottleneck", "queueing")
    used = {program.program for program in programs if dwarf_of(program.program).source == "ours"}
    ours = "; ".join(
        f"{name}: {dwarf} ({why})" for name, (dwarf, why) in our_choices().items() if name in used
    )
    return Section(
        "By program family and parallel dwarf",
        (
            "Mean absolute error at the highest clocks over all GPUs. A family is all kernels of "
            "one program. Dwarfs are those of thesis Table 4.7, else of the Rodinia suite, else "
            f"chosen here (`studies/pages/dwarfs.toml`; {ours or 'none of these'}).",
            Table(
                ("family", "dwarf", "by", *titles),
                [
                    [family, *sources[family], *_mean_errors(members)]
                    for family, members in families.items()
                ],
            ),
            Table(
                ("dwarf", *titles),
                [[dwarf, *_mean_errors(members)] for dwarf, members in dwarfs.items()],
            ),
            *(
                bars(
                    f"time-by-{kind}",
                    f"Mean absolute error at the highest clocks by {kind}, all GPUs.",
                    list(groups),
                    {
                        model: [_mean_percent(members, model) for members in groups.values()]
                        for model in chosen
                    },
                    "mean absolute error, %",
                )
                for kind, groups in (("family", families), ("dwarf", dwarfs))
            ),
        ),
    )


# --- cells ------------------------------------------------------------------------------------


def _score_table(
    found: Sequence[ActivityErrors], names: Sequence[str], *, mean_curve: bool = False
) -> Table:
    rows = []
    for each in found:
        for name in names:
            errors = each.models[name]
            ratios = [program.ratios[name] for program in each.programs]
            within = np.mean([0.5 <= ratio <= 2 for ratio in ratios]) * 100
            programs = str(len({row.program for row in errors.rows}))
            rows.append([each.gpu, name, programs, *summary(errors), f"{within:.0f}"])
        if mean_curve:
            curve = each.mean_curve_percent
            scaling = f"{curve.mean():.1f} ({np.median(curve):.1f})"
            rows.append([each.gpu, MEAN_CURVE, rows[-1][2], "-", "-", scaling, "-"])
    return Table(
        (
            *("GPU", "model", "programs", "highest clocks", "all clocks", "scaling"),
            "within a factor 2, %",
        ),
        rows,
        "Mean (median) absolute error in percent; scaling is time over that at the highest clocks.",
    )


def _at_reference(errors: TimeErrors) -> float:
    return float(errors.percent[errors.at_reference].mean())


def _left_out(worst: Sequence[ProgramError], percents: Sequence[float], count: int) -> str:
    """Mean error without the ``count`` programs that add most, and which they are."""
    if len(worst) <= count:
        return "-"
    names = ", ".join(f"{each.label} {each.ratios[DEFAULT]:.2f}" for each in worst[:count])
    return f"{np.mean(percents[count:]):.1f} ({names})"


def _by(
    programs: Sequence[ProgramError], group: Callable[[ProgramError], str]
) -> dict[str, list[ProgramError]]:
    """Programs by group, in the order of the names; what nobody classified comes last."""
    groups: dict[str, list[ProgramError]] = {}
    for program in programs:
        groups.setdefault(group(program), []).append(program)
    return dict(sorted(groups.items(), key=lambda each: (each[0] == NOT_CLASSIFIED, each[0])))


def _mean_percent(members: Sequence[ProgramError], model: str) -> float:
    return float(np.mean([member.percent(model) for member in members]))


def _mean_errors(members: Sequence[ProgramError]) -> list[str]:
    return [str(len(members)), *(f"{_mean_percent(members, name):.1f}" for name in MODELS)]


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
