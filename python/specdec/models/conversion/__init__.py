"""Writing models in other file formats."""
