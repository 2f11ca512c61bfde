"""Published drafts that live on hidden states of a target: EAGLE-1, EAGLE-3, multi-token prediction.

Read are the layouts of

- EAGLE-1 (arXiv 2401.15077): ``fc``, ``layers.0.*`` without a norm of its input, the target's head;
- EAGLE-3 (arXiv 2503.01840) as SpecForge writes it (``LlamaForCausalLMEagle3``: ``midlayer.*``) and vLLM and
  AngelSlim read it (``Eagle3LlamaForCausalLM``: ``layers.0.*``), with the flags of vLLM and EAGLE 3.1;
- EAGLE-3 of ``speculators`` (``speculators_model_type``: "eagle3"), which nests the layer's configuration;
- native heads for multi-token prediction of MiMo (``model.mtp_layers.0.*`` in the target's own folder).

A draft's configuration becomes that of a model of the core with features: which tensor of the core is which
of the file's is said in one table for each layout. Weights in pickles (``pytorch_model.bin``) are not read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specdec import _core
from specdec.checks import check_integer, check_items
from specdec.drafts.learnt.folder import MAX_TAPS, TargetIdentity, target_tokens
from specdec.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    InputError,
    UnsupportedModelError,
    VocabularyMismatchError,
)
from specdec.models.checkpoints import CanonicalTensor
from specdec.models.checkpoints.safetensors_file import StoredTensor, open_weights
from specdec.models.families import FAMILIES, ConfigReader
from specdec.models.json_fields import Fields, as_json, read_json_object
from specdec.models.model import Model
from specdec.models.number_formats import Dtype

__all__ = ["PublishedDraft", "is_published", "open_native_head", "open_published", "usual_taps"]

_EAGLE3_NAMES: Final = frozenset(
    {"LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "Eagle3Qwen3ForCausalLM", "LlamaForCausalLM"}
)
_EAGLE1_NAMES: Final = frozenset(
    {"LlamaForCausalLM", "Qwen2ForCausalLM", "EagleLlamaForCausalLM", "LlamaForCausalLMEagle"}
)
_OF_OUTPUTS: Final = "LlamaForCausalLMEagle3"
"""Where ``eagle_config`` names layers by their outputs: 1 is what two layers leave, as SGLang has it."""
_BLOCKS: Final = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
_IGNORED: Final = re.compile(r"^t2d$|rotary_emb\.inv_freq$|^verifier_(norm|lm_head)\.weight$")

_MODELOPT: Final = {
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
}
"""Flags of ModelOpt in ``eagle_config``, as EAGLE-3 has them."""

Names = list[str]
Take = Callable[[list[NDArray[Any]]], NDArray[Any]]


@dataclass(frozen=True)
class _Entry:
    """A tensor of the core: the file's names, the shape of each, and how it is made of them."""

    names: Names
    shapes: list[tuple[int, ...]]
    take: Take


@dataclass(frozen=True)
class PublishedDraft:
    """A draft as its files have it, checked, its weights still in them.

    Attributes
    ----------
    path : Path
    kind : str
        "EAGLE-1", "EAGLE-3" or "MTP".
    config : dict
        The canonical configuration of a model with features.
    layers : tuple of int
        Hidden states of the target that make a feature, in this order.
    tokens : ndarray of int32, shape (n_draft_vocab,), or None
        The target's token of each of the draft's; None: they are the same.
    normed_feedback : bool
        Later guesses read what stands behind the draft's last norm.
    dtype : str
        The number format in which a draft of the files is their own.
    n_bytes : int
        How much :meth:`tensors` reads.
    """

    path: Path
    kind: str
    config: dict[str, Any]
    layers: tuple[int, ...]
    tokens: NDArray[np.int32] | None
    normed_feedback: bool
    dtype: Dtype
    n_bytes: int
    _entries: Mapping[str, _Entry]
    _held: Mapping[str, StoredTensor]

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that it is read from."""
        return self.path / "config.json", *sorted({tensor.file for tensor in self._held.values()})

    def tensors(self) -> Iterator[CanonicalTensor]:
        """Every weight once, read when its turn comes.

        Raises
        ------
        CheckpointError
            The file has become shorter since it was opened, or cannot be read.
        """
        for name, entry in self._entries.items():
            held = [self._held[stored] for stored in entry.names]
            yield name, entry.take([tensor.array() for tensor in held]), held[0].format


def is_published(folder: Path) -> bool:
    """Whether a folder holds a published draft of EAGLE, by its configuration and the names of its tensors.

    Raises
    ------
    CheckpointError
        The folder is damaged.
    """
    file = folder / "config.json"
    if not file.is_file():
        return False
    values = read_json_object(file)
    names = values.get("architectures")
    named = names if isinstance(names, list) else []
    if "speculators_model_type" in values or "draft_vocab_size" in values:
        return True
    if any(isinstance(name, str) and "eagle" in name.lower() for name in named):
        return True
    if not any(name in _EAGLE1_NAMES for name in named if isinstance(name, str)):
        return False
    try:
        return "fc.weight" in _renamed(folder)
    except CheckpointNotFoundError:
        return False


def open_published(path: Path, target: Model, taps: Sequence[int] | None = None) -> PublishedDraft:
    """Open a draft of EAGLE for a target.

    Parameters
    ----------
    path : Path
    target : Model
    taps : sequence of int, optional
        Hidden states of the target, where the files say nothing or something else.

    Raises
    ------
    CheckpointNotFoundError
        The configuration or the weights are not there.
    UnsupportedModelError
        Another layout, or a setting that specdec does not have.
    CheckpointError
        A file is damaged, or what it says does not fit together.
    InputError
        It was made for another target, or reads hidden states that the target does not have.
    VocabularyMismatchError
        It guesses tokens of another vocabulary.
    """
    file = path / "config.json"
    fields = Fields(read_json_object(file), file)
    trained = _trained(path, fields, target)
    if fields.has("speculators_model_type"):
        return _open_eagle3(path, fields, trained, target, taps, "speculators")
    names = fields.raw("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise fields.error("architectures", "a list of names")
    if fields.has("draft_vocab_size") or "eagle3" in names[0].lower():
        if names[0] not in _EAGLE3_NAMES:
            raise fields.unsupported("architectures", f"one of {', '.join(sorted(_EAGLE3_NAMES))}")
        return _open_eagle3(path, fields, trained, target, taps, names[0])
    if names[0] not in _EAGLE1_NAMES:
        raise fields.unsupported("architectures", f"one of {', '.join(sorted(_EAGLE1_NAMES))}")
    return _open_eagle1(path, fields, trained, target, taps)


def _trained(path: Path, fields: Fields, target: Model) -> Fields:
    """What a training of specdec has written beside the layout: the target, which is checked, and taps."""
    trained = fields.object("specdec_draft")
    if trained is None:
        return fields.empty("specdec_draft")
    described = trained.object("target")
    if described is None:
        raise trained.error("target", "an object")
    TargetIdentity.read(described).check(target, str(path))
    return trained


# ------------------------------------------------------------------------------------------- EAGLE-3


def _open_eagle3(
    path: Path,
    fields: Fields,
    trained: Fields,
    target: Model,
    taps: Sequence[int] | None,
    layout: str,
) -> PublishedDraft:
    layer = fields
    if layout == "speculators":
        if fields.raw("speculators_model_type") != "eagle3":
            raise fields.unsupported("speculators_model_type", '"eagle3"')
        nested = fields.object("transformer_layer_config")
        if nested is None:
            raise fields.error("transformer_layer_config", "an object")
        layer = nested
    flags = fields.object("eagle_config") or fields.empty("eagle_config")
    for holder in (fields, flags):
        holder.require("parallel_drafting", False, because="one token is guessed after another")
        holder.require("use_aux_hidden_state", True, because="EAGLE-3 reads hidden states of several layers")
    for name, wanted in _MODELOPT.items():
        flags.require(name, wanted, because="EAGLE-3 has these norms and no others")

    def flag(name: str) -> bool:
        stated: bool = flags.boolean(name, default=fields.boolean(name, default=False))
        return stated

    held, config = _renamed(path), _block(layer)
    width = fields.integer("target_hidden_size", default=config["d_model"])
    _check_target(path, target, width, config["n_vocab"])
    shift = 1 if layout == _OF_OUTPUTS else 0
    layers = _taps(
        target,
        taps,
        (trained, "taps", 0),
        (fields, "eagle_aux_hidden_state_layer_ids", 0),
        (flags, "eagle_aux_hidden_state_layer_ids", shift),
    )
    if layers is None:
        layers = usual_taps(target.config.n_layer)
    if layers is None:
        raise InputError(
            f"taps is None, and the draft does not name the hidden states that it reads; expected three of "
            f"{target.path}, whose {target.config.n_layer} layers are too few for the usual ones"
        )
    n_draft = fields.integer("draft_vocab_size", default=config["n_vocab"], maximum=config["n_vocab"])
    if flag("norm_before_fc") and flag("fc_norm"):
        raise fields.error("fc_norm", "false with norm_before_fc: one of the two norms")
    normed = {"norm_before_fc": 1, "fc_norm": len(layers)}
    own_table, own_head = "embed_tokens.weight" in held, "lm_head.weight" in held
    tied = not own_head and own_table and n_draft == config["n_vocab"] and config["tied"]
    if not own_table and config["d_model"] != target.config.d_model:
        raise CheckpointError(
            f"{path}: tensor 'embed_tokens.weight' is missing; expected it with shape "
            f"{[config['n_vocab'], config['d_model']]}, as the target's has {target.config.d_model} columns"
        )
    config |= {
        "n_ctx": target.config.n_ctx,
        "features": "aside",
        "feature_width": len(layers) * width,
        "feature_bias": "fc.bias" in held,
        "feature_pieces": sum(count for name, count in normed.items() if flag(name)),
        "feature_normed_stream": flag("norm_before_residual"),
        "shared_embedding": not own_table,
        "shared_head": not own_head and not tied and n_draft == config["n_vocab"],
        "tied": tied,
        "n_guesses": n_draft if n_draft < config["n_vocab"] else 0,
    }
    if config["shared_head"]:
        config |= _head_of(target)
    table = {
        "token_norm": "layers.0.input_layernorm",
        "feature_norm": "layers.0.hidden_norm",
        "output_norm": "norm",
    }
    pieces = ["input_norm"] if flag("norm_before_fc") else [f"fc_norm.{i}" for i in range(len(layers))]
    entries = _entries(path, config, table, {"feature_input_norm.weight": pieces})
    d2t = held.get("d2t")
    tokens = target_tokens(str(d2t.file if d2t else path), d2t, n_draft, config["n_vocab"])
    if tokens is not None and np.array_equal(tokens, range(config["n_vocab"])):
        tokens = None
    return _matched(path, "EAGLE-3", config, entries, held, layers, tokens, flag("norm_output"))


def _taps(
    target: Model, given: Sequence[int] | None, *named: tuple[Fields, str, int]
) -> tuple[int, ...] | None:
    """The hidden states that make a feature: those that are given, or those of the first field that is there.

    ``named``: objects, names of fields in them, and what is added to the numbers there.
    """
    n_layer = target.config.n_layer
    if given is not None:
        return _checked_taps(given, n_layer)
    for holder, name, shift in named:
        listed = holder.raw(name)
        if listed is None or listed == []:
            continue
        last = n_layer + 1 - shift
        if (
            not isinstance(listed, list)
            or len(listed) > MAX_TAPS
            or not all(isinstance(tap, int) and not isinstance(tap, bool) for tap in listed)
            or not all(-shift <= tap <= last for tap in listed)
        ):
            expected = f"at most {MAX_TAPS} hidden states of {target.path}, {-shift} to {last}"
            raise holder.error(name, expected)
        return tuple(tap + shift for tap in listed)
    return None


def usual_taps(n_layer: int) -> tuple[int, ...] | None:
    """Those of the EAGLE-3 paper's code: 2, the middle, the third last; None where these are not three."""
    usual = (2, n_layer // 2, n_layer - 3)
    return usual if usual[0] < usual[1] < usual[2] else None


def _checked_taps(given: Sequence[int], n_layer: int) -> tuple[int, ...]:
    listed = check_items("taps", given, "a sequence of integers")
    taps = tuple(check_integer(f"taps[{i}]", tap, 0, n_layer + 1) for i, tap in enumerate(listed))
    if not 1 <= len(taps) <= MAX_TAPS:
        raise InputError(f"taps names {len(taps)} hidden states; expected 1 to {MAX_TAPS}")
    return taps


# ------------------------------------------------------------------------------------------- EAGLE-1


def _open_eagle1(
    path: Path, fields: Fields, trained: Fields, target: Model, taps: Sequence[int] | None
) -> PublishedDraft:
    held, config = _renamed(path), _block(fields)
    if fields.boolean("qkv_bias", default=False):
        config["qkv_bias"] = True
    _check_target(path, target, config["d_model"], config["n_vocab"])
    layers = _taps(target, taps, (trained, "taps", 0)) or (target.config.n_layer + 1,)
    if len(layers) != 1:
        raise InputError(f"taps names {len(layers)} hidden states; expected 1, as EAGLE-1 reads")
    config |= _joined(target) | {
        "feature_bias": "fc.bias" in held,
        "first_norm": False,
        "output_norm": False,
        "shared_embedding": "embed_tokens.weight" not in held,
    }
    entries = _entries(path, config, {}, {})
    return _matched(path, "EAGLE-1", config, entries, held, layers, None, normed_feedback=False)


# ------------------------------------------------------------------------- native multi-token prediction

_NATIVE: Final = {"MiMoForCausalLM": "model.mtp_layers.0."}
"""Families that bring a head for multi-token prediction: architecture, and where its tensors are."""


def open_native_head(target: Model) -> PublishedDraft:
    """The head for multi-token prediction in the target's own folder.

    Raises
    ------
    UnsupportedModelError
        The target's family has none that is read, or several.
    CheckpointError
        The folder is damaged.
    """
    path, prefix = target.path, _NATIVE.get(target.architecture)
    file = path / "config.json"
    if prefix is None:
        raise UnsupportedModelError(
            f"{path} is a {target.architecture}, which has no head for multi-token prediction that is read; "
            f"expected one of {', '.join(_NATIVE)}"
        )
    fields = Fields(read_json_object(file), file)
    n_heads = fields.integer("num_nextn_predict_layers", minimum=0, default=0)
    if n_heads != 1:
        raise fields.unsupported("num_nextn_predict_layers", "1: one head, which reads what it wrote")
    config = _block(fields.replaced(num_hidden_layers=1), target.architecture)
    config |= _joined(target) | {"feature_norms": True, "shared_embedding": True}
    held = {
        name.removeprefix(prefix): tensor
        for name, tensor in open_weights(path).items()
        if name.startswith(prefix)
    }
    held = {_in_layer(name): tensor for name, tensor in held.items()}
    table = {
        "token_norm": "token_layernorm",
        "feature_norm": "hidden_layernorm",
        "output_norm": "final_layernorm",
        "feature_projection": "input_proj",
    }
    entries = _entries(path, config, table, {})
    projection = entries["feature_projection.weight"]
    entries["feature_projection.weight"] = _Entry(projection.names, projection.shapes, _swapped)
    layers = (target.config.n_layer + 1,)
    return _matched(path, "MTP", config, entries, held, layers, None, normed_feedback=True)


def _in_layer(name: str) -> str:
    """A name of the head's block as one of a layer."""
    own = ("token_layernorm", "hidden_layernorm", "final_layernorm", "input_proj")
    return name if name.startswith(own) else f"layers.0.{name}"


def _swapped(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    """Columns for feature and embedding in the order of the core: the embedding's first."""
    half = arrays[0].shape[1] // 2
    return np.concatenate([arrays[0][:, half:], arrays[0][:, :half]], axis=1)


# ------------------------------------------------------------------------------------- what all share


def _renamed(path: Path) -> dict[str, StoredTensor]:
    """The tensors of the files by the names of EAGLE-3 in vLLM's spelling."""
    held: dict[str, StoredTensor] = {}
    for name, tensor in open_weights(path).items():
        plain = name.removeprefix("model.").replace("midlayer.", "layers.0.", 1)
        if plain in held:
            raise CheckpointError(
                f"{tensor.file}: holds both '{held[plain].name}' and '{tensor.name}'; expected one"
            )
        held[plain] = tensor
    return held


def _block(fields: Fields, architecture: str | None = None) -> dict[str, Any]:
    """The canonical configuration of the draft's layers, as its family has them."""
    if architecture is None:
        architecture = fields.choice("model_type", _BLOCKS, default="llama")
    reader = ConfigReader(fields)
    config = FAMILIES[architecture].read_config(reader)
    if architecture == "LlamaForCausalLM":
        kinds = reader.layer_types(config["n_layer"], ["full_attention"] * config["n_layer"])
        config |= reader.windows(kinds)
    return config


def _joined(target: Model) -> dict[str, Any]:
    """What EAGLE-1 and native heads share: one hidden state of the target, its head and its context."""
    return {
        "n_ctx": target.config.n_ctx,
        "features": "joined",
        "feature_width": target.config.d_model,
        "shared_head": True,
        "tied": False,
    } | _head_of(target)


def _head_of(target: Model) -> dict[str, Any]:
    """What is done to the logits of the target's head."""
    return {name: target.config[name] for name in ("logit_scale", "logit_softcap")}


def _check_target(path: Path, target: Model, width: int, n_vocab: int) -> None:
    given = target.config
    if width != given.d_model:
        raise InputError(
            f"{path} reads hidden states of {width} numbers; given is the target {target.path} of d_model "
            f"{given.d_model}; expected the one that it was trained for"
        )
    if n_vocab != given.n_vocab:
        raise VocabularyMismatchError(
            f"{path} reads {n_vocab} tokens; expected the {given.n_vocab} of the target {target.path}"
        )


_LAYER: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_out": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "mlp_gate": "mlp.gate_proj",
    "mlp_up": "mlp.up_proj",
    "mlp_down": "mlp.down_proj",
}
_OUTSIDE: Final = {
    "token_embedding": "embed_tokens.weight",
    "head": "lm_head.weight",
    "feature_projection": "fc",
}


def _entries(
    path: Path, config: dict[str, Any], table: Mapping[str, str], joined: Mapping[str, Names]
) -> dict[str, _Entry]:
    """Where each tensor of the core comes from.

    ``table``: canonical names outside the layers, without suffix, and the file's; ``joined``: canonical names
    of vectors that the files have in pieces.
    """
    try:
        shapes = _core.tensor_shapes(config)
    except ValueError as error:  # the core's checks name the field of the canonical configuration
        raise CheckpointError(f"{path / 'config.json'}: {error}") from error
    entries: dict[str, _Entry] = {}
    for canonical, shape in shapes.items():
        if canonical in joined:
            pieces = [f"{name}.weight" for name in joined[canonical]]
            each = (shape[0] // len(pieces),)
            entries[canonical] = _Entry(pieces, [each] * len(pieces), np.concatenate)
            continue
        base = canonical.removesuffix(".weight").removesuffix(".bias")
        suffix = canonical[len(base) :]
        if base.startswith("layers."):
            _, layer, base = base.split(".", 2)
            stored = f"layers.{layer}.{_LAYER[base]}{suffix}"
        else:
            stored = (_OUTSIDE | dict(table))[base] + suffix
        entries[canonical] = _Entry([stored], [shape], lambda arrays: arrays[0])
    return entries


def _matched(
    path: Path,
    kind: str,
    config: dict[str, Any],
    entries: dict[str, _Entry],
    held: Mapping[str, StoredTensor],
    layers: tuple[int, ...],
    tokens: NDArray[np.int32] | None,
    normed_feedback: bool,
) -> PublishedDraft:
    """The draft, once its tensors are known to be there in the right shape, and no others."""
    used: list[StoredTensor] = []
    known = {"d2t"}
    for entry in entries.values():
        for name, shape in zip(entry.names, entry.shapes, strict=True):
            if name not in held:
                raise CheckpointError(
                    f"{path}: tensor '{name}' is missing; expected it with shape {list(shape)}"
                )
            tensor = held[name]
            if tensor.shape != tuple(shape):
                raise CheckpointError(
                    f"{tensor.file}: tensor '{tensor.name}' has shape {as_json(list(tensor.shape))}; "
                    f"expected {list(shape)}"
                )
            tensor.check()
            used.append(tensor)
            known.add(name)
    unknown = sorted(held[name].name for name in held if name not in known and not _IGNORED.search(name))
    if unknown:
        raise UnsupportedModelError(
            f"{path}: holds tensors that its config.json leaves without use: "
            f"{', '.join(map(repr, unknown[:5]))}; expected only those of {kind}"
        )
    formats = {tensor.format for tensor in used if len(tensor.shape) == 2}
    return PublishedDraft(
        path=path,
        kind=kind,
        config=config,
        layers=layers,
        tokens=tokens,
        normed_feedback=normed_feedback,
        dtype="bf16" if formats == {"bf16"} else "f32",
        n_bytes=sum(tensor.n_bytes for tensor in used),
        _entries=entries,
        _held=held,
    )
