"""Hand-made rounds, for tests of statistics derived from rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specdec import Result, Round, Trace


def chain(
    index: int, drafted: Sequence[int], n_accepted: int, betas: Sequence[float], *, token: int = 99,
    kept: int | None = None, times: tuple[float, float, float] = (0.02, 0.1, 0.005),
) -> Round:  # fmt: skip
    """Make a round with a chain; `token` is the target's own token."""
    return Round(
        index, tuple(drafted), tuple(range(len(drafted))), tuple(range(1, n_accepted + 1)),
        (*drafted[:n_accepted], token), n_accepted + 1 if kept is None else kept, tuple(betas), *times,
    )  # fmt: skip


def tree(
    drafted: Sequence[int], parents: Sequence[int], path: Sequence[int], token: int, betas: Sequence[float],
    times: tuple[float, float, float] = (0.0, 0.0, 0.0),
) -> Round:  # fmt: skip
    """Make a first round with a tree, an accepted path and then the target's own token."""
    tokens = (*(drafted[node - 1] for node in path), token)
    return Round(0, tuple(drafted), tuple(parents), tuple(path), tokens, len(tokens), tuple(betas), *times)


def result_of(rounds: Sequence[Round], tokenizer: Any = None, **changes: Any) -> Result:
    """Make the result of rounds, with their kept tokens and text."""
    tokens = [token for round_ in rounds for token in round_.tokens[: round_.kept]]
    fields: dict[str, Any] = {
        "text": None if tokenizer is None else tokenizer.decode(tokens, continuing=True), "tokens": tokens,
        "finish_reason": "length", "stop": None, "trace": Trace(rounds), "prompt_ids": [1], "seed": (0, 0),
        "tokenizer": tokenizer,
    }  # fmt: skip
    return Result(**{**fields, **changes})
