"""The brief form of an answer: a few members under stable names, which ``brief.toml`` lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, create_model
from pydantic_core import to_json

from wattcast.features.checked import read_toml

MOST_BYTES = 1024
"""Of the brief form as JSON."""

MOST_LETTERS = 90
"""Of a text in it: a judgement, so that a name leaves room for the numbers."""

DIGITS = 4
"""Significant ones of a number; answers are not sure of the third."""


@cache
def forms() -> Mapping[str, Any]:
    """The brief form by the name of the answer's class."""
    return read_toml(Path(__file__).with_suffix(".toml"))


def briefs(answer: Any) -> list[type[BaseModel]]:
    """Models of the brief forms of an answer's type: of one, of several, or of rows of one."""
    name = getattr(answer, "__name__", "")
    found = [_model(name)] if name in forms() else []
    return found + [short for each in get_args(answer) for short in briefs(each)]


@cache
def _model(name: str) -> type[BaseModel]:
    members: dict[str, Any] = dict.fromkeys((*forms()[name], "left_out"), (Any, None))
    told = f"The brief form of `{name}`: what it does not hold is left out."
    return create_model(
        f"Brief{name}", __config__=ConfigDict(extra="forbid"), __doc__=told, **members
    )


def brief(answer: BaseModel | Sequence[BaseModel], *, kept: bool = False) -> bytes:
    """One line of JSON without the answer's details, at most ``MOST_BYTES``. ``kept``: the answer
    can be asked for again, and ``id`` says by which name."""
    one = answer if isinstance(answer, BaseModel) else next(iter(answer), None)
    told = _members(answer, forms().get(type(one).__name__, {}))
    if not kept:
        told.pop("id", None)
    while len(text := to_json(told, inf_nan_mode="null")) > MOST_BYTES:
        longest = max(told, key=lambda name: len(to_json(told[name])))
        if isinstance(told[longest], list) and len(told[longest]) > 1:
            told[longest].pop()
            told["left_out"] = told.get("left_out", 0) + 1
        else:
            del told[longest]
    return text


def _members(of: Any, form: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: _member(of, where) for name, where in form.items() if name != "of"}
    return {name: value for name, value in found.items() if value not in (None, [], {}, "")}


def _member(of: Any, where: Any) -> Any:
    if isinstance(where, str):
        return _plain(_at(of, where))
    rows = _at(of, where["of"]) or []
    if "each" in where:
        return list(dict.fromkeys(_member(row, where["each"]) for row in rows))
    return [_members(row, where) for row in rows]


def _at(of: Any, where: str) -> Any:
    for name in filter(None, where.split(".")):
        if name.isdecimal():
            of = dict(enumerate(of or ())).get(int(name))
        else:
            of = of.get(name) if isinstance(of, dict) else getattr(of, name, None)
    return of


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return "".join(each for each in value if each.isprintable())[:MOST_LETTERS]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, BaseModel | dict):
        named = {name: _plain(each) for name, each in dict(value).items()}
        return {_plain(name): each for name, each in named.items() if each is not None}
    return [_plain(each) for each in value] if isinstance(value, list) else value
