"""What outlives a text: its keys and values in a prompt cache, and what its draft remembers."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import partial
from hashlib import blake2b

from specdec import _core
from specdec.decoding.beginning import Beginning
from specdec.decoding.prompt_cache import PromptCache
from specdec.drafts.draft import Draft
from specdec.models.model import Model
from specdec.verification.rules import Rule

__all__ = ["KeptTexts", "text_key"]


def text_key(seed: tuple[int, int], draft: Draft | None, rule: Rule) -> tuple[int, int]:
    """The key (seed, sequence) of the random numbers of a text that begins.

    With a draft that remembers earlier texts it is one that none of them had (`Draft.text_key`). Under
    the coupled rule the numbers are those of plain decoding: there the text is a function of them alone.
    """
    number, sequence = seed
    if draft is None or rule == "coupled" or not (key := draft.text_key()):
        return number, sequence
    digest = blake2b(struct.pack(f"<{len(key) + 1}Q", number, *key), digest_size=8).digest()
    return int.from_bytes(digest, "little"), sequence


class KeptTexts:
    """A prompt cache, for the models that read the texts of a session into caches of their own.

    Parameters
    ----------
    cache : PromptCache
    target : Model
    draft : Draft or None
        What drafts in the session.
    """

    def __init__(self, cache: PromptCache, target: Model, draft: Draft | None) -> None:
        self._cache = cache
        self._target = target
        of_draft = () if draft is None else draft.readers
        self._draft = draft
        self._readers = list({model.core: model for model in [*of_draft, target]}.values())

    def _as_read(self, model: Model, ids: Sequence[int]) -> Sequence[int]:
        """A text as one of these models reads it."""
        if self._draft is None or model.core is self._target.core:
            return ids
        return self._draft.as_read(model, self._target, ids)

    def begin(self, session: _core.Session, slot: int, beginning: Beginning) -> int:
        """Begin the prompt in a slot with what is kept of it; return how many tokens the target then has."""
        n_target = 0
        for model in self._readers:
            taps = session.taps(slot, model.core)
            text = self._cache.find(
                model.core, self._as_read(model, beginning.ids), beginning.source_of(model), taps
            )
            n_cached = 0 if text is None else session.begin_with(slot, text)
            if model.core is self._target.core:
                n_target = n_cached
        return n_target

    def keep(self, session: _core.Session, slot: int, beginning: Beginning, tokens: Sequence[int]) -> None:
        """Keep the text in a slot, with these new tokens, but for what is not read yet."""
        text = [*beginning.ids, *tokens]
        for model in self._readers:
            n_tokens, n_bytes, n_low = session.cached_size(slot, model.core)
            copy = partial(session.cached_text, slot, model.core)
            taps, source = session.taps(slot, model.core), beginning.source_of(model)
            self._cache.keep(
                model.core,
                self._as_read(model, text)[:n_tokens],
                n_bytes,
                n_low,
                copy,
                source=source,
                taps=taps,
            )
