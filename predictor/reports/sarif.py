"""SARIF 2.1.0 (OASIS, 27 March 2020) of what was found in code, as code scanning reads it."""

from collections.abc import Iterator
from itertools import islice
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from pydantic_core import to_json

from wattcast.features.checked import harmless
from wattcast.models.intervals import quantity
from wattcast.predictor import reports
from wattcast.predictor.messages import advise, explain

MEDIA_TYPE = "application/sarif+json"
SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
MOST_RESULTS = 1_000
"""GitHub shows 5,000 of a run; nobody reads the thousandth."""
LEAST_SHARE = 0.01
"""Of the energy, for a line to be told: a judgement."""
MOST_LETTERS = 1_000
"""Of a message: GitHub's limit for a rule's text."""

Found = tuple[str, str, str, int | None]
"""Rule, level, message and line."""


def sarif(answer: Any, file: str, version: str) -> bytes:
    """Places of a HotspotsAnswer or AdviceAnswer in ``file``: PTX lines of a ``*.ptx``, else source
    lines. What has none there stands at line 1. The kernel's text is no link (3.11.6) and has no
    control characters."""
    in_ptx = PurePath(file).suffix == ".ptx"
    listed = _advice(answer, in_ptx) if hasattr(answer, "advice") else _hotspots(answer, in_ptx)
    found = list(islice(listed, MOST_RESULTS))
    rules = list(dict.fromkeys(rule for rule, *_ in found))
    uri = quote(f"file://{file}" if file.startswith("/") else file, safe="/:", errors="replace")
    results = [
        {
            "ruleId": rule,
            "ruleIndex": rules.index(rule),
            "level": level,
            "message": {"text": harmless(message[:MOST_LETTERS]).replace("](", "] (")},
            "locations": [
                {
                    "physicalLocation": {
                        "artifactLocation": {"uri": uri},
                        "region": {"startLine": max(1, line or 1)},
                    }
                }
            ],
        }
        for rule, level, message, line in found
    ]
    told = [{"id": rule, "shortDescription": {"text": reports.words(rule)}} for rule in rules]
    driver = {"name": "wattcast", "version": version, "rules": told}
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return to_json({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]})


def _hotspots(answer: explain.HotspotsAnswer, in_ptx: bool) -> Iterator[Found]:
    for row in (answer.lines if in_ptx else answer.source_lines).rows:
        if row.energy_share < LEAST_SHARE:
            continue
        share = f"{row.energy_share:.1%} of the energy and {row.time_share:.1%} of the time"
        of = f"{quantity(row.joules, 'J')} on {answer.gpu}, mostly {row.mostly or 'idle'}"
        yield "energy_hotspot", "note", f'{share}: {of}. "{row.text or ""}"', row.line


def _advice(answer: advise.AdviceAnswer, in_ptx: bool) -> Iterator[Found]:
    def line(each: Any) -> int | None:
        where = each.places[0] if each.places else None
        return where and (where.line if in_ptx else where.source_line)

    for each in answer.advice:
        gain = each.gain
        saved = f"{reports.percent(-gain.energy_percent)} energy, "
        saved += f"{reports.percent(-gain.time_percent)} time on {answer.gpu}"
        yield each.code, "warning", f"{each.remedy} ({saved}). {each.detail}", line(each)
    for other in answer.unpriced:
        yield other.code, "note", f"{other.remedy} {other.detail}", line(other)
