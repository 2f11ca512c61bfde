"""`PromptCache`, prefix caching across calls: keys and values of earlier texts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec import _core
from specdec.checks import check_integer
from specdec.decoding.prompts import PromptIds
from specdec.drafts.draft import Draft
from specdec.errors import InputError, type_of
from specdec.models.model import Model

_DEFAULT_BYTES = 1 << 30


def check_prompt_cache(prompt_cache: object) -> None:
    """Raise unless the argument is a prompt cache or None."""
    if prompt_cache is not None and not isinstance(prompt_cache, PromptCache):
        expected = "a specdec.PromptCache, or None"
        raise InputError.of("prompt_cache", prompt_cache, expected, type_of(prompt_cache))


_Text = tuple[_core.Model, NDArray[np.int32], tuple[int, ...] | None]
"""(model, tokens [n_tokens], source of an encoder-decoder)."""


def _text(model: _core.Model, tokens: Sequence[int], source: Sequence[int] | None) -> _Text:
    return model, np.asarray(tokens, np.int32), None if source is None else tuple(source)


def _reusable(n: int, n_low: int, snapshots: Sequence[int]) -> int:
    """Return how many of n common tokens another text can begin with."""
    return n if n >= n_low else max((at for at in snapshots if at <= n), default=0)


@dataclass(frozen=True)
class _Entry:
    text: _core.CachedText
    tokens: NDArray[np.int32]  # [n_tokens]
    n_bytes: int
    source: tuple[int, ...] | None

    def begins(self, text: _Text, captures: Sequence[int]) -> int:
        """Return how many tokens another text can copy, with the hidden states `captures`."""
        if not set(captures) <= set(self.text.captures):
            return 0
        return _reusable(self.n_common(text), self.text.n_low, self.text.snapshots)

    def n_common(self, text: _Text) -> int:
        """Return the length of the common prefix with another text."""
        model, tokens, source = text
        if self.text.model is not model or self.source != source:
            return 0
        n = min(len(tokens), len(self.tokens))
        different = np.flatnonzero(self.tokens[:n] != tokens[:n])
        return int(different[0]) if different.size else n


class PromptCache:
    """Prefix cache: keeps texts that models have processed, so that common prefixes are not computed again.

    With ``generate(..., prompt_cache=cache)``, every finished text is kept, prompt and new tokens; the next
    prompt is processed from where it differs from all of them. No bit of any result changes. For an
    encoder-decoder a text matches only with the same source, which is then not encoded again. Draft models
    (`drafts.ModelDraft`) keep their texts too. A `beam_search` keeps the prompt and the common prefix of its
    hypotheses.

    If prompts go through OpenBLAS (``specdec.load(..., prefill="blas")``), a prompt reuses whole slices of
    256 tokens of other prompts, and no generated tokens. Layers with sliding-window attention keep only the
    end of a text: a prompt that differs more than about 128 tokens before that end is processed from the
    start. Layers with a recurrent state (the gated delta rule, short convolutions) can only go back to a
    snapshot of it: every 2048 tokens, 16 tokens before the end of each prompt, and at the end of a text that
    another continues. A session's slots each keep the last snapshots that fit in ``max_bytes / min(4 · slots,
    16)``. Drafts that read the target's hidden states (`drafts.DecodingHeads`) store them with the texts, 4
    bytes per number; texts from calls without such a draft are processed again.

    To share a document, generate from it alone first, with ``max_new_tokens=1``: prompts that begin with it
    then start at its end.

    The least recently used texts are dropped when the total exceeds `max_bytes`. A text that continues
    another replaces it. One cache may serve several models and threads. Pickles and copies are empty caches
    of the same size.

    Parameters
    ----------
    max_bytes : int, default 1 GiB
        Maximum memory of keys and values. A token takes 2 · layers · key-value heads · head size numbers, of
        2 bytes each in a bf16 cache. Recurrent states and their snapshots, in f32, count once for each text
        that has them. A text that is larger than this is not kept.

    Examples
    --------
    >>> cache = specdec.PromptCache(max_bytes=2 * 2**30)
    >>> reply = specdec.generate(target, draft, messages=messages, prompt_cache=cache)
    >>> messages += [{"role": "assistant", "content": reply.text}, {"role": "user", "content": "Go on."}]
    >>> specdec.generate(target, draft, messages=messages, prompt_cache=cache).n_cached_tokens
    187
    """

    def __init__(self, max_bytes: int = _DEFAULT_BYTES) -> None:
        self._max_bytes = check_integer("max_bytes", max_bytes, 0)
        self._lock = threading.Lock()
        self._entries: list[_Entry] = []  # the most recently used last
        self._promised = 0  # bytes of texts that are being copied

    def __reduce__(self) -> tuple[type[PromptCache], tuple[int]]:
        return PromptCache, (self._max_bytes,)

    @property
    def max_bytes(self) -> int:
        """Maximum memory of keys and values, in bytes."""
        return self._max_bytes

    @property
    def n_bytes(self) -> int:
        """Memory in use, in bytes; what a running call is copying may stay a little longer."""
        with self._lock:
            return self._used()

    def __len__(self) -> int:
        """Number of texts in the cache."""
        with self._lock:
            return len(self._entries)

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<specdec.PromptCache of {len(self)} texts, {self.n_bytes} of {self._max_bytes} bytes>"

    def clear(self) -> None:
        """Drop all texts."""
        with self._lock:
            self._entries.clear()

    def find(
        self, model: _core.Model, prompt: Sequence[int], source: Sequence[int] | None = None,
        captures: Sequence[int] = (),
    ) -> _core.CachedText | None:  # fmt: skip
        """Return the text with the longest common prefix with a prompt of a model, or None.

        `source` is the encoder's input; the text must have the hidden states `captures` for each token.
        """
        wanted = _text(model, prompt, source)
        with self._lock:
            agreed = [entry.begins(wanted, captures) for entry in self._entries]
            longest = max(agreed, default=0)
            if longest == 0:
                return None
            # Ties go to the most recently used.
            at = len(agreed) - 1 - agreed[::-1].index(longest)
            self._entries.append(self._entries.pop(at))
            return self._entries[-1].text

    def keep(
        self, model: _core.Model, tokens: Sequence[int], n_bytes: int, n_low: int,
        copy: Callable[[], _core.CachedText], source: Sequence[int] | None = None,
        captures: Sequence[int] = (), snapshots: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """Keep a text of a model, unless the cache has it or it does not fit.

        `tokens` are the computed ones. `copy` makes the copy to keep, of `n_bytes`; others can reuse at least
        `n_low` tokens of it, or as many as a snapshot has. `source` and `captures` are as in `find`.
        """
        known = _text(model, tokens, source)
        if not len(tokens):
            return
        with self._lock:
            for at, entry in enumerate(self._entries):
                if entry.begins(known, captures) == len(tokens):
                    self._entries.append(self._entries.pop(at))
                    return
            if n_bytes > self._max_bytes - self._promised:
                return
            self._entries = [
                entry
                for entry in self._entries
                if not _reusable(entry.n_common(known), n_low, snapshots) == len(entry.tokens)
                or not set(entry.text.captures) <= set(captures)
            ]
            while self._used() + n_bytes > self._max_bytes:
                del self._entries[0]
            self._promised += n_bytes
        text: Any = None
        try:
            text = copy()
        except MemoryError:
            pass  # out of memory: do not keep it
        finally:
            with self._lock:
                self._promised -= n_bytes
                if text is not None:
                    self._entries.append(_Entry(text, text.tokens, n_bytes, known[2]))

    def _used(self) -> int:
        return self._promised + sum(entry.n_bytes for entry in self._entries)


class PrefixCacheAdapter:
    """Prompt cache of the models that process a session's texts: target, adapted models, drafts."""

    def __init__(self, cache: PromptCache, target: Model, draft: Draft | None) -> None:
        self._cache, self._target, self._draft = cache, target, draft

    def _readers(self, own: Model) -> list[Model]:
        """Return the models that process a text of a model, including itself."""
        of_draft = () if self._draft is None else self._draft.readers
        return list({model.core: model for model in [*of_draft, own]}.values())

    def begin(self, session: _core.Session, slot: int, prompt: PromptIds, own: Model) -> int:
        """Start a prompt in a slot from the cache; return how many tokens its model then has.

        `own` is the model of the text: the target, or the target with an adapter.
        """
        n_cached = {}
        for model in self._readers(own):
            ids: Sequence[int] = prompt.ids
            if self._draft is not None and model.core is not own.core:
                ids = self._draft.as_read(model, self._target, ids)
            captures = session.captures(slot, model.core)
            text = self._cache.find(model.core, ids, prompt.source_of(model), captures)
            n_cached[model.core] = 0 if text is None else session.begin_with(slot, text)
        return n_cached[own.core]

    def keep(self, session: _core.Session, slot: int, own: Model) -> None:
        """Keep what each model has computed of the text in a slot; `own` as in `begin`."""
        for model in self._readers(own):
            tokens, source, n_bytes, n_low = session.cached_size(slot, model.core)
            copy = partial(session.cached_text, slot, model.core)
            captures, snapshots = session.captures(slot, model.core), session.snapshots(slot, model.core)
            self._cache.keep(model.core, tokens, n_bytes, n_low, copy, source, captures, snapshots)
