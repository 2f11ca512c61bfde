"""How long a checkpoint takes to load, beside copying its file in memory; how much memory loading holds.

    python benchmarks/bench_load.py
    python benchmarks/bench_load.py --folder FOLDER --dtypes bf16 int4

Prints Markdown. Without --folder a checkpoint of random weights is written to a temporary one. Loading and
copying (one `np.copy` of the bytes of the mapped file, which the system's page cache holds by then) take
turns; medians are reported. The peak is that of anonymous memory, without the mapped file, while a process of
its own loads the model, above what it held before; packed is what the model keeps.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

import specdec
from machine import describe
from shapes import SHAPES, write_checkpoint
from specdec import _core

GOAL_TIME = 1.5  # times the copy
GOAL_MEMORY = 1.15  # times the packed size, plus one layer


def copy_s(folder: Path) -> float:
    """Seconds of copying the weights' files in memory."""
    begun = time.perf_counter()
    for file in folder.glob("*.safetensors"):
        np.copy(np.memmap(file, np.uint8, mode="r"))
    return time.perf_counter() - begun


def load_s(folder: Path, dtype: str, n_threads: int) -> float:
    begun = time.perf_counter()
    specdec.load(folder, dtype=dtype, n_threads=n_threads)
    return time.perf_counter() - begun


def anonymous_bytes(pid: int) -> int:
    """Memory of a process that is not backed by a file."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"process {pid} says nothing of its anonymous memory")


def _load_when_told(pipe: Connection, folder: Path, dtype: str, n_threads: int) -> None:
    pipe.send(None)
    pipe.recv()
    model = specdec.load(folder, dtype=dtype, n_threads=n_threads)
    pipe.send(model.core.n_bytes)
    pipe.recv()


def peak_bytes(folder: Path, dtype: str, n_threads: int) -> tuple[int, int]:
    """(most anonymous memory while loading, packed size), in a fresh process, looked at every millisecond."""
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=_load_when_told, args=(theirs, folder, dtype, n_threads))
    process.start()
    theirs.close()
    pipe.recv()
    before = most = anonymous_bytes(process.pid)
    pipe.send(None)
    while not pipe.poll(0.001):
        most = max(most, anonymous_bytes(process.pid))
    packed = pipe.recv()
    most = max(most, anonymous_bytes(process.pid))
    pipe.send(None)
    process.join()
    return most - before, packed


def layer_bytes(config: dict[str, object], number: str = "bf16") -> int:
    """One layer as the checkpoint stores it."""
    shapes = _core.tensor_shapes(config)
    n_weights = sum(math.prod(shape) for name, shape in shapes.items() if name.startswith("layers.0."))
    return n_weights * {"f32": 4, "bf16": 2}[number]


def measure(folder: Path, args: argparse.Namespace) -> None:
    copy_s(folder)  # the file is in the page cache from here on
    times: dict[str, list[float]] = {dtype: [] for dtype in ("copy", *args.dtypes)}
    for _ in range(args.repeats):
        for dtype in args.dtypes:
            times["copy"].append(copy_s(folder))
            times[dtype].append(load_s(folder, dtype, args.threads))
    copying = statistics.median(times["copy"])
    n_bytes = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    layer = layer_bytes(specdec.models.checkpoints.open_checkpoint(folder, tokenizer=False).config)
    print(
        f"Copying {n_bytes / 1e9:.2f} GB takes {copying:.2f} s ({n_bytes / copying / 1e9:.1f} GB/s); "
        f"a layer of the checkpoint has {layer / 1e6:.0f} MB.\n\n"
        f"| format | load s | load/copy | at most {GOAL_TIME} | packed MB | peak MB | peak/packed "
        f"| at most {GOAL_MEMORY} and a layer |\n|---|---|---|---|---|---|---|---|"
    )
    for dtype in args.dtypes:
        loading = statistics.median(times[dtype])
        most, packed = peak_bytes(folder, dtype, args.threads)
        print(
            f"| {dtype} | {loading:.2f} | **{loading / copying:.2f}** "
            f"| {_verdict(loading <= GOAL_TIME * copying)} "
            f"| {packed / 1e6:.0f} | {most / 1e6:.0f} | **{most / packed:.2f}** "
            f"| {_verdict(most <= GOAL_MEMORY * packed + layer)} |",
            flush=True,
        )


def _verdict(met: bool) -> str:
    return "met" if met else "**missed**"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="L1B", help="of the checkpoint that is written")
    parser.add_argument("--folder", type=Path, help="a checkpoint; default: a temporary one")
    parser.add_argument("--dtypes", nargs="+", choices=("f32", "bf16", "int8", "int4"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args(arguments)
    args.dtypes = args.dtypes or ["bf16", "f32", "int8", "int4"]

    print(f"{describe()}, {args.threads} threads\n")
    if args.folder is not None:
        measure(args.folder, args)
        return
    with tempfile.TemporaryDirectory() as folder:
        measure(write_checkpoint(args.shape, folder, progress=True), args)


if __name__ == "__main__":
    main()
