"""`generate` and `stream`: text from a target and a draft."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, cast, overload

from specdec.containers import Container
from specdec.decoding.options import (
    AdapterLike,
    CallOptions,
    Constraint,
    DecodingOptions,
    DecodingRule,
    Gamma,
    LogprobsOf,
    PromptCache,
    Sampling,
    Schema,
    Seed,
    Stop,
    Transform,
    door,
)
from specdec.decoding.prompts import Chat
from specdec.decoding.request import Request
from specdec.decoding.result import Result
from specdec.decoding.scheduler import Scheduler, decode, sequences_of
from specdec.decoding.scheduler import Sequence as DecodedSequence
from specdec.drafts.model_draft import DraftLike
from specdec.errors import InputError, NotFiniteError, number_of
from specdec.models.chat_template import Messages
from specdec.models.model import ModelLike, Prompt
from specdec.progress import progress_bar
from specdec.settings_table import Unpack


@overload
def generate(  # type: ignore[overload-overlap]  # a str is a sequence of str too
    target: ModelLike, draft: DraftLike | None, prompt: Prompt, **options: Unpack[CallOptions]
) -> Result: ...
@overload
def generate(
    target: ModelLike, draft: DraftLike | None, prompt: Sequence[Prompt], **options: Unpack[CallOptions]
) -> list[Result]: ...
@overload
def generate(
    target: ModelLike, draft: DraftLike | None, prompt: Container, **options: Unpack[CallOptions]
) -> Result | list[Result]: ...
@overload
def generate(
    target: ModelLike, draft: DraftLike | None, *, messages: Messages, **options: Unpack[CallOptions]
) -> Result: ...
@overload
def generate(
    target: ModelLike, draft: DraftLike | None, *, messages: Sequence[Messages],
    **options: Unpack[CallOptions],
) -> list[Result]: ...  # fmt: skip
@overload
def generate(
    target: ModelLike, draft: DraftLike | None,
    prompt: Prompt | Sequence[Prompt] | Container | None = None, *,
    n: int, messages: Messages | Sequence[Messages] | None = None, **options: Unpack[CallOptions],
) -> Result | list[Result] | list[list[Result]]: ...  # fmt: skip


@door
def generate(
    target: ModelLike, draft: DraftLike | None,
    prompt: Prompt | Sequence[Prompt] | Container | None = None, *,
    decoder_prompt: Prompt | Sequence[Prompt] | Container | None = None,
    messages: Messages | Sequence[Messages] | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None, documents: Sequence[Mapping[str, Any]] | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    gamma: Gamma = None, max_new_tokens: int | None = 200,
    temperature: float = 0.0, top_k: int | None = None, top_p: float | None = None,
    min_p: float | None = None, repetition_penalty: float | None = None,
    presence_penalty: float | None = None, frequency_penalty: float | None = None,
    dry_multiplier: float = 0.0, dry_base: float = 1.75, dry_allowed_length: int = 2,
    dry_penalty_last_n: int | None = None,
    dry_sequence_breakers: Sequence[str | Sequence[int]] | None = None,
    logit_bias: Mapping[int, float] | None = None, min_tokens: int = 0, no_repeat_ngram_size: int = 0,
    bad_words: Sequence[str | Sequence[int]] | None = None,
    draft_sampling: Sampling | None = None, transform: Transform | None = None,
    schema: Schema | None = None, regex: str | None = None, grammar: str | None = None,
    constraint: Constraint | None = None, max_reasoning_tokens: int | None = None,
    verify: DecodingRule = "auto", lenience: float = 1.0, seed: Seed = None, stop: Stop = None,
    include_stop_str_in_output: bool = False, skip_special_tokens: bool = True,
    n_threads: int | None = None, prompt_cache: PromptCache | None = None,
    logits: bool = False, logprobs: int | None = None, logprobs_of: LogprobsOf = "model",
    prompt_logprobs: int | None = None, ignore_eos: bool = False,
    adapter: AdapterLike | Sequence[AdapterLike | None] | None = None,
    n: int = 1, batch_size: int | None = None, node_budget: int | None = None, progress: bool = False,
) -> Result | list[Result] | list[list[Result]]:  # fmt: skip
    """Continue a prompt by exact speculative decoding (Algorithm 1 of arXiv 2211.17192).

    The output has exactly the target's distribution under the sampling settings, whatever the draft and
    gamma. At temperature 0 it equals plain decoding (no draft, one token per target forward pass): same
    tokens and same logits, bit for bit.

    Parameters
    ----------
    target : Model, path or hub name
        The model to sample from. A path or hub name is loaded by `specdec.load` for this call only, in the
        checkpoint's own number format.
    draft : Model, path, hub name, Draft, object or None
        A smaller model with the target's vocabulary, another draft from `specdec.drafts`, or any object with
        a `propose` method (`specdec.drafts.Drafter`). None: plain decoding.
    prompt : str, sequence of int, or a list of these
        One prompt as text or token ids, or several that are decoded together; a list of integers is one
        prompt. Text is encoded with the target's tokenizer, with BOS if the model was trained with it.
        Tensors, BatchEncodings of transformers (without their padding) and pandas Series work too; two
        dimensions mean several prompts. For an encoder-decoder this is the source, and the new text begins
        with `Model.decoder_start`.
    decoder_prompt : str, sequence of int, or a list of these, optional
        Encoder-decoder only: the start of the output, one for all sources or one for each. Text is encoded
        without special tokens.
    messages : list of dict, or a list of these
        A conversation (messages with "role" and "content") in place of a prompt, or several. The chat
        template renders the prompt (`Model.chat_template`, extra ``jinja2``); its end-of-message token
        becomes a stop. The output is the reply, or the continuation of a final assistant message.
    tools, documents : list of dict, optional
        Passed to the chat template: JSON schemas of functions, and documents to cite.
    chat_template_kwargs : mapping, optional
        More keyword arguments of `specdec.ChatTemplate.render`, including the template's own variables.
    gamma : int, "auto", AdaptiveGamma or callable, optional
        Maximum number of draft tokens per round, 0 to 1024; 0 is plain decoding. By default what the draft
        asks for, usually 4.

        "auto" drafts until another token's expected gain drops below its measured cost, and stops drafting
        where plain decoding is faster; see `AdaptiveGamma`, also about seeds.

        A callable is your own policy: before every round of every sequence, ``gamma(rounds)`` receives the
        sequence's `Round` objects so far and returns how many tokens to draft, from 0 to its attribute
        ``max_gamma`` (16 by default).
    max_new_tokens : int or None, default 200
        Maximum number of new tokens, at least 1; None continues until the context is full.
    temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty, logit_bias
    min_tokens, no_repeat_ngram_size, bad_words, dry_multiplier, dry_base, dry_allowed_length
    dry_penalty_last_n, dry_sequence_breakers
        Sampling settings, see `Sampling`. Temperature 0 is the argmax.
    draft_sampling : Sampling, optional
        The draft's own settings (section 6 of the paper); by default the target's. They change the acceptance
        rate, never the distribution of the output.
    transform : callable, optional
        ``transform(probs, tokens)`` receives the distribution of the next token after the settings above
        (float64, [n_vocab]) and the token ids so far, prompt included. It returns the distribution to sample
        from, [n_vocab], normalized or not. At temperature 0 the input is one-hot at the argmax, and the
        argmax of the result is taken. It must depend on its arguments only: it is called once per verified
        position, including positions that are then dropped. For stateful ones see `StatefulTransform`.
    schema, regex, grammar : optional
        Constraint on each new text, at most one of them: a JSON schema (a dict, True for any JSON, its text,
        or a class with the method ``model_json_schema``), a regular expression for the whole text, or a
        grammar in Lark or GBNF syntax. Needs ``llguidance`` (extra ``guided``). Tokens are sampled from the
        target's distribution, masked and renormalized token by token, after penalties and biases and before
        the temperature. Forced tokens need no draft. Generation ends when the text is complete; end-of-text
        ids are allowed where it may end. A stop or `max_new_tokens` may cut it short.
    constraint : Constraint, optional
        Your own constraint: an object with the method ``start(tokens)``.

        A reply to `messages` may begin with reasoning, if the chat template has a format for it. These
        constraints then apply to the answer after it; `Result.answer` is that part of the text.
    max_reasoning_tokens : int, optional
        Bound on the tokens of such reasoning, without its tags: after them its end is forced, so 0 closes it
        at once. None: no bound.
    verify : {"auto", "rejection", "block", "traversal", "coupled", "k-sequential", "classical"}
        The verification rule, see `specdec.verify`. "auto" is "block" for chains that a draft samples,
        "traversal" for trees that it samples, and "rejection" otherwise (copied tokens, temperature 0,
        lenience below 1); `Trace.rule` is the one that ran. "rejection" is the paper's. "block" (Sun et al.
        2024) accepts more with gamma above 1, and so does "traversal" (Weng et al. 2025), in trees too. With
        "coupled", a seed gives the same tokens for every draft and gamma, plain decoding included.
        "k-sequential" differs from "rejection" only for drafts with several tokens per position; "classical"
        is for comparison. "block" takes chains only, "k-sequential" takes chains and independent samples. At
        temperature 0 all rules are greedy.
    lenience : float, default 1.0
        l of appendix A.5, above 0, for "rejection". Below 1, more drafts are accepted and the output is no
        longer exact, but no token becomes more than 1 / l times as probable as under the target. At
        temperature 0 a draft is accepted if its probability is at least l times the target's maximum.
    seed : int, or a list with an entry for each prompt, optional
        Key of the random numbers. With an int s, prompt i of a batch uses the key (s, i). A list has one
        entry per prompt: an int s, short for (s, 0), or a pair (s, i), such as a `Result.seed`. None draws a
        fresh seed, which the result records. Equal seeds and settings give equal outputs, whatever else is in
        the batch (except with `node_budget`).
    stop : str, int, or a list of these, optional
        Stop strings and stop token ids. The text ends before the first stop string to be completed or the
        first stop id, exactly where plain decoding ends it. A string that contains the name of a special
        token also matches the token itself: ``<|im_end|>`` matches that id, ``END<|im_end|>`` three letters
        followed by it; if a string has several names, all match as tokens or all as text. The target's
        `Model.eos_ids` always stop, except with `ignore_eos`.
    include_stop_str_in_output : bool, default False
        End the text with the stop string, or with the text of the stop id, as in vLLM.
    skip_special_tokens : bool, default True
        Leave special tokens out of the text; False writes them as their names.
    n_threads : int, optional
        Number of compute threads; by default `SPECDEC_NUM_THREADS`, or the CPUs this process may use. It
        does not change the output.
    logits : bool, default False
        Keep the target's logits for each new token in `Result.logits`.
    logprobs : int, optional
        Keep the log-probability of each new token in `Result.logprobs`, and those of this many most probable
        alternatives in `Result.top_logprobs`; 0: the token only. Draft, gamma and batch do not change a bit
        of them.
    logprobs_of : {"model", "sampling"}
        The distribution that `logprobs` refer to: "model" is the softmax of the target's logits, as in
        `Model.score`; "sampling" is the distribution sampled from, after all settings and the `transform`
        (one more call per new token). Only "model" with a `lenience` below 1.
    prompt_logprobs : int, optional
        The same for each prompt token but the first, by "model": `Result.prompt_logprobs` and
        `Result.prompt_top_logprobs`. Several prompts need an extra pass.
    ignore_eos : bool, default False
        Continue after the end-of-text ids, `Model.eos_ids`.
    prompt_cache : PromptCache, optional
        Cache of earlier texts: the longest prefix that a prompt shares with one of them is copied, not
        computed, and this text is added to the cache. It does not change results.
    adapter : Model, path, or sequence of these, optional
        A LoRA adapter of the target: a model from :meth:`Model.with_adapter` or an adapter folder, read for
        this call; one for all prompts, or a list with one or None for each. The draft is unchanged. Each
        result equals that of its adapted target alone, bit for bit.
    n : int, default 1
        Samples per prompt; the prompt is processed once for all of them. The results equal those of `n` equal
        prompts in a batch, with the keys (s, prompt · n + sample) of a seed s; a list of seeds has one entry
        per sample, prompt by prompt.
    batch_size : int, optional
        Number of prompts decoded together, by default 16; memory is reserved for that many texts of maximum
        length. When a text ends, the next prompt takes its slot. It does not change results.
    node_budget : int, optional
        Maximum number of positions per target forward pass, over all sequences, at least `batch_size`. Each
        sequence gets one; draft tokens share the rest equally. It does not change results at temperature 0 or
        with "coupled"; with other rules the tokens of a seed, not their distribution, depend on the batch.
    progress : bool, default False
        Show a progress bar (needs tqdm).

    Returns
    -------
    Result, or list of Result
        A list, in order, if `prompt` is a list of prompts. With `n` above 1, each entry is a list of samples.

    Raises
    ------
    InputError
        If an argument is out of range or does not fit the target, a callable gamma or a transform returns an
        invalid value, or penalties and biases leave no token. The message and the attributes name the
        argument, its value and what is expected.
    ConstraintError
        If a schema, regular expression or grammar cannot be read, is too large, or matches no text.
    VocabularyMismatchError
        If target and draft have different vocabularies.
    CheckpointError, TokenizerError
        If a path cannot be loaded.
    NotFiniteError
        If the target or the draft computes a non-finite number. Its attribute `result` holds the output so
        far; the message names the layer and the position.
    KeyboardInterrupt
        On Ctrl-C, within a round.

    Examples
    --------
    >>> target, draft = specdec.embedded_pair()
    >>> out = specdec.generate(target, draft, "It was a dark and stormy night", max_new_tokens=50)
    >>> out.trace.tokens_per_call > 1
    True
    >>> out = specdec.generate(chat_model, draft, messages=[{"role": "user", "content": "Hello!"}])
    >>> out = specdec.generate(t5, small_t5, "translate English to German: The house is wonderful.")
    """
    options = DecodingOptions.of_call(locals())
    chat = Chat.of_call(prompt, messages, tools, documents, chat_template_kwargs)
    request = Request(target, draft, prompt, options, chat, decoder_prompt)
    sequences = sequences_of(request)
    bar = progress_bar(request.n_new_tokens, "token") if progress else nullcontext()
    with bar as shown:
        for sequence, round_ in decode(Scheduler.of(request, sequences), sequences):
            if shown is None:
                continue
            if sequence.finish_reason is not None:  # it needs fewer tokens than reserved
                shown.total -= request.limit(sequence.index)[0] - len(sequence.tokens)
            shown.update(round_.kept)
    return request.arranged([sequence.result() for sequence in sequences])


@door
def stream(
    target: ModelLike, draft: DraftLike | None,
    prompt: Prompt | Container | None = None, *,
    decoder_prompt: Prompt | Container | None = None, messages: Messages | None = None,
    tools: Sequence[Mapping[str, Any]] | None = None, documents: Sequence[Mapping[str, Any]] | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    gamma: Gamma = None, max_new_tokens: int | None = 200,
    temperature: float = 0.0, top_k: int | None = None, top_p: float | None = None,
    min_p: float | None = None, repetition_penalty: float | None = None,
    presence_penalty: float | None = None, frequency_penalty: float | None = None,
    dry_multiplier: float = 0.0, dry_base: float = 1.75, dry_allowed_length: int = 2,
    dry_penalty_last_n: int | None = None,
    dry_sequence_breakers: Sequence[str | Sequence[int]] | None = None,
    logit_bias: Mapping[int, float] | None = None, min_tokens: int = 0, no_repeat_ngram_size: int = 0,
    bad_words: Sequence[str | Sequence[int]] | None = None,
    draft_sampling: Sampling | None = None, transform: Transform | None = None,
    schema: Schema | None = None, regex: str | None = None, grammar: str | None = None,
    constraint: Constraint | None = None, max_reasoning_tokens: int | None = None,
    verify: DecodingRule = "auto", lenience: float = 1.0, seed: Seed = None, stop: Stop = None,
    include_stop_str_in_output: bool = False, skip_special_tokens: bool = True,
    n_threads: int | None = None, prompt_cache: PromptCache | None = None,
    logits: bool = False, logprobs: int | None = None, logprobs_of: LogprobsOf = "model",
    prompt_logprobs: int | None = None, ignore_eos: bool = False,
    adapter: AdapterLike | Sequence[AdapterLike | None] | None = None,
) -> Stream:  # fmt: skip
    """Continue one prompt and yield its text as rounds finish.

    Takes the parameters and raises the errors of `generate`, at the call, not at the first piece. Text
    that may be part of a stop string or of an incomplete character is held back until that is decided. The
    pieces concatenate to `Result.text`. The target must have a tokenizer.

    Returns
    -------
    Stream
        An iterator of str; its attribute `result` is the `Result` once it has ended.

    Examples
    --------
    >>> for piece in specdec.stream(target, draft, "It was a dark and stormy night"):
    ...     print(piece, end="", flush=True)
    """
    options = DecodingOptions.of_call(locals())
    chat = Chat.of_call(prompt, messages, tools, documents, chat_template_kwargs)
    request = Request(target, draft, prompt, options, chat, decoder_prompt)
    if request.is_batch:
        name, found = "prompt" if chat is None else "messages", f"a list of {len(request.prompts)}"
        raise InputError.of(name, None, "one prompt (generate takes several)", found)
    if request.target.tokenizer is None:
        raise InputError("stream yields text, but the target has no tokenizer; use generate")
    return Stream(request)


class Stream(Iterator[str]):
    """Iterator over the pieces of a text, made by `stream`.

    You may stop before its end: `close`, or the end of a ``with`` block, frees the memory.
    """

    def __init__(self, request: Request) -> None:
        (self._sequence,) = sequences = sequences_of(request)
        self._scheduler = Scheduler.of(request, sequences)
        self._pieces = _pieces(self._scheduler, self._sequence)
        self._result: Result | None = None
        self._n_characters = 0

    def __repr__(self) -> str:
        state = "open" if self._result is None else f"ended by {self._result.finish_reason!r}"
        return f"<specdec.Stream, {state}: {number_of(self._n_characters, 'character')}>"

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> str:
        try:
            piece = next(self._pieces)
        except StopIteration:
            if self._result is None and self._sequence.finish_reason is not None:
                self._result = self._sequence.result()
            raise
        except NotFiniteError as error:
            self._result = cast("Result", error.result)
            raise
        self._n_characters += len(piece)
        return piece

    @property
    def result(self) -> Result:
        """Return the whole result, or the part before a `NotFiniteError`; RuntimeError before the end."""
        if self._result is None:
            raise RuntimeError("there is no result yet: the stream has not ended")
        return self._result

    def close(self) -> None:
        """Stop decoding and free the memory; idempotent."""
        self._pieces.close()
        self._scheduler.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _pieces(scheduler: Scheduler[DecodedSequence], sequence: DecodedSequence) -> Generator[str, None, None]:
    try:
        for _ in decode(scheduler, [sequence], 0.0):
            if piece := sequence.take_text():
                yield piece
    except NotFiniteError:
        if piece := sequence.take_text(final=True):
            yield piece
        raise
