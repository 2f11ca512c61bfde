"""The torch networks of learned drafts, against the same forwards in NumPy or without shortcuts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.oracle

D, V, N_HEAD, N_KV, D_HEAD, D_FF = 16, 40, 4, 2, 8, 24


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """torch takes a second to import."""
    global torch, eagle, heads_network, LookAheadNetwork, TargetEnds
    import torch

    from specdec.drafts.learned.eagle import network as eagle
    from specdec.drafts.learned.heads import network as heads_network
    from specdec.drafts.learned.look_ahead.trainer import LookAheadNetwork
    from specdec.drafts.learned.networks import TargetEnds


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(11)


def ends() -> Any:
    return TargetEnds(torch.randn(V, D), torch.randn(V, D), torch.randn(V), 0.5, 4.0)


def randomise(module: Any) -> dict[str, np.ndarray]:
    """Weights that hide nothing, and the tensors by name in f64."""
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(torch.randn_like(weight) * (0.3 if weight.dim() == 2 else 0.5) + (weight.dim() == 1))
    return {name: tensor.numpy().astype(np.float64) for name, tensor in module.state_dict().items()}


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def rms(x: np.ndarray, weight: np.ndarray, eps: float = 1e-5) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def rotated(x: np.ndarray, position: int, theta: float) -> np.ndarray:
    """[n_head, d_head] of one row."""
    half = x.shape[-1] // 2
    angle = position * theta ** (-np.arange(half) / half)
    first, second = x[:, :half], x[:, half:]
    return np.concatenate(
        (first * np.cos(angle) - second * np.sin(angle), second * np.cos(angle) + first * np.sin(angle)), -1
    )


class Rows:
    """The attention of a layer, row by row, with a cache that can be copied."""

    def __init__(self, weights: dict[str, np.ndarray], prefix: str, theta: float):
        self.w = {name: weights[f"{prefix}self_attn.{name}.weight"] for name in
                  ("q_proj", "k_proj", "v_proj", "o_proj")}  # fmt: skip
        self.theta, self.keys, self.values = theta, [], []

    def copy(self) -> Rows:
        other = object.__new__(Rows)
        other.w, other.theta, other.keys, other.values = self.w, self.theta, [*self.keys], [*self.values]
        return other

    def __call__(self, x: np.ndarray) -> np.ndarray:
        position = len(self.keys)
        q = rotated((self.w["q_proj"] @ x).reshape(N_HEAD, D_HEAD), position, self.theta)
        self.keys.append(rotated((self.w["k_proj"] @ x).reshape(N_KV, D_HEAD), position, self.theta))
        self.values.append((self.w["v_proj"] @ x).reshape(N_KV, D_HEAD))
        out = []
        for head in range(N_HEAD):
            group = head // (N_HEAD // N_KV)
            scores = np.array([q[head] @ key[group] for key in self.keys]) / np.sqrt(D_HEAD)
            weights = np.exp(scores - scores.max())
            weights /= weights.sum()
            out.append(sum(w * value[group] for w, value in zip(weights, self.values, strict=True)))
        return self.w["o_proj"] @ np.concatenate(out)


def feed_forward(weights: dict[str, np.ndarray], prefix: str, x: np.ndarray) -> np.ndarray:
    gate, up, down = (weights[f"{prefix}mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
    return down @ (silu(gate @ x) * (up @ x))


def layer_shape() -> Any:
    return eagle.LayerShape(D, N_HEAD, N_KV, D_HEAD, D_FF, rope_theta=500.0)


@pytest.mark.parametrize("see_guesses", [False, True])
@pytest.mark.parametrize(("shared_output", "all_tokens"), [(False, False), (True, True), (True, False)])
def test_heads_are_what_their_format_says(see_guesses: bool, shared_output: bool, all_tokens: bool) -> None:
    own, some = ends(), torch.tensor([1, 5, 6, 17])
    shape = heads_network.HeadsShape(D, V, 3, 2, see_guesses, shared_output, 0 if all_tokens else len(some))
    heads = heads_network.HeadsNetwork(shape, own, None if all_tokens else some)
    w = randomise(heads)
    hidden, seen = torch.randn(5, D), torch.randint(0, V, (5, 3))
    for k in (1, 2, 3):
        with torch.no_grad():
            ours = heads(hidden, seen[:, :k], k).numpy()
        x = hidden.numpy().astype(np.float64)
        if see_guesses:
            embedded = own.table.numpy()[seen[:, :k].numpy()].reshape(5, k * D)
            x = np.concatenate((x, embedded), -1) @ w[f"heads.{k - 1}.input.weight"].T
        for b in range(2):
            x = x + silu(x @ w[f"heads.{k - 1}.blocks.{b}.weight"].T + w[f"heads.{k - 1}.blocks.{b}.bias"])
        if shared_output:
            wanted = 4.0 * np.tanh((x @ own.head.numpy().T + own.bias.numpy()) * 0.5 / 4.0)
            wanted = wanted if all_tokens else wanted[:, some.numpy()]
        else:
            wanted = x @ w[f"heads.{k - 1}.output.weight"].T
        np.testing.assert_allclose(ours, wanted, atol=2e-4)
    assert len(w) == 3 * (4 + see_guesses + (not shared_output))


def test_heads_begin_as_the_head_of_the_target() -> None:
    own, hidden = ends(), torch.randn(5, D)
    heads = heads_network.HeadsNetwork(heads_network.HeadsShape(D, V, 2), own)
    np.testing.assert_array_equal(heads(hidden, k=2).numpy(force=True), own.logits(hidden).numpy())


def test_eagle_1_drafts_as_row_by_row() -> None:
    """Each step's rows, against a chain that is drafted after that row of the text."""
    own = ends()
    network = eagle.Eagle1(eagle.EagleShape(layer_shape(), V, (7,)), own)
    w = randomise(network)
    n, n_steps = 6, 3
    features, ids = torch.randn(1, n, D), torch.randint(0, V, (1, n + n_steps - 1))
    with torch.no_grad():
        ours = [step[0].numpy() for step in network.steps(features, ids, n_steps)]

    def row(rows: Rows, token: int, feature: np.ndarray) -> np.ndarray:
        x = w["fc.weight"] @ np.concatenate((own.table[token].numpy(), feature)) + w["fc.bias"]
        x = x + rows(x)
        return x + feed_forward(w, "layers.0.", rms(x, w["layers.0.post_attention_layernorm.weight"]))

    text = Rows(w, "layers.0.", 500.0)
    for t in range(n):
        feature = row(text, int(ids[0, t]), features[0, t].numpy())
        np.testing.assert_allclose(ours[0][t], feature, atol=1e-3)
        chain = text.copy()
        for step in range(1, n_steps):
            feature = row(chain, int(ids[0, t + step]), feature)
            np.testing.assert_allclose(ours[step][t], feature, atol=1e-3)


def test_eagle_3_drafts_as_row_by_row() -> None:
    """The training-time test of each step, against a chain that is drafted after that row of the text."""
    own, some = ends(), torch.tensor([0, 3, 4, 9, 30])
    network = eagle.Eagle3(eagle.EagleShape(layer_shape(), V, (1, 2, 4), len(some)), own, some)
    w = randomise(network)
    n, n_steps = 5, 4
    taps, ids = torch.randn(1, n, 3 * D), torch.randint(0, V, (1, n + n_steps - 1))
    with torch.no_grad():
        steps = list(network.steps(taps, ids, n_steps))
        ours = [(step[0].numpy(), network.logits(step)[0].numpy()) for step in steps]

    def row(rows: Rows, token: int, hidden: np.ndarray) -> np.ndarray:
        embedded = rms(own.table[token].numpy(), w["midlayer.input_layernorm.weight"])
        x = hidden + rows(np.concatenate((embedded, rms(hidden, w["midlayer.hidden_norm.weight"]))))
        return x + feed_forward(w, "midlayer.", rms(x, w["midlayer.post_attention_layernorm.weight"]))

    text = Rows(w, "midlayer.", 500.0)
    for t in range(n):
        chain, hidden = text.copy(), w["fc.weight"] @ taps[0, t].numpy()
        row(text, int(ids[0, t]), hidden)
        for step in range(n_steps):
            hidden = row(chain, int(ids[0, t + step]), hidden)
            np.testing.assert_allclose(ours[step][0][t], hidden, atol=1e-3)
            wanted = w["lm_head.weight"] @ rms(hidden, w["norm.weight"])
            np.testing.assert_allclose(ours[step][1][t], wanted, atol=1e-3)


@pytest.mark.parametrize("family", ["llama", "gpt2", "granite"])
def test_look_ahead_embeddings_are_rows_after_a_point(family: str) -> None:
    """Many points of a text at once, against one text for each point that ends with the embeddings."""
    import transformers

    if family == "gpt2":
        config: Any = transformers.GPT2Config(vocab_size=V, n_embd=D, n_layer=2, n_head=2, n_positions=64)
        target: Any = transformers.GPT2LMHeadModel(config)
    else:
        sizes = {
            "vocab_size": V, "hidden_size": D, "intermediate_size": D_FF, "num_hidden_layers": 2,
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
