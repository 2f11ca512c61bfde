"""Decoding heads on the target's last hidden state: its draft, network and trainer."""
