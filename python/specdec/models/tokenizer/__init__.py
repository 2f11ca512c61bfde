"""Text to token ids and back, for the tokenizers that model files come with.

Every tokenizer read from a file here is a table of byte strings (:class:`ByteTokenizer`): the text of a
sequence is the concatenation of its tokens' bytes, read as UTF-8. That makes decoding incremental by
construction, so that a streamed text is exactly the text of the whole, and makes vocabularies of different
file formats comparable.
"""

from specdec.models.tokenizer.byte_tokenizer import ByteTokenizer, StreamDecoder, Strip, Tokenizer
from specdec.models.tokenizer.resolve import (
    SourceTokenizer,
    load_tokenizer,
    resolve_tokenizer,
    source_side,
    why_no_tokenizer,
)
from specdec.models.tokenizer.vocabulary import (
    MarkSpelling,
    check_same_vocabulary,
    special_tokens_of,
    warn_of_ids_beyond,
)

__all__ = [
    "ByteTokenizer", "MarkSpelling", "SourceTokenizer", "StreamDecoder", "Strip", "Tokenizer",
    "check_same_vocabulary", "load_tokenizer", "resolve_tokenizer", "source_side", "special_tokens_of",
    "warn_of_ids_beyond", "why_no_tokenizer",
]  # fmt: skip
