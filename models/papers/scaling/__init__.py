"""How time, power and energy follow both clocks: from counters at one pair, or from tokens."""
