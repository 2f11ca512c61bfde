"""`Result`, the output of one sequence."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from typing import Any, Final, get_args

import numpy as np
from numpy.typing import NDArray

from specdec.checks import as_integer, check_choice, check_flag
from specdec.display.rounds import DecodedText, FigureTexts, FinishReason, html, terminal
from specdec.errors import InputError
from specdec.fields import Fields, is_finite, without_nan
from specdec.models.score import TopLogProbs
from specdec.models.tokenizer import Tokenizer  # noqa: F401  # the type of an inherited field
from specdec.trace import Trace

VERSION: Final = 1
"""Version of the dict that `Result.to_dict` returns."""
_OF_VALUE: Final = ("text", "tokens", "finish_reason", "stop", "prompt_ids", "source_ids")
"""Attributes that equality compares."""
_OTHERS: Final = ("seed", "n_cached_tokens", "source_text", "answer", "n_reasoning_tokens")
"""Attributes of `to_dict` that it does not compare."""
_LOGPROBS: Final = ("logprobs", "top_logprobs", "prompt_logprobs", "prompt_top_logprobs")


@dataclass(frozen=True, eq=False, repr=False)
class Result(DecodedText):
    """New text and tokens of one sequence, with a trace of every round.

    ``str(result)`` is the text, or the ids without a tokenizer. `figure` draws Figure 1 of the paper, one
    line per round; notebooks show it.

    Equality compares `text`, `tokens`, `finish_reason`, `stop`, `prompt_ids` and `source_ids`, so a greedy
    result with a draft equals the one without. Results are hashable: do not modify the lists of one that is
    in a set or a dict key. Pickles and `to_dict` omit the tokenizer but keep the figure.

    Attributes
    ----------
    text : str or None
        New text without the prompt, up to the stop string or stop id. None if the target has no tokenizer.
    tokens : list of int
        New token ids, including the stop id, or the token that completed the stop string: `text` can be
        shorter than the decoded `tokens`.
    answer : str or None
        The part of `text` after the model's reasoning; all of it if the model does not reason.
    n_reasoning_tokens : int
        Number of tokens of that reasoning, without the tags around it.
    finish_reason : str
        "stop": a stop string or stop id (such as end of text) was met; "length": `max_new_tokens` reached;
        "context": the context is full; "error": in the `result` of a `NotFiniteError`; "cancelled": the
        request was cancelled.
    stop : str, int or None
        The stop string or stop id that was met.
    trace : Trace
        Every round and the statistics that follow.
    prompt_ids : list of int
        Prompt token ids as the models received them. For an encoder-decoder: `Model.decoder_start`, then the
        `decoder_prompt`.
    seed : tuple of (int, int)
        Key (seed, sequence) of the random numbers: `generate(..., prompt, seed=[result.seed])` reproduces
        this sequence, alone or in any batch.
    logits : ndarray of shape (len(tokens), n_vocab), float32, or None
        The target's logits for each new token; None unless requested.
    tokenizer : Tokenizer or None
        The target's tokenizer, for the figure.
    n_cached_tokens : int
        Prompt tokens copied from the `prompt_cache`, not computed.
    source_ids, source_text : list of int, str, or None
        Input of the encoder, and its text; None for decoder-only targets.
    figure_texts : FigureTexts or None
        Texts of the figure, for a result from a pickle or dict.
    logprobs : ndarray of float64, shape (len(tokens),), or None
        Log-probability of each new token, by `logprobs_of`; None unless requested.
    top_logprobs : list of lists of (int, float), or None
        Most probable tokens at the position of each new token: pairs (id, ln p), best first, ties by lower
        id. By "sampling" there may be fewer.
    prompt_logprobs, prompt_top_logprobs
        The same for each prompt token but the first, by the model, as in `Model.score`.
    """

    answer: str | None = None
    n_reasoning_tokens: int = 0
    logits: NDArray[np.float32] | None = None
    n_cached_tokens: int = 0
    logprobs: NDArray[np.float64] | None = None
    top_logprobs: TopLogProbs | None = None
    prompt_logprobs: NDArray[np.float64] | None = None
    prompt_top_logprobs: TopLogProbs | None = None

    def __str__(self) -> str:
        return " ".join(map(str, self.tokens)) if self.text is None else self.text

    def figure(self, color: bool | None = None) -> str:
        """Return Figure 1 of the paper as text, one line per round.

        Accepted draft tokens are green, the target's own tokens blue and underlined, rejected ones red and
        struck out. Without colors: rejected ~~struck~~, target [bracketed], cut off by a stop {braced}. Plain
        decoding is one paragraph. `color` None: color if standard output is a terminal and NO_COLOR is not
        set.

        Examples
        --------
        >>> print(specdec.generate(target, draft, "Once upon a time").figure())
        """
        return terminal(self, color=None if color is None else check_flag("color", color))

    def _repr_html_(self) -> str:
        return html(self)

    def __repr__(self) -> str:
        text = self.text if self.text is None or len(self.text) <= 40 else f"{self.text[:39]}…"
        rate = f", acceptance_rate={self.trace.acceptance_rate:.3f}" if self.trace.n_drafted else ""
        return (
            f"Result(text={text!r}, n_tokens={len(self.tokens)}, finish_reason={self.finish_reason!r}, "
            f"n_calls={self.trace.n_calls}{rate})"
        )

    def __eq__(self, other: object) -> bool:
        return self._value() == other._value() if isinstance(other, Result) else NotImplemented

    def __hash__(self) -> int:
        return hash((tuple(self.tokens), tuple(self.prompt_ids)))

    def _value(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in _OF_VALUE)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"tokenizer": None, "figure_texts": self._texts()}

    def __copy__(self) -> Result:
        return replace(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Result:
        names = [field.name for field in fields(self) if field.name != "tokenizer"]
        return replace(self, **{name: deepcopy(getattr(self, name), memo) for name in names})

    def _texts(self) -> FigureTexts | None:
        return self.figure_texts if self.tokenizer is None else FigureTexts.of(self)

    def to_dict(self) -> dict[str, Any]:
        """Return everything but logits and tokenizer as plain dicts, lists and numbers, ready for JSON.

        NaN in the trace becomes None.

        Examples
        --------
        >>> with open("results.jsonl", "w") as file:
        ...     for result in results:
        ...         print(json.dumps(result.to_dict()), file=file)
        """
        texts = self._texts()
        found = {name: getattr(self, name) for name in (*_OF_VALUE, *_OTHERS)}
        found |= {name: _listed(getattr(self, name)) for name in _LOGPROBS}
        found["figure"] = None if texts is None else {"prompt": texts.prompt, "rounds": texts.rounds}
        listed: dict[str, Any] = without_nan({"specdec_result": VERSION, **found})
        return listed | {"trace": self.trace.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Result:
        """Return the result that `to_dict` wrote: equal to the original, without logits and tokenizer.

        Raises `InputError` for another version, or a field that is missing, wrong or inconsistent.

        Examples
        --------
        >>> with open("results.jsonl") as file:
        ...     results = [specdec.Result.from_dict(json.loads(line)) for line in file]
        """
        found = Fields(values, "", error_type=InputError)
        found.check_version("specdec_result", VERSION)
        trace = Trace._described(found.inner("trace"))
        tokens = found.integers("tokens")
        if tokens != [token for round_ in trace.rounds for token in round_.tokens[: round_.kept]]:
            raise found.error("tokens", "the kept tokens of the trace's rounds")
        reasons: tuple[FinishReason, ...] = get_args(FinishReason)
        reason = check_choice("finish_reason", found.given("finish_reason"), reasons)
        stop = given = found.given("stop")
        if given is not None and not isinstance(given, str) and (stop := as_integer(given)) is None:
            raise found.error("stop", "a str, an integer or None")
        seed = found.integers("seed", maximum=2**64 - 1)
        if len(seed) != 2:
            raise found.error("seed", "two integers")
        prompt_ids = found.integers("prompt_ids")
        n_prompt = max(len(prompt_ids) - 1, 0)
        return cls(
            text=found.text("text", default=None), tokens=tokens, finish_reason=reason, stop=stop,
            trace=trace, prompt_ids=prompt_ids, seed=(seed[0], seed[1]),
            logprobs=_log_probs(found, "logprobs", len(tokens)),
            top_logprobs=_top_log_probs(found, "top_logprobs", len(tokens)),
            prompt_logprobs=_log_probs(found, "prompt_logprobs", n_prompt),
            prompt_top_logprobs=_top_log_probs(found, "prompt_top_logprobs", n_prompt),
            answer=found.text("answer", default=None),
            n_reasoning_tokens=found.integer("n_reasoning_tokens", minimum=0, default=0),
            n_cached_tokens=found.integer("n_cached_tokens", minimum=0),
            source_ids=None if found.given("source_ids") is None else found.integers("source_ids"),
            source_text=found.text("source_text", default=None), figure_texts=_figure_texts(found, trace),
        )  # fmt: skip


def _listed(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def _log_probs(found: Fields, field: str, n: int) -> NDArray[np.float64] | None:
    """Read the log-probabilities of n tokens from the dict of a result."""
    if found.given(field) is None:
        return None
    return np.array(found.numbers(field, n, "a finite number", is_finite), np.float64)


def _top_log_probs(found: Fields, field: str, n: int) -> TopLogProbs | None:
    """Read the most probable tokens at n positions from the dict of a result."""
    if found.given(field) is None:
        return None
    rows = found.items(field)
    if len(rows) != n or not all(isinstance(row, list | tuple) for row in rows):
        raise found.error(field, f"a list of {n} lists, one for each token")
    top = []
    for row in rows:
        if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in row):
            raise found.error(field, "pairs of a token id and ln p")
        ids, log_probs = [token for token, _ in row], [log_prob for _, log_prob in row]
        pairs = Fields({field: ids, "ln p": log_probs}, "", error_type=InputError)
        numbers = pairs.numbers("ln p", None, f"a finite number in {field}", is_finite)
        top.append(list(zip(pairs.integers(field), numbers, strict=True)))
    return top


def _figure_texts(found: Fields, trace: Trace) -> FigureTexts | None:
    """Read the texts of the figure from the dict of a result."""
    if found.given("figure") is None:
        return None
    figure = found.inner("figure")
    rounds = figure.items("rounds")
    # a round shows its draft tokens and the target's own token
    n_pieces = [round_.n_drafted + 1 for round_ in trace.rounds]
    if len(rounds) != len(n_pieces):
        raise figure.error("rounds", f"{len(n_pieces)} lists, one per round of the trace")
    for i, (texts, n) in enumerate(zip(rounds, n_pieces, strict=True)):
        right = isinstance(texts, list | tuple) and len(texts) == n
        if not right or not all(isinstance(text, str) for text in texts):
            raise figure.error(f"rounds[{i}]", f"a list of {n} texts, one for each token", texts)
    return FigureTexts(figure.text("prompt"), tuple(tuple(texts) for texts in rounds))


def result_fields(result: Result) -> dict[str, Any]:
    """Return the fields of a result that the command line and `specdec.ray` write.

    Includes log-probabilities if requested. `Result.to_dict` returns everything.
    """
    found = {name: getattr(result, name) for name in ("text", "tokens", "finish_reason", "stop")}
    found |= {"seed": list(result.seed), "n_prompt_tokens": len(result.prompt_ids)}
    found |= {name: getattr(result.trace, name) for name in ("n_calls", "n_drafted", "n_accepted")}
    values = {name: _listed(getattr(result, name)) for name in _LOGPROBS}
    return found | {name: value for name, value in values.items() if value is not None}
