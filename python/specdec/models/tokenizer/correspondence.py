"""Which tokens of two vocabularies are the same: by their strings, or by their meaning."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from specdec.models.tokenizer.byte_tokenizer import ByteTokenizer

__all__ = ["Correspondence", "correspondence_of", "token_strings"]

# Names of special tokens that mean the same: end of text, end of a turn, beginning of a turn, its role's end.
_MEANINGS: Final[tuple[frozenset[str], ...]] = (
    frozenset({"</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "<|eos|>", "[EOS]", "<EOS_TOKEN>"}),
    frozenset({"<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<turn|>", "<|END_OF_TURN_TOKEN|>"}),
    frozenset(
        {"<|im_start|>", "<|start_header_id|>", "<start_of_turn>", "<|turn>", "<|START_OF_TURN_TOKEN|>"}
    ),
)


@dataclass(frozen=True, eq=False)
class Correspondence:
    """Pairs of tokens of a target and a draft, each token in one pair at most.

    Attributes
    ----------
    draft_of : NDArray[int32], shape (n_target,)
        The draft's token for each of the target's, -1 where there is none.
    target_of : NDArray[int32], shape (n_draft,)
        The same pairs from the other side.
    """

    draft_of: NDArray[np.int32]
    target_of: NDArray[np.int32]

    @property
    def n_shared(self) -> int:
        """How many pairs there are."""
        return int(np.count_nonzero(self.draft_of >= 0))


def token_strings(tokenizer: ByteTokenizer, n_vocab: int) -> list[bytes]:
    """What each of a model's ids adds to a text; b"" for special tokens and ids without token."""
    return [tokenizer.text_bytes(token_id) for token_id in range(n_vocab)]


def correspondence_of(
    target: ByteTokenizer, draft: ByteTokenizer, n_target: int, n_draft: int
) -> Correspondence:
    """The tokens that both have.

    Tokens with text are the same where their bytes are. Where several tokens of a vocabulary have the same
    bytes, the last one counts: vocabularies have the tokens of single bytes before the pieces of text, and
    added tokens, which are looked for first, at their end. Special tokens are the same where their names
    are, or what the names stand for in the templates of known families; end of text is what a tokenizer says
    it is, whatever else is called so.

    Parameters
    ----------
    n_target, n_draft : int
        Ids of the models.
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
) -> Sequence[tuple[int, int]]:
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
        # a name for the end of text by which only one of them ends its texts, and the other by another name
        if not (all(ends_of) and sum(name in ends for ends in ends_of) == 1):
            pairs[ours[name]] = theirs[name]
    for names in _MEANINGS:
        known = {ours[name] for name in names & ours.keys()} & pairs.keys()
        if not known:
            our, their = (
                [ids[name] for name in sorted(names & ids.keys(), key=lambda name: (name not in ends, name))]
                for ids, ends in zip((ours, theirs), ends_of, strict=True)
            )
            pair(our, their)
    ends = [i for i in target.eos_ids if i < n_target]
    if not any(i in pairs for i in ends):
        pair(ends, [i for i in draft.eos_ids if i < n_draft])
    return list(pairs.items())
