"""`specdec.recommend_draft`: which drafts fit a target, their cost, which is recommended, and why."""

from __future__ import annotations

import json
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import specdec
from sessions import Session
from specdec import drafts, time_limit
from specdec.analysis import recommend as recommend_module
from specdec.analysis.arguments import short_names
from specdec.analysis.recommend import known_models, known_vocabularies, memory_of, vocabulary_of
from specdec.drafts.model_draft import translation_of
from specdec.errors import CheckpointNotFoundError, InputError, VocabularyMismatchError
from specdec.tokenizer import ByteTokenizer, Strip, load_tokenizer
from trained import small_pair
from worlds.eagles import mimo_target
from worlds.vocabularies import DISJOINT, VOCABULARIES, model_with

QUICK: dict[str, Any] = {"n_tokens": 12, "repeats": 1, "gammas": [2], "n_threads": 1}


@pytest.fixture(scope="module")
def target() -> specdec.Model:
    return model_with(VOCABULARIES["target"], 0)


@pytest.fixture(scope="module")
def other() -> specdec.Model:
    return model_with(VOCABULARIES["overlapping"], 1)


def test_a_model_is_measured_by_each_method_that_fits(target: Any, other: Any) -> None:
    same = model_with(VOCABULARIES["target"], 3)
    given = {"same": same, "other": lambda: other, "copies": "prompt-lookup", "deep": "early-exit:9"}
    found = specdec.recommend_draft(target, given, ["ab abc", "ca b"], **QUICK)
    methods = [fit.methods for fit in found.fits]
    assert methods == [
        {"same vocabulary": "same"},
        {"intersection": "other, intersection", "text": "other, text"},
        {"its own": "copies"},
        {},
    ]
    assert list(found.comparison.drafts) == [name for fit in methods for name in fit.values()]
    # special tokens, and the strings of both lists
    n_shared = 3 + len(set(VOCABULARIES["target"]) & set(VOCABULARIES["overlapping"]))
    assert [(fit.n_shared, fit.n_vocab) for fit in found.fits] == [
        (None, 16), (n_shared, 14), (None, None), (None, None),
    ]  # fmt: skip
    assert found.fits[1].overlap == n_shared / 14
    assert found.stopped == "" and "ended early" not in str(found)
    assert "expected 1 to" in found.fits[3].refusal
    assert found.drafts["other, text"].vocabulary == "text"
    text = str(found)
    assert "deep: layer is 9" in text and f"{n_shared} of 14" in text and "Recommended: " in text
    assert json.loads(json.dumps(found.to_dict()))["gamma"] == found.gamma
    assert specdec.recommend_draft(target, other, "ab", **QUICK).fits[0].draft == other.path.name


@pytest.mark.filterwarnings("ignore:the draft random has")  # and more parameters than the target
def test_only_requested_methods_are_measured(target: Any, other: Any) -> None:
    tree = drafts.StaticTree((2, 1))
    given = {
        "text": drafts.ModelDraft(other, vocabulary="text"),
        "tree": drafts.ModelDraft(other, tree=tree),
        "disjoint": model_with(DISJOINT[0], 2),
    }
    ours = model_with(DISJOINT[1], 1)
    found = specdec.recommend_draft(target, {"text": given["text"], "tree": given["tree"]}, "ab", **QUICK)
    assert [list(fit.methods) for fit in found.fits] == [["text"], ["intersection"]]
    assert found.drafts["tree"].tree is tree
    for model in (ours, given["disjoint"]):
        model.tokenizer.special_tokens = dict
        model.tokenizer.eos_ids = ()
    found = specdec.recommend_draft(ours, [given["disjoint"]], [[3, 4]], **QUICK)
    assert list(found.fits[0].methods) == ["text"] and found.fits[0].n_shared == 0


def test_drafts_of_which_none_fits_are_refused_with_what_could(target: Any, other: Any) -> None:
    for given, error, message in (
        (drafts.ModelDraft(other, vocabulary="same"), VocabularyMismatchError,
         "different vocabularies.*drafts that fit: a model with"),
        ({"a": "early-exit:9", "b": drafts.EarlyExit(8)}, InputError,
         "expected 1 to 1: the target has 2; drafts that fit: .* prompt-lookup, input-copy"),
        ("no/such/model", CheckpointNotFoundError, "no/such/model"),
        ("prompt-lokup", InputError, "expected 'prompt-lookup', or one of"),
        ({"o": other, "o, text": "prompt-lookup"}, InputError, "'o, text'.* twice"),
    ):  # fmt: skip
        with pytest.raises(error, match=message):
            specdec.recommend_draft(target, given, "ab", **QUICK)


def test_without_drafts_what_needs_no_model_is_measured(target: Any) -> None:
    found = specdec.recommend_draft(target, None, ["ab abc", "ca b"], **QUICK)
    names = [*recommend_module.WITHOUT_MODEL, "early-exit:1"]
    assert [fit.draft for fit in found.fits] == names == list(found.comparison.drafts)
    small, _ = small_pair()
    assert "early-exit:3" in recommend_module.without_model(small)
    assert "mtp" not in recommend_module.without_model(small)


def test_an_mtp_block_is_measured() -> None:
    found = specdec.recommend_draft(mimo_target(), {"block": "mtp"}, [[1, 2, 3]], **QUICK)
    assert found.fits[0].weight_bytes > 0 and found.fits[0].cache_bytes == 2 * (8 + 32) * 4
    assert "mtp" in recommend_module.without_model(mimo_target())


def test_names_of_drafts_are_short() -> None:
    for given, wanted in {
        "/a/b/c/": "c", "heads:a/b": "heads:b", "ensemble:random+path/to/small": "ensemble:random+small",
        "org/name:Q4_K_M": "name:Q4_K_M", "prompt-lookup": "prompt-lookup", "/": "/",
    }.items():  # fmt: skip
        assert short_names([given]) == [wanted]
    assert short_names(["a/x", "b/x", "b/y"]) == ["a/x", "b/x", "y"]


def test_gammas_are_those_asked_for_or_each_drafts_own(target: Any, other: Any) -> None:
    settings = {"n_tokens": 4, "repeats": 1, "n_threads": 1}
    found = specdec.recommend_draft(
        target, {"o": drafts.ModelDraft(other, vocabulary="text", gamma=5)}, "ab", **settings
    )
    assert [row.gamma for row in found.comparison.rows] == [2, 4, 5, 8]


def test_memory_is_that_of_the_core(target: Any, other: Any) -> None:
    draft = drafts.ModelDraft(other)
    weights, cache = memory_of(draft)
    assert weights == other.core.n_bytes

    def kept(n: int) -> int:
        session = Session(
            other.core, None, [[3] * n], gamma=0, max_new_tokens=1, sampling={"temperature": 0.0},
            seeds=[(0, 0)], n_threads=1,
        )  # fmt: skip
        session.prefill()
        return session.cached_size(0)[2]

    assert cache * 64 == pytest.approx(kept(161) - kept(97), rel=0.1)  # and some bookkeeping
    inner = drafts.ModelDraft(target, draft=target)
    both = drafts.Ensemble(drafts.PromptLookup(), draft, inner)
    assert memory_of(both) == (weights + 2 * target.core.n_bytes, cache + memory_of(inner)[1])
    assert memory_of(drafts.EarlyExit(1)) == (0, 0)


KNOWN = known_vocabularies()
DOCUMENTED = {
    "Qwen 2, 2.5 and 3", "Llama 3", "Gemma 1 and 2", "Gemma 3", "SmolLM 2", "Pythia", "OPT", "OLMo 2"
}  # fmt: skip
"""Vocabularies whose marks come from their authors' publications: the tests have no file of theirs."""


class Listed(ByteTokenizer):
    """A tokenizer with a list of tokens that encodes nothing."""

    def __init__(self, tokens: list[bytes]) -> None:
        super().__init__(
            "made up", vocabulary=tokens, silent=frozenset(), strip=Strip.NOTHING, bos_id=None, eos_ids=(),
            adds_bos=False,
        )  # fmt: skip

    def _encode(self, text: str) -> list[int]:
        raise NotImplementedError


def model_known_by(tokenizer: ByteTokenizer, *, has_encoder: bool = False) -> Any:
    """Attributes of a model that identify its vocabulary."""
    config = SimpleNamespace(encoder=object() if has_encoder else None)
    return SimpleNamespace(tokenizer=tokenizer, config=config, n_parameters=1)


@pytest.mark.slow
def test_small_models_are_known_by_the_targets_vocabulary(shared: Path) -> None:
    folder = shared / "data" / "tokenizers"
    files = {
        "GPT-2, GPT-Neo, GPT-J and Phi 1 to 2": "gpt2_vocab.json", "Llama 2": "llama2_tokenizer.model",
        "Phi 3 and 3.5": "phi3.tokenizer.json", "T5 and Flan-T5": "t5-small.tokenizer.json",
    }  # fmt: skip
    assert DOCUMENTED | files.keys() == {known.name for known in KNOWN}
    for name, file in files.items():
        model = model_known_by(load_tokenizer(folder / file), has_encoder="T5" in name)
        found = vocabulary_of(model)
        assert found is not None and found.name == name
        assert known_models(model) == ()  # all of them are larger than this one
    assert vocabulary_of(small_pair()[0]) is None
    # Qwen's marks are the first ids after those of its vocab.json.
    ids = json.loads((folder / "qwen2.5_vocab.json").read_text()).values()
    assert sorted(ids) == list(range(min(KNOWN[0].marks)))


@pytest.mark.parametrize("known", KNOWN, ids=lambda known: known.name)
def test_documented_marks_are_those_of_no_vocabulary_before(known: Any) -> None:
    sizes = [model.n_parameters for model in known.models]
    assert sizes == sorted(sizes) and all(model.name.count("/") == 1 for model in known.models)
    if known.name in DOCUMENTED:
        tokens = [known.marks.get(token, b"") for token in range(max(known.marks) + 1)]
        assert vocabulary_of(model_known_by(Listed(tokens))) is known
        assert vocabulary_of(model_known_by(Listed([*tokens[:-1], b"x"]))) is not known


def recommendation(*, n_drafted: int = 20, **ratios: tuple[float, ...]) -> specdec.DraftRecommendation:
    """Recommend among drafts with these speed-ups, one per repetition, in runs of two tokens."""
    rows = tuple(
        specdec.ExperimentRow(
            draft=name, temperature=0.0, gamma=4, n_tokens=10, n_calls=5, n_drafted=n_drafted,
            tokens_per_call=2.0, speedup=specdec.Speedup(given, (2.0,) * len(given)), tokens_per_s=given,
        )
        for name, given in ratios.items()
    )  # fmt: skip
    compared = specdec.Comparison("t", rows, {0.0: (1.0, 1.0)}, [[1]], ("a",), {})
    return specdec.DraftRecommendation("t", (), compared, "", (), {name: name.upper() for name in ratios})


def test_the_choice_is_the_fastest_that_is_possible() -> None:
    found = recommendation(a=(1.2, 1.3), b=(1.4, 1.5), c=(3.0, 3.1))  # c is above its tokens per pass
    assert (found.choice, found.gamma, found.is_certain) == ("B", 4, True)
    assert found.reason == (
        "b with gamma 4: 1.45 times as fast as plain decoding (1.40 to 1.50), tokens per pass 2.00; "
        "next is a with gamma 4: 1.25 times as fast as plain decoding (1.20 to 1.30), "
        "tokens per pass 2.00"
    )
    for ratios, reason in (((0.9, 1.3), "measure again with more repeats"), ((1.3,), "only one repetition")):
        unsure = recommendation(a=ratios)
        assert unsure.choice == "A" and not unsure.is_certain and reason in unsure.reason
    for plain, reason in (
        (
            recommendation(a=(0.9, 0.8)),
            "no draft beats plain decoding; fastest: a with gamma 4: 0.85 times",
        ),
        (recommendation(a=(3.0, 3.0)), "too busy"),
        (recommendation(a=(1.3, 1.4), n_drafted=0), "no draft proposed any token"),
    ):
        assert (plain.choice, plain.gamma, plain.best) == (None, 0, None) and reason in plain.reason
        assert "plain decoding" in str(plain.tables()[-1].rows)


def test_the_seconds_end_the_measuring(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured rows are returned, drafts that were not measured are named; each row is reported at once."""
    monkeypatch.setattr(time_limit, "time", SimpleNamespace(monotonic=partial(next, count())))
    lines: list[str] = []
    quick = QUICK | {"gammas": [2, 4], "repeats": 9}
    found = specdec.recommend_draft(target, None, ["ab abc", "ca b"], seconds=30.0, say=lines.append, **quick)
    measured = found.comparison.drafts
    assert 0 < len(measured) < len(found.fits)
    assert list(found.drafts)[: len(measured)] == list(measured)
    for name in list(found.drafts)[len(measured) :]:
        assert name in found.stopped
    assert "time limit of 30 s reached" in found.stopped and found.stopped in str(found)
    assert [line.split(":")[0] for line in lines] == [
        f"{row.draft} with gamma {row.gamma}" for row in found.comparison.rows
    ]
    assert all(row.speedup is not None and row.speedup.ratios for row in found.comparison.rows)


def test_ctrl_c_keeps_what_was_measured(target: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter([recommend_module.compare_drafts, None])

    def compare_drafts(*arguments: Any, **options: Any) -> specdec.Comparison:
        if (function := next(calls)) is None:
            raise KeyboardInterrupt
        found: specdec.Comparison = function(*arguments, **options)
        return found

    monkeypatch.setattr(recommend_module, "compare_drafts", compare_drafts)
    given = {"a": "prompt-lookup", "b": "lookahead", "c": "token-recycling"}
    found = specdec.recommend_draft(target, given, "ab abc", **QUICK)
    assert found.comparison.drafts == ("a",) and found.stopped == "interrupted; not measured: b, c"
    calls = iter([None])
    with pytest.raises(KeyboardInterrupt):
        specdec.recommend_draft(target, given, "ab abc", **QUICK)


def test_shares_are_shown_next_to_measurements(target: Any, other: Any) -> None:
    """Each row has its own: the same as without other rows, and equal to the translation's counts."""
    draft = drafts.ModelDraft(other, vocabulary="intersection")
    given = {"same": target, "i": draft, "t": drafts.ModelDraft(other, vocabulary="text")}
    settings: dict[str, Any] = {"temperatures": [0.8], "n_tokens": 20, "timing": False, "seed": 3}
    rows = {
        (row.draft, row.gamma): row.named_share
        for row in specdec.compare(target, given, ["ab abc", "ca"], gammas=[2, 4], **settings).rows
    }
    for gamma in (2, 4):
        n, total = translation_of(target, other).shares
        alone = specdec.compare(target, {"i": draft}, ["ab abc", "ca"], gammas=[gamma], **settings)
        more, sum_ = translation_of(target, other).shares
        assert rows["i", gamma] == alone.rows[0].named_share == pytest.approx((sum_ - total) / (more - n))
        assert 0.0 < rows["i", gamma] < 1.0
        assert rows["same", gamma] is rows["t", gamma] is None
        measured = specdec.measure(
            target, draft, ["ab abc", "ca"], gammas=[gamma], leniences=[1.0], **settings
        )
        assert measured.rows[0].named_share == rows["i", gamma]
        assert f"{rows['i', gamma]:.3f}" in str(measured) and "shared mass" in str(alone)
    assert rows["i", 2] != rows["i", 4]
    both = drafts.Ensemble(drafts.PromptLookup(), draft)
    assert both.shares(target) == draft.shares(target) and draft.shares(other) == (0, 0.0)
    assert "shared mass" not in str(specdec.compare(target, {"c": drafts.RandomDraft()}, "ab", **settings))
    assert np.isnan(drafts.ModelDraft(model_with(VOCABULARIES["bytes"], 9)).named_share(target))
