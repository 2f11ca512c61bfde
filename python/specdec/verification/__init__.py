"""Verification: from logits to the distribution that is sampled, and which guesses are accepted."""
