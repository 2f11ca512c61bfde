"""Models that keep their matrices in the types of the GGUF file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import specdec
from blocks import random_blocks
from compiled import in_instruction_sets

gguf = pytest.importorskip("gguf")

MIXTURES = [
    ("Q4_K", "Q6_K", "Q5_K"),
    ("Q2_K", "Q3_K", "Q8_0", "IQ4_XS"),
    ("Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "MXFP4"),
]


def write(path: Path, types: tuple[str, ...], d: int = 256, d_ff: int = 512, n_vocab: int = 70) -> Path:
    """A tiny Llama whose matrices cycle through these types; a fused matrix has several."""
    rng, writer, count = np.random.default_rng(0), gguf.GGUFWriter(path, "llama"), 0
    sizes = {
        "context_length": 128, "embedding_length": d, "block_count": 2, "feed_forward_length": d_ff,
        "head_count": 4, "head_count_kv": 2, "layer_norm_rms_eps": 1e-5, "vocab_size": n_vocab,
    }  # fmt: skip
    for name, value in sizes.items():
        getattr(writer, f"add_{name}")(value)

    def add(name: str, n_out: int, n_in: int) -> None:
        nonlocal count
        type_name = types[count % len(types)]
        count += 1
        if type_name == "F32":
            writer.add_tensor(name, (rng.standard_normal((n_out, n_in)) * 0.05).astype(np.float32))
        else:
            raw = random_blocks(rng, type_name.lower(), n_out, n_in)
            writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType[type_name])

    add("token_embd.weight", n_vocab, d)
    for i in range(2):
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{i}.{norm}.weight", np.ones(d, np.float32))
        for name, n_out in (("attn_q", d), ("attn_k", d // 2), ("attn_v", d // 2), ("attn_output", d)):
            add(f"blk.{i}.{name}.weight", n_out, d)
        for name in ("ffn_gate", "ffn_up"):
            add(f"blk.{i}.{name}.weight", d_ff, d)
        add(f"blk.{i}.ffn_down.weight", d, d_ff)
    writer.add_tensor("output_norm.weight", np.ones(d, np.float32))
    add("output.weight", n_vocab, d)
    for step in ("write_header_to_file", "write_kv_data_to_file", "write_tensors_to_file", "close"):
        getattr(writer, step)()
    return path


IDS = list(range(3, 23))


@pytest.mark.parametrize("types", MIXTURES, ids="-".join)
def test_weights_are_those_of_the_file(tmp_path, types):
    """Exactly; the f32 weights come from the package gguf."""
    path = write(tmp_path / "model.gguf", types)
    model, exact = (specdec.load(path, dtype, tokenizer=False) for dtype in (None, "f32"))
    assert model.dtype == "file" and all(type_name in repr(model) for type_name in types)
    for name in model.formats.keys() - {"token_embedding"}:
        np.testing.assert_array_equal(model.core.matrix(name), exact.core.matrix(name), err_msg=name)
    np.testing.assert_array_equal(model.core.token_table(), exact.core.token_table())
    assert model.n_bytes < exact.n_bytes / 3.9
    close = np.corrcoef(model.logits(IDS).ravel(), exact.logits(IDS).ravel())[0, 1]
    assert close > 0.99


IN_EACH_SET = """
import sys
import specdec
model = specdec.load(sys.argv[1], tokenizer=False, prefill="rows")
run = specdec.generate(model, None, list(range(3, 23)), max_new_tokens=20, ignore_eos=True, logits=True)
print(run.tokens, model.logits(list(range(3, 23))).tobytes().hex(), run.logits.tobytes().hex())
"""


def test_every_instruction_set_gives_the_same_bits(tmp_path):
    found = in_instruction_sets(IN_EACH_SET, str(write(tmp_path / "model.gguf", ("Q4_K",))))
    assert len(found) > 1 and len(set(found.values())) == 1


def test_prompts_in_tiles(tmp_path):
    path = write(tmp_path / "model.gguf", MIXTURES[0])
    model, rows = (specdec.load(path, tokenizer=False, prefill=prefill) for prefill in ("tiles", "rows"))
    whole = model.logits(IDS)
    np.testing.assert_array_equal(model.logits(IDS[:9]), whole[:9])
    assert not np.array_equal(whole, rows.logits(IDS))
    assert np.corrcoef(whole.ravel(), rows.logits(IDS).ravel())[0, 1] > 0.99


def test_codes_next_to_floats_in_a_fused_matrix_become_floats(tmp_path):
    """A message reports it."""
    path = write(tmp_path / "model.gguf", ("Q4_K", "Q4_K", "F32"))
    with pytest.warns(UserWarning, match=r"converting matrices to another number format: \d+ of Q4_K as f32"):
        model = specdec.load(path, tokenizer=False)
    exact = specdec.load(path, "f32", tokenizer=False)
    for name in ("layers.0.attn_q.weight", "layers.0.attn_k.weight", "layers.1.mlp_down.weight"):
        np.testing.assert_array_equal(model.core.matrix(name), exact.core.matrix(name))
