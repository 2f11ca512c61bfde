"""PEFT folders of LoRA adapters: ``adapter_config.json`` and ``adapter_model.safetensors``.

Fields are read as PEFT reads them. Fields that ask for an unsupported computation are refused by name, and so
are unused tensors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from specdec.errors import CheckpointError, CheckpointNotFoundError, UnsupportedModelError
from specdec.fields import Fields, is_finite, read_json_object
from specdec.models.checkpoints.safetensors_file import StoredTensor, read_safetensors
from specdec.text_files import reading

CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"
ADAPTER_FILES: Final = (CONFIG, WEIGHTS)

_PREFIX: Final = "base_model.model."
_LOW_RANK: Final = re.compile(
    r"(?P<module>.+)\.(?:lora_(?P<linear>[AB])\.weight|lora_embedding_(?P<table>[AB])"
    r"|lora_(?P<dora>magnitude_vector)(?:\.weight)?)"
)
_BASE: Final = ".base_layer.weight"
_CHANGED_BASES: Final = ("pissa", "olora", "corda", "loftq", "lora_ga")
# Fields of other PEFT methods.
_NOT_READ: Final = (
    "layer_replication", "target_parameters", "alora_invocation_tokens", "trainable_token_indices",
    "megatron_config", "arrow_config", "kasa_config", "monteclora_config", "use_bdlora", "velora_config",
)  # fmt: skip
_MOST_RANK: Final = 65536

# Fields without effect on the weights: names, training, initialization, what the tensors show anyway.
_HARMLESS: Final = frozenset(
    """
    auto_mapping base_model_name_or_path corda_config eva_config exclude_modules fan_in_fan_out
    inference_mode layers_pattern layers_to_transform loftq_config lora_dropout lora_ga_config megatron_core
    peft_version qalora_group_size revision runtime_config target_modules task_type
    """.split()
)


@dataclass(frozen=True)
class StoredLowRank:
    """The two low-rank matrices of one `module`, still in their file, and the `scale` of their product.

    `down`, `up`: [rank, inputs], [outputs, rank]; for an embedding [rank, rows], [columns, rank].
    `magnitude`: Row norms of DoRA (arXiv 2402.09353). `base`: The module's base weight, if PEFT saved it.
    """

    module: str
    down: StoredTensor
    up: StoredTensor
    scale: float
    of_table: bool
    magnitude: StoredTensor | None = None
    base: StoredTensor | None = None

    @property
    def rank(self) -> int:
        """Rank of the product."""
        return self.down.shape[0]


@dataclass(frozen=True)
class PeftFolder:
    """A checked adapter on disk; `whole` tensors (``modules_to_save``, biases) replace the base's."""

    path: Path
    low_rank: Mapping[str, StoredLowRank]
    whole: Mapping[str, StoredTensor] = field(default_factory=dict)

    @property
    def files(self) -> list[Path]:
        """Files that were read."""
        return [self.path / name for name in ADAPTER_FILES]


def open_peft_folder(path: Path) -> PeftFolder:
    """Open a LoRA adapter folder and check everything except the values."""
    with reading(path, CheckpointError):
        return _open(path)


def _open(path: Path) -> PeftFolder:
    file, weights = path / CONFIG, path / WEIGHTS
    expected = f"an adapter folder with {CONFIG} and {WEIGHTS}, as written by PEFT's save_pretrained"
    if not path.is_dir():
        raise CheckpointNotFoundError(f"{path}: no such folder; expected {expected}")
    if not file.is_file():
        raise CheckpointNotFoundError(f"{path}: has no {CONFIG}; expected {expected}")
    fields = Fields(read_json_object(file), file)
    _check_method(fields)
    if not weights.is_file():
        held = ", ".join(sorted(entry.name for entry in path.iterdir())[:5])
        raise CheckpointNotFoundError(f"{path}: has no {WEIGHTS}, but {held}; expected {expected}")
    is_dora = fields.boolean("use_dora", default=False)
    whole: dict[str, StoredTensor] = {}
    low_rank = {}
    parts = _tensors(weights, is_dora, whole)
    has_biases = fields.raw("bias") != "none"
    for name, tensor in whole.items():
        if not fields.raw("modules_to_save") and not (has_biases and name.endswith(".bias")):
            expected = "such tensors only with modules_to_save"
            raise tensor.error("is not part of LoRA", expected, UnsupportedModelError)
    if not parts and not whole:
        raise CheckpointError(f"{weights}: has no tensors; expected those of an adapter")
    for module, held_parts in parts.items():
        if held_parts.keys() == {"base"}:
            found = f"is the base of '{module}', which has no low-rank matrices"
            raise held_parts["base"].error(found, "both", UnsupportedModelError)
        low_rank[module] = _low_rank(fields, module, held_parts, is_dora=is_dora)
    fields.skip("r", "rank_pattern", "lora_alpha", "alpha_pattern", "use_rslora")  # if all tensors are whole
    fields.skip_false("ensure_weight_tying")
    fields.warn_of_unread(_HARMLESS)
    return PeftFolder(path, low_rank, whole)


def _tensors(file: Path, is_dora: bool, whole: dict[str, StoredTensor]) -> dict[str, dict[str, StoredTensor]]:
    """Return tensors by module and part ("A", "table A", "magnitude_vector", "base"); fill `whole`."""
    parts: dict[str, dict[str, StoredTensor]] = {}
    for name, tensor in read_safetensors(file).items():
        if not name.startswith(_PREFIX):
            expected = f"a name that starts with '{_PREFIX}'"
            raise tensor.error("does not belong to a LoRA adapter", expected, UnsupportedModelError)
        tensor.check()
        inner = name.removeprefix(_PREFIX)
        found = _LOW_RANK.fullmatch(inner)
        if "lora_" in inner and (found is None or (found["dora"] and not is_dora)):
            expected = "'….lora_A.weight' and '….lora_B.weight', or 'lora_embedding_A' and 'lora_embedding_B'"
            raise tensor.error("is an unsupported part of LoRA", expected, UnsupportedModelError)
        if found is not None:
            part = f"table {found['table']}" if found["table"] else found["linear"] or found["dora"]
            parts.setdefault(found["module"], {})[part] = tensor
        elif inner.endswith(_BASE):
            parts.setdefault(inner.removesuffix(_BASE), {})["base"] = tensor
        else:
            whole[inner.replace(".base_layer.", ".")] = tensor
    return parts


def _check_method(fields: Fields) -> None:
    method = fields.raw("peft_type")
    if method != "LORA":
        raise fields.unsupported("peft_type", '"LORA"')
    fields.require("use_qalora", False, because="QALoRA is not supported")
    fields.require("lora_bias", False, because="LoRA biases are not supported")
    if fields.raw("bias") not in (None, "none", "all", "lora_only"):
        raise fields.error("bias", '"none", "all" or "lora_only"')
    for name in _NOT_READ:
        if fields.raw(name):
            raise fields.unsupported(name, "no such field: only plain LoRA is supported")
    how = fields.raw("init_lora_weights")
    if isinstance(how, str) and how.lower().startswith(_CHANGED_BASES):
        raise fields.unsupported(
            "init_lora_weights",
            "a method that keeps the base's weights; PEFT converts the adapter if saved with "
            "path_initial_model_for_weight_conversion",
        )


def _low_rank(
    fields: Fields, module: str, parts: Mapping[str, StoredTensor], *, is_dora: bool
) -> StoredLowRank:
    of_table = "table A" in parts or "table B" in parts
    prefix = "table " if of_table else ""
    for part in (f"{prefix}A", f"{prefix}B", *(["magnitude_vector"] if is_dora and not of_table else [])):
        if part not in parts:
            raise next(iter(parts.values())).error(f"has no matching lora_{part}", "both")
    if is_dora and of_table:
        raise fields.unsupported("use_dora", "false with an adapter of embeddings")
    down, up, magnitude = parts[f"{prefix}A"], parts[f"{prefix}B"], parts.get("magnitude_vector")
    if len(down.shape) != 2 or len(up.shape) != 2 or down.shape[0] != up.shape[1]:
        raise down.shape_error(f"[rank, inputs] with lora_B [outputs, rank], which is {list(up.shape)}")
    rank = down.shape[0]
    if magnitude is not None and magnitude.shape != up.shape[:1]:
        raise magnitude.shape_error(f"[{up.shape[0]}], one value per output")
    named, given_by = _of_module(fields, "r", "rank_pattern", module)
    if type(named) is not int or not 1 <= named <= _MOST_RANK:
        raise fields.error(given_by, f"a whole number from 1 to {_MOST_RANK}")
    if named != rank:
        raise down.error(f"has {rank} rows", f"{named}, the rank in {CONFIG}")
    alpha, given_by = _of_module(fields, "lora_alpha", "alpha_pattern", module)
    if not is_finite(alpha):
        raise fields.error(given_by, "a finite number")
    by_root = fields.boolean("use_rslora", default=False)
    scale = alpha / (math.sqrt(rank) if by_root else rank)
    return StoredLowRank(module, down, up, scale, of_table, magnitude, parts.get("base"))


def _of_module(fields: Fields, name: str, patterns: str, module: str) -> tuple[Any, str]:
    """Return a module's value, from the first matching pattern or the field itself, and the field's name."""
    given: Any = fields.raw(patterns) or {}
    if not isinstance(given, dict):
        raise fields.error(patterns, "an object")
    for pattern, value in given.items():
        try:
            matches = re.fullmatch(rf"(.*\.)?({pattern})", module)
        except re.error as error:
            raise fields.error(patterns, f"regular expressions ({pattern!r}: {error})") from error
        if matches:
            return value, patterns
    value = fields.raw(name)
    if value is None:
        raise fields.error(name, "a number")
    return value, name
