"""Tokenizers of model files.

A tokenizer read from a file is a table of byte strings (:class:`ByteTokenizer`): a sequence decodes to the
concatenated bytes of its tokens, read as UTF-8. Decoding is therefore incremental and exact when streamed,
and vocabularies of different file formats can be compared.
"""

from specdec.models.tokenizer.byte_tokenizer import ByteTokenizer, StreamDecoder, Strip, Tokenizer
from specdec.models.tokenizer.resolve import (
    SourceTokenizer,
    load_tokenizer,
    resolve_tokenizer,
    source_side,
    why_no_tokenizer,
)
from specdec.models.tokenizer.token_index import sequences_of, token_texts
from specdec.models.tokenizer.vocabulary import (
    MarkSpelling,
    check_same_vocabulary,
    overlap,
    special_tokens_of,
    warn_of_ids_beyond,
)

__all__ = [
    "ByteTokenizer", "MarkSpelling", "SourceTokenizer", "StreamDecoder", "Strip", "Tokenizer",
    "check_same_vocabulary", "load_tokenizer", "overlap", "resolve_tokenizer", "sequences_of", "source_side",
    "special_tokens_of", "token_texts", "warn_of_ids_beyond", "why_no_tokenizer",
]  # fmt: skip
