"""Many prompts in few slots: results equal single runs, prefixes are shared, budgets respected."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import specdec
from allocations import needs_hooks, nothing_leaks
from compiled import blocks_of_a_stored_token, blocks_of_a_token, counted_work, prompts_in_slices_of
from refusals import refuses
from sessions import Session
from toy_pair import RecordedSession
from worlds.canonical import LLAMA, build, perturbed, random_tensors

pytestmark = pytest.mark.usefixtures("one_thread")
Pair = tuple[specdec.Model, specdec.Model]

SYSTEM = [1, 30, 31, 7, 12, 44, 9, 50, 51, 30, 31, 7]
# Of different lengths; some share prefixes, are prefixes of others, or equal; one nearly fills the context.
PROMPTS: list[Any] = [
    [*SYSTEM, 5], [7], [*SYSTEM, 6, 20], "abcab", SYSTEM, [*SYSTEM, 5], SYSTEM[:3], list(range(3, 61)),
    [*SYSTEM, *range(20, 60), *range(3, 40)], [1], [*SYSTEM[:6], 40, 41], "abc", [7, 7, 7],
]  # fmt: skip
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {}, "coupled": {"temperature": 0.9, "verify": "coupled"},
    "rejection": {"temperature": 0.9, "top_k": 30},
}  # fmt: skip


def alone(target: Any, draft: Any, prompts: list[Any], seed: int, **options: Any) -> list[specdec.Result]:
    """Run every prompt by itself."""
    return [
        specdec.generate(target, draft, prompt, seed=[(seed, i)], **options)
        for i, prompt in enumerate(prompts)
    ]


def assert_same(results: list[specdec.Result], expected: list[specdec.Result]) -> None:
    """To the last bit, in order, including draft tokens."""
    assert len(results) == len(expected)
    for one, other in zip(results, expected, strict=True):
        assert one == other and one.seed == other.seed and np.array_equal(one.logits, other.logits)
        assert [r.drafted for r in one.trace.rounds] == [r.drafted for r in other.trace.rounds]
        assert [r.betas for r in one.trace.rounds] == [r.betas for r in other.trace.rounds]


# ------------------------------------------------------------------------------------------------- equality


@pytest.mark.parametrize("drafting", [False, True], ids=["plain", "draft"])
@pytest.mark.parametrize("settings", SETTINGS)
def test_results_are_those_of_single_runs(pair: Pair, settings: str, drafting: bool) -> None:
    """Stop ids and strings end the texts at different times; one fills the context."""
    target, draft = pair[0], pair[1] if drafting else None
    options: dict[str, Any] = SETTINGS[settings] | {"gamma": 3, "max_new_tokens": 25, "logits": True}
    for stop in (["b", 40], [40, 41, 42], None):
        expected = alone(target, draft, PROMPTS, 4, stop=stop, **options)
        assert len({len(out.tokens) for out in expected}) > (2 if stop else 1)
        for batch_size in (1, 2, 3, 5, len(PROMPTS)):
            results = specdec.generate(
                target, draft, PROMPTS, seed=4, stop=stop, batch_size=batch_size, **options
            )
            assert_same(results, expected)
            assert {out.trace.n_sequences for out in results} == {batch_size}
    results = specdec.generate(target, draft, PROMPTS, seed=4, batch_size=3, n_threads=2, **options)
    assert_same(results, expected)


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_copied_prefixes_have_the_bits_of_computed_ones(dtype: str) -> None:
    """In every format of the cache, for lengths around its panels of 32, and across a sliding window."""
    for window, cache_dtype in ((0, "f32"), (0, "bf16"), (7, "bf16")):
        config = LLAMA | {"sliding_window": window}
        target = build(config, random_tensors(config), dtype=dtype, cache_dtype=cache_dtype)
        draft = build(config, perturbed(random_tensors(config)), cache_dtype=cache_dtype)
        text = [(i * i) % 97 for i in range(120)]
        for n in (1, 2, 31, 32, 33, 34, 64, 65, 100):
            prompts = [[*text, 5], [*text[:n], 98, 99], [*text[:n], 98]]
            expected = [new_rows(target, draft, [prompt]) for prompt in prompts]
            for i, rows in enumerate(new_rows(target, draft, prompts)):
                assert np.array_equal(rows, expected[i][0])


def new_rows(target: Any, draft: Any, prompts: list[list[int]]) -> list[Any]:
    session = new_session(target, draft, prompts, keep_logits=True)
    session.prefill()
    rows: list[list[Any]] = [[] for _ in prompts]
    for records in iter(session.round, []):
        for record in records:
            rows[record["sequence"]].append(record["logits"])
    return [np.concatenate(found) for found in rows]


# -------------------------------------------------------------------------------------------------- sessions


def new_session(target: Any, draft: Any, prompts: list[list[int]], **changes: Any) -> Session:
    options = {
        "gamma": 4, "max_new_tokens": 40, "sampling": {"temperature": 0.0},
        "draft_sampling": {"temperature": 0.0}, "n_threads": 1,
        "seeds": [(1, i) for i in range(len(prompts))],
    }  # fmt: skip
    return Session(target, draft, prompts, **(options | changes))


@pytest.fixture(scope="module")
def models() -> tuple[Any, Any]:
    tensors = random_tensors(LLAMA)
    return build(LLAMA, tensors), build(LLAMA, perturbed(tensors))


def test_the_round_in_which_a_sequence_ends_is_the_last_of_a_call(models: Any) -> None:
    session = new_session(*models, [[1], [2], [3]], max_new_tokens=20)
    session.prefill()
    n_new = [0, 0, 0]
    for records in iter(lambda: session.round(60.0, until_end=True), []):
        last = max(i for i, r in enumerate(records) if r["sequence"] == records[0]["sequence"])
        ended = set()
        for i, record in enumerate(records):
            n_new[record["sequence"]] += len(record["tokens"])
            if n_new[record["sequence"]] >= 20:
                ended.add(record["sequence"])
                assert i >= last
        assert ended
    assert n_new == [20, 20, 20]


# ---------------------------------------------------------------------------------------- shared prefixes


@needs_hooks
@pytest.mark.parametrize("drafting", [False, True], ids=["plain", "draft"])
@pytest.mark.parametrize("batch_size", [1, 2, 8])
def test_a_common_prefix_is_computed_once(models: Any, drafting: bool, batch_size: int) -> None:
    """By target and draft, for prompts that start together and for later ones."""
    target, draft = models[0], models[1] if drafting else None
    system = [(7 * i) % 90 for i in range(100)]
    prompts = [[*system, 91 + i, 5, i] for i in range(8)]

    def work_of_prefill(texts: list[list[int]]) -> int:
        session = new_session(target, draft, texts[:batch_size], max_new_tokens=3, n_text=110)
        total, n_texts = 0, len(texts)
        for slot in itertools.cycle(range(batch_size)):
            with counted_work() as work:
                session.prefill()
            total += work.blocks
            texts = texts[batch_size if len(texts) == n_texts else 1 :]
            if not texts:
                return total
            session.finish(slot)
            session.replace(slot, texts[0], (0, 0))
        raise AssertionError

    stored = blocks_of_a_stored_token(target, draft)
    # the last token of a prompt is the root of the first round; if that drafts, it is not read before
    roots = 0 if drafting else 8 * blocks_of_a_token(target)
    assert work_of_prefill(prompts) == stored * (100 + 8 * 2) + roots
    strangers = [[91 + i, *prompt] for i, prompt in enumerate(prompts)]
    assert work_of_prefill(strangers) == stored * 8 * (101 + 2) + roots


@needs_hooks
@pytest.mark.parametrize("drafting", [False, True], ids=["plain", "draft"])
def test_short_prompts_are_read_together(drafting: bool) -> None:
    """As many as fit a slice of 64 tokens; one that shares a prefix with another being read waits for it.

    Plain decoding also reads the last token of a prompt, with others that are left to read.
    """
    tensors = random_tensors(LLAMA)
    with prompts_in_slices_of(64):
        models = build(LLAMA, tensors), build(LLAMA, perturbed(tensors, 0.05))
    given = models[: 1 + drafting]

    def count(prompts: list[list[int]]) -> tuple[int, float]:
        """Forward passes of each model, and tokens read before the last ones."""
        session = new_session(models[0], models[1] if drafting else None, prompts)
        with counted_work() as work:
            session.prefill()
        n_roots = 0 if drafting else sum(len(prompt) > 1 for prompt in prompts)
        blocks = work.blocks - n_roots * blocks_of_a_token(models[0])
        return work.forwards // len(given), blocks / blocks_of_a_stored_token(*given)

    assert count([[i, *range(9)] for i in range(6)]) == (1, 54)
    assert count([[i, *range(9)] for i in range(8)]) == (2, 72)
    assert count([[i] for i in range(8)]) == (0, 0)
    assert count([list(range(65)), [90], [91, 5]]) == (2, 65)
    assert count([[*range(30), 90 + i, 5] for i in range(8)]) == (2, 31 + 7)
    # ten are not worth waiting for; the next slice reuses what a slice has read, and slices are even
    assert count([[*range(10), 90 + i, 5] for i in range(6)]) == (2, 3 * 11 + 3)


# ------------------------------------------------------------------------------------------------ node budget


@pytest.mark.parametrize("budget", [5, 6, 8, 11, 17, 24, 25, 26, 100])
def test_a_node_budget_is_kept_and_shared_fairly(models: Any, budget: int) -> None:
    target = models[0]  # its own draft: all draft tokens are accepted, so texts grow fast
    prompts = [[3 * i + 1] for i in range(5)]
    session = new_session(target, target, prompts, max_new_tokens=200, node_budget=budget)
    session.prefill()
    n_new, draft_tokens = np.zeros(5), np.zeros(5)
    for records in iter(session.round, []):
        assert sum(r["n_rows"] for r in records) <= budget
        drafted = [len(r["drafted"]) for r in records]
        if n_new.max() + 5 < 200:  # no text ends
            assert len(drafted) == 5 and sum(drafted) == min(5 * 4, budget - 5)
            assert max(drafted) - min(drafted) <= 1
            draft_tokens += drafted
            assert draft_tokens.max() - draft_tokens.min() <= 1, "budgets differ by more than 1"
        for record in records:
            n_new[record["sequence"]] += len(record["tokens"])
    assert list(n_new) == [200] * 5


def test_few_sequences_have_the_whole_budget(models: Any) -> None:
    how: dict[str, Any] = {"gamma": 12, "max_new_tokens": 60, "node_budget": 14}
    session = new_session(models[0], models[0], [[1], [2], [3], [4]], **how)
    session.prefill()
    for ended, wanted in (((), [2, 2, 3, 3]), ((1, 2), [6, 6]), ((3,), [12])):
        for sequence in ended:
            session.finish(sequence)
        assert sorted(len(r["drafted"]) for r in session.round()) == wanted


def test_who_wants_fewer_leaves_the_rest_to_others(models: Any) -> None:
    """No sequence gets more than its own policy requests."""
    prompts = [[1], [2], [3], [4], [5]]
    session = new_session(models[0], models[0], prompts, gamma=12, max_new_tokens=60, node_budget=16)
    session.prefill()
    wants = [1, 12, 0, 12, 2]

    def draft_tokens() -> list[int]:
        return [len(record["drafted"]) for record in session.round(gammas=wants)]

    assert draft_tokens() == [1, 4, 0, 4, 2]
    wants = [1, 12, 0, 11, 1]
    rounds = [draft_tokens() for _ in range(4)]
    assert sorted(map(tuple, rounds)) == [(1, 4, 0, 5, 1)] * 2 + [(1, 5, 0, 4, 1)] * 2
    wants = [2, 1, 0, 1, 2]
    assert draft_tokens() == wants


@pytest.mark.parametrize("settings", ["greedy", "coupled"])
def test_a_node_budget_changes_no_result(pair: Pair, settings: str) -> None:
    options: dict[str, Any] = SETTINGS[settings] | {"gamma": 5, "max_new_tokens": 25, "logits": True}
    options["stop"] = [40]
    expected = alone(*pair, PROMPTS, 4, **options)
    for batch_size, budget in ((4, 4), (4, 7), (3, 100), (13, 20)):
        results = specdec.generate(
            *pair, PROMPTS, seed=4, batch_size=batch_size, node_budget=budget, **options
        )
        assert results == expected
        assert all(np.array_equal(a.logits, b.logits) for a, b in zip(results, expected, strict=True))


def test_budgets_without_a_row_for_each_are_refused(pair: Pair, models: Any) -> None:
    with refuses("node_budget", 3):
        specdec.generate(*pair, PROMPTS, batch_size=4, node_budget=3)
    with pytest.raises(ValueError, match="node_budget is 1, expected at least a row for each of 2 sequences"):
        new_session(*models, [[1], [2]], node_budget=1)
    with pytest.raises(ValueError, match="n_text is 257, expected 1 to 256"):
        new_session(*models, [[1], [2]], n_text=257)


# ---------------------------------------------------------------------------------- arguments, ends, memory


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("failing", ["admit", "prefill_slice", "round"])
def test_a_failure_in_between_closes_the_session(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, failing: str, error: type[BaseException]
) -> None:
    class Failing(RecordedSession):
        n_calls = 0

        def __getattr__(self, name: str) -> Any:
            method = getattr(self._session, name)
            if name != failing:
                return method

            def call(*arguments: Any, **options: Any) -> Any:
                self.n_calls += 1
                if self.n_calls == 3:
                    raise error
                return method(*arguments, **options)

            return call

    monkeypatch.setattr("specdec._core.Session", Failing)
    closed = RecordedSession.closed
    with pytest.raises(error):
        specdec.generate(*pair, [[1], [2], [3], [4], [5]], batch_size=1, ignore_eos=True, max_new_tokens=5)
    assert RecordedSession.closed == closed + 1


def test_times_are_those_of_what_a_text_shared_its_rounds_with(pair: Pair) -> None:
    results = specdec.generate(*pair, PROMPTS, batch_size=3, max_new_tokens=10, ignore_eos=True)
    first = {out.trace.prefill_s for out in results[:3]}
    assert len(first) == 1  # read together
    assert all(out.trace.prefill_s >= 0.0 and out.trace.rounds_s > 0.0 for out in results)


@needs_hooks
def test_refilled_slots_leave_nothing(pair: Pair) -> None:
    """A batch that ends with an exception does not either."""

    def work() -> None:
        specdec.generate(*pair, PROMPTS, batch_size=2, max_new_tokens=8, node_budget=6)
        session = new_session(pair[0].core, pair[1].core, [[1], [2]], n_text=60)
        session.prefill()
        session.finish(1)
        session.replace(1, [4] * 10, (3, 3))

    work()
    with nothing_leaks():
        work()
