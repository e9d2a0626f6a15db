"""What a launch physically does: the quantities of feature schema ``activity1``.

counts   per pipe, memory level and source line, from either analysis
extras   what the schema has no field for: tensor work by kind, atomics
cases    the same launch with other trip counts
memory   what passes L1, L2 and DRAM: reuse between loads, blocks and waves
schema   the named, versioned vector
"""

from wattcast.features.activity.counts import (
    Access,
    Activity,
    LineActivity,
    measure_activity,
    measure_lines,
    measure_mix,
)
from wattcast.features.activity.extras import Extras, measure_extras

__all__ = [
    "Access", "Activity", "Extras", "LineActivity", "measure_activity", "measure_extras",
    "measure_lines", "measure_mix",
]  # fmt: skip
