"""Snapshots of recurrent states: texts return to them, with the bits of a text read at once."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import specdec
from allocations import needs_hooks, nothing_leaks
from chat_templates import SPECIAL_TOKENS, TEMPLATES, make_chat, said
from compiled import rows_computed
from specdec import PromptCache
from worlds.canonical import VARIANTS, perturbed, random_tensors
from worlds.encoder_decoders import model_of

PERIOD, TAIL = 2048, 16
REACHED = {"rows": [2483, 0, 0, 0], "blas": [2304, 2304, 0, 0], "tiles": [2483, 2048, 0, 0]}
RUN: dict[str, Any] = {"max_new_tokens": 6, "ignore_eos": True, "logits": True, "n_threads": 1}
KINDS = {
    "delta": {},
    "mamba2": {},
    "mamba2-and-attention-factors": {},
    "delta-wide-convolution-first-attention": {"windows": [0, 0, 0]},
    "convolution": {},
}


def pair(kind: str) -> tuple[specdec.Model, specdec.Model]:
    """A target and a draft that agrees with it at times, both with states."""
    config = VARIANTS[kind] | {"n_ctx": 6000} | KINDS[kind]
    tensors = {name: 3 * tensor for name, tensor in random_tensors(config).items()}
    target, draft = (model_of(config, one) for one in (tensors, perturbed(tensors)))
    return target, draft


@pytest.fixture(scope="module", params=KINDS)
def models(request: pytest.FixtureRequest) -> tuple[specdec.Model, specdec.Model]:
    return pair(request.param)


def ids_of(n: int, seed: int = 0) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(0, 101, n).tolist()
    return ids


def ask(
    target: specdec.Model, draft: Any, prompt: list[int] | None, cache: PromptCache | None, **options: Any
) -> Any:
    """Generate; the text and its bits must equal those of a separate call without cache and draft."""
    found = specdec.generate(target, draft, prompt, prompt_cache=cache, **(RUN | options))
    wanted = specdec.generate(target, None, prompt, **(RUN | options))
    assert found.tokens == wanted.tokens and np.array_equal(found.logits, wanted.logits)
    return found


def test_random_cuts(models: tuple[specdec.Model, specdec.Model]) -> None:
    """Prompts that leave an earlier one anywhere start from the last snapshot before that position."""
    target, draft = models
    cache, rng, text = PromptCache(), np.random.default_rng(3), ids_of(4500)
    ask(target, draft, text, cache)
    reachable = [0, PERIOD, 2 * PERIOD, len(text) - 1 - TAIL]
    assert set(reachable[1:]) <= set(cache._entries[-1].text.snapshots)
    for n in [PERIOD - 1, PERIOD, *rng.integers(1, len(text), 4).tolist()]:
        found = ask(target, draft, [*text[:n], *ids_of(9, seed=n)], cache)
        assert max(at for at in reachable if at <= n) <= found.n_cached_tokens <= n
    assert ask(target, draft, text, cache).n_cached_tokens >= len(text) - 1 - TAIL


@pytest.mark.parametrize("kind", KINDS)
def test_chats_that_drop_old_thinking(kind: str, make_llama: Any) -> None:
    """Qwen3's template rewrites the end of the prompt before; a turn reads only what follows."""
    tokenizer = make_chat(make_llama, "qwen3").tokenizer
    config = VARIANTS[kind] | KINDS[kind] | {"n_ctx": 6000, "n_vocab": 256 + len(SPECIAL_TOKENS)}
    target = model_of(config, random_tensors(config), tokenizer).with_chat_template(TEMPLATES["qwen3"][0])
    cache, messages, n_before = PromptCache(), said("Why? " * 40), 0
    for turn in range(4):
        found = ask(target, target, None, cache, messages=messages)
        assert found.n_cached_tokens >= n_before and "Hm" not in tokenizer.decode(found.prompt_ids)
        n_before = len(found.prompt_ids) - 1 - TAIL
        messages = messages + said("", f"<think>\n{'Hm. ' * 60}\n</think>\n\nAs {turn}.", "And? " * 20)[1:]
    continued = [*found.prompt_ids, *found.tokens, *range(90)]
    n_texts = len(cache)
    assert ask(target, None, continued, cache).n_cached_tokens >= len(found.prompt_ids) + 5
    assert len(cache) == n_texts  # the longer text replaces the one that it continues


def test_a_document_read_alone(models: tuple[specdec.Model, specdec.Model]) -> None:
    """Its end is a snapshot of every text that begins with it."""
    target, draft = models
    cache, document = PromptCache(), ids_of(500)
    ask(target, None, document, cache, max_new_tokens=1)
    for seed in range(3):
        assert ask(target, draft, [*document, *ids_of(150, seed)], cache).n_cached_tokens >= len(document)


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_samples_of_a_prompt(
    models: tuple[specdec.Model, specdec.Model], batch_size: int, cached: bool
) -> None:
    """The prompt is read once; other prompts of the batch share a part of it."""
    target, draft = models
    prompt = ids_of(300)
    prompts = [prompt, prompt, [*prompt[:200], *ids_of(40, 1)], prompt]
    options = RUN | {"temperature": 0.8, "seed": 5, "verify": "coupled"}
    wanted = specdec.generate(target, None, prompts, batch_size=1, **options)
    cache = PromptCache() if cached else None
    for _ in range(2):
        found = specdec.generate(target, draft, prompts, batch_size=batch_size, prompt_cache=cache, **options)
        for one, other in zip(found, wanted, strict=True):
            assert one.tokens == other.tokens and np.array_equal(one.logits, other.logits)


@needs_hooks
@pytest.mark.parametrize("batch_size", [1, 4])
def test_samples_read_the_prompt_once(batch_size: int) -> None:
    """Also for a document that the questions of a batch share: no row is read twice except the tail."""
    target, _ = pair("delta")
    document = ids_of(1000)
    for prompts, n_new in (([document] * 4, 0), ([[*document, *ids_of(20, i)] for i in range(4)], 20)):
        if n_new and batch_size == 1:
            continue  # the next question comes when the first one is over

        def work(prompts: list[list[int]] = prompts) -> None:
            specdec.generate(target, None, prompts, batch_size=batch_size, **RUN)

        once = len(document) + 4 * (n_new + TAIL + RUN["max_new_tokens"])
        assert rows_computed(work, target.config.n_layer) <= once


@pytest.mark.parametrize("prefill", ["rows", "blas", "tiles"])
def test_windows_and_slices(prefill: str) -> None:
    """Windows that have moved on are read again; with OpenBLAS a text goes back to whole slices."""
    kind = "delta-wide-convolution-first-attention"
    config = VARIANTS[kind] | {"n_ctx": 6000}
    dtype = "bf16" if prefill == "tiles" else "f32"
    model = model_of(config, random_tensors(config), prefill=prefill, dtype=dtype)
    cache, text = PromptCache(), ids_of(2500)
    ask(model, None, text, cache)
    found = [
        ask(model, model, [*text[:n], *ids_of(70, n)], cache).n_cached_tokens for n in (2490, 2400, 700, 30)
    ]
    assert found == REACHED[prefill]
    prompts = [text, [*text[:1100], *ids_of(70)]]
    for one, prompt in zip(specdec.generate(model, None, prompts, batch_size=2, **RUN), prompts, strict=True):
        assert np.array_equal(one.logits, ask(model, None, prompt, None).logits)


def test_texts_of_one_slot(models: tuple[specdec.Model, specdec.Model]) -> None:
    """Snapshots of the previous text are dropped after the position where the next text leaves it."""
    target, draft = models
    first = ids_of(400)
    second = [*first[:200], *ids_of(250, 1)]
    prompts = [first, second, [*second[:430], *ids_of(50, 2)]]
    found = specdec.generate(target, draft, prompts, batch_size=1, **RUN)
    for one, prompt in zip(found, prompts, strict=True):
        assert np.array_equal(one.logits, ask(target, None, prompt, None).logits)


@needs_hooks
@pytest.mark.parametrize("batch_size", [1, 2])
def test_scores(models: tuple[specdec.Model, specdec.Model], batch_size: int) -> None:
    """Continuations have the numbers of each alone, as trees after a context, which is read once."""
    target, _ = models
    text, found = ids_of(400), list[Any]()
    continued = [(text, ids_of(n, n)) for n in (300, 320, 340)]
    trees = [(text[:50], ids_of(n, n)) for n in (5, 40, 41)]
    for pairs, n_rows in ((continued, 400 + 960), (trees, 50 + 86), ([*continued, *trees], 400 + 960 + 136)):
        work = partial(target.score, pairs, batch_size=batch_size)
        assert rows_computed(lambda work=work: found.extend(work()), target.config.n_layer) <= n_rows
        for one, alone in zip(found[-len(pairs) :], pairs, strict=True):
            assert np.array_equal(one.log_probs, target.score([alone])[0].log_probs)


@needs_hooks
def test_memory(models: tuple[specdec.Model, specdec.Model]) -> None:
    """max_bytes counts snapshots, few are kept where it is small, and all are freed."""
    target, draft = models
    text = ids_of(2300)
    whole, none = PromptCache(), PromptCache()
    for cache, n in ((whole, len(text)), (none, 40)):
        specdec.generate(target, None, text[:n], prompt_cache=cache, **RUN)
    (entry,) = whole._entries
    assert entry.n_bytes == entry.text.n_bytes == whole.n_bytes
    assert none._entries[0].text.snapshots == ()
    small = PromptCache(2 * entry.n_bytes)
    with nothing_leaks():
        # the second prompt's snapshot replaces the first one's
        specdec.generate(target, None, [text[:400], text[:700]], batch_size=1, **RUN)
        for i in range(4):
            prompt = [*text[: 2200 - 300 * i], *ids_of(120, i)]
            specdec.generate(target, draft, prompt, prompt_cache=small, **RUN)
            assert small.n_bytes <= small.max_bytes
        small.clear()
