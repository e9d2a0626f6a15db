"""The thesis' two time models (Alavani 2023, chapter 4)."""
