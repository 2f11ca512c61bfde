"""Speculative execution: the distribution of y, the schedule of calls, and exceptions in functions."""

from __future__ import annotations

import itertools
import os
import re
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy

import specdec
from exact import N_STEPS, cells
from refusals import refuses
from specdec.errors import InputError

TIMEOUT_S = 60
"""Time limit for events that must happen at once: reached only by a failing test."""

P_VALUE = 1e-6
"""False alarm rate of each statistical test; the seeds are fixed, so that none fails at random."""


class Inline(Executor):
    """An executor that runs every call immediately, in the calling thread."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(function(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


class Script(np.random.Generator):
    """A generator that returns prescribed uniforms."""

    def __init__(self, uniforms: np.ndarray) -> None:
        super().__init__(np.random.PCG64(0))
        self.uniforms = list(uniforms)

    def random(self, size: int | tuple[int] | None = None) -> Any:
        if size is None:
            return self.uniforms.pop(0)
        n = size[0] if isinstance(size, tuple) else size
        taken, self.uniforms = self.uniforms[:n], self.uniforms[n:]
        return np.array(taken)


def run(p: Any, q: Any, g: Callable[[Any], Any] = lambda y: y, **options: Any) -> specdec.Speculation:
    """Run with f and f_approx that do not depend on x."""
    options.setdefault("executor", Inline())
    return specdec.speculate(lambda x: p, lambda x: q, g, None, **options)


# ------------------------------------------------------------------------------------- the distribution of y

PAIRS = {
    "random": ([0.1, 0.25, 0.65], [0.5, 0.25, 0.25]), "disjoint": ([0.0, 1.0, 0.0], [0.5, 0.0, 0.5]),
    "zeros": ([0.0, 0.5, 0.5, 0.0], [0.25, 0.25, 0.0, 0.5]), "equal": ([0.2, 0.3, 0.5], [0.2, 0.3, 0.5]),
    "point": ([0.0, 0.0, 1.0], [0.25, 0.25, 0.5]),
}  # fmt: skip


def distribution_of(p: np.ndarray, q: np.ndarray, n_draft_tokens: int) -> tuple[dict[int, float], float]:
    """Exact distribution of y and acceptance probability: summed over drafts, integrated over uniforms.

    Drafts use a uniform in the middle of their interval; another test checks that q is drawn from.
    """
    outcomes: dict[int, float] = defaultdict(float)
    accepted = 0.0
    ends = np.cumsum(q)
    middles = ends - np.asarray(q) / 2

    def rule(tokens: Any, parents: Any, target: Any, draft: Any, uniforms: Any) -> tuple[list[int], int, Any]:
        script = Script(np.array([*middles[tokens[1:]], *uniforms[1:]]))
        out = run(p, q, n_draft_tokens=n_draft_tokens, seed=script)
        assert out.drafts == list(tokens[1:])
        assert script.uniforms == []
        assert out.value == out.y
        if out.accepted is not None:
            assert out.drafts[out.accepted] == out.y
        return ([] if out.accepted is None else [out.accepted + 1]), out.y, []

    parents = [-1] + [0] * n_draft_tokens
    for drafts in itertools.product(np.flatnonzero(q).tolist(), repeat=n_draft_tokens):
        weight = float(np.prod(np.asarray(q)[list(drafts)]))
        for box in cells(rule, [0, *drafts], parents, None, None):
            outcomes[box.token] += weight * box.probability
            accepted += weight * box.probability * bool(box.path)
    return outcomes, accepted


@pytest.mark.parametrize("n_draft_tokens", [1, 2])
@pytest.mark.parametrize("pair", PAIRS)
def test_the_distribution_of_a_table_is_exact(pair: str, n_draft_tokens: int) -> None:
    p, q = (np.array(values) for values in PAIRS[pair])
    outcomes, accepted = distribution_of(p, q, n_draft_tokens)
    np.testing.assert_allclose([outcomes.get(y, 0.0) for y in range(len(p))], p, rtol=0, atol=1e-12)
    assert set(outcomes) <= set(np.flatnonzero(p))
    beta = np.minimum(p, q).sum()  # Theorem 3.5
    if n_draft_tokens == 1:
        assert accepted == pytest.approx(beta, abs=1e-12)
    elif beta < 1:
        left = np.maximum(0, p - q) / (1 - beta)  # the residual that the second draft is compared with
        assert accepted == pytest.approx(beta + (1 - beta) * np.minimum(left, q).sum(), abs=1e-12)


@pytest.mark.parametrize(
    ("uniform", "draft"), [(0.0, 1), (0.25 - 2**-53, 1), (0.25, 3), (1 - 1 / N_STEPS, 3)]
)
def test_drafts_of_a_table_are_drawn_by_inversion(uniform: float, draft: int) -> None:
    q = np.array([0.0, 0.25, 0.0, 0.75, 0.0])
    out = run(q, q, seed=Script(np.array([uniform, 0.5, 0.5])))
    assert out.drafts == [draft]


# Functions, so that scipy.stats is imported when a test runs, not when tests are collected.
CONTINUOUS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "shifted": lambda: (scipy.stats.norm(0.3, 1.0), scipy.stats.norm(0.0, 1.2)),
    "narrow": lambda: (scipy.stats.norm(0.0, 1.0), scipy.stats.norm(0.0, 0.5)),  # q thin where p has mass
    "bounded": lambda: (scipy.stats.beta(2, 3), scipy.stats.uniform(0, 1)),
    "outside": lambda: (scipy.stats.expon(), scipy.stats.norm(0.0, 1.0)),  # drafts where p is 0
    "equal": lambda: (scipy.stats.gamma(2), scipy.stats.gamma(2)),
}


@pytest.mark.statistical
@pytest.mark.parametrize("n_draft_tokens", [1, 3])
@pytest.mark.parametrize("pair", CONTINUOUS)
def test_the_distribution_of_densities(pair: str, n_draft_tokens: int) -> None:
    """Kolmogorov-Smirnov of y; the share accepted is the integral of min(p, q) (Theorem 3.5)."""
    p, q = CONTINUOUS[pair]()
    rng = np.random.default_rng(5)
    runs = [run(p, q, n_draft_tokens=n_draft_tokens, seed=rng) for _ in range(1500)]
    assert scipy.stats.kstest([out.y for out in runs], p.cdf).pvalue > P_VALUE
    grid = np.linspace(-12, 20, 400_001)
    beta = np.minimum(p.pdf(grid), q.pdf(grid)).sum() * (grid[1] - grid[0])
    n_accepted = sum(out.accepted is not None for out in runs)
    alternative = "two-sided" if n_draft_tokens == 1 else "less"  # more drafts: at least as often
    assert scipy.stats.binomtest(n_accepted, len(runs), min(beta, 1.0), alternative).pvalue > P_VALUE
    for out in runs:
        assert out.accepted is None or out.y == out.drafts[out.accepted]


@pytest.mark.statistical
def test_the_distribution_of_counts_and_vectors() -> None:
    """Distributions on the integers have pmf: a chi-square test. Vectors are tested along directions."""
    p, q = scipy.stats.poisson(3.0), scipy.stats.poisson(2.0)
    rng = np.random.default_rng(6)
    counts = Counter(min(int(run(p, q, n_draft_tokens=2, seed=rng).y), 9) for _ in range(3000))
    expected = [3000 * p.pmf(y) for y in range(9)] + [3000 * p.sf(8)]
    assert scipy.stats.chisquare([counts[y] for y in range(10)], expected).pvalue > P_VALUE

    covariance = np.array([[1, 0.5], [0.5, 1]])
    p, q = scipy.stats.multivariate_normal([0, 0], covariance), scipy.stats.multivariate_normal([0, 0.2])
    ys = np.array([run(p, q, n_draft_tokens=2, seed=rng).y for _ in range(1500)])
    for direction in ([1, 0], [0, 1], [1, 1], [1, -1]):
        scale = np.sqrt(direction @ covariance @ direction)
        assert scipy.stats.kstest(ys @ direction / scale, scipy.stats.norm.cdf).pvalue > P_VALUE


@pytest.mark.parametrize("pair", [lambda: PAIRS["random"], CONTINUOUS["narrow"]], ids=["table", "densities"])
def test_same_seed_same_result_whatever_runs_first(pair: Callable[[], tuple[Any, Any]]) -> None:
    p, q = pair()
    first = [run(p, q, n_draft_tokens=3, seed=seed) for seed in range(20)]
    with ThreadPoolExecutor(1) as pool:
        for seed, out in enumerate(first):
            for executor in (None, pool):
                again = run(p, q, n_draft_tokens=3, seed=seed, executor=executor)
                assert again[:4] == out[:4]
    assert len({out.y for out in first}) > 1


# ------------------------------------------------------------------------------- what runs, and when


def test_f_and_all_drafts_run_together() -> None:
    """Each call waits until the others have begun: calls one after another would never end."""
    barrier = threading.Barrier(4)

    def together(value: Any) -> Any:
        barrier.wait(TIMEOUT_S)
        return value

    uniform = scipy.stats.uniform(0, 1)
    out = specdec.speculate(
        lambda x: together(uniform), lambda x: uniform, lambda y: together(-y), "x", n_draft_tokens=3, seed=0
    )
    assert (out.n_g_calls, out.accepted, out.value) == (3, 0, -out.y)


def test_equal_drafts_share_a_call() -> None:
    calls: list[int] = []
    out = run([0.0, 1.0], [0.0, 1.0], calls.append, n_draft_tokens=4)
    assert calls == [1]
    assert (out.drafts, out.accepted, out.n_g_calls) == ([1, 1, 1, 1], 0, 1)


def test_after_a_rejection_g_runs_on_what_was_drawn() -> None:
    calls: list[int] = []
    out = run([0.0, 0.0, 1.0], [0.5, 0.5, 0.0], lambda y: calls.append(y) or 10 * y, n_draft_tokens=1, seed=3)
    assert calls == [out.drafts[0], 2]
    assert (out.y, out.value, out.accepted, out.n_g_calls) == (2, 20, None, 2)


def test_drafts_that_have_not_begun_are_cancelled() -> None:
    """One worker: f, then the first draft; the others need not run once it is accepted."""
    calls: list[float] = []
    settled = threading.Event()
    p = scipy.stats.uniform(0, 1)

    class Waiting(ThreadPoolExecutor):
        """An executor whose first draft ends only when the others have been cancelled."""

        def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            future = super().submit(function, *args, **kwargs)
            future.add_done_callback(lambda done: done.cancelled() and settled.set())
            return future

    def g(y: float) -> float:
        calls.append(y)
        assert settled.wait(TIMEOUT_S)
        return y

    with Waiting(1) as pool:
        out = specdec.speculate(lambda x: p, lambda x: p, g, None, n_draft_tokens=3, seed=0, executor=pool)
    assert (out.accepted, calls, out.n_g_calls) == (0, [out.drafts[0]], 1)


def test_rejected_drafts_have_ended_when_it_returns() -> None:
    running: list[float] = []
    may_end = threading.Event()

    def g(y: int) -> int:
        running.append(y)
        if y != 2:
            assert may_end.wait(TIMEOUT_S)
        running.remove(y)
        if y == 2:
            may_end.set()
        return y

    def f(x: Any) -> list[float]:
        while not running:  # until the draft's call has begun
            pass
        return [0.0, 0.0, 1.0]

    out = specdec.speculate(f, lambda x: [1.0, 0.0, 0.0], g, None)
    assert (out.y, out.n_g_calls, running) == (2, 2, [])


def test_times_are_those_of_the_parts() -> None:
    """Each part takes a time of its own, and g only once f has said that its draft was wrong."""

    def after(seconds: float, *probs: float) -> Any:
        return lambda x: time.sleep(seconds) or probs

    out = specdec.speculate(after(0.06, 0, 1), after(0.02, 1, 0), lambda y: time.sleep(0.04 * y), None)
    f_s, f_approx_s, g_s, total_s = out.times
    assert f_s >= 0.06 and f_approx_s >= 0.02 and g_s >= 0.04
    assert total_s >= max(f_s, f_approx_s) + g_s


def slow_f(x: float) -> list[float]:
    return [x, 1 - x]


def which_process(y: int) -> tuple[int, int]:
    return y, os.getpid()


def test_processes_do_as_well() -> None:
    with ProcessPoolExecutor(2) as pool:
        out = specdec.speculate(slow_f, slow_f, which_process, 0.25, seed=1, executor=pool)
    assert out.value[0] == out.y
    assert out.value[1] != os.getpid()


# ------------------------------------------------------------------------------------------- failures


class CrashError(Exception):
    pass


def crash(argument: Any) -> Any:
    raise CrashError(argument)


@pytest.mark.parametrize("own_pool", [True, False])
@pytest.mark.parametrize("failing", ["f", "f_approx"])
def test_when_a_function_fails_what_runs_is_waited_for(failing: str, own_pool: bool) -> None:
    """The draft's g where f fails, and f where f_approx does."""
    begun, failed, ended = threading.Event(), threading.Event(), threading.Event()

    def fails(x: Any) -> Any:
        assert begun.wait(TIMEOUT_S)
        failed.set()
        raise CrashError(x)

    def runs(x: Any) -> list[float]:
        begun.set()
        assert failed.wait(TIMEOUT_S)
        time.sleep(0.2)  # long after the error, so that a missing wait is detected
        ended.set()
        return [1.0]

    functions = (fails, lambda x: [1.0], runs) if failing == "f" else (runs, fails, lambda y: y)
    with ThreadPoolExecutor(2) as pool:
        with pytest.raises(CrashError, match="^x$"):
            specdec.speculate(*functions, "x", executor=None if own_pool else pool)
        assert ended.is_set()


def test_an_error_of_g_on_the_token_taken_comes_through() -> None:
    with ThreadPoolExecutor(2) as pool:
        with pytest.raises(CrashError, match="^0$"):
            run([1.0], [1.0], crash, executor=pool)
        assert pool.submit(int, "7").result(TIMEOUT_S) == 7  # the caller's pool stays usable
    with pytest.raises(CrashError, match="^1$"):
        run([0.0, 1.0], [1.0, 0.0], lambda y: crash(y) if y == 1 else y)


def test_an_error_of_g_on_a_rejected_draft_is_reported_not_raised() -> None:
    """Without speculation there would be no such call."""
    out = run([0.0, 1.0], [1.0, 0.0], lambda y: crash(y) if y == 0 else "fine")
    assert (out.y, out.value, out.n_g_calls) == (1, "fine", 2)
    (error,) = out.errors
    assert isinstance(error, CrashError)


class Wrong:
    """A caller's invalid density."""

    def __init__(self, density: Any) -> None:
        self.density = density

    def rvs(self, *, random_state: np.random.Generator) -> float:
        return random_state.random()

    def pdf(self, y: float) -> Any:
        return self.density


DRAWN = SimpleNamespace(rvs=lambda random_state: 0.0)  # without a density
NORMAL = object()  # instead of scipy's normal distribution


@pytest.mark.parametrize(
    ("p", "q", "message"),
    [
        ([0.5, 0.5], [1.0], "an array of 2 probabilities and f_approx(x) is an array of 1"),
        ([1.0], NORMAL, "f(x) is an array of 1 probabilities and f_approx(x) is an object"),
        ([0.5, 0.6], [0.5, 0.5], "f(x) sums to 1.1"), ([0.5, 0.5], [1.5, -0.5], "f_approx(x) has negative"),
        ([0.5, np.nan], [0.5, 0.5], "f(x) has negative or non-finite"),
        ([[1.0]], [1.0], "f(x) has shape (1, 1)"), ([1.0], [], "f_approx(x) has shape (0,)"),
        ("no", [1.0], "f(x) has dtype"), (DRAWN, DRAWN, "rvs but neither"),
        (NORMAL, Wrong(0.0), "expected a value with density above 0"),
        (NORMAL, Wrong(-1.0), "the density of f_approx(x) at"),
        (Wrong(np.nan), NORMAL, "the density of f(x) at"), (Wrong([1.0, 1.0]), NORMAL, "expected one number"),
    ],
)  # fmt: skip
def test_what_is_no_distribution_is_refused(p: Any, q: Any, message: str) -> None:
    p, q = (scipy.stats.norm() if value is NORMAL else value for value in (p, q))
    with pytest.raises(InputError, match=re.escape(message)):
        run(p, q)


def test_densities_that_are_not_normalized_end_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of a density is nowhere above the whole: the residual has no mass."""
    monkeypatch.setattr("specdec.verification.speculative_execution.RESIDUAL_DRAWS", 1000)
    with pytest.raises(InputError, match="none with a density above"):
        for seed in range(100):
            run(Wrong(0.5), Wrong(1.0), seed=seed)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("n_draft_tokens", 0),
        ("n_draft_tokens", 1.5),
        ("n_draft_tokens", True),
        ("seed", -1),
        ("executor", 3),
        ("g", None),
    ],
)
def test_bad_arguments_are_refused(argument: str, value: Any) -> None:
    arguments = {"g": lambda y: y, argument: value}
    with refuses(argument, value):
        specdec.speculate(lambda x: [1.0], lambda x: [1.0], x=None, **arguments)
