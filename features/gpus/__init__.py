"""GPU profiles: one TOML file per GPU, every number with its source (see docs/gpus.md)."""

from wattcast.features.gpus.loader import check_profile, gpu_ids, list_gpus, load_gpu
from wattcast.features.gpus.profile import GpuProfile
from wattcast.features.gpus.sections import CapabilityFacts

__all__ = ["CapabilityFacts", "GpuProfile", "check_profile", "gpu_ids", "list_gpus", "load_gpu"]
