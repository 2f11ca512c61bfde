"""Random configurations and damaged files: what `make fuzz` runs. See README.md."""
