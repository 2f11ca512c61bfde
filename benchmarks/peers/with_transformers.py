"""transformers on torch, eager, with the attention of `scaled_dot_product_attention`."""

from __future__ import annotations

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from peers.engine import Engine, Job, Unsupported


class Transformers(Engine):
    """A causal model and a DynamicCache, which can be cropped."""

    settings = "eager, sdpa attention, DynamicCache"

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        torch.set_num_threads(job.n_threads)
        torch.set_grad_enabled(False)
        dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[job.format]
        self.model = transformers.AutoModelForCausalLM.from_pretrained(job.checkpoint, dtype=dtype).eval()
        self.trim(0)

    @classmethod
    def prepare(cls, job: Job) -> None:
        """Nothing to convert."""
        if job.format not in ("f32", "bf16"):
            raise Unsupported("torch has no quantised linear layers for the CPU without torchao")

    def _run(self, ids: list[int], n_logits: int) -> NDArray[np.float32]:
        done = self.model(
            input_ids=torch.tensor([ids]), past_key_values=self.cache, use_cache=True, logits_to_keep=n_logits
        )
        return done.logits[0].float().numpy()

    def prefill(self, ids: list[int]) -> NDArray[np.float32]:
        """Logits of the last position only."""
        return self._run(ids, 1)[0]

    def forward(self, ids: list[int]) -> NDArray[np.float32]:
        """Logits of all positions."""
        return self._run(ids, len(ids))

    def trim(self, n: int) -> None:
        """Crop, or start again."""
        if n == 0:
            self.cache = transformers.DynamicCache()
        elif (excess := self.cache.get_seq_length() - n) > 0:
            self.cache.crop(-excess)
