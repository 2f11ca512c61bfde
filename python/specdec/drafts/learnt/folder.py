"""Folders of learnt drafts: ``config.json`` and ``model.safetensors``, read, checked and written.

``config.json`` is an object with the fields

- ``specdec_draft``: 1, the version of the format;
- ``method``: which draft it is, such as "heads";
- ``target``: what it was trained for, as `TargetIdentity` has it;
- ``taps``: the hidden states of the target that it reads, by how many layers are behind them;
- ``n_draft_vocab``: how many of the target's tokens it may guess;
- ``weights``: a word that ``model.safetensors`` has in its metadata too, so that halves of different drafts
  are not taken for one; a folder without it is read unchecked;

and those of its method. ``model.safetensors`` holds the tensors of the method in f32, f16 or bf16. Where the
draft guesses fewer tokens than the target has, there is ``d2t``, int64 [n_draft_vocab]: token i of the draft
is token ``i + d2t[i]`` of the target, as EAGLE-3's checkpoints have it.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from specdec import _core
from specdec.atomic_file import replacing
from specdec.checks import check_choice, check_path
from specdec.drafts.learnt.held_tensor import Held, HeldTensor
from specdec.drafts.learnt.target_identity import TargetIdentity
from specdec.drafts.learnt.target_tokens import target_tokens
from specdec.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    InputError,
    SpecdecError,
    kind_of,
    shown,
)
from specdec.fields import Fields, as_json, read_json_object
from specdec.models.checkpoints.checkpoint import CanonicalTensor
from specdec.models.checkpoints.safetensors_file import read_safetensors_with_metadata, write_safetensors
from specdec.models.model import Model
from specdec.models.number_formats import Dtype, rounded_to_bf16, widened
from specdec.models.origin import FilesReference, ReadFiles
from specdec.threads import check_threads

__all__ = [
    "CONFIG_NAME",
    "WEIGHTS_NAME",
    "LearntWeights",
]

CONFIG_NAME: Final = "config.json"
WEIGHTS_NAME: Final = "model.safetensors"
VERSION: Final = 1
MAX_TAPS: Final = _core.MAX_TAPS
_WRITTEN: Final = ("bf16", "f16", "f32")

Core = TypeVar("Core")


@dataclass(frozen=True)
class LearntWeights:
    """A learnt draft as its folder has it, checked as far as all methods are alike.

    Attributes
    ----------
    where : str
        The folder, or "the draft" for one in memory: for messages.
    method : str
    target : TargetIdentity
    fields : Fields
        Those of ``config.json``.
    taps : tuple of int
        The target's hidden states that it reads, ascending.
    tokens : ndarray of int32, shape (n_draft_vocab,), or None
        The target's token of each of the draft's; None: they are the same.
    """

    where: str
    method: str
    target: TargetIdentity
    fields: Fields
    taps: tuple[int, ...]
    tokens: NDArray[np.int32] | None
    _held: Mapping[str, Held]
    _files: ReadFiles | None = None

    def __reduce__(self) -> tuple[Callable[..., LearntWeights], tuple[Any, ...]]:
        """A pickle names the folder; of weights in memory it holds them."""
        if self._files is not None:
            return _read_again, (self._files.reference(),)
        state = (self.where, self.method, self.target, self.fields, self.taps, self.tokens, self._held)
        return LearntWeights, state

    @classmethod
    def of(
        cls,
        method: str,
        target: Model,
        fields: Mapping[str, Any],
        tensors: Mapping[str, NDArray[Any]],
        *,
        taps: Sequence[int] = (),
        tokens: NDArray[Any] | Sequence[int] | None = None,
    ) -> LearntWeights:
        """Weights in memory, as training leaves them.

        Parameters
        ----------
        method : str
        target : Model
            What they were trained for.
        fields : Mapping
            The method's own fields of ``config.json``.
        tensors : Mapping of str to ndarray
            The method's tensors, of real numbers, which are held as float32.
        taps : sequence of int
        tokens : sequence of int, optional
            The tokens that may be guessed; None: all.

        Raises
        ------
        CheckpointError
            As `read`.
        """
        identity = TargetIdentity.of(target)
        held: dict[str, Held] = {
            name: HeldTensor(np.ascontiguousarray(array, np.float32), "f32")
            for name, array in tensors.items()
        }
        n_draft = identity.n_vocab
        if tokens is not None:
            listed = np.asarray(tokens, np.int64)
            n_draft = len(listed)
            held["d2t"] = HeldTensor(listed - np.arange(n_draft), "")
        config = {
            "specdec_draft": VERSION, "method": method, "target": identity.as_dict(),
            "taps": [int(tap) for tap in taps], "n_draft_vocab": n_draft, **fields,
        }  # fmt: skip
        return cls._checked("the draft", Fields(config, Path("the draft")), held)

    @classmethod
    def given(cls, weights: object, what: str) -> LearntWeights:
        """The argument `weights` of a draft: such weights, or the path of a folder of `what`.

        Raises
        ------
        InputError
            It is neither.
        CheckpointError
            As `read`.
        """
        if isinstance(weights, LearntWeights):
            return weights
        if not isinstance(weights, str | os.PathLike):
            raise InputError(f"weights is {kind_of(weights)}; expected the folder of {what}")
        return cls.read(check_path("weights", weights, CheckpointError))

    @classmethod
    def read(cls, path: Path) -> LearntWeights:
        """Open a folder; the tensors stay in their file.

        Raises
        ------
        CheckpointNotFoundError
            One of the two files is not there.
        UnsupportedModelError
            It is of a later version of the format.
        CheckpointError
            A file is damaged, or what it says does not fit together: named are file, field, what was found
            and what was expected.
        """
        config, file = path / CONFIG_NAME, path / WEIGHTS_NAME
        files = ReadFiles(path, [config, file])
        values = read_json_object(config)
        if not file.is_file():
            raise CheckpointNotFoundError(f"{file}: no such file; expected the weights of the draft")
        tensors, metadata = read_safetensors_with_metadata(file)
        named = values.get("weights")
        if named is not None and metadata.get("weights") != named:
            raise CheckpointError(
                f"{file}: metadata field 'weights' is {as_json(metadata.get('weights'))}; expected "
                f"{as_json(named)}, as in {CONFIG_NAME}: the two files are of different drafts"
            )
        return cls._checked(str(path), Fields(values, config), tensors, files)

    @classmethod
    def _checked(
        cls, where: str, fields: Fields, held: Mapping[str, Held], files: ReadFiles | None = None
    ) -> LearntWeights:
        version = fields.integer("specdec_draft")
        if version != VERSION:
            raise fields.unsupported("specdec_draft", f"{VERSION}, the version that this specdec reads")
        method = fields.raw("method")
        if not isinstance(method, str):
            raise fields.error("method", "a text")
        described = fields.object("target")
        if described is None:
            raise fields.error("target", "an object")
        target = TargetIdentity.read(described)
        taps = _taps(fields, target.n_layer)
        n_draft = fields.integer("n_draft_vocab", maximum=target.n_vocab)
        tokens = _tokens(where, held.get("d2t"), n_draft, target.n_vocab)
        rest = {name: tensor for name, tensor in held.items() if name != "d2t"}
        return cls(where, method, target, fields, taps, tokens, rest, files)

    @property
    def n_draft_vocab(self) -> int:
        """How many of the target's tokens may be guessed."""
        return self.target.n_vocab if self.tokens is None else len(self.tokens)

    @property
    def dtype(self) -> Dtype:
        """The number format in which a draft of them is their own: bf16 where all matrices are, else f32."""
        matrices = [tensor for tensor in self._held.values() if len(tensor.shape) == 2]
        return "bf16" if matrices and all(tensor.format == "bf16" for tensor in matrices) else "f32"

    def check_method(self, method: str) -> None:
        """Refuse the weights of another method.

        Raises
        ------
        CheckpointError
        """
        if self.method != method:
            raise self.fields.error("method", as_json(method))

    def check_taps(self, *taps: int) -> None:
        """Refuse weights that read other hidden states than these.

        Raises
        ------
        CheckpointError
        """
        if self.taps != taps:
            raise self.fields.error("taps", as_json(list(taps)))

    def check_target(self, target: Model) -> None:
        """Refuse another target than that which they were trained for.

        Raises
        ------
        InputError
        """
        self.target.check(target, self.where)

    def check_tokens(self, target: Model) -> None:
        """Refuse a target with other tokens than that which they were trained for; all else may differ.

        Raises
        ------
        InputError
        """
        self.target.check_tokens(target, self.where)

    def tensors(self, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[CanonicalTensor]:
        """Each tensor once, as the core takes them: of these names and shapes, read when its turn comes.

        Raises
        ------
        UnsupportedModelError
            One has another number format.
        CheckpointError
            One is missing, has another shape, or is none of these.
        """
        for name, shape in shapes.items():
            expected = f"expected it with shape {list(shape)}"
            if name not in self._held:
                raise CheckpointError(f"{self.where}: tensor '{name}' is missing; {expected}")
            found = self._held[name].shape
            if found != shape:
                raise CheckpointError(f"{self.where}: tensor '{name}' has shape {list(found)}; {expected}")
        if unknown := sorted(self._held.keys() - shapes.keys()):
            raise CheckpointError(
                f"{self.where}: tensor '{unknown[0]}' is not part of this draft; expected none such"
            )
        held = {name: self._held[name] for name in shapes}
        return ((name, tensor.array(), tensor.format) for name, tensor in held.items())

    def packed(
        self,
        core: Callable[..., Core],
        config: Mapping[str, int],
        shapes: Mapping[str, tuple[int, ...]],
        *,
        dtype: Dtype | None,
        n_threads: int | None,
    ) -> Core:
        """The weights as the core computes with them.

        Parameters
        ----------
        core : type of the core
            Such as `specdec._core.Heads`.
        config : Mapping
            What it is made with.
        shapes : Mapping
            Of all tensors, by name.
        dtype : {None, "f32", "bf16", "int8", "int4"}
            None: their own.
        n_threads : int or None

        Raises
        ------
        CheckpointError
            As `tensors`; or the core finds something wrong with them.
        """
        tensors = self.tensors(shapes)
        with self.naming():
            return core(
                config,
                tensors,
                tokens=self.tokens,
                dtype=dtype or self.dtype,
                n_threads=check_threads(n_threads),
            )

    def numbers(self) -> dict[str, NDArray[np.float32]]:
        """Each tensor in f32, by name."""
        return {
            name: _rounded(name, tensor.array(), tensor.format, "f32") for name, tensor in self._held.items()
        }

    def with_numbers(self, tensors: Mapping[str, NDArray[Any]]) -> LearntWeights:
        """The same draft with other numbers, in memory: of the same names and shapes, held as f32."""
        held: dict[str, Held] = {
            name: HeldTensor(np.ascontiguousarray(array, np.float32), "f32")
            for name, array in tensors.items()
        }
        return replace(self, _held=held, _files=None)

    @contextmanager
    def naming(self) -> Iterator[None]:
        """What the core finds wrong with tensors, such as a weight that is not finite, names the folder."""
        try:
            yield
        except SpecdecError:
            raise
        except ValueError as error:
            raise CheckpointError(f"{self.where}: {error}") from error

    def save(self, path: Any, dtype: str = "bf16") -> Path:
        """Write them to a folder, which is made where it is not there.

        Each file is there as a whole or not at all, and the two files of a folder that was written anew know
        each other: a crash between them leaves a folder that `read` refuses.

        Parameters
        ----------
        path : path-like
        dtype : {"bf16", "f16", "f32"}
            The number format of the tensors; those that are in memory in f32 are rounded to it.

        Raises
        ------
        InputError
            `path` is no path, or a file, or a number is too large for the format.
        OSError
            It cannot be written.
        """
        folder = check_path("path", path)
        check_choice("dtype", dtype, _WRITTEN)
        if folder.exists() and not folder.is_dir():
            raise InputError(f"path {shown(str(folder))} is a file; expected a folder")
        folder.mkdir(parents=True, exist_ok=True)
        word = secrets.token_hex(8)
        written = {
            name: _rounded(name, tensor.array(), tensor.format, dtype) for name, tensor in self._held.items()
        }
        if self.tokens is not None:
            written["d2t"] = self.tokens.astype(np.int64) - np.arange(len(self.tokens))
        write_safetensors(folder / WEIGHTS_NAME, written, {"format": "pt", "weights": word})
        fields = self.fields.replaced(weights=word, n_draft_vocab=self.n_draft_vocab)
        text = json.dumps(fields.as_dict(), indent=2) + "\n"
        with replacing(folder / CONFIG_NAME) as file:
            file.write(text.encode())
        return folder


def _read_again(reference: FilesReference) -> LearntWeights:
    return LearntWeights.read(reference.found())


def _taps(fields: Fields, n_layer: int) -> tuple[int, ...]:
    taps = fields.raw("taps")
    expectation = f"at most {MAX_TAPS} different whole numbers from 0 to {n_layer + 1}, ascending"
    if not isinstance(taps, list) or len(taps) > MAX_TAPS:
        raise fields.error("taps", expectation)
    for i, tap in enumerate(taps):
        whole = isinstance(tap, int) and not isinstance(tap, bool)
        if not whole or not (taps[i - 1] + 1 if i else 0) <= tap <= n_layer + 1:
            raise fields.error("taps", expectation)
    return tuple(taps)


def _tokens(where: str, d2t: Held | None, n_draft: int, n_vocab: int) -> NDArray[np.int32] | None:
    """The target's token of each of the draft's; None: they are the same."""
    if d2t is not None and n_draft == n_vocab:
        raise CheckpointError(
            f"{where}: tensor 'd2t' is there; expected none, as the draft guesses all {n_vocab} tokens"
        )
    return target_tokens(where, d2t, n_draft, n_vocab)


def _rounded(name: str, array: NDArray[Any], form: str, dtype: str) -> NDArray[Any]:
    """A tensor of the number format `form` as it shall be written, in the format `dtype`."""
    if form == dtype == "bf16":
        return array
    values = widened(array, form)
    rounded: NDArray[Any]
    if dtype == "bf16":
        rounded = rounded_to_bf16(values)
        finite = (rounded & 0x7F80) != 0x7F80
    else:
        with np.errstate(over="ignore"):
            rounded = values.astype(np.float16 if dtype == "f16" else np.float32)
        finite = np.isfinite(rounded)
    if not finite.all():
        at = [int(i) for i in np.argwhere(~finite)[0]]
        raise InputError(
            f"tensor {shown(name)}: element {at} is {values[tuple(at)]:g}; expected a finite number "
            f"in {dtype}"
        )
    return rounded
