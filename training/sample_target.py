"""Generate text of the trained target, for the draft to learn from.

    python training/sample_target.py

A draft learns most from text of the distribution it will draft for (DistillSpec, Zhou et al. 2023). Half of
the sequences are sampled at temperature 1, a quarter at 0.6, a quarter greedily (repetitive greedy text
teaches less). Each begins with a few tokens of a training novel and fills the context. specdec generates them
in batches, one file each, so an interrupted run continues.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from tqdm import tqdm

import specdec

SEED = 19181111
LENGTH = 1024  # the whole context
PROMPT_LENGTHS = (4, 32)
BATCH = 64
TEMPERATURES = (1.0, 0.6, 1.0, 0.0)  # of successive batches


def write_batch(target: specdec.Model, train: np.ndarray, batch: int, n_threads: int) -> np.ndarray:
    """Generate a batch [BATCH, LENGTH] uint16, depending only on its number."""
    rng = np.random.default_rng((SEED, batch))
    n_prompt = int(rng.integers(*PROMPT_LENGTHS))  # one length per batch, so its sequences end together
    starts = rng.integers(0, len(train) - n_prompt, BATCH)
    prompts = [train[start : start + n_prompt].tolist() for start in starts]
    results = specdec.generate(
        target, None, prompts, max_new_tokens=LENGTH - n_prompt, batch_size=BATCH,
        temperature=TEMPERATURES[batch % len(TEMPERATURES)],
        seed=[(SEED, batch * BATCH + i) for i in range(BATCH)], ignore_eos=True, n_threads=n_threads,
    )  # fmt: skip
    return np.array([prompt + r.tokens for prompt, r in zip(prompts, results, strict=True)], np.uint16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path(__file__).parent / "work")
    parser.add_argument("--target", type=Path, help="folder of the target (default: target in --work)")
    parser.add_argument("--sequences", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    target = specdec.load(args.target or args.work / "target")
    train = np.load(args.work / "train.npy", mmap_mode="r")
    folder = args.work / "samples"
    folder.mkdir(exist_ok=True)
    files = [folder / f"{batch:05}.npy" for batch in range(-(-args.sequences // BATCH))]
    for batch, file in enumerate(tqdm(files)):
        if not file.exists():
            np.save(file.with_suffix(".part.npy"), write_batch(target, train, batch, args.threads))
            file.with_suffix(".part.npy").replace(file)
    np.save(args.work / "samples.npy", np.concatenate([np.load(file) for file in files])[: args.sequences])


if __name__ == "__main__":
    main()
