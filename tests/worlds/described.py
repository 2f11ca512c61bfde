"""Small random models and adapters, built from drawn descriptions of a few numbers."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from specdec import Model, _core
from specdec.models.families.rotary import linear_scaled, llama3_scaled, rotary_frequencies
from specdec.models.model import ModelTexts
from worlds.draws import Draws
from worlds.encoder_decoders import model_of
from worlds.vocabularies import LongestPieces

Description = dict[str, Any]

DEFAULTS: dict[str, Any] = {
    "family": "llama", "n_vocab": 11, "n_ctx": 64, "n_layer": 2, "n_head": 2, "n_kv_head": 1, "d_model": 16,
    "d_head": 8, "d_ff": 24, "tied": False, "bias": False, "sliding_window": 0, "rope": None,
    "activation": None, "weights": 1, "spread": 0.3, "noise": 0.0, "dtype": "f32", "cache_dtype": "f32",
    "prefill": "rows", "text": False, "experts": None, "switches": {}, "encoder": None,
}  # fmt: skip
"""Defaults of a description. `noise` perturbs the weights, for a draft similar to its target;
`experts` and `switches` are fields of the configuration; `encoder` is a description too."""

END_IDS = (2,)
"""The ids that end a text of a model with a tokenizer."""


def draw_model(draws: Draws, **fixed: Any) -> dict[str, Any]:
    """Draw the description of a random model; `fixed` fields are kept."""
    gpt = draws.chance(0.3)
    n_kv_head = draws.one(1, 1, 2, 3)
    n_head = n_kv_head if gpt else n_kv_head * draws.one(1, 2, 3)
    d_head = draws.one(3, 5, 8, 11) if gpt else draws.one(2, 4, 8, 10, 16)
    found: dict[str, Any] = {
        "n_vocab": draws.one(2, 3, 5, 17, 33, 61, 100, st.integers(2, 600)),
        "n_ctx": draws.one(20, 33, 64, 64, 97), "n_layer": draws.one(1, 2, 2, 3, 4), "n_head": n_head,
        "n_kv_head": n_kv_head, "d_head": d_head,
        "d_model": n_head * d_head if gpt or draws.chance(0.5) else draws.randint(3, 50),
        "d_ff": draws.randint(1, 70), "tied": draws.chance(0.4), "bias": gpt or draws.chance(0.2),
        "weights": draws.randint(1, 10**6), "spread": draws.one(0.1, 0.3, 0.3, 0.6),
        "dtype": draws.one("f32", "f32", "f32", "bf16", "int8", "int4"),
        "cache_dtype": draws.one("f32", "f32", "bf16", "int8"),
    }  # fmt: skip
    if gpt:
        found |= {"family": "gpt", "activation": draws.one("gelu", "gelu_tanh")}
    else:
        ropes = ["linear", 2.0], ["linear", 0.5], ["llama3", 8.0]
        found |= draws.fields(sliding_window=(0.3, 1, 2, 7, 16), rope=(0.3, *ropes))
    if draws.chance(0.3):
        found["experts"] = _draw_experts(draws, found["n_layer"])
    if draws.chance(0.6):
        found["switches"] = _draw_switches(draws, found)
    found["text"] = found["n_vocab"] > 8 and draws.chance(0.4)
    found |= fixed
    if "encoder" not in fixed and draws.chance(0.3):
        found["encoder"] = _draw_encoder(draws, found)
    if found["dtype"] != "f32" and draws.chance(0.25):
        found["prefill"] = "tiles"
    has_experts = found.get("experts") or (found.get("encoder") or {}).get("experts")
    if found["dtype"] == "f32" and not has_experts and draws.chance(0.25):
        found["prefill"] = "blas"
        if "encoder" not in found and draws.chance(0.3):
            found["n_ctx"] = draws.one(300, 600)  # slices of a prompt
    if found.get("encoder") is not None:
        kept = found.get("switches", {})
        found["switches"] = {name: kept[name] for name in kept if name not in _NOT_WITH_ENCODERS}
    return {name: value for name, value in found.items() if value != DEFAULTS[name]}


def _draw_experts(draws: Draws, n_layer: int) -> dict[str, Any]:
    n_experts, d_shared = draws.one(1, 2, 3, 8, 33), draws.one(0, 0, 5, 33)
    router = draws.one("softmax", "softmax_chosen", "sigmoid")
    corrected = router != "softmax_chosen" and draws.chance(0.5)
    groups = {"n_expert_groups": 4, "n_groups_per_token": 3} if corrected and n_experts == 8 else {}
    return groups | {
        "n_experts": n_experts, "n_experts_per_token": draws.randint(1, min(n_experts, 6)),
        "d_expert": draws.randint(1, 40), "d_shared_expert": d_shared,
        "router": router, "router_bias": draws.chance(0.3), "router_correction": corrected,
        "router_renormalize": draws.chance(0.5), "router_eps": draws.one(0.0, 1e-6),
        "routed_scale": draws.one(1.0, 2.5),
        "mixtures": [int(draws.chance(0.7)) for _ in range(n_layer)],
        "shared_expert_gate": d_shared > 0 and draws.chance(0.5),
    }  # fmt: skip


_NOT_WITH_ENCODERS = ("parallel", "mixers", "kv_layers", "d_per_layer", "d_ffs")
_NOT_OF_ENCODERS = ("alibi", "windows", "head_bias", "mixers", "kv_layers", "d_per_layer", "d_ffs")


def _draw_encoder(draws: Draws, decoder: dict[str, Any]) -> dict[str, Any]:
    """Draw the description of an encoder: bidirectional, with the decoder's embedding or its own."""
    found = draw_model(draws, encoder=None, text=False, sliding_window=0)
    kept = found.get("switches", {})
    found["switches"] = {name: kept[name] for name in kept if name not in _NOT_OF_ENCODERS}
    found["switches"] |= {"tied": False, "output_norm": draws.chance(0.7)}
    if "relative_buckets" in kept and draws.chance(0.4):
        found["switches"]["relative_bias_by_layer"] = True
    if draws.chance(0.5):
        found |= {"n_vocab": decoder["n_vocab"], "d_model": decoder["d_model"]}
        found["switches"]["shared_embedding"] = True
    elif decoder["text"]:
        found["n_vocab"] = max(found.get("n_vocab", DEFAULTS["n_vocab"]), decoder["n_vocab"])
    return found


def source_vocab(model: dict[str, Any]) -> int:
    """Vocabulary size of the sources of a description with an encoder."""
    return model["encoder"].get("n_vocab", DEFAULTS["n_vocab"])


def with_sources_of(model: dict[str, Any], target: dict[str, Any]) -> dict[str, Any]:
    """Return a description whose encoder, if any, reads the same sources as the target's."""
    if "encoder" not in model:
        return model
    encoder = model["encoder"]
    if "encoder" not in target:
        return {name: value for name, value in model.items() if name != "encoder"}
    n_vocab, switches = source_vocab(target), dict(encoder["switches"])
    if n_vocab != model.get("n_vocab", DEFAULTS["n_vocab"]):
        switches.pop("shared_embedding", None)
    return model | {"encoder": encoder | {"n_vocab": n_vocab, "switches": switches}}


def _draw_switches(draws: Draws, model: dict[str, Any]) -> dict[str, Any]:
    """Draw optional fields of the canonical configuration, each with a small probability."""
    n_layer, n_head, d_head = model["n_layer"], model["n_head"], model["d_head"]
    flags = dict.fromkeys(
        ("v_norm", "head_bias", "embedding_norm", "attn_sinks", "tied", "layer_scale"), (0.15, True)
    )
    found = draws.fields(
        **flags, **dict.fromkeys(("embedding_scale", "residual_scale", "logit_scale"), (0.15, 0.3, 1.7, 5.0)),
        **dict.fromkeys(("logit_softcap", "attn_softcap", "qkv_limit"), (0.15, 0.5, 2.0, 30.0)),
        qk_norm=(0.3, "head", "each_head", "whole"), attn_gate=(0.2, "head", "whole"),
        query_growth=(0.15, 0.1, 2.0), norm_weight=(0.2, False),
        norm_bias=(0.3 * (model.get("family") == "gpt"), False),
        norm_position=(0.25, "after", "both", "residual"),
        windows=(0.3, _each(n_layer, 0, 1, 2, 3, 9, 40, 90)),
        score_scales=(0.2, _each(n_layer, 0.05, 0.3, 1.0)),
    )  # fmt: skip
    if found.get("qk_norm") in ("head", "each_head") and draws.chance(0.3):
        found["qk_norm_rotated"] = True
    if "attn_gate" in found:
        found["attn_gate_softplus"] = draws.chance(0.3)
    if "attn_gate" not in found and found.get("qk_norm") != "whole" and draws.chance(0.15):
        found["values_from_keys"] = draws.one(_each(n_layer, 0, 1))
    experts, norms = model.get("experts") or {}, found.get("norm_position") == "both"
    if experts and norms and not experts["d_shared_expert"] and found.get("norm_weight", True):
        found["dense_with_experts"] = model.get("family") != "gpt" and draws.chance(0.5)
    if "query_growth" in found:
        found["query_span"] = draws.one(1, 5, 16)
    if "norm_position" not in found and draws.chance(0.3):
        found["parallel"] = "one_norm" if "experts" in model else draws.one("one_norm", "two_norms")
    if "parallel" not in found and draws.chance(0.3):
        found |= {
            "mixers": draws.one(_each(n_layer, *_mixers_with(found))),
            "mixer_bias": draws.chance(0.3), "conv_width": draws.one(1, 2, 3, 4, 7, 16),
            "conv_bias": draws.chance(0.3), "n_mixer_key_head": (n_key := draws.one(1, 2, 3)),
            "n_mixer_value_head": n_key * draws.one(1, 2, 3), "mixer_grouped": draws.chance(0.5),
            "d_mixer_key": draws.one(1, 8, 17, 40), "d_mixer_value": draws.one(5, 32, 40, 64),
            "n_mixer_norm_groups": draws.one(0, 1, n_key), "mixer_norm_first": draws.chance(0.3),
        }  # fmt: skip
        if draws.chance(0.3):
            found["mixer_scales"] = [draws.one(0.3, 1.0, 1.7) for _ in range(5)]
        found |= draws.fields(
            **dict.fromkeys(("attn_out_scale", "mixer_out_scale"), (0.2, 0.3, 1.7)),
            mlp_down_scale=(0.2 * ("experts" not in model), 0.3, 1.7),
        )
    if found.get("norm_position") in ("after", "both") and model.get("family") != "gpt":
        if found.get("norm_weight", True) and draws.chance(0.5):
            found["d_per_layer"] = draws.one(1, 5, 32, 40)
    if draws.chance(0.2):
        found["d_ffs"] = draws.one(_each(n_layer, 1, 24, 33, 70))
    if "mixers" in found and not found.get("dense_with_experts") and draws.chance(0.4):
        mixes = [mixer != "none" for mixer in found["mixers"]]
        found["d_ffs"] = [draws.one(0, 33) if mixes[i] else draws.one(24, 70) for i in range(n_layer)]
    if draws.chance(0.3):
        found["activation"] = draws.one("silu", "gelu", "gelu_tanh", "relu", "relu2")
        found["gated"] = draws.chance(0.5)
    elif "d_per_layer" not in found and draws.chance(0.15):
        found |= {"activation": "silu_clamped", "gated": True, "activation_limit": draws.one(0.3, 7.0)}
    elif not {"experts", "d_per_layer"} & {*model, *found} and draws.chance(0.1):
        found |= {"activation": "xielu", "gated": False}
    found |= _draw_positions(draws, n_layer, n_head, d_head)
    if "alibi" not in found and "relative_buckets" not in found and draws.chance(0.15):
        n_kv_heads = draws.one(_each(n_layer, 1, 2, 3))
        found |= {
            "n_kv_heads": n_kv_heads, "n_heads": [n * draws.one(1, 2, 5) for n in n_kv_heads],
            "d_heads": [d_head + draws.one(0, 1, 9, 30) for _ in range(n_layer)],
        }  # fmt: skip
    if draws.chance(0.3):
        found["kv_layers"] = kv_layers = _draw_kv_layers(draws, n_layer, found)
        if "values_from_keys" in found:
            own = zip(found["values_from_keys"], kv_layers, strict=True)
            found["values_from_keys"] = [copied * (kv_layer == i) for i, (copied, kv_layer) in enumerate(own)]
    return found


def _mixers_with(found: dict[str, Any]) -> list[str]:
    """Return the mixers that fit the other switches."""
    mixers = ["convolution", "delta", "mamba2"]
    both = [f"attention+{mixer}" for mixer in mixers] if "norm_position" not in found else []
    return ["attention", "none", *mixers, *both]


def _draw_kv_layers(draws: Draws, n_layer: int, found: dict[str, Any]) -> list[int]:
    """Draw layers whose keys and values each layer may attend to."""
    kv_layers: list[int] = []
    by_layer = [found[name] for name in ("mixers", "n_kv_heads", "d_heads", "windows") if name in found]
    kinds = [tuple(values[i] for values in by_layer) for i in range(n_layer)]
    for i in range(n_layer):
        mixes = "mixers" in found and "attention" not in found["mixers"][i]
        sources = [j for j in range(i) if kv_layers[j] == j and kinds[j] == kinds[i] and not mixes]
        kv_layers.append(draws.one(i, *sources) if sources and draws.chance(0.6) else i)
    return kv_layers


def _each(n: int, *values: Any) -> st.SearchStrategy[Any]:
    """Draw one of the values for each layer."""
    return st.lists(st.sampled_from(values), min_size=n, max_size=n)


def _draw_positions(draws: Draws, n_layer: int, n_head: int, d_head: int) -> dict[str, Any]:
    kind = draws.weighted(kept=4, rotary=2, alibi=1, buckets=1, none=0.5)
    if kind == "kept":
        return {}
    if kind == "rotary":
        most = d_head // 2
        tables = [[1.0 / (1 + i) ** draws.one(1, 4) for i in range(draws.randint(0, most))] for _ in range(3)]
        return {
            "position": "rotary", "inv_freq": tables[0], "more_inv_freq": tables[1:],
            "rotations": [draws.randint(-1, 2) for _ in range(n_layer)],
            "rotary_factors": [draws.one(1.0, 1.3, 0.5) for _ in range(3)],
        }  # fmt: skip
    found: dict[str, Any] = {"position": "none", "inv_freq": []}
    if kind == "alibi":
        found["alibi"] = [2.0 ** -draws.randint(-1, 8) for _ in range(n_head)]
    elif kind == "buckets":
        found["relative_buckets"] = [0, *draws.some([1, 2, 3, 5, 9, 20, 60])]
    return found


def draft_description(target: dict[str, Any], draft: dict[str, Any]) -> dict[str, Any]:
    """Complete a draft's description: based on the target's or, with "own", on the defaults."""
    shared = {name: target[name] for name in ("n_vocab", "text") if name in target}
    own = {name: value for name, value in draft.items() if name != "own"}
    found = own | shared if draft.get("own") else target | own | shared
    if found.get("prefill") != ("blas" if found.get("dtype", "f32") == "f32" else "tiles"):
        found.pop("prefill", None)
    return found


def make_model(description: dict[str, Any]) -> Model:
    """Build the described model; equal descriptions share one object for some time."""
    return _made(json.dumps(DEFAULTS | description, sort_keys=True))


@functools.lru_cache(maxsize=16)
def _made(description: str) -> Model:
    d = json.loads(description)
    config = _config(d)
    if d["encoder"] is not None:
        config["encoder"] = _config(DEFAULTS | d["encoder"])
    rng, blur = np.random.default_rng(d["weights"]), np.random.default_rng(d["weights"] + 1)
    tensors = {}
    for name, shape in _core.tensor_shapes(config).items():
        weight = rng.standard_normal(shape) * (d["spread"] if len(shape) == 2 else 0.5)
        weight += name.endswith(("norm.weight", "layer_scale"))
        if d["noise"]:
            weight += d["noise"] * blur.standard_normal(shape)
        if name.endswith("decay.rate"):
            weight = -np.abs(weight)  # states must not grow
        tensors[name] = weight.astype(np.float32)
    tokenizer = LongestPieces(_pieces(d["n_vocab"], all_bytes=d["text"] == "bytes")) if d["text"] else None
    formats = {name: d[name] for name in ("dtype", "cache_dtype", "prefill")}
    return model_of(config, tensors, tokenizer, architecture=d["family"], **formats)


def _config(d: dict[str, Any]) -> dict[str, Any]:
    """The canonical configuration of a complete description, without its encoder."""
    gpt = d["family"] == "gpt"
    return {
        **{name: d[name] for name in ("n_vocab", "n_ctx", "n_layer", "n_head", "n_kv_head")},
        **{name: d[name] for name in ("d_model", "d_head", "d_ff", "tied", "sliding_window")},
        "norm": "layer" if gpt else "rms", "norm_eps": 1e-5, "position": "learned" if gpt else "rotary",
        "inv_freq": [] if gpt else _frequencies(d["d_head"], d["rope"], d["n_ctx"]),
        "activation": d["activation"] or ("gelu_tanh" if gpt else "silu"), "gated": not gpt,
        "qkv_bias": d["bias"], "out_bias": d["bias"], "mlp_bias": d["bias"], **(d["experts"] or {}),
        **d["switches"],
    }  # fmt: skip


def _frequencies(d_head: int, rope: list[Any] | None, n_ctx: int) -> list[float]:
    plain = rotary_frequencies(d_head, 10_000.0)
    if rope is None:
        return plain
    if rope[0] == "linear":
        return linear_scaled(plain, rope[1])
    return llama3_scaled(
        plain, factor=rope[1], low_freq_factor=1.0, high_freq_factor=4.0, original_n_ctx=n_ctx
    )


def _pieces(n_vocab: int, *, all_bytes: bool) -> list[bytes]:
    """Byte strings, some of them parts of a character; with all bytes, those that constraints need."""
    found = [bytes([byte]) for byte in range(256)] + [*_OF_CONSTRAINTS] if all_bytes else [*_OF_TEXTS]
    return [*found, *(f"{i:x}".encode() for i in range(16, 16 + n_vocab))][: n_vocab - 3]


_OF_TEXTS = (
    b"a", b"b", b"ab", b" a", b"\n", b" ", b"\xc3", b"\xa9", b"\xe2", b"\x82", b"\xac", b"\xf0\x9f",
    b"\x98\x80", b"ba", b"aab", b".\n",
)  # fmt: skip
_OF_CONSTRAINTS = (
    b'{"', b'"}', b'": ', b'": "', b'", "', b", ", b"ab", b"true", b"tr", b"name", b"\xc3\xa9", b"\xe2\x82",
    b" a", b"aa", b"aaaa", b"12", b"00", b"null", b"[[", b"]]", b"[]", b"{}", b'["', b'"]', b'""', b"-1",
)  # fmt: skip
N_BYTES_VOCAB = 3 + 256 + len(_OF_CONSTRAINTS)
"""Tokens of the smallest vocabulary with all bytes."""


# ------------------------------------------------------------------------------------------- adapters

ADAPTER: Description = {
    "roles": ["attn_q", "mlp_down"], "layers": None, "rank": 2, "alpha": 2.0, "ranks": {}, "seed": 1
}  # fmt: skip
"""Defaults of a description. `layers` None: all; `ranks`: those of roles that have one of their own."""

ROLES = (
    "attn_q", "attn_k", "attn_v", "attn_gate", "attn_out", "mixer_in", "mixer_gate", "mixer_out", "mlp_gate",
    "mlp_up", "mlp_down", "head",
)  # fmt: skip
RANKS = (1, 1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 40, 64, 100)


def draw_adapter(draws: Draws, target: Description) -> Description:
    """Draw the description of a random adapter of a target without encoder."""
    found = {
        "roles": draws.one(list(ROLES), draws.some(ROLES, 1), draws.some(ROLES, 1)),
        "layers": draws.one(None, None, draws.some(range(target.get("n_layer", 2)), 1)),
        "rank": draws.one(*RANKS), "alpha": draws.one(1.0, 2.0, 8.0, 0.5, -4.0, 1e-3, 0.0),
        "ranks": {role: draws.one(*RANKS) for role in ROLES if draws.chance(0.1)},
        "seed": draws.randint(0, 99),
    }  # fmt: skip
    return {name: value for name, value in found.items() if value != ADAPTER[name]}


def adapted_model(model: Model, adapter: Description | None) -> Model:
    """Return a model with a described unmerged adapter; None: the model itself."""
    return model if adapter is None else _adapted(model, json.dumps(adapter, sort_keys=True))


@functools.lru_cache(maxsize=32)
def _adapted(model: Model, adapter: str) -> Model:
    d = ADAPTER | json.loads(adapter)
    rng = np.random.default_rng(d["seed"])
    ranks, tensors = {}, []
    for name, shape in _core.tensor_shapes(model.core.config).items():
        found = re.fullmatch(r"(?:layers\.(\d+)\.(\w+)\.weight|(head))", name)
        role = found and (found[3] or found[2])
        if found is None or role not in d["roles"] or (role == "head" and model.core.config["tied"]):
            continue
        if found[1] is not None and d["layers"] is not None and int(found[1]) not in d["layers"]:
            continue
        rank = ranks[name] = d["ranks"].get(role, d["rank"])
        down = rng.normal(0.0, shape[1] ** -0.5, (rank, shape[1]))
        up = rng.normal(0.0, 0.3, (shape[0], rank)) * d["alpha"] / rank
        tensors += [(f"{name}.{part}", m.astype(np.float32), "f32") for part, m in zip(
            ("down", "up"), (down, up), strict=True
        )]  # fmt: skip
    if not ranks:  # of layers that are mixtures, or of a head that is tied
        return _adapted(model, json.dumps({"seed": d["seed"], "roles": ["attn_q", "mixer_in"]}))
    core = model.core.adapted(ranks, tensors)
    return Model(
        core, model.config, ModelTexts(model.tokenizer), Path("adapted"), model.architecture,
        decoder_start=model.decoder_start,
    )  # fmt: skip


def adapted_target(case: Mapping[str, Any]) -> Model:
    """The target of a case, with the case's adapter if it has one."""
    return adapted_model(make_model(case["target"]), case.get("adapter"))


def models_of_texts(case: Mapping[str, Any], target: Model) -> list[Model] | None:
    """The model of each prompt of a case; None if all use the target."""
    if "adapters" not in case:
        return None
    base = make_model(case["target"])
    return [target if one is None else adapted_model(base, one) for one in case["adapters"]]
