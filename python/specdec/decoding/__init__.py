"""Decoding: requests, their rounds, and their results."""
