"""Tokenizer adapter for lm-evaluation-harness."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specdec.errors import InputError
from specdec.models.model import Model
from specdec.models.tokenizer import ByteTokenizer, Tokenizer, special_tokens_of


class HarnessTokenizer:
    """Tokenizer with the attributes that the harness reads.

    `chat_template` is the model's chat template, or several by name. There is no padding token.
    """

    pad_token: str | None = None
    pad_token_id: int | None = None

    def __init__(self, model: Model) -> None:
        assert model.tokenizer is not None
        self._tokenizer: Tokenizer = model.tokenizer
        self.name_or_path = str(model.path)
        self.bos_token_id = self._tokenizer.bos_id
        self.eos_token_id = next(iter(self._tokenizer.eos_ids), None)
        self.bos_token = self._name(self.bos_token_id)
        self.eos_token = self._name(self.eos_token_id)
        templates = {} if model.chat_template is None else model.chat_template.templates
        self.chat_template: str | dict[str, str] | None = dict(templates) or None
        if len(templates) == 1:
            (self.chat_template,) = templates.values()

    @property
    def vocab_size(self) -> int:
        """Highest token id plus one."""
        return self._tokenizer.n_vocab

    def encode(self, text: str, *, add_bos: bool | None = None) -> list[int]:
        """Encode a text; `add_bos`: prepend BOS; None: if the model was trained with it."""
        if add_bos is None:
            return self._tokenizer.encode(text)
        ids = self._tokenizer.encode(text, add_bos=False)
        return [self.bos_token_id, *ids] if add_bos and self.bos_token_id is not None else ids

    def check_special_tokens(self, text: str) -> None:
        """Refuse a rendered conversation whose special tokens the tokenizer would read as plain text."""
        if not isinstance(self._tokenizer, ByteTokenizer) or self._tokenizer.reads_special_tokens:
            return
        for token in self._tokenizer.special_tokens():
            if token in text:
                raise InputError(
                    f"the chat template writes the special token {token!r}, but {self._tokenizer.source} "
                    "cannot parse it; expected a tokenizer.json"
                )

    def stops(self, until: Sequence[str]) -> list[str | int]:
        """Return stops for `specdec.generate` that match the harness's own model.

        That model searches text that includes special tokens' names, so a stop string may also lie, begin or
        end within a name.
        """
        found: dict[str | int, None] = dict.fromkeys(until)
        for name, token in special_tokens_of(self._tokenizer).items():
            for string in until:
                if string in name:
                    found[token] = None
                for n in range(1, min(len(name), len(string))):
                    if name.endswith(string[:n]):
                        found[name + string[n:]] = None
                    if name.startswith(string[-n:]):
                        found[string[:-n] + name] = None
        return list(found)

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids without special tokens."""
        return self._tokenizer.decode(ids)

    def _name(self, token: int | None) -> str | None:
        if token is None:
            return None
        if isinstance(self._tokenizer, ByteTokenizer):
            names: Sequence[Any] = self._tokenizer.vocabulary()
            found = names[token] if token < len(names) else None
            return None if found is None else found.decode("utf-8", "replace")
        return self._tokenizer.decode([token]) or None
