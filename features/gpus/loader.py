"""Reading, checking and caching GPU profiles.

``check_profile`` collects every problem of one file; ``load_gpu`` and ``list_gpus`` raise
GpuError with the first ones. Files of an overlay folder come before the built-in ones, so a
user can add a GPU or replace a profile without touching the package.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from wattcast.features.checked import problems_of
from wattcast.features.errors import GpuError
from wattcast.features.gpus.profile import GpuProfile
from wattcast.features.gpus.sections import CapabilityFacts
from wattcast.features.launch import WARP_SIZE

FOLDER = Path(__file__).parent
CAPABILITY_FILE = FOLDER / "compute_capability.toml"

_BANDWIDTH_TOLERANCE = 0.01
"""Vendors round bandwidths to three digits (900 GB/s for 898); more is a mistake."""

_PRINTED_TOLERANCE = 0.025
"""Vendors round clocks and peaks; HBM of H200 is printed 2.4 % below bus and clock."""

_GIGABITS_PER_PIN: Mapping[str, tuple[float, float]] = {
    "GDDR5": (2, 9), "GDDR5X": (10, 12), "GDDR6": (9, 20.5), "GDDR6X": (18, 24.5),
    "GDDR7": (18, 36), "HBM2": (1, 2.5), "HBM2e": (2.3, 3.7), "HBM3": (4.8, 6.5),
    "HBM3e": (6.2, 9.9), "LPDDR5": (3.2, 6.4), "LPDDR5X": (6.4, 9.6),
}  # fmt: skip
"""Lowest and highest rate of parts sold: JEDEC's GDDR, HBM and LPDDR standards, rounded out."""

_OVERCLOCKED = 1.25
"""Clocks measured on a user's board may exceed the rated ones by so much."""

_MOST_NEAR = 6
"""Names an error suggests."""

_MAY_BE_ZERO = {"reserved_shared_bytes_per_block", "fp16_lanes", "tensor_cores"} | {
    name for name in CapabilityFacts._fields if name.startswith("tensor_")
}
"""Rows of what older SMs do not have."""


# --- the table of compute capabilities ---------------------------------------------------


@lru_cache(maxsize=1)
def _capability_table() -> tuple[dict[str, CapabilityFacts], dict[str, str]]:
    """Facts by capability, and the unit of every row. Raises GpuError."""
    rows = _read(CAPABILITY_FILE)
    problems = check_capability_rows(rows)
    if problems:
        raise GpuError(f"{CAPABILITY_FILE.name}: {'; '.join(problems)}", file=CAPABILITY_FILE.name)
    names = CapabilityFacts._fields
    ids = rows[names[0]]["values"]
    facts = {key: CapabilityFacts(*(rows[name]["values"][key] for name in names)) for key in ids}
    return facts, {name: rows[name]["unit"] for name in names}


def capabilities() -> Mapping[str, CapabilityFacts]:
    """Limits and units of an SM for every known compute capability (``"7.0"``)."""
    return MappingProxyType(_capability_table()[0])


def check_capability_rows(rows: Mapping[str, Any]) -> list[str]:
    """Every problem of a parsed ``compute_capability.toml``: what and at which key."""
    problems: list[str] = []
    sources = rows.get("sources", {})
    missing = [name for name in CapabilityFacts._fields if name not in rows]
    unknown = [name for name in rows if name not in (*CapabilityFacts._fields, "sources")]
    problems += [f"{name}: row is missing" for name in missing]
    problems += [f"{name}: unknown row" for name in unknown]
    if missing:
        return problems
    ids = list(rows[CapabilityFacts._fields[0]].get("values", {}))
    for name in CapabilityFacts._fields:
        row = rows[name]
        problems += [
            f"{name}.{key}: unknown key"
            for key in row
            if key not in ("unit", "source", "values", "note")
        ]
        if not row.get("unit"):
            problems.append(f"{name}.unit: missing")
        if row.get("source") not in sources:
            problems.append(f"{name}.source: {row.get('source')!r} is not in [sources]")
        values = row.get("values", {})
        if list(values) != ids:
            problems.append(f"{name}.values: capabilities differ from the first row's")
        least = 0 if name in _MAY_BE_ZERO else 1
        for key, value in values.items():
            if type(value) is not int or value < least:
                problems.append(f"{name}.values.{key}: {value!r} is not a whole number >= {least}")
    if problems:
        return problems
    for key in ids:
        facts = CapabilityFacts(*(rows[name]["values"][key] for name in CapabilityFacts._fields))
        problems += [f"{key}: {problem}" for problem in _inconsistent(facts)]
    return problems


def _inconsistent(facts: CapabilityFacts) -> Iterator[str]:
    """What cannot hold at once in the limits of one SM."""
    if facts.max_warps_per_sm * WARP_SIZE != facts.max_threads_per_sm:
        yield (
            f"max_warps_per_sm x {WARP_SIZE} = {facts.max_warps_per_sm * WARP_SIZE} "
            f"but max_threads_per_sm is {facts.max_threads_per_sm}"
        )
    if facts.max_registers_per_block > facts.registers_per_sm:
        yield "max_registers_per_block exceeds registers_per_sm"
    if facts.max_shared_bytes_per_block > facts.max_shared_bytes_per_block_opt_in:
        yield "max_shared_bytes_per_block exceeds max_shared_bytes_per_block_opt_in"
    block_and_reserve = (
        facts.max_shared_bytes_per_block_opt_in + facts.reserved_shared_bytes_per_block
    )
    if block_and_reserve > facts.shared_bytes_per_sm:
        yield "a block's largest shared memory and its reserve exceed shared_bytes_per_sm"


# --- one profile ---------------------------------------------------------------------------


def check_profile(path: str | Path) -> list[str]:
    """Every problem of one profile file, as ``key: what``; empty if it is valid.

    Checks the structure (unknown or missing keys, types, units), that numbers are positive,
    that every ``source`` is listed in ``[sources]`` and every listed one is used, and that
    the numbers agree with each other (see docs/gpus.md). Aliases shared with other
    files are found by ``list_gpus``, which sees them all.
    """
    return _parse(Path(path))[1]


def _parse(path: Path) -> tuple[GpuProfile | None, list[str]]:
    try:
        raw = _read(path)
    except GpuError as error:
        return None, [error.detail]
    if "capability" in raw:
        return None, ["capability: unknown key (it follows from compute_capability)"]
    facts, problems = _capability(raw)
    try:
        profile = GpuProfile.model_validate({**raw, "capability": facts})
    except ValidationError as error:
        found = problems_of(error)
        problems += [f"{key}: {what}" for key, what in found if key != "capability"]
        return None, problems
    problems += _source_problems(profile, raw)
    problems += _physical_problems(profile, path)
    return (None, problems) if problems else (profile, [])


def _capability(raw: Mapping[str, Any]) -> tuple[CapabilityFacts | None, list[str]]:
    """The capability's facts with the rows that ``[sm]`` overrides."""
    table, units = _capability_table()
    wanted = raw.get("compute_capability")
    if not isinstance(wanted, str) or wanted not in table:
        known = ", ".join(table)
        return None, [f"compute_capability: {wanted!r} is unknown; known: {known}"]
    facts, problems = table[wanted], []
    overrides = raw.get("sm", {})
    for name, fact in overrides.items() if isinstance(overrides, dict) else ():
        if name not in units:
            problems.append(f"sm.{name}: unknown row; known: {', '.join(units)}")
        elif not isinstance(fact, dict) or type(fact.get("value")) is not int:
            problems.append(f"sm.{name}: needs a whole number as value")
        elif fact.get("unit") != units[name]:
            problems.append(f"sm.{name}: unit is {fact.get('unit')!r}, must be {units[name]!r}")
        elif fact["value"] < (0 if name in _MAY_BE_ZERO else 1):
            problems.append(f"sm.{name}: {fact['value']} is too small")
        else:
            facts = facts._replace(**{name: fact["value"]})
    problems += [f"sm: {problem}" for problem in _inconsistent(facts)]
    return facts, problems


def _source_problems(profile: GpuProfile, raw: Mapping[str, Any]) -> Iterator[str]:
    used = set()
    for key, source in _sources_used(raw):
        used.add(source)
        if source not in profile.sources:
            yield f"{key}.source: {source!r} is not in [sources]"
    for source, text in profile.sources.items():
        if source not in used:
            yield f"sources.{source}: nothing refers to it"
        if not text.strip():
            yield f"sources.{source}: empty"


def _sources_used(node: Mapping[str, Any], key: str = "") -> Iterator[tuple[str, str]]:
    for name, value in node.items():
        path = f"{key}.{name}" if key else name
        if path == "sources":
            continue
        if isinstance(value, dict):
            yield from _sources_used(value, path)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, dict):
                    yield from _sources_used(item, f"{path}.{index}")
        elif name == "source" and key:
            yield key, str(value)


def _physical_problems(profile: GpuProfile, path: Path) -> Iterator[str]:
    if profile.id != path.stem:
        yield f"id: {profile.id!r} must equal the file name {path.stem!r}"
    if profile.id in profile.aliases or len(set(profile.aliases)) < len(profile.aliases):
        yield "aliases: an alias repeats the id or another alias"
    expected = profile.bytes_per_memory_clock * profile.memory_mhz * 1e6
    given = profile.bandwidth_bytes_per_second
    if abs(given - expected) > _BANDWIDTH_TOLERANCE * expected:
        yield (
            f"memory.bandwidth_bytes_per_second: {given:.4g}, but bus, transfers and memory "
            f"clock give {expected:.4g}"
        )
    base, top = profile.base_core_mhz, profile.max_core_mhz
    if base is not None and base > top:
        yield f"clocks.base_core_mhz: {base} exceeds the highest core clock {top}"
    idle = profile.idle_watts
    if idle is not None and idle >= profile.tdp_watts:
        yield f"power.idle_watts: {idle} is not below tdp_watts {profile.tdp_watts}"
    low, high = profile.power.min_limit_watts, profile.power.max_limit_watts
    if low is not None and low.value > profile.tdp_watts:
        yield f"power.min_limit_watts: {low.value:g} exceeds tdp_watts {profile.tdp_watts:g}"
    if high is not None and high.value < profile.tdp_watts:
        yield f"power.max_limit_watts: {high.value:g} is below tdp_watts {profile.tdp_watts:g}"
    yield from _implausible(profile)
    yield from profile.clocks.problems()
    if profile.memory_timing.problem:
        yield profile.memory_timing.problem
    for key, rate in profile.issue_rates.items():
        if rate.problem:
            yield f"issue_rates.{key}: {rate.problem}"
    yield from _latency_problems(profile)


def _implausible(profile: GpuProfile) -> Iterator[str]:
    """What no board of this capability has, and printed peaks that the numbers do not give."""
    most = profile.capability
    for key, value, limit in (
        ("chip.sm_count", profile.sm_count, most.most_sm_count),
        ("chip.l2_bytes", profile.l2_bytes, most.most_l2_bytes),
        ("clocks.max_core_mhz", profile.max_core_mhz, most.most_core_mhz * _OVERCLOCKED),
        ("power.tdp_watts", profile.tdp_watts, most.most_board_watts),
    ):
        if value > limit:
            yield (
                f"{key}: {value:g} is more than any board of capability "
                f"{profile.compute_capability} has ({limit:g})"
            )
    rate = 2e-3 * profile.memory_mhz
    kind = profile.memory_kind
    if kind is not None and not _GIGABITS_PER_PIN[kind][0] <= rate <= _GIGABITS_PER_PIN[kind][1]:
        yield f"clocks.memory_mhz: {rate:.3g} Gbit/s a pin is no rate of {kind}"
    for name, printed in profile.printed.items():
        unit = "GB/s" if name == "memory" else "TOP/s" if "int" in name else "TFLOP/s"
        if printed.unit != unit:
            yield f"printed.{name}: unit is {printed.unit!r}, must be {unit!r}"
            continue
        scale = 1e9 if name == "memory" else 1e12
        found = profile.peak(name, printed.at_mhz) / scale
        if abs(found / printed.value - 1) > _PRINTED_TOLERANCE:
            yield f"printed.{name}: {printed.value:g} {unit}, but the facts give {found:.4g}"


def _latency_problems(profile: GpuProfile) -> Iterator[str]:
    model = profile.global_memory_latency
    if model is None:
        return
    bounds = [piece.below_threads for piece in model.pieces]
    finite = [bound for bound in bounds if bound is not None]
    if bounds[-1] is not None or len(finite) != len(bounds) - 1 or finite != sorted(set(finite)):
        yield (
            "global_memory_latency.pieces: below_threads must rise from piece to piece and be "
            "absent in the last alone"
        )
        return
    for start, piece in zip((1, *finite), model.pieces, strict=True):
        ends = (start, piece.below_threads or start)
        if min(piece.slope * threads + piece.constant for threads in ends) <= 0:
            yield f"global_memory_latency.pieces: not positive from {start} threads on"


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise GpuError(f"cannot be read: {error.strerror}", file=path.name) from error
    except UnicodeDecodeError as error:
        raise GpuError("is not UTF-8", file=path.name) from error
    except tomllib.TOMLDecodeError as error:
        raise GpuError(f"is not TOML: {error}", file=path.name) from error


# --- all profiles -----------------------------------------------------------------------------


@lru_cache(maxsize=512)
def _load_cached(path: Path, _changed: int) -> GpuProfile:
    """``_changed`` is the file's modification time: an edited overlay is read anew."""
    profile, problems = _parse(path)
    if profile is None:
        raise GpuError(
            f"GPU profile {path.name}: {'; '.join(problems)}", file=path.name, problems=problems
        )
    return profile


def _load(path: Path) -> GpuProfile:
    return _load_cached(path, path.stat().st_mtime_ns)


def overlay_folder() -> Path | None:
    """``$WATTCAST_HOME/gpus``, or ``None`` if the variable is unset."""
    home = os.environ.get("WATTCAST_HOME")
    return Path(home) / "gpus" if home else None


def _listed(folder: Path) -> dict[str, Path]:
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


@lru_cache(maxsize=1)
def _packaged() -> dict[str, Path]:
    found = _listed(FOLDER)
    del found[CAPABILITY_FILE.stem]
    return found


def _paths(overlay: Path | None) -> dict[str, Path]:
    """File of every GPU id; a file of the overlay replaces the built-in one of that name."""
    own = overlay if overlay is not None else overlay_folder()
    return _packaged() | (_listed(own) if own is not None and own.is_dir() else {})


@lru_cache(maxsize=512)
def _names(path: Path, _changed: int) -> frozenset[str]:
    """Every name of a profile, as written and as its key; only the lines before
    ``[sources]`` are parsed."""
    try:
        head = tomllib.loads(path.read_text(encoding="utf-8").partition("\n[sources]")[0])
        driver = head.get("driver", {})
        spelled = (path.stem, head.get("name"), *head.get("aliases", ()), *driver.get("names", ()))
        pci = (f"10de:{one}" for one in driver.get("pci_ids", ()))
    except (OSError, ValueError, TypeError, AttributeError):  # told when it is loaded
        return frozenset({_key(path.stem)})
    names = [str(one) for one in (*spelled, *pci)]
    return frozenset((*map(_key, names), *(name.lower() for name in names)))


def _key(name: str) -> str:
    """What two spellings of one name share: ``NVIDIA GeForce RTX 4090`` and ``rtx-4090``; for a
    PCI device ``10de:2684``, ``0x268410DE`` (as nvidia-smi prints it) and ``10DE2684``."""
    pci = re.fullmatch(r"(?:0x)?(?:10de:?([0-9a-f]{4})|([0-9a-f]{4})10de)", name.strip().lower())
    if pci:
        return f"10de:{pci[1] or pci[2]}"
    if re.search(r"[^\w\s,().+-]", name):  # no name has it: a path, a pattern
        return ""
    return squeezed(name).removeprefix("nvidia").removeprefix("geforce")


def gpu_ids() -> tuple[str, ...]:
    """Ids of all GPUs with a profile, sorted; no profile is read."""
    return tuple(sorted(_paths(None)))


def load_gpu(gpu_id: str, *, overlay: Path | None = None) -> GpuProfile:
    """The profile of an id, alias, marketing name, name in nvidia-smi or PCI device id
    (``10de:20b0``), in any case and punctuation. ``overlay`` replaces ``$WATTCAST_HOME/gpus``.

    Raises GpuError: unknown or ambiguous name (``near`` lists the nearest ids, ``known`` all),
    or a profile that does not validate (``file``, ``problems``).
    """
    wanted = gpu_id.strip().lower()
    paths = _paths(overlay)
    if wanted in paths:
        return _load(paths[wanted])
    key = _key(gpu_id)
    held = {one: path for one, path in paths.items() if not key or _may_hold(path, key)}
    owners = _owners(wanted, key, _all_names(held))
    if len(owners) == 1:
        return _load(paths[owners[0]])
    names = _all_names(paths)
    known = sorted(paths)
    if owners:
        raise GpuError(
            f"{gpu_id!r} may be {' or '.join(owners)}: name one", near=owners, known=known
        )
    near = _near(wanted, key, names)
    hint = f"did you mean {', '.join(near)}? " if near else ""
    raise GpuError(
        f"unknown GPU {gpu_id!r}; {hint}`wattcast gpus list` and GET /gpus list all {len(known)}",
        near=near,
        known=known,
    )


def _all_names(paths: Mapping[str, Path]) -> dict[str, frozenset[str]]:
    return {one: _names(path, path.stat().st_mtime_ns) for one, path in paths.items()}


def _owners(wanted: str, key: str, names: Mapping[str, frozenset[str]]) -> list[str]:
    """Ids that have a name as written, else as its key."""
    return [one for one, keys in names.items() if wanted in keys] or [
        one for one, keys in names.items() if key and key in keys
    ]


def _may_hold(path: Path, key: str) -> bool:
    """Whether a profile's names can have ``key``: many times faster than to read its TOML."""
    try:
        head = _squeezed_head(path, path.stat().st_mtime_ns)
    except (OSError, ValueError):
        return key in _key(path.stem)
    return key.removeprefix("10de:") in head


@lru_cache(maxsize=1024)
def _squeezed_head(path: Path, _changed: int) -> str:
    head = path.read_text(encoding="utf-8").partition("\n[sources]")[0]
    return squeezed(path.stem + head)


def squeezed(name: str) -> str:
    """A name without case and punctuation."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _near(wanted: str, key: str, names: Mapping[str, frozenset[str]]) -> list[str]:
    """Ids with every word asked for, else those spelled most alike."""
    words = [word for word in re.split(r"[^a-z0-9]+", wanted) if word not in ("", "nvidia")]
    holding = [one for one in names if words and set(words) <= set(one.split("-"))]
    if holding:
        return holding[:_MOST_NEAR]
    owner = {name: one for one, keys in sorted(names.items()) for name in keys}
    alike = get_close_matches(key, list(owner), n=3 * _MOST_NEAR)
    return list(dict.fromkeys(owner[name] for name in alike))[:_MOST_NEAR]


def list_gpus(*, overlay: Path | None = None) -> tuple[GpuProfile, ...]:
    """All profiles, sorted by id. Raises GpuError for an invalid one or a shared alias."""
    profiles = tuple(_load(path) for _, path in sorted(_paths(overlay).items()))
    owners: dict[str, str] = {_key(profile.id): profile.id for profile in profiles}
    for profile in profiles:
        for alias in profile.aliases:
            other = owners.setdefault(_key(alias), profile.id)
            if other != profile.id:
                raise GpuError(
                    f"GPU profile {profile.id}.toml: aliases: {alias!r} already names {other}",
                    file=f"{profile.id}.toml",
                )
    return profiles
