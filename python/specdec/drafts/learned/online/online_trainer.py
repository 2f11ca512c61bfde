"""Samples, where a target rejected draft tokens, and learners, which make better drafts from them."""

from __future__ import annotations

import math
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specdec.checks import check_choice, check_integer, check_number
from specdec.divergences import DIVERGENCES, DivergenceName
from specdec.drafts.draft import Draft
from specdec.drafts.learned.recurrent.draft import RecurrentDraft
from specdec.drafts.model_draft import ModelDraft
from specdec.drafts.ngram import Ngram, NgramCounts, OnlineNgram
from specdec.errors import InputError, shown
from specdec.models.loading import load
from specdec.models.model import Model
from specdec.models.number_formats import one_dtype

if TYPE_CHECKING:
    from torch import Tensor

    from specdec.drafts.learned.heads.draft import DecodingHeads

GoesOn = Callable[[], bool]  # whether to continue; False: the trainer shall return soon


@dataclass(frozen=True)
class OnlineSamples:
    """Some samples, the oldest first; n of them."""

    before: NDArray[np.int32]  # [n, n_before] the last tokens of the text; -1 before its beginning
    depth: NDArray[np.int32]  # [n] how many of these are accepted draft tokens of the round
    text: NDArray[np.int32]  # [n] a number of the text
    position: NDArray[np.int32]  # [n] how many of its tokens come before
    top: NDArray[np.int32]  # [n, n_top] the target's most probable tokens, in order; -1 after all of them
    log_probs: NDArray[np.float32]  # [n, n_top] ln of their probabilities, at temperature 1
    rest: NDArray[np.float32]  # [n] the probability of all other tokens
    hidden: NDArray[np.float32]  # [n, n_hidden] hidden states of the token before the round's root

    @staticmethod
    def none(n_before: int, n_top: int, n_hidden: int) -> OnlineSamples:
        """Make no samples, of a shape."""
        one, top = np.zeros(0, np.int32), np.zeros((0, n_top), np.int32)
        before, hidden = np.zeros((0, n_before), np.int32), np.zeros((0, n_hidden), np.float32)
        probs, rest = top.astype(np.float32), one.astype(np.float32)
        return OnlineSamples(before, one, one, one, top, probs, rest, hidden)

    def __len__(self) -> int:
        return len(self.depth)

    @property
    def n_texts(self) -> int:
        """Return the first number that no text has."""
        return int(self.text.max(initial=-1)) + 1

    def followed_by(self, newer: OnlineSamples, most: int) -> OnlineSamples:
        """Return these and newer ones, of all of them the last `most`."""
        both = zip(vars(self).values(), vars(newer).values(), strict=True)
        return OnlineSamples(*(np.concatenate(arrays)[-most:] for arrays in both))


class Passage(NamedTuple):
    """A piece of a text with samples in it."""

    ids: NDArray[np.int32]  # [n_tokens]
    rows: NDArray[np.int64]  # [n] the samples, in the order of their positions
    ends: NDArray[np.int64]  # [n] for each the index in `ids` of the token before it


def passages(samples: OnlineSamples, longest: int) -> list[Passage]:
    """Return passages of at most `longest` tokens, each of a text's samples whose windows overlap."""
    n_before = samples.before.shape[1]
    order = np.lexsort((samples.position, samples.text))
    found: list[Passage] = []
    begin = 0  # of the passage, in `order`
    for at in range(1, len(order) + 1):
        if at < len(order):
            first, last, row = order[begin], order[at - 1], order[at]
            step = samples.position[row] - samples.position[last]
            length = samples.position[row] - samples.position[first] + n_before
            same = samples.text[row] == samples.text[first]
            if same and 0 < step < n_before and length <= longest:
                continue
        found.append(_passage(samples, order[begin:at]))
        begin = at
    return found


def _passage(samples: OnlineSamples, rows: NDArray[np.int64]) -> Passage:
    """Make the passage of samples of one text, ascending, whose windows overlap."""
    window = samples.before[rows[0]]
    pieces = [window[window >= 0]]
    ends = [len(pieces[0]) - 1]
    for before, after in pairwise(rows):
        step = int(samples.position[after] - samples.position[before])
        pieces.append(samples.before[after][-step:])
        ends.append(ends[-1] + step)
    return Passage(np.concatenate(pieces), rows, np.array(ends))


class OnlineTrainer(ABC):
    """Makes a draft that has learned from samples, again and again.

    Attributes
    ----------
    name : str
        Of the method, in files.
    n_before, n_top, n_hidden : int
        What it needs of each sample: tokens of the text, tokens of the target's distribution, and floats
        of hidden states; 0: none.
    everywhere : bool
        Whether it also wants the positions at which the draft was right.
    """

    name: str
    n_before: int = 64
    n_top: int = 32
    n_hidden: int = 0
    everywhere: bool = False

    @abstractmethod
    def learn(self, samples: OnlineSamples, n_new: int, goes_on: GoesOn) -> Draft:
        """Return the draft, of the same class, with what can be learned from the samples, at least one.

        The last `n_new` of them have come since the last call; `goes_on` is asked now and then.
        """

    def begin_thread(self) -> None:
        """Called in the thread that learns, each time before `learn`."""
        return

    def state(self) -> Mapping[str, NDArray[Any]]:
        """Return what `restore` needs next to the samples, as arrays of float32 or int32."""
        return {}

    def restore(self, state: Mapping[str, NDArray[Any]], samples: OnlineSamples) -> Draft:
        """Continue from what `state` gave, or raise a ValueError, and from the samples of that time."""
        for name in state:
            raise ValueError(f"tensor '{name}' is none of a draft of this kind")
        return self.learn(samples, 0, lambda: True)

    @staticmethod
    def expect(state: Mapping[str, NDArray[Any]], name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Return an array of a state, float32 of that shape; a ValueError if it is not."""
        if name not in state:
            raise ValueError(f"tensor '{name}' is missing")
        if state[name].shape != shape or state[name].dtype != np.float32:
            found = f"{state[name].dtype}, {list(state[name].shape)}"
            raise ValueError(f"tensor '{name}' is of {found}; expected float32, {list(shape)}")
        return state[name]


class OnlineTableTrainer(OnlineTrainer):
    """Counts the samples on top of a table: each as its last tokens with the target's predictions.

    A token of probability p is counted ``round(weight * p)`` times, the most probable one once at least. Old
    samples age out, so the table stays bounded.

    Parameters
    ----------
    draft : Ngram or OnlineNgram
        An `OnlineNgram` with a table; it counts its texts on top.
    weight : int, default 8
        How often a sample counts. Where the table knows a context well, it takes more to change that.
    """

    name = "table"
    n_top = 8

    def __init__(self, draft: Ngram | OnlineNgram, *, weight: int = 8) -> None:
        table = draft.table if isinstance(draft, OnlineNgram) else draft
        if not isinstance(table, Ngram):
            raise InputError.of("draft", draft, "an Ngram, or an OnlineNgram with a table")
        self._draft, self._table = draft, table
        self.weight = check_integer("weight", weight, 1, 1 << 16)
        self.n_before = max(table.n - 1, 1)

    def learn(self, samples: OnlineSamples, n_new: int, goes_on: GoesOn) -> Ngram | OnlineNgram:
        table = self._table
        if texts := self._texts(samples):
            counts = table.counts.plus(NgramCounts.count(texts, table.n_vocab, table.n))
            table = type(table).of(counts, table.smoothing)
        _ = table.core  # made here, not when it is first used
        return OnlineNgram(table) if isinstance(self._draft, OnlineNgram) else table

    def _texts(self, samples: OnlineSamples) -> list[np.ndarray]:
        """Return short texts: of each sample the last tokens and one after them."""
        times = np.rint(self.weight * np.exp(samples.log_probs)).astype(np.int64)
        times[:, 0] = np.maximum(times[:, 0], 1)
        rows, columns = np.nonzero(times)
        n_context = self._table.n - 1
        before = samples.before[rows][:, samples.before.shape[1] - n_context :]
        short = np.column_stack([before, samples.top[rows, columns]]).astype(np.int64)
        known = short.max(axis=1) < self._table.n_vocab
        several = np.repeat(short[known], times[rows, columns][known], axis=0)
        return [text[text >= 0] for text in several]


class OnlineGradientTrainer(OnlineTrainer):
    """A trainer by AdamW; `network` is a ``torch.nn.Module`` in f32 with logits for `n_vocab` ids."""

    usual_rate: float = 2e-4  # the default learning rate for networks of up to ten million parameters

    def __init__(
        self, network: Any, n_vocab: int, *, loss: DivergenceName, learning_rate: float | None,
        passes: float, batch: int, n_top: int, seed: int,
    ) -> None:  # fmt: skip
        self.loss = check_choice("loss", loss, DIVERGENCES)
        positive = "a finite number above 0"
        if learning_rate is not None:
            check_number("learning_rate", learning_rate, positive, lambda x: 0.0 < x < math.inf)
        self.passes = check_number("passes", passes, positive, lambda x: 0.0 < x < 1e6)
        self.batch = check_integer("batch", batch, 1, 1 << 24)
        self.n_top = check_integer("n_top", n_top, 1, 1 << 16)
        self._rng = np.random.default_rng(check_integer("seed", seed, 0, 2**63 - 1))
        self._network, self._n_vocab = network.eval(), n_vocab  # no dropout
        size = sum(parameter.numel() for parameter in network.parameters())
        self.learning_rate = learning_rate or self.usual_rate / max(1.0, size / 1e7) ** 0.5
        self._optimizer = self._new_optimizer()

    def _new_optimizer(self) -> Any:
        import torch

        parameters = self._network.parameters()
        return torch.optim.AdamW(parameters, lr=self.learning_rate, betas=(0.9, 0.99), weight_decay=0.0)

    def begin_thread(self) -> None:
        import torch

        torch.set_num_threads(1)

    @abstractmethod
    def _train(self, samples: OnlineSamples, n_new: int, goes_on: GoesOn) -> None:
        """Take steps."""

    @abstractmethod
    def _exported(self) -> Draft:
        """Return the draft with the weights as they are."""

    def learn(self, samples: OnlineSamples, n_new: int, goes_on: GoesOn) -> Draft:
        self._train(samples, n_new, goes_on)
        return self._exported()

    def _step(self, samples: OnlineSamples, rows: NDArray[np.int64], logits: Tensor) -> None:
        """Take a step on some samples, for which the network gives `logits` [n, n_vocab]."""
        import torch

        from specdec.drafts.learned.networks import Objective

        # Ids that a small vocabulary lacks are one token that the draft never drafts.
        logits = torch.nn.functional.pad(logits.float(), (0, 1), value=-math.inf)
        objective = Objective.of_shares({self.loss: 1.0})
        loss = objective(target_of(samples, rows, self._n_vocab), logits).mean()
        if not torch.isfinite(loss):
            raise FloatingPointError(f"the loss is {loss.item()}; a lower learning_rate may help")
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._network.parameters(), 1.0)
        self._optimizer.step()

    def state(self) -> Mapping[str, NDArray[Any]]:
        """Return parameters, and the moments of those that have been trained."""
        found: dict[str, NDArray[Any]] = {}
        for name, parameter in self._network.named_parameters():
            found[f"parameter.{name}"] = parameter.detach().numpy().copy()
            if moments := self._optimizer.state.get(parameter):
                found[f"first.{name}"] = moments["exp_avg"].numpy().copy()
                found[f"second.{name}"] = moments["exp_avg_sq"].numpy().copy()
                found[f"steps.{name}"] = np.array([int(moments["step"])], np.int32)
        return found

    def restore(self, state: Mapping[str, NDArray[Any]], samples: OnlineSamples) -> Draft:
        import torch

        parameters = dict(self._network.named_parameters())
        parts = ("first", "second", "steps")
        known = {f"{part}.{name}" for name in parameters for part in ("parameter", *parts)}
        for name in sorted(state):
            if name not in known:
                raise ValueError(f"tensor '{name}' is none of this model")
            if not np.isfinite(state[name]).all():
                raise ValueError(f"tensor '{name}' has a number that is not finite")
            if name.startswith("second.") and state[name].min(initial=0.0) < 0.0:
                raise ValueError(f"tensor '{name}' has a number below 0; expected means of squares")

        def expected(part: str, name: str) -> Tensor:
            array = self.expect(state, f"{part}.{name}", tuple(parameters[name].shape))
            return torch.from_numpy(array.copy())

        weights = {name: expected("parameter", name) for name in parameters}
        optimizer = self._new_optimizer()
        for name in parameters:
            if not any(f"{part}.{name}" in state for part in parts):
                continue
            steps = state.get(f"steps.{name}", np.zeros(0))
            if steps.shape != (1,) or not 0 < steps[0] < 1 << 24:
                raise ValueError(f"tensor 'steps.{name}' is {shown(steps)}; expected one number above 0")
            optimizer.state[parameters[name]] = {
                "step": torch.tensor(float(steps[0])), "exp_avg": expected("first", name),
                "exp_avg_sq": expected("second", name),
            }  # fmt: skip
        with torch.no_grad():
            for name, weight in weights.items():
                parameters[name].copy_(weight)
        self._optimizer = optimizer
        return self._exported()


def relearned(first: RecurrentDraft | DecodingHeads, network: Any) -> RecurrentDraft | DecodingHeads:
    """Return a draft like the first one with the weights of a network."""
    from specdec.drafts.learned.networks import numbers_of

    weights = first.weights.with_numbers(numbers_of(network))
    return type(first)(weights, dtype=first.core.dtype, tree=first.tree, gamma=first.gamma, n_threads=1)


def target_of(samples: OnlineSamples, rows: NDArray[np.int64], n_vocab: int) -> Any:
    """Return the target's distribution at some samples; id `n_vocab` is any that a draft lacks."""
    import torch

    from specdec.drafts.learned.networks import TargetDistribution

    top = samples.top[rows].astype(np.int64)
    tokens = np.where((top < 0) | (top >= n_vocab), n_vocab, top)
    log_probs, rest = samples.log_probs[rows], samples.rest[rows]
    return TargetDistribution.of_top(*(torch.from_numpy(array) for array in (tokens, log_probs, rest)))


_MOST_LOGITS = 1 << 24  # of a step, where that leaves one passage
_LONGEST = 1 << 16  # tokens of a passage where the network has no limit


class OnlineNetworkTrainer(OnlineGradientTrainer):
    """A model or a recurrent network learns by gradient steps on its samples: AdamW.

    It learns the target's distribution at temperature 1: its `n_top` most probable tokens one by one, and
    all others together. Half of a step are passages with the newest samples, half any that are kept, so
    that what was learned before is not forgotten at once. Learning takes a copy of the weights in f32 with
    two moments each; at each update they are packed again, those of a model by way of a temporary folder.

    Parameters
    ----------
    draft : ModelDraft or Recurrent
        A model from a Hugging Face folder, without an encoder or a draft of its own; or a recurrent network,
        which does not learn to draft tokens that it never drafts.
    loss : {"tvd", "fkl", "rkl", "jsd"}
        Total variation, which is the chance of a rejection; forward or reverse Kullback-Leibler divergence,
        which suit drafts that are far from the target; Jensen-Shannon divergence.
    learning_rate : float, optional
        By default 2e-4 (2e-3 for recurrent networks), times sqrt(1e7 / parameters) where that is below 1.
    passes : float, default 4.0
        How often a new sample is learned from, on average.
    batch : int, default 1024
        Tokens of a step.
    n_before : int, default 64
        Tokens of the text that are kept before a sample, at least 2.
    n_top : int, default 32
        Tokens of the target's distribution that are kept.
    seed : int, default 0
        Of the order in which samples are learned from.
    """

    name = "network"

    def __init__(
        self, draft: ModelDraft | RecurrentDraft, *, loss: DivergenceName = "tvd",
        learning_rate: float | None = None, passes: float = 4.0, batch: int = 1024, n_before: int = 64,
        n_top: int = 32, seed: int = 0,
    ) -> None:  # fmt: skip
        self.n_before = check_integer("n_before", n_before, 2, 1 << 15)
        self._draft = draft
        n_vocab, self._longest = 0, _LONGEST
        if isinstance(draft, ModelDraft) and draft.draft is None:
            if draft.model.config.encoder is not None:
                raise InputError(f"draft {draft.model.path} has an encoder; expected a model without one")
            n_vocab, self._longest = draft.model.config.n_vocab, draft.model.config.n_ctx
        elif isinstance(draft, RecurrentDraft):
            n_vocab, self.usual_rate = draft.weights.target.n_vocab, 2e-3
        else:
            raise InputError.of("draft", draft, "a ModelDraft without a draft of its own, or a Recurrent")
        super().__init__(
            _open(draft), n_vocab, loss=loss, learning_rate=learning_rate, passes=passes, batch=batch,
            n_top=n_top, seed=seed,
        )  # fmt: skip

    def _train(self, samples: OnlineSamples, n_new: int, goes_on: GoesOn) -> None:
        found = passages(samples, min(2 * self.n_before, self._longest))
        of_row = np.empty(len(samples), np.int64)
        for i, passage in enumerate(found):
            of_row[passage.rows] = i
        new = np.unique(of_row[len(samples) - n_new :]) if n_new else np.zeros(0, np.int64)
        n_tokens = sum(len(found[i].ids) for i in new)
        for _ in range(math.ceil(self.passes * n_tokens / self._batch_size)):
            if not goes_on():
                return
            chosen = self._drawn(found, new)
            rows = np.concatenate([passage.rows for passage in chosen])
            self._step(samples, rows, self._logits(chosen))

    @property
    def _batch_size(self) -> int:
        """Return the tokens of a step; few where each has many logits."""
        return max(1, min(self.batch, _MOST_LOGITS // self._n_vocab))

    def _drawn(self, found: Sequence[Passage], new: NDArray[np.int64]) -> list[Passage]:
        """Draw the passages of a step: in turn a new one and any, as many as fit, at least one."""
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

    def _logits(self, chosen: Sequence[Passage]) -> Tensor:
        """Return the network's logits [n, n_vocab] at the samples of passages."""
        import torch

        ids = np.zeros((len(chosen), max(len(passage.ids) for passage in chosen)), np.int64)
        for row, passage in zip(ids, chosen, strict=True):
            row[: len(passage.ids)] = np.minimum(passage.ids, self._n_vocab - 1)  # as the core reads others
        lines = np.repeat(np.arange(len(chosen)), [len(passage.ends) for passage in chosen])
        ends = np.concatenate([passage.ends for passage in chosen])
        if isinstance(self._draft, RecurrentDraft):
            logits: Tensor = self._network(torch.from_numpy(ids))
        else:
            logits = self._network(input_ids=torch.from_numpy(ids), use_cache=False).logits
        return logits[torch.from_numpy(lines), torch.from_numpy(ends), : self._n_vocab]

    def _exported(self) -> Draft:
        first = self._draft
        if isinstance(first, RecurrentDraft):
            return relearned(first, self._network)
        return ModelDraft(_packed(self._network, first.model), tree=first.tree, gamma=first.gamma)


def _open(draft: ModelDraft | RecurrentDraft) -> Any:
    from specdec.drafts.learned import networks

    if isinstance(draft, ModelDraft):
        return networks.open_decoder(draft.model.path)
    from specdec.drafts.learned.recurrent.draft import RecurrentShape
    from specdec.drafts.learned.recurrent.network import RecurrentNetwork

    weights = draft.weights
    shape = RecurrentShape.read(weights.fields)
    network = RecurrentNetwork(weights.target.n_vocab, shape, networks.draft_ids_of(weights))
    networks.take_weights(network, weights)
    return network


def _packed(network: Any, first: Model) -> Model:
    """Load a network of transformers as a model like the first one, under a path that only names it."""
    from specdec.drafts.learned.networks import silent

    with tempfile.TemporaryDirectory(prefix="specdec-") as folder:
        with silent():
            network.save_pretrained(folder)
        read = load(
            Path(folder), one_dtype(first.core.dtype), cache_dtype=first.core.cache_dtype,
            prefill=first.core.prefill, tokenizer=False, n_ctx=first.config.n_ctx, n_threads=1,
            progress=False,
        )  # fmt: skip
    path = first.path.with_name(f"{first.path.name} (learned online)")
    return Model(read.core, read.config, first.tokenizer, path, read.architecture)
