"""What was read before, kept from call to call: keys and values of texts that prompts may begin with."""

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
    """Refuse what is neither a prompt cache nor None."""
    if prompt_cache is not None and not isinstance(prompt_cache, PromptCache):
        expected = "a specdec.PromptCache, or None"
        raise InputError.of("prompt_cache", prompt_cache, expected, type_of(prompt_cache))


_Text = tuple[_core.Model, NDArray[np.int32], tuple[int, ...] | None]
"""Whose text it is, its tokens [n_tokens], and the source that they attend to."""


def _text(model: _core.Model, tokens: Sequence[int], source: Sequence[int] | None) -> _Text:
    return model, np.asarray(tokens, np.int32), None if source is None else tuple(source)


@dataclass(frozen=True)
class _Entry:
    text: _core.CachedText
    tokens: NDArray[np.int32]  # [n_tokens] of the text
    n_bytes: int
    source: tuple[int, ...] | None

    def begins(self, text: _Text, captures: Sequence[int]) -> int:
        """How many tokens can be copied to another text, with the hidden states `captures`."""
        n_common = self.n_common(text)
        return n_common if n_common >= self.text.n_low and set(captures) <= set(self.text.captures) else 0

    def n_common(self, text: _Text) -> int:
        """How many tokens another text begins with as this one does."""
        model, tokens, source = text
        if self.text.model is not model or self.source != source:
            return 0
        n = min(len(tokens), len(self.tokens))
        different = np.flatnonzero(self.tokens[:n] != tokens[:n])
        return int(different[0]) if different.size else n


class PromptCache:
    """Texts that models have read, so that a prompt which begins like one of them is not read again.

    Given as ``generate(..., prompt_cache=cache)``, it keeps every text when its run ends, prompt and new
    tokens, and the next prompt is read from where it agrees with none of them. That changes no bit of any
    result. In an encoder-decoder a text is one of the same source, which is then not read again either. Draft
    models (`drafts.ModelDraft`) keep their texts there too. A `beam_search` keeps the prompt, and what all
    its hypotheses begin with.

    Of a model whose prompts go through OpenBLAS (``specdec.load(..., prefill="blas")``) a prompt begins with
    whole slices of 256 tokens of another prompt, not with generated tokens. A layer that attends to a window
    keeps the end of a text alone: a prompt that leaves the text some 128 tokens before its end or earlier is
    read from its beginning. A draft that reads hidden states of the target (`drafts.DecodingHeads`) keeps
    them with its texts, in 4 bytes a number; texts of runs without such a draft are read again.

    Texts that were used least recently are dropped where all would take more than `max_bytes`. A text that
    continues another takes its place. One cache may serve several models and threads. A pickle or a copy is
    an empty cache of the same size.

    Parameters
    ----------
    max_bytes : int, default 1 GiB
        Memory of the keys and values at most. A token takes 2 · layers · key-value heads · head size numbers,
        of 2 bytes in a bf16 cache. A text that is larger by itself is not kept.

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
        """Memory of the keys and values at most."""
        return self._max_bytes

    @property
    def n_bytes(self) -> int:
        """Memory that they take now; what a run is reading at the moment may stay a little longer."""
        with self._lock:
            return self._used()

    def __len__(self) -> int:
        """How many texts are kept."""
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
        """The text that agrees longest with a prompt of a model; None if none begins like it.

        `source` is the encoder's input; each token of the text must have the hidden states `captures`.
        """
        wanted = _text(model, prompt, source)
        with self._lock:
            agreed = [entry.begins(wanted, captures) for entry in self._entries]
            longest = max(agreed, default=0)
            if longest == 0:
                return None
            # Of equally long ones that which was used last.
            at = len(agreed) - 1 - agreed[::-1].index(longest)
            self._entries.append(self._entries.pop(at))
            return self._entries[-1].text

    def keep(
        self, model: _core.Model, tokens: Sequence[int], n_bytes: int, n_low: int,
        copy: Callable[[], _core.CachedText], source: Sequence[int] | None = None,
        captures: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """Keep a text of a model, unless one that is kept has it or there is no room for it.

        `tokens` is what is known of it, `copy` makes the copy that is kept, of `n_bytes`, from which others
        begin with `n_low` tokens at least; `source` and `captures` are as in `find`.
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
                if not n_low <= entry.n_common(known) == len(entry.tokens)
                or not set(entry.text.captures) <= set(captures)
            ]
            while self._used() + n_bytes > self._max_bytes:
                del self._entries[0]
            self._promised += n_bytes
        text: Any = None
        try:
            text = copy()
        except MemoryError:
            pass  # what memory has no room for is not kept
        finally:
            with self._lock:
                self._promised -= n_bytes
                if text is not None:
                    self._entries.append(_Entry(text, text.tokens, n_bytes, known[2]))

    def _used(self) -> int:
        return self._promised + sum(entry.n_bytes for entry in self._entries)


class PrefixCacheAdapter:
    """A prompt cache for the models that read the texts of a session: target, adapted models, drafts."""

    def __init__(self, cache: PromptCache, target: Model, draft: Draft | None) -> None:
        self._cache, self._target, self._draft = cache, target, draft

    def _readers(self, own: Model) -> list[Model]:
        """The models that read a text of a model, itself among them."""
        of_draft = () if self._draft is None else self._draft.readers
        return list({model.core: model for model in [*of_draft, own]}.values())

    def begin(self, session: _core.Session, slot: int, prompt: PromptIds, own: Model) -> int:
        """Begin the prompt in a slot with what is kept of it; return how many tokens its own model then has.

        `own` is the model whose text it is: the target, or the target with an adapter.
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
        """Keep what each model has read of the text in a slot; else as `begin`."""
        for model in self._readers(own):
            tokens, source, n_bytes, n_low = session.cached_size(slot, model.core)
            copy, captures = (
                partial(session.cached_text, slot, model.core),
                session.captures(slot, model.core),
            )
            self._cache.keep(model.core, tokens, n_bytes, n_low, copy, source=source, captures=captures)
