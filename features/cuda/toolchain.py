"""Where the compilers are: NVIDIA's wheels first, then what the machine has installed."""

from __future__ import annotations

import importlib.util
import shutil
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=1)
def wheel_root() -> Path | None:
    """The folder NVIDIA's wheels install into (``site-packages/nvidia``), if any is there."""
    spec = importlib.util.find_spec("nvidia")
    if spec is None or not spec.submodule_search_locations:
        return None
    roots = [Path(place) for place in spec.submodule_search_locations]
    return next((root for root in roots if any(root.glob("cuda_*"))), None)


def find_nvrtc() -> Path | None:
    """The NVRTC 12 library of the wheel ``nvidia-cuda-nvrtc-cu12``."""
    root = wheel_root()
    found = sorted((root / "cuda_nvrtc" / "lib").glob("libnvrtc.so.*")) if root else []
    return found[0] if found else None


def include_folders() -> list[Path]:
    """The headers of the runtime and CCCL wheels, for NVRTC."""
    root = wheel_root()
    if root is None:
        return []
    candidates = [
        root / "cuda_runtime" / "include",
        root / "cuda_cccl" / "include" / "cccl",
        root / "cuda_cccl" / "include",
        root / "cuda_nvcc" / "include",
        root / "curand" / "include",
    ]
    return [folder for folder in candidates if folder.is_dir()]


def find_ptxas_wheel() -> Path | None:
    """``ptxas`` of the wheel ``nvidia-cuda-nvcc-cu12``."""
    root = wheel_root()
    path = root / "cuda_nvcc" / "bin" / "ptxas" if root else None
    return path if path and path.is_file() else None


def find_nvcc() -> Path | None:
    """An installed ``nvcc`` on the search path (the wheels hold no front end for host code)."""
    found = shutil.which("nvcc")
    return Path(found) if found else None
