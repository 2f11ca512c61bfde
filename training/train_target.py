"""Train the target of the embedded pair; resumable, on a GPU or CPU.

    python training/corpus.py novels.tar.xz
    python training/train_target.py

After a share `QUANTIZED` of the steps each forward pass rounds the matrices to the int4 grid. So the weights
end on the grid, and one file of codes is the exact model in every number format.
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
TOKENS_PER_STEP = 131072
QUANTIZED = 0.55


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path(__file__).parent / "work")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--steps", type=int, default=1670)
    parser.add_argument("--tokens-per-pass", type=int, default=65536, help="gradients are summed over passes")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--checkpoint-every", type=int, default=25)
    args = parser.parse_args()
    torch.manual_seed(SEED)

    train, valid = (np.load(args.work / f"{s}.npy", mmap_mode="r") for s in ("train", "valid"))
    model = Decoder(TARGET).to(args.device)
    optimizers = loop.Optimizers(model, args.learning_rate, args.learning_rate)
    checkpoint = args.work / "target.pt"
    start = loop.load_checkpoint(checkpoint, model, optimizers)
    curve = loop.LossCurve(
        args.work / "target_loss.tsv", ("step", "tokens", "train", "valid", "seconds"), start
    )
    compiled = torch.compile(lambda x, y: loop.cross_entropy(model(x), y), dynamic=False)

    begun, recent = time.perf_counter(), []
    stream = loop.batches(train, TOKENS_PER_STEP, SEED, range(start, args.steps), TARGET.n_ctx)
    for step, inputs, targets in tqdm(stream, initial=start, total=args.steps, mininterval=10):
        if step >= QUANTIZED * args.steps and not model.embed.quantized:
            model.quantize()
        parts = TOKENS_PER_STEP // args.tokens_per_pass
        for x, y in zip(inputs.chunk(parts), targets.chunk(parts), strict=True):
            with torch.autocast(args.device, torch.bfloat16):
                loss = compiled(x.to(args.device), y.to(args.device)) / parts
            loss.backward()
            recent.append(loss.item() * parts)
        loop.clip_gradients(model)
        optimizers.step(loop.learning_rate_factor(step, args.steps))
        if (step + 1) % args.checkpoint_every == 0:
            valid_loss = loop.validation_loss(model, valid, TARGET.n_ctx, 32)
            seconds = time.perf_counter() - begun
            curve.add(step, (step + 1) * TOKENS_PER_STEP, float(np.mean(recent)), valid_loss, seconds)
            recent.clear()
            loop.save_checkpoint(checkpoint, model, optimizers, step + 1)
    loop.save_checkpoint(checkpoint, model, optimizers, args.steps)
    model.quantize()
    save_folder(model, args.work / "target", args.work / "tokenizer.json")
    loss = loop.validation_loss(model, valid, TARGET.n_ctx, 256)
    print(f"held-out novels: {loss:.4f} nats a token, perplexity {np.exp(loss):.2f}")


if __name__ == "__main__":
    main()
