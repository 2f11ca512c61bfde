"""The models of an evaluation: a target and its draft, by the words that a harness hands on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Final

from specdec.decoding.options import Gamma
from specdec.drafts.draft import Draft
from specdec.drafts.model_draft import DraftLike
from specdec.drafts.opening import named
from specdec.errors import InputError, shown
from specdec.models.loading import embedded_pair, load
from specdec.models.model import Model
from specdec.models.number_formats import CacheDtype, Dtype, PrefillMethod
from specdec.models.tokenizer import Tokenizer
from specdec.verification.rules import DecodingRule

EMBEDDED: Final = "embedded"
NO_DRAFT: Final = "none"


@dataclass(frozen=True)
class EvaluatedPair:
    """A target with a tokenizer, and what drafts for it.

    Attributes
    ----------
    target : Model
    draft : Draft, Model, object or None
        None: plain decoding.
    name : str
        The target, as the caller called it.
    draft_name : str or None
        The draft, as the caller called it.
    """

    target: Model
    draft: DraftLike | None
    name: str
    draft_name: str | None

    @classmethod
    def open(
        cls,
        target: Model | str | os.PathLike[str],
        draft: DraftLike | str | None = None,
        *,
        dtype: Dtype | None = None,
        draft_dtype: Dtype | None = None,
        cache_dtype: CacheDtype | None = None,
        prefill: PrefillMethod | None = None,
        tokenizer: Any = None,
        n_ctx: int | None = None,
        n_threads: int | None = None,
        revision: str | None = None,
    ) -> EvaluatedPair:
        """Load a target and its draft.

        Parameters
        ----------
        target : Model, path, hub name or "embedded"
            "embedded": the target that comes with the package. A Model is taken as it is.
        draft : Draft, Model, object, word or None
            A word is what `specdec.drafts.named` takes: a name, a path or a hub name. None or "none": plain
            decoding.
        dtype, cache_dtype, prefill, tokenizer, n_ctx, n_threads, revision
            As in `specdec.load`; None where the target is a Model.
        draft_dtype : {None, "f32", "bf16", "int8", "int4"}
            The number format of the draft's matrices.

        Raises
        ------
        InputError
            An argument that does not fit, or a target without tokenizer.
        CheckpointError, TokenizerError, VocabularyMismatchError
            As `specdec.load` and `specdec.drafts.load`.
        """
        options: dict[str, Any] = {
            "cache_dtype": cache_dtype,
            "tokenizer": tokenizer,
            "n_ctx": n_ctx,
            "revision": revision,
            "prefill": prefill,
        }
        given = {name: value for name, value in options.items() if value is not None}
        name = str(target.path) if isinstance(target, Model) else str(target)
        if isinstance(target, Model):
            _refuse({**given, "dtype": dtype}, "a model that is loaded")
            model = target
        elif target == EMBEDDED:
            _refuse(given, "the target in the package")
            model = embedded_pair(dtype)[0]
        else:
            model = load(target, dtype, n_threads=n_threads, **given)
        if model.tokenizer is None:
            raise InputError(f"{name} has no tokenizer; expected a target with one, as a harness gives texts")
        if draft == NO_DRAFT:
            draft = None
        if isinstance(draft, str | os.PathLike):
            word = os.fspath(draft)
            return cls(model, named(word, model, dtype=draft_dtype), name, word)
        _refuse({"draft_dtype": draft_dtype}, "no draft" if draft is None else "a draft that is loaded")
        return cls(model, draft, name, None if draft is None else _name_of(draft))

    @property
    def tokenizer(self) -> Tokenizer:
        """The target's."""
        assert self.target.tokenizer is not None  # checked when the pair was opened
        return self.target.tokenizer

    def description(self, gamma: Gamma, verify: DecodingRule) -> dict[str, Any]:
        """What decodes, for the files of results."""
        return {
            "target": self.name,
            "dtype": self.target.dtype,
            "cache_dtype": self.target.cache_dtype,
            "draft": self.draft_name,
            "gamma": gamma if gamma is None or isinstance(gamma, int | str) else type(gamma).__name__,
            "verify": verify,
        }


def _refuse(options: dict[str, Any], what: str) -> None:
    for name, value in options.items():
        if value is not None:
            raise InputError(f"{name} is {shown(value)}, beside {what}; expected None")


def _name_of(draft: Draft | Any) -> str:
    return str(draft.path) if isinstance(draft, Model) else type(draft).__name__
