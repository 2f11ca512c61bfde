"""`specdec drafts`: the drafts that have a name."""

from __future__ import annotations

from specdec.commands.verb import verb
from specdec.drafts.opening import NAMES

__all__ = ["command"]


@verb(
    "drafts",
    "specdec drafts",
    "specdec generate --draft ensemble:copy+embedded Tell me    two of them at once",
)
def command() -> None:
    """List the drafts that --draft takes by name, and what each needs.

    What is no name is the path or hub name of a model or of a learnt draft. A file or folder that is called
    as a name is written with its place: ./copy.
    """
    usages = {name.usage(word): name.meaning for word, name in NAMES.items()}
    width = max(map(len, usages))
    for usage, meaning in usages.items():
        print(f"{usage:<{width}}  {meaning}")
