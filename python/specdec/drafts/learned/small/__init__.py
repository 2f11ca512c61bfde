"""A small decoder as draft."""
