"""Hugging Face folders: ``config.json``, ``*.safetensors`` and a tokenizer, for three architectures.

``config.json`` means what ``transformers`` takes it to mean: a field that is absent or null has the default
of the architecture's configuration class there. Fields that do not touch inference (dropout,
initialisation, caches) are ignored; a field that would change the computation in a way specdec does not
have is refused by name.

Unused tensors are refused too: adapters, quantisation scales, extra norms and layers beyond the configured
number all mean another computation than the one configured. The exceptions are buffers that older versions
of ``transformers`` saved (causal masks, rotary frequencies) and a tied head that equals the embedding.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specdec.errors import CheckpointError, UnsupportedModelError
from specdec.models.chat_template import resolve_chat_template
from specdec.models.checkpoints.checkpoint import CanonicalTensor, Checkpoint
from specdec.models.checkpoints.generation_config import read_generation_defaults
from specdec.models.checkpoints.rotary import linear_scaled, llama3_scaled, rotary_frequencies
from specdec.models.checkpoints.safetensors_file import StoredTensor, open_weights
from specdec.models.json_fields import Fields, as_json, read_json_object
from specdec.models.tokenizer import resolve_tokenizer

__all__ = ["open_folder"]

# Bounds that keep a lying config.json from costing memory before the weights' shapes expose it.
_MAX_LAYERS: Final = 10_000
_MAX_D_HEAD: Final = 65_536

# Several names in transformers are one function here: gelu_new, gelu_fast, gelu_accurate and the *_tanh
# ones are the tanh form of GELU (Hendrycks and Gimpel 2016) with the same constants.
_ACTIVATIONS: Final[Mapping[str, str]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
}

_View = Callable[[NDArray[np.generic]], NDArray[np.generic]]


def _as_stored(array: NDArray[np.generic]) -> NDArray[np.generic]:
    return array


@dataclass(frozen=True)
class _Source:
    """Where a canonical tensor comes from: the file's name for it, its shape there, and the view to take."""

    canonical: str
    stored: str
    shape: tuple[int, ...]
    view: _View = _as_stored


@dataclass(frozen=True)
class _Family:
    read_config: Callable[[Fields], dict[str, Any]]
    sources: Callable[[Mapping[str, Any]], Iterator[_Source]]
    prefix: str
    """Module prefix that checkpoints of the bare model leave out; added to names that lack it."""


def open_folder(folder: Path, tokenizer: Any = None) -> Checkpoint:
    """Open a Hugging Face folder; see :func:`specdec.checkpoints.open_checkpoint`."""
    file = folder / "config.json"
    fields = Fields(read_json_object(file), file)
    architecture = _architecture(fields, file)
    family = _FAMILIES[architecture]
    fields.require("quantization_config", None, because="quantised checkpoints are not read")
    config = family.read_config(fields)
    tensors = _match(folder, family, config)
    defaults = read_generation_defaults(folder, fields, config["n_vocab"])

    used = {source.stored for source in family.sources(config)}
    matrices = {tensors[stored].format for stored in used if len(tensors[stored].shape) == 2}

    def canonical() -> Iterator[CanonicalTensor]:
        at = ""
        array: NDArray[np.generic] = np.empty(0)
        for source in family.sources(config):
            if source.stored != at:  # GPT-2 has three in one
                del array  # before the next is read
                at, array = source.stored, tensors[source.stored].array()
            yield source.canonical, source.view(array), tensors[source.stored].format

    return Checkpoint(
        path=folder,
        architecture=architecture,
        config=config,
        tokenizer=resolve_tokenizer(tokenizer, folder, bos_id=defaults.bos_id, eos_ids=defaults.eos_ids),
        dtype="bf16" if matrices == {"bf16"} else "f32",
        n_bytes=sum(tensors[stored].n_bytes for stored in used),
        _tensors=canonical,
        default_sampling=defaults.sampling,
        chat_template=resolve_chat_template(tokenizer, folder),
    )


def _architecture(fields: Fields, file: Path) -> str:
    named = fields.raw("architectures")
    if named is not None and not (isinstance(named, list) and all(isinstance(name, str) for name in named)):
        raise fields.error("architectures", "a list of names")
    supported = ", ".join(_FAMILIES)
    if named:
        name: str
        for name in named:
            if name in _FAMILIES:
                return name
        raise UnsupportedModelError(
            f"{file}: field 'architectures' is {as_json(named)}; expected one of {supported}"
        )
    model_type = fields.raw("model_type")
    if isinstance(model_type, str) and model_type in _MODEL_TYPES:
        return _MODEL_TYPES[model_type]
    raise UnsupportedModelError(
        f"{file}: names no architecture, and field 'model_type' is {as_json(model_type)}; "
        f"expected 'architectures' with one of {supported}"
    )


def _match(folder: Path, family: _Family, config: Mapping[str, Any]) -> dict[str, StoredTensor]:
    """The tensors the model needs, checked to be there in the right shape, with nothing else beside them."""
    tensors: dict[str, StoredTensor] = {}
    for name, tensor in open_weights(folder).items():
        full = name if name.startswith((family.prefix, "lm_head.")) else family.prefix + name
        if full in tensors:
            raise CheckpointError(
                f"{tensor.file}: holds both '{tensors[full].name}' and '{name}'; expected one"
            )
        tensors[full] = tensor

    expected = {source.stored: source.shape for source in family.sources(config)}
    embedding = next(s.stored for s in family.sources(config) if s.canonical == "token_embedding")
    if config["tied"] and embedding not in tensors and "lm_head.weight" in tensors:
        tensors[embedding] = tensors.pop("lm_head.weight")  # one matrix, saved under its other name
    for name, shape in expected.items():
        if name not in tensors:
            raise CheckpointError(
                f"{folder}: tensor '{name}' is missing; expected it with shape {list(shape)}"
            )
        found = tensors[name]
        if found.shape != shape:
            raise CheckpointError(
                f"{found.file}: tensor '{found.name}' has shape {as_json(list(found.shape))}; "
                f"expected {list(shape)}"
            )
        _ = found.format  # refuses a dtype the core cannot read, now rather than after half the weights

    unknown = [name for name in tensors if name not in expected and not _HARMLESS.search(name)]
    if config["tied"] and "lm_head.weight" in unknown:
        if not tensors["lm_head.weight"].same_as(tensors[embedding]):
            raise CheckpointError(
                f"{tensors['lm_head.weight'].file}: tensor 'lm_head.weight' differs from '{embedding}'; "
                f"expected them equal or the head absent, since config.json ties them (tie_word_embeddings)"
            )
        unknown.remove("lm_head.weight")
    if unknown:
        first = ", ".join(f"'{tensors[name].name}'" for name in unknown[:5])
        more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
        raise UnsupportedModelError(
            f"{folder}: holds tensors that its config.json leaves without use: {first}{more}; "
            f"expected only those of {config['n_layer']} layers"
        )
    return tensors


# Buffers that are functions of the configuration: causal masks, the masking constant, rotary frequencies.
_HARMLESS: Final = re.compile(r"\.attn\.(bias|masked_bias)$|\.rotary_emb\.inv_freq$")


def _rope(fields: Fields, d_head: int, n_ctx: int) -> list[float]:
    """Inverse frequencies by ``rope_parameters`` (transformers 5) or ``rope_theta``, ``rope_scaling``."""
    fields.require("partial_rotary_factor", 1, because="rotary positions turn whole heads")
    new, old = fields.object("rope_parameters"), fields.object("rope_scaling")
    if new is not None and old is not None and not new.same_as(old):
        raise fields.error("rope_scaling", "nothing, or the same as 'rope_parameters'")
    theta = fields.number("rope_theta", default=10_000.0)
    rope = new or old
    if rope is None:
        return rotary_frequencies(d_head, theta)
    theta = rope.number("rope_theta", default=theta)
    rope.require("partial_rotary_factor", 1, because="rotary positions turn whole heads")
    for layer_type in ("full_attention", "sliding_attention"):
        rope.require(layer_type, None, because="all layers share one rotation")
    plain = rotary_frequencies(d_head, theta)
    # "type" is the older spelling.
    key = "rope_type" if rope.raw("rope_type") is not None else "type"
    kind = rope.choice(key, {"default": "default", "linear": "linear", "llama3": "llama3"}, default="default")
    if kind == "linear":
        return linear_scaled(plain, rope.number("factor"))
    if kind == "llama3":
        low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
        if not low < high:
            raise rope.error("high_freq_factor", f"more than low_freq_factor, which is {low:g}")
        return llama3_scaled(
            plain,
            factor=rope.number("factor"),
            low_freq_factor=low,
            high_freq_factor=high,
            original_n_ctx=rope.integer("original_max_position_embeddings", default=n_ctx),
        )
    return plain


def _read_llama(fields: Fields) -> dict[str, Any]:
    bias = fields.boolean("attention_bias", default=False)
    return _llama_like(
        fields,
        default_kv_head=None,
        attention_bias=bias,
        mlp_bias=fields.boolean("mlp_bias", default=False),
        sliding_window=0,
    )


def _read_mistral(fields: Fields) -> dict[str, Any]:
    for name in ("attention_bias", "mlp_bias"):
        fields.require(name, False, because="MistralForCausalLM has no biases")
    # Here null and absent differ: null turns the window off, and the class's default is 4096.
    window = fields.integer("sliding_window", default=0 if fields.has("sliding_window") else 4096)
    return _llama_like(fields, default_kv_head=8, attention_bias=False, mlp_bias=False, sliding_window=window)


def _llama_like(
    fields: Fields,
    *,
    default_kv_head: int | None,
    attention_bias: bool,
    mlp_bias: bool,
    sliding_window: int,
) -> dict[str, Any]:
    d_model = fields.integer("hidden_size")
    n_head = fields.integer("num_attention_heads")
    if default_kv_head is None or fields.has("num_key_value_heads"):
        default_kv_head = n_head  # null means plain multi-head attention in every family
    n_kv_head = fields.integer("num_key_value_heads", default=default_kv_head)
    if n_head % n_kv_head:
        raise fields.error("num_key_value_heads", f"a divisor of num_attention_heads, which is {n_head}")
    d_head = fields.integer("head_dim", minimum=2, maximum=_MAX_D_HEAD, default=None)
    if d_head is None:
        if d_model % n_head or d_model // n_head > _MAX_D_HEAD:
            raise fields.error(
                "hidden_size",
                f"a multiple of num_attention_heads, which is {n_head} (head_dim is not given), "
                f"and heads of at most {_MAX_D_HEAD}",
            )
        d_head = d_model // n_head
    if d_head % 2:
        raise fields.error("head_dim", f"an even number, not {d_head}: rotary positions turn pairs")
    layer_types = fields.raw("layer_types")
    if isinstance(layer_types, list):
        if not all(isinstance(kind, str) for kind in layer_types):
            raise fields.error("layer_types", "a list of names")
        if len(set(layer_types)) > 1:
            raise fields.unsupported("layer_types", "one kind of attention in all layers")
    n_ctx = fields.integer("max_position_embeddings")
    return {
        "n_vocab": fields.integer("vocab_size"),
        "n_ctx": n_ctx,
        "n_layer": fields.integer("num_hidden_layers", maximum=_MAX_LAYERS),
        "n_head": n_head,
        "n_kv_head": n_kv_head,
        "d_model": d_model,
        "d_head": d_head,
        "d_ff": fields.integer("intermediate_size"),
        "norm": "rms",
        "norm_eps": fields.number("rms_norm_eps", default=1e-6),
        "position": "rotary",
        "inv_freq": _rope(fields, d_head, n_ctx),
        "activation": fields.choice("hidden_act", _ACTIVATIONS, default="silu"),
        "gated": True,
        "tied": fields.boolean("tie_word_embeddings", default=False),
        "qkv_bias": attention_bias,
        "out_bias": attention_bias,
        "mlp_bias": mlp_bias,
        "sliding_window": sliding_window,
    }


def _llama_sources(config: Mapping[str, Any]) -> Iterator[_Source]:
    d_model, d_ff, n_vocab = config["d_model"], config["d_ff"], config["n_vocab"]
    d_q, d_kv = config["n_head"] * config["d_head"], config["n_kv_head"] * config["d_head"]
    yield _Source("token_embedding", "model.embed_tokens.weight", (n_vocab, d_model))
    linears = [
        ("attn_q", "self_attn.q_proj", d_q, d_model, config["qkv_bias"]),
        ("attn_k", "self_attn.k_proj", d_kv, d_model, config["qkv_bias"]),
        ("attn_v", "self_attn.v_proj", d_kv, d_model, config["qkv_bias"]),
        ("attn_out", "self_attn.o_proj", d_model, d_q, config["out_bias"]),
        ("mlp_gate", "mlp.gate_proj", d_ff, d_model, config["mlp_bias"]),
        ("mlp_up", "mlp.up_proj", d_ff, d_model, config["mlp_bias"]),
        ("mlp_down", "mlp.down_proj", d_model, d_ff, config["mlp_bias"]),
    ]
    for i in range(config["n_layer"]):
        ours, theirs = f"layers.{i}", f"model.layers.{i}"
        yield _Source(f"{ours}.attn_norm.weight", f"{theirs}.input_layernorm.weight", (d_model,))
        yield _Source(f"{ours}.mlp_norm.weight", f"{theirs}.post_attention_layernorm.weight", (d_model,))
        for name, stored, n_out, n_in, bias in linears:
            yield _Source(f"{ours}.{name}.weight", f"{theirs}.{stored}.weight", (n_out, n_in))
            if bias:
                yield _Source(f"{ours}.{name}.bias", f"{theirs}.{stored}.bias", (n_out,))
    yield _Source("output_norm.weight", "model.norm.weight", (d_model,))
    if not config["tied"]:
        yield _Source("head", "lm_head.weight", (n_vocab, d_model))


def _read_gpt2(fields: Fields) -> dict[str, Any]:
    fields.require("scale_attn_weights", True, because="attention is scaled by 1/sqrt(d_head)")
    fields.require(
        "scale_attn_by_inverse_layer_idx", False, because="attention is scaled alike in all layers"
    )
    fields.require("reorder_and_upcast_attn", False, because="there is one order of computation")
    fields.require("add_cross_attention", False, because="there is no encoder to attend to")
    d_model, n_head = fields.integer("n_embd"), fields.integer("n_head")
    if d_model % n_head:
        raise fields.error("n_embd", f"a multiple of n_head, which is {n_head}")
    return {
        "n_vocab": fields.integer("vocab_size"),
        "n_ctx": fields.integer("n_positions"),
        "n_layer": fields.integer("n_layer", maximum=_MAX_LAYERS),
        "n_head": n_head,
        "n_kv_head": n_head,
        "d_model": d_model,
        "d_head": d_model // n_head,
        "d_ff": fields.integer("n_inner", default=4 * d_model),
        "norm": "layer",
        "norm_eps": fields.number("layer_norm_epsilon", default=1e-5),
        "position": "learned",
        "inv_freq": [],
        "activation": fields.choice("activation_function", _ACTIVATIONS, default="gelu_new"),
        "gated": False,
        "tied": fields.boolean("tie_word_embeddings", default=True),
        "qkv_bias": True,
        "out_bias": True,
        "mlp_bias": True,
        "sliding_window": 0,
    }


def _transposed(array: NDArray[np.generic]) -> NDArray[np.generic]:
    """A Conv1D matrix [n_in, n_out] as [n_out, n_in], strided."""
    return array.T


def _third_of_rows(part: int) -> _View:
    """One of query, key, value: the transposed third of c_attn's weight, or of its bias; strided."""

    def view(array: NDArray[np.generic]) -> NDArray[np.generic]:
        third = array.shape[-1] // 3
        return array.T[part * third : (part + 1) * third]

    return view


def _gpt2_sources(config: Mapping[str, Any]) -> Iterator[_Source]:
    d_model, d_ff, n_vocab = config["d_model"], config["d_ff"], config["n_vocab"]
    yield _Source("token_embedding", "transformer.wte.weight", (n_vocab, d_model))
    yield _Source("position_embedding", "transformer.wpe.weight", (config["n_ctx"], d_model))
    linears = [
        ("attn_out", "attn.c_proj", d_model, d_model),
        ("mlp_up", "mlp.c_fc", d_ff, d_model),
        ("mlp_down", "mlp.c_proj", d_model, d_ff),
    ]
    for i in range(config["n_layer"]):
        ours, theirs = f"layers.{i}", f"transformer.h.{i}"
        for kind in ("weight", "bias"):
            yield _Source(f"{ours}.attn_norm.{kind}", f"{theirs}.ln_1.{kind}", (d_model,))
            yield _Source(f"{ours}.mlp_norm.{kind}", f"{theirs}.ln_2.{kind}", (d_model,))
        for kind, shape in (("weight", (d_model, 3 * d_model)), ("bias", (3 * d_model,))):
            for part, name in enumerate(("attn_q", "attn_k", "attn_v")):
                yield _Source(
                    f"{ours}.{name}.{kind}", f"{theirs}.attn.c_attn.{kind}", shape, _third_of_rows(part)
                )
        for name, stored, n_out, n_in in linears:
            yield _Source(f"{ours}.{name}.weight", f"{theirs}.{stored}.weight", (n_in, n_out), _transposed)
            yield _Source(f"{ours}.{name}.bias", f"{theirs}.{stored}.bias", (n_out,))
    for kind in ("weight", "bias"):
        yield _Source(f"output_norm.{kind}", f"transformer.ln_f.{kind}", (d_model,))
    if not config["tied"]:
        yield _Source("head", "lm_head.weight", (n_vocab, d_model))


_FAMILIES: Final[Mapping[str, _Family]] = {
    "LlamaForCausalLM": _Family(_read_llama, _llama_sources, "model."),
    "MistralForCausalLM": _Family(_read_mistral, _llama_sources, "model."),
    "GPT2LMHeadModel": _Family(_read_gpt2, _gpt2_sources, "transformer."),
}
_MODEL_TYPES: Final[Mapping[str, str]] = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "gpt2": "GPT2LMHeadModel",
}
