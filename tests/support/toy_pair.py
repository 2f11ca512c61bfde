"""A target, drafts of graded similarity to it, and a tokenizer whose tokens split characters and words."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import specdec
from specdec import _core
from specdec.tokenizer import ByteTokenizer, Strip
from worlds.folders import Tensors, llama_config, tensors_for, write_hf

N_VOCAB, N_CTX = 61, 96
EOS = 2

_PIECES: list[bytes | None] = [b"<pad>", b"<s>", b"</s>"]
_PIECES += [b"a", b"b", b"ab", b" a", b" b", b"aa", b"ba", b"\n", b" ", b"  ", b"<b>", b"&", b"\x1b[31m"]
_PIECES += [b"\xc3", b"\xa9", b"\xc3\xa9", b"\xe2", b"\x82", b"\xac", b"\xf0\x9f", b"\x98\x80", b"e\xcc\x81"]
_PIECES += [bytes(pair) for pair in itertools.product(b"abc", b"xyz")]
_PIECES += [bytes([byte]) for byte in range(ord("a"), ord("z") + 1)]
_PIECES.append(b".\n")
assert len(_PIECES) == N_VOCAB


class ToyTokenizer(ByteTokenizer):
    """Tokenizer whose ids are byte strings; it encodes each byte as the first one-byte token for it."""

    def __init__(self) -> None:
        super().__init__(
            "toy", vocabulary=_PIECES, silent=frozenset({0, 1, EOS}), strip=Strip.NOTHING, bos_id=1,
            eos_ids=(EOS,), adds_bos=True,
        )  # fmt: skip

    def _encode(self, text: str) -> list[int]:
        return [_PIECES.index(bytes([byte])) for byte in text.encode("utf-8")]


def blurred(tensors: Tensors, amount: float, seed: int = 1) -> Tensors:
    """Weights with noise of `amount` times their standard deviation: a draft that sometimes agrees."""
    rng = np.random.default_rng(seed)
    return {
        name: (array + rng.normal(0.0, amount * array.std(), array.shape)).astype(np.float32)
        for name, array in tensors.items()
    }


def write_pair(folder: Path, amount: float = 0.1, **config: object) -> tuple[Path, Path]:
    """Write folders of a random target and a similar draft, without tokenizer."""
    settings = llama_config(**{"vocab_size": N_VOCAB, "max_position_embeddings": N_CTX, **config})
    tensors = {name: array * 2.0 for name, array in tensors_for(settings, seed=3).items()}
    target = write_hf(folder / "target", settings, tensors)
    return target, write_hf(folder / "draft", settings, blurred(tensors, amount))


def load_pair(folder: Path, amount: float = 0.1, **config: object) -> tuple[specdec.Model, specdec.Model]:
    """Write and load the pair with the toy tokenizer and prompts in rows."""
    target, draft = (
        specdec.load(path, tokenizer=ToyTokenizer(), prefill="rows")
        for path in write_pair(folder, amount, **config)
    )
    return target, draft


def tiny_pair(folder: Path) -> tuple[specdec.Model, specdec.Model]:
    """Models of three tokens, whose draft trees can all be enumerated."""
    changes = {"vocab_size": 3, "hidden_size": 16, "intermediate_size": 24, "max_position_embeddings": 32}
    config = llama_config(**changes)
    tensors = {name: array * 1.5 for name, array in tensors_for(config, seed=3).items()}
    target = write_hf(folder / "target", config, tensors)
    draft = write_hf(folder / "draft", config, blurred(tensors, 0.3))
    return specdec.load(target, prefill="rows"), specdec.load(draft, prefill="rows")


def greedy_tokens(model: specdec.Model, prompt: Sequence[int], n: int) -> list[int]:
    """Decode `n` tokens by argmax with single-node forward passes: no session, no draft, no stop."""
    decoder = _core.Decoder(model.core, capacity=len(prompt) + n)
    if len(prompt) > 1:
        decoder.prefill(list(prompt[:-1]))
    token, tokens = prompt[-1], []
    for _ in range(n):
        logits = decoder.forward([token], [-1])
        decoder.keep([0])
        token = int(np.argmax(logits[0]))
        tokens.append(token)
    return tokens


class RecordedSession:
    """Replacement for `_core.Session` that counts the sessions made and closed."""

    made = closed = 0
    _make = _core.Session

    def __init__(self, *args: object, **options: object) -> None:
        self._session = self._make(*args, **options)
        RecordedSession.made += 1

    def __getattr__(self, name: str) -> object:
        return getattr(self._session, name)

    def close(self) -> None:
        RecordedSession.closed += 1
        self._session.close()


def notice_interrupts() -> None:
    """Let a child process receive SIGINT, which a shell's background jobs inherit as ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
