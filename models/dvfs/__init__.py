"""How time, power and energy of a kernel change with the core and memory clock."""
