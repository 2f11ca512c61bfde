"""Published layouts of EAGLE.

Read are

- EAGLE-1 (arXiv 2401.15077): ``fc``, ``layers.0.*`` without a norm of its input, the target's head;
- EAGLE-3 (arXiv 2503.01840) as SpecForge writes it (``LlamaForCausalLMEagle3``: ``midlayer.*``) and vLLM and
  AngelSlim read it (``Eagle3LlamaForCausalLM``: ``layers.0.*``), with the flags of vLLM and EAGLE 3.1;
- EAGLE-3 of ``speculators`` (``speculators_model_type``: "eagle3"), which nests the layer's configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from specdec.checks import check_integer, check_items
from specdec.drafts.learned.eagle.published import (
    PublishedDraft,
    block_config,
    entries_of,
    head_config,
    joined_config,
    matched,
)
from specdec.drafts.learned.folder import MAX_TAPS, TargetIdentity, target_tokens
from specdec.errors import CheckpointError, CheckpointNotFoundError, InputError, VocabularyMismatchError
from specdec.fields import Fields, read_json_object
from specdec.models.checkpoints.safetensors_file import StoredTensor, open_weights
from specdec.models.model import Model

_EAGLE3_NAMES: Final = frozenset(
    {"LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Qwen3ForCausalLM", "LlamaForCausalLM"}
)
_EAGLE1_NAMES: Final = frozenset(
    {"LlamaForCausalLM", "Qwen2ForCausalLM", "EagleLlamaForCausalLM", "LlamaForCausalLMEagle"}
)
_OF_OUTPUTS: Final = "LlamaForCausalLMEagle3"
"""Where ``eagle_config`` names layers by their outputs: 1 is the state after two layers, as in SGLang."""
_MODELOPT: Final = {
    "use_input_layernorm_in_first_layer": True, "use_last_layernorm": True, "use_mtp_layernorm": False
}  # fmt: skip
"""Flags of ModelOpt in ``eagle_config``, as EAGLE-3 has them."""


def is_published(folder: Path) -> bool:
    """Return whether a folder holds a published draft of EAGLE, by its configuration and tensors."""
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


def open_published(path: Path, target: Model, taps: Sequence[int] | None = None) -> PublishedDraft:
    """Open a draft of EAGLE for a target, with the hidden states `taps` in place of those of its files."""
    file = path / "config.json"
    fields = Fields(read_json_object(file), file)
    trained = fields.object("specdec_draft")  # training has added the target and the hidden states
    if trained is None:
        trained = fields.empty("specdec_draft")
    else:
        TargetIdentity.read(trained).check(target, str(path))
    if fields.has("speculators_model_type"):
        return _open_eagle3(path, fields, trained, target, taps, "speculators")
    names = fields.raw("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise fields.error("architectures", "a list of names")
    third = fields.has("draft_vocab_size") or "eagle3" in names[0].lower()
    known = _EAGLE3_NAMES if third else _EAGLE1_NAMES
    if names[0] not in known:
        raise fields.unsupported("architectures", f"one of {', '.join(sorted(known))}")
    if third:
        return _open_eagle3(path, fields, trained, target, taps, names[0])
    return _open_eagle1(path, fields, trained, target, taps)


def _open_eagle3(
    path: Path, fields: Fields, trained: Fields, target: Model, taps: Sequence[int] | None, layout: str
) -> PublishedDraft:
    layer = fields
    if layout == "speculators":
        if fields.raw("speculators_model_type") != "eagle3":
            raise fields.unsupported("speculators_model_type", '"eagle3"')
        layer = fields.inner("transformer_layer_config")
    flags = fields.object("eagle_config") or fields.empty("eagle_config")
    for holder in (fields, flags):
        holder.require("parallel_drafting", False, because="one token is guessed after another")
        holder.require("use_aux_hidden_state", True, because="EAGLE-3 reads hidden states of several layers")
    for name, wanted in _MODELOPT.items():
        flags.require(name, wanted, because="EAGLE-3 has these norms and no others")
    on = {
        name: flags.boolean(name, default=fields.boolean(name, default=False))
        for name in ("norm_before_fc", "fc_norm", "norm_before_residual", "norm_output")
    }
    if on["norm_before_fc"] and on["fc_norm"]:
        raise fields.error("fc_norm", "false with norm_before_fc: one of the two norms")

    held, config = _renamed(path), block_config(layer)
    width = fields.integer("target_hidden_size", default=config["d_model"])
    _check_target(path, target, width, config["n_vocab"])
    named = "eagle_aux_hidden_state_layer_ids"
    shift = 1 if layout == _OF_OUTPUTS else 0
    layers = _taps(target, taps, (trained, "taps", 0), (fields, named, 0), (flags, named, shift))
    layers = layers or usual_taps(target.config.n_layer)
    if layers is None:
        few = f"whose {target.config.n_layer} layers are too few for the usual ones"
        raise InputError.of("taps", None, f"hidden states of {target.path}, {few}; the draft names none")
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
    entries = entries_of(path, config, table, {"feature_input_norm.weight": pieces})
    d2t = held.get("d2t")
    tokens = target_tokens(str(d2t.file if d2t else path), d2t, n_draft, config["n_vocab"])
    if tokens is not None and np.array_equal(tokens, range(config["n_vocab"])):
        tokens = None
    return matched(path, "EAGLE-3", config, entries, held, layers, tokens, on["norm_output"])


def _ends(
    path: Path, held: Mapping[str, StoredTensor], config: Mapping[str, Any], target: Model, n_draft: int
) -> dict[str, Any]:
    """Return whose embeddings and head EAGLE-3 uses: its own, or the target's."""
    n_vocab, d_model = config["n_vocab"], config["d_model"]
    own_table, own_head = "embed_tokens.weight" in held, "lm_head.weight" in held
    if not own_table and d_model != target.config.d_model:
        expected = f"expected it with shape {[n_vocab, d_model]}, as the target's is of another width"
        raise CheckpointError(f"{path}: tensor 'embed_tokens.weight' is missing; {expected}")
    tied = not own_head and own_table and n_draft == n_vocab and config["tied"]
    shared_head = not own_head and not tied and n_draft == n_vocab
    found = {
        "shared_embedding": not own_table, "shared_head": shared_head, "tied": tied,
        "n_guesses": n_draft if n_draft < n_vocab else 0,
    }  # fmt: skip
    return found | (head_config(target) if shared_head else {})


def _taps(
    target: Model, given: Sequence[int] | None, *named: tuple[Fields, str, int]
) -> tuple[int, ...] | None:
    """Return the hidden states of a feature: those given, or those of the first field that is there.

    ``named``: objects, names of fields in them, and what is added to the numbers there.
    """
    last = target.config.n_layer + 1
    if given is not None:
        listed = check_items("taps", given, "a sequence of integers")
        if not 1 <= len(listed) <= MAX_TAPS:
            raise InputError(f"taps names {len(listed)} hidden states; expected 1 to {MAX_TAPS}")
        return tuple(check_integer(f"taps[{i}]", tap, 0, last) for i, tap in enumerate(listed))
    for holder, name, shift in named:
        if holder.raw(name) in (None, []):
            continue
        taps = holder.integers(name, -shift, last - shift)
        if len(taps) > MAX_TAPS:
            raise holder.error(name, f"at most {MAX_TAPS} hidden states of {target.path}")
        return tuple(tap + shift for tap in taps)
    return None


def usual_taps(n_layer: int) -> tuple[int, ...] | None:
    """Return those of the EAGLE-3 paper's code: 2, middle, third last; None where these are not three."""
    usual = (2, n_layer // 2, n_layer - 3)
    return usual if usual[0] < usual[1] < usual[2] else None


def _open_eagle1(
    path: Path, fields: Fields, trained: Fields, target: Model, taps: Sequence[int] | None
) -> PublishedDraft:
    held, config = _renamed(path), block_config(fields)
    if fields.boolean("qkv_bias", default=False):
        config["qkv_bias"] = True
    _check_target(path, target, config["d_model"], config["n_vocab"])
    layers = _taps(target, taps, (trained, "taps", 0)) or (target.config.n_layer + 1,)
    if len(layers) != 1:
        raise InputError(f"taps names {len(layers)} hidden states; expected 1, as EAGLE-1 reads")
    config |= joined_config(target) | {
        "feature_bias": "fc.bias" in held, "first_norm": False, "output_norm": False,
        "shared_embedding": "embed_tokens.weight" not in held,
    }  # fmt: skip
    entries = entries_of(path, config, {}, {})
    return matched(path, "EAGLE-1", config, entries, held, layers, None, normed_feedback=False)


def _renamed(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of the files by the names of EAGLE-3 in vLLM's spelling."""
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
        found = f"given is {target.path} of d_model {given.d_model}"
        raise InputError(f"{path} reads hidden states of {width} numbers; {found}; expected its target")
    if n_vocab != given.n_vocab:
        expected = f"the {given.n_vocab} of the target {target.path}"
        raise VocabularyMismatchError(f"{path} reads {n_vocab} tokens; expected {expected}")
