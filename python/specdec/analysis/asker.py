"""Questions asked, turn by turn: through the chat template, as one text that goes on, or as sources."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, Literal, TypeAlias

from specdec.analysis.answers import Answer, Reply
from specdec.analysis.questions import Question
from specdec.checks import check_flag
from specdec.decoding.beginning import Beginning
from specdec.decoding.chat import Chat
from specdec.decoding.generate import generate
from specdec.decoding.result import Result
from specdec.drafts.draft import Draft
from specdec.errors import InputError, number_of
from specdec.models.model import Model

__all__ = ["TOO_LONG", "Asker", "TooLong"]

TooLong: TypeAlias = Literal["error", "skip"]
"""What happens with questions that the context has no room for."""
TOO_LONG: Final[tuple[TooLong, ...]] = ("error", "skip")

_N_NAMED: Final = 5
"""Questions that a message names at most."""


class Asker:
    """Asks a target questions, turn by turn; `chat` and `too_long` as of `specdec.bench`."""

    def __init__(self, target: Model, chat: bool | Mapping[str, Any] | None, too_long: TooLong) -> None:
        self.target = target
        self.is_encoder_decoder = target.config.encoder is not None
        self.variables: dict[str, Any] | None = None
        if isinstance(chat, Mapping):
            Chat.of_call(None, [{"role": "user"}], None, None, chat)  # refuses what are no variables
            self.variables, chat = dict(chat), True
        has_template = target.chat_template is not None and not self.is_encoder_decoder
        self.chat = has_template if chat is None else check_flag("chat", chat)
        if self.chat and not has_template:
            why = "is an encoder-decoder" if self.is_encoder_decoder else "has no chat template"
            raise InputError.of("chat", chat, f"False, or None: {target.path} {why}")
        if target.tokenizer is None:
            raise InputError(f"target {target.path} has no tokenizer; expected one, as questions are texts")
        self.too_long = too_long

    def fitting(self, questions: Sequence[Question]) -> tuple[list[Question], list[tuple[int | str, str]]]:
        """(questions whose first turn the context has room for, ids of the others and why)."""
        found, skipped = [], []
        for question in questions:
            try:
                self._check(self._prompt(question, []))
            except InputError as error:
                skipped.append((question.id, str(error)))
            else:
                found.append(question)
        if skipped and (self.too_long == "error" or not found):
            named = "; ".join(f"{question_id!r}: {why}" for question_id, why in skipped[:_N_NAMED])
            more = f"; and {len(skipped) - _N_NAMED} more" if len(skipped) > _N_NAMED else ""
            expected = "questions that fit" if not found else "questions that fit, or too_long='skip'"
            raise InputError(
                f"{number_of(len(skipped), 'question')} cannot be asked: {named}{more}; expected {expected}"
            )
        return found, skipped

    def answer(
        self, question: Question, draft: Draft | None, seed: int, options: Mapping[str, Any]
    ) -> Answer:
        """Ask all turns of a question; one that does not fit ends the answer, or raises InputError."""
        replies: list[Reply] = []
        for turn in range(len(question.turns)):
            if turn:
                try:
                    self._check(self._prompt(question, replies))
                except InputError as error:
                    why = f"turn {turn + 1}: {error}"
                    if self.too_long == "skip":
                        return Answer(tuple(replies), why)
                    raise InputError(
                        f"question {question.id!r}, {why}; expected turns that fit, or too_long='skip'"
                    ) from None
            begun = time.perf_counter()
            result = self.run(question, replies, draft, seed, options)
            replies.append(Reply.of(result, time.perf_counter() - begun))
        return Answer(tuple(replies))

    def run(
        self,
        question: Question,
        replies: Sequence[Reply],
        draft: Draft | None,
        seed: int,
        options: Mapping[str, Any],
    ) -> Result:
        """Decode the answer to the turn after those that have replies."""
        key = [(seed, _sequence(question, len(replies)))]
        prompt = self._prompt(question, replies)
        result: Result
        if self.chat:
            result = generate(
                self.target, draft, messages=prompt, chat_template_kwargs=self.variables, seed=key, **options
            )
        else:
            result = generate(self.target, draft, prompt, seed=key, **options)
        return result

    def _prompt(self, question: Question, replies: Sequence[Reply]) -> Any:
        """What the next turn is asked as: messages, or a text."""
        turn = len(replies)
        if self.chat:
            messages = [] if question.system is None else [{"role": "system", "content": question.system}]
            for said, reply in zip(question.turns, replies, strict=False):
                messages += [{"role": "user", "content": said}, {"role": "assistant", "content": reply.text}]
            return [*messages, {"role": "user", "content": question.turns[turn]}]
        if self.is_encoder_decoder:
            return question.turns[turn]
        before = "".join(
            f"{said}{reply.text}\n\n" for said, reply in zip(question.turns, replies, strict=False)
        )
        return before + question.turns[turn]

    def _check(self, prompt: Any) -> None:
        """See that the context has room for a prompt and an answer."""
        if self.chat:
            chat = Chat.of_call(None, prompt, None, None, self.variables)
            assert chat is not None
            (prompt,) = chat.prompts(self.target)
        Beginning.of(self.target, prompt, "prompt")


def _sequence(question: Question, turn: int) -> int:
    """The number of a turn's random numbers: the same whichever other questions there are."""
    return int.from_bytes(blake2b(json.dumps([question.id, turn]).encode(), digest_size=4).digest(), "little")
