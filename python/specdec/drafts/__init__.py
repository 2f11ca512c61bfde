"""Draft methods: models, n-gram tables, copying, the target itself, ensembles and Python objects.

Constructor arguments are attributes of the same names; a wrong type or value raises an `InputError` that
names the argument. Missing, damaged or unrelated files raise a `CheckpointError`, and tokens that differ from
the target's a `VocabularyMismatchError`. Many classes share these parameters:

gamma : int, optional
    Default number of draft tokens per round, up to 1024. None: 4 or the number of tree nodes, unless the
    class says otherwise.
tree : ParallelChains, StaticTree or DynamicTree, optional
    Shape of a draft tree, which the target verifies in one pass. None: a chain.
dtype : {None, "f32", "bf16", "int8", "int4"}
    Number format of the draft's own matrices. None: the format of the file.
n_threads : int, optional
    Threads that pack the weights. None: :func:`specdec.threads.default_threads`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # every public name, for type checkers
    from specdec.drafts.copies import InputCopy, PromptLookup
    from specdec.drafts.draft import Draft, RandomDraft
    from specdec.drafts.ensemble import Ensemble
    from specdec.drafts.learned.eagle.draft import MTP, Assistant, Eagle
    from specdec.drafts.learned.heads.draft import DecodingHeads
    from specdec.drafts.learned.heads.online_trainer import OnlineHeadsTrainer
    from specdec.drafts.learned.look_ahead.draft import LookAheadEmbeddings
    from specdec.drafts.learned.online.online_draft import OnlineDraft
    from specdec.drafts.learned.online.online_trainer import (
        OnlineNetworkTrainer,
        OnlineTableTrainer,
        OnlineTrainer,
    )
    from specdec.drafts.learned.recurrent.draft import RecurrentDraft
    from specdec.drafts.memories import SuffixDecoding, TokenRecycling
    from specdec.drafts.model_draft import ModelDraft
    from specdec.drafts.ngram import Bigram, Ngram, OnlineNgram, Unigram
    from specdec.drafts.opening import NAMES, DraftName, load, named
    from specdec.drafts.python_draft import Drafter, Proposal, PythonDraft
    from specdec.drafts.self_drafts import EarlyExit, Lookahead, SkipLayers
    from specdec.drafts.trees import DynamicTree, ParallelChains, StaticTree

_NAMES = {  # public names of each module; the first use of a name imports its module
    "copies": "PromptLookup InputCopy",
    "draft": "Draft RandomDraft",
    "ensemble": "Ensemble",
    "learned.eagle.draft": "Assistant MTP Eagle",
    "learned.heads.draft": "DecodingHeads",
    "learned.heads.online_trainer": "OnlineHeadsTrainer",
    "learned.look_ahead.draft": "LookAheadEmbeddings",
    "learned.online.online_trainer": "OnlineTrainer OnlineNetworkTrainer OnlineTableTrainer",
    "learned.online.online_draft": "OnlineDraft",
    "learned.recurrent.draft": "RecurrentDraft",
    "model_draft": "ModelDraft",
    "ngram": "Bigram Ngram OnlineNgram Unigram",
    "opening": "NAMES DraftName load named",
    "python_draft": "Drafter Proposal PythonDraft",
    "self_drafts": "EarlyExit Lookahead SkipLayers",
    "memories": "SuffixDecoding TokenRecycling",
    "trees": "DynamicTree ParallelChains StaticTree",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "MTP",
    "NAMES",
    "Assistant",
    "Bigram",
    "DecodingHeads",
    "Draft",
    "DraftName",
    "Drafter",
    "DynamicTree",
    "Eagle",
    "EarlyExit",
    "Ensemble",
    "InputCopy",
    "LookAheadEmbeddings",
    "Lookahead",
    "ModelDraft",
    "Ngram",
    "OnlineDraft",
    "OnlineHeadsTrainer",
    "OnlineNetworkTrainer",
    "OnlineNgram",
    "OnlineTableTrainer",
    "OnlineTrainer",
    "ParallelChains",
    "PromptLookup",
    "Proposal",
    "PythonDraft",
    "RandomDraft",
    "RecurrentDraft",
    "SkipLayers",
    "StaticTree",
    "SuffixDecoding",
    "TokenRecycling",
    "Unigram",
    "load",
    "named",
]  # fmt: skip

if not TYPE_CHECKING:  # hide __getattr__ from type checkers, which would accept any name

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
        return globals()[name]


def __dir__() -> list[str]:
    return __all__
