"""Every draft nested in every other: random descriptions, and the drafts built from them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fuzz.objects import CHAINS, HABITS, Proposer
from specdec import Model, drafts
from worlds import assistants, eagles, learned
from worlds.described import Description, adapted_model, draft_description, draw_adapter, make_model
from worlds.draws import Draws
from worlds.vocabularies import Translated, draw_vocabulary

BY_ARGUMENTS: dict[str, Callable[..., Any]] = {
    "exit": drafts.EarlyExit, "skip": drafts.SkipLayers, "lookahead": drafts.Lookahead,
    "context": drafts.PromptLookup, "input": drafts.InputCopy, "random": drafts.RandomDraft,
}  # fmt: skip
"""Drafts whose descriptions are their arguments."""


def draw_draft(draws: Draws, target: Description, depth: int = 0, *, layers: bool = True) -> Description:
    """Draw the description of a random draft for a target; `layers`: allow layers of the target itself."""
    n_vocab, n_layer = target.get("n_vocab", 11), target.get("n_layer", 2)
    nested = 0.0 if depth > 2 else 3.0
    kind = draws.weighted(
        random=0.5, model=4, ngram=1, online=1, context=1.5, input=1, lookahead=2, object=2.5, recurrent=1,
        memory=1.5, recycling=1, learning=1, vocabulary=2, exit=layers and n_layer > 1, skip=layers,
        heads=2 * layers, eagle=layers, look_ahead=1.5 * layers, nested=nested, best=nested,
    )  # fmt: skip
    if kind == "nested":
        inner = draw_draft(draws, target, depth + 1, layers=draws.chance(0.05))
        gamma = draws.randint(1, 9) if draws.chance(0.4) else None
        return {"kind": "model", "model": draws.one("a", "b", "target"), "draft": inner, "gamma": gamma}
    if kind == "best":
        parts = [draw_draft(draws, target, depth + 1, layers=layers) for _ in range(draws.randint(1, 3))]
        return {"kind": "best", "drafts": parts, "adaptive": draws.chance(0.3)}
    found = {"kind": kind} | _arguments(kind, draws, target, n_vocab, n_layer)
    trees = ("model", "heads", "recurrent", "eagle", "look_ahead")
    return found | (_tree(draws) if kind in trees or found.get("way") == "intersection" else {})


def _arguments(kind: str, draws: Draws, target: Description, n_vocab: int, n_layer: int) -> Description:
    """Draw the fields of a description other than its type and tree."""

    def texts(*numbers: int) -> list[list[int]]:
        return [draws.ids(draws.one(1, 9, 60), n_vocab) for _ in range(draws.one(*numbers))]

    if kind == "model":
        found = {"model": draws.one("a", "a", "b", "target")}
        adapts = found["model"] != "b" and "encoder" not in target and draws.chance(0.15)
        found |= {"window": draws.one(1, 5, 40)} if draws.chance(0.2) else {}
        return found | ({"adapter": draw_adapter(draws, target)} if adapts else {})
    if kind == "vocabulary":
        return draw_vocabulary(draws, n_vocab) | {"model": draws.one("a", "b")}
    if kind == "exit":
        return {"layer": draws.randint(1, n_layer - 1)}
    if kind == "skip":
        attn, mlp = draws.some(range(n_layer)), draws.some(range(n_layer))
        attn = attn if attn or mlp else [0]
        return {"attn": attn, "mlp": mlp[1:] if len(attn) == len(mlp) == n_layer else mlp}
    if kind == "ngram" or kind == "online":
        ids = draws.ids(draws.one(1, 20, 200), n_vocab) if kind == "ngram" or draws.chance(0.5) else None
        return {"n": draws.randint(1, 5), "smoothing": draws.one("interpolated", "backoff"), "ids": ids}
    if kind == "learning":
        return {"n": draws.randint(1, 4), "ids": draws.ids(50, n_vocab)}
    if kind == "context":
        return {
            "documents": texts(0, 0, 1, 3) or None, "min_match": draws.one(1, 1, 2, 4),
            "n_candidates": draws.one(1, 1, 2, 5, 16),
        }  # fmt: skip
    if kind == "input":
        return {
            "source": draws.one(None, *texts(1)), "start": draws.one(0, 0, 3, 100),
            "min_match": draws.one(1, 2, 3), "n_candidates": draws.randint(1, 3),
        }  # fmt: skip
    if kind == "lookahead":
        sizes = {"window": draws.randint(1, 4), "ngram": draws.randint(2, 4)}
        return sizes | {"candidates": draws.one(None, 0, 1, 4)}
    if kind == "memory":
        settings = {
            "max_tokens": draws.one(5, 60, 10**6), "max_depth": draws.one(1, 3, 64),
            "factor": draws.one(0.5, 1.0, 4.0), "min_probability": draws.one(0.01, 0.1, 1.0),
            "min_match": draws.one(1, 1, 2), "branches": draws.chance(0.6),
        }  # fmt: skip
        return {"branches": settings["branches"], "settings": settings, "texts": texts(0, 1, 3)}
    if kind == "recycling":
        k = draws.randint(1, 4)
        return {"k": k, "widths": [draws.randint(1, k) for _ in range(draws.randint(1, 3))]}
    if kind == "object":
        weights = dict.fromkeys(HABITS, 1.0) | {"long": 0.2, "raise": 0.3}
        return {"habit": draws.weighted(**weights), "seed": draws.randrange(10**6)}
    if kind == "random":
        return {}
    return {"seed": draws.randint(0, 99)} | _weights(kind, draws, n_vocab, n_layer)


def _weights(kind: str, draws: Draws, n_vocab: int, n_layer: int) -> Description:
    """Draw the fields of a learned draft's description other than its seed."""
    dtype = draws.one("f32", "f32", "bf16", "int8", "int4")
    tokens = draws.some(range(n_vocab), 1) if n_vocab > 1 and draws.chance(0.35) else None
    if tokens is not None and len(tokens) == n_vocab:
        tokens = tokens[1:]
    if kind == "recurrent":
        shape = [draws.randint(1, 5), draws.randint(1, 40), draws.randint(1, 3)]
        return {"shape": shape, "tokens": tokens, "dtype": dtype}
    if kind == "look_ahead":
        return {"n_tokens": draws.randint(1, 5)}
    if kind == "heads":
        shared = draws.chance(0.4)
        fields = {"n_heads": draws.randint(1, 5), "n_blocks": draws.randint(1 if shared else 0, 2)}
        fields |= {"see_draft_tokens": draws.chance(0.4), "shared_output": shared}
        return {"fields": fields, "tokens": tokens, "dtype": draws.one(None, dtype)}
    if kind == "eagle":
        sizes = {"intermediate_size": draws.randint(1, 40), "num_attention_heads": draws.randint(1, 3)}
        sizes |= {"num_key_value_heads": 1, "head_dim": draws.one(2, 4, 10), "max_position_embeddings": 8}
        found: Description = {"dtype": dtype, "sizes": sizes, "options": {"own_embedding": draws.chance(0.5)}}
        if draws.chance(0.4):
            how = {"assists": draws.chance(0.3), "mtp": draws.chance(0.6)}
            return found | {"first": True, "head_tokens": tokens} | how
        if draws.chance(0.3):
            sizes["hidden_size"] = draws.randint(3, 40)
        flags = [name for name in ("norm_before_residual", "norm_output") if draws.chance(0.5)]
        flags += [draws.one("fc_norm", "norm_before_fc")] if draws.chance(0.5) else []
        found["options"] |= {
            "captures": tuple(draws.randint(0, n_layer) for _ in range(draws.randint(1, 4))),
            "n_draft": draws.randint(1, n_vocab) if draws.chance(0.5) else None,
            "flags": dict.fromkeys(flags, True),
        }  # fmt: skip
        return found
    return {}


def _tree(draws: Draws) -> Description:
    how = draws.one("sample", "without replacement", "top-k")
    kind = draws.weighted(chain=3, chains=1, shape=2, parents=1, grown=2)
    if kind == "chains":
        return {"tree": ["chains", draws.randint(1, 4)]}
    if kind == "shape":
        return {"tree": ["shape", [draws.randint(1, 3) for _ in range(draws.randint(1, 3))], how]}
    if kind == "parents":
        parents, low = [], 0
        for i in range(draws.randint(1, 9)):
            low = draws.randint(low, i)
            parents.append(low)
        return {"tree": ["parents", parents, how]}
    if kind == "grown":
        sharpness = draws.one(3.5, 1.0, 50.0)
        return {"tree": ["grown", draws.randint(1, 12), draws.randint(1, 4), draws.randint(1, 5), sharpness]}
    return {}


def make_draft(description: Description, target: Description, models: dict[str, Description]) -> Any:
    """Build the described draft for a target and other models by name."""
    d = dict(description)
    kind, tree = d.pop("kind"), _made_tree(d.pop("tree", None))
    n_vocab = target.get("n_vocab", 11)
    if kind in BY_ARGUMENTS:
        return BY_ARGUMENTS[kind](**d)
    if "model" in d:
        name = d.pop("model")
        model = make_model(target if name == "target" else draft_description(target, models[name]))
    if kind == "model":
        model = adapted_model(model, d.get("adapter"))
        if "draft" in d:
            inner = make_draft(d["draft"], target, models)
            return drafts.ModelDraft(model, draft=inner, gamma=d["gamma"])
        how = {"tree": tree, "window": d.get("window")}
        return drafts.ModelDraft(model, **how) if any(how.values()) else model
    if kind == "vocabulary":  # a ModelDraft whose vocabulary is another one
        strings = {side: [text.encode("latin-1") for text in d.pop(side)] for side in ("ours", "theirs")}
        return Translated(model, tree=tree, **strings, **d)
    if kind == "best":
        parts = (make_draft(part, target, models) for part in d["drafts"])
        return drafts.Ensemble(*parts, adaptive=d["adaptive"])
    if kind == "object":
        return Proposer(n_vocab, **d)
    if kind in ("eagle", "heads", "look_ahead", "recurrent"):
        return _learned(kind, d, make_model(target), tree)
    if kind == "online" and d["ids"] is None:
        return drafts.OnlineNgram(d["n"], smoothing=d["smoothing"])
    if kind in ("ngram", "online", "learning"):
        table = drafts.Ngram(n_vocab=n_vocab, **d)
        if kind == "learning":
            return drafts.OnlineDraft(table, interval=None)
        return table if kind == "ngram" else drafts.OnlineNgram(table)
    if kind == "memory":
        memory = drafts.SuffixDecoding(**d["settings"])
        for ids in d["texts"]:
            memory.add(ids[1:], ids[:1])
        return memory
    if kind == "recycling":
        return drafts.TokenRecycling(d["k"], tree=drafts.StaticTree(d["widths"]))
    raise ValueError(f"make_draft makes no draft of the kind {kind!r}")


def _learned(kind: str, d: Description, target: Model, tree: Any) -> Any:
    """Build a draft with random weights: Eagle, Heads, LookAheadEmbeddings or Recurrent."""
    seed = d["seed"]
    if kind == "eagle":
        if d.get("assists") and assistants.may_be_assisted(target.config):
            return assistants.random_assistant(target, seed, tree=tree, dtype=d["dtype"])
        if d.get("mtp") and eagles.may_have_mtp(target.config):
            how: Any = {"tree": tree, "dtype": d["dtype"], "head_tokens": d.get("head_tokens")}
            return eagles.random_mtp(target, seed, **how, normed_feedback=seed % 2 == 0)
        make = eagles.eagle1 if d.get("first") else eagles.eagle3
        with tempfile.TemporaryDirectory() as folder:
            path = make(target, seed=seed, **d["options"], **d["sizes"]).write(Path(folder))
            more: Any = {"tree": tree, "dtype": d["dtype"], "head_tokens": d.get("head_tokens")}
            return drafts.Eagle(path, target, n_threads=1, **more)
    if kind == "heads":
        weights = learned.random_heads(target, **d["fields"], tokens=d["tokens"], seed=seed)
        return drafts.DecodingHeads(weights, dtype=d["dtype"], tree=tree)
    if kind == "look_ahead":
        return drafts.LookAheadEmbeddings(
            learned.look_ahead_weights(target, d["n_tokens"], seed), tree=tree
        )  # fmt: skip
    weights = learned.recurrent_weights(target, [], d["shape"], d["tokens"], seed)
    return drafts.RecurrentDraft(weights, dtype=d["dtype"], tree=tree)


def _made_tree(tree: list[Any] | None) -> Any:
    if tree is None:
        return None
    kind, *arguments = tree
    if kind == "parents":
        return drafts.StaticTree(parents=arguments[0], how=arguments[1])
    kinds: Any = {"chains": drafts.ParallelChains, "shape": drafts.StaticTree, "grown": drafts.DynamicTree}
    return kinds[kind](*arguments)


def descriptions(draft: Description) -> Iterator[Description]:
    """Yield a description and all nested ones."""
    yield draft
    for inner in [*draft.get("drafts", []), *([draft["draft"]] if "draft" in draft else [])]:
        yield from descriptions(inner)


def is_adaptive(draft: Description) -> bool:
    """Return whether draft tokens depend on the clock."""
    return any(one.get("adaptive", False) for one in descriptions(draft))


def is_stateful(draft: Description) -> bool:
    """Return whether draft tokens depend on earlier texts, or on earlier calls of an object."""
    remembers = ("memory", "recycling", "learning")
    return any(one["kind"] in remembers or not one.get("keyed", True) for one in descriptions(draft))


def may_branch(draft: Description) -> bool:
    """Return whether draft trees may be more than chains."""
    if draft["kind"] == "object":
        return draft["habit"] not in CHAINS
    if draft["kind"] in ("best", "lookahead"):
        return True
    if draft["kind"] == "recycling":
        return max(draft["widths"]) > 1
    return "tree" in draft or draft.get("n_candidates", 1) > 1 or draft.get("branches", False)
