"""Train drafts of the embedded target with other vocabularies, for benchmarks, on a CPU.

    python training/train_vocabularies.py novels.tar.xz --work training/work/vocabularies

For each overlap the script makes a byte-level BPE vocabulary of 8,192 tokens: the first merges of the
embedded pair's tokenizer, and then the most frequent merges with tokens that it lacks. Each draft starts from
the embedded draft's weights; the embedding of a new token is the mean over its tokens in the embedded
vocabulary. All drafts train on the same novels for the same number of tokens, including one with the embedded
vocabulary (overlap 100 %) as a baseline.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from heapq import heapify, heappop, heappush
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models

import loop
from corpus import HELD_OUT, VOCAB_SIZE, read_novels
from network import DRAFT, Decoder, load_folder, save_folder

SEED = 20250607
TOKENS_PER_STEP = 2048
CONTEXT = 256
EMBEDDED = Path(__file__).parents[1] / "python" / "specdec" / "embedded" / "draft"
Pair = tuple[str, str]


def words_of(tokenizer: Tokenizer, texts: list[str], n_most: int) -> list[tuple[str, int]]:
    """Return the most frequent words of texts, by the pre-tokenizer, and their counts."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text))
    return counts.most_common(n_most)


def merge(symbols: list[str], pair: Pair) -> list[str]:
    """Merge all occurrences of a pair in a word, from the left."""
    merged: list[str] = []
    for symbol in symbols:
        if merged and (merged[-1], symbol) == pair and not merged[-1].startswith("\0"):
            merged[-1] = "\0" + merged[-1] + symbol  # not merged again within this pass
        else:
            merged.append(symbol)
    return [symbol.removeprefix("\0") for symbol in merged]


def other_vocabulary(original: Tokenizer, texts: list[str], overlap: float) -> dict[str, Any]:
    """Return a tokenizer.json that shares the first `overlap` of the tokens of another one."""
    state = json.loads(original.to_str())
    known = state["model"]["vocab"]
    pairs: list[Pair] = [tuple(pair) for pair in state["model"]["merges"]]
    n_base = VOCAB_SIZE - len(pairs)
    kept = pairs[: max(0, round(overlap * VOCAB_SIZE) - n_base)]
    vocabulary = [token for token, i in sorted(known.items(), key=lambda item: item[1]) if i < n_base]
    vocabulary += [a + b for a, b in kept]
    begin = models.BPE({token: i for i, token in enumerate(vocabulary)}, kept)
    counted = words_of(original, texts, 20_000)
    words = [([token.value for token in begin.tokenize(word)], n) for word, n in counted]
    merges, taken = list(kept), set(vocabulary)
    where: defaultdict[Pair, set[int]] = defaultdict(set)
    counts: Counter[Pair] = Counter()
    for i, (word, n) in enumerate(words):
        for pair in pairwise(word):
            counts[pair] += n
            where[pair].add(i)
    heap = [(-n, pair) for pair, n in counts.items() if "".join(pair) not in known]
    heapify(heap)
    while len(vocabulary) < VOCAB_SIZE:
        n, best = heappop(heap)
        if -n != counts[best]:  # outdated
            if counts[best] > 0:
                heappush(heap, (-counts[best], best))
            continue
        if "".join(best) in taken:
            continue
        changed: set[Pair] = set()
        for i in list(where[best]):
            word, n = words[i]
            for pair in pairwise(word):
                counts[pair] -= n
            words[i] = (merge(word, best), n)
            for pair in pairwise(words[i][0]):
                counts[pair] += n
                where[pair].add(i)
                changed.add(pair)
        for pair in changed:
            if "".join(pair) not in known:
                heappush(heap, (-counts[pair], pair))
        merges.append(best)
        vocabulary.append("".join(best))
        taken.add(vocabulary[-1])
    state["model"]["vocab"] = {token: i for i, token in enumerate(vocabulary)}
    state["model"]["merges"] = [list(pair) for pair in merges]
    return state


def begun(original: Tokenizer, other: Tokenizer) -> Decoder:
    """Return the embedded draft with the embeddings of another vocabulary."""
    draft = Decoder(DRAFT)
    load_folder(draft, EMBEDDED)
    old, rows = draft.embed.weight.detach().clone(), []
    for token in range(other.get_vocab_size()):
        string = other.id_to_token(token)
        same = original.token_to_id(string)
        ids = [same] if same is not None else original.model.tokenize(string)
        ids = [piece if isinstance(piece, int) else piece.id for piece in ids]
        rows.append(old[ids].mean(0))
    draft.embed.weight.data = torch.stack(rows)
    return draft


def train(draft: Decoder, ids: np.ndarray, steps: int, learning_rate: float) -> None:
    """Train a draft on text."""
    optimizers = loop.Optimizers(draft, learning_rate, learning_rate)
    for step, x, y in loop.batches(ids, TOKENS_PER_STEP, SEED, range(steps), CONTEXT):
        with torch.autocast("cpu", torch.bfloat16):
            loss = loop.cross_entropy(draft(x), y)
        loss.backward()
        loop.clip_gradients(draft)
        optimizers.step(loop.learning_rate_factor(step, steps))
        if step % 20 == 0:
            print(f"step {step}: {loss.item():.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("archive", type=Path, help="novels.tar.xz")
    parser.add_argument("--work", type=Path, default=Path(__file__).parent / "work" / "vocabularies")
    parser.add_argument("--overlaps", type=float, nargs="+", default=[1.0, 0.9, 0.7, 0.3])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--characters", type=int, default=8_000_000, help="characters of the novels to use")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    original = Tokenizer.from_file(str(EMBEDDED / "tokenizer.json"))
    novels = read_novels(args.archive)
    text = "\n".join(text for name, text in novels.items() if name not in HELD_OUT)[: args.characters]
    for overlap in args.overlaps:
        folder = args.work / f"overlap{round(100 * overlap)}"
        folder.mkdir(parents=True, exist_ok=True)
        state = json.loads(original.to_str())
        if overlap < 1.0:
            state = other_vocabulary(original, [text], overlap)
        path = folder / "tokenizer.json.new"
        path.write_text(json.dumps(state))
        other = Tokenizer.from_file(str(path))
        ids = np.concatenate([np.array(e.ids, np.uint16) for e in other.encode_batch(text.split("\n"))])
        print(f"{folder.name}: {len(ids):,} tokens for {len(text):,} characters", flush=True)
        draft = begun(original, other)
        train(draft, ids, args.steps, args.learning_rate)
        save_folder(draft, folder, path)
        path.unlink()


if __name__ == "__main__":
    main()
