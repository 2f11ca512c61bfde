"""Decoding heads on the target's last hidden state."""
