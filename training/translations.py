"""Translations by a trained translator, for a draft to learn from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm
from transformers import T5ForConditionalGeneration

from specdec.atomic_file import replacing
from translator import END, LONGEST, PAD, Ids, padded

SEED = 19031109
BATCH = 256


def written(
    target: T5ForConditionalGeneration, sources: Sequence[Ids], folder: Path, sampled: bool
) -> list[Ids]:
    """Translate each source, sampled at temperature 1 or greedily, with the end token.

    Translates in order of length, `BATCH` at a time, with one file per batch in `folder`, so an interrupted
    run continues. The folder belongs to one target and one list of sources.
    """
    folder.mkdir(parents=True, exist_ok=True)
    order = np.argsort([len(source) for source in sources], kind="stable")
    found: list[Ids] = [np.array([END], np.uint16)] * len(sources)
    for first in tqdm(range(0, len(order), BATCH), desc=folder.name, mininterval=10):
        rows, file = order[first : first + BATCH], folder / f"{first // BATCH:05}.npy"
        if not file.exists():
            translations = translate(target, [sources[i] for i in rows], sampled, (SEED + first) % 2**31)
            with replacing(file) as kept:
                np.save(kept, translations)
        for i, row in zip(rows, np.load(file), strict=True):
            found[i] = row[: np.flatnonzero(row == END)[0] + 1] if END in row else row
    return found


@torch.no_grad()
def translate(target: T5ForConditionalGeneration, sources: Sequence[Ids], sampled: bool, seed: int) -> Ids:
    """Return translations [n_sources, longest], padded with PAD."""
    torch.manual_seed(seed)
    x = padded(sources)
    mode: dict[str, Any] = {"do_sample": True, "top_k": 0} if sampled else {"do_sample": False}
    with torch.autocast("cpu", torch.bfloat16):
        ids = target.generate(input_ids=x, attention_mask=(x != PAD).long(), max_new_tokens=LONGEST, **mode)
    return ids[:, 1:].numpy().astype(np.uint16)
