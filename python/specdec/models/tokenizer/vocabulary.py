"""Comparison of vocabularies, and characters that mark special tokens in text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from specdec.errors import InputError, VocabularyMismatchError, warn
from specdec.models.tokenizer.byte_tokenizer import ByteTokenizer, Tokenizer

# Decoded text has no lone surrogates, so they can mark special tokens.
_FIRST: Final = 0xD800
_OTHER: Final = 0xDFFF
_MARK: Final = re.compile("[\ud800-\udfff]")


def special_tokens_of(tokenizer: Tokenizer) -> Mapping[str, int]:
    """Return special tokens by name; none if the tokenizer does not expose its vocabulary."""
    return tokenizer.special_tokens() if isinstance(tokenizer, ByteTokenizer) else {}


class MarkSpelling:
    """Maps special tokens, and the `names` of some, to characters that mark them in text."""

    def __init__(
        self, characters: Mapping[int, str] | None = None, names: Mapping[str, str] | None = None
    ) -> None:
        self._characters = characters or {}
        self._names = names or {}
        self._by_character = {character: name for name, character in self._names.items()}
        longest_first = sorted(self._names, key=len, reverse=True)
        self._found = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    @classmethod
    def of(cls, special: Mapping[str, int], names: Iterable[str], *, others: bool = True) -> MarkSpelling:
        """Make a spelling with a character for each named special token, and one for all `others`."""
        named = [name for name in dict.fromkeys(names) if name in special]
        if len(named) > _OTHER - _FIRST:
            raise InputError(f"{len(named)} special tokens are named; expected at most {_OTHER - _FIRST}")
        characters = dict.fromkeys(special.values() if others else (), chr(_OTHER))
        by_name = {name: chr(_FIRST + i) for i, name in enumerate(named)}
        return cls(characters | {special[name]: mark for name, mark in by_name.items()}, by_name)

    def __bool__(self) -> bool:
        return bool(self._characters)

    def mark(self, token: int) -> str:
        """Return the character of a special token; empty for any other token."""
        return self._characters.get(token, "")

    def spell(self, text: str) -> str:
        """Replace names of special tokens in text by their characters, longest names first."""
        return text if self._found is None else self._found.sub(lambda one: self._names[one[0]], text)

    def named(self, text: str) -> str:
        """Replace marks in text by the names of their tokens; drop marks without name."""
        return _MARK.sub(lambda found: self._by_character.get(found[0], ""), text)

    def without_marks(self, text: str) -> str:
        """Remove marks from text."""
        return _MARK.sub("", text)

    @staticmethod
    def is_mark(character: str) -> bool:
        """Return whether a character marks a special token."""
        return _FIRST <= ord(character) <= _OTHER


def overlap(text: str, string: str) -> int:
    """Return the length of the longest proper prefix of `string` that `text` ends with."""
    for length in range(min(len(string) - 1, len(text)), 0, -1):
        if text.endswith(string[:length]):
            return length
    return 0


def check_same_vocabulary(target: Any, draft: Any) -> None:
    """Refuse a pair of models with different vocabularies.

    The acceptance rule compares both models' probabilities of one token, so an id must mean the same token in
    both. If padding makes their numbers of ids differ, no tokenizer may use an id that one of them lacks: the
    draft never proposes it and gives it probability 0. With two encoders, sources are compared too.

    Parameters
    ----------
    target, draft : specdec.Model
        Without tokenizer, only numbers of ids are compared; without its vocabulary, numbers of tokens.

    Raises
    ------
    VocabularyMismatchError
        Names the numbers of ids, or the first id with different tokens.
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
    target: Any, draft: Any, words: tuple[str, str, str], tokenizers: Sequence[Any],
    configs: Sequence[Mapping[str, Any]],
) -> None:  # fmt: skip
    """Compare vocabularies of text or of sources; ``words`` are noun and verb phrases for messages."""
    what, does, likewise = words
    n_target, n_draft = (config["n_vocab"] for config in configs)
    tokens = _difference(*tokenizers)
    if tokens is not None:
        pair = f"target {target.path} and draft {draft.path} have different {what}"
        if target.path == draft.path:
            pair = f"target and draft, both of {target.path}, have tokenizers of different {what}"
        raise VocabularyMismatchError(f"{pair}: {tokens}")
    if n_target == n_draft:
        return
    expected = "equal numbers, or tokenizers for both that leave the other ids unused"
    if None not in tokenizers:
        n_named = max(map(_n_named, tokenizers))
        if n_named <= min(n_target, n_draft):
            return
        expected = f"both to have the {n_named} ids of their tokenizers"
    sizes = f"target {target.path} {does} {n_target} ids, draft {draft.path} {likewise} {n_draft}"
    raise VocabularyMismatchError(f"{sizes}; expected {expected}")


def warn_of_ids_beyond(tokenizer: Any, n_vocab: int, path: Path) -> None:
    """Warn about a tokenizer with more ids than the `n_vocab` of the model at `path`."""
    n = _n_named(tokenizer)
    if isinstance(n, int) and n > n_vocab:
        expected = f"at most {n_vocab}, as in the model; text that needs other ids will be refused"
        warn(f"{path}: the tokenizer has {n} ids; expected {expected}")


def _n_named(tokenizer: Any) -> int:
    n: int = len(tokenizer.named) if isinstance(tokenizer, ByteTokenizer) else tokenizer.n_vocab
    return n


def _difference(target: Any, draft: Any) -> str | None:
    """Describe how two tokenizers differ; None if they do not, or if it is unknown."""
    if target is None or draft is None or target is draft:
        return None
    if not (isinstance(target, ByteTokenizer) and isinstance(draft, ByteTokenizer)):
        if target.n_vocab == draft.n_vocab:
            return None
        return f"the target's tokenizer has {target.n_vocab} tokens, the draft's {draft.n_vocab}"
    ours, theirs = target.named, draft.named
    if ours is theirs:
        return None
    if ours == theirs:
        draft.named = ours  # later calls need not compare
        return None
    n = min(len(ours), len(theirs))
    sizes = f"the target's tokenizer has {len(ours)} tokens, the draft's {len(theirs)};"
    if len(ours) == len(theirs):
        sizes = f"both have {n} tokens, but"
    for token_id, (our, their) in enumerate(zip(ours, theirs, strict=False)):
        if our != their:
            return f"{sizes} id {token_id} is {_show(our)} in the target and {_show(their)} in the draft"
    longer, owner = (ours, "target") if len(ours) > n else (theirs, "draft")
    return f"{sizes} the first {n} agree, id {n} is {_show(longer[n])} in the {owner} only"


def _show(token: bytes | None) -> str:
    if token is None:
        return "no token"
    with suppress(UnicodeDecodeError):
        return repr(token.decode("utf-8"))
    return repr(token)


# Equivalent special tokens: end of text, end of turn, start of turn.
_MEANINGS: Final = (
    {"</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "<|eos|>", "[EOS]", "<EOS_TOKEN>"},
    {"<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<turn|>", "<|END_OF_TURN_TOKEN|>"},
    {"<|im_start|>", "<|start_header_id|>", "<start_of_turn>", "<|turn>", "<|START_OF_TURN_TOKEN|>"},
)


@dataclass(frozen=True, eq=False)
class Correspondence:
    """Equal tokens of target and draft: `draft_of` by target id, `target_of` by draft id; -1 for none."""

    draft_of: NDArray[np.int32]
    target_of: NDArray[np.int32]

    @property
    def n_shared(self) -> int:
        """Number of pairs."""
        return int(np.count_nonzero(self.draft_of >= 0))


def token_strings(tokenizer: ByteTokenizer, n_vocab: int) -> list[bytes]:
    """Return the bytes of each of a model's ids; b"" for special tokens and unused ids."""
    return [tokenizer.text_bytes(token_id) for token_id in range(n_vocab)]


def correspondence_of(
    target: ByteTokenizer, draft: ByteTokenizer, n_target: int, n_draft: int
) -> Correspondence:
    """Return the tokens that both models have; of several with the same bytes, the last.

    Special tokens are equal if their names or their roles in known chat templates are. Each tokenizer's EOS
    counts as end of text.
    """
    ours = {string: i for i, string in enumerate(token_strings(target, n_target)) if string}
    theirs = {string: i for i, string in enumerate(token_strings(draft, n_draft)) if string}
    pairs = [(ours[string], token) for string, token in theirs.items() if string in ours]
    pairs += _special_pairs(target, draft, n_target, n_draft)
    draft_of, target_of = np.full(n_target, -1, np.int32), np.full(n_draft, -1, np.int32)
    for our, their in pairs:
        draft_of[our], target_of[their] = their, our
    return Correspondence(draft_of, target_of)


def _special_pairs(
    target: ByteTokenizer, draft: ByteTokenizer, n_target: int, n_draft: int
) -> Iterable[tuple[int, int]]:
    ours = {name: i for name, i in target.special_tokens().items() if i < n_target}
    theirs = {name: i for name, i in draft.special_tokens().items() if i < n_draft}
    pairs: dict[int, int] = {}

    def pair(our: Iterable[int], their: Iterable[int]) -> None:
        free = [i for i in our if i not in pairs]
        left = [i for i in their if i not in pairs.values()]
        if free and left:
            pairs[free[0]] = left[0]

    ends_of = [{name for name, i in names.items() if i in tokenizer.eos_ids} & _MEANINGS[0]
               for names, tokenizer in ((ours, target), (theirs, draft))]  # fmt: skip
    for name in ours.keys() & theirs.keys():
        # skip a name of the end of text that is EOS in only one of them, if both have such a name
        if not (all(ends_of) and sum(name in ends for ends in ends_of) == 1):
            pairs[ours[name]] = theirs[name]
    for names in _MEANINGS:
        if not {ours[name] for name in names & ours.keys()} & pairs.keys():
            pair(*(
                [ids[name] for name in sorted(names & ids.keys(), key=lambda name: (name not in ends, name))]
                for ids, ends in zip((ours, theirs), ends_of, strict=True)
            ))  # fmt: skip
    ends = [i for i in target.eos_ids if i < n_target]
    if not any(i in pairs for i in ends):
        pair(ends, [i for i in draft.eos_ids if i < n_draft])
    return pairs.items()
