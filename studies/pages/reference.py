"""``python -m studies reference docs/reference``: reference pages from the code.

One page each for the commands, the calls, the features, the GPUs and the settings. A test holds the
committed pages equal to what this module writes.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import typer
from typer.main import get_command

from studies import parser_of
from studies.card_tables import table
from studies.pages.reference_calls import api_page
from wattcast.app.services.models.standalone import standalone_predictor
from wattcast.app.settings import Settings
from wattcast.features.gpus import GpuProfile, list_gpus
from wattcast.measure import recording
from wattcast.models.clocks import default_clocks
from wattcast.models.power.activities import AT_REST
from wattcast.models.power.physical import PhysicalPowerModel, predicted_power
from wattcast.predictor.catalog import schema_details, schema_summaries

MADE = "<!-- Written by python -m studies reference docs/reference; do not edit. -->\n\n"


def pages() -> dict[str, str]:
    """Every page by file name. What this machine's user added or set does not show."""
    written: dict[str, Callable[[], str]] = {
        "cli.md": cli_page,
        "api.md": lambda: api_page(Settings(home=Path(folder))),
        "features.md": features_page,
        "gpus.md": lambda: gpus_page(Settings(home=Path(folder))),
        "settings.md": settings_page,
    }
    clean = {name: text for name, text in os.environ.items() if not name.startswith("WATTCAST_")}
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, clean, clear=True):
        return {name: MADE + page() for name, page in written.items()}


def cli_page() -> str:
    """Every command with its arguments and options, as typer knows them."""
    from wattcast.app.cli import app
    from wattcast.app.cli.exits import MEANINGS

    parts = [
        "# Commands\n",
        "`--json` prints what the HTTP service answers. `wattcast --install-completion` completes "
        "commands, options and GPUs in your shell. Every command ends with one of these:\n",
        table(
            ("exit status", "meaning"), [(str(int(one)), told) for one, told in MEANINGS.items()]
        ),
    ]
    root = get_command(app)
    parts += _command("wattcast", root, typer.Context(root, info_name="wattcast"))
    return "\n".join(parts)


def _command(name: str, command: Any, context: typer.Context) -> list[str]:
    """The sections of a command and of those below it."""
    from wattcast.app.cli.group import examples

    usage = command.get_usage(context).removeprefix("Usage: ")
    parts = [f"## {name}\n", f"    {usage}\n", f"{_cell(command.help or '')}\n"]
    records = [
        (f"`{found[0]}`", _cell(found[1]))
        for parameter in command.get_params(context)
        if parameter.name != "help" and (found := parameter.get_help_record(context)) is not None
    ]
    if records:
        parts.append(table(("option", "meaning"), records))
    lines = examples().get(name.partition(" ")[2], ())
    parts.append("\n".join(("```bash", *lines, "```\n")))
    below = getattr(command, "commands", {})
    for word in sorted(below):
        inner = typer.Context(below[word], info_name=word, parent=context)
        parts += _command(f"{name} {word}", below[word], inner)
    return parts


def features_page() -> str:
    """Every schema with the definition of its features."""
    parts = [
        "# Features\n",
        "The inputs of the power models, by schema. `input`: a model sees it; `changeable`: the "
        "programmer can change it. How each is computed: [schemas](../schemas.md) and "
        "[activity](../activity.md).\n",
    ]
    for schema in schema_summaries():
        found = schema_details(schema["id"])
        parts += [
            f"## {found['id']}\n",
            f"{found['title']}. Version {found['version']}, {len(found['fields'])} features, "
            f"sha256 `{found['sha256']}`. Source: {found['source']}. GPUs: "
            f"{', '.join(found['gpus']) or 'all'}.\n",
            table(
                ("feature", "meaning", "unit", "input", "changeable"),
                [
                    (
                        f"`{field['name']}`",
                        _cell(field["description"]),
                        _cell(field["unit"]),
                        _yes(field["model_input"]),
                        _yes(field["changeable"]),
                    )
                    for field in found["fields"]
                ],
            ),
        ]
    return "\n".join(parts)


def gpus_page(settings: Settings) -> str:
    """Every GPU of the package, from its profile."""
    models = standalone_predictor(settings, registry=False).power
    measured = {card.gpu for card in models.cards() if card.target == "power"}
    parts = [
        (Path(__file__).parent / "gpus_head.md").read_text(encoding="utf-8"),
        table(
            ("id", "name", "also called", "PCI", "architecture", "capability", "SMs", "core MHz",
             "memory", "memory MHz", "GB/s", "L2 MiB", "limit W", "range W", "clock pairs",
             "tensor-bound W", "power", "SMs, memory and limit from"),
            [_gpu(gpu, models.physical(gpu), gpu.id in measured) for gpu in list_gpus()],
        ),
    ]  # fmt: skip
    return "\n".join(parts)


MMA_FMAS = 16 * 8 * 16
"""Multiply-adds of the matrix instruction whose loop is told: mma.m16n8k16."""

TENSOR_MEASURED = dict.fromkeys(
    ("a100-sxm4-40gb", "a100-sxm4-80gb"), "measured: 400, a BF16 product of normal values (He 2024)"
)
"""Published watts of tensor-bound kernels, with their data."""


def _tensor_bound(gpu: GpuProfile, model: PhysicalPowerModel) -> str:
    """Watts of a loop of matrix multiply-adds, and what stands beside them."""
    rate = gpu.capability.tensor_fma_per_clock
    if not rate:
        return "-"
    issue = rate / MMA_FMAS / gpu.warp_schedulers
    busy = AT_REST._replace(tensor=1.0, issue=issue)
    watts = predicted_power(model.parameters, busy, default_clocks(gpu)).watts
    told = f"{watts:.0f}" if watts < gpu.tdp_watts else f"{gpu.tdp_watts:g}, at its limit"
    return f"{told}; {TENSOR_MEASURED.get(gpu.id, 'a guess')}"


def _gpu(gpu: GpuProfile, model: PhysicalPowerModel, measured: bool) -> tuple[str, ...]:
    driver, size, limits = gpu.driver, gpu.memory_bytes, gpu.limit_range_watts
    also = [*gpu.aliases, *(name for name in (driver.names if driver else ()) if name != gpu.name)]
    sources = dict.fromkeys(
        gpu.sources[fact.source]
        for fact in (gpu.chip.sm_count, gpu.memory.bandwidth_bytes_per_second, gpu.power.tdp_watts)
    )
    return (
        f"`{gpu.id}`",
        _cell(gpu.name),
        ", ".join(f"`{name}`" for name in also),
        ", ".join(driver.pci_ids) if driver else "",
        gpu.architecture,
        gpu.compute_capability,
        f"{gpu.sm_count}",
        f"{gpu.core_mhz:g}",
        " ".join(filter(None, (f"{size / 2**30:g} GiB" if size else "", gpu.memory_kind))),
        f"{gpu.memory_mhz:g}",
        f"{gpu.bandwidth_bytes_per_second / 1e9:.0f}",
        f"{gpu.l2_bytes / 2**20:g}",
        f"{gpu.tdp_watts:g}",
        f"{limits[0]:g} to {limits[1]:g}" if limits else "-",
        f"{len(gpu.supported_pairs) or '-'}",
        _tensor_bound(gpu, model),
        f"as {model.lent_by}" if model.lent_by else "measured" if measured else "pooled",
        _cell("; ".join(sources)),
    )


def settings_page() -> str:
    """Every setting with its default."""
    rows = [
        (
            f"`WATTCAST_{name.upper()}`",
            "`~/.wattcast`" if name == "home" else _default(field.get_default()),
            _cell(field.description or ""),
        )
        for name, field in Settings.model_fields.items()
    ]
    return "\n".join(
        [
            "# Settings\n",
            "Environment variables; `wattcast settings` prints them with the values they have "
            "here.\n",
            table(("variable", "default", "meaning"), rows),
        ]
    )


def _default(value: object) -> str:
    return "" if value is None else f"`{value}`"


def _yes(holds: bool) -> str:
    return "yes" if holds else ""


def _cell(text: str) -> str:
    """Text on one line that does not end a cell of a table or begin a tag."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def write(folder: Path, made: Mapping[str, str]) -> Iterable[Path]:
    """Write the pages into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in made.items():
        path = folder / name
        path.write_text(text, encoding="utf-8")
        yield path


def main(arguments: Sequence[str]) -> int:
    """Write the pages into the folder that the only argument names."""
    parser = parser_of("reference", __doc__)
    parser.add_argument("folder", type=Path)
    for path in write(parser.parse_args(arguments).folder, pages()):
        print(path)
    recording.SCHEMA_FILE.write_text(json.dumps(recording.schema(), indent=1) + "\n", "utf-8")
    print(recording.SCHEMA_FILE.name)
    return 0
