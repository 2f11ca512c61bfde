"""Sentence pairs for training the translators: an archive of English and Japanese, split and tokenized.

    python training/pairs.py enja.tar.xz

A hash of the pair selects held-out pairs: one in fifty for the test, one in fifty for validation. All files
of the archive (train, dev, test) are one collection. As it repeats sentences, a pair that shares a sentence
with a held-out pair is dropped. The tokenizer, a unigram sentencepiece model with T5's special tokens, sees
only training pairs.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import tarfile
from pathlib import Path
from typing import TypeAlias

import sentencepiece
from transformers import T5Tokenizer

VOCAB_SIZE = 4000
ONE_IN = 50  # pairs, for each of the two held-out splits
WORK = Path(__file__).parent / "work" / "translation"

Pair: TypeAlias = tuple[str, str]


def read_archive(archive: Path) -> list[Pair]:
    """Return the distinct pairs (English, Japanese), in the order of the archive's train, dev and test."""
    with tarfile.open(archive) as tar:
        files = {Path(member.name).name: member for member in tar.getmembers() if member.isfile()}
        texts = {}
        for split in ("train", "dev", "test"):
            for language in ("en", "ja"):
                name = f"{split}.{language}"
                if name not in files:
                    raise SystemExit(f"{archive}: file {name} is missing")
                data = tar.extractfile(files[name]).read()
                texts[split, language] = data.decode("utf-8").splitlines()
    pairs: dict[Pair, None] = {}
    for split in ("train", "dev", "test"):
        for english, japanese in zip(texts[split, "en"], texts[split, "ja"], strict=True):
            # Drop the archive's spaces between Japanese words, which a program inserted.
            pairs[" ".join(english.split()), "".join(japanese.split())] = None
    return [pair for pair in pairs if all(pair)]


def split_of(pair: Pair) -> str:
    """Return `test`, `valid` or `train`, depending only on the pair."""
    digest = hashlib.sha256("\t".join(pair).encode()).digest()
    number = int.from_bytes(digest[:8], "big") % ONE_IN
    return {0: "test", 1: "valid"}.get(number, "train")


def split(pairs: list[Pair]) -> dict[str, list[Pair]]:
    """Return the three splits. No sentence of either language is in two of them."""
    splits: dict[str, list[Pair]] = {}
    seen: tuple[set[str], set[str]] = (set(), set())
    for name in ("test", "valid", "train"):
        mine = [pair for pair in pairs if split_of(pair) == name]
        splits[name] = [pair for pair in mine if pair[0] not in seen[0] and pair[1] not in seen[1]]
        for side in (0, 1):
            seen[side].update(pair[side] for pair in splits[name])
    return splits


def train_tokenizer(pairs: list[Pair], folder: Path, vocab_size: int) -> None:
    """Train one vocabulary for both languages; write `spiece.model` and `tokenizer.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([sentence for pair in pairs for sentence in pair]), model_writer=model,
        model_type="unigram", vocab_size=vocab_size, character_coverage=0.9995,
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, num_threads=1, minloglevel=1,
    )  # fmt: skip
    (folder / "spiece.model").write_bytes(model.getvalue())
    T5Tokenizer.from_pretrained(folder, extra_ids=0).save_pretrained(folder)


def read_pairs(file: Path) -> list[Pair]:
    """Read a split that `main` wrote: one pair per line, separated by a tab."""
    lines = file.read_text(encoding="utf-8").splitlines()
    return [(english, japanese) for english, japanese in (line.split("\t") for line in lines)]


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("archive", type=Path, help="enja.tar.xz")
    parser.add_argument("--work", type=Path, default=WORK)
    parser.add_argument("--vocabulary", type=int, default=VOCAB_SIZE, help="entries of the tokenizer")
    args = parser.parse_args(words)
    args.work.mkdir(parents=True, exist_ok=True)
    pairs = read_archive(args.archive)
    splits = split(pairs)
    for name, found in splits.items():
        text = "".join(f"{english}\t{japanese}\n" for english, japanese in found)
        (args.work / f"{name}.tsv").write_text(text, encoding="utf-8")
    train_tokenizer(splits["train"], args.work / "tokenizer", args.vocabulary)
    left_out = len(pairs) - sum(map(len, splits.values()))
    print(", ".join(f"{name}: {len(found):,} pairs" for name, found in splits.items()))
    print(f"dropped, as they share a sentence with a held-out pair: {left_out:,}")


if __name__ == "__main__":
    main()
