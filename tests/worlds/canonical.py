"""Random models in the core's own terms: a canonical configuration and its tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import missing
import specdec
from descriptions import by_method
from sessions import Session, read_prompts
from specdec import _core

Tensors = dict[str, NDArray[np.float32]]

DTYPES = ("f32", "bf16", "int8", "int4")

# Number formats of matrices and cache: what `specdec.load` pairs, and the others where they cost little.
FORMATS = [("f32", "f32"), ("f32", "bf16"), ("bf16", "bf16"), ("int8", "int8"), ("int4", "bf16")]

LLAMA: dict[str, Any] = {
    "n_vocab": 101, "n_ctx": 256, "n_layer": 3, "n_head": 6, "n_kv_head": 2, "d_model": 48, "d_head": 8,
    "d_ff": 70, "norm": "rms", "norm_eps": 1e-5, "position": "rotary",
    "inv_freq": [10000.0 ** (-2 * i / 8) for i in range(4)], "activation": "silu", "gated": True,
    "tied": False, "qkv_bias": False, "out_bias": False, "mlp_bias": False, "sliding_window": 0,
}  # fmt: skip

GPT: dict[str, Any] = LLAMA | {
    "norm": "layer", "position": "learned", "inv_freq": [], "activation": "gelu_tanh", "gated": False,
    "tied": True, "qkv_bias": True, "out_bias": True, "mlp_bias": True, "n_kv_head": 6,
}  # fmt: skip

# Matrices without a number format.
IN_F32 = "router.weight", "shared_gate.weight", "mixer_beta.weight", "mixer_decay.weight"

# Every branch of the decoder, in odd sizes that fill no panel or vector.
VARIANTS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "llama-window-bias-tied": LLAMA | {"sliding_window": 7, "qkv_bias": True, "tied": True},
    "llama-wide-head": LLAMA
    | {"n_head": 2, "n_kv_head": 1, "d_head": 40, "inv_freq": [10000.0 ** (-i / 20) for i in range(20)]},
    "gpt-tanh": GPT,
    "gpt-gelu": GPT | {"activation": "gelu", "d_model": 33, "d_head": 11, "n_head": 3, "n_kv_head": 3},
}

# One or more switches of the families each; every switch of ModelConfig occurs.
SWITCHES: dict[str, dict[str, Any]] = {
    "qk-norm-head-softcaps-both-norms": LLAMA
    | {"qk_norm": "head", "attn_softcap": 3.0, "logit_softcap": 2.0, "norm_position": "both", "tied": True,
       "embedding_scale": 7.0, "score_scales": [0.2, 0.5, 0.3], "activation": "gelu_tanh",
       "windows": [9, 0, 40], "rotations": [1, 0, 1], "more_inv_freq": [[0.5, 0.1, 0.02, 0.001]]},
    "qk-norm-whole-norms-after-partial-rotary": LLAMA
    | {"qk_norm": "whole", "norm_position": "after", "qkv_limit": 0.7, "inv_freq": [1.0, 0.01],
       "rotary_factors": [1.3]},
    "sinks-clamped-no-position": LLAMA
    | {"attn_sinks": True, "activation": "silu_clamped", "activation_limit": 1.0, "windows": [5, 0, 5],
       "rotations": [0, -1, 0], "qkv_bias": True, "out_bias": True, "mlp_bias": True},
    "parallel-one-norm-without-bias": LLAMA
    | {"norm": "layer", "norm_bias": False, "parallel": "one_norm", "logit_scale": 0.3,
       "qk_norm": "each_head", "head_bias": True, "gated": False, "activation": "gelu"},
    "parallel-two-norms": GPT | {"position": "rotary", "inv_freq": [1.0], "parallel": "two_norms"},
    "alibi-embedding-norm-relu": GPT
    | {"position": "none", "embedding_norm": True, "activation": "relu",
       "alibi": [2.0 ** -i for i in range(6)], "qkv_limit": 1.5},
    "xielu-softplus-gates": LLAMA
    | {"gated": False, "activation": "xielu", "mlp_bias": True, "attn_gate": "head",
       "attn_gate_softplus": True},
    "relative-buckets-relu2": GPT
    | {"position": "none", "relative_buckets": [0, 1, 2, 3, 5, 9, 20, 60], "norm_weight": False,
       "activation": "relu2", "sliding_window": 70},
    "multipliers-v-norm-query-growth": LLAMA
    | {"residual_scale": 0.4, "embedding_scale": 3.0, "logit_scale": 0.5, "v_norm": True,
       "query_growth": 0.4, "query_span": 16, "norm_weight": False},
    "gate-by-head-norms-after-rotary": LLAMA
    | {"attn_gate": "head", "qk_norm": "head", "qk_norm_rotated": True, "windows": [9, 0, 40],
       "qkv_bias": True, "qkv_limit": 0.7},
    "heads-by-layer-whole-gate": LLAMA
    | {"attn_gate": "whole", "n_heads": [2, 9, 6], "n_kv_heads": [1, 3, 6], "d_heads": [24, 8, 33],
       "inv_freq": [1.0, 0.1], "qk_norm": "each_head", "qk_norm_rotated": True},
    "heads-by-layer": LLAMA
    | {"n_heads": [2, 6, 8], "n_kv_heads": [1, 2, 8], "d_heads": [40, 8, 5], "rotations": [1, 0, 2],
       "more_inv_freq": [[10000.0 ** (-i / 20) for i in range(20)], [1.0, 0.1]], "windows": [9, 0, 40]},
    "values-from-keys-layer-scale": LLAMA
    | {"n_heads": [4, 9, 6], "n_kv_heads": [2, 3, 6], "d_heads": [24, 8, 33], "inv_freq": [1.0, 0.1],
       "values_from_keys": [0, 1, 1], "layer_scale": True, "v_norm": True, "qk_norm": "head",
       "norm_position": "both", "windows": [9, 0, 40], "tied": True, "qkv_limit": 1.5, "qkv_bias": True},
    "heads-by-layer-norms-sinks-growth": LLAMA
    | {"norm": "layer", "n_heads": [2, 6, 3], "n_kv_heads": [2, 2, 1], "d_heads": [33, 8, 12],
       "qk_norm": "each_head", "v_norm": True, "attn_sinks": True, "qkv_limit": 1.5, "qkv_bias": True,
       "out_bias": True, "inv_freq": [1.0, 0.1], "query_growth": 0.4, "query_span": 16,
       "attn_softcap": 3.0},
    "heads-by-layer-whole-norms-buckets": LLAMA
    | {"n_heads": [2, 9, 6], "n_kv_heads": [1, 3, 6], "d_heads": [24, 8, 33], "qk_norm": "whole",
       "position": "none", "relative_buckets": [0, 1, 2, 5, 20], "relative_bias_by_layer": True},
    "shared-keys-per-layer-embeddings": LLAMA
    | {"kv_layers": [0, 1, 0], "windows": [9, 0, 9], "d_ffs": [70, 33, 140], "d_per_layer": 12,
       "qk_norm": "head", "v_norm": True, "norm_position": "both", "activation": "gelu_tanh",
       "embedding_scale": 7.0},
    "shared-keys-gates-biases": LLAMA
    | {"kv_layers": [0, 0, 0], "n_heads": [6, 2, 4], "qk_norm": "each_head", "attn_gate": "head",
       "qkv_bias": True, "qkv_limit": 1.5},
    "shared-keys-whole-norms-parallel": LLAMA
    | {"kv_layers": [0, 1, 1], "windows": [0, 40, 40], "qk_norm": "whole", "attn_gate": "whole",
       "attn_sinks": True, "parallel": "one_norm"},
    "shared-keys-per-layer-embeddings-delta": LLAMA
    | {"mixers": ["delta", "attention", "attention"], "kv_layers": [0, 1, 1], "conv_width": 4,
       "n_mixer_key_head": 1, "n_mixer_value_head": 2, "d_mixer_key": 12, "d_mixer_value": 32,
       "norm_position": "after", "d_per_layer": 64, "activation": "relu"},
    "convolution": LLAMA
    | {"mixers": ["convolution", "attention", "convolution"], "conv_width": 3, "qk_norm": "head"},
    "convolution-wide-biases-windows": LLAMA
    | {"mixers": ["attention", "convolution", "attention"], "conv_width": 7, "conv_bias": True,
       "mixer_bias": True, "norm_position": "both", "windows": [9, 0, 0], "d_model": 50,
       "residual_scale": 0.7},
    "delta": LLAMA
    | {"mixers": ["delta", "attention", "delta"], "conv_width": 4, "n_mixer_key_head": 2,
       "n_mixer_value_head": 4, "d_mixer_key": 12, "d_mixer_value": 32, "attn_gate": "whole",
       "mixer_grouped": True},
    "delta-wide-convolution-first-attention": LLAMA
    | {"mixers": ["attention", "delta", "convolution"], "conv_width": 3, "conv_bias": True,
       "n_mixer_key_head": 1, "n_mixer_value_head": 3, "d_mixer_key": 40, "d_mixer_value": 50,
       "norm_position": "both", "norm": "layer", "d_model": 50, "windows": [9, 0, 0]},
    "mamba2": LLAMA
    | {"mixers": ["mamba2", "attention", "mamba2"], "conv_width": 4, "conv_bias": True, "n_mixer_key_head": 2,
       "n_mixer_value_head": 4, "d_mixer_key": 12, "d_mixer_value": 32, "n_mixer_norm_groups": 2,
       "mixer_grouped": True, "residual_scale": 0.7},
    "mamba2-norm-first-delta": LLAMA
    | {"mixers": ["delta", "mamba2", "attention"], "conv_width": 3, "n_mixer_key_head": 1,
       "n_mixer_value_head": 3, "d_mixer_key": 40, "d_mixer_value": 64, "n_mixer_norm_groups": 1,
       "mixer_norm_first": True, "norm_position": "both"},
    "mamba2-without-norm": LLAMA
    | {"mixers": ["mamba2", "convolution", "mamba2"], "conv_width": 2, "n_mixer_key_head": 3,
       "n_mixer_value_head": 3, "d_mixer_key": 17, "d_mixer_value": 32, "d_model": 50},
    "mamba2-and-attention-factors": LLAMA
    | {"mixers": ["attention+mamba2", "attention+mamba2", "attention"], "conv_width": 4, "conv_bias": True,
       "n_mixer_key_head": 1, "n_mixer_value_head": 2, "d_mixer_key": 12, "d_mixer_value": 32,
       "mixer_scales": [0.6, 1.7, 0.8, 1.4, 0.7], "attn_out_scale": 0.6, "mixer_out_scale": 1.3,
       "mlp_gate_scale": 1.4, "mlp_down_scale": 0.8},
    "mixers-and-attention-windows": LLAMA
    | {"mixers": ["attention+delta", "attention+convolution", "attention+mamba2"], "conv_width": 3,
       "n_mixer_key_head": 2, "n_mixer_value_head": 2, "d_mixer_key": 8, "d_mixer_value": 32,
       "n_mixer_norm_groups": 2, "windows": [9, 0, 40], "qkv_bias": True, "mixer_bias": True,
       "mixer_scales": [0.6, 1.7, 0.8, 1.4, 0.7]},
    "mamba2-alone": LLAMA
    | {"n_head": 1, "n_kv_head": 1, "d_head": 1, "d_ff": 0, "position": "none", "inv_freq": [],
       "mixers": ["mamba2"] * 3, "conv_width": 4, "conv_bias": True, "n_mixer_key_head": 1,
       "n_mixer_value_head": 3, "d_mixer_key": 12, "d_mixer_value": 80, "n_mixer_norm_groups": 3},
    "halves-alone": LLAMA
    | {"mixers": ["delta", "none", "attention"], "d_ffs": [0, 70, 0], "conv_width": 3, "n_mixer_key_head": 1,
       "n_mixer_value_head": 2, "d_mixer_key": 12, "d_mixer_value": 32, "norm_position": "both",
       "layer_scale": True},
}  # fmt: skip

_EXPERTS: dict[str, Any] = {"n_experts": 7, "n_experts_per_token": 2, "d_expert": 40}

# Mixtures of experts: every switch of the router, of experts and of shared experts.
MIXTURES: dict[str, dict[str, Any]] = {
    "mixture-softmax": LLAMA | _EXPERTS,
    "mixture-chosen-some-layers": LLAMA
    | _EXPERTS
    | {"router": "softmax_chosen", "mixtures": [1, 0, 1], "n_experts": 40, "n_experts_per_token": 8},
    "mixture-sigmoid-shared": LLAMA
    | _EXPERTS
    | {"router": "sigmoid", "router_renormalize": True, "routed_scale": 2.5, "d_shared_expert": 33},
    "mixture-corrected-groups-dense-first": LLAMA
    | _EXPERTS
    | {"router": "sigmoid", "router_correction": True, "n_experts": 12, "n_experts_per_token": 3,
       "n_expert_groups": 4, "n_groups_per_token": 2, "router_renormalize": True, "router_eps": 1e-2,
       "routed_scale": 1.5, "d_shared_expert": 40, "mixtures": [0, 1, 1]},
    "mixture-corrected-softmax": LLAMA | _EXPERTS | {"router_correction": True, "n_experts": 9},
    "mixture-renormalized-shared-gate": LLAMA
    | _EXPERTS
    | {"router_renormalize": True, "d_shared_expert": 70, "shared_expert_gate": True, "norm_position": "both",
       "residual_scale": 0.7},
    "mixture-biases-clamped": LLAMA
    | _EXPERTS
    | {"router": "softmax_chosen", "router_bias": True, "mlp_bias": True, "activation": "silu_clamped",
       "activation_limit": 1.0, "attn_sinks": True, "windows": [5, 0, 5]},
    "mixture-parallel": LLAMA
    | _EXPERTS
    | {"parallel": "one_norm", "qk_norm": "whole", "router": "sigmoid", "attn_gate": "whole"},
    "mixture-with-dense": LLAMA
    | _EXPERTS
    | {"dense_with_experts": True, "norm_position": "both", "router_renormalize": True, "mixtures": [1, 0, 1],
       "activation": "gelu_tanh", "layer_scale": True},
    "mixture-not-gated-norms-after": LLAMA
    | _EXPERTS
    | {"gated": False, "activation": "gelu", "mlp_bias": True, "d_shared_expert": 32,
       "norm_position": "after", "n_experts_per_token": 7},
    "mixture-halves-alone": LLAMA
    | _EXPERTS
    | {"mixers": ["mamba2", "none", "attention"], "d_ffs": [33, 0, 0], "mixtures": [0, 1, 0], "conv_width": 3,
       "n_mixer_key_head": 1, "n_mixer_value_head": 2, "d_mixer_key": 12, "d_mixer_value": 32, "gated": False,
       "activation": "relu2", "d_shared_expert": 33, "router": "sigmoid", "position": "none", "inv_freq": []},
}  # fmt: skip
SWITCHES |= MIXTURES
VARIANTS |= SWITCHES

_T5: dict[str, Any] = LLAMA | {
    "position": "none", "inv_freq": [], "n_kv_head": 6, "score_scales": [0.5] * 3, "activation": "gelu_tanh",
    "relative_buckets": [0, 1, 2, 3, 5, 9, 20, 60],
}  # fmt: skip

_BART: dict[str, Any] = GPT | {"norm_position": "residual", "output_norm": False, "embedding_norm": True}

# Models with an encoder: every switch of these, sizes of encoder and decoder that differ, heads in groups.
ENCODER_DECODERS: dict[str, dict[str, Any]] = {
    "shared-embedding-relative-positions": _T5
    | {"encoder": _T5 | {"n_ctx": 130, "shared_embedding": True, "n_layer": 2, "score_scales": [0.5] * 2}},
    "biases-by-layer-other-sizes": _T5
    | {"relative_bias_by_layer": True, "n_kv_head": 2, "tied": True, "logit_scale": 0.3}
    | {"encoder": _T5 | {"relative_bias_by_layer": True, "relative_buckets": [0, 1, 4], "n_vocab": 77,
                         "d_model": 40, "n_head": 4, "n_kv_head": 2, "d_head": 12, "d_ff": 33}},
    "norms-of-the-stream": _BART
    | {"head_bias": True, "encoder": _BART | {"n_layer": 1, "shared_embedding": True, "n_ctx": 90}},
    "norms-before-rotary-wide-head": LLAMA
    | {"n_head": 2, "n_kv_head": 1, "d_head": 40, "inv_freq": [10000.0 ** (-i / 20) for i in range(20)],
       "windows": [9, 0, 40], "qkv_bias": True, "out_bias": True, "norm_position": "both", "attn_sinks": True,
       "attn_softcap": 3.0, "qkv_limit": 0.7, "qk_norm": "head"}
    | {"encoder": LLAMA | {"norm": "layer", "qk_norm": "whole", "attn_softcap": 3.0, "v_norm": True,
                           "parallel": "one_norm"}},
    "heads-by-layer": LLAMA
    | {"n_heads": [6, 2, 8], "n_kv_heads": [2, 1, 8], "d_heads": [8, 40, 5], "inv_freq": [1.0, 0.1],
       "qkv_bias": True}
    | {"encoder": _T5 | {"n_heads": [2, 4, 9], "n_kv_heads": [2, 2, 3], "d_heads": [40, 7, 40],
                         "relative_bias_by_layer": True, "qk_norm": "head"}},
    "norms-after-mixture": LLAMA
    | _EXPERTS
    | {"norm_position": "after", "residual_scale": 0.7}
    | {"encoder": GPT | _EXPERTS
       | {"mixtures": [0, 1, 0], "norm_position": "residual", "residual_scale": 0.7}},
}  # fmt: skip


def random_tensors(config: dict[str, Any], seed: int = 0) -> Tensors:
    """Draw weights large enough that logits of different tokens differ clearly."""
    rng = np.random.default_rng(seed)
    tensors = {}
    for name, shape in _core.tensor_shapes(config).items():
        weight = rng.standard_normal(shape) * (0.15 if len(shape) == 2 else 0.5)
        if name.endswith("mixer_decay.rate"):
            weight = -np.abs(weight)
        tensors[name] = (weight + name.endswith(("norm.weight", "layer_scale"))).astype(np.float32)
    return tensors


def perturbed(tensors: Tensors, scale: float = 0.02, seed: int = 1) -> Tensors:
    """Make a draft that sometimes agrees with its target."""
    rng = np.random.default_rng(seed)
    return {n: (t + scale * rng.standard_normal(t.shape)).astype(np.float32) for n, t in tensors.items()}


def build(
    config: dict[str, Any], tensors: Tensors, *, dtype: str = "f32", cache_dtype: str = "f32",
    prefill: str = "rows",
) -> _core.Model:  # fmt: skip
    given = ((name, tensor, "f32") for name, tensor in tensors.items())
    return _core.Model(config, given, dtype=dtype, cache_dtype=cache_dtype, prefill=prefill)


def random_model(config: dict[str, Any], seed: int = 1, scale: float = 3.0) -> _core.Model:
    """Make a model of scaled random tensors with uneven distributions and varied greedy texts."""
    return build(config, {name: scale * tensor for name, tensor in random_tensors(config, seed).items()})


HAS_HOOKS = hasattr(_core, "_alloc_live")


def decoder_of(model: _core.Model, **options: Any) -> _core.Decoder:
    """Make a decoder of one text on a core model; options are those of `_core.Decoder`."""
    return _core.Decoder(model, **({"capacity": model.config["n_ctx"]} | options))


def random_source(config: dict[str, Any], n: int = 75, seed: int = 0) -> list[int] | None:
    """Return input for the encoder of such a model; None without an encoder."""
    if config.get("encoder") is None:
        return None
    return np.random.default_rng(seed).integers(0, config["encoder"]["n_vocab"], n).tolist()


def step_by_step(
    model: _core.Model, ids: Sequence[int] | NDArray[Any], source: Sequence[int] | None = None
) -> NDArray[np.float32]:
    """Logits [n_ids, n_vocab] from forward passes of one token each."""
    decoder = _core.Decoder(model, capacity=len(ids), source=source)
    rows = []
    for token in ids:
        rows.append(decoder.forward([int(token)], [-1])[0])
        decoder.keep([0])
    return np.stack(rows)


def fixed_acceptance(draft: Any, alpha: float, texts: list[list[int]]) -> tuple[Any, ...]:
    """Make a draft whose tokens are right with probability alpha; texts: prompts with their continuations."""
    if not HAS_HOOKS:
        pytest.skip(missing.HOOKS)
    return by_method("fixed_acceptance", draft, alpha, texts)


def with_drafts(session: Session) -> Session:
    """Make the session record `draft_probs`, `draft_points` and `node_logits` too."""
    if not HAS_HOOKS:
        pytest.skip(missing.HOOKS)
    session._keep_drafts()  # type: ignore[attr-defined]  # only a build with hooks has it
    return session


def beams(
    target: _core.Model, draft: _core.Model | None, prompt: list[int], **options: Any
) -> list[tuple[list[int], float]]:
    """Tokens and scores of a beam search's hypotheses; speculative with a draft."""
    options = {"width": 3, "draft_width": 4, "gamma": 3, "max_new_tokens": 10} | options
    search = _core.BeamSearch(target, draft, prompt, **options)
    read_prompts(search)
    while search.round():
        pass
    return [(beam["tokens"], beam["score"]) for beam in search.beams()]


def run_session(
    target: _core.Model, draft: _core.Model | _core.Ngram | tuple[Any, ...] | None, prompts: list[list[int]],
    *, gamma: int = 4, max_new_tokens: int = 40, seeds: list[tuple[int, int]] | None = None,
    n_threads: int = 1, rule: str = "rejection", lenience: float = 1.0,
    transform: Callable[..., Any] | None = None, draft_sampling: dict[str, Any] | None = None,
    sources: Sequence[Sequence[int] | None] | None = None, logprobs: dict[str, Any] | None = None,
    **sampling: Any,
) -> tuple[list[list[int]], list[NDArray[np.float32]], list[dict[str, Any]]]:  # fmt: skip
    """New tokens and logits per prompt, and all records; `logprobs`: its "logprobs_of" and "n_top"."""
    session = Session(
        target, draft, prompts, gamma=gamma, max_new_tokens=max_new_tokens,
        sampling={"temperature": 0.0} | sampling,
        draft_sampling={"temperature": 0.0} | sampling if draft_sampling is None else draft_sampling,
        seeds=seeds or [(1, i) for i in range(len(prompts))], n_threads=n_threads, keep_logits=True,
        rule=rule, lenience=lenience, transform=transform, sources=sources, **(logprobs or {}),
    )  # fmt: skip
    session.prefill()
    tokens: list[list[int]] = [[] for _ in prompts]
    logits: list[list[NDArray[np.float32]]] = [[] for _ in prompts]
    records = []
    while batch := session.round():
        for record in batch:
            if record["error"] is not None:
                raise record["error"]
            tokens[record["sequence"]] += record["tokens"]
            logits[record["sequence"]].append(record["logits"])
            records.append(record)
    session.close()
    return tokens, [np.concatenate(rows) for rows in logits], records


def forced(
    target: specdec.Model, draft: Any, prompt: Sequence[int], output: Sequence[int], gamma: int
) -> Sequence[specdec.Round]:
    """Run rounds in which the target writes exactly this text: its next token has all mass."""
    text = [*prompt, *output]

    def transform(probs: NDArray[Any], tokens: list[int]) -> NDArray[Any]:
        probs[:] = 0.0
        probs[text[len(tokens)] if tokens == text[: len(tokens)] and len(tokens) < len(text) else 0] = 1.0
        return probs

    found = specdec.generate(
        target, draft, list(prompt), gamma=gamma, max_new_tokens=len(output), transform=transform,
        ignore_eos=True, n_threads=1,
    )  # fmt: skip
    assert found.tokens == list(output)
    return found.trace.rounds
