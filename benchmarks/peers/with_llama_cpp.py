"""llama.cpp, through llama-cpp-python built from source for this processor."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gguf
import llama_cpp as llama
import numpy as np
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

import specdec
from benchmarks.peers.engine import EMBEDDED, Batch, Engine, Job, Pair, Writer
from benchmarks.shapes import model_type, random_tensors, vocabulary

_TYPES = {"f32": Type.F32, "bf16": Type.BF16, "int8": Type.Q8_0, "int4": Type.Q4_0}
_NAMES = {
    "token_embedding": "token_embd.weight", "position_embedding": "position_embd.weight",
    "head": "output.weight", "attn_out": "attn_output", "mlp_norm": "ffn_norm", "mlp_gate": "ffn_gate",
    "mlp_up": "ffn_up", "mlp_down": "ffn_down",
    "attn_post_norm": "post_attention_norm", "mlp_post_norm": "post_ffw_norm",
}  # fmt: skip
COPIED = 2048
"""Tokens whose keys and values stand for those of a longer text."""


class LlamaCpp(Engine):
    """llama.cpp's C interface, with weights repacked in memory."""

    load_mode, weights = llama.LLAMA_LOAD_MODE_NONE, "repacked where it has kernels for that"
    q8_0_cache = False

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        types = "q8_0 and q4_0 for int8 and int4, head and embedding too" if job.gguf is None else "one file"
        self.settings = f"{types}; weights {self.weights}; {'q8_0' if self.q8_0_cache else 'f16'} cache"
        llama.llama_backend_init()
        of_model = llama.llama_model_default_params()
        of_model.load_mode = self.load_mode
        self.model = llama.llama_model_load_from_file(bytes(gguf_file(job)), of_model)
        options = llama.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = job.capacity, job.capacity, 512
        if self.q8_0_cache:
            options.type_k = options.type_v = int(Type.Q8_0)
            options.flash_attn_type = llama.LLAMA_FLASH_ATTN_TYPE_ENABLED
        options.n_threads = options.n_threads_batch = job.n_threads
        self.n_copies = max(1, job.context // COPIED) - 1
        options.n_seq_max, options.kv_unified = 1 + self.n_copies, True
        self.context = llama.llama_init_from_model(self.model, options)
        self.memory = llama.llama_get_memory(self.context)
        self.batch = batch = llama.llama_batch_init(job.capacity, 0, 1)
        for i in range(job.capacity):
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        arrays = (batch.token, batch.pos, batch.logits)
        self.tokens, self.positions, self.wanted = (np.ctypeslib.as_array(a, (job.capacity,)) for a in arrays)
        self.length = self.n_copied = 0

    @classmethod
    def prepare(cls, job: Job) -> None:
        """Write the GGUF file."""
        gguf_file(job)

    def _run(self, ids: list[int], n_logits: int) -> NDArray[np.float32]:
        n = self.batch.n_tokens = len(ids)
        self.tokens[:n] = ids
        self.positions[:n] = range(self.length, self.length + n)
        self.wanted[:n] = 0
        self.wanted[n - n_logits : n] = 1
        if llama.llama_decode(self.context, self.batch):
            raise RuntimeError("llama_decode failed")
        self.length += n
        first = llama.llama_get_logits(self.context)
        pointer = ctypes.cast(first, ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(pointer, (n_logits, self.job.config["n_vocab"]))

    def prefill(self, ids: list[int]) -> NDArray[np.float32]:
        """Return the logits of the last position."""
        return self._run(ids, 1)[0]

    def fill(self, ids: list[int]) -> None:
        """Fill the cache; from 4,096 tokens on with copies of the first 2,048, for reading takes minutes.

        The copies are cells of their own, at the positions of the original. New tokens attend to all.
        """
        self.prefill(ids[: len(ids) - self.n_copies * COPIED])
        if self.n_copies == 0:
            return
        n_bytes = llama.llama_state_seq_get_size(self.context, 0)
        state = (ctypes.c_ubyte * n_bytes)()
        llama.llama_state_seq_get_data(self.context, state, n_bytes, 0)
        for copy in range(1, 1 + self.n_copies):
            if not llama.llama_state_seq_set_data(self.context, state, n_bytes, copy):
                raise RuntimeError("llama_state_seq_set_data failed")
            llama.llama_memory_seq_cp(self.memory, copy, 0, -1, -1)
            self.n_copied += self.length

    def forward(self, ids: list[int]) -> NDArray[np.float32]:
        """Return the logits of all positions."""
        return self._run(ids, len(ids))

    def trim(self, n: int) -> None:
        """Truncate the cache, without cost in llama.cpp."""
        if n == 0:
            self.n_copied = 0
        llama.llama_memory_seq_rm(self.memory, -1, n - self.n_copied, -1)
        self.length = min(self.length, n - self.n_copied)


class LlamaCppInt8Cache(LlamaCpp):
    """The same with keys and values in q8_0."""

    q8_0_cache = True
    cells = ("plain", "t(5)", "t(9)")


class LlamaServer(Pair):
    """llama.cpp's server, built from the sources of llama-cpp-python."""

    def __init__(self, target: Job, draft: Job | None, gamma: int, *, n_at_once: int = 1) -> None:
        super().__init__(target, draft, gamma)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = [server(target.work), "-m", gguf_file(target), "--port", port, "--host", "127.0.0.1"]
        n_ctx = 1024 if n_at_once == 1 else 256 * n_at_once
        command += ["-t", target.n_threads, "-c", n_ctx, "-np", n_at_once, "--load-mode", "none"]
        command += ["--cache-ram", 0]
        if draft:
            command += ["-md", gguf_file(draft), "--spec-type", "draft-simple", "-td", target.n_threads]
            command += ["--spec-draft-n-max", gamma]
        self.process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL)
        while self.process.poll() is None:
            try:
                with urllib.request.urlopen(f"{self.url}/health"):
                    return
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.1)
        raise RuntimeError(f"llama-server ended with status {self.process.returncode}")

    def __del__(self) -> None:
        self.process.kill()
        self.process.wait()

    @classmethod
    def prepare(cls, target: Job, draft: Job | None) -> None:
        """Build the server, write the GGUF files."""
        server(target.work)
        for job in filter(None, (target, draft)):
            gguf_file(job)

    def complete(self, ids: list[int], n: int, **sampling: object) -> dict:
        """Return the server's answer to a request, by default at temperature 0."""
        body = {
            "prompt": ids,
            "n_predict": n,
            "cache_prompt": False,
            "return_tokens": True,
            **(sampling or {"ignore_eos": True, "samplers": ["top_k"], "top_k": 1}),
        }
        request = urllib.request.Request(
            f"{self.url}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def generate(self, ids: list[int], n: int) -> tuple[list[int], float]:
        """Send one request; time it from the first token by the server's clock, without HTTP."""
        answer = self.complete(ids, n + 1)
        timings = answer["timings"]  # the time begins with the first token, the count includes it
        return answer["tokens"], timings["predicted_ms"] / 1000 / (timings["predicted_n"] - 1) * n


class LlamaServerBatch(Batch):
    """The server with one slot per concurrent request."""

    settings = "one slot per concurrent request"

    def __init__(self, target: Job, draft: Job | None, gamma: int, n_at_once: int) -> None:
        super().__init__(target, draft, gamma, n_at_once)
        self.pair = LlamaServer(target, draft, gamma, n_at_once=n_at_once)

    @classmethod
    def prepare(cls, target: Job, draft: Job | None) -> None:
        """Build the server, write the GGUF files."""
        LlamaServer.prepare(target, draft)

    def generate(self, prompts: list[list[int]], n: int) -> list[list[int]]:
        """Send one request per prompt."""
        with ThreadPoolExecutor(self.n_at_once) as requests:
            answers = requests.map(lambda ids: self.pair.complete(ids, n), prompts)
            return [answer["tokens"] for answer in answers]


class LlamaServerWriter(Writer):
    """The server, for samples."""

    def __init__(self, target: Job, draft: Job | None, gamma: int) -> None:
        super().__init__(target, draft, gamma)
        self.pair = LlamaServer(target, draft, gamma)
        said = subprocess.run([server(target.work), "--version"], check=True, capture_output=True, text=True)
        lines = (said.stdout + said.stderr).splitlines()
        self.settings = next(line for line in lines if line.startswith("version"))

    @classmethod
    def prepare(cls, target: Job, draft: Job | None) -> None:
        """Build the server, write the GGUF files."""
        LlamaServer.prepare(target, draft)

    def write(self, ids: list[int], n: int, seed: int | None = None) -> list[int]:
        """Send a request without ignore_eos, which would suppress the end token in samples."""
        sampling = {} if seed is None else {"samplers": ["temperature"], "temperature": 1.0, "seed": seed}
        answer = self.pair.complete(ids, n, **sampling)
        self.n_tokens += len(answer["tokens"])
        self.n_accepted += answer["timings"].get("draft_n_accepted", 0)
        return answer["tokens"]


class LlamaCppPythonWriter(Writer):
    """`Llama.generate` with a custom draft model, as the package has only prompt lookup."""

    settings = "a custom draft model with its interface LlamaDraftModel"

    def __init__(self, target: Job, draft: Job | None, gamma: int) -> None:
        super().__init__(target, draft, gamma)
        self.options: dict[str, object] = {"temp": 0.0}
        self.drafter = self._load(draft, None) if draft else None
        self.model = self._load(target, self._propose if draft else None)
        evaluate = self.model.eval

        def count(tokens: list[int]) -> None:
            self.n_runs += 1
            evaluate(tokens)

        self.n_runs, self.model.eval = 0, count

    def _load(self, job: Job, draft_model: object) -> llama.Llama:
        return llama.Llama(
            str(gguf_file(job)), n_ctx=640, n_threads=job.n_threads, n_threads_batch=job.n_threads,
            draft_model=draft_model, logits_all=True, verbose=False,
        )  # fmt: skip

    def _propose(self, ids: NDArray[np.intc], **_: object) -> NDArray[np.intc]:
        tokens = self.drafter.generate(ids.tolist(), **self.options)
        return np.array([next(tokens) for _ in range(self.gamma)], np.intc)

    @classmethod
    def prepare(cls, target: Job, draft: Job | None) -> None:
        """Write the GGUF files."""
        for job in filter(None, (target, draft)):
            gguf_file(job)

    def write(self, ids: list[int], n: int, seed: int | None = None) -> list[int]:
        """Generate; each target forward pass adds one token that is not a draft token."""
        self.options = {"temp": 0.0}
        if seed is not None:
            self.options = {"temp": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0}
            self.model.set_seed(seed)
            if self.drafter:
                self.drafter.set_seed(seed + (1 << 30))
        begun = self.n_runs
        generator = self.model.generate(ids, **self.options)
        tokens = [next(generator) for _ in range(n)]
        generator.close()
        self.n_tokens += len(tokens)
        self.n_accepted += len(tokens) - (self.n_runs - begun)
        return tokens


def server(work: Path) -> Path:
    """Return the path of the server: LLAMA_SERVER, or built once in the work folder."""
    if "LLAMA_SERVER" in os.environ:
        return Path(os.environ["LLAMA_SERVER"])
    folder = work / "llama.cpp"
    program = folder / "build" / "bin" / "llama-server"
    if not program.exists():
        folder.mkdir(exist_ok=True)
        package = f"llama-cpp-python=={llama.__version__}"
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-build-isolation"]
        subprocess.run([*pip, "--no-binary", ":all:", "-d", folder, package], check=True)
        with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
            archive.extractall(folder, filter="data")
        source = next(folder.glob("*/vendor/llama.cpp"))
        switches = [
            "CMAKE_BUILD_TYPE=Release", "GGML_NATIVE=ON", "LLAMA_OPENSSL=OFF", "LLAMA_BUILD_TESTS=OFF",
        ]  # fmt: skip
        switches += ["LLAMA_BUILD_EXAMPLES=OFF", "LLAMA_BUILD_UI=OFF"]
        switches += [f"CMAKE_CXX_FLAGS=-include{Path(__file__).with_name('amx_memory.h')}"]
        build = folder / "build"
        subprocess.run(["cmake", "-S", source, "-B", build, *(f"-D{s}" for s in switches)], check=True)
        subprocess.run(["cmake", "--build", build, "-j", "--target", "llama-server"], check=True)
    return program


def gguf_file(job: Job) -> Path:
    """Return the model as a GGUF file, written once."""
    write = _convert_embedded if job.shape in EMBEDDED else _write_gguf
    return job.gguf or job.made(f"{job.name}-{job.format}.gguf", lambda path: write(path, job))


def _convert_embedded(path: Path, job: Job) -> None:
    specdec.convert(job.checkpoint, path, _TYPES[job.format].name, force=True)


def _write_gguf(path: Path, job: Job) -> None:
    c = job.config
    layout = model_type(job.shape)
    out = gguf.GGUFWriter(path, layout.removesuffix("_text"))
    out.add_context_length(c["n_ctx"])
    out.add_embedding_length(c["d_model"])
    out.add_block_count(c["n_layer"])
    out.add_feed_forward_length(c["d_ff"])
    out.add_head_count(c["n_head"])
    out.add_head_count_kv(c["n_kv_head"])
    out.add_vocab_size(c["n_vocab"])
    if layout == "gpt2":
        out.add_layer_norm_eps(c["norm_eps"])
    else:
        out.add_layer_norm_rms_eps(c["norm_eps"])
        out.add_key_length(c["d_head"])
        out.add_value_length(c["d_head"])
        out.add_rope_dimension_count(c["d_head"])
        out.add_rope_freq_base(10_000.0)
    if "windows" in c:
        out.add_sliding_window(max(c["windows"]))
    n = c["n_vocab"]
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("default")
    out.add_token_list(vocabulary(n))
    out.add_token_types([gguf.TokenType.NORMAL] * (n - 1) + [gguf.TokenType.CONTROL])
    out.add_token_merges(["! !"])  # merges are required; this one makes no token
    out.add_eos_token_id(n - 1)
    out.add_bos_token_id(n - 1)
    out.add_add_bos_token(False)

    qkv: dict[str, list[NDArray[np.float32]]] = {"weight": [], "bias": []}
    for name, bits, _ in random_tensors(job.shape, alpha=job.alpha):
        array = (bits.astype(np.uint32) << 16).view(np.float32)
        stored = _NAMES.get(name, name)
        if name.startswith("layers."):
            _, layer, role, part = name.split(".")
            if layout == "gpt2" and role in ("attn_q", "attn_k", "attn_v"):
                qkv[part].append(array)
                if len(qkv[part]) < 3:
                    continue
                array, role, qkv[part] = np.concatenate(qkv[part]), "attn_qkv", []
            elif layout == "llama" and role in ("attn_q", "attn_k"):
                # pairs that rotary positions turn: halves there, neighbors here
                n_head = len(array) // c["d_head"]
                array = array.reshape(n_head, 2, c["d_head"] // 2, -1).swapaxes(1, 2).reshape(array.shape)
            stored = f"blk.{layer}.{_NAMES.get(role, role)}.{part}"
        ggml_type = _TYPES[job.format] if array.ndim == 2 and name != "position_embedding" else Type.F32
        out.add_tensor(stored, gguf.quants.quantize(array, ggml_type), raw_dtype=ggml_type)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
