"""A recurrent network: its draft, network and trainer."""
