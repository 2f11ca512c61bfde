"""Kind "small": a small decoder, from nothing or from a model that there is."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from specdec.drafts.draft import Draft
from specdec.errors import InputError
from specdec.learning.hugging_face import open_decoder
from specdec.learning.small_network import SmallShape, small_decoder
from specdec.learning.target_law import Objective
from specdec.models.loading import load
from specdec.models.model import Model
from specdec.models.tokenizer import check_same_vocabulary
from specdec.training.batch import Batch
from specdec.training.draft_folder import end_ids, write_decoder
from specdec.training.kind import Kind
from specdec.training.written_texts import TextWriter, continued

__all__ = ["SmallKind"]


class SmallKind(Kind):
    """A decoder of the Llama layout, or whatever model ``begin`` is, in an ordinary Hugging Face folder."""

    name = "small"
    shape_type = SmallShape
    learning_rate = 6e-3

    def network(self) -> Any:
        """See `Kind.network`."""
        n_vocab = self.target.config.n_vocab
        if self.settings.begin is None:
            bos_id, eos_ids = end_ids(self.target)
            return small_decoder(
                n_vocab, self.target.config.n_ctx, self.shape, bos_id=bos_id, eos_ids=eos_ids
            )
        begin = load(self.settings.begin)
        check_same_vocabulary(self.target, begin)
        if begin.config.n_vocab != n_vocab:
            raise InputError(
                f"begin {begin.path} has {begin.config.n_vocab} ids; expected the target's {n_vocab}"
            )
        config = begin.config
        self.check_begun(
            {
                "d_model": config.d_model, "n_layers": config.n_layer, "n_heads": config.n_head,
                "n_kv_heads": config.n_kv_head, "d_ff": config.d_ff,
            }
        )  # fmt: skip
        return open_decoder(begin.path)

    def loss(self, network: Any, batch: Batch, objective: Objective, progress: float) -> Tensor:
        """See `Kind.loss`."""
        return batch.mean(objective(batch.law, self.first_guess(network, batch)))

    def first_guess(self, network: Any, batch: Batch) -> Tensor:
        """See `Kind.first_guess`."""
        logits: Tensor = network(input_ids=batch.ids, use_cache=False).logits
        return logits

    def export(self, network: Any, folder: Path) -> None:
        """See `Kind.export`."""
        write_decoder(network, self.target, folder, self.settings.weights)

    def open(self, folder: Path) -> tuple[Model, Model | Draft]:
        """See `Kind.open`."""
        return self.target, load(folder)

    def writer(self, network: Any, folder: Path) -> TextWriter:
        """See `Kind.writer`: the draft as it is now, run by specdec."""
        with tempfile.TemporaryDirectory(dir=folder) as written:
            self.export(network, Path(written))
            draft = load(written)
        return partial(continued, draft, self.settings.threads)
