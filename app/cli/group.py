"""The commands of ``wattcast``: in groups, each loaded when it is used, with examples in its help.

A command costs nothing until it is called: to load all of them takes longer than to predict a
small kernel. Help is plain text, since typer's tables cut what does not fit a narrow terminal.
"""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

PANELS: Mapping[str, Mapping[str, str]] = tomllib.loads(
    Path(__file__).with_name("commands.toml").read_text("utf-8")
)
"""Groups of ``wattcast --help``: every command and the module below ``app/cli`` that holds it."""

_MODULES = {name: module for panel in PANELS.values() for name, module in panel.items()}
_ANSWERING = ("Predict a launch", "Make it cheaper", "Many kernels, and CI")
"""Groups of commands that compute first and print then: a bar is shown meanwhile. The others say on
stderr what they are at."""

_SHAPED = {"operator"}
"""Commands that read more options than they name."""


@cache
def examples() -> dict[str, list[str]]:
    """Lines of a shell by command, as help prints them and a test runs them."""
    from wattcast.features.checked import read_toml

    found: dict[str, list[str]] = read_toml(Path(__file__).with_name("examples.toml"))
    return found


class _Given:
    """Reads what is given for an option. Typer builds a validator for every option, given or not,
    which takes a tenth of the time of a small prediction; words and paths need none."""

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """As ``typer._coercion.RuntimeParam`` does."""
        kind = param.type_descriptor.annotation
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if type(value) is kind:
            return value
        if kind == list[str]:
            return list(value)
        if kind is Path and isinstance(value, str):
            return Path(value)
        param._runtime_param = None  # from now on typer's own
        return param.get_runtime_param().coerce(value, param=param, ctx=ctx)


def _read_as_given(parameters: Iterable[Any]) -> list[Any]:
    found = list(parameters)
    for parameter in found:
        if getattr(parameter, "_runtime_param", parameter) is None:
            parameter._runtime_param = _Given()
    return found


class _WithExamples:
    """What has its options read as they are given, and examples below its help."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _read_as_given(super().get_params(ctx))  # type: ignore[misc]

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        show_examples(ctx, formatter)


class _Helpful(_WithExamples, TyperCommand):
    """A command whose options stand in groups, with examples below them."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            own = "Arguments" if parameter.param_type_name == "argument" else "Options"
            group = getattr(parameter, "rich_help_panel", None) or own
            groups.setdefault(group, []).append(record)
        groups["Options"] = groups.pop("Options")  # the command's own, and --help, come last
        _sections(formatter, groups)

    def invoke(self, ctx: Any) -> Any:
        if not any(self.name in PANELS[panel] for panel in _ANSWERING):
            return super().invoke(ctx)
        from wattcast.app.progress import working

        with working(str(self.name)):
            return super().invoke(ctx)


class Group(_WithExamples, TyperGroup):
    """A group that prints its commands whole."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        _sections(formatter, {"Commands": list(self._told(ctx, self.list_commands(ctx)))})

    def _told(self, ctx: Any, names: Iterable[str]) -> Iterator[tuple[str, str]]:
        for name in names:
            command = self.get_command(ctx, name)
            if command is not None:
                # No limit: a sentence that is cut says nothing.
                yield name, command.get_short_help_str(limit=10_000)


class Root(Group):
    """``wattcast`` itself."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = _Commands()  # type: ignore[assignment]

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        _sections(formatter, {title: list(self._told(ctx, PANELS[title])) for title in PANELS})

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        from wattcast.app.cli.exits import MEANINGS

        super().format_epilog(ctx, formatter)
        _sections(
            formatter,
            {"Exit status": [(str(int(status)), told) for status, told in MEANINGS.items()]},
        )


class _Commands(Mapping[str, Any]):
    """Commands by name; the module of one is imported when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        return _loaded(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_MODULES)

    def __len__(self) -> int:
        return len(_MODULES)


@cache
def _loaded(name: str) -> Any:
    from wattcast.app.cli.inputs import with_options

    found = getattr(import_module(f"wattcast.app.cli.{_MODULES[name]}"), name)
    holder = typer.Typer(add_completion=False, rich_markup_mode=None)
    if isinstance(found, typer.Typer):
        for one in found.registered_commands:
            one.cls = _Helpful
            one.callback = with_options(one.callback) if one.callback else None
        holder.add_typer(found, name=name, cls=Group)
        return get_command(holder).commands[name]  # type: ignore[attr-defined]
    shaped = {"allow_extra_args": True, "ignore_unknown_options": True}
    settings = shaped if name in _SHAPED else None
    holder.command(name, cls=_Helpful, context_settings=settings)(with_options(found))
    return get_command(holder)


def _sections(formatter: Any, groups: Mapping[str, list[tuple[str, str]]]) -> None:
    """Headings with names and meanings below them; what is empty is left out."""
    for title, records in groups.items():
        if records:
            with formatter.section(title):
                formatter.write_dl(records)


def show_examples(ctx: Any, formatter: Any) -> None:
    """Write a command's examples as a section of its help."""
    lines = examples().get(ctx.command_path.partition(" ")[2], ())
    if lines:
        with formatter.section("Examples"):
            for line in lines:
                for part in _parts(line):
                    formatter.write(f"{'':>{formatter.current_indent}}{part}\n")


def _parts(line: str, width: int = 76) -> Iterator[str]:
    """A command in lines of a terminal, which a shell reads as one; options stay with values."""
    phrases: list[str] = []
    for word in shlex.split(line):
        if phrases and phrases[-1].startswith("--") and not word.startswith("--"):
            phrases[-1] += f" {shlex.quote(word)}"
        else:
            phrases.append(shlex.quote(word))
    part = ""
    for phrase in phrases:
        if part and len(part) + 1 + len(phrase) > width:
            yield f"{part} \\"
            part = "   "
        part += f"{' ' if part else ''}{phrase}"
    yield part
