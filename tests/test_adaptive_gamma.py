"""gamma="auto" and gamma=callable: quality of choices on simulated times; only speed depends on it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from allocations import needs_hooks
from compiled import counted_work
from descriptions import by_method
from drafters import DRAFTS
from drafters import World as Models
from exact import Drafts, Tokens, cells, chain_distribution, first_tokens, question
from refusals import refuses
from sessions import Session
from simulated_rounds import MAX_GAMMA, Play, World
from specdec import AdaptiveGamma, _core, drafts
from specdec.decoding.adaptive_gamma import AUTO_GAMMA, RunType
from specdec.drafts.model_draft import as_draft
from toy_pair import blurred
from trained import small_pair
from weights import verify_weights
from worlds.canonical import LLAMA, build, random_tensors, with_drafts
from worlds.folders import llama_config, tensors_for, write_hf

# --------------------------------------------------------------------------- the policy, without a clock

FLAT = lambda m: 1.0  # noqa: E731
SLOPE = lambda m: 0.95 + 0.05 * m  # noqa: E731
STEEP = lambda m: 0.8 + 0.2 * m  # noqa: E731
JUMP = lambda m: 1.0 if m == 1 else 1.28 + 0.02 * m  # noqa: E731
KINK = lambda m: 0.95 + 0.05 * m + 0.15 * max(0, m - 4)  # noqa: E731
"""Seconds of the target, t(M); plain decoding takes one."""


def alike(alpha: float) -> list[tuple[float, float, float]]:
    """All draft tokens have the same acceptance rate and confidence."""
    return [(1.0, 0.5, alpha)]


def mixed(sure: float, unsure: float) -> list[tuple[float, float, float]]:
    """Half of the draft tokens have high confidence."""
    return [(0.5, 0.95, sure), (0.5, 0.25, unsure)]


def rates_of(world: World, n_tokens: int) -> tuple[float, float]:
    """Tokens per second over the first 150 tokens, and over the following ones."""
    plays = [Play(world, seed) for seed in range(4)]
    cold, warm = (np.mean([play.rate(n) for play in plays]) for n in (150, n_tokens))
    return float(cold), float(warm)


@pytest.mark.grid
@needs_hooks
@pytest.mark.parametrize("verify", [FLAT, SLOPE, STEEP, JUMP, KINK])
@pytest.mark.parametrize("cost", [0.005, 0.1, 0.3])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.6, 0.8, 0.95])
def test_it_comes_near_the_best_fixed_gamma(verify: Any, cost: float, alpha: float) -> None:
    """With uninformative confidences, a fixed gamma is optimal."""
    world = World(verify, cost, alike(alpha))
    cold, warm = rates_of(world, 1000)
    assert cold > 0.75 * world.best_rate and cold > 0.93 * world.plain_rate
    assert warm > 0.95 * world.best_rate and warm > 0.98 * world.plain_rate


def of_experts(n: int, n_chosen: int, share: float, overlap: float = 0.0) -> Any:
    """t(M) if experts take `share` of t(1); `overlap`: rows share more of them than by chance."""
    fresh = (1.0 - n_chosen / n) * (1.0 - overlap)
    return lambda m: (1 - share) * (0.97 + 0.03 * m) + share * (1 - fresh**m) / (1 - fresh)


@pytest.mark.grid
@needs_hooks
@pytest.mark.parametrize("experts", [(128, 8, 0.8), (64, 8, 0.8), (32, 4, 0.85), (8, 2, 0.9)])
@pytest.mark.parametrize("overlap", [0.0, 0.3])
@pytest.mark.parametrize("cost", [0.005, 0.1])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.6, 0.8, 0.95])
def test_targets_with_experts_are_no_slower_than_plain_decoding(
    experts: tuple[int, int, float], overlap: float, cost: float, alpha: float
) -> None:
    """A second row reads almost as many experts as the first, so that speculation often does not pay."""
    n, n_chosen, share = experts
    verify = of_experts(n, n_chosen, share, overlap)
    world = World(verify, cost, alike(alpha), reading=(share, 1.0 - n_chosen / n))
    cold, warm = rates_of(world, 1500)
    assert cold > 0.9 * world.plain_rate and warm > 0.98 * world.plain_rate
    assert warm > 0.78 * world.best_rate


@pytest.mark.grid
@needs_hooks
@pytest.mark.parametrize("slope", [0.002, 0.01, 0.03, 0.1])
@pytest.mark.parametrize("extra_tokens", [2, 4])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.6, 0.8, 0.95])
def test_extra_rows_are_counted(slope: float, extra_tokens: int, alpha: float) -> None:
    """Look-ahead embeddings: draft tokens cost nothing to draft, but each is several rows of the target."""
    world = World(lambda m: 1.0 - slope + slope * m, 0.0001, alike(alpha), extra_tokens=extra_tokens)
    cold, warm = rates_of(world, 1500)
    assert cold > 0.93 * world.plain_rate and warm > 0.98 * world.plain_rate
    assert warm > 0.96 * world.best_rate


SURE = mixed(0.95, 0.3)
THIRD = [(0.35, 0.95, 0.95), (0.65, 0.2, 0.0)]
"""A third of the draft tokens is always accepted, the others never: no fixed gamma pays if rows cost much."""


@needs_hooks
@pytest.mark.parametrize(
    ("verify", "cost", "levels", "looks", "gain"),
    [
        *((SLOPE, 0.02, SURE, looks, 1.02) for looks in (False, True)),
        *((SLOPE, 0.1, SURE, looks, 1.03) for looks in (False, True)),
        *((STEEP, 0.1, SURE, looks, 1.02) for looks in (False, True)),
        (lambda m: 0.6 + 0.4 * m, 0.01, THIRD, True, 1.1),
    ],
)
def test_it_beats_every_fixed_gamma_where_confidences_tell(
    verify: Any, cost: float, levels: Any, looks: bool, gain: float
) -> None:
    world = World(verify, cost, levels, looks=looks)
    assert (world.best_rate == world.plain_rate) == (levels is THIRD)
    assert np.mean([Play(world, seed).rate(1750) for seed in range(3)]) > gain * world.best_rate


@needs_hooks
@pytest.mark.parametrize("reading", [0.0, 0.01, 0.05])
@pytest.mark.parametrize("n_prompt", [0, 100])
def test_what_a_rested_draft_has_missed_is_read_only_where_that_is_paid_for(
    reading: float, n_prompt: int
) -> None:
    """Useless draft tokens: before each trial the draft reads the tokens since the last, `reading` s each.

    A plain round takes 1 s. At the start of a session the draft has missed the prompt.
    """
    for n_sessions, n_tokens in ((1, 6000), (30, 300)):
        learned = _core.AdaptiveGamma()
        lost = first = 0.0
        asked_at: list[list[int]] = []
        for _ in range(n_sessions):
            rests = learned.view()["pause_left"] > 0.0
            _core._adaptive_gamma_start(learned, n_prompt)
            missed = n_prompt if rests else 0  # unless paused, it gets the prompt at once
            asked_at.append([])
            for i in range(n_tokens):
                asked = _core._adaptive_gamma_begin(learned, 1, 4)
                draft_s, rest_s = (0.5 + reading * missed, 1.1) if asked else (0.0, 1.0)
                missed = 0 if asked else missed + 1
                chain = ([0.5], 0, 0, 0.0) if asked else ([], 0, 0, 0.0)
                _core._adaptive_gamma_end(learned, (chain,), 1, draft_s, rest_s)
                lost += draft_s + rest_s - 1.0
                asked_at[-1] += [i] * asked
            first = first or lost
        if n_sessions > 1:
            assert first < 0.1 * n_tokens and lost - first < 0.01 * (n_sessions - 1) * n_tokens
            n_tried = sum(min(tried, default=9) < 5 for tried in asked_at)  # at the start of a text
            assert n_tried > (20 if n_prompt * reading <= 1 else 5)
        else:  # reading a longer text at once is paid back later
            assert lost < (0.035 if reading > 0.02 else 0.02) * n_tokens
            assert asked_at[0][-1] > n_tokens / 4  # its estimates are kept


@needs_hooks
def test_drafting_comes_back_when_it_pays() -> None:
    """After a pause of at most 4096 times the cost of a proposal: 600 tokens here."""
    play = Play(World(SLOPE, 0.1, alike(0.0)), 2)
    play.rate(1000)
    play.world = World(SLOPE, 0.1, alike(0.8))
    play.rate(1100)
    assert play.rate(400) > 0.93 * play.world.best_rate


@needs_hooks
def test_it_adapts_within_some_tens_of_tokens() -> None:
    """Good drafts, bad ones, good ones again: the text has changed."""
    play = Play(World(SLOPE, 0.1, alike(0.9)), 3)
    play.rate(500)
    long = np.mean(play.gammas[-50:])
    play.world = World(SLOPE, 0.1, alike(0.3))
    play.rate(80)
    assert play.rate(300) > 0.9 * play.world.best_rate and np.mean(play.gammas[-50:]) < 0.4 * long
    play.world = World(SLOPE, 0.1, alike(0.9))
    play.rate(150)
    assert play.rate(400) > 0.9 * play.world.best_rate


@needs_hooks
def test_a_machine_shared_with_others_changes_no_choice() -> None:
    """For half of the time everything takes four times as long."""
    world, gammas = World(KINK, 0.1, alike(0.8)), []
    for seed in range(6):
        play = Play(world, seed)
        play.rate(300)
        for i in range(10):
            factor = 4.0 if i % 2 else 1.0
            play.world = World(lambda m, factor=factor: factor * KINK(m), 0.1 * factor, world.levels)
            play.rate(150)
            gammas += play.gammas[-40:]
    wanted = max(range(MAX_GAMMA + 1), key=world.fixed_rate)
    assert abs(np.mean(gammas) - wanted) < 0.5
    assert np.mean([world.fixed_rate(g) for g in gammas]) > 0.97 * world.best_rate


@needs_hooks
@pytest.mark.parametrize(("noise", "accidents"), [(0.05, 0.02), (0.15, 0.05)])
def test_noisy_times_lead_to_no_longer_drafts(noise: float, accidents: float) -> None:
    """Four sequences, one draft token each is best, and rows beyond 8 cost more than a line predicts."""
    verify = lambda m: 3.0 + 0.24 * m + 0.17 * max(0, m - 8)  # noqa: E731
    world = World(verify, 0.12, alike(0.7), together=0.25, noise=noise, accidents=accidents)
    rates = [world.fixed_rate(gamma, 4) for gamma in range(5)]
    assert np.argmax(rates) == 1
    plays = [Play(world, seed) for seed in range(6)]
    for play in plays:
        play.rate(600, 4)
    assert np.mean([play.rate(3000, 4) for play in plays]) > 0.985 * rates[1]


@needs_hooks
def test_slow_rounds_do_not_add_up() -> None:
    """One round in ten takes three times as long. Plain decoding is measured far less often than drafting.

    Its measurements stay right in proportion: a plain round takes 1 s, one of 5 rows 1.2 s.
    """
    learned, rng = _core.AdaptiveGamma(), np.random.default_rng(1)
    chain, nothing = ([0.5] * 4, 3, 0, 0.0), ([], 0, 0, 0.0)
    proportions = []
    for i in range(30_000):
        asked = _core._adaptive_gamma_begin(learned, 1, 8)
        noise = float(np.exp(rng.normal(0.0, 0.2))) * (3.0 if rng.random() < 0.1 else 1.0)
        rest_s = (1.2 if asked else 1.0) * noise
        _core._adaptive_gamma_end(learned, (chain if asked else nothing,), 4 if asked else 1, 0.2, rest_s)
        if i > 10_000 and i % 100 == 0:
            view = learned.view()
            proportions.append(view["target_s"][0] / view["target_s"][4])
    assert 0.7 < np.mean(proportions) < 0.95


@needs_hooks
def test_in_a_batch_rows_are_those_of_all() -> None:
    """Eight sequences: rows beyond 16 are expensive, so each drafts one or two; alone it would draft more."""
    verify = lambda m: 1.0 + 0.01 * m + 0.2 * max(0, m - 16)  # noqa: E731
    world = World(verify, 0.005, alike(0.7))
    play = Play(world, 5)
    play.rate(2000, 8)
    rate = play.rate(4000, 8)
    fixed = [8 * sum(0.7**k for k in range(g + 1)) / (verify(8 * (g + 1)) + 8 * g * 0.005) for g in range(6)]
    assert np.argmax(fixed) == 1 and rate > 0.95 * max(fixed)
    assert np.mean(play.gammas[-100:]) < 12
    alone = Play(world, 5)
    alone.rate(500)
    assert np.mean(alone.gammas[-50:]) > 5


COMPUTE = lambda m: 3.6 + 0.45 * min(m, 16) + 0.64 * max(0, m - 16)  # noqa: E731
MEMORY = lambda m: 1.0 + 0.01 * m + 0.05 * max(0, m - 16)  # noqa: E731
"""Milliseconds of a pass limited by arithmetic (measured) or, up to 16 rows, by reading weights."""


@needs_hooks
@pytest.mark.parametrize("n", [1, 4, 16, 64])
@pytest.mark.parametrize("verify", [COMPUTE, MEMORY])
@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.6])
def test_a_first_call_loses_little_in_any_batch(verify: Any, alpha: float, n: int) -> None:
    """Nothing is known: a trial costs little, in large batches because only a share of them drafts."""
    world = World(verify, 0.1 * verify(1), alike(alpha), together=0.2)
    best = max(world.fixed_rate(gamma, n) for gamma in range(17))
    plays = [Play(world, seed) for seed in range(6)]
    first = np.mean([play.rate(32 * n, n) for play in plays])
    later = np.mean([play.rate(96 * n, n) for play in plays])
    assert first > 0.93 * world.fixed_rate(0, n) and first > 0.92 * best
    assert later > 0.96 * best and later > 0.98 * world.fixed_rate(0, n)


@needs_hooks
def test_batches_of_other_sizes_have_their_own_estimates() -> None:
    """Drafting pays for one sequence and not for 64; sessions of both sizes alternate."""
    world = World(COMPUTE, 0.36, alike(0.8), together=0.2)
    play = Play(world, 1)
    for turn in range(6):
        for n, n_tokens in ((64, 64 * 40), (1, 40)):
            _core._adaptive_gamma_start(play.learned, 0, n)  # type: ignore[attr-defined]
            rate = play.rate(n_tokens, n)
            if turn > 1:
                best = max(world.fixed_rate(gamma, n) for gamma in range(17))
                assert rate > 0.94 * best, (n, turn)


@needs_hooks
def test_free_slots_do_not_change_the_price_of_drafts() -> None:
    """Drafts that pay for one sequence and not for four, in a session of as many slots or of 64."""
    world, found = World(COMPUTE, 0.36, alike(0.8), together=0.2), []
    learned = Play(world, 1).learned
    Play(world, 1, learned).rate(200)
    for n_slots in (4, 64):
        play = Play(world, 2, learned.copy())
        _core._adaptive_gamma_start(play.learned, 0, n_slots)  # type: ignore[attr-defined]
        play.rate(4 * 40, 4)
        found.append(play.gammas)
    assert found[0] == found[1]


@needs_hooks
def test_one_slow_plain_round_does_not_make_drafts_look_good() -> None:
    """The first plain round takes three times as long; later ones show that it was an outlier."""
    learned = _core.AdaptiveGamma()
    n_drafting = 0
    for i in range(60):
        asked = _core._adaptive_gamma_begin(learned, 1, 4)
        n_drafting += asked
        chain = (([0.5], 0, 0, 0.0),) if asked else (([], 0, 0, 0.0),)
        _core._adaptive_gamma_end(learned, chain, 1, 0.3 * asked, 3.0 if i == 0 else 1.0 + 0.2 * asked)
    assert n_drafting < 12


def new_session(target: Any, draft: Any, prompts: Any, **how: Any) -> Session:
    greedy = {"temperature": 0.0}
    seeds = [(1, i) for i in range(len(prompts))]
    how = {"max_new_tokens": 9, "sampling": greedy, "draft_sampling": greedy, "n_threads": 1} | how
    return Session(target, draft, prompts, seeds=seeds, **how)


def test_only_what_a_session_has_learned_is_taken() -> None:
    """Estimates come from sessions only, so none can be wrong."""
    target = build(LLAMA, random_tensors(LLAMA))
    for wrong in ([0.0], np.zeros(900), 1.0, specdec.AdaptiveGamma()):
        with pytest.raises(TypeError, match="adaptive_gamma: expected specdec._core.AdaptiveGamma, not"):
            new_session(target, by_method("random"), [[1]], gamma=3, adaptive_gamma=wrong)
    with pytest.raises(TypeError):
        _core.AdaptiveGamma(3)  # type: ignore[call-arg]


def test_a_copy_learns_by_itself() -> None:
    first = _core.AdaptiveGamma()
    fresh = first.view()
    target = build(LLAMA, random_tensors(LLAMA))
    for draft in (by_method("model", target), by_method("random"), by_method("context_copy", None, 1, 3)):
        session = new_session(
            target, draft, [[1, 2, 3], [4]], gamma=70, max_new_tokens=40, adaptive_gamma=first
        )
        session.prefill()
        while session.round():
            pass
        second = session.adaptive_gamma
        assert second is not None and second.view() != fresh and first.view() == fresh
        assert second.copy().view() == second.view()


# ------------------------------------------------------------------------- exactness of stopping early

N_VOCAB = 3
TELLING = [(0.5, 0.7, 0.95), (0.5, 0.15, 0.1)]


def conditional(seed: int, sharpness: float) -> Any:
    def probs(prefix: Tokens) -> np.ndarray:
        row = np.random.default_rng([seed, len(prefix), *prefix]).normal(0.0, sharpness, N_VOCAB)
        return np.exp(row) / np.exp(row).sum()

    return probs


def learned_in(world: World, seed: int, n_tokens: int, gamma: int) -> _core.AdaptiveGamma:
    """A policy in a round that drafts, after so many tokens in a simulated world."""
    play = Play(world, seed)
    play.rate(n_tokens)
    while not _core._adaptive_gamma_begin(play.learned, 1, gamma):
        play.round()
    return play.learned


def stopped_chains(draft: Any, learned: _core.AdaptiveGamma, longest: int) -> Iterator[Drafts]:
    """Every chain of draft tokens that the policy makes, which stops depending on the confidences so far."""

    def grow(tokens: Tokens, rows: list[np.ndarray], probability: float) -> Iterator[Drafts]:
        confidences = [float(row[token]) for row, token in zip(rows, tokens, strict=True)]
        if len(tokens) == longest or not _core._adaptive_gamma_pays(learned, confidences, False):
            prefixes = [tokens[:i] for i in range(len(tokens) + 1)]
            probs = np.array([np.zeros(N_VOCAB), *rows])
            yield Drafts([0, *tokens], prefixes, probs, probability)
            return
        row = draft(tokens)
        for token in range(N_VOCAB):
            yield from grow((*tokens, token), [*rows, row], probability * float(row[token]))

    yield from grow((), [], 1.0)


@needs_hooks
@pytest.mark.parametrize("rule", ["rejection", "traversal"])
def test_stopping_by_confidence_leaves_the_distribution_alone(rule: str) -> None:
    """Summed over all chains that the learned policy makes and all random numbers of the compiled rule."""
    target, draft = conditional(1, 1.0), conditional(2, 1.5)
    # Only confident draft tokens are good, so chains stop after the first other one.
    learned = learned_in(World(SLOPE, 0.02, TELLING), 6, 800, MAX_GAMMA)
    longest, outputs, lengths = 3, {}, set()
    for tree in stopped_chains(draft, learned, longest):
        n = len(tree.tokens)
        lengths.add(n - 1)
        parents = list(range(-1, n - 1))
        order = list(range(n - 1, 0, -1)) if rule == "traversal" else None  # the last to be kept decides
        boxes = cells(partial(verify_weights, rule=rule), *question(tree, parents, target), order)
        for box in boxes:
            output = (*(tree.tokens[node] for node in box.path), box.token)
            outputs[output] = outputs.get(output, 0.0) + tree.probability * box.probability
    assert len(lengths) > 1, "every chain was as long, so nothing was shown"
    got, wanted = first_tokens(outputs, target, longest + 1), chain_distribution(target, longest + 1)
    assert got.keys() == wanted.keys()
    np.testing.assert_allclose([got[key] for key in wanted], list(wanted.values()), rtol=0, atol=1e-12)


@needs_hooks
@pytest.mark.parametrize("name", ["model", "bigram"])
def test_no_draft_token_is_dropped_after_a_look_at_it(name: str, tmp_path: Path) -> None:
    """Sampling with a learned policy: the core's proposals are all possible ones.

    If a drawn token were dropped because of its value, the proposal without it would be counted besides
    those with further tokens, and the probabilities of all proposals, products of their nodes', would add up
    to more than 1. Rare proposals that did not occur are missing.
    """
    settings = llama_config(vocab_size=N_VOCAB, hidden_size=16, intermediate_size=24)
    tensors = {key: array * 1.5 for key, array in tensors_for(settings, seed=3).items()}
    target = specdec.load(write_hf(tmp_path / "target", settings, tensors))
    small = specdec.load(write_hf(tmp_path / "draft", settings, blurred(tensors, 0.3)))
    bigram = drafts.Bigram([0, 1, 2, 0, 1, 1, 0, 2, 0, 1, 2, 2, 0, 1], N_VOCAB)
    draft: Any = {"model": small, "bigram": bigram}[name]
    learned = learned_in(World(SLOPE, 0.02, TELLING, looks=True), 7, 1000, 3)
    proposals: dict[Any, float] = {}
    for seed in range(1500):
        session = Session(
            target.core, as_draft(target, draft).describe(target), [[1, 2, 0, 1]], gamma=3, max_new_tokens=5,
            sampling={"temperature": 1.0}, draft_sampling={"temperature": 1.0}, seeds=[(seed, 0)],
            n_threads=1, adaptive_gamma=learned.copy(),
        )  # fmt: skip
        with_drafts(session).prefill()
        (record,) = session.round()
        rows = record["draft_probs"]
        chance = np.prod([rows[i + 1, token] for i, token in enumerate(record["drafted"])])
        proposals[(*record["drafted"],), (*record["parents"],)] = float(chance)
    assert len({len(tokens) for tokens, _ in proposals}) > 1, "all were as long, so nothing was shown"
    assert 0.98 < sum(proposals.values()) < 1 + 1e-9


@needs_hooks
def test_a_tree_grows_only_where_a_row_may_pay() -> None:
    """Where rows of the target cost more, the draft takes fewer passes: it expands no unlikely nodes."""
    target, small = small_pair()
    draft = as_draft(target, drafts.ModelDraft(small, tree=drafts.DynamicTree(8, width=2, steps=8)))
    passes = {FLAT: 0, STEEP: 0}
    for (verify, _), first in itertools.product(passes.items(), range(300, 310)):
        learned = learned_in(World(verify, 0.005, TELLING), 7, 1000, 8)
        session = Session(
            target.core, draft.describe(target), [[first, 310]], gamma=8, max_new_tokens=9,
            sampling={"temperature": 0.0}, n_threads=1, adaptive_gamma=learned,
        )  # fmt: skip
        with_drafts(session).prefill()
        with counted_work() as work:
            session.round()
        passes[verify] += work.forwards - 1  # without the target's
    assert passes[STEEP] < 0.75 * passes[FLAT]


# ------------------------------------------------------------------------------------ with real models

HOW: dict[str, dict[str, Any]] = {
    "greedy": {},
    "coupled": {"temperature": 0.9, "top_p": 0.95, "verify": "coupled", "seed": 5},
}


@pytest.fixture(scope="module")
def models() -> Models:
    target, draft = small_pair()
    text = "It was the best of times, it was the worst of times, it was the age of wisdom. " * 12
    return Models(target, draft, target.tokenizer.encode(text))


OF_A_RUN: dict[str, Any] = {"max_new_tokens": 30, "ignore_eos": True, "logits": True, "n_threads": 1}


def prompts_of(models: Models) -> list[list[int]]:
    return [models.ids[:9], models.ids[20:60] + models.ids[20:50]]


def test_the_trace_shows_the_plan(models: Models) -> None:
    auto = AdaptiveGamma()
    for draft in (models.draft, drafts.RandomDraft()):
        out = specdec.generate(models.target, draft, models.ids[:9], gamma=auto, max_new_tokens=60)
        rounds = out.trace.rounds
        assert all(r.gain >= 1.0 and -1 <= r.planned <= AUTO_GAMMA for r in rounds)
        paused = [r for r in rounds if r.planned == -1]
        assert all(r.n_drafted == 0 and r.gain == 1.0 for r in paused)
        assert bool(paused) or draft is models.draft, "random draft tokens do not pay"
        assert specdec.Trace.from_dict(out.trace.to_dict()).rounds == rounds
    plain = specdec.generate(models.target, None, models.ids[:9], max_new_tokens=5).trace.rounds
    assert {(r.planned, r.gain) for r in plain} == {(0, 0.0)}


def odd(rounds: Sequence[specdec.Round]) -> int:
    return (3 * len(rounds)) % 5


MOST = [pytest.param(name, marks=pytest.mark.slow) for name in DRAFTS if name not in ("model", "ensemble")]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", ["model", "ensemble", *MOST])
def test_output_is_plain_output(models: Models, name: str, how: str) -> None:
    """Over ten rounds; greedily a policy drafts for each prompt alone and `odd` for both, else vice versa."""
    options, prompts, draft = HOW[how] | OF_A_RUN, prompts_of(models), DRAFTS[name](models)
    plain = specdec.generate(models.target, None, prompts, **options)
    for gamma, in_batch in ((AdaptiveGamma(), how == "coupled"), (odd, how == "greedy")):
        for chosen in [[0, 1]] if in_batch else [[0], [1]]:
            given, seeds = [prompts[i] for i in chosen], [plain[i].seed for i in chosen]
            found = specdec.generate(models.target, draft, given, gamma=gamma, **options | {"seed": seeds})
            for got, i in zip(found, chosen, strict=True):
                assert got == plain[i] and np.array_equal(got.logits, plain[i].logits)


def test_what_was_learned_stays(models: Models) -> None:
    auto = AdaptiveGamma()
    assert auto.to_dict() == {} and repr(auto) == "specdec.AdaptiveGamma()"
    options: dict[str, Any] = {"gamma": auto, "max_new_tokens": 40, "ignore_eos": True, "n_threads": 1}
    trace = specdec.generate(models.target, models.draft, "It was", **options).trace
    # The first round is plain, as a baseline for drafting.
    assert trace.rounds[0].origin == ("target",) and trace.rounds[0].draft_s == 0.0
    assert trace.n_drafted > 0 and all(r.n_drafted <= AUTO_GAMMA for r in trace.rounds)
    # t(1) is known by now, so the first round has a plan. Whether drafting pays depends on times.
    first = specdec.generate(models.target, models.draft, "It was", **options).trace.rounds[0]
    assert first.planned != 0 or first.drafted
    assert "gamma" in repr(auto) and "target ms" in str(auto) and "<table>" in auto._repr_html_()
    found = auto.to_dict()
    assert found["target_s"][0] > 0 and sum(n for *_, n in found["by_confidence"]) > 5
    # Other sampling or another draft has other estimates.
    sampled = specdec.generate(models.target, models.draft, "It was", temperature=1.0, **options)
    assert sampled.trace.rounds[0].drafted == ()
    other = specdec.generate(models.target, DRAFTS["bigram"](models), "It was", **options)
    assert other.trace.rounds[0].drafted == ()
    auto.reset()
    assert auto.to_dict() == {}
    with specdec.stream(models.target, models.draft, "It was", **options) as pieces:  # left early
        next(pieces)
    assert auto.to_dict()["target_s"][0] > 0


def test_estimates_go_with_their_drafts(models: Models) -> None:
    """Also for a user's object, which is recognized."""

    class Same:
        def propose(self, sequence: int, tokens: Any, budget: int) -> list[int]:
            return [int(tokens[-1])] * budget

    auto = AdaptiveGamma()
    for make in (lambda: DRAFTS["bigram"](models), Same):
        draft = make()
        for _ in range(2):
            specdec.generate(models.target, draft, "It was", gamma=auto, max_new_tokens=5)
        assert len(auto._learned) == 1
        del draft
        assert len(auto._learned) == 0


def test_two_threads_may_share_a_policy(models: Models) -> None:
    auto = AdaptiveGamma()
    wanted = specdec.generate(models.target, None, "It was", max_new_tokens=60)

    def run(_: int) -> specdec.Result:
        return specdec.generate(models.target, models.draft, "It was", gamma=auto, max_new_tokens=60)

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(run, range(6))) == [wanted] * 6


def test_a_run_may_end_while_another_one_ends(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a signal handler, or when a stream is collected: in the same thread, during `end`."""
    auto, plain = AdaptiveGamma(), specdec.generate(models.target, None, "It was", max_new_tokens=10)
    texts: list[list[int]] = []

    def run() -> None:
        out = specdec.generate(models.target, models.draft, "It was", gamma=auto, max_new_tokens=10)
        texts.append(out.tokens)

    key = RunType.key

    def interrupted(run_type: RunType) -> Any:
        monkeypatch.setattr(RunType, "key", key)
        run()
        return run_type.key

    monkeypatch.setattr(RunType, "key", property(interrupted))
    thread = threading.Thread(target=run, daemon=True)  # a deadlock does not stop the tests
    thread.start()
    thread.join(timeout=60)
    assert texts == [plain.tokens] * 2


# ------------------------------------------------------------------------------------- the caller's own


def test_a_function_says_how_many_to_draft(models: Models) -> None:
    """For each sequence, replacements in slots included."""
    seen: list[tuple[int, int]] = []

    def policy(rounds: Sequence[specdec.Round]) -> int:
        seen.append((len(rounds), rounds[-1].n_accepted if rounds else -1))
        return len(rounds) % 4

    how: dict[str, Any] = {"gamma": policy, "max_new_tokens": 30, "ignore_eos": True, "batch_size": 2}
    prompts = ["It was", "The captain", "She looked", "My dear"]
    expected = []
    for out in specdec.generate(models.target, models.draft, prompts, **how):
        rounds = out.trace.rounds
        assert [len(r.drafted) for r in rounds[:-2]] == [i % 4 for i in range(len(rounds) - 2)]
        expected += [(i, rounds[i - 1].n_accepted if i else -1) for i in range(len(rounds))]
    assert sorted(seen) == sorted(expected)


def test_wrong_gammas_are_refused(models: Models) -> None:
    def run(gamma: Any) -> None:
        specdec.generate(models.target, models.draft, "It was", gamma=gamma, max_new_tokens=20)

    for answer in (-1, AUTO_GAMMA + 1, 2.0, None, True, "3"):
        with refuses("gamma(rounds)", answer):
            run(lambda rounds, answer=answer: answer)
    with pytest.raises(specdec.InputError, match="16, the function's attribute max_gamma"):
        run(lambda rounds: 99)
    for no_rounds in (lambda: 3, lambda first, second: 3):
        with refuses("gamma", no_rounds):
            run(no_rounds)
    policy = lambda rounds: 40  # noqa: E731
    policy.max_gamma = 64  # type: ignore[attr-defined]
    run(policy)
    policy.max_gamma = 4000  # type: ignore[attr-defined]
    with refuses("gamma.max_gamma", 4000):
        run(policy)
    for gamma in ("automatic", 1.5, -1, 1025, [3]):
        with refuses("gamma", gamma):
            run(gamma)
    for most in (0, -1, 1025, 2.5, True, "4"):
        with refuses("max_gamma", most):
            AdaptiveGamma(most)  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError):
        run(lambda rounds: 1 // 0)


def test_a_session_refuses_gammas_of_another_number() -> None:
    target, draft = small_pair()
    session = new_session(target.core, by_method("model", draft.core), [[1, 2]], gamma=4)
    session.prefill()
    wrong = ([1, 2], "gammas has 2 entries"), ([-2], "gamma is -2"), ([2000], "gamma is 2000")
    for gammas, message in wrong:
        with pytest.raises(ValueError, match=message):
            session.round(gammas=gammas)
    assert len(session.round(gammas=[2])[0]["drafted"]) == 2
    assert len(session.round(gammas=[0])[0]["drafted"]) == 0
    assert len(session.round(gammas=[9])[0]["drafted"]) == 4
    assert session.adaptive_gamma is None
