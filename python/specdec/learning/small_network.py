"""A small decoder of the Llama layout of random weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from specdec.errors import InputError
from specdec.learning.hugging_face import transformers

__all__ = ["SmallShape", "small_decoder"]


@dataclass(frozen=True)
class SmallShape:
    """Dimensions of a small decoder; 0 means what fits the others.

    Attributes
    ----------
    d_model, n_layers : int
        Width and layers.
    n_heads, n_kv_heads : int
        Heads, 0: of 32 dimensions; heads with keys and values of their own, 0: half as many.
    d_ff : int
        Width of the feed-forward block, 0: three times `d_model`.
    """

    d_model: int = 128
    n_layers: int = 2
    n_heads: int = 0
    n_kv_heads: int = 0
    d_ff: int = 0

    def settled(self) -> SmallShape:
        """The shape with no 0 left.

        Raises
        ------
        InputError
            Heads that do not divide the width, or one another.
        """
        n_heads = self.n_heads or max(1, self.d_model // 32)
        n_kv_heads = self.n_kv_heads or (n_heads // 2 if n_heads % 2 == 0 else n_heads)
        if self.d_model % (2 * n_heads) or n_heads % n_kv_heads:
            raise InputError(
                f"d_model is {self.d_model}, n_heads {n_heads} and n_kv_heads {n_kv_heads}; expected heads "
                "of an even width, and a number of heads that n_kv_heads divides"
            )
        return SmallShape(self.d_model, self.n_layers, n_heads, n_kv_heads, self.d_ff or 3 * self.d_model)


def small_decoder(
    n_vocab: int, n_ctx: int, shape: SmallShape, *, bos_id: int | None, eos_ids: int | list[int] | None
) -> Any:
    """A decoder of random weights, transformers' ``LlamaForCausalLM``, whose head is its token table.

    Matrices that add to the residual stream begin at 0, so that a fresh network says what its embedding says.
    """
    library, shape = transformers(), shape.settled()
    config = library.LlamaConfig(
        vocab_size=n_vocab,
        hidden_size=shape.d_model,
        intermediate_size=shape.d_ff,
        num_hidden_layers=shape.n_layers,
        num_attention_heads=shape.n_heads,
        num_key_value_heads=shape.n_kv_heads,
        max_position_embeddings=n_ctx,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=bos_id,
        eos_token_id=eos_ids,
        pad_token_id=None,
    )
    network = library.LlamaForCausalLM(config)
    for name, weight in network.named_parameters():
        if weight.dim() == 2:
            nn.init.normal_(weight, std=0.02 if "embed" in name else shape.d_model**-0.5 / 2)
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            nn.init.zeros_(weight)
    return network.train()
