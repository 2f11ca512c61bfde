"""The Llama-layout network of the embedded pair, in PyTorch, and its Hugging Face folder.

Only what training needs; ``specdec`` itself never imports torch. Weight names and the
half-split rotary layout are those of ``LlamaForCausalLM``, so that any reader of Hugging
Face folders loads the result.
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
    d_ff: int
    n_layer: int
    n_head: int
    n_kv_head: int
    n_vocab: int = 4096
    n_ctx: int = 512
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5

    @property
    def d_head(self) -> int:
        return self.d_model // self.n_head


TARGET = Shape(d_model=384, d_ff=1024, n_layer=6, n_head=6, n_kv_head=2)
DRAFT = Shape(d_model=128, d_ff=384, n_layer=2, n_head=4, n_kv_head=2)


class RMSNorm(nn.Module):
    def __init__(self, d_model: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class Layer(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        d_kv = shape.n_kv_head * shape.d_head
        self.attn_norm = RMSNorm(shape.d_model, shape.norm_eps)
        self.mlp_norm = RMSNorm(shape.d_model, shape.norm_eps)
        # Joined projections train faster; `save_folder` splits them again.
        self.qkv = nn.Linear(shape.d_model, shape.d_model + 2 * d_kv, bias=False)
        self.out = nn.Linear(shape.d_model, shape.d_model, bias=False)
        self.gate_up = nn.Linear(shape.d_model, 2 * shape.d_ff, bias=False)
        self.down = nn.Linear(shape.d_ff, shape.d_model, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        s, (batch, time, _) = self.shape, x.shape
        d_kv = s.n_kv_head * s.d_head
        q, k, v = self.qkv(self.attn_norm(x)).split((s.d_model, d_kv, d_kv), dim=-1)
        q = rotate(q.view(batch, time, s.n_head, s.d_head).transpose(1, 2), cos, sin)
        k = rotate(k.view(batch, time, s.n_kv_head, s.d_head).transpose(1, 2), cos, sin)
        v = v.view(batch, time, s.n_kv_head, s.d_head).transpose(1, 2)
        k = k.repeat_interleave(s.n_head // s.n_kv_head, dim=1).to(v.dtype)
        v = v.repeat_interleave(s.n_head // s.n_kv_head, dim=1)
        y = F.scaled_dot_product_attention(q.to(v.dtype), k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, time, s.d_model))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions on [batch, head, time, d_head], halves paired as Hugging Face does."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Decoder(nn.Module):
    """Token ids [batch, time] → logits [batch, time, n_vocab]; the head is the embedding."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        self.embed = nn.Embedding(shape.n_vocab, shape.d_model)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.n_layer))
        self.norm = RMSNorm(shape.d_model, shape.norm_eps)
        half = torch.arange(0, shape.d_head, 2, dtype=torch.float32) / shape.d_head
        angle = torch.outer(torch.arange(shape.n_ctx, dtype=torch.float32), shape.rope_theta**-half)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.02 if "embed" in name else shape.d_model**-0.5 / 2)
            if name.endswith(("out.weight", "down.weight")):
                nn.init.zeros_(weight)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x, cos, sin)
        return F.linear(self.norm(x), self.embed.weight)


def save_folder(model: Decoder, folder: Path, tokenizer: Path) -> None:
    """Write config.json, model.safetensors (bf16) and tokenizer.json for `specdec.load`."""
    s, folder = model.shape, Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    d_kv = s.n_kv_head * s.d_head
    tensors = {"model.embed_tokens.weight": model.embed.weight, "model.norm.weight": model.norm.weight}
    for i, layer in enumerate(model.layers):
        q, k, v = layer.qkv.weight.split((s.d_model, d_kv, d_kv))
        gate, up = layer.gate_up.weight.chunk(2)
        parts = {
            "self_attn.q_proj": q, "self_attn.k_proj": k, "self_attn.v_proj": v,
            "self_attn.o_proj": layer.out.weight, "mlp.gate_proj": gate, "mlp.up_proj": up,
            "mlp.down_proj": layer.down.weight, "input_layernorm": layer.attn_norm.weight,
            "post_attention_layernorm": layer.mlp_norm.weight,
        }  # fmt: skip
        tensors |= {f"model.layers.{i}.{name}.weight": part for name, part in parts.items()}
    tensors = {k: v.detach().to(torch.bfloat16).contiguous().clone() for k, v in tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": s.d_model, "intermediate_size": s.d_ff, "num_hidden_layers": s.n_layer,
        "num_attention_heads": s.n_head, "num_key_value_heads": s.n_kv_head, "head_dim": s.d_head,
        "vocab_size": s.n_vocab, "max_position_embeddings": s.n_ctx, "rope_theta": s.rope_theta,
        "rms_norm_eps": s.norm_eps, "tie_word_embeddings": True, "attention_bias": False,
        "mlp_bias": False, "bos_token_id": 0, "eos_token_id": 0, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "tokenizer.json").write_bytes(Path(tokenizer).read_bytes())


def load_folder(model: Decoder, folder: Path) -> None:
    """Read weights that `save_folder` wrote into `model`, of the same shape."""
    stored = load_file(Path(folder) / "model.safetensors")
    state = {"embed.weight": stored["model.embed_tokens.weight"], "norm.weight": stored["model.norm.weight"]}
    joined = {
        "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "out": ("self_attn.o_proj",), "gate_up": ("mlp.gate_proj", "mlp.up_proj"), "down": ("mlp.down_proj",),
        "attn_norm": ("input_layernorm",), "mlp_norm": ("post_attention_layernorm",),
    }  # fmt: skip
    for i in range(model.shape.n_layer):
        for name, parts in joined.items():
            tensors = [stored[f"model.layers.{i}.{part}.weight"] for part in parts]
            state[f"layers.{i}.{name}.weight"] = torch.cat(tensors)
    model.load_state_dict({name: tensor.float() for name, tensor in state.items()})
