"""Whether a target and a draft mean the same by the same id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec.errors import VocabularyMismatchError, warn
from specdec.models.tokenizer.byte_tokenizer import ByteTokenizer

__all__ = ["check_same_vocabulary", "warn_of_ids_beyond"]


def check_same_vocabulary(target: Any, draft: Any) -> None:
    """Refuse a pair of models with different vocabularies.

    The acceptance rule compares the two models' probabilities of one token, so each id must be the same
    token in both. Where the models have different numbers of ids, as padding makes them, no tokenizer may
    name what one of them lacks: the draft never guesses such an id, and gives it probability 0. Where both
    models have an encoder, both read the same source, so what is said of texts holds of sources too.

    Parameters
    ----------
    target, draft : specdec.Model
        Where one has no tokenizer, only the numbers of ids are compared; where the vocabulary of one cannot
        be seen, the numbers of tokens.

    Raises
    ------
    VocabularyMismatchError
        Says how they differ: the numbers of ids, or the first id that stands for different tokens.
    """
    texts = "vocabularies", "gives probabilities to", "to"
    _check_side(target, draft, texts, (target.tokenizer, draft.tokenizer), (target.config, draft.config))
    encoders = target.config.get("encoder"), draft.config.get("encoder")
    if encoders[0] is not None and encoders[1] is not None:
        sides = [model.source_tokenizer for model in (target, draft)]
        tokenizers = [None if side is None else side.tokenizer for side in sides]
        sources = "vocabularies of sources", "reads sources of", "of"
        _check_side(target, draft, sources, tokenizers, encoders)


def _check_side(
    target: Any,
    draft: Any,
    words: tuple[str, str, str],
    tokenizers: Sequence[Any],
    configs: Sequence[Mapping[str, Any]],
) -> None:
    """The same of texts, or of sources: of a pair of tokenizers, and of what has their ids.

    ``words``: what differs, what a model does to its ids, and what another one does, for messages.
    """
    what, does, likewise = words
    n_target, n_draft = (config["n_vocab"] for config in configs)
    ours, theirs = tokenizers
    tokens = _difference(ours, theirs)
    if tokens is not None:
        pair = f"target {target.path} and draft {draft.path} have different {what}"
        if target.path == draft.path:
            pair = f"target and draft, both of {target.path}, have tokenizers of different {what}"
        raise VocabularyMismatchError(f"{pair}: {tokens}")
    if n_target == n_draft:
        return
    sizes = f"target {target.path} {does} {n_target} ids, draft {draft.path} {likewise} {n_draft}; expected"
    if ours is None or theirs is None:
        raise VocabularyMismatchError(
            f"{sizes} as many, or tokenizers for both, which say that the others are no tokens"
        )
    n_named = max(_n_named(ours), _n_named(theirs))
    if n_named > min(n_target, n_draft):
        raise VocabularyMismatchError(
            f"{sizes} both to have the {n_named} ids that their tokenizers name tokens for"
        )


def warn_of_ids_beyond(tokenizer: Any, n_vocab: int, path: Path) -> None:
    """Warn of a tokenizer that names tokens for ids that the model at `path` does not have.

    Parameters
    ----------
    n_vocab : int
        Ids of the model.
    """
    n = _n_named(tokenizer)
    if isinstance(n, int) and n > n_vocab:
        warn(
            f"{path}: the tokenizer has {n} ids; expected at most {n_vocab}, those of the model; a "
            "text that has one of the others will be refused"
        )


def _named(tokenizer: Any) -> tuple[bytes | None, ...]:
    """The vocabulary up to the last id that has a token."""
    tokens: tuple[bytes | None, ...] = tokenizer.vocabulary()
    n = len(tokens)
    while n and tokens[n - 1] is None:
        n -= 1
    return tokens[:n]


def _n_named(tokenizer: Any) -> int:
    n: int = len(_named(tokenizer)) if isinstance(tokenizer, ByteTokenizer) else tokenizer.n_vocab
    return n


def _difference(target: Any, draft: Any) -> str | None:
    """How two tokenizers differ, None if they do not or it cannot be known."""
    if target is None or draft is None or target is draft:
        return None
    if not (isinstance(target, ByteTokenizer) and isinstance(draft, ByteTokenizer)):
        if target.n_vocab != draft.n_vocab:
            return f"the target's tokenizer has {target.n_vocab} tokens, the draft's {draft.n_vocab}"
        return None
    ours, theirs = _named(target), _named(draft)
    if ours == theirs:
        return None
    sizes = (
        f"both have {len(ours)} tokens, but"
        if len(ours) == len(theirs)
        else f"the target's tokenizer has {len(ours)} tokens, the draft's {len(theirs)};"
    )
    for token_id, (our, their) in enumerate(zip(ours, theirs, strict=False)):
        if our != their:
            return f"{sizes} id {token_id} is {_show(our)} in the target and {_show(their)} in the draft"
    longer, owner = (ours, "target") if len(ours) > len(theirs) else (theirs, "draft")
    n_common = min(len(ours), len(theirs))
    return (
        f"{sizes} the first {n_common} agree, id {n_common} is {_show(longer[n_common])} in the {owner} alone"
    )


def _show(token: bytes | None) -> str:
    if token is None:
        return "no token"
    try:
        return repr(token.decode("utf-8"))
    except UnicodeDecodeError:
        return repr(token)
