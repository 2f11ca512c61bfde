"""Overflow: weights are checked to be finite at loading, but their products may overflow.

Nothing is decoded from non-finite numbers. The error names the model, the first layer and the position, and
the text before it is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from specdec import NotFiniteError, drafts
from toy_pair import ToyTokenizer
from worlds.adapters import adapter_config, llama_adapter, llama_shapes, low_rank_tensors, write_adapter
from worlds.canonical import decoder_of
from worlds.encoder_decoders import EncoderDecoder, model_of
from worlds.folders import llama_config, tensors_for, write_hf

SPIKE = 7
"""The token whose row overflows."""
FEATURE = 3
"""Only this token has this value, and no layer changes it."""
PROMPT = [1, 9, 30]
SCRIPT = [4, 11, 2, 40, SPIKE, 5, 6, 8]
LAYERS = 4


def model_with_spike(
    folder: Path, layer: int | str | None, *, seed: int = 1, dtype: str = "f32", **options: Any
) -> specdec.Model:
    """Random weights; the row of the token `SPIKE` overflows in `layer`, or in the "head"."""
    settings = llama_config(num_hidden_layers=LAYERS, max_position_embeddings=400)
    tensors = tensors_for(settings, seed)
    tensors["model.embed_tokens.weight"][:, FEATURE] = 0.0
    tensors["model.embed_tokens.weight"][SPIKE, FEATURE] = 1.0
    for name, tensor in tensors.items():
        if ".o_proj." in name or ".down_proj." in name:
            tensor[FEATURE] = 0.0  # its row of the weight, or its bias
        if "norm" in name:
            tensor[:] = 1.0
    if isinstance(layer, int):
        for name in ("gate_proj", "up_proj"):
            tensors[f"model.layers.{layer}.mlp.{name}.weight"][0, FEATURE] = 1e30
    elif layer == "head":
        tensors["lm_head.weight"][5, FEATURE] = 3e38
        tensors["model.norm.weight"][FEATURE] = 1e6
    return specdec.load(write_hf(folder, settings, tensors), dtype, tokenizer=False, **options)


def follow(script: Sequence[int]) -> Callable[[np.ndarray, list[int]], np.ndarray]:
    """A transform that makes the target generate this text."""
    return lambda probs, tokens: np.eye(len(probs))[script[len(tokens) - len(PROMPT)]]


class FixedDraft:
    """A draft that always drafts the same tokens."""

    def __init__(self, *tokens: int) -> None:
        self.tokens = tokens

    def propose(self, sequence: int, tokens: Sequence[int], budget: int) -> list[int]:
        return list(self.tokens[:budget])


@pytest.fixture(scope="module")
def spiked(tmp_path_factory: pytest.TempPathFactory) -> specdec.Model:
    return model_with_spike(tmp_path_factory.mktemp("spiked"), 2)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> specdec.Model:
    return model_with_spike(tmp_path_factory.mktemp("sound"), None)


POSITION = len(PROMPT) + SCRIPT.index(SPIKE)


@pytest.mark.parametrize("draft", [None, FixedDraft(4, 11, 2)])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("verify", ["rejection", "traversal", "coupled", "classical"])
def test_the_text_before_is_kept(spiked: specdec.Model, draft: Any, temperature: float, verify: str) -> None:
    """Some twenty rounds, including the failing one, fit in one call of the core."""
    with pytest.raises(NotFiniteError, match=rf"the target: .* layer 2 .* position {POSITION} ") as caught:
        specdec.generate(
            spiked, draft, PROMPT, max_new_tokens=len(SCRIPT), temperature=temperature, verify=verify, seed=1,
            transform=follow(SCRIPT), n_threads=1, logits=True,
        )  # fmt: skip
    result = caught.value.result
    assert isinstance(result, specdec.Result)
    for drawn in (result.figure(), result._repr_html_()):
        assert "ended by: a number that is not finite" in drawn
    assert result.tokens == SCRIPT[: SCRIPT.index(SPIKE) + 1]
    assert result.finish_reason == "error" and result.stop is None
    assert result.logits is not None and result.logits.shape == (len(result.tokens), 61)
    assert np.isfinite(result.logits).all()
    assert result.trace.n_calls == len(result.trace.rounds)


@pytest.mark.parametrize("layer", [0, 1, 3, "head"])
@pytest.mark.parametrize(("n_threads", "dtype"), [(1, "f32"), (3, "f32"), (1, "bf16")])
def test_the_first_layer_is_named(tmp_path: Path, layer: int | str, n_threads: int, dtype: str) -> None:
    model = model_with_spike(tmp_path, layer, dtype=dtype)
    what = "so the head overflows" if layer == "head" else rf"layer {layer} \(of 0 to 3\)"
    for call in (model.logits, model.score):
        with pytest.raises(NotFiniteError, match=f"the model: .*{what}") as caught:
            call([1, 2, 3, SPIKE, 4, 5], n_threads=n_threads)
        assert "position 3" in str(caught.value)
        assert caught.value.result is None
        assert np.isfinite(call([1, 2, 3, 4, 5, 6])).all()


def test_in_a_prompt(spiked: specdec.Model) -> None:
    """Also in long prompts without logits; no token has been generated then."""
    prompt = [1] * 30 + [SPIKE, 2, 3]
    with pytest.raises(NotFiniteError, match="layer 2 .* position 30 ") as caught:
        specdec.generate(spiked, None, [PROMPT, prompt], max_new_tokens=3)
    assert [result.tokens for result in caught.value.result] == [[], []]
    for decode in (specdec.generate, partial(specdec.beam_search, width=2)):
        with pytest.raises(NotFiniteError, match="layer 2 .* position 2 "):
            decode(spiked, None, [1, 2, SPIKE], max_new_tokens=3)


@pytest.mark.parametrize(("prefill", "dtype"), [("rows", "f32"), ("rows", "bf16"), ("tiles", "bf16")])
def test_a_failed_text_leaves_nothing_to_the_next_in_its_slot(
    tmp_path: Path, prefill: Any, dtype: str
) -> None:
    """Its keys and values stay in memory, after the end of a shorter text."""
    model = model_with_spike(tmp_path, 0, dtype=dtype, prefill=prefill)
    plain = specdec.generate(model, None, PROMPT, max_new_tokens=4, ignore_eos=True)
    with specdec.Engine(model, n_slots=1) as engine:
        for at in range(len(PROMPT), 20):
            failing = [1] * 20
            failing[at] = SPIKE
            with pytest.raises(NotFiniteError):
                engine.submit(failing, max_new_tokens=1).result(60)
            after = engine.submit(PROMPT, max_new_tokens=4, ignore_eos=True).result(60)
            assert after.tokens == plain.tokens


def test_every_sequence_of_a_batch_keeps_its_text(spiked: specdec.Model) -> None:
    """The second has ended, and the third, in its slot, reaches the token."""

    def script(probs: np.ndarray, tokens: list[int]) -> np.ndarray:
        ends = tokens[0] == 3 and len(tokens) == 4
        return np.eye(len(probs))[SPIKE if ends else 20 + len(tokens)]

    prompts = [[1, 9, 30], [2, 9], [3, 9]]
    limits: dict[str, Any] = {"max_new_tokens": 8, "stop": 25, "batch_size": 2, "n_threads": 1}
    with pytest.raises(NotFiniteError, match="layer 2 .* position 4 ") as caught:
        specdec.generate(spiked, None, prompts, transform=script, **limits)
    first, second, third = caught.value.result
    assert (first.tokens, first.finish_reason) == ([23, 24, 25], "stop")
    assert (second.tokens, second.finish_reason) == ([22, 23, 24, 25], "stop")
    assert (third.tokens, third.finish_reason) == ([22, 23, SPIKE], "error")


def test_a_batch_whose_first_sequence_is_committed_already(spiked: specdec.Model) -> None:
    """The layer is searched in the second sequence when the first has no pending nodes left."""

    def script(probs: np.ndarray, tokens: list[int]) -> np.ndarray:
        return np.eye(len(probs))[SPIKE if tokens[0] == 2 else 4 + len(tokens) % 9]

    with pytest.raises(NotFiniteError, match="layer 2 .* position 3 "):
        specdec.generate(
            spiked, FixedDraft(*[4] * 16), [[1, 9, 30], [2, 9, 30]], gamma=16, max_new_tokens=60,
            transform=script, temperature=1.0, batch_size=2, n_threads=1,
        )  # fmt: skip


@pytest.mark.parametrize("layer", [1, LAYERS - 1, "head"])
@pytest.mark.parametrize("at", [5, 38, 39])
def test_prompts_that_begin_in_a_cache(tmp_path: Path, layer: int | str, at: int) -> None:
    """They fail as they do without a cache, or not: what a failed prompt has left changes no other."""
    model = model_with_spike(tmp_path, layer)
    prompt = long_prompt(40, 1, spike_at=at)
    cache = specdec.PromptCache()

    def outcome(ids: list[int], cache: specdec.PromptCache | None) -> list[int] | str:
        try:
            return list(specdec.generate(model, None, ids, max_new_tokens=3, prompt_cache=cache).tokens)
        except NotFiniteError as error:
            return str(error)

    for n in (at, at + 1, 20, 40, 40):
        assert outcome(prompt[:n], cache) == outcome(prompt[:n], None)
    assert len(cache) > 0 or at == 5
    assert ("position" in str(outcome(prompt, None))) == (layer == 1 or at == 39)


@pytest.mark.parametrize("stop", ["zzz", "bx"])  # "bx" might start with the last letter
def test_a_stream_has_given_the_text_before(spiked: specdec.Model, stop: str) -> None:
    model = specdec.load(spiked.path, tokenizer=ToyTokenizer())
    script = [3, 4, 3, SPIKE, 5, 6]  # "a", "b", "a", " b"
    stream = specdec.stream(
        model, None, PROMPT, max_new_tokens=len(script), transform=follow(script), stop=stop, n_threads=1
    )
    pieces = []
    with pytest.raises(NotFiniteError):
        pieces += stream
    wanted = script[: script.index(SPIKE) + 1]
    assert "".join(pieces) == stream.result.text == model.tokenizer.decode(wanted)
    assert stream.result.tokens == wanted


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("verify", ["rejection", "coupled"])
def test_a_draft_token_whose_row_overflows_gives_no_wrong_text(
    spiked: specdec.Model, temperature: float, verify: str
) -> None:
    """Plain decoding never reaches it. The error names it, and the text before it is correct."""
    script = [4, 11, 2, 40, 5, 6, 8, 12]
    how: dict[str, Any] = {"max_new_tokens": 8, "temperature": temperature, "verify": verify, "seed": 2}
    plain = specdec.generate(spiked, None, PROMPT, transform=follow(script), **how)
    assert plain.tokens == script
    with pytest.raises(NotFiniteError, match=rf"the target: .* layer 2 .* position {len(PROMPT)} ") as caught:
        specdec.generate(spiked, FixedDraft(SPIKE, 3), PROMPT, transform=follow(script), **how)
    assert caught.value.result.tokens == []


DRAFTS_OF_A_MODEL: list[Any] = [
    lambda model: model,
    lambda model: drafts.ModelDraft(model, tree=drafts.StaticTree((2, 2))),
    lambda model: drafts.ModelDraft(model, draft=FixedDraft(1, 2)),
    lambda model: drafts.ModelDraft(model, tree=drafts.DynamicTree(8, width=3, steps=4)),
]


def test_a_failed_prefill_leaves_nothing(spiked: specdec.Model) -> None:
    decoder = decoder_of(spiked.core, capacity=8, max_nodes=1)
    decoder.prefill([1, 2])
    with pytest.raises(NotFiniteError):
        decoder.prefill([3, SPIKE], finite=True)
    assert decoder.n_committed == 2
    again = decoder.prefill([3, 4], logits=True, finite=True)
    assert np.array_equal(again, spiked.logits([1, 2, 3, 4])[2:])


def long_prompt(n: int, seed: int, spike_at: int | None = None) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(8, 61, n).tolist()
    if spike_at is not None:
        ids[spike_at] = SPIKE
    return ids


def check_one_fails(
    target: specdec.Model, draft: Any, requests: Sequence[tuple[list[int], dict[str, Any]]],
    bad: Sequence[int], message: str, **engine: Any,
) -> None:  # fmt: skip
    """Check requests whose prompts are read together: those of `bad` fail, the others equal runs alone."""
    how: dict[str, Any] = {"max_new_tokens": 6, "logit_bias": {SPIKE: -np.inf}, "logprobs": 0}
    with specdec.Engine(target, draft, n_text=390, n_threads=1, **engine) as running:
        begun = [running.submit(prompt, **how, **options) for prompt, options in requests]
        for i, ((prompt, options), request) in enumerate(zip(requests, begun, strict=True)):
            if i in bad:
                with pytest.raises(NotFiniteError, match=message) as caught:
                    request.result(60)
                assert caught.value.result.tokens == []
                continue
            own = {name: value for name, value in options.items() if name != "speculative"}
            alone = specdec.generate(target, None, prompt, n_threads=1, **how, **own)
            found = request.result(60)
            assert found == alone and np.array_equal(found.logprobs, alone.logprobs)
        assert running.metrics().n_failed == len(bad)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(("prefill", "dtype"), [("rows", "f32"), ("tiles", "bf16"), ("blas", "f32")])
def test_a_prompt_that_overflows_fails_alone(tmp_path: Path, prefill: str, dtype: str, order: int) -> None:
    """Two of them: one shares its slice with others, one has a later slice to itself."""
    target = model_with_spike(tmp_path, 2, dtype=dtype, prefill=prefill)
    prompts = [long_prompt(200, 1), long_prompt(9, 2, 4), long_prompt(30, 3), long_prompt(380, 4, 350), [9]]
    requests = [(prompt, {}) for prompt in prompts][::order]
    check_one_fails(target, None, requests, (1, 3), r"the target: .* layer 2 ", n_slots=5)


def test_texts_that_begin_like_one_that_overflows(spiked: specdec.Model) -> None:
    """They wait while it is read, and continue from the tokens read before it failed."""
    begin = long_prompt(150, 1)
    prompts = [[*begin, SPIKE, 9, 10], [*begin, 12, 13], [*begin, 12, 14, 15]]
    check_one_fails(spiked, None, [(prompt, {}) for prompt in prompts], (0,), r"position 150 ")


@pytest.mark.parametrize(
    "draft", [*DRAFTS_OF_A_MODEL, lambda model: drafts.Ensemble(drafts.PromptLookup(min_match=1), model)]
)
def test_a_draft_that_overflows_in_a_prompt_fails_that_request(
    sound: specdec.Model, tmp_path: Path, draft: Any
) -> None:
    broken = draft(model_with_spike(tmp_path, 1))
    prompts = [long_prompt(150, 1), long_prompt(20, 2, 4), long_prompt(30, 3), long_prompt(160, 4, 150)]
    requests = [(prompt, {}) for prompt in prompts]
    check_one_fails(sound, broken, requests, (1, 3), r"the draft: .* layer 1 ", n_slots=4)
    plainly = {"speculative": specdec.Speculative(draft=False)}
    check_one_fails(sound, broken, [(prompt, plainly) for prompt in prompts], (), "")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "draft", [*DRAFTS_OF_A_MODEL, lambda model: drafts.Ensemble(FixedDraft(3), model, adaptive=False)]
)
def test_a_draft_that_overflows_in_a_round_fails_that_request(
    sound: specdec.Model, tmp_path: Path, draft: Any, temperature: float
) -> None:
    """The draft reads the token after the target has generated it."""
    broken = draft(model_with_spike(tmp_path, 1))
    how: dict[str, Any] = {"max_new_tokens": 30, "temperature": temperature, "verify": "coupled", "seed": 4}
    good = {"logit_bias": {SPIKE: -np.inf}, "draft_sampling": specdec.Sampling(logit_bias={SPIKE: -np.inf})}
    with specdec.Engine(sound, broken, n_slots=3, n_text=100, n_threads=1) as engine:
        first = engine.submit([1, 9, 30], **how, **good)
        bad = engine.submit(PROMPT, **how, transform=follow([*SCRIPT, *range(8, 30)]))
        last = engine.submit([4, 5], **how, **good)
        with pytest.raises(NotFiniteError, match=rf"the draft: .* layer 1 .* position {POSITION} ") as caught:
            bad.result(60)
        tokens = caught.value.result.tokens
        assert tokens == SCRIPT[: len(tokens)] and SPIKE in tokens
        for request, prompt in ((first, [1, 9, 30]), (last, [4, 5])):
            plain = specdec.generate(sound, None, prompt, n_threads=1, **how, logit_bias={SPIKE: -np.inf})
            assert request.result(60).tokens == plain.tokens


def test_an_adapter_that_overflows_fails_its_request(tmp_path: Path, sound: specdec.Model) -> None:
    settings = llama_config(num_hidden_layers=LAYERS, max_position_embeddings=400)
    shapes = llama_shapes(settings)
    low_rank = low_rank_tensors(shapes, {}, seed=1)
    of_layer = "base_model.model.model.layers.3.mlp.down_proj.lora_B.weight"
    low_rank[of_layer] = np.full_like(low_rank[of_layer], 1e38)
    broken = sound.with_adapter(write_adapter(tmp_path / "broken", adapter_config(), low_rank))
    fine = sound.with_adapter(llama_adapter(tmp_path / "fine", settings, 2))
    adapters = {20: fine, 30: broken, 40: None, 150: fine}
    requests: Any = [
        (long_prompt(n, n), {"adapter": adapter} if adapter else {}) for n, adapter in adapters.items()
    ]
    for draft in (None, drafts.EarlyExit(1)):
        check_one_fails(sound, draft, requests, (1,), "the target: .* layer 3 ", n_slots=4)


def test_a_source_that_overflows_fails_alone() -> None:
    pair = EncoderDecoder("bart")
    tensors = {name: tensor.copy() for name, tensor in pair.tensors.items()}
    tensors["token_embedding"][:, FEATURE] = 0.0
    tensors["token_embedding"][SPIKE, FEATURE] = 3e38
    tensors["encoder.position_embedding"][:, FEATURE] = 0.0
    tensors["encoder.position_embedding"][3, FEATURE] = 3e38
    target = model_of(pair.config, tensors)
    good, bad = [[9, 8, 10], [11, 12]], [9, 8, 10, SPIKE]
    with specdec.Engine(target, pair.draft, n_slots=3, n_threads=1) as engine:
        requests = [engine.submit(source, max_new_tokens=5) for source in (good[0], bad, good[1])]
        with pytest.raises(NotFiniteError, match="the target: .* of the source is not finite"):
            requests[1].result(60)
        for source, request in zip(good, requests[::2], strict=True):
            alone = specdec.generate(target, None, source, max_new_tokens=5, n_threads=1)
            assert request.result(60) == alone
