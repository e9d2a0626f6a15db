"""PTX tokens: nine digits of what an instruction is and how near its operands were written."""

from __future__ import annotations

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.papers.guerreiro.sequence import code_of, token_of
from tests.fixtures.ptx_text import stored_ptx
from tests.fixtures.tables import table
from tests.needs import needs_data
from wattcast.features.ptx.reader import read_module
from wattcast.models.papers.scaling.card import OPCODES, SPACES, TYPES, Token, named, tokens
from wattcast.training.data.datasets import find_data

KERNEL = stored_ptx("tokens_by_hand")
# By the rules of their parser: %rd1 is the sixth operand back and was a parameter, %f1 was
# forgotten after nine, and an address with an offset is no register.
GOLDEN: list[str] = table("names", "tokens")


def coded(text: str) -> list[Token | None]:
    (kernel,) = read_module(text).kernels
    return list(tokens(kernel.body.instructions))


def test_tokens_of_a_kernel_by_hand() -> None:
    found = [token for token in coded(KERNEL) if token is not None]
    assert [f"{code_of(token)} {token.name}" for token in found] == GOLDEN


def test_guarded_instructions_and_returns_have_none() -> None:
    found = coded(KERNEL)
    assert found.count(None) == 2
    assert found[-1] is None


@given(
    st.builds(
        Token,
        st.integers(0, len(OPCODES) - 1),
        st.integers(0, len(SPACES)),
        st.integers(0, len(TYPES)),
        *[st.integers(0, 9)] * 2,
        st.integers(0, 2),
    )
)
def test_codes_are_read_back(token: Token) -> None:
    assert token_of(code_of(token)) == token
    assert len(code_of(token)) == 9


@pytest.mark.parametrize("code", ["", "12", "0546122000", "05461220x"])
def test_what_is_no_code_is_refused(code: str) -> None:
    with pytest.raises(ValueError, match="nine digits"):
        token_of(code)


@needs_data
def test_every_published_token_is_told_by_its_name() -> None:
    root = find_data()
    assert root is not None
    path = root / "sequences" / "gtx_titan_x_sequences.csv.gz"
    with gzip.open(path, "rt") as file:
        known = {tuple(line.strip().split(",")[-2:]) for line in file.readlines()[1:]}
    assert len({code for code, _ in known}) >= 219
    for code, name in known:
        token = token_of(code)
        told = named(name, token.operands)
        assert (code_of(token), token.name) == (code, name)
        assert told == token._replace(distance=0, producer=0)
