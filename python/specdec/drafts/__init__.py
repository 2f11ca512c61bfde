"""Drafts that are no neural model: n-gram tables (arXiv 2211.17192, sections 3.6 and 4.2), and objects in
Python.
"""

from __future__ import annotations

from specdec.drafts.bigram import Bigram
from specdec.drafts.draft import Draft
from specdec.drafts.lookahead import Lookahead
from specdec.drafts.protocol import Drafter, Proposal, PythonDraft
from specdec.drafts.unigram import Unigram

__all__ = ["Bigram", "Draft", "Drafter", "Lookahead", "Proposal", "PythonDraft", "Unigram"]
