"""LayerSkip (Elhoushi et al., arXiv 2404.16710): fine-tunes the target to draft with its first layers.

Training uses layer dropout and a loss at every exit. Layers are numbered from 0 to L - 1, as in the paper;
exit l reads the hidden state after layer l, so it uses l + 1 layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor, nn

from specdec.analysis.compare import tune
from specdec.atomic_file import write_json
from specdec.checks import check_integer
from specdec.drafts.draft import Draft
from specdec.drafts.learned.networks import Objective, hf_folder, open_decoder, write_decoder
from specdec.drafts.self_drafts import EXIT_NAME, EarlyExit
from specdec.errors import InputError, number_of
from specdec.models.loading import load
from specdec.models.model import Model
from specdec.settings_table import choice, flag, integer, number
from specdec.training.trainer import Batch, DraftTrainer, softmax
from specdec.training.training_texts import Texts

_MAX_GAMMA = 6  # largest gamma to time
_SHARE: Any = ("a number from 0 to 1", lambda x: 0.0 <= x <= 1.0)
Curriculum: TypeAlias = Literal["rotational", "gradual", "all"]

_NORMS = ("norm", "final_layernorm", "final_layer_norm", "ln_f")


def layer_dropout(
    layer: int, n_layer: int, progress: float, largest: float, *, rising: bool = False
) -> float:
    """Return the probability of skipping a layer for a text, p[l, t] = S(t) D(l) p_max (section 4.1.1).

    D(l) = exp(l ln 2 / (L - 1)) - 1 is 0 for the first layer and 1 for the last. S(t) = 1 for fine-tuning;
    with `rising` it is exp(t ln 2 / (T - 1)) - 1, from 0 to 1, for training from scratch. `progress` is t /
    (T - 1), `largest` p_max.
    """
    by_layer = math.expm1(layer * math.log(2.0) / max(1, n_layer - 1))
    return (math.expm1(progress * math.log(2.0)) if rising else 1.0) * by_layer * largest


def exit_weights(
    n_layer: int, step: int, progress: float, *, curriculum: Curriculum, scale: float, period: int
) -> list[float]:
    """Return the weight of each exit's loss, by layer, with sum 1 (section 4.1.2).

    e(l) = scale (0 + 1 + ... + l) for exits before the last, and L - 1 + scale (0 + 1 + ... + (L - 2)) for
    the last. The curriculum C(t, l) disables exits, never the last: "rotational" enables every `period`-th
    exit, shifting each step; "gradual" starts with the last and enables one more every T / (2 L) steps.
    """
    if curriculum == "rotational":
        on = [(layer - step) % period == 0 for layer in range(n_layer)]
    elif curriculum == "gradual":
        n_on = 1 + int(2 * n_layer * progress)
        on = [layer >= n_layer - n_on for layer in range(n_layer)]
    else:
        on = [True] * n_layer
    on[-1] = True
    found = [scale * layer * (layer + 1) / 2.0 for layer in range(n_layer)]
    found[-1] = n_layer - 1 + scale * (n_layer - 2) * (n_layer - 1) / 2.0
    found = [weight if switched else 0.0 for weight, switched in zip(found, on, strict=True)]
    total = sum(found)
    return [weight / total for weight in found]


class ExitNetwork(nn.Module):
    """A transformers decoder with skippable layers and an exit after each layer."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.n_layer = int(model.config.num_hidden_layers)
        base = model.base_model
        norms = [getattr(base, name) for name in _NORMS if getattr(base, name, None) is not None]
        if not self._layers() or not norms:
            name = type(model).__name__
            raise InputError.of("target", name, "a decoder with layers and an output norm", name)
        self._read = [norms[0], model.get_output_embeddings()]  # the list avoids registering them twice
        self._check()

    def _layers(self) -> list[nn.Module]:
        for module in self.model.base_model.modules():
            if isinstance(module, nn.ModuleList) and len(module) == self.n_layer:
                return list(module)
        return []

    def _check(self) -> None:
        training = self.training
        self.eval()
        with torch.no_grad():
            ids = torch.arange(1, 9)[None] % int(self.model.config.vocab_size)
            expected = self.model(input_ids=ids, use_cache=False).logits
            states = self.states(ids)
            found = self.exit_logits(states[-1])
        self.train(training)
        if not torch.allclose(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max())):
            name = type(self.model).__name__
            raise InputError.of("target", name, "a model whose logits are its head after its norm", name)

    def states(self, ids: Tensor, skips: Tensor | None = None) -> list[Tensor]:
        """Return the hidden states [n, time, d_model] after each layer; `skips` [n_layer, n] skips layers."""
        kept: list[Tensor] = []

        def hook(layer: int) -> Callable[..., Any]:
            def keep(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> Any:
                state = output[0] if isinstance(output, tuple) else output
                if skips is not None:
                    state = torch.where(skips[layer][:, None, None], inputs[0], state)
                kept.append(state)
                return (state, *output[1:]) if isinstance(output, tuple) else state

            return keep

        handles = [module.register_forward_hook(hook(i)) for i, module in enumerate(self._layers())]
        try:
            self.model.base_model(input_ids=ids, use_cache=False)
        finally:
            for handle in handles:
                handle.remove()
        return kept

    def exit_logits(self, state: Tensor) -> Tensor:
        """Return the logits of an exit, the head after the output norm."""
        norm, head = self._read
        logits: Tensor = head(norm(state))
        return logits


@dataclass(frozen=True)
class ExitShape:
    """Settings of the fine-tuning."""

    layer: int = integer(0, 0)  # layers of the exit; 0: choose the fastest after training
    dropout: float = number(0.1, *_SHARE)  # p_max, the probability of skipping the last layer for a text
    rising: bool = flag()  # increase dropout from 0, as in the paper for training from scratch
    curriculum: str = choice("rotational", get_args(Curriculum))  # which exits have a loss in a step
    scale: float = number(0.2, *_SHARE)  # e_scale, the weight of exits before the last
    period: int = integer(2, 1)  # of "rotational"


class ExitTrainer(DraftTrainer):
    """Fine-tunes a copy of the target; the other methods leave the target unchanged.

    Every exit learns the original target's distribution instead of the next token of the text, as in the
    paper: equal on average over the target's own texts, with less noise.
    """

    name = "early-exit"
    shape_type = ExitShape
    learning_rate = 2e-4

    def __init__(self, target: Model, settings: Any) -> None:
        super().__init__(target, settings)
        n_layer = target.config.n_layer
        check_integer("layer", self.shape.layer, 0, n_layer - 1)
        if settings.data not in ("target", "text") or settings.after:
            raise InputError.of("data", settings.data, "'target' or 'text', and no drafts in after")
        self._folder = hf_folder(target)
        self._layer = self.shape.layer or max(1, n_layer // 2)

    def network(self) -> ExitNetwork:
        begin = self._folder if self.settings.begin is None else Path(self.settings.begin)
        return ExitNetwork(open_decoder(begin))

    def loss(self, network: Any, batch: Batch, objective: Objective, progress: float) -> Tensor:
        shape, n_layer = self.shape, network.n_layer
        chances = torch.tensor(
            [layer_dropout(i, n_layer, progress, shape.dropout, rising=shape.rising) for i in range(n_layer)]
        )
        skips = torch.rand(n_layer, len(batch.ids)) < chances[:, None]
        states = network.states(batch.ids, skips.to(batch.ids.device))
        weights = exit_weights(
            n_layer, batch.step, progress, curriculum=shape.curriculum, scale=shape.scale, period=shape.period
        )
        losses = [
            weight * batch.mean(objective(batch.target, network.exit_logits(state)))
            for weight, state in zip(weights, states, strict=True)
            if weight
        ]
        return torch.stack(losses).sum()

    def first_token_logits(self, network: Any, batch: Batch) -> Tensor:
        logits: Tensor = network.exit_logits(network.states(batch.ids)[self._layer - 1])
        return logits

    def target_logits(self, network: Any, batch: Batch) -> Tensor:
        logits: Tensor = network.exit_logits(network.states(batch.ids)[-1])
        return logits

    def export(self, network: Any, folder: Path) -> None:
        write_decoder(network.model, self.target, folder, self.settings.weights)
        write_json(folder / EXIT_NAME, {"layer": self._layer, "gamma": self.gamma})

    def finish(self, folder: Path, texts: Texts) -> None:
        tuned = load(folder)
        some = zip(texts.ids[:4], texts.ends[:4], strict=True)
        prompts = [ids[: max(1, int(end) // 4)].tolist() for ids, end in some]
        exits = [EarlyExit(self.shape.layer)] if self.shape.layer else EarlyExit.exits(tuned)
        self.say(f"Timing exits: {number_of(len(exits), 'layer')} with gammas to {_MAX_GAMMA} each.")
        found = tune(
            tuned, exits, prompts, max_gamma=_MAX_GAMMA, n_tokens=len(prompts) * (texts.ids.shape[1] // 2),
            seed=self.settings.seed, n_threads=self.settings.threads,
        )  # fmt: skip
        timed = [
            (row.speedup.median, one.choice.layer, gamma)
            for one in (found, *found.others)
            for gamma, row in one.rows.items()
            if row.speedup is not None and not row.speedup.invalid
        ]
        fastest, self._layer, self.gamma = max(timed, default=(0.0, self._layer, self.gamma))
        write_json(folder / EXIT_NAME, {"layer": self._layer, "gamma": self.gamma})
        tried = f"{number_of(self._layer, 'layer')}, gamma {self.gamma}, speed-up {fastest:.2f}"
        self.words = (
            f"training changed the target: use {folder} instead of {self.target.path}",
            _moved(self.target, tuned, texts, self.settings.threads),
            f"fastest greedy exit: {tried}"
            if fastest > 1.0
            else f"no exit pays: plain decoding of {folder} is faster than its fastest exit ({tried})",
        )

    def open(self, folder: Path) -> tuple[Model, Model | Draft]:
        return load(folder), EarlyExit(self._layer)

    def is_table(self, name: str) -> bool:
        return True


def _moved(target: Model, tuned: Model, texts: Texts, n_threads: int) -> str:
    """Report how far training moved the target's distributions, on its own texts."""
    far, equal, n = 0.0, 0, 0
    for i in range(len(texts)):
        ids = texts.ids[i, : texts.ends[i]]
        probs = [softmax(model.logits(ids, n_threads=n_threads)) for model in (target, tuned)]
        far += float((probs[0] * (np.log(probs[0] + 1e-300) - np.log(probs[1] + 1e-300))).sum())
        equal += int((probs[0].argmax(-1) == probs[1].argmax(-1)).sum())
        n += len(ids)
    same = f"its argmax is unchanged at {equal / n:.1%} of positions"
    return f"its distributions moved by KL {far / n:.4f} nats per token; {same}"
