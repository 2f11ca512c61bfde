"""Argument errors of the measuring functions, and their names for drafts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import specdec
from experiments import use_forward_times
from refusals import refuses
from specdec import DecodingOptions, drafts
from trained import small_pair

TARGET, DRAFT = small_pair()
N_VOCAB = TARGET.config.n_vocab
PAIR = {"target": TARGET, "draft": DRAFT, "prompts": ["It was"], "n_threads": 1}
GIVEN: dict[str, dict[str, Any]] = {
    "measure": PAIR | {"n_tokens": 8, "timing": False},
    "tune": PAIR | {"n_tokens": 8},
    "oracle": PAIR | {"max_new_tokens": 8},
    "compare": {"target": TARGET, "drafts": {"a": DRAFT}, "prompts": ["It was"], "n_tokens": 4},
    "recommend_draft": {"target": TARGET, "drafts": "prompt-lookup", "prompts": ["It was"]},
    "bench": {"target": TARGET, "draft": DRAFT, "questions": ["a"]},
}


def rows_of(row: np.ndarray) -> Any:
    """A draft with this distribution everywhere."""
    return SimpleNamespace(probabilities=lambda ids: np.tile(row, (len(ids), 1)))


REFUSED: dict[str, list[tuple[str, Any]]] = {
    "measure": [
        ("gammas", []), ("gammas", 3), ("gammas", [0]), ("gammas", [2, 2]), ("leniences", [0.0]),
        ("leniences", ["1"]), ("n_tokens", 0), ("timing", 1.5), ("top_k", 0), ("n_threads", 0),
        ("options", 3), ("seconds", 0), ("say", "x"), ("temperatures", [[]]), ("prompts", []), ("prompts", 7),
        ("temperature", 0.5),  # which temperatures set here
        ("presence_penalty", 0.5),  # has no effect on the draft's distribution
        ("draft", 5), ("draft", SimpleNamespace()),
    ],
    "tune": [("max_gamma", 0), ("draft", []), ("draft", SimpleNamespace())],
    "oracle": [
        ("gammas", []), ("gammas", [17]), ("gammas", [1.5]), ("max_gamma", 0), ("max_new_tokens", 0),
        ("verify", "block"), ("verify", "none"), ("draft", None),
    ],
    "compare": [
        ("drafts", {}), ("drafts", [1]), ("drafts", {3: None}), ("gammas", [0]), ("gammas", [2, 2]),
        ("temperatures", []), ("n_tokens", 0), ("repeats", 0), ("verify", "none"), ("timing", "yes"),
        ("logprobs", 2), ("gamma", 3),
    ],
    "recommend_draft": [("seconds", 0), ("gammas", [0]), ("repeats", 0), ("draft_dtype", "f16"), ("say", 3)],
    "bench": [
        ("repeats", 0), ("too_long", "cut"), ("draft", {"plain": drafts.PromptLookup()}), ("chat", True),
        ("chat", {"a": 1}), ("logprobs", 2), ("temperature", -1.0), ("gamma", -1), ("answers", 5),
        ("seed", 2**64 - 1),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("view", "argument", "value"), [(view, *one) for view, several in REFUSED.items() for one in several]
)
def test_arguments_that_are_refused(view: str, argument: str, value: Any) -> None:
    with refuses(argument):
        getattr(specdec, view)(**GIVEN[view] | {argument: value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperatures": [-1]}, "temperature is -1"), ({"target": 5}, "target is an int"),
        ({"options": DecodingOptions(verify="block")}, "verify is 'block'; expected the default"),
        ({"draft": rows_of(np.ones(3))}, "shape"),
        ({"draft": rows_of(np.ones(N_VOCAB))}, "not a distribution"),
        ({"draft": drafts.Unigram([0], 7)}, r"ids\[\d\] is \d+; expected 0 to 6"),
        ({"draft": drafts.PromptLookup}, "the class PromptLookup; expected an object"),
    ],
)  # fmt: skip
def test_what_another_argument_or_object_is_refused_for(change: dict[str, Any], message: str) -> None:
    with pytest.raises(specdec.InputError, match=message):
        specdec.measure(**GIVEN["measure"] | change)


@pytest.mark.parametrize("view", ["measure", "tune", "oracle"])
def test_names_are_texts_of_the_callers(view: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables call target and draft by their given names, for distributions and for runs."""
    function: Any = getattr(specdec, view)
    for argument, one in (("target", TARGET), ("draft", DRAFT)):
        several = [{"": one}, {}, {3: one}, {"a": one, "b": one}]
        for names in several[: 2 if (view, argument) == ("tune", "draft") else 4]:
            with refuses(argument):
                function(**GIVEN[view] | {argument: names})
    use_forward_times(monkeypatch)
    for draft in (DRAFT, drafts.PromptLookup()):
        found = function(**GIVEN[view] | {"target": {"theirs": TARGET}, "draft": {"ours": draft}})
        assert (found.target, found.draft, found.to_dict()["target"]) == ("theirs", "ours", "theirs")
        assert "ours" in str(found)
