"""OpenVINO: a converted transformers model, whose KV cache is a state of the inference request."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import openvino as ov
import openvino_genai
from numpy.typing import NDArray
from openvino_genai.py_openvino_genai import GenerationHandle, GenerationStatus

from benchmarks.peers.engine import Batch, Engine, Job, Pair, Writer

#: Largest excess length of the cache when timing decoding, see `OpenVino.trim`.
_DRIFT = 32
#: Precision of products, except in f32: bf16 where the processor has its instructions.
_PRODUCTS = "bf16" if "avx512_bf16" in Path("/proc/cpuinfo").read_text() else "f32"


class OpenVino(Engine):
    """An inference request, with an input that selects the positions of logits."""

    settings = (
        "latency hint, weights of int8 per row and int4 in blocks of 32 by NNCF, all layers, with products "
        f"in {_PRODUCTS}"
    )

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        compiled = ov.Core().compile_model(
            openvino_folder(job) / "openvino_model.xml", "CPU", properties(job)
        )
        self.request = compiled.create_infer_request()
        self.length = 0

    @classmethod
    def prepare(cls, job: Job) -> None:
        """Convert with torch."""
        openvino_folder(job)

    def _run(self, ids: list[int], rows: Sequence[int]) -> NDArray[np.float32]:
        n, end = len(ids), self.length + len(ids)
        self.request.infer(
            {
                "input_ids": np.array([ids], np.int64),
                "attention_mask": np.ones((1, end), np.int64),
                "position_ids": np.arange(end - n, end, dtype=np.int64)[None],
                "beam_idx": np.zeros(1, np.int32),
                "rows": np.array(rows, np.int64),
            },
            share_inputs=True,
            share_outputs=True,
        )
        self.length = end
        return self.request.get_tensor("logits").data[0]

    def prefill(self, ids: list[int]) -> NDArray[np.float32]:
        """Return the logits of the last position."""
        return self._run(ids, [len(ids) - 1])[0]

    def forward(self, ids: list[int]) -> NDArray[np.float32]:
        """Return the logits of all positions."""
        return self._run(ids, range(len(ids)))

    def trim(self, n: int) -> None:
        """Truncate the cache rarely, as the next run pays for a copy that decoding does not need."""
        if n == 0:
            self.request.reset_state()
            self.length = 0
        elif self.length > n + _DRIFT:
            for state in self.request.query_state():
                state.state = ov.Tensor(np.ascontiguousarray(state.state.data[:, :, :n]))
            self.length = n
            self.forward([0])


class OpenVinoGenAI(Pair):
    """OpenVINO GenAI's pipeline."""

    def __init__(self, target: Job, draft: Job | None, gamma: int) -> None:
        super().__init__(target, draft, gamma)
        options = properties(target)
        self.config = openvino_genai.GenerationConfig(ignore_eos=True, do_sample=False)
        if draft:
            folder = openvino_folder(draft, for_genai=True)
            options["draft_model"] = openvino_genai.draft_model(folder, "CPU", **properties(draft))
            self.config.num_assistant_tokens = gamma
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False
        folder = openvino_folder(target, for_genai=True)
        self.pipeline = openvino_genai.LLMPipeline(folder, "CPU", scheduler_config=scheduler, **options)

    @classmethod
    def prepare(cls, target: Job, draft: Job | None) -> None:
        """Convert both."""
        for job in filter(None, (target, draft)):
            openvino_folder(job, for_genai=True)

    def generate(self, ids: list[int], n: int) -> tuple[list[int], float]:
        """Generate, timed from the first token by the pipeline's clock."""
        self.config.max_new_tokens = n + 1
        result = self.pipeline.generate(ov.Tensor(np.array([ids], np.int64)), self.config)
        metrics = result.perf_metrics
        milliseconds = metrics.get_generate_duration().mean - metrics.get_ttft().mean
        return list(result.tokens[0]), milliseconds / 1000


class OpenVinoBatch(Batch):
    """OpenVINO GenAI's continuous batching.

    Its scheduler exceeds `max_num_seqs` when it splits prompts, the faster default. So the pipeline gets no
    more requests than should be decoded at once.
    """

    settings = (
        "continuous batching, prefix caching off; no more requests in the pipeline than at once, by its "
        "counter scheduled_requests after each step"
    )

    def __init__(self, target: Job, draft: Job | None, gamma: int, n_at_once: int) -> None:
        super().__init__(target, draft, gamma, n_at_once)
        options = properties(target)
        self.config = openvino_genai.GenerationConfig(ignore_eos=True, do_sample=False)
        if draft:
            folder = openvino_folder(draft, for_genai=True)
            options["draft_model"] = openvino_genai.draft_model(folder, "CPU", **properties(draft))
            self.config.num_assistant_tokens = gamma
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False
        scheduler.max_num_seqs = n_at_once
        folder = openvino_folder(target, for_genai=True)
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(folder, scheduler, "CPU", options)

    @classmethod
    def prepare(cls, target: Job, draft: Job | None) -> None:
        """Convert both."""
        OpenVinoGenAI.prepare(target, draft)

    def generate(self, prompts: list[list[int]], n: int) -> list[list[int]]:
        """Add one request per prompt, each when another finishes."""
        self.config.max_new_tokens = n
        waiting = list(enumerate(prompts))[::-1]
        texts: list[list[int]] = [[]] * len(prompts)
        running: dict[int, GenerationHandle] = {}
        while waiting or running:
            while waiting and len(running) < self.n_at_once:
                i, ids = waiting.pop()
                running[i] = self.pipeline.add_request(i, ov.Tensor(np.array([ids], np.int64)), self.config)
            self.pipeline.step()
            n_scheduled = self.pipeline.get_metrics().scheduled_requests
            if n_scheduled > self.n_at_once:
                raise RuntimeError(f"{n_scheduled} requests at once, expected {self.n_at_once} at most")
            for i, handle in list(running.items()):
                if handle.get_status() != GenerationStatus.RUNNING:
                    texts[i] = list(handle.read_all()[0].generated_ids)
                    del running[i]
        return texts


class OpenVinoWriter(Writer):
    """OpenVINO GenAI's pipeline."""

    def __init__(self, target: Job, draft: Job | None, gamma: int) -> None:
        super().__init__(target, draft, gamma)
        self.pair = OpenVinoGenAI(target, draft, gamma)
        self.vocab = target.config["n_vocab"]

    @classmethod
    def prepare(cls, target: Job, draft: Job | None) -> None:
        """Convert both."""
        OpenVinoGenAI.prepare(target, draft)

    def write(self, ids: list[int], n: int, seed: int | None = None) -> list[int]:
        """Continue one prompt."""
        config = self.pair.config
        config.max_new_tokens = n
        config.do_sample = seed is not None
        if seed is not None:
            config.temperature, config.top_p, config.top_k = 1.0, 1.0, self.vocab
            config.rng_seed = seed
        result = self.pair.pipeline.generate(ov.Tensor(np.array([ids], np.int64)), config)
        tokens = list(result.tokens[0])
        self.n_tokens += len(tokens)
        if self.draft:
            self.n_accepted += result.extended_perf_metrics.get_num_accepted_tokens()
        return tokens


def properties(job: Job) -> dict[str, object]:
    """Return the best settings found."""
    return {
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,
        "INFERENCE_NUM_THREADS": job.n_threads,
        "INFERENCE_PRECISION_HINT": "f32" if job.format == "f32" else _PRODUCTS,
        **({"KV_CACHE_PRECISION": "f32"} if job.format == "f32" else {}),
    }


def openvino_folder(job: Job, for_genai: bool = False) -> Path:
    """Return the converted model; for OpenVINO GenAI without the input `rows` and with a tokenizer."""
    number = "f32" if job.format == "bf16" else job.format  # bf16 is how it computes, not what it reads
    package = "genai" if for_genai else "openvino"
    return job.made(f"{job.name}-{number}-{package}", lambda folder: _convert(folder, job, for_genai))


def _convert(folder: Path, job: Job, for_genai: bool) -> None:
    import torch
    import transformers
    from openvino._offline_transformations import apply_make_stateful_transformation

    model = transformers.AutoModelForCausalLM.from_pretrained(job.checkpoint, dtype=torch.float32).eval()
    c = job.config

    class Step(torch.nn.Module):
        """Return the logits of `rows` and the extended cache, as a function of tensors."""

        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = model.base_model, model.lm_head

        def forward(self, input_ids, attention_mask, position_ids, beam_idx, *past):
            rows, past = (None, past) if for_genai else (past[0], past[1:])
            past = [tensor.index_select(0, beam_idx) for tensor in past]
            cache = transformers.DynamicCache(config=model.config)
            for layer, keys, values in zip(cache.layers, past[::2], past[1::2], strict=True):
                layer.lazy_initialization(keys, values)
                layer.keys, layer.values = keys, values
            positions = torch.arange(attention_mask.shape[1])
            seen = (positions <= position_ids[:, None, :, None]) & (attention_mask[:, None, None, :] > 0)
            mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)
            hidden = self.body(
                input_ids=input_ids, attention_mask=mask, position_ids=position_ids, past_key_values=cache
            ).last_hidden_state
            if rows is not None:
                hidden = hidden.index_select(1, rows)
            kept = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
            return self.head(hidden), *kept

    cached = torch.zeros(1, c["n_kv_head"], 4, c["d_head"])
    inputs = {
        "input_ids": torch.zeros(1, 3, dtype=torch.int64),
        "attention_mask": torch.ones(1, 7, dtype=torch.int64),
        "position_ids": torch.arange(4, 7)[None],
        "beam_idx": torch.zeros(1, dtype=torch.int32),
        **({} if for_genai else {"rows": torch.arange(3)}),
    }
    past = [f"past.{i}" for i in range(2 * c["n_layer"])]
    present = [f"present.{i}" for i in range(2 * c["n_layer"])]
    with torch.no_grad():
        converted = ov.convert_model(Step(), example_input=(*inputs.values(), *[cached] * len(past)))
    names = [*inputs, *past]
    for port, name in zip(converted.inputs, names, strict=True):
        port.get_tensor().set_names({name})
        shape = [1, c["n_kv_head"], -1, c["d_head"]] if name in past else [-1] * len(port.partial_shape)
        if name in past or name in ("input_ids", "attention_mask", "position_ids", "beam_idx"):
            shape[0] = -1
        port.get_node().set_partial_shape(ov.PartialShape(shape))
    for port, name in zip(converted.outputs, ["logits", *present], strict=True):
        port.get_tensor().set_names({name})
    converted.validate_nodes_and_infer_types()
    apply_make_stateful_transformation(converted, dict(zip(past, present, strict=True)))
    _start_states_empty(converted)
    if job.format in ("int8", "int4"):
        import nncf

        if job.format == "int8":
            converted = nncf.compress_weights(converted, mode=nncf.CompressWeightsMode.INT8_SYM)
        else:
            mode = nncf.CompressWeightsMode.INT4_SYM
            converted = nncf.compress_weights(converted, mode=mode, group_size=32, ratio=1.0, all_layers=True)
    ov.save_model(converted, folder / "openvino_model.xml", compress_to_fp16=False)
    if for_genai:
        _add_tokenizer(folder, job)


def _start_states_empty(model: ov.Model) -> None:
    """Initialize the cache with one empty sequence per prompt."""
    from openvino import opset13 as ops

    ids = model.input("input_ids").get_node()
    batch = ops.gather(ops.shape_of(ids, output_type="i64"), ops.constant([0]), ops.constant(0))
    for node in model.get_ops():
        if node.get_type_name() == "ReadValue":
            shape = node.get_output_partial_shape(0)
            rest = ops.constant(np.array([0 if d.is_dynamic else d.get_length() for d in list(shape)[1:]]))
            empty = ops.broadcast(ops.constant(np.float32(0)), ops.concat([batch, rest], 0))
            node.set_arguments([empty])
    model.validate_nodes_and_infer_types()


def _add_tokenizer(folder: Path, job: Job) -> None:
    import shutil

    import transformers
    from openvino_tokenizers import convert_tokenizer

    tokenizer = transformers.AutoTokenizer.from_pretrained(job.checkpoint)
    parts = convert_tokenizer(tokenizer, with_detokenizer=True)
    for name, part in zip(("tokenizer", "detokenizer"), parts, strict=True):
        ov.save_model(part, folder / f"openvino_{name}.xml")
    for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(job.checkpoint / name, folder)
