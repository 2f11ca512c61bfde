"""Network and trainer of EAGLE-1 and EAGLE-3 in PyTorch.

Row t reads the embedding of token t + 1 and the features after token t, and predicts token t + 2. Parameter
names follow the published checkpoints (Li et al. 2024, 2025; SpecForge for EAGLE-3).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from specdec.atomic_file import write_json
from specdec.drafts.learned.eagle.published import open_published, usual_captures
from specdec.drafts.learned.folder import TargetIdentity
from specdec.drafts.learned.networks import (
    Objective,
    OnTarget,
    TargetEnds,
    as_torch,
    reachable,
    scattered,
    stored_tensors,
)
from specdec.errors import CheckpointError, InputError
from specdec.models.checkpoints.safetensors_file import open_weights, write_safetensors
from specdec.models.model import Model
from specdec.training.trainer import Batch, DraftTrainer

_ROPE_THETA, _NORM_EPS = 10000.0, 1e-5
_norm = partial(nn.RMSNorm, eps=_NORM_EPS)


@dataclass(frozen=True)
class EagleShape:
    """Dimensions of an EAGLE draft."""

    d_model: int
    n_vocab: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_ff: int
    captures: tuple[int, ...]  # hidden states of the target, by the number of layers before them
    n_draft_vocab: int  # size of the draft's vocabulary

    def llama_fields(self, n_ctx: int) -> dict[str, Any]:
        """Return the Llama fields of ``config.json``."""
        return {
            "model_type": "llama", "hidden_act": "silu", "hidden_size": self.d_model,
            "intermediate_size": self.d_ff, "num_hidden_layers": 1, "num_attention_heads": self.n_heads,
            "num_key_value_heads": self.n_kv_heads, "head_dim": self.d_head, "vocab_size": self.n_vocab,
            "max_position_embeddings": n_ctx, "rope_theta": _ROPE_THETA, "rope_scaling": None,
            "rms_norm_eps": _NORM_EPS, "attention_bias": False, "mlp_bias": False,
        }  # fmt: skip


class FeedForward(nn.Module):
    """Gated MLP: down(silu(gate(x)) · up(x))."""

    def __init__(self, shape: EagleShape):
        super().__init__()
        self.gate_proj = nn.Linear(shape.d_model, shape.d_ff, bias=False)
        self.up_proj = nn.Linear(shape.d_model, shape.d_ff, bias=False)
        self.down_proj = nn.Linear(shape.d_ff, shape.d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., d_model] to [..., d_model]."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Attention(nn.Module):
    """Rotary attention over `d_input` columns and earlier steps, for the training-time test."""

    def __init__(self, shape: EagleShape, d_input: int):
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(d_input, shape.n_heads * shape.d_head, bias=False)
        self.k_proj = nn.Linear(d_input, shape.n_kv_heads * shape.d_head, bias=False)
        self.v_proj = nn.Linear(d_input, shape.n_kv_heads * shape.d_head, bias=False)
        self.o_proj = nn.Linear(shape.n_heads * shape.d_head, shape.d_model, bias=False)

    def forward(self, x: Tensor, positions: Tensor, steps: list[tuple[Tensor, Tensor]]) -> Tensor:
        """Return attention [batch, time, d_model] of the rows [batch, time, d_input] of one step.

        In the first step, attention is causal. A row of a later step attends to the same rows of the first
        step, and in each later step to the row of its own index: its ancestors in a drafted chain. Appends
        keys and values to `steps`.
        """
        s, (batch, time, _) = self.shape, x.shape
        q = rotate(self.q_proj(x).view(batch, time, s.n_heads, s.d_head).transpose(1, 2), positions)
        k = rotate(self.k_proj(x).view(batch, time, s.n_kv_heads, s.d_head).transpose(1, 2), positions)
        v = self.v_proj(x).view(batch, time, s.n_kv_heads, s.d_head).transpose(1, 2)
        n_group = s.n_heads // s.n_kv_heads
        k, v = k.to(v.dtype).repeat_interleave(n_group, dim=1), v.repeat_interleave(n_group, dim=1)
        q = q.to(v.dtype)
        steps.append((k, v))
        if len(steps) == 1:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            first_k, first_v = steps[0]
            scores = (q @ first_k.transpose(-1, -2)).float() * s.d_head**-0.5
            later = torch.ones(time, time, dtype=torch.bool, device=x.device).triu(1)
            scores = scores.masked_fill(later, float("-inf"))
            own = [(q * k_).sum(-1, keepdim=True).float() * s.d_head**-0.5 for k_, _ in steps[1:]]
            weights = torch.cat((scores, *own), dim=-1).softmax(-1).to(v.dtype)
            y = weights[..., :time] @ first_v
            for i, (_, v_) in enumerate(steps[1:]):
                y = y + weights[..., time + i : time + i + 1] * v_
        return self.o_proj(y.transpose(1, 2).reshape(batch, time, s.n_heads * s.d_head))


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Apply rotary positions [time] to [batch, head, time, d_head], with Hugging Face's pairing of halves."""
    half = torch.arange(0, x.shape[-1], 2, dtype=torch.float32, device=x.device) / x.shape[-1]
    angle = torch.outer(positions.float(), _ROPE_THETA**-half)
    (first, second), cos, sin = x.float().chunk(2, dim=-1), angle.cos(), angle.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Eagle1(OnTarget):
    """EAGLE-1: predicts the next feature, the input of the target's head. Its layer has no input norm."""

    def __init__(self, shape: EagleShape, ends: TargetEnds):
        super().__init__(ends)
        self.shape = shape
        d = shape.d_model
        self.fc = nn.Linear(2 * d, d, bias=True)
        self.layers = nn.ModuleList([nn.Module()])
        layer = self.layers[0]
        layer.self_attn = Attention(shape, d)
        layer.mlp = FeedForward(shape)
        layer.post_attention_layernorm = _norm(d)
        _initialize(self)
        with torch.no_grad():
            self.fc.weight[:, d:] += torch.eye(d)

    def forward(self, features: Tensor, ids: Tensor) -> Tensor:
        """Return features after the tokens `ids`, from those [batch, time, d_model] one token earlier."""
        return next(self.steps(features, ids, 1))

    def steps(self, features: Tensor, ids: Tensor, n_steps: int) -> Iterator[Tensor]:
        """Yield features of several steps, each from the previous step's, as drafting does.

        `ids` [batch, time + n_steps - 1] are the tokens from index 1. Row t of step i is the feature after
        token t + i + 1.
        """
        layer, time = self.layers[0], features.shape[1]
        kept: list[tuple[Tensor, Tensor]] = []
        for step in range(n_steps):
            embedded = self.ends.embed(ids[:, step : step + time]).to(features.dtype)
            x = self.fc(torch.cat((embedded, features), dim=-1)).float()
            positions = torch.arange(step, step + time, device=ids.device)
            x = x + layer.self_attn(x, positions, kept)
            features = x + layer.mlp(layer.post_attention_layernorm(x))
            yield features

    def logits(self, features: Tensor) -> Tensor:
        """Return logits [..., n_vocab] of the target's head."""
        return self.ends.logits(features)


class Eagle3(OnTarget):
    """EAGLE-3: ``fc`` fuses three hidden states; later steps read the layer's own output."""

    def __init__(self, shape: EagleShape, ends: TargetEnds, draft_ids: Tensor | None = None):
        super().__init__(ends, draft_ids)
        self.shape = shape
        d = shape.d_model
        self.fc = nn.Linear(len(shape.captures) * d, d, bias=False)
        self.midlayer = nn.Module()
        self.midlayer.self_attn = Attention(shape, 2 * d)
        self.midlayer.mlp = FeedForward(shape)
        self.midlayer.hidden_norm = _norm(d)
        self.midlayer.input_layernorm = _norm(d)
        self.midlayer.post_attention_layernorm = _norm(d)
        self.norm = _norm(d)
        self.lm_head = nn.Linear(d, shape.n_draft_vocab, bias=False)
        _initialize(self)
        with torch.no_grad():  # start from the target's last capture and its head
            self.fc.weight[:, -d:] += torch.eye(d)
            self.lm_head.weight.copy_(ends.head if draft_ids is None else ends.head[draft_ids])

    def steps(self, captures: Tensor, ids: Tensor, n_steps: int) -> Iterator[Tensor]:
        """Yield outputs of several steps, each from the previous step's: the training-time test.

        `captures` is [batch, time, n_captures · d_model], after tokens 0 to time - 1; `ids` as in `Eagle1`.
        Row t of step i, [batch, time, d_model], has read tokens up to t + i + 1.
        """
        layer, time = self.midlayer, captures.shape[1]
        kept: list[tuple[Tensor, Tensor]] = []
        hidden = self.fc(captures).float()
        for step in range(n_steps):
            embedded = self.ends.embed(ids[:, step : step + time]).to(hidden.dtype)
            x = torch.cat((layer.input_layernorm(embedded), layer.hidden_norm(hidden)), dim=-1)
            positions = torch.arange(step, step + time, device=ids.device)
            hidden = hidden + layer.self_attn(x, positions, kept)
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
            yield hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits [..., n_draft_vocab] of the layer's outputs."""
        return self.lm_head(self.norm(hidden))


def _initialize(module: nn.Module) -> None:
    """Initialize with small matrices, and zero for the residual branches' outputs."""
    for name, weight in module.named_parameters():
        if weight.dim() == 2:
            nn.init.normal_(weight, std=0.5 * weight.shape[1] ** -0.5)
        if name.endswith(("o_proj.weight", "down_proj.weight")) or name == "fc.bias":
            nn.init.zeros_(weight)


@dataclass(frozen=True)
class EagleSettings:
    """Settings of EAGLE drafts; 0 selects the target's value."""

    version: int = 3  # 1 or 3
    n_heads: int = 0
    n_kv_heads: int = 0
    d_head: int = 0
    d_ff: int = 0  # without an MLP in the target 3 d_model
    n_draft_vocab: int = 0  # EAGLE-3: draft only this many most frequent tokens; 0: all
    steps: int = 4  # EAGLE-3: steps of the training-time test
    decay: float = 0.8  # EAGLE-3: weight of a step's loss relative to the previous step's
    noise: float = 0.1  # EAGLE-1: uniform noise from -noise to noise on features
    token_weight: float = 0.1  # EAGLE-1: weight of the token loss relative to the feature regression

    def eagle_shape(self, target: Model) -> EagleShape:
        """Return the shape for a target."""
        config = target.config
        n_heads, n_kv_heads = self.n_heads or config.n_head, self.n_kv_heads or config.n_kv_head
        d_head, d_ff = self.d_head or config.d_head, self.d_ff or config.d_ff or 3 * config.d_model
        first, d_model, n_draft = self.version == 1, config.d_model, self.n_draft_vocab
        most = 0 if first else config.n_vocab
        whole = f"n_heads · d_head equal to the target's {d_model} dimensions, as EAGLE-1's format requires"
        for name, value, fits, expected in (
            ("version", self.version, self.version in (1, 3), "1 or 3"),
            ("n_kv_heads", n_kv_heads, n_heads % n_kv_heads == 0, f"a divisor of n_heads, {n_heads}"),
            ("d_head", d_head, d_head % 2 == 0, "an even number"),
            ("n_heads", n_heads, not first or n_heads * d_head == d_model, whole),
            (
                "n_draft_vocab",
                n_draft,
                n_draft <= most,
                f"at most {most}: the target's vocabulary, version 3",
            ),
            ("steps", self.steps, 1 <= self.steps <= 16, "1 to 16"),
        ):
            if not fits:
                raise InputError.of(name, value, expected)
        if not first and config.n_layer < 2:
            raise InputError.of("target", target.path, "2 layers or more, for EAGLE-3", "1 layer", "has")
        captures = (config.n_layer + 1,) if first else _captures(config.n_layer)
        n_draft = n_draft or config.n_vocab
        return EagleShape(d_model, config.n_vocab, n_heads, n_kv_heads, d_head, d_ff, captures, n_draft)


class EagleTrainer(DraftTrainer):
    """Trains one Llama layer on the target's hidden states."""

    name = "eagle"
    shape_type = EagleSettings
    learning_rate = 2e-3

    def __init__(self, target: Model, settings: Any) -> None:
        super().__init__(target, settings)
        self._shape: EagleShape = self.shape.eagle_shape(target)

    @property
    def captures(self) -> tuple[int, ...]:
        return self._shape.captures

    def network(self) -> Eagle1 | Eagle3:
        shape, ends, begin = self._shape, TargetEnds.of(self.target), self.settings.begin
        draft_ids = None
        if begin is not None:
            published = open_published(Path(begin), self.target, shape.captures)
            draft_ids = None if published.tokens is None else torch.from_numpy(published.tokens).long()
            # Tensor shapes do not determine head widths.
            names = {"n_heads": "n_head", "n_kv_heads": "n_kv_head", "d_head": "d_head", "d_ff": "d_ff"}
            found = {name: published.config[own] for name, own in names.items()}
            found["n_draft_vocab"] = shape.n_vocab if draft_ids is None else len(draft_ids)
            found["version"] = int(published.variant[-1])
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
        """Return the feature regression plus the token loss (arXiv 2401.15077, section 3.2)."""
        features = self._states(batch)
        disturbed = features + (2 * torch.rand_like(features) - 1) * self.shape.noise
        found = network(disturbed[:, :-1], batch.ids[:, 1:])
        away = F.smooth_l1_loss(found, features[:, 1:], reduction="none").mean(-1)
        token = objective(batch.target[:, 1:], network.logits(found))
        return batch.mean(away + self.shape.token_weight * token, offset=1)

    def first_token_logits(self, network: Any, batch: Batch) -> Tensor:
        hidden = next(network.steps(self._states(batch)[:, :-1], batch.ids[:, 1:], 1))
        return F.pad(self._logits(network, hidden), (0, 0, 1, 0))  # uniform before the first token

    def _states(self, batch: Batch) -> Tensor:
        """Return the hidden states that the draft reads [n, time, n_captures · d_model]."""
        return torch.cat([batch.hidden[layer] for layer in self.captures], dim=-1)

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
                # The file counts layer outputs from 0; captures count the layers before them.
                "eagle_config": {
                    "use_aux_hidden_state": True,
                    "eagle_aux_hidden_state_layer_ids": [capture - 1 for capture in shape.captures],
                },
            }  # fmt: skip
            ids = network.draft_ids
            ids = torch.arange(shape.n_vocab) if ids is None else ids.cpu()
            tensors["d2t"] = ids - torch.arange(len(ids))
            tensors["t2d"] = torch.zeros(shape.n_vocab, dtype=torch.bool).index_fill(0, ids, True)
        config["specdec_draft"] = {
            "target": vars(TargetIdentity.of(self.target)),
            "captures": list(shape.captures),
        }
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "config.json", config)
        arrays = {
            name: (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
            for name, tensor in stored_tensors(tensors, self.settings.weights).items()
        }
        write_safetensors(folder / "model.safetensors", arrays, {"format": "pt"})


def _stored(folder: Path, network: Any) -> dict[str, Tensor]:
    """Return the network's tensors from a draft's folder, in f32."""
    held, found = open_weights(folder), {}
    for name, tensor in network.state_dict().items():
        shape = list(tensor.shape)
        if name not in held or list(held[name].shape) != shape:
            what = f"has shape {list(held[name].shape)}" if name in held else "is missing"
            raise CheckpointError(f"{folder}: tensor '{name}' {what}; expected it with shape {shape}")
        found[name] = as_torch((name, held[name].array(), held[name].format))
    return found


def _captures(n_layer: int) -> tuple[int, ...]:
    """Return the captures of EAGLE-3: the usual ones, or each third of a shallow target."""
    thirds = tuple(sorted({max(1, round(n_layer * i / 3)) for i in (1, 2, 3)}))
    return usual_captures(n_layer) or (thirds if len(thirds) == 3 else (0, 1, 2))
