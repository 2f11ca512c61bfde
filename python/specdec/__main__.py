"""`python -m specdec` is the command line."""

import sys

EXIT_INTERRUPTED = 130


def main() -> int:
    """The command line, in which Ctrl-C ends the imports, too, without a traceback."""
    try:
        from specdec.commands import program
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return program.main()


if __name__ == "__main__":
    sys.exit(main())
