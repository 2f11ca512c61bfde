"""Drafts that are learned for a target: a folder for each method, and what methods share."""
