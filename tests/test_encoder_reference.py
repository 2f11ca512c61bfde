"""The specification of encoder-decoders: trees, skipped layers, sources.

``test_encoder_decoder_families`` holds it to transformers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from specdec import reference
from worlds.canonical import ENCODER_DECODERS, random_tensors


@pytest.fixture(params=ENCODER_DECODERS)
def case(request: pytest.FixtureRequest) -> tuple[dict[str, Any], dict[str, Any], list[int], list[int]]:
    config = ENCODER_DECODERS[request.param]
    rng = np.random.default_rng(2)
    source = rng.integers(min(config["n_vocab"], config["encoder"]["n_vocab"]), size=9).tolist()
    return config, random_tensors(config), source, rng.integers(config["n_vocab"], size=7).tolist()


def test_each_node_of_a_tree_attends_to_the_whole_source(case: Any) -> None:
    config, tensors, source, ids = case
    parents = [-1, 0, 0, 1, 2]
    found = reference.tree_logits(config, tensors, ids, [1, 2, 3, 4, 5], parents, source=source)
    for node, path in enumerate([[1], [1, 2], [1, 3], [1, 2, 4], [1, 3, 5]]):
        expected = reference.logits(config, tensors, ids + path, source=source)[-1]
        np.testing.assert_allclose(found[node], expected, rtol=1e-9, atol=1e-11)


def test_a_layer_whose_attention_is_skipped_does_not_see_the_source(case: Any) -> None:
    config, tensors, source, ids = case
    every = range(config["n_layer"])
    one, other = (
        reference.tree_logits(config, tensors, [], ids, [-1, 0, 1, 2, 3, 4, 5], source=text, skip_attn=every)
        for text in (source, source[:4])
    )
    assert np.array_equal(one, other)


def test_a_source_is_given_to_models_with_an_encoder_and_no_others(case: Any) -> None:
    config, tensors, source, ids = case
    with pytest.raises(ValueError, match="has a source"):
        reference.logits(config, tensors, ids)
    with pytest.raises(ValueError, match="encoder"):
        reference.logits({n: v for n, v in config.items() if n != "encoder"}, tensors, ids, source=source)
