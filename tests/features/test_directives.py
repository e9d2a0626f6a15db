"""Launches that a kernel's own directives forbid, and block sizes they fix."""

from __future__ import annotations

import pytest

from wattcast.features.analysis import analyse
from wattcast.features.errors import LaunchError
from wattcast.features.gpus import load_gpu
from wattcast.features.launch import Launch
from wattcast.features.occupancy import fixed_block
from wattcast.features.ptx import read_module

HEADER = ".version 8.0\n.target sm_90\n.address_size 64\n"


def text(directives: str) -> str:
    return f"{HEADER}.visible .entry k(\n.param .u64 p\n)\n{directives}\n{{\nret;\n}}\n"


@pytest.mark.parametrize(
    ("directives", "grid", "block", "says", "field"),
    [
        (".reqntid 256", 8, 128, ".reqntid in line 7 wants blocks of exactly 256", "block"),
        (".reqntid 16, 16, 1", 8, 256, "exactly 16 x 16 threads; 256 are", "block"),
        (".maxntid 128, 1, 1", 8, 256, ".maxntid in line 7 wants blocks of at most 128", "block"),
        ("\n.maxntid 16, 16", 8, 512, "line 8", "block"),
        (".reqnctapercluster 4, 1, 1", 10, 64, "whole clusters of 4 blocks; 10 blocks", "grid"),
        (".reqnctapercluster 4\n.maxclusterrank 2", 8, 64, "allows clusters of 2", "grid"),
    ],
)
def test_a_launch_against_a_directive_is_refused(
    directives: str, grid: int, block: int, says: str, field: str
) -> None:
    with pytest.raises(LaunchError) as caught:
        analyse(read_module(text(directives)), None, Launch.of(grid, block), load_gpu("h100"))
    assert says in caught.value.detail
    assert caught.value.field == field
    assert caught.value.context["line"] >= 7


@pytest.mark.parametrize(
    ("directives", "grid", "block"),
    [
        (".reqntid 256", 8, 256),
        (".maxntid 16, 16", 8, 256),
        (".maxntid 256\n.minnctapersm 4\n.maxnctapersm 8", 8, 32),
        # Deprecated; it tells the compiler how many blocks an SM has to make room for, and
        # neither driver nor hardware hold a launch to it (PTX ISA 9.0, 11.4).
        (".maxntid 256\n.maxnctapersm 1", 100_000, 32),
        (".reqnctapercluster 2, 2", (4, 2), 64),
        ("", 8, 1024),
    ],
)
def test_a_launch_that_keeps_to_them_is_not(directives, grid, block) -> None:
    analyse(read_module(text(directives)), None, Launch.of(grid, block), load_gpu("h100"))


def test_the_block_that_is_fixed() -> None:
    assert fixed_block(read_module(text(".reqntid 32, 4")).kernel(None)) == (32, 4, 1)
    assert fixed_block(read_module(text(".maxntid 32")).kernel(None)) is None
