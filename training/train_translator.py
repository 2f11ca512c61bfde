"""Train the target of the translators from sentence pairs; resumable, on a CPU.

    python training/pairs.py enja.tar.xz
    python training/train_translator.py

The default number of steps is 31 epochs; with both drafts it takes a day on two cores. While the learning
rate is constant, up to 0.6 of the steps, a resumed run may change the number of steps.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

import loop
import translator
from pairs import WORK, read_pairs

SEED = 20200710
PAIRS_PER_STEP = 256


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=WORK)
    parser.add_argument("--shape", choices=translator.SHAPES, default="target")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--dropout", type=float, default=0.1, help="use 0 for few steps")
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--pairs-per-step", type=int, default=PAIRS_PER_STEP)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--checkpoint-every", type=int, default=50)
    args = parser.parse_args(words)
    torch.set_num_threads(args.threads)
    torch.manual_seed(SEED)

    tokenizer = args.work / "tokenizer"
    sources, targets = translator.encode(tokenizer, read_pairs(args.work / "train.tsv"))
    held_out = translator.encode(tokenizer, read_pairs(args.work / "valid.tsv"))
    model = translator.build(translator.SHAPES[args.shape], translator.n_vocab(tokenizer), args.dropout)
    optimizers = loop.Optimizers(model, args.learning_rate, args.learning_rate, translator.is_table)
    checkpoint = args.work / "target.pt"
    start = loop.load_checkpoint(checkpoint, model, optimizers)
    curve = loop.LossCurve(
        args.work / "target_loss.tsv", ("step", "pairs", "train", "valid", "seconds"), start
    )
    model.train()
    n_parameters = sum(weight.numel() for weight in model.parameters())
    print(f"{n_parameters / 1e6:.2f} M parameters, {len(sources):,} pairs")

    begun, recent = time.perf_counter(), []
    stream = translator.batches(sources, targets, args.pairs_per_step, SEED, range(start, args.steps))
    for step, rows in tqdm(stream, initial=start, total=args.steps, mininterval=10):
        torch.manual_seed(SEED + step)  # for dropout, equal in a resumed run
        x, y = (translator.padded([side[i] for i in rows]) for side in (sources, targets))
        with torch.autocast("cpu", torch.bfloat16):
            loss = translator.cross_entropy(model, x, y)
        loss.backward()
        recent.append(loss.item())
        loop.clip_gradients(model)
        optimizers.step(loop.learning_rate_factor(step, args.steps))
        if (step + 1) % args.checkpoint_every == 0:
            valid, seconds = translator.held_out_loss(model, *held_out), time.perf_counter() - begun
            curve.add(step, (step + 1) * args.pairs_per_step, float(np.mean(recent)), valid, seconds)
            recent.clear()
            loop.save_checkpoint(checkpoint, model, optimizers, step + 1)
    loop.save_checkpoint(checkpoint, model, optimizers, args.steps)
    translator.save_folder(model, args.work / "target", tokenizer)
    loss = translator.held_out_loss(model, *held_out)
    print(f"held-out pairs: {loss:.4f} nats a token, perplexity {np.exp(loss):.2f}")


if __name__ == "__main__":
    main()
