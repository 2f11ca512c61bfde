"""Drafts that are learnt for a target: folders with their weights, and the drafts that these describe."""
