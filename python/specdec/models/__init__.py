"""Loading, checking and packing of models."""
