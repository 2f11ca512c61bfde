"""Expensive grammars end their own texts with a clear error, and delay no other text."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import pytest

import specdec
from processes import wait_for
from specdec.decoding import request_queue
from specdec.decoding.guided import mask_time
from specdec.decoding.guided.guidance import Guidance
from specdec.decoding.guided.mask_time import MaskJob, MaskMeter
from specdec.errors import ConstraintError
from trained import small_pair

Pair = tuple[specdec.Model, specdec.Model]
AMBIGUOUS = "start: e\ne: e e | e e e | N\nN: /[a-z ,.]/"
"""A grammar with as many parses of a text as trees over its letters."""
CHEAP = 'start: (w " ")~1..12 "."\nw: /[a-z]{1,5}/'
WAIT_S = 120.0


@pytest.fixture(scope="module")
def pair() -> Pair:
    return small_pair()


class Computing:
    """A mask that uses processor time until it is released."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.threads: list[int] = []

    def __call__(self) -> bytes:
        self.threads.append(threading.get_ident())
        while not self.released.is_set():
            sum(range(100))
        return b"mask"


def meter(in_thread: bool = True) -> MaskMeter:
    return MaskMeter("grammar", in_thread, lambda seconds: None)


# -------------------------------------------------------------------------------------------- one mask


def test_a_mask_that_takes_too_long_is_left_and_may_be_waited_for_again() -> None:
    computing = Computing()
    job, own = MaskJob(computing), meter()
    for _ in range(2):
        with pytest.raises(ConstraintError, match="takes longer"):
            own.mask(job)
    computing.released.set()
    wait_for(lambda: job._results)
    assert own.mask(job) == b"mask"
    assert len(computing.threads) == 1 and computing.threads[0] != threading.get_ident()
    for _ in range(50):  # threads are used again
        own.mask(MaskJob(computing))
    assert len(set(computing.threads)) <= 3


@pytest.mark.skipif(not hasattr(time, "pthread_getcpuclockid"), reason="a thread's own clock")
def test_a_thread_that_gets_no_time_is_waited_for() -> None:
    """The bound is on processor time: what a busy machine takes from the thread does not count."""
    assert meter().mask(MaskJob(lambda: time.sleep(3 * mask_time._MOST_MASK_S) or b"mask")) == b"mask"


@pytest.mark.parametrize("in_thread", [False, True])
def test_what_is_raised_is_raised(in_thread: bool) -> None:
    def fail() -> bytes:
        raise ZeroDivisionError

    for _ in range(2):  # the thread continues
        own, job = meter(in_thread), MaskJob(fail)
        for _ in range(2):  # a draft token asks first, then the text itself
            with pytest.raises(ZeroDivisionError):
                own.mask(job)


@pytest.mark.parametrize("in_thread", [False, True])
def test_the_masks_of_a_text_have_a_bound_together(in_thread: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask_time, "_ANY_TEXT_S", 0.0)
    monkeypatch.setattr(mask_time, "_EACH_MASK_S", 0.0)
    own, other = meter(in_thread), meter(in_thread)
    assert own.mask(MaskJob(lambda: b"mask")) == b"mask"
    with pytest.raises(ConstraintError, match="has taken"):
        own.mask(MaskJob(lambda: b"mask"))
    assert other.mask(MaskJob(lambda: b"mask")) == b"mask"


def test_few_late_masks_are_computed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts whose masks are cheap do not wait for them."""
    many = [Computing() for _ in range(mask_time._MOST_LATE)]
    for computing in many:
        with pytest.raises(ConstraintError, match="takes longer"):
            meter().mask(MaskJob(computing))
    assert meter().mask(MaskJob(lambda: b"mask")) == b"mask"
    monkeypatch.setattr(mask_time, "_CHEAP_S", 0.0)
    own = meter()
    for _ in range(20):  # a long text
        assert own.mask(MaskJob(lambda: b"mask")) == b"mask"
    monkeypatch.setattr(mask_time, "_EACH_CHEAP_S", 0.0)
    with pytest.raises(ConstraintError, match="are still being computed"):
        own.mask(MaskJob(lambda: b"mask"))
    for computing in many:
        computing.released.set()
    wait_for(lambda: not mask_time._late)
    assert own.mask(MaskJob(lambda: b"mask")) == b"mask"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_process_has_threads_of_its_own() -> None:
    meter().mask(MaskJob(lambda: b"mask"))
    child = os.fork()
    if child == 0:
        os._exit(0 if meter().mask(MaskJob(lambda: b"mask")) == b"mask" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# ------------------------------------------------------------------------------------------- one text


@pytest.mark.slow
def test_an_ambiguous_grammar_ends_its_own_text_alone(pair: Pair) -> None:
    """With an error, and within seconds."""
    target, draft = pair
    how: dict[str, Any] = {"max_new_tokens": 60, "ignore_eos": True}
    others: list[dict[str, Any]] = [{}, {"grammar": CHEAP}, {"schema": True}]
    with specdec.Engine(target, draft, n_slots=6, n_text=450) as engine:
        endless: dict[str, Any] = {"grammar": AMBIGUOUS, "max_new_tokens": 400, "temperature": 1.0}
        bad = [engine.submit("It was", seed=i, ignore_eos=True, **endless) for i in range(3)]
        good = [engine.submit("It was", **how, **constraint) for constraint in others]
        for constraint, request in zip(others, good, strict=True):
            plain = specdec.generate(target, None, "It was", **how, **constraint)
            assert request.result(WAIT_S).tokens == plain.tokens
        for request in bad:
            with pytest.raises(ConstraintError, match="longer than|has taken|still being computed"):
                request.result(WAIT_S)
        assert engine.submit("It was", **how).result(WAIT_S).finish_reason == "length"


# ------------------------------------------------------------------------------------------- the turns


@pytest.mark.parametrize("how", [{}, {"temperature": 1.1, "verify": "coupled", "seed": 6}])
def test_texts_that_take_turns_are_what_they_are_alone(
    how: dict[str, Any], pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every grammar counts as expensive: at most one such text joins a round, without draft tokens."""
    monkeypatch.setattr(request_queue, "_CHEAP_S", -1.0)
    target, draft = pair
    cheap: dict[str, Any] = {"grammar": CHEAP}
    requests = [cheap, {}, {"grammar": 'start: "a"~1..9 "b"'}, cheap | {"n": 3}, {"schema": True}]
    n_expensive: list[int] = []
    usual = request_queue.ConstraintTurns.plan

    def plan(self: request_queue.ConstraintTurns, running: Any) -> list[int] | None:
        gammas = usual(self, running)
        if gammas is not None:
            constrained = [one for one in running if one.generation.request.constraint is not None]
            known = [one for one in constrained if one.generation in self._expensive]
            n_expensive.append(sum(gammas[one.slot] >= 0 for one in known))
            assert all(gammas[one.slot] <= 0 for one in known)
        return gammas

    monkeypatch.setattr(request_queue.ConstraintTurns, "plan", plan)
    options: dict[str, Any] = {"max_new_tokens": 30, **how}
    with specdec.Engine(target, draft, n_slots=6, n_text=100) as engine:
        begun = [engine.submit("It was", **options, **request) for request in requests]
        found = [one.results(WAIT_S) for one in begun]
    assert max(n_expensive) == 1 and len(n_expensive) > 30
    for request, results in zip(requests, found, strict=True):
        plain = specdec.generate(target, None, "It was", **options, **request)
        assert results == (plain if isinstance(plain, list) else [plain])


def test_what_masks_take_is_counted(pair: Pair) -> None:
    target, _ = pair
    for method, constraint in (("grammar", CHEAP), ("schema", True), ("regex", "a{1,9}b")):
        guidance = Guidance.of(method, constraint, target.tokenizer, target.config.n_vocab, [0])  # type: ignore[arg-type]
        state = guidance.start(())
        assert state.mask() is not None
        before = guidance.mask_s
        assert before > 0.0
        state.fork().mask()
        assert guidance.mask_s > before
