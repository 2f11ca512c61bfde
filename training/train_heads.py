"""Train the decoding heads of the embedded target; resumable, on a CPU.

    python training/sample_target.py
    python training/train_heads.py

Hydra heads with the target's output matrix. Each head reads the input of the target's head and the embeddings
of the root and earlier draft tokens, and learns the target's distribution at its offset: first by the
Kullback-Leibler divergence, then by the total variation distance, as in train_draft.py. The target runs once
over the text, and its hidden states are stored. Half of the text is from novels, half from the target.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from numpy.lib.format import open_memmap
from torch import Tensor
from tqdm import tqdm

import loop
import specdec
from specdec import _core
from specdec.drafts.learned.folder import LearnedWeights
from specdec.drafts.learned.heads.network import HeadsNetwork, HeadsShape
from specdec.drafts.learned.networks import TargetEnds
from train_draft import RAMP, VARIATION_SCALE

SEED = 0
CONTEXT = 512
TOKENS_PER_STEP = 4096
DECAY = 0.8  # weight of a head's loss relative to the previous head's (Medusa)
HELD_OUT = 32  # windows of the held-out novels


def hidden_states(target: specdec.Model, rows: np.ndarray, path: Path, n_threads: int) -> np.ndarray:
    """Return the inputs of the target's head for windows [n, CONTEXT], stored in a file as float16."""
    if not path.exists():
        layer = target.config.n_layer + 1
        part = path.with_suffix(".part.npy")
        found = open_memmap(part, "w+", np.float16, (*rows.shape, target.config.d_model))
        for row, states in zip(tqdm(rows, desc=path.stem, mininterval=10), found, strict=True):
            decoder = _core.Decoder(target.core, capacity=len(row), n_threads=n_threads, captures=[layer])
            decoder.prefill(row.astype(np.int32))
            states[:] = decoder.captured(layer)
        found.flush()
        part.replace(path)
    return np.load(path, mmap_mode="r")


def windows(ids: np.ndarray, starts: np.ndarray) -> np.ndarray:
    return np.stack([ids[start : start + CONTEXT] for start in starts])


@torch.no_grad()
def held_out_alphas(
    heads: HeadsNetwork, ids: np.ndarray, hidden: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return E[Σ min] of each head given the text before its token, and its share of equal argmaxes."""
    n_heads, alphas, equal = heads.shape.n_heads, [], []
    for row, states in zip(ids, hidden, strict=True):
        seen, x = torch.from_numpy(row.astype(np.int64)), torch.from_numpy(states.astype(np.float32))
        n = CONTEXT - n_heads
        with torch.autocast("cpu", torch.bfloat16):
            target = heads.ends.logits(x)
            drafts = [heads(x[:n], seen_by(seen, k, n), k) for k in range(1, n_heads + 1)]
        both = list(zip((target[k : k + n] for k in range(1, n_heads + 1)), drafts, strict=True))
        alphas.append([1 - loop.divergences(t, d)[1].item() for t, d in both])
        equal.append([(t.argmax(-1) == d.argmax(-1)).float().mean() for t, d in both])
    return np.mean(alphas, axis=0), np.mean(equal, axis=0)


def seen_by(ids: Tensor, k: int, n: int) -> Tensor:
    """Return the tokens [n, k] that head `k` reads: the root and the tokens after it."""
    return torch.stack([ids[1 + i : 1 + i + n] for i in range(k)], dim=-1)


def frequent(*texts: np.ndarray, n_vocab: int) -> np.ndarray:
    """Return all tokens, sorted by their total share in several texts, the largest first."""
    shares = sum(np.bincount(ids.ravel(), minlength=n_vocab) / ids.size for ids in texts)
    return np.argsort(-shares, kind="stable")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path(__file__).parent / "work")
    parser.add_argument("--target", type=Path, help="folder of the target (default: the embedded one)")
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--medusa", action="store_true", help="heads that do not read draft tokens")
    parser.add_argument("--tokens", type=int, default=1024, help="size of the draft's vocabulary")
    parser.add_argument("--windows", type=int, default=3500, help="windows of the novels")
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--checkpoint-every", type=int, default=50)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(SEED)

    target = specdec.load(args.target) if args.target else specdec.embedded_pair()[0]
    train, valid = (np.load(args.work / f"{s}.npy", mmap_mode="r") for s in ("train", "valid"))
    starts = np.random.default_rng(SEED).integers(0, len(train) - CONTEXT, args.windows)
    texts = {
        "novels": windows(train, starts),
        "samples": np.load(args.work / "samples.npy")[:, :CONTEXT],
        "held_out": windows(valid, np.linspace(0, len(valid) - CONTEXT - 1, HELD_OUT).astype(np.int64)),
    }
    hidden = {
        name: hidden_states(target, ids, args.work / f"hidden_{name}.npy", args.threads)
        for name, ids in texts.items()
    }
    shape = HeadsShape(target.config.d_model, target.config.n_vocab, args.heads, args.blocks, not args.medusa)
    heads = HeadsNetwork(shape, TargetEnds.of(target))
    ends = TargetEnds(heads.ends.table, heads.ends.head.bfloat16())  # converted once
    heads.ends = ends
    optimizers = loop.Optimizers(
        heads, 2 * args.learning_rate, args.learning_rate, is_table=lambda name: "input" in name
    )
    checkpoint = args.work / "heads.pt"
    start = loop.load_checkpoint(checkpoint, heads, optimizers)
    names = [f"alpha_{k}" for k in range(1, args.heads + 1)] + [
        f"equal_{k}" for k in range(1, args.heads + 1)
    ]
    curve = loop.LossCurve(args.work / "heads_loss.tsv", ("step", "tokens", "kl", *names, "seconds"), start)

    def losses(x: Tensor, ids: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of one window and the first head's divergence."""
        n = CONTEXT - args.heads
        with torch.no_grad():
            target_logits = ends.logits(x)
        total, first = torch.zeros(()), torch.zeros(())
        for k in range(1, args.heads + 1):
            logits = heads(x[:n], seen_by(ids, k, n), k)
            kl, variation = loop.divergences(target_logits[k : k + n], logits)
            total = total + DECAY ** (k - 1) * ((1 - weight) * kl + weight * VARIATION_SCALE * variation)
            first = kl if k == 1 else first
        return total, first.detach()

    compiled = torch.compile(losses, dynamic=False)
    begun, recent = time.perf_counter(), []
    for step in tqdm(range(start, args.steps), initial=start, total=args.steps, mininterval=10):
        progress = step / args.steps
        weight = torch.tensor(min(1.0, max(0.0, (progress - RAMP[0]) / (RAMP[1] - RAMP[0]))))
        n_windows = TOKENS_PER_STEP // CONTEXT
        for part, name in enumerate(("novels", "samples")):
            rng = np.random.default_rng((SEED, step, part))
            for row in rng.integers(0, len(texts[name]), n_windows // 2):
                x = torch.from_numpy(hidden[name][row].astype(np.float32))
                ids = torch.from_numpy(texts[name][row].astype(np.int64))
                with torch.autocast("cpu", torch.bfloat16):
                    loss, kl = compiled(x, ids, weight)
                (loss / n_windows).backward()
                recent.append(kl.item())
        loop.clip_gradients(heads)
        optimizers.step(loop.learning_rate_factor(step, args.steps))
        if (step + 1) % args.checkpoint_every == 0:
            alphas, equal = held_out_alphas(heads, texts["held_out"], hidden["held_out"])
            seconds = time.perf_counter() - begun
            curve.add(step, (step + 1) * TOKENS_PER_STEP, float(np.mean(recent)), *alphas, *equal, seconds)
            recent.clear()
            loop.save_checkpoint(checkpoint, heads, optimizers, step + 1)
    tensors = {name: tensor.float().numpy() for name, tensor in heads.state_dict().items()}
    layer = target.config.n_layer + 1
    tokens = frequent(texts["novels"], texts["samples"], n_vocab=shape.n_vocab)[: args.tokens]
    weights = LearnedWeights.of(
        "heads", target, shape.fields(), tensors, captures=[layer],
        tokens=None if len(tokens) == shape.n_vocab else np.sort(tokens),
    )  # fmt: skip
    weights.save(args.work / "heads")
    alphas, equal = held_out_alphas(heads, texts["held_out"], hidden["held_out"])
    print(f"held-out novels: alpha of each head {alphas.round(3)}, equal argmax {equal.round(3)}")


if __name__ == "__main__":
    main()
