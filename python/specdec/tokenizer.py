"""Public import path of tokenizers; see `specdec.models.tokenizer`."""

from specdec.models.tokenizer import (
    ByteTokenizer,
    SourceTokenizer,
    StreamDecoder,
    Strip,
    Tokenizer,
    check_same_vocabulary,
    load_tokenizer,
    resolve_tokenizer,
)

__all__ = [
    "ByteTokenizer", "SourceTokenizer", "StreamDecoder", "Strip", "Tokenizer", "check_same_vocabulary",
    "load_tokenizer", "resolve_tokenizer",
]  # fmt: skip
