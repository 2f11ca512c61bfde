"""Models written in another file format."""
