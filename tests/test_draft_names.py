"""Drafts by name: every draft has a name, each name makes its draft, and errors name what is wrong."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import specdec
from specdec import drafts
from specdec.drafts import NAMES, named
from specdec.errors import CheckpointError, InputError
from worlds.assistants import assisted
from worlds.eagles import eagle_folder, mimo_target
from worlds.learned import look_ahead_weights, random_heads, recurrent_weights

TEXT = "ab ab ba\n" * 9
WITHOUT_NAME = {drafts.Draft, drafts.PythonDraft}
"""The base class, and objects of the caller's own."""


def used(memory: Any, target: specdec.Model) -> Any:
    specdec.generate(target, memory, "ab", max_new_tokens=5)
    return memory


NAMED = [
    "model:{model}", "window:9:{model}", "unigram:{text}", "bigram:{text}", "ngram:{text}", "online-ngram",
    "online-ngram:{text}",
    "prompt-lookup:", "prompt-lookup:{text}", "input-copy", "input-copy:{text}", "suffix-decoding",
    "token-recycling", "lookahead", "lookahead:3,2", "early-exit:1", "skip-layers:0/1", "eagle:{eagle}",
    "random", "online:ngram:{text}", "ensemble:prompt-lookup+ngram:{text}+random",
]  # fmt: skip
"""Drafts for the toy target by their names."""
SAVED: dict[str, Callable[[specdec.Model], Any]] = {
    "ngram": lambda target: drafts.Ngram.from_text(TEXT, target),
    "suffix-decoding": lambda target: used(drafts.SuffixDecoding(), target),
    "token-recycling": lambda target: used(drafts.TokenRecycling(), target),
    "heads": random_heads,
    "recurrent": lambda target: recurrent_weights(target, [5, 6, 7]),
    "pass": look_ahead_weights,
}
"""Saved file or folder for a draft of this name."""
OF_OTHER_TARGETS = {"embedded", "mtp", "assistant"}


def test_every_draft_has_a_name() -> None:
    classes = {entry for name in drafts.__all__ if inspect.isclass(entry := getattr(drafts, name))}
    classes = {each for each in classes if issubclass(each, drafts.Draft)}
    assert classes - {name.draft for name in NAMES.values()} == WITHOUT_NAME
    assert {name.partition(":")[0] for name in (*NAMED, *SAVED)} | OF_OTHER_TARGETS == set(NAMES)


@pytest.mark.parametrize("name", [*NAMED, *SAVED])
def test_a_name_makes_its_draft(name: str, target: specdec.Model, tmp_path: Path) -> None:
    if make := SAVED.get(name):
        path = tmp_path / ("saved.safetensors" if name == "ngram" else "saved")
        make(target).save(path)
        name = f"{name}:{path}"
    (tmp_path / "text.txt").write_text(TEXT)
    eagle = eagle_folder(target, "eagle3") if name.startswith("eagle") else None
    draft = named(name.format(model=target.path, text=tmp_path / "text.txt", eagle=eagle), target)
    assert type(draft) is NAMES[name.partition(":")[0]].draft
    prompt = "ab ab ba\nab ab ba\nab"
    plain, found = (specdec.generate(target, one, prompt, max_new_tokens=30) for one in (None, draft))
    assert found.tokens == plain.tokens and found.trace.n_drafted > 0
    if isinstance(draft, drafts.OnlineDraft):
        draft.close()


def test_drafts_that_come_with_their_target() -> None:
    target, small = specdec.embedded_pair()
    draft = named("embedded", target)
    assert isinstance(draft, drafts.ModelDraft) and draft.model.path == small.path
    quick = named("embedded", target, dtype="int8")
    assert isinstance(quick, drafts.ModelDraft) and quick.model.dtype == "int8"
    for name in ("mtp", f"mtp:{mimo_target().path}"):
        assert isinstance(named(name, mimo_target()), drafts.MTP)
    assisting = named(f"assistant:{assisted()[1]}", assisted()[0], dtype="int4")
    assert isinstance(assisting, drafts.Assistant) and assisting.dtype == "int4"


def test_arguments_reach_the_draft(target: specdec.Model, tmp_path: Path) -> None:
    windowed = named(f"window:9:{target.path}", target)
    for draft in (windowed, pickle.loads(pickle.dumps(windowed))):
        assert isinstance(draft, drafts.ModelDraft) and draft.window == 9
        assert set(draft.model.config.windows) == {9} and draft.model.core.base is None
    window = named("lookahead:4,3", target)
    assert isinstance(window, drafts.Lookahead) and (window.window, window.ngram) == (4, 3)
    for name, attn, mlp in [("skip-layers:0/1", {0}, {1}), ("skip-layers:1", {1}, {1})]:
        skipped = named(name, target)
        assert isinstance(skipped, drafts.SkipLayers) and (set(skipped.attn), set(skipped.mlp)) == (attn, mlp)
    parts = named("ensemble:random+early-exit:1", target)
    assert isinstance(parts, drafts.Ensemble)
    assert [type(part) for part in parts.drafts] == [drafts.RandomDraft, drafts.EarlyExit]
    heads = random_heads(target).save(tmp_path / "heads")
    mixed = named(
        f"ensemble:prompt-lookup+heads:{heads}", target, dtype="int8"
    )  # the format is for the heads
    assert isinstance(mixed, drafts.Ensemble)


nan = float("nan")
expected = partial(drafts.StaticTree.expected, 4)
WRONG: list[tuple[Callable[..., object], str, list[Any]]] = [
    (drafts.PromptLookup, "min_match", [0]), (drafts.PromptLookup, "n_candidates", [True, 17]),
    (drafts.PromptLookup, "gamma", [-1]), (drafts.PromptLookup, "documents", ["a text", [[1], [0.5]], [7]]),
    (drafts.InputCopy, "start", [-1]), (drafts.InputCopy, "min_match", [33]),
    (drafts.InputCopy, "n_candidates", [4]), (drafts.InputCopy, "source", [{1, 2}]),
    (drafts.SuffixDecoding, "max_tokens", [0]), (drafts.SuffixDecoding, "max_depth", [0, 1025]),
    (drafts.SuffixDecoding, "factor", [0.0, nan]), (drafts.SuffixDecoding, "min_probability", [0.0, 1.1]),
    (drafts.SuffixDecoding, "min_match", [0]), (drafts.SuffixDecoding, "gamma", [1025]),
    (drafts.SuffixDecoding, "branches", [2]), (drafts.TokenRecycling, "k", [0, 65]),
    (drafts.TokenRecycling, "tree", [3]), (drafts.Lookahead, "window", [0, 2.5, True]),
    (drafts.Lookahead, "ngram", [1]), (drafts.Lookahead, "candidates", [-1]),
    (drafts.ParallelChains, "k", [0, True]), (drafts.DynamicTree, "n_nodes", [0]),
    (partial(drafts.DynamicTree, 4), "width", [0]), (partial(drafts.DynamicTree, 4), "steps", [2000]),
    (partial(drafts.DynamicTree, 4), "sharpness", [0]), (drafts.StaticTree.expected, "n_nodes", [0]),
    (expected, "acceptance", [(0.2, 0.5), (0.6, 0.5), ()]), (drafts.StaticTree, "parents", [(0, 2), (1,)]),
    (drafts.StaticTree, "widths", [(2, 0), 3, (), (40, 40)]), (drafts.ModelDraft, "model", [7]),
    (partial(drafts.StaticTree, (2,)), "how", ["beam"]), (drafts.EarlyExit, "layer", [0, True, 1.5]),
    (drafts.SkipLayers, "attn", [[-1], 2]), (drafts.SkipLayers, "mlp", [["2"]]),
]  # fmt: skip


def test_wrong_parameters_are_named() -> None:
    for make, name, values in WRONG:
        for value in values:
            with pytest.raises(InputError, match=rf"^{name}[\[ ]"):
                make(**{name: value})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "draft is ''"), ("ngram", "expected ngram:FILE"), ("early-exit:", "expected early-exit:LAYER"),
        ("early-exit:x", "expected LAYER, one integer"), ("early-exit:1,2", "one integer"),
        ("early-exit:9", "layer is 9"), ("random:3", "expected random, uniform tokens"),
        ("window:9", "TOKENS:MODEL"), ("window:9:random", "TOKENS:MODEL"),
        ("window:0:{model}", "window is 0"),
        ("lookahead:3", "expected WINDOW,NGRAM"), ("skip-layers:/", "attn and mlp are empty"),
        ("ngram:no-such-file", "no-such-file: no such file"),
        ("prompt-lookup:no-such-file", "no-such-file: no such file"),
        ("mtp:no-such-file", "no-such-file'; expected a number of tokens, a text, or a folder"),
        ("lokahead", "expected 'lookahead', or one of"), ("ensemble:prompt-lookup+", "draft is ''"),
        ("online:" * 3000 + "prompt-lookup", "at most 8 nested drafts"),
        ("ensemble:prompt-lookup+" + "ensemble:" * 9 + "prompt-lookup", "at most 8 nested drafts"),
    ],
)  # fmt: skip
def test_wrong_names(text: str, message: str, target: specdec.Model) -> None:
    with pytest.raises(InputError, match=message):
        named(text.replace("{model}", str(target.path)), target)


def test_a_name_that_is_a_file_too(
    target: specdec.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    random_heads(target).save(tmp_path / "token-recycling")
    with pytest.raises(
        InputError, match=r"'./token-recycling' for the file, or 'token-recycling:' for the draft"
    ):
        named("token-recycling", target)
    assert isinstance(named("./token-recycling", target), drafts.DecodingHeads)
    assert isinstance(named("token-recycling:", target), drafts.TokenRecycling)


def test_what_is_no_name_is_a_path(target: specdec.Model, tmp_path: Path) -> None:
    assert isinstance(named(str(target.path), target), drafts.ModelDraft)
    with pytest.raises(CheckpointError):
        named(str(tmp_path / "nothing"), target)
    for text in ("skip-layers:1/1", "window:8:/no/such/folder"):
        with pytest.raises(CheckpointError, match=f"named.*{text}"):
            specdec.generate(target, text, "a")
    with pytest.raises(InputError, match="has no weights"):
        named("prompt-lookup", target, dtype="int8")
    with pytest.raises(InputError, match=r"expected the specdec.Model"):
        named("prompt-lookup", None)  # type: ignore[arg-type]
