"""A checkpoint on disk, opened and checked, its weights still in the file."""

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

Of blocks of codes uint8, [rows, bytes of a row], and the name of their type, such as "q4_k"."""

UnreadTensor: TypeAlias = tuple[str, FileRows, str]
"""The same of a matrix whose rows are still in the file."""


@dataclass(frozen=True)
class StoredTensors:
    """Which tensors of a model stay as they are in their file.

    `formats`: Of matrices and the table of tokens, the core's. `blocks`: Of those that stay blocks of codes,
    the type of GGUF files. `types`: The file's, for people. `message`: What does not keep its type.
    """

    formats: Mapping[str, str]
    blocks: Mapping[str, str]
    types: str
    message: str = ""


@dataclass(frozen=True)
class Checkpoint:
    """What every loader gives, whatever the file format.

    Attributes
    ----------
    path : Path
        The folder or file.
    architecture : str
        What the checkpoint calls its own architecture, such as "LlamaForCausalLM".
    config : dict
        The canonical configuration, as ``specdec._core.Model`` takes it.
    tokenizer, chat_template, source_tokenizer
        Of the checkpoint, or the ones asked for; None: none.
    dtype : str
        The number format in which a model of the file is the file's own: "bf16" where all matrices are stored
        in it, else "f32", which holds f16 exactly too.
    n_bytes : int
        How much :meth:`tensors` reads.
    default_sampling : dict
        The sampling settings that the checkpoint's authors name; see `specdec.Model.default_sampling`.
    decoder_start : tuple of int
        Of an encoder-decoder: what the files name as the beginning of the decoder's text.
    bos_id, eos_ids : int or None, tuple of int
        The tokens that begin and end a text, from the configuration.
    weight_files : tuple of Path
        The files that hold the weights.
    fields : mapping or None
        Those of config.json; of a GGUF file those that a config.json of the same model has.
    stored : StoredTensors or None
        Of files that hold codes: which tensors keep them.
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
        """Every weight once, read from the file when its turn comes.

        Who keeps none of the arrays has one stored tensor in memory at a time.

        Parameters
        ----------
        as_blocks : container of str
            Canonical names, of those in `StoredTensors.blocks`: given as the blocks of codes that they are.

        Raises
        ------
        CheckpointError
            The file has become shorter since it was opened, or cannot be read.
        """
        return cast("Iterator[CanonicalTensor]", self._tensors(as_blocks, False))

    def unread_tensors(self, as_blocks: Container[str] = ()) -> Iterator[CanonicalTensor | UnreadTensor]:
        """As `tensors`, but matrices whose rows are rows of a file are not read: the core reads them."""
        return self._tensors(as_blocks, True)
