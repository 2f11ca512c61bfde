"""Fixtures that several test files share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tiny_models import gpt2_config, llama_config, mistral_config, write_hf

# Programs that tests start import what tests import.
_HERE = Path(__file__).resolve().parent
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(_HERE / "support"), str(_HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
)

_SHARED = Path(os.environ.get("SPECDEC_SHARED") or _HERE.parents[1] / "shared")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The trained models, texts and tokenizers beside the repository; tests that need them skip without."""
    if not _SHARED.is_dir():
        pytest.skip(
            f"needs the models and texts of {_SHARED}, which is not there (SPECDEC_SHARED names "
            "another place)"
        )
    return _SHARED


Factory = Callable[..., Path]


@pytest.fixture
def make_llama(tmp_path: Path) -> Factory:
    """``make_llama(name="llama", seed=0, dtype="F32", n_shards=1, **config)``: a random Llama folder."""
    return _factory(tmp_path, "llama", llama_config)


@pytest.fixture
def make_mistral(tmp_path: Path) -> Factory:
    """As ``make_llama``, for Mistral."""
    return _factory(tmp_path, "mistral", mistral_config)


@pytest.fixture
def make_gpt2(tmp_path: Path) -> Factory:
    """As ``make_llama``, for GPT-2."""
    return _factory(tmp_path, "gpt2", gpt2_config)


def _factory(tmp_path: Path, family: str, config: Callable[..., dict[str, Any]]) -> Factory:
    def make(
        name: str = family,
        *,
        seed: int = 0,
        dtype: str = "F32",
        n_shards: int = 1,
        tensors: Any = None,
        **changes: Any,
    ) -> Path:
        return write_hf(
            tmp_path / name, config(**changes), tensors, dtype=dtype, n_shards=n_shards, seed=seed
        )

    return make
