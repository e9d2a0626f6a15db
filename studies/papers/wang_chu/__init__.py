"""Wang and Chu's model (ICPADS 2018) over core and memory clocks."""
