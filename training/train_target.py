"""Train the target of the embedded pair: one command, resumable, on a CPU.

python training/corpus.py novels.tar.xz
python training/train_target.py
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

import loop
from network import TARGET, Decoder, save_folder

SEED = 20230505
TOKENS_PER_STEP = 8192
TOKENS_PER_PASS = 2048  # gradients are summed over passes that stay near the caches
MATRIX_LR, OTHER_LR = 3e-3, 3e-3
# Short windows are cheaper; the last quarter of the steps teaches the whole context.
SHORT_CONTEXT, LONG_FRACTION = 256, 0.25


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path(__file__).parent / "work")
    parser.add_argument("--steps", type=int, default=2200)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--checkpoint-every", type=int, default=50)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(SEED)

    train, valid = (np.load(args.work / f"{s}.npy", mmap_mode="r") for s in ("train", "valid"))
    model = Decoder(TARGET)
    optimizers = loop.Optimizers(model, MATRIX_LR, OTHER_LR)
    checkpoint = args.work / "target.pt"
    start = loop.load_checkpoint(checkpoint, model, optimizers)
    curve = loop.LossCurve(
        args.work / "target_loss.tsv", ("step", "tokens", "train", "valid", "seconds"), start
    )
    # The loss is compiled with the model: the logits of a step are larger than the caches.
    compiled = torch.compile(lambda x, y: loop.cross_entropy(model(x), y), dynamic=False)

    def context_at(step: int) -> int:
        return TARGET.n_ctx if step >= (1 - LONG_FRACTION) * args.steps else SHORT_CONTEXT

    begun, recent = time.perf_counter(), []
    stream = loop.batches(train, TOKENS_PER_STEP, SEED, start, context_at)
    for step, inputs, targets in tqdm(stream, initial=start, total=args.steps, mininterval=10):
        if step >= args.steps:
            break
        parts = TOKENS_PER_STEP // TOKENS_PER_PASS
        for x, y in zip(inputs.chunk(parts), targets.chunk(parts), strict=True):
            with torch.autocast("cpu", torch.bfloat16):
                loss = compiled(x, y) / parts
            loss.backward()
            recent.append(loss.item() * parts)
        loop.clip_gradients(model)
        optimizers.step(loop.learning_rate_factor(step, args.steps))
        if (step + 1) % args.checkpoint_every == 0:
            valid_loss = loop.validation_loss(model, valid, SHORT_CONTEXT, 32)
            seconds = time.perf_counter() - begun
            curve.add(step, (step + 1) * TOKENS_PER_STEP, float(np.mean(recent)), valid_loss, seconds)
            recent.clear()
            loop.save_checkpoint(checkpoint, model, optimizers, step + 1)
    loop.save_checkpoint(checkpoint, model, optimizers, args.steps)
    save_folder(model, args.work / "target", args.work / "tokenizer.json")
    loss = loop.validation_loss(model, valid, TARGET.n_ctx, 256)
    print(f"held-out novels: {loss:.4f} nats a token, perplexity {np.exp(loss):.2f}")


if __name__ == "__main__":
    main()
