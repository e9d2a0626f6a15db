"""Profiles as TOML data: from a known one, from what a driver tells, written and checked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from wattcast.features.errors import DataError
from wattcast.features.gpus import GpuProfile, check_profile, load_gpu
from wattcast.models.clocks import ClockPair
from wattcast.training.measure.device import Device, profile_id

SOURCE = "onboarding"
"""The entry of ``[sources]`` that measured facts come from."""

_ARCHITECTURES: Mapping[tuple[int, int], str] = {
    (3, 0): "Kepler",
    (5, 0): "Maxwell",
    (6, 0): "Pascal",
    (7, 0): "Volta",
    (7, 5): "Turing",
    (8, 0): "Ampere",
    (8, 9): "Ada Lovelace",
    (9, 0): "Hopper",
    (10, 0): "Blackwell",
}


def loaded(data: Mapping[str, Any], folder: Path) -> GpuProfile:
    """The profile of TOML data, written below ``folder`` and checked. Raises DataError."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{data['id']}.toml"
    fresh = path.with_name(f".{path.name}")
    check = folder / ".check" / path.name
    check.parent.mkdir(exist_ok=True)
    text = "# Written by wattcast onboard.\n" + to_toml(data)
    check.write_text(text, "utf-8")
    problems = check_profile(check)
    check.unlink()
    check.parent.rmdir()
    if problems:
        raise DataError(f"the fitted profile does not hold: {'; '.join(problems)}")
    fresh.write_text(text, "utf-8")
    fresh.replace(path)
    return load_gpu(str(data["id"]), overlay=folder)


def fact(value: float, unit: str, source: str = SOURCE) -> dict[str, Any]:
    """One number of a profile."""
    return {"value": value, "unit": unit, "source": source}


def base_data(base: GpuProfile) -> dict[str, Any]:
    """The data of a profile, without what its compute capability says."""
    data = base.model_dump(mode="json", exclude={"capability"}, exclude_none=True)
    return {key: value for key, value in data.items() if value not in ({}, [])}


def driver_data(device: Device, clocks: ClockPair | None) -> dict[str, Any]:
    """A profile from what the driver tells; clocks as they ran."""
    board = device.board
    missing = [
        name
        for name, value in {
            "the width of the memory bus": device.memory_bus_bits,
            "the memory clock": (clocks and clocks.memory_mhz) or device.max_memory_mhz,
            "the power limit": device.power_limit_watts,
        }.items()
        if value is None
    ]
    if missing:
        raise DataError(
            f"the driver does not tell {', '.join(missing)} of {device.name}: name a profile that "
            "does (--gpu)"
        )
    assert device.memory_bus_bits is not None
    assert device.power_limit_watts is not None
    memory_mhz = clocks.memory_mhz if clocks else float(device.max_memory_mhz or 0)
    major, minor = board.compute_capability
    family = max((pair for pair in _ARCHITECTURES if pair <= (major, minor)), default=(3, 0))

    def told(value: float, unit: str) -> dict[str, Any]:
        return fact(value, unit, "driver")

    transfers = 2
    bandwidth = device.memory_bus_bits / 8 * transfers * memory_mhz * 1e6
    return {
        "id": profile_id(device),
        "name": device.name,
        "architecture": _ARCHITECTURES[family],
        "compute_capability": f"{major}.{minor}",
        "sources": {"driver": f"CUDA and NVML, driver {device.driver_version}"},
        "chip": {
            "sm_count": told(board.sm_count, "count"),
            "l2_bytes": told(board.l2_bytes, "byte"),
        },
        "clocks": {
            "core_mhz": told(clocks.core_mhz if clocks else board.core_mhz, "MHz"),
            "memory_mhz": told(float(memory_mhz), "MHz"),
            "max_core_mhz": told(
                float(max(board.core_mhz, clocks.core_mhz if clocks else 0)), "MHz"
            ),
        },
        "memory": {
            "bytes": told(board.memory_bytes, "byte"),
            "bus_bits": told(device.memory_bus_bits, "bit"),
            "transfers_per_clock": told(transfers, "count"),
            "bandwidth_bytes_per_second": told(float(bandwidth), "byte/s"),
        },
        "power": {"tdp_watts": told(float(device.power_limit_watts), "W")},
    }


def profile_of(data: Mapping[str, Any]) -> GpuProfile:
    """The profile of the data so far, to analyse with."""
    used = set(used_sources(data))
    sources = {name: text for name, text in data["sources"].items() if name in used}
    with TemporaryDirectory() as folder:
        return loaded({**data, "sources": sources}, Path(folder))


def used_sources(node: Any, top: bool = True) -> list[str]:
    """Names of ``[sources]`` that the data refer to."""
    found: list[str] = []
    if isinstance(node, Mapping):
        for name, value in node.items():
            if name == "source" and not top:
                found.append(str(value))
            elif not (top and name == "sources"):
                found += used_sources(value, top=False)
    elif isinstance(node, Sequence) and not isinstance(node, str):
        for value in node:
            found += used_sources(value, top=False)
    return found


def to_toml(data: Mapping[str, Any]) -> str:
    """TOML of nested tables: plain values first, then one table for each mapping."""
    plain = [f"{_key(k)} = {_value(v)}" for k, v in data.items() if not isinstance(v, Mapping)]
    tables = []
    for name, table in data.items():
        if isinstance(table, Mapping):
            lines = [f"{_key(key)} = {_value(value)}" for key, value in table.items()]
            tables.append("\n".join([f"[{_key(name)}]", *lines]))
    return "\n\n".join(["\n".join(plain), *tables]) + "\n"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else f'"{name}"'


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
    return f'"{escaped}"'
