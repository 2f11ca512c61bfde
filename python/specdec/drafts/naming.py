"""`named`: a draft by a word, as a command line or a configuration file has it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import takewhile
from typing import Final

from specdec.checks import check_choice, check_path
from specdec.drafts.context_copy import ContextCopy
from specdec.drafts.draft import Draft
from specdec.drafts.early_exit import EarlyExit
from specdec.drafts.ensemble import Ensemble
from specdec.drafts.input_copy import InputCopy
from specdec.drafts.learnt.eagle_draft import MTP, Eagle
from specdec.drafts.learnt.heads_draft import Heads
from specdec.drafts.learnt.look_ahead_draft import LookAheadEmbeddings
from specdec.drafts.learnt.recurrent_draft import Recurrent
from specdec.drafts.lookahead import Lookahead
from specdec.drafts.model_draft import ModelDraft
from specdec.drafts.ngram import Bigram, Ngram, Unigram
from specdec.drafts.online.online_draft import Online
from specdec.drafts.online_ngram import OnlineNgram
from specdec.drafts.opening import EMBEDDED_HEADS, load
from specdec.drafts.random_draft import Random
from specdec.drafts.skip_layers import SkipLayers
from specdec.drafts.suffix_memory import SuffixMemory
from specdec.drafts.token_recycling import TokenRecycling
from specdec.errors import InputError, kind_of, shown
from specdec.models.loading import embedded_pair
from specdec.models.loading import load as load_model
from specdec.models.model import Model
from specdec.models.number_formats import DTYPES, Dtype
from specdec.text_files import read_text_file

__all__ = ["NAMES", "DraftName", "named"]

_MAX_DEPTH: Final = 8


@dataclass(frozen=True)
class DraftName:
    """A word that names a draft.

    Attributes
    ----------
    draft : type
        The class.
    argument : str
        What follows the word behind a colon: "" nothing, "FILE" must be there, "[FILE]" may be.
    meaning : str
        What it is, in one line.
    make : callable
        The draft of (argument or "", target, number format or None).
    takes_dtype : bool
        Whether it has weights, which are in a number format, or drafts within it may have.
    """

    draft: type[Draft]
    argument: str
    meaning: str
    make: Callable[[str, Model, Dtype | None], Draft]
    takes_dtype: bool = False

    def usage(self, word: str) -> str:
        """How it is written: "heads[:DIR]"."""
        if not self.argument:
            return word
        optional = self.argument.startswith("[")
        return f"{word}[:{self.argument[1:]}" if optional else f"{word}:{self.argument}"


def named(text: str, target: Model, *, dtype: Dtype | None = None) -> Draft:
    """A draft by its name, with what it needs behind a colon.

    Parameters
    ----------
    text : str
        - One of `specdec.drafts.NAMES`: ``"copy"``, ``"ngram:novels.txt"``, ``"heads:path/to/heads"``,
          ``"exit:4"``, ``"skip:1,3/2"``, ``"lookahead:4,3"``.
        - ``"ensemble:copy+model:path/to/small"``: several, each by its name.
        - ``"online:heads:path"``: one that learns while it serves.
        - Anything else is a path or a hub name, as in `specdec.drafts.load`.
    target : Model
        What it shall draft for.
    dtype : {None, "f32", "bf16", "int8", "int4"}
        The number format of the draft's matrices; None: that of its file.

    Raises
    ------
    InputError
        The name lacks its argument or has one too many, or is that of a draft and of a file; a number format
        is given for a draft without weights; the draft is for another target.
    VocabularyMismatchError, CheckpointError, TokenizerError
        As `specdec.drafts.load`.

    Examples
    --------
    >>> target, _ = specdec.embedded_pair()
    >>> draft = specdec.drafts.named("ensemble:copy+embedded", target)
    >>> out = specdec.generate(target, draft, "Once upon a time")
    """
    if not isinstance(text, str) or not text:
        raise InputError(f"draft is {shown(text)}; expected a name such as 'copy', a path or a hub name")
    if not isinstance(target, Model):
        raise InputError(f"target is {kind_of(target)}; expected the specdec.Model that the draft is for")
    dtype = check_choice("dtype", dtype, DTYPES, optional=True)
    if _depth(text) > _MAX_DEPTH:
        raise InputError(f"draft is {shown(text)}; expected at most {_MAX_DEPTH} drafts within each other")
    word, colon, argument = text.partition(":")
    name = NAMES.get(word)
    if name is None:
        _refuse_misspelt(text, word)
        return load(text, target, dtype=dtype)
    if not colon and check_path("draft", text).exists():
        raise InputError(
            f"draft is {shown(text)}, the name of a draft and of a file here; expected './{text}' for the "
            f"file, or '{text}:' for the draft"
        )
    missing = not argument and name.argument[:1] not in ("", "[")
    if missing or (argument and not name.argument):
        raise InputError(f"draft is {shown(text)}; expected {name.usage(word)}, {name.meaning}")
    if dtype is not None and not name.takes_dtype:
        raise InputError(
            f"dtype is {dtype!r} for the draft {shown(text)}, which has no weights; expected None"
        )
    draft = name.make(argument, target, dtype)
    draft.describe(target)  # refuses what does not fit
    return draft


def _depth(text: str) -> int:
    """How many drafts within each other a name begins with."""
    words = takewhile(lambda word: word in ("ensemble", "online"), text.split(":"))
    return sum(1 for _ in words)


def _refuse_misspelt(text: str, word: str) -> None:
    """Refuse what is nearly a name, and no file; a hub name without an owner is let through."""
    nearest = get_close_matches(word, NAMES, 1, 0.75)
    if nearest and "/" not in text and not check_path("draft", text).exists():
        raise InputError(
            f"draft is {shown(text)}; did you mean {nearest[0]}? Names are {', '.join(NAMES)}; anything "
            "else is a path or a hub name"
        )


def _read(argument: str) -> str:
    return read_text_file(check_path("draft", argument), "a text", name="draft")


def _table(kind: type[Ngram], argument: str, target: Model) -> Ngram:
    """The table of a file that `Ngram.save` wrote, or of a text."""
    path = check_path("draft", argument)
    return kind.load(path) if path.suffix == ".safetensors" else kind.from_text(path, target)


def _integers(argument: str, expected: str) -> list[int]:
    try:
        return [int(part) for part in argument.split(",") if part]
    except ValueError:
        raise InputError(f"draft is {shown(argument)} behind its colon; expected {expected}") from None


def _lookahead(argument: str) -> Lookahead:
    numbers = _integers(argument, "WINDOW,NGRAM, two integers")
    if argument and len(numbers) != 2:
        raise InputError(f"draft is lookahead:{argument}; expected lookahead:WINDOW,NGRAM, two integers")
    return Lookahead(*numbers)


def _exit(argument: str) -> EarlyExit:
    numbers = _integers(argument, "LAYER, an integer")
    if len(numbers) != 1:
        raise InputError(f"draft is exit:{argument}; expected exit:LAYER, one integer")
    return EarlyExit(numbers[0])


def _skip(argument: str) -> SkipLayers:
    attn, slash, mlp = argument.partition("/")
    expected = "ATTN/MLP, layers such as 1,3/2, or LAYERS of which both are skipped"
    layers = _integers(attn, expected)
    return SkipLayers(layers, _integers(mlp, expected) if slash else layers)


def _part(text: str, target: Model, dtype: Dtype | None) -> Draft:
    """A draft within another one; the number format is for those that have weights."""
    name = NAMES.get(text.partition(":")[0])
    return named(text, target, dtype=dtype if name is None or name.takes_dtype else None)


def _ensemble(argument: str, target: Model, dtype: Dtype | None) -> Ensemble:
    return Ensemble(*(_part(part, target, dtype) for part in argument.split("+")))


NAMES: Final[dict[str, DraftName]] = {
    "embedded": DraftName(
        ModelDraft,
        "",
        "the small model in the package",
        lambda argument, target, dtype: ModelDraft(embedded_pair(None, dtype)[1]),
        True,
    ),
    "model": DraftName(
        ModelDraft,
        "MODEL",
        "a smaller model: path or hub name",
        lambda path, target, dtype: ModelDraft(load_model(path, dtype)),
        True,
    ),
    "unigram": DraftName(
        Unigram,
        "FILE",
        "how frequent tokens are in a text",
        lambda file, target, dtype: _table(Unigram, file, target),
    ),
    "bigram": DraftName(
        Bigram,
        "FILE",
        "what follows a token in a text",
        lambda file, target, dtype: _table(Bigram, file, target),
    ),
    "ngram": DraftName(
        Ngram,
        "FILE",
        "what follows two tokens in a text, or a saved table (.safetensors)",
        lambda file, target, dtype: _table(Ngram, file, target),
    ),
    "online-ngram": DraftName(
        OnlineNgram,
        "[FILE]",
        "the same, counted while the text grows",
        lambda file, target, dtype: OnlineNgram(_table(Ngram, file, target)) if file else OnlineNgram(),
    ),
    "copy": DraftName(
        ContextCopy,
        "[FILE]",
        "what followed the same tokens earlier in the text, or in a document",
        lambda file, target, dtype: ContextCopy([_read(file)] if file else None),
    ),
    "input": DraftName(
        InputCopy,
        "[FILE]",
        "the prompt or the source, for outputs that are the input with edits",
        lambda file, target, dtype: InputCopy(_read(file) if file else None),
    ),
    "suffix": DraftName(
        SuffixMemory,
        "[FILE]",
        "past outputs of this run, or those of a saved memory",
        lambda file, target, dtype: SuffixMemory.load(file) if file else SuffixMemory(),
    ),
    "recycling": DraftName(
        TokenRecycling,
        "[FILE]",
        "what the target said after each token",
        lambda file, target, dtype: TokenRecycling.load(file) if file else TokenRecycling(),
    ),
    "lookahead": DraftName(
        Lookahead,
        "[WINDOW,NGRAM]",
        "the target's own guesses ahead of the text",
        lambda numbers, target, dtype: _lookahead(numbers),
    ),
    "exit": DraftName(
        EarlyExit, "LAYER", "the target's first layers", lambda layer, target, dtype: _exit(layer)
    ),
    "skip": DraftName(
        SkipLayers, "ATTN/MLP", "the target without these layers", lambda layers, target, dtype: _skip(layers)
    ),
    "heads": DraftName(
        Heads,
        "[DIR]",
        "heads trained for the target; those in the package",
        lambda folder, target, dtype: (
            Heads(folder, dtype=dtype) if folder else load(EMBEDDED_HEADS, target, dtype=dtype)
        ),
        True,
    ),
    "eagle": DraftName(
        Eagle,
        "MODEL",
        "a published EAGLE draft for the target",
        lambda path, target, dtype: Eagle(path, target, dtype=dtype),
        True,
    ),
    "mtp": DraftName(
        MTP,
        "",
        "the head that the target brings",
        lambda argument, target, dtype: MTP(target, dtype=dtype),
        True,
    ),
    "recurrent": DraftName(
        Recurrent,
        "DIR",
        "a trained recurrent network",
        lambda folder, target, dtype: Recurrent(folder, dtype=dtype),
        True,
    ),
    "pass": DraftName(
        LookAheadEmbeddings,
        "DIR",
        "trained vectors behind the text",
        lambda folder, target, dtype: LookAheadEmbeddings(folder),
    ),
    "random": DraftName(Random, "", "uniform tokens: the floor", lambda argument, target, dtype: Random()),
    "online": DraftName(
        Online,
        "DRAFT",
        "a draft that learns while it serves",
        lambda text, target, dtype: Online(_part(text, target, dtype)),
        True,
    ),
    "ensemble": DraftName(Ensemble, "DRAFT+DRAFT", "several drafts at once", _ensemble, True),
}
"""The words that name drafts."""
