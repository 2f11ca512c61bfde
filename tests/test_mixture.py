"""Mixtures of experts: routing of rows, bits of a row, and the weights read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from allocations import allowing, bytes_held, needs_hooks
from compiled import Decoder, Model, tensor_shapes
from sessions import Session
from specdec import reference
from worlds.canonical import FORMATS, MIXTURES, Tensors, build, perturbed, random_tensors, run_session

N_IDS = 80
PROMPTS = [[5, 17, 3], [1], [40, 2, 9] * 10]

CHOOSING = MIXTURES["mixture-softmax"]
CORRECTED = MIXTURES["mixture-corrected-groups-dense-first"]
GREEDY: dict[str, Any] = {key: {"temperature": 0.0} for key in ("sampling", "draft_sampling")}


def rows_of(model: Model, ids: list[int], n_together: int, n_threads: int = 1) -> np.ndarray:
    """Logits of a text in forward passes of n_together tokens."""
    decoder = Decoder(model, capacity=len(ids), max_nodes=n_together, n_threads=n_threads)
    found = []
    for first in range(0, len(ids), n_together):
        chain = ids[first : first + n_together]
        found.append(decoder.forward(chain, range(-1, len(chain) - 1)))
        decoder.keep(range(len(chain)))
    return np.concatenate(found)


def ids_of(config: dict[str, Any]) -> list[int]:
    return np.random.default_rng(2).integers(0, config["n_vocab"], N_IDS).tolist()


@pytest.mark.parametrize(("dtype", "cache"), FORMATS)
@pytest.mark.parametrize("name", MIXTURES)
def test_rows_grouped_by_expert_have_the_bits_of_rows_alone(name: str, dtype: str, cache: str) -> None:
    config = MIXTURES[name]
    model = build(config, random_tensors(config), dtype=dtype, cache_dtype=cache)
    ids = ids_of(config)
    alone = rows_of(model, ids, 1)
    assert np.array_equal(Decoder(model, capacity=N_IDS).prefill(ids, logits=True), alone)
    for n_together, n_threads in ((2, 1), (5, 3), (13, 2), (64, 2)):
        assert np.array_equal(rows_of(model, ids, n_together, n_threads), alone)


@pytest.mark.parametrize(
    "name", [name if i < 1 else pytest.param(name, marks=pytest.mark.slow) for i, name in enumerate(MIXTURES)]
)
def test_most_rows_differ_from_the_reference_only_by_rounding(name: str) -> None:
    """In every format: rounding chooses other experts only in a few rows, near ties."""
    config = MIXTURES[name]
    tensors = random_tensors(config)
    tokens = range(30)
    for dtype in ("bf16", "int8", "int4"):
        model = build(config, tensors, dtype=dtype, cache_dtype="bf16")
        found = Decoder(model, capacity=1, max_nodes=30).forward(tokens, [-1] * 30)
        expected = reference.tree_logits(
            config, tensors, [], tokens, [-1] * 30, format=dtype, cache_format="bf16"
        )
        assert np.median(np.abs(found - expected).max(axis=1)) < 2e-5


def with_router(tensors: Tensors, weight: Any) -> Tensors:
    """Tensors with this number in every router and correction."""
    names = ("router.weight", "router_correction")
    routers = {name: tensor for name, tensor in tensors.items() if name.endswith(names)}
    return tensors | {name: np.full_like(tensor, weight) for name, tensor in routers.items()}


@pytest.mark.parametrize("config", [CHOOSING, CORRECTED], ids=["logits", "scores"])
def test_of_equal_ranks_the_first_groups_and_experts_are_chosen(config: dict[str, Any]) -> None:
    tensors = with_router(random_tensors(config), 0.0)
    found = rows_of(build(config, tensors), list(range(20)), 4)
    np.testing.assert_allclose(found, reference.logits(config, tensors, list(range(20))), atol=2e-5)
    dropped = range(config["n_experts_per_token"], config["n_experts"])
    others = {
        name: tensor * 0 if any(f"experts.{e}." in name for e in dropped) else tensor
        for name, tensor in tensors.items()
    }
    assert np.array_equal(rows_of(build(config, others), list(range(20)), 4), found)


def test_a_correction_chooses_and_does_not_weigh() -> None:
    """Experts 9 to 11 are chosen, and have equal weights. Group 2 has the largest sum of a single expert."""
    config = CORRECTED | {"n_groups_per_token": 1}
    tensors = with_router(random_tensors(config), 0.0)
    wanted = {name: tensor.copy() for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        if name.endswith("router_correction"):
            tensor[9:] = 1.0, 3.0, 2.0
            tensor[6] = 4.5
        if ".experts." in name:
            first = name.replace(".experts.9.", ".experts.0.").replace(".experts.10.", ".experts.1.")
            wanted[first.replace(".experts.11.", ".experts.2.")] = tensor
    ids = ids_of(config)
    found, expected = (rows_of(build(config, given), ids, 8) for given in (tensors, wanted))
    assert np.array_equal(found, expected)


def test_experts_that_no_row_chooses_are_not_read() -> None:
    """Their large weights would make every output infinite."""
    config = MIXTURES["mixture-biases-clamped"]
    tensors = random_tensors(config)
    wanted = {name: tensor.copy() for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        if name.endswith("router.bias"):
            tensor[4] = wanted[name][4] = -1e6
        if ".experts.4." in name:
            tensor[...] = 3e38
            wanted[name][...] = 0.0
    ids = ids_of(config)
    assert np.array_equal(rows_of(build(config, tensors), ids, 8), rows_of(build(config, wanted), ids, 8))


def test_a_model_of_one_expert_is_a_dense_model() -> None:
    config = CHOOSING | {"n_experts": 1, "n_experts_per_token": 1}
    tensors = random_tensors(config)
    dense = {name: value for name, value in config.items() if name not in ("n_experts", "d_expert")}
    dense |= {"d_ff": config["d_expert"]}
    renamed = {
        name.replace("experts.0.", ""): tensor for name, tensor in tensors.items() if "router" not in name
    }
    ids = ids_of(config)
    for dtype in ("f32", "int8"):
        one, other = build(config, tensors, dtype=dtype), build(dense, renamed, dtype=dtype)
        assert np.array_equal(rows_of(one, ids, 5), rows_of(other, ids, 5))


def test_a_round_counts_the_experts_that_it_reads() -> None:
    config = CHOOSING
    tensors = random_tensors(config)
    model = build(config, tensors)
    _, _, plain = run_session(model, None, PROMPTS[:1])
    assert plain[0]["experts"] == 0.0, "its token went through the layers with the prompt"
    assert {record["experts"] for record in plain[1:]} == {config["n_experts_per_token"]}
    _, _, records = run_session(model, build(config, perturbed(tensors)), PROMPTS[:1], gamma=4)
    counts = [record["experts"] for record in records]
    assert all(2 <= n <= min(7, 2 * record["n_rows"]) for n, record in zip(counts, records, strict=True))
    assert np.mean(counts) > 2.5
    some = MIXTURES["mixture-chosen-some-layers"]
    _, _, of_some = run_session(build(some, random_tensors(some)), None, PROMPTS[:1])
    assert {record["experts"] for record in of_some[1:]} == {8.0}  # of the layers that have experts


@needs_hooks
def test_a_round_allocates_nothing() -> None:
    config = MIXTURES["mixture-renormalized-shared-gate"]
    tensors = random_tensors(config)
    session = Session(
        build(config, tensors), build(config, perturbed(tensors)), PROMPTS, gamma=4, max_new_tokens=40,
        **GREEDY, seeds=[(1, i) for i in range(3)], n_threads=2,
    )  # fmt: skip
    session.prefill()
    before = bytes_held()
    with allowing(0):
        while session.round():
            pass
    assert bytes_held() == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_experts": -1}, "n_experts is -1, expected 0 to"), ({"n_experts": 2**18}, "n_experts is 262144"),
        ({"n_experts_per_token": 8}, "n_experts_per_token is 8, expected 1 to 7"),
        ({"d_expert": 0}, "d_expert is 0"), ({"d_shared_expert": -3}, "d_shared_expert is -3"),
        ({"shared_expert_gate": True}, "shared_expert_gate is set"), ({"router": "hash"}, "router is 'hash'"),
        ({"routed_scale": 0.0}, "routed_scale is 0"), ({"router_eps": -1.0}, "router_eps is -1, expected"),
        ({"router_correction": True, "router": "softmax_chosen"}, "expected no router_correction"),
        ({"n_expert_groups": 7}, "n_expert_groups is 7, expected a router_correction"),
        (CORRECTED | {"n_expert_groups": 65}, "n_expert_groups is 65, expected 0 to 64"),
        (CORRECTED | {"n_expert_groups": 5}, "expected a divisor of n_experts, 12, into groups of 2"),
        (CORRECTED | {"n_expert_groups": 12}, "expected a divisor of n_experts, 12, into groups of 2"),
        (CORRECTED | {"n_groups_per_token": 5}, "n_groups_per_token is 5, expected 1 to 4"),
        (CORRECTED | {"n_experts_per_token": 7}, "n_experts_per_token is 7, expected at most the experts"),
        ({"mixtures": [1, 0]}, "mixtures has 2 entries, expected 3"),
        ({"n_experts": 0, "mixtures": [1, 0, 0]}, r"mixtures\[0\] is set, expected n_experts"),
        ({"parallel": "two_norms"}, 'parallel is "two_norms"'),
    ],
)  # fmt: skip
def test_configurations_that_contradict_themselves(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tensor_shapes(CHOOSING | changes)


def test_names_of_tensors() -> None:
    config = MIXTURES["mixture-chosen-some-layers"]
    shapes, tensors = tensor_shapes(config), random_tensors(config)
    assert shapes["layers.2.experts.39.mlp_down.weight"] == (48, 40)
    assert shapes["layers.1.mlp_down.weight"] == (48, 70) and "layers.0.mlp_down.weight" not in shapes
    model = build(config, tensors)
    for name in ("layers.0.experts.0.mlp_gate.weight", "layers.2.experts.39.mlp_up.weight"):
        assert np.array_equal(model.matrix(name), tensors[name])
    gate = "mlp_gate.weight"
    for name in (f"layers.1.experts.0.{gate}", f"layers.0.experts.40.{gate}", f"layers.0.{gate}"):
        with pytest.raises(ValueError, match="not a matrix of this model"):
            model.matrix(name)
