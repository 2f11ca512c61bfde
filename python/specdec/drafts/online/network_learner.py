"""Networks that learn online: gradient steps towards the target's law where the draft was corrected."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from specdec.checks import check_choice, check_integer, check_number
from specdec.drafts.model_draft import ModelDraft
from specdec.drafts.online.corrections import Corrections, Passage, passages
from specdec.drafts.online.learner import GoesOn, Learner
from specdec.errors import InputError, shown
from specdec.models.model import Model, load

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["NetworkLearner"]

Loss: TypeAlias = Literal["fkl", "rkl", "jsd", "tvd"]
LOSSES: tuple[Loss, ...] = ("fkl", "rkl", "jsd", "tvd")

_LEAST_REST = 1e-12
"""Probability of all other tokens, at least: its logarithm stays finite."""
_MOST_LOGITS = 1 << 24
"""Logits of a step at most, where that leaves one passage."""


class NetworkLearner(Learner):
    """A model learns by gradient steps on its corrections: AdamW, on the loss at the corrected positions.

    The law that it learns is the target's at temperature 1: its `n_top` most probable tokens one by one, and
    all others together. Steps are taken on passages with the newest corrections and, for the other half, on
    any that are kept, so that what was learnt before is not forgotten at once.

    Learning takes a copy of the weights in f32 with two moments each, and at each update the model is written
    to a temporary folder and packed again in its number format.

    Parameters
    ----------
    draft : ModelDraft
        Its model is read from a Hugging Face folder and has no encoder.
    loss : {"fkl", "rkl", "jsd", "tvd"}
        The divergence of target and draft: forward or reverse Kullback-Leibler, Jensen-Shannon, total
        variation.
    learning_rate : float, optional
        By default 3e-4, less for models of more than ten million parameters, in inverse proportion to the
        root of their number.
    passes : float, default 4.0
        How often a correction is learnt from when it is new, on average.
    batch : int, default 1024
        Tokens of a step.
    n_before : int, default 64
        Tokens of the text that are kept before a correction, at least 2.
    n_top : int, default 32
        Tokens of the target's law that are kept.
    seed : int, default 0
        Of the order in which corrections are learnt from.

    Raises
    ------
    InputError
        An argument is out of its range, or the model has an encoder.
    CheckpointError
        transformers cannot read the model's folder.
    MissingPackageError
        torch or transformers is not installed.
    """

    name = "network"

    def __init__(
        self,
        draft: ModelDraft,
        *,
        loss: Loss = "fkl",
        learning_rate: float | None = None,
        passes: float = 4.0,
        batch: int = 1024,
        n_before: int = 64,
        n_top: int = 32,
        seed: int = 0,
    ) -> None:
        if not isinstance(draft, ModelDraft) or draft.draft is not None:
            raise InputError(f"draft is {shown(draft)}; expected a ModelDraft without a draft of its own")
        self.loss = check_choice("loss", loss, LOSSES)
        positive = "a finite number above 0"
        if learning_rate is not None:
            check_number("learning_rate", learning_rate, positive, lambda x: 0.0 < x < math.inf)
        self.passes = check_number("passes", passes, positive, lambda x: 0.0 < x < math.inf)
        self.batch = check_integer("batch", batch, 1, 1 << 24)
        self.n_before = check_integer("n_before", n_before, 2, 1 << 16)
        self.n_top = check_integer("n_top", n_top, 1, 1 << 16)
        model = draft.model
        if model.config.encoder is not None:
            raise InputError(f"draft {model.path} has an encoder; expected a model without one")
        self._draft, self._rng = draft, np.random.default_rng(check_integer("seed", seed, 0, 2**63 - 1))

        from specdec.learning.small_network import open_decoder

        self._network = open_decoder(model.path).eval()  # no dropout
        size = sum(parameter.numel() for parameter in self._network.parameters())
        self.learning_rate = learning_rate or 3e-4 / max(1.0, size / 1e7) ** 0.5
        self._optimiser = self._new_optimiser()

    def _new_optimiser(self) -> Any:
        import torch

        parameters = self._network.parameters()
        return torch.optim.AdamW(parameters, lr=self.learning_rate, betas=(0.9, 0.99), weight_decay=0.0)

    def begin_thread(self) -> None:
        """See `Learner.begin_thread`: torch computes in this one thread."""
        import torch

        torch.set_num_threads(1)

    def learn(self, corrections: Corrections, n_new: int, goes_on: GoesOn) -> ModelDraft:
        """See `Learner.learn`."""
        found = passages(corrections, min(2 * self.n_before, self._draft.model.config.n_ctx))
        of_row = np.empty(len(corrections), np.int64)
        for i, passage in enumerate(found):
            of_row[passage.rows] = i
        new = np.unique(of_row[len(corrections) - n_new :]) if n_new else np.zeros(0, np.int64)
        n_tokens = sum(len(found[i].ids) for i in new)
        for _ in range(math.ceil(self.passes * n_tokens / self._batch_size)):
            if not goes_on():
                break
            self._step(corrections, self._drawn(found, new))
        return self._exported()

    @property
    def _batch_size(self) -> int:
        """Tokens of a step; few where each has many logits."""
        return max(1, min(self.batch, _MOST_LOGITS // self._draft.model.config.n_vocab))

    def _drawn(self, found: Sequence[Passage], new: NDArray[np.int64]) -> list[Passage]:
        """The passages of a step: in turn a new one and any, as many as there is room for, at least one."""
        chosen: dict[int, None] = {}
        longest = n_chosen = 0
        for turn in range(2 * len(found)):
            i = int(self._rng.choice(new)) if turn % 2 == 0 else int(self._rng.integers(len(found)))
            longest = max(longest, len(found[i].ids))
            if n_chosen and longest * (n_chosen + 1) > self._batch_size:
                break
            chosen[i] = None
            n_chosen = len(chosen)
        return [found[i] for i in chosen]

    def _step(self, corrections: Corrections, chosen: Sequence[Passage]) -> None:
        import torch

        from specdec.learning.target_law import Objective

        n_vocab = self._draft.model.config.n_vocab
        ids = np.zeros((len(chosen), max(len(passage.ids) for passage in chosen)), np.int64)
        for row, passage in zip(ids, chosen, strict=True):
            row[: len(passage.ids)] = np.minimum(passage.ids, n_vocab - 1)  # what the core reads for others
        lines = np.repeat(np.arange(len(chosen)), [len(passage.ends) for passage in chosen])
        ends = np.concatenate([passage.ends for passage in chosen])
        rows = np.concatenate([passage.rows for passage in chosen])
        logits = self._network(input_ids=torch.from_numpy(ids), use_cache=False).logits
        logits = logits[torch.from_numpy(lines), torch.from_numpy(ends), :n_vocab]
        # What the draft does not know, and what a small vocabulary lacks, is a token that it never guesses.
        logits = torch.nn.functional.pad(logits.float(), (0, 1), value=-math.inf)
        loss = Objective({self.loss: 1.0})(_law(corrections, rows, n_vocab), logits).mean()
        if not torch.isfinite(loss):
            raise FloatingPointError(f"the loss is {loss.item()}; a lower learning_rate may help")
        self._optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._network.parameters(), 1.0)
        self._optimiser.step()

    def _exported(self) -> ModelDraft:
        """The draft with the weights as they are, packed as the first one is."""
        first: Model = self._draft.model
        with tempfile.TemporaryDirectory(prefix="specdec-") as folder:
            _save(self._network, Path(folder))
            model = load(
                Path(folder),
                first.core.dtype,
                cache_dtype=first.core.cache_dtype,
                prefill=first.core.prefill,
                tokenizer=False if first.tokenizer is None else first.tokenizer,
                n_ctx=first.config.n_ctx,
                n_threads=1,
                progress=False,
            )
        return ModelDraft(model, tree=self._draft.tree, gamma=self._draft.gamma)

    # ---------------------------------------------------------------------------------------------- state

    def state(self) -> Mapping[str, NDArray[Any]]:
        """See `Learner.state`: parameters, and the moments of those that have been trained."""
        found: dict[str, NDArray[Any]] = {}
        for name, parameter in self._network.named_parameters():
            found[f"parameter.{name}"] = parameter.detach().numpy().copy()
            if moments := self._optimiser.state.get(parameter):
                found[f"first.{name}"] = moments["exp_avg"].numpy().copy()
                found[f"second.{name}"] = moments["exp_avg_sq"].numpy().copy()
                found[f"steps.{name}"] = np.array([int(moments["step"])], np.int32)
        return found

    def restore(self, state: Mapping[str, NDArray[Any]], corrections: Corrections) -> ModelDraft:
        """See `Learner.restore`."""
        import torch

        parameters = dict(self._network.named_parameters())
        parts = ("first", "second", "steps")
        known = {f"{part}.{name}" for name in parameters for part in ("parameter", *parts)}
        for unknown in sorted(state.keys() - known):
            raise ValueError(f"tensor '{unknown}' is none of this model")
        arrays = {
            name: self.expect(state, f"parameter.{name}", tuple(parameter.shape))
            for name, parameter in parameters.items()
        }
        moments: dict[str, dict[str, Tensor]] = {}
        for name, parameter in parameters.items():
            if not any(f"{part}.{name}" in state for part in parts):
                continue
            steps = state.get(f"steps.{name}", np.zeros(0))
            if steps.shape != (1,) or not 0 < steps[0] < 1 << 24:
                raise ValueError(f"tensor 'steps.{name}' is {shown(steps)}; expected one number above 0")
            both = [self.expect(state, f"{part}.{name}", tuple(parameter.shape)) for part in parts[:2]]
            moments[name] = {
                "step": torch.tensor(float(steps[0])),
                "exp_avg": torch.from_numpy(both[0].copy()),
                "exp_avg_sq": torch.from_numpy(both[1].copy()),
            }
        for name, array in arrays.items():
            if not np.isfinite(array).all():
                raise ValueError(f"tensor 'parameter.{name}' has a number that is not finite")
        with torch.no_grad():
            for name, array in arrays.items():
                parameters[name].copy_(torch.from_numpy(array))
        self._optimiser = self._new_optimiser()
        for name, found in moments.items():
            self._optimiser.state[parameters[name]] = found
        return self._exported()


def _save(network: Any, folder: Path) -> None:
    """Write a network of transformers as it reads it, without a progress bar."""
    from transformers.utils import logging

    shown_before = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        network.save_pretrained(folder)
    finally:
        if shown_before:
            logging.enable_progress_bar()


def _law(corrections: Corrections, rows: NDArray[np.int64], n_vocab: int) -> Any:
    """The target's law at some corrections, over a draft's ids; `n_vocab` stands for any that it lacks."""
    import torch

    from specdec.learning.target_law import TargetLaw

    top = corrections.top[rows].astype(np.int64)
    rest = np.log(np.maximum(corrections.rest[rows], _LEAST_REST))
    log_probs = np.column_stack([corrections.log_probs[rows], rest])
    tokens = np.where((top < 0) | (top >= n_vocab), n_vocab, top)
    return TargetLaw(torch.from_numpy(log_probs), torch.from_numpy(tokens))
