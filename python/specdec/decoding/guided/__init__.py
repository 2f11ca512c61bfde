"""Schemas, regular expressions and grammars, read by ``llguidance``, as constraints on tokens."""
