"""The torch networks of learned drafts: how they begin, and what no folder shows.

`test_training_on_target.py` compares them with what the core computes from their folders.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.oracle

D, V = 16, 40


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """torch takes a second to import."""
    global torch, heads_network, LookAheadNetwork, TargetEnds
    import torch

    from specdec.drafts.learned.heads import network as heads_network
    from specdec.drafts.learned.look_ahead.trainer import LookAheadNetwork
    from specdec.drafts.learned.networks import TargetEnds


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(11)


def ends() -> Any:
    return TargetEnds(torch.randn(V, D), torch.randn(V, D), torch.randn(V), 0.5, 4.0)


def test_heads_begin_as_the_head_of_the_target() -> None:
    own, hidden = ends(), torch.randn(5, D)
    heads = heads_network.HeadsNetwork(heads_network.HeadsShape(D, V, 2), own)
    found = heads(hidden, k=2).numpy(force=True)
    np.testing.assert_array_equal(found, own.logits(hidden).numpy())
    scores = hidden.numpy().astype(np.float64) @ own.head.numpy().T + own.bias.numpy()
    np.testing.assert_allclose(found, 4.0 * np.tanh(scores * 0.5 / 4.0), atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "gpt2", "granite"])
def test_look_ahead_embeddings_are_rows_after_a_point(family: str) -> None:
    """Many points of a text at once, against one text for each point that ends with the embeddings."""
    import transformers

    if family == "gpt2":
        config: Any = transformers.GPT2Config(vocab_size=V, n_embd=D, n_layer=2, n_head=2, n_positions=64)
        target: Any = transformers.GPT2LMHeadModel(config)
    else:
        sizes = {
            "vocab_size": V, "hidden_size": D, "intermediate_size": 24, "num_hidden_layers": 2,
            "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64,
        }  # fmt: skip
        if family == "granite":
            config = transformers.GraniteConfig(**sizes, embedding_multiplier=3.0)
            target = transformers.GraniteForCausalLM(config)
        else:
            target = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
    network = LookAheadNetwork(target, 3)
    assert network.scale() == pytest.approx(3.0 if family == "granite" else 1.0, rel=1e-5)
    ids, points = torch.randint(0, V, (2, 20)), torch.tensor([4, 11, 19])
    ours, plain = network(ids, points)
    assert [name for name, _ in network.named_parameters()] == ["embeddings"]
    with torch.no_grad():
        np.testing.assert_allclose(plain.numpy(), target(input_ids=ids).logits.numpy(), atol=1e-5)
        for i, point in enumerate(points.tolist()):
            embedded = target.get_input_embeddings()(ids[:, : point + 1])
            rows = torch.cat((embedded, network.embeddings.expand(2, 3, D)), dim=1)
            wanted = target(inputs_embeds=rows).logits[:, point + 1 :]
            np.testing.assert_allclose(ours[:, i].detach().numpy(), wanted.numpy(), atol=1e-5)
    ours.logsumexp(-1).sum().backward()
    assert network.embeddings.grad is not None and target.get_input_embeddings().weight.grad is None


def test_the_ends_of_the_target_move_with_a_network() -> None:
    heads = heads_network.HeadsNetwork(
        heads_network.HeadsShape(D, V, 2, 1, True, False, 3), ends(), torch.tensor([1, 5, 6])
    )
    assert all("ends" not in name and "draft_ids" not in name for name in heads.state_dict())
    moved = heads.to("meta")
    tensors = (moved.ends.table, moved.ends.head, moved.ends.bias, moved.draft_ids)
    assert all(tensor.device.type == "meta" for tensor in tensors)
