"""The command line in a process of its own, with a toy pair in the place of the one in the package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

_SCRIPT = """
import sys
from pathlib import Path
from specdec.commands import given_models
from specdec.commands.program import main
from toy_pair import load_pair
pair = load_pair(Path(sys.argv[1]), max_position_embeddings=2_000_000)
given_models.embedded_pair = lambda *_: pair
sys.exit(main(sys.argv[2:]))
"""

PLAIN = ["--temperature", "0", "--max-new-tokens"]
ENDLESS = [*PLAIN, "100000", "abc"]
"""The pair's greedy text has no end; a sampled one has."""


def command_process(folder: Path, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start the command line; the pair is written to the folder, and what is printed goes to pipes."""
    command = [sys.executable, "-c", _SCRIPT, str(folder), *arguments]
    return subprocess.Popen(command, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options})
