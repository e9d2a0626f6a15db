"""What a launch physically does: the quantities of feature schema ``activity1``.

counts   per pipe, memory level and source line, from either analysis
memory   what passes L1, L2 and DRAM: reuse between loads, blocks and waves
schema   the named, versioned vector
"""

from features.activity.counts import Access, Activity, LineActivity, measure_activity, measure_lines

__all__ = ["Access", "Activity", "LineActivity", "measure_activity", "measure_lines"]
