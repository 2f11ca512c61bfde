"""Models with random weights in the benchmarks' shapes, in memory or as Hugging Face folders.

Every weight is rounded to bf16 (nearest even), even if stored as f32, so all number formats of all engines
start from the same model.

Speed does not depend on the values, but acceptance does. So the head is the embedding with permuted rows: the
most probable token after t is its successor on a random cycle through the vocabulary. Models with one
vocabulary then agree at temperature 0; a draft made with ``alpha`` agrees after that share of the tokens. All
engines thus get a pair of known acceptance rate, with the same rejections at the same positions.

With such heads even inexact engines find the same tokens. Models of `DOUBTFUL`, for tests of exactness, have
other heads and larger weights: their distributions depend on the whole text, with occasional near-ties.

This module uses only names that every build of specdec has: see `builds.py`.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec import _core

#: Canonical name, weights, number format.
Tensor = tuple[str, NDArray[Any], str]


def _gpt2(n_layer: int, n_head: int, d_model: int, d_ff: int, n_vocab: int) -> dict[str, Any]:
    """Return GPT-2's layout with an untied head: layer norm, learned positions, biases."""
    return {
        **_sizes(n_layer, n_head, n_head, d_model, d_ff, n_vocab, n_ctx=4096),
        **{"norm": "layer", "norm_eps": 1e-5, "position": "learned", "inv_freq": []},
        **{"activation": "gelu_tanh", "gated": False},
        **{"qkv_bias": True, "out_bias": True, "mlp_bias": True},
    }


def _llama(
    n_layer: int, n_head: int, n_kv_head: int, d_model: int, d_ff: int, n_vocab: int
) -> dict[str, Any]:
    return {
        **_sizes(n_layer, n_head, n_kv_head, d_model, d_ff, n_vocab, n_ctx=4096),
        **{"norm": "rms", "norm_eps": 1e-5, "position": "rotary"},
        **{"inv_freq": _frequencies(d_model // n_head)},
        **{"activation": "silu", "gated": True},
        **{"qkv_bias": False, "out_bias": False, "mlp_bias": False},
    }


def _tied(
    n_layer: int, n_head: int, n_kv_head: int, d_head: int, d_model: int, d_ff: int, n_vocab: int
) -> dict[str, Any]:
    """Return Llama's layout with tied embeddings and any head size."""
    return {
        **_llama(n_layer, n_head, n_kv_head, d_model, d_ff, n_vocab),
        **{"d_head": d_head, "inv_freq": _frequencies(d_head), "tied": True},
    }


def _frequencies(d_head: int) -> list[float]:
    """Return the frequencies of rotary positions with base 10,000."""
    return (10_000.0 ** -(np.arange(0, d_head, 2) / d_head)).astype(np.float32).tolist()


def _qwen35(d_model: int, d_ff: int) -> dict[str, Any]:
    return {
        **_tied(24, 8, 2, d_head=256, d_model=d_model, d_ff=d_ff, n_vocab=248_320),
        **{"inv_freq": (1e7 ** -(np.arange(0, 64, 2) / 64)).astype(np.float32).tolist()},
        **{"qk_norm": "head", "attn_gate": "whole", "mixers": ["delta", "delta", "delta", "attention"] * 6},
        **{"conv_width": 4, "n_mixer_key_head": 16, "n_mixer_value_head": 16},
        **{"d_mixer_key": 128, "d_mixer_value": 128},
    }


def _narrow(n_head: int, n_kv_head: int) -> dict[str, Any]:
    """Return a layout dominated by attention: heads of 64, narrow elsewhere."""
    return {
        **_llama(8, n_head, n_kv_head, d_model=64, d_ff=64, n_vocab=64),
        **{"d_head": 64, "n_ctx": 1 << 17, "inv_freq": _frequencies(64)},
    }


def _sizes(n_layer, n_head, n_kv_head, d_model, d_ff, n_vocab, n_ctx) -> dict[str, Any]:
    return {
        **{"n_vocab": n_vocab, "n_ctx": n_ctx, "n_layer": n_layer, "n_head": n_head, "n_kv_head": n_kv_head},
        **{"d_model": d_model, "d_head": d_model // n_head, "d_ff": d_ff, "tied": False, "sliding_window": 0},
    }


#: The canonical configurations: the paper's pair (section 4.2: 97M and 6M parameters), and TinyLlama's
#: shape with a draft of 60M.
SHAPES: dict[str, dict[str, Any]] = {
    "paper6": _gpt2(n_layer=2, n_head=4, d_model=256, d_ff=1024, n_vocab=8192),
    "paper97": _gpt2(n_layer=12, n_head=12, d_model=768, d_ff=3072, n_vocab=8192),
    "L60M": _llama(n_layer=8, n_head=8, n_kv_head=8, d_model=512, d_ff=1376, n_vocab=32000),
    "L1B": _llama(n_layer=22, n_head=32, n_kv_head=4, d_model=2048, d_ff=5632, n_vocab=32000),
}

#: Pairs with distributions that depend on the whole text: one with eight tokens, whose joint distribution can
#: be enumerated, and one large enough for number formats to matter, whose draft is its target's first layers.
DOUBTFUL: dict[str, dict[str, Any]] = {
    "eight": _llama(n_layer=2, n_head=2, n_kv_head=2, d_model=64, d_ff=128, n_vocab=8),
    "eight-draft": _llama(n_layer=1, n_head=1, n_kv_head=1, d_model=32, d_ff=64, n_vocab=8),
    "L25M": _llama(n_layer=8, n_head=8, n_kv_head=4, d_model=512, d_ff=1408, n_vocab=4096),
    "L25M-draft": _llama(n_layer=7, n_head=8, n_kv_head=4, d_model=512, d_ff=1408, n_vocab=4096),
}
#: Popular models, simplified to one table of rotary positions for all layers.
FAMILIES: dict[str, dict[str, Any]] = {
    "SmolLM2-360M": _tied(32, 15, 5, d_head=64, d_model=960, d_ff=2560, n_vocab=49152),
    "Qwen3-0.6B": _tied(28, 16, 8, d_head=128, d_model=1024, d_ff=3072, n_vocab=151936) | {"qk_norm": "head"},
    "Qwen2.5-1.5B": _tied(28, 12, 2, d_head=128, d_model=1536, d_ff=8960, n_vocab=151936)
    | {"qkv_bias": True},
    "Gemma-3-1B": _tied(26, 4, 1, d_head=256, d_model=1152, d_ff=6912, n_vocab=262144)
    | {"qk_norm": "head", "norm_position": "both", "activation": "gelu_tanh", "embedding_scale": 1152**0.5}
    | {"windows": [0 if i % 6 == 5 else 512 for i in range(26)]},
}
#: The text models of Qwen3.5: three of four layers are gated delta rule.
QWEN35: dict[str, dict[str, Any]] = {
    f"Qwen3.5-{name}": _qwen35(d_model, d_ff)
    for name, d_model, d_ff in (("0.8B", 1024, 3584), ("2B", 2048, 6144))
}
_LFM2_ATTENTION = (2, 5, 8, 10, 12, 14)
#: LFM2: six of sixteen layers have attention, the others a short convolution.
LFM2: dict[str, dict[str, Any]] = {
    "LFM2-1.2B": _tied(16, 32, 8, d_head=64, d_model=2048, d_ff=8192, n_vocab=65536)
    | {"qk_norm": "head", "inv_freq": (1e6 ** -(np.arange(0, 64, 2) / 64)).astype(np.float32).tolist()}
    | {"mixers": ["attention" if i in _LFM2_ATTENTION else "convolution" for i in range(16)]}
    | {"conv_width": 3},
}
#: Model types of `FAMILIES` in other engines.
MODEL_TYPES = {
    "SmolLM2-360M": "llama",
    "Qwen3-0.6B": "qwen3",
    "Qwen2.5-1.5B": "qwen2",
    "Gemma-3-1B": "gemma3_text",
    **dict.fromkeys(QWEN35, "qwen3_5_text"),
    **dict.fromkeys(LFM2, "lfm2"),
}


def model_type(name: str) -> str:
    """Return the model type of a shape in a config.json."""
    return MODEL_TYPES.get(name, "llama" if SHAPES[name]["position"] == "rotary" else "gpt2")


#: Attention alone, with the heads of L1B and of paper97.
NARROW: dict[str, dict[str, Any]] = {"32 heads on 4": _narrow(32, 4), "12 heads": _narrow(12, 12)}
#: GGUF types of random models: single types and mixtures.
GGUF_TYPES = ("Q8_0", "Q4_0", "Q4_K", "Q5_K", "Q6_K", "Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M")
#: Shapes to time.
TIMED = tuple(SHAPES)
SHAPES |= DOUBTFUL | FAMILIES | QWEN35 | LFM2 | NARROW
#: For long contexts: paper97, and four layers of L1B, whose prompts take minutes less.
SHAPES["paper97-long"] = SHAPES["paper97"] | {"n_ctx": 1 << 16}
SHAPES["L1B-4"] = SHAPES["L1B"] | {"n_layer": 4, "n_ctx": 1 << 16}


def round_to_bf16(x: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round finite float32 numbers to bf16, nearest even."""
    bits = x.view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)


def successors(n_vocab: int, alpha: float = 1.0) -> NDArray[np.int64]:
    """Return the most probable token after each token: a random cycle, except after a share 1 - alpha.

    The last id ends a text; it is its own successor, and nothing leads there.
    """
    rng = np.random.default_rng(n_vocab)
    cycle, wrong = rng.permutation(n_vocab - 1), rng.permutation(n_vocab - 1)
    after = np.arange(n_vocab)
    after[cycle] = np.roll(cycle, -1)
    wrong = wrong[: round((1 - alpha) * len(wrong))]
    after[wrong] = np.roll(after[wrong], 1)
    return after


def random_tensors(name: str, alpha: float = 1.0) -> Iterator[Tensor]:
    """Yield the weights of a shape, as the core takes them, in bf16.

    Normal with deviation 0.02 (norms around 1, embedding 1, head see above); in `DOUBTFUL` shapes with
    deviation n_in^-1/2 and an independent head.
    """
    doubtful = name in DOUBTFUL
    for index, (tensor, shape) in enumerate(_core.tensor_shapes(SHAPES[name]).items()):
        stream = 0 if tensor == "token_embedding" or (tensor == "head" and not doubtful) else 1 + index
        values = np.random.default_rng([0, stream]).standard_normal(shape, dtype=np.float32)
        if tensor == "head" and not doubtful:
            values[successors(len(values), alpha)] = values.copy()
        if tensor != "token_embedding":
            values *= np.float32(shape[-1] ** -0.5 if doubtful and len(shape) == 2 else 0.02)
        if tensor.endswith("norm.weight"):
            values += 1
        yield tensor, round_to_bf16(values), "bf16"


def random_model(
    name: str, dtype: str = "f32", cache_dtype: str | None = None, alpha: float = 1.0, n_threads: int = 2
) -> _core.Model:
    """Make a model of a shape in memory, with the same weights in every format.

    Also sets this machine's kernel thresholds, as `specdec.load` does.

    Parameters
    ----------
    name : str
        One of `SHAPES`.
    dtype, cache_dtype : str
        See `specdec.load`.
    alpha : float
        Share of the tokens after which it agrees with models of alpha 1, at temperature 0.
    n_threads : int
        Threads that pack the weights.
    """
    cache_dtype = cache_dtype or ("f32" if dtype == "f32" else "bf16")
    tensors = random_tensors(name, alpha)
    with suppress(ModuleNotFoundError):  # another build (`--against`) may have no thresholds
        import_module("specdec.models.thresholds").settle()
    return _core.Model(SHAPES[name], tensors, dtype=dtype, cache_dtype=cache_dtype, n_threads=n_threads)


_LLAMA_NAMES = {
    "token_embedding": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
    "head": "lm_head.weight", "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_out": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm", "mlp_gate": "mlp.gate_proj", "mlp_up": "mlp.up_proj",
    "mlp_down": "mlp.down_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
}  # fmt: skip
_GEMMA_NAMES = _LLAMA_NAMES | {
    "attn_post_norm": "post_attention_layernorm", "mlp_norm": "pre_feedforward_layernorm",
    "mlp_post_norm": "post_feedforward_layernorm",
}  # fmt: skip
_GPT2_NAMES = {
    "token_embedding": "transformer.wte.weight", "position_embedding": "transformer.wpe.weight",
    "output_norm.weight": "transformer.ln_f.weight", "output_norm.bias": "transformer.ln_f.bias",
    "head": "lm_head.weight", "attn_norm": "ln_1", "attn_out": "attn.c_proj", "mlp_norm": "ln_2",
    "mlp_up": "mlp.c_fc", "mlp_down": "mlp.c_proj",
}  # fmt: skip


def _as_stored(name: str, tensors: Iterable[Tensor]) -> Iterator[tuple[str, NDArray[np.uint16]]]:
    """Yield the tensors with the names and layouts of the Hugging Face architecture."""
    layout = model_type(name)
    if "mixers" in SHAPES[name]:
        family = import_module("specdec.models.families").FAMILIES[_ARCHITECTURES[layout][0]]
        sources, rng = family.sources(SHAPES[name]), np.random.default_rng(0)
        sizes = {key: n for one in sources for key, n in zip(one.stored, one.stored_shapes, strict=True)}
        for key, n in sizes.items():  # names and shapes that the family reads
            yield key, round_to_bf16(np.float32(0.02) * rng.standard_normal(n, np.float32) + (len(n) == 1))
        return
    names = {"gpt2": _GPT2_NAMES, "gemma3_text": _GEMMA_NAMES}.get(layout, _LLAMA_NAMES)
    qkv: dict[str, list[NDArray[np.uint16]]] = {"weight": [], "bias": []}
    for canonical, array, _ in tensors:
        if layout == "gemma3_text" and canonical.endswith("norm.weight"):  # stored less 1
            array = round_to_bf16((array.astype(np.uint32) << 16).view(np.float32) - 1)
        if not canonical.startswith("layers."):
            yield names[canonical], array
            continue
        _, layer, role, part = canonical.split(".")
        if layout != "gpt2":
            yield f"model.layers.{layer}.{names[role]}.{part}", array
        elif role in ("attn_q", "attn_k", "attn_v"):  # joined to c_attn; the three are consecutive
            qkv[part].append(array)
            if len(qkv[part]) == 3:
                yield f"transformer.h.{layer}.attn.c_attn.{part}", np.concatenate(qkv[part]).T
                qkv[part] = []
        else:
            yield f"transformer.h.{layer}.{_GPT2_NAMES[role]}.{part}", array.T  # Conv1D: [n_in, n_out]


#: Architectures of model types, and their configuration fields beyond Llama's.
_ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", {}),
    "qwen2": ("Qwen2ForCausalLM", {}),
    "qwen3": ("Qwen3ForCausalLM", {}),
    "gemma3_text": (
        "Gemma3ForCausalLM",
        {
            "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256, "sliding_window": 512,
            "rope_local_base_freq": 10_000.0,
        },
    ),
    "qwen3_5_text": ("Qwen3_5ForCausalLM", {"rope_theta": 1e7, "linear_num_value_heads": 16}),
    "lfm2": (
        "Lfm2ForCausalLM",
        {"rope_theta": 1e6, "block_auto_adjust_ff_dim": False, "full_attn_idxs": list(_LFM2_ATTENTION)},
    ),
}  # fmt: skip


def _hf_config(name: str, number: str) -> dict[str, Any]:
    c, layout = SHAPES[name], model_type(name)
    end = c["n_vocab"] - 1
    common = {
        "vocab_size": c["n_vocab"], "tie_word_embeddings": c["tied"], "torch_dtype": {"f32": "float32",
        "bf16": "bfloat16"}[number], "bos_token_id": end, "eos_token_id": end,
    }  # fmt: skip
    if layout in _ARCHITECTURES:
        architecture, more = _ARCHITECTURES[layout]
        return common | {
            "architectures": [architecture], "model_type": layout, "hidden_size": c["d_model"],
            "intermediate_size": c["d_ff"], "num_hidden_layers": c["n_layer"], "head_dim": c["d_head"],
            "num_attention_heads": c["n_head"], "num_key_value_heads": c["n_kv_head"],
            "max_position_embeddings": c["n_ctx"], "rope_theta": 10_000.0,
            "norm_eps" if layout == "lfm2" else "rms_norm_eps": c["norm_eps"],
        } | more  # fmt: skip
    return common | {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": c["d_model"],
        "n_inner": c["d_ff"], "n_layer": c["n_layer"], "n_head": c["n_head"], "n_positions": c["n_ctx"],
        "activation_function": "gelu_new", "layer_norm_epsilon": c["norm_eps"],
    }  # fmt: skip


def vocabulary(n_vocab: int) -> list[str]:
    """Tokens of a byte-level vocabulary: bytes (in GPT-2's alphabet, as many as fit), fillers, the end."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (byte for byte in range(256) if byte not in printable)
    alphabet = [chr(b) for b in printable] + [chr(256 + i) for i, _ in enumerate(others)]
    fillers = [f"<{i}>" for i in range(len(alphabet), n_vocab - 1)]
    return alphabet[: n_vocab - 1] + fillers + ["<end>"]


def _tokenizer(n_vocab: int) -> dict[str, Any]:
    tokens = vocabulary(n_vocab)
    end = {"id": n_vocab - 1, "content": "<end>", "special": True, "normalized": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": [end | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)}, "merges": []},
    }


def write_checkpoint(
    name: str,
    folder: str | Path,
    number: str = "bf16",
    alpha: float = 1.0,
) -> Path:
    """Write a shape as a Hugging Face folder with a byte-level tokenizer, and return the folder.

    Parameters
    ----------
    name : str
        One of `SHAPES`.
    folder : path-like
        Created if needed; kept if it already holds this model.
    number : {"bf16", "f32"}
        Storage format; the values are the same.
    alpha : float
        See :func:`random_model`.
    """
    folder, config = Path(folder), SHAPES[name]
    settings = {"version": 5, "shape": name, "number": number, "alpha": alpha, "config": config}
    stamp = folder / "shape.json"
    if stamp.exists() and json.loads(stamp.read_text()) == settings:
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    stamp.unlink(missing_ok=True)
    for file, content in {
        "config.json": _hf_config(name, number),
        "generation_config.json": {
            "bos_token_id": config["n_vocab"] - 1,
            "eos_token_id": config["n_vocab"] - 1,
        },
        "tokenizer.json": _tokenizer(config["n_vocab"]),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<end>"),
            "clean_up_tokenization_spaces": False,
        },
    }.items():
        (folder / file).write_text(json.dumps(content, ensure_ascii=False))

    shapes = _core.tensor_shapes(config)
    unset = ((tensor, np.zeros(shape, np.uint16), "bf16") for tensor, shape in shapes.items())
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end, width = 0, {"bf16": 2, "f32": 4}[number]
    for stored, array in _as_stored(name, unset):
        begin, end = end, end + array.size * width
        header[stored] = {"dtype": number.upper(), "shape": array.shape, "data_offsets": [begin, end]}
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for _, array in _as_stored(name, random_tensors(name, alpha)):
            array = np.ascontiguousarray(array)
            if number == "f32":
                array = array.astype(np.uint32) << 16
            file.write(array.data)
    stamp.write_text(json.dumps(settings))
    return folder


def write_gguf(name: str, path: str | Path, gguf_type: str, alpha: float = 1.0) -> Path:
    """Write a shape as a GGUF file, quantized by `specdec.convert`, and return its path.

    Parameters
    ----------
    name : str
        One of `SHAPES`.
    path : path-like
        Path of the file, ending in .gguf; replaced if it exists.
    gguf_type : str
        One of `GGUF_TYPES`.
    alpha : float
        See :func:`random_model`.
    """
    with tempfile.TemporaryDirectory(dir=Path(path).parent) as temporary:
        folder = write_checkpoint(name, temporary, alpha=alpha)
        return import_module("specdec").convert(folder, path, gguf_type, force=True)
