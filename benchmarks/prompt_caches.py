"""Time to the first token of a long prompt: read as a whole, from a cache in memory, from files."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import specdec
from benchmarks.interleaved import Options, median
from benchmarks.report import Report, Spread
from benchmarks.shapes import SHAPES, write_checkpoint

_COLUMNS = {
    "target": "", "draft": "", "format": "", "cold, s": ".2f", "memory, s": ".3f", "files, s": ".3f",
    "disk, s": ".3f", "cold/disk": ".0f", "written, s": ".2f", "MB": ".0f", "identified, s": ".2f",
}  # fmt: skip


def prompt_caches_options(options: Options) -> None:
    options.many("--pairs", str, ["paper97+paper6"], help="shapes of target and draft, or of a target")
    options.many("--dtypes", str, ["bf16", "int8"], help="number formats of both models")
    options.add("--prompt", type=int, default=4000, help="tokens of the prompt")
    options.add("--folder", type=Path, default=None, help="folder for the files; default: a temporary one")
    options.repeats(3)


def prompt_caches(args: argparse.Namespace, report: Report) -> None:
    """Time to the first token of a prompt that a cache has, except its last tokens.

    Models have random weights. "files" are read from the system's page cache, "disk" after it was dropped.
    "written" is the time after a text until its files are complete, "identified" that of the first call with
    a folder, which reads the weights once. Texts must be equal.
    """
    table = report.table(_COLUMNS, f"{args.prompt} tokens, {args.threads} threads")
    for pair in args.pairs:
        for dtype in args.dtypes:
            with tempfile.TemporaryDirectory(dir=args.folder) as folder:
                table.row(*_row(args, pair, dtype, Path(folder)))


def _row(args: argparse.Namespace, pair: str, dtype: str, folder: Path) -> list[Any]:
    names = pair.split("+")
    for name in names:
        write_checkpoint(name, folder / name)
    models = [specdec.load(folder / name, dtype, tokenizer=False) for name in names]
    target, draft = models[0], models[1] if len(models) > 1 else None
    ids = np.random.default_rng(0).integers(0, SHAPES[names[0]]["n_vocab"], args.prompt).tolist()
    options: dict[str, Any] = {"max_new_tokens": 1, "ignore_eos": True, "n_threads": args.threads}

    def first_token(cache: specdec.PromptCache | None) -> float:
        begun = time.perf_counter()
        found = specdec.generate(target, draft, ids, prompt_cache=cache, **options)
        seconds = time.perf_counter() - begun
        if found.tokens != wanted or (cache is not None and found.n_cached_tokens < args.prompt - 32):
            raise RuntimeError(f"{found.n_cached_tokens} tokens from the cache, tokens {found.tokens}")
        return seconds

    begun = time.perf_counter()
    for model in models:
        model.core.digest()
    identified = time.perf_counter() - begun
    cache = specdec.PromptCache(1 << 33, folder / "prompts")
    begun = time.perf_counter()
    wanted = specdec.generate(target, draft, ids, prompt_cache=cache, **options).tokens
    cold = [time.perf_counter() - begun]
    begun = time.perf_counter()
    cache.flush()
    written = time.perf_counter() - begun
    files = list((folder / "prompts").glob("*/*"))
    cold += [first_token(None) for _ in range(args.repeats - 1)]
    in_memory = [first_token(cache) for _ in range(args.repeats)]
    from_files = [first_token(specdec.PromptCache(1 << 33, folder / "prompts")) for _ in range(args.repeats)]
    from_disk = []
    for _ in range(args.repeats):
        for path in files:
            _drop_from_page_cache(path)
        from_disk.append(first_token(specdec.PromptCache(1 << 33, folder / "prompts")))
    n_bytes = sum(path.stat().st_size for path in files)
    seconds = [Spread.of(times) for times in (cold, in_memory, from_files, from_disk)]
    gain = median(cold) / median(from_disk)
    return [
        names[0],
        names[-1] if draft else "none",
        dtype,
        *seconds,
        gain,
        written,
        n_bytes / 1e6,
        identified,
    ]


def _drop_from_page_cache(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
