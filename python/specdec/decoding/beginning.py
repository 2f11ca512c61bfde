"""What a text begins with, as the models see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specdec.containers import prompts_of, text_of
from specdec.errors import ContextLengthError, InputError, number_of
from specdec.models.model import Model
from specdec.models.tokenizer import ByteTokenizer, StreamDecoder


@dataclass(frozen=True)
class Beginning:
    """A prompt as the models see it.

    Attributes
    ----------
    ids : list of int
        Token ids that the new text follows, at least one; in an encoder-decoder `Model.decoder_start` first.
    text_ids : list of int
        Of them those whose text the new text continues; none where it is a text by itself, as a chat's reply.
    source : list of int or None
        What the encoder of an encoder-decoder reads.
    """

    ids: list[int]
    text_ids: list[int]
    source: list[int] | None = None

    @classmethod
    def of(
        cls, target: Model, prompt: Any, name: str, *, decoder_prompt: Any = None, own_text: bool = False
    ) -> Beginning:
        """Check and encode a prompt, which messages call `name`; for an encoder-decoder the source.

        `own_text`: the new text is a text by itself. Raises InputError for a prompt without ids, or one that
        leaves no room for another in the context.
        """
        if target.config.encoder is not None:
            return cls._with_source(target, prompt, name, decoder_prompt)
        ids = _ids_with_room(target, prompt, name)
        return cls(ids, [] if own_text else ids)

    @classmethod
    def _with_source(cls, target: Model, source: Any, name: str, decoder_prompt: Any) -> Beginning:
        try:
            read: list[int] = target.source_ids(source).tolist()
        except InputError as error:
            raise InputError.about(name, f"{name}: {error}") from None
        text_ids: list[int] = []
        if decoder_prompt is not None:
            text_ids = _ids_with_room(target, decoder_prompt, f"decoder_prompt of {name}")
        elif not target.decoder_start:
            raise InputError.about(
                name,
                f"{name}: {target.path} names no ids that its texts begin with; expected a decoder_prompt, "
                "or a target language by Model.with_languages",
            )
        return cls([*target.decoder_start, *text_ids], text_ids, read)

    @property
    def given(self) -> list[int]:
        """What `specdec.generate` takes as its prompt for this beginning, without a decoder_prompt."""
        return self.ids if self.source is None else self.source

    def room(self, model: Model) -> int:
        """New tokens that a model's context has room for."""
        return model.config.n_ctx - len(self.ids)

    def source_of(self, model: Model) -> list[int] | None:
        """What a model reads beside the text: the source, if the model has an encoder."""
        return None if model.config.encoder is None else self.source

    def source_text(self, target: Model) -> str | None:
        """The source as text; None where there is none, or no tokenizer of sources."""
        if self.source is None or target.source_tokenizer is None:
            return None
        return target.source_tokenizer.tokenizer.decode(self.source)

    def stream_decoder(self, model: Model) -> StreamDecoder | None:
        """From the new tokens to their text; None where the model has no tokenizer.

        A space at the beginning of the new text stays if there is text before it.
        """
        tokenizer = model.tokenizer
        if tokenizer is None:
            return None
        if isinstance(tokenizer, ByteTokenizer):
            continuing = any(tokenizer.text_bytes(token) for token in self.text_ids)
        else:
            continuing = bool(tokenizer.decode(self.text_ids))
        return StreamDecoder(tokenizer, continuing=continuing)


def _ids_with_room(target: Model, prompt: Any, name: str) -> list[int]:
    """The ids of a prompt, without those of `Model.decoder_start`, with room for another in the context."""
    n_ctx, start = target.config.n_ctx, target.decoder_start
    try:
        ids: list[int] = target.check_ids(prompt, minimum=0 if start else 1).tolist()
        if isinstance(text_of(prompt), str):
            ids = ids[len(start) :]
        n = len(start) + len(ids)
        if n >= n_ctx:
            raise ContextLengthError(
                f"there are {n} token ids; expected fewer, as the context of {n_ctx} is then full"
            )
    except InputError as error:
        raise type(error).about(name, f"{name}: {error}") from None
    return ids


def decoder_prompts_of(target: Model, decoder_prompt: Any, n_sources: int, is_batch: bool) -> list[Any]:
    """What each text of an encoder-decoder continues: one prompt for all, or one for each source."""
    if decoder_prompt is None:
        return [None] * n_sources
    if target.config.encoder is None:
        raise InputError.about(
            "decoder_prompt",
            f"decoder_prompt is given, but {target.path} has no encoder; expected None: a text goes on "
            "with its prompt",
        )
    given, several = prompts_of("decoder_prompt", decoder_prompt)
    if not several:
        return given * n_sources
    if not is_batch or len(given) != n_sources:
        raise InputError.about(
            "decoder_prompt",
            f"decoder_prompt is a list of {len(given)} for {number_of(n_sources, 'source')}; expected one, "
            "or one for each source of a list",
        )
    return given
