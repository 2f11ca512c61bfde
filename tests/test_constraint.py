"""Constrained output has the target's distribution, masked and renormalized per token, for every draft."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import specdec
from allocations import needs_hooks
from distributions import FALSE_ALARM, count, p_value
from drafters import CHOSEN, DRAFTS, World, named
from exact import chain_distribution
from refusals import refuses
from sessions import Session, all_rounds
from specdec import drafts, reference
from specdec.errors import InputError
from toy_pair import EOS, N_VOCAB, load_pair
from worlds.canonical import with_drafts
from worlds.constraints import RandomConstraint, obeys

HOW: dict[str, dict[str, Any]] = {
    "greedy": {},
    "coupled": {"temperature": 0.9, "top_p": 0.95, "verify": "coupled", "seed": 5},
}
PROMPT = [5, 9, 30, 31, 5, 9, 30, 14]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    target, draft = load_pair(tmp_path_factory.mktemp("pair"))
    rng = np.random.default_rng(2)
    return World(target, draft, rng.integers(3, N_VOCAB, 25).tolist() * 10)


World.__hash__ = object.__hash__  # type: ignore[method-assign]  # by identity: models cannot be compared


def masked(
    world: World, constraint: RandomConstraint, new: Sequence[int], temperature: float, **settings: Any
) -> Any:
    """Next-token distribution from the logits of the whole text; None if the text is complete."""
    if (mask := constraint.allowed(new)) is None:
        return None
    logits = np.where(mask, world.target.logits([*PROMPT, *new])[-1], -np.inf)
    return reference.distribution(logits, temperature, **settings)


def by_hand(world: World, constraint: RandomConstraint, n: int, *, how: str) -> list[int]:
    """Decode plainly, from the logits of whole texts."""
    settings = {"temperature": 0.0} | {
        key: HOW[how][key] for key in ("temperature", "top_p") if key in HOW[how]
    }
    new: list[int] = []
    while len(new) < n and (probs := masked(world, constraint, new, **settings)) is not None:
        noise = reference.noise(5, 0, len(PROMPT) + len(new), world.n_vocab)
        new.append(reference.race(probs, noise) if how == "coupled" else int(np.argmax(probs)))
    return new


@cache
def wanted(world: World, how: str) -> list[int]:
    return by_hand(world, RandomConstraint(world.n_vocab, length=37), 60, how=how)


# --------------------------------------------------------------------------------------- same tokens


@pytest.mark.parametrize("name", [None, *named()])
def test_output_is_plain_output_under_the_constraint(world: World, name: str | None) -> None:
    """For every draft; each state's mask is requested once, and forbidden tokens are not drafted."""
    for how, options in HOW.items():
        constraint = RandomConstraint(world.n_vocab, length=37)
        draft = None if name is None else DRAFTS[name](world)
        out = specdec.generate(
            world.target, draft, PROMPT, constraint=constraint, max_new_tokens=60, ignore_eos=True, **options
        )
        assert out.tokens == wanted(world, how)
        assert (out.finish_reason, out.stop) == ("stop", None)
        assert out.trace.n_calls < 37  # forced tokens come several at once
        if name is not None and name not in CHOSEN:
            assert all(obeys(constraint, path) for path in drafted_paths(out)), "a forbidden draft token"


def drafted_paths(out: specdec.Result) -> list[list[int]]:
    """The new tokens up to each draft token."""
    paths, new = [], []
    for round_ in out.trace.rounds:
        down: list[list[int]] = [list(new)]
        for token, parent in zip(round_.drafted, round_.parents, strict=True):
            down.append([*down[parent], token])
        paths += down[1:]
        new += round_.tokens[: round_.kept]
    return paths


@needs_hooks
@pytest.mark.parametrize("name", ["model", "trigram", "random", "ensemble"])
def test_draft_tokens_are_drawn_from_masked_distributions(world: World, name: str) -> None:
    """Nodes are drawn from distributions without mass on forbidden tokens."""
    constraint, made = RandomConstraint(world.n_vocab), DRAFTS[name](world)
    draft = made if hasattr(made, "describe") else drafts.ModelDraft(made)
    session = Session(
        world.target.core, draft.describe(world.target), [PROMPT], gamma=4, max_new_tokens=20,
        temperature=1.0, constraint=constraint,
    )  # fmt: skip
    new: list[int] = []
    for record in all_rounds(with_drafts(session)):
        down: list[list[int]] = [list(new)]
        drawn = zip(record["drafted"], record["parents"], record["draft_probs"][1:], strict=True)
        for token, parent, row in drawn:
            mask = constraint.allowed(down[parent])
            assert mask is not None and not row[~mask].any() and row[token] > 0
            assert row.sum() == pytest.approx(1.0)
            down.append([*down[parent], token])
        new += record["tokens"]
    assert obeys(constraint, new) and len(new) >= 20


def test_batches_slots_and_streams(world: World) -> None:
    """Each text of a batch has its own states; a reused slot starts over."""
    constraint = RandomConstraint(world.n_vocab, length=20)
    prompts = [PROMPT, PROMPT[:3], PROMPT[2:], PROMPT[:5], PROMPT[1:]]
    for draft in (None, world.draft, drafts.ModelDraft(world.draft, tree=drafts.StaticTree((2, 2)))):
        batch = specdec.generate(
            world.target, draft, prompts, constraint=constraint, batch_size=2, ignore_eos=True
        )
        for prompt, got in zip(prompts, batch, strict=True):
            assert got == specdec.generate(world.target, None, prompt, constraint=constraint, ignore_eos=True)
            assert obeys(constraint, got.tokens) and len(got.tokens) == 20
    with specdec.stream(world.target, world.draft, PROMPT, constraint=constraint, ignore_eos=True) as stream:
        assert "".join(stream) == stream.result.text
        assert stream.result.tokens == by_hand(world, constraint, 20, how="greedy")


def test_runs_of_forced_tokens_cost_a_forward(world: World) -> None:
    """Forced tokens are read together, 16 at a time, and nothing is drafted."""
    constraint = RandomConstraint(world.n_vocab, forced=1.0, length=40)
    for draft in (None, world.draft, drafts.EarlyExit(1)):
        out = specdec.generate(world.target, draft, PROMPT, constraint=constraint, gamma=2, ignore_eos=True)
        assert out.tokens == by_hand(world, constraint, 40, how="greedy")
        assert out.trace.n_calls == 3
        assert out.trace.n_accepted == 37
    cut = specdec.generate(
        world.target, None, PROMPT, constraint=constraint, max_new_tokens=7, ignore_eos=True
    )
    assert cut.tokens == out.tokens[:7]
    assert (cut.finish_reason, cut.trace.n_calls) == ("length", 1)


def test_stops_and_limits_hold_within_forced_tokens(world: World) -> None:
    constraint = RandomConstraint(world.n_vocab, forced=1.0, length=40, among=range(3, N_VOCAB))
    whole = specdec.generate(world.target, None, PROMPT, constraint=constraint)
    at = next(i for i in range(5, 40) if whole.tokens[i] not in whole.tokens[:i])
    stopped = specdec.generate(
        world.target, world.draft, PROMPT, constraint=constraint, stop=whole.tokens[at]
    )
    assert stopped.tokens == whole.tokens[: at + 1]
    assert (stopped.finish_reason, stopped.stop) == ("stop", whole.tokens[at])
    string = whole.text[10:13]
    stopped = specdec.generate(world.target, world.draft, PROMPT, constraint=constraint, stop=string)
    assert stopped.text == whole.text[: whole.text.find(string)]
    assert stopped.stop == string


def test_the_end_of_text_is_a_token_like_others(world: World) -> None:
    """It is chosen where it alone is allowed, and ends the text."""

    class Ends(RandomConstraint):
        def allowed(self, new: Sequence[int]) -> NDArray[np.bool_] | None:
            if len(new) < 4:
                return super().allowed(new)
            return np.arange(self.n_vocab) == EOS

    constraint = Ends(world.n_vocab, among=range(3, N_VOCAB))
    for draft in (None, world.draft):
        out = specdec.generate(world.target, draft, PROMPT, constraint=constraint)
        assert (len(out.tokens), out.finish_reason, out.stop) == (5, "stop", EOS)


# ---------------------------------------------------------------------------------------- same distribution


def with_model(**how: Any) -> Any:
    return lambda world: drafts.ModelDraft(world.draft, **how)


TREES = {
    "chain": with_model(gamma=3), "chains": with_model(tree=drafts.ParallelChains(2), gamma=4),
    "samples": with_model(tree=drafts.StaticTree((2, 2))),
    "without replacement": with_model(tree=drafts.StaticTree((3, 2), "without replacement")),
    "top-k": with_model(tree=drafts.StaticTree((2, 2), "top-k")),
    "dynamic": with_model(tree=drafts.DynamicTree(6, width=2, steps=3)),
    "nested": DRAFTS["drafted by a bigram"], "an object": DRAFTS["object that draws"],
    "an object with branches": DRAFTS["object that draws branches"],
    **{name: DRAFTS[name] for name in ("ensemble", "early exit", "random", "trigram", "context copy")},
}  # fmt: skip
CASES = [
    *[(rule, tree) for rule in ("rejection", "traversal") for tree in TREES],
    *[("block", tree) for tree in ("chain", "nested", "trigram")],
    *[("k-sequential", tree) for tree in ("chain", "chains", "samples")], ("classical", "chain"),
    ("classical", "without replacement"), ("coupled", "chain"), ("coupled", "samples"),
]  # fmt: skip


Exact = tuple[RandomConstraint, dict[tuple[int, ...], float]]


@pytest.fixture(scope="module")
def exact(world: World) -> Exact:
    """A constraint, and the distribution of its texts by enumeration."""
    constraint = RandomConstraint(world.n_vocab, n_allowed=4, forced=0.25, length=5)
    return constraint, chain_distribution(lambda new: masked(world, constraint, new, 1.3), 5)


@pytest.mark.statistical
@pytest.mark.parametrize(("rule", "name"), CASES)
def test_samples_have_the_masked_distribution(world: World, exact: Exact, rule: Any, name: str) -> None:
    """Chi-square on all texts of a constraint; the false alarm rate is 1e-3 for a fresh seed."""
    constraint, exact_distribution = exact
    seed = 7 + CASES.index((rule, name))
    out = specdec.generate(
        world.target, TREES[name](world), PROMPT, constraint=constraint, temperature=1.3, verify=rule, n=1500,
        seed=seed, batch_size=64, ignore_eos=True,
    )  # fmt: skip
    samples = np.array([one.tokens for one in out])
    assert p_value(count(samples), exact_distribution) > FALSE_ALARM


def test_reference(world: World) -> None:
    """Algorithm 1 with masks, line by line, gives the same tokens where nothing is forced."""
    constraint = RandomConstraint(world.n_vocab, n_allowed=6, forced=0.0, length=12)
    for seed in range(4):
        out = specdec.generate(
            world.target, drafts.ModelDraft(world.draft, gamma=3), PROMPT, temperature=1.1,
            constraint=constraint, seed=seed, ignore_eos=True, verify="rejection",
        )  # fmt: skip
        by_reference = reference.decode_constrained(
            world.target.logits, world.draft.logits, PROMPT, 30, 3, constraint.allowed, temperature=1.1,
            seed=seed,
        )  # fmt: skip
        assert out.tokens == by_reference


def test_logprobs_are_of_the_masked_distribution(world: World) -> None:
    constraint = RandomConstraint(world.n_vocab, n_allowed=4, length=10)
    out = specdec.generate(
        world.target, world.draft, PROMPT, temperature=0.8, top_p=0.9, seed=3, logprobs=4,
        constraint=constraint, logprobs_of="sampling", ignore_eos=True,
    )  # fmt: skip
    for i, (token, log_prob) in enumerate(zip(out.tokens, out.logprobs, strict=True)):
        probs = masked(world, constraint, out.tokens[:i], 0.8, top_p=0.9)
        assert log_prob == pytest.approx(np.log(probs[token]), abs=1e-5)
        assert {top for top, _ in out.top_logprobs[i]} <= set(np.flatnonzero(probs).tolist())


# ----------------------------------------------------------------------------- transforms with states


class Discourage:
    """A stateful transform: each occurrence of a token makes it less likely."""

    class State:
        def __init__(self, counts: dict[int, int]) -> None:
            self.counts = counts

        def fork(self) -> Discourage.State:
            return Discourage.State(self.counts.copy())

        def advance(self, token: int) -> None:
            self.counts[token] = self.counts.get(token, 0) + 1

        def __call__(self, probs: NDArray[np.float64]) -> NDArray[np.float64]:
            for token, n in self.counts.items():
                probs[token] *= 0.3**n
            return probs

    def start(self, tokens: Sequence[int]) -> Discourage.State:
        state = Discourage.State({})
        for token in tokens:
            state.advance(token)
        return state


def discouraged(probs: NDArray[np.float64], tokens: list[int]) -> NDArray[np.float64]:
    state = Discourage().start(tokens)
    return state(probs)


@pytest.mark.parametrize("name", [None, "model", "samples", "drafted by copying", "context copy tree"])
def test_a_transform_with_states_is_that_of_all_tokens(world: World, name: str | None) -> None:
    draft = None if name is None else DRAFTS[name](world)
    for options in ({"temperature": 1.0, "seed": 3}, {"temperature": 0.8, "verify": "coupled", "seed": 4}):
        runs = [
            specdec.generate(
                world.target, draft, [PROMPT, PROMPT[:3], PROMPT[1:]], max_new_tokens=25, batch_size=2,
                transform=transform, ignore_eos=True, **options,
            )
            for transform in (discouraged, Discourage())
        ]  # fmt: skip
        assert [one.tokens for one in runs[0]] == [one.tokens for one in runs[1]]


def test_a_transform_gives_nothing_to_what_may_not_come(world: World) -> None:
    constraint = RandomConstraint(world.n_vocab, length=15)
    out = specdec.generate(
        world.target, world.draft, PROMPT, transform=lambda probs, tokens: probs + 0.01,
        constraint=constraint, temperature=1.0, seed=2, ignore_eos=True,
    )  # fmt: skip
    assert obeys(constraint, out.tokens)

    constraint, only_zero = RandomConstraint(world.n_vocab, among=range(3, N_VOCAB)), np.arange(N_VOCAB) == 0
    with pytest.raises(InputError, match="transform leaves no token that the constraint"):
        specdec.generate(world.target, None, PROMPT, transform=lambda *_: only_zero, constraint=constraint)


# ------------------------------------------------------------------------------------------- errors


class Broken:
    """A constraint whose states return this mask."""

    def __init__(self, mask: Any) -> None:
        self.given = mask

    def start(self, tokens: Any) -> Broken:
        return self

    def fork(self) -> Broken:
        return self

    def advance(self, token: int) -> None: ...

    def mask(self) -> Any:
        if isinstance(self.given, Exception):
            raise self.given
        return self.given


@pytest.mark.parametrize(
    ("mask", "error", "message"),
    [
        (np.ones(7, bool), InputError, r"constraint: mask\(\) returned .*expected 61 truth values, 2 words"),
        ([True] * N_VOCAB, InputError, r"constraint: mask\(\) returned"),
        (np.ones(N_VOCAB), InputError, r"constraint: mask\(\) returned"),
        (np.zeros(N_VOCAB, bool), InputError, "no token of the vocabulary may follow"),
        (None, InputError, "complete before the first token"), (KeyError("own"), KeyError, "own"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("drafting", [False, True])
def test_broken_masks_are_named(
    world: World, mask: Any, error: type[Exception], message: str, drafting: bool
) -> None:
    with pytest.raises(error, match=message):
        specdec.generate(world.target, world.draft if drafting else None, PROMPT, constraint=Broken(mask))


@pytest.mark.parametrize("argument", ["constraint", "transform"])
@pytest.mark.parametrize("method", ["start", "fork"])
def test_states_without_a_method_are_named_with_what_they_lack(
    world: World, argument: str, method: str
) -> None:
    answer = {"constraint": "mask", "transform": "__call__"}[argument]
    methods: dict[str, Any] = {
        "fork": lambda state: state, "advance": lambda state, token: None,
        "mask": lambda state: np.ones(N_VOCAB, bool), "__call__": lambda state, probs: probs,
    }  # fmt: skip
    for missing in ("fork", "advance", answer):
        lacking = type("Lacking", (), {name: one for name, one in methods.items() if name != missing})()
        whole = type("Whole", (), methods | {"fork": lambda state, other=lacking: other})()
        given = SimpleNamespace(start=lambda tokens, state=lacking if method == "start" else whole: state)
        message = (
            rf"{argument}: {method}\(\) returned .*Lacking.*, which has no method {missing}; expected fork"
        )
        for draft in (None, world.draft):
            with pytest.raises(InputError, match=rf"{message}, advance and {answer}"):
                specdec.generate(world.target, draft, PROMPT, max_new_tokens=4, **{argument: given})


class DeadEnds:
    """A constraint that allows every token after one text; all other states are dead ends."""

    def __init__(self, text: Sequence[int], dead_end: BaseException | None) -> None:
        self.text, self.dead_end = list(text), dead_end
        self.new: list[int] = []
        self.met: list[list[int]] = []

    def start(self, tokens: Any) -> DeadEnds:
        return self

    def fork(self) -> DeadEnds:
        other = DeadEnds(self.text, self.dead_end)
        other.new, other.met = self.new.copy(), self.met
        return other

    def advance(self, token: int) -> None:
        self.new.append(token)

    def mask(self) -> NDArray[np.bool_]:
        if self.new == self.text[: len(self.new)]:
            return np.ones(N_VOCAB, bool)
        self.met.append(self.new)
        if self.dead_end is not None:
            raise self.dead_end
        return np.zeros(N_VOCAB, bool)


@pytest.mark.parametrize("name", named())
def test_a_dead_end_after_a_draft_token_does_not_end_the_text(world: World, name: str) -> None:
    for how in HOW.values():
        options: dict[str, Any] = {"max_new_tokens": 40, "ignore_eos": True} | how
        text = specdec.generate(world.target, None, PROMPT, **options).tokens
        for dead_end in (None, KeyError("own")):
            constraint = DeadEnds(text, dead_end)
            out = specdec.generate(
                world.target, DRAFTS[name](world), PROMPT, constraint=constraint, **options
            )
            assert out.tokens == text


@pytest.mark.parametrize("drafting", [False, True])
def test_a_dead_end_of_the_text_is_an_error(world: World, drafting: bool) -> None:
    """Whether or not a draft token reached it earlier."""
    draft = world.target if drafting else None  # whose draft tokens are the text
    text = specdec.generate(world.target, None, PROMPT, max_new_tokens=12, ignore_eos=True).tokens
    wrong = [*text[:10], (text[10] + 1) % N_VOCAB]
    for dead_end, error in ((KeyError("own"), KeyError), (None, InputError)):
        constraint = DeadEnds(wrong, dead_end)
        with pytest.raises(error):
            specdec.generate(world.target, draft, PROMPT, constraint=constraint, gamma=4, ignore_eos=True)
        assert len(constraint.met[-1]) == 11


def test_an_interrupt_after_a_draft_token_counts(world: World) -> None:
    text = specdec.generate(world.target, None, PROMPT, max_new_tokens=40, ignore_eos=True).tokens
    constraint = DeadEnds(text, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        specdec.generate(world.target, world.draft, PROMPT, constraint=constraint, gamma=4)


def test_forbidding_what_is_left_is_named(world: World) -> None:
    constraint, bias = RandomConstraint(world.n_vocab, among=[5, 6, 7]), dict.fromkeys([5, 6, 7], -np.inf)
    with pytest.raises(InputError, match="logit_bias and the constraint: no token is left"):
        specdec.generate(world.target, None, PROMPT, constraint=constraint, logit_bias=bias)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"regex": "a", "schema": {}}, None), ({"regex": b"a"}, "regex"), ({"grammar": 3}, "grammar"),
        ({"schema": 3}, "schema"), ({"constraint": 3}, "constraint"), ({"transform": 3}, "transform"),
    ],
)  # fmt: skip
def test_arguments_are_named(world: World, options: dict[str, Any], named: str | None) -> None:
    two = pytest.raises(InputError, match="schema and regex are given; expected one of them at most")
    with two if named is None else refuses(named):
        specdec.generate(world.target, None, PROMPT, **options)
