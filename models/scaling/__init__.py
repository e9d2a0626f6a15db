"""How time, power and energy of a kernel change with both clocks, from counters at one pair."""
