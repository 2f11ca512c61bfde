"""Analysis: acceptance, times and gamma of a target and its drafts, measured."""
