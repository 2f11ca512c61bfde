"""Matrix rows that the core reads from files while packing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from blocks import TYPES, f16_bytes, random_blocks
from compiled import Model, prompt_logits
from specdec.checkpoints import open_checkpoint
from trained import DRAFT
from worlds.canonical import LLAMA, random_tensors
from worlds.folders import llama_config, llama_tensors, write_hf
from worlds.gguf_files import CASES


def same_models(ours: Model, theirs: Model) -> None:
    """Compare every matrix, and what the tables compute."""
    for name, tensor in random_tensors(theirs.config).items():
        if tensor.ndim == 2 and not name.endswith(("_embedding", "relative_bias")):
            assert np.array_equal(ours.matrix(name), theirs.matrix(name)), name
    assert np.array_equal(ours.token_table(), theirs.token_table())
    source = None if theirs.config.get("encoder") is None else [3, 9, 4]
    one, two = (prompt_logits(core, [5, 1, 8], source=source) for core in (ours, theirs))
    assert np.array_equal(one, two)


@pytest.mark.parametrize("name", ["llama", "gptneox", "gpt2", "mixtral", "gpt-oss", "phi3", "t5"])
@pytest.mark.parametrize("container", ["folder", "gguf"])
def test_rows_that_the_core_reads_are_those_that_python_reads(
    tmp_path: Path, name: str, container: str
) -> None:
    """Fused, transposed, permuted and stacked rows, on several threads, in every format."""
    path = write_hf(tmp_path / "folder", *CASES[name].folder())
    if container == "gguf":
        path = specdec.convert(path, tmp_path / "model.gguf", "F32")
    opened = open_checkpoint(path, tokenizer=False)
    unread = [rows for _, rows, _ in opened.unread_tensors() if not isinstance(rows, np.ndarray)]
    assert unread or name == "gpt2"
    for dtype, n_threads in (("f32", 1), ("int8", 3), ("bf16", 2)):
        both = opened.unread_tensors(), opened.tensors()
        same_models(*(Model(opened.config, one, dtype=dtype, n_threads=n_threads) for one in both))


@pytest.mark.parametrize("type", ["Q8_0", "Q4_0", "Q4_K_M"])
def test_blocks_that_the_core_reads(tmp_path: Path, type: str) -> None:
    opened = open_checkpoint(specdec.convert(DRAFT, tmp_path / "model.gguf", type), tokenizer=False)
    formats, blocks = opened.stored.formats, opened.stored.blocks
    both = opened.unread_tensors(blocks), opened.tensors(blocks)
    same_models(
        *(Model(opened.config, one, dtype=opened.dtype, formats=formats, n_threads=2) for one in both)
    )


def test_a_file_that_shrinks_before_the_core_reads(tmp_path: Path) -> None:
    config = llama_config()
    path = write_hf(tmp_path / "folder", config, llama_tensors(config))
    checkpoint = open_checkpoint(path)
    weights = path / "model.safetensors"
    os.truncate(weights, weights.stat().st_size // 2)
    with pytest.raises(ValueError, match=r"tensor .*: the file ends before its data, expected the size"):
        Model(checkpoint.config, (one for one in checkpoint.unread_tensors()))


@pytest.mark.parametrize("stored", ["f32", "q5_0"])
@pytest.mark.parametrize("name", ["token_embedding", "head"])
def test_a_file_that_changes_while_the_core_reads(name: str, stored: str) -> None:
    """A non-finite number in the file is finite when the core reads it again for the message."""
    if not os.path.exists("/dev/urandom"):
        pytest.skip("needs a file that has other bytes whenever it is read")
    config = {**LLAMA, "d_model": 64}
    changed, shapes = 0, random_tensors(config)
    with open("/dev/urandom", "rb") as file:
        for _ in range(50):
            tensors: list[Any] = []
            for other, array in shapes.items():
                n, m = array.shape[0], array.shape[-1]
                rows = (file, 0, n, m * 4 if stored == "f32" else m // 32 * 22, None)
                tensors.append((other, rows, stored) if other == name else (other, 0 * array, "f32"))
            try:
                Model(config, tensors, formats={name: stored} if stored != "f32" else None)
            except ValueError as error:
                changed += f"tensor {name}: its numbers changed while they were read" in str(error)
    assert changed


@pytest.mark.parametrize("type_name", TYPES)
@pytest.mark.parametrize("storage", ["array", "file"])
def test_the_first_bad_block_of_an_embedding_is_named(tmp_path: Path, storage: str, type_name: str) -> None:
    """In any row and block, also of an incomplete last group of rows, whatever bad rows follow."""
    rng = np.random.default_rng(6)
    size, n_bytes = TYPES[type_name]
    n_rows, n_in = 75, 512
    config = {**LLAMA, "d_model": n_in, "n_vocab": n_rows}
    stored = {"q8_0": "int8", "q4_0": "int4"}.get(type_name, type_name)
    for bad in (0, 31, 32, 63, 64, 70, 74):
        raw = random_blocks(rng, type_name, n_rows, n_in)
        first = int(rng.integers(n_in // size))
        for row in {bad, n_rows - 1}:
            block = raw[row, n_bytes * first : n_bytes * (first + 1)]
            if type_name == "mxfp4":
                block[0], block[1:] = 0xFF, 0x77
            else:
                block[:] = np.where(f16_bytes(type_name), np.resize([0, 0x7C], n_bytes), 0x7F)
        path = tmp_path / str(bad)
        path.write_bytes(raw.tobytes())
        message = rf"token_embedding: element \[{bad}, {size * first}\] is .*, expected a finite number"
        with path.open("rb") as file, pytest.raises(ValueError, match=message):
            given = raw if storage == "array" else (file, 0, n_rows, raw.shape[1], None)
            Model(config, [("token_embedding", given, type_name)], formats={"token_embedding": stored})


def test_rows_of_files_that_the_core_refuses(tmp_path: Path) -> None:
    shape = LLAMA["n_vocab"], LLAMA["d_model"]
    file = (tmp_path / "rows").open("wb+")
    file.truncate(4 * shape[0] * shape[1])
    order = np.arange(shape[0])

    def given(*rows: Any, stored: str = "f32") -> None:
        Model(LLAMA, [("token_embedding", rows, stored)])

    good = (file, 0, shape[0], 4 * shape[1], None)
    for rows, error, message in (
        (good, ValueError, "missing, expected shape"),  # of the next tensor
        ((*good[:4], order), ValueError, "missing, expected shape"),
        ((file, 0, shape[0] + 1, 4 * shape[1], None), ValueError, r"token_embedding: shape is"),
        ((file, 1, *good[2:]), ValueError, "token_embedding: the file ends before its data"),
        ((*good[:4], order + 1), ValueError, "token_embedding: the file ends before its data"),
        ((file, -1, *good[2:]), ValueError, "rows of a file are at -1, "),
        ((*good[:3], 4 * shape[1] + 1, None), ValueError, "rows of a file are at 0, "),
        ((*good[:3], 0, None), ValueError, "rows of a file are at 0, "),
        ((file, 0, 2**31, *good[3:]), ValueError, "rows of a file are at 0, "),
        ((*good[:4], order[1:]), ValueError, "an int64 for each row where there is an order"),
        ((*good[:4], order - 1), ValueError, "an int64 for each row where there is an order"),
        ((*good[:4], order.astype(np.int32)), ValueError, "an int64 for each row where there is an order"),
        ((*good[:4], order[::-1]), (ValueError, BufferError), "contiguous"),
        (good[:4], TypeError, "expected \\(file, start, n_rows, row_bytes, order\\)"),
        ((object(), *good[1:]), TypeError, "fileno"),
        ((os.open(tmp_path, os.O_RDONLY), *good[1:]), ValueError, "its file cannot be read: Is a directory"),
    ):
        with pytest.raises(error, match=message):
            given(*rows)
    file.close()
    with pytest.raises(ValueError, match="closed file"):
        given(*good)
