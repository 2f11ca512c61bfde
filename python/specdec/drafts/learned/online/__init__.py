"""Drafts that learn while they serve: what is seen, who learns from it, and when."""
