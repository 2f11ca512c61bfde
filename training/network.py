"""The embedded pair's network in PyTorch, in GPT-2's layout, and its Hugging Face folder.

Weights have the names and the layout of ``GPT2LMHeadModel``, so any reader of Hugging Face folders loads
them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """Dimensions of a network; names as in the C core."""

    d_model: int
    n_layer: int
    n_head: int
    n_vocab: int = 8192
    n_ctx: int = 1024
    norm_eps: float = 1e-5

    @property
    def d_ff(self) -> int:
        return 4 * self.d_model


TARGET = Shape(d_model=768, n_layer=12, n_head=12)
DRAFT = Shape(d_model=256, n_layer=2, n_head=4)

GROUP = 32
"""Inputs per scale."""
LEAST_SCALE = 2.0**-18
"""Smallest scale whose products with codes are normal f16 numbers."""


class Matrix(nn.Linear):
    """A linear layer whose weights are rounded to the int4 grid in each pass if ``quantized``.

    The gradient ignores the rounding (straight-through estimator, Bengio et al. 2013).
    """

    quantized = False

    @property
    def values(self) -> Tensor:
        return straight_through(self.weight) if self.quantized else self.weight

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.values, self.bias)


class Layer(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.n_head = shape.n_head
        self.attn_norm = nn.LayerNorm(shape.d_model, shape.norm_eps)
        self.qkv = Matrix(shape.d_model, 3 * shape.d_model)
        self.out = Matrix(shape.d_model, shape.d_model)
        self.mlp_norm = nn.LayerNorm(shape.d_model, shape.norm_eps)
        self.up = Matrix(shape.d_model, shape.d_ff)
        self.down = Matrix(shape.d_ff, shape.d_model)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, d_model = x.shape
        q, k, v = (
            part.view(batch, time, self.n_head, -1).transpose(1, 2)
            for part in self.qkv(self.attn_norm(x)).chunk(3, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, time, d_model))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x)), approximate="tanh"))


class Decoder(nn.Module):
    """Maps token ids [batch, time] to logits [batch, time, n_vocab], with tied embeddings."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        self.embed = Matrix(shape.d_model, shape.n_vocab, bias=False)
        self.positions = nn.Embedding(shape.n_ctx, shape.d_model)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.n_layer))
        self.norm = nn.LayerNorm(shape.d_model, shape.norm_eps)
        for name, weight in self.named_parameters():
            if name.endswith(("out.weight", "down.weight")) or (weight.dim() == 1 and "norm" not in name):
                nn.init.zeros_(weight)
            elif weight.dim() == 2:
                nn.init.normal_(weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        table = self.embed.values
        x = F.embedding(ids, table) + self.positions.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return F.linear(self.norm(x), table)

    def quantize(self) -> None:
        """Let all matrices, but the table of positions, have values on the grid from now on."""
        for module in self.modules():
            if isinstance(module, Matrix):
                module.quantized = True


def straight_through(weight: Tensor) -> Tensor:
    return weight + (on_grid(weight) - weight).detach()


@torch.no_grad()
def on_grid(weight: Tensor) -> Tensor:
    """Round to code · scale, with codes -8 to 7 and a scale for each 32 inputs.

    The element of largest magnitude has code -8, as in Q4_0. Scales have five significant bits, so code ·
    scale is exact in bf16 and the scale in f16.
    """
    groups = weight.float().reshape(weight.shape[0], -1, GROUP)
    largest = groups.abs().argmax(-1, keepdim=True)
    mantissa, exponent = torch.frexp(groups.gather(-1, largest) / -8)
    scale = torch.ldexp(torch.round(mantissa * 32) / 32, exponent)
    scale = torch.where(scale.abs() < LEAST_SCALE, torch.copysign(torch.tensor(LEAST_SCALE), scale), scale)
    codes = torch.clamp(torch.round(groups / scale), -8, 7).scatter(-1, largest, -8.0)
    return (codes * scale).reshape(weight.shape).to(weight.dtype)


_NAMES = {
    "attn_norm": "ln_1", "qkv": "attn.c_attn", "out": "attn.c_proj", "mlp_norm": "ln_2", "up": "mlp.c_fc",
    "down": "mlp.c_proj",
}  # fmt: skip


def _tensors(model: Decoder) -> dict[str, tuple[Tensor, bool]]:
    """Return each tensor by its name in the file, and whether the file has it transposed."""
    found = {
        "wte.weight": (model.embed.values, False),
        "wpe.weight": (model.positions.weight, False),
        "ln_f.weight": (model.norm.weight, False),
        "ln_f.bias": (model.norm.bias, False),
    }
    for i, layer in enumerate(model.layers):
        for ours, theirs in _NAMES.items():
            module = getattr(layer, ours)
            is_matrix = isinstance(module, Matrix)
            found[f"h.{i}.{theirs}.weight"] = module.values if is_matrix else module.weight, is_matrix
            found[f"h.{i}.{theirs}.bias"] = module.bias, False
    return found


def save_folder(model: Decoder, folder: Path, tokenizer: Path) -> None:
    """Write config.json, model.safetensors (bf16) and tokenizer.json for `specdec.load`."""
    s, folder = model.shape, Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"transformer.{name}": (tensor.T if turned else tensor).detach().bfloat16().contiguous().clone()
        for name, (tensor, turned) in _tensors(model).items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new",
        "n_embd": s.d_model, "n_inner": s.d_ff, "n_layer": s.n_layer, "n_head": s.n_head,
        "vocab_size": s.n_vocab, "n_positions": s.n_ctx, "layer_norm_epsilon": s.norm_eps,
        "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 0, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "tokenizer.json").write_bytes(Path(tokenizer).read_bytes())


@torch.no_grad()
def load_folder(model: Decoder, folder: Path) -> None:
    """Load weights that `save_folder` wrote into a model of the same shape."""
    stored = load_file(Path(folder) / "model.safetensors")
    for name, (tensor, turned) in _tensors(model).items():
        value = stored[f"transformer.{name}"].float()
        tensor.copy_(value.T if turned else value)
