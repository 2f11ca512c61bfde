"""Drafts that learn while they serve."""
