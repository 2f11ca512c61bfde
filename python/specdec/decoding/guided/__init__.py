"""Forms of texts that ``llguidance`` reads, as constraints on the tokens of a model."""
