"""Text and token ids for training the embedded pair.

Reads the archive of novels, removes hard line wraps, holds whole novels out for validation, trains the
byte-level BPE tokenizer and writes the ids as ``uint16`` arrays.
"""

from __future__ import annotations

import argparse
import re
import tarfile
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

END_OF_TEXT = "<|endoftext|>"
VOCAB_SIZE = 8192

# Whole books by authors who are also in the training text and by one author who is not (Schreiner), never
# shown to the tokenizer or the models.
HELD_OUT = (
    "Dickens_Expectations_1861.txt",
    "Hardy_Madding_1874.txt",
    "Haggard_Mines_1885.txt",
    "Forster_View_1908.txt",
    "Schreiner_Farm_1883.txt",
)

# Typographic characters of a few transcriptions, replaced by those of the others.
PLAIN = str.maketrans(
    {"’": "'", "‘": "'", "“": '"', "”": '"', "—": "--", "\xa0": " ", "\t": " ", "\x0c": "\n"}
)


def unwrap(text: str) -> str:
    """Join hard-wrapped lines; a paragraph ends at a blank line or at a short finished line."""
    text = text.translate(PLAIN)
    lines = [re.sub(r" +", " ", line).strip() for line in text.splitlines()]
    lengths = sorted(len(line) for line in lines if line)
    width = lengths[int(0.9 * (len(lengths) - 1))]
    paragraphs, current = [], []
    for line in lines:
        if line:
            current.append(line)
        # A short line that ends with a closing mark ends its paragraph.
        ends = not line or (len(line) < 0.8 * width and line[-1] in ".!?\"':;*")
        if ends and current:
            paragraphs.append(" ".join(current))
            current = []
    if current:
        paragraphs.append(" ".join(current))
    return "\n".join(paragraphs) + "\n"


def read_novels(archive: Path) -> dict[str, str]:
    """Return the unwrapped text of each novel by file name, sorted."""
    novels = {}
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            if member.isfile() and member.name.endswith(".txt"):
                data = tar.extractfile(member).read()
                novels[Path(member.name).name] = unwrap(data.decode("utf-8", errors="replace"))
    missing = set(HELD_OUT) - set(novels)
    if missing:
        raise SystemExit(f"{archive}: held-out novels are missing: {sorted(missing)}")
    return dict(sorted(novels.items()))


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """Train byte-level BPE of ``VOCAB_SIZE`` entries; id 0 begins every text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{END_OF_TEXT} $A",
        special_tokens=[(END_OF_TEXT, tokenizer.token_to_id(END_OF_TEXT))],
    )
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("archive", type=Path, help="novels.tar.xz")
    parser.add_argument("--work", type=Path, default=Path(__file__).parent / "work")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    novels = read_novels(args.archive)
    train = [text for name, text in novels.items() if name not in HELD_OUT]
    tokenizer = train_tokenizer(train)
    tokenizer.save(str(args.work / "tokenizer.json"))
    for split, texts in (("train", train), ("valid", [novels[name] for name in HELD_OUT])):
        ids = np.concatenate([np.array(e.ids, np.uint16) for e in tokenizer.encode_batch(texts)])
        np.save(args.work / f"{split}.npy", ids)
        characters = sum(map(len, texts))
        print(f"{split}: {len(texts)} novels, {characters:,} characters, {len(ids):,} tokens")


if __name__ == "__main__":
    main()
