"""Models: weights in the core, and their tokenizer."""

from __future__ import annotations

import functools
import operator
import os
import secrets
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, overload
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specdec import _core, system
from specdec.checks import CONVERSION_ERRORS, as_iterator, check_integer, check_path
from specdec.containers import text_of
from specdec.errors import ContextLengthError, InputError, number_of, shown, type_of
from specdec.models import quantization
from specdec.models.adapter import attach_adapter, fit_adapter
from specdec.models.chat_template import ChatTemplate, Messages
from specdec.models.checkpoints.file_tensor import OpenedFile
from specdec.models.infilling import InfillTokens
from specdec.models.model_config import ModelConfig
from specdec.models.number_formats import CacheDtype, MatrixDtype, PrefillMethod, default_cache_dtype
from specdec.models.origin import ModelOrigin, ReadFiles
from specdec.models.quantization import QuantizationReport
from specdec.models.reasoning_format import ReasoningFormat, reasoning_format
from specdec.models.score import Score, score
from specdec.models.tokenizer import ByteTokenizer, SourceTokenizer, Tokenizer, why_no_tokenizer
from specdec.threads import check_threads

Prompt: TypeAlias = str | Sequence[int] | NDArray[np.integer[Any]]
"""Text or token ids."""

_NO_LIMIT = 2**31 - 1


class ModelTexts(NamedTuple):
    """Tokenizers and chat template of a model; BOS and EOS ids for use without tokenizer."""

    tokenizer: Tokenizer | None
    chat_template: ChatTemplate | None = None
    source_tokenizer: SourceTokenizer | None = None
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()


class LaterTexts:
    """ModelTexts created on first use, thread-safe; retried after a failure."""

    def __init__(self, make: Callable[[], ModelTexts]) -> None:
        self._make = make
        self._made: ModelTexts | None = None
        # One lock per process, because another thread may hold it during a fork. Reentrant, because a signal
        # handler may call get() while its own thread holds the lock.
        self._locks: dict[int, threading.RLock] = {}

    def get(self) -> ModelTexts:
        """Return the texts."""
        if self._made is None:
            with self._locks.setdefault(os.getpid(), threading.RLock()):
                if self._made is None:
                    self._made = self._make()
        return self._made


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """A loaded model, created by :func:`specdec.load`. Immutable and thread-safe.

    A pickle holds no weights but the files' paths, sizes and digests, and the arguments of `load`. In the
    same process it unpickles to this model; another process loads the files once for all pickles of a model
    and refuses changed files. Files from the hub are downloaded there by the same commit, with that machine's
    token. The first pickle reads the files again for their digests. A process keeps the last two unpickled
    models, for pools whose tasks bring their models. `copy.copy` and `copy.deepcopy` return the model itself.

    Attributes
    ----------
    config : ModelConfig
        Sizes and switches.
    path : Path
        Where it was read.
    architecture : str
        The checkpoint's name for its architecture.
    decoder_start : tuple of int
        Ids that an encoder-decoder's output starts with, which are not generated: ``decoder_start_token_id``,
        then ``forced_bos_token_id`` or the token of a target language. Empty for other models.
    origin : ModelOrigin or None
        Files and arguments of `load`; None for a model made in memory.
    dtype : str
        Number format of the matrices: "f32", "bf16", "int8", "int4", or "file": the types of a quantized
        file.
    formats : mapping of str to str
        Canonical name to format of each matrix if ``dtype`` is "file"; else empty.
    types : str
        The file's types if ``dtype`` is "file", such as "Q4_K, Q6_K"; else empty.
    cache_dtype : str
        Number format of the KV cache: "f32", "bf16" or "int8".
    prefill : str
        Matrix multiplication for prompts: "rows", "tiles" or "blas", see :func:`specdec.load`.
    n_bytes : int
        Memory of the packed weights.
    n_parameters : int
        Number of weights, a tied head counted once.
    """

    _weights: _core.Model
    config: ModelConfig
    _texts: ModelTexts | LaterTexts | Tokenizer | None
    path: Path
    architecture: str
    _default_sampling: Mapping[str, Any] = field(default_factory=dict)
    _: KW_ONLY
    decoder_start: tuple[int, ...] = ()
    origin: ModelOrigin | None = None
    formats: Mapping[str, str] = field(default_factory=dict)
    types: str = ""
    unmerged: _UnmergedAdapter | None = None
    mapped: OpenedFile | None = None  # the packed file with the weights
    dtype: MatrixDtype = field(init=False)
    cache_dtype: CacheDtype = field(init=False)
    prefill: PrefillMethod = field(init=False)
    n_bytes: int = field(init=False)
    n_parameters: int = field(init=False)

    def __post_init__(self) -> None:
        # Read now: another program may truncate the mapped file.
        for name in ("dtype", "cache_dtype", "prefill", "n_bytes", "n_parameters"):
            object.__setattr__(self, name, getattr(self._weights, name))
        self._register()

    def _register(self) -> None:
        """Register the model for pickles in this process."""
        of = self.origin if self.unmerged is None else self.unmerged
        if of is not None and of.key is not None:
            _OF_KEY[of.key] = self

    def _changed(self, **changes: Any) -> Model:
        made = object.__new__(Model)
        made.__dict__.update(self.__dict__ | changes)
        for name in ("chat_end_ids", "reasoning_format"):
            made.__dict__.pop(name, None)
        made._register()
        return made

    @property
    def texts(self) -> ModelTexts:
        """Tokenizers and chat templates; loaded on first use for a packed file."""
        texts = self._texts
        if isinstance(texts, LaterTexts):
            return texts.get()
        return texts if isinstance(texts, ModelTexts) else ModelTexts(texts)

    if not TYPE_CHECKING:  # with it, type checkers would accept any attribute

        def __getattr__(self, name: str) -> Any:
            hint = ""
            if name in ("generate", "stream"):
                hint = f"; did you mean specdec.{name}(model, draft, prompt)?"
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    def __reduce__(self) -> tuple[Callable[..., Model], tuple[Any, ...]]:
        if self.unmerged is not None and self.unmerged.key is not None:
            return _unpickled_adapted, (
                self.unmerged.key,
                self.unmerged.base,
                self.unmerged.files.reference(),
            )
        if self.origin is None:
            found = f"{self.path} is a model made in memory, which cannot be pickled"
            raise InputError(f"{found}; expected a model from specdec.load, because a pickle names its files")
        return _unpickled, (self.origin.reference(),)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Model:
        return self

    __copy__ = __deepcopy__

    @property
    def core(self) -> _core.Model:
        """The core's model.

        Raises
        ------
        CheckpointError
            Another program changed the mapped packed file.
        """
        if self.mapped is not None:
            self.mapped.check_unchanged()
        return self._weights

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer; None: prompts and results are ids."""
        return self.texts.tokenizer

    @property
    def source_tokenizer(self) -> SourceTokenizer | None:
        """Tokenizer of an encoder-decoder's sources; None: sources are ids."""
        return self.texts.source_tokenizer

    @property
    def bos_id(self) -> int | None:
        """BOS id of the tokenizer, or without one of the configuration; None if there is none."""
        texts = self.texts
        return texts.bos_id if texts.tokenizer is None else texts.tokenizer.bos_id

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """EOS ids of the tokenizer, or without one of the configuration files or GGUF metadata."""
        texts = self.texts
        return texts.eos_ids if texts.tokenizer is None else tuple(texts.tokenizer.eos_ids)

    @property
    def languages(self) -> tuple[str, ...]:
        """Language codes of a multilingual translation model."""
        source = self.source_tokenizer
        return () if source is None else tuple(source.languages)

    def with_languages(self, *, src_lang: str | None = None, tgt_lang: str | None = None) -> Model:
        """Return the model for another source or target language; it shares the weights.

        Parameters
        ----------
        src_lang, tgt_lang : str, optional
            Codes in :attr:`languages`. None: unchanged.

        Returns
        -------
        Model

        Raises
        ------
        InputError
            The model does not have this language, or has no languages or no tokenizer.

        Examples
        --------
        >>> model = specdec.load("path/to/nllb").with_languages(src_lang="eng_Latn", tgt_lang="deu_Latn")
        """
        source, start = self.source_tokenizer, self.decoder_start
        if source is None:
            raise InputError(f"{self.path} has no tokenizer for sources; expected a translation model")
        if src_lang is not None:
            source = source.in_language(src_lang)
        if tgt_lang is not None:
            ours, known = source.language_id("tgt_lang", tgt_lang), set(source.languages.values())
            if ours >= self.config.n_vocab:
                expected = f"a language with one of the model's ids, 0 to {self.config.n_vocab - 1}"
                found = f"{shown(tgt_lang)}, token id {ours} of the tokenizer"
                raise InputError.of("tgt_lang", tgt_lang, expected, found)
            start = (*(token for token in start if token not in known), ours)
        texts = self.texts._replace(source_tokenizer=source)
        origin = None if self.origin is None else self.origin.in_languages(src_lang, tgt_lang)
        return self._changed(_texts=texts, decoder_start=start, origin=origin)

    def with_chat_template(self, template: str | ChatTemplate) -> Model:
        r"""Return the model with another chat template; it shares the weights and cannot be pickled.

        Parameters
        ----------
        template : str or ChatTemplate
            A Jinja template, or several templates.

        Returns
        -------
        Model

        Examples
        --------
        >>> model = target.with_chat_template("{% for m in messages %}{{ m.content }}\n{% endfor %}")
        """
        if not isinstance(template, ChatTemplate):
            tokens = None if self.chat_template is None else self.chat_template.tokens
            template = ChatTemplate(template, tokens=tokens, source=f"the chat template for {self.path}")
        texts = self.texts._replace(chat_template=template)
        unmerged = None if self.unmerged is None else replace(self.unmerged, key=None)
        return self._changed(_texts=texts, origin=None, unmerged=unmerged)

    def with_adapter(self, path: str | os.PathLike[str], *, n_threads: int | None = None) -> Model:
        """Return the model with an unmerged LoRA adapter; it shares the weights.

        The result works wherever a model does. Models with adapters of one base may share a batch
        (``specdec.generate(..., adapter=[...])``). Adapters may change matrices of attention, of dense MLPs,
        and an untied head; :func:`specdec.load` merges adapters that change more. The weights keep the base's
        number format; the adapter is f32.

        Parameters
        ----------
        path : path-like
            A PEFT folder, with ``adapter_config.json`` and ``adapter_model.safetensors``.
        n_threads : int, optional
            As in :func:`specdec.load`.

        Returns
        -------
        Model

        Raises
        ------
        CheckpointError
            A damaged or missing adapter, values that are not finite, or an adapter of another model.
        UnsupportedModelError
            An adapter that must be merged: another method than LoRA, adapted embeddings or experts, a model
            with an encoder.
        InputError
            The model has an unmerged adapter already.

        Examples
        --------
        >>> polite = target.with_adapter("path/to/adapter")
        >>> specdec.generate(polite, draft, "Once upon a time")
        """
        location, threads = check_path("path", path), check_threads(n_threads)
        if self.unmerged is not None:
            raise InputError(f"{self!r} has an unmerged adapter; expected its base, Model.base")
        fitted = fit_adapter(location, self.architecture, self._weights.config, self.path, merging=False)
        core = attach_adapter(self.core, fitted, self.path, threads)
        own = _UnmergedAdapter(self, ReadFiles.at(location, fitted.folder.files), location)
        sizes = {"n_bytes": core.n_bytes, "n_parameters": core.n_parameters}
        return self._changed(_weights=core, unmerged=own, **sizes)

    @property
    def base(self) -> Model | None:
        """The model without its unmerged adapter; None if it has none."""
        return None if self.unmerged is None else self.unmerged.base

    @property
    def adapter(self) -> Path | None:
        """Folder of the unmerged adapter, or None."""
        return None if self.unmerged is None else self.unmerged.path

    @property
    def adapter_digest(self) -> str | None:
        """Digest of the unmerged adapter's files, or None."""
        return None if self.unmerged is None else self.unmerged.files.reference().digest

    def source_ids(self, source: str | ArrayLike) -> NDArray[np.int32]:
        """Return the ids of a source.

        Parameters
        ----------
        source : str or sequence of int
            Text, which :attr:`source_tokenizer` encodes, or ids.

        Returns
        -------
        ndarray of int32, shape (n_source,)

        Raises
        ------
        InputError
            A model without encoder, text without tokenizer, or no, too many or out-of-range ids.
        """
        encoder = self.config.encoder
        if encoder is None:
            raise InputError(f"a source was given, but {self.path} has no encoder; expected no source")
        source = text_of(source)
        if isinstance(source, str):
            if self.source_tokenizer is None:
                raise InputError(f"a text was given, but {why_no_tokenizer(self.path)}")
            source = self.source_tokenizer.encode(source)
        return _checked_ids(source, "source has", 1, None, encoder, self.path)

    @property
    def default_sampling(self) -> dict[str, Any]:
        """Sampling settings that the model's authors recommend in generation_config.json or a GGUF file.

        Keyword arguments of `specdec.generate` and `specdec.Sampling`; they apply only if passed. Banned or
        biased tokens are a ``logit_bias``, longer banned sequences ``bad_words``, and ``min_new_tokens`` is
        ``min_tokens``. For greedy decoding there are only these, a repetition penalty and
        ``no_repeat_ngram_size``. Loading warns about unsupported settings.

        Examples
        --------
        >>> specdec.generate(model, None, prompt, **model.default_sampling)
        """
        return dict(self._default_sampling)

    @property
    def chat_template(self) -> ChatTemplate | None:
        """Chat templates, or None."""
        return self.texts.chat_template

    def chat_ids(self, messages: Messages, **variables: Any) -> list[int]:
        """Return the token ids of a conversation, by the model's chat template.

        Parameters
        ----------
        messages : list of dict
            With "role" and "content".
        **variables
            Keyword arguments of :meth:`specdec.ChatTemplate.render`, such as tools and documents.

        Returns
        -------
        list of int

        Raises
        ------
        InputError, TokenizerError, MissingPackageError
            As :meth:`specdec.ChatTemplate.render`, or a model without chat template or tokenizer, or with a
            tokenizer that does not parse special tokens.
        """
        tokenizer, template, *_ = self.texts
        if tokenizer is None:
            raise InputError.about("messages", f"messages were given, but {why_no_tokenizer(self.path)}")
        if template is None and variables.get("chat_template") is not None:
            template = ChatTemplate({}, source=str(self.path))
        if template is None:
            found = f"messages were given, but {self.path} has no chat template"
            raise InputError.about(
                "messages", f"{found}; expected a prompt, or a chat template (Model.with_chat_template)"
            )
        text = template.render(messages, **variables)
        if isinstance(tokenizer, ByteTokenizer) and not tokenizer.reads_special_tokens:
            for token in tokenizer.special_tokens():
                if token in text:
                    found = f"the chat template writes the special token {token!r}, but {tokenizer.source}"
                    raise InputError(f"{found} does not parse special tokens; expected a tokenizer.json")
        return tokenizer.encode(text, add_bos=False)

    def infill_ids(self, prefix: str | Sequence[int], suffix: str) -> list[int]:
        """Return the token ids of a prompt after which the model writes what is between two texts.

        Templates of Qwen Coder, StarCoder, CodeGemma, Granite Code and DeepSeek Coder, recognized by the
        names of their special tokens.

        Parameters
        ----------
        prefix : str or sequence of int
            Text or token ids before the gap.
        suffix : str
            Text after the gap.

        Returns
        -------
        list of int
            Pass `infill_end_ids` as `stop`, too.

        Raises
        ------
        InputError
            The vocabulary has no such tokens.
        """
        tokenizer, tokens = self.tokenizer, self._infill_tokens
        if tokens is None or not isinstance(tokenizer, ByteTokenizer):
            found = f"given, but the vocabulary of {self.path} has no tokens for infilling"
            expected = "tokens such as <|fim_prefix|>, <|fim_suffix|> and <|fim_middle|>"
            raise InputError.of("suffix", suffix, expected, found)
        return tokens.prompt(tokenizer, prefix if isinstance(prefix, str) else list(prefix), suffix)

    @property
    def infill_end_ids(self) -> tuple[int, ...]:
        """Token ids that end an infilled text, besides `eos_ids`; () without infilling."""
        return () if self._infill_tokens is None else self._infill_tokens.ends

    @functools.cached_property
    def _infill_tokens(self) -> InfillTokens | None:
        return InfillTokens.of(self.tokenizer)

    @functools.cached_property
    def chat_end_ids(self) -> tuple[int, ...]:
        """The special token that ends a message in the chat template, which stops replies; () if none."""
        tokenizer, template, *_ = self.texts
        if tokenizer is None or template is None:
            return ()
        end = template.end_of_message()
        ids = tokenizer.encode(end, add_bos=False)[:1] if end else []
        added: frozenset[int] = getattr(tokenizer, "added_ids", frozenset())
        inside = (token for token in ids if token < self.config.n_vocab)
        return tuple(token for token in inside if token in added or not tokenizer.decode([token]))

    @functools.cached_property
    def reasoning_format(self) -> ReasoningFormat | None:
        """How replies separate reasoning and answer, from the chat template; None if they do not."""
        tokenizer, template, *_ = self.texts
        if template is None:
            return None
        return reasoning_format(tokenizer, "\n".join(template.templates.values()))

    def __repr__(self) -> str:
        c = self.config
        layers = number_of(c.n_layer, "layer")
        if c.encoder is not None:
            layers = f"{number_of(c.encoder.n_layer, 'layer')} of an encoder, {c.n_layer} of a decoder"
        cache = (
            "" if self.cache_dtype == default_cache_dtype(self.dtype) else f", cache in {self.cache_dtype}"
        )
        prompts = {"rows": "in rows", "tiles": "in tiles", "blas": "by OpenBLAS"}[self.prefill]
        merged = None if self.origin is None else self.origin.adapter_files
        adapter = "" if self.unmerged is None else f", adapter {str(self.unmerged.path)!r}"
        adapter += "" if merged is None else f", merged with {str(merged.path)!r}"
        return (
            f"<specdec.Model {str(self.path)!r}: {self.architecture}, {_short(self.n_parameters)} "
            f"parameters in {self.types or self.dtype} ({_short(self.n_bytes, 'G')}B){cache}, "
            f"prompts {prompts}{adapter}, {layers}, d_model {c.d_model}, n_vocab {c.n_vocab}, "
            f"n_ctx {c.n_ctx}>"
        )

    def logits(
        self, ids: str | ArrayLike, source: str | ArrayLike | None = None, *, n_threads: int | None = None
    ) -> NDArray[np.float32]:
        """Return next-token logits after each token.

        Parameters
        ----------
        ids : str or sequence of int
            1 to ``n_ctx`` tokens; text is encoded as in :meth:`check_ids`.
        source : str or sequence of int, optional
            Input of the encoder, for a model that has one.
        n_threads : int, optional
            As in :func:`specdec.load`.

        Returns
        -------
        ndarray of float32, shape (n_tokens, n_vocab)

        Raises
        ------
        InputError
            No, too many or out-of-range tokens (the message names the position), text without tokenizer, or
            no source for a model with an encoder.
        NotFiniteError
            NaN or infinity; the message names layer and position.
        """
        decoder, tokens = self._decoder(ids, source, n_threads)
        logits: NDArray[np.float32] = decoder.prefill(tokens, logits=True, finite=True)
        return logits

    def _decoder(self, ids: Any, source: Any, n_threads: Any, **options: Any) -> tuple[Any, Any]:
        """Return a decoder with capacity for some tokens, and their checked ids."""
        tokens, read = self.check_ids(ids, minimum=1), self.source_of(source)
        options |= {"capacity": len(tokens), "n_threads": check_threads(n_threads), "source": read}
        return _core.Decoder(self.core, **options), tokens

    def hidden_states(
        self,
        ids: str | ArrayLike,
        layers: Sequence[int],
        source: str | ArrayLike | None = None,
        *,
        n_threads: int | None = None,
    ) -> dict[int, NDArray[np.float32]]:
        """Return hidden states after each token, which learned drafts use.

        Parameters
        ----------
        ids, source, n_threads
            As in :meth:`logits`.
        layers : sequence of int
            At most 16 of: 0, the embedding; n, the residual stream after n layers; ``n_layer + 1``, the
            normalized input of the head.

        Returns
        -------
        dict of int to ndarray of float32, shape (n_tokens, d_model)
            Hidden states by layer.

        Raises
        ------
        InputError, NotFiniteError
            As in :meth:`logits`, and for a layer that the model does not have.
        """
        n_layer = self.config["n_layer"]
        asked = (check_integer(f"layers[{i}]", layer, 0, n_layer + 1) for i, layer in enumerate(layers))
        wanted = sorted(set(asked))
        if not 1 <= len(wanted) <= _core.MAX_CAPTURES:
            raise InputError(f"layers names {len(wanted)} hidden states; expected 1 to {_core.MAX_CAPTURES}")
        decoder, tokens = self._decoder(ids, source, n_threads, captures=wanted)
        decoder.prefill(tokens, finite=True)
        return {layer: decoder.captured(layer) for layer in wanted}

    @overload
    def score(  # type: ignore[overload-overlap]  # a str is a sequence of str too
        self, ids: Prompt, source: str | ArrayLike | None = None, *, n_threads: int | None = None
    ) -> NDArray[np.float64]: ...
    @overload
    def score(
        self,
        ids: Sequence[Prompt | tuple[Prompt, Prompt]],
        source: str | ArrayLike | None = None,
        *,
        sources: Prompt | Sequence[Prompt] | None = None,
        top_logprobs: int = 0,
        rolling: bool = False,
        batch_size: int | None = None,
        n_threads: int | None = None,
        progress: bool = False,
    ) -> list[Score]: ...
    @overload
    def score(
        self,
        ids: ArrayLike,
        source: str | ArrayLike | None = None,
        *,
        sources: Prompt | Sequence[Prompt] | None = None,
        top_logprobs: int = 0,
        rolling: bool = False,
        batch_size: int | None = None,
        n_threads: int | None = None,
        progress: bool = False,
    ) -> NDArray[np.float64] | list[Score]: ...

    def score(
        self,
        ids: Any,
        source: str | ArrayLike | None = None,
        *,
        sources: Any = None,
        top_logprobs: int = 0,
        rolling: bool = False,
        batch_size: int | None = None,
        n_threads: int | None = None,
        progress: bool = False,
    ) -> NDArray[np.float64] | list[Score]:
        """Return log-probabilities of a text, of many texts, or of continuations.

        Parameters
        ----------
        ids : str or sequence of int, or a list of requests
            One text of 2 to ``n_ctx`` tokens, encoded as in :meth:`check_ids`. Or a list of requests: texts,
            token ids, or tuples ``(context, continuation)``, which score only the continuation. A request has
            at most ``n_ctx + 1`` tokens, as the last one is not read. Context and continuation that are both
            text are tokenized together.
        source : str or sequence of int, optional
            Input of the encoder, shared by all requests.
        sources : str, sequence of int, or a list of these, optional
            For a list of requests: one source for all, or one each.
        top_logprobs : int, default 0
            For a list of requests: number of most probable alternatives per token.
        rolling : bool, default False
            For a list of requests: texts of any length, scored in windows as in lm-evaluation-harness. The
            first token follows BOS, or else EOS; every later window has as much preceding text as fits.
        batch_size : int, optional
            Contexts read at once, each with the memory of the longest. None: at most 16, as many as fill a
            forward pass. It never changes results.
        n_threads : int, optional
            As in :func:`specdec.load`.
        progress : bool, default False
            For a list of requests: show a progress bar (needs tqdm).

        Returns
        -------
        ndarray of float64, shape (n_tokens - 1,)
            For one text: ln p(ids[i + 1] | ids[: i + 1]) in nats; the negated mean is the cross-entropy.
        list of Score
            For a list of requests: their scores, bit for bit as if alone. Common prefixes are read once.

        Raises
        ------
        InputError
            As in :meth:`logits`, naming the request. Also an empty context or continuation, and rolling for a
            model with an encoder or without BOS and EOS.
        NotFiniteError
            As in :meth:`logits`.

        Examples
        --------
        >>> model.score("Once upon a time").sum()
        >>> scores = model.score([("The sky is", " blue"), ("The sky is", " green")])
        >>> max(scores, key=lambda score: score.total).is_greedy
        """
        return score(
            self,
            ids,
            source,
            sources,
            top_logprobs=top_logprobs,
            rolling=rolling,
            batch_size=batch_size,
            n_threads=n_threads,
            progress=progress,
        )

    def source_of(self, source: str | ArrayLike | None) -> NDArray[np.int32] | None:
        """Return the ids of the source that a model with an encoder needs; None for other models."""
        if source is not None:
            return self.source_ids(source)
        if self.config.encoder is not None:
            raise InputError(f"source is None, but {self.path} has an encoder; expected text or token ids")
        return None

    def quantization_report(
        self,
        ids: str | ArrayLike | None = None,
        source: str | ArrayLike | None = None,
        *,
        n_threads: int | None = None,
        progress: bool | None = None,
    ) -> QuantizationReport:
        """Measure the quantization error of this model against its checkpoint.

        Compares each matrix with the reopened checkpoint. With a text, also compares the cross-entropy with
        that of the checkpoint in f32, which needs 4 bytes per weight. The text is scored with the model's
        prefill method: load with ``prefill="rows"`` for the cross-entropy of decoding.

        Parameters
        ----------
        ids : str or sequence of int, optional
            At least two tokens, read in independent pieces of ``n_ctx``. None: a page of an English novel; no
            text for a model without tokenizer or with an encoder.
        source, n_threads
            As in :meth:`logits`.
        progress : bool, optional
            As in :func:`specdec.load`.

        Returns
        -------
        QuantizationReport
            ``print`` shows the whole report.

        Raises
        ------
        InputError
            As in :meth:`logits`, fewer than two tokens, or a model made in memory.
        CheckpointError
            The checkpoint is missing or has changed.

        Examples
        --------
        >>> report = specdec.load("path/to/folder", dtype="int4").quantization_report()
        >>> report.perplexity / report.perplexity_f32
        1.04
        """
        return quantization.report(self, ids, source, n_threads, progress)

    def check_ids(
        self, ids: str | ArrayLike, *, minimum: int = 1, maximum: int | None = None
    ) -> NDArray[np.int32]:
        """Return checked token ids.

        Parameters
        ----------
        ids : str or sequence of int
            Text is encoded with BOS, if the model has one, or for an encoder-decoder with
            :attr:`decoder_start`.
        minimum, maximum : int
            Bounds of the number of tokens; ``maximum`` None: ``n_ctx``.

        Returns
        -------
        ndarray of int32, shape (n_tokens,)

        Raises
        ------
        InputError
            The message names the token and its position.
        """
        minimum, ids = check_integer("minimum", minimum, 0), text_of(ids)
        maximum = None if maximum is None else check_integer("maximum", maximum, 0)
        if isinstance(ids, str):
            if self.tokenizer is None:
                raise InputError(f"a text was given, but {why_no_tokenizer(self.path)}")
            if self.config.encoder is None:
                ids = self.tokenizer.encode(ids)
            else:
                ids = [*self.decoder_start, *self.tokenizer.encode(ids, add_bos=False)]
        return _checked_ids(ids, "there are", minimum, maximum, self.config, self.path)


ModelLike: TypeAlias = Model | str | os.PathLike[str]
"""A model, its path, or its name on the Hugging Face Hub."""


_OF_KEY: WeakValueDictionary[str, Model] = WeakValueDictionary()
"""Models of this process by key; an unpickled model has the key of the pickled one."""
_UNPICKLED: deque[Model] = deque(maxlen=2)
"""The last models loaded for pickles, kept for pools whose tasks bring their models."""
_unpickling = threading.Lock()


def _unpickled(reference: ModelOrigin) -> Model:
    """Return the model that a pickle refers to, loading its files if needed."""
    with _unpickling:
        model = _OF_KEY.get(reference.key)
        if model is None:
            arguments = dict(reference.arguments)
            if reference.tokenizer_files is not None:
                arguments["tokenizer"] = reference.tokenizer_files.found()
            if reference.adapter_files is not None:
                arguments["adapter"] = reference.adapter_files.found()
            model = reference.load(reference.files.found(), progress=False, **arguments)
            src_lang, tgt_lang = reference.languages
            if src_lang is not None or tgt_lang is not None:
                model = model.with_languages(src_lang=src_lang, tgt_lang=tgt_lang)
            origin: Any = model.origin  # never None after load
            files = replace(origin.files, hub=reference.files.hub)
            model = model._changed(origin=replace(origin, key=reference.key, files=files))
        elif model in _UNPICKLED:
            _UNPICKLED.remove(model)
        else:
            return model
        _UNPICKLED.append(model)
        return model


_WINDOWED: WeakKeyDictionary[Model, dict[int, Model]] = WeakKeyDictionary()


def windowed(model: Model, window: int | None) -> Model:
    """Return the model whose rows attend to the last `window` tokens, over the same weights; None: itself."""
    if window is None:
        return model
    known = _WINDOWED.setdefault(model, {})
    if (found := known.get(window)) is None:
        core = model.core.windowed(window)
        config = ModelConfig.from_canonical(core.config)
        made = model._changed(_weights=core, config=config, origin=None, unmerged=None)
        found = known.setdefault(window, made)
    return found


@dataclass(frozen=True)
class _UnmergedAdapter:
    """An unmerged adapter of the model `base`; without a `key` the pair cannot be pickled."""

    base: Model
    files: ReadFiles
    path: Path
    key: str | None = field(default_factory=lambda: secrets.token_hex(16))


def _unpickled_adapted(key: str, base: Model, files: ReadFiles) -> Model:
    """Return the model with an unmerged adapter that a pickle refers to, creating it if needed."""
    if (model := _OF_KEY.get(key)) is None:
        model = _OF_KEY[key] = base.with_adapter(files.found())
    return model


def _after_fork() -> None:
    global _unpickling
    _unpickling = threading.Lock()  # another thread of the parent may have held it


system.after_fork(_after_fork)


def _checked_ids(
    ids: Any, found: str, minimum: int, maximum: int | None, config: Mapping[str, Any], path: Path
) -> NDArray[np.int32]:
    """Return ids checked against a configuration; `found` starts messages on their number."""
    n_vocab = config["n_vocab"]
    limit = config["n_ctx"] if maximum is None else maximum
    tokens = ids if type(ids) is list and len(ids) > limit else _as_integers(ids)
    if len(tokens) < minimum:
        raise InputError(f"{found} {len(tokens)} token ids; expected at least {shown(minimum)}")
    if len(tokens) > limit:
        message = f"{found} {len(tokens)} token ids; expected at most {shown(limit)}"
        if maximum is None:
            raise ContextLengthError(f"{message}, the context length of {path}")
        raise InputError(message)
    for position, token in enumerate(tokens):
        if not 0 <= token < n_vocab:
            expected = f"0 to {n_vocab - 1}, the ids of {path}"
            raise InputError.of(f"token id at position {position}", token, expected)
    return np.asarray(tokens, dtype=np.int32)


def _as_integers(ids: Any) -> Sequence[int]:
    """Return a flat list of integers; refuse floats, booleans and nested lists."""
    if isinstance(ids, np.ndarray):
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            found = f"an array of shape {list(ids.shape)} and dtype {ids.dtype}"
            raise InputError.of("token ids", ids, "one dimension of integers", found, "are")
        listed: list[int] = np.asarray(ids).tolist()
        return listed
    iterator = None if isinstance(ids, bytes | bytearray | Mapping) else as_iterator(ids)
    if iterator is None:
        expected = "a sequence of integers, or text"
        raise InputError.of("token ids", ids, expected, type(ids).__name__, "are")
    tokens = []
    for position, value in enumerate(list(iterator)):
        try:
            if isinstance(value, bool | np.bool_):
                raise TypeError
            tokens.append(operator.index(value))
        except CONVERSION_ERRORS as error:
            found = f"{shown(value)}, {type_of(value)}"
            raise InputError.of(f"token id at position {position}", value, "an integer", found) from error
    return tokens


def _short(count: int, billion: str = "B") -> str:
    units = ((10**9, billion), (10**6, "M"), (10**3, "k"))
    return next((f"{count / size:.3g}{unit}" for size, unit in units if count >= size), str(count))
