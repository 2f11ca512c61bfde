"""Small sound files of every kind that the package reads, and what is done with them.

Written in NumPy and plain Python, so that a damaged file is compared with what the format's own
documentation says, not with what the package writes.
"""

from __future__ import annotations

import functools
import json
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import specdec
from fuzz.family_files import CONFIGS, random_weights
from fuzz.learnt import random_heads, random_look_ahead, random_recurrent
from specdec import drafts
from specdec.analysis.answers import Answer, AnswerFile, Reply
from specdec.analysis.bench_rows import bench_rows
from specdec.draft_counts import Step
from specdec.drafts.learnt.folder import LearntWeights

__all__ = ["KINDS", "Files", "files_of", "safetensors", "use"]

Files = dict[str, bytes]
"""The files of a folder, by name."""

D, FF, LAYERS, HEADS, N_CTX = 16, 24, 2, 2, 32

_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": D, "intermediate_size": FF,
    "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": 1, "hidden_act": "silu",
    "max_position_embeddings": N_CTX, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32",
}  # fmt: skip
_GENERATION = {"bos_token_id": 1, "eos_token_id": [2, 3], "temperature": 0.6, "do_sample": True}
_LETTERS = [*"abcdefghij", "ab", "abc", "ba"]


def _array(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(0.0, 0.3, shape).astype("<f4")


def _llama_tensors(n_vocab: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    found = {"model.embed_tokens.weight": _array(rng, n_vocab, D), "lm_head.weight": _array(rng, n_vocab, D)}
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        for name, n_out, n_in in (
            ("self_attn.q_proj", D, D), ("self_attn.k_proj", D // HEADS, D), ("mlp.up_proj", FF, D),
            ("self_attn.v_proj", D // HEADS, D), ("self_attn.o_proj", D, D), ("mlp.gate_proj", FF, D),
            ("mlp.down_proj", D, FF),
        ):  # fmt: skip
            found[f"{layer}{name}.weight"] = _array(rng, n_out, n_in)
        for name in ("input_layernorm", "post_attention_layernorm"):
            found[f"{layer}{name}.weight"] = _array(rng, D)
    return found | {"model.norm.weight": _array(rng, D)}


def _gpt_tensors(n_vocab: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(2)
    found = {"wte.weight": _array(rng, n_vocab, D), "wpe.weight": _array(rng, N_CTX, D)}
    for i in range(LAYERS):
        for name, shape in (
            ("attn.c_attn", (D, 3 * D)), ("attn.c_proj", (D, D)), ("mlp.c_fc", (D, 4 * D)),
            ("mlp.c_proj", (4 * D, D)), ("ln_1", (D,)), ("ln_2", (D,)),
        ):  # fmt: skip
            found[f"h.{i}.{name}.weight"] = _array(rng, *shape)
            found[f"h.{i}.{name}.bias"] = _array(rng, shape[-1])
    return found | {"ln_f.weight": _array(rng, D), "ln_f.bias": _array(rng, D)}


def safetensors(tensors: dict[str, np.ndarray], metadata: dict[str, str] | None = None) -> bytes:
    """A safetensors file."""
    header: dict[str, Any] = {"__metadata__": metadata or {"format": "pt"}}
    data = b""
    for name, array in tensors.items():
        kind = {"<f4": "F32", "<f2": "F16", "|i1": "I8", "<i4": "I32", "<i8": "I64"}[array.dtype.str]
        header[name] = {
            "dtype": kind, "shape": list(array.shape), "data_offsets": [len(data), len(data) + array.nbytes]
        }  # fmt: skip
        data += array.tobytes()
    text = _json(header)
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def _bpe_tokenizer() -> dict[str, Any]:
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2, "<pad>": 3} | {t: i for i, t in enumerate(["Ġ", *_LETTERS], 4)}
    special = [
        {
            "id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": True,
        }
        for i, text in enumerate(["<unk>", "<s>", "</s>", "<pad>"])
    ]  # fmt: skip
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
            ],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": vocab, "merges": [["a", "b"], ["ab", "c"], ["b", "a"]],
        },
    }  # fmt: skip


def _metaspace_tokenizer() -> dict[str, Any]:
    found = _bpe_tokenizer()
    vocab = {name.replace("Ġ", "▁"): i for name, i in found["model"]["vocab"].items()}
    found["model"] |= {
        "vocab": vocab | {"<0x0A>": len(vocab), "<0xC3>": len(vocab) + 1},
        "unk_token": "<unk>",
    }
    found["model"] |= {"fuse_unk": True, "byte_fallback": True}
    found["pre_tokenizer"] = None
    found["normalizer"] = {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ],
    }
    found["decoder"] = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }  # fmt: skip
    return found


def _field(number: int, kind: int, payload: bytes) -> bytes:
    """A field of a protocol buffer: tag, for kind 2 a length, payload."""
    return bytes([number << 3 | kind]) + (_varint(len(payload)) if kind == 2 else b"") + payload


def _varint(value: int) -> bytes:
    found = b""
    while value > 127:
        found += bytes([value & 127 | 128])
        value >>= 7
    return found + bytes([value])


def _sentencepiece() -> bytes:
    """A BPE model: pieces of (text, score, type), the trainer's and the normaliser's settings."""
    pieces = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3), ("▁", -1.0, 1)]
    pieces += [(text, -2.0 - i, 1) for i, text in enumerate(_LETTERS)]
    found = b""
    for text, score, kind in pieces:
        piece = (
            _field(1, 2, text.encode()) + _field(2, 5, struct.pack("<f", score)) + _field(3, 0, _varint(kind))
        )
        found += _field(1, 2, piece)
    trainer = _field(3, 0, _varint(2)) + _field(4, 0, _varint(len(pieces)))
    normaliser = _field(1, 2, b"identity") + _field(3, 0, b"\1") + _field(4, 0, b"\0") + _field(5, 0, b"\1")
    return found + _field(2, 2, trainer) + _field(3, 2, normaliser)


def _llama() -> Files:
    tokenizer = _bpe_tokenizer()
    n_vocab = len(tokenizer["model"]["vocab"])
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    return {
        "config.json": _json(_CONFIG | {"vocab_size": n_vocab, "rope_scaling": rope}),
        "generation_config.json": _json(_GENERATION),
        "model.safetensors": safetensors(_llama_tensors(n_vocab)),
        "tokenizer.json": _json(tokenizer),
        "tokenizer_config.json": _json(
            {
                "add_bos_token": True,
                "bos_token": "<s>",
                "eos_token": {"content": "</s>"},
                "chat_template": [
                    {"name": "default", "template": "{{ bos_token }}{{ messages[0].content }}"},
                    {"name": "tool_use", "template": "{{ tools | tojson }}"},
                ],
            }
        ),
        "chat_template.jinja": _TEMPLATE,
    }


_TEMPLATE = b"""{{- bos_token }}
{%- set ns = namespace(n=0) %}
{%- for message in messages %}
    {%- if message.role not in ('user', 'assistant') %}
        {{- raise_exception('who is ' + message.role) }}
    {%- endif %}
    {%- set ns.n = ns.n + 1 %}
    {{- message.content | trim + eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}{{ 'ab' }}{% endif %}
"""


def _metaspace() -> Files:
    tokenizer = _metaspace_tokenizer()
    n = len(tokenizer["model"]["vocab"])
    flags = {"lstrip": True, "rstrip": False, "normalized": True, "single_word": True, "special": False}
    added = {str(n): {"content": "<x>"} | flags, str(n + 1): {"content": "<y>", "special": True}}
    settings = {"added_tokens_decoder": added, "eos_token": "<y>", "extra_special_tokens": {"x_token": "<x>"}}
    return {
        "config.json": _json(_CONFIG | {"vocab_size": n + 2}),
        "model.safetensors": safetensors(_llama_tensors(n + 2)),
        "tokenizer.json": _json(tokenizer),
        "tokenizer_config.json": _json(settings),
    }


def _shards() -> Files:
    n_pieces = 4 + len(_LETTERS)
    n_vocab = n_pieces + 2
    config = _CONFIG | {
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "vocab_size": n_vocab,
        "sliding_window": 8, "head_dim": D // HEADS,
    }  # fmt: skip
    tensors = _llama_tensors(n_vocab)
    names, files, weight_map = list(tensors), {}, {}
    for i in range(2):
        file = f"model-{i + 1:05}-of-00002.safetensors"
        files[file] = safetensors({name: tensors[name] for name in names[i::2]})
        weight_map |= dict.fromkeys(names[i::2], file)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    found = {"config.json": _json(config), "model.safetensors.index.json": _json(index), **files}
    named = {"eos_token": {"content": "<y>", "lstrip": False}, "additional_special_tokens": ["<x>"]}
    return found | {
        "tokenizer.model": _sentencepiece(),
        "tokenizer_config.json": _json({"tokenizer_class": "LlamaTokenizer", "legacy": False}),
        "added_tokens.json": _json({"<x>": n_pieces, "<y>": n_pieces + 1}),
        "special_tokens_map.json": _json(named),
    }


def _codes() -> Files:
    """Matrices as codes of 4 and of 8 bits, packed and not, in groups of 32 and 64 inputs."""
    n_vocab, d, rng = 4 + len(_LETTERS), 64, np.random.default_rng(6)
    tensors: dict[str, np.ndarray] = {
        "model.embed_tokens.weight": _array(rng, n_vocab, d), "model.norm.weight": _array(rng, d),
    }  # fmt: skip
    for name in ("input_layernorm", "post_attention_layernorm"):
        tensors[f"model.layers.0.{name}.weight"] = _array(rng, d)
    for i, (name, n_out) in enumerate(
        (
            ("self_attn.q_proj", d), ("self_attn.k_proj", d // HEADS), ("self_attn.v_proj", d // HEADS),
            ("self_attn.o_proj", d), ("mlp.gate_proj", d), ("mlp.up_proj", d), ("mlp.down_proj", d),
        )
    ):  # fmt: skip
        base, bits = f"model.layers.0.{name}.weight", (4, 8)[i % 2]
        if i == 3:
            tensors[base] = rng.integers(-127, 128, (n_out, d)).astype("|i1")
        else:
            words = rng.integers(-(2**31), 2**31, (n_out, d * bits // 32))
            tensors[f"{base}_packed"] = words.astype("<i4")
            tensors[f"{base}_shape"] = np.array([n_out, d], "<i8")
        tensors[f"{base}_scale"] = rng.uniform(0.001, 0.002, (n_out, (1, 2)[i % 3 > 0])).astype("<f2")
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}
    schemes = {
        f"group_{i}": {"targets": ["Linear"], "weights": weights, "format": form}
        for i, form in enumerate(("pack-quantized", "int-quantized"))
    }
    quantised = {
        "quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": schemes,
        "quantization_status": "compressed", "ignore": ["lm_head"], "kv_cache_scheme": None,
    }  # fmt: skip
    config = _CONFIG | {
        "vocab_size": n_vocab, "hidden_size": d, "intermediate_size": d, "num_hidden_layers": 1,
        "tie_word_embeddings": True, "quantization_config": quantised,
    }  # fmt: skip
    return {"config.json": _json(config), "model.safetensors": safetensors(tensors)}


def _gpt2() -> Files:
    vocab = {text: i for i, text in enumerate(["Ġ", *_LETTERS, "<|endoftext|>"])}
    config = {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": len(vocab), "n_embd": D,
        "n_positions": N_CTX, "n_layer": LAYERS, "n_head": HEADS, "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5, "bos_token_id": len(vocab) - 1, "eos_token_id": len(vocab) - 1,
    }  # fmt: skip
    return {
        "config.json": _json(config),
        "generation_config.json": _json({"_from_model_config": True, "bos_token_id": 0, "eos_token_id": 0}),
        "model.safetensors": safetensors(_gpt_tensors(len(vocab))),
        "vocab.json": _json(vocab),
        "merges.txt": b"#version: 0.2\na b\nab c\nb a\n",
    }


def _llama2c() -> Files:
    rng = np.random.default_rng(3)
    tokens = [b"<unk>", b"\n<s>\n", b"\n</s>\n", b" ", *(text.encode() for text in _LETTERS)]
    n_vocab, d_kv, n = len(tokens), D // HEADS, LAYERS
    shapes = [
        (n_vocab, D), (n, D), (n, D, D), (n, d_kv, D), (n, d_kv, D), (n, D, D), (n, D), (n, FF, D),
        (n, D, FF), (n, FF, D), (D,),
    ]  # fmt: skip
    angles = np.outer(np.arange(N_CTX), 10000.0 ** (-np.arange(0, d_kv, 2) / d_kv))
    tables = np.cos(angles).astype("<f4").tobytes() + np.sin(angles).astype("<f4").tobytes()
    header = struct.pack("<7i", D, FF, n, HEADS, 1, n_vocab, N_CTX)
    entries = [struct.pack("<fi", -float(i), len(token)) + token for i, token in enumerate(tokens)]
    return {
        "model.bin": header + b"".join(_array(rng, *shape).tobytes() for shape in shapes) + tables,
        "tok.bin": struct.pack("<i", max(map(len, tokens))) + b"".join(entries),
    }


def _ngram() -> Files:
    """Counts of the text 0 1 2 0 1 0 over 4 tokens, up to 3-grams."""
    arrays = {
        "starts.2": np.array([0, 1, 3, 4, 4], "<i8"), "starts.3": np.array([0, 2, 2, 3, 4], "<i8"),
        "unigrams": np.array([3, 2, 1, 0], "<i4"), "tokens.2": np.array([1, 0, 2, 0], "<i4"),
        "counts.2": np.array([2, 1, 1, 1], "<i4"), "tokens.3": np.array([0, 2, 0, 1], "<i4"),
        "counts.3": np.array([1, 1, 1, 1], "<i4"),
    }  # fmt: skip
    metadata = {"format": "specdec n-gram counts", "version": "1", "smoothing": "interpolated"}
    return {"table.safetensors": safetensors(arrays, metadata)}


def _suffixes() -> Files:
    """Two outputs over 4 tokens, the first behind a prompt of one."""
    arrays = {
        "tokens": np.array([0, 1, 2, 0, 1, 3, 1], "<i4"), "lengths": np.array([4, 3], "<i4"),
        "n_before": np.array([1, 0], "<i4"),
    }  # fmt: skip
    metadata = {
        "format": "specdec suffix memory", "version": "1", "n_vocab": "4", "max_tokens": "50",
        "max_depth": "8", "n_begun": "2", "origin": "0",
    }  # fmt: skip
    return {"memory.safetensors": safetensors(arrays, metadata)}


def _learning() -> Files:
    """A table that has learnt from two corrections; the law has eight places for four tokens."""
    none = [-1] * 4
    arrays = {
        "corrections.before": np.array([[0, 1], [-1, 2]], "<i4"),
        "corrections.depth": np.array([1, 0], "<i4"),
        "corrections.text": np.array([0, 1], "<i4"),
        "corrections.position": np.array([2, 1], "<i4"),
        "corrections.top": np.array([[3, 1, 0, 2, *none], [0, 2, 1, 3, *none]], "<i4"),
        "corrections.log_probs": np.log(np.array([[0.4, 0.3, 0.2, 0.1] + [1e-9] * 4] * 2)).astype("<f4"),
        "corrections.rest": np.zeros(2, "<f4"),
        "corrections.hidden": np.zeros((2, 0), "<f4"),
    }
    metadata = {
        "format": "specdec online draft", "version": "1", "learner": "table", "n_seen": "2", "n_updates": "1",
        "n_begun": "2",
    }  # fmt: skip
    return {"learnt.safetensors": safetensors(arrays, metadata)}


def _recycled() -> Files:
    """The two most promising tokens behind each of 4."""
    metadata = {"format": "specdec token recycling", "version": "1", "k": "2", "n_begun": "0"}
    rows = np.array([1, 2, 0, -1, 3, 1, -1, -1], "<i4")
    return {"matrix.safetensors": safetensors({"rows": rows}, metadata)}


def _skips() -> Files:
    trial = {
        "attn": [1], "mlp": [0, 1], "gamma": 4, "speedup": 1.2, "tokens_per_s": 120.0,
        "plain_tokens_per_s": 100.0, "acceptance_rate": 0.7, "tokens_per_call": 2.5,
    }  # fmt: skip
    settings = {
        "n_layer": 2, "prompts": [[1, 2, 3]], "gammas": [4], "max_new_tokens": 8, "temperature": 0.0,
        "top_k": None, "top_p": None, "min_p": None, "seed": 1,
    }  # fmt: skip
    other = trial | {"attn": [], "speedup": 0.9, "acceptance_rate": None}
    search = {"specdec_skip_search": 1, "target": "tiny", "settings": settings, "trials": [trial, other]}
    return {"skips.json": _json(search | {"finals": [trial]})}


_QUESTIONS = (specdec.Question(1, "c", ("a", "b")), specdec.Question("x", "d", ("c",), "s"))


def _questions() -> Files:
    """Lines of the forms that files of prompts have."""
    lines = [
        {"question_id": 1, "category": "c", "turns": ["a", "b"]},
        {"task_id": "x", "prompt": "a"},
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}]},
        "a",
    ]
    return {"questions.jsonl": b"".join(_json(line) + b"\n" for line in lines)}


def _answers() -> Files:
    """The answers of a benchmark; only what Spec-Bench has no field for is the package's own."""
    step = Step(n_drafted=2, depth=2, n_accepted=1, n_emitted=2, betas=(0.5, 0.25))
    reply = Reply("ab", (1, 2, 3, 4), 3, "length", 0.5, 0.1, 0.25, (step, step))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plain.jsonl"
        file = AnswerFile(path, "plain")
        for question in _QUESTIONS:
            file.add(question, Answer((reply,) * len(question.turns)))
        return {path.name: path.read_bytes()}


def _family(architecture: str) -> Files:
    config = CONFIGS[architecture]
    return {
        "config.json": _json(config | {"architectures": [architecture]}),
        "model.safetensors": safetensors(random_weights(architecture, config)),
    }


def _byt5() -> Files:
    """An encoder-decoder with a tokenizer, and what its texts begin with."""
    name = "T5ForConditionalGeneration"
    config = CONFIGS[name] | {"vocab_size": 262}
    added = {str(259 + i): {"content": f"<extra_id_{i}>", "special": True} for i in range(3)}
    return {
        "config.json": _json(config | {"architectures": [name]}),
        "model.safetensors": safetensors(random_weights(name, config)),
        "tokenizer_config.json": _json({"tokenizer_class": "ByT5Tokenizer", "added_tokens_decoder": added}),
        "generation_config.json": _json(
            {"decoder_start_token_id": 0, "forced_bos_token_id": 5, "eos_token_id": 1, "bad_words_ids": [[0]]}
        ),
    }


def _eagle() -> Files:
    """EAGLE-3 of two hidden states and few tokens, for a target of `_llama`'s sizes."""
    rng = np.random.default_rng(3)
    fields = {name: value for name, value in _CONFIG.items() if name != "architectures"}
    fields |= {"num_hidden_layers": 1, "vocab_size": 19, "head_dim": 8, "draft_vocab_size": 11}
    stored = {"eagle_aux_hidden_state_layer_ids": [0, 1]}
    config = {"architectures": ["LlamaForCausalLMEagle3"], **fields, "eagle_config": stored}
    tensors: dict[str, np.ndarray] = {
        "fc.weight": _array(rng, D, 2 * D), "norm.weight": _array(rng, D),
        "lm_head.weight": _array(rng, 11, D), "d2t": np.array([0, 0, 0, 1, 1, 1, 2, 2, 8, 8, 8], "<i8"),
    }  # fmt: skip
    for name, shape in (
        ("self_attn.q_proj", (D, 2 * D)), ("self_attn.k_proj", (8, 2 * D)), ("self_attn.v_proj", (8, 2 * D)),
        ("self_attn.o_proj", (D, D)), ("mlp.gate_proj", (FF, D)), ("mlp.up_proj", (FF, D)),
        ("mlp.down_proj", (D, FF)), ("hidden_norm", (D,)), ("input_layernorm", (D,)),
        ("post_attention_layernorm", (D,)),
    ):  # fmt: skip
        tensors[f"midlayer.{name}.weight"] = _array(rng, *shape)
    return {"config.json": _json(config), "model.safetensors": safetensors(tensors)}


def _adapter(kind: str) -> Files:
    """A LoRA adapter of `_metaspace`'s model.

    The kind "adapter_merged" also adapts the table, and replaces the head; "adapter_dora" has the lengths of
    rows.
    """
    rng = np.random.default_rng(7)
    n_vocab = len(_metaspace_tokenizer()["model"]["vocab"]) + 2  # added tokens
    tensors: dict[str, np.ndarray] = {}
    for name, rank, n_out, n_in in (
        ("0.self_attn.q_proj", 3, D, D), ("1.self_attn.v_proj", 3, D // HEADS, D),
        ("0.mlp.up_proj", 2, FF, D), ("1.mlp.down_proj", 5, D, FF),
    ):  # fmt: skip
        module = f"base_model.model.model.layers.{name}.lora_"
        tensors[f"{module}A.weight"] = _array(rng, rank, n_in)
        tensors[f"{module}B.weight"] = _array(rng, n_out, rank).astype("<f2")
        if kind == "adapter_dora":
            tensors[f"{module}magnitude_vector"] = _array(rng, n_out)
    if kind == "adapter_merged":
        table = "base_model.model.model.embed_tokens.lora_embedding_"
        tensors |= {f"{table}A": _array(rng, 3, n_vocab), f"{table}B": _array(rng, D, 3)}
        tensors["base_model.model.lm_head.weight"] = _array(rng, n_vocab, D)
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "base", "bias": "none",
        "r": 3, "lora_alpha": 6, "lora_dropout": 0.05, "use_rslora": True, "use_dora": kind == "adapter_dora",
        "rank_pattern": {"mlp.up_proj": 2, r".*\.1\.mlp\.down_proj": 5}, "alpha_pattern": {"q_proj": 4.5},
        "target_modules": ["q_proj", "v_proj", "up_proj", "down_proj"], "layers_to_transform": None,
        "modules_to_save": ["lm_head"] if kind == "adapter_merged" else None, "init_lora_weights": True,
        "inference_mode": True, "fan_in_fan_out": False, "loftq_config": {},
    }  # fmt: skip
    return {"adapter_config.json": _json(config), "adapter_model.safetensors": safetensors(tensors)}


def _use_adapter(kind: str, folder: Path) -> None:
    """Merge it into a sound base, and where its kind is for that lay it beside one."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as base:
        for name, data in files_of("metaspace").items():
            (Path(base) / name).write_bytes(data)
        _decode(specdec.load(base, adapter=folder, n_threads=1), None)
        if kind != "adapter":
            return
        model = specdec.load(base, n_threads=1)
        _decode(model, drafts.ContextCopy(), adapter=model.with_adapter(folder, n_threads=1))


def _learnt(method: str) -> Files:
    """A learnt draft for the target that `use` takes; only what it says of itself is the package's own."""
    weights = _LEARNT[method](_target(4))
    with tempfile.TemporaryDirectory() as folder:
        weights.save(folder, "f32")
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


_LEARNT: dict[str, Callable[[specdec.Model], LearntWeights]] = {
    "look_ahead_embeddings": lambda target: random_look_ahead(target, 2, 3),
    "recurrent": lambda target: random_recurrent(target, (2, 3, 1), [0, 2, 3], 1),
    "heads": lambda target: random_heads(
        target,
        {"n_heads": 2, "n_blocks": 1, "see_guesses": True, "shared_output": False},
        [0, 3, 2],
        2,
    ),
}


def _converted(file: str, to: str | None, **sizes: int) -> Files:
    """One file that the package writes of a folder of random weights."""
    n_vocab = 4 + len(_LETTERS) + 1
    config = _CONFIG | {"vocab_size": n_vocab, "num_hidden_layers": 1} | sizes
    d, ff, rng = config["hidden_size"], config["intermediate_size"], np.random.default_rng(5)
    tensors = {
        "model.embed_tokens.weight": _array(rng, n_vocab, d), "lm_head.weight": _array(rng, n_vocab, d),
        "model.norm.weight": _array(rng, d),
    }  # fmt: skip
    for name, *shape in (
        ("input_layernorm", d), ("post_attention_layernorm", d), ("self_attn.q_proj", d, d),
        ("self_attn.k_proj", d // HEADS, d), ("self_attn.v_proj", d // HEADS, d), ("self_attn.o_proj", d, d),
        ("mlp.gate_proj", ff, d), ("mlp.up_proj", ff, d), ("mlp.down_proj", d, ff),
    ):  # fmt: skip
        tensors[f"model.layers.0.{name}.weight"] = _array(rng, *shape)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "folder"
        folder.mkdir()
        for name, data in (
            ("config.json", _json(config)), ("model.safetensors", safetensors(tensors)),
            ("tokenizer.json", _json(_bpe_tokenizer())),
        ):  # fmt: skip
            (folder / name).write_bytes(data)
        return {file: specdec.convert(folder, Path(made) / file, to, progress=False).read_bytes()}


_FILES = {"gguf": "model.gguf", "gguf_mixture": "model.gguf", "packed": "model.specdec"}

_WRITERS: dict[str, Callable[[], Files]] = (
    {
        "gguf": lambda: _converted("model.gguf", "Q8_0", hidden_size=32, intermediate_size=32),
        "gguf_mixture": lambda: _converted("model.gguf", "Q4_K_M", hidden_size=256, intermediate_size=256),
        "packed": lambda: _converted("model.specdec", "int8", hidden_size=32, intermediate_size=32),
        "llama": _llama,
        "metaspace": _metaspace,
        "shards": _shards,
        "codes": _codes,
        "gpt2": _gpt2,
        "llama2c": _llama2c,
        "ngram": _ngram,
        "suffixes": _suffixes,
        "recycled": _recycled,
        "learning": _learning,
        "skips": _skips,
        "questions": _questions,
        "answers": _answers,
        "byt5": _byt5,
        "eagle": _eagle,
    }
    | {kind: functools.partial(_adapter, kind) for kind in ("adapter", "adapter_merged", "adapter_dora")}
    | {method: functools.partial(_learnt, method) for method in _LEARNT}
    | {architecture: functools.partial(_family, architecture) for architecture in CONFIGS}
)
KINDS = tuple(_WRITERS)


@functools.cache
def files_of(kind: str) -> Files:
    """The sound files of a kind."""
    return _WRITERS[kind]()


def use(kind: str, folder: Path) -> None:
    """Read what lies in a folder, and decode a few tokens with it."""
    if kind == "ngram":
        for mapped in (True, False):
            _decode(_target(4), drafts.Ngram.load(folder / "table.safetensors", mmap=mapped))
        return
    if kind in _LEARNT:
        target = _target(4)
        _decode(target, drafts.load(folder, target))
        return
    if kind == "suffixes":
        _decode(_target(4), drafts.SuffixMemory.load(folder / "memory.safetensors"))
        return
    if kind == "learning":
        table = drafts.Ngram([0, 1, 2, 0, 1], 4, 3)
        _decode(_target(4), drafts.Online.load(folder / "learnt.safetensors", table, interval=None))
        return
    if kind == "recycled":
        tree = drafts.StaticTree((1, 1))
        _decode(_target(4), drafts.TokenRecycling.load(folder / "matrix.safetensors", tree=tree))
        return
    if kind == "questions":
        specdec.read_questions(folder / "questions.jsonl")
        return
    if kind == "answers":
        file = AnswerFile(folder / "plain.jsonl", "plain")
        found = [file.find(question) for question in _QUESTIONS]
        there = [pair for pair in zip(_QUESTIONS, found, strict=True) if pair[1] is not None]
        if there:
            questions, answers = zip(*there, strict=True)
            bench_rows(questions, [answers], [answers], sampled=True)
        return
    if kind == "skips":
        search = specdec.SkipSearch.load(folder / "skips.json")
        str(search), search.table(), search.to_dict()
        _decode(_target(4), search.draft)
        return
    if kind == "eagle":
        target = _target(19, d_model=D)
        draft = drafts.Eagle(folder, target, tree=drafts.DynamicTree(4), n_threads=1)
        repr(draft)
        _decode(target, draft)
        return
    if kind.startswith("adapter"):
        _use_adapter(kind, folder)
        return
    if kind == "llama2c":
        model = specdec.load(folder / "model.bin", tokenizer=folder / "tok.bin", n_threads=1)
        _convert(model, folder)
    else:
        model = specdec.load(folder / _FILES.get(kind, ""), n_threads=1)
    repr(model)
    if model.config.encoder is not None:
        _read(model)
        return
    _decode(model, None)
    if model.tokenizer is not None:
        model.tokenizer.decode(model.tokenizer.encode("ab cab\n<x>é <y>"))
        specdec.generate(model, None, "ab a", max_new_tokens=3, n_threads=1)
        if model.chat_template is not None:
            messages = [{"role": "user", "content": "ab a"}]
            specdec.generate(model, None, messages=messages, max_new_tokens=3, n_threads=1)


def _target(n_vocab: int, **changes: int) -> specdec.Model:
    from fuzz.models import make_model

    return make_model({"n_vocab": n_vocab, **changes})


def _convert(model: specdec.Model, folder: Path) -> None:
    """Write a llama2.c file as a GGUF file, which is read as the same model."""
    made = specdec.convert(
        model.path, folder / "made.gguf", "F32", tokenizer=folder / "tok.bin", progress=False
    )
    again, ids = specdec.load(made, n_threads=1), [1, 0, 1]
    assert np.array_equal(again.logits(ids, n_threads=1), model.logits(ids, n_threads=1))


def _decode(target: specdec.Model, draft: Any, **options: Any) -> None:
    prompt = [token % target.config["n_vocab"] for token in (0, 1)]
    str(specdec.generate(target, draft, prompt, max_new_tokens=4, n_threads=1, **options))


def _read(model: specdec.Model) -> None:
    """A few tokens after a source, by a model with an encoder."""
    encoder = model.config.encoder
    assert encoder is not None
    source = [token % encoder.n_vocab for token in (0, 1, 2)][: encoder.n_ctx]
    begun = None if model.decoder_start else [0]
    options: dict[str, Any] = {"max_new_tokens": 4, "n_threads": 1}
    str(specdec.generate(model, None, source, decoder_prompt=begun, **options))
    if model.tokenizer is not None:
        model.tokenizer.decode(model.tokenizer.encode("ab cab\n<x>é <y>"))
        str(specdec.generate(model, None, "ab c", decoder_prompt="a", **options))
