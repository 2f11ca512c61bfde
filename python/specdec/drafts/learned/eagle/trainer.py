"""The trainer of EAGLE-1 and EAGLE-3, a layer on the target's hidden states."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from specdec.atomic_file import write_json
from specdec.drafts.learned.eagle.network import Eagle1, Eagle3, EagleShape
from specdec.drafts.learned.eagle.published import open_published, usual_taps
from specdec.drafts.learned.folder import TargetIdentity
from specdec.drafts.learned.networks import TargetEnds, as_torch, stored_tensors
from specdec.drafts.learned.objective import Objective, reachable, scattered
from specdec.errors import CheckpointError, InputError
from specdec.models.checkpoints.safetensors_file import open_weights, write_safetensors
from specdec.models.model import Model
from specdec.training.batch import Batch
from specdec.training.trainer import DraftTrainer


@dataclass(frozen=True)
class EagleSettings:
    """Settings of EAGLE drafts; 0 means as the target has it."""

    version: int = 3  # 1 or 3
    n_heads: int = 0
    n_kv_heads: int = 0
    d_head: int = 0
    d_ff: int = 0
    n_draft_vocab: int = 0  # EAGLE-3: so many of the most frequent tokens are drafted; 0: all
    steps: int = 4  # EAGLE-3: steps of the training-time test
    decay: float = 0.8  # EAGLE-3: the loss of a step weighs this times that of the step before
    noise: float = 0.1  # EAGLE-1: features are disturbed by numbers from -noise to noise
    token_weight: float = 0.1  # EAGLE-1: weight of the loss of tokens next to the regression of features

    def eagle_shape(self, target: Model) -> EagleShape:
        """Return the shape for a target."""
        config = target.config
        n_heads, n_kv_heads = self.n_heads or config.n_head, self.n_kv_heads or config.n_kv_head
        d_head, d_ff = self.d_head or config.d_head, self.d_ff or config.d_ff
        first, d_model, n_draft = self.version == 1, config.d_model, self.n_draft_vocab
        most = 0 if first else config.n_vocab
        whole = f"heads of together the target's {d_model} dimensions, as EAGLE-1's format has them"
        for name, value, fits, expected in (
            ("version", self.version, self.version in (1, 3), "1 or 3"),
            ("n_kv_heads", n_kv_heads, n_heads % n_kv_heads == 0, f"a divisor of n_heads, {n_heads}"),
            ("d_head", d_head, d_head % 2 == 0, "an even number"),
            ("n_heads", n_heads, not first or n_heads * d_head == d_model, whole),
            ("n_draft_vocab", n_draft, n_draft <= most, f"at most {most}: the target's, with version 3"),
            ("steps", self.steps, 1 <= self.steps <= 16, "1 to 16"),
        ):
            if not fits:
                raise InputError.of(name, value, expected)
        if not first and config.n_layer < 2:
            raise InputError.of("target", target.path, "2 layers or more, for EAGLE-3", "1 layer", "has")
        taps = (config.n_layer + 1,) if first else _taps(config.n_layer)
        n_draft = n_draft or config.n_vocab
        return EagleShape(d_model, config.n_vocab, n_heads, n_kv_heads, d_head, d_ff, taps, n_draft)


class EagleTrainer(DraftTrainer):
    """One layer of the Llama layout that continues from the target's hidden states."""

    name = "eagle"
    shape_type = EagleSettings
    learning_rate = 2e-3

    def __init__(self, target: Model, settings: Any) -> None:
        super().__init__(target, settings)
        self._shape: EagleShape = self.shape.eagle_shape(target)

    @property
    def taps(self) -> tuple[int, ...]:
        return self._shape.taps

    def network(self) -> Eagle1 | Eagle3:
        shape, ends, begin = self._shape, TargetEnds.of(self.target), self.settings.begin
        draft_ids = None
        if begin is not None:
            published = open_published(Path(begin), self.target, shape.taps)
            draft_ids = None if published.tokens is None else torch.from_numpy(published.tokens).long()
            # Tensors fit heads of other widths, too.
            names = {"n_heads": "n_head", "n_kv_heads": "n_kv_head", "d_head": "d_head", "d_ff": "d_ff"}
            found = {name: published.config[own] for name, own in names.items()}
            found["n_draft_vocab"] = shape.n_vocab if draft_ids is None else len(draft_ids)
            found["version"] = int(published.kind[-1])
            self.check_begun(found, vars(shape) | {"version": self.shape.version})
        elif shape.n_draft_vocab < shape.n_vocab:
            draft_ids = self.frequent(shape.n_draft_vocab)
        network = Eagle1(shape, ends) if self.shape.version == 1 else Eagle3(shape, ends, draft_ids)
        if begin is not None:
            network.load_state_dict(_stored(Path(begin), network))
        return network

    def loss(self, network: Any, batch: Batch, objective: Objective, progress: float) -> Tensor:
        if self.shape.version == 1:
            return self._loss_1(network, batch, objective)
        settings, total = self.shape, batch.weights.new_zeros(())
        n_steps = min(settings.steps, batch.ids.shape[1] - 1)
        n = batch.ids.shape[1] - n_steps
        target = reachable(batch.target, network.draft_ids, network.shape.n_vocab)
        steps = network.steps(self._states(batch)[:, :n], batch.ids[:, 1:], n_steps)
        for i, hidden in enumerate(steps):
            window = slice(1 + i, 1 + i + n)
            found = objective(target[:, window], self._logits(network, hidden))
            total = total + settings.decay**i * batch.mean(found, offset=1 + i)
        return total

    def _loss_1(self, network: Any, batch: Batch, objective: Objective) -> Tensor:
        """Return the regression of features and the loss of tokens (arXiv 2401.15077, section 3.2)."""
        features = self._states(batch)
        disturbed = features + (2 * torch.rand_like(features) - 1) * self.shape.noise
        found = network(disturbed[:, :-1], batch.ids[:, 1:])
        away = F.smooth_l1_loss(found, features[:, 1:], reduction="none").mean(-1)
        token = objective(batch.target[:, 1:], network.logits(found))
        return batch.mean(away + self.shape.token_weight * token, offset=1)

    def first_guess(self, network: Any, batch: Batch) -> Tensor:
        hidden = next(network.steps(self._states(batch)[:, :-1], batch.ids[:, 1:], 1))
        return F.pad(self._logits(network, hidden), (0, 0, 1, 0))  # uniform before the first token

    def _states(self, batch: Batch) -> Tensor:
        """Return the hidden states that the draft reads [n, time, n_taps · d_model]."""
        return torch.cat([batch.hidden[layer] for layer in self.taps], dim=-1)

    def _logits(self, network: Any, hidden: Tensor) -> Tensor:
        return scattered(network.logits(hidden), network.draft_ids, self.target.config.n_vocab)

    def export(self, network: Any, folder: Path) -> None:
        shape = network.shape
        tensors = dict(network.state_dict())
        config = shape.llama_fields(self.target.config.n_ctx)
        config["torch_dtype"] = {"bf16": "bfloat16", "f32": "float32"}[self.settings.weights]
        if self.shape.version == 1:
            config |= {"architectures": ["LlamaForCausalLM"], "bias": True}
            tensors["embed_tokens.weight"] = network.ends.table
        else:
            config |= {
                "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": shape.n_draft_vocab,
                "tie_word_embeddings": False,
                # A layer is named whose output is read, from 0; a tap by how many are behind it.
                "eagle_config": {
                    "use_aux_hidden_state": True,
                    "eagle_aux_hidden_state_layer_ids": [tap - 1 for tap in shape.taps],
                },
            }  # fmt: skip
            ids = network.draft_ids
            ids = torch.arange(shape.n_vocab) if ids is None else ids.cpu()
            tensors["d2t"] = ids - torch.arange(len(ids))
            tensors["t2d"] = torch.zeros(shape.n_vocab, dtype=torch.bool).index_fill(0, ids, True)
        trained_for = TargetIdentity.of(self.target).as_dict()
        config["specdec_draft"] = {"target": trained_for, "taps": list(shape.taps)}
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "config.json", config)
        arrays = {
            name: (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
            for name, tensor in stored_tensors(tensors, self.settings.weights).items()
        }
        write_safetensors(folder / "model.safetensors", arrays, {"format": "pt"})


def _stored(folder: Path, network: Any) -> dict[str, Tensor]:
    """Return the tensors of a draft's folder that a network has, in f32."""
    held, found = open_weights(folder), {}
    for name, tensor in network.state_dict().items():
        shape = list(tensor.shape)
        if name not in held or list(held[name].shape) != shape:
            what = f"has shape {list(held[name].shape)}" if name in held else "is missing"
            raise CheckpointError(f"{folder}: tensor '{name}' {what}; expected it with shape {shape}")
        found[name] = as_torch((name, held[name].array(), held[name].format))
    return found


def _taps(n_layer: int) -> tuple[int, ...]:
    """Return the hidden states of EAGLE-3: the usual ones; of a shallow target those after thirds of it."""
    thirds = tuple(sorted({max(1, round(n_layer * i / 3)) for i in (1, 2, 3)}))
    return usual_taps(n_layer) or (thirds if len(thirds) == 3 else (0, 1, 2))
