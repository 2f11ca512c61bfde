"""Ways to draft: models, tables, copying, the target itself, several at once, objects of the caller's own."""

from __future__ import annotations

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
from specdec.drafts.naming import NAMES, DraftName, named
from specdec.drafts.ngram import Bigram, Ngram, Unigram
from specdec.drafts.online.heads_learner import HeadsLearner
from specdec.drafts.online.learner import Learner
from specdec.drafts.online.network_learner import NetworkLearner
from specdec.drafts.online.online_draft import Online
from specdec.drafts.online.table_learner import TableLearner
from specdec.drafts.online_ngram import OnlineNgram
from specdec.drafts.opening import load
from specdec.drafts.python_draft import Drafter, Proposal, PythonDraft
from specdec.drafts.random_draft import Random
from specdec.drafts.skip_layers import SkipLayers
from specdec.drafts.suffix_memory import SuffixMemory
from specdec.drafts.token_recycling import TokenRecycling
from specdec.drafts.trees import DynamicTree, ParallelChains, StaticTree

__all__ = [
    "MTP",
    "NAMES",
    "Bigram",
    "ContextCopy",
    "Draft",
    "DraftName",
    "Drafter",
    "DynamicTree",
    "Eagle",
    "EarlyExit",
    "Ensemble",
    "Heads",
    "HeadsLearner",
    "InputCopy",
    "Learner",
    "LookAheadEmbeddings",
    "Lookahead",
    "ModelDraft",
    "NetworkLearner",
    "Ngram",
    "Online",
    "OnlineNgram",
    "ParallelChains",
    "Proposal",
    "PythonDraft",
    "Random",
    "Recurrent",
    "SkipLayers",
    "StaticTree",
    "SuffixMemory",
    "TableLearner",
    "TokenRecycling",
    "Unigram",
    "load",
    "named",
]
