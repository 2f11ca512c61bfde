"""Descriptions of drafts as the core takes them: a method's name and its arguments by name."""

from __future__ import annotations

from typing import Any

ARGUMENTS = {
    "model": ("model",), "parallel_chains": ("model", "n_chains"), "static_tree": ("model", "parents", "how"),
    "dynamic_tree": ("model", "width", "steps", "sharpness"), "nested": ("model", "draft", "gamma"),
    "skip_layers": ("skipped",), "ngram": ("table",), "online_ngram": ("table",),
    "context_copy": ("documents", "min_match", "n_candidates"),
    "input_copy": ("source", "start", "min_match", "n_candidates"),
    "prediction_copy": ("start", "min_match", "n_candidates"),
    "suffix_memory": ("memory", "min_match", "factor", "min_probability", "branches"),
    "token_recycling": ("matrix", "parents", "chances"), "lookahead": ("window", "ngram", "candidates"),
    "ensemble": ("adaptive", "gammas", "drafts"),
    "python": ("name", "propose", "begin", "commit", "proposal_type", "generator", "trees", "reads_source"),
    "recorded": ("draft", "samples"), "random": (), "fixed_acceptance": ("draft", "alpha", "texts"),
}  # fmt: skip
"""Every method of the core, and its arguments."""


def by_method(method: str, *arguments: Any) -> tuple[str, dict[str, Any]]:
    """Describe a draft; `arguments` are in the order of `ARGUMENTS`."""
    return method, dict(zip(ARGUMENTS[method], arguments, strict=True))
