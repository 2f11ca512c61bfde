"""Stochastic speculative execution of slow functions (Leviathan et al., arXiv 2211.17192, section 6)."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specdec.checks import check_array, check_integer, check_real
from specdec.errors import InputError, shown
from specdec.verification.verify import SUM_TOLERANCE, Seed, _generator, _of_shape, verify

RESIDUAL_DRAWS = 1_000_000
"""Maximum number of draws from f's distribution when sampling its residual. A sample takes 1 / (1 - beta)
draws on average, and is needed with probability 1 - beta."""


@runtime_checkable
class Distribution(Protocol):
    """A distribution other than an array of probabilities, such as a frozen one of scipy.stats.

    Besides `rvs` it has ``pdf(y)``, its normalized density at y, or ``pmf(y)`` on countably many values.
    """

    def rvs(self, *, random_state: np.random.Generator) -> Any:
        """Draw one value, using only `random_state`."""
        ...


class SpeculationTimes(NamedTuple):
    """Seconds of the parts of one :func:`speculate` call, and of the whole."""

    f_s: float
    f_approx_s: float
    g_s: float
    """The call of g whose value was returned."""
    total_s: float
    """Wall time; without speculation it would be ``f_s + g_s``."""


class Speculation(NamedTuple):
    """Result of :func:`speculate`."""

    y: Any
    """A sample of f(x)'s distribution; for an array of probabilities an index into it."""
    value: Any
    """g(y)."""
    accepted: int | None
    """Index of the accepted draft; None if all were rejected and y was drawn afterwards."""
    drafts: list[Any]
    """Draws from f_approx(x)."""
    n_g_calls: int
    """Calls of g that started, for drafts and for y."""
    errors: list[BaseException]
    """Exceptions of g for drafts that were not accepted; calls that would not exist without speculation."""
    times: SpeculationTimes


MAX_DRAFTS = 1024


class _Timed(NamedTuple):
    value: Any
    seconds: float


def speculate(
    f: Callable[[Any], ArrayLike | Distribution], f_approx: Callable[[Any], ArrayLike | Distribution],
    g: Callable[[Any], Any], x: Any, *, n_draft_tokens: int = 1, seed: Seed = None,
    executor: Executor | None = None,
) -> Speculation:  # fmt: skip
    """Draw y from the distribution f(x) and compute g(y), with f and g running at the same time.

    A draft is drawn from the distribution f_approx(x), and g runs on it while f runs. With p the distribution
    of f and q that of f_approx, the draft is accepted with probability min(1, p / q); otherwise y is drawn
    from norm(max(0, p - q)) and g runs again. So y has distribution p for every q (Leviathan et al., section
    2.3 and appendix A.1). With t_f and t_g for the two calls and beta = sum(min(p, q)), a call takes
    ``max(t_f, t_g) + (1 - beta) * min(t_f, t_g)`` on average instead of ``t_f + t_g``.

    Parameters
    ----------
    f : callable
        The slow function of x. Returns a 1-d array of probabilities, [n_outcomes], of which y is an index, or
        an object with ``rvs(random_state=...)`` and ``pdf(y)`` or ``pmf(y)``, like scipy.stats' frozen
        distributions. Random numbers inside f do not affect y.
    f_approx : callable
        The fast approximation of f, over the same outcomes. It runs in the calling thread.
    g : callable
        The slow function of y. Calls for rejected drafts are wasted: g should have no side effects.
    x : object
        Passed to f and f_approx.
    n_draft_tokens : int
        Number of independent drafts, 1 to 1024; g runs on all distinct ones at once. For arrays, each draft
        is verified against the residual of the rejected ones before it (the iterative rule of
        :func:`verify`). For other distributions, later drafts serve as proposals when sampling max(0, p - q):
        also exact, but accepted less often.
    seed : int, or Generator, BitGenerator or SeedSequence of numpy.random, optional
        Source of all random numbers: ``numpy.random.default_rng(seed)``. The same seed gives the same y,
        regardless of timing. Over several calls pass one generator, not the same number repeatedly.
    executor : concurrent.futures.Executor, optional
        Runs f and g; needs ``n_draft_tokens + 1`` workers to run all at once. By default, threads for the
        duration of the call, which suit functions that release the GIL for milliseconds at a time. For others
        pass a ProcessPoolExecutor, and picklable functions and values. Do not call from inside a worker of
        the same executor.

    Returns
    -------
    Speculation

    Raises
    ------
    InputError
        If an argument is invalid, f and f_approx return different types of distributions or numbers of
        outcomes, an array is not a distribution (see :func:`verify`), a density is negative or not finite, or
        a draft has density 0 where it was drawn from.
    Exception
        Any exception of f, f_approx, or g(y) for the returned y. In every case, pending calls are cancelled
        and running ones awaited: nothing is left running.

    Examples
    --------
    >>> import specdec
    >>> weather = lambda day: [0.7, 0.2, 0.1]  # slow and right
    >>> habit = lambda day: [0.6, 0.4, 0.0]  # fast and wrong
    >>> out = specdec.speculate(weather, habit, lambda y: f"plan for {y}", "Monday", seed=1)
    >>> out.y, out.value, out.accepted
    (0, 'plan for 0', 0)
    """
    for name, function in (("f", f), ("f_approx", f_approx), ("g", g)):
        if not callable(function):
            raise InputError.of(name, function, "a function of one argument")
    n_draft_tokens = check_integer("n_draft_tokens", n_draft_tokens, 1, MAX_DRAFTS)
    if executor is not None and not hasattr(executor, "submit"):
        raise InputError.of("executor", executor, "a concurrent.futures.Executor or None")
    rng = _generator(seed)

    begun = time.perf_counter()
    with ExitStack() as stack:
        pool = executor or stack.enter_context(ThreadPoolExecutor(n_draft_tokens + 1))
        calls = _Calls(pool, g)
        stack.callback(calls.finish)
        exact = calls.submit(f, x)
        approx = _timed(f_approx, x)
        q = _distribution(approx.value, "f_approx(x)")
        drafts = q.draw(n_draft_tokens, rng)
        for i, draft in enumerate(drafts):
            calls.g(q.key(i, draft), draft)

        p = _distribution(exact.result().value, "f(x)")
        if type(p) is not type(q) or p.description != q.description:
            raise InputError(f"f(x) is {p.description} and f_approx(x) is {q.description}; expected the same")
        y, accepted = p.settle(q, drafts, rng)
        key = q.key(accepted, y)
        calls.cancel_all_but(key)
        kept = calls.g(key, y).result()
        calls.finish()
        total_s = time.perf_counter() - begun
    times = SpeculationTimes(exact.result().seconds, approx.seconds, kept.seconds, total_s)
    return Speculation(y, kept.value, accepted, drafts, calls.n_begun, calls.errors(but=key), times)


class _Calls:
    """Calls of f and g in flight: each is cancelled or awaited."""

    def __init__(self, pool: Executor, g: Callable[[Any], Any]) -> None:
        self._pool, self._g = pool, g
        self._all: list[Future[_Timed]] = []
        self._by_key: dict[Hashable, Future[_Timed]] = {}

    def submit(self, function: Callable[[Any], Any], argument: Any) -> Future[_Timed]:
        future = self._pool.submit(_timed, function, argument)
        self._all.append(future)
        return future

    def g(self, key: Hashable, y: Any) -> Future[_Timed]:
        """Return g(y), started once per key."""
        if key not in self._by_key:
            self._by_key[key] = self.submit(self._g, y)
        return self._by_key[key]

    def cancel_all_but(self, key: Hashable) -> None:
        for other, future in self._by_key.items():
            if other != key:
                future.cancel()

    def finish(self) -> None:
        """Cancel pending calls and wait for running ones."""
        wait([future for future in self._all if not future.cancel()])

    @property
    def n_begun(self) -> int:
        return sum(not future.cancelled() for future in self._by_key.values())

    def errors(self, but: Hashable) -> list[BaseException]:
        others = (f for key, f in self._by_key.items() if key != but and not f.cancelled())
        return [error for error in (future.exception() for future in others) if error is not None]


def _timed(function: Callable[[Any], Any], argument: Any) -> _Timed:
    """Run in a worker, perhaps in another process: hence a module-level function."""
    begun = time.perf_counter()
    value = function(argument)
    return _Timed(value, time.perf_counter() - begun)


class _Table:
    """A distribution given by its probabilities, [n_outcomes]."""

    def __init__(self, values: ArrayLike, name: str) -> None:
        probs = check_real(name, values)
        if probs.ndim != 1 or len(probs) == 0:
            raise _of_shape(name, probs, "(n_outcomes,), or an object with rvs and pdf")
        if not np.all(np.isfinite(probs)) or np.any(probs < 0):
            raise InputError.of(name, probs, "probabilities", "negative or non-finite entries", "has")
        if abs(probs.sum() - 1) > SUM_TOLERANCE:
            raise InputError.of(name, probs, f"1 within {SUM_TOLERANCE}", f"{probs.sum():.12g}", "sums to")
        self.probs: NDArray[np.float64] = probs

    @property
    def description(self) -> str:
        return f"an array of {len(self.probs)} probabilities"

    def key(self, i: int | None, y: int) -> Hashable:
        """Return y: equal drafts share one call of g."""
        return y

    def draw(self, n: int, rng: np.random.Generator) -> list[int]:
        """Draw by inversion; an outcome of probability 0 has an empty interval of [0, 1)."""
        ends = np.cumsum(self.probs)
        drawn: list[int] = np.searchsorted(ends / ends[-1], rng.random(n), side="right").tolist()
        return drawn

    def settle(self, q: _Table, drafts: Sequence[int], rng: np.random.Generator) -> tuple[int, int | None]:
        """Verify the drafts as siblings in a tree; return (y, index of the accepted draft)."""
        target_probs = np.tile(self.probs, (len(drafts) + 1, 1))
        draft_probs = np.tile(q.probs, (len(drafts), 1))
        verified = verify(drafts, target_probs, draft_probs, parents=[0] * len(drafts), seed=rng)
        return verified.tokens[0], verified.path[0] - 1 if verified.path else None


class _Density:
    """A distribution given by samples and a density."""

    description = "an object with rvs and a density"

    def __init__(self, distribution: Any, name: str) -> None:
        self._distribution, self._name = distribution, name
        density = getattr(distribution, "pdf", None) or getattr(distribution, "pmf", None)
        if density is None:
            raise InputError.of(name, distribution, "pdf or pmf", "rvs but neither", "has")
        self._density: Callable[[Any], object] = density

    def density(self, y: Any) -> float:
        name = f"the density of {self._name}"
        density = check_array(name, self._density(y), "a number")
        is_number = density.size == 1 and density.dtype.kind in "fiu"
        if not is_number or not np.isfinite(density).all() or density.item() < 0:
            raise InputError.of(f"{name} at {shown(y)}", density, "one number, 0 or more")
        return float(density.item())

    def key(self, i: int | None, y: Any) -> Hashable:
        """Return the index: each draft, and the final draw, has its own call of g."""
        return i

    def draw(self, n: int, rng: np.random.Generator) -> list[Any]:
        drafts = [self._distribution.rvs(random_state=rng) for _ in range(n)]
        for draft in drafts:
            if self.density(draft) == 0:
                raise InputError.of(self._name, draft, "a value with density above 0", verb="gave")
        return drafts

    def settle(self, q: _Density, drafts: Sequence[Any], rng: np.random.Generator) -> tuple[Any, int | None]:
        """Run speculative sampling without sums over all outcomes.

        norm(max(0, p - q)) is sampled by rejection from p: z ~ p is kept with probability max(0, 1 - q / p).
        z may itself be drawn speculatively, from the next draft.
        """
        untried = iter(enumerate(drafts))

        def target() -> tuple[Any, int | None]:
            index, draft = next(untried, (None, None))
            if index is None:
                return self._distribution.rvs(random_state=rng), None
            if rng.random() * q.density(draft) < self.density(draft):
                return draft, index
            return residual()

        def residual() -> tuple[Any, int | None]:
            for _ in range(RESIDUAL_DRAWS):
                z, index = target()
                density = self.density(z)
                if rng.random() * density < density - q.density(z):
                    return z, index
            found = f"{RESIDUAL_DRAWS} draws, none with a density above that of {q._name}"
            expected = "densities with integral 1, and samples that follow them"
            raise InputError.of(self._name, None, expected, found, "gave")

        return target()


def _distribution(value: Any, name: str) -> Any:
    return _Density(value, name) if isinstance(value, Distribution) else _Table(value, name)
