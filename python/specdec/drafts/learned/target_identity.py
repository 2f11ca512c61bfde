"""Which target a learned draft was trained for."""

from __future__ import annotations

import hashlib
import json
from dataclasses import MISSING, dataclass
from typing import Any
from weakref import WeakKeyDictionary

from specdec.errors import InputError, shown
from specdec.fields import Fields
from specdec.models.model import Model
from specdec.models.model_config import ModelConfig
from specdec.models.tokenizer import ByteTokenizer


def configuration_digest(config: ModelConfig) -> str:
    """Digest what a model computes: its canonical configuration, less the length of its context.

    A field with its default counts as absent, and numbers count with 6 digits: so the digest outlives new
    fields, and mathematical libraries that round differently.
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
    """Digest a model's tokens; None where they cannot be seen."""
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
    """The target that a draft was trained for: what it computes and what its tokens are, not its weights."""

    name: str  # on the hub, or the end of its path: the whole would tell others where that was
    d_model: int
    n_layer: int
    n_vocab: int
    fingerprint: str  # a digest of its configuration
    vocabulary: str | None = None  # a digest of its tokens; None where they cannot be seen

    @classmethod
    def of(cls, target: Model) -> TargetIdentity:
        """Return that of a model."""
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
        """Read it from the object ``target`` in an object of a file."""
        fields = holder.inner("target")
        sizes = [fields.integer(name) for name in ("d_model", "n_layer", "n_vocab")]
        vocabulary = fields.text("vocabulary", default=None)
        return cls(fields.text("name"), *sizes, fields.text("fingerprint"), vocabulary)

    def as_dict(self) -> dict[str, Any]:
        """Return the object ``target`` of a file."""
        return dict(vars(self))

    def check(self, target: Model, draft: str) -> None:
        """Refuse another target, and name both; `draft` is the draft's name in the message."""
        given = TargetIdentity.of(target)
        for name in ("d_model", "n_layer", "n_vocab"):
            ours, theirs = getattr(self, name), getattr(given, name)
            if ours != theirs:
                raise InputError(f"{self._trained(draft, target)} of {name} {theirs}; expected {ours}")
        if self.fingerprint != given.fingerprint:
            raise InputError(
                f"{self._trained(draft, target)} of another configuration and the same sizes; expected one "
                f"with the fingerprint {shown(self.fingerprint)}, not {given.fingerprint}"
            )
        self.check_tokens(target, draft)

    def check_tokens(self, target: Model, draft: str) -> None:
        """Refuse a target with other tokens."""
        given = TargetIdentity.of(target)
        if given.n_vocab != self.n_vocab:
            trained = self._trained(draft, target)
            raise InputError(f"{trained} of n_vocab {given.n_vocab}; expected {self.n_vocab}")
        if None not in (self.vocabulary, given.vocabulary) and self.vocabulary != given.vocabulary:
            raise InputError(f"{self._trained(draft, target)} of other tokens; expected the same vocabulary")

    def _trained(self, draft: str, target: Model) -> str:
        return f"{draft} was trained for the target {shown(self.name)}; given is {target.path},"


_IDENTITIES: WeakKeyDictionary[Model, TargetIdentity] = WeakKeyDictionary()  # their vocabularies may be long
