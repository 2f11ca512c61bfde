"""Drafts that learn while serving: their samples, their schedule, and unchanged output."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy
from safetensors import safe_open
from safetensors.numpy import save_file

import specdec
from processes import wait_for
from refusals import refuses, refuses_field
from specdec import drafts
from specdec.decoding.request import Request
from specdec.decoding.scheduler import Scheduler, decode, sequences_of
from specdec.drafts.learned.online.online_trainer import OnlineSamples, passages
from specdec.errors import CheckpointError, LearningError
from toy_pair import blurred
from worlds.folders import llama_config, tensors_for, write_hf
from worlds.learned import random_heads, recurrent_weights

N_VOCAB = 61
PROMPTS = [[3, 5, 8], [9, 2] * 5, list(range(20, 40)), [7], [1, 4, 4, 6]]
COUPLED: dict[str, Any] = {"temperature": 0.9, "verify": "coupled", "seed": 5}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[specdec.Model]:
    """A target whose next token depends on the last few tokens, and drafts of decreasing quality."""
    folder = tmp_path_factory.mktemp("models")
    config = llama_config(vocab_size=N_VOCAB, max_position_embeddings=200)
    tensors = {name: 2.0 * array for name, array in tensors_for(config, seed=3).items()}
    return [
        specdec.load(write_hf(folder / str(i), config, blurred(tensors, amount)), tokenizer=False)
        for i, amount in enumerate((0.0, 0.1, 0.3, 0.6))
    ]


def a_table() -> drafts.Ngram:
    return drafts.Ngram(np.arange(300) * 7 % N_VOCAB, N_VOCAB, 3)


class Takes(drafts.OnlineTrainer):
    """A trainer that learns nothing: it returns its draft and records its samples."""

    name = "takes"
    n_before, n_top = 5, 3

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.given: list[tuple[int, int]] = []

    def learn(self, samples: OnlineSamples, n_new: int, goes_on: Any) -> Any:
        self.given.append((len(samples), n_new))
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        self.answers.append(answer)
        return answer


def begun(target: specdec.Model, draft: Any, prompt: list[int], **options: Any) -> Any:
    """(the sequence, an iterator over its rounds), between which a test can act."""
    request = Request(target, draft, prompt, specdec.DecodingOptions(**options))
    sequences = sequences_of(request)
    return sequences[0], decode(Scheduler.of(request, sequences), sequences, 0.0)


METHODS = ("table", "model", "recurrent", "reduced", "heads")


def learning(method: str, models: list[specdec.Model], **options: Any) -> drafts.OnlineDraft:
    """Return one of `METHODS`; "reduced": a recurrent network with a reduced, permuted vocabulary."""
    ids, draft, trainer = list(range(N_VOCAB)), a_table(), drafts.OnlineNetworkTrainer
    if method == "table":
        return drafts.OnlineDraft(draft, interval=None)
    if method == "model":
        draft = drafts.ModelDraft(models[3])
    elif method == "heads":
        draft = drafts.DecodingHeads(random_heads(models[0], see_draft_tokens=True, tokens=ids[1:]))
        trainer = partial(drafts.OnlineHeadsTrainer, target=models[0])
    else:
        tokens = [*range(60, 30, -1), *range(10)] if method == "reduced" else None
        draft = drafts.RecurrentDraft(recurrent_weights(models[0], ids, (16, 32, 1), tokens=tokens))
    return drafts.OnlineDraft(draft, trainer=trainer(draft, **options), interval=None)


def serve(target: specdec.Model, draft: Any, seed: int) -> tuple[int, int]:
    """Serve some texts; return (accepted draft tokens, judged draft tokens)."""
    runs = specdec.generate(
        target, draft, PROMPTS * 4, temperature=1.0, seed=seed, max_new_tokens=60, gamma=3, ignore_eos=True
    )
    return (
        sum(run.trace.n_accepted for run in runs),
        sum(len(round_.betas) for run in runs for round_ in run.trace.rounds),
    )


def proposals(target: specdec.Model, draft: Any) -> list[Any]:
    """Draft tokens for the same prompts and seed, and their probabilities."""
    options: dict[str, Any] = {"temperature": 1.0, "seed": 5, "max_new_tokens": 30}
    runs = specdec.generate(target, draft.draft, PROMPTS, **options)
    return [(round_.drafted, round_.betas) for run in runs for round_ in run.trace.rounds]


@pytest.mark.parametrize("how", [{}, COUPLED], ids=["greedy", "coupled"])
@pytest.mark.parametrize("tree", [None, drafts.StaticTree((2, 1, 1))], ids=["chain", "tree"])
def test_output_is_plain_output_whatever_is_learned(
    models: list[specdec.Model], how: dict[str, Any], tree: Any
) -> None:
    """Drafts replace each other repeatedly within the text: alone, in an ensemble, in a batch."""
    target = models[0]
    options: dict[str, Any] = how | {"max_new_tokens": 40, "ignore_eos": True}
    choices = [drafts.ModelDraft(model, tree=tree) for model in models[1:]]
    plain = specdec.generate(target, None, PROMPTS, **options)
    online = drafts.OnlineDraft(choices[0], trainer=Takes(*choices[1:], choices[0]), interval=None)
    n_updates = 0
    for within in (online, drafts.Ensemble(drafts.RandomDraft(), online, adaptive=False)):
        for prompt, wanted in zip(PROMPTS, plain, strict=True):
            sequence, rounds = begun(target, within, prompt, **options | {"seed": [wanted.seed]})
            n_updates += sum(online.learn() for _ in rounds)
            assert sequence.tokens == wanted.tokens
    assert n_updates > 20
    for got, wanted in zip(specdec.generate(target, online, PROMPTS, **options), plain, strict=True):
        assert got.tokens == wanted.tokens


def test_a_run_that_goes_on_takes_what_has_been_learned(models: list[specdec.Model]) -> None:
    """After the target itself has become the draft, every draft token is right."""
    target = models[0]
    online = drafts.OnlineDraft(models[3], trainer=Takes(drafts.ModelDraft(target)), interval=None)
    before = specdec.generate(target, online, PROMPTS[0], max_new_tokens=30).trace
    assert before.n_accepted < before.n_drafted
    sequence, more = begun(target, online, PROMPTS[0], max_new_tokens=60)
    rounds = []
    for _, round_ in more:
        rounds.append(round_)
        if len(rounds) == 3:
            assert online.learn()
            prefill_s = sequence.prefill_s
    assert sequence.prefill_s == prefill_s > 0.0  # reading the text with the new draft is not prefill
    assert all(len(round_.path) == len(round_.drafted) for round_ in rounds[3:-1])
    assert specdec.generate(target, online, PROMPTS[1]).trace.acceptance_rate == 1.0


def test_runs_can_be_repeated_without_a_thread(models: list[specdec.Model]) -> None:
    """Above temperature 0 by rejection too: learning depends only on the served texts."""

    def texts() -> list[list[int]]:
        online, found = drafts.OnlineDraft(a_table(), interval=None), []
        options: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 20}
        for i, prompt in enumerate(PROMPTS * 2):
            found.append(specdec.generate(models[0], online, prompt, seed=i, **options).tokens)
            online.learn()
        return found

    assert texts() == texts()


@pytest.mark.parametrize("learns", [False, pytest.param(True, marks=pytest.mark.oracle)])
def test_threads_serve_and_learn_together(models: list[specdec.Model], learns: bool) -> None:
    """From a trainer that changes nothing but the draft, and a network that really learns."""
    plain = [result.tokens for result in specdec.generate(models[0], None, PROMPTS, max_new_tokens=60)]
    trainer = None if learns else Takes(*(drafts.ModelDraft(model) for model in models[1:]))
    got: list[Any] = []
    with drafts.OnlineDraft(models[1], trainer=trainer, interval=0.001) as online:

        def serve() -> None:
            for _ in range(3):
                results = specdec.generate(models[0], online, PROMPTS, max_new_tokens=60, n_threads=1)
                got.append([result.tokens for result in results])

        threads = [threading.Thread(target=serve) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait_for(lambda: online.n_updates > 0)
    assert got == [plain] * 9
    assert trainer is None or online.n_updates == len(trainer.given)


# -------------------------------------------------------------------------------------- what is learned


@pytest.mark.oracle
@pytest.mark.parametrize("method", METHODS)
def test_alpha_rises_beyond_chance(models: list[specdec.Model], method: str) -> None:
    """Compared with the initial draft, on texts that neither has seen; greedy output does not change."""
    options = {} if method == "table" else {"loss": "fkl", "learning_rate": 5e-3}
    online, target = learning(method, models, **options), models[0]
    first = online.draft
    for seed in range(6):
        serve(target, online, seed)
        assert online.learn()
    (a, n), (b, m) = serve(target, first, 100), serve(target, online.draft, 100)
    test = scipy.stats.fisher_exact([[a, n - a], [b, m - b]], alternative="less")
    assert test.pvalue < 1e-4, f"accepted {a} of {n} before, {b} of {m} after"
    greedy = [
        specdec.generate(target, draft, PROMPTS[0], max_new_tokens=30, ignore_eos=True).tokens
        for draft in (online, None)
    ]
    assert greedy[0] == greedy[1]


def samples_of(rows: list[tuple[int, list[int]]], n_before: int) -> OnlineSamples:
    """Make samples after texts, of which only counts and tokens matter."""
    before = [([-1] * n_before + text)[-n_before:] for _, text in rows]
    numbers, lengths = zip(*((number, len(text)) for number, text in rows), strict=True)
    zeros = np.zeros((len(rows), 1), np.int32)
    none = zeros.astype(np.float32)
    ints = (np.array(x, np.int32) for x in (before, zeros[:, 0], numbers, lengths, zeros))
    return OnlineSamples(*ints, none, none[:, 0], none[:, :0])


def test_passages_have_each_sample_once_after_its_text() -> None:
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, 9, 60).tolist() for _ in range(4)]
    rows = []
    for _ in range(50):
        number = int(rng.integers(4))
        rows.append((number, texts[number][: int(rng.integers(1, 60))]))
    rows = list({(number, len(text)): (number, text) for number, text in rows}.values())
    found = passages(samples_of(rows, 8), 20)
    assert sorted(row for passage in found for row in passage.rows) == list(range(len(rows)))
    for passage in found:
        assert len(passage.ids) <= 20
        for row, end in zip(passage.rows, passage.ends, strict=True):
            text = rows[row][1]
            before = passage.ids[: end + 1].tolist()
            assert len(before) >= min(8, len(text)) and before == text[len(text) - len(before) :]
    assert len(found) < len(rows)


def test_a_table_learns_what_the_target_predicts(models: list[specdec.Model]) -> None:
    """Counted again in plain Python, from the rounds and the target's logits."""
    target, ids = models[0], (np.arange(120) * 11 % N_VOCAB).tolist()
    trainer = drafts.OnlineTableTrainer(table := drafts.Ngram(ids, N_VOCAB, 3), weight=50)
    online = drafts.OnlineDraft(table, trainer=trainer, interval=None)
    result = specdec.generate(target, online, PROMPTS[1], max_new_tokens=25, ignore_eos=True)
    assert online.learn() and not online.learn()
    text, counted = list(PROMPTS[1]), [ids]
    for round_ in result.trace.rounds:
        n_path = len(round_.path)
        before = [*text, *round_.tokens[:n_path]]
        if n_path < len(round_.drafted):
            probs = specdec.distribution(target.logits(before)[-1], temperature=1.0)
            for token in np.argsort(-probs)[:8]:
                counted += [[*before[-2:], int(token)]] * round(50 * float(probs[token]))
        text += round_.tokens
    wanted, learned = drafts.Ngram(counted, N_VOCAB, 3), online.draft
    assert isinstance(learned, drafts.Ngram) and len(counted) > 5
    np.testing.assert_array_equal(learned.probabilities(text[:40]), wanted.probabilities(text[:40]))
    assert online.n_seen == sum(len(one.path) < len(one.drafted) for one in result.trace.rounds)


@pytest.mark.oracle
@pytest.mark.parametrize("method", METHODS[1:])
def test_weights_that_have_learned_nothing_are_what_they_were(
    models: list[specdec.Model], method: str
) -> None:
    """Through torch, a file or memory, and packing, to the bit."""
    online = learning(method, models)
    before = proposals(models[0], online)
    online._draft = online.trainer._exported()  # type: ignore[attr-defined]
    assert proposals(models[0], online) == before


@pytest.mark.oracle
def test_what_is_never_drafted_is_not_learned(models: list[specdec.Model]) -> None:
    import torch

    online = learning("reduced", models, loss="fkl")
    first = online.draft
    assert isinstance(first, drafts.RecurrentDraft) and first.weights.tokens is not None
    network = online.trainer._network  # type: ignore[attr-defined]
    ids = [3, 9, 27, 20, 60]
    logits = network(torch.tensor([ids]))[0].detach().numpy()
    np.testing.assert_allclose(logits, first.core.logits(ids), atol=1e-5)  # -inf where nothing is drafted
    serve(models[0], online, 0)
    assert online.learn()
    learned = online.draft
    assert isinstance(learned, drafts.RecurrentDraft)
    assert np.array_equal(learned.weights.tokens, first.weights.tokens)  # type: ignore[arg-type]
    after = learned.core.logits(ids)
    assert np.array_equal(np.isinf(after), np.isinf(logits)) and not np.array_equal(after, logits)


@pytest.mark.oracle
def test_the_loss_is_that_of_the_distributions(models: list[specdec.Model]) -> None:
    """Of the most probable tokens and the rest, against NumPy on the target's and draft's logits."""
    import torch

    from specdec.drafts.learned.networks import Objective
    from specdec.drafts.learned.online.online_trainer import target_of

    online = learning("model", models)
    model = online.draft.model  # type: ignore[attr-defined]
    text = [3, 9, 27, 20, 60]
    probs = [specdec.distribution(each.logits(text)[-1], temperature=1.0) for each in (models[0], model)]
    top = np.argsort(-probs[0])[:32]
    ints = (np.array(x, np.int32) for x in ([[-1] * 59 + text], [0], [0], [5], [top]))
    floats = (np.array(x, np.float32) for x in ([np.log(probs[0][top])], [1 - probs[0][top].sum()], [[]]))
    one = OnlineSamples(*ints, *floats)
    got = online.trainer._logits(passages(one, 128))  # type: ignore[attr-defined]
    np.testing.assert_allclose(got.detach().numpy()[0], model.logits(text)[-1], atol=2e-4)
    padded = torch.nn.functional.pad(got, (0, 1), value=float("-inf"))
    loss = Objective({"fkl": 1.0})(target_of(one, np.array([0]), N_VOCAB), padded).item()
    p, q = (np.append(each[top], 1 - each[top].sum()) for each in probs)
    np.testing.assert_allclose(loss, (p * np.log(p / q)).sum(), rtol=1e-4)
    fewer = target_of(one, np.array([0]), 40)  # a draft of 40 tokens
    assert fewer.tokens is not None and (fewer.tokens[0].numpy() == np.where(top < 40, top, 40)).all()


@pytest.mark.oracle
def test_a_loss_that_is_no_number_reaches_the_caller(models: list[specdec.Model]) -> None:
    online = learning("model", models, learning_rate=1e30)
    with pytest.raises((FloatingPointError, CheckpointError)):
        for seed in range(5):
            serve(models[0], online, seed)
            online.learn()


def test_the_last_samples_are_kept(models: list[specdec.Model]) -> None:
    trainer = Takes(drafts.ModelDraft(models[3]))
    online = drafts.OnlineDraft(models[3], trainer=trainer, interval=None, n_positions=2)
    for seed in range(3):
        serve(models[0], online, seed)
        online.learn()
    assert trainer.given == [(2, 2)] * 3


def test_no_two_texts_have_the_same_random_numbers(models: list[specdec.Model], tmp_path: Path) -> None:
    """A draft token learned from a text must not be judged by the random numbers that made this text."""
    online = drafts.OnlineDraft(a_table(), interval=None)
    options: dict[str, Any] = {"temperature": 1.0, "seed": 3, "max_new_tokens": 30}
    texts = [specdec.generate(models[0], online, PROMPTS[0], **options).tokens for _ in range(2)]
    online.save(tmp_path / "learned")
    again = drafts.OnlineDraft.load(tmp_path / "learned", a_table(), interval=None)
    texts.append(specdec.generate(models[0], again, PROMPTS[0], **options).tokens)
    assert len({tuple(text) for text in texts}) == 3
    coupled = [specdec.generate(models[0], online, PROMPTS[0], verify="coupled", **options) for _ in range(2)]
    assert coupled[0].tokens == coupled[1].tokens


# -------------------------------------------------------------------------------------------- threads


def test_a_thread_of_low_priority_learns_until_it_is_closed(models: list[specdec.Model]) -> None:
    names: list[Any] = []

    class Notes(Takes):
        def learn(self, samples: OnlineSamples, n_new: int, goes_on: Any) -> Any:
            where = threading.get_native_id()
            names.append((threading.current_thread().name, os.getpriority(os.PRIO_PROCESS, where)))
            return super().learn(samples, n_new, goes_on)

    trainer = Notes(drafts.ModelDraft(models[2]))
    with drafts.OnlineDraft(models[3], trainer=trainer, interval=0.001) as online:
        assert not online.is_learning
        specdec.generate(models[0], online, PROMPTS[1], max_new_tokens=80, temperature=1.0, seed=1)
        assert online.is_learning
        wait_for(lambda: online.n_updates > 0)
    assert not online.is_learning
    assert names[0] == ("specdec-trainer", 19 if sys.platform == "linux" else names[0][1])
    assert not any(thread.name == "specdec-trainer" for thread in threading.enumerate())
    n = online.n_updates
    assert specdec.generate(models[0], online, PROMPTS[1], max_new_tokens=20).tokens
    assert online.n_updates == n and not online.is_learning and online.draft is trainer.answers[0]
    online.close()


def test_the_thread_goes_with_its_object(models: list[specdec.Model]) -> None:
    online = drafts.OnlineDraft(models[1], trainer=Takes(drafts.ModelDraft(models[2])), interval=0.001)
    specdec.generate(models[0], online, PROMPTS[0], max_new_tokens=10)
    gone = weakref.ref(online)
    del online
    wait_for(lambda: gc.collect() >= 0 and gone() is None)
    wait_for(lambda: not any(thread.name == "specdec-trainer" for thread in threading.enumerate()))


def test_an_error_of_the_trainer_is_raised_by_the_next_run(models: list[specdec.Model]) -> None:
    fault = FloatingPointError("the loss is nan")
    with drafts.OnlineDraft(models[3], trainer=Takes(fault), interval=0.001) as online:
        specdec.generate(models[0], online, PROMPTS[0], max_new_tokens=40, temperature=1.0, seed=1)
        wait_for(lambda: not online.is_learning)
        for within in (online, drafts.Ensemble(online)):
            with pytest.raises(LearningError, match="FloatingPointError: the loss is nan") as caught:
                specdec.generate(models[0], within, PROMPTS[0])
            assert caught.value.__cause__ is fault
    assert specdec.generate(models[0], online.draft, PROMPTS[0], max_new_tokens=3).tokens
    online = drafts.OnlineDraft(models[3], trainer=Takes(fault), interval=None)
    specdec.generate(models[0], online, PROMPTS[0], max_new_tokens=40, temperature=1.0, seed=1)
    with pytest.raises(FloatingPointError):
        online.learn()


SCRIPT = """
import os, sys, threading, time
import specdec
from specdec import drafts
target, _ = specdec.embedded_pair()
table = drafts.Ngram(list(range(100)) * 3, target.config.n_vocab, 3)
online = drafts.OnlineDraft(table, interval=0.001)
options = {"max_new_tokens": 20, "n_threads": 1}
before = specdec.generate(target, online, "Once upon", **options).tokens
while online.n_updates == 0:
    time.sleep(0.01)
child = os.fork() if hasattr(os, "fork") else 0
if child == 0:
    same = specdec.generate(target, online, "Once upon", **options).tokens == before
    alone = threading.active_count() == 1 and not online.is_learning
    online.learn()
    print("child", same, alone, flush=True)
    sys.exit(0)
os.waitpid(child, 0)
print("parent", specdec.generate(target, online, "Once upon", **options).tokens == before, online.is_learning)
"""


@pytest.mark.slow
def test_forks_and_the_end_of_the_interpreter() -> None:
    """A child continues to draft without a thread; a process that closes nothing still exits."""
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    assert run.stdout.splitlines() == ["child True True", "parent True True"]


# ---------------------------------------------------------------------------------------------- files


@pytest.mark.oracle
@pytest.mark.parametrize("method", METHODS)
def test_what_is_saved_goes_on_to_the_bit(models: list[specdec.Model], method: str, tmp_path: Path) -> None:
    """Weights, moments, samples and counts: both objects draft alike after the next step."""
    online, target = learning(method, models), models[0]
    serve(target, online, 0)
    online.learn()
    online.save(tmp_path / "learned")
    made = learning(method, models)
    loaded = drafts.OnlineDraft.load(tmp_path / "learned", made.draft, trainer=made.trainer, interval=None)
    assert (loaded.n_seen, loaded.n_updates) == (online.n_seen, online.n_updates)
    for one in (online, loaded):
        one.trainer._rng = np.random.default_rng(4)  # type: ignore[attr-defined]  # draws samples; not saved
        serve(target, one, 1)
        assert one.learn()
    ours, theirs = online.trainer.state(), loaded.trainer.state()
    assert ours.keys() == theirs.keys() and (method == "table" or len(ours) > 4)
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    assert proposals(target, online) == proposals(target, loaded)
    few = drafts.OnlineDraft.load(
        tmp_path / "learned", made.draft, trainer=made.trainer, interval=None, n_positions=2
    )
    assert len(few._samples) == 2


def changed(path: Path, metadata: Mapping[str, str] | None = None, **arrays: Any) -> Path:
    """Copy a file of samples with some arrays changed or removed."""
    with safe_open(path, "numpy") as file:
        held = {name: file.get_tensor(name) for name in file.keys()}
        words = file.metadata() | (metadata or {})
    held |= {f"samples.{name}": array for name, array in arrays.items()}
    save_file({name: array for name, array in held.items() if array is not None}, f"{path}.changed", words)
    return Path(f"{path}.changed")


def test_damaged_files_are_refused_by_name(models: list[specdec.Model], tmp_path: Path) -> None:
    online, file = learning("table", models), tmp_path / "learned"
    serve(models[0], online, 1)
    online.learn()
    online.save(file)
    n, load = len(online._samples), partial(drafts.OnlineDraft.load, interval=None)
    for field, value in (("format", "x"), ("trainer", "network")):
        with refuses_field(f"{file}.changed", field):
            load(changed(file, {field: value}), a_table())
    cases: dict[str, dict[str, Any]] = {
        "'n_seen' is 'many'; expected a whole number": {"metadata": {"n_seen": "many"}},
        "'samples.rest' is missing": {"rest": None},
        "tensor 'samples.top' has int32": {"top": np.zeros((n, 3), np.int32)},
        "tensor 'samples.before' has int32": {"depth": np.zeros(n + 1, np.int32)},
        "tensor 'samples.before' has -2; expected -1 or more": {"before": np.full((n, 2), -2, np.int32)},
        "tensor 'samples.before' does not end with": {"before": np.full((n, 2), -1, np.int32)},
        "tensor 'samples.position' has 0; expected 1 or more": {"position": np.zeros(n, np.int32)},
        "tensor 'samples.rest' has values outside": {"rest": np.full(n, np.nan, np.float32)},
        "tensor 'samples.log_probs' has values outside": {"log_probs": np.ones((n, 8), np.float32)},
    }
    for message, changes in cases.items():
        with pytest.raises(CheckpointError, match=message):
            load(changed(file, **changes), a_table())
    with pytest.raises(CheckpointError, match=r"samples\.before"):
        load(file, drafts.Ngram([1, 2, 3], N_VOCAB, 5))
    (tmp_path / "cut").write_bytes(file.read_bytes()[:-3])
    for path in (tmp_path / "cut", tmp_path / "none"):
        with pytest.raises(CheckpointError, match=path.name):
            load(path, a_table())


@pytest.mark.oracle
def test_damaged_states_are_refused_by_name(models: list[specdec.Model]) -> None:
    online = learning("recurrent", models)
    serve(models[0], online, 0)
    online.learn()
    state, name = dict(online.trainer.state()), "output.bias"
    for part, array, message in (
        ("parameter", None, "is missing"),
        ("first", np.zeros(3, np.float32), "has float32, .3.; expected float32, .61."),
        ("steps", np.zeros(1, np.int32), "is .*; expected one number above 0"),
        ("parameter", np.full(61, np.nan, np.float32), "has a value that is not finite"),
        ("first", np.full(61, np.inf, np.float32), "has a value that is not finite"),
        ("second", np.full(61, -1.0, np.float32), "has a value below 0"),
        ("other", np.zeros(1, np.float32), "is not part of this"),
    ):
        bad = {key: held for key, held in (state | {f"{part}.{name}": array}).items() if held is not None}
        with pytest.raises(ValueError, match=f"'{part}.{name}' {message}"):
            online.trainer.restore(bad, online._samples)


@pytest.mark.oracle
def test_arguments_are_refused_by_name(models: list[specdec.Model]) -> None:
    table, model = a_table(), drafts.ModelDraft(models[3])
    for make, name, value in (
        *((drafts.OnlineDraft, "interval", value) for value in (0, float("nan"))),
        (drafts.OnlineDraft, "n_positions", 0), (drafts.OnlineDraft, "trainer", 3),
        (drafts.OnlineTableTrainer, "weight", 0),
    ):  # fmt: skip
        with refuses(name, value):
            make(table, **{name: value})  # type: ignore[arg-type]
    wrong = {
        "loss": "kl",
        "learning_rate": 0,
        "passes": -1,
        "batch": 0,
        "n_before": 1,
        "n_top": 0,
        "seed": -1,
    }
    for name, value in wrong.items():
        with refuses(name, value):
            drafts.OnlineNetworkTrainer(model, **{name: value})  # type: ignore[arg-type]
    nested = drafts.ModelDraft(models[3], draft=drafts.RandomDraft())
    heads = drafts.DecodingHeads(random_heads(models[0]))
    for make in (
        *(
            partial(drafts.OnlineDraft, draft)
            for draft in (drafts.RandomDraft(), drafts.OnlineNgram(3), heads)
        ),
        *(partial(drafts.OnlineNetworkTrainer, d) for d in (drafts.RandomDraft(), nested)),  # type: ignore[arg-type]
        partial(drafts.OnlineHeadsTrainer, model, models[0]),  # type: ignore[arg-type]
    ):
        with refuses("draft"):
            make()
