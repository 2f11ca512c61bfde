"""What stands between texts and ids: a model's tokenizers and chat templates, which may be made later."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import NamedTuple

from specdec.models.chat_template import ChatTemplate
from specdec.models.tokenizer import SourceTokenizer, Tokenizer


class ModelTexts(NamedTuple):
    """Tokenizers and chat templates of a model.

    `tokenizer`: None: ids in, ids out. `source_tokenizer`: Of an encoder-decoder with a tokenizer.
    """

    tokenizer: Tokenizer | None
    chat_template: ChatTemplate | None = None
    source_tokenizer: SourceTokenizer | None = None


class LaterTexts:
    """ModelTexts that are made once, when they are first asked for, by whichever thread asks.

    `make`: What it raises is raised to who asks; the next who asks calls it again.
    """

    def __init__(self, make: Callable[[], ModelTexts]) -> None:
        self._make = make
        self._made: ModelTexts | None = None
        # One for each process, as another thread may hold it while the process is forked. A signal handler
        # may ask while its own thread holds it.
        self._locks: dict[int, threading.RLock] = {}

    @classmethod
    def of(cls, texts: ModelTexts) -> LaterTexts:
        """ModelTexts that are there."""
        return cls(lambda: texts)

    def get(self) -> ModelTexts:
        """The texts."""
        if self._made is None:
            with self._locks.setdefault(os.getpid(), threading.RLock()):
                if self._made is None:
                    self._made = self._make()
        return self._made
