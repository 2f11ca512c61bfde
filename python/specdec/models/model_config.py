"""What a model is, in the terms of the core."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ModelConfig(Mapping[str, Any]):
    """What a model is, read-only; a mapping too, as ``config["n_vocab"]``.

    The fields from ``norm_position`` on are the switches of the families (docs/MODELS.md); a plain decoder
    has their defaults.

    Attributes
    ----------
    n_vocab, n_ctx, n_layer : int
        Token ids, longest sequence, layers.
    n_head, n_kv_head : int
        Attention heads, and how many of them have keys and values of their own.
    d_model, d_head, d_ff : int
        Width of the residual stream, of a head, of the feed-forward block.
    n_heads, n_kv_heads, d_heads : tuple of int
        For each layer, where they differ: ``n_head``, ``n_kv_head`` and ``d_head``, which then do not count.
    norm : str
        "rms" or "layer", with ``norm_eps`` inside its square root.
    position : str
        "rotary", turning the first ``2 * len(inv_freq)`` dimensions of a head by ``inv_freq`` radians per
        position (scaling included), "learned", or "none".
    activation : str
        "silu", "gelu", "gelu_tanh", "relu", "relu2" or "silu_clamped" (at ``activation_limit``);
        ``gated``: its product with a second projection.
    tied : bool
        The head is the token embedding.
    qkv_bias, out_bias, mlp_bias, head_bias : bool
        Which projections have biases.
    sliding_window : int
        Positions a token attends to, itself included; 0 for all.
    norm_position : str
        "before" (of the input of each half of a layer), "after" (of its output), "both", or "residual" (of
        the stream after the output has been added).
    output_norm : bool
        The stream is normalized behind the last layer.
    norm_weight, norm_bias : bool
        What norms have. ``norm_bias`` None: biases for "layer", none for "rms".
    qk_norm : str
        Norms of queries and keys: "none", "head", "each_head" (with weights of its own) or "whole".
    v_norm : bool
        Values pass an RMSNorm without weights.
    parallel : str
        "no", or both halves of a layer read the same stream, by "one_norm" or "two_norms".
    embedding_scale, residual_scale, logit_scale : float
        Factors of the embedding, of what each half of a layer adds, of the logits.
    embedding_norm : bool
        The embedding is normalized.
    logit_softcap, attn_softcap : float
        c: ``c * tanh(x / c)`` of logits, of scores; 0 for none.
    qkv_limit : float
        Queries, keys and values are clamped to this, after norms of whole queries and keys; 0 for no limit.
    attn_sinks : bool
        Each head has a learned score without a value.
    query_growth : float
        Queries are multiplied by ``1 + query_growth * ln(1 + position // query_span)``.
    alibi : tuple of float
        Slope of each head: a score falls by slope times distance.
    relative_buckets : tuple of int
        First distance of each bucket, with a learned bias of each head; in an encoder with one for keys
        before a row and one for keys behind it.
    relative_bias_by_layer : bool
        Each layer has biases of its own.
    windows, rotations : tuple of int
        For each layer, where they differ: its window, and its frequencies: 0 for ``inv_freq``, i for
        ``more_inv_freq[i - 1]``, -1 for none.
    score_scales : tuple of float
        For each layer the factor of its scores; empty: ``1 / sqrt(d_head)``, of its own heads.
    more_inv_freq : tuple of tuple of float
        Further frequencies.
    rotary_factors : tuple of float
        Factor of cosines and sines for each set of frequencies; empty: 1.
    n_experts, n_experts_per_token : int
        Of a mixture of experts: how many there are in a layer, and how many a token goes through, those of
        its largest router logits. 0: every layer is dense.
    d_expert, d_shared_expert : int
        Width of an expert, and of the shared one, through which every token goes; 0: there is none.
    shared_expert_gate : bool
        The shared expert's weight is the sigmoid of a logit, else 1.
    router : str
        From logits to the weights of the chosen experts: "softmax" over all experts, "softmax_chosen" over
        the chosen ones, or "sigmoid".
    router_bias, router_renormalize : bool
        The logits have biases; weights are divided by the sum of the chosen experts' weights.
    routed_scale : float
        Factor of these weights.
    mixtures : tuple of int
        For each layer 1 if it has experts, else 0; empty: all layers have, where ``n_experts`` is not 0.
    encoder : ModelConfig or None
        Of an encoder-decoder: what its encoder is, whose ``n_ctx`` is the longest source. The fields beside
        it are the decoder's, whose layers attend to the encoder's output too.
    shared_embedding : bool
        Of an encoder: it embeds by the decoder's token table.
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
    router_renormalize: bool = False
    routed_scale: float = 1.0
    mixtures: tuple[int, ...] = ()
    output_norm: bool = True
    relative_bias_by_layer: bool = False
    encoder: ModelConfig | None = None
    shared_embedding: bool = False
    n_heads: tuple[int, ...] = ()
    n_kv_heads: tuple[int, ...] = ()
    d_heads: tuple[int, ...] = ()

    @classmethod
    def from_canonical(cls, config: Mapping[str, Any]) -> ModelConfig:
        """From a loader's dict; what it leaves out has its default."""
        frozen: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in config.items()
        }
        frozen["more_inv_freq"] = tuple(tuple(inv_freq) for inv_freq in config.get("more_inv_freq", ()))
        if config.get("encoder") is not None:
            frozen["encoder"] = cls.from_canonical(config["encoder"])
        return cls(**frozen)

    def __getitem__(self, name: str) -> Any:
        if name not in self.__dataclass_fields__:
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dataclass_fields__)

    def __len__(self) -> int:
        return len(self.__dataclass_fields__)
