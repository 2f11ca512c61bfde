"""A recurrent network as draft."""
