"""`python -m specdec` runs the command line."""

import sys

EXIT_INTERRUPTED = 130


def main() -> int:
    """Run the command line; Ctrl-C during imports exits without a traceback."""
    try:
        from specdec.commands import program
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return program.main()


if __name__ == "__main__":
    sys.exit(main())
