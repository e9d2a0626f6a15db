"""``wattcast analyze``: what a launch does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.text import Text

from wattcast.app.cli.inputs import AsJson, KernelOptions, with_options
from wattcast.app.cli.output import Answer, line, predictor, rows, show, warnings
from wattcast.app.cli.predict import registers_told

_LOOP = {
    "loop": "loop",
    "line": "line",
    "source_line": "source line",
    "depth": "depth",
    "trips": "trips",
    "how": "how",
}
_ACCESS = {
    "line": "line",
    "source_line": "source line",
    "opcode": "opcode",
    "requests": "requests",
    "sectors_per_request": "sectors/request",
    "transactions_per_request": "passes/request",
    "stride_bytes": "stride",
    "address": "address",
}
_SOURCE_LINE = {
    "line": "line",
    "warp_instructions_sass": "machine instructions",
    "active_lane_fraction": "active lanes",
    "global_sectors": "global sectors",
    "shared_transactions": "shared passes",
}
_QUANTITY = {"name": "quantity", "value": "value", "unit": "unit"}


@with_options
def analyze(launch: KernelOptions, as_json: AsJson = False) -> None:
    """Show what a launch does: loops, memory, occupancy, hot lines."""
    from wattcast.predictor.analyze import analyze as run
    from wattcast.predictor.messages.analyze import AnalyzeRequest

    answer = run(predictor(), AnalyzeRequest.model_validate(launch.body()))
    show(answer, as_json, _report)


def _report(out: Console, answer: Answer, most: int = 12) -> None:
    """An analysis: occupancy, loops, accesses, mix, memory, source lines; ``most`` of each."""
    launch, occupancy, registers = answer["launch"], answer["occupancy"], answer["registers"]
    compiled = answer["compiled"]
    out.print(
        Text.assemble((answer["kernel"]["demangled"], "bold"), " on ", (answer["gpu"], "bold"))
    )
    if compiled is not None:
        target = f"{compiled['target'] // 10}.{compiled['target'] % 10}"
        line(out, f"compiled by {compiled['compiler']} for compute capability {target}")
    line(
        out,
        f"grid {_dims(launch['grid'])} of blocks {_dims(launch['block'])}: "
        f"{launch['blocks']:,} blocks, {launch['threads']:,} threads",
    )
    for argument in launch["arguments"]:
        name = argument["c_name"] or argument["ptx_name"]
        line(out, f"  {argument['position']} {name} ({argument['type']}) = {_given(argument)}")
    limits = ", ".join(f"{name} {blocks}" for name, blocks in occupancy["limits"].items())
    line(
        out,
        f"occupancy {occupancy['occupancy']:.0%}, limited by {occupancy['limiter']} "
        f"(blocks per SM: {limits}); {occupancy['waves']:g} waves",
    )
    line(out, f"{registers_told(registers)}; shared memory {_shared(launch)}")
    _section(out, "loops", answer["loops"], _LOOP, most)
    _section(out, "memory accesses", answer["accesses"], _ACCESS, most)
    total = sum(answer["mix"].values())
    mix = [
        {"class": name, "warp instructions": count, "share": f"{count / total:.1%}"}
        for name, count in answer["mix"].items()
    ]
    _section(out, "instruction mix", mix, {name: name for name in mix[0]} if mix else {}, most)
    _section(out, "source lines", answer["lines"], _SOURCE_LINE, most)
    _section(out, f"activity, {answer['how']}", answer["activity"], _QUANTITY, most=100)
    if (sampling := answer["sampling"]) is not None:
        cut = "" if sampling["completed"] else ", cut short by the budget"
        line(
            out,
            f"{sampling['sampled_blocks']} of {sampling['launch_blocks']:,} blocks executed{cut}; "
            f"standard error {sampling['relative_standard_error']:.2%}",
        )
    warnings(out, answer["warnings"])


def _section(
    out: Console,
    title: str,
    found: Sequence[Answer],
    columns: Mapping[str, str],
    most: int,
) -> None:
    if not found:
        line(out, f"{title}: none")
        return
    out.print()
    out.print(Text(title, "bold"))
    shown = [{columns[key]: row[key] for key in columns} for row in found[:most]]
    rows(out, shown, columns.values())
    if len(found) > most:
        line(out, f"and {len(found) - most} more (--json shows all)")


def _dims(dimensions: list[int]) -> str:
    return " x ".join(str(size) for size in dimensions)


def _given(argument: Answer) -> str:
    given = argument["given"]
    if given is None:
        return "not given"
    if isinstance(given, Mapping):
        count = "" if given["elements"] is None else f"{given['elements']:,} elements, "
        return f"{count}{given['values']}"
    return f"{given:,}" if isinstance(given, int) else f"{given:g}"


def _shared(launch: Answer) -> str:
    return (
        f"{launch['static_shared_bytes']:,} bytes static, "
        f"{launch['dynamic_shared_bytes']:,} bytes dynamic per block"
    )
