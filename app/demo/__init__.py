"""A kernel of ours that ``wattcast serve --demo`` predicts: source and the PTX nvcc makes of it."""
