"""GPU profiles: one TOML file per GPU, every number with its source (see docs/gpus.md)."""

from features.gpus.capability import CapabilityFacts
from features.gpus.loader import check_profile, list_gpus, load_gpu
from features.gpus.profile import GpuProfile

__all__ = ["CapabilityFacts", "GpuProfile", "check_profile", "list_gpus", "load_gpu"]
