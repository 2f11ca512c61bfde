"""Folders that trainings read and write: tokenizers beside weights, weights in a number format."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specdec.atomic_file import replacing
from specdec.drafts.learnt.folder import LearntWeights
from specdec.errors import InputError
from specdec.learning.hugging_face import silent
from specdec.learning.target_ends import as_torch
from specdec.models.checkpoints.safetensors_file import write_safetensors
from specdec.models.model import Model

__all__ = [
    "copy_tokenizer", "end_ids", "hf_folder", "learnt_tensors", "write_decoder", "write_json",
    "write_tensors",
]  # fmt: skip

_TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "tokenizer.model", "spiece.model", "vocab.json", "merges.txt", "chat_template.jinja",
)  # fmt: skip


def hf_folder(target: Model) -> Path:
    """The Hugging Face folder that a target was read from, which transformers reads too.

    The embedded target is stored as one.

    Raises
    ------
    InputError
        It was read from another kind of file.
    """
    if not (target.path / "config.json").is_file():
        raise InputError(
            f"target {target.path} is no Hugging Face folder; expected one, since this training goes "
            "through the target, which transformers reads"
        )
    return target.path


def copy_tokenizer(target: Model, folder: Path) -> None:
    """Copy the files of the target's tokenizer, where it was read from a folder."""
    for name in _TOKENIZER_FILES:
        if (target.path / name).is_file():
            with (target.path / name).open("rb") as source, replacing(folder / name) as file:
                shutil.copyfileobj(source, file)


def end_ids(target: Model) -> tuple[int | None, Any]:
    """(id that begins a text, id or ids that end it) by the target's config.json; None where it has none."""
    path = target.path / "config.json"
    if not path.is_file():
        return None, None
    config = json.loads(path.read_text(encoding="utf-8"))
    config = config.get("text_config") or config
    return config.get("bos_token_id"), config.get("eos_token_id")


def write_json(path: Path, value: Any) -> None:
    """Write an object as JSON, whole or not at all."""
    with replacing(path) as file:
        file.write((json.dumps(value, indent=2) + "\n").encode())


def write_tensors(path: Path, tensors: Mapping[str, Tensor], weights: str) -> None:
    """Write a safetensors file; matrices in the format `weights`, "bf16" or "f32", integers as they are."""
    stored = {name: tensor.contiguous() for name, tensor in _stored(tensors, weights).items()}
    arrays = {
        name: (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
        for name, tensor in stored.items()
    }
    write_safetensors(path, arrays, {"format": "pt"})


def _stored(tensors: Mapping[str, Tensor], weights: str) -> dict[str, Tensor]:
    """Tensors as a file has them: real numbers in the format `weights`."""
    dtype = {"bf16": torch.bfloat16, "f32": torch.float32}[weights]
    return {
        name: tensor.detach().to("cpu", dtype) if tensor.is_floating_point() else tensor.detach().cpu()
        for name, tensor in tensors.items()
    }


def write_decoder(network: Any, target: Model, folder: Path, weights: str) -> None:
    """Write a decoder of transformers as a Hugging Face folder, with the target's tokenizer."""
    tensors = _stored(network.state_dict(), weights)
    folder.mkdir(parents=True, exist_ok=True)
    with silent(), tempfile.TemporaryDirectory(dir=folder) as written:
        network.save_pretrained(written, state_dict=tensors)
        for path in sorted(Path(written).iterdir()):
            path.replace(folder / path.name)
    copy_tokenizer(target, folder)


def learnt_tensors(stored: LearntWeights, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a learnt draft's folder in f32, with the names and shapes of a network's `own`.

    Raises
    ------
    CheckpointError
        A tensor is missing, has another shape, or is none of the network's.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in own.items()}
    return {tensor[0]: as_torch(tensor) for tensor in stored.tensors(shapes)}
