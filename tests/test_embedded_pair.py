"""The bundled pair: its codes give the weights of the bf16 checkpoint in every number format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec

TEXT = "It was a dark and stormy night, and the rain fell in torrents on the roof of the old house."
FOLDER = Path(specdec.__file__).parent / "embedded"


@pytest.fixture(scope="module")
def in_bf16(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target as a bf16 folder."""
    folder = tmp_path_factory.mktemp("target") / "bf16"
    with pytest.warns(UserWarning, match="writing dequantized weights, BF16"):
        return specdec.convert(specdec.embedded_pair()[0].path, folder, "BF16")


@pytest.mark.parametrize("dtype", ["f32", "bf16", "int8", "int4"])
def test_every_format_holds_the_weights_of_the_bf16_checkpoint(in_bf16: Path, dtype: str) -> None:
    target, _ = specdec.embedded_pair(dtype)
    numbers = specdec.load(in_bf16, dtype)
    assert target.dtype == numbers.dtype == dtype
    assert np.array_equal(target.logits(TEXT), numbers.logits(TEXT))


def test_the_formats_agree_on_the_text() -> None:
    """Log-probability of a page of Austen, which neither model saw in training."""
    page = (FOLDER / "novel.txt").read_text("utf-8")
    targets = [specdec.embedded_pair(dtype)[0] for dtype in ("bf16", "int8", "int4")]
    nats = [np.log(target.score([page], rolling=True)[0].perplexity) for target in targets]
    assert max(nats) < 3.5 and max(nats) - min(nats) < 0.02


def test_the_pair_is_loaded_once_in_a_format() -> None:
    target, draft = specdec.embedded_pair()
    assert (target.dtype, draft.dtype) == ("int8", "int8")
    assert specdec.embedded_pair("int8", "int8") == (target, draft)
    assert (target.n_parameters, draft.n_parameters) == (92_133_888, 3_939_328)


# "rows" and "tiles": what "auto" means, here or elsewhere
@pytest.mark.parametrize(("prefill", "cache_dtype"), [("rows", None), ("tiles", None), ("rows", "int8")])
def test_speculative_text_is_plain_text(prefill: Any, cache_dtype: Any) -> None:
    target, draft = specdec.embedded_pair(prefill=prefill, cache_dtype=cache_dtype)
    assert (target.cache_dtype, draft.cache_dtype) == (cache_dtype or "bf16", "bf16")
    assert (f", cache in {cache_dtype}," in repr(target)) == (cache_dtype is not None)
    plain = specdec.generate(target, None, TEXT, max_new_tokens=60)
    out = specdec.generate(target, draft, [TEXT[:40], TEXT], max_new_tokens=60, n_threads=2)[1]
    assert out.tokens == plain.tokens and out.trace.tokens_per_call > 1.5


def test_files_are_small_enough_to_be_kept_in_git() -> None:
    assert max(file.stat().st_size for file in FOLDER.rglob("*") if file.is_file()) <= 30e6
