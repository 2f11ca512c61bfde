"""LayerSkip's training (Elhoushi et al., arXiv 2404.16710): layer dropout, and a loss at every exit.

Layers are numbered from 0 to L - 1, as in the paper; exit l reads the stream after layer l, so it is the exit
of l + 1 layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from specdec.errors import InputError

Curriculum: TypeAlias = Literal["rotational", "gradual", "all"]

_NORMS = ("norm", "final_layernorm", "final_layer_norm", "ln_f")


def layer_dropout(
    layer: int, n_layer: int, progress: float, largest: float, *, rising: bool = False
) -> float:
    """Return the chance that a layer is skipped for a text, p[l, t] = S(t) D(l) p_max (section 4.1.1).

    D(l) = exp(l ln 2 / (L - 1)) - 1 is 0 for the first layer and 1 for the last. S(t) = 1 where a trained
    model is tuned; with `rising` exp(t ln 2 / (T - 1)) - 1, from 0 to 1, where one is trained from scratch.
    `progress` is t / (T - 1), `largest` p_max.
    """
    by_layer = math.expm1(layer * math.log(2.0) / max(1, n_layer - 1))
    return (math.expm1(progress * math.log(2.0)) if rising else 1.0) * by_layer * largest


def exit_weights(
    n_layer: int, step: int, progress: float, *, curriculum: Curriculum, scale: float, period: int
) -> list[float]:
    """Return the weight of each exit's loss, by layer; they sum to 1 (section 4.1.2).

    e(l) = scale (0 + 1 + ... + l) for exits before the last, and L - 1 + scale (0 + 1 + ... + (L - 2)) for
    the last; those that the curriculum C(t, l) switches off count 0, and the rest is divided by its sum.
    "rotational": one exit in `period` has a loss, the next ones in the next step. "gradual": the last at
    first, and one more, from the last to the first, in every T / (2 L) steps. The last exit always has one.
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
    """A decoder of transformers, with a head, whose layers can be skipped and whose head reads every layer.

    An architecture whose layers, output norm and head are not found, or do not give its logits, is refused.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.n_layer = int(model.config.num_hidden_layers)
        base = model.base_model
        norms = [getattr(base, name) for name in _NORMS if getattr(base, name, None) is not None]
        if not self._layers() or not norms:
            name = type(model).__name__
            raise InputError.of("target", name, "a decoder with layers and an output norm", name)
        self._read = [norms[0], model.get_output_embeddings()]  # in a list, as they are modules of the model
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
        """Return the residual stream [n, time, d_model] of `ids` [n, time] after each layer.

        `skips`, of bool [n_layer, n], are the layers that a text skips.
        """
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
        """Return the logits of an exit: the head after the output norm."""
        norm, head = self._read
        logits: Tensor = head(norm(state))
        return logits
