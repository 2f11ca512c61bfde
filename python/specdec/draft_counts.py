"""What became of drafts, under the names of serving engines, and right where a text ends within a round."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


class Step(NamedTuple):
    """One run of the target and what of it is in the text.

    Drafted tokens count as far as they reach, accepted ones (the end-of-text token, where it was drafted, is
    one) and the new tokens `n_emitted` as far as the text goes, as do `betas`, the chances that a draft is
    accepted at each verified position. `depth` is the length of the longest drafted path.
    """

    n_drafted: int
    depth: int
    n_accepted: int
    n_emitted: int
    betas: tuple[float, ...]


@dataclass(frozen=True)
class DraftCounts:
    """Counts over steps, under the names that vLLM gives them.

    vLLM counts the steps that drafted something, and counts what was accepted after an end of text too. Here
    that is left out, so that the mean acceptance length is what its name says: new tokens a step.
    ``num_spec_...`` are of steps that verified a draft; `accepted_per_position` counts steps that accepted a
    first, second, … draft, as far as drafts reached.
    """

    num_steps: int
    num_spec_steps: int
    num_draft_tokens: int
    num_accepted_draft_tokens: int
    num_emitted_tokens: int
    num_spec_emitted_tokens: int
    accepted_per_position: tuple[int, ...]

    @classmethod
    def of(cls, steps: Iterable[Step]) -> DraftCounts:
        """Count steps."""
        every = tuple(steps)
        drafted = [step for step in every if step.n_drafted]
        reach = max((step.depth for step in drafted), default=0)
        return cls(
            num_steps=len(every),
            num_spec_steps=len(drafted),
            num_draft_tokens=sum(step.n_drafted for step in drafted),
            num_accepted_draft_tokens=sum(step.n_accepted for step in drafted),
            num_emitted_tokens=sum(step.n_emitted for step in every),
            num_spec_emitted_tokens=sum(step.n_emitted for step in drafted),
            accepted_per_position=tuple(
                sum(step.n_accepted > position for step in drafted) for position in range(reach)
            ),
        )

    @property
    def mean_acceptance_length(self) -> float:
        """New tokens of a step that verified a draft, the target's own token included; NaN without any."""
        return _share(self.num_spec_emitted_tokens, self.num_spec_steps)

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted over drafted tokens; NaN where nothing was drafted."""
        return _share(self.num_accepted_draft_tokens, self.num_draft_tokens)

    @property
    def per_position_acceptance_rate(self) -> tuple[float, ...]:
        """Share of the steps with a draft that accepted a first, second, … token of it."""
        return tuple(_share(accepted, self.num_spec_steps) for accepted in self.accepted_per_position)

    @property
    def tokens_per_call(self) -> float:
        """New tokens per run of the target, steps without a draft included: 1 in plain decoding."""
        return _share(self.num_emitted_tokens, self.num_steps)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else math.nan
