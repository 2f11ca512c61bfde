"""Type stubs of the C core. `specdec` re-exports everything public, with documentation."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypedDict

import numpy as np
from numpy.typing import NDArray

from specdec.models.number_formats import CacheDtype, Dtype, PrefillMethod
from specdec.trace import Round
from specdec.verification.rules import DecodingRule, Rule

_Ids: TypeAlias = Sequence[int] | NDArray[np.integer[Any]]
_Ints: TypeAlias = NDArray[np.int32]
_Floats: TypeAlias = NDArray[np.float32]
_Doubles: TypeAlias = NDArray[np.float64]
_Draft: TypeAlias = Model | Ngram | tuple[str, dict[str, Any]]
"""A method's name and its arguments by name, which may be such tuples themselves."""
_FileRows: TypeAlias = tuple[Any, int, int, int, NDArray[np.int64] | None]
"""(file, start, n_rows, row_bytes, order): rows of a matrix in a file."""

class SlotRound(NamedTuple):
    """Result of a round in one slot."""

    slot: int
    round: Round
    """Without tokens if the sequence has failed. `kept` is the number of tokens."""
    error: BaseException | None
    """The exception if the sequence has failed in the round."""
    complete: bool
    """Whether the text has ended because its constraint is complete."""
    n_rows: int
    """Rows of the target's forward pass: nodes with equal tokens from the root share one."""
    logits: _Floats | None
    """[n_tokens, n_vocab] target logits each new token was chosen from; None unless asked for."""
    logprobs: tuple[_Doubles, _Ints, _Doubles] | None
    """For each new token: ln p [n], the most probable tokens [n, n_top] (-1: none), their ln p [n, n_top]."""
    origins: tuple[int, ...] | None
    """Index of the draft of each draft token in an ensemble; None for a sequence without a prediction."""
    drafts: dict[str, Any] | None
    """In builds with test hooks, after `_keep_drafts`: the distributions that nodes were drawn from."""

class BeamRecord(TypedDict):
    """Record of a round of a beam search; seconds of the draft, of the target, elsewhere."""

    n_nodes: int
    n_drafted: int
    n_draft_calls: int
    n_levels: int
    draft_s: float
    verify_s: float
    other_s: float

class BeamRow(TypedDict):
    """A hypothesis: new tokens, including the final stop id; sum of ln p; whether it has ended."""

    tokens: list[int]
    score: float
    ended: bool

class Model:
    """Immutable, packed weights. Shared freely between sessions and threads."""

    def __init__(
        self, config: Mapping[str, Any], tensors: Iterable[tuple[str, NDArray[Any] | _FileRows, str]], *,
        dtype: Dtype = "f32", cache_dtype: CacheDtype = "f32", prefill: PrefillMethod = "rows",
        n_threads: int = 1, target: Model | None = None, packed: Sequence[memoryview] | None = None,
        formats: Mapping[str, str] | None = None, head_rows: Sequence[int] | NDArray[Any] | None = None,
    ) -> None:  # fmt: skip
        """target : the model whose token table or head a draft's configuration shares.

        packed : writable blocks of a model of this configuration and these formats, instead of tensors.

        formats : GGUF formats of matrices and of the token table, by name; others have `dtype`.

        head_rows : rows of the target's head that a shared head of n_draft_tokens has.
        """
    def adapted(
        self,
        ranks: Mapping[str, int],
        tensors: Iterable[tuple[str, NDArray[Any], str]],
        *,
        n_threads: int = 1,
    ) -> Model:
        """A model with these weights and low-rank matrices added to some of them, which it owns.

        ranks : rank of each adapted tensor, by canonical name.

        tensors : "NAME.down" [rank, inputs] and "NAME.up" [outputs, rank] of each.
        """
    def block_sizes(self) -> tuple[int, ...]:
        """Bytes of the memory blocks of the model and its encoder."""
    def block(self, i: int, first: int, n: int, /) -> bytes:
        """Bytes [first, first + n) of block i. Raises ValueError if they do not exist."""
    def digest(self) -> int:
        """Digest of the weights, an adapter's included, against damage and mistakes: 64 bits."""
    def encode(self, ids: _Ids, *, n_threads: int = 1) -> _Floats:
        """Output of the encoder for a source, after its last norm: [len(ids), d_model]."""
    def matrix(self, name: str) -> _Floats:
        """A packed matrix by canonical name, with the values used in products: [n_rows, n_cols]."""
    def token_table(self) -> _Floats:
        """The stored embeddings of all tokens, before scale and norm: [n_vocab, d_model]."""
    def windowed(self, window: int, /) -> Model:
        """A model with these weights whose rows attend to the last `window` positions at most."""
    base: Final[Model | None]
    """The model that an adapted model builds on; None: not adapted."""
    cache_dtype: Final[CacheDtype]
    config: Final[dict[str, Any]]
    dtype: Final[Dtype | Literal["file"]]
    """Number format of the matrices; "file": those of `formats`."""
    layout: Final[int]
    """Layout of its blocks, as a number."""
    n_bytes: Final[int]
    n_parameters: Final[int]
    prefill: Final[PrefillMethod]
    prompt_slice: Final[int]
    """Tokens of prompts that a forward pass reads, of one text or several."""

class Ngram:
    """Counts of n-grams, as a trie in sorted arrays: an immutable draft of negligible cost."""

    def __init__(
        self,
        unigrams: _Ints,
        levels: tuple[tuple[NDArray[np.int64], _Ints, _Ints], ...],
        back_off: bool = False,
    ) -> None:
        """Check the counts of `specdec.drafts.Ngram`. The arrays of levels are borrowed and kept alive.

        unigrams : [n_vocab]; of each level, (starts, tokens, counts): [n_shorter + 1], [n_grams], [n_grams].
        """

class LookAheadEmbeddings:
    """Vectors appended to a text, after which its target predicts ahead; immutable."""

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
        """config : n_vocab, n_draft_vocab, d_embed, d_hidden, n_layers; see `specdec.drafts.RecurrentDraft`.

        tokens : [n_draft_vocab] the token of each output; None: output i is token i.
        """
    def logits(self, ids: _Ids, /) -> _Floats:
        """Logits after each token of a text: [len(ids), n_vocab], -inf for tokens without an output."""
    dtype: Final[Dtype]
    n_bytes: Final[int]
    n_parameters: Final[int]

class Eagle:
    """A small model that drafts from the target's hidden states. Immutable, shared like a Model."""

    def __init__(
        self,
        model: Model,
        *,
        layers: Sequence[int],
        tokens: _Ids | None = None,
        normed_feedback: bool = False,
    ) -> None:
        """model : with features. layers : hidden states of the target whose concatenation is a feature.

        tokens : [rows of the head] the target's token of each of the draft's, all different; None: the same.
        normed_feedback : draft tokens read the output after the draft's last norm, not before it.
        """
    model: Final[Model]

class Heads:
    """Decoding heads on a target's hidden states, each for one position ahead: immutable, packed weights."""

    def __init__(
        self, config: Mapping[str, int], tensors: Iterable[tuple[str, NDArray[Any], str]], *,
        tokens: _Ids | None = None, dtype: Dtype = "f32", n_threads: int = 1,
    ) -> None:  # fmt: skip
        """config : n_heads, n_blocks, see_draft_tokens, shared_output, n_draft_vocab; d_model and n_vocab.

        tokens : the target's token of each of the n_draft_vocab that heads predict; None: the same.
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
    """A draft model of another vocabulary, with the tables between it and its target; immutable."""

    def __init__(
        self, model: Model, target_strings: bytes, draft_strings: bytes, arrays: Mapping[str, _Ints],
        target_strips: bool, draft_strips: bool, for_draft: Callable[[str, int], Sequence[int]],
        for_target: Callable[[str, int], Sequence[int]],
        source: Callable[[Sequence[int]], Sequence[int]] | None,
    ) -> None:  # fmt: skip
        """target_strings, draft_strings : the bytes of all tokens, concatenated.

        arrays : target_starts [n_target + 1] and draft_starts [n_draft + 1], first byte of each; draft_of
        [n_target] and target_of [n_draft], the other side's same token, or -1; byte_tokens [256], the draft's
        token of each byte, or -1; first and target_first, leading special tokens of draft and target.
        target_strips, draft_strips : the tokenizer adds a space at the start, which is not part of the text.
        for_draft : maps a text, and 1 if nothing precedes it, to the draft's ids.
        for_target : maps a text, and a number of bytes to skip, to the target's ids.
        source : maps the target's ids of a source to those of the draft's encoder.
        """
    def read(self, texts: Sequence[_Ids], /) -> list[int]:
        """The draft's ids of the last of texts, after retokenizing all of them in turn."""
    n_shared: Final[int]
    """Tokens that both vocabularies have."""
    encoded: Final[tuple[int, float]]
    """Calls of tokenizers so far, and their seconds."""
    shares: Final[tuple[int, float]]
    """Number of the draft's distributions so far, and the summed probability of common tokens."""

class SuffixTree:
    """A suffix tree of past outputs; add to it while sessions of several threads read it."""

    def __init__(self, max_tokens: int, depth: int) -> None:
        """Drop the oldest texts beyond `max_tokens`; compare `depth` tokens of a suffix."""
    def add(self, tokens: _Ints, lengths: _Ids, n_before: _Ids, /) -> None:
        """Add texts, concatenated in tokens; one thread at a time.

        Text i has lengths[i] tokens: n_before[i] at the end of a prompt, then an output.
        """
    def find(self, ids: Sequence[int], /) -> tuple[int, int]:
        """The longest suffix of ids before an output's token: (length, number of occurrences)."""
    def texts(self) -> tuple[_Ints, _Ints, _Ints]:
        """The texts, oldest first, as `add` takes them."""
    n_tokens: Final[int]
    n_texts: Final[int]
    n_bytes: Final[int]
    max_token: Final[int]
    """The highest token, at least 0."""

class TokenMatrix:
    """The most probable next tokens of every token; threads share it."""

    def __init__(self, rows: _Ints) -> None:
        """rows : [n_vocab, k], best first, -1: none; copied."""
    def rows(self) -> _Ints:
        """A copy of the matrix, [n_vocab, k]."""

class Decoder:
    """KV cache and workspace of one sequence: the forward pass, without decoding rules."""

    def __init__(
        self, model: Model, *, capacity: int, max_nodes: int = 1, n_threads: int = 1, n_vocab: int = 0,
        source: _Ids | None = None, captures: Sequence[int] | None = None, input_sums: bool = False,
    ) -> None:  # fmt: skip
        """`n_vocab`: vocabulary size of another model that this one drafts for; 0: its own.

        Tokens that the model lacks have the logit -inf, and are read as its last token. A model with an
        encoder needs a `source`, which is encoded here; others take none.

        `captures`: the hidden states to keep, by the number of layers before them: 0, the embedding, to
        n_layer, the residual stream after all layers; n_layer + 1: the input of the head.

        `input_sums`: keep sums of squares of the inputs of all matrices; needs one thread.
        """
    def prefill(
        self, ids: _Ids, *, logits: bool = False, last: bool = False, finite: bool = False
    ) -> _Floats | None:
        """Append a prompt. With ``logits``, return [len(ids), n_vocab]; with ``last``, [n_vocab] of the last.

        ``finite``: raise NotFiniteError for numbers that are not finite, and append nothing.
        """
    def forward(self, tokens: Sequence[int], parents: Sequence[int]) -> _Floats:
        """Logits [n_nodes, n_vocab] of a tree on the cache (``parents[0]`` is -1). Commits nothing."""
    def captured(self, layer: int) -> _Floats:
        """A hidden state of `captures` [n, d_model]: committed tokens, then the last forward's nodes."""
    def input_sums(self, name: str) -> tuple[_Doubles, int]:
        """Sums of squares of a matrix's inputs [n_in], by canonical name, and the number of rows.

        Queries, keys and values share an input; so do gate and up. An expert's inputs are the rows routed
        to it. Raises ValueError unless it is a matrix outside the encoder.
        """
    def keep(self, path: Sequence[int]) -> None:
        """Commit the nodes of ``path`` (from node 0 down) of the last forward; drop the others."""
    def cut(self, n: int) -> None:
        """Keep the first `n` tokens and no nodes; no tokens if a sliding window has moved past them."""
    n_committed: Final[int]
    """Tokens kept in the cache."""
    experts_read: Final[int]
    """Experts read by all forward passes so far, over all layers, without shared ones."""

class CachedText:
    """Keys and values of a text. Immutable, for any number of threads."""

    def __init__(
        self, model: Model, tokens: _Ids, source: _Ids | None, captures: Sequence[int], shape: Sequence[int],
        pieces: Iterable[bytes | memoryview],
    ) -> None:  # fmt: skip
        """Restore a text from its attributes and its image, in pieces of any size, of an equal model.

        Raises InputError or ValueError for attributes or sizes that do not fit; what `pieces` raises passes.
        """
    def image(self, first: int, n: int, /) -> bytes:
        """Bytes [first, first + n) of the image; `Model` and instruction set do not change its layout.

        It begins with panels of 32 tokens, which texts with a common prefix share.
        """
    image_sizes: Final[tuple[int, int]]
    """Bytes of a panel, and of the image."""
    shape: Final[tuple[int, ...]]
    """Most nodes of a tree, tokens of the prompt, n_low, its part from sliding windows, all snapshots."""
    tokens: Final[_Ints]
    """The token ids of the text, [n_tokens]; a copy."""
    source: Final[_Ints | None]
    """The ids of the text's source; a copy. None for a model without an encoder."""
    model: Final[Model]
    n_low: Final[int]
    @property
    def snapshots(self) -> tuple[int, ...]: ...
    """Least tokens that another text must share to begin with it: sliding windows have moved on."""
    captures: Final[tuple[int, ...]]
    """Hidden states kept of each token, as `Decoder` names them."""
    n_bytes: Final[int]

class OnlineSamples:
    """Positions where a target rejected draft tokens, with its distribution there; thread-safe."""

    def __init__(
        self, n: int, n_before: int, n_top: int, n_hidden: int = 0, everywhere: bool = False
    ) -> None:
        """Hold up to `n` samples; new ones replace the oldest.

        n_hidden: floats that the draft reads of a token's hidden states, or 0. everywhere: also store
        positions at which the draft was right.
        """
    def take(self) -> dict[str, NDArray[Any]]:
        """Remove and return all samples by field, oldest first."""
    n: Final[int]
    """Number of samples."""

class Settings:
    """How a sequence is decoded. Immutable: sequences and sessions may share them."""

    def __init__(
        self, *, max_new_tokens: int, sampling: dict[str, Any], gamma: int = ...,
        rule: DecodingRule | Rule = "auto", lenience: float = 1.0, draft_sampling: dict[str, Any] = ...,
        transform: Callable[[_Doubles, list[int]], _Doubles] | Any | None = None,
        constraint: Any | None = None, stop_ids: Sequence[int] | None = None, logprobs_of: str = ...,
        n_top: int = 0, drafters: int | None = None, prediction: Sequence[int] | None = None,
        model: Model | None = None,
    ) -> None:  # fmt: skip
        """A sequence ends with the round that adds a stop id.

        `sampling` and `draft_sampling`, by default the same, are dicts from `specdec.Sampling.core`;
        temperature has no default.

        `transform` is a function of (probs, tokens), or an object with the method start(tokens), whose states
        have fork(), advance(token) and are functions of probs. `constraint` has start(tokens) too, and states
        with fork(), advance(token) and mask(): the tokens that may come next, None: the text is complete.

        `gamma` limits the draft tokens of a round within the session's limit. `drafters`: bit i lets draft i
        of an ensemble draft; None: all. `prediction` is the expected output, for drafts that copy it.

        `logprobs_of` requests log-probabilities of new tokens (`SlotRound.logprobs`): "model", from the
        target's logits, or "sampling", from the distribution sampled from. `n_top`: number of top tokens.

        `model` is the sequence's model, the target with an adapter; None: the target.
        """

class Session:
    """The rounds of one batch: KV caches of target and draft, scratch, random numbers."""

    def __init__(
        self, target: Model, draft: _Draft | None, /, *, gamma: int, n_slots: int, n_text: int,
        n_threads: int, settings: Settings | None = None, max_top: int = 0, keep_logits: bool = False,
        node_budget: int = 0, adaptive_gamma: AdaptiveGamma | None = None,
    ) -> None:  # fmt: skip
        """Create empty slots for sequences of at most `n_text` tokens, prompt and new.

        All sequences have settings like `settings`: sampled drafts, coupled draws, constraints or more top
        tokens need these here. None: any settings, with at most `max_top` top tokens.

        `gamma` is the most draft tokens of a sequence in a round. `node_budget` is the most rows of the
        target in a round, at least one for each slot; 0: no limit but gamma.

        `adaptive_gamma`, new or of an earlier session, chooses the number of draft tokens of each round, up
        to gamma (decode/drafter_policy.h). The session uses a copy.
        """
    def admit(
        self, slot: int, prompt: Sequence[int], seed: tuple[int, int], settings: Settings,
        source: Sequence[int] | None = None, /,
    ) -> Rule:  # fmt: skip
        """Give an empty slot, or that of a finished sequence, to a prompt, which must then be read.

        `source` is the input of a model's encoder. Returns the rule that verifies its draft tokens.
        """
    def check(self, settings: Settings, /) -> None:
        """Raise what `admit` would raise for these settings; nothing after close. Any thread may call it."""
    def prefill_slice(self) -> list[int]:
        """Read one slice of the prompts, with target or draft; return the slots with unread prompts.

        Sequences whose prompts have been read may have rounds between slices. Sources are encoded first,
        equal ones once. A prefix shared with another sequence, or the slot's previous one, is copied if the
        source is the same.
        """
    def round(
        self, seconds: float = 0.0, *, until_end: bool = False, gammas: Sequence[int] | None = None
    ) -> list[SlotRound]:
        """Run a round for every unfinished sequence whose prompt has been read, without the GIL; [] if none.

        More rounds follow until `seconds` have passed, about 64 records exist, or with `until_end` a
        sequence has ended; not with `keep_logits`. gammas [n_sequences]: most draft tokens of each sequence
        in these rounds, within the session's gamma; -1: no rounds.
        """
    def swap(self, samples: OnlineSamples, draft: _Draft, /) -> None:
        """Replace the draft that is recorded with `samples`, between rounds.

        The new one is the same method with other weights: same type of trees and hidden states. Read the
        texts so far (`prefill_slice`) before the next round. On failure nothing has changed.
        """
    def begin_with(self, sequence: int, text: CachedText, /) -> int:
        """Copy the prefix of an unread prompt from a cached text with the same source.

        The text is of the target or a draft model. Returns the number of prompt tokens then cached.
        """
    def cached_text(self, sequence: int, model: Model | None = None, /) -> CachedText:
        """A copy of the keys and values of a sequence's text so far, except its last tokens.

        Of the target, or of a draft model with a cache of its own.
        """
    def cached_size(
        self, sequence: int, model: Model | None = None, /
    ) -> tuple[list[int], list[int] | None, int, int]:
        """Tokens and source of such a copy, its size in bytes, and its n_low.

        Until the model begins to read a text, those of the slot's previous text.
        """
    def snapshots(self, sequence: int, model: Model | None = None, /) -> tuple[int, ...]:
        """`CachedText.snapshots` of such a copy."""
    def keep_snapshots(self, most: int, max_bytes: int, /) -> None:
        """Let later prompts take snapshots of recurrent states: at most so many of a text and a model."""
    def captures(self, sequence: int, model: Model | None = None, /) -> tuple[int, ...]:
        """Hidden states cached with a text, for drafts that read them: `CachedText.captures`."""
    def finish(self, sequence: int) -> None:
        """Take no more rounds for this sequence, and read no more of its prompt."""
    def close(self) -> None:
        """Free caches and scratch now; idempotent."""
    adaptive_gamma: Final[AdaptiveGamma | None]
    """A copy of the session's learned state; None without gamma="auto"."""

class BeamSearch:
    """The rounds of a beam search, plain (no draft, or gamma 0) or by speculation (appendix A.4)."""

    def __init__(
        self, target: Model, draft: Model | None, prompt: Sequence[int], *, width: int, draft_width: int,
        gamma: int, max_new_tokens: int, stop_ids: Sequence[int] = (), n_threads: int = 1,
        source: Sequence[int] | None = None,
    ) -> None: ...  # fmt: skip
    def prefill_slice(self) -> bool:
        """Read a slice of the prompt with target or draft; return whether more remains."""
    def round(self, seconds: float = 0.0) -> list[BeamRecord]:
        """Run a round without the GIL, and more until `seconds` have passed or 64 are done. [] at the end."""
    def beams(self) -> list[BeamRow]:
        """The hypotheses so far, best first."""
    def begin_with(self, text: CachedText, /) -> int:
        """Copy the prefix of the unread prompt from a cached text of the target or the draft.

        The text has the search's source. Returns the number of prompt tokens then cached.
        """
    def cached_text(self, model: Model, /) -> CachedText:
        """A copy of the keys and values of the prompt and the common prefix of all hypotheses."""
    def cached_size(self, model: Model, /) -> tuple[list[int], int, int]:
        """The tokens of such a copy, its size in bytes, and its n_low."""
    def close(self) -> None:
        """Free caches and scratch now; idempotent."""
    drafts: Final[bool]
    """Whether a draft reads the prompt: it exists, the prompt fits, and it may draft."""

class AdaptiveGammaView(TypedDict):
    """Learned state of gamma="auto", for rounds of one sequence; see `specdec.AdaptiveGamma.to_dict`."""

    target_s: list[float]
    """[65] seconds of a round by number of draft tokens, without drafting."""
    draft_s: list[float]
    """[65] seconds of drafting by steps."""
    chance: list[float]
    """[65] chance of a draft token by depth, before its confidence is known; the first is 1."""
    by_confidence: list[tuple[float, float, float]]
    """(confidence, chance at depth 1, number of draft tokens)."""
    rate: float
    """Tokens per second."""
    plain_rate: float
    """Tokens per second of plain decoding."""
    pause_left: float
    """Tokens until the draft's pause ends."""

class AdaptiveGamma:
    """Learned state of gamma="auto"; empty at first."""

    def copy(self) -> AdaptiveGamma:
        """Return a copy."""
    def view(self, n_sequences: int = 1) -> AdaptiveGammaView:
        """Return the learned state for rounds of so many sequences."""

def tensor_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor of a configuration, by canonical name."""

def score_texts(
    model: Model, texts: tuple[_Ints, _Ints], n_given: _Ints, *, sources: tuple[_Ints, _Ints] | None = None,
    n_top: int = 0, n_texts: int = 0, n_threads: int = 1, done: Callable[[int], object] | None = None,
    keep: bool = False,
) -> tuple[_Doubles, NDArray[np.bool_], _Ints, _Doubles, CachedText | None]:  # fmt: skip
    """ln p of the tokens of many texts, from the n_given-th on; shared prefixes are read once.

    texts, sources : (ids of all, concatenated, and the length of each). n_texts: contexts read at once;
    0: enough to fill a forward pass. done: called with the number of finished texts.

    Returns, for all scored tokens in the order of texts, ln p, whether the token is the most probable,
    and ids [.., n_top] and ln p [.., n_top] of the most probable tokens, best first; with `keep`, for a
    single text, its CachedText.
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
    """Apply a rule to a tree: (accepted path without the root, next token, betas).

    tokens, parents : [n_nodes]; node 0 is the root (``tokens[0]`` unused, ``parents[0] == -1``).
    target_probs : [n_nodes, n_vocab], the target after each node.
    draft_probs : [n_nodes, n_vocab], row i the distribution node i was drawn from (row 0 unused).
    uniforms : [n_nodes + 1] in [0, 1): entry i decides node i (i ≥ 1), entry n_nodes draws the final token.
    order : [n_nodes] siblings are tried in ascending order of these (entry 0 unused).
    noise : [max_depth + 1, n_vocab] in [0, 1), of the rule "coupled".
    points : (target, draft), [n_nodes] each: rows are weights of any sum, as in a session. A point other
        than -1 has all mass, and its row is ignored.
    """

def uniform(seed: int, sequence: int, position: int, purpose: int, index: int) -> float:
    """The counter-based uniform in [0, 1) that the core uses for this key."""

def noise(seed: int, sequence: int, position: int, n_vocab: int) -> _Doubles:
    """The uniforms in [0, 1) of the rule "coupled" for each token at a position of the text, [n_vocab]."""

def kernels() -> str:
    """Instruction set: "ref", "avx2", "avxvnni", "avx512f", "avx512vnni", "avx512", "amx", "neon"."""

def available_kernels() -> list[str]:
    """Instruction sets of this machine, best first."""

def quantize(rows: _Floats, type: str, *, importance: _Floats | None = None, n_threads: int = 1) -> bytes:
    """Quantize rows to blocks of GGUF files, one row after the other.

    rows : [n_rows, n_in], n_in a multiple of the type's block.
    type : "q8_0" or "q4_0", with the codes and scales of an int8 or int4 matrix; "q4_k", "q5_k" or "q6_k".
    importance : [n_in] weights of the inputs' errors; for types with blocks of 256.

    Raises ValueError for another type, other shapes, or numbers too large for "q8_0" or "q4_0".
    """

def checksums(data: bytes | memoryview, stretch: int = 0, *, n_threads: int = 1) -> NDArray[np.uint64]:
    """Checksums of bytes against damage, not against forgery.

    One for each stretch, a multiple of 2²⁰ bytes (the last may be shorter); 0: one for all.
    """

def processor() -> str:
    """Name of the processor: maker, family, model, stepping and brand string."""

def kernels_digest() -> str:
    """Digest of the kernels' sources and compiler: 16 hexadecimal digits."""

def thresholds() -> dict[str, list[int]]:
    """The thresholds in use, by name (kernels/kernels.h): rows for each of `panel_formats`."""

def panel_formats() -> tuple[str, ...]:
    """Names of all number formats of packed weights, in the order of thresholds."""

def own_thresholds() -> dict[str, list[int]]:
    """Default thresholds of the instruction set in use."""

def set_thresholds(thresholds: Mapping[str, Sequence[int]], /) -> None:
    """Replace all thresholds, each 1 to 2**20. No thread may compute meanwhile."""

def panel_seconds(panels: _Floats, *, dtype: str, n_rows: int, n_in: int, near: bool) -> float:
    """Seconds of one thread to multiply equal rows with the packed panels of `panels`.

    dtype : one of `panel_formats`; near : the panels are likely in a cache.
    """

def product(
    x: _Floats, weights: _Floats, dtype: Dtype, *, engine: PrefillMethod = "rows", n_threads: int = 1
) -> _Floats:
    """x · weightsᵀ as a model of this dtype computes it: [n_rows, n_in], [n_out, n_in] → [n_rows, n_out].

    Engines: "rows", the row kernels; "tiles", the same in tile order, for all dtypes but "f32"; "blas",
    OpenBLAS, for "f32" only.
    """

def openblas() -> str:
    """Load OpenBLAS and return its description of itself. Raises MissingLibraryError without it."""

MAX_GAMMA: Final[int]
"""Most draft tokens of a sequence in a round."""
MAX_CAPTURES: Final[int]
"""Most hidden states of the target that the drafts of a session read."""
MAX_HEADS: Final[int]
"""Most heads of a draft."""
MAX_HEAD_BLOCKS: Final[int]
"""Most residual blocks of a head."""
MAX_RECURRENT_LAYERS: Final[int]
"""Most layers of a recurrent draft."""
__version__: str
