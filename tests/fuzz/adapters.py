"""Random LoRA adapters beside random models."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.draws import Draws
from fuzz.models import make_model
from specdec import _core
from specdec.models.model import Model

__all__ = ["RANKS", "adapted_model", "adapted_target", "draw_adapter", "models_of_texts"]

Description = dict[str, Any]

DEFAULTS: Description = {
    "roles": ["attn_q", "mlp_down"], "layers": None, "rank": 2, "alpha": 2.0, "ranks": {}, "seed": 1
}  # fmt: skip
"""What a description leaves out. `layers` None: all; `ranks`: those of roles that have one of their own."""

ROLES = ("attn_q", "attn_k", "attn_v", "attn_out", "mlp_gate", "mlp_up", "mlp_down", "head")
RANKS = (1, 1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 40, 64, 100)


def draw_adapter(draws: Draws, target: Description) -> Description:
    """A description of a random adapter beside a target, which has no encoder."""
    found = {
        "roles": draws.one(list(ROLES), draws.some(ROLES, 1), draws.some(ROLES, 1)),
        "layers": draws.one(None, None, draws.some(range(target.get("n_layer", 2)), 1)),
        "rank": draws.one(*RANKS), "alpha": draws.one(1.0, 2.0, 8.0, 0.5, -4.0, 1e-3, 0.0),
        "ranks": {role: draws.one(*RANKS) for role in ROLES if draws.chance(0.1)},
        "seed": draws.randint(0, 99),
    }  # fmt: skip
    return {name: value for name, value in found.items() if value != DEFAULTS[name]}


def adapted_model(model: Model, adapter: Description | None) -> Model:
    """A model with the adapter of a description beside its weights; None: the model."""
    return model if adapter is None else _adapted(model, json.dumps(adapter, sort_keys=True))


@functools.lru_cache(maxsize=32)
def _adapted(model: Model, adapter: str) -> Model:
    d = DEFAULTS | json.loads(adapter)
    rng = np.random.default_rng(d["seed"])
    ranks, tensors = {}, []
    for name, shape in _core.tensor_shapes(model.core.config).items():
        found = re.fullmatch(r"(?:layers\.(\d+)\.(\w+)\.weight|(head))", name)
        if found is None or (found[3] or found[2]) not in ROLES or (found[3] and model.core.config["tied"]):
            continue
        role = found[3] or found[2]
        of_layer = found[1] is None or d["layers"] is None or int(found[1]) in d["layers"]
        if not of_layer or role not in d["roles"]:
            continue
        rank = ranks[name] = d["ranks"].get(role, d["rank"])
        down = rng.normal(0.0, shape[1] ** -0.5, (rank, shape[1]))
        up = rng.normal(0.0, 0.3, (shape[0], rank)) * d["alpha"] / rank
        tensors += [(f"{name}.{part}", m.astype(np.float32), "f32") for part, m in zip(
            ("down", "up"), (down, up), strict=True
        )]  # fmt: skip
    if not ranks:  # of layers that are mixtures, or of a head that is tied
        return _adapted(model, json.dumps({"seed": d["seed"], "roles": ["attn_q"]}))
    core = model.core.adapted(ranks, tensors)
    return Model(
        core, model.config, model.tokenizer, Path("adapted"), model.architecture,
        decoder_start=model.decoder_start,
    )  # fmt: skip


def adapted_target(case: Mapping[str, Any]) -> Model:
    """The target of a case, with an adapter where it says so."""
    return adapted_model(make_model(case["target"]), case.get("adapter"))


def models_of_texts(case: Mapping[str, Any], target: Model) -> list[Model] | None:
    """The model of each prompt of a case; None: all are the target."""
    if "adapters" not in case:
        return None
    base = make_model(case["target"])
    return [target if one is None else adapted_model(base, one) for one in case["adapters"]]
