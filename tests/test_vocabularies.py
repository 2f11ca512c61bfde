"""Drafts with another vocabulary than their target's: common tokens, retokenized text, exactness."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import pytest

import specdec
from allocations import needs_hooks
from distributions import FALSE_ALARM, conditional, count, p_value
from exact import chain_distribution
from refusals import refuses
from sessions import Session
from specdec import _core, drafts
from specdec.drafts.model_draft import _for_encoder, translation_of
from specdec.errors import InputError, VocabularyMismatchError
from specdec.models.tokenizer.byte_tokenizer import encode_continuing
from specdec.models.tokenizer.vocabulary import correspondence_of
from specdec.tokenizer import ByteTokenizer, Strip, load_tokenizer
from tokenizer_files import published_folder
from toy_pair import _PIECES
from trained import small_pair
from worlds.canonical import with_drafts
from worlds.encoder_decoders import EncoderDecoder, model_of
from worlds.vocabularies import (
    DISJOINT,
    VOCABULARIES,
    LongestPieces,
    model_with,
    renumbered_model,
    with_tokenizer,
)

OTHERS = [name for name in VOCABULARIES if name != "target"]
OPTIONS: dict[str, Any] = {"ignore_eos": True}


@pytest.fixture(scope="module")
def target() -> specdec.Model:
    return model_with(VOCABULARIES["target"], 0)


@pytest.fixture(scope="module")
def models(target: specdec.Model) -> dict[str, specdec.Model]:
    return {name: model_with(VOCABULARIES[name], seed) for seed, name in enumerate(OTHERS, 1)}


def generate(target: Any, draft: Any, prompt: Any, n_new: int = 24, **options: Any) -> Any:
    return specdec.generate(target, draft, prompt, max_new_tokens=n_new, n_threads=1, **OPTIONS | options)


def drafted(result: Any) -> list[Any]:
    """The draft tokens of each round."""
    return [record.drafted for record in result.trace.rounds]


# ----------------------------------------------------------------------------------- what both have


def test_tokens_correspond_by_their_bytes_and_special_ones_by_their_meaning() -> None:
    ours = LongestPieces([b"a", b"b", b"ab", b"a"], end="<|endoftext|>")
    theirs = LongestPieces([b"b", b"c", b"a"])
    found = correspondence_of(ours, theirs, 9, 6)
    assert found.draft_of.tolist() == [0, 1, 2, -1, 3, -1, 5, -1, -1]  # the last "a" counts
    assert found.target_of.tolist() == [0, 1, 2, 4, -1, 6]
    assert found.n_shared == 5
    short = correspondence_of(ours, theirs, 4, 6)  # a model with fewer ids than its tokenizer names
    assert short.draft_of.tolist() == [0, 1, 2, 5]


class Names(ByteTokenizer):
    """A tokenizer with special tokens only."""

    def __init__(self, *names: str, eos: int) -> None:
        super().__init__(
            "names", vocabulary=[name.encode() for name in names], silent=frozenset(range(len(names))),
            strip=Strip.NOTHING, bos_id=None, eos_ids=(eos,), adds_bos=False,
        )  # fmt: skip

    def _encode(self, text: str) -> list[int]:
        return []


def test_turns_of_a_chat_and_ends_of_text_correspond() -> None:
    chat = Names("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", eos=2)
    llama, phi = Names("<s>", "</s>", eos=1), Names("</s>", "<s>", "<|endoftext|>", eos=2)
    for target, draft, expected in (
        (chat, Names("<|end_of_text|>", "<|eot_id|>", "<|start_header_id|>", eos=1), [0, 2, 1, -1]),
        (chat, Names("<think>", "<end_of_turn>", "<start_of_turn>", "<eos>", eos=3), [3, 2, 1, 0]),
        (chat, Names("</s>", "<unk>", eos=0), [0, -1, -1, -1]),
        (chat, Names("<|endoftext|>", "</s>", "<|im_end|>", eos=1), [0, -1, 2, -1]),  # ends turns, not texts
        (chat, Names("<fin>", "<unk>", eos=0), [-1, -1, 0, -1]),  # what ends its texts, under no known name
        # the end of text is the token that ends texts, whatever other tokens are named
        (llama, phi, [1, 2]),
        (phi, llama, [-1, 0, 1]),
        (llama, Names("</s>", "<|endoftext|>", eos=0), [-1, 0]),
    ):
        found = correspondence_of(target, draft, target.n_vocab, draft.n_vocab)
        assert found.draft_of.tolist() == expected


def test_words_are_tokenized_after_a_text_as_within_it() -> None:
    _, small = small_pair()
    tokenizer: Any = small.tokenizer
    words = ["Once", " upon", " a time", ",\n", "\nthere was é", "'s", " 123"]
    for before, text in itertools.product(words, words):
        ids = encode_continuing(tokenizer, text)
        assert tokenizer.decode([*tokenizer.encode(before), *ids]) == before + text
    assert encode_continuing(tokenizer, " upon") == tokenizer.encode("Once upon", add_bos=False)[-1:]


# ---------------------------------------------------------------------------------------- retokenized text


@pytest.mark.parametrize("name", OTHERS)
def test_a_reading_that_grows_is_that_of_the_whole_text(name: str, target: Any, models: Any) -> None:
    draft = models[name]
    translation = translation_of(target, draft)
    rng = np.random.default_rng(3)
    words = ["a", "b", "ab", "abc", "é", "ca", "bca", " ", "\n", " a", " b", " c"]
    for _ in range(20):
        text = "".join(rng.choice(words, 30))
        ids = target.tokenizer.encode(text)
        whole = translation.read([ids])
        assert whole == draft.tokenizer.encode(text)
        steps = sorted({1, *rng.integers(1, len(ids), 8).tolist(), len(ids)})
        grown = translation.read([ids[:n] for n in steps])
        assert draft.tokenizer.decode(grown) == draft.tokenizer.decode(whole)
        changed = [*ids[: len(ids) // 2], *target.tokenizer.encode("abc ab", add_bos=False)]
        assert draft.tokenizer.decode(translation.read([ids, changed])) == draft.tokenizer.decode(
            draft.tokenizer.encode(target.tokenizer.decode(changed))
        )


def test_a_reading_splits_no_character_and_keeps_special_tokens_apart(target: Any, models: Any) -> None:
    encode, first_byte = target.tokenizer.encode, 3 + VOCABULARIES["target"].index(b"\xc3")
    whole, refined = models["overlapping"], models["refinement"]
    half = [1, *encode("ab", add_bos=False), first_byte]
    # one draft has the character alone, the other its bytes
    assert translation_of(target, whole).read([half]) == whole.tokenizer.encode("ab")
    assert translation_of(target, refined).read([half]) == [
        *refined.tokenizer.encode("ab"), 3 + VOCABULARIES["refinement"].index(b"\xc3"),
    ]  # fmt: skip
    full = [*half, 3 + VOCABULARIES["target"].index(b"\xa9")]
    for draft in (whole, refined):
        assert translation_of(target, draft).read([half, full]) == draft.tokenizer.encode("abé")
    turns = [1, *encode("ab", add_bos=False), 2, 0, *encode("ab", add_bos=False)]
    pieces = whole.tokenizer.encode("ab", add_bos=False)
    assert translation_of(target, whole).read([turns]) == [1, *pieces, 2, 0, *pieces]


def test_what_a_draft_has_no_tokens_for_is_read_as_far_as_it_can(target: Any) -> None:
    draft = model_with([b"a", b" "], 5)
    assert translation_of(target, draft).read([target.tokenizer.encode("a b a")]) == [1, 3, 4, 4, 3]
    assert (
        len(translation_of(target, draft).read([target.tokenizer.encode("ab " * 9000)])) == 18001
    )  # in pieces


SCRIPTS = (
    "The quick brown fox, 1234 times, isn't here.\n\nIt is.",
    "Съешь же ещё этих мягких булок.", "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.",
    "敏捷的棕色狐狸跳过了懒狗。", "いろはにほへと ちりぬるを。", "키스의 고유조건은 입술끼리",
    "ऋषियों को सताने वाले दुष्ट", "نص حكيم له سر قاطع", "דג סקרן שט בים מאוכזב", "เป็นมนุษย์สุดประเสริฐ",
    "👩‍👩‍👧‍👦 🏳️‍🌈 e\u0301 🇫🇷!", "def f(x):\n    return {\"a\": [x ** 2 for _ in range(3)]}\n\n\t# ok",
)  # fmt: skip
"""Ten scripts, emoji, code."""


@pytest.fixture(scope="module")
def published(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Any]:
    """Small random models with published tokenizers."""
    folder = tmp_path_factory.mktemp("published")

    def make(family: str, seed: int) -> Any:
        path = folder / family
        tokenizer: Any = load_tokenizer(path if path.is_dir() else published_folder(family, shared, path))
        return with_tokenizer(tokenizer, range(tokenizer.n_vocab), seed)

    return make


@pytest.mark.parametrize(("ours", "theirs"), [("Phi-3", "Qwen2.5"), ("Qwen2.5", "Phi-3")])
def test_texts_in_ten_scripts_emoji_and_code_are_read_as_they_are(
    ours: str, theirs: str, published: Any
) -> None:
    target, draft = published(ours, 0), published(theirs, 0)
    translation, rng = translation_of(target, draft), np.random.default_rng(1)
    n_same = n_all = 0
    for text in SCRIPTS:
        ids = target.tokenizer.encode(text)
        text = target.tokenizer.decode(ids)  # one of them composes accents
        natural, steps = draft.tokenizer.encode(text, add_bos=False), [1]
        assert [i for i in translation.read([ids]) if i != draft.tokenizer.bos_id] == natural
        while steps[-1] < len(ids):
            steps.append(min(len(ids), steps[-1] + int(rng.integers(1, 5))))
        grown = translation.read([ids[:n] for n in steps])
        assert normalize("NFC", draft.tokenizer.decode(grown)) == normalize("NFC", text)
        common = sum(a == b for a, b in zip(grown[len(grown) - len(natural) :], natural, strict=False))
        n_same, n_all = n_same + common, n_all + len(natural)
    assert n_same > 0.9 * n_all


# -------------------------------------------------------------------------------------------- distributions


def restricted(target: Any, draft: Any, text: list[int], draft_tokens: list[int], temperature: float) -> Any:
    """The draft's distribution after draft tokens, restricted to common tokens, and their mass; in NumPy."""
    pairs = correspondence_of(
        target.tokenizer, draft.tokenizer, target.config["n_vocab"], draft.config["n_vocab"]
    )
    ids = [*translation_of(target, draft).read([text]), *pairs.draft_of[draft_tokens]]
    logits = draft.logits(ids)[-1].astype(np.float64) / temperature
    distribution = np.zeros(target.config["n_vocab"])
    shared = pairs.draft_of >= 0
    weights = np.exp(logits - logits.max())
    distribution[shared] = weights[pairs.draft_of[shared]]
    return distribution / distribution.sum(), distribution.sum() / weights.sum()


@pytest.mark.parametrize("name", OTHERS)
def test_draft_tokens_are_drawn_from_the_restricted_distribution(name: str, target: Any, models: Any) -> None:
    draft, prompt = models[name], target.tokenizer.encode("ab abc ca")
    before = translation_of(target, draft).shares
    session = Session(
        target.core, drafts.ModelDraft(draft, vocabulary="intersection").describe(target), [prompt],
        gamma=3, max_new_tokens=40, sampling={"temperature": 0.7}, draft_sampling={"temperature": 0.7},
        seeds=[(5, 0)], n_threads=1,
    )  # fmt: skip
    with_drafts(session).prefill()
    text, shares, n_rows = list(prompt), 0.0, 0
    while records := session.round():
        for record in records:
            for i in range(len(record["drafted"])):
                draft_tokens = list(record["drafted"][:i])
                distribution, _ = restricted(target, draft, text, draft_tokens, 0.7)
                _, share = restricted(target, draft, text, draft_tokens, 1.0)
                np.testing.assert_allclose(record["draft_probs"][i + 1], distribution, atol=2e-5)
                shares, n_rows = shares + share, n_rows + 1
            text += record["tokens"]
    n, total = translation_of(target, draft).shares
    assert n - before[0] == n_rows
    assert total - before[1] == pytest.approx(shares, rel=1e-3)


HOW: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "coupled": {"temperature": 0.9, "verify": "coupled", "seed": 5},
}
TREES = [drafts.StaticTree((2, 2, 1), "without replacement"), drafts.DynamicTree(8, width=3, steps=3)]
METHODS: list[tuple[Any, Any]] = [
    ("auto", None), ("text", None), ("intersection", None), *(("intersection", tree) for tree in TREES)
]  # fmt: skip


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", OTHERS)
def test_texts_are_those_of_plain_decoding(name: str, how: str, target: Any, models: Any) -> None:
    options = HOW[how] | {"logits": True}
    prompts = ["ab", "abc abé", "c", "a b"]
    plain = generate(target, None, prompts, 40, **options)
    for vocabulary, tree in METHODS:
        draft = drafts.ModelDraft(models[name], tree=tree, vocabulary=vocabulary)
        found = generate(target, draft, prompts, 40, **options)
        for a, b in zip(plain, found, strict=True):
            assert a.tokens == b.tokens
            np.testing.assert_array_equal(a.logits, b.logits)
        assert sum(b.trace.n_drafted for b in found) > 0


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("vocabulary", ["auto", "text", "intersection"])
def test_a_draft_of_a_draft_may_have_another_vocabulary(
    vocabulary: Any, how: str, target: Any, models: Any
) -> None:
    """The outer draft drafts the same as by itself; in a batch, and with a prompt cache."""
    small = model_with(VOCABULARIES["target"], 7)
    nested = drafts.ModelDraft(small, draft=drafts.ModelDraft(models["overlapping"], vocabulary=vocabulary))
    prompts, cache = ["ab", "abc abé", "ab"], specdec.PromptCache()
    alone = generate(target, small, prompts, 30, **HOW[how])
    for more in ({}, {"prompt_cache": cache}, {"prompt_cache": cache, "batch_size": 2}):
        found = generate(target, nested, prompts, 30, **HOW[how], **more)
        for one, other in zip(alone, found, strict=True):
            assert (one.tokens, drafted(one)) == (other.tokens, drafted(other))


@pytest.mark.parametrize("vocabulary", ["text", "intersection"])
def test_the_targets_own_weights_under_other_ids_are_always_right(vocabulary: Any) -> None:
    pieces = [b"a", b"b", b"c", b" ", b"\n", b"d"]  # there is only one tokenization of a text
    target, same = model_with(pieces, 0), renumbered_model(pieces, [3, 5, 0, 4, 1, 2], 0)
    draft = drafts.ModelDraft(same, vocabulary=vocabulary)
    found = generate(target, draft, "ab abc", 60, gamma=3)
    assert found.trace.n_accepted == found.trace.n_drafted > 30
    if vocabulary == "intersection":
        sampled = generate(target, draft, "ab abc", 60, gamma=3, temperature=1.0, seed=2)
        assert sampled.trace.n_accepted == sampled.trace.n_drafted > 30
        assert draft.named_share(target) == pytest.approx(1.0)


@needs_hooks
def test_writing_stops_where_no_text_comes_of_it(target: Any) -> None:
    """A draft whose only token is an invalid byte writes one of them, not as many as fit."""
    draft = drafts.ModelDraft(model_with([b"\xff"] * 20, 3), vocabulary="text")
    begun = _core._forward_count()
    found = generate(target, draft, "ab", 20, gamma=8)
    n_forwards = _core._forward_count() - begun
    assert found.trace.n_drafted == 0 and found.trace.n_calls == 20
    assert n_forwards <= 2 * (found.trace.n_calls + 1)


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("vocabulary", "verify"),
    [("intersection", "rejection"), ("intersection", "block"), ("intersection", "k-sequential"),
     ("text", "rejection"), ("text", "block"), ("auto", "rejection"), ("auto", "block")],
)  # fmt: skip
def test_samples_have_the_targets_distribution(
    vocabulary: Any, verify: Any, target: Any, models: Any
) -> None:
    prompt = target.tokenizer.encode("ab ab")
    distribution = chain_distribution(conditional(lambda ids: target.logits(ids), prompt, temperature=0.8), 3)
    for i, name in enumerate(("overlapping", "bytes")):
        tree = drafts.ParallelChains(2) if verify == "k-sequential" else None
        draft = drafts.ModelDraft(models[name], tree=tree, vocabulary=vocabulary)
        how: dict[str, Any] = {"n": 4000, "gamma": 4 if tree else 2, "verify": verify, "seed": i}
        found = generate(target, draft, prompt, 3, temperature=0.8, **how)
        assert p_value(count(np.array([result.tokens for result in found])), distribution) > FALSE_ALARM


@pytest.mark.parametrize("vocabulary", ["text", "intersection"])
@pytest.mark.parametrize("with_source", [False, True])
def test_a_prompt_cache_keeps_the_drafts_texts(
    with_source: bool, vocabulary: Any, target: Any, models: Any
) -> None:
    """Those after another source are read again."""
    small, prompts = models["refinement"], ["ab abc ca b", "ab abc ca b a", "ab", "ab abc ca b"]
    if with_source:
        (target, small), prompts = encoder_decoders("t5"), ["ab a", "ab a", "ba", "ab a"]
    draft, cache = drafts.ModelDraft(small, vocabulary=vocabulary), specdec.PromptCache()
    for prompt in prompts:
        plain, alone = (generate(target, one, prompt, 16) for one in (None, draft))
        found = generate(target, draft, prompt, 16, prompt_cache=cache)
        assert found.tokens == plain.tokens and drafted(found) == drafted(alone)
    if not with_source:
        ids = target.tokenizer.encode(prompts[0])
        kept = cache.find(small.core, translation_of(target, small).read([ids]))
        assert kept is not None and len(kept.tokens) > len(ids)


# ------------------------------------------------------------------------------- encoder-decoders


def encoder_decoders(family: str, end_of_source: tuple[int, ...] = (2,)) -> tuple[Any, Any]:
    """A target, and a draft of another vocabulary with these end tokens and the target's weights."""
    pair = EncoderDecoder(family)
    target = model_of(pair.config, pair.tensors, LongestPieces([piece or b"" for piece in _PIECES[3:]]))
    pieces = [b"b", b"a", b" a", b"\n", b"ab", b"ba", b" ", b"\xc3\xa9"]
    tokenizer = LongestPieces(pieces)
    size = {"n_vocab": tokenizer.n_vocab}
    config = pair.config | size | {"encoder": pair.config["encoder"] | size}
    rows = {61: tokenizer.n_vocab}
    tensors = {name: one[: rows.get(len(one), len(one))] for name, one in pair.tensors.items()}
    return target, model_of(config, tensors, tokenizer, end_of_source)


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_encoder_decoders_read_sources_in_their_own_tokens(family: str) -> None:
    target, draft = encoder_decoders(family)
    read = _for_encoder(target, draft)
    assert read(target.source_ids("ab a").tolist()) == draft.source_tokenizer.encode("ab a")
    plain = generate(target, None, ["ab a", "ba"])
    for vocabulary in ("text", "intersection"):
        small = drafts.ModelDraft(draft, vocabulary=vocabulary)  # type: ignore[arg-type]
        found = generate(target, small, ["ab a", "ba"])
        assert [a.tokens for a in plain] == [b.tokens for b in found]
        assert found[0].trace.n_drafted > 0


@pytest.mark.parametrize("vocabulary", ["text", "intersection"])
def test_a_draft_that_cannot_read_a_prompt_yet_reads_its_source(vocabulary: Any) -> None:
    """Prompts that end within a character, which the draft has no bytes for: it waits for the next tokens."""
    target, draft = encoder_decoders("t5")
    small = drafts.ModelDraft(draft, vocabulary=vocabulary)
    half = _PIECES.index(b"\xc3")
    sources, texts = ["ab a", "b b aab", "ba"], [[4, half], [4, half], [half]]
    plain = generate(target, None, sources, decoder_prompt=texts)
    pairs = zip(sources, texts, strict=True)
    alone = [drafted(generate(target, small, source, decoder_prompt=text)) for source, text in pairs]
    assert not any(rounds[0] for rounds in alone) and all(map(any, alone))
    for batch_size in (1, 2):  # texts that replace another one do not keep its source
        found = generate(target, small, sources, decoder_prompt=texts, batch_size=batch_size)
        assert [one.tokens for one in found] == [one.tokens for one in plain]
        assert list(map(drafted, found)) == alone


def test_a_draft_for_which_a_source_is_empty_rests() -> None:
    target, draft = encoder_decoders("t5", end_of_source=())
    small = drafts.ModelDraft(draft, vocabulary="intersection")
    sources: list[Any] = [[2], target.source_ids("ab a").tolist(), [2]]
    plain = generate(target, None, sources, 8)
    found = generate(target, small, sources, 8, batch_size=1)
    assert [one.tokens for one in found] == [one.tokens for one in plain]
    assert [one.trace.n_drafted > 0 for one in found] == [False, True, False]


# --------------------------------------------------------------------------------- what is refused


def test_vocabularies_with_nothing_in_common_have_text_in_common() -> None:
    ours, theirs = (model_with(pieces, seed) for seed, pieces in enumerate(DISJOINT))
    plain = generate(ours, None, [1, 3], 40)
    found = generate(ours, drafts.ModelDraft(theirs, vocabulary="text"), [1, 3], 40, gamma=3)
    assert found.tokens == plain.tokens and found.trace.n_drafted > 0


def test_what_cannot_be_translated_is_refused(target: Any, models: Any) -> None:
    pair = [model_with(pieces, 1) for pieces in DISJOINT]
    for model in pair:  # nothing in common, special tokens neither
        model.tokenizer.special_tokens = dict
        model.tokenizer.eos_ids = ()
    with pytest.raises(VocabularyMismatchError, match="have no token in common"):
        specdec.generate(pair[0], drafts.ModelDraft(pair[1], vocabulary="intersection"), [3])
    with pytest.raises(VocabularyMismatchError, match="different vocabularies"):
        specdec.generate(target, drafts.ModelDraft(models["bytes"], vocabulary="same"), [3])
    with pytest.raises(VocabularyMismatchError, match="needs a draft with the target's vocabulary"):
        specdec.beam_search(target, models["bytes"], [3], width=2)
    with pytest.raises(VocabularyMismatchError, match="expected no nested draft, or a model"):
        specdec.generate(target, drafts.ModelDraft(models["bytes"], draft=models["bytes"]), [3])
    tree = drafts.ParallelChains(2)
    with refuses("tree", tree):
        specdec.generate(target, drafts.ModelDraft(models["bytes"], tree=tree, vocabulary="text"), [3])
    with refuses("vocabulary", "other"):
        drafts.ModelDraft(models["bytes"], vocabulary="other")  # type: ignore[arg-type]


def test_a_tokenizer_that_fails_ends_the_run_with_its_error(target: Any) -> None:
    draft = model_with(VOCABULARIES["bytes"], 4)
    draft.tokenizer._encode = lambda text: 1 // 0
    with pytest.raises(ZeroDivisionError):
        specdec.generate(target, draft, "ab", max_new_tokens=4)
    draft.tokenizer._encode = lambda text: [999]
    with pytest.raises(InputError, match="token id|a tokenizer gave the id 999; expected 0 to 258"):
        specdec.generate(target, draft, "ab", max_new_tokens=4)


def test_same_vocabularies_are_not_translated() -> None:
    target, small = small_pair()
    draft = drafts.ModelDraft(small)
    assert not draft.translates(target) and draft.named_share(target) == 1.0
    assert draft.describe(target)[1]["model"] is small.core


def test_drafts_that_learn_need_the_targets_ids(target: Any, models: Any) -> None:
    draft = drafts.ModelDraft(models["bytes"])
    trainer = drafts.OnlineTableTrainer(drafts.Ngram([3, 4], target.config.n_vocab, 2))
    learning = drafts.OnlineDraft(draft, trainer=trainer, interval=None)
    with pytest.raises(VocabularyMismatchError, match="expected the target's, as online training needs"):
        specdec.generate(target, learning, [3])


@pytest.mark.slow
def test_tune_pays_for_encoding(target: Any, models: Any) -> None:
    """The seconds of drafting include tokenizers: with slow ones nothing should be drafted."""
    draft = models["coarser"]
    quick = draft.tokenizer._encode

    def slow(text: str) -> list[int]:
        time.sleep(0.002)
        return quick(text)

    draft.tokenizer._encode = slow
    try:
        found = specdec.tune(
            target, drafts.ModelDraft(draft, vocabulary="intersection"), ["ab abc"], n_tokens=60, max_gamma=3
        )
    finally:
        draft.tokenizer._encode = quick
    assert found.gamma == 0
