"""Methods of `specdec.training`: losses, networks against the folders that decode, quality reached."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import specdec
from learnable_target import PROMPTS, VOCABULARY, learnable_target, train
from refusals import refuses
from specdec import drafts
from trained import small_pair

pytestmark = pytest.mark.oracle  # torch

HEADS = {"n_heads": 2}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "small": ("small", {"d_model": 32, "n_layers": 1, "n_heads": 0}),
    "recurrent": ("recurrent", {"d_hidden": 24, "n_layers": 2}),
    "medusa": ("heads", HEADS),
    "medusa-text": ("heads", HEADS | {"from_text": True}),
    "medusa-own-output": ("heads", HEADS | {"shared_output": False, "n_draft_vocab": 16}),
    "medusa-reduced": ("heads", HEADS | {"n_draft_vocab": 16}),
    "hydra": ("heads", HEADS | {"see_draft_tokens": True, "n_draft_vocab": 20}),
    "medusa-2": ("heads", HEADS | {"joint": True}),
    "eagle-1": ("eagle", {"version": 1}),
    "eagle-3": ("eagle", {"d_head": 6, "d_ff": 40, "steps": 3}),
    "eagle-3-reduced": ("eagle", {"n_draft_vocab": 16, "steps": 2}),
    "pass": ("pass", {"n_tokens": 2, "n_points": 12}),
}


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    """torch and transformers, imported late because that takes seconds."""
    global torch, objective, Objective, TargetDistribution
    import torch

    from specdec.drafts.learned import networks as objective
    from specdec.drafts.learned.networks import Objective, TargetDistribution


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> specdec.Model:
    return learnable_target(tmp_path_factory.mktemp("target"))


def train_on(target: Any, out: Path, name: str, **options: Any) -> Any:
    method, shape = METHODS[name]
    rate = {} if method in ("small", "recurrent") else {"learning_rate": 0.02}
    return train(target, out, method, shape=shape, **({"steps": 96} | rate | options))


@pytest.fixture(scope="module")
def trained(target: specdec.Model, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """The training summary of each of `METHODS`, trained on first use."""
    return cache(lambda name: train_on(target, tmp_path_factory.mktemp(name), name))


def trainer_of(target: specdec.Model, name: str, more: dict[str, Any], **settings: Any) -> Any:
    """The trainer of one of `METHODS`, without a training."""
    from specdec.training.settings import TrainingSettings
    from specdec.training.trainer import trainer_type

    method, given = METHODS[name]
    shape = {key: str(value) for key, value in (given | more).items()}
    trainer = trainer_type(method)(target, TrainingSettings(method=method, shape=shape, **settings))
    trainer.token_counts = lambda: np.arange(VOCABULARY)
    return trainer


# ------------------------------------------------------------------------------------------ objectives


def test_texts_without_positions_have_no_alpha() -> None:
    from specdec.training.held_out import alpha_of, gain

    nothing = [np.zeros(0), np.zeros(0)]
    assert math.isnan(alpha_of(nothing)[0]) and math.isnan(gain(nothing, nothing)[0])  # warnings are errors


def two_logits(seed: int) -> tuple[Any, Any]:
    """Logits in double; some tokens have no probability in the draft, some none in the target."""
    rng = np.random.default_rng(seed)
    ours, theirs = (torch.from_numpy(rng.normal(0.0, 2.0, (5, 11))) for _ in range(2))
    ours[:, 1] = theirs[:, 1:3] = -math.inf
    return ours, theirs


def by_hand(name: str, p: Any, q: Any, beta: float) -> Any:
    """The definitions, in NumPy."""

    def kl(a: Any, b: Any) -> Any:
        return np.where(a > 0, a * np.log(np.where(a > 0, a, 1) / np.where(a > 0, b, 1)), 0).sum(-1)

    m = beta * p + (1 - beta) * q
    return {
        "fkl": lambda: kl(p, q),
        "rkl": lambda: kl(q, p),
        "jsd": lambda: beta * kl(p, m) + (1 - beta) * kl(q, m),
        "tvd": lambda: 1 - np.minimum(p, q).sum(-1),
    }[name]()


NAMES = ("fkl", "rkl", "jsd", "tvd")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_divergences_and_gradients_are_those_of_their_definitions(name: Any, temperature: float) -> None:
    ours, theirs = two_logits(3)
    if name == "fkl":
        ours[:, 2] = -math.inf  # otherwise it is infinite
    target = TargetDistribution((ours / temperature).log_softmax(-1), None, temperature)
    for beta in (0.1, 0.5, 0.9):
        logits = theirs.clone().requires_grad_()
        found = Objective({name: 1.0}, beta)(target, logits)
        found.sum().backward()

        def expected(moved: Any, beta: float = beta) -> Any:
            p, q = (each.div(temperature).softmax(-1).numpy() for each in (ours, moved))
            return by_hand(name, p, q, beta)

        np.testing.assert_allclose(found.detach().numpy(), expected(theirs), rtol=2e-5, atol=1e-6)
        for token in (0, 4, 10):
            step = torch.zeros_like(theirs)
            step[:, token] = 1e-6
            slope = (expected(theirs + step) - expected(theirs - step)) / 2e-6
            np.testing.assert_allclose(logits.grad[:, token].numpy(), slope, rtol=1e-3, atol=1e-5)


def test_a_distribution_of_the_top_tokens_takes_the_others_together() -> None:
    ours, theirs = (one.nan_to_num(neginf=-9.0) for one in two_logits(5))
    some = TargetDistribution.of_logits(ours, top=4)
    p, q = ours.softmax(-1).numpy(), theirs.softmax(-1).numpy()
    order = np.argsort(-p, axis=-1)[:, :4]
    for found, whole in ((some.log_probs, p), (some.of_draft(theirs), q)):
        kept = np.take_along_axis(whole, order, -1)
        expected = np.column_stack([kept, 1 - kept.sum(-1)])
        np.testing.assert_allclose(found.exp().numpy(), expected, rtol=1e-4, atol=1e-6)
    all_of_them = TargetDistribution.of_logits(ours, top=ours.shape[-1])
    assert all_of_them.tokens is None
    for name in NAMES:
        loss = Objective({name: 1.0})
        assert (loss(some, theirs) <= loss(all_of_them, theirs) + 1e-6).all(), name
        assert (loss(some, ours).abs() < 1e-6).all(), name


def test_what_a_draft_never_drafts_is_no_part_of_its_loss() -> None:
    """Gradients are those of the whole distribution, kept whole or by its most probable tokens."""
    torch.manual_seed(0)
    some, logits = torch.tensor([0, 2, 3, 7]), torch.randn(3, 4, requires_grad=True)
    for top in (None, 5):
        whole = TargetDistribution.of_logits(torch.randn(3, 9), top)
        for name in ("fkl", "tvd"):
            gradients = []
            for each in (whole, objective.reachable(whole, some, 9)):
                loss = Objective({name: 1.0})(each, objective.scattered(logits, some, 9)).sum()
                gradients.append(torch.autograd.grad(loss, logits)[0])
            assert torch.allclose(*gradients, atol=1e-6), (top, name)
            assert abs(float(loss.detach())) < 20.0


# ----------------------------------------------------------------------------------------- all methods


@pytest.mark.parametrize("name", list(METHODS))
def test_a_training_raises_alpha_beyond_chance(name: str, trained: Any) -> None:
    """The interval of the gain is a 95 % one: an ineffective training would pass once in forty."""
    torch.set_num_threads(2)  # the training takes one
    state = torch.random.get_rng_state()
    found = trained(name)
    assert torch.equal(torch.random.get_rng_state(), state) and torch.get_num_threads() == 2
    torch.set_num_threads(1)
    for temperature in (0.0, 1.0):
        assert found.gains[temperature][1] > 0, str(found)
        assert found.after.tokens_per_call[temperature] > found.before.tokens_per_call[temperature]
    assert f"{METHODS[name][0]} draft for learnable" in str(found)


def test_a_target_whose_texts_have_no_end(tmp_path: Path) -> None:
    trainer = trainer_of(learnable_target(tmp_path, eos_token_id=None), "small", {})
    trainer.export(trainer.network(), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert config.get("eos_token_id") is None and specdec.load(tmp_path).eos_ids == ()


def probs_of_network(network: Any, trainer: Any, text: list[int], n: int) -> np.ndarray:
    """Predictions of torch after a text whose last `n` tokens are draft tokens after a root."""
    root = len(text) - n - 1
    states = trainer.target.hidden_states(text[:root], trainer.captures) if trainer.captures else {}
    ids = torch.tensor(text)
    with torch.no_grad():
        if trainer.name == "small":
            logits = network(input_ids=ids[None]).logits[0, -1]
        elif trainer.name == "recurrent":
            logits = network(ids[None])[0, -1]
        elif trainer.name == "pass":
            rows, _ = network(ids[None, :root], torch.tensor([root - 1]))
            logits = rows[0, 0, n]
        elif trainer.name == "heads":
            logits = network(torch.from_numpy(states[trainer.captures[0]][-1]), ids[root:], n + 1)
        else:
            captures = torch.from_numpy(
                np.concatenate([states[capture] for capture in trainer.captures], axis=-1)
            )
            *_, hidden = network.steps(captures[None], ids[None, 1:], n + 1)
            logits = network.logits(hidden[0, -1])
        draft_ids = None if trainer.name == "recurrent" else getattr(network, "draft_ids", None)
        return objective.scattered(logits, draft_ids, VOCABULARY).double().softmax(-1).numpy()


def probs_of_target(target: specdec.Model, text: list[int]) -> np.ndarray:
    return specdec.distribution(target.logits(text)[-1], temperature=1.0)


@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("medusa-text", "medusa-2")])
def test_a_folder_drafts_as_its_network_does(name: str, target: specdec.Model, trained: Any) -> None:
    """By the betas of real runs, sums over both distributions at every judged position."""
    folder = trained(name).folder
    trainer = trainer_of(target, name, {}, begin=folder)
    network = trainer.network().eval()
    draft, n_judged = drafts.load(folder, target), 0
    for seed in range(4):
        result = specdec.generate(
            target, draft, [3, 21], max_new_tokens=30, gamma=3, temperature=1.0, seed=seed, n_threads=1,
            ignore_eos=True,
        )  # fmt: skip
        text = [3, 21]
        for each in result.trace.rounds:
            for i, beta in enumerate(each.betas):
                whole = [*text, *each.drafted[:i]]
                both = probs_of_target(target, whole), probs_of_network(network, trainer, whole, i)
                assert abs(np.minimum(*both).sum() - beta) < 1e-4
                n_judged += 1
            text += each.tokens
    assert n_judged > 50


@pytest.mark.parametrize(
    "name", ["recurrent", "medusa", "medusa-reduced", "hydra", "eagle-3-reduced", "pass"]
)
def test_a_loss_is_the_mean_over_the_tokens_that_are_drafted(name: str, target: specdec.Model) -> None:
    """Each against the target's distribution of the very token that it is for, one text at a time."""
    from specdec.training.trainer import TargetStates
    from specdec.training.training_texts import Texts

    trainer = trainer_of(target, name, {"n_points": 99} if name == "pass" else {}, length=12)
    torch.manual_seed(3)
    network = trainer.network()
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(torch.randn_like(weight) * 0.1)
    rng = np.random.default_rng(5)
    texts = Texts.of_lists([rng.integers(3, VOCABULARY, 12).tolist() for _ in range(2)], [4, 1], 12)
    batch = TargetStates(target, captures=trainer.captures, n_threads=1).of(texts)
    with torch.no_grad():
        found = float(trainer.loss(network, batch, Objective({"tvd": 1.0}), 0.5))
    depths = 1 if name == "recurrent" else 2  # two heads, steps, embeddings
    sums, counts = np.zeros(depths), np.zeros(depths)
    for n in range(depths):
        for ids, begin in zip(texts.ids.tolist(), texts.begins, strict=True):
            for end in range(max((1 if name == "recurrent" else 2) + n, int(begin)), 12):
                if name == "pass" and end - n - 2 >= 10:
                    continue  # not all embeddings fit after the point
                probs = probs_of_network(network, trainer, ids[:end], n)
                away = np.abs(probs_of_target(target, ids[:end]) - probs)
                sums[n] += away[probs > 0].sum() / 2.0
                counts[n] += 1.0
    means = sums / counts
    expected = sums.sum() / counts.sum() if name == "pass" else means @ 0.8 ** np.arange(depths)
    assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("small", "d_model", 64),
        ("recurrent", "d_hidden", 16),
        ("medusa", "see_draft_tokens", True),
        ("pass", "n_tokens", 3),
        ("eagle-3-reduced", "n_heads", 2),
    ],
)
def test_a_training_begins_with_the_weights_that_it_is_given(
    name: str, setting: str, value: Any, target: specdec.Model, trained: Any, tmp_path: Path
) -> None:
    """And refuses settings that contradict them, and those of another target."""
    begin = trained(name).folder
    again = train_on(target, tmp_path, name, steps=1, begin=begin, learning_rate=1e-9)
    first, second = (load_file(Path(folder) / "model.safetensors") for folder in (begin, tmp_path))
    assert all(np.allclose(second[key], first[key], atol=1e-6) for key in first)
    assert abs(again.gains[1.0][0]) < 1e-3
    more = {"n_kv_heads": 1, "d_head": 16} if setting == "n_heads" else {}
    with refuses(setting, value):
        trainer_of(target, name, {setting: value, **more}, begin=begin).network()
    with pytest.raises(specdec.SpecdecError, match=Path(begin).name):
        trainer_of(small_pair()[0], name, {}, begin=begin).network()


# ------------------------------------------------------------------------------------ heads, look-ahead


def test_medusa_2_writes_another_target(target: specdec.Model, trained: Any) -> None:
    """The tuned target decodes by its heads; the original refuses nothing but is another model."""
    found = trained("medusa-2")
    assert any("its output changed" in line for line in found.words) and "its output" in str(found)
    tuned = specdec.load(Path(found.folder) / "target")
    assert not np.array_equal(tuned.logits([3, 21, 5]), target.logits([3, 21, 5]))
    runs = [
        specdec.generate(tuned, draft, [3, 21], max_new_tokens=24, n_threads=1).tokens
        for draft in (drafts.load(found.folder, tuned), None)
    ]
    assert runs[0] == runs[1]


def heads_network(*shape: Any, draft_ids: Any = None) -> Any:
    from specdec.drafts.learned.heads.network import HeadsNetwork, HeadsShape
    from specdec.drafts.learned.networks import TargetEnds

    torch.manual_seed(11)
    ends = TargetEnds(torch.randn(40, 16), torch.randn(40, 16), torch.randn(40), 0.5, 4.0)
    return HeadsNetwork(HeadsShape(16, 40, *shape), ends, draft_ids)


def test_heads_begin_as_the_head_of_the_target() -> None:
    heads, hidden = heads_network(2), torch.randn(5, 16)
    found, ends = heads(hidden, k=2).numpy(force=True), heads.ends
    np.testing.assert_array_equal(found, ends.logits(hidden).numpy())
    scores = hidden.numpy().astype(np.float64) @ ends.head.numpy().T + ends.bias.numpy()
    np.testing.assert_allclose(found, 4.0 * np.tanh(scores * 0.5 / 4.0), atol=1e-5)


def test_the_ends_of_the_target_move_with_a_network() -> None:
    heads = heads_network(2, 1, True, False, 3, draft_ids=torch.tensor([1, 5, 6]))
    assert all("ends" not in name and "draft_ids" not in name for name in heads.state_dict())
    moved = heads.to("meta")
    tensors = (moved.ends.table, moved.ends.head, moved.ends.bias, moved.draft_ids)
    assert all(tensor.device.type == "meta" for tensor in tensors)


def family_model(family: str, **more: Any) -> Any:
    """A random decoder of transformers of three layers."""
    import transformers

    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2,
        "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0,
    }  # fmt: skip
    if family != "GPT2":
        sizes |= {"num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 40}
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**sizes, **more)
    return transformers.AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize("family", ["Llama", "GPT2", "Granite"])
def test_look_ahead_embeddings_are_rows_after_a_point(family: str) -> None:
    """Many points of a text at once, against one text for each point that ends with the embeddings."""
    from specdec.drafts.learned.look_ahead.trainer import LookAheadNetwork

    model = family_model(family, **({"embedding_multiplier": 3.0} if family == "Granite" else {}))
    network = LookAheadNetwork(model, 3)
    assert network.scale() == pytest.approx(3.0 if family == "Granite" else 1.0, rel=1e-5)
    ids, points = torch.randint(0, VOCABULARY, (2, 20)), torch.tensor([4, 11, 19])
    ours, plain = network(ids, points)
    assert [name for name, _ in network.named_parameters()] == ["embeddings"]
    with torch.no_grad():
        np.testing.assert_allclose(plain.numpy(), model(input_ids=ids).logits.numpy(), atol=1e-5)
        for i, point in enumerate(points.tolist()):
            embedded = model.get_input_embeddings()(ids[:, : point + 1])
            rows = torch.cat((embedded, network.embeddings.expand(2, 3, 32)), dim=1)
            wanted = model(inputs_embeds=rows).logits[:, point + 1 :]
            np.testing.assert_allclose(ours[:, i].detach().numpy(), wanted.numpy(), atol=1e-5)
    ours.logsumexp(-1).sum().backward()
    assert network.embeddings.grad is not None and model.get_input_embeddings().weight.grad is None


def test_targets_that_torch_would_read_otherwise_are_refused_by_name(tmp_path: Path) -> None:
    """Look-ahead embeddings are learned by a mask, which knows no windows and distances."""
    from worlds.folders import llama_tensors, mistral_config, write_hf

    config = mistral_config(vocab_size=VOCABULARY, max_position_embeddings=64)
    windows = specdec.load(write_hf(tmp_path / "windows", config, llama_tensors(config, 1)))
    with refuses("length", 24):
        train_on(windows, tmp_path / "out", "pass")


# ---------------------------------------------------------------------------------------- earlier drafts


def test_what_drafts_leave_is_the_residual_of_the_rule(target: specdec.Model, trained: Any) -> None:
    """By enumeration: the chance that all of them are rejected, and the distribution then."""
    from specdec.training.trainer import EarlierDrafts, softmax

    folders = [trained(name).folder for name in ("small", "recurrent")]
    cover = EarlierDrafts(target, folders)
    ids = np.arange(3, 9, dtype=np.int32)
    probs = softmax(target.logits(ids))
    left, share = cover.residual(ids, probs, 1.0)
    recurrent: Any = drafts.load(folders[1], target)
    drawn = [softmax(specdec.load(folders[0]).logits(ids)), recurrent.probabilities(ids)]
    for row in range(len(ids)):
        reached, rest = 1.0, probs[row]
        for draft in drawn:
            kept = np.minimum(rest, draft[row])
            reached *= 1.0 - kept.sum()
            rest = (rest - kept) / (1.0 - kept.sum())
        np.testing.assert_allclose(share[row], reached, rtol=1e-6)
        np.testing.assert_allclose(left[row], rest, atol=1e-9)
    logits, weights = cover(ids, target.logits(ids))
    np.testing.assert_allclose(softmax(logits), left, atol=1e-6)
    np.testing.assert_allclose(weights, share, rtol=1e-6)
    best = probs.argmax(-1)
    hits = np.any([draft.argmax(-1) == best for draft in drawn], axis=0)
    np.testing.assert_array_equal(cover.hits(ids, best), hits)


def test_a_second_draft_covers_for_the_first(target: specdec.Model, trained: Any, tmp_path: Path) -> None:
    after = [trained("small").folder]
    second = train_on(target, tmp_path, "small", steps=64, passes=4, seed=1, after=after)
    assert second.gains[1.0][1] > 0, str(second)  # the lower end of the interval: no chance
    assert "1 earlier draft with this one" in str(second)


# ----------------------------------------------------------------------------------------------- exits


def test_weights_of_exits_are_those_of_the_paper() -> None:
    """LayerSkip, section 4.1: the sums by hand for four layers, and what the curricula switch on."""
    from specdec.drafts.learned.early_exit.trainer import exit_weights, layer_dropout

    whole = np.array([0.0, 0.5, 1.5, 3 + 0.5 * 3])
    cases: list[tuple[Any, int, float, list[int]]] = [("all", 0, 0.0, [1, 1, 1, 1])]
    for step, on in ((0, [1, 0, 1, 1]), (1, [0, 1, 0, 1]), (2, [1, 0, 1, 1])):
        cases.append(("rotational", step, 0.0, on))
    for progress, n_on in ((0.0, 1), (0.124, 1), (0.125, 2), (0.25, 3), (0.375, 4), (1.0, 4)):
        cases.append(("gradual", 0, progress, [int(layer >= 4 - n_on) for layer in range(4)]))
    for curriculum, step, progress, on in cases:
        found = exit_weights(4, step, progress, curriculum=curriculum, scale=0.5, period=2)
        np.testing.assert_allclose(found, whole * on / (whole * on).sum())
    assert layer_dropout(0, 4, 0.3, 0.2) == 0.0 and layer_dropout(3, 4, 0.3, 0.2) == pytest.approx(0.2)
    assert layer_dropout(1, 4, 0.3, 0.2) == pytest.approx(0.2 * (2 ** (1 / 3) - 1))
    assert layer_dropout(3, 4, 0.5, 0.2, rising=True) == pytest.approx(0.2 * (2**0.5 - 1))


@pytest.mark.parametrize("family", ["Llama", "GPT2", "Qwen3"])
def test_layers_are_skipped_for_the_texts_that_skip_them(family: str, tmp_path: Path) -> None:
    """A skipped layer leaves the stream as it is, and the others see that; streams are those of specdec."""
    from specdec.drafts.learned.early_exit.trainer import ExitNetwork

    model = family_model(family)
    model.save_pretrained(tmp_path)
    network, ids = ExitNetwork(model).eval(), torch.randint(0, VOCABULARY, (2, 9))
    with torch.no_grad():
        whole = network.states(ids)
        some = network.states(ids, torch.tensor([[False, False], [True, False], [False, True]]))
        again = network.states(ids)
    assert torch.equal(some[1][0], some[0][0]) and torch.equal(some[2][1], some[1][1])
    assert torch.allclose(some[1][1], whole[1][1], atol=1e-5) and not torch.allclose(some[2][0], whole[2][0])
    assert all(torch.equal(one, other) for one, other in zip(whole, again, strict=True))
    hidden = specdec.load(tmp_path).hidden_states(ids[0].numpy(), [1, 2, 3])
    for layer, state in enumerate(whole, start=1):
        np.testing.assert_allclose(hidden[layer], state[0].numpy(), atol=1e-4)


def test_a_target_with_a_cap_after_its_head_has_no_exits() -> None:
    from specdec.drafts.learned.early_exit.trainer import ExitNetwork

    with refuses("target", "Gemma2ForCausalLM"):
        ExitNetwork(family_model("Gemma2", final_logit_softcapping=2.0))


def test_an_exit_is_trained_and_the_summary_tells_how_far_the_target_moved(
    target: specdec.Model, tmp_path: Path
) -> None:
    found = train(target, tmp_path, "early-exit", steps=48, shape={"dropout": 0.05}, learning_rate=2e-3)
    text = str(found)
    assert found.gains[1.0][1] > 0, text  # the lower end of the interval: no chance
    assert "training changed the target" in text and "KL" in text
    assert ("no exit pays: plain decoding of" in text) != ("fastest greedy exit: 1 layer" in text)
    values = json.loads((tmp_path / "specdec_exit.json").read_text())
    assert values["layer"] == 1 and values["gamma"] in (1, 2, 3, 4, 6)
    tuned = specdec.load(tmp_path)
    exit_draft = drafts.load(tmp_path, tuned)
    assert isinstance(exit_draft, drafts.EarlyExit) and exit_draft.gamma == values["gamma"]
    runs = [specdec.generate(tuned, draft, PROMPTS[0], max_new_tokens=30) for draft in (None, exit_draft)]
    assert runs[0].tokens == runs[1].tokens
