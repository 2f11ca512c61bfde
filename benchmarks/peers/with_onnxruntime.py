"""ONNX Runtime GenAI, with models of its own builder."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import onnxruntime_genai as og
from numpy.typing import NDArray

from benchmarks.peers.engine import ROOM, Engine, Job, Pair, Unsupported, Writer

_PRECISIONS = {"f32": "fp32", "int8": "int8", "int4": "int4"}


class OnnxRuntime(Engine):
    """A generator that is rewound."""

    settings = "int8 and int4 in blocks of 32, accuracy level 4 (activations in 8 bits)"

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.model = og.Model(str(onnx_folder(job)))
        self.params = og.GeneratorParams(self.model)
        self.params.set_search_options(max_length=ROOM, do_sample=False)
        self.trim(0)

    @classmethod
    def prepare(cls, job: Job) -> None:
        """Run its builder."""
        if job.config["position"] != "rotary":
            raise Unsupported("its model builder does not know GPT-2")
        if job.format not in _PRECISIONS:
            raise Unsupported("its model builder has no bf16 for the CPU")
        onnx_folder(job)

    def prefill(self, ids: list[int]) -> NDArray[np.float32]:
        """The exported graph computes all logits."""
        self.generator.append_tokens(np.array([ids], np.int32))
        return self.generator.get_logits()[0, -1]

    def forward(self, ids: list[int]) -> NDArray[np.float32]:
        """One run of the graph; all logits are in the output of that name."""
        self.generator.append_tokens(np.array([ids], np.int32))
        return self.generator.get_output("logits")[0]

    def trim(self, n: int) -> None:
        """Rewind, or start again."""
        if n == 0:
            self.generator = og.Generator(self.model, self.params)
        elif self.generator.token_count() > n:
            self.generator.rewind_to(n)


class OnnxRuntimePair(Pair):
    """The same generator, over a target with a draft beside it."""

    def __init__(self, target: Job, draft: Job | None, gamma: int) -> None:
        super().__init__(target, draft, gamma)
        self.model = og.Model(str(_with_draft(target, draft) if draft else onnx_folder(target)))

    @classmethod
    def prepare(cls, target: Job, draft: Job | None) -> None:
        """Build both."""
        for job in filter(None, (target, draft)):
            OnnxRuntime.prepare(job)

    def generate(self, ids: list[int], n: int) -> tuple[list[int], float]:
        """The loop of its documentation, timed from the first token on."""
        params = og.GeneratorParams(self.model)
        params.set_search_options(max_length=len(ids) + n + 32, do_sample=False)
        if self.draft:
            params.set_speculative_options(max_draft_tokens=self.gamma)
        generator = og.Generator(self.model, params)
        generator.append_tokens(np.array([ids], np.int32))
        generator.generate_next_token()
        begun = time.perf_counter()
        for _ in range(n):
            generator.generate_next_token()
        seconds = time.perf_counter() - begun
        return generator.get_sequence(0)[len(ids) :].tolist(), seconds


class OnnxRuntimeWriter(Writer):
    """The loop of its documentation."""

    def __init__(self, target: Job, draft: Job | None, gamma: int) -> None:
        super().__init__(target, draft, gamma)
        self.model = OnnxRuntimePair(target, draft, gamma).model

    @classmethod
    def prepare(cls, target: Job, draft: Job | None) -> None:
        """Build both."""
        OnnxRuntimePair.prepare(target, draft)

    def write(self, ids: list[int], n: int, seed: int | None = None) -> list[int]:
        """A generator for each text. It cannot be told to go on after the end token."""
        params = og.GeneratorParams(self.model)
        how = {"do_sample": False}
        if seed is not None:
            how = {"do_sample": True, "temperature": 1.0, "top_p": 1.0, "random_seed": seed}
            how["top_k"] = self.target.config["n_vocab"]
        params.set_search_options(max_length=len(ids) + n + 32, **how)
        if self.draft:
            params.set_speculative_options(max_draft_tokens=self.gamma)
        generator = og.Generator(self.model, params)
        generator.append_tokens(np.array([ids], np.int32))
        while generator.token_count() < len(ids) + n and not generator.is_done():
            generator.generate_next_token()
        tokens = generator.get_sequence(0)[len(ids) : len(ids) + n].tolist()
        n_tokens = len(tokens) + generator.is_done()  # the end token is not in the sequence
        self.n_tokens += n_tokens
        if self.draft:
            self.n_accepted += n_tokens - generator.get_speculative_stats()["rounds"]
        return tokens


def _with_draft(target: Job, draft: Job) -> Path:
    """A folder whose configuration names both models."""
    folders = {"target": onnx_folder(target), "draft": onnx_folder(draft)}
    configs = {
        role: json.loads((folder / "genai_config.json").read_text()) for role, folder in folders.items()
    }
    for role, config in configs.items():
        config["model"]["decoder"]["filename"] = f"{role}/model.onnx"
    config = configs["target"]
    config["model"]["draft"] = configs["draft"]["model"]["decoder"]

    def link(folder: Path) -> None:
        for role, source in folders.items():
            (folder / role).mkdir(parents=True)
            for file in source.glob("*.onnx*"):
                os.link(file, folder / role / file.name)
        for file in folders["target"].glob("*token*"):
            os.link(file, folder / file.name)
        (folder / "genai_config.json").write_text(json.dumps(config))

    return target.made(f"{folders['target'].name}-with-{folders['draft'].name}", link)


def onnx_folder(job: Job) -> Path:
    """The model as its builder makes it, told how many threads to use."""

    def build(folder: Path) -> None:
        from onnxruntime_genai.models.builder import create_model, parse_extra_options

        args = ("", str(job.checkpoint), str(folder), _PRECISIONS[job.format], "cpu", str(job.work / "cache"))
        create_model(*args, **parse_extra_options(*args, ["accuracy_level=4", "block_size=32"]))
        config = json.loads((folder / "genai_config.json").read_text())
        config["model"]["decoder"]["session_options"]["intra_op_num_threads"] = job.n_threads
        (folder / "genai_config.json").write_text(json.dumps(config))

    return job.made(f"{job.name}-{job.format}-onnx-{job.n_threads}", build)
