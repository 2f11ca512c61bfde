"""`SpecdecAPI`: provider of the models ``specdec/PATH`` in Inspect AI."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any, Final

import numpy as np
from anyio import CapacityLimiter, to_thread
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    GenerateConfig,
    Logprob,
    Logprobs,
    ModelAPI,
    ModelOutput,
    ModelUsage,
    StopReason,
    TopLogprob,
)
from inspect_ai.tool import ToolChoice, ToolInfo
from numpy.typing import NDArray

from specdec.checks import check_integer
from specdec.decoding.engine import Engine
from specdec.decoding.options import Gamma
from specdec.decoding.prompt_cache import PromptCache
from specdec.decoding.result import Result
from specdec.errors import ContextLengthError, InputError, shown
from specdec.integrations.inspect.messages import (
    ReplyFormat,
    plain_text,
    reply_of,
    template_messages,
    template_tools,
)
from specdec.integrations.pair import EvaluatedPair, LoadOptions, Tally
from specdec.models.score import TopLogProbs
from specdec.models.tokenizer import ByteTokenizer
from specdec.settings_table import Unpack, table_of
from specdec.verification.rules import DecodingRule
from specdec.verification.sampling import Sampling

_STOP_REASONS: Final[Mapping[str, StopReason]] = {
    "stop": "stop", "length": "max_tokens", "context": "model_length",
}  # fmt: skip
_UNSUPPORTED: Final = ("best_of", "response_schema", "modalities")
"""Unsupported configuration fields that would change a text."""


class SpecdecAPI(ModelAPI):
    """Inspect model that decodes speculatively and batches concurrent requests.

    Parameters
    ----------
    model_name : str
        The target: a path, a hub name, or "embedded" for the bundled one.
    base_url, api_key : None
        Unused.
    config : GenerateConfig
        Inspect's own.
    draft : str, optional
        A name for `specdec.drafts.named`, a path or a hub name. None: plain decoding. Greedy texts do not
        depend on the draft.
    gamma, verify : optional
        See `specdec.generate`.
    dtype, draft_dtype, cache_dtype, prefill, tokenizer, n_ctx, revision, n_threads
        As in `specdec.load`.
    batch_size : int, default 16
        Requests decoded at once, each with memory for the whole context. Does not change results.
    prompt_cache : bool, default False
        Cache prefixes, so that a turn prefills only its new tokens. Does not change results.
    use_chat_template : bool, default True
        False: join the messages' texts with empty lines, as for a model without a chat template.
    chat_template_args : dict, optional
        Variables of the chat template, such as ``enable_thinking``.

    Raises
    ------
    InputError, CheckpointError, TokenizerError, VocabularyMismatchError
        As `specdec.load`, `specdec.drafts.load` and `specdec.generate`.

    Examples
    --------
    >>> model = inspect_ai.model.get_model("specdec/path/to/model", draft="path/to/draft", gamma="auto")
    """

    def __init__(
        self,
        model_name: str,
        base_url: str | None = None,
        api_key: str | None = None,
        config: GenerateConfig = GenerateConfig(),  # noqa: B008
        *,
        draft: str | None = None,
        gamma: Gamma = None,
        verify: DecodingRule = "auto",
        batch_size: int = 16,
        prompt_cache: bool = False,
        use_chat_template: bool = True,
        chat_template_args: Mapping[str, Any] | None = None,
        **load: Unpack[LoadOptions],
    ) -> None:
        super().__init__(model_name=model_name, base_url=base_url, api_key=api_key, config=config)
        self.pair = EvaluatedPair.open(model_name, draft, **load)
        if self.pair.target.config.encoder is not None:
            raise InputError(f"{model_name} is an encoder-decoder; expected a decoder-only model")
        self._gamma, self._verify, self._size = gamma, verify, check_integer("batch_size", batch_size, 1)
        self._prompt_cache = PromptCache() if prompt_cache else None
        self._engine_options: dict[str, Any] = {
            "gamma": gamma, "n_slots": self._size, "n_text": self.pair.target.config.n_ctx,
            "max_waiting": sys.maxsize, "max_top_logprobs": self.pair.target.config.n_vocab,
            "predictions": False, "prompt_cache": self._prompt_cache, "n_threads": load.get("n_threads"),
        }  # fmt: skip
        self._engine: Engine | None = None  # None until the first request
        self._has_template = use_chat_template and self.pair.target.chat_template is not None
        self._template_args = dict(chat_template_args or {})
        self._format = ReplyFormat.of(self.pair.target) if self._has_template else ReplyFormat()

    # -- Inspect's provider interface -------------------------------------------------------------------

    async def generate(
        self,
        input: list[ChatMessage],
        tools: list[ToolInfo],
        tool_choice: ToolChoice,
        config: GenerateConfig,
    ) -> ModelOutput:
        """Reply to a conversation with the configured number of choices."""
        settings = _settings(config, self.pair.target.config.n_ctx)
        if tool_choice == "none":
            tools = []
        if tools and (not self._has_template or tool_choice != "auto"):
            why = "no tool can be forced on it" if self._has_template else "it has no chat template"
            raise InputError(
                f"{self.model_name} is given tools with the choice {shown(tool_choice)}, and {why}; expected "
                "a model with a chat template, and 'auto' or 'none'"
            )
        prompt = template_messages(input) if self._has_template else plain_text(input)
        given: Any = {"prompt": prompt}
        if self._has_template:
            given = {"messages": prompt, "tools": template_tools(tools)}
            given["chat_template_kwargs"] = self._template_args
        n, began = config.num_choices or 1, perf_counter()
        seed = secrets.randbits(63) if config.seed is None else config.seed
        if self._engine is None:
            self._engine = Engine(self.pair.target, self.pair.draft, **self._engine_options)
        try:
            generation = self._engine.submit(
                **given, **settings, verify=self._verify, n=n, seed=[(seed, i) for i in range(n)]
            )
        except ContextLengthError:
            return ModelOutput.from_content(
                self.model_name, f"the prompt fills the context of {self.model_name}", "model_length"
            )
        try:  # in a thread, as the event loop need not be of asyncio
            wait = {"abandon_on_cancel": True, "limiter": CapacityLimiter(1)}
            results = await to_thread.run_sync(generation.results, **wait)
        except BaseException:
            generation.cancel()
            raise
        return self._output(results, perf_counter() - began, tools)

    def max_tokens(self) -> int | None:
        """Return the default number of new tokens, bounded by the context."""
        return self.pair.target.config.n_ctx

    def max_connections(self) -> int:
        """Return the number of concurrent requests."""
        return self._size

    def connection_key(self) -> str:
        """Return the key of the request limit, one per model."""
        return str(self.model_name)

    def collapse_user_messages(self) -> bool:
        """Return True, as templates expect alternating roles."""
        return True

    async def tokenize(self, text: str) -> list[int]:
        """Encode a text with the target's tokenizer."""
        return self.pair.tokenizer.encode(text, add_bos=False)

    async def count_text_tokens(self, text: str) -> int:
        """Count the target's tokens of a text."""
        return len(self.pair.tokenizer.encode(text, add_bos=False))

    async def aclose(self) -> None:
        """Stop the decoding thread; a later request starts a new one."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await to_thread.run_sync(engine.close)

    # -- conversion to Inspect's output -----------------------------------------------------------------

    def _output(self, results: list[Result], seconds: float, tools: Sequence[ToolInfo]) -> ModelOutput:
        n_prompt, n_cached = len(results[0].prompt_ids), results[0].n_cached_tokens
        n_new = sum(len(result.tokens) for result in results)
        usage = ModelUsage(
            input_tokens=n_prompt - n_cached, output_tokens=n_new, total_tokens=n_prompt + n_new
        )
        if self._prompt_cache is not None:
            usage.input_tokens_cache_read = n_cached
        figures = Tally().add(results).rates()
        return ModelOutput(
            model=self.model_name, choices=[self._choice(result, tools) for result in results], usage=usage,
            time=seconds,
            metadata={"specdec": {**self.pair.description(self._gamma, self._verify), **figures}},
        )  # fmt: skip

    def _choice(self, result: Result, tools: Sequence[ToolInfo]) -> ChatCompletionChoice:
        message = reply_of(self._format.text_of(result), self.model_name, tools, self._format)
        reason = "tool_calls" if message.tool_calls else _STOP_REASONS[result.finish_reason]
        choice = ChatCompletionChoice(message=message, stop_reason=reason)
        if result.logprobs is not None:
            choice.logprobs = self._logprobs(result.tokens, result.logprobs, result.top_logprobs)
        if result.prompt_logprobs is not None:  # without the first token
            choice.prompt_logprobs = self._logprobs(
                result.prompt_ids[1:], result.prompt_logprobs, result.prompt_top_logprobs
            )
        return choice

    def _logprobs(
        self, tokens: Sequence[int], log_probs: NDArray[np.float64], tops: TopLogProbs | None
    ) -> Logprobs:
        content = []
        named = tops or [[]] * len(tokens)
        for token, log_prob, best in zip(tokens, log_probs.tolist(), named, strict=True):
            others = [
                TopLogprob(token=text, logprob=value, bytes=list(data))
                for other, value in best
                for text, data in [self._token(other)]
            ]
            text, data = self._token(token)
            content.append(
                Logprob(token=text, logprob=log_prob, bytes=list(data), top_logprobs=others or None)
            )
        return Logprobs(content=content)

    def _token(self, token: int) -> tuple[str, bytes]:
        """Return the text of a token (a special token's name) and its bytes."""
        tokenizer = self.pair.tokenizer
        if not isinstance(tokenizer, ByteTokenizer):
            text = tokenizer.decode([token])
            return text, text.encode("utf-8")
        names = tokenizer.vocabulary()
        data = tokenizer.text_bytes(token) or (names[token] if token < len(names) else None) or b""
        return data.decode("utf-8", "replace"), data


def _settings(config: GenerateConfig, n_ctx: int) -> dict[str, Any]:
    """Convert a configuration to arguments of `Engine.submit`."""
    for name in _UNSUPPORTED:
        if value := getattr(config, name):
            raise InputError.of(name, value, "None, as specdec does not support it")
    given = {name: getattr(config, name, None) for name in table_of(Sampling)}
    found: dict[str, Any] = {name: value for name, value in given.items() if value}  # 0 changes nothing
    return found | {
        "max_new_tokens": n_ctx if config.max_tokens is None else config.max_tokens,
        "stop": list(config.stop_seqs or ()), "logit_bias": config.logit_bias or None,
        "logprobs": (config.top_logprobs or 0) if config.logprobs else None,
        "prompt_logprobs": config.prompt_logprobs,
    }  # fmt: skip
