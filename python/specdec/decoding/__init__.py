"""Decoding: a request, carried out round by round, and what comes of it."""
