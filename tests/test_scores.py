"""Scores of many texts at once: each has the bits of scoring it alone, and equals the log-softmax."""

from __future__ import annotations

import json
import math
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import specdec
from allocations import fail_each_allocation, needs_hooks
from compiled import Model, prompt_logits, rows_computed, score, score_texts, scores_of
from specdec.errors import InputError, NotFiniteError
from toy_pair import ToyTokenizer, load_pair, write_pair
from worlds.canonical import (
    ENCODER_DECODERS,
    FORMATS,
    LLAMA,
    SWITCHES,
    VARIANTS,
    build,
    random_source,
    random_tensors,
    step_by_step,
)
from worlds.encoder_decoders import START, EncoderDecoder

Ids = list[int]
N_TOP = 3


def ids_of(n: int, seed: int = 0, n_vocab: int = 101) -> Ids:
    found: Ids = np.random.default_rng(seed).integers(0, n_vocab, n).tolist()
    return found


def texts_of() -> list[tuple[Ids, int]]:
    """Texts and their numbers of context tokens, with all types of shared prefixes."""
    few_shots, question, other = ids_of(90, 1), ids_of(20, 2), ids_of(25, 3)
    texts = [([*few_shots, *question, *ids_of(n, 10 + n)], 110) for n in (1, 2, 7, 30)]
    texts += [([*few_shots, *other, *ids_of(n, 20 + n)], 115) for n in (3, 1, 3)]
    texts += [(texts[0][0], 110), (texts[2][0], 50), (texts[3][0], 1)]  # twice, from earlier on, whole
    texts += [(few_shots, 1), (few_shots[:40], 39), (ids_of(2, 4), 1), (ids_of(1, 5) * 2, 1)]
    texts += [(ids_of(150, 6), 1), (ids_of(150, 6)[:70] + ids_of(5, 7), 70), (ids_of(3, 8), 2)]
    texts += [([few_shots[0], *ids_of(12, 30 + i)], 1) for i in range(4)]  # little in common
    return texts


TEXTS = texts_of()


def run(model: Model, texts: list[tuple[Ids, int]], **options: Any) -> list[tuple[Any, ...]]:
    """(ln p, whether greedy, the top tokens, their ln p) of each text."""
    alone, given = [ids for ids, _ in texts], [n_given for _, n_given in texts]
    found = scores_of(model, alone, given, n_top=N_TOP, **options)
    cuts = np.cumsum([len(ids) - n_given for ids, n_given in texts])[:-1]
    return list(zip(*(np.split(part, cuts) for part in found[:4]), strict=True))


def expected_of(logits: NDArray[np.float32], ids: Ids, n_given: int) -> tuple[Any, ...]:
    """The same by definition, from the logits after each token."""
    log_probs, greedy, top, of_top = [], [], [], []
    for at in range(n_given, len(ids)):
        row = [float(logit) for logit in logits[at - 1]]
        largest, total = max(row), 0.0
        for logit in row:
            total += math.exp(logit - largest)
        best = sorted(range(len(row)), key=lambda token: -row[token])[:N_TOP]
        log_probs.append(row[ids[at]] - largest - math.log(total))
        greedy.append(best[0] == ids[at])
        top.append(best)
        of_top.append([row[token] - largest - math.log(total) for token in best])
    return log_probs, greedy, top, of_top


def assert_equal(found: list[tuple[Any, ...]], expected: list[tuple[Any, ...]]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert all(np.array_equal(*parts) for parts in zip(one, other, strict=True))


QUICK = [("llama", *FORMATS[0]), ("llama-window-bias-tied", *FORMATS[2]), ("gpt-gelu", *FORMATS[3])]
CASES = [(name, *FORMATS[0]) for name in [*VARIANTS, *SWITCHES, *ENCODER_DECODERS] if name != "llama"]
CASES += [(name, *FORMATS[4]) for name in ("llama-wide-head", "alibi-embedding-norm-relu")]


@pytest.mark.parametrize(
    "case",
    [*QUICK, CASES[-3], *(pytest.param(case, marks=pytest.mark.slow) for case in CASES if case != CASES[-3])],
    ids="-".join,
)
def test_texts_have_the_bits_of_their_tokens_one_by_one(case: tuple[str, str, str]) -> None:
    name, dtype, cache_dtype = case
    config = (VARIANTS | SWITCHES | ENCODER_DECODERS)[name]
    model = build(config, random_tensors(config), dtype=dtype, cache_dtype=cache_dtype)
    source = random_source(config)
    given: dict[str, Any] = {}
    if source is not None:
        n = len(TEXTS)
        given["sources"] = np.array(source * n, np.int32), np.array([len(source)] * n, np.int32)
    texts = [([token % config["n_vocab"] for token in ids], n_given) for ids, n_given in TEXTS]
    expected = [expected_of(step_by_step(model, ids, source), ids, n_given) for ids, n_given in texts]
    assert_equal(run(model, texts, **given), expected)
    assert_equal(run(model, texts, n_texts=1, **given), expected)
    assert_equal(run(model, texts[::-1], n_texts=3, n_threads=2, **given), expected[::-1])
    alone = [score(model, ids, source=source)[n_given - 1 :] for ids, n_given in texts]
    assert all(np.array_equal(one[0], row) for one, row in zip(expected, alone, strict=True))


@needs_hooks
def test_shared_prefixes_are_read_once() -> None:
    """Forward passes have one row for each distinct prefix of the texts, however they are grouped."""

    def n_prefixes(texts: list[tuple[Ids, int]]) -> int:
        return len({tuple(ids[:n]) for ids, _ in texts for n in range(1, len(ids))})

    model = build(LLAMA, random_tensors(LLAMA))
    context = ids_of(200, 1)
    choices = [([*context, *ids_of(6, 10 + i)], 200) for i in range(8)]
    others = [([*context[:190], *ids_of(12, 30 + i), *ids_of(5, 50 + i)], 202) for i in range(3)]
    for n_texts in (0, 1, 4):
        rows = rows_computed(partial(run, model, choices + others, n_texts=n_texts), LLAMA["n_layer"])
        assert rows == n_prefixes(choices + others) > 280
    # more than a tree can have: other groups copy the first group's stem
    many = [([*context, *ids_of(30, 100 + i)], 200) for i in range(40)]
    for n_texts in (1, 3):
        rows = rows_computed(partial(run, model, many, n_texts=n_texts), LLAMA["n_layer"])
        # twice: tokens equal by chance, and up to 15 tokens that a group does not wait for
        assert n_prefixes(many) <= rows <= n_prefixes(many) + 40


@needs_hooks
def test_a_text_that_ends_gives_its_prefix_to_one_that_waits() -> None:
    config = LLAMA | {"n_ctx": 1024}
    model = build(config, random_tensors(config))
    shared, other = [1, *ids_of(59, 1)], [100, *ids_of(40, 2)]  # read in this order
    texts = [([*shared, 3, 4, 5], 62), ([*shared, 90, *ids_of(300, 3)], 61), (other, 20)]
    assert rows_computed(lambda: run(model, texts, n_texts=2), config["n_layer"]) == 62 + 300 + 40


@pytest.mark.parametrize("dtype", ["f32", "bf16", "int8", "int4"])
def test_texts_by_openblas_and_in_tiles_are_those_of_one_alone(dtype: str) -> None:
    """Texts with a common prefix share its rows."""
    config = LLAMA | {"n_ctx": 1024, "d_ff": 64, "n_layer": 1, "windows": []}
    engine = {"prefill": "blas"} if dtype == "f32" else {"prefill": "tiles", "cache_dtype": "bf16"}
    model = build(config, random_tensors(config), dtype=dtype, **engine)
    context = ids_of(600, 1)
    texts = [([*context, *ids_of(n, n)], 600) for n in (1, 5, 60)] + [(context, 1), (context[:300], 256)]
    texts += [([*context[:256], *ids_of(40, 2)], 256), (ids_of(300, 9), 299)]
    alone = [score(model, ids)[n_given - 1 :] for ids, n_given in texts]
    for n_texts in (0, 1, 2, 5):
        found = run(model, texts, n_texts=n_texts, n_threads=2)
        assert all(np.array_equal(one[0], row) for one, row in zip(found, alone, strict=True))
    ids = texts[-1][0]
    assert_equal([found[-1]], [expected_of(prompt_logits(model, ids), ids, 299)])


@pytest.mark.parametrize("n_top", [1, 2, 13, 60, 101])
def test_top_tokens_of_equal_logits_are_in_the_order_of_ids(n_top: int) -> None:
    tensors = random_tensors(LLAMA)
    tensors["head"][:] = tensors["head"][np.arange(101) * 5 % 7]
    model, ids = build(LLAMA, tensors), ids_of(9)
    logits = step_by_step(model, ids)[:-1]
    _, _, tokens, log_probs, _ = scores_of(model, [ids], n_top=n_top)
    for row, found in zip(logits, tokens.tolist(), strict=True):
        assert found == sorted(range(101), key=lambda token: -row[token])[:n_top]
    assert (np.diff(log_probs, axis=1) <= 0).all()


def test_the_last_token_need_not_be_read() -> None:
    """So a text may have a token more than the context."""
    model = build(LLAMA, random_tensors(LLAMA))
    ids = ids_of(LLAMA["n_ctx"] + 1, 3)
    (found,) = run(model, [(ids, 250)])
    assert_equal([found], [expected_of(prompt_logits(model, ids[:-1]), ids, 250)])
    with pytest.raises(ValueError, match="ids: 258 tokens, expected at most 257: the context of 256"):
        run(model, [([*ids, 1], 250)])


def test_rows_that_are_not_finite_are_named() -> None:
    tensors = random_tensors(LLAMA)
    for name in ("gate", "up"):
        tensors[f"layers.1.mlp_{name}.weight"] *= 1e30
    model = build(LLAMA, tensors)
    with pytest.raises(NotFiniteError, match="the model: the output of layer 1 .* position 0 is not finite"):
        run(model, [([1, 2, 3, 7, 4], 1), ([1, 2, 3, 5], 1)])
    tensors = random_tensors(LLAMA)
    tensors["head"][:] *= 1e38
    with pytest.raises(NotFiniteError, match="the logits are not finite after position 1; .* head"):
        run(build(LLAMA, tensors), [([1, 2, 3, 7, 4], 2)])


def test_bad_texts_are_named() -> None:
    model = build(LLAMA, random_tensors(LLAMA))
    for texts, message in [
        ([([1], 1)], "ids: 1 tokens, expected at least 2"),
        ([([1, 2], 0)], "0 of 2 tokens are given, expected 1 to 1"),
        ([([1, 2], 2)], "2 of 2 tokens are given"),
        ([([1, 101], 1)], r"ids\[1\] is 101, expected 0 to 100"),
        ([([-1, 1], 1)], r"ids\[0\] is -1"),
    ]:
        with pytest.raises(ValueError, match=message):
            run(model, texts)
    ids, length, given = (np.array(of, np.int32) for of in ([1, 2], [2], [1]))
    one, two = (ids, length), (np.ones(4, np.int32), np.array([2, 2], np.int32))
    bad: list[tuple[Any, Any, dict[str, Any], str]] = [
        (one, np.array([1, 1], np.int32), {}, "expected one for each of 1 texts"),
        ((ids, length + 1), given, {}, "2 ids, expected the sum of the lengths"),
        ((ids, -length), given, {}, "2 ids, expected the sum of the lengths"),
        (one, given, {"n_top": 102}, "n_top is 102, expected 0 to 101"),
        (one, given, {"n_top": -1}, "n_top is -1"),
        (one, given, {"n_texts": -1}, "n_texts is -1"),
        (two, np.ones(2, np.int32), {"keep": True}, "keep is"),
        (one, given, {"sources": one}, "the model has no encoder"),
        ((ids.astype(np.int64), length), given, {}, "type int32"),
    ]
    for both, n_given, options, message in bad:
        with pytest.raises((ValueError, TypeError), match=message):
            score_texts(model, both, n_given, **options)


@needs_hooks
@pytest.mark.usefixtures("quick_gc")
def test_each_allocation_may_fail() -> None:
    model = build(LLAMA, random_tensors(LLAMA))
    texts = [TEXTS[0], TEXTS[5], TEXTS[12]]
    assert fail_each_allocation(lambda: run(model, texts, n_texts=2)) >= 5
    ids = np.arange(5, dtype=np.int32), np.array([5], np.int32)
    assert fail_each_allocation(lambda: score_texts(model, ids, ids[1] - 4, keep=True)) >= 5


def test_the_progress_callback_may_stop_it() -> None:
    model, progress = build(LLAMA, random_tensors(LLAMA)), list[int]()
    run(model, TEXTS, done=progress.append)
    assert sum(progress) == len(TEXTS)

    def done(n: int) -> None:
        progress.append(n)
        if len(progress) == 3:
            raise KeyError("enough")

    progress.clear()
    with pytest.raises(KeyError, match="enough"):
        run(model, TEXTS, done=done, n_texts=1)
    assert len(progress) == 3


# ------------------------------------------------------------------------------------------------ from Python


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> specdec.Model:
    return load_pair(tmp_path_factory.mktemp("pair"))[0]


def test_requests_of_every_type(model: specdec.Model) -> None:
    encode = ToyTokenizer().encode
    requests: list[Any] = [
        "abba ab", [1, 5, 9], np.array([1, 5, 9, 30]), ("ab", "ba c"), ([1, 4], "b\n"), ("ab", [9, 9]),
        ([1], [5]), ("", "ab"), ("ab ", "c"),
    ]  # fmt: skip
    bare = ToyTokenizer()
    texts = [
        (encode("abba ab"), 1), ([1, 5, 9], 1), ([1, 5, 9, 30], 1), (encode("abba c"), 3),
        ([1, 4, *bare.encode("b\n", add_bos=False)], 2), ([*encode("ab"), 9, 9], 3), ([1, 5], 1),
        (encode("ab"), 1), (encode("ab c"), 4),
    ]  # fmt: skip
    for options in ({}, {"batch_size": 1}, {"batch_size": 4, "n_threads": 2}):
        found = model.score(requests, top_logprobs=2, **options)
        for one, (ids, n_given) in zip(found, texts, strict=True):
            assert one.tokens == ids[n_given:] and one.n_tokens == len(one.tokens)
            assert np.array_equal(one.log_probs, model.score(ids)[n_given - 1 :])
            best = model.logits(ids)[n_given - 1 : -1].argmax(axis=1)
            assert one.greedy.tolist() == (best == ids[n_given:]).tolist()
            assert [pairs[0][0] for pairs in one.top_logprobs or []] == best.tolist()
            assert one.is_greedy == bool(one.greedy.all())
            assert one.total == pytest.approx(one.log_probs.sum())
            assert one.perplexity == pytest.approx(np.exp(-one.log_probs.mean()))
    assert model.score(requests[1:2])[0].top_logprobs is None
    for several in (tuple(requests[:2]), np.eye(2, 3, dtype=int)):
        assert isinstance(model.score(several), list)
    assert model.score(np.zeros((0, 3), int)) == []
    assert model.score(requests) == model.score(requests) != model.score(requests[::-1])
    assert pickle.loads(pickle.dumps(found)) == found


def test_a_greedy_text_is_greedy(model: specdec.Model) -> None:
    out = specdec.generate(model, None, [1, 5, 9], max_new_tokens=20, ignore_eos=True)
    pairs: list[Any] = [([1, 5, 9], out.tokens), ([1, 5, 9], [*out.tokens[:-1], (out.tokens[-1] + 1) % 61])]
    same, other = model.score(pairs)
    assert same.is_greedy and not other.is_greedy and other.greedy[:-1].all()
    assert "greedy" in repr(same) and "20 tokens" in repr(other)


def test_a_perplexity_that_no_float_holds_is_infinite() -> None:
    assert specdec.Score([1], np.array([-800.0]), np.array([False])).perplexity == math.inf


@pytest.mark.parametrize("n", [0, 1, 5, 95, 96, 97, 192, 200, 300])
def test_rolling_windows(model: specdec.Model, n: int) -> None:
    """Each token once: after BOS, then after as many earlier tokens as fit."""
    ids, n_ctx = ids_of(n, n, 61), model.config.n_ctx
    (found,) = model.score([ids], rolling=True, top_logprobs=1)
    assert found.tokens == ids and len(found.top_logprobs or []) == n
    log_probs: list[float] = []
    for first in range(0, n, n_ctx):
        end = min(first + n_ctx, n)
        text = [1, *ids[:end]] if first == 0 else ids[end - n_ctx - 1 : end]
        logits = model.logits(text[:-1]).astype(np.float64)
        of_text = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        log_probs += of_text[range(len(text) - 1), text[1:]].tolist()[first - end :]
    np.testing.assert_allclose(found.log_probs, log_probs, rtol=0, atol=1e-6)
    assert np.isnan(found.perplexity) == (n == 0)
    if n:
        text = "ab" * n
        assert model.score([text], rolling=True)[0].tokens == ToyTokenizer().encode(text, add_bos=False)


def test_translators(tmp_path: Path) -> None:
    pair = EncoderDecoder("t5", text=True)
    target = pair.target
    requests: list[Any] = ["abba", ("ab", "ba"), [*START, 5, 6]]
    found = target.score(requests, sources=["a b", "b", "a b"])
    assert np.array_equal(found[0].log_probs, target.score("abba", "a b"))
    assert np.array_equal(found[1].log_probs, target.score("abba", "b")[2:])
    assert np.array_equal(found[2].log_probs, target.score([*START, 5, 6], "a b"))
    for one in (target.score(requests, "a b"), target.score(requests, sources="a b")):
        assert one[0] == found[0]
    for options, message in [
        ({}, "sources is None, but .* has an encoder"),
        ({"sources": ["a"]}, "sources is a list of 1 for 3 requests"),
        ({"sources": ["a", "b", [10**6]]}, r"sources\[2\]: token id at position 0"),
        ({"source": "a", "sources": "b"}, "source and sources are both given"),
        ({"sources": "a", "rolling": True}, r"requests\[0\]: rolling is True, but .* has an encoder"),
    ]:
        with pytest.raises(InputError, match=message):
            target.score(requests, **options)  # type: ignore[arg-type]


BAD_REQUESTS: list[tuple[Any, dict[str, Any], str]] = [
    ([[1, 2], [3]], {}, r"requests\[1\]: there are 1 token ids; expected at least 2"),
    ([[1] * 97, [1] * 98], {}, r"requests\[1\]: there are 98 token ids; expected at most 97"),
    ([[1, 2], [1, 61]], {}, r"requests\[1\]: token id at position 1 is 61"),
    ([([], [1])], {}, r"requests\[0\]: the context has no tokens; expected at least one"),
    ([([1], [])], {}, r"requests\[0\]: the continuation has no tokens; expected at least one"),
    ([([1], "")], {}, r"requests\[0\]: the continuation has no tokens"),
    ([("a", "")], {}, r"requests\[0\]: the continuation has no tokens"),
    ([([1], [61])], {}, r"requests\[0\]: continuation: token id at position 0 is 61"),
    ([([-1], [6])], {}, r"requests\[0\]: context: token id at position 0 is -1"),
    ([[1, 2], 7], {}, r"requests\[1\]: token ids are int"),
    ([[1, 2]], {"top_logprobs": 62}, "top_logprobs is 62; expected an integer from 0 to 61"),
    ([[1, 2]], {"sources": [1]}, "a source was given, but .* has no encoder"),
    ([1, 2], {"top_logprobs": 1}, "top_logprobs is 1 for a single text; expected a list of requests"),
    ("ab", {"rolling": True}, "rolling is True for a single text"),
    ("ab", {"sources": "a"}, "sources is 'a' for a single text"),
]


@pytest.mark.parametrize(("requests", "options", "message"), BAD_REQUESTS, ids=range(len(BAD_REQUESTS)))
def test_bad_requests_are_named(
    model: specdec.Model, requests: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        model.score(requests, **options)


def test_a_model_without_tokens_at_the_ends_has_no_windows(tmp_path: Path) -> None:
    folder, _ = write_pair(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    config["bos_token_id"] = config["eos_token_id"] = None
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="has neither BOS nor EOS; expected pairs"):
        specdec.load(folder, tokenizer=False).score([[1, 2]], rolling=True)


def test_a_progress_bar_counts_requests(model: specdec.Model, capsys: pytest.CaptureFixture[str]) -> None:
    model.score([[1, 2], [1, 3]], progress=True)
    model.score([ids_of(200, 1, 61)], rolling=True, progress=True)
    shown = capsys.readouterr().err
    assert "2/2" in shown and "request" in shown and "3/3" in shown and "window" in shown
