"""Look-ahead embeddings (PaSS)."""
