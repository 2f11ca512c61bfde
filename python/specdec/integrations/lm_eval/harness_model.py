"""`SpecdecLM`: the model "specdec" for lm-evaluation-harness."""

from __future__ import annotations

import inspect
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import (
    Collator,
    handle_stop_sequences,
    has_bos_prefix,
    normalize_gen_kwargs,
    postprocess_generated_text,
)
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window, simple_parse_args_string
from tqdm import tqdm

from specdec import _core
from specdec.checks import check_integer
from specdec.decoding.generate import generate
from specdec.decoding.options import Gamma
from specdec.decoding.prompt_cache import PromptCache
from specdec.decoding.result import Result
from specdec.drafts.model_draft import DraftLike
from specdec.errors import InputError, shown
from specdec.integrations.lm_eval.harness_tokenizer import HarnessTokenizer
from specdec.integrations.pair import EvaluatedPair, LoadOptions, Tally, check_names
from specdec.models.model import Model
from specdec.settings_table import Unpack, table_of
from specdec.verification.rules import DecodingRule
from specdec.verification.sampling import Sampling

ScoringRequest: TypeAlias = tuple[Any, list[int], list[int]]
"""(texts of the request or None, context ids, continuation ids)."""

WritingRequest: TypeAlias = tuple[str, dict[str, Any], int, str | None]
"""(context, settings, index among the requests of the call, task)."""

_log = logging.getLogger("lm_eval.specdec")  # child of the harness's logger, which has the handlers

_SCORED_TOGETHER: Final = 256  # requests per call of Model.score: the most that an interrupt loses
_BATCHES_TOGETHER: Final = 4  # batches per call of generate: keeps slots full, and an interrupt loses little
_AUTO_BATCH_SIZE: Final = 16


_SAMPLING: Final = tuple(table_of(Sampling))
_WITHOUT_EFFECT: Final[Mapping[str, tuple[Any, ...]]] = {
    "num_beams": (1,),
    "num_return_sequences": (1,),
    "use_cache": (True, False),
}
"""Arguments of transformers' ``generate`` with the values that have no effect."""

_FORMATS: Final = {"auto": None, "float32": "f32", "bfloat16": "bf16"}
"""Number formats by the harness's names."""


@register_model("specdec")
class SpecdecLM(TemplateLM):
    """Harness model that scores with a target and generates by speculative decoding.

    ``--model_args name=value,…`` sets any parameter; ``batch_size``, ``max_batch_size`` and ``device`` have
    their own options.

    Parameters
    ----------
    target : str or Model
        The model to evaluate: a path, a hub name, or "embedded" for the bundled one.
    draft : str, Draft, Model, object or None
        A name for `specdec.drafts.named`, a path or a hub name. None: plain decoding. Greedy texts and
        log-likelihoods do not depend on the draft.
    pretrained : str, optional
        Alias of ``target``, under which the harness names its result folder.
    gamma, verify : optional
        See `specdec.generate`.
    dtype, draft_dtype, cache_dtype, prefill, tokenizer, n_ctx, revision, n_threads
        As in `specdec.load`. Also accepts "auto", "float32" and "bfloat16".
    batch_size : int or "auto"
        Texts decoded or scored at once. "auto" (or "auto:N"): 16, at most ``max_batch_size``. Does not
        change results.
    max_batch_size : int, optional
    max_length : int, optional
        Most tokens of context and continuation; None: the target's context.
    max_gen_toks : int, default 256
        Default number of new tokens of a request.
    add_bos_token : bool, optional
        Whether to prepend BOS; None: if the target was trained with it.
    prefix_token_id : int, optional
        Token before a text without context; None: BOS, else the end of text.
    chat_template_args : dict, optional
        Variables of the chat template.
    enable_thinking : bool, optional
        One of these variables.
    think_end_token : str or int, optional
        End of the reasoning; the answer follows.
    prompt_cache : bool or int, default False
        Size of the prefix cache in bytes (True: 1 GiB). Does not change results.
    seed : int, default 0
        RNG key of sampled requests; request i of a task uses (seed, i).
    device, trust_remote_code : object, optional
        Accepted and ignored: specdec computes on the CPU and runs no code of a checkpoint.

    Raises
    ------
    InputError, CheckpointError, TokenizerError, VocabularyMismatchError
        As `specdec.load`, `specdec.drafts.load` and `specdec.generate`.

    Examples
    --------
    >>> lm = SpecdecLM(target="path/to/model", draft="path/to/draft", gamma="auto")
    >>> results = lm_eval.simple_evaluate(lm, tasks=["gsm8k"])
    """

    def __init__(
        self, target: str | os.PathLike[str] | Model | None = None, draft: DraftLike | None = None, *,
        pretrained: str | os.PathLike[str] | None = None, gamma: Gamma = None,
        verify: DecodingRule = "auto", batch_size: int | str = 1, max_batch_size: int | None = None,
        max_length: int | None = None, max_gen_toks: int = 256, add_bos_token: bool | None = None,
        prefix_token_id: int | None = None, chat_template_args: Mapping[str, Any] | None = None,
        enable_thinking: bool | None = None, think_end_token: str | int | None = None,
        prompt_cache: bool | int = False, seed: int = 0, device: Any = None, trust_remote_code: Any = None,
        **load: Unpack[LoadOptions],
    ) -> None:  # fmt: skip
        super().__init__()
        given = pretrained if target is None else target
        if given is None or (target is not None and pretrained is not None):
            raise InputError("target and pretrained are both given, or both missing; expected one of them")
        options: Any = {name: format_of(value) if "dtype" in name else value for name, value in load.items()}
        self.pair = EvaluatedPair.open(given, draft, **options)
        self.tokenizer = HarnessTokenizer(self.pair.target)
        self.backend = "causal" if self.pair.target.config.encoder is None else "seq2seq"
        self.tally = Tally()  # of all requests so far
        self.tally_by_task: dict[str, Tally] = {}  # without times
        self._gamma, self._verify, self._n_threads = gamma, verify, load.get("n_threads")
        self._revision = load.get("revision")
        self.batch_size = batch_size_of(batch_size)
        if max_batch_size is not None:
            max_batch_size = check_integer("max_batch_size", max_batch_size, 1)
        self._max_batch_size, self._device = max_batch_size, "cpu"
        capacity = (self.pair.target.config.encoder or self.pair.target.config).n_ctx
        self.max_length = (
            capacity if max_length is None else check_integer("max_length", max_length, 2, capacity)
        )
        self.max_gen_toks = check_integer("max_gen_toks", max_gen_toks, 1)
        self._add_bos = add_bos_token
        self._prefix = prefix_token_id
        self._template_name: str | None = None
        self._template_args = dict(chat_template_args or {})
        if enable_thinking is not None:
            self._template_args["enable_thinking"] = enable_thinking
        self._think_end = think_end_token
        self._seed = check_integer("seed", seed, 0)
        self._prompt_cache = prompt_cache_of(prompt_cache)

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> SpecdecLM:
        """Make a model from command-line arguments, refusing unknown names."""
        names = [name for name in inspect.signature(cls).parameters if name != "load"]
        check_names(arg_dict, [*names, *LoadOptions.__annotations__])
        model: SpecdecLM = super().create_from_arg_obj(arg_dict, additional_config)
        return model

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: dict[str, Any] | None = None
    ) -> SpecdecLM:
        """Make a model from arguments in one string, ``name=value,...``."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    # -- the harness's model interface -------------------------------------------------------------------

    @property
    def eot_token_id(self) -> int:
        """Token that ends a text."""
        token = self.tokenizer.eos_token_id
        if token is None:
            raise InputError(f"{self.pair.name} has no end-of-text token; expected a model with one")
        return token

    @property
    def prefix_token_id(self) -> int:
        """Token before a text without context."""
        if self._prefix is not None:
            return self._prefix
        bos = self.tokenizer.bos_token_id
        return self.eot_token_id if bos is None else bos

    @property
    def tokenizer_name(self) -> str:
        """Key of tokenizer and chat template in the harness's request cache."""
        return self.tokenizer.name_or_path.replace("/", "__")

    def tok_encode(
        self,
        string: str,
        add_special_tokens: bool | None = None,
        left_truncate_len: int | None = None,
        **_: Any,
    ) -> list[int]:
        """Encode a text; ``add_special_tokens`` says whether to prepend BOS.

        None: follow ``add_bos_token``, except for a text that already starts with the name of BOS, as chat
        templates write it. With an encoder-decoder: encode a source, unless it is False.
        """
        if self.backend == "seq2seq" and add_special_tokens is not False:
            return self._source(string)[-(left_truncate_len or 0) :]
        add_bos = self._add_bos
        if add_special_tokens is not None:
            add_bos = None if add_special_tokens else False
        elif has_bos_prefix(string, self.tokenizer.bos_token):
            add_bos = False
        ids = self.tokenizer.encode(string, add_bos=add_bos)
        return ids[-left_truncate_len:] if left_truncate_len else ids

    def tok_decode(self, tokens: int | Sequence[int], **_: Any) -> str:
        """Decode ids without special tokens."""
        return self.tokenizer.decode([tokens] if isinstance(tokens, int) else tokens)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Select a chat template, by name if the model has several, and return its text."""
        template: str | None = super().chat_template(chat_template)
        several = isinstance(self.tokenizer.chat_template, dict)
        self._template_name = chat_template if several and isinstance(chat_template, str) else None
        return template

    def apply_chat_template(
        self, chat_history: list[dict[str, Any]], add_generation_prompt: bool = True
    ) -> str:
        """Render a conversation with the target's chat template.

        If the template refuses the messages, log a warning and retry without system messages, as the
        harness's own model does.
        """
        template = self.pair.target.chat_template
        if template is None:
            message = "has no chat template; expected one, or no --apply_chat_template"
            raise InputError(f"{self.pair.name} {message}")
        options: dict[str, Any] = {
            **self._template_args, "add_generation_prompt": add_generation_prompt,
            "continue_final_message": not add_generation_prompt, "chat_template": self._template_name,
        }  # fmt: skip
        try:
            text = template.render(chat_history, **options)
        except InputError as error:
            others = [message for message in chat_history if message["role"] != "system"]
            if len(others) == len(chat_history):
                raise
            _log.warning("%s; rendered without system messages", error)
            text = template.render(others, **options)
        self.tokenizer.check_special_tokens(text)
        return text

    def get_model_info(self) -> dict[str, Any]:
        """Return model and decoding statistics for the results."""
        target = self.pair.target
        return {
            "model_num_parameters": target.n_parameters,
            "model_dtype": target.dtype,
            "model_revision": self._revision or "main",
            "model_sha": target.path.name if target.path.parent.name == "snapshots" else "",
            "specdec": {
                "version": _core.__version__, "kernels": _core.kernels(),
                **self.pair.description(self._gamma, self._verify), **self.tally.figures(),
                "tasks": {name: tally.rates() for name, tally in self.tally_by_task.items()},
            },
        }  # fmt: skip

    # -- log-likelihoods --------------------------------------------------------------------------------

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        if self.backend == "causal":
            pair: tuple[list[int], list[int]] = super()._encode_pair(context, continuation)
            return pair
        n_spaces = len(context) - len(context.rstrip())
        if n_spaces:
            context, continuation = context[:-n_spaces], context[-n_spaces:] + continuation
        return self._source(context), self.tok_encode(continuation, add_special_tokens=False)

    def _source(self, text: str) -> list[int]:
        """Encode the encoder's input, truncated on the left to its context."""
        tokenizer = self.pair.target.source_tokenizer
        if tokenizer is None:
            raise InputError(f"{self.pair.name} has no source tokenizer; expected a target with one")
        return list(tokenizer.encode(text))[-self.max_length :]

    def _loglikelihood_tokens(
        self, requests: Sequence[ScoringRequest], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        collator = Collator(
            requests,
            sort_fn=lambda one: (len(one[2]), one[2]),
            group_by="gen_kwargs",  # the harness's word for grouping by `group_fn`, here by context
            group_fn=lambda one: one[1],
        )
        answers: list[tuple[float, bool]] = []
        with tqdm(total=len(requests), disable=disable_tqdm, desc="Running loglikelihood requests") as bar:
            for chunk in _joined(collator.get_batched(n=len(requests)), _SCORED_TOGETHER):
                for (texts, _context, _continuation), answer in zip(chunk, self._scored(chunk), strict=True):
                    answers.append(answer)
                    if texts is not None:  # None: a window of a text that is cached whole
                        self.cache_hook.add_partial("loglikelihood", texts, answer)
                bar.update(len(chunk))
        found: list[tuple[float, bool]] = collator.get_original(answers)
        return found

    def _scored(self, requests: Sequence[ScoringRequest]) -> Iterator[tuple[float, bool]]:
        """Yield (log-likelihood, is_greedy) of each continuation, from one call."""
        options: dict[str, Any] = {"batch_size": self._batch(), "n_threads": self._n_threads}
        if self.backend == "causal":
            pairs = [self._fitting(context, continuation) for _, context, continuation in requests]
        else:
            start = list(self.pair.target.decoder_start)
            pairs = [(start, continuation) for _, _, continuation in requests]
            options["sources"] = [context[-self.max_length :] for _, context, _ in requests]
        for score in self.pair.target.score(pairs, **options):
            yield float(score.total), bool(score.is_greedy)

    def _fitting(self, context: list[int], continuation: list[int]) -> tuple[list[int], list[int]]:
        """Truncate the context on the left; the last token is predicted but not read."""
        if len(continuation) > self.max_length:
            most = f"expected at most max_length, {self.max_length}"
            raise InputError(f"a continuation has {len(continuation)} tokens; {most}")
        excess = len(context) + len(continuation) - (self.max_length + 1)
        if excess > 0:
            _log.warning(
                "context truncated on the left by %d tokens: max_length is %d", excess, self.max_length
            )
            context = context[excess:]
        return context, continuation

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Return log-likelihoods of whole texts, from windows with disjoint predictions."""
        texts = [request.args[0] for request in requests]
        totals = [0.0] * len(texts)
        left = [0] * len(texts)
        windows: list[tuple[int, ScoringRequest]] = []
        for i, text in enumerate(texts):
            pairs = get_rolling_token_windows(
                token_list=self.tok_encode(text), prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length, context_len=1,
            )  # fmt: skip
            found = [(i, (None, *make_disjoint_window(pair))) for pair in pairs]
            left[i] = len(found)
            windows += found
        with tqdm(total=len(windows), disable=disable_tqdm, desc="Running rolling windows") as bar:
            for first in range(0, len(windows), _SCORED_TOGETHER):
                part = windows[first : first + _SCORED_TOGETHER]
                for (i, _), (total, _) in zip(part, self._scored([one for _, one in part]), strict=True):
                    totals[i] += total
                    left[i] -= 1
                    if not left[i]:
                        self.cache_hook.add_partial("loglikelihood_rolling", (texts[i],), totals[i])
                bar.update(len(part))
        return totals

    # -- texts ------------------------------------------------------------------------------------------

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Generate texts by batched speculative decoding."""
        given = [(*request.args, i, request.task_name) for i, request in enumerate(requests)]
        collator = Collator(
            given, sort_fn=lambda one: (-len(one[0]), one[0]), group_by="gen_kwargs",
            group_fn=lambda one: one[1],
        )  # fmt: skip
        texts: list[str] = []
        before = Tally(**vars(self.tally))
        with tqdm(total=len(given), disable=disable_tqdm, desc="Running generate_until requests") as bar:
            for chunk in collator.get_batched(n=_BATCHES_TOGETHER * self._batch()):
                for (context, gen_kwargs, *_), text in zip(chunk, self._written(chunk), strict=True):
                    texts.append(text)
                    self.cache_hook.add_partial("generate_until", (context, gen_kwargs), text)
                bar.update(len(chunk))
        _report(before, self.tally)
        found: list[str] = collator.get_original(texts)
        return found

    def _written(self, requests: Sequence[WritingRequest]) -> list[str]:
        """Generate texts for requests with equal settings in one call of `specdec.generate`."""
        settings: dict[str, Any] = dict(normalize_gen_kwargs(requests[0][1], self.max_gen_toks))
        until = [
            entry for entry in handle_stop_sequences(settings.pop("until"), self.tokenizer.eos_token) if entry
        ]
        n_new = settings.pop("max_gen_toks")
        began = time.perf_counter()
        results = generate(
            self.pair.target, self.pair.draft, [self._prompt(context, n_new) for context, *_ in requests],
            max_new_tokens=n_new, stop=self.tokenizer.stops(until),
            seed=[(self._seed, i) for _, _, i, _ in requests], gamma=self._gamma, verify=self._verify,
            batch_size=self._batch(), n_threads=self._n_threads, prompt_cache=self._prompt_cache,
            **sampling_of(settings),
        )  # fmt: skip
        self.tally.add(results, time.perf_counter() - began)
        for result, (*_, task) in zip(results, requests, strict=True):
            self.tally_by_task.setdefault(task or "", Tally()).add([result])
        return [self._answer(result, until) for result in results]

    def _prompt(self, context: str, n_new: int) -> list[int]:
        if self.backend != "causal":
            return self._source(context)
        capacity = self.max_length - n_new
        if capacity < 1:
            expected = f"fewer than max_length, {self.max_length}, to leave space for the prompt"
            raise InputError.of("max_gen_toks", n_new, expected)
        ids = self.tok_encode(context)
        if len(ids) > capacity:
            _log.warning(
                "prompt truncated on the left by %d tokens: max_length is %d, max_gen_toks %d",
                len(ids) - capacity, self.max_length, n_new,
            )  # fmt: skip
        return ids[-capacity:]

    def _answer(self, result: Result, until: list[str]) -> str:
        """Return the answer after the reasoning, as the harness's own model extracts it.

        Cut the text, without special tokens, at each stop string in order.
        """
        tokens, end = result.tokens, self._think_end
        if isinstance(end, int) and end in tokens:
            tokens = tokens[len(tokens) - tokens[::-1].index(end) :]
        text = self.tokenizer.decode(tokens)
        if isinstance(end, int):
            text = text.lstrip()
        cut: str = postprocess_generated_text(text, until, end if isinstance(end, str) else None)
        return cut

    def _batch(self) -> int:
        size = _AUTO_BATCH_SIZE if isinstance(self.batch_size, str) else self.batch_size
        return size if self._max_batch_size is None else min(size, self._max_batch_size)


def _joined(groups: Iterable[list[ScoringRequest]], size: int) -> Iterator[list[ScoringRequest]]:
    """Join whole groups into chunks of at least `size` requests."""
    chunk: list[ScoringRequest] = []
    for group in groups:
        chunk += group
        if len(chunk) >= size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _report(before: Tally, after: Tally) -> None:
    done = Tally(**{name: value - getattr(before, name) for name, value in vars(after).items()})
    if done.n_drafted:
        message = (
            "specdec: %(n_texts)d texts, %(n_tokens)d tokens in %(seconds).1f s; "
            "%(tokens_per_call).2f tokens per target pass, acceptance %(acceptance_rate).3f"
        )
        _log.info(message, done.figures())


# ── Conversion of the harness's arguments


def format_of(dtype: Any) -> Any:
    """Translate a number format to its name in `specdec.load`; return other values unchanged."""
    return _FORMATS.get(dtype, dtype) if isinstance(dtype, str) else dtype


def batch_size_of(given: int | str) -> int | str:
    """Parse an integer, or "auto" with an optional schedule such as "auto:4"."""
    if not isinstance(given, str):
        return check_integer("batch_size", given, 1)
    word, _, schedule = given.partition(":")
    if word == "auto" and (not schedule or schedule.isdigit()):
        return "auto"
    if not given.isdigit() or int(given) < 1:
        raise InputError.of("batch_size", given, "an integer, at least 1, or 'auto'")
    return int(given)


def prompt_cache_of(given: bool | int) -> PromptCache | None:
    """Make a cache of this many bytes (True: the default size); None for False."""
    if given is True:
        return PromptCache()
    return PromptCache(max_bytes=check_integer("prompt_cache", given, 1)) if given else None


def sampling_of(settings: dict[str, Any]) -> dict[str, Any]:
    """Convert a task's normalized arguments to those of `specdec.generate`."""
    settings = dict(settings)
    samples = bool(settings.pop("do_sample", False))
    found = {name: settings.pop(name) for name in _SAMPLING if settings.get(name) is not None}
    for name, value in settings.items():
        if value is not None and value not in _WITHOUT_EFFECT.get(name, ()):
            known = ", ".join(("until", "max_gen_toks", "do_sample", *_SAMPLING))
            raise InputError(f"generation_kwargs has {name} = {shown(value)}; expected {known}")
    found["temperature"] = float(found.get("temperature", 1.0)) if samples else 0.0
    if found.get("top_k") in (0, -1):  # no limit, in other engines
        del found["top_k"]
    return found
