"""What outlives a text: its keys and values, in a prompt cache."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from specdec import _core
from specdec.decoding.beginning import Beginning
from specdec.decoding.prompt_cache import PromptCache
from specdec.drafts.draft import Draft
from specdec.models.model import Model

__all__ = ["KeptTexts"]


class KeptTexts:
    """A prompt cache, for the models that read the texts of a session into caches of their own.

    Parameters
    ----------
    cache : PromptCache
    target : Model
        Texts of a session may also be of models with adapters beside its weights.
    draft : Draft or None
        What drafts in the session.
    """

    def __init__(self, cache: PromptCache, target: Model, draft: Draft | None) -> None:
        self._cache = cache
        self._target = target
        self._draft = draft
        self._of_draft = () if draft is None else draft.readers

    def _readers(self, own: Model) -> list[Model]:
        """The models that read a text of a model: that model last."""
        return list({model.core: model for model in [*self._of_draft, own]}.values())

    def _as_read(self, model: Model, own: Model, ids: Sequence[int]) -> Sequence[int]:
        """A text of a model as one of these models reads it."""
        if self._draft is None or model.core is own.core:
            return ids
        return self._draft.as_read(model, self._target, ids)

    def begin(self, session: _core.Session, slot: int, beginning: Beginning, own: Model | None = None) -> int:
        """Begin the prompt in a slot with what is kept of it.

        Parameters
        ----------
        session : specdec._core.Session
        slot : int
        beginning : Beginning
        own : Model, optional
            Whose text it is; None: the target's.

        Returns
        -------
        int
            Tokens that this model then has.
        """
        n_own, own = 0, own or self._target
        for model in self._readers(own):
            taps = session.taps(slot, model.core)
            text = self._cache.find(
                model.core, self._as_read(model, own, beginning.ids), beginning.source_of(model), taps
            )
            n_cached = 0 if text is None else session.begin_with(slot, text)
            if model.core is own.core:
                n_own = n_cached
        return n_own

    def keep(self, session: _core.Session, slot: int, own: Model | None = None) -> None:
        """Keep what each model has read of the text in a slot; else as `begin`."""
        for model in self._readers(own or self._target):
            tokens, source, n_bytes, n_low = session.cached_size(slot, model.core)
            copy, taps = partial(session.cached_text, slot, model.core), session.taps(slot, model.core)
            self._cache.keep(model.core, tokens, n_bytes, n_low, copy, source=source, taps=taps)
