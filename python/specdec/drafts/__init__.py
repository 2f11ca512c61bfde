"""Ways to draft: models, tables, copying, the target itself, several at once, objects of the caller's own."""

from __future__ import annotations

from specdec.drafts.best import Best
from specdec.drafts.context_copy import ContextCopy
from specdec.drafts.draft import Draft
from specdec.drafts.early_exit import EarlyExit
from specdec.drafts.input_copy import InputCopy
from specdec.drafts.lookahead import Lookahead
from specdec.drafts.model_draft import ModelDraft
from specdec.drafts.ngram import Bigram, Ngram, Unigram
from specdec.drafts.online_ngram import OnlineNgram
from specdec.drafts.python_draft import Drafter, Proposal, PythonDraft
from specdec.drafts.random_draft import Random
from specdec.drafts.shapes import Chains, Grown, Shape
from specdec.drafts.skip_layers import SkipLayers

__all__ = [
    "Best",
    "Bigram",
    "Chains",
    "ContextCopy",
    "Draft",
    "Drafter",
    "EarlyExit",
    "Grown",
    "InputCopy",
    "Lookahead",
    "Model",
    "ModelDraft",
    "Ngram",
    "OnlineNgram",
    "Proposal",
    "PythonDraft",
    "Random",
    "Shape",
    "SkipLayers",
    "Unigram",
]

Model = ModelDraft
"""The former name of `ModelDraft`, until version 0.3."""
