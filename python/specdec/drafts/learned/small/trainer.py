"""Trainer of a small decoder, from random weights or an existing model."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from specdec.drafts.draft import Draft
from specdec.drafts.learned.networks import Objective, open_decoder, transformers, write_decoder
from specdec.errors import InputError
from specdec.models.loading import load
from specdec.models.model import Model
from specdec.training.trainer import Batch, DraftTrainer, load_small
from specdec.training.training_texts import TextWriter, continued


@dataclass(frozen=True)
class SmallShape:
    """Dimensions of a small decoder; 0 selects a value that fits."""

    d_model: int = 128
    n_layers: int = 2
    n_heads: int = 0  # 0: d_model / 32
    n_kv_heads: int = 0  # 0: half of n_heads
    d_ff: int = 0  # 0: three times d_model

    def settled(self) -> SmallShape:
        """Replace zeros; refuse heads that do not divide the width."""
        n_heads = self.n_heads or max(1, self.d_model // 32)
        n_kv_heads = self.n_kv_heads or (n_heads // 2 if n_heads % 2 == 0 else n_heads)
        if self.d_model % (2 * n_heads) or n_heads % n_kv_heads:
            expected = f"heads of an even width in d_model, {self.d_model}, and n_kv_heads that divide them"
            raise InputError.of("n_heads", (n_heads, n_kv_heads), expected)
        return SmallShape(self.d_model, self.n_layers, n_heads, n_kv_heads, self.d_ff or 3 * self.d_model)


class SmallTrainer(DraftTrainer):
    """Trains a Llama decoder, or the model ``begin``, and writes an ordinary Hugging Face folder."""

    name = "small"
    shape_type = SmallShape
    learning_rate = 6e-3

    def network(self) -> Any:
        if self.settings.begin is None:
            return small_decoder(self.target, self.shape)
        begin = load_small("begin", self.settings.begin, self.target)
        config = begin.config
        shape = SmallShape(config.d_model, config.n_layer, config.n_head, config.n_kv_head, config.d_ff)
        self.check_begun(vars(shape))
        return open_decoder(begin.path)

    def loss(self, network: Any, batch: Batch, objective: Objective, progress: float) -> Tensor:
        return batch.mean(objective(batch.target, self.first_token_logits(network, batch)))

    def first_token_logits(self, network: Any, batch: Batch) -> Tensor:
        logits: Tensor = network(input_ids=batch.ids, use_cache=False).logits
        return logits

    def export(self, network: Any, folder: Path) -> None:
        write_decoder(network, self.target, folder, self.settings.weights)

    def open(self, folder: Path) -> tuple[Model, Model | Draft]:
        return self.target, load(folder)

    def writer(self, network: Any, folder: Path) -> TextWriter:
        with tempfile.TemporaryDirectory(dir=folder) as written:
            self.export(network, Path(written))
            draft = load(written)
        return partial(continued, draft, self.settings.threads)


def small_decoder(target: Model, shape: SmallShape) -> Any:
    """Make a ``LlamaForCausalLM`` with random weights, whose layers initially add nothing."""
    library, shape = transformers(), shape.settled()
    bos_id = None if target.tokenizer is None else target.tokenizer.bos_id
    config = library.LlamaConfig(
        vocab_size=target.config.n_vocab, hidden_size=shape.d_model, intermediate_size=shape.d_ff,
        num_hidden_layers=shape.n_layers, num_attention_heads=shape.n_heads,
        num_key_value_heads=shape.n_kv_heads, max_position_embeddings=target.config.n_ctx, rms_norm_eps=1e-5,
        tie_word_embeddings=True, bos_token_id=bos_id, eos_token_id=list(target.eos_ids) or None,
        pad_token_id=None,
    )  # fmt: skip
    network = library.LlamaForCausalLM(config)
    for name, weight in network.named_parameters():
        if weight.dim() == 2:
            nn.init.normal_(weight, std=0.02 if "embed" in name else shape.d_model**-0.5 / 2)
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            nn.init.zeros_(weight)
    return network.train()
