"""Wang and Chu's time model over core and memory clocks (ICPADS 2018)."""
