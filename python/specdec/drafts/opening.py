"""Drafts for a target by path (`load`) and by name (`named`)."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import takewhile
from typing import Final

from specdec.checks import check_choice, check_integer, check_path
from specdec.drafts.copies import InputCopy, PromptLookup
from specdec.drafts.draft import MAX_GAMMA, Draft, RandomDraft, check_model
from specdec.drafts.ensemble import Ensemble
from specdec.drafts.learned.eagle.draft import MTP, Assistant, Eagle, local_folder
from specdec.drafts.learned.heads.draft import DecodingHeads
from specdec.drafts.learned.look_ahead.draft import LookAheadEmbeddings
from specdec.drafts.learned.online.online_draft import OnlineDraft
from specdec.drafts.learned.recurrent.draft import RecurrentDraft
from specdec.drafts.memories import MemoryDraft, SuffixDecoding, TokenRecycling
from specdec.drafts.model_draft import ModelDraft, open_stored, prefill_for
from specdec.drafts.ngram import Bigram, Ngram, OnlineNgram, Unigram
from specdec.drafts.self_drafts import EXIT_NAME, EarlyExit, Lookahead, SkipLayers, open_exit
from specdec.drafts.trees import Tree, check_tree
from specdec.errors import CheckpointError, InputError
from specdec.models.loading import embedded_model
from specdec.models.loading import load as load_model
from specdec.models.model import Model
from specdec.models.number_formats import DTYPES, Dtype
from specdec.text_files import read_text_file, reading

_MAX_DEPTH: Final = 8


def load(
    path: str | os.PathLike[str], target: Model, *, dtype: Dtype | None = None,
    tree: Tree | None = None, gamma: int | None = None,
) -> Draft:  # fmt: skip
    """Open a draft for a target from a folder or file. A draft trained for another target is refused.

    Parameters
    ----------
    path : path-like
        - The folder of a learned draft, such as `DecodingHeads`.
        - The folder of a published EAGLE draft, or of a Gemma 4's assistant: opens an `Eagle` or an
          `Assistant`.
        - A GGUF file that holds only the target's multi-token prediction block: opens an `MTP`.
        - The folder `target` was loaded from, if it was trained to exit early (``specdec_exit.json``): opens
          an `EarlyExit` at the layer that the file names.
        - A file saved by `SuffixDecoding`, `TokenRecycling` or `Ngram`.
        - Anything else that `specdec.load` takes: opens a `ModelDraft`.
    target : Model
        The model to draft for.
    dtype, tree, gamma
        See `specdec.drafts`.

    Examples
    --------
    >>> target = specdec.load("path/to/target")
    >>> draft = specdec.drafts.load("path/to/heads", target, tree=specdec.drafts.StaticTree((4, 2, 1)))
    >>> out = specdec.generate(target, draft, "Once upon a time")
    """
    target = check_model("target", target)
    dtype = check_choice("dtype", dtype, DTYPES, optional=True)
    tree = check_tree(tree)
    gamma = None if gamma is None else check_integer("gamma", gamma, 1, MAX_GAMMA)
    draft: Draft
    folder = check_path("path", path, CheckpointError)
    with reading(folder, CheckpointError):
        if (folder / EXIT_NAME).is_file():
            draft = open_exit(folder, target, tree, gamma)
        else:
            draft = open_stored(
                local_folder(path), target, dtype=dtype, tree=tree, gamma=gamma
            ) or ModelDraft(_model(path, target, dtype), tree=tree, gamma=gamma)
    draft.describe(target)  # refuses what does not fit
    return draft


def _model(path: str | os.PathLike[str], target: Model, dtype: Dtype | None) -> Model:
    return load_model(path, dtype, prefill=prefill_for(target))


@dataclass(frozen=True)
class DraftName:
    """A draft class with a short name, and a one-line description."""

    draft: type[Draft]
    argument: str  # after a colon: "" for none, "FILE" if required, "[FILE]" if optional
    meaning: str
    make: Callable[[str, Model, Dtype | None], Draft]  # takes (argument or "", target, number format)
    takes_dtype: bool = False  # the draft or a nested draft has weights

    def usage(self, word: str) -> str:
        """Return the syntax, such as "heads[:DIR]"."""
        if not self.argument:
            return word
        optional = self.argument.startswith("[")
        return f"{word}[:{self.argument[1:]}" if optional else f"{word}:{self.argument}"


def named(text: str, target: Model, *, dtype: Dtype | None = None) -> Draft:
    """Make a draft from its name and an argument after a colon.

    Parameters
    ----------
    text : str
        - One of `specdec.drafts.NAMES`: ``"prompt-lookup"``, ``"ngram:novels.txt"``, ``"lookahead:4,3"``,
          ``"heads:path/to/heads"``, ``"early-exit:4"``, ``"skip-layers:1,3/2"``.
        - ``"ensemble:prompt-lookup+model:path/to/small"``: several drafts by their names.
        - ``"online:model:path"``: a draft that learns while it serves.
        - Anything else: a path or a hub name, as in `specdec.drafts.load`.
    target : Model
        The model to draft for.
    dtype
        See `specdec.drafts`. None for a draft without weights.

    Examples
    --------
    >>> target, _ = specdec.embedded_pair()
    >>> draft = specdec.drafts.named("ensemble:prompt-lookup+embedded", target)
    >>> out = specdec.generate(target, draft, "Once upon a time")
    """
    if not isinstance(text, str) or not text:
        raise InputError.of("draft", text, "a name such as 'prompt-lookup', a path or a hub name")
    check_model("target", target)
    dtype = check_choice("dtype", dtype, DTYPES, optional=True)
    nested = takewhile(lambda word: word in ("ensemble", "online"), text.split(":"))
    if sum(1 for _ in nested) > _MAX_DEPTH:
        raise InputError.of("draft", text, f"at most {_MAX_DEPTH} nested drafts")
    word, colon, argument = text.partition(":")
    name = NAMES.get(word)
    if name is None:
        _refuse_misspelled(text, word)
        return load(text, target, dtype=dtype)
    if not colon and check_path("draft", text).exists():
        expected = f"'./{text}' for the file, or '{text}:' for the draft"
        raise InputError.of("draft", text, expected, f"{text!r}, both a draft name and a file here")
    missing = not argument and name.argument[:1] not in ("", "[")
    if missing or (argument and not name.argument):
        raise InputError.of("draft", text, f"{name.usage(word)}, {name.meaning}")
    if dtype is not None and not name.takes_dtype:
        raise InputError.of("dtype", dtype, f"None: the draft {text!r} has no weights")
    draft = name.make(argument, target, dtype)
    draft.describe(target)  # refuses what does not fit
    return draft


def _refuse_misspelled(text: str, word: str) -> None:
    """Refuse a word that resembles a draft name and is no file; hub names without an owner pass."""
    nearest = get_close_matches(word, NAMES, 1, 0.75)
    if nearest and "/" not in text and not check_path("draft", text).exists():
        names = f"one of {', '.join(NAMES)}; anything else is a path or a hub name"
        raise InputError.of("draft", text, f"{nearest[0]!r}, or {names}")


def _read(argument: str) -> str:
    return read_text_file(check_path("draft", argument), "a text", name="draft")


def _table(draft_type: type[Ngram]) -> Callable[[str, Model, Dtype | None], Ngram]:
    """Return a function that loads a saved table, or counts a text file."""

    def make(argument: str, target: Model, dtype: Dtype | None) -> Ngram:
        path = check_path("draft", argument)
        if path.suffix == ".safetensors":
            return draft_type.load(path)
        return draft_type.from_text(path, target)

    return make


def _mtp(argument: str, target: Model, dtype: Dtype | None) -> MTP:
    """Open an MTP draft with a number of tokens, those that a file counts, or from a folder or GGUF file."""
    if argument.isdecimal():
        return MTP(target, head_tokens=int(argument), dtype=dtype)
    if not argument or argument.endswith(".gguf") or check_path("draft", argument).is_dir():
        return MTP(target, argument or None, dtype=dtype)
    if not check_path("draft", argument).exists():
        expected = "a number of tokens, a text, or a folder or GGUF file with the block"
        raise InputError.of("draft", argument, expected)
    return MTP(target, head_tokens=_table(Unigram)(argument, target, None), dtype=dtype)


def _memory(draft_type: type[MemoryDraft]) -> Callable[[str, Model, Dtype | None], Draft]:
    """Return a function that loads a saved memory, or makes an empty one."""
    return lambda file, target, dtype: draft_type.load(file) if file else draft_type()


def _integers(argument: str, expected: str, n: int | None = None) -> list[int]:
    """Parse comma-separated integers; refuse any other number of them than `n`."""
    try:
        found = [int(part) for part in argument.split(",") if part]
    except ValueError:
        found, n = [], -1
    if n is not None and len(found) != n:
        raise InputError.of("draft", argument, expected)
    return found


def _skip(argument: str) -> SkipLayers:
    attn, slash, mlp = argument.partition("/")
    expected = "ATTN/MLP, layers such as 1,3/2, or LAYERS of which both are skipped"
    layers = _integers(attn, expected)
    return SkipLayers(layers, _integers(mlp, expected) if slash else layers)


def _windowed(argument: str, target: Model, dtype: Dtype | None) -> Draft:
    """Make a model draft with a window of its own."""
    tokens, _, model = argument.partition(":")
    expected = "TOKENS:MODEL, such as 512:path/to/small"
    (window,) = _integers(tokens, expected, 1)
    small = _part(model, target, dtype) if model else None
    if type(small) is not ModelDraft:
        raise InputError.of("draft", argument, expected)
    return ModelDraft(small.model, window=window)


def _part(text: str, target: Model, dtype: Dtype | None) -> Draft:
    """Make a nested draft; drafts without weights ignore the number format."""
    name = NAMES.get(text.partition(":")[0])
    return named(text, target, dtype=dtype if name is None or name.takes_dtype else None)


NAMES: Final[dict[str, DraftName]] = {
    "embedded": DraftName(
        ModelDraft, "", "the bundled draft model",
        lambda _, target, dtype: ModelDraft(embedded_model("draft", dtype, prefill_for(target))), True),
    "model": DraftName(
        ModelDraft, "MODEL", "a smaller model: path or hub name",
        lambda path, target, dtype: ModelDraft(_model(path, target, dtype)), True),
    "window": DraftName(
        ModelDraft, "TOKENS:MODEL", "a smaller model with a window of its own", _windowed, True),
    "unigram": DraftName(Unigram, "FILE", "token frequencies of a text", _table(Unigram)),
    "bigram": DraftName(Bigram, "FILE", "2-grams of a text", _table(Bigram)),
    "ngram": DraftName(Ngram, "FILE", "3-grams of a text, or a saved table (.safetensors)", _table(Ngram)),
    "online-ngram": DraftName(
        OnlineNgram, "[FILE]", "n-grams that also count the text being generated",
        lambda file, target, dtype: OnlineNgram(*([_table(Ngram)(file, target, dtype)] if file else []))),
    "prompt-lookup": DraftName(
        PromptLookup, "[FILE]", "copies of what followed the same tokens in the text, or in a document",
        lambda file, target, dtype: PromptLookup([_read(file)] if file else None)),
    "input-copy": DraftName(
        InputCopy, "[FILE]", "copies of the prompt or source, for outputs that edit their input",
        lambda file, target, dtype: InputCopy(_read(file) if file else None)),
    "suffix-decoding": DraftName(
        SuffixDecoding, "[FILE]", "copies from past outputs, of this run or a saved memory",
        _memory(SuffixDecoding)),
    "token-recycling": DraftName(
        TokenRecycling, "[FILE]", "the target's last predictions after each token", _memory(TokenRecycling)),
    "lookahead": DraftName(
        Lookahead, "[WINDOW,NGRAM]", "lookahead decoding: the target's own predictions",
        lambda text, target, dtype:
            Lookahead(*(_integers(text, "WINDOW,NGRAM, two integers", 2) if text else ()))),
    "early-exit": DraftName(
        EarlyExit, "LAYER", "the target's first layers",
        lambda layer, target, dtype: EarlyExit(*_integers(layer, "LAYER, one integer", 1))),
    "skip-layers": DraftName(
        SkipLayers, "ATTN/MLP", "the target without some layers",
        lambda layers, target, dtype: _skip(layers)),
    "heads": DraftName(
        DecodingHeads, "DIR", "decoding heads trained for the target",
        lambda folder, target, dtype: DecodingHeads(folder, dtype=dtype), True),
    "eagle": DraftName(
        Eagle, "MODEL", "a published EAGLE draft for the target",
        lambda path, target, dtype: Eagle(path, target, dtype=dtype), True),
    "mtp": DraftName(
        MTP, "[TOKENS]",
        "the target's multi-token prediction block; TOKENS: number, a text to count, or the block's file",
        _mtp, True),
    "assistant": DraftName(
        Assistant, "MODEL", "a Gemma 4's assistant",
        lambda path, target, dtype: Assistant(target, path, dtype=dtype), True),
    "recurrent": DraftName(
        RecurrentDraft, "DIR", "a trained recurrent network",
        lambda folder, target, dtype: RecurrentDraft(folder, dtype=dtype), True),
    "pass": DraftName(
        LookAheadEmbeddings, "DIR", "trained look-ahead embeddings (PaSS)",
        lambda folder, target, dtype: LookAheadEmbeddings(folder)),
    "random": DraftName(
        RandomDraft, "", "uniform tokens, a baseline", lambda _, target, dtype: RandomDraft()),
    "online": DraftName(
        OnlineDraft, "DRAFT", "a draft that learns while it serves",
        lambda text, target, dtype: OnlineDraft(_part(text, target, dtype)), True),
    "ensemble": DraftName(
        Ensemble, "DRAFT+DRAFT", "several drafts at once",
        lambda text, target, dtype: Ensemble(*(_part(part, target, dtype) for part in text.split("+"))),
        True),
}  # fmt: skip
"""Drafts by the name that the command line takes."""
