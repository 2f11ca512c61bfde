"""Encoder-decoders of random weights, in the shapes of models that people have, as transformers saves them.

Every weight is a number of bf16, stored as f32: all number formats of all engines start from the same model.

The T5 shapes have heads of their own, made as in `shapes.py`: whatever source and layers add, the most
probable token after t is the successor of t, so that a draft agrees with its target at temperature 0 after a
given share of the tokens. The embedding of BART and Marian is their head too, so no such pair can be made of
them; what they write depends on the whole source and text.

No token ends a text: the end token is no one's successor, or its logit is lowered by 100.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.shapes import round_to_bf16, successors


def _t5(d_model: int, d_ff: int, n_layer: int, n_head: int) -> dict[str, Any]:
    """The layout of T5 1.1 and Flan-T5."""
    return {
        "model_type": "t5", "vocab_size": 32128, "d_model": d_model, "d_kv": 64, "d_ff": d_ff,
        "num_layers": n_layer, "num_decoder_layers": n_layer, "num_heads": n_head,
        "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False,
        "pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": 32127,
    }  # fmt: skip


def _bart(kind: str, d_model: int, d_ff: int, n_layer: int, n_head: int, **more: Any) -> dict[str, Any]:
    """The layout of BART and Marian."""
    return {
        "model_type": kind, "d_model": d_model, "tie_word_embeddings": True,
        **{f"{side}_layers": n_layer for side in ("encoder", "decoder")},
        **{f"{side}_attention_heads": n_head for side in ("encoder", "decoder")},
        **{f"{side}_ffn_dim": d_ff for side in ("encoder", "decoder")},
        "forced_eos_token_id": None, **more,
    }  # fmt: skip


#: Configurations of transformers. "t5-2-layers" drafts for the others.
CONFIGS: dict[str, dict[str, Any]] = {
    "t5-v1.1-small": _t5(512, 1024, n_layer=8, n_head=6),
    "t5-v1.1-base": _t5(768, 2048, n_layer=12, n_head=12),
    "t5-2-layers": _t5(128, 256, n_layer=2, n_head=2),
    "bart-base": _bart(
        "bart", 768, 3072, n_layer=6, n_head=12, vocab_size=50265, max_position_embeddings=1024,
        activation_function="gelu", bos_token_id=0, pad_token_id=1, eos_token_id=2, decoder_start_token_id=2,
        normalize_before=False, normalize_embedding=True,
    ),
    "opus-mt": _bart(
        "marian", 512, 2048, n_layer=6, n_head=8, vocab_size=58101, max_position_embeddings=512,
        activation_function="swish", scale_embedding=True, bos_token_id=0, eos_token_id=0, pad_token_id=58100,
        decoder_start_token_id=58100, share_encoder_decoder_embeddings=True,
    ),
}  # fmt: skip
#: Those with heads of their own.
CHAINED = tuple(name for name in CONFIGS if name.startswith("t5"))
#: Those to time.
TIMED = ("t5-v1.1-small", "t5-v1.1-base", "bart-base", "opus-mt")


def n_vocab(name: str) -> int:
    """The size of its vocabulary."""
    return CONFIGS[name]["vocab_size"]


def vocabulary(name: str) -> list[str]:
    """A token for each id; Marian's converters know the padding, the last id, by its name."""
    config = CONFIGS[name]
    special = {config["eos_token_id"]: "</s>", config["pad_token_id"]: "<pad>"}
    return [special.get(i, f"t{i}") for i in range(n_vocab(name))]


def chain(name: str, n: int) -> list[int]:
    """The n most probable tokens of a text of a model with a head of its own."""
    after, token = successors(n_vocab(name)), CONFIGS[name]["decoder_start_token_id"]
    return [token := int(after[token]) for _ in range(n)]


def write_encoder_decoder(name: str, folder: Path, alpha: float = 1.0) -> Path:
    """Write a model as a Hugging Face folder, with a tokenizer of whole words; return the folder.

    Parameters
    ----------
    name : str
        One of `CONFIGS`.
    folder : Path
        Made if need be. A folder that already holds this very model is left as it is.
    alpha : float
        After which share of the tokens it agrees with models of alpha 1, at temperature 0.
    """
    said = {"version": 4, "name": name, "alpha": alpha, "config": CONFIGS[name]}
    stamp = folder / "shape.json"
    if stamp.exists() and json.loads(stamp.read_text()) == said:
        return folder
    import torch
    import transformers

    if alpha != 1 and name not in CHAINED:
        raise ValueError(f"{name} has no head of its own: its text is not known beforehand")
    config = transformers.AutoConfig.for_model(**CONFIGS[name])
    model = transformers.AutoModelForSeq2SeqLM.from_config(config)
    if name in CHAINED:  # transformers ties all heads of T5 that files have no tensor for
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    with torch.no_grad():
        for index, (tensor, parameter) in enumerate(model.named_parameters()):
            if parameter.requires_grad:  # others are sines
                values = _values(name, tensor, tuple(parameter.shape), 1 + index, alpha)
                wide = round_to_bf16(values).astype(np.uint32) << 16
                parameter.copy_(torch.from_numpy(wide.view(np.float32)))
        if name not in CHAINED:
            for token in {config.eos_token_id, config.pad_token_id}:
                model.final_logits_bias[0, token] = -100
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer(name)))
    words = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "pad_token": "<pad>"}
    (folder / "tokenizer_config.json").write_text(
        json.dumps(words | {"bos_token": "</s>", "unk_token": "t3"})
    )
    stamp.write_text(json.dumps(said))
    return folder


def _values(name: str, tensor: str, shape: tuple[int, ...], stream: int, alpha: float) -> NDArray[np.float32]:
    """Normal. Chained: as `shapes.random_tensors`. Others: deviation n_in^-1/2, and small biases."""
    chained = name in CHAINED
    table = tensor in ("shared.weight", "lm_head.weight", "model.shared.weight")
    values = np.random.default_rng([1, 0 if table else stream]).standard_normal(shape, dtype=np.float32)
    if chained and tensor == "lm_head.weight":
        values[successors(len(values), alpha)] = values.copy()
    if not (chained and tensor == "shared.weight"):
        values *= np.float32(0.02 if chained or len(shape) == 1 else shape[-1] ** -0.5)
    if len(shape) == 1 and "norm" in tensor and tensor.endswith("weight"):
        values += 1
    if CONFIGS[name]["model_type"] == "marian" and table:
        values[CONFIGS[name]["pad_token_id"]] = 0  # texts begin with zeros
    return values


def _tokenizer(name: str) -> dict[str, Any]:
    tokens = vocabulary(name)
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": token, "special": True}
            | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            for i, token in enumerate(tokens)
            if not token.startswith("t")
        ],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": {t: i for i, t in enumerate(tokens)}, "unk_token": "t3"},
    }
