"""Profiles as TOML data: from a known one, from what a driver or a dump tells, written, checked.

What is told is a mapping of the names of ``told.toml`` (numbers in the unit given there) besides
``name``, ``compute_capability`` and ``pci_id``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from wattcast.features.checked import Strict, checked, read_toml
from wattcast.features.errors import DataError
from wattcast.features.gpus import GpuProfile, check_profile, load_gpu
from wattcast.measure.device import Device, named_profile, profile_id
from wattcast.models.clocks import ClockPair

SOURCE = "onboarding"
"""The entry of ``[sources]`` that measured facts come from."""


class _Told(Strict):
    architectures: Mapping[str, str]
    places: Mapping[str, tuple[str, str, str]]
    needed: Mapping[str, str]
    device_query: Mapping[str, str]
    nvidia_smi: Mapping[str, tuple[str, str]]
    timing_targets: Mapping[str, str]
    latency_rows: Mapping[str, tuple[str, float]]


TOLD = checked(_Told, read_toml(Path(__file__).with_name("told.toml")), "told.toml")


def loaded(data: Mapping[str, Any], folder: Path) -> GpuProfile:
    """The profile of TOML data, written below ``folder`` and checked. Raises DataError."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{data['id']}.toml"
    fresh = path.with_name(f".{path.name}")
    check = folder / ".check" / path.name
    check.parent.mkdir(exist_ok=True)
    text = "# Written by wattcast.\n" + to_toml(data)
    check.write_text(text, "utf-8")
    problems = check_profile(check)
    check.unlink()
    check.parent.rmdir()
    if problems:
        raise DataError(f"the profile of {data['id']} does not hold: {'; '.join(problems)}")
    fresh.write_text(text, "utf-8")
    fresh.replace(path)
    return load_gpu(str(data["id"]), overlay=folder)


def fact(value: float, unit: str, source: str = SOURCE) -> dict[str, Any]:
    """One number of a profile."""
    return {"value": value, "unit": unit, "source": source}


def base_data(base: GpuProfile) -> dict[str, Any]:
    """The data of a profile, without what its compute capability says and the vendor prints."""
    data = base.model_dump(mode="json", exclude={"capability", "printed"}, exclude_none=True)
    return {key: value for key, value in data.items() if value not in ({}, [])}


_LEFT_TO_A_PROFILE = ("memory_bytes", "max_core_mhz")
"""Drivers tell the memory that programs can have, and clocks above the rated ones."""
_ALIKE = 0.01
"""A number this near to the profile's is the same, differently rounded."""


def driver_data(device: Device, clocks: ClockPair | None) -> dict[str, Any]:
    """A profile from what the driver tells; clocks as they ran."""
    told = device_facts(device)
    if clocks:
        told |= {"core_mhz": clocks.core_mhz, "memory_mhz": clocks.memory_mhz}
        told["max_core_mhz"] = max(device.board.core_mhz, clocks.core_mhz)
    return told_data(told, f"CUDA and NVML, driver {device.driver_version}")


def device_facts(device: Device, limits: Mapping[str, float] | None = None) -> dict[str, Any]:
    """What CUDA tells of a device; ``limits``: what NVML does (``NvmlSensor.facts``)."""
    board, nvml = device.board, limits or {}
    major, minor = board.compute_capability
    told = {
        "name": device.name,
        "compute_capability": f"{major}.{minor}",
        "sm_count": board.sm_count,
        "l2_bytes": board.l2_bytes,
        "core_mhz": float(board.core_mhz),
        "max_core_mhz": float(board.core_mhz),
        "memory_bytes": board.memory_bytes,
        "memory_bus_bits": device.memory_bus_bits or int(nvml.get("memory_bus_bits", 0)) or None,
        "memory_mhz": nvml.get("max_memory_mhz", device.max_memory_mhz),
        "power_limit_watts": nvml.get("power_limit_watts", device.power_limit_watts),
        "min_limit_watts": nvml.get("min_limit_watts"),
        "max_limit_watts": nvml.get("max_limit_watts"),
    }
    return {name: value for name, value in told.items() if value is not None}


def told_data(
    told: Mapping[str, Any],
    source: str,
    base: GpuProfile | None = None,
    gpu_id: str | None = None,
) -> dict[str, Any]:
    """A profile of what was told, on ``base`` where the board has a profile: its facts stay
    where they are the same. ``source`` says who told; ``gpu_id`` other than the base's makes a
    profile beside it. Raises DataError for what nobody tells."""
    data: dict[str, Any]
    if base is not None:
        data = base_data(base)
        if gpu_id not in (None, base.id):
            data = {key: data[key] for key in data if key not in ("aliases", "driver", "notes")}
            data["name"] = told.get("name", base.name)
        told = {name: value for name, value in told.items() if name not in _LEFT_TO_A_PROFILE}
        capability = told.get("compute_capability", base.compute_capability)
        if capability != base.compute_capability:
            raise DataError(
                f"the board has compute capability {capability}, {base.id} "
                f"{base.compute_capability}: another profile is its base"
            )
    else:
        missing = [text for name, text in TOLD.needed.items() if not told.get(name)]
        if missing:
            raise DataError(
                f"nothing tells {', '.join(missing)} of {told.get('name', 'this GPU')}: name a "
                "profile that does (--base, onboarding: --gpu), or give a deviceQuery and an "
                "nvidia-smi -q dump of it together"
            )
        pair = _pair(told["compute_capability"])
        known = [one for one in TOLD.architectures if _pair(one) <= pair]
        data = {
            "id": profile_id(str(told["name"])),
            "name": told["name"],
            "architecture": TOLD.architectures[max(known, key=_pair, default="3.0")],
            "compute_capability": told["compute_capability"],
            "sources": {},
            "memory": {"transfers_per_clock": fact(2, "count", "driver")},
        }
    data["id"] = gpu_id or data["id"]
    for name, (section, key, unit) in TOLD.places.items():
        before = data.get(section, {}).get(key)
        if name in told and (before is None or abs(told[name] / before["value"] - 1) > _ALIKE):
            data.setdefault(section, {})[key] = fact(told[name], unit, "driver")
    clocks, memory = data["clocks"], data["memory"]
    if clocks.get("max_core_mhz", clocks["core_mhz"])["value"] < clocks["core_mhz"]["value"]:
        clocks["max_core_mhz"] = clocks["core_mhz"]
    rate = memory["transfers_per_clock"]["value"] * clocks["memory_mhz"]["value"] * 1e6
    if "driver" in (memory["bus_bits"]["source"], clocks["memory_mhz"]["source"]):
        width = memory["bus_bits"]["value"] / 8
        memory["bandwidth_bytes_per_second"] = fact(width * rate, "byte/s", "driver")
    return with_used_sources({**data, "sources": {**data["sources"], "driver": source}})


def _pair(capability: str) -> tuple[int, ...]:
    return tuple(int(part) for part in capability.split("."))


# --- dumps that tools print -------------------------------------------------------------------

_TEXTS = ("name", "pci_id", "compute_capability")
_WHOLE = ("sm_count", "l2_bytes", "memory_bytes", "memory_bus_bits")


def dump_facts(text: str) -> dict[str, Any]:
    """What a dump of ``nvidia-smi -q`` or CUDA's deviceQuery sample tells of its first GPU.
    What is printed as N/A or 0 is not told. Raises DataError for any other text."""
    if "CUDA Capability" in text:
        told = {name: re.search(find, text) for name, find in TOLD.device_query.items()}
        found = {name: match[1] for name, match in told.items() if match}
    elif "NVSMI LOG" in text or "Product Name" in text:
        found = _smi_facts(text)
    else:
        raise DataError("this is neither what nvidia-smi -q nor what deviceQuery prints")
    numbers = {
        name: int(value) if name in _WHOLE else float(value)
        for name, value in found.items()
        if name not in _TEXTS and re.fullmatch(r"\d+(\.\d+)?", value) and float(value)
    }
    return {name: value for name, value in found.items() if name in _TEXTS} | numbers


def _smi_facts(text: str) -> dict[str, str]:
    """The lines of ``told.toml`` in the first GPU's part, without their units."""
    found: dict[str, str] = {}
    sections: list[tuple[int, str]] = []  # those the line is in, with their indents
    gpus = 0
    for line in text.splitlines():
        key, colon, value = (part.strip() for part in line.partition(" : "))
        indent = len(line) - len(line.lstrip())
        while sections and sections[-1][0] >= indent:
            sections.pop()
        if not colon:
            gpus += bool(re.match(r"GPU [0-9A-Fa-f]+:", key))
            if gpus > 1:
                break
            sections.append((indent, key))
            continue
        inside = sections[-1][1].removeprefix("GPU ") if sections else ""
        for name, (section, wanted) in TOLD.nvidia_smi.items():
            if key == wanted and name not in found and section in ("", inside):
                found[name] = value.split(" ")[0] if name not in _TEXTS else value
    return found


def known_base(told: Mapping[str, Any]) -> GpuProfile | None:
    """The profile of what was told: by PCI device, else by name; ``None`` if there is none."""
    return named_profile(told.get("pci_id"), told.get("name"))


def profile_of(data: Mapping[str, Any]) -> GpuProfile:
    """The profile of the data so far, to analyse with."""
    with TemporaryDirectory() as folder:
        return loaded(with_used_sources(data), Path(folder))


def with_used_sources(data: Mapping[str, Any]) -> dict[str, Any]:
    """The data with those ``[sources]`` alone that they refer to."""
    used = set(_sources({name: part for name, part in data.items() if name != "sources"}))
    sources = {name: text for name, text in data["sources"].items() if name in used}
    return {**data, "sources": sources}


def _sources(node: Any) -> Iterator[str]:
    if isinstance(node, Mapping):
        if "source" in node:
            yield str(node["source"])
        node = list(node.values())
    if isinstance(node, list | tuple):
        for value in node:
            yield from _sources(value)


def to_toml(data: Mapping[str, Any]) -> str:
    """TOML of nested tables: plain values first, then one table for each mapping."""
    tables = {f"[{_key(name)}]\n": one for name, one in data.items() if isinstance(one, Mapping)}
    plain = {name: one for name, one in data.items() if not isinstance(one, Mapping)}
    return "\n".join(
        title + "".join(f"{_key(key)} = {_value(value)}\n" for key, value in table.items())
        for title, table in {"": plain, **tables}.items()
    )


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else f'"{name}"'


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    plain = value.replace("\n", " ") if isinstance(value, str) else value
    return json.dumps(plain, ensure_ascii=False)  # numbers and texts are written alike
