"""Power from nothing but counts of PTX tokens, on programs left out: what static text can tell.

Counts of opcodes, types and state spaces, unweighed by how often they run, no launch, no time
(``studies.data.frequency.read_opcode_counts``). Shares of them say by how much a program leaves the
median of the training programs at the same clocks: extremely randomised trees on square roots of
shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from sklearn.ensemble import ExtraTreesRegressor

from studies.data.frequency import read_frequency, read_opcode_counts
from studies.power.physical_measured import Measured
from studies.power.physical_rows import Bools, Floats
from wattcast.training.evaluation.scores import mape_percent

CAMPAIGNS = {"quadro-rtx-8000": "wang_dcgm_quadro_rtx_8000", "tesla-v100": "wang_dcgm_tesla_v100"}
MICRO_WEIGHT = 0.1
"""Weight of all microbenchmarks over that of the applications: the low end of what the prototype
found good. Set with scores on these programs in sight (docs/physical.md), not nested."""
TREES = 100

GROUPS: Sequence[tuple[str, ...]] = (
    ("global",),
    ("shared",),
    ("local",),
    ("const", "param"),
    ("f32",),
    ("f64",),
    ("s32", "u32", "b32"),
    ("s64", "u64", "b64"),
    ("fma", "mad"),
    ("mul",),
    ("div", "sqrt", "rcp", "ex2", "lg2", "rem"),
    ("bra",),
    ("bar", "membar"),
    ("mov", "cvta", "cvt"),
    ("ld",),
    ("st",),
)
"""Tokens whose shares are the inputs."""

NOT_OPCODES = frozenset(
    {"b16", "b32", "b64", "f32", "f64", "pred", "s16", "s32", "s64", "s8", "u16", "u32", "u64"}
    | {"const", "global", "local", "param", "shared"}
)
"""Types and state spaces: they qualify instructions and are none."""


@lru_cache(maxsize=1)
def token_shares() -> dict[tuple[str, str], Floats]:
    """Inputs ``[len(GROUPS) + 1]`` of each kernel by benchmark and input: roots of tokens per
    instruction, and a tenth of the logarithm of their number. Raises DataError."""
    counts = read_opcode_counts()
    names = ("kind", "benchmark", "args", "kernel")
    opcodes = [name for name in counts.columns if name not in NOT_OPCODES | set(names)]
    total = counts[opcodes].sum(axis=1).to_numpy(float)
    shares = [counts[list(group)].sum(axis=1).to_numpy(float) / total for group in GROUPS]
    inputs = np.column_stack([*np.sqrt(shares), np.log(total) / 10])
    keys = zip(counts["benchmark"], counts["args"].fillna(""), strict=True)
    return {(str(name), str(args)): row for (name, args), row in zip(keys, inputs, strict=True)}


def tokens_left_out(gpu_id: str) -> Measured:
    """Error on programs left out, over all clocks. Raises DataError."""
    frame = read_frequency(CAMPAIGNS[gpu_id]).frame
    shares = token_shares()
    core = frame["core_mhz"].to_numpy(float)
    keys = zip(frame["benchmark"], frame["variant"], strict=True)
    tokens = np.array([shares[str(name), str(args)] for name, args in keys])
    inputs = np.column_stack([tokens, core / core.max()])
    watts = frame["power_watts"].to_numpy(float)
    real = (frame["kind"] == "real").to_numpy()
    programs = frame["group"].to_numpy(str)
    found, median = np.full((2, len(watts)), np.nan)
    for program in np.unique(programs[real]):
        mine = programs == program
        usual = _clock_medians(watts, core, real & ~mine)
        target = np.log(watts / usual)
        ratio = _ratio(inputs, target, ~mine, real, mine)
        median[mine], found[mine] = usual[mine], usual[mine] * np.exp(ratio)
    return Measured(
        gpu_id,
        int(real.sum()),
        mape_percent(watts[real], found[real]),
        mape_percent(watts[real], median[real]),
    )


def _ratio(inputs: Floats, target: Floats, train: Bools, real: Bools, test: Bools) -> Floats:
    micro = MICRO_WEIGHT * (real & train).sum() / (train & ~real).sum()
    weights = np.where(real, 1.0, micro)
    trees = ExtraTreesRegressor(TREES, min_samples_leaf=5, max_features=0.5, random_state=0)
    trees.fit(inputs[train], target[train], sample_weight=weights[train])
    return np.asarray(trees.predict(inputs[test]))


def _clock_medians(watts: Floats, core: Floats, chosen: Bools) -> Floats:
    by_clock = {mhz: np.median(watts[chosen & (core == mhz)]) for mhz in np.unique(core)}
    return np.array([by_clock[mhz] for mhz in core])
