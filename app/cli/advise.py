"""``wattcast advise``: what to change about a launch."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from wattcast.app.cli import inputs
from wattcast.app.cli.output import Answer, line, predictor, show, warnings
from wattcast.models.estimate import quantity


@inputs.with_options
def advise(
    launch: inputs.KernelOptions,
    core_mhz: inputs.CoreMhz = None,
    memory_mhz: inputs.MemoryMhz = None,
    as_json: inputs.AsJson = False,
) -> None:
    """Suggest changes to a launch and estimate what each saves."""
    from wattcast.predictor.advise import advise as run
    from wattcast.predictor.messages.predict import PredictRequest

    body = {**launch.body(), "clocks": inputs.clock_request(core_mhz, memory_mhz)}
    answer = run(predictor(), PredictRequest.model_validate(body))
    show(answer, as_json, _report)


def _report(out: Console, answer: Answer) -> None:
    before = answer["before"]
    out.print(Text.assemble((answer["kernel"]["demangled"], "bold"), " on ", answer["gpu"]))
    line(out, f"{quantity(before['joules'], 'J')} in {quantity(before['seconds'], 's')}")
    if not answer["advice"]:
        line(out, "no change found that saves a noticeable amount")
    for each in answer["advice"]:
        gain = each["gain"]
        out.print()
        saved = f"{-gain['energy_percent']:+.1f} % energy, {-gain['time_percent']:+.1f} % time"
        if each["promise"] == "at_least":
            saved += ", at least"
        out.print(Text.assemble((each["code"].replace("_", " "), "bold"), f": {saved}"))
        for text in (each["detail"], each["remedy"]):
            line(out, f"  {text}")
        for at in each["places"][:4]:
            source = "" if at["source_line"] is None else f" (source line {at['source_line']})"
            told = f"  line {at['line']}{source}: {at['text']}"
            line(out, told)
        if each["snippet_before"] is not None:
            for side in ("before", "after"):
                line(out, f"  {side}:")
                for code in each[f"snippet_{side}"].splitlines():
                    line(out, f"    {code}")
    warnings(out, answer["warnings"])
