"""Models: read from files, checked, packed for the core."""
