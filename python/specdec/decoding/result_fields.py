"""A result as a line of a file says it: text, tokens and counts, without the rounds."""

from __future__ import annotations

from typing import Any

import numpy as np

from specdec.decoding.result import Result

__all__ = ["result_fields"]


def result_fields(result: Result) -> dict[str, Any]:
    """The fields that the command line and `specdec.ray` write of a result.

    Log-probabilities are among them where they were asked for. `Result.to_dict` has everything instead.
    """
    trace = result.trace
    found: dict[str, Any] = {
        "text": result.text,
        "tokens": result.tokens,
        "finish_reason": result.finish_reason,
        "stop": result.stop,
        "seed": list(result.seed),
        "n_prompt_tokens": len(result.prompt_ids),
        "n_calls": trace.n_calls,
        "n_drafted": trace.n_drafted,
        "n_accepted": trace.n_accepted,
    }
    for name in ("logprobs", "top_logprobs", "prompt_logprobs", "prompt_top_logprobs"):
        if (value := getattr(result, name)) is not None:
            found[name] = value.tolist() if isinstance(value, np.ndarray) else value
    return found
