"""The translators in PyTorch: T5 v1.1 in three sizes, batches of pairs, Hugging Face folders.

The network is transformers' `T5ForConditionalGeneration`.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import sentencepiece
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from transformers import T5Config, T5ForConditionalGeneration

from pairs import Pair

PAD, END = 0, 1  # as in T5; a translation begins with PAD
LONGEST = 64  # longest sentence in tokens, with its end

Ids = NDArray[np.uint16]


@dataclass(frozen=True)
class Shape:
    """Dimensions of a translator; encoder and decoder have n_layer layers each."""

    d_model: int
    d_ff: int
    n_layer: int
    n_head: int
    d_head: int


SHAPES = {
    "target": Shape(d_model=384, d_ff=1024, n_layer=4, n_head=6, d_head=64),
    "small": Shape(d_model=96, d_ff=256, n_layer=1, n_head=3, d_head=32),
    "tiny": Shape(d_model=32, d_ff=64, n_layer=1, n_head=2, d_head=16),
}
"""The target, and drafts with about 5 % and 1 % of its parameters."""


def build(shape: Shape, n_vocab: int, dropout: float = 0.0) -> T5ForConditionalGeneration:
    """Make a translator with random weights, for Muon and AdamW at one learning rate."""
    config = T5Config(
        vocab_size=n_vocab, d_model=shape.d_model, d_ff=shape.d_ff, d_kv=shape.d_head,
        num_layers=shape.n_layer, num_decoder_layers=shape.n_layer, num_heads=shape.n_head,
        feed_forward_proj="gated-gelu", tie_word_embeddings=False, dropout_rate=dropout,
        pad_token_id=PAD, eos_token_id=END, decoder_start_token_id=PAD,
    )  # fmt: skip
    model = T5ForConditionalGeneration(config)
    # T5 v1.1 has an untied head; transformers ties it in any case.
    model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.shared.weight))
    for name, weight in model.named_parameters():
        if weight.dim() < 2:
            continue
        if name.endswith((".o.weight", ".wo.weight", "relative_attention_bias.weight")):
            torch.nn.init.zeros_(weight)
        elif name.endswith(".q.weight"):  # scores are not divided by the root of d_head
            torch.nn.init.normal_(weight, std=(shape.d_model * shape.d_head) ** -0.5)
        elif is_table(name):
            torch.nn.init.normal_(weight, std=0.02)
        else:
            torch.nn.init.normal_(weight, std=shape.d_model**-0.5 / 2)
    return model


def is_table(name: str) -> bool:
    """Return whether a parameter has a row per token or distance; AdamW trains these, Muon the matrices."""
    return name in ("shared.weight", "lm_head.weight") or "relative_attention_bias" in name


def save_folder(model: T5ForConditionalGeneration, folder: Path, tokenizer: Path) -> None:
    """Write weights in bf16, configuration and tokenizer, for transformers and `specdec.load`."""
    copy.deepcopy(model).bfloat16().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    # transformers writes True for every T5; its older versions and other readers would tie the head.
    config["tie_word_embeddings"] = False
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for file in tokenizer.iterdir():
        shutil.copyfile(file, folder / file.name)


def load_folder(folder: Path) -> T5ForConditionalGeneration:
    """Load a folder that `save_folder` wrote, in f32."""
    return T5ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)


def encode(tokenizer: Path, pairs: Sequence[Pair]) -> tuple[list[Ids], list[Ids]]:
    """Return ids of sources and translations, each with its end token; drop pairs that are too long."""
    model = sentencepiece.SentencePieceProcessor(str(tokenizer / "spiece.model"))
    sides = [model.encode([pair[side] for pair in pairs], add_eos=True) for side in (0, 1)]
    kept = [
        (source, target)
        for source, target in zip(*sides, strict=True)
        if max(len(source), len(target)) <= LONGEST
    ]
    return [np.array(pair[0], np.uint16) for pair in kept], [np.array(pair[1], np.uint16) for pair in kept]


def n_vocab(tokenizer: Path) -> int:
    return sentencepiece.SentencePieceProcessor(str(tokenizer / "spiece.model")).get_piece_size()


def batches(
    sources: Sequence[Ids], targets: Sequence[Ids], size: int, seed: int, steps: range
) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield (step, indices): `size` pairs of about the same lengths.

    Each epoch is shuffled, and every 64 batches of it are sorted by the lengths of target and source. The
    generator is keyed by (seed, epoch), so a resumed run sees the same batches.
    """
    per_epoch = len(targets) // size
    if per_epoch == 0:
        raise SystemExit(f"{len(targets)} pairs are less than a batch of {size}")
    lengths = np.array([[len(row) for row in side] for side in (sources, targets)])  # lexsort: last key first
    for epoch in range(steps.start // per_epoch, -(-steps.stop // per_epoch)):
        rng = np.random.default_rng((seed, epoch))
        order = rng.permutation(len(targets))[: per_epoch * size]
        pools = [order[i : i + 64 * size] for i in range(0, len(order), 64 * size)]
        order = np.concatenate([pool[np.lexsort(lengths[:, pool])] for pool in pools])
        for step, index in enumerate(rng.permutation(per_epoch), epoch * per_epoch):
            if step in steps:
                yield step, order[index * size : (index + 1) * size]


def padded(rows: Sequence[Ids], multiple: int = 4) -> Tensor:
    """Pad rows with PAD to [n_rows, longest] int64, rounded up to few lengths to reuse memory."""
    longest = -(-max(map(len, rows)) // multiple) * multiple
    ids = np.full((len(rows), longest), PAD, np.int64)
    for row, filled in zip(rows, ids, strict=True):
        filled[: len(row)] = row
    return torch.from_numpy(ids)


def logits(model: T5ForConditionalGeneration, sources: Tensor, targets: Tensor) -> Tensor:
    """Return logits [n_rows, length, n_vocab] of every target token, padding included."""
    before = F.pad(targets[:, :-1], (1, 0), value=PAD)
    mask = sources != PAD
    encoded = model.encoder(input_ids=sources, attention_mask=mask).last_hidden_state
    # The decoder needs only the causal mask, as padding comes last.
    hidden = model.decoder(
        input_ids=before, encoder_hidden_states=encoded, encoder_attention_mask=mask, use_cache=False
    ).last_hidden_state
    return model.lm_head(hidden)


def cross_entropy(model: T5ForConditionalGeneration, sources: Tensor, targets: Tensor) -> Tensor:
    """Return the mean −ln p of the target tokens."""
    found = logits(model, sources, targets).float()
    return F.cross_entropy(found.flatten(0, 1), targets.flatten(), ignore_index=PAD)


@torch.no_grad()
def held_out_loss(
    model: T5ForConditionalGeneration, sources: Sequence[Ids], targets: Sequence[Ids], size: int = 128
) -> float:
    """Return the mean −ln p of the translations' tokens, without dropout."""
    training, total, n_tokens = model.training, 0.0, 0
    model.eval()
    order = np.argsort([len(target) for target in targets], kind="stable")
    for first in range(0, len(order), size):
        rows = order[first : first + size]
        x, y = (padded([side[i] for i in rows]) for side in (sources, targets))
        n = int((y != PAD).sum())
        with torch.autocast("cpu", torch.bfloat16):
            total += cross_entropy(model, x, y).item() * n
        n_tokens += n
    model.train(training)
    return total / n_tokens
