"""Mutated PTX through the whole prediction: an answer, or an error meant for the user."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pydantic_core import to_json

from tests.app.conftest import settings_at
from wattcast.app.services import Services
from wattcast.features.errors import WattcastError
from wattcast.predictor.messages.predict import PredictAnswer, PredictRequest
from wattcast.predictor.predict import predict

FIXTURES = Path(__file__).parents[1] / "fixtures"
SEEDS = tuple(
    text
    for path in (*sorted(FIXTURES.glob("ptx/*.ptx")), *sorted(FIXTURES.glob("kernels/ptx/*.ptx")))
    if len(text := path.read_text(encoding="utf-8")) < 12_000
)
"""Real PTX, short enough that many cases fit into a test."""

CASES = 600
JUNK = ("{", "}", ";", ":", "[", "]", "(", ")", ",", "%", "@", "!", ".", "<", '"', "\\", "\0", "é")
LINES = (
    "bra $L__BB0_1;",
    "$L__BB0_1:",
    "@!%p1 bra $L__BB0_1;",
    "mov.u32 %r1, %r999;",
    "ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1+16];",
    "wgmma.future.op %r1;",
    ".maxntid 2048, 1, 1",
    ".shared .align 4 .b8 s[99999999];",
    ".reg .b32 %q<4294967296>;",
    "ret;",
)


def mutated(rng: random.Random) -> str:
    """A seed with one to six mutations of characters or lines."""
    text = rng.choice(SEEDS)
    for _ in range(rng.randint(1, 6)):
        kind = rng.randrange(6)
        if kind < 2:
            at = rng.randrange(len(text) + 1)
            text = text[:at] + rng.choice(JUNK) + text[at + kind :]
        elif kind == 2:
            start = rng.randrange(len(text) + 1)
            text = text[:start] + text[start + rng.randint(1, 200) :]
        else:
            lines = text.split("\n")
            at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
            if kind == 3:
                lines[at], lines[other] = lines[other], lines[at]
            elif kind == 4:
                lines.insert(at, lines[other])
            else:
                lines.insert(at, rng.choice(LINES))
            text = "\n".join(lines)
    return text or " "


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Services:
    return Services(settings_at(tmp_path_factory.mktemp("home"), cache_bytes=0))


def test_mutated_ptx_is_answered_or_refused(services: Services) -> None:
    assert len(SEEDS) >= 5
    rng = random.Random(20260)
    answered = refused = 0
    for case in range(CASES):
        ptx = mutated(rng)
        gpu = rng.choice(("tesla-k20", "tesla-m60", "tesla-v100", "gtx-1050", "quadro-k4200"))
        request = PredictRequest.model_validate(
            {
                "ptx": ptx,
                "gpu": gpu,
                "launch": {"grid": rng.choice((1, 64, 2**31 - 1)), "block": rng.choice((1, 256))},
                "loops": {"default": rng.choice((0, 1, 1e15))} if rng.random() < 0.5 else {},
            }
        )
        try:
            answer = predict(services, request)
        except WattcastError as error:
            refused += 1
            # What the problem would carry; a context that is no JSON raises here.
            to_json({"detail": error.detail, **error.context})
        except Exception as error:
            raise AssertionError(f"case {case}: {error!r}\n{ptx}") from error
        else:
            answered += 1
            PredictAnswer.model_validate_json(to_json(answer, inf_nan_mode="null"))
    assert answered > CASES / 10
    assert refused > CASES / 10
