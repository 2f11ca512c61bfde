"""transformers on torch, eager, with the attention of `scaled_dot_product_attention`."""

from __future__ import annotations

import warnings

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from benchmarks.peers.engine import Engine, Job, Unsupported, Writer

_INT8 = "int8: torch.ao.quantization.quantize_dynamic of all linear layers, by the engine"


class Transformers(Engine):
    """A causal model and a DynamicCache, which can be cropped."""

    settings = f"eager, sdpa attention, DynamicCache; {_INT8} x86"
    engine = "x86"

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        torch.set_num_threads(job.n_threads)
        torch.set_grad_enabled(False)
        dtype = torch.bfloat16 if job.format == "bf16" else torch.float32
        self.model = transformers.AutoModelForCausalLM.from_pretrained(job.checkpoint, dtype=dtype).eval()
        if job.format == "int8":
            self.model = _in_int8(self.model, self.engine)
        self.trim(0)

    @classmethod
    def prepare(cls, job: Job) -> None:
        """Nothing to convert."""
        if job.format == "int4":
            raise Unsupported("torch has no linear layers of 4 bits for the CPU without torchao")

    def _run(self, ids: list[int], n_logits: int) -> NDArray[np.float32]:
        done = self.model(
            input_ids=torch.tensor([ids]), past_key_values=self.cache, use_cache=True, logits_to_keep=n_logits
        )
        return done.logits[0].float().numpy()

    def prefill(self, ids: list[int]) -> NDArray[np.float32]:
        """Return the logits of the last position."""
        return self._run(ids, 1)[0]

    def forward(self, ids: list[int]) -> NDArray[np.float32]:
        """Return the logits of all positions."""
        return self._run(ids, len(ids))

    def trim(self, n: int) -> None:
        """Crop or reset the cache."""
        if n == 0:
            self.cache = transformers.DynamicCache()
        elif (excess := self.cache.get_seq_length() - n) > 0:
            self.cache.crop(-excess)


class TransformersWriter(Writer):
    """`generate`, with an assistant model."""

    settings = "constant number of assistant tokens, no confidence threshold"
    reader: type[Transformers] = Transformers

    def __init__(self, target: Job, draft: Job | None, gamma: int) -> None:
        super().__init__(target, draft, gamma)
        self.model = self.reader(target).model
        self.model.register_forward_pre_hook(self._count)
        self.n_runs = 0
        self.options: dict[str, object] = {}
        if draft:
            assistant = self.reader(draft).model
            config = assistant.generation_config  # what is passed to generate is not used
            config.num_assistant_tokens = gamma
            config.num_assistant_tokens_schedule = "constant"
            config.assistant_confidence_threshold = 0.0
            self.options["assistant_model"] = assistant
            assistant.generation_config.eos_token_id = None
        self.model.generation_config.eos_token_id = None  # no token ends a text

    def _count(self, *_: object) -> None:
        self.n_runs += 1

    @classmethod
    def prepare(cls, target: Job, draft: Job | None) -> None:
        """Nothing to convert."""
        for job in filter(None, (target, draft)):
            cls.reader.prepare(job)

    def write(self, ids: list[int], n: int, seed: int | None = None) -> list[int]:
        """Generate; each target forward pass adds one token that is not a draft token."""
        how: dict[str, object] = {"do_sample": False}
        if seed is not None:
            torch.manual_seed(seed)
            how = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
        begun = self.n_runs
        prompt = torch.tensor([ids])
        out = self.model.generate(
            prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=n, **how, **self.options
        )
        tokens = out[0, len(ids) :].tolist()
        self.n_tokens += len(tokens)
        self.n_accepted += len(tokens) - (self.n_runs - begun)
        return tokens


def _in_int8(model: torch.nn.Module, engine: str) -> torch.nn.Module:
    """Quantize the linear layers of a model, including GPT-2's Conv1D."""
    torch.backends.quantized.engine = engine
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, transformers.pytorch_utils.Conv1D):
                n_in, n_out = child.weight.shape
                linear = torch.nn.Linear(n_in, n_out)
                linear.weight, linear.bias = torch.nn.Parameter(child.weight.T.contiguous()), child.bias
                setattr(module, name, linear)
    with warnings.catch_warnings(action="ignore"):
        return torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)
