"""Benchmarks of specdec: `python -m benchmarks` lists them."""
