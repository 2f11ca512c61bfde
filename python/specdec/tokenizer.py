"""Tokenizers, under the name by which programs import them; see `specdec.models.tokenizer`."""

from specdec.models.tokenizer import (
    ByteTokenizer,
    StreamDecoder,
    Strip,
    Tokenizer,
    check_same_vocabulary,
    load_tokenizer,
    resolve_tokenizer,
)

__all__ = [
    "ByteTokenizer",
    "StreamDecoder",
    "Strip",
    "Tokenizer",
    "check_same_vocabulary",
    "load_tokenizer",
    "resolve_tokenizer",
]
