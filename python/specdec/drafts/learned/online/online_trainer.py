"""Online distillation: samples of rejected draft tokens, and trainers that learn from them."""

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

GoesOn = Callable[[], bool]  # whether to continue; on False the trainer must return soon


@dataclass(frozen=True)
class OnlineSamples:
    """n positions where the target rejected a draft token, the oldest first."""

    before: NDArray[np.int32]  # [n, n_before] last tokens of the text; -1 before its start
    depth: NDArray[np.int32]  # [n] accepted draft tokens of the round among these
    text: NDArray[np.int32]  # [n] number of the sequence
    position: NDArray[np.int32]  # [n] number of tokens before the position
    top: NDArray[np.int32]  # [n, n_top] the target's most probable tokens, in order, padded with -1
    log_probs: NDArray[np.float32]  # [n, n_top] their log-probabilities at temperature 1
    rest: NDArray[np.float32]  # [n] probability of all other tokens
    hidden: NDArray[np.float32]  # [n, n_hidden] hidden states of the token before the round's root

    @staticmethod
    def none(n_before: int, n_top: int, n_hidden: int) -> OnlineSamples:
        """Make an empty set with given sizes."""
        one, top = np.zeros(0, np.int32), np.zeros((0, n_top), np.int32)
        before, hidden = np.zeros((0, n_before), np.int32), np.zeros((0, n_hidden), np.float32)
        probs, rest = top.astype(np.float32), one.astype(np.float32)
        return OnlineSamples(before, one, one, one, top, probs, rest, hidden)

    def __len__(self) -> int:
        return len(self.depth)

    @property
    def n_texts(self) -> int:
        """Return the first unused sequence number."""
        return int(self.text.max(initial=-1)) + 1

    def followed_by(self, newer: OnlineSamples, most: int) -> OnlineSamples:
        """Append newer samples and keep the last `most`."""
        both = zip(vars(self).values(), vars(newer).values(), strict=True)
        return OnlineSamples(*(np.concatenate(arrays)[-most:] for arrays in both))


class Passage(NamedTuple):
    """A piece of a sequence that contains samples."""

    ids: NDArray[np.int32]  # [n_tokens]
    rows: NDArray[np.int64]  # [n] indices of the samples, ordered by position
    ends: NDArray[np.int64]  # [n] index in `ids` of the token before each sample


def passages(samples: OnlineSamples, longest: int) -> list[Passage]:
    """Join samples of a sequence with overlapping windows into passages of at most `longest` tokens."""
    n_before = samples.before.shape[1]
    order = np.lexsort((samples.position, samples.text))
    found: list[Passage] = []
    begin = 0  # start of the passage in `order`
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
    """Join samples of one sequence, in ascending order, with overlapping windows."""
    window = samples.before[rows[0]]
    pieces = [window[window >= 0]]
    ends = [len(pieces[0]) - 1]
    for before, after in pairwise(rows):
        step = int(samples.position[after] - samples.position[before])
        pieces.append(samples.before[after][-step:])
        ends.append(ends[-1] + step)
    return Passage(np.concatenate(pieces), rows, np.array(ends))


class OnlineTrainer(ABC):
    """Base class of trainers that update a draft from samples.

    Attributes
    ----------
    name : str
        Name of the method in saved files.
    n_before, n_top, n_hidden : int
        Sizes of each sample: tokens of context, tokens of the target's distribution, and floats of hidden
        states (0: none).
    everywhere : bool
        Also record positions where the draft token was accepted.
    """

    name: str
    n_before: int = 64
    n_top: int = 32
    n_hidden: int = 0
    everywhere: bool = False

    @abstractmethod
    def learn(self, samples: OnlineSamples, n_new: int, goes_on: GoesOn) -> Draft:
        """Train on the samples, at least one, and return a draft of the same class.

        The last `n_new` samples arrived since the last call. Check `goes_on` periodically.
        """

    def begin_thread(self) -> None:
        """Prepare the training thread; called there before each `learn`."""
        return

    def state(self) -> Mapping[str, NDArray[Any]]:
        """Return the state that `restore` needs, as float32 or int32 arrays."""
        return {}

    def restore(self, state: Mapping[str, NDArray[Any]], samples: OnlineSamples) -> Draft:
        """Continue from a saved state and its samples, or raise a ValueError."""
        for name in state:
            raise ValueError(f"tensor '{name}' does not belong to this type of draft")
        return self.learn(samples, 0, lambda: True)

    @staticmethod
    def expect(state: Mapping[str, NDArray[Any]], name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Return a float32 array of a state with that shape, or raise a ValueError."""
        if name not in state:
            raise ValueError(f"tensor '{name}' is missing")
        if state[name].shape != shape or state[name].dtype != np.float32:
            found = f"{state[name].dtype}, {list(state[name].shape)}"
            raise ValueError(f"tensor '{name}' has {found}; expected float32, {list(shape)}")
        return state[name]


class OnlineTableTrainer(OnlineTrainer):
    """Adds counts of the samples to an n-gram table.

    After each sample's context, a token of probability p counts ``round(weight * p)`` times, the most
    probable token at least once. Old samples age out, so the table stays bounded.

    Parameters
    ----------
    draft : Ngram or OnlineNgram
        The initial table; an `OnlineNgram` must have one, and also counts its own texts.
    weight : int, default 8
        Counts per sample. Larger weights change well-known contexts faster.
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
        _ = table.core  # build the core's table now, not on first use
        return OnlineNgram(table) if isinstance(self._draft, OnlineNgram) else table

    def _texts(self, samples: OnlineSamples) -> list[np.ndarray]:
        """Return each sample's context followed by one of its tokens, repeated by weight."""
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
    """Base class of AdamW trainers; `network` is an f32 ``torch.nn.Module`` with `n_vocab` logits."""

    usual_rate: float = 2e-4  # default learning rate for up to ten million parameters

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
        """Take optimizer steps."""

    @abstractmethod
    def _exported(self) -> Draft:
        """Return a draft with the current weights."""

    def learn(self, samples: OnlineSamples, n_new: int, goes_on: GoesOn) -> Draft:
        self._train(samples, n_new, goes_on)
        return self._exported()

    def _step(self, samples: OnlineSamples, rows: NDArray[np.int64], logits: Tensor) -> None:
        """Take a step on the samples `rows`, with the network's `logits` [n, n_vocab]."""
        import torch

        from specdec.drafts.learned.networks import Objective

        # Ids outside a smaller vocabulary become one token with probability 0.
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
        """Return parameters, and moments of trained parameters."""
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
                raise ValueError(f"tensor '{name}' is not part of this model")
            if not np.isfinite(state[name]).all():
                raise ValueError(f"tensor '{name}' has a value that is not finite")
            if name.startswith("second.") and state[name].min(initial=0.0) < 0.0:
                raise ValueError(f"tensor '{name}' has a value below 0; expected means of squares")

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
    """Return a copy of a draft with the weights of a network."""
    from specdec.drafts.learned.networks import numbers_of

    weights = first.weights.with_numbers(numbers_of(network))
    return type(first)(weights, dtype=first.core.dtype, tree=first.tree, gamma=first.gamma, n_threads=1)


def target_of(samples: OnlineSamples, rows: NDArray[np.int64], n_vocab: int) -> Any:
    """Return the target's distributions at the samples `rows`; ids outside the draft become `n_vocab`."""
    import torch

    from specdec.drafts.learned.networks import TargetDistribution

    top = samples.top[rows].astype(np.int64)
    tokens = np.where((top < 0) | (top >= n_vocab), n_vocab, top)
    log_probs, rest = samples.log_probs[rows], samples.rest[rows]
    return TargetDistribution.of_top(*(torch.from_numpy(array) for array in (tokens, log_probs, rest)))


_MOST_LOGITS = 1 << 24  # per step, unless one passage has more
_LONGEST = 1 << 16  # tokens of a passage if the network has no limit


class OnlineNetworkTrainer(OnlineGradientTrainer):
    """Trains a draft model or recurrent network online, with AdamW.

    Learns the target's distribution at temperature 1: the `n_top` most probable tokens, and the total of all
    others. Half of each step uses passages with new samples, half any stored passages, to limit forgetting.
    Training needs an f32 copy of the weights with two moments each; each update packs the weights again, for
    a model through a temporary folder.

    Parameters
    ----------
    draft : ModelDraft or RecurrentDraft
        A model from a Hugging Face folder, without an encoder or nested draft; or a recurrent network, whose
        vocabulary does not grow.
    loss : {"tvd", "fkl", "rkl", "jsd"}
        Total variation distance (the rejection probability), forward or reverse Kullback-Leibler divergence
        (for drafts far from the target), or Jensen-Shannon divergence.
    learning_rate : float, optional
        None: 2e-4 (2e-3 for recurrent networks) times min(1, sqrt(1e7 / parameters)).
    passes : float, default 4.0
        Average number of times to train on a new sample.
    batch : int, default 1024
        Tokens per step.
    n_before : int, default 64
        Tokens of context to store before a sample, at least 2.
    n_top : int, default 32
        Tokens of the target's distribution to store.
    seed : int, default 0
        Seed of the sample order.
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
            raise InputError.of("draft", draft, "a ModelDraft without a nested draft, or a RecurrentDraft")
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
        """Return the tokens per step, limited by the number of logits."""
        return max(1, min(self.batch, _MOST_LOGITS // self._n_vocab))

    def _drawn(self, found: Sequence[Passage], new: NDArray[np.int64]) -> list[Passage]:
        """Draw the passages of a step, alternating new and any, at least one, until the batch is full."""
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
            row[: len(passage.ids)] = np.minimum(passage.ids, self._n_vocab - 1)  # as the core clips ids
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
    """Load a transformers network as a model like the first one, under a path that only labels it."""
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
