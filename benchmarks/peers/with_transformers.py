"""transformers on torch, eager, with the attention of `scaled_dot_product_attention`."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from benchmarks.encoder_decoders import CONFIGS
from benchmarks.peers.engine import Batch, Engine, Job, Unsupported, Writer
from benchmarks.peers.translator import SOURCE, TEXT, SourceJob, Translator

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


class TransformersOneDnn(Transformers):
    """int8 by another of torch's engines: quicker from many rows on where there is AMX, slower for few."""

    settings = f"eager, sdpa attention, DynamicCache; {_INT8} onednn"
    engine = "onednn"

    @classmethod
    def prepare(cls, job: Job) -> None:
        """Other formats do not know the choice."""
        if job.format != "int8":
            raise Unsupported("differs in int8 alone")
        super().prepare(job)


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
        """Each run of the target gives one token that is no draft."""
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


class TransformersOneDnnWriter(TransformersWriter):
    """int8 by another of torch's engines."""

    reader = TransformersOneDnn


class TransformersBatch(Batch):
    """`generate` with padding on the left: a batch ends with its last text, then comes the next."""

    settings = f"batches padded on the left; a batch ends with its longest text; {_INT8} x86"
    writer: type[TransformersWriter] = TransformersWriter

    def __init__(self, target: Job, draft: Job | None, gamma: int, n_at_once: int) -> None:
        super().__init__(target, draft, gamma, n_at_once)
        if draft and n_at_once > 1:
            raise Unsupported("assisted generation takes one prompt")
        writer = self.writer(target, draft, gamma)
        self.model, self.options = writer.model, writer.options

    @classmethod
    def prepare(cls, target: Job, draft: Job | None) -> None:
        """Nothing to convert."""
        cls.writer.prepare(target, draft)

    def generate(self, prompts: list[list[int]], n: int) -> list[list[int]]:
        """Prompts of like lengths together, which wastes least on padding."""
        texts: dict[int, list[int]] = {}
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        for first in range(0, len(order), self.n_at_once):
            chosen = order[first : first + self.n_at_once]
            longest = max(len(prompts[i]) for i in chosen)
            ids = torch.zeros(len(chosen), longest, dtype=torch.long)
            mask = torch.zeros_like(ids)
            for row, i in enumerate(chosen):
                ids[row, longest - len(prompts[i]) :] = torch.tensor(prompts[i])
                mask[row, longest - len(prompts[i]) :] = 1
            out = self.model.generate(
                ids, attention_mask=mask, max_new_tokens=n, do_sample=False, pad_token_id=0, **self.options
            )
            texts |= {i: tokens for i, tokens in zip(chosen, out[:, longest:].tolist(), strict=True)}
        return [texts[i] for i in range(len(prompts))]


class TransformersOneDnnBatch(TransformersBatch):
    """int8 by another of torch's engines."""

    settings = f"batches padded on the left; a batch ends with its longest text; {_INT8} onednn"
    writer = TransformersOneDnnWriter


class TransformersTranslator(Translator):
    """`generate`, with an assistant model; the encoder and the decoder as modules."""

    settings = f"eager; {_INT8} x86; constant number of assistant tokens, no confidence threshold"
    engine = "x86"

    def __init__(self, target: SourceJob, draft: SourceJob | None, gamma: int) -> None:
        super().__init__(target, draft, gamma)
        torch.set_num_threads(target.n_threads)
        torch.set_grad_enabled(False)
        self.model = _translator(target, self.engine)
        self.start = CONFIGS[target.shape]["decoder_start_token_id"]
        self.options: dict[str, object] = {}
        if draft:
            assistant = _translator(draft, self.engine)
            config = assistant.generation_config  # what is passed to generate is not used
            config.num_assistant_tokens = gamma
            config.num_assistant_tokens_schedule = "constant"
            config.assistant_confidence_threshold = 0.0
            self.options["assistant_model"] = assistant

    @classmethod
    def prepare(cls, target: SourceJob, draft: SourceJob | None) -> None:
        """Nothing to convert."""

    def write(self, source: list[int], n: int) -> tuple[list[int], float]:
        """From the end of the first pass, which may give several tokens, to the last."""
        there: list[tuple[float, int]] = []

        def note(ids: torch.Tensor, scores: object, **_: object) -> torch.Tensor:
            there.append((time.perf_counter(), ids.shape[1] - 1))
            return torch.zeros(len(ids), dtype=torch.bool)

        ids = torch.tensor([source])
        out = self.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=n, do_sample=False, num_beams=1,
            stopping_criteria=[note], **self.options,
        )  # fmt: skip
        (begun, first), (ended, last) = there[0], there[-1]
        return out[0, 1:].tolist(), (min(last, n) - first) / (ended - begun)

    def first(self, source: list[int]) -> None:
        """One forward of the whole model."""
        self.model(input_ids=torch.tensor([source]), decoder_input_ids=torch.tensor([[self.start]]))

    def encode(self, source: list[int]) -> None:
        """The encoder as a module."""
        self.model.get_encoder()(input_ids=torch.tensor([source]))

    def forward(self, n: int) -> Callable[[], None]:
        """Cropping the cache takes no time to speak of."""
        encoded = self.model.get_encoder()(input_ids=torch.tensor([self.target.ids(SOURCE)]))
        ids = self.target.ids(TEXT + n)
        cache = transformers.EncoderDecoderCache(transformers.DynamicCache(), transformers.DynamicCache())

        def run(tokens: list[int]) -> None:
            self.model(
                encoder_outputs=encoded, decoder_input_ids=torch.tensor([tokens]), past_key_values=cache,
                use_cache=True,
            )  # fmt: skip

        run(ids[:TEXT])

        def once() -> None:
            if (excess := cache.get_seq_length() - TEXT) > 0:
                cache.crop(-excess)
            run(ids[TEXT:])

        return once

    def log_probabilities(self, source: list[int], text: list[int]) -> NDArray[np.float64]:
        """One forward."""
        read = torch.tensor([[self.start, *text[:-1]]])
        logits = self.model(input_ids=torch.tensor([source]), decoder_input_ids=read).logits[0].double()
        return torch.log_softmax(logits, -1)[range(len(text)), text].numpy()


class TransformersOneDnnTranslator(TransformersTranslator):
    """int8 by another of torch's engines."""

    settings = f"eager; {_INT8} onednn; constant number of assistant tokens, no confidence threshold"
    engine = "onednn"

    @classmethod
    def prepare(cls, target: SourceJob, draft: SourceJob | None) -> None:
        """Other formats do not know the choice."""
        if target.format != "int8":
            raise Unsupported("differs in int8 alone")


def _translator(job: SourceJob, engine: str) -> torch.nn.Module:
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(job.checkpoint, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None  # no token ends a text
    model.generation_config.forced_eos_token_id = None
    if job.format == "int8":
        model = _in_int8(model, engine)
    elif job.format != "f32":
        raise Unsupported(f"{job.format} is not compared")
    return model


def _in_int8(model: torch.nn.Module, engine: str) -> torch.nn.Module:
    """The model with its linear layers quantised, also those that GPT-2 has by the name of Conv1D."""
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
