"""Sessions of the core with their first prompts, for tests of single rounds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import count, takewhile
from typing import Any

from specdec import _core

Settings = _core.Settings

__all__ = ["Session", "Settings", "read_prompts", "record_of"]

_SESSION = (
    "gamma", "n_slots", "n_text", "n_threads", "max_top", "keep_logits", "node_budget", "adaptive_gamma",
)  # fmt: skip


class Session:
    """A `_core.Session` whose slots are given to prompts at once; its rounds come as dicts.

    `settings` apply to all prompts, or one to each; without them `how` has the settings by name, also for
    later prompts. `mixed` lets later sequences have any settings. `how` are arguments of `_core.Session` and
    of `_core.Settings`; `temperature` is that of both samplings. Without `seeds` the i-th prompt has (1, i).
    """

    def __init__(
        self, target: Any, draft: Any, prompts: Sequence[Any], *, settings: Any = None,
        seeds: Sequence[tuple[int, int]] | None = None, sources: Sequence[Any] | None = None,
        temperature: float | None = None, mixed: bool = False, **how: Any,
    ) -> None:  # fmt: skip
        own = {"n_threads": 1} | {name: how.pop(name) for name in _SESSION if name in how}
        if temperature is not None:
            how = {name: {"temperature": temperature} for name in ("sampling", "draft_sampling")} | how
        if how:
            assert settings is None
            settings = _core.Settings(**how)
        each = settings if isinstance(settings, list | tuple) else [settings] * len(prompts)
        self.usual = None if settings is each else settings
        n_ctx = target.config["n_ctx"]
        n_new = how.get("max_new_tokens", n_ctx)
        room = max([own.get("n_text", 0), *(min(n_ctx, len(prompt) + n_new) for prompt in prompts)])
        own["n_slots"] = max(own.get("n_slots", 0), len(prompts))
        self.core = _core.Session(
            target, draft, **(own | {"n_text": room}), settings=None if mixed else self.usual
        )
        seeds = [(1, i) for i in range(len(prompts))] if seeds is None else seeds
        for i, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True)):
            self.core.admit(i, prompt, seed, each[i], None if sources is None else sources[i])

    def replace(
        self, slot: int, prompt: Any, seed: tuple[int, int], *, source: Any = None, settings: Any = None
    ) -> None:
        """Give a slot to another prompt, with its own settings or the common ones."""
        self.core.admit(slot, prompt, seed, self.usual if settings is None else settings, source)

    def prefill(self) -> float:
        """Read the prompts; return seconds. A text that fails reports the reason in its next round."""
        return read_prompts(self.core)

    def round(self, *args: Any, **options: Any) -> list[dict[str, Any]]:
        """Run `_core.Session.round`; return the records of `record_of`."""
        return [record_of(done) for done in self.core.round(*args, **options)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.core, name)


def read_prompts(of: _core.Session | _core.BeamSearch) -> float:
    """Read the prompts of a session or a search; returns seconds."""
    begun = time.perf_counter()
    while of.prefill_slice():
        pass
    return time.perf_counter() - begun


def record_of(done: _core.SlotRound) -> dict[str, Any]:
    """A slot's round as a dict, with lists instead of tuples."""
    round_ = done.round
    assert isinstance(done.round.tokens, tuple) and round_.kept == len(round_.tokens)
    return {
        "sequence": done.slot, "accepted": list(round_.path), "logprobs": done.logprobs,
        "origins": None if done.origins is None else list(done.origins),
        **{name: list(getattr(round_, name)) for name in ("drafted", "parents", "tokens", "betas")},
        **{name: getattr(round_, name) for name in ("draft_s", "verify_s", "other_s", "experts")},
        **{name: getattr(done, name) for name in ("error", "complete", "n_rows", "logits")},
        **(done.drafts or {}),
    }  # fmt: skip


def all_rounds(session: Session, n: int | None = None) -> list[dict[str, Any]]:
    """Return the records of all rounds, or of the first n, and close the session."""
    session.prefill()
    batches = (session.round() for _ in (count() if n is None else range(n)))
    found = [record for batch in takewhile(bool, batches) for record in batch]
    session.close()
    return found
