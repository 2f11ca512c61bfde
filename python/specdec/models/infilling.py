"""Infilling (fill in the middle): prompts of models that write text between a prefix and a suffix."""

from __future__ import annotations

from typing import Final, NamedTuple

from specdec.models.tokenizer.byte_tokenizer import ByteTokenizer, Tokenizer, encode_continuing

_MARKERS: Final = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen 2.5 Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite Code
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek Coder
)
"""Tokens before the prefix, before the suffix and before the middle, which the model writes."""
_ENDS: Final = (
    "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|file_separator|>", "<fim_pad>", "<file_sep>",
    "<repo_name>", "<reponame>", "<|endoftext|>", "<|end_of_text|>",
)  # fmt: skip
"""Tokens after which a middle has ended: padding, end of text, begin of another file or repository."""


class InfillTokens(NamedTuple):
    """Token ids of a model's infilling template."""

    prefix: int
    suffix: int
    middle: int
    ends: tuple[int, ...]
    """Ids that end the middle."""

    @classmethod
    def of(cls, tokenizer: Tokenizer | None) -> InfillTokens | None:
        """Find the tokens of a known template in a vocabulary; None without one."""
        if not isinstance(tokenizer, ByteTokenizer):
            return None
        ids = {name: token for token, name in enumerate(tokenizer.vocabulary())}
        for names in _MARKERS:
            found = [ids.get(name.encode()) for name in names]
            if None not in found:
                prefix, suffix, middle = (token for token in found if token is not None)
                others = (ids[name.encode()] for name in _ENDS if name.encode() in ids)
                return cls(prefix, suffix, middle, tuple(dict.fromkeys((prefix, suffix, middle, *others))))
        return None

    def prompt(self, tokenizer: ByteTokenizer, prefix: str | list[int], suffix: str) -> list[int]:
        """Return the token ids of a prompt: prefix, suffix, then the middle to write."""
        begin = [tokenizer.bos_id] if tokenizer.adds_bos and tokenizer.bos_id is not None else []
        before = encode_continuing(tokenizer, prefix) if isinstance(prefix, str) else prefix
        after = encode_continuing(tokenizer, suffix)
        return [*begin, self.prefix, *before, self.suffix, *after, self.middle]
