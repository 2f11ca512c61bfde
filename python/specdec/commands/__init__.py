"""Command line, with lazily imported verbs."""
