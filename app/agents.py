"""``wattcast mcp``: what an agent that writes kernels asks, as tools of the Model Context Protocol.
Each is one use case with one request (``tools.toml`` tells them); its answer is JSON of at most
``MOST_CHARACTERS``, numbers first.

What a kernel's author wrote stands in strings of that JSON alone, without escape codes.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path
from typing import Any
from unicodedata import category
from uuid import UUID

import anyio
import mcp_types as mcp
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from pydantic import Field, ValidationError

from wattcast.app.logs import log
from wattcast.app.python.answers import found_gpus
from wattcast.app.python.code import SUFFIXES, source
from wattcast.app.services.analyses import AnalysisPool
from wattcast.app.services.models.standalone import standalone_predictor
from wattcast.app.settings import Settings, installed_version, is_loopback
from wattcast.features.checked import read_toml
from wattcast.features.errors import MissingExtraError, ServiceError, WattcastError
from wattcast.predictor import Predictor, answering, hotspots, parts, predict
from wattcast.predictor import messages as shared
from wattcast.predictor.advise import advise
from wattcast.predictor.messages import compare, language_model, operators, tunings
from wattcast.predictor.messages.predict import PredictAnswers, PredictRequest

MOST_CHARACTERS = 4_800
"""Of an answer: 2,000 tokens at 2.4 characters, which rows of digits in JSON come to."""

MOST_TEXT = 300
"""Characters of one string in an answer."""

MOST_LINES = 6
"""Lines and components told where more are known."""

TOLD: dict[str, Any] = read_toml(Path(__file__).with_name("tools.toml"))


class LineRequest(PredictRequest):
    """A launch, and a line of its code."""

    line: int | None = Field(None, ge=1)


class GpusRequest(shared.Message):
    """Words that a GPU's id, name, alias or architecture holds."""

    search: str = Field("", max_length=64)


def _predict(predictor: Predictor, request: PredictRequest | operators.OperatorRequest) -> Any:
    found = answering.answer(predictor, request)
    if not isinstance(request, PredictRequest) or not isinstance(found, PredictAnswers):
        return found
    names = ("gpu", "time", "energy", "power", "bound", "trust")
    told = [parts.members(each, *names) for each in found.predictions]
    return {"predictions": told, "apart": found.apart}


def _line(predictor: Predictor, request: LineRequest) -> dict[str, Any]:
    prediction = predict.predict_one(predictor, request)
    if prediction.energy is None:
        raise ServiceError("no-explanation", "the energy of this launch cannot be predicted")
    found = hotspots.hotspots_of(predictor, request, prediction, hotspots.MOST_ROWS)
    kind, at = ("source_lines", "source_line") if request.cuda else ("lines", "line")
    rows = getattr(found, kind).rows
    asked = [row for row in rows if request.line in (None, row.line)][:MOST_LINES]
    if not asked:
        raise ServiceError("validation", f"line: {request.line} holds nothing that is executed")
    places = {row.line for row in asked}
    advice = [
        {"code": each.code, "remedy": each.remedy, "saves_energy_percent": each.gain.energy_percent}
        for each in advise(predictor, request).advice
        if places & {getattr(place, at) for place in each.places}
    ]
    launch = {"time": prediction.time, "energy": prediction.energy, "start": found.start}
    beside = {"needs": prediction.needs, "warnings": found.warnings}
    return {kind: asked, "launch": launch, "advice": advice, **beside}


def _speed(predictor: Predictor, request: PredictRequest) -> Any:
    return predict.predict_one(predictor, request.model_copy(update={"details": True}))


def _gpus(predictor: Predictor, request: GpusRequest) -> dict[str, Any]:
    found = found_gpus(predictor, request.search)
    return {"gpus": [each["id"] for each in found] if len(found) > 2 * MOST_LINES else found}


TOOLS: Mapping[str, tuple[type[shared.Message], Callable[[Predictor, Any], Any]]] = {
    "predict": (PredictRequest, _predict),
    "compare": (compare.CompareRequest, answering.answer),
    "judge": (compare.JudgeRequest, answering.answer),
    "advise": (PredictRequest, advise),
    "explain_line": (LineRequest, _line),
    "rank": (tunings.RankRequest, answering.answer),
    "speed_of_light": (PredictRequest, _speed),
    "gpus": (GpusRequest, _gpus),
    "forecast_model": (language_model.LanguageModelRequest, answering.answer),
}


def listed() -> list[mcp.Tool]:
    """The tools as agents see them."""
    only, tools = mcp.ToolAnnotations(read_only_hint=True, open_world_hint=False), []
    for name in TOOLS:
        members = dict(TOLD[name])
        about = members.pop("told")
        for group in members.pop("also", ()):
            members |= TOLD["groups"][group]
        schema = {"type": "object", "properties": members}
        tools.append(mcp.Tool(name=name, description=about, input_schema=schema, annotations=only))
    return tools


# --- arguments --------------------------------------------------------------------------

_SOURCES = frozenset({"file", "ptx", "cuda", "headers"})
_OF_A_SIDE = {*shared.KernelTiming.model_fields, *shared.LaunchRequest.model_fields, *_SOURCES}


def answered(predictor: Predictor, name: str, given: Mapping[str, Any], files: bool) -> Any:
    """A tool's answer. Members of the launch may stand beside it, what versions of the code share
    beside them, and code may be a file's where ``files`` are read. Raises WattcastError and
    pydantic.ValidationError."""
    if name not in TOOLS:
        raise ServiceError("validation", f"no tool {name!r}: {', '.join(TOOLS)}")
    request, answers = TOOLS[name]
    body = dict(given)
    if request in (compare.CompareRequest, compare.JudgeRequest, tunings.RankRequest):
        common = {each: body.pop(each) for each in _OF_A_SIDE & body.keys()}

        def beside(side: Any) -> Any:
            if not isinstance(side, dict):
                return side
            own = _SOURCES if _SOURCES & side.keys() else ()
            shares = {each: value for each, value in common.items() if each not in own}
            return _kernel(predictor, {**shares, **side}, files)

        for each in body.keys() & {"old", "new", "reference", "candidate", "variants"}:
            side = body[each]
            body[each] = list(map(beside, side)) if isinstance(side, list) else beside(side)
        if isinstance(old := body.get("old"), dict) and "operator" in old:
            request = operators.OperatorCompareRequest
    else:
        body = _kernel(predictor, body, files)
        if request is PredictRequest and "operator" in body:
            request, answers = operators.OperatorRequest, _predict
    return answers(predictor, request.model_validate(body))


def _kernel(predictor: Predictor, body: dict[str, Any], files: bool) -> dict[str, Any]:
    """Members of a request about a kernel, as HTTP takes them. Raises ServiceError, DataError."""
    launch = {each: body.pop(each) for each in shared.LaunchRequest.model_fields if each in body}
    if launch and isinstance(body.get("launch", {}), dict):
        body["launch"] = {**body.get("launch", {}), **launch}
    if (name := body.pop("file", None)) is None:
        return body
    path, most = Path(str(name)), predictor.settings.max_ptx_bytes
    why = "is not read over HTTP: give its text as ptx or cuda"
    if files:
        why = f"is no file *{' *'.join(SUFFIXES)} of at most {most:,} bytes"
    if not files or path.suffix not in SUFFIXES or not path.is_file() or path.stat().st_size > most:
        raise ServiceError("validation", f"file: {name!r} {why}")
    found = source(path)
    headers = {"headers": dict(found.headers)} if found.headers else {}
    return {**body, found.member: found.text, **headers}


# --- answers ----------------------------------------------------------------------------

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")


def plain(text: str, most: int = MOST_TEXT) -> str:
    """One line without escape codes, control characters and marks that turn or hide text."""
    told = _ESCAPE.sub("", text[: 4 * most])
    told = " ".join("".join(" " if category(each)[0] == "C" else each for each in told).split())
    return told if len(told) <= most else f"{told[: most - 1]}…"


def _told(value: Any, name: str = "") -> Any:
    """Part of an answer as short plain data: numbers to four digits, texts to a line."""
    if isinstance(value, shared.Need):
        data = "what it holds: values, low, high" if value.by_data else "its value"
        give = {"give": {"arguments": {str(value.position): data}}}
        return _told(value.model_dump(exclude={"by_data"}) | give)
    if isinstance(value, shared.KernelName):
        return plain(value.demangled)
    if isinstance(value, shared.Power | shared.Time | shared.Energy):
        told = parts.members(value, "low", "high", "basis")
        unit = next(each for each in ("watts", "seconds", "joules") if hasattr(value, each))
        return _told({"value": getattr(value, unit), **told})
    if isinstance(value, shared.ModelReference | UUID):
        return None
    if isinstance(value, shared.Answer):
        value = {each: getattr(value, each) for each in type(value).model_fields
                 if each in value.model_fields_set}  # fmt: skip
    if isinstance(value, Mapping):
        if name in ("components", "unit_cycles"):
            value = dict(sorted(value.items(), key=lambda pair: -abs(pair[1]))[:MOST_LINES])
        told = {key: _told(value[key], str(key)) for key in value if key not in TOLD["left_out"]}
        kept = {plain(str(key)): each for key, each in told.items() if each not in (None, [], {})}
        order = {key: at for at, key in enumerate(TOLD["first"])}
        return dict(sorted(kept.items(), key=lambda pair: order.get(pair[0], len(order))))
    if isinstance(value, list | tuple):
        return [_told(each) for each in value]
    if isinstance(value, float):
        whole = value.is_integer() and abs(value) < 1e9
        return int(value) if whole else float(f"{value:.4g}") if isfinite(value) else None
    return value if value is None or isinstance(value, bool | int) else plain(str(value))


def fitted(answer: Any, most: int = MOST_CHARACTERS) -> str:
    """An answer as JSON of at most so many characters: the longest list loses its last rows, told
    in ``left_out``; where that is not enough, members from the last on."""
    told, left_out = _told(answer), dict[str, int]()
    while True:
        whole = {**told, "left_out": left_out} if left_out else told
        text = json.dumps(whole, ensure_ascii=False, separators=(",", ":"))
        if len(text) <= most:
            return text
        lists = {name: str(each) for name, each in told.items() if isinstance(each, list) and each}
        name = max(lists, key=lambda each: len(lists[each])) if lists else [*told][-1]
        if lists and len(told[name]) > 1:
            told[name].pop()
        else:
            del told[name]
        left_out[name] = left_out.get(name, 0) + 1


def problem(error: Exception) -> str:
    """One line: the kind of error, as HTTP names it, and what is wrong."""
    if isinstance(error, ModuleNotFoundError):
        error = MissingExtraError.of(error) or error
    if isinstance(error, WattcastError):
        return plain(f"{getattr(error, 'kind', error.slug)}: {error}", 2 * MOST_TEXT)
    if isinstance(error, ValidationError):
        return plain(f"validation: {shared.one_line(error, 3)}", 2 * MOST_TEXT)
    log().error("unexpected error", exc_info=error)
    return "internal: an unexpected error; the server's log tells more"


# --- the server -------------------------------------------------------------------------


def server(settings: Settings, *, files: bool) -> Server[Any]:
    """The tools. ``files``: whoever asks may name files of this machine, and brings code of their
    own."""
    predictor, tools = standalone_predictor(settings, own=files), listed()
    pool = AnalysisPool(
        settings.analyses_at_once, settings.waiting_analyses, settings.analysis_seconds
    )

    def answer(name: str, given: Mapping[str, Any]) -> str:
        return fitted(answered(predictor, name, given, files))

    async def call(_: Any, asked: mcp.CallToolRequestParams) -> mcp.CallToolResult:
        failed = False
        try:
            text = await pool.run(answer, asked.name, asked.arguments or {})
        except Exception as error:  # every fault is told to the agent, none ends the server
            text, failed = problem(error), True
        told = mcp.TextContent(type="text", text=text)
        return mcp.CallToolResult(content=[told], is_error=failed)

    async def tell(*_: Any) -> mcp.ListToolsResult:
        return mcp.ListToolsResult(tools=tools)

    made: Server[Any] = Server("wattcast", on_list_tools=tell, on_call_tool=call)
    made.version, made.instructions = installed_version(), TOLD["about"]
    return made


def serve_stdio(settings: Settings) -> None:
    """Answer on standard input and output until that is closed."""

    async def run() -> None:
        made = server(settings, files=True)
        async with stdio_server() as (incoming, outgoing):
            await made.run(incoming, outgoing, made.create_initialization_options())

    anyio.run(run)


def serve_http(settings: Settings) -> None:
    """Streamable HTTP at ``/mcp`` until interrupted (the extra ``serve``). Raises ServeError where
    the address cannot be listened on, and ServiceError where others reach it while keys are asked
    of them, which this server does not know."""
    import uvicorn

    from wattcast.app.server import listen, url_of

    host = settings.host
    if settings.keys_required:
        why = "these tools ask for no API key: listen on 127.0.0.1 behind a proxy that does"
        raise ServiceError("validation", f"--http {host}: {why}, or set WATTCAST_API_KEYS=off")
    listening = listen(host, settings.port)
    own: dict[str, Any] = {"host": "127.0.0.1" if is_loopback(host) else host}  # whose names hold
    own |= {"stateless_http": True, "max_request_body_size": settings.max_body_bytes}
    made = server(settings, files=False).streamable_http_app(json_response=True, **own)
    print(f"wattcast serves tools on {url_of(listening)}/mcp", file=sys.stderr, flush=True)
    uvicorn.Server(uvicorn.Config(made, log_level="warning")).run(sockets=[listening])
