"""Random cases: a world (a target and draft models) and a run in it.

A case is a dict of plain values that describes itself completely, so it can be printed, changed and run
again. Its "check" names the check to run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from fuzz.damage import file_case
from fuzz.drafts import descriptions, draw_draft
from fuzz.files import FILE_FORMATS
from fuzz.running import Case
from fuzz.settings import TRANSFORMS, draw_sampling, draw_settings
from worlds.constraints import draw_constraint
from worlds.described import (
    N_BYTES_VOCAB,
    Description,
    draw_adapter,
    draw_model,
    source_vocab,
    with_sources_of,
)
from worlds.draws import Draws


@st.composite
def cases(draw: Callable[..., Any], what: str, alarm: float = 1e-6) -> Case:
    """Cases by their name in `CASES`; `alarm` is the false alarm rate of the distribution test."""
    found = CASES[what](Draws(draw))
    return found | {"alarm": alarm} if what == "distribution" else found


@st.composite
def damaged_files(draw: Callable[..., Any]) -> Case:
    """Damaged files of all types."""
    draws = Draws(draw)
    return file_case(draws, draws.choice(FILE_FORMATS))


def _world(draws: Draws, **fixed: Any) -> Case:
    """A target, and draft models: "a", similar to it, and "b", unrelated; `fixed` fields apply to all."""
    target = draw_model(draws, **fixed)
    shared = {"n_vocab": target.get("n_vocab", 11), "text": target.get("text", False)}
    other = with_sources_of(draw_model(draws, **fixed | shared), target)
    like = {"noise": draws.one(0.0, 0.02, 0.1, 0.3), "dtype": draws.one("f32", "bf16", "int8", "int4")}
    return {"target": target, "models": {"a": like, "b": other | {"own": True}}}


def _decoding(draws: Draws, models: Case | None = None) -> Case:
    """Draw texts for some prompts, with a new world if none is given."""
    models = _world(draws) if models is None else models
    target = models["target"]
    n_vocab, n_ctx = target.get("n_vocab", 11), target.get("n_ctx", 64)
    n_prompts = draws.one(1, 1, 2, 3, 5, 9)
    common = draws.ids(draws.randint(1, n_ctx // 2), n_vocab)
    has_source = "encoder" in target
    most = n_ctx - 1 - has_source  # texts of an encoder-decoder begin with an id

    def prompt() -> Any:
        if target.get("text") and draws.chance(0.2):
            return "ab"[: draws.randint(0, 2)] * draws.randint(1, 5)
        length = 0 if has_source and draws.chance(0.5) else _length(draws, most)
        ids = draws.ids(length, n_vocab)
        return (common + ids)[:length] if length > 2 and draws.chance(0.4) else ids

    draft = draw_draft(draws, target)
    found = {
        "check": "decoding", **_used(models, draft), "draft": draft,
        "prompts": [prompt() for _ in range(n_prompts)],
        "settings": draw_settings(draws, target, n_prompts), "again": draws.one("alone", "repeat"),
    }  # fmt: skip
    if has_source:
        found["sources"] = _draw_sources(draws, target, n_prompts)
    elif draws.chance(0.3):
        found |= _draw_adapters(draws, target, n_prompts)
    if n_prompts == 1 and target.get("text") and draws.chance(0.5):
        found["stream"] = True
        found["settings"].pop("node_budget", None)
    return found


def _length(draws: Draws, most: int) -> int:
    return draws.one(1, 2, st.integers(1, 12), st.integers(1, most), most)


def _draw_adapters(draws: Draws, target: Description, n: int) -> Case:
    """Draw, with some chance, an adapter for the target, and for each text one of a few or the target's."""
    found: Case = {"adapter": draw_adapter(draws, target)} if draws.chance(0.25) else {}
    few = [None, *(draw_adapter(draws, target) for _ in range(draws.randint(1, 3)))]
    if not found or draws.chance(0.5):
        found["adapters"] = [draws.choice(few) for _ in range(n)]
    return found


def _draw_sources(draws: Draws, target: Description, n: int) -> list[Any]:
    """Draw sources, some of them equal, some texts."""
    n_ctx, found = target["encoder"].get("n_ctx", 64), []
    for _ in range(n):
        if found and draws.chance(0.3):
            found.append(draws.choice(found))
        elif target.get("text") and draws.chance(0.2):
            found.append("ab" * draws.randint(0, 4))
        else:
            found.append(draws.ids(_length(draws, n_ctx), source_vocab(target)))
    return found


def _written(draws: Draws) -> Case:
    """Draw a constraint as users write it, for a vocabulary with all bytes."""
    n_vocab = N_BYTES_VOCAB + draws.randint(0, 100)
    n_ctx = draws.one(64, 97, 150)
    found = _decoding(draws, _world(draws, n_vocab=n_vocab, text="bytes", encoder=None, n_ctx=n_ctx))
    settings = found["settings"]
    settings.pop("constraint", None)
    settings["structure"] = draw_constraint(draws)
    if draws.chance(0.7):
        settings.pop("stop", None)
    if draws.chance(0.7):
        settings["max_new_tokens"] = None
    return found


def _distribution(draws: Draws) -> Case:
    """Draw texts of a few tokens from a small vocabulary."""
    length = draws.one(1, 2, 2, 3)
    n_vocab = draws.randint(2, {1: 12, 2: 6, 3: 4}[length])
    models = _world(draws, n_vocab=n_vocab, n_ctx=24, text=False)
    target = models["target"]
    target["spread"] = draws.one(0.1, 0.3)
    models["models"]["a"] = {"noise": draws.one(0.05, 0.2, 0.5)}
    draft = draw_draft(draws, target)
    for i, one in enumerate(descriptions(draft)):
        if one["kind"] == "object":  # draft tokens must be drawn, with one generator an object
            one["keyed"] = not one["habit"].startswith("drawn")
            one["seed"] += i * 10**6
    settings = draw_sampling(draws, n_vocab) | {"seed": draws.randrange(2**32)}
    settings["temperature"] = 1.0 if settings["temperature"] < 0.1 else settings["temperature"]
    settings |= draws.fields(gamma=(0.7, 1, 2, 3, 6, "auto"), transform=(0.15, *TRANSFORMS))
    rule = draws.weighted(
        **{"auto": 3, "rejection": 3, "block": 1, "traversal": 1, "coupled": 1, "k-sequential": 1,
           "classical": 1}
    )  # fmt: skip
    if rule != "auto":
        settings["verify"] = rule
    if rule in ("auto", "rejection") and draws.chance(0.4):
        settings["lenience"] = draws.one(0.99, 0.9, 0.5, 0.2)
    if draws.chance(0.25):
        greedy = draws.chance(0.4)
        settings["draft_sampling"] = {"temperature": 0.0} if greedy else draw_sampling(draws, n_vocab)
    found = {
        "check": "distribution", **_used(models, draft), "draft": draft,
        "prompt": draws.ids(draws.randint(1, 12), n_vocab), "length": length, "settings": settings,
    }  # fmt: skip
    if "encoder" in target:
        (found["source"],) = _draw_sources(draws, target, 1)
    elif draws.chance(0.2):
        found |= _draw_adapters(draws, target, 2)
    return found


def _engine(draws: Draws) -> Case:
    """Draw requests that join and leave."""
    models = _world(draws)
    one = _decoding(draws, models)
    target = models["target"]
    n_vocab = target.get("n_vocab", 11)
    requests = []
    for _ in range(draws.randint(1, 6)):
        settings = draw_settings(draws, target, 1)
        for name in ("gamma", "batch_size", "node_budget", "logits", "n_threads", "prompt_cache"):
            settings.pop(name, None)
        settings |= draws.fields(n=(0.12, 5, 9, 17))
        at = draws.randrange(len(one["prompts"]))
        requests.append({
            "prompt": one["prompts"][at], "settings": settings,
            "speculative": {"draft": draws.chance(0.9), **draws.fields(gamma=(0.2, st.integers(0, 5)))},
            "prediction": draws.one(None, None, "right", draws.ids(draws.randint(1, 20), n_vocab)),
            "waits": draws.one(0, 0, 1, 3), "cancelled": draws.chance(0.15),
            **{key: one[key + "s"][at] for key in ("source", "adapter") if key + "s" in one},
        })  # fmt: skip
    n_slots = draws.randint(1, 3)
    engine = {
        "n_slots": n_slots, "gamma": draws.one(None, st.integers(0, 6), "auto"),
        "n_text": target.get("n_ctx", 64),
        **draws.fields(node_budget=(0.2, st.integers(n_slots, n_slots + 20))),
    }  # fmt: skip
    kept = {name: one[name] for name in ("target", "models", "draft", "adapter") if name in one}
    return {"check": "engine", **kept, "engine": engine, "requests": requests}


def _beams(draws: Draws) -> Case:
    models = _world(draws)
    target = models["target"]
    n_vocab, n_ctx = target.get("n_vocab", 11), target.get("n_ctx", 64)
    width = draws.randint(1, 6)
    settings: dict[str, Any] = {
        "width": width, "draft_width": width + draws.one(0, 0, 1, 5), "gamma": draws.randint(0, 5),
        "max_new_tokens": draws.one(1, 2, 5, 12, None),
        **draws.fields(
            stop=(0.4, st.lists(st.integers(0, n_vocab - 1), min_size=1, max_size=1)),
            length_penalty=(0.3, 0.6, 1.0, -1.0, 100.0), n_threads=(0.08, 2, 3), ignore_eos=(0.2, True),
        ),
    }  # fmt: skip
    most = n_ctx - 1 - ("encoder" in target)
    model = draws.one("a", "b", "target")
    found = {
        "check": "beams", "target": target, "draft": model, "settings": settings,
        "models": {} if model == "target" else {model: models["models"][model]},
        "prompt": draws.ids(draws.one(1, st.integers(1, most), most), n_vocab),
    }  # fmt: skip
    if "encoder" in target:
        (found["source"],) = _draw_sources(draws, target, 1)
    elif draws.chance(0.2):
        found["adapter"] = draw_adapter(draws, target)
    return found


def _used(models: Case, draft: Description) -> Case:
    """Return the world without the models that the draft does not use."""
    names = {one["model"] for one in descriptions(draft) if "model" in one}
    kept = {name: model for name, model in models["models"].items() if name in names}
    return {"target": models["target"], "models": kept}


CASES: dict[str, Callable[[Draws], Case]] = {
    "decoding": _decoding, "written": _written, "distribution": _distribution, "beams": _beams,
    "engine": _engine,
}  # fmt: skip
"""Generated cases by name."""
