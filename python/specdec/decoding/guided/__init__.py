"""JSON schemas, regular expressions and grammars as token constraints, by ``llguidance``."""
