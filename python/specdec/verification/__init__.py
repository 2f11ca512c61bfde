"""Verification: sampling distributions from logits, and the rules that accept or reject draft tokens."""
