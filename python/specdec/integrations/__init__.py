"""specdec within evaluation harnesses; each module needs the package of its harness."""
