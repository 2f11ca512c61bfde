"""Early exit: the target's own first layers: its draft, network and trainer."""
