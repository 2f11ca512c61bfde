"""ONNX Runtime GenAI, with models of its own builder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime_genai as og
from numpy.typing import NDArray

from peers.engine import Engine, Job, Unsupported

_PRECISIONS = {"f32": "fp32", "int8": "int8", "int4": "int4"}


class OnnxRuntime(Engine):
    """A generator that is rewound."""

    settings = "int8 and int4 in blocks of 32, accuracy level 4 (activations in 8 bits)"

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.model = og.Model(str(onnx_folder(job)))
        self.params = og.GeneratorParams(self.model)
        self.params.set_search_options(max_length=640, do_sample=False)
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


def onnx_folder(job: Job) -> Path:
    """The model as its builder makes it, told how many threads to use."""

    def build(folder: Path) -> None:
        from onnxruntime_genai.models.builder import create_model, parse_extra_options

        args = ("", str(job.checkpoint), str(folder), _PRECISIONS[job.format], "cpu", str(job.work / "cache"))
        create_model(*args, **parse_extra_options(*args, ["accuracy_level=4", "block_size=32"]))
        config = json.loads((folder / "genai_config.json").read_text())
        config["model"]["decoder"]["session_options"]["intra_op_num_threads"] = job.n_threads
        (folder / "genai_config.json").write_text(json.dumps(config))

    return job.made(f"{job.shape}-{job.format}-onnx-{job.n_threads}", build)
