"""Time models beside measured times."""
