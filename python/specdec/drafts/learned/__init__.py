"""Learned drafts: a folder per method, and shared code."""
