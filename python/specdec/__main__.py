"""`python -m specdec` is the command line."""

import sys

from specdec.cli import main

if __name__ == "__main__":
    sys.exit(main())
