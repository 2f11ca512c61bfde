"""Published EAGLE drafts.

Supported layouts:

- EAGLE-1 (arXiv 2401.15077): ``fc``, ``layers.0.*`` without a norm of its input, the target's head;
- EAGLE-3 (arXiv 2503.01840) as SpecForge writes it (``LlamaForCausalLMEagle3``: ``midlayer.*``) and vLLM and
  AngelSlim read it (``Eagle3LlamaForCausalLM``: ``layers.0.*``), with the flags of vLLM and EAGLE 3.1;
- EAGLE-3 of ``speculators`` (``speculators_model_type``: "eagle3"), which nests the layer's configuration.

A draft becomes a core model with input features; a table per layout maps the core's tensors to the file's.
Pickled weights (``pytorch_model.bin``) are not supported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specdec import _core
from specdec.checks import check_integer, check_items
from specdec.drafts.learned.folder import MAX_CAPTURES, TargetIdentity, target_tokens
from specdec.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    InputError,
    UnsupportedModelError,
    VocabularyMismatchError,
)
from specdec.fields import Fields, as_json, read_json_object
from specdec.models.checkpoints import CanonicalTensor
from specdec.models.checkpoints.safetensors_file import StoredTensor, open_weights
from specdec.models.families import FAMILIES, ConfigReader
from specdec.models.model import Model
from specdec.models.number_formats import Dtype

_BLOCKS: Final = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_IGNORED: Final = re.compile(r"^t2d$|rotary_emb\.inv_freq$|^verifier_(norm|lm_head)\.weight$")


@dataclass(frozen=True)
class Entry:
    """A tensor of the core: names and shape of its pieces in the file, and how to join them."""

    names: list[str]
    shape: list[int]
    take: Callable[[list[NDArray[Any]]], NDArray[Any]]


@dataclass(frozen=True)
class PublishedDraft:
    """A draft whose files are validated; tensors are read on demand."""

    path: Path
    variant: str  # "EAGLE-1", "EAGLE-3" or "MTP"
    config: Mapping[str, Any]  # canonical configuration of a model with features
    tensors: Callable[[], Iterator[Any]]  # reads every tensor of the core once
    dtype: Dtype  # number format
    files: tuple[Path, ...]
    layers: tuple[int, ...]  # captured hidden states of the target, in order
    tokens: NDArray[np.int32] | None  # [n_draft_vocab] target token of each draft token; None: all tokens
    normed_feedback: bool  # later steps read the output of the draft's last norm
    formats: Mapping[str, str] = field(default_factory=dict)  # of tensors with formats of their own


def _published(
    path: Path, variant: str, config: Mapping[str, Any], entries: Mapping[str, Entry],
    held: Mapping[str, StoredTensor], layers: tuple[int, ...], tokens: NDArray[np.int32] | None,
    *, normed_feedback: bool,
) -> PublishedDraft:  # fmt: skip
    """Check the files' tensors, `held`, against the entries."""
    used = {"d2t"}
    for entry in entries.values():
        used |= set(entry.names)
        for name in entry.names:
            if name not in held:
                wanted = f"expected it with shape {entry.shape}"
                raise CheckpointError(f"{path}: tensor '{name}' is missing; {wanted}")
            tensor = held[name]
            if list(tensor.shape) != entry.shape:
                where, found = f"{tensor.file}: tensor '{tensor.name}'", as_json(list(tensor.shape))
                raise CheckpointError(f"{where} has shape {found}; expected {entry.shape}")
            tensor.check()
    unknown = sorted(held[name].name for name in held if name not in used and not _IGNORED.search(name))
    if unknown:
        names = ", ".join(map(repr, unknown[:5]))
        unused = f"holds tensors that its config.json does not use: {names}"
        raise UnsupportedModelError(f"{path}: {unused}; expected only those of {variant}")
    matrices = [held[name] for entry in entries.values() for name in entry.names if len(entry.shape) == 2]
    dtype: Dtype = "bf16" if {one.format for one in matrices} == {"bf16"} else "f32"
    files = path / "config.json", *sorted({tensor.file for tensor in held.values()})
    tensors = partial(_tensors, entries, held)
    return PublishedDraft(path, variant, config, tensors, dtype, files, layers, tokens, normed_feedback)


def _tensors(entries: Mapping[str, Entry], held: Mapping[str, StoredTensor]) -> Iterator[CanonicalTensor]:
    """Read every tensor of the core once."""
    for name, entry in entries.items():
        stored = [held[part] for part in entry.names]
        yield name, entry.take([tensor.array() for tensor in stored]), stored[0].format


def _block_config(fields: Fields, architecture: str | None = None) -> dict[str, Any]:
    """Return the canonical configuration of the draft's layers, read by their model family."""
    if architecture is None:
        architecture = fields.choice("model_type", _BLOCKS, default="llama")
    reader = ConfigReader(fields)
    config = FAMILIES[architecture].read_config(reader)
    if architecture == "LlamaForCausalLM":
        layer_types = reader.layer_types(config["n_layer"], ["full_attention"] * config["n_layer"])
        config |= reader.windows(layer_types)
    return config


def joined_config(target: Model) -> dict[str, Any]:
    """Return the configuration shared by EAGLE-1 and MTP: one hidden state, the target's head and context."""
    joined = {"n_ctx": target.config.n_ctx, "features": "joined", "feature_width": target.config.d_model}
    return joined | {"shared_head": True, "tied": False} | _head_config(target)


def _head_config(target: Model) -> dict[str, Any]:
    """Return the logit scaling of the target's head."""
    return {name: target.config[name] for name in ("logit_scale", "logit_softcap")}


_LAYER: Final = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "attn_out": "self_attn.o_proj", "mlp_norm": "post_attention_layernorm", "mlp_gate": "mlp.gate_proj",
    "mlp_up": "mlp.up_proj", "mlp_down": "mlp.down_proj",
}  # fmt: skip
_OUTSIDE: Final = {
    "token_embedding": "embed_tokens.weight", "head": "lm_head.weight", "feature_projection": "fc"
}  # fmt: skip


def _entries_of(
    path: Path, config: dict[str, Any], table: Mapping[str, str], joined: Mapping[str, list[str]]
) -> dict[str, Entry]:
    """Map each tensor of the core to the file: `table` outside the layers; `joined` lists pieces."""
    try:
        shapes = _core.tensor_shapes(config)
    except ValueError as error:  # the core names the field of the canonical configuration
        raise CheckpointError(f"{path / 'config.json'}: {error}") from error
    entries: dict[str, Entry] = {}
    for canonical, shape in shapes.items():
        if canonical in joined:
            pieces = [f"{name}.weight" for name in joined[canonical]]
            entries[canonical] = Entry(pieces, [shape[0] // len(pieces)], np.concatenate)
            continue
        base = canonical.removesuffix(".weight").removesuffix(".bias")
        suffix = canonical[len(base) :]
        if base.startswith("layers."):
            _, layer, base = base.split(".", 2)
            stored = f"layers.{layer}.{_LAYER[base]}{suffix}"
        else:
            stored = (_OUTSIDE | dict(table))[base] + suffix
        entries[canonical] = Entry([stored], list(shape), lambda arrays: arrays[0])
    return entries


_EAGLE3_NAMES: Final = frozenset(
    {"LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Qwen3ForCausalLM", "LlamaForCausalLM"}
)
_EAGLE1_NAMES: Final = frozenset(
    {"LlamaForCausalLM", "Qwen2ForCausalLM", "EagleLlamaForCausalLM", "LlamaForCausalLMEagle"}
)
_OF_OUTPUTS: Final = "LlamaForCausalLMEagle3"
"""Layout whose ``eagle_config`` counts layer outputs, as SGLang does: 1 is the state after two layers."""
_MODELOPT: Final = {
    "use_input_layernorm_in_first_layer": True, "use_last_layernorm": True, "use_mtp_layernorm": False
}  # fmt: skip
"""Required flags of ModelOpt in ``eagle_config``."""


def is_published(folder: Path) -> bool:
    """Return whether a folder holds a published EAGLE draft, by its configuration and tensors."""
    file = folder / "config.json"
    if not file.is_file():
        return False
    values = read_json_object(file)
    names = values.get("architectures")
    named = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    if "speculators_model_type" in values or "draft_vocab_size" in values:
        return True
    if any("eagle" in name.lower() for name in named):
        return True
    if _EAGLE1_NAMES.isdisjoint(named):
        return False
    try:
        return "fc.weight" in _renamed(folder)
    except CheckpointNotFoundError:
        return False


def open_published(path: Path, target: Model, captures: Sequence[int] | None = None) -> PublishedDraft:
    """Open an EAGLE draft for a target; `captures` replaces the hidden states that the files name."""
    file = path / "config.json"
    fields = Fields(read_json_object(file), file)
    trained = fields.object("specdec_draft")  # target and captures, added by our training
    if trained is None:
        trained = fields.empty("specdec_draft")
    else:
        TargetIdentity.read(trained).check(target, str(path))
    if fields.has("speculators_model_type"):
        return _open_eagle3(path, fields, trained, target, captures, "speculators")
    names = fields.raw("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise fields.error("architectures", "a list of names")
    third = fields.has("draft_vocab_size") or "eagle3" in names[0].lower()
    known = _EAGLE3_NAMES if third else _EAGLE1_NAMES
    if names[0] not in known:
        raise fields.unsupported("architectures", f"one of {', '.join(sorted(known))}")
    if third:
        return _open_eagle3(path, fields, trained, target, captures, names[0])
    return _open_eagle1(path, fields, trained, target, captures)


def _open_eagle3(
    path: Path, fields: Fields, trained: Fields, target: Model, captures: Sequence[int] | None, layout: str
) -> PublishedDraft:
    layer = fields
    if layout == "speculators":
        if fields.raw("speculators_model_type") != "eagle3":
            raise fields.unsupported("speculators_model_type", '"eagle3"')
        layer = fields.inner("transformer_layer_config")
    flags = fields.object("eagle_config") or fields.empty("eagle_config")
    for holder in (fields, flags):
        holder.require("parallel_drafting", False, because="tokens are drafted one after another")
        holder.require("use_aux_hidden_state", True, because="EAGLE-3 reads hidden states of several layers")
    for name, wanted in _MODELOPT.items():
        flags.require(name, wanted, because="EAGLE-3 has exactly these norms")
    on = {
        name: flags.boolean(name, default=fields.boolean(name, default=False))
        for name in ("norm_before_fc", "fc_norm", "norm_before_residual", "norm_output")
    }
    if on["norm_before_fc"] and on["fc_norm"]:
        raise fields.error("fc_norm", "false with norm_before_fc, which excludes it")

    held, config = _renamed(path), _block_config(layer)
    width = fields.integer("target_hidden_size", default=config["d_model"])
    _check_target(path, target, width, config["n_vocab"])
    named = "eagle_aux_hidden_state_layer_ids"
    shift = 1 if layout == _OF_OUTPUTS else 0
    layers = _captures(target, captures, (trained, "captures", 0), (fields, named, 0), (flags, named, shift))
    layers = layers or usual_captures(target.config.n_layer)
    if layers is None:
        few = f"whose {target.config.n_layer} layers are too few for the default"
        raise InputError.of("captures", None, f"hidden states of {target.path}, {few}; the draft names none")
    n_draft = fields.integer("draft_vocab_size", default=config["n_vocab"], maximum=config["n_vocab"])
    config |= _ends(path, held, config, target, n_draft) | {
        "n_ctx": target.config.n_ctx,
        "features": "aside",
        "feature_width": len(layers) * width,
        "feature_bias": "fc.bias" in held,
        "feature_pieces": on["norm_before_fc"] + on["fc_norm"] * len(layers),
        "feature_normed_stream": on["norm_before_residual"],
    }
    table = {"token_norm": "layers.0.input_layernorm", "feature_norm": "layers.0.hidden_norm"}
    table["output_norm"] = "norm"
    pieces = ["input_norm"] if on["norm_before_fc"] else [f"fc_norm.{i}" for i in range(len(layers))]
    entries = _entries_of(path, config, table, {"feature_input_norm.weight": pieces})
    d2t = held.get("d2t")
    tokens = target_tokens(str(d2t.file if d2t else path), d2t, n_draft, config["n_vocab"])
    if tokens is not None and np.array_equal(tokens, range(config["n_vocab"])):
        tokens = None
    return _published(
        path, "EAGLE-3", config, entries, held, layers, tokens, normed_feedback=on["norm_output"]
    )


def _ends(
    path: Path, held: Mapping[str, StoredTensor], config: Mapping[str, Any], target: Model, n_draft: int
) -> dict[str, Any]:
    """Return whether EAGLE-3 has its own embeddings and head or shares the target's."""
    n_vocab, d_model = config["n_vocab"], config["d_model"]
    own_table, own_head = "embed_tokens.weight" in held, "lm_head.weight" in held
    if not own_table and d_model != target.config.d_model:
        expected = f"expected it with shape {[n_vocab, d_model]}, as the target's has another width"
        raise CheckpointError(f"{path}: tensor 'embed_tokens.weight' is missing; {expected}")
    tied = not own_head and own_table and n_draft == n_vocab and config["tied"]
    shared_head = not own_head and not tied and n_draft == n_vocab
    found = {
        "shared_embedding": not own_table, "shared_head": shared_head, "tied": tied,
        "n_draft_tokens": n_draft if n_draft < n_vocab else 0,
    }  # fmt: skip
    return found | (_head_config(target) if shared_head else {})


def _captures(
    target: Model, given: Sequence[int] | None, *named: tuple[Fields, str, int]
) -> tuple[int, ...] | None:
    """Return the captures of a feature: those given, or of the first field (holder, name, shift) present."""
    last = target.config.n_layer + 1
    if given is not None:
        listed = check_items("captures", given, "a sequence of integers")
        if not 1 <= len(listed) <= MAX_CAPTURES:
            raise InputError(f"captures names {len(listed)} hidden states; expected 1 to {MAX_CAPTURES}")
        return tuple(check_integer(f"captures[{i}]", capture, 0, last) for i, capture in enumerate(listed))
    for holder, name, shift in named:
        if holder.raw(name) in (None, []):
            continue
        captures = holder.integers(name, -shift, last - shift)
        if len(captures) > MAX_CAPTURES:
            raise holder.error(name, f"at most {MAX_CAPTURES} hidden states of {target.path}")
        return tuple(capture + shift for capture in captures)
    return None


def usual_captures(n_layer: int) -> tuple[int, ...] | None:
    """Return the captures of the EAGLE-3 code: 2, middle, third last; None if the model is too shallow."""
    usual = (2, n_layer // 2, n_layer - 3)
    return usual if usual[0] < usual[1] < usual[2] else None


def _open_eagle1(
    path: Path, fields: Fields, trained: Fields, target: Model, captures: Sequence[int] | None
) -> PublishedDraft:
    held, config = _renamed(path), _block_config(fields)
    if fields.boolean("qkv_bias", default=False):
        config["qkv_bias"] = True
    _check_target(path, target, config["d_model"], config["n_vocab"])
    layers = _captures(target, captures, (trained, "captures", 0)) or (target.config.n_layer + 1,)
    if len(layers) != 1:
        raise InputError(f"captures names {len(layers)} hidden states; expected 1, as EAGLE-1 reads")
    config |= joined_config(target) | {
        "feature_bias": "fc.bias" in held, "first_norm": False, "output_norm": False,
        "shared_embedding": "embed_tokens.weight" not in held,
    }  # fmt: skip
    entries = _entries_of(path, config, {}, {})
    return _published(path, "EAGLE-1", config, entries, held, layers, None, normed_feedback=False)


def _renamed(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of the files by vLLM's EAGLE-3 names."""
    held: dict[str, StoredTensor] = {}
    for name, tensor in open_weights(path).items():
        plain = name.removeprefix("model.").replace("midlayer.", "layers.0.", 1)
        if plain in held:
            both = f"'{held[plain].name}' and '{tensor.name}'"
            raise CheckpointError(f"{tensor.file}: holds both {both}; expected one")
        held[plain] = tensor
    return held


def _check_target(path: Path, target: Model, width: int, n_vocab: int) -> None:
    given = target.config
    if width != given.d_model:
        found = f"the given target {target.path} has d_model {given.d_model}"
        raise InputError(f"{path} reads hidden states of width {width}; {found}; expected its target")
    if n_vocab != given.n_vocab:
        expected = f"the {given.n_vocab} of the target {target.path}"
        raise VocabularyMismatchError(f"{path} has a vocabulary of {n_vocab}; expected {expected}")
