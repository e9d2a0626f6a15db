"""Guerreiro et al. (IEEE Access 2019): scaling over clocks from PTX tokens."""
