"""A small decoder, trained to draft."""
