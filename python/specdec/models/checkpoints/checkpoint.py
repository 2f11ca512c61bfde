"""Opened and checked checkpoints whose weights are not read yet."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from specdec.models.chat_template import ChatTemplate
from specdec.models.checkpoints.file_tensor import FileRows
from specdec.models.number_formats import Dtype
from specdec.models.tokenizer import SourceTokenizer, Tokenizer

CanonicalTensor: TypeAlias = tuple[str, NDArray[np.generic], str]
"""(canonical name, array of any strides, format): format is "f32", "f16" or "bf16" (bf16 as uint16 bits).

Quantized blocks are uint8, [rows, bytes per row], with a format such as "q4_k"."""

UnreadTensor: TypeAlias = tuple[str, FileRows, str]
"""A `CanonicalTensor` whose rows are still in the file."""


@dataclass(frozen=True)
class StoredTensors:
    """Tensors that keep the data type of their file.

    `formats`: The core's format of each matrix and of the token embedding. `blocks`: The ggml type of those
    that stay quantized. `types`: The file's types, for display. `message`: Which types are converted.
    """

    formats: Mapping[str, str]
    blocks: Mapping[str, str]
    types: str
    message: str = ""


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint of any file format.

    Attributes
    ----------
    path : Path
        The folder or file.
    architecture : str
        The checkpoint's name for its architecture, such as "LlamaForCausalLM".
    config : dict
        The canonical configuration, for ``specdec._core.Model``.
    tokenizer, chat_template, source_tokenizer
        From the checkpoint or the caller; None if there is none.
    dtype : str
        The lossless number format: "bf16" if all matrices are stored in it, else "f32", which holds f16 too.
    n_bytes : int
        Bytes that :meth:`tensors` reads.
    default_sampling : dict
        The authors' recommended sampling settings; see `specdec.Model.default_sampling`.
    decoder_start : tuple of int
        Ids that an encoder-decoder's output starts with.
    bos_id, eos_ids : int or None, tuple of int
        BOS and EOS ids from the configuration.
    weight_files : tuple of Path
        Files that hold the weights.
    fields : mapping or None
        The fields of config.json; for a GGUF file, of an equivalent config.json.
    stored : StoredTensors or None
        Which tensors stay quantized; None if the files hold no quantized tensors.
    """

    path: Path
    architecture: str
    config: Mapping[str, Any]
    tokenizer: Tokenizer | None
    dtype: Dtype
    n_bytes: int
    _tensors: Callable[[Container[str], bool], Iterator[CanonicalTensor | UnreadTensor]] = field(repr=False)
    default_sampling: Mapping[str, Any] = field(default_factory=dict)
    chat_template: ChatTemplate | None = None
    source_tokenizer: SourceTokenizer | None = None
    decoder_start: tuple[int, ...] = ()
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    weight_files: tuple[Path, ...] = ()
    fields: Mapping[str, Any] | None = field(default=None, repr=False)
    stored: StoredTensors | None = field(default=None, repr=False)

    def tensors(self, as_blocks: Container[str] = ()) -> Iterator[CanonicalTensor]:
        """Yield every weight once, reading one stored tensor at a time.

        Parameters
        ----------
        as_blocks : container of str
            Canonical names in `StoredTensors.blocks` to yield as quantized blocks.

        Raises
        ------
        CheckpointError
            The file has become shorter since it was opened, or cannot be read.
        """
        return cast("Iterator[CanonicalTensor]", self._tensors(as_blocks, False))

    def unread_tensors(self, as_blocks: Container[str] = ()) -> Iterator[CanonicalTensor | UnreadTensor]:
        """Yield as `tensors`, but leave matrices whose rows are rows of the file for the core to read."""
        return self._tensors(as_blocks, True)
