"""Simulated targets and drafts for the gamma="auto" policy: times and acceptances without a clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from specdec import _core

MAX_GAMMA = 32


@dataclass
class World:
    """Simulated costs of rounds and acceptance of a draft."""

    verify: Callable[[int], float]  # seconds of a round with M rows, without drafting
    cost: float  # seconds of a step of the draft for one sequence
    levels: list[tuple[float, float, float]]
    """(share, confidence, chance): how often a draft token has a confidence, and its chance of acceptance."""
    looks: bool = False  # whether the draft may look at a token before it proposes it
    reading: tuple[float, float] = (0.0, 0.0)
    """Experts' share of the seconds of one row; the chance that another row does not use the same expert."""
    noise: float = 0.05  # of the logarithm of every time
    accidents: float = 0.02  # share of the times that are three times as long
    extra_tokens: int = 0
    """Extra query tokens after each row of a drafting round: the most draft tokens of the next round."""

    @property
    def alpha(self) -> float:
        return sum(share * chance for share, _, chance in self.levels)

    together: float = 1.0
    """Share of this time that each further sequence of a step adds."""

    def step(self, n_sequences: int) -> float:
        """Seconds of a step of the draft."""
        return self.cost * (1.0 + self.together * (n_sequences - 1)) if n_sequences else 0.0

    def fixed_rate(self, gamma: int, n: int = 1) -> float:
        """Tokens per second of `n` sequences with this gamma, by equation (1)."""
        verify_s = self.verify(n * (gamma + 1) * (1 + (self.extra_tokens if gamma else 0)))
        return n * sum(self.alpha**k for k in range(gamma + 1)) / (verify_s + gamma * self.step(n))

    @property
    def plain_rate(self) -> float:
        return self.fixed_rate(0)

    @property
    def best_rate(self) -> float:
        return max(map(self.fixed_rate, range((self.extra_tokens or MAX_GAMMA) + 1)))


class Play:
    """Rounds of the policy in a simulated world.

    Counts seconds without noise and, for each round, the expected instead of the sampled number of tokens.
    """

    def __init__(self, world: World, seed: int, learned: _core.AdaptiveGamma | None = None) -> None:
        self.world = world
        self.learned = _core.AdaptiveGamma() if learned is None else learned
        if world.reading[0] or world.extra_tokens:
            _core._adaptive_gamma_reads(self.learned, *world.reading, world.extra_tokens)  # type: ignore[attr-defined]
        self._rng = np.random.default_rng(seed)
        self._gamma = world.extra_tokens or MAX_GAMMA
        self._has_drafted = not world.extra_tokens
        self.gammas: list[int] = []
        self.tokens = 0.0
        self.seconds = 0.0

    def rate(self, n_tokens: float, n_sequences: int = 1) -> float:
        """Tokens per second over the next `n_tokens`."""
        tokens, seconds = self.tokens, self.seconds
        while self.tokens < tokens + n_tokens:
            self.round(n_sequences)
        return (self.tokens - tokens) / (self.seconds - seconds)

    def round(self, n_sequences: int = 1) -> None:
        drafting = _core._adaptive_gamma_begin(self.learned, n_sequences, self._gamma)
        asks = [drafting and bool(_core._adaptive_gamma_asks(self.learned, i)) for i in range(n_sequences)]
        drafts = [self._chain(asked and self._has_drafted) for asked in asks]
        chains = [chain for (chain, _), asked in zip(drafts, asks, strict=True) if asked or not drafting]
        n_rows = n_sequences + sum(len(chain[0]) for chain in chains)
        steps = [max(len(chain[0]), chain[2]) for chain in chains]
        n_tokens = n_sequences + sum(chain[1] for chain in chains)
        n_extra = self.world.extra_tokens if drafting else 0
        draft_s = sum(self.world.step(sum(n > k for n in steps)) for k in range(max(steps, default=0)))
        rest_s = self.world.verify(n_rows * (1 + n_extra))
        self._has_drafted = bool(drafting) or not self.world.extra_tokens
        _core._adaptive_gamma_end(
            self.learned, tuple(chains), n_tokens, draft_s * self._noise(), rest_s * self._noise()
        )
        self.tokens += sum(tokens for _, tokens in drafts)
        self.seconds += draft_s + rest_s
        self.gammas.append(n_rows - n_sequences)

    def _noise(self) -> float:
        usual = float(np.exp(self._rng.normal(0.0, self.world.noise)))
        return usual * (3.0 if self.world.noise and self._rng.random() < self.world.accidents else 1.0)

    def _chain(self, drafting: int) -> tuple[tuple[list[float], int, int, float], float]:
        """(confidences, accepted tokens, depth of the rejected one or 0, its confidence); expected tokens."""
        world, confidences, right = self.world, [], []
        reach = tokens = 1.0
        shares = [level[0] for level in world.levels]
        while (
            drafting
            and len(confidences) < self._gamma
            and _core._adaptive_gamma_pays(self.learned, confidences, False)
        ):
            _, confidence, chance = world.levels[self._rng.choice(len(shares), p=shares)]
            if world.looks and not _core._adaptive_gamma_pays(self.learned, [*confidences, confidence], True):
                return (confidences, _first_false(right), len(confidences) + 1, confidence), tokens
            confidences.append(confidence)
            reach *= chance
            tokens += reach
            right.append(bool(self._rng.random() < chance))
        return (confidences, _first_false(right), 0, 0.0), tokens


def _first_false(values: list[bool]) -> int:
    return values.index(False) if False in values else len(values)
