"""Folders of learned drafts: ``config.json`` and ``model.safetensors``.

``config.json`` has the method's own fields and ``specdec_draft``, the format version; ``method``; ``target``,
a `TargetIdentity`; ``captures``, the target's hidden states that the draft reads, by the number of layers
before them; ``n_draft_vocab``, the size of the draft's vocabulary; and ``weights``, a random word that
``model.safetensors`` repeats, to detect files of different drafts.

``model.safetensors`` holds the method's tensors in f32, f16 or bf16, and ``d2t``, int64 [n_draft_vocab], for
a reduced vocabulary: token i of the draft is token ``i + d2t[i]`` of the target.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from specdec import _core
from specdec.atomic_file import write_json
from specdec.checks import check_choice, check_path
from specdec.errors import CheckpointError, CheckpointNotFoundError, InputError, SpecdecError, shown, type_of
from specdec.fields import Fields, as_json, read_json_object
from specdec.models.checkpoints.checkpoint import CanonicalTensor
from specdec.models.checkpoints.safetensors_file import (
    StoredTensor,
    read_safetensors_with_metadata,
    write_safetensors,
)
from specdec.models.model import Model
from specdec.models.model_config import ModelConfig
from specdec.models.number_formats import Dtype, rounded_to_bf16, widened
from specdec.models.origin import ReadFiles
from specdec.models.tokenizer import ByteTokenizer
from specdec.threads import check_threads

CONFIG_NAME: Final = "config.json"
WEIGHTS_NAME: Final = "model.safetensors"
VERSION: Final = 2
MAX_CAPTURES: Final = _core.MAX_CAPTURES
Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
"""Shapes of all tensors of a draft, by name."""
Core = TypeVar("Core")


def configuration_digest(config: ModelConfig) -> str:
    """Digest a canonical configuration without its context length.

    Omits default values and rounds to 6 digits, to be stable under new fields and other libraries.
    """

    def plain(value: Any) -> Any:
        if isinstance(value, ModelConfig):
            return canonical(value)
        if isinstance(value, tuple | list):
            return [plain(item) for item in value]
        return f"{value:.6g}" if isinstance(value, float) else value

    def canonical(one: ModelConfig) -> dict[str, Any]:
        return {
            name: plain(one[name])
            for name, field in one.__dataclass_fields__.items()
            if name != "n_ctx" and (field.default is MISSING or one[name] != field.default)
        }

    text = json.dumps(canonical(config), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _vocabulary_digest(model: Model) -> str | None:
    """Digest a model's tokens; None if they are unknown."""
    if not isinstance(model.tokenizer, ByteTokenizer):
        return None
    digest = hashlib.blake2b(digest_size=16)
    tokens = list(model.tokenizer.vocabulary())
    while tokens and tokens[-1] is None:  # padding
        tokens.pop()
    for token in tokens:
        digest.update(b"-" if token is None else b"%d:%b" % (len(token), token))
    return digest.hexdigest()


@dataclass(frozen=True)
class TargetIdentity:
    """Configuration and tokens of the target that a draft was trained for, without its weights."""

    name: str  # hub name, or the last two parts of the path
    d_model: int
    n_layer: int
    n_vocab: int
    fingerprint: str  # digest of the configuration
    vocabulary: str | None = None  # digest of the tokens; None if unknown

    @classmethod
    def of(cls, target: Model) -> TargetIdentity:
        """Return the cached identity of a model."""
        found = _IDENTITIES.get(target)
        if found is None:
            config, hub = target.config, None if target.origin is None else target.origin.files.hub
            found = _IDENTITIES[target] = cls(
                "/".join(target.path.parts[-2:]) if hub is None else hub.name,
                config.d_model, config.n_layer, config.n_vocab,
                configuration_digest(config), _vocabulary_digest(target),
            )  # fmt: skip
        return found

    @classmethod
    def read(cls, holder: Fields) -> TargetIdentity:
        """Read the object ``target`` of a JSON object."""
        fields = holder.inner("target")
        sizes = {name: fields.integer(name) for name in ("d_model", "n_layer", "n_vocab")}
        texts = {name: fields.text(name) for name in ("name", "fingerprint")}
        return cls(**sizes, **texts, vocabulary=fields.text("vocabulary", default=None))

    def check(self, target: Model, draft: str) -> None:
        """Refuse another target; `draft` names the draft in the message."""
        self._check_sizes(target, draft, "d_model", "n_layer", "n_vocab")
        given = TargetIdentity.of(target).fingerprint
        if self.fingerprint != given:
            expected = f"one with the fingerprint {shown(self.fingerprint)}, not {given}"
            trained = self._trained(draft, target)
            raise InputError(f"{trained} with the same sizes but another configuration; expected {expected}")
        self.check_tokens(target, draft)

    def check_tokens(self, target: Model, draft: str) -> None:
        """Refuse a target with other tokens."""
        self._check_sizes(target, draft, "n_vocab")
        given = TargetIdentity.of(target).vocabulary
        if None not in (self.vocabulary, given) and self.vocabulary != given:
            raise InputError(
                f"{self._trained(draft, target)} with other tokens; expected the same vocabulary"
            )

    def _check_sizes(self, target: Model, draft: str, *names: str) -> None:
        for name in names:
            ours, theirs = getattr(self, name), getattr(TargetIdentity.of(target), name)
            if ours != theirs:
                raise InputError(f"{self._trained(draft, target)} with {name} {theirs}; expected {ours}")

    def _trained(self, draft: str, target: Model) -> str:
        return f"{draft} was trained for the target {shown(self.name)}; the given one is {target.path},"


_IDENTITIES: WeakKeyDictionary[Model, TargetIdentity] = WeakKeyDictionary()  # digests take time


@dataclass(frozen=True)
class HeldTensor:
    """A tensor in memory with the interface of `StoredTensor`; the format of integers is ""."""

    values: NDArray[Any]
    format: str = "f32"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array."""
        return self.values.shape

    def array(self) -> NDArray[Any]:
        """Return the array."""
        return self.values

    integers = array


Held: TypeAlias = HeldTensor | StoredTensor


def _held(tensors: Mapping[str, NDArray[Any]]) -> dict[str, Held]:
    return {name: HeldTensor(np.ascontiguousarray(array, np.float32)) for name, array in tensors.items()}


@dataclass(frozen=True)
class LearnedWeights:
    """Weights and configuration of a learned draft, with the checks that all methods share."""

    where: str  # the folder, or "the draft" if in memory, for messages
    method: str
    target: TargetIdentity
    fields: Fields  # of config.json
    captures: tuple[int, ...]  # the target's hidden states that the draft reads, ascending
    tokens: NDArray[np.int32] | None  # [n_draft_vocab] target token of each draft token; None: all tokens
    _held: Mapping[str, Held]
    _files: ReadFiles | None = None

    def __reduce__(self) -> tuple[Callable[..., LearnedWeights], tuple[Any, ...]]:
        """Pickle the name of the folder, or weights in memory."""
        if self._files is not None:
            return _read_again, (self._files.reference(),)
        state = (self.where, self.method, self.target, self.fields, self.captures, self.tokens, self._held)
        return LearnedWeights, state

    @classmethod
    def of(
        cls, method: str, target: Model, fields: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]], *,
        captures: Sequence[int] = (), tokens: NDArray[Any] | Sequence[int] | None = None,
    ) -> LearnedWeights:  # fmt: skip
        """Make weights in memory from the method's ``config.json`` fields and tensors, stored as float32.

        `tokens` is the draft's vocabulary; None: all tokens of the target.
        """
        identity, held = TargetIdentity.of(target), _held(tensors)
        if tokens is not None:
            held["d2t"] = HeldTensor(np.asarray(tokens, np.int64) - np.arange(len(tokens)), "")
        config = {
            "specdec_draft": VERSION, "method": method, "target": vars(identity), "captures": list(captures),
            "n_draft_vocab": identity.n_vocab if tokens is None else len(tokens), **fields,
        }  # fmt: skip
        return cls._checked("the draft", Fields(config, Path("the draft")), held)

    @classmethod
    def given(cls, weights: object, what: str) -> LearnedWeights:
        """Return the argument `weights` of a draft, reading it if it is a path; `what` is for messages."""
        if isinstance(weights, LearnedWeights):
            return weights
        if not isinstance(weights, str | os.PathLike):
            raise InputError.of("weights", weights, f"the folder of {what}", type_of(weights))
        return cls.read(check_path("weights", weights, CheckpointError))

    @classmethod
    def read(cls, path: Path) -> LearnedWeights:
        """Open a folder; tensors are read on demand."""
        config, file = path / CONFIG_NAME, path / WEIGHTS_NAME
        files = ReadFiles.at(path, [config, file])
        values = read_json_object(config)
        if not file.is_file():
            raise CheckpointNotFoundError(f"{file}: no such file; expected the weights of the draft")
        tensors, metadata = read_safetensors_with_metadata(file)
        named = values.get("weights")
        if named is not None and metadata.get("weights") != named:
            expected = f"{as_json(named)}, as in {CONFIG_NAME}: the two files belong to different drafts"
            raise CheckpointError.of(file, "weights", metadata.get("weights"), expected)
        return cls._checked(str(path), Fields(values, config), tensors, files)

    @classmethod
    def _checked(
        cls, where: str, fields: Fields, held: Mapping[str, Held], files: ReadFiles | None = None
    ) -> LearnedWeights:
        fields.check_version("specdec_draft", VERSION)
        method, target = fields.text("method"), TargetIdentity.read(fields)
        captures = fields.integers("captures", 0, target.n_layer + 1)
        if len(captures) > MAX_CAPTURES or captures != sorted(set(captures)):
            raise fields.error("captures", f"at most {MAX_CAPTURES} different numbers, ascending")
        n_draft = fields.integer("n_draft_vocab", maximum=target.n_vocab)
        d2t = held.get("d2t")
        if d2t is not None and n_draft == target.n_vocab:
            all_tokens = f"expected none, as n_draft_vocab is the whole vocabulary of {n_draft}"
            raise CheckpointError(f"{where}: tensor 'd2t' is present; {all_tokens}")
        tokens = target_tokens(where, d2t, n_draft, target.n_vocab)
        rest = {name: tensor for name, tensor in held.items() if name != "d2t"}
        return cls(where, method, target, fields, tuple(captures), tokens, rest, files)

    @property
    def n_draft_vocab(self) -> int:
        """Size of the draft's vocabulary."""
        return self.target.n_vocab if self.tokens is None else len(self.tokens)

    @property
    def dtype(self) -> Dtype:
        """Default number format: bf16 if all matrices are bf16, else f32."""
        matrices = [tensor for tensor in self._held.values() if len(tensor.shape) == 2]
        return "bf16" if matrices and all(tensor.format == "bf16" for tensor in matrices) else "f32"

    def check_method(self, method: str) -> None:
        """Refuse weights of another method."""
        if self.method != method:
            raise self.fields.error("method", as_json(method))

    def check_captures(self, *captures: int) -> None:
        """Refuse weights for other hidden states."""
        if self.captures != captures:
            raise self.fields.error("captures", as_json(list(captures)))

    def check_target(self, target: Model) -> None:
        """Refuse a target that the weights were not trained for."""
        self.target.check(target, self.where)

    def tensors(self, shapes: Shapes) -> Iterator[CanonicalTensor]:
        """Return each tensor once, as the core takes them; refuse other names or shapes."""
        for name, shape in shapes.items():
            expected = f"expected it with shape {list(shape)}"
            if name not in self._held:
                raise CheckpointError(f"{self.where}: tensor '{name}' is missing; {expected}")
            found = self._held[name].shape
            if found != shape:
                raise CheckpointError(f"{self.where}: tensor '{name}' has shape {list(found)}; {expected}")
        if unknown := sorted(self._held.keys() - shapes.keys()):
            raise CheckpointError(f"{self.where}: tensor '{unknown[0]}' is not part of this draft")
        return ((name, self._held[name].array(), self._held[name].format) for name in shapes)

    def packed(
        self, core: Callable[..., Core], config: Mapping[str, int], shapes: Shapes, dtype: Dtype | None,
        n_threads: int | None,
    ) -> Core:  # fmt: skip
        """Pack the weights into a core type, made with `config`; None: in the weights' own format."""
        tensors, threads = self.tensors(shapes), check_threads(n_threads)
        with self.naming():
            return core(config, tensors, tokens=self.tokens, dtype=dtype or self.dtype, n_threads=threads)

    def with_numbers(self, tensors: Mapping[str, NDArray[Any]]) -> LearnedWeights:
        """Return a copy in memory with other f32 values of the same names and shapes."""
        return replace(self, _held=_held(tensors), _files=None)

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Add the folder's name to errors of the core, such as for a weight that is not finite."""
        try:
            yield
        except SpecdecError:
            raise
        except ValueError as error:
            raise CheckpointError(f"{self.where}: {error}") from error

    def save(self, path: Any, dtype: str = "bf16") -> Path:
        """Write the weights to a folder, created if needed, as "bf16", "f16" or "f32".

        Both files share a random word, so `read` refuses a folder after a crash between them. Refuse values
        too large for the format.
        """
        folder = check_path("path", path)
        check_choice("dtype", dtype, ("bf16", "f16", "f32"))
        if folder.exists() and not folder.is_dir():
            raise InputError.of("path", str(folder), "a folder, not a file")
        folder.mkdir(parents=True, exist_ok=True)
        word = secrets.token_hex(8)
        written = {name: _rounded(name, one.array(), one.format, dtype) for name, one in self._held.items()}
        if self.tokens is not None:
            written["d2t"] = self.tokens.astype(np.int64) - np.arange(len(self.tokens))
        write_safetensors(folder / WEIGHTS_NAME, written, {"format": "pt", "weights": word})
        fields = self.fields.replaced(weights=word, n_draft_vocab=self.n_draft_vocab)
        write_json(folder / CONFIG_NAME, fields.as_dict())
        return folder


def _read_again(reference: ReadFiles) -> LearnedWeights:
    return LearnedWeights.read(reference.found())


def _rounded(name: str, array: NDArray[Any], source: str, dtype: str) -> NDArray[Any]:
    """Convert a tensor from the number format `source` to `dtype`."""
    if source == dtype == "bf16":
        return array
    values = widened(array, source)
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
        element = f"tensor {shown(name)}: element {at}"
        raise InputError.of(element, float(values[tuple(at)]), f"a finite number in {dtype}")
    return rounded


def target_tokens(where: str, d2t: Held | None, n_draft: int, n_vocab: int) -> NDArray[np.int32] | None:
    """Return the target token, i + d2t[i], of each draft token; None for a full vocabulary."""
    name = f"{where}: tensor 'd2t'"
    if d2t is None:
        if n_draft == n_vocab:
            return None
        raise CheckpointError(f"{name} is missing; expected it with shape [{n_draft}], for {n_vocab} tokens")
    if d2t.shape != (n_draft,):
        raise CheckpointError(f"{name} has shape {list(d2t.shape)}; expected [{n_draft}]")
    shifts = d2t.integers().astype(np.int64)
    own = np.arange(n_draft)
    outside = np.flatnonzero((shifts < -own) | (shifts > n_vocab - 1 - own))  # the sum could overflow
    if len(outside):
        i = int(outside[0])
        raise CheckpointError(f"{name}: element [{i}] is {shifts[i]}; expected {-i} to {n_vocab - 1 - i}")
    tokens = own + shifts
    found, counts = np.unique(tokens, return_counts=True)
    if len(found) < n_draft:
        twice = int(np.argmax(counts > 1))
        times = f"{counts[twice]} times; expected each once"
        raise CheckpointError(f"{name} gives the target's token {found[twice]} {times}")
    return tokens.astype(np.int32)
