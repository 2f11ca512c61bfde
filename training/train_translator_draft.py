"""Distill a draft of the translators from the trained target; resumable, on a CPU.

    python training/train_translator.py
    python training/train_translator_draft.py small
    python training/train_translator_draft.py tiny

The target first translates the training sources, greedily and at temperature 1 (stored in `translations/`,
for both drafts). Then the draft learns the target's complete distribution after every token of these and of
the collection's translations: first by the Kullback-Leibler divergence, then by the total variation distance
(one minus the acceptance rate), as in `train_draft.py`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn
from tqdm import tqdm
from transformers import T5ForConditionalGeneration

import loop
import translator
from pairs import WORK, read_pairs
from translations import written
from translator import Ids

SEED = 20160816
PAIRS_PER_STEP = 256
# See train_draft.py.
RAMP = (0.5, 0.7)
VARIATION_SCALE = 4.0


@torch.no_grad()
def held_out_rates(
    target: T5ForConditionalGeneration, draft: T5ForConditionalGeneration, sources: Sequence[Ids],
    translations: Sequence[Ids], size: int = 128,
) -> tuple[float, float]:  # fmt: skip
    """Return the acceptance rate E[Σ min] on translations, and the share of equal argmaxes."""
    overlap, equal, n_tokens = 0.0, 0.0, 0
    for first in range(0, len(sources), size):
        x, y = (translator.padded(side[first : first + size]) for side in (sources, translations))
        with torch.autocast("cpu", torch.bfloat16):
            t, d = (translator.logits(model, x, y)[y != translator.PAD] for model in (target, draft))
        overlap += (1 - loop.divergences(t, d)[1].item()) * len(t)
        equal += (t.argmax(-1) == d.argmax(-1)).sum().item()
        n_tokens += len(t)
    return overlap / n_tokens, equal / n_tokens


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("draft", choices=[name for name in translator.SHAPES if name != "target"])
    parser.add_argument("--work", type=Path, default=WORK)
    parser.add_argument("--sources", type=int, help="number of sources to translate; default: all")
    parser.add_argument("--learning-rate", type=float, default=6e-3)
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--pairs-per-step", type=int, default=PAIRS_PER_STEP)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--checkpoint-every", type=int, default=50)
    args = parser.parse_args(words)
    torch.set_num_threads(args.threads)

    tokenizer = args.work / "tokenizer"
    target = translator.load_folder(args.work / "target").eval()  # rounded to bf16, as shipped
    target.requires_grad_(False)
    for module in target.modules():
        if isinstance(module, nn.Linear):
            module.bfloat16()  # converted once, without loss
    sources, references = translator.encode(tokenizer, read_pairs(args.work / "train.tsv"))
    sources, references = sources[: args.sources], references[: args.sources]
    valid, _ = translator.encode(tokenizer, read_pairs(args.work / "valid.tsv"))
    folder = args.work / "translations"
    greedy, sampled = (
        written(target, sources, folder / mode, mode == "sampled") for mode in ("greedy", "sampled")
    )
    valid_greedy, valid_sampled = (
        written(target, valid, folder / f"valid-{mode}", mode == "sampled") for mode in ("greedy", "sampled")
    )
    sources, translations = sources * 3, references + greedy + sampled

    torch.manual_seed(SEED)
    draft = translator.build(translator.SHAPES[args.draft], target.config.vocab_size)
    optimizers = loop.Optimizers(draft, args.learning_rate, args.learning_rate, translator.is_table)
    checkpoint = args.work / f"{args.draft}.pt"
    start = loop.load_checkpoint(checkpoint, draft, optimizers)
    columns = ("step", "pairs", "kl", "variation", "valid_alpha", "valid_argmax_equal", "seconds")
    curve = loop.LossCurve(args.work / f"{args.draft}_loss.tsv", columns, start)
    n_parameters, n_of_target = (sum(p.numel() for p in model.parameters()) for model in (draft, target))
    print(f"{n_parameters / 1e6:.2f} M parameters, {n_parameters / n_of_target:.2%} of the target's")

    begun, recent = time.perf_counter(), []
    stream = translator.batches(sources, translations, args.pairs_per_step, SEED, range(start, args.steps))
    for step, rows in tqdm(stream, initial=start, total=args.steps, mininterval=10):
        weight = min(1.0, max(0.0, (step / args.steps - RAMP[0]) / (RAMP[1] - RAMP[0])))
        x, y = (translator.padded([side[i] for i in rows]) for side in (sources, translations))
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                taught = translator.logits(target, x, y)[y != translator.PAD]
            learned = translator.logits(draft, x, y)[y != translator.PAD]
        kl, variation = loop.divergences(taught, learned)
        ((1 - weight) * kl + weight * VARIATION_SCALE * variation).backward()
        recent.append((kl.item(), variation.item()))
        loop.clip_gradients(draft)
        optimizers.step(loop.learning_rate_factor(step, args.steps))
        if (step + 1) % args.checkpoint_every == 0:
            alpha, _ = held_out_rates(target, draft, valid, valid_sampled)
            _, equal = held_out_rates(target, draft, valid, valid_greedy)
            means, seconds = np.mean(recent, axis=0).tolist(), time.perf_counter() - begun
            curve.add(step, (step + 1) * args.pairs_per_step, *means, alpha, equal, seconds)
            recent.clear()
            loop.save_checkpoint(checkpoint, draft, optimizers, step + 1)
    loop.save_checkpoint(checkpoint, draft, optimizers, args.steps)
    translator.save_folder(draft, args.work / args.draft, tokenizer)
    alpha, _ = held_out_rates(target, draft, valid, valid_sampled)
    _, equal = held_out_rates(target, draft, valid, valid_greedy)
    print(f"on held-out sources: alpha {alpha:.3f} at temperature 1, equal argmax {equal:.3f} of greedy text")


if __name__ == "__main__":
    main()
