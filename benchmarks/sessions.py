"""Sessions of the core with prompts, in this build and builds before `Session.admit`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specdec import _core


def begin_session(
    target: _core.Model, draft: Any, prompts: Sequence[list[int]], *, gamma: int, n_threads: int,
    settings: Sequence[_core.Settings] | None = None, seed: int = 0, **by_name: Any,
) -> Any:  # fmt: skip
    """Return a session that has read its prompts; `by_name` are arguments of `_core.Settings`."""
    n_new = by_name.get("max_new_tokens", target.config["n_ctx"])
    seeds = [(seed, i) for i in range(len(prompts))]
    each = list(settings or [_core.Settings(**by_name)] * len(prompts))
    options: dict[str, Any] = {"gamma": gamma, "n_threads": n_threads}
    make: Any = _core.Session
    if hasattr(_core.Session, "admit"):
        longest = max(min(target.config["n_ctx"], len(prompt) + n_new) for prompt in prompts)
        session = make(target, draft, n_slots=len(prompts), n_text=longest, settings=each[0], **options)
        for i, prompt in enumerate(prompts):
            session.admit(i, prompt, seeds[i], each[i])
    else:
        session = make(target, draft, prompts, settings=each, seeds=seeds, **options)
    while session.prefill_slice():
        pass
    return session


def rounds_of(session: _core.Session, seconds: float = 0.0) -> list[dict[str, Any]]:
    """Run rounds and return them with the names of `specdec.Round` and ``n_rows``, the target's rows."""
    names = ("drafted", "parents", "tokens", "betas", "draft_s", "verify_s", "other_s")
    found = []
    for done in session.round(seconds):
        if isinstance(done, dict):
            found.append({**done, "path": done["accepted"]})
        else:
            values = {name: getattr(done.round, name) for name in (*names, "path")}
            found.append({**values, "n_rows": done.n_rows})
    return found
