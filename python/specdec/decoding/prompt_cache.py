"""`PromptCache`, prefix caching across calls: keys and values of earlier texts."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final
from weakref import WeakSet

from specdec import _core, system
from specdec.checks import check_integer, check_path
from specdec.decoding.cached_tokens import CachedTokens
from specdec.decoding.prompt_files import PANEL, PromptFiles
from specdec.decoding.prompts import PromptIds
from specdec.drafts.draft import Draft
from specdec.errors import InputError, type_of
from specdec.models.model import Model

_DEFAULT_BYTES = 1 << 30
_DEFAULT_DISK_BYTES = 8 << 30


def check_prompt_cache(prompt_cache: object) -> None:
    """Raise unless the argument is a prompt cache or None."""
    if prompt_cache is not None and not isinstance(prompt_cache, PromptCache):
        expected = "a specdec.PromptCache, or None"
        raise InputError.of("prompt_cache", prompt_cache, expected, type_of(prompt_cache))


@dataclass(frozen=True, eq=False)
class _Entry:
    text: _core.CachedText
    known: CachedTokens
    n_bytes: int

    def begins(self, model: _core.Model, wanted: CachedTokens) -> int:
        """Return how many tokens another text of a model can copy."""
        return self.known.begins(wanted) if self.text.model is model else 0


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
    another replaces it. One cache may serve several models and threads.

    With a `path`, texts are also written to files of this folder, in the background, and serve later
    processes of the same model: of equal weights, adapter, number formats and `prefill`, and of this version
    of specdec (`docs/GENERATING.md`). Several processes may share a folder. Files with a common prefix store
    it once. The least recently used are removed when they exceed `max_disk_bytes`. Files that are damaged or
    not of a prompt cache are ignored with a warning, and so are texts that cannot be written.

    Pickles and copies are empty caches of the same size and folder.

    Parameters
    ----------
    max_bytes : int, default 1 GiB
        Maximum memory of keys and values. A token takes 2 · layers · key-value heads · head size numbers, of
        2 bytes each in a bf16 cache. Recurrent states and their snapshots, in f32, count once for each text
        that has them. A text that is larger than this is not kept.

    path : path, optional
        Folder for the files; created if it does not exist. None: memory only.
    max_disk_bytes : int, default 8 GiB
        Maximum size of the files, of all models together.

    Examples
    --------
    >>> cache = specdec.PromptCache(max_bytes=2 * 2**30)
    >>> reply = specdec.generate(target, draft, messages=messages, prompt_cache=cache)
    >>> messages += [{"role": "assistant", "content": reply.text}, {"role": "user", "content": "Go on."}]
    >>> specdec.generate(target, draft, messages=messages, prompt_cache=cache).n_cached_tokens
    187
    """

    def __init__(
        self, max_bytes: int = _DEFAULT_BYTES, path: str | os.PathLike[str] | None = None, *,
        max_disk_bytes: int = _DEFAULT_DISK_BYTES,
    ) -> None:  # fmt: skip
        self._max_bytes = check_integer("max_bytes", max_bytes, 0)
        disk_bytes = check_integer("max_disk_bytes", max_disk_bytes, 0)
        if isinstance(path, str) and not path:
            raise InputError.of("path", path, "the path of a folder")
        self._files = None if path is None else PromptFiles(check_path("path", path).absolute(), disk_bytes)
        self._lock = threading.Lock()
        self._entries: list[_Entry] = []  # the most recently used last
        self._promised = 0  # bytes of texts that are being copied
        _ALIVE.add(self)

    def _after_fork(self) -> None:
        """Drop what belongs to threads of the process that forked this one."""
        self._lock, self._promised = threading.Lock(), 0
        if self._files is not None:
            self._files.after_fork()

    def __reduce__(self) -> tuple[Callable[..., PromptCache], tuple[()]]:
        if (files := self._files) is None:
            return partial(PromptCache, self._max_bytes), ()
        return partial(PromptCache, self._max_bytes, files.path, max_disk_bytes=files.max_bytes), ()

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
        """Drop all texts, and remove the files of the folder."""
        with self._lock:
            self._entries.clear()
        if self._files is not None:
            self._files.clear()

    def flush(self) -> None:
        """Wait until the texts so far are in the folder; at its end Python waits, too."""
        if self._files is not None:
            self._files.flush()

    @property
    def has_files(self) -> bool:
        """Whether the cache has a folder."""
        return self._files is not None

    def prepare(self, model: _core.Model) -> None:
        """Identify a model by its weights, if there is a folder: the first call for it reads all of them."""
        if self._files is not None:
            self._files.folder(model)

    def find(
        self, model: _core.Model, prompt: Sequence[int], source: Sequence[int] | None = None,
        captures: Sequence[int] = (),
    ) -> _core.CachedText | None:  # fmt: skip
        """Return the text with the longest common prefix with a prompt of a model, or None.

        `source` is the encoder's input; the text must have the hidden states `captures` for each token.
        """
        wanted = CachedTokens.wanted(prompt, source, captures)
        found = None
        with self._lock:
            agreed = [entry.begins(model, wanted) for entry in self._entries]
            longest = max(agreed, default=0)
            if longest > 0:
                # Ties go to the most recently used.
                at = len(agreed) - 1 - agreed[::-1].index(longest)
                self._entries.append(self._entries.pop(at))
                found = self._entries[-1].text
        # A file must save a panel of tokens, or the encoding of a source.
        least = 1 if longest == 0 and source is not None else longest + PANEL
        if self._files is None or len(wanted.tokens) < least:
            return found
        text = self._files.find(model, wanted, least)
        if text is None:
            return found
        known = CachedTokens.of(text)
        with self._lock:
            if self._promise(model, known, text.n_bytes):
                self._take(text, known, text.n_bytes)
        return text

    def keep(
        self, model: _core.Model, tokens: Sequence[int], n_bytes: int, n_low: int,
        copy: Callable[[], _core.CachedText], source: Sequence[int] | None = None,
        captures: Sequence[int] = (), snapshots: Sequence[int] = (),
    ) -> None:  # fmt: skip
        """Keep a text of a model, unless the cache has it or it does not fit.

        `tokens` are the computed ones. `copy` makes the copy to keep, of `n_bytes`; others can reuse at least
        `n_low` tokens of it, or as many as a snapshot has. `source` and `captures` are as in `find`.
        """
        known = replace(
            CachedTokens.wanted(tokens, source, captures), n_low=n_low, snapshots=tuple(snapshots)
        )
        if not len(tokens):
            return
        with self._lock:
            if not self._promise(model, known, n_bytes):
                return
        text: Any = None
        try:
            text = copy()
        except MemoryError:
            pass  # out of memory: do not keep it
        finally:
            with self._lock:
                self._take(text, known, n_bytes)
        if text is not None and self._files is not None:
            self._files.keep(text)

    def _promise(self, model: _core.Model, known: CachedTokens, n_bytes: int) -> bool:
        """Make room for a text, unless the cache has it or it does not fit."""
        for at, entry in enumerate(self._entries):
            if entry.begins(model, known) == len(known.tokens):
                self._entries.append(self._entries.pop(at))
                return False
        if n_bytes > self._max_bytes - self._promised:
            return False
        self._drop(
            entry
            for entry in self._entries
            if entry.text.model is model
            and known.reusable(known.n_common(entry.known)) == len(entry.known.tokens)
            and set(entry.known.captures) <= set(known.captures)
        )
        while self._used() + n_bytes > self._max_bytes:
            self._drop(self._entries[:1])
        self._promised += n_bytes
        return True

    def _take(self, text: _core.CachedText | None, known: CachedTokens, n_bytes: int) -> None:
        """Add a text for which room was made; None: give up the room."""
        self._promised -= n_bytes
        if text is not None:
            self._entries.append(_Entry(text, replace(known, tokens=text.tokens), n_bytes))

    def _drop(self, entries: Iterable[_Entry]) -> None:
        for entry in list(entries):
            self._entries.remove(entry)
            if self._files is not None:
                self._files.drop(entry.text)

    def _used(self) -> int:
        return self._promised + sum(entry.n_bytes for entry in self._entries)


class PrefixCacheAdapter:
    """Prompt cache of the models that process a session's texts: target, adapted models, drafts."""

    def __init__(self, cache: PromptCache, target: Model, draft: Draft | None) -> None:
        self._cache, self._target, self._draft = cache, target, draft
        for model in self._readers(target):
            cache.prepare(model.core)

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
            text = self._find(model, prompt, own, session.captures(slot, model.core))
            n_cached[model.core] = 0 if text is None else session.begin_with(slot, text)
        return n_cached[own.core]

    def open(self, session: _core.Session) -> None:
        """Note which hidden states a new session needs of each model."""
        self._captures = {one.core: session.captures(0, one.core) for one in self._readers(self._target)}

    def fetch(self, prompt: PromptIds, own: Model) -> None:
        """Read from files what `begin` will look for, in any thread, so that no round waits for it."""
        for model in self._readers(own) if self._cache.has_files else ():
            of_target = self._captures[self._target.core]
            self._find(model, prompt, own, self._captures.get(model.core, of_target))

    def _find(
        self, model: Model, prompt: PromptIds, own: Model, captures: Sequence[int]
    ) -> _core.CachedText | None:
        ids: Sequence[int] = prompt.ids
        if self._draft is not None and model.core is not own.core:
            ids = self._draft.as_read(model, self._target, ids)
        return self._cache.find(model.core, ids, prompt.source_of(model), captures)

    def keep(self, session: _core.Session, slot: int, own: Model) -> None:
        """Keep what each model has computed of the text in a slot; `own` as in `begin`."""
        for model in self._readers(own):
            tokens, source, n_bytes, n_low = session.cached_size(slot, model.core)
            copy = partial(session.cached_text, slot, model.core)
            captures, snapshots = session.captures(slot, model.core), session.snapshots(slot, model.core)
            self._cache.keep(model.core, tokens, n_bytes, n_low, copy, source, captures, snapshots)


_ALIVE: Final[WeakSet[PromptCache]] = WeakSet()


def _after_fork() -> None:
    for cache in list(_ALIVE):
        cache._after_fork()


system.after_fork(_after_fork)
