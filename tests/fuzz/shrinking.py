"""Smaller cases that fail in the same way."""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from fuzz.failures import Outcome

__all__ = ["shrink", "signature"]

Case = dict[str, Any]

_KEPT = ("seed", "width")
"""Settings that every case needs: without a seed each run would be another."""


def signature(outcome: Outcome) -> str:
    """What tells failures of one cause from others, as far as can be seen: the kind, and the message."""
    first = outcome.message.splitlines()[0] if outcome.message else ""
    if outcome.status in ("hang", "crash"):
        found = re.findall(r'File "(?:.*/)?([^"/]+)", line \d+ in (\w+)', outcome.message)
        return " ".join([outcome.status, *(f"{file}:{name}" for file, name in found[:2])])
    first = first.split(" cannot be printed")[0]
    words = first.split(" in round ")[0].split(", of probability")[0].split(" is ")[0].split(": (")[0]
    words = words.split(": [")[0]
    if outcome.status == "difference" and not words.startswith("trace"):
        settings = outcome.case.get("settings", {})
        rule = settings.get("verify", "rejection") if settings.get("temperature") else "greedy"
        marks = [name for name in ("transform", "lenience", "stop") if name in settings]
        words = " ".join([words, rule, *marks])
    return (
        f"{outcome.status} "
        + re.sub(r"'[^']*'|\"[^\"]*\"|\S*/\S*|[-+\d.e]*\d[\d.e]*|[(\[].*[)\]]", "·", words)[:90]
    )


def _likeness(outcome: Outcome) -> str:
    """The kind of a failure and the first words of its message."""
    return " ".join([outcome.status, *outcome.message.split()[:2]])


def shrink(
    case: Case,
    outcome: Outcome,
    run: Callable[[Case], Outcome],
    *,
    attempts: int = 400,
    seconds: float = 60.0,
) -> tuple[Case, Outcome]:
    """Drop and simplify parts, one after the other, as long as the same failure is left."""
    wanted, until = _likeness(outcome), time.monotonic() + seconds
    found = True
    while found:
        found = False
        for smaller in _smaller(case):
            if smaller == case:
                continue
            attempts -= 1
            if attempts < 0 or time.monotonic() > until:
                return case, outcome
            tried = run(smaller)
            if tried.failed and _likeness(tried) == wanted:
                case, outcome, found = smaller, tried, True
                break
    return case, outcome


def _smaller(case: Case) -> Iterator[Case]:
    """Cases with one thing less."""
    if case["check"] == "file":
        for i in range(len(case["mutations"])):
            yield _with(case, mutations=case["mutations"][:i] + case["mutations"][i + 1 :])
        return
    if case["check"] == "decoding":
        lists = {name: case[name] for name in ("prompts", "sources", "adapters") if name in case}
        n = len(case["prompts"])
        for part in (slice(1), slice(n - 1, n), slice(n // 2), slice(n - 1)) if n > 1 else ():
            yield _with(case, **{name: texts[part] for name, texts in lists.items()})
        lists.pop("adapters", None)
        for name, texts in lists.items():
            longest = max(map(len, texts))
            for length in {1, longest // 2, longest - 1} - {0, longest}:
                yield _with(case, **{name: [text[:length] for text in texts]})
    if case["check"] == "engine":
        requests = case["requests"]
        for i in range(len(requests) if len(requests) > 1 else 0):
            yield _with(case, requests=requests[:i] + requests[i + 1 :])
        for i, request in enumerate(requests):
            for name in (name for name in request["settings"] if name not in _KEPT):
                less = _without(request, "settings", name)
                yield _with(case, requests=[*requests[:i], less, *requests[i + 1 :]])
    yield from _fewer_adapters(case)
    if case["check"] == "peft":
        return
    if "stream" in case:
        yield _with(case, stream=False)
    for name, value in case.get("settings", {}).items():
        if name in _KEPT or (name == "temperature" and case["check"] == "law"):
            continue  # the case would be another
        yield _without(case, "settings", name)
        if name == "max_new_tokens" and isinstance(value, int) and value > 1:
            yield _with(case, settings=case["settings"] | {name: value // 2})
    if isinstance(case["draft"], dict):
        yield from (_with(case, draft=draft) for draft in _simpler(case["draft"]))
    if len(case["target"]) > 2:
        n_vocab = {name: value for name, value in case["target"].items() if name == "n_vocab"}
        yield from (_with(case, target={}), _with(case, target=n_vocab))
    for name in case["target"]:
        yield _without(case, "target", name)
    for model, description in case["models"].items():
        if len(description) > 2:
            yield _with(case, models=case["models"] | {model: {}})
            yield _with(case, models=case["models"] | {model: {"own": True}})
        for name in description:
            less = {key: value for key, value in description.items() if key != name}
            yield _with(case, models=case["models"] | {model: less})


def _fewer_adapters(case: Case) -> Iterator[Case]:
    """Texts of the target as it is; adapters that are left out, or with less in them."""
    if case["check"] == "peft":
        for name in ("adapters", "prompts"):
            for i in range(len(case[name]) if len(case[name]) > 1 else 0):
                yield _with(case, **{name: case[name][:i] + case[name][i + 1 :]})
        for i, one in enumerate(case["adapters"]):
            fewer = [one | {"modules": one["modules"][:1]}, one | {"modules": one["modules"][1:]}]
            fewer += [
                _without(one, "fields", name) for name in one["fields"] if name not in ("r", "lora_alpha")
            ]
            for less in fewer if len(one["modules"]) > 1 else fewer[2:]:
                yield _with(case, adapters=[*case["adapters"][:i], less, *case["adapters"][i + 1 :]])
        return
    for name in ("adapter", "adapters"):
        if name in case:
            yield {key: value for key, value in case.items() if key != name}
    if case.get("adapter"):
        yield from (_without(case, "adapter", name) for name in case["adapter"])
    for i, one in enumerate(case.get("adapters", ())):
        for less in [None, *({k: v for k, v in one.items() if k != name} for name in one)] if one else ():
            yield _with(case, adapters=[*case["adapters"][:i], less, *case["adapters"][i + 1 :]])


def _simpler(draft: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Drafts that a draft has in it, and with one of these simpler or less."""
    if "draft" in draft:
        yield draft["draft"]
        yield {name: value for name, value in draft.items() if name not in ("draft", "gamma")}
        yield from (draft | {"draft": inner} for inner in _simpler(draft["draft"]))
    elif "drafts" in draft:
        parts = draft["drafts"]
        yield from parts
        if len(parts) > 1:
            yield from (draft | {"drafts": parts[:i] + parts[i + 1 :]} for i in range(len(parts)))
        for i, part in enumerate(parts):
            yield from (draft | {"drafts": [*parts[:i], one, *parts[i + 1 :]]} for one in _simpler(part))
        if draft["adaptive"]:
            yield draft | {"adaptive": False}
    elif "tree" in draft:
        yield {name: value for name, value in draft.items() if name != "tree"}


def _with(case: Case, **changes: Any) -> Case:
    return copy.deepcopy(case | changes)


def _without(case: Case, part: str, name: str) -> Case:
    return _with(case, **{part: {key: value for key, value in case[part].items() if key != name}})
