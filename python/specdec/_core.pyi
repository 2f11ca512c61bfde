"""The C core as Python sees it. Everything public is re-exported, with its documentation, by `specdec`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypedDict

import numpy as np
from numpy.typing import NDArray

from specdec.models.number_formats import CacheDtype, Dtype, PrefillMethod
from specdec.trace import Round
from specdec.verification.rules import Rule

_Ids: TypeAlias = Sequence[int] | NDArray[np.integer[Any]]
_Ints: TypeAlias = NDArray[np.int32]
_Floats: TypeAlias = NDArray[np.float32]
_Doubles: TypeAlias = NDArray[np.float64]
_Draft: TypeAlias = Model | Ngram | tuple[str, dict[str, Any]]
"""A method's name and its arguments by name, which may be such tuples themselves."""
_FileRows: TypeAlias = tuple[Any, int, int, int, NDArray[np.int64] | None]
"""(file, start, n_rows, row_bytes, order): rows of a matrix that are still in a file."""

class SlotRound(NamedTuple):
    """What a round did in one slot."""

    slot: int
    round: Round
    """Of a sequence that has failed: without tokens. `kept` is the number of tokens."""
    error: BaseException | None
    """Why the sequence has failed in the round."""
    complete: bool
    """Whether the text has ended because its constraint is complete."""
    n_rows: int
    """Rows that the target was run on: nodes with equal tokens from the root are one."""
    logits: _Floats | None
    """[n_tokens, n_vocab] target logits each new token was chosen from; None unless asked for."""
    logprobs: tuple[_Doubles, _Ints, _Doubles] | None
    """Of each new token: ln p [n], the most probable tokens [n, n_top] (-1: none), their ln p [n, n_top]."""
    origins: tuple[int, ...] | None
    """Which draft of an ensemble each drafted node is of; None where the sequence has no prediction."""
    drafts: dict[str, Any] | None
    """In builds with test hooks, after `_keep_drafts`: what the nodes were drawn from."""

class BeamRecord(TypedDict):
    """What one round of a beam search did; seconds of the draft, of the target, elsewhere."""

    n_nodes: int
    n_drafted: int
    n_draft_calls: int
    n_levels: int
    draft_s: float
    verify_s: float
    other_s: float

class BeamRow(TypedDict):
    """A hypothesis: new tokens, the stop id that ended it included; sum of ln p; whether it has ended."""

    tokens: list[int]
    score: float
    ended: bool

class Model:
    """Immutable, packed weights. Shared freely between sessions and threads."""

    def __init__(
        self, config: Mapping[str, Any], tensors: Iterable[tuple[str, NDArray[Any] | _FileRows, str]], *,
        dtype: Dtype = "f32", cache_dtype: CacheDtype = "f32", prefill: PrefillMethod = "rows",
        n_threads: int = 1, target: Model | None = None, packed: Sequence[memoryview] | None = None,
        formats: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """target : whose token table or head the configuration shares, for a model that drafts for it.

        packed : the writable blocks of a model of this configuration and these formats, in place of tensors.

        formats : of matrices, and of the table of tokens, by name: those of a GGUF file; others have `dtype`.
        """
    def adapted(
        self,
        ranks: Mapping[str, int],
        tensors: Iterable[tuple[str, NDArray[Any], str]],
        *,
        n_threads: int = 1,
    ) -> Model:
        """A model over these weights with low-rank matrices beside some of them, which it owns.

        ranks : of the tensors that are adapted, by canonical name.

        tensors : "NAME.down" [rank, inputs] and "NAME.up" [outputs, rank] of each.
        """
    def block_sizes(self) -> tuple[int, ...]:
        """Bytes of the memory of the model, and of that of its encoder."""
    def block(self, i: int, first: int, n: int, /) -> bytes:
        """Bytes [first, first + n) of block i; a ValueError if they are not there."""
    def encode(self, ids: _Ids, *, n_threads: int = 1) -> _Floats:
        """What the encoder makes of a source, after its last norm: [len(ids), d_model]."""
    def matrix(self, name: str) -> _Floats:
        """A packed matrix, by canonical name, as it is computed with: [n_rows, n_cols]."""
    def token_table(self) -> _Floats:
        """The embeddings of all tokens as they are stored, before scale and norm: [n_vocab, d_model]."""
    base: Final[Model | None]
    """The model whose weights an adapted model has; None: it is not adapted."""
    cache_dtype: Final[CacheDtype]
    config: Final[dict[str, Any]]
    dtype: Final[Dtype | Literal["file"]]
    """Number format of the matrices; "file": those of `formats`."""
    layout: Final[int]
    """What lies where in its blocks, as a number."""
    n_bytes: Final[int]
    n_parameters: Final[int]
    prefill: Final[PrefillMethod]
    prompt_slice: Final[int]
    """Tokens of prompts that a forward reads, of one text or of several."""

class Ngram:
    """Counts of n-grams, as a trie in sorted arrays: an immutable draft that costs next to nothing."""

    def __init__(
        self,
        unigrams: _Ints,
        levels: tuple[tuple[NDArray[np.int64], _Ints, _Ints], ...],
        back_off: bool = False,
    ) -> None:
        """What `specdec.drafts.Ngram` counted, checked. The arrays of levels are borrowed and kept alive.

        unigrams : [n_vocab]; of each level, (starts, tokens, counts): [n_shorter + 1], [n_grams], [n_grams].
        """

class LookAheadEmbeddings:
    """Vectors behind a text, after which its target guesses ahead; immutable."""

    def __init__(self, embeddings: _Floats) -> None:
        """embeddings : [n_tokens, d_model], copied."""
    n_tokens: Final[int]
    d_model: Final[int]

class Recurrent:
    """The weights of a recurrent draft, immutable: gated recurrent units and a head."""

    def __init__(
        self, config: Mapping[str, int], tensors: Iterable[tuple[str, NDArray[Any], str]], *,
        tokens: _Ids | None = None, dtype: Dtype = "f32", n_threads: int = 1,
    ) -> None:  # fmt: skip
        """config : n_vocab, n_draft_vocab, d_embed, d_hidden, n_layers; see `specdec.drafts.Recurrent`.

        tokens : [n_draft_vocab] the token that each output stands for; None: output i for token i.
        """
    def logits(self, ids: _Ids, /) -> _Floats:
        """What follows each token of a text: [len(ids), n_vocab], -inf for tokens that no output is for."""
    dtype: Final[Dtype]
    n_bytes: Final[int]
    n_parameters: Final[int]

class Eagle:
    """A small model that drafts from the target's hidden states. Immutable; shared as a Model is."""

    def __init__(
        self,
        model: Model,
        *,
        layers: Sequence[int],
        tokens: _Ids | None = None,
        normed_feedback: bool = False,
    ) -> None:
        """model : with features. layers : hidden states of the target whose concatenation is a feature.

        tokens : [rows of the head], the target's token of each of the draft's, all different; None: the same.
        normed_feedback : whether guesses read what comes after the draft's last norm, not before it.
        """
    model: Final[Model]

class Heads:
    """Heads on a target's hidden states, which guess tokens some places ahead: immutable, packed weights."""

    def __init__(
        self, config: Mapping[str, int], tensors: Iterable[tuple[str, NDArray[Any], str]], *,
        tokens: _Ids | None = None, dtype: Dtype = "f32", n_threads: int = 1,
    ) -> None:  # fmt: skip
        """config : n_heads, n_blocks, see_draft_tokens, shared_output, n_draft_vocab; d_model and n_vocab.

        tokens : the target's token of each of the n_draft_vocab that may be guessed; None: the same.
        """
    dtype: Final[Dtype]
    n_bytes: Final[int]
    n_parameters: Final[int]

class Automaton:
    """The suffix automaton of a text (Blumer et al. 1985): which pieces occur in it, and where. Immutable."""

    def __init__(self, ids: _Ints) -> None:
        """ids : [n_tokens], with -1 between two texts. O(n_tokens) in time, whatever the text."""
    def find(self, ids: Sequence[int], /) -> tuple[int, int]:
        """The longest suffix of ids in the text: (length, index of its last token there), or (0, -1)."""
    def repeated(self) -> tuple[int, int]:
        """The longest suffix of the text that occurs earlier in it too, as `find`."""
    n_tokens: Final[int]
    """Tokens of the text, separators included."""
    n_states: Final[int]
    """At most twice the tokens and one."""
    n_bytes: Final[int]

class Translation:
    """A model of another vocabulary than its target's, and how the two understand each other; immutable."""

    def __init__(
        self, model: Model, target_strings: bytes, draft_strings: bytes, arrays: Mapping[str, _Ints],
        target_strips: bool, draft_strips: bool, for_draft: Callable[[str, int], Sequence[int]],
        for_target: Callable[[str, int], Sequence[int]],
        source: Callable[[Sequence[int]], Sequence[int]] | None,
    ) -> None:  # fmt: skip
        """target_strings, draft_strings : the bytes of all tokens, one after the other.

        arrays : target_starts [n_target + 1] and draft_starts [n_draft + 1], where each begins; draft_of
        [n_target] and target_of [n_draft], the other side's same token, or -1; byte_tokens [256], the draft's
        token of each byte, or -1; first and target_first, what texts of draft and target begin with.
        target_strips, draft_strips : a space at the beginning of a text in its tokens is no text.
        for_draft : the draft's ids of a text, and whether nothing precedes it.
        for_target : the target's ids of a text after its first bytes, so many.
        source : the ids that the draft's encoder reads for a source in the target's.
        """
    def read(self, texts: Sequence[_Ids], /) -> list[int]:
        """The draft's ids of the last of texts in the target's, as they are read one after the other."""
    n_shared: Final[int]
    """Tokens that both vocabularies have."""
    encoded: Final[tuple[int, float]]
    """Calls of tokenizers so far, and their seconds."""
    shares: Final[tuple[int, float]]
    """Distributions of the draft so far, and the sum of the shares that the target can name."""

class SuffixTree:
    """A suffix tree of past outputs that can be added to while sessions of several threads read it."""

    def __init__(self, max_tokens: int, depth: int) -> None:
        """The oldest texts leave where there would be more tokens; `depth` tokens of a suffix count."""
    def add(self, tokens: _Ints, lengths: _Ids, n_before: _Ids, /) -> None:
        """Add texts, one after the other in tokens; one thread at a time.

        Text i has lengths[i] tokens: n_before[i] of a prompt, or of its end, and then an output.
        """
    def find(self, ids: Sequence[int], /) -> tuple[int, int]:
        """The longest suffix of ids that an output's token follows: (length, how often)."""
    def texts(self) -> tuple[_Ints, _Ints, _Ints]:
        """The texts, the oldest first, as `add` takes them."""
    n_tokens: Final[int]
    n_texts: Final[int]
    n_bytes: Final[int]
    max_token: Final[int]
    """The highest token, at least 0."""

class TokenMatrix:
    """The most promising next tokens of every token; threads share it."""

    def __init__(self, rows: _Ints) -> None:
        """rows : [n_vocab, k], the best first, -1 where there is none; copied."""
    def rows(self) -> _Ints:
        """A copy of the matrix, [n_vocab, k]."""

class Decoder:
    """One sequence's KV cache and scratch over a model: the forward pass, without any decoding rule."""

    def __init__(
        self, model: Model, *, capacity: int, max_nodes: int = 1, n_threads: int = 1, n_vocab: int = 0,
        source: _Ids | None = None, captures: Sequence[int] | None = None, input_sums: bool = False,
    ) -> None:  # fmt: skip
        """`n_vocab`: ids of another model that this one guesses for; 0: its own.

        What the model lacks has the logit -inf, and is read as the model's last token. A model with an
        encoder needs a `source`, which is encoded here; another takes none.

        `captures`: the hidden states that are kept, by how many layers come before them: 0, the embedding, to
        n_layer, the residual stream after all layers; n_layer + 1: what the head reads.

        `input_sums`: sums of squares of what the row kernels multiply with matrices are kept; for one thread.
        """
    def prefill(
        self, ids: _Ids, *, logits: bool = False, last: bool = False, finite: bool = False
    ) -> _Floats | None:
        """Append a prompt. With ``logits``, return [len(ids), n_vocab]; with ``last``, [n_vocab] of the last.

        With ``finite`` numbers that are not raise NotFiniteError, and nothing is appended.
        """
    def forward(self, tokens: Sequence[int], parents: Sequence[int]) -> _Floats:
        """Logits [n_nodes, n_vocab] of a tree on the cache (``parents[0]`` is -1). Commits nothing."""
    def captured(self, layer: int) -> _Floats:
        """A hidden state of `captures` [n, d_model]: committed tokens, then the last forward's nodes."""
    def input_sums(self, name: str) -> tuple[_Doubles, int]:
        """Of a matrix by canonical name: sums of squares of its inputs [n_in], over how many rows.

        Queries, keys and values have one input; so do gate and up. The inputs of an expert are those of the
        rows that go through it. ValueError for the name of no matrix, or of one of an encoder.
        """
    def keep(self, path: Sequence[int]) -> None:
        """Commit the nodes of ``path`` (from node 0 down) of the last forward; drop the others."""
    def cut(self, n: int) -> None:
        """Keep the first `n` tokens and no nodes; no tokens where a window has moved on past them."""
    n_committed: Final[int]
    """Tokens kept in the cache."""
    experts_read: Final[int]
    """Experts that all forward passes so far have read, counted in all layers; no shared ones."""

class CachedText:
    """The keys and values of a text; `Session.cached_text` makes it. Immutable, for any number of threads."""

    tokens: Final[_Ints]
    """The token ids of the text, [n_tokens]; a copy."""
    source: Final[_Ints | None]
    """The ids of the source that the text has; a copy. None for a model without an encoder."""
    model: Final[Model]
    n_low: Final[int]
    """Texts that agree with fewer tokens than these cannot begin with it: windows have moved on."""
    captures: Final[tuple[int, ...]]
    """The hidden states that it has of each token, as `Decoder` names them."""
    n_bytes: Final[int]

class Corrections:
    """Where a target refused a draft's guesses, and what it says there; any threads' sessions store."""

    def __init__(
        self, n: int, n_before: int, n_top: int, n_hidden: int = 0, everywhere: bool = False
    ) -> None:
        """Room for `n`, of which the oldest goes first.

        n_hidden: 0, or how many floats the draft reads of a token's hidden states. everywhere: positions at
        which the draft was right are stored too.
        """
    def take(self) -> dict[str, NDArray[Any]]:
        """The corrections since the last call, the oldest first, by field; none of them stays."""
    n: Final[int]
    """How many there are."""

class Settings:
    """How a sequence is decoded. They never change: sequences and sessions may share them."""

    def __init__(
        self, *, max_new_tokens: int, sampling: dict[str, Any], gamma: int = ..., rule: Rule = "rejection",
        lenience: float = 1.0, draft_sampling: dict[str, Any] = ...,
        transform: Callable[[_Doubles, list[int]], _Doubles] | Any | None = None,
        constraint: Any | None = None, stop_ids: Sequence[int] | None = None, law: str = ..., n_top: int = 0,
        drafters: int | None = None, prediction: Sequence[int] | None = None, model: Model | None = None,
    ) -> None:  # fmt: skip
        """A sequence ends with the round that gives a stop id.

        `sampling` and `draft_sampling`, by default the same, have the keys of `specdec.Sampling`, as its
        method `core` makes them; temperature has no default.

        `transform` is a function of (probs, tokens), or an object with the method start(tokens), whose states
        have fork(), advance(token) and are functions of probs. `constraint` has start(tokens) too, and states
        with fork(), advance(token) and mask(): which tokens may come next, None where the text is complete.

        `gamma` is how many guesses a round may have where the session allows more. `drafters`: bit i says
        whether draft i of an ensemble may guess; None: all may. `prediction` is what drafts that copy
        predictions copy from.

        `law` asks for log-probabilities of new tokens (`SlotRound.logprobs`): "model", of the target's
        logits, or "sampling", of what is sampled from. `n_top` is how many of the most probable tokens.

        `model` is whose text it is, one with an adapter over the target's weights; None: the target's.
        """

class Session:
    """The rounds of one batch: KV caches of target and draft, scratch, random numbers."""

    def __init__(
        self, target: Model, draft: _Draft | None, /, *, gamma: int, n_slots: int, n_text: int,
        n_threads: int, settings: Settings | None = None, max_top: int = 0, keep_logits: bool = False,
        node_budget: int = 0, adaptive_gamma: AdaptiveGamma | None = None,
    ) -> None:  # fmt: skip
        """Make empty slots for sequences of `n_text` tokens at most, prompt and new.

        All sequences have settings like `settings`: none draws guesses, couples draws, has a constraint or
        more top tokens unless these do. None: any settings, with `max_top` top tokens at most.

        `gamma` is how many guesses a sequence may have in a round. `node_budget` is how many rows the target
        is run on in a round at most, at least one for each slot; 0: as many as gamma asks for.

        `adaptive_gamma` is new or an earlier session's: gamma, the most, is then chosen round by round
        (decode/drafter_policy.h). What it has learned is copied.
        """
    def admit(
        self, slot: int, prompt: Sequence[int], seed: tuple[int, int], settings: Settings,
        source: Sequence[int] | None = None, /,
    ) -> None:  # fmt: skip
        """Give an empty slot, or that of a finished sequence, to a prompt, which must then be read.

        `source` is what models with an encoder read beside it.
        """
    def check(self, settings: Settings, /) -> None:
        """Raise what `admit` would raise for these settings; nothing once closed. Any thread may call it."""
    def prefill_slice(self) -> list[int]:
        """Read one slice of the prompts, with target or draft; return the slots whose prompts are not in yet.

        Sequences whose prompts are in may have rounds between the slices of others. Sources are encoded
        first, equal ones once. What a prompt has in common with the beginning of another sequence's text, or
        of its predecessor's, with the same source is copied.
        """
    def round(
        self, seconds: float = 0.0, *, until_end: bool = False, gammas: Sequence[int] | None = None
    ) -> list[SlotRound]:
        """One round for every unfinished sequence whose prompt is in, without the GIL; [] if there is none.

        More rounds follow until `seconds` have passed, or some 64 records are there, or with `until_end` a
        sequence has ended; not with `keep_logits`. gammas [n_sequences]: guesses of each sequence in these
        rounds at most, where that is less than the session's gamma; -1: it takes no rounds.
        """
    def swap(self, corrections: Corrections, draft: _Draft, /) -> None:
        """Let another draft take the place of the one that is watched with `corrections`, between rounds.

        It is the same method with other weights: its trees and the hidden states that it reads are of the
        same kind. The texts so far must be read (`prefill_slice`) before the next round. Nothing has changed
        if this fails.
        """
    def begin_with(self, sequence: int, text: CachedText, /) -> int:
        """Begin a prompt that is not read yet with a copy of what a text of the same source has of it.

        The text is one of the target or of a model that drafts. Returns how many of the prompt's tokens are
        there then.
        """
    def cached_text(self, sequence: int, model: Model | None = None, /) -> CachedText:
        """The keys and values of a sequence's text so far, but for its last tokens; a copy.

        Those of the target, or of a model that drafts, where that has a cache of its own.
        """
    def cached_size(
        self, sequence: int, model: Model | None = None, /
    ) -> tuple[list[int], list[int] | None, int, int]:
        """Tokens and source of this copy, the memory that it takes, and its n_low.

        Until the model has begun to read a text, they are those of the text that had the slot before.
        """
    def captures(self, sequence: int, model: Model | None = None, /) -> tuple[int, ...]:
        """The hidden states that a text is kept with, for drafts that read them: `CachedText.captures`."""
    def finish(self, sequence: int) -> None:
        """Take no more rounds for this sequence, and read no more of its prompt."""
    def close(self) -> None:
        """Free caches and scratch now; idempotent."""
    adaptive_gamma: Final[AdaptiveGamma | None]
    """A copy of what the session has learned of its rounds; None if it was made without."""

class BeamSearch:
    """The rounds of a beam search, plain (no draft, or gamma 0) or by speculation (appendix A.4)."""

    def __init__(
        self, target: Model, draft: Model | None, prompt: Sequence[int], *, width: int, draft_width: int,
        gamma: int, max_new_tokens: int, stop_ids: Sequence[int] = (), n_threads: int = 1,
        source: Sequence[int] | None = None,
    ) -> None: ...  # fmt: skip
    def prefill_slice(self) -> bool:
        """Read a slice of the prompt with target or draft; return whether there is more to read."""
    def round(self, seconds: float = 0.0) -> list[BeamRecord]:
        """A round, without the GIL, and more until `seconds` have passed or 64 are made. [] at the end."""
    def beams(self) -> list[BeamRow]:
        """The hypotheses so far, best first."""
    def begin_with(self, text: CachedText, /) -> int:
        """Begin the prompt, which is not read yet, with what a text of the target or of the draft has of it.

        The text has the search's source. Returns how many of the prompt's tokens are there then.
        """
    def cached_text(self, model: Model, /) -> CachedText:
        """The keys and values of the prompt, and of what all hypotheses have in common; a copy."""
    def cached_size(self, model: Model, /) -> tuple[list[int], int, int]:
        """The tokens of this copy, the memory that it takes, and its n_low."""
    def close(self) -> None:
        """Free caches and scratch now; idempotent."""
    drafts: Final[bool]
    """Whether a draft reads the prompt: there is one, it has room for it, and it may guess."""

class AdaptiveGammaView(TypedDict):
    """What gamma="auto" has learned, for rounds of one sequence; see `specdec.AdaptiveGamma.to_dict`."""

    target_s: list[float]
    """[65] seconds of a round by its guesses, without those of drafting them."""
    draft_s: list[float]
    """[65] seconds of drafting, by steps."""
    chance: list[float]
    """[65] chance of a guess at a depth whose confidence is not known yet; the first is 1."""
    by_confidence: list[tuple[float, float, float]]
    """(confidence, chance at depth 1, guesses)."""
    rate: float
    """Tokens per second."""
    plain_rate: float
    """Tokens per second of plain decoding."""
    rest_left: float
    """Tokens to come without drafting."""

class AdaptiveGamma:
    """What gamma="auto" has learned; nothing at first."""

    def copy(self) -> AdaptiveGamma:
        """Another one that has learned the same."""
    def view(self) -> AdaptiveGammaView:
        """What was learned, in units."""

def tensor_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every tensor a model of this configuration needs, by canonical name."""

def score_texts(
    model: Model, texts: tuple[_Ints, _Ints], n_given: _Ints, *, sources: tuple[_Ints, _Ints] | None = None,
    n_top: int = 0, n_texts: int = 0, n_threads: int = 1, done: Callable[[int], object] | None = None,
    keep: bool = False,
) -> tuple[_Doubles, NDArray[np.bool_], _Ints, _Doubles, CachedText | None]:  # fmt: skip
    """ln p of the tokens of many texts, from the n_given-th on; what texts begin with is read once.

    texts, sources : (ids of all, one after the other, how many of each). n_texts: contexts that are read at
    once, 0: as many as fill a forward pass. done: called with the number of texts that have ended.

    Returns, for all scored tokens in the order of texts, ln p, whether the token is the most probable one,
    and of the n_top most probable tokens the ids [.., n_top] and ln p [.., n_top], the best first; and with
    `keep`, of a single text, what was read of it.
    """

def distribution(
    logits: _Floats, *, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> _Doubles:
    """Standardized probabilities (section 2.2) [n_vocab] of one row of logits [n_vocab]."""

def verify(
    tokens: Sequence[int], parents: Sequence[int], target_probs: _Doubles, draft_probs: _Doubles,
    uniforms: _Doubles, *, rule: Rule = "rejection", lenience: float = 1.0, order: _Doubles | None = None,
    noise: _Doubles | None = None, points: tuple[Sequence[int], Sequence[int]] | None = None,
) -> tuple[list[int], int, list[float]]:  # fmt: skip
    """A rule on a tree: (accepted path without the root, next token, betas).

    tokens, parents : [n_nodes]; node 0 is the root (``tokens[0]`` unused, ``parents[0] == -1``).
    target_probs : [n_nodes, n_vocab], the target after each node.
    draft_probs : [n_nodes, n_vocab], row i the distribution node i was drawn from (row 0 unused).
    uniforms : [n_nodes + 1] in [0, 1): entry i decides node i (i ≥ 1), entry n_nodes draws the final token.
    order : [n_nodes], siblings are tried in ascending order of these (entry 0 unused).
    noise : [max_depth + 1, n_vocab] in [0, 1), of the rule "coupled".
    points : (target, draft), [n_nodes] each: the rows are weights of any sum, as a session has them, and not
        probabilities. Where a point is not -1 all mass is on that token and the row is not looked at.
    """

def uniform(seed: int, sequence: int, position: int, purpose: int, index: int) -> float:
    """The counter-based uniform in [0, 1) that the core uses for this key."""

def noise(seed: int, sequence: int, position: int, n_vocab: int) -> _Doubles:
    """The uniforms in [0, 1) of the rule "coupled" for each token at a position of the text, [n_vocab]."""

def kernels() -> str:
    """Name of the instruction set in use: "ref", "avx2", "avxvnni", "avx512f", "avx512", "amx" or "neon"."""

def available_kernels() -> list[str]:
    """Instruction sets of this machine, best first."""

def quantize(rows: _Floats, type: str, *, importance: _Floats | None = None, n_threads: int = 1) -> bytes:
    """Rows as blocks of GGUF files, one row after the other.

    rows : [n_rows, n_in], n_in a multiple of the type's block.
    type : "q8_0" or "q4_0", with the codes and scales of a matrix in int8 or int4; "q4_k", "q5_k" or "q6_k".
    importance : weights of the inputs' errors, [n_in]; of types of blocks of 256.

    A ValueError for another type, other shapes, or numbers too large for "q8_0" or "q4_0".
    """

def checksums(data: bytes | memoryview, stretch: int = 0, *, n_threads: int = 1) -> NDArray[np.uint64]:
    """Checksums of bytes against damage, no protection against forgery.

    One for each stretch, a multiple of 2²⁰ bytes, the last may be shorter; at least one. 0: one for all.
    """

def processor() -> str:
    """The name of this kind of processor: maker, family, model, stepping, what it calls itself."""

def kernels_digest() -> str:
    """Which sources and compiler made the kernels: 16 hexadecimal digits."""

def thresholds() -> dict[str, list[int]]:
    """The thresholds in use by name (kernels/kernels.h): a number of rows for each of `panel_formats`."""

def panel_formats() -> tuple[str, ...]:
    """Names of all number formats of packed weights, in the order of thresholds."""

def own_thresholds() -> dict[str, list[int]]:
    """Those that the instruction set in use has where none were measured."""

def set_thresholds(thresholds: Mapping[str, Sequence[int]], /) -> None:
    """Use others from now on: all of them, each 1 to 2**20. No thread may compute meanwhile."""

def panel_seconds(panels: _Floats, *, dtype: str, n_rows: int, n_in: int, near: bool) -> float:
    """Seconds in which one thread multiplies equal rows with as many packed panels as `panels` holds.

    dtype : one of `panel_formats`; near : they are likely in a cache.
    """

def product(
    x: _Floats, weights: _Floats, dtype: Dtype, *, engine: PrefillMethod = "rows", n_threads: int = 1
) -> _Floats:
    """x · weightsᵀ as a model of this dtype computes it: [n_rows, n_in], [n_out, n_in] → [n_rows, n_out].

    The engine "rows" is the row kernels, "tiles" these in the order of tiles, for dtypes but "f32", and
    "blas" OpenBLAS, for "f32" alone.
    """

def openblas() -> str:
    """OpenBLAS's description of itself; it is loaded if it has not been. MissingLibraryError without it."""

MAX_GAMMA: Final[int]
"""Guesses of a round at most."""
MAX_CAPTURES: Final[int]
"""Hidden states of the target that the drafts of a session read at most."""
MAX_HEADS: Final[int]
"""Heads of a draft at most."""
MAX_HEAD_BLOCKS: Final[int]
"""Residual blocks of a head at most."""
MAX_RECURRENT_LAYERS: Final[int]
"""Layers of a recurrent draft at most."""
__version__: str
