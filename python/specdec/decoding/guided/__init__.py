"""Schemas, regular expressions and grammars that ``llguidance`` reads, as constraints on the tokens of a model."""
