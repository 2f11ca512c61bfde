"""Sizes and switches of a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

_BY_LAYER: Final = (
    "windows", "rotations", "score_scales", "mixtures", "n_heads", "n_kv_heads", "d_heads", "d_ffs", "mixers",
    "values_from_keys",
)  # fmt: skip
"""Fields with a value for each layer."""
_OF_ALL_LAYERS: Final = ("kv_layers", "d_per_layer")
"""Fields that mean nothing for a layer alone."""


@dataclass(frozen=True)
class ModelConfig(Mapping[str, Any]):
    """Sizes and switches of a model, read-only; also a mapping, such as ``config["n_vocab"]``.

    Fields from ``norm_position`` on are switches of architectures; a plain decoder has their defaults.

    Attributes
    ----------
    n_vocab, n_ctx, n_layer : int
        Number of token ids, context length, number of layers.
    n_head, n_kv_head : int
        Number of attention heads and of KV heads; 1 without attention.
    d_model, d_head, d_ff : int
        Width of the residual stream, of a head, of the MLP. ``d_ff`` 0: layers without experts have no MLP.
    n_heads, n_kv_heads, d_heads, d_ffs : tuple of int
        Per-layer values that override ``n_head``, ``n_kv_head``, ``d_head``, ``d_ff``; empty if layers agree.
    norm : str
        "rms" or "layer"; ``norm_eps`` is inside the square root.
    position : str
        "rotary": rotates the first ``2 * len(inv_freq)`` dimensions of a head by ``inv_freq`` radians per
        position (scaling included); "learned"; or "none".
    activation : str
        "silu", "gelu", "gelu_tanh", "relu", "relu2", "xielu" (factors are tensors) or "silu_clamped" (at
        ``activation_limit``);
        ``gated``: multiplied by a second projection.
    tied : bool
        The head is the token embedding.
    qkv_bias, out_bias, mlp_bias, head_bias : bool
        Whether the projections have biases.
    sliding_window : int
        Number of positions a token attends to, itself included; 0 for all.
    norm_position : str
        "before" (input of attention and MLP), "after" (their output), "both", or "residual" (the stream after
        adding the output).
    output_norm : bool
        The stream is normalized after the last layer.
    norm_weight, norm_bias : bool
        Whether norms have them. ``norm_bias`` None: biases for "layer", none for "rms".
    qk_norm : str
        Norms of queries and keys: "none", "head", "each_head" (separate weights) or "whole".
    qk_norm_rotated : bool
        Norms of heads follow the rotation.
    attn_gate : str
        The output of attention is multiplied by the sigmoid of a projection of its input: "none", one number
        per "head", or one per dimension ("whole"). ``attn_gate_softplus``: softplus instead of sigmoid.
    v_norm : bool
        Values have an RMSNorm without weights.
    values_from_keys : tuple of int
        Per layer 1 if values are the keys before their norms and rotation (Gemma 4), else 0; empty: 0.
    parallel : str
        "no", or attention and MLP read the same stream, through "one_norm" or "two_norms".
    embedding_scale, residual_scale, logit_scale : float
        Factors of embeddings, of outputs of attention, mixers and MLP, of logits.
    attn_out_scale, mixer_out_scale, mlp_down_scale, mlp_gate_scale : float
        Factors of the outputs of these projections (Falcon-H1).
    layer_scale : bool
        After each layer the stream is multiplied by a learned number of the layer.
    embedding_norm : bool
        The embedding is normalized.
    logit_softcap, attn_softcap : float
        c in ``c * tanh(x / c)`` of logits and scores; 0 for none.
    qkv_limit : float
        Bound of queries, keys and values, after "whole" norms; 0 for none.
    attn_sinks : bool
        Each head has a learned score without a value.
    query_growth : float
        Queries are multiplied by ``1 + query_growth * ln(1 + position // query_span)``.
    alibi : tuple of float
        Slope of each head: scores decrease by slope times distance.
    relative_buckets : tuple of int
        First distance of each bucket of learned biases by head; an encoder has separate biases for later
        keys.
    relative_bias_by_layer : bool
        Each layer has its own biases.
    windows, rotations : tuple of int
        Per-layer window and frequencies (0: ``inv_freq``, i: ``more_inv_freq[i - 1]``, -1: none); empty if
        layers agree.
    score_scales : tuple of float
        Per-layer factor of scores; empty: ``1 / sqrt(d_head)``.
    more_inv_freq : tuple of tuple of float
        Further frequencies.
    rotary_factors : tuple of float
        Factor of cosines and sines for each set of frequencies; empty: 1.
    n_experts, n_experts_per_token : int
        Experts per layer, and per token by largest router logits (but see ``router_correction``). 0: every
        layer is dense.
    d_expert, d_shared_expert : int
        Width of an expert, and of the shared expert of all tokens; 0: none.
    shared_expert_gate : bool
        The shared expert's weight is the sigmoid of a logit, else 1.
    router : str
        Scores of experts, the weights of the chosen: "softmax" over all, "softmax_chosen" over the chosen, or
        "sigmoid".
    router_bias, router_correction : bool
        The logits have biases; experts are chosen by score plus a number of each (DeepSeek-V3), not by logit.
    n_expert_groups, n_groups_per_token : int
        With corrections: equal groups of experts, and groups chosen per token by the sum of their two largest
        corrected scores. Experts of other groups are not chosen. 0: no groups.
    router_renormalize : bool
        Weights are divided by their sum plus ``router_eps``.
    router_eps : float
        See ``router_renormalize``.
    routed_scale : float
        Factor of these weights, last.
    dense_with_experts : bool
        The dense MLP runs in parallel with the experts, each with norms of its own, and their sum is added
        (Gemma 4). The router reads a norm of the stream over ``sqrt(d_model)``; weights are multiplied by a
        number of each expert.
    mixtures : tuple of int
        Per layer 1 if it has experts, else 0; empty: all layers have, if ``n_experts`` is not 0.
    kv_layers : tuple of int
        Per layer the layer whose keys and values it attends to: itself, or an earlier one with the same KV
        heads and window. Empty: itself.
    d_per_layer : int
        Width of per-layer embeddings (Gemma 4): after the MLP, each layer adds what it projects of a vector
        of the token; 0: none.
    mixers : tuple of str
        First half of each layer: "attention"; "convolution", the gated short convolution of LFM2; after a
        convolution, "delta", the gated delta rule (Qwen3.5), or "mamba2" (Granite 4); "attention+mamba2" and
        the like, both of the same input (Falcon-H1); or "none". Empty: attention in all layers.
    conv_width : int
        Number of inputs of a convolution, the token's own included.
    conv_bias, mixer_bias : bool
        Whether convolutions have biases, and whether the projections around those of LFM2 do.
    n_mixer_key_head, n_mixer_value_head : int
        With "delta" and "mamba2", heads of queries and keys, and of values. Mamba-2 calls them C, B and x.
    mixer_grouped : bool
        Value head h uses key head h // (n_mixer_value_head / n_mixer_key_head), else h mod n_mixer_key_head.
    d_mixer_key, d_mixer_value : int
        Dimensions of these heads.
    n_mixer_norm_groups : int
        With "mamba2", groups of values that are normalized together; 0: none are.
    mixer_norm_first : bool
        With "mamba2", values are normalized before they are multiplied by the gate.
    mixer_scales : tuple of float
        With "delta" and "mamba2", factors of queries, keys, values, gates, and decays or time steps, as
        projected; empty: none.
    encoder : ModelConfig or None
        The encoder of an encoder-decoder; its ``n_ctx`` bounds the source. The other fields describe the
        decoder.
    shared_embedding : bool
        An encoder uses the decoder's token embedding.
    """

    n_vocab: int
    n_ctx: int
    n_layer: int
    n_head: int
    n_kv_head: int
    d_model: int
    d_head: int
    d_ff: int
    norm: str
    norm_eps: float
    position: str
    inv_freq: tuple[float, ...]
    activation: str
    gated: bool
    tied: bool
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    sliding_window: int
    head_bias: bool = False
    activation_limit: float = 0.0
    norm_position: str = "before"
    norm_weight: bool = True
    norm_bias: bool | None = None
    qk_norm: str = "none"
    qk_norm_rotated: bool = False
    attn_gate: str = "none"
    attn_gate_softplus: bool = False
    v_norm: bool = False
    parallel: str = "no"
    embedding_scale: float = 1.0
    embedding_norm: bool = False
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float = 0.0
    attn_softcap: float = 0.0
    qkv_limit: float = 0.0
    attn_sinks: bool = False
    query_growth: float = 0.0
    query_span: int = 0
    alibi: tuple[float, ...] = ()
    relative_buckets: tuple[int, ...] = ()
    windows: tuple[int, ...] = ()
    rotations: tuple[int, ...] = ()
    score_scales: tuple[float, ...] = ()
    more_inv_freq: tuple[tuple[float, ...], ...] = ()
    rotary_factors: tuple[float, ...] = ()
    n_experts: int = 0
    n_experts_per_token: int = 0
    d_expert: int = 0
    d_shared_expert: int = 0
    shared_expert_gate: bool = False
    router: str = "softmax"
    router_bias: bool = False
    router_correction: bool = False
    n_expert_groups: int = 0
    n_groups_per_token: int = 0
    router_renormalize: bool = False
    router_eps: float = 0.0
    routed_scale: float = 1.0
    mixtures: tuple[int, ...] = ()
    output_norm: bool = True
    relative_bias_by_layer: bool = False
    encoder: ModelConfig | None = None
    shared_embedding: bool = False
    n_heads: tuple[int, ...] = ()
    n_kv_heads: tuple[int, ...] = ()
    d_heads: tuple[int, ...] = ()
    d_ffs: tuple[int, ...] = ()
    kv_layers: tuple[int, ...] = ()
    d_per_layer: int = 0
    mixers: tuple[str, ...] = ()
    conv_width: int = 0
    conv_bias: bool = False
    mixer_bias: bool = False
    n_mixer_key_head: int = 0
    n_mixer_value_head: int = 0
    mixer_grouped: bool = False
    values_from_keys: tuple[int, ...] = ()
    layer_scale: bool = False
    dense_with_experts: bool = False
    d_mixer_key: int = 0
    d_mixer_value: int = 0
    n_mixer_norm_groups: int = 0
    mixer_norm_first: bool = False
    mixer_scales: tuple[float, ...] = ()
    attn_out_scale: float = 1.0
    mixer_out_scale: float = 1.0
    mlp_down_scale: float = 1.0
    mlp_gate_scale: float = 1.0

    @property
    def attends(self) -> tuple[bool, ...]:
        """Whether each layer has attention."""
        return tuple("attention" in mixer for mixer in self.mixers) or (True,) * self.n_layer

    @classmethod
    def from_canonical(cls, config: Mapping[str, Any]) -> ModelConfig:
        """Return the configuration of a loader's dict; missing fields have their default."""
        frozen: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in config.items()
        }
        frozen["more_inv_freq"] = tuple(tuple(inv_freq) for inv_freq in config.get("more_inv_freq", ()))
        if config.get("encoder") is not None:
            frozen["encoder"] = cls.from_canonical(config["encoder"])
        return cls(**frozen)

    @property
    def last_attention(self) -> int:
        """The last layer with attention."""
        return max(i for i, attends in enumerate(self.attends) if attends)

    def alone(self, layer: int) -> dict[str, Any]:
        """Return the canonical configuration of one layer alone, without defaults."""
        fields = self.__dataclass_fields__
        found = {name: self[name] for name in fields if self[name] != fields[name].default}
        found = {name: found[name] for name in found if name not in _OF_ALL_LAYERS}
        found |= {name: (self[name][layer],) for name in _BY_LAYER if self[name]}
        return found | {"n_layer": 1}

    def __getitem__(self, name: str) -> Any:
        if name not in self.__dataclass_fields__:
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dataclass_fields__)

    def __len__(self) -> int:
        return len(self.__dataclass_fields__)
