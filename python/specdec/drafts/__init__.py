"""Ways to draft: tables, copying, the target itself, several at once, and objects of the caller's own."""

from __future__ import annotations

from specdec.drafts.draft import Draft
from specdec.drafts.lookahead import Lookahead
from specdec.drafts.ngram import Bigram, Ngram, Unigram
from specdec.drafts.online_ngram import OnlineNgram
from specdec.drafts.protocol import Drafter, Proposal, PythonDraft
from specdec.drafts.random import Random

__all__ = [
    "Bigram",
    "Draft",
    "Drafter",
    "Lookahead",
    "Ngram",
    "OnlineNgram",
    "Proposal",
    "PythonDraft",
    "Random",
    "Unigram",
]
