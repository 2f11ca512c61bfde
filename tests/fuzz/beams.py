"""Beam search by speculation against plain beam search."""

from __future__ import annotations

from typing import Any

import specdec
from fuzz.running import Failure
from worlds.described import adapted_target, draft_description, make_model

__all__ = ["check_beams"]


def check_beams(case: dict[str, Any]) -> str:
    """The beams of a search with a draft are those without, scores to the bit."""
    target = adapted_target(case)
    name = case["draft"]
    draft = make_model(case["target"])
    if name != "target":
        draft = make_model(draft_description(case["target"], case["models"][name]))
    options, given = {"n_threads": 1} | case["settings"], case["prompt"]
    if "source" in case:
        given, options["decoder_prompt"] = case["source"], given
    found = specdec.beam_search(target, draft, given, **options)
    plain = {name: value for name, value in options.items() if name not in ("draft_width", "gamma")}
    expected = specdec.beam_search(target, None, given, **plain | {"n_threads": 1})
    for i, (one, other) in enumerate(zip(found.beams, expected.beams, strict=True)):
        if one != other:
            raise Failure(f"beam {i} is {one}, and {other} in plain beam search")
    return "passed"
