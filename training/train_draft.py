"""Distill the draft of the embedded pair from the trained target; resumable, on a GPU or CPU.

    python training/train_draft.py
    python training/train_draft.py --samples    # half of the text is from sample_target.py

The draft learns the target's complete distribution after every token: first by the Kullback-Leibler
divergence, then by the total variation distance, 1 − β of Theorem 3.5 (Leviathan et al. 2023). The second
phase maximizes the acceptance rate directly, as their section 5 proposes and DistillSpec (Zhou et al. 2023)
does. With --samples half of the text is the target's own, as when drafting.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

import loop
from network import DRAFT, TARGET, Decoder, load_folder, save_folder

SEED = 20221130
TOKENS_PER_STEP = 65536
CONTEXT = 1024
RAMP = (0.4, 0.6)  # share of the steps that moves from Kullback-Leibler to total variation
VARIATION_SCALE = 4.0  # makes the gradients about equal, as total variation is at most 1


@torch.no_grad()
def held_out_alpha(target: Decoder, draft: Decoder, ids: np.ndarray) -> tuple[float, float]:
    """Return the acceptance rate E[Σ min] on held-out text, and the share of equal argmaxes."""
    starts = np.linspace(0, len(ids) - CONTEXT - 1, 32).astype(np.int64)
    rows = torch.from_numpy(np.stack([ids[s : s + CONTEXT].astype(np.int64) for s in starts]))
    alphas, equal = [], []
    for chunk in rows.chunk(4):
        chunk = chunk.to(target.embed.weight.device)
        with torch.autocast(chunk.device.type, torch.bfloat16):
            t, d = target(chunk), draft(chunk)
        alphas.append(1 - loop.divergences(t, d)[1].item())
        equal.append((t.argmax(-1) == d.argmax(-1)).float().mean().item())
    return float(np.mean(alphas)), float(np.mean(equal))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path(__file__).parent / "work")
    parser.add_argument("--target", type=Path, help="folder of the target (default: target in --work)")
    parser.add_argument("--samples", action="store_true", help="use the target's own text for half")
    parser.add_argument("--begin", type=Path, help="folder of initial weights")
    parser.add_argument("--learning-rate", type=float, default=4e-3)
    parser.add_argument("--steps", type=int, default=3450)
    parser.add_argument("--tokens-per-pass", type=int, default=65536)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--checkpoint-every", type=int, default=50)
    args = parser.parse_args()
    torch.manual_seed(SEED)

    samples = np.load(args.work / "samples.npy") if args.samples else None
    train, valid = (np.load(args.work / f"{s}.npy", mmap_mode="r") for s in ("train", "valid"))
    target = Decoder(TARGET)
    load_folder(target, args.target or args.work / "target")  # the shipped weights
    target.requires_grad_(False).to(args.device)
    draft = Decoder(DRAFT).to(args.device)
    if args.begin is not None:
        load_folder(draft, args.begin)
    optimizers = loop.Optimizers(draft, args.learning_rate, args.learning_rate)
    checkpoint = args.work / "draft.pt"
    start = loop.load_checkpoint(checkpoint, draft, optimizers)
    curve = loop.LossCurve(
        args.work / "draft_loss.tsv",
        ("step", "tokens", "kl", "variation", "valid_alpha", "valid_argmax_equal", "seconds"),
        start,
    )

    def losses(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        kl, variation = loop.divergences(target(x), draft(x))
        return (1 - weight) * kl + weight * VARIATION_SCALE * variation, kl, variation

    compiled = torch.compile(losses, dynamic=False)
    begun, recent = time.perf_counter(), []
    n_novels = TOKENS_PER_STEP // (1 if samples is None else 2)
    stream = loop.batches(train, n_novels, SEED, range(start, args.steps), CONTEXT)
    for step, novels, _ in tqdm(stream, initial=start, total=args.steps, mininterval=10):
        progress = step / args.steps
        weight = torch.tensor(min(1.0, max(0.0, (progress - RAMP[0]) / (RAMP[1] - RAMP[0]))))
        parts = TOKENS_PER_STEP // args.tokens_per_pass
        if samples is not None:
            rows = np.random.default_rng((SEED, step, 1)).integers(0, len(samples), len(novels))
            novels = torch.cat((novels, torch.from_numpy(samples[rows, :CONTEXT].astype(np.int64))))
        for x in novels.chunk(parts):
            with torch.autocast(args.device, torch.bfloat16):
                loss, kl, variation = compiled(x.to(args.device), weight.to(args.device))
            (loss / parts).backward()
            recent.append((kl.item(), variation.item()))
        loop.clip_gradients(draft)
        optimizers.step(loop.learning_rate_factor(step, args.steps))
        if (step + 1) % args.checkpoint_every == 0:
            alpha, equal = held_out_alpha(target, draft, valid)
            kl, variation = np.mean(recent, axis=0)
            seconds = time.perf_counter() - begun
            curve.add(step, (step + 1) * TOKENS_PER_STEP, float(kl), float(variation), alpha, equal, seconds)
            recent.clear()
            loop.save_checkpoint(checkpoint, draft, optimizers, step + 1)
    loop.save_checkpoint(checkpoint, draft, optimizers, args.steps)
    save_folder(draft, args.work / "draft", args.work / "tokenizer.json")
    loss = loop.validation_loss(draft, valid, DRAFT.n_ctx, 256)
    alpha, equal = held_out_alpha(target, draft, valid)
    print(f"held-out novels: {loss:.4f} nats a token, perplexity {np.exp(loss):.2f}")
    print(f"against the target: alpha {alpha:.3f} at temperature 1, equal argmax {equal:.3f}")


if __name__ == "__main__":
    main()
