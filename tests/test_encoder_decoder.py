"""Models with an encoder: the encoder's output, and sequences with their own sources."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from allocations import allowing, fail_each_allocation, needs_hooks, nothing_leaks
from compiled import score as score_of
from descriptions import by_method
from sessions import Session
from specdec import _core, reference
from specdec.errors import NotFiniteError
from worlds.canonical import (
    ENCODER_DECODERS,
    FORMATS,
    LLAMA,
    beams,
    build,
    perturbed,
    random_source,
    random_tensors,
    run_session,
    step_by_step,
    with_drafts,
)

RELATIVE = ENCODER_DECODERS["shared-embedding-relative-positions"]
OTHER_SIZES = ENCODER_DECODERS["biases-by-layer-other-sizes"]


def source_of(config: dict[str, Any], n: int = 75, seed: int = 0) -> list[int]:
    source = random_source(config, n, seed)
    assert source is not None
    return source


def ids_of(config: dict[str, Any], n: int, seed: int = 7) -> list[int]:
    return np.random.default_rng(seed).integers(0, config["n_vocab"], n).tolist()


def session_of(
    target: _core.Model,
    prompts: Any,
    sources: Any,
    draft: Any = None,
    *,
    temperature: float = 0.0,
    **options: Any,
) -> Any:
    sampling = {"temperature": temperature}
    return Session(
        target, draft, prompts, sampling=sampling, draft_sampling=sampling, n_threads=1, sources=sources,
        seeds=[(0, i) for i in range(len(prompts))], keep_logits=True,
        **({"gamma": 3, "max_new_tokens": 8} | options),
    )  # fmt: skip


@pytest.mark.parametrize("name", ENCODER_DECODERS)
@pytest.mark.parametrize("n", [1, 2, 31, 32, 33, 75])
def test_the_output_is_near_the_reference_and_does_not_depend_on_threads(name, n):
    config = ENCODER_DECODERS[name]
    tensors = random_tensors(config)
    model, source = build(config, tensors), source_of(config, n)
    one, two, three = (model.encode(source, n_threads=k) for k in (1, 2, 3))
    assert one.shape == (n, config["encoder"]["d_model"]) and one.dtype == np.float32
    assert np.array_equal(one, two) and np.array_equal(one, three)
    np.testing.assert_allclose(one, reference.encode(config, tensors, source), atol=3e-5)


def test_a_source_that_is_longer_than_any_text_is_attended_to_in_the_same_order():
    """More keys than the scratch buffer holds for 40 rows: fewer rows are computed at once."""
    one = {"n_layer": 1, "n_head": 1, "n_kv_head": 1, "score_scales": [0.5]}
    config = RELATIVE | {"n_ctx": 64, "encoder": RELATIVE["encoder"] | one | {"n_ctx": 6000}}
    tensors = random_tensors(config)
    model, source = build(config, tensors), source_of(config, 6000)
    ids = ids_of(config, 40)
    prompt = _core.Decoder(model, capacity=40, source=source).prefill(ids, logits=True)
    assert np.array_equal(prompt, step_by_step(model, ids, source))


def test_tensors_have_names_of_their_own():
    shapes, relative = _core.tensor_shapes(OTHER_SIZES), _core.tensor_shapes(RELATIVE)
    assert shapes["encoder.token_embedding"] == (77, 40) and shapes["layers.0.relative_bias"] == (8, 6)
    assert shapes["layers.1.cross_k.weight"] == (2 * 8, 40)
    assert not {"relative_bias", "encoder.head"} & shapes.keys() and "encoder.token_embedding" not in relative
    stream = _core.tensor_shapes(ENCODER_DECODERS["norms-of-the-stream"])
    assert not {"output_norm.weight", "encoder.output_norm.weight"} & stream.keys()
    assert {"layers.0.cross_post_norm.bias", "encoder.layers.0.mlp_post_norm.weight"} <= stream.keys()
    tensors = random_tensors(OTHER_SIZES)
    model = build(OTHER_SIZES, tensors)
    assert model.n_parameters == sum(tensor.size for tensor in tensors.values())
    for name in ("encoder.layers.0.attn_k.weight", "layers.2.cross_v.weight", "layers.0.cross_out.weight"):
        assert np.array_equal(model.matrix(name), tensors[name])


# --------------------------------------------------------------------------------------- Texts with sources


class World:
    """A target, a draft of its shape, sequences with sources, and each one decoded alone without draft."""

    def __init__(self, config: dict[str, Any], **formats: Any) -> None:
        tensors = random_tensors(config)
        self.target = build(config, tensors, **formats)
        self.draft = build(config, perturbed(tensors), **formats)
        lone = {"n_ctx": 256, "n_vocab": config["n_vocab"]}
        self.decoder = build(LLAMA | lone, random_tensors(LLAMA | lone), **formats)
        # Texts that begin alike: of one source, and of two.
        one, two, three = (source_of(config, n, seed) for seed, n in enumerate((5, 61, 33)))
        short, long = ids_of(config, 1), ids_of(config, 70)
        self.sources = [one, two, three, two, list(two)]
        self.prompts = [short, long, long, short, [*long[:40], 1, 2]]
        self.plain = [
            run_session(self.target, None, [prompt], sources=[source], max_new_tokens=12)[:2]
            for prompt, source in zip(self.prompts, self.sources, strict=True)
        ]

    def check(self, draft: Any, **options: Any) -> None:
        tokens, logits, _ = run_session(
            self.target, draft, self.prompts, sources=self.sources, max_new_tokens=12, **options
        )
        for i, (alone, rows) in enumerate(self.plain):
            assert tokens[i] == alone[0] and np.array_equal(logits[i], rows[0])


@pytest.fixture(scope="module", params=ENCODER_DECODERS)
def world(request):
    return World(ENCODER_DECODERS[request.param])


@pytest.mark.parametrize("n_threads", [1, 3])
def test_a_batch_has_the_bits_of_each_text_alone(world, n_threads):
    """Without draft, and with drafts with and without an encoder."""
    for draft in (None, world.draft, world.decoder):
        world.check(draft, n_threads=n_threads)


def test_skipped_layers_skip_attention_to_the_source_too():
    config = RELATIVE
    tensors, source, prompt = random_tensors(config), source_of(config, 20), ids_of(config, 9)
    target = build(config, tensors)
    session = session_of(
        target, [prompt], [source], by_method("skip_layers", bytes([0, 1, 2])), max_new_tokens=20,
        temperature=1.0,
    )  # fmt: skip
    with_drafts(session)
    session.prefill()
    text = list(prompt)
    while records := session.round():
        (record,) = records
        *prefix, root = text
        logits = reference.tree_logits(
            config, tensors, prefix, [root, *record["drafted"]], [-1, *record["parents"]], source=source,
            skip_attn=[1], skip_mlp=[2],
        )  # fmt: skip
        for row, expected in zip(record["draft_probs"][1:], logits[:-1], strict=True):
            np.testing.assert_allclose(row, reference.distribution(expected, 1.0), rtol=2e-3, atol=1e-6)
        text += record["tokens"]
    assert len(text) == len(prompt) + 20


@pytest.mark.parametrize(("dtype", "cache_dtype"), FORMATS[1:])
def test_no_format_changes_that(dtype, cache_dtype):
    world = World(OTHER_SIZES, dtype=dtype, cache_dtype=cache_dtype)
    world.check(world.draft, n_threads=2)


def finish(session: Session) -> tuple[list[int], Any]:
    """Return new tokens and logits of sequence 0."""
    tokens, logits = [], []
    while records := session.round():
        for record in records:
            if record["sequence"] == 0:
                tokens += record["tokens"]
                logits.append(record["logits"])
    return tokens, np.concatenate(logits)


@needs_hooks
def test_equal_sources_are_encoded_once():
    """An encoded source is two blocks of memory. A draft has its own keys and values."""
    target = build(RELATIVE, random_tensors(RELATIVE))
    one, other = source_of(RELATIVE, 40), source_of(RELATIVE, 40, 1)
    n_blocks = []
    for sources in ([one, one, one], [one, other, one]):
        for draft in (None, target):
            with nothing_leaks():
                before = _core._alloc_live()
                session = session_of(target, [[1], [2], [3]], sources, draft)
                made = _core._alloc_live()
                session.prefill()
                n_blocks.append(_core._alloc_live() - made)
                assert made > before
                session.close()
    assert n_blocks == [2, 4, 4, 8]


@needs_hooks
def test_a_cached_text_keeps_its_source_and_counts_it():
    target = build(RELATIVE, random_tensors(RELATIVE))
    with nothing_leaks():
        session = session_of(target, [[1, 2, 3]], [source_of(RELATIVE, 100)])
        session.prefill()
        text, size = session.cached_text(0), session.cached_size(0)
        session.close()
        del session
        assert size[:2] == (text.tokens.tolist(), source_of(RELATIVE, 100))
        assert text.n_bytes == size[2] > 3 * 2 * 100 * 48 * 4  # keys and values of the source in three layers
        fresh = session_of(target, [[1, 2, 3, 4]], [source_of(RELATIVE, 100)])
        assert fresh.begin_with(0, text) == 2
        before = _core._alloc_live()
        fresh.prefill()
        assert _core._alloc_live() == before  # nothing was encoded
        del text, fresh


@needs_hooks
def test_rounds_allocate_nothing():
    tensors = random_tensors(RELATIVE)
    session = session_of(
        build(RELATIVE, tensors), [[1, 2]], [source_of(RELATIVE)], build(RELATIVE, perturbed(tensors))
    )
    session.prefill()
    with allowing(0):
        assert len(finish(session)[0]) == 8


# ------------------------------------------------------------------------------------------ What is refused


@pytest.fixture(scope="module")
def models() -> tuple[_core.Model, _core.Model]:
    """Models with and without encoder."""
    return build(OTHER_SIZES, random_tensors(OTHER_SIZES)), build(LLAMA, random_tensors(LLAMA))


def test_sources_that_a_model_cannot_read_are_named(models):
    model, plain = models
    uses = (
        lambda source, m=model: _core.Decoder(m, capacity=4, source=source),
        lambda source, m=model: session_of(m, [[1]], None if source is None else [source]),
        lambda source, m=model: score_of(m, [1, 2, 3], source=source),
    )
    for use in uses:
        for source, message in (
            (None, "the model has an encoder, expected a source"),
            ([], "the source has 0 tokens, expected 1 to 256"),
            ([1] * 257, "the source has 257 tokens, expected 1 to 256"),
            ([1, 77], "the source: token 1 is 77, expected 0 to 76"),
        ):
            with pytest.raises(ValueError, match=message):
                use(source)
        with pytest.raises(ValueError, match="a source is given, but the model has no encoder"):
            use([1, 2], plain)
    for wrong, message in ((model, "257 tokens"), (plain, "the model has no encoder")):
        with pytest.raises(ValueError, match=message):
            wrong.encode([1] * 257)
    for draft in (lambda: session_of(plain, [[1]], None, model), lambda: beams(plain, model, [1, 2])):
        with pytest.raises(ValueError, match="the draft has an encoder, expected a target that has one too"):
            draft()
    session = session_of(model, [[1]], [[1]])
    session.finish(0)
    with pytest.raises(ValueError, match="the model has an encoder, expected a source"):
        session.replace(0, [1], (0, 0))
    session.replace(0, [1], (0, 0), source=[4] * 256)


def with_encoder(**changes: Any) -> dict[str, Any]:
    return OTHER_SIZES | {"encoder": OTHER_SIZES["encoder"] | changes}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (with_encoder(n_layer=0), "config: encoder: n_layer is 0"),
        (with_encoder(sliding_window=4), "config: encoder: layer 0 has a window of 4, expected none"),
        (with_encoder(alibi=[1.0] * 4), "config: encoder: alibi is set, expected none"),
        (with_encoder(encoder=dict(LLAMA)), "config: encoder: has an encoder, expected none"),
        (with_encoder(relative_buckets=[]), "relative_bias_by_layer is set, expected relative_buckets"),
        (with_encoder(shared_embedding=True), r"shared_embedding is set for a table \[77, 40\]"),
        (with_encoder(d_ff="x"), "d_ff is 'x', expected an integer"),
        (OTHER_SIZES | {"parallel": "one_norm"}, "parallel is set, expected no encoder with it"),
        (LLAMA | {"shared_embedding": True}, "shared_embedding is set, expected it in an encoder"),
        (
            LLAMA | {"norm_position": "residual", "parallel": "one_norm"},
            'expected norm_position "before" with it',
        ),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(config, message):
    with pytest.raises(ValueError, match=message):
        _core.tensor_shapes(config)


@pytest.mark.parametrize("encoder", [3, [], "x"])
def test_an_encoder_is_a_dict(encoder):
    with pytest.raises(TypeError, match="config: encoder: expected a dict"):
        _core.tensor_shapes(LLAMA | {"encoder": encoder})
    circle = dict(OTHER_SIZES)
    circle["encoder"] = circle
    with pytest.raises(ValueError, match="has an encoder, expected none"):
        _core.tensor_shapes(circle)


def test_tensors_of_an_encoder_are_checked():
    tensors, name = random_tensors(OTHER_SIZES), "encoder.layers.1.attn_q.weight"
    for changed, message in (
        ({name: None}, f"tensor {name}: missing"),
        ({name: np.zeros((2, 2), np.float32)}, rf"tensor {name}: shape is \(2, 2\), expected \(48, 40\)"),
        ({"encoder.head": np.zeros((77, 40), np.float32)}, "tensor encoder.head: not part of a model"),
    ):
        given = {n: tensor for n, tensor in (tensors | changed).items() if tensor is not None}
        with pytest.raises(ValueError, match=message):
            build(OTHER_SIZES, given)


@pytest.mark.parametrize("layer", [0, 2])
def test_an_encoder_that_overflows_is_named(layer):
    tensors = random_tensors(OTHER_SIZES)
    tensors[f"encoder.layers.{layer}.mlp_down.weight"][:] = 3e38
    message = rf"the model: the output of layer {layer} \(of 0 to 2\) of the encoder at position 0"
    with pytest.raises(NotFiniteError, match=message):
        build(OTHER_SIZES, tensors).encode([1, 2, 3])


@pytest.mark.slow
@needs_hooks
@pytest.mark.usefixtures("quick_gc")
def test_every_allocation_may_fail():
    tensors, source = random_tensors(OTHER_SIZES), source_of(OTHER_SIZES, 20)
    model, draft = build(OTHER_SIZES, tensors), build(OTHER_SIZES, perturbed(tensors))

    def decode() -> None:
        session = session_of(model, [[1, 2], [1, 3]], [source, source[:5]], draft)
        session.prefill()
        finish(session)
        session.cached_text(0)

    assert fail_each_allocation(lambda: build(OTHER_SIZES, tensors)) >= 4
    assert fail_each_allocation(lambda: model.encode(source)) >= 2
    assert fail_each_allocation(lambda: _core.Decoder(model, capacity=4, source=source)) >= 6
    assert fail_each_allocation(decode) > 20
    assert fail_each_allocation(lambda: beams(model, draft, [1, 2], source=source)) > 10
    assert fail_each_allocation(lambda: score_of(model, [1, 2, 3], source=source)) >= 6


def test_threads_may_share_a_model():
    """Encoders of several threads alternate layer by layer."""
    model = build(RELATIVE, random_tensors(RELATIVE))
    sources = [source_of(RELATIVE, 20 + 30 * i, i) for i in range(4)]
    wanted = [model.encode(source) for source in sources]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda source: model.encode(source, n_threads=2), sources * 20))
    for one, other in zip(found, wanted * 20, strict=True):
        assert np.array_equal(one, other)


# --------------------------------------------------------------------------------------- The specification


@pytest.fixture(params=ENCODER_DECODERS)
def case(request):
    config = ENCODER_DECODERS[request.param]
    return config, random_tensors(config), source_of(config, 9), ids_of(config, 7)


def test_each_node_of_a_tree_attends_to_the_whole_source(case):
    config, tensors, source, ids = case
    parents = [-1, 0, 0, 1, 2]
    found = reference.tree_logits(config, tensors, ids, [1, 2, 3, 4, 5], parents, source=source)
    for node, path in enumerate([[1], [1, 2], [1, 3], [1, 2, 4], [1, 3, 5]]):
        expected = reference.logits(config, tensors, ids + path, source=source)[-1]
        np.testing.assert_allclose(found[node], expected, rtol=1e-9, atol=1e-11)


def test_a_layer_whose_attention_is_skipped_does_not_see_the_source(case):
    config, tensors, source, ids = case
    every = range(config["n_layer"])
    one, other = (
        reference.tree_logits(config, tensors, [], ids, [-1, 0, 1, 2, 3, 4, 5], source=text, skip_attn=every)
        for text in (source, source[:4])
    )
    assert np.array_equal(one, other)


def test_a_source_is_given_to_models_with_an_encoder_and_no_others(case):
    config, tensors, source, ids = case
    with pytest.raises(ValueError, match="source is required"):
        reference.logits(config, tensors, ids)
    with pytest.raises(ValueError, match="encoder"):
        reference.logits({n: v for n, v in config.items() if n != "encoder"}, tensors, ids, source=source)
