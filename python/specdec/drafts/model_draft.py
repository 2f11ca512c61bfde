"""Draft models: chains, trees, nested drafts, and models with another vocabulary."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args
from weakref import WeakKeyDictionary

import numpy as np

from specdec import _core
from specdec.checks import check_choice, check_integer, check_path
from specdec.drafts.draft import Description, Draft
from specdec.drafts.learned.eagle.assistant import is_assistant
from specdec.drafts.learned.eagle.draft import MTP, Assistant, Eagle
from specdec.drafts.learned.eagle.published import is_published
from specdec.drafts.learned.methods import open_learned
from specdec.drafts.memories import SuffixDecoding, TokenRecycling
from specdec.drafts.ngram import METADATA as OF_NGRAM
from specdec.drafts.ngram import Ngram
from specdec.drafts.python_draft import Drafter, PythonDraft
from specdec.drafts.trees import Tree, check_tree, describe_shape, gamma_of
from specdec.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    InputError,
    VocabularyMismatchError,
    type_of,
    warn,
)
from specdec.models.checkpoints.gguf_model import is_gguf_file, is_mtp_alone, read_metadata
from specdec.models.checkpoints.safetensors_file import read_safetensors_with_metadata
from specdec.models.loading import as_model
from specdec.models.model import Model, ModelLike, windowed
from specdec.models.number_formats import Dtype, PrefillChoice
from specdec.models.tokenizer import ByteTokenizer, Strip, check_same_vocabulary
from specdec.models.tokenizer.byte_tokenizer import encode_continuing
from specdec.models.tokenizer.vocabulary import correspondence_of, token_strings

_KNOWN: WeakKeyDictionary[Model, WeakKeyDictionary[Model, _core.Translation]] = WeakKeyDictionary()
_MOST_WINDOW: Final = 2**31 - 1


def same_vocabulary(target: Model, draft: Model) -> bool:
    """Return whether two models have the same tokens; True if one has no tokenizer.

    Refuse a different vocabulary whose token bytes are unknown.
    """
    try:
        check_same_vocabulary(target, draft)
    except VocabularyMismatchError as error:
        for model in (target, draft):
            if not isinstance(model.tokenizer, ByteTokenizer):
                unknown = f"{model.path} has no tokenizer with known token bytes, which translation needs"
                raise VocabularyMismatchError(f"{error}; {unknown}") from None
        if draft.config.encoder is not None and None in (target.source_tokenizer, draft.source_tokenizer):
            raise
        return False
    return True


def translation_of(target: Model, draft: Model) -> _core.Translation:
    """Return the cached translation between the vocabularies of a target and a draft."""
    known = _KNOWN.setdefault(target, WeakKeyDictionary())
    if (found := known.get(draft)) is None:
        found = known.setdefault(draft, _translation(target, draft))
    return found


def _translation(target: Model, draft: Model) -> _core.Translation:
    ours, theirs = target.tokenizer, draft.tokenizer
    assert isinstance(ours, ByteTokenizer) and isinstance(theirs, ByteTokenizer)
    n_target, n_draft = target.config["n_vocab"], draft.config["n_vocab"]
    pairs = correspondence_of(ours, theirs, n_target, n_draft)
    strings = token_strings(ours, n_target), token_strings(theirs, n_draft)
    byte_tokens = [-1] * 256
    for token, string in enumerate(strings[1]):
        if len(string) == 1:
            byte_tokens[string[0]] = token
    arrays: dict[str, Any] = {
        "target_starts": _starts(strings[0]), "draft_starts": _starts(strings[1]),
        "draft_of": pairs.draft_of, "target_of": pairs.target_of, "byte_tokens": byte_tokens,
        "first": draft.decoder_start or _first(theirs, ours.adds_bos or theirs.adds_bos),
        "target_first": target.decoder_start or _first(ours, True),
    }  # fmt: skip

    def for_draft(text: str, begins: int) -> list[int]:
        return theirs.encode(text, add_bos=False) if begins else encode_continuing(theirs, text)

    return _core.Translation(
        draft.core, b"".join(strings[0]), b"".join(strings[1]),
        {name: np.asarray(values, np.int32) for name, values in arrays.items()},
        ours.strip is not Strip.NOTHING, theirs.strip is not Strip.NOTHING,
        for_draft, partial(_for_target, ours), _for_encoder(target, draft),
    )  # fmt: skip


def _starts(strings: Sequence[bytes]) -> Any:
    return np.concatenate([[0], np.cumsum([len(string) for string in strings])])


def _first(tokenizer: ByteTokenizer, begins: bool) -> tuple[int, ...]:
    return (tokenizer.bos_id,) if begins and tokenizer.bos_id is not None else ()


def _for_target(tokenizer: ByteTokenizer, text: str, n_before: int) -> list[int]:
    """Return the target's ids of the text after its first `n_before` bytes; -1: encode all, as a new text.

    If a token spans that boundary, encode the rest alone; return none within a character.
    """
    if n_before < 0:
        return tokenizer.encode(text, add_bos=False)
    ids, after = encode_continuing(tokenizer, text), text.encode("utf-8")[n_before:]
    left = len(after)
    for at in range(len(ids) - 1, -1, -1):
        left -= len(tokenizer.text_bytes(ids[at]))
        if left == 0:
            return ids[at:]
        if left < 0:
            break
    try:
        return encode_continuing(tokenizer, after.decode("utf-8"))
    except UnicodeDecodeError:
        return []


def _for_encoder(target: Model, draft: Model) -> Callable[[Sequence[int]], list[int]] | None:
    """Return a function that maps source ids of the target to those of the draft's encoder, if it has one."""
    ours, theirs = target.source_tokenizer, draft.source_tokenizer
    if draft.config.encoder is None or ours is None or theirs is None:
        return None
    return lambda ids: theirs.encode(ours.tokenizer.decode(ids))


ONLINE_FORMAT: Final = "specdec online draft"  # file format of `OnlineDraft`
_OPENERS: Final[dict[str, Callable[[Path], Draft]]] = {
    SuffixDecoding.metadata["format"]: SuffixDecoding.load,
    TokenRecycling.metadata["format"]: TokenRecycling.load,
    OF_NGRAM["format"]: Ngram.load,
}


def open_stored(
    path: Path, target: Model | None, name: str = "draft", *, dtype: Dtype | None = None,
    tree: Tree | None = None, gamma: int | None = None,
) -> Draft | None:  # fmt: skip
    """Open the draft of a folder or saved file; None for a model or anything else."""
    file_format = _format_of(path)
    if file_format == ONLINE_FORMAT:
        expected = "specdec.drafts.OnlineDraft.load(path, draft), with the original draft"
        raise InputError(f"{path} is the state of a specdec.drafts.OnlineDraft; expected {expected}")
    if file_format in _OPENERS:
        stored = _OPENERS[file_format](path)
        for argument, value in {"dtype": dtype, "tree": tree, "gamma": gamma}.items():
            if value is not None:
                made = type(stored).__name__
                expected = f"None, as {path} holds a {made}, or specdec.drafts.{made}.load(path, ...)"
                raise InputError.of(argument, value, expected)
        return stored
    if is_gguf_file(path) and is_mtp_alone(read_metadata(path)[1]):
        if target is None:
            raise InputError.of(name, str(path), "specdec.drafts.MTP(target, path)", f"{path}, an MTP block")
        return MTP(target, path, dtype=dtype, tree=tree, gamma=gamma)
    assists = is_assistant(path)
    if not assists and not is_published(path):
        return open_learned(path, dtype=dtype, tree=tree, gamma=gamma)
    if target is None:
        expected = f"specdec.drafts.{'Assistant(target, path)' if assists else 'Eagle(path, target)'}"
        raise InputError.of(name, str(path), expected, f"{path}, a draft on the hidden states of a target")
    if assists:
        return Assistant(target, path, dtype=dtype, tree=tree, gamma=gamma)
    return Eagle(path, target, dtype=dtype, tree=tree, gamma=gamma)


def _format_of(path: Path) -> str:
    """Return the format that a safetensors file names, or an empty string."""
    try:
        if not path.is_file():
            return ""
        with path.open("rb") as file:
            begins = file.read(9)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from error
    if path.suffix != ".safetensors" and begins[8:] != b"{":
        return ""
    return read_safetensors_with_metadata(path)[1].get("format", "")


Vocabulary: TypeAlias = Literal["auto", "same", "text", "intersection"]
DraftLike: TypeAlias = Model | Draft | Drafter | str | os.PathLike[str]
"""Anything that `as_draft` converts to a draft."""


class ModelDraft(Draft):
    """A smaller model (M_q of arXiv 2211.17192) that drafts a chain, a tree, or a nested chain.

    Passing ``ModelDraft(small)`` equals passing ``small``: a chain of gamma tokens. For an encoder-decoder
    target the model may be an encoder-decoder, whose encoder reads the source; sources too long for it get no
    draft tokens. Or it may be decoder-only, and reads the decoder's text.

    Parameters
    ----------
    model : Model, path or hub name
        The draft model, with the target's vocabulary or another one.
    tree, gamma
        See `specdec.drafts`.
    window : int, optional
        Attend to the last `window` tokens only. The KV cache is then a ring of that length, and steps in a
        long context are as fast as in a short one. Any window is exact, as for any draft. Layers with a
        shorter window keep it, recurrent layers their state. None: the model's own attention.
    draft : Draft, Model, path, hub name or Drafter, optional
        A draft for the draft model (section 6 of the paper), possibly nested further. The model's chain is
        then decoded speculatively: same distribution, and same tokens under greedy decoding and the coupled
        rule. It must not work in the model's own cache, and excludes `tree`.
    vocabulary : {"auto", "same", "text", "intersection"}, default "auto"
        How to draft for a target with another vocabulary; the model then reads re-tokenized text.
        "intersection": draft the tokens that both vocabularies have, by the renormalized distribution (Timor
        et al. 2025, arXiv 2502.05202, Algorithm 4), with every rule and tree. "text": re-tokenize the model's
        most probable text for the target (string-level exact match, Algorithm 2); a chain of point masses.
        "same": refuse such a target. "auto": alternate between both, then use the one with more accepted
        tokens, round by round; with a tree, "intersection".
    """

    def __init__(
        self, model: ModelLike, *, tree: Tree | None = None, draft: DraftLike | None = None,
        gamma: int | None = None, vocabulary: Vocabulary = "auto", window: int | None = None,
    ) -> None:  # fmt: skip
        tree = check_tree(tree)
        self.vocabulary: Vocabulary = check_choice("vocabulary", vocabulary, get_args(Vocabulary))
        if tree is not None and draft is not None:
            raise InputError("tree and draft are both given; a model with a nested draft drafts a chain")

        self._whole = as_model("model", model)
        self.window = None if window is None else check_integer("window", window, 1, _MOST_WINDOW)
        self.model = windowed(self._whole, self.window)
        self.tree = tree
        self.draft = None if draft is None else as_draft(self.model, draft, optional=True)
        if self.draft is not None and self.draft.in_target_cache:
            raise InputError.of("draft", self.draft, "one that does not work in its target's cache")
        self.gamma = gamma_of(gamma, tree, self.gamma)

    def describe(self, target: Model) -> Description:
        if not self.translates(target):
            self._warn_if_larger(target)
            if self.draft is not None:
                inner = self.draft.describe(target)
                return "nested", {"model": self.model.core, "draft": inner, "gamma": self.draft.gamma}
            return describe_shape(self.tree, self.model.core)
        translation = translation_of(target, self.model)
        self._warn_if_larger(target)
        if self.draft is not None:
            found = f"draft {self.model.path} has another vocabulary than target {target.path} and a nested"
            expected = "no nested draft, or a model with the target's vocabulary, whose draft may differ"
            raise VocabularyMismatchError(f"{found} draft; expected {expected}")
        if self.vocabulary == "text":
            if self.tree is not None:
                expected = "None, as vocabulary='text' drafts a chain, or vocabulary='intersection'"
                raise InputError.of("tree", self.tree, expected)
            return "text", {"translation": translation, "measured": False}
        if self.vocabulary == "auto" and self.tree is None:
            return "text", {"translation": translation, "measured": True}
        if translation.n_shared == 0:
            both = f"target {target.path} and draft {self.model.path}"
            raise VocabularyMismatchError(f"{both} have no token in common")
        return describe_shape(self.tree, translation)

    def translates(self, target: Model) -> bool:
        """Return whether the target has another vocabulary than the model.

        Raise a `VocabularyMismatchError` if it has, and `vocabulary` is "same" or token bytes are unknown.
        """
        if self.vocabulary == "same":
            check_same_vocabulary(target, self.model)
            return False
        return not same_vocabulary(target, self.model)

    def named_share(self, target: Model) -> float:
        """Return the mean probability mass, at temperature 1, that the model gives to the target's tokens.

        1 for equal vocabularies, NaN before the first draft token. All drafts of this model pair contribute.
        """
        if not self.translates(target):
            return 1.0
        n, total = self.shares(target)
        return total / n if n else float("nan")

    def shares(self, target: Model) -> tuple[int, float]:
        return translation_of(target, self.model).shares if self.translates(target) else (0, 0.0)

    @property
    def reads_source(self) -> bool:
        return super().reads_source or self.model.config.encoder is not None

    @property
    def parts(self) -> Sequence[Draft]:
        return () if self.draft is None else (self.draft,)

    @property
    def readers(self) -> Sequence[Model]:
        return [self.model]

    def as_read(self, reader: Model, target: Model, ids: Sequence[int]) -> Sequence[int]:
        return translation_of(target, self.model).read([ids]) if self.translates(target) else ids

    def snapshot(self) -> ModelDraft:
        inner = None if self.draft is None else self.draft.snapshot()
        if inner is self.draft:
            return self
        copy = ModelDraft(
            self._whole, draft=inner, gamma=self.gamma, vocabulary=self.vocabulary, window=self.window
        )
        copy._snapshot_of = self
        return copy

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"model": None}  # the windowed model is made again

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"model": windowed(state["_whole"], state["window"])}

    def _warn_if_larger(self, target: Model) -> None:
        if self.model.n_parameters > target.n_parameters:
            more = f"{self.model.n_parameters:,} parameters, more than the target {target.path}"
            expected = "expected a smaller draft, as this one slows decoding down"
            warn(f"the draft {self.model.path} has {more} with {target.n_parameters:,}; {expected}")

    @property
    def identity(self) -> object:
        plain = self.tree is None and self.draft is None and self.vocabulary == "auto"
        return self.model if plain else super().identity

    def __repr__(self) -> str:
        more = f", tree={self.tree!r}" if self.tree is not None else ""
        more += f", draft={self.draft!r}" if self.draft is not None else ""
        more += f", vocabulary={self.vocabulary!r}" if self.vocabulary != "auto" else ""
        more += f", window={self.window}" if self.window is not None else ""
        return f"<specdec.drafts.ModelDraft {self.model!r}{more}>"


def prefill_for(target: Model | None) -> PrefillChoice:
    """Return the prefill method of a draft model: the portable one if the target has it."""
    return "rows" if target is not None and target.prefill == "rows" else "auto"


def open_draft(name: str, given: object, *, optional: bool = False, target: Model | None = None) -> Draft:
    """Convert the argument `name` to a draft; open a path or hub name, for a target if that is known."""
    if isinstance(given, Model):
        return ModelDraft(given)
    if isinstance(given, Drafter):
        return PythonDraft(given)
    if isinstance(given, Draft):
        return given
    if isinstance(given, str | os.PathLike):
        try:
            stored = open_stored(check_path(name, given), target, name)
            return stored or ModelDraft(as_model("model", given, prefill=prefill_for(target)))
        except CheckpointNotFoundError as error:
            if not isinstance(given, str) or "/" in given.partition(":")[0] or "://" in given:
                raise
            how = f"for a name of specdec.drafts.NAMES use specdec.drafts.named({given!r}, target)"
            raise CheckpointNotFoundError(f"{name}: {error}; {how}") from error
    if issubclass(type(given), type):
        raise InputError(f"{name} is {type_of(given)}; expected an object: call the class")
    last = (
        "an object with the method propose, or None" if optional else "or an object with the method propose"
    )
    expected = f"a specdec.Model, a path or a hub name, one of specdec.drafts, {last}"
    raise InputError.of(name, given, expected, type_of(given))


def as_draft(target: Model, given: object, *, optional: bool = False) -> Draft:
    """Convert the argument `draft` to a draft that fits the target."""
    draft = open_draft("draft", given, optional=optional, target=target)
    draft.describe(target)  # refuses what does not fit
    return draft
