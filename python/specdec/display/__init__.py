"""Display: results and tables, for terminals and notebooks."""
