"""Text from a target and a draft: `generate` gives it whole, `stream` as it comes."""

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
    logit_bias: Mapping[int, float] | None = None, min_tokens: int = 0, no_repeat_ngram_size: int = 0,
    bad_words: Sequence[str | Sequence[int]] | None = None,
    draft_sampling: Sampling | None = None, transform: Transform | None = None,
    schema: Schema | None = None, regex: str | None = None, grammar: str | None = None,
    constraint: Constraint | None = None,
    verify: DecodingRule = "rejection", lenience: float = 1.0, seed: Seed = None, stop: Stop = None,
    n_threads: int | None = None, prompt_cache: PromptCache | None = None,
    logits: bool = False, logprobs: int | None = None, logprobs_of: LogprobsOf = "model",
    prompt_logprobs: int | None = None, ignore_eos: bool = False,
    adapter: AdapterLike | Sequence[AdapterLike | None] | None = None,
    n: int = 1, batch_size: int | None = None, node_budget: int | None = None, progress: bool = False,
) -> Result | list[Result] | list[list[Result]]:  # fmt: skip
    """Continue a prompt by exact speculative decoding (Algorithm 1 of arXiv 2211.17192).

    The output has exactly the target's distribution under the sampling settings, whatever the draft and
    gamma; at temperature 0 it is equal to plain decoding, tokens and logits, bit for bit.

    Parameters
    ----------
    target : Model, path or hub name
        The model whose text this is. A path or name is loaded by `specdec.load`, for this call alone and in
        the checkpoint's own number format.
    draft : Model, path, hub name, Draft, object or None
        A smaller model with the target's vocabulary, another draft from `specdec.drafts`, or an object of
        your own with the method `propose` (`specdec.drafts.Drafter`). None: plain decoding, a token a run.
    prompt : str, sequence of int, or a list of these
        One prompt as text or token ids, or several that are decoded together; a list of integers is one
        prompt. Text is encoded with the target's tokenizer, with BOS where the model was trained with it.
        Tensors, a BatchEncoding of transformers (without its padding) and a Series of pandas are taken too;
        what has two dimensions is several prompts. Of an encoder-decoder this is the source, what is
        translated or summarized; the new text begins with the target's own `Model.decoder_start`.
    decoder_prompt : str, sequence of int, or a list of these, optional
        Of an encoder-decoder: what the new text continues, one for all sources or one for each. A text is
        encoded without special tokens.
    messages : list of dict, or a list of these
        In place of a prompt: a conversation, messages with "role" and "content", or several. The chat
        template makes the prompt (`Model.chat_template`, extra ``jinja2``), and the token with which it ends
        a message is among the stops. The new text is the reply, or the rest of an assistant's last message.
    tools, documents : list of dict, optional
        For the chat template: JSON schemas of functions, and texts to cite.
    chat_template_kwargs : mapping, optional
        Further keyword arguments of `specdec.ChatTemplate.render`, the template's own variables among them.
    gamma : int, "auto", AdaptiveGamma or callable, optional
        Draft tokens a round at most, 0 to 1024; 0 is plain decoding. By default as many as the draft asks
        for, 4 unless it says otherwise.

        "auto" drafts until another token's expected gain is below its measured cost, and not at all where
        that is fastest; see `AdaptiveGamma`, also on what a seed then gives.

        A callable is your own policy: before every round of every sequence ``gamma(rounds)`` is given the
        `Round` objects of that sequence so far and returns how many tokens to draft, 0 to its attribute
        ``max_gamma`` (16 if it has none).
    max_new_tokens : int or None, default 200
        New tokens at most, at least 1; None goes on until the context is full.
    temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty, logit_bias
    min_tokens, no_repeat_ngram_size, bad_words
        Sampling settings, see `Sampling`. Temperature 0 is the argmax.
    draft_sampling : Sampling, optional
        The draft's own settings (section 6 of the paper); by default those of the target. They change how
        often drafts are accepted, never the distribution of the output.
    transform : callable, optional
        ``transform(probs, tokens)`` is given the distribution of the next token after the settings above,
        float64 [n_vocab], and the token ids so far, prompt included; it returns the one to sample from,
        [n_vocab], which need not sum to 1. At temperature 0 all mass is on the argmax, and the argmax of what
        it returns is taken. It must be a function of its arguments alone: it is called once for every
        verified position, even if that is then dropped. For one with a state see `StatefulTransform`.
    schema, regex, grammar : optional
        What each new text must be, one of them: a JSON schema (a dict, True for any JSON, its text, or a
        class with the method ``model_json_schema``), a regular expression that the whole text matches, or a
        grammar in Lark's syntax or GBNF, read by ``llguidance`` (extra ``guided``). The distribution is the
        target's, masked and renormalized token by token, after penalties and biases and before the
        temperature. Forced tokens need no draft. The text ends where it is complete; the end-of-text ids may
        come where it may end. A stop or `max_new_tokens` may cut it short.
    constraint : Constraint, optional
        A constraint of your own: an object with the method ``start(tokens)``.
    verify : {"rejection", "block", "coupled", "k-sequential", "classical"}
        The rule of verification, see `specdec.verify`. "rejection" is the paper's. "block" (Sun et al. 2024)
        accepts more with gamma above 1. With "coupled" a seed gives the same tokens for every draft and
        gamma, and in plain decoding by that rule. "k-sequential" differs from "rejection" only where a draft
        has several tokens for one position, "classical" is there to compare with. "block" takes chains only,
        and "k-sequential" chains and independent samples; at temperature 0 all rules are the greedy one.
    lenience : float, default 1.0
        l of appendix A.5, above 0, for "rejection": below 1 more drafts are accepted and the output is no
        longer exact, but no token is more than 1 / l times as probable as under the target. At temperature 0
        a draft is accepted if the target finds it at least l times as probable as its most probable token.
    seed : int, or a list with an entry for each prompt, optional
        Key of the random numbers. With an int s, prompt i of a batch uses (s, i). An entry of a list is an
        int s, which stands for (s, 0), or a pair (s, i), such as a `Result.seed`. None draws a fresh seed,
        which the result records. Equal seeds and settings give equal runs, whatever else is in the batch (but
        see `node_budget`).
    stop : str, int, or a list of these, optional
        The text ends before the first of these strings to be completed, or before the first of these token
        ids, exactly where plain decoding ends it. A string that contains the name of a special token is also
        matched by the token: ``<|im_end|>`` is the id of that token, ``END<|im_end|>`` three letters and the
        token after them; of several names either all are tokens or all are text. `Model.eos_ids` of the
        target are always among the stops, except with `ignore_eos`.
    n_threads : int, optional
        Threads to compute with; by default `SPECDEC_NUM_THREADS` or the CPUs this process may use. The number
        does not change the output.
    logits : bool, default False
        Keep the target's logits that each new token was chosen from, in `Result.logits`.
    logprobs : int, optional
        Keep ln p of each new token, in `Result.logprobs`, and of so many of the most probable tokens in its
        place, in `Result.top_logprobs`; 0: of the token alone. Neither draft, gamma nor batch changes a bit
        of them.
    logprobs_of : {"model", "sampling"}
        Which distribution `logprobs` are of: that of the target's logits as they are, as `Model.score` has
        it; or the one that is sampled from, after all settings and the `transform`, which is called once more
        for each new token. With a `lenience` below 1 only "model".
    prompt_logprobs : int, optional
        The same of each token of the prompt but the first, by "model": `Result.prompt_logprobs` and
        `Result.prompt_top_logprobs`. Several prompts are read once more for it.
    ignore_eos : bool, default False
        Go on past the ids that end a text, `Model.eos_ids`.
    prompt_cache : PromptCache, optional
        Texts that were read before: what a prompt has in common with the beginning of one of them is copied,
        not computed, and this text becomes one of them. It changes no result.
    adapter : Model, path, or sequence of these, optional
        A LoRA adapter of the target: a model of its :meth:`Model.with_adapter`, or the folder of an adapter,
        which is read for this call; one for all prompts, or a list with one or None for each. The draft stays
        the same. Each result is that of its adapted target alone, bit for bit.
    n : int, default 1
        How many samples of each prompt, which is read once for all of them. The results are those of `n`
        equal prompts in a batch, with the keys (s, prompt · n + sample) of a seed s; a list of seeds has an
        entry for each sample, prompt by prompt.
    batch_size : int, optional
        How many prompts are decoded at once, at least 1, by default 16; memory is taken for so many texts of
        the greatest length. When a text ends, the next prompt takes its slot. It changes no result.
    node_budget : int, optional
        Positions that the target is run on in a round at most, all sequences together, at least
        `batch_size`. Each sequence has one, and draft tokens share the rest equally. It changes no result at
        temperature 0 nor with "coupled"; with another rule the tokens of a seed, not their distribution,
        depend on what else is in the batch.
    progress : bool, default False
        Show a progress bar (needs tqdm).

    Returns
    -------
    Result, or list of Result
        A list, in order, if `prompt` was a list of prompts. With `n` above 1 a list of the samples in place
        of each result.

    Raises
    ------
    InputError
        If an argument is out of range or does not fit the target, a callable gamma or a transform returns
        something else than it may, or penalties and biases leave no token. Its attributes, and the message,
        name the argument, its value and what is expected.
    ConstraintError
        If a schema, regular expression or grammar cannot be read, is too large, or no text satisfies it.
    VocabularyMismatchError
        If target and draft have different vocabularies.
    CheckpointError, TokenizerError
        If a path cannot be loaded.
    NotFiniteError
        If the target or the draft computes a number that is not finite. Its attribute `result` is what there
        was before; the message names the layer and the position.
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
            if sequence.finish_reason is not None:  # what it could still have had is not to come
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
    logit_bias: Mapping[int, float] | None = None, min_tokens: int = 0, no_repeat_ngram_size: int = 0,
    bad_words: Sequence[str | Sequence[int]] | None = None,
    draft_sampling: Sampling | None = None, transform: Transform | None = None,
    schema: Schema | None = None, regex: str | None = None, grammar: str | None = None,
    constraint: Constraint | None = None,
    verify: DecodingRule = "rejection", lenience: float = 1.0, seed: Seed = None, stop: Stop = None,
    n_threads: int | None = None, prompt_cache: PromptCache | None = None,
    logits: bool = False, logprobs: int | None = None, logprobs_of: LogprobsOf = "model",
    prompt_logprobs: int | None = None, ignore_eos: bool = False,
    adapter: AdapterLike | Sequence[AdapterLike | None] | None = None,
) -> Stream:  # fmt: skip
    """Continue one prompt, giving its text as rounds finish.

    Parameters and errors are those of `generate`; they are checked at the call, not at the first piece. Text
    that may be the beginning of a stop string, or of a character, is held back until that is decided. The
    pieces add up to `Result.text`. The target must have a tokenizer.

    Returns
    -------
    Stream
        An iterator of str, which has the `Result` in its attribute `result` when it has ended.

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
        raise InputError.of(name, None, "one for stream, several for generate", found)
    if request.target.tokenizer is None:
        raise InputError("stream gives text, but the target has no tokenizer; generate gives token ids")
    return Stream(request)


class Stream(Iterator[str]):
    """The pieces of a text as they come; `stream` makes it.

    It may be left before its end: `close`, or the end of a ``with`` block, frees the run's memory.
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
        """The whole result, or what there was before a `NotFiniteError`; RuntimeError before the end."""
        if self._result is None:
            raise RuntimeError("there is no result: the stream has not come to its end")
        return self._result

    def close(self) -> None:
        """End the run now and free its memory; idempotent."""
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
