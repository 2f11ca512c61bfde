"""Every way to draft, in every other: random descriptions, and the drafts that they describe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fuzz.adapters import adapted_model, draw_adapter
from fuzz.draws import Draws
from fuzz.eagles import draw_eagle, make_eagle
from fuzz.learnt import draw_heads, make_heads, random_look_ahead, random_recurrent
from fuzz.models import draft_description, make_model
from fuzz.objects import CHAINS, Proposer, draw_object
from fuzz.vocabularies import draw_vocabulary, make_translated
from specdec import drafts

__all__ = ["descriptions", "draw_draft", "is_adaptive", "is_stateful", "make_draft", "may_branch"]

Description = dict[str, Any]


def draw_draft(draws: Draws, target: Description, depth: int = 0, *, layers: bool = True) -> Description:
    """A description of a random draft for a target; `layers`: the target's own may draft."""
    n_vocab, n_layer = target.get("n_vocab", 11), target.get("n_layer", 2)
    nested = 0.0 if depth > 2 else 1.0
    kind = draws.weighted(
        model=4, nested=3 * nested, best=3 * nested, exit=layers, skip=layers, heads=2 * layers, ngram=1,
        online=1, random=0.5, context=1.5, input=1, lookahead=2, object=2.5, recurrent=1, eagle=layers,
        memory=1.5, recycling=1, look_ahead=1.5 * layers, learning=1, vocabulary=2,
    )  # fmt: skip
    if kind == "exit" and n_layer == 1:
        kind = "skip"
    if kind == "model":
        found = {"kind": "model", "model": draws.one("a", "a", "b", "target")} | _tree(draws)
        if found["model"] != "b" and "encoder" not in target and draws.chance(0.15):
            found["adapter"] = draw_adapter(draws, target)
        return found
    if kind == "vocabulary":
        found = draw_vocabulary(draws, n_vocab) | {"model": draws.one("a", "b")}
        return found | (_tree(draws) if found["way"] == "intersection" else {})
    if kind == "nested":
        inner = draw_draft(draws, target, depth + 1, layers=draws.chance(0.05))
        found: Description = {"kind": "model", "model": draws.one("a", "b", "target"), "draft": inner}
        return found | ({"gamma": draws.randint(1, 9)} if draws.chance(0.4) else {})
    if kind == "best":
        parts = [draw_draft(draws, target, depth + 1, layers=layers) for _ in range(draws.randint(1, 3))]
        return {"kind": "best", "drafts": parts, "adaptive": draws.chance(0.3)}
    if kind == "eagle":
        return draw_eagle(draws, n_layer, n_vocab) | _tree(draws)
    if kind == "exit":
        return {"kind": "exit", "layer": draws.randint(1, n_layer - 1)}
    if kind == "heads":
        return draw_heads(draws, n_vocab) | _tree(draws)
    if kind == "skip":
        layers_of = list(range(n_layer))
        attn, mlp = draws.some(layers_of), draws.some(layers_of)
        if not attn and not mlp:
            attn = [0]
        if len(attn) == len(mlp) == n_layer:
            mlp = mlp[1:]
        return {"kind": "skip", "attn": attn, "mlp": mlp}
    if kind == "ngram" or kind == "online":
        n = draws.randint(1, 5)
        smoothing = draws.one("interpolated", "backoff")
        ids = draws.ids(draws.one(1, 20, 200), n_vocab) if kind == "ngram" or draws.chance(0.5) else None
        return {"kind": kind, "n": n, "smoothing": smoothing, "ids": ids}
    if kind == "look_ahead":
        return {"kind": "look_ahead", "n": draws.randint(1, 5), "seed": draws.randint(0, 99)} | _tree(draws)
    if kind == "recurrent":
        tokens = draws.some(range(n_vocab)) if draws.chance(0.3) else []
        shape = [draws.randint(1, 5), draws.randint(1, 40), draws.randint(1, 3)]
        found = {"kind": "recurrent", "shape": shape, "seed": draws.randint(0, 99)}
        found["tokens"] = tokens if 0 < len(tokens) < n_vocab else None
        return found | {"dtype": draws.one("f32", "f32", "bf16", "int8", "int4")} | _tree(draws)
    if kind == "context":
        return {
            "kind": "context", "min_match": draws.one(1, 1, 2, 4), "n_candidates": draws.one(1, 1, 2, 5, 16),
            "documents": [draws.ids(draws.one(1, 9, 60), n_vocab) for _ in range(draws.one(0, 0, 1, 3))],
        }  # fmt: skip
    if kind == "input":
        source = draws.ids(draws.one(1, 9, 60), n_vocab) if draws.chance(0.5) else None
        return {
            "kind": "input", "source": source, "start": draws.one(0, 0, 3, 100),
            "min_match": draws.one(1, 2, 3), "n_candidates": draws.randint(1, 3),
        }  # fmt: skip
    if kind == "lookahead":
        candidates = draws.one(None, 0, 1, 4)
        return {
            "kind": "lookahead", "window": draws.randint(1, 4), "ngram": draws.randint(2, 4),
            "candidates": candidates,
        }  # fmt: skip
    if kind == "memory":
        return {
            "kind": "memory", "max_tokens": draws.one(5, 60, 10**6), "max_depth": draws.one(1, 3, 64),
            "factor": draws.one(0.5, 1.0, 4.0), "min_probability": draws.one(0.01, 0.1, 1.0),
            "min_match": draws.one(1, 1, 2), "branches": draws.chance(0.6),
            "texts": [draws.ids(draws.one(1, 9, 60), n_vocab) for _ in range(draws.one(0, 1, 3))],
        }  # fmt: skip
    if kind == "recycling":
        k = draws.randint(1, 4)
        return {
            "kind": "recycling",
            "k": k,
            "widths": [draws.randint(1, k) for _ in range(draws.randint(1, 3))],
        }
    if kind == "object":
        return draw_object(draws)
    if kind == "learning":
        table = {"n": draws.randint(1, 4), "smoothing": "interpolated", "ids": draws.ids(50, n_vocab)}
        return {"kind": "learning", "table": table}
    if kind == "random":
        return {"kind": "random"}
    raise ValueError(f"draw_draft describes no draft of the kind {kind!r}")


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
    """The draft of a description, for a target and other models by name."""
    d = description
    n_vocab = target.get("n_vocab", 11)

    def made(inner: Description) -> Any:
        return make_draft(inner, target, models)

    kind = d["kind"]
    if kind == "model":
        name = d["model"]
        own = target if name == "target" else draft_description(target, models[name])
        model = adapted_model(make_model(own), d.get("adapter"))
        if "draft" in d:
            return drafts.ModelDraft(model, draft=made(d["draft"]), gamma=d.get("gamma"))
        return drafts.ModelDraft(model, tree=_made_tree(d["tree"])) if "tree" in d else model
    if kind == "vocabulary":  # a ModelDraft whose vocabulary is another one
        small = make_model(draft_description(target, models[d["model"]]))
        return make_translated(d, small, _made_tree(d["tree"]) if "tree" in d else None)
    if kind == "best":
        return drafts.Ensemble(*map(made, d["drafts"]), adaptive=d["adaptive"])
    if kind == "eagle":  # an Eagle
        return make_eagle(d, make_model(target), _made_tree(d["tree"]) if "tree" in d else None)
    if kind == "exit":
        return drafts.EarlyExit(d["layer"])
    if kind == "heads":  # of the class drafts.Heads
        return make_heads(d, make_model(target), _made_tree(d["tree"]) if "tree" in d else None)
    if kind == "skip":
        return drafts.SkipLayers(d["attn"], d["mlp"])
    if kind == "ngram":
        return drafts.Ngram(d["ids"], n_vocab, d["n"], smoothing=d["smoothing"])
    if kind == "online":
        if d["ids"] is None:
            return drafts.OnlineNgram(d["n"], smoothing=d["smoothing"])
        return drafts.OnlineNgram(drafts.Ngram(d["ids"], n_vocab, d["n"], smoothing=d["smoothing"]))
    if kind == "learning":
        table = drafts.Ngram(d["table"]["ids"], n_vocab, d["table"]["n"])
        return drafts.Online(table, interval=None)
    if kind == "context":
        return drafts.ContextCopy(
            d["documents"] or None, min_match=d["min_match"], n_candidates=d["n_candidates"]
        )
    if kind == "input":
        return drafts.InputCopy(
            d["source"], start=d["start"], min_match=d["min_match"], n_candidates=d["n_candidates"]
        )
    if kind == "look_ahead":
        weights = random_look_ahead(make_model(target), d["n"], d["seed"])
        return drafts.LookAheadEmbeddings(weights, tree=_made_tree(d["tree"]) if "tree" in d else None)
    if kind == "recurrent":
        return drafts.Recurrent(
            random_recurrent(make_model(target), d["shape"], d["tokens"], d["seed"]),
            dtype=d["dtype"],
            tree=_made_tree(d["tree"]) if "tree" in d else None,
        )
    if kind == "lookahead":
        return drafts.Lookahead(d["window"], d["ngram"], candidates=d["candidates"])
    if kind == "memory":
        names = ("max_tokens", "max_depth", "factor", "min_probability", "min_match", "branches")
        memory = drafts.SuffixMemory(**{name: d[name] for name in names})
        for ids in d["texts"]:
            memory.add(ids[1:], ids[:1])
        return memory
    if kind == "recycling":
        return drafts.TokenRecycling(d["k"], tree=drafts.StaticTree(d["widths"]))
    if kind == "object":
        return Proposer(n_vocab, d["habit"], d["seed"], d.get("keyed", True))
    if kind == "random":
        return drafts.Random()
    raise ValueError(f"make_draft makes no draft of the kind {kind!r}")


def _made_tree(tree: list[Any]) -> Any:
    kind, *arguments = tree
    if kind == "chains":
        return drafts.ParallelChains(*arguments)
    if kind == "shape":
        return drafts.StaticTree(*arguments)
    if kind == "parents":
        return drafts.StaticTree(parents=arguments[0], how=arguments[1])
    return drafts.DynamicTree(*arguments)


def descriptions(draft: Description) -> Iterator[Description]:
    """A description and all in it."""
    yield draft
    for inner in [*draft.get("drafts", []), *([draft["draft"]] if "draft" in draft else [])]:
        yield from descriptions(inner)


def is_adaptive(draft: Description) -> bool:
    """Whether what is drafted depends on the clock."""
    return any(one.get("adaptive", False) for one in descriptions(draft))


def is_stateful(draft: Description) -> bool:
    """Whether what is guessed depends on earlier texts, or on what an object was asked before."""
    remembers = ("memory", "recycling", "learning")
    return any(one["kind"] in remembers or not one.get("keyed", True) for one in descriptions(draft))


def may_branch(draft: Description) -> bool:
    """Whether the target may be given more than a chain."""
    if draft["kind"] == "object":
        return draft["habit"] not in CHAINS
    if draft["kind"] in ("best", "lookahead"):
        return True
    if draft["kind"] == "recycling":
        return max(draft["widths"]) > 1
    return "tree" in draft or draft.get("n_candidates", 1) > 1 or draft.get("branches", False)
