"""Random EAGLE drafts in the published layouts, and the papers' forward pass in NumPy."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import specdec
from specdec import _core, drafts
from specdec.drafts.learned.eagle.published import PublishedDraft
from specdec.models.families import FAMILIES
from specdec.models.families.mtp import LAYOUTS, block_config
from worlds.folders import llama_config, llama_tensors, write_hf
from worlds.gguf_files import Case

Array = NDArray[Any]


def layer_fields(target: specdec.Model, **changes: Any) -> dict[str, Any]:
    """The fields of a draft's layer: Llama's, with two key heads for four query heads."""
    fields = {
        "model_type": "llama", "vocab_size": target.config.n_vocab, "hidden_size": target.config.d_model,
        "intermediate_size": 40, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 8, "max_position_embeddings": 64, "hidden_act": "silu", "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False,
    }  # fmt: skip
    return fields | changes


def random(rng: np.random.Generator, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """Draw matrices whose products keep the scale of their inputs; norms about 1."""
    found = {}
    for name, shape in shapes.items():
        scale = 0.2 if len(shape) == 1 else 1.5 / np.sqrt(shape[1])
        found[name] = rng.normal(0.0, scale, shape).astype(np.float32)
        if "norm" in name:
            found[name] += 1.0
    return found


def layer_shapes(fields: Mapping[str, Any], inputs: int, *, qk_norm: bool = False) -> dict[str, Any]:
    """The tensors of a layer without its input norm."""
    d, f, size = fields["hidden_size"], fields["intermediate_size"], fields["head_dim"]
    d_q, d_kv = fields["num_attention_heads"] * size, fields["num_key_value_heads"] * size
    shapes = {
        "self_attn.q_proj.weight": (d_q, inputs), "self_attn.k_proj.weight": (d_kv, inputs),
        "self_attn.v_proj.weight": (d_kv, inputs), "self_attn.o_proj.weight": (d, d_q),
        "post_attention_layernorm.weight": (d,), "mlp.gate_proj.weight": (f, d),
        "mlp.up_proj.weight": (f, d), "mlp.down_proj.weight": (d, f),
    }  # fmt: skip
    norms = {"self_attn.q_norm.weight": (size,), "self_attn.k_norm.weight": (size,)} if qk_norm else {}
    return shapes | norms


@dataclass
class EagleFolder:
    """A random draft: fields and tensors of its files, by EAGLE-3's names in vLLM's spelling."""

    layout: str
    target: specdec.Model
    fields: dict[str, Any]
    tensors: dict[str, Array]
    captures: tuple[int, ...]
    flags: dict[str, Any] = field(default_factory=dict)
    tokens: list[int] | None = None
    """The target's token of each of the draft's."""

    def write(self, path: Path, dtype: str = "F32") -> Path:
        """Write the folder in its layout."""
        layer, ids = self.fields, list(self.captures)
        config: dict[str, Any]
        if self.layout == "eagle1":
            config = {"architectures": ["LlamaForCausalLM"], **layer, "bias": True}
        elif self.layout == "specforge":
            stored = {"eagle_aux_hidden_state_layer_ids": [i - 1 for i in ids], "use_aux_hidden_state": True}
            config = {"architectures": ["LlamaForCausalLMEagle3"], **layer, "eagle_config": stored}
        elif self.layout == "vllm":
            named = {"eagle_aux_hidden_state_layer_ids": ids}
            config = {"architectures": ["Eagle3LlamaForCausalLM"], **layer, **named}
        else:
            config = {
                "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3",
                "eagle_aux_hidden_state_layer_ids": ids, "transformer_layer_config": layer,
                "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "target"}},
            }  # fmt: skip
        tensors: dict[str, Array] = dict(self.tensors)
        if self.layout != "eagle1":
            config["draft_vocab_size"] = len(self.tokens) if self.tokens else layer["vocab_size"]
            config |= self.flags
        if self.layout == "specforge":
            tensors = {name.replace("layers.0.", "midlayer."): array for name, array in tensors.items()}
        if self.tokens is not None:
            tensors["d2t"] = np.array(self.tokens, np.int64) - np.arange(len(self.tokens))
            tensors["t2d"] = np.isin(np.arange(layer["vocab_size"]), self.tokens)
        dtypes = dict.fromkeys(tensors, dtype) | {"d2t": "I64", "t2d": "BOOL"}
        return write_hf(path, config, tensors, dtype=dtypes)


def eagle1(
    target: specdec.Model, seed: int = 0, *, own_embedding: bool = True, **changes: Any
) -> EagleFolder:
    """EAGLE-1's original layout, by default with its own embeddings."""
    fields = layer_fields(target, **changes)
    d, v = fields["hidden_size"], fields["vocab_size"]
    shapes: dict[str, Any] = {"embed_tokens.weight": (v, d)} if own_embedding else {}
    shapes |= {"fc.weight": (d, 2 * d), "fc.bias": (d,)}
    shapes |= {f"layers.0.{name}": shape for name, shape in layer_shapes(fields, d).items()}
    tensors = random(np.random.default_rng(seed), shapes)
    return EagleFolder("eagle1", target, fields, tensors, (target.config.n_layer + 1,))


def eagle3(
    target: specdec.Model, layout: str = "vllm", seed: int = 0, *, n_draft: int | None = None,
    own_embedding: bool = False, captures: tuple[int, ...] | None = None,
    flags: Mapping[str, Any] | None = None, **changes: Any,
) -> EagleFolder:  # fmt: skip
    """EAGLE-3 with three captured hidden states, in one of its layouts."""
    fields, flags = layer_fields(target, **changes), dict(flags or {})
    n_layer, d, v = target.config.n_layer, fields["hidden_size"], fields["vocab_size"]
    width = target.config.d_model
    captures = captures or (1, (n_layer + 1) // 2, n_layer)
    if d != width:
        flags["target_hidden_size"] = width
    shapes: dict[str, Any] = {
        "fc.weight": (d, len(captures) * width), "norm.weight": (d,), "lm_head.weight": (n_draft or v, d),
        "layers.0.hidden_norm.weight": (d,), "layers.0.input_layernorm.weight": (d,),
    }  # fmt: skip
    if own_embedding or d != width:
        shapes["embed_tokens.weight"] = (v, d)
    if flags.get("norm_before_fc"):
        shapes["input_norm.weight"] = (len(captures) * width,)
    if flags.get("fc_norm"):
        shapes |= {f"fc_norm.{i}.weight": (width,) for i in range(len(captures))}
    qk_norm = fields["model_type"] == "qwen3"
    shapes |= {f"layers.0.{name}": of for name, of in layer_shapes(fields, 2 * d, qk_norm=qk_norm).items()}
    for i in range(1, fields["num_hidden_layers"]):
        rest = layer_shapes(fields, d, qk_norm=qk_norm) | {"input_layernorm.weight": (d,)}
        shapes |= {f"layers.{i}.{name}": of for name, of in rest.items()}
    rng = np.random.default_rng(seed)
    tokens = None if n_draft is None else sorted(rng.permutation(v)[:n_draft].tolist())
    return EagleFolder(layout, target, fields, random(rng, shapes), captures, flags, tokens)


MIMO = {"architectures": ["MiMoForCausalLM"], "model_type": "mimo", "attention_bias": True}
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
MTP_NAMES: dict[str, dict[str, str]] = {
    "MiMo": {
        "layers.0.": "model.mtp_layers.0.", "token_norm": "model.mtp_layers.0.token_layernorm",
        "feature_norm": "model.mtp_layers.0.hidden_layernorm", "projection": "model.mtp_layers.0.input_proj",
        "output_norm": "model.mtp_layers.0.final_layernorm",
    },
    "Qwen": {
        "layers.0.": "mtp.layers.0.", "token_norm": "mtp.pre_fc_norm_embedding",
        "feature_norm": "mtp.pre_fc_norm_hidden", "projection": "mtp.fc", "output_norm": "mtp.norm",
    },
    "DeepSeek": {
        "layers.0.": "model.layers.2.", "token_norm": "model.layers.2.enorm",
        "feature_norm": "model.layers.2.hnorm", "projection": "model.layers.2.eh_proj",
        "output_norm": "model.layers.2.shared_head.norm",
    },
    "ERNIE": {
        "layers.0.": "model.mtp_block.0.", "token_norm": "model.mtp_emb_norm.0",
        "feature_norm": "model.mtp_hidden_norm.0", "projection": "model.mtp_linear_proj.0",
        "output_norm": "model.norm",
    },
}  # fmt: skip
MTP_NAMES["EXAONE"] = MTP_NAMES["Qwen"]
MTP_NAMES["Hunyuan"] = MTP_NAMES["DeepSeek"] | {"output_norm": "model.layers.2.final_layernorm"}
"""Prefixes of the names in files of two layers and an MTP block, as the models' authors publish them."""


def mtp_block(config: Mapping[str, Any], seed: int = 0, *, biases: bool = False) -> dict[str, Array]:
    """A random MTP block: MiMo's with biases of queries, keys and values, or Qwen 3's with norms of heads."""
    d = config["hidden_size"]
    names = ("token_norm", "feature_norm", "output_norm", "layers.0.input_layernorm")
    shapes: dict[str, Any] = {f"{name}.weight": (d,) for name in names} | {"projection.weight": (d, 2 * d)}
    layer = layer_shapes(config, d, qk_norm=not biases)
    if biases:
        layer |= {f"self_attn.{role}_proj.bias": layer[f"self_attn.{role}_proj.weight"][:1] for role in "qkv"}
    shapes |= {f"layers.0.{name}": shape for name, shape in layer.items()}
    return random(np.random.default_rng(seed), shapes)


def qwen3_with(layout: str) -> tuple[Any, str, Any]:
    """The families, and Qwen 3 among them with an MTP block in another family's layout."""
    name = QWEN3["architectures"][0]
    return FAMILIES, name, replace(FAMILIES[name], mtp=LAYOUTS[layout])


def mtp_folder(
    folder: Path, layout: str = "MiMo", seed: int = 0, **changes: Any
) -> tuple[specdec.Model, EagleFolder]:
    """A random target with an MTP block in a layout, written to a folder, and the block alone."""
    is_mimo = layout == "MiMo"
    count = "mtp_num_hidden_layers" if layout == "Qwen" else "num_nextn_predict_layers"
    config = llama_config(**{**(MIMO if is_mimo else QWEN3), count: 1, "head_dim": 8, **changes})
    tensors = {name: x for name, x in llama_tensors(config, seed).items() if "o_proj.bias" not in name}
    block = mtp_block(config, seed + 1, biases=is_mimo)
    if not is_mimo:
        norms = [f"model.layers.{i}.self_attn.{role}_norm.weight" for i in range(2) for role in "qk"]
        tensors |= random(np.random.default_rng(seed), dict.fromkeys(norms, (8,)))
    stored = {}
    for name, array in block.items():
        base = next(one for one in MTP_NAMES[layout] if name.startswith(one))
        minus = layout == "Qwen" and base.endswith("norm")
        stored[MTP_NAMES[layout][base] + name.removeprefix(base)] = array - np.float32(minus)
    if layout in ("DeepSeek", "Hunyuan"):  # copies of the target's
        stored["model.layers.2.embed_tokens.weight"] = tensors["model.embed_tokens.weight"]
        stored["model.layers.2.shared_head.head.weight"] = tensors["lm_head.weight"]
    target = specdec.load(write_hf(folder, config, tensors | stored), tokenizer=False)
    return target, as_draft(target, config, block, features_first=is_mimo)


def folder_with_block(case: Case, folder: Path) -> Path:
    """Write the folder of a case with a random block in the layout of its family."""
    config, weights = case.folder()
    layout, n, d = FAMILIES[case.name].mtp, config["num_hidden_layers"], config["hidden_size"]
    assert layout is not None
    config[layout.counts[0]] = 1
    rng, own = np.random.default_rng(0), layout.block.format(n=n)
    last = f"model.layers.{0 if layout.first else n - 1}."
    block = {
        name.replace(last, own): x + rng.normal(0.0, 0.1, x.shape).astype("f4")
        for name, x in weights.items()
        if name.startswith(last)
    }
    for part in ("token_norm", "feature_norm", "projection", "output_norm"):
        name = getattr(layout, part)
        shape = (d, 2 * d) if part == "projection" else (d,)
        block[own + name[1:] + ".weight" if name[0] == "." else name + ".weight"] = random(
            rng, {part: shape}
        )[part]
    return write_hf(folder, config, weights | block)


def as_draft(
    target: specdec.Model, config: Mapping[str, Any], block: dict[str, Array], *, features_first: bool = False
) -> EagleFolder:
    """A block of an MTP layout as `PaperDraft` reads it."""
    fields, flags = dict(config) | {"num_hidden_layers": 1}, {"features_first": features_first}
    flags["norm_output"] = True
    return EagleFolder("mtp", target, fields, block, (target.config.n_layer + 1,), flags)


def may_have_mtp(config: specdec.ModelConfig) -> bool:
    """Whether a target's layers can read features, as those of an MTP block do."""
    plain = {"norm": "rms", "norm_position": "before", "parallel": "no", "norm_weight": True, "encoder": None}
    if not any(config.attends) or any(config[name] != value for name, value in plain.items()):
        return False
    last = config.last_attention
    has_one_mixer = not config.mixers or config.mixers[last] == "attention"
    has_mlp = not config.d_ffs or config.d_ffs[last] > 0
    return has_one_mixer and has_mlp and config.position != "learned" and not config.embedding_norm


def random_mtp(
    target: specdec.Model, seed: int = 0, *, tree: Any = None, dtype: Any = None, head_tokens: Any = None,
    normed_feedback: bool = True,
) -> drafts.MTP:  # fmt: skip
    """A random block for a target, which needs no files."""
    config = block_config(LAYOUTS["Qwen"], target.config)
    tensors = random(np.random.default_rng(seed), _core.tensor_shapes(config))
    published = PublishedDraft(
        target.path, "MTP", config, lambda: ((name, array, "f32") for name, array in tensors.items()),
        dtype or "f32", (), (target.config.n_layer + 1,), None, normed_feedback,
    )  # fmt: skip
    draft = object.__new__(drafts.MTP)
    draft._take(published, target, tree, None, head_tokens, 1)
    return draft


# --------------------------------------------------------------------------------- forward of the papers


def rms(x: Array, weight: Array, eps: float) -> Array:
    """Root mean square norm."""
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def rotated(x: Array, position: int, theta: float) -> Array:
    """Rotate heads [n, size] to a position: dimension i pairs with dimension i + size / 2."""
    half = x.shape[-1] // 2
    angle = position * np.float32(theta ** -(2.0 * np.arange(half) / x.shape[-1])).astype(np.float64)
    a, b = x[:, :half], x[:, half:]
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=1)


class PaperDraft:
    """The paper's draft, row by row, for an EagleFolder and the target's embedding and head; caches keys,
    values.
    """

    def __init__(self, folder: EagleFolder, embedding: Array, head: Array) -> None:
        self.f = folder
        self.w = {name: array.astype(np.float64) for name, array in folder.tensors.items()}
        self.embedding = self.w.get("embed_tokens.weight", embedding.astype(np.float64))
        self.head = self.w.get("lm_head.weight", head.astype(np.float64))
        self.kv: list[list[tuple[Array, Array]]] = [[] for _ in range(folder.fields["num_hidden_layers"])]

    def cut(self, n_rows: int) -> None:
        """Forget all but the first rows."""
        for rows in self.kv:
            del rows[n_rows:]

    def norm(self, name: str, x: Array) -> Array:
        return rms(x, self.w[f"{name}.weight"], self.f.fields["rms_norm_eps"])

    def attend(self, layer: int, x: Array) -> Array:
        """Causal attention of one more row, with grouped query heads."""
        f, w = self.f.fields, {k.removeprefix(f"layers.{layer}.self_attn."): v for k, v in self.w.items()}
        size, n_head, n_kv = f["head_dim"], f["num_attention_heads"], f["num_key_value_heads"]
        q, k, v = (
            (w[f"{role}_proj.weight"] @ x + w.get(f"{role}_proj.bias", 0.0)).reshape(-1, size)
            for role in "qkv"
        )
        if "q_norm.weight" in w:
            q = rms(q, w["q_norm.weight"], f["rms_norm_eps"])
            k = rms(k, w["k_norm.weight"], f["rms_norm_eps"])
        position = len(self.kv[layer])
        q, k = (rotated(heads, position, f["rope_theta"]) for heads in (q, k))
        self.kv[layer].append((k, v))
        out = []
        for h in range(n_head):
            kv = h // (n_head // n_kv)
            scores = np.array([q[h] @ keys[kv] for keys, _ in self.kv[layer]]) / np.sqrt(size)
            weights = np.exp(scores - scores.max())
            weights /= weights.sum()
            out.append(sum(p * values[kv] for p, (_, values) in zip(weights, self.kv[layer], strict=True)))
        return w["o_proj.weight"] @ np.concatenate(out)

    def mlp(self, layer: int, x: Array) -> Array:
        gate, up, down = (self.w[f"layers.{layer}.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
        g = gate @ x
        return down @ (g / (1.0 + np.exp(-g)) * (up @ x))

    def read(self, token: int, feature: Array, own: bool) -> tuple[Array, Array]:
        """Logits of the draft's tokens, and output feature; ``own``: the input is an output feature, not the
        target's.
        """
        embedded, flags = self.embedding[token], self.f.flags
        if self.f.layout == "eagle1":
            x = self.w["fc.weight"] @ np.concatenate([embedded, feature]) + self.w["fc.bias"]
            x = x + self.attend(0, x)
        elif self.f.layout == "mtp":
            parts = [self.norm("token_norm", embedded), self.norm("feature_norm", feature)]
            x = self.w["projection.weight"] @ np.concatenate(parts[:: -1 if flags["features_first"] else 1])
            x = x + self.attend(0, self.norm("layers.0.input_layernorm", x))
        else:
            g = feature if own else self.fused(feature)
            normed = self.norm("layers.0.hidden_norm", g)
            both = np.concatenate([self.norm("layers.0.input_layernorm", embedded), normed])
            x = (normed if flags.get("norm_before_residual") else g) + self.attend(0, both)
        x = x + self.mlp(0, self.norm("layers.0.post_attention_layernorm", x))
        for i in range(1, self.f.fields["num_hidden_layers"]):
            x = x + self.attend(i, self.norm(f"layers.{i}.input_layernorm", x))
            x = x + self.mlp(i, self.norm(f"layers.{i}.post_attention_layernorm", x))
        if self.f.layout == "eagle1":
            return self.head @ x, x
        normed_output = self.norm("output_norm" if self.f.layout == "mtp" else "norm", x)
        return self.head @ normed_output, normed_output if flags.get("norm_output") else x

    def fused(self, captures: Array) -> Array:
        """EAGLE-3's fused feature of three hidden states."""
        n = len(self.f.captures)
        if self.f.flags.get("norm_before_fc"):
            captures = self.norm("input_norm", captures)
        if self.f.flags.get("fc_norm"):
            pieces = [self.norm(f"fc_norm.{i}", piece) for i, piece in enumerate(np.split(captures, n))]
            captures = np.concatenate(pieces)
        return self.w["fc.weight"] @ captures

    def probabilities(self, logits: Array) -> Array:
        """Probabilities of the target's tokens, at temperature 1."""
        rows = np.full(self.f.target.config.n_vocab, -np.inf)
        rows[np.arange(len(logits)) if self.f.tokens is None else self.f.tokens] = logits
        weights = np.exp(rows - rows.max())
        return weights / weights.sum()

    def token(self, row: int) -> int:
        """The target's token for a row of the head."""
        return row if self.f.tokens is None else self.f.tokens[row]

    def after(self, text: list[int], features: Array, draft_tokens: list[int]) -> Array:
        """Logits after a text and draft tokens after it; the rows of the text stay."""
        for row in range(len(self.kv[0]), len(text) - 1):
            logits, own = self.read(text[row + 1], features[row], own=False)
        for token in draft_tokens:
            logits, own = self.read(token, own, own=True)
        self.cut(len(text) - 2)
        return logits

    def chain(self, text: list[int], features: Array, gamma: int) -> list[int]:
        """The greedy chain after a text. ``features`` [n, width]: of the text's tokens but the last."""
        draft_tokens: list[int] = []
        for _ in range(gamma):
            logits = self.after(text, features, draft_tokens)
            draft_tokens.append(self.token(int(np.argmax(logits))))
        return draft_tokens


# ------------------------------------------------------------------------------- drafts for any target


@functools.cache
def _folders() -> Path:
    """Root of the drafts' folders, removed when the process that made it ends, but not by its forks."""
    folder, owner = Path(tempfile.mkdtemp(prefix="specdec-eagle-")), os.getpid()
    atexit.register(lambda: shutil.rmtree(folder) if os.getpid() == owner else None)
    return folder


@functools.cache
def eagle_folder(target: specdec.Model, kind: str) -> Path:
    """Write a random draft's folder for a target: "eagle1", "eagle3", or "reduced" in its vocabulary."""
    folder = Path(tempfile.mkdtemp(dir=_folders()))
    if kind.startswith("eagle1"):
        return eagle1(target, seed=5).write(folder)
    n_draft = max(2, 2 * target.config.n_vocab // 3) if kind == "reduced" else None
    flags = {"norm_before_residual": True, "fc_norm": True, "norm_output": True} if n_draft else {}
    return eagle3(target, seed=6, n_draft=n_draft, flags=flags).write(folder)


@functools.cache
def _loaded(target: specdec.Model, kind: str) -> drafts.Eagle:
    head_tokens = range(0, target.config.n_vocab, 2) if kind == "eagle1 with half of the head" else None
    return drafts.Eagle(eagle_folder(target, kind), target, head_tokens=head_tokens)


def eagle_for(target: specdec.Model, kind: str, tree: Any = None) -> drafts.Eagle:
    """Make a random draft for a target."""
    if tree is None:
        return _loaded(target, kind)
    return drafts.Eagle(eagle_folder(target, kind), target, tree=tree)


@functools.cache
def mimo_target() -> specdec.Model:
    """A random target with a head for multi-token prediction."""
    return mtp_folder(Path(tempfile.mkdtemp(dir=_folders())))[0]
