"""Train a LoRA adapter of the embedded target on other text, for benchmarks of adapters, on a CPU.

    python training/train_adapter.py text.txt --work training/work/adapters/NAME

Trains PEFT's LoRA (pip install peft) on all matrices of the layers with the first nine tenths of the text.
The work folder holds the adapter, for `specdec.Model.with_adapter`, the last tenth as `held_out.txt`, and the
loss curve.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import peft
import torch
import transformers
from torch import Tensor, nn

import loop
import specdec

SEED = 20261123
TOKENS_PER_STEP = 2048
CONTEXT = 256
HELD_OUT = 0.1


class Logits(nn.Module):
    """A transformers decoder that returns only logits."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, ids: Tensor) -> Tensor:
        return self.network(input_ids=ids, use_cache=False).logits


def train(model: Logits, ids: np.ndarray, held_out: np.ndarray, args: argparse.Namespace) -> None:
    """Train the trainable parameters on `ids`; evaluate on `held_out`."""
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=args.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    curve = loop.LossCurve(args.work / "loss.tsv", ("step", "tokens", "seconds", "held_out"), 0)
    begun = time.monotonic()

    def evaluate(step: int) -> None:
        loss = loop.validation_loss(model, held_out, CONTEXT, 16)
        curve.add(step, step * TOKENS_PER_STEP, time.monotonic() - begun, loss)
        print(f"step {step}: {loss:.3f} nats a token of the held-out text", flush=True)

    for step, x, y in loop.batches(ids, TOKENS_PER_STEP, SEED, range(args.steps), CONTEXT):
        if step % args.every == 0:
            evaluate(step)
        with torch.autocast("cpu", torch.bfloat16):
            loss = loop.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(learning, loop.GRADIENT_CLIP)
        for group in optimizer.param_groups:
            group["lr"] = args.learning_rate * loop.learning_rate_factor(step, args.steps)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    evaluate(args.steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", type=Path, nargs="+", help="text files, concatenated")
    parser.add_argument("--work", type=Path, required=True, metavar="FOLDER", help="folder of the adapter")
    parser.add_argument("--target", type=Path, help="folder of the model; default: the embedded target")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--alpha", type=float, default=32.0)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--every", type=int, default=25, help="steps between evaluations")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(SEED)
    args.work.mkdir(parents=True, exist_ok=True)
    if args.target is None:  # dequantized, as transformers does not read folders of codes
        args.target = args.work / "target"
        specdec.convert(specdec.embedded_pair()[0].path, args.target, "BF16", force=True)
    text = "".join(path.read_text(encoding="utf-8") for path in args.texts)
    cut = int((1 - HELD_OUT) * len(text))
    tokenizer = specdec.load(args.target).tokenizer
    ids, held_out = (
        np.array(tokenizer.encode(part, add_bos=False), np.int32) for part in (text[:cut], text[cut:])
    )
    print(f"{len(ids)} tokens, {len(held_out)} held out")
    network = transformers.AutoModelForCausalLM.from_pretrained(args.target, dtype=torch.float32)
    config = peft.LoraConfig(
        r=args.rank, lora_alpha=args.alpha, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    adapted = peft.get_peft_model(network, config)
    train(Logits(adapted), ids, held_out, args)
    adapted.save_pretrained(args.work, save_embedding_layers=False)
    (args.work / "held_out.txt").write_text(text[cut:], encoding="utf-8")


if __name__ == "__main__":
    main()
