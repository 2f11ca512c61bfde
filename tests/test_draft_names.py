"""Drafts by name: every draft has one, each makes its draft, and what is wrong is said."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import specdec
from specdec import drafts
from specdec.drafts import NAMES, named
from specdec.errors import CheckpointError, InputError
from toy_pair import load_pair
from worlds.eagles import eagle_folder, mimo_target
from worlds.learned import look_ahead_weights, random_heads, recurrent_weights

TEXT = "ab ab ba\n" * 9
WITHOUT_NAME = {drafts.Draft, drafts.PythonDraft}
"""The base class, and objects of the caller's own."""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> specdec.Model:
    return load_pair(tmp_path_factory.mktemp("pair"))[0]


def written(folder: Path) -> Path:
    path = folder / "text.txt"
    path.write_text(TEXT)
    return path


def saved(folder: Path, draft: drafts.Ngram | drafts.SuffixMemory | drafts.TokenRecycling) -> Path:
    draft.save(folder / "draft.safetensors")
    return folder / "draft.safetensors"


def used(memory: Any, target: specdec.Model) -> Any:
    specdec.generate(target, memory, "ab", max_new_tokens=5)
    return memory


SAMPLES: dict[str, Any] = {
    "model": lambda folder, target: f"model:{target.path}",
    "unigram": lambda folder, target: f"unigram:{written(folder)}",
    "bigram": lambda folder, target: f"bigram:{written(folder)}",
    "ngram": lambda folder, target: f"ngram:{written(folder)}",
    "ngram, saved": lambda folder, target: f"ngram:{saved(folder, drafts.Ngram.from_text(TEXT, target))}",
    "online-ngram": lambda folder, target: "online-ngram",
    "online-ngram, begun": lambda folder, target: f"online-ngram:{written(folder)}",
    "copy": lambda folder, target: "copy:",
    "copy, a document": lambda folder, target: f"copy:{written(folder)}",
    "input": lambda folder, target: "input",
    "input, given": lambda folder, target: f"input:{written(folder)}",
    "suffix": lambda folder, target: "suffix",
    "suffix, saved": lambda folder, target: f"suffix:{saved(folder, used(drafts.SuffixMemory(), target))}",
    "recycling": lambda folder, target: "recycling",
    "recycling, saved": lambda folder, target: (
        f"recycling:{saved(folder, used(drafts.TokenRecycling(), target))}"
    ),
    "lookahead": lambda folder, target: "lookahead",
    "lookahead, sized": lambda folder, target: "lookahead:3,2",
    "exit": lambda folder, target: "exit:1",
    "skip": lambda folder, target: "skip:0/1",
    "heads, trained": lambda folder, target: f"heads:{random_heads(target).save(folder / 'heads')}",
    "eagle": lambda folder, target: f"eagle:{eagle_folder(target, 'eagle3')}",
    "recurrent": lambda folder, target: (
        f"recurrent:{recurrent_weights(target, [5, 6, 7]).save(folder / 'gru')}"
    ),
    "pass": lambda folder, target: f"pass:{look_ahead_weights(target).save(folder / 'vectors')}",
    "random": lambda folder, target: "random",
    "online": lambda folder, target: f"online:ngram:{written(folder)}",
    "ensemble": lambda folder, target: f"ensemble:copy+ngram:{written(folder)}+random",
}
"""A draft for the toy target by its name."""
OF_OTHER_TARGETS = {"embedded", "heads", "mtp"}


def test_every_draft_has_a_name() -> None:
    kinds = {entry for name in drafts.__all__ if inspect.isclass(entry := getattr(drafts, name))}
    kinds = {kind for kind in kinds if issubclass(kind, drafts.Draft)}
    assert kinds - {name.draft for name in NAMES.values()} == WITHOUT_NAME
    assert {sample.partition(",")[0] for sample in SAMPLES} | OF_OTHER_TARGETS == set(NAMES)


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_name_makes_its_draft(sample: str, target: specdec.Model, tmp_path: Path) -> None:
    text = SAMPLES[sample](tmp_path, target)
    draft = named(text, target)
    assert type(draft) is NAMES[sample.partition(",")[0]].draft
    assert specdec.generate(target, draft, "ab ab", max_new_tokens=8).trace.n_tokens > 0
    if isinstance(draft, drafts.Online):
        draft.close()


def test_drafts_that_come_with_their_target() -> None:
    target, small = specdec.embedded_pair()
    draft = named("embedded", target)
    assert isinstance(draft, drafts.ModelDraft) and draft.model.path == small.path
    quick = named("embedded", target, dtype="int8")
    assert isinstance(quick, drafts.ModelDraft) and quick.model.dtype == "int8"
    heads = named("heads", target, dtype="int8")
    assert isinstance(heads, drafts.Heads) and heads.n_heads == 2
    assert isinstance(named("mtp", mimo_target()), drafts.MTP)


def test_arguments_reach_the_draft(target: specdec.Model, tmp_path: Path) -> None:
    window = named("lookahead:4,3", target)
    assert isinstance(window, drafts.Lookahead) and (window.window, window.ngram) == (4, 3)
    skipped, both = named("skip:0/1", target), named("skip:1", target)
    assert isinstance(skipped, drafts.SkipLayers) and isinstance(both, drafts.SkipLayers)
    assert (set(skipped.attn), set(skipped.mlp)) == ({0}, {1})
    assert (set(both.attn), set(both.mlp)) == ({1}, {1})
    parts = named("ensemble:random+exit:1", target)
    assert isinstance(parts, drafts.Ensemble)
    assert [type(part) for part in parts.drafts] == [drafts.Random, drafts.EarlyExit]
    heads = random_heads(target).save(tmp_path / "heads")
    mixed = named(f"ensemble:copy+heads:{heads}", target, dtype="int8")  # the format is for the heads
    assert isinstance(mixed, drafts.Ensemble)


nan = float("nan")
expected = partial(drafts.StaticTree.expected, 4)
WRONG: list[tuple[Callable[..., object], str, list[Any]]] = [
    (drafts.ContextCopy, "min_match", [0]), (drafts.ContextCopy, "n_candidates", [True, 17]),
    (drafts.ContextCopy, "gamma", [-1]), (drafts.ContextCopy, "documents", ["a text", [[1], [0.5]], [7]]),
    (drafts.InputCopy, "start", [-1]), (drafts.InputCopy, "min_match", [33]),
    (drafts.InputCopy, "n_candidates", [4]), (drafts.InputCopy, "source", [{1, 2}]),
    (drafts.SuffixMemory, "max_tokens", [0]), (drafts.SuffixMemory, "max_depth", [0, 1025]),
    (drafts.SuffixMemory, "factor", [0.0, nan]), (drafts.SuffixMemory, "min_probability", [0.0, 1.1]),
    (drafts.SuffixMemory, "min_match", [0]), (drafts.SuffixMemory, "gamma", [1025]),
    (drafts.SuffixMemory, "branches", [2]), (drafts.TokenRecycling, "k", [0, 65]),
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
        ("", "draft is ''"), ("ngram", "expected ngram:FILE"), ("exit:", "expected exit:LAYER"),
        ("exit:x", "expected LAYER, one integer"), ("exit:1,2", "one integer"), ("exit:9", "layer is 9"),
        ("random:3", "expected random, uniform tokens"), ("lookahead:3", "expected WINDOW,NGRAM"),
        ("skip:/", "attn and mlp are empty"), ("ngram:no-such-file", "no-such-file: no such file"),
        ("copy:no-such-file", "no-such-file: no such file"), ("lokahead", "expected lookahead perhaps"),
        ("ensemble:copy+", "draft is ''"),
        ("online:" * 3000 + "copy", "at most 8 drafts within each other"),
        ("ensemble:copy+" + "ensemble:" * 9 + "copy", "at most 8 drafts within each other"),
    ],
)  # fmt: skip
def test_wrong_names(text: str, message: str, target: specdec.Model) -> None:
    with pytest.raises(InputError, match=message):
        named(text, target)


def test_a_name_that_is_a_file_too(
    target: specdec.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    random_heads(target).save(tmp_path / "recycling")
    with pytest.raises(InputError, match=r"'./recycling' for the file, or 'recycling:' for the draft"):
        named("recycling", target)
    assert isinstance(named("./recycling", target), drafts.Heads)
    assert isinstance(named("recycling:", target), drafts.TokenRecycling)


def test_what_is_no_name_is_a_path(target: specdec.Model, tmp_path: Path) -> None:
    assert isinstance(named(str(target.path), target), drafts.ModelDraft)
    with pytest.raises(CheckpointError):
        named(str(tmp_path / "nothing"), target)
    with pytest.raises(InputError, match="has no weights"):
        named("copy", target, dtype="int8")
    with pytest.raises(InputError, match=r"expected the specdec.Model"):
        named("copy", None)  # type: ignore[arg-type]
