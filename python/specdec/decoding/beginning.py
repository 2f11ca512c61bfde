"""What a text begins with, as the models see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specdec.errors import InputError
from specdec.models.model import Model
from specdec.models.tokenizer import ByteTokenizer, StreamDecoder

__all__ = ["Beginning"]


@dataclass(frozen=True)
class Beginning:
    """What a text begins with.

    Attributes
    ----------
    ids : list of int
        Token ids that the new text follows, at least one.
    text_ids : list of int
        Of them those whose text the new text goes on with; none where the new text is a text by itself, as
        the reply in a chat is.
    """

    ids: list[int]
    text_ids: list[int]

    @classmethod
    def of(cls, target: Model, prompt: Any, name: str, *, own_text: bool = False) -> Beginning:
        """The beginning that a prompt makes, checked; a text is encoded.

        Parameters
        ----------
        target : Model
        prompt : str or sequence of int
        name : str
            What the prompt is called in messages.
        own_text : bool, default False
            Whether the new text is a text by itself.

        Raises
        ------
        InputError
            For a prompt without ids, or one that leaves no room for another in the context.
        """
        n_ctx = target.config["n_ctx"]
        try:
            ids: list[int] = target.check_ids(prompt).tolist()
            if len(ids) == n_ctx:
                raise InputError(
                    f"there are {n_ctx} token ids; expected fewer, as the context of {n_ctx} is then full"
                )
        except InputError as error:
            raise InputError(f"{name}: {error}") from None
        return cls(ids, [] if own_text else ids)

    def room(self, model: Model) -> int:
        """New tokens that a model's context has room for."""
        return model.config.n_ctx - len(self.ids)

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
