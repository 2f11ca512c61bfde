"""Look-ahead embeddings (PaSS): its draft, network and trainer."""
