"""A model: weights in the core, a tokenizer beside them."""

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
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import ArrayLike, NDArray

from specdec import _core
from specdec.checks import CONVERSION_ERRORS, as_iterator, check_integer, check_path
from specdec.containers import text_of
from specdec.errors import ContextLengthError, InputError, number_of, shown, type_of
from specdec.models import quantization
from specdec.models.adapter import beside, fit_adapter
from specdec.models.chat_template import ChatTemplate, Messages
from specdec.models.checkpoints.file_tensor import OpenedFile
from specdec.models.model_config import ModelConfig
from specdec.models.number_formats import CacheDtype, MatrixDtype, PrefillMethod
from specdec.models.origin import ModelOrigin, ReadFiles
from specdec.models.quantization import QuantizationReport
from specdec.models.score import Score, score
from specdec.models.tokenizer import ByteTokenizer, SourceTokenizer, Tokenizer, why_no_tokenizer
from specdec.threads import check_threads

Prompt: TypeAlias = str | Sequence[int] | NDArray[np.integer[Any]]
"""A text, or token ids."""

_NO_LIMIT = 2**31 - 1


class ModelTexts(NamedTuple):
    """What turns texts into ids and back; without a tokenizer the ids that configurations name count."""

    tokenizer: Tokenizer | None
    chat_template: ChatTemplate | None = None
    source_tokenizer: SourceTokenizer | None = None
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()


class LaterTexts:
    """ModelTexts that are made once, when a thread first asks for them, or again after a failure."""

    def __init__(self, make: Callable[[], ModelTexts]) -> None:
        self._make = make
        self._made: ModelTexts | None = None
        # One for each process, as another thread may hold it while the process is forked. A signal handler
        # may ask while its own thread holds it.
        self._locks: dict[int, threading.RLock] = {}

    def get(self) -> ModelTexts:
        """The texts."""
        if self._made is None:
            with self._locks.setdefault(os.getpid(), threading.RLock()):
                if self._made is None:
                    self._made = self._make()
        return self._made


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """A loaded model; :func:`specdec.load` makes it. Immutable, shared freely between threads and sessions.

    A pickle of it holds no weights: it names the files, with their sizes and digests, and how they were
    loaded. In its own process that gives this model again; another process loads the same files in the same
    formats, once for all pickles of one model, and refuses files that have changed. What was downloaded from
    the hub is downloaded there, by the same commit, with that machine's token. The first pickle reads the
    files once more, for their digests. A process keeps the two models that it loaded so last, for pools
    whose every task brings its models. A copy (`copy.copy`, `copy.deepcopy`) is the model itself.

    Attributes
    ----------
    config : ModelConfig
        What the model is.
    path : Path
        Where it was read.
    architecture : str
        What the checkpoint calls its architecture.
    decoder_start : tuple of int
        Of an encoder-decoder: the ids that its decoder's texts begin with, which are not generated:
        ``decoder_start_token_id`` of the files, then ``forced_bos_token_id`` or the token of a target
        language, where there is one. Empty for other models, and where the files name none.
    origin : ModelOrigin or None
        The files that the model was read from, and how; None of a model that was made in memory.
    dtype : str
        Number format of the matrices: "f32", "bf16", "int8" or "int4", or "file": each matrix has the type
        that it has in a GGUF file.
    formats : mapping of str to str
        Of a model in the types of a GGUF file: canonical name of a matrix to its format; else empty.
    types : str
        Which types these are, as "Q4_K, Q6_K"; else empty.
    cache_dtype : str
        Number format of the keys and values that sessions keep: "f32" or "bf16".
    prefill : str
        What multiplies the rows of prompts or sources: "rows", the row kernels; "tiles", these in the order
        of tiles; or "blas", OpenBLAS.
    n_bytes : int
        Memory that the packed weights take.
    n_parameters : int
        Weights, a tied head counted once.
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
    beside: _Beside | None = None  # an adapter beside the weights
    mapped: OpenedFile | None = None  # the packed file that they are in
    dtype: MatrixDtype = field(init=False)
    cache_dtype: CacheDtype = field(init=False)
    prefill: PrefillMethod = field(init=False)
    n_bytes: int = field(init=False)
    n_parameters: int = field(init=False)

    def __post_init__(self) -> None:
        # Read now: another program may truncate the file that a mapped core is in.
        for name in ("dtype", "cache_dtype", "prefill", "n_bytes", "n_parameters"):
            object.__setattr__(self, name, getattr(self._weights, name))
        self._register()

    def _register(self) -> None:
        """Let this process's pickles of the model find it."""
        of = self.origin if self.beside is None else self.beside
        if of is not None and of.key is not None:
            _OF_KEY[of.key] = self

    def _changed(self, **changes: Any) -> Model:
        made = object.__new__(Model)
        made.__dict__.update(self.__dict__ | changes)
        made.__dict__.pop("chat_end_ids", None)
        made._register()
        return made

    @property
    def texts(self) -> ModelTexts:
        """Tokenizers and chat templates; of a packed file they are made when they are first asked for."""
        texts = self._texts
        if isinstance(texts, LaterTexts):
            return texts.get()
        return texts if isinstance(texts, ModelTexts) else ModelTexts(texts)

    if not TYPE_CHECKING:  # a type checker would take every name for an attribute

        def __getattr__(self, name: str) -> Any:
            hint = ""
            if name in ("generate", "stream"):
                hint = f"; did you mean specdec.{name}(model, draft, prompt)?"
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    def __reduce__(self) -> tuple[Callable[..., Model], tuple[Any, ...]]:
        if self.beside is not None and self.beside.key is not None:
            return _unpickled_adapted, (self.beside.key, self.beside.base, self.beside.files.reference())
        if self.origin is None:
            found = f"{self.path} is a model that was made in memory, which cannot be pickled"
            raise InputError(f"{found}; expected one that specdec.load has read, as a pickle names its files")
        return _unpickled, (self.origin.reference(),)

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Model:
        return self

    __copy__ = __deepcopy__

    @property
    def core(self) -> _core.Model:
        """The packed weights, to compute with.

        Raises
        ------
        CheckpointError
            Another program has changed the packed file that they are mapped from.
        """
        if self.mapped is not None:
            self.mapped.check_unchanged()
        return self._weights

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Text to ids and back; None: ids in, ids out."""
        return self.texts.tokenizer

    @property
    def source_tokenizer(self) -> SourceTokenizer | None:
        """Of an encoder-decoder: from a source to the ids that its encoder reads; None: ids in."""
        return self.texts.source_tokenizer

    @property
    def bos_id(self) -> int | None:
        """The token that begins a text: the tokenizer's, or without one that of the configuration, if any."""
        texts = self.texts
        return texts.bos_id if texts.tokenizer is None else texts.tokenizer.bos_id

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The tokens that end a text: the tokenizer's, or without one those of the configuration.

        The configuration is generation_config.json, then config.json, or the metadata of a GGUF file.
        """
        texts = self.texts
        return texts.eos_ids if texts.tokenizer is None else tuple(texts.tokenizer.eos_ids)

    @property
    def languages(self) -> tuple[str, ...]:
        """The codes of the languages that a multilingual translation model has tokens for."""
        source = self.source_tokenizer
        return () if source is None else tuple(source.languages)

    def with_languages(self, *, src_lang: str | None = None, tgt_lang: str | None = None) -> Model:
        """The same model for sources in one language and texts in another; it shares the weights.

        Parameters
        ----------
        src_lang, tgt_lang : str, optional
            Codes among :attr:`languages`. None: what it was.

        Raises
        ------
        InputError
            The model has no such language, or none at all, or no tokenizer.

        Examples
        --------
        >>> model = specdec.load("path/to/nllb").with_languages(src_lang="eng_Latn", tgt_lang="deu_Latn")
        """
        source, start = self.source_tokenizer, self.decoder_start
        if source is None:
            raise InputError(f"{self.path} has no tokenizer of sources; expected a translation model")
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
        r"""The same model with another chat template; it shares the weights, and cannot be pickled.

        Parameters
        ----------
        template : str or ChatTemplate
            A template's Jinja text, or several templates.

        Examples
        --------
        >>> model = target.with_chat_template("{% for m in messages %}{{ m.content }}\n{% endfor %}")
        """
        if not isinstance(template, ChatTemplate):
            tokens = None if self.chat_template is None else self.chat_template.tokens
            template = ChatTemplate(template, tokens=tokens, source=f"the chat template for {self.path}")
        texts = self.texts._replace(chat_template=template)
        beside = None if self.beside is None else replace(self.beside, key=None)
        return self._changed(_texts=texts, origin=None, beside=beside)

    def with_adapter(self, path: str | os.PathLike[str], *, n_threads: int | None = None) -> Model:
        """The same model with a LoRA adapter of PEFT beside its weights; it shares the weights.

        It is a model like any other: the target of `specdec.generate`, of an `Engine`, of `beam_search`,
        scored by :meth:`score`. Models with adapters beside the same base may also share one batch
        (``specdec.generate(..., adapter=[...])``). Matrices of attention, of dense feed-forward blocks, and
        the head where it is not tied may be adapted; :func:`specdec.load` merges what adapts more. The number
        format of the weights is the base's, the adapter's numbers are f32.

        Parameters
        ----------
        path : path-like
            The folder, with ``adapter_config.json`` and ``adapter_model.safetensors``.
        n_threads : int, optional
            Threads that pack the matrices. None: :func:`specdec.threads.default_threads`.

        Raises
        ------
        CheckpointError
            A damaged or missing adapter, numbers that are not finite, or one that does not fit the model.
        UnsupportedModelError
            An adapter that cannot be laid beside the model: another method than LoRA, adapted embeddings or
            experts, a model with an encoder.
        InputError
            The model has an adapter beside its weights already.

        Examples
        --------
        >>> polite = target.with_adapter("path/to/adapter")
        >>> specdec.generate(polite, draft, "Once upon a time")
        """
        place, threads = check_path("path", path), check_threads(n_threads)
        if self.beside is not None:
            raise InputError(f"{self!r} has an adapter beside its weights; expected its base, Model.base")
        fitted = fit_adapter(place, self.architecture, self._weights.config, self.path, merging=False)
        core = beside(self.core, fitted, self.path, threads)
        own = _Beside(self, ReadFiles.at(place, fitted.folder.files), place)
        sizes = {"n_bytes": core.n_bytes, "n_parameters": core.n_parameters}
        return self._changed(_weights=core, beside=own, **sizes)

    @property
    def base(self) -> Model | None:
        """Of a model with an adapter beside its weights the model without; None of any other."""
        return None if self.beside is None else self.beside.base

    @property
    def adapter(self) -> Path | None:
        """The folder of the adapter beside the weights; None without one, or where it was merged."""
        return None if self.beside is None else self.beside.path

    @property
    def adapter_digest(self) -> str | None:
        """A digest of the files of the adapter beside the weights; None without one."""
        return None if self.beside is None else self.beside.files.reference().digest

    def source_ids(self, source: str | ArrayLike) -> NDArray[np.int32]:
        """The ids of a source, as the core takes them.

        Parameters
        ----------
        source : str or sequence of int
            A text, which :attr:`source_tokenizer` encodes, or ids, taken as they are.

        Returns
        -------
        ndarray of int32, shape (n_source,)

        Raises
        ------
        InputError
            A model without encoder, a text without tokenizer, no ids, more than the encoder reads, or one out
            of range.
        """
        encoder = self.config.encoder
        if encoder is None:
            raise InputError(f"a source was given, but {self.path} has no encoder; expected none")
        source = text_of(source)
        if isinstance(source, str):
            if self.source_tokenizer is None:
                raise InputError(f"a text was given, but {why_no_tokenizer(self.path)}")
            source = self.source_tokenizer.encode(source)
        return _checked_ids(source, "source has", 1, None, encoder, self.path)

    @property
    def default_sampling(self) -> dict[str, Any]:
        """The sampling settings that the model's authors name in generation_config.json or a GGUF file.

        Keyword arguments of `specdec.generate` and `specdec.Sampling`, as temperature and top_p; a setting
        that the file does not name is not among them. Tokens that it forbids or biases are a ``logit_bias``,
        longer sequences that it forbids ``bad_words``, and ``min_new_tokens`` is ``min_tokens``. Where the
        file asks for greedy decoding, only these, a repetition penalty and ``no_repeat_ngram_size`` are
        given. Settings that specdec does not have are warned of when the model is loaded. The others apply
        only if you pass them.

        Examples
        --------
        >>> specdec.generate(model, None, prompt, **model.default_sampling)
        """
        return dict(self._default_sampling)

    @property
    def chat_template(self) -> ChatTemplate | None:
        """From messages to the text that the model was trained on; None where the checkpoint has none."""
        return self.texts.chat_template

    def chat_ids(self, messages: Messages, **variables: Any) -> list[int]:
        """The token ids of a conversation, by the model's chat template.

        Parameters
        ----------
        messages : list of dict
            With "role" and "content".
        **variables
            Keyword arguments of :meth:`specdec.ChatTemplate.render`: tools, documents and others.

        Raises
        ------
        InputError
            Something else than messages, messages that the template refuses, or a model without chat template
            or tokenizer, or with one that does not read special tokens.
        TokenizerError
            The template is not valid Jinja.
        MissingPackageError
            Jinja is not installed: ``pip install 'specdec-cpu[chat]'``.
        """
        tokenizer, template, *_ = self.texts
        if tokenizer is None:
            raise InputError.about("messages", f"messages were given, but {why_no_tokenizer(self.path)}")
        if template is None and variables.get("chat_template") is not None:
            template = ChatTemplate({}, source=str(self.path))
        if template is None:
            found = f"messages were given, but {self.path} has no chat template"
            raise InputError.about("messages", f"{found}; expected a prompt")
        text = template.render(messages, **variables)
        if isinstance(tokenizer, ByteTokenizer) and not tokenizer.reads_special_tokens:
            for token in tokenizer.special_tokens():
                if token in text:
                    found = f"the chat template writes the special token {token!r}, but {tokenizer.source}"
                    raise InputError(f"{found} reads none in a text; expected a tokenizer.json")
        return tokenizer.encode(text, add_bos=False)

    @functools.cached_property
    def chat_end_ids(self) -> tuple[int, ...]:
        """The special token with which the chat template ends a message, if it does; stops a chat's reply."""
        tokenizer, template, *_ = self.texts
        if tokenizer is None or template is None:
            return ()
        end = template.end_of_message()
        ids = tokenizer.encode(end, add_bos=False)[:1] if end else []
        added: frozenset[int] = getattr(tokenizer, "added_ids", frozenset())
        inside = (token for token in ids if token < self.config.n_vocab)
        return tuple(token for token in inside if token in added or not tokenizer.decode([token]))

    def __repr__(self) -> str:
        c = self.config
        layers = number_of(c.n_layer, "layer")
        if c.encoder is not None:
            layers = f"{number_of(c.encoder.n_layer, 'layer')} of an encoder, {c.n_layer} of a decoder"
        engine = {"rows": "", "tiles": ", prompts in tiles", "blas": ", prompts by OpenBLAS"}[self.prefill]
        merged = None if self.origin is None else self.origin.adapter_files
        adapter = "" if self.beside is None else f", adapter {str(self.beside.path)!r}"
        adapter += "" if merged is None else f", merged with {str(merged.place)!r}"
        return (
            f"<specdec.Model {str(self.path)!r}: {self.architecture}, {_short(self.n_parameters)} "
            f"parameters in {self.types or self.dtype} ({_short(self.n_bytes, 'G')}B){engine}{adapter}, "
            f"{layers}, d_model {c.d_model}, n_vocab {c.n_vocab}, n_ctx {c.n_ctx}>"
        )

    def logits(
        self, ids: str | ArrayLike, source: str | ArrayLike | None = None, *, n_threads: int | None = None
    ) -> NDArray[np.float32]:
        """The logits of the next token after each of some tokens.

        Parameters
        ----------
        ids : str or sequence of int
            At least one token, at most ``n_ctx``. A text is encoded as by :meth:`check_ids`.
        source : str or sequence of int, optional
            What the encoder reads, of a model that has one.
        n_threads : int, optional
            None: :func:`specdec.threads.default_threads`. It does not change a bit of the result.

        Returns
        -------
        ndarray of float32, shape (n_tokens, n_vocab)

        Raises
        ------
        InputError
            No tokens, too many, one out of range (the message names its position), a text without
            tokenizer, or no source for a model with an encoder.
        NotFiniteError
            A number that is not finite; the message names the layer and the position.
        """
        decoder, tokens = self._decoder(ids, source, n_threads)
        logits: NDArray[np.float32] = decoder.prefill(tokens, logits=True, finite=True)
        return logits

    def _decoder(self, ids: Any, source: Any, n_threads: Any, **options: Any) -> tuple[Any, Any]:
        """A decoder with room for some tokens, and these as the core takes them."""
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
        """Hidden states of the decoder after each of some tokens: what learned drafts read of the target.

        Parameters
        ----------
        ids, source, n_threads
            As in :meth:`logits`.
        layers : sequence of int
            Which hidden states, by how many layers are behind them: 0, the embedding; n, the residual stream
            after n layers; ``n_layer + 1``, what the head reads, the output norm behind the last layer. At
            most 16 of them.

        Returns
        -------
        dict of int to ndarray of float32, shape (n_tokens, d_model)
            One for each of `layers`.

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
        """How probable the model finds a text, or each of many, or what goes on with contexts.

        Parameters
        ----------
        ids : str or sequence of int, or a list of requests
            One text of at least two tokens, at most ``n_ctx``; a text is encoded as by :meth:`check_ids`. Or
            a list of requests: texts, token ids, or tuples ``(context, continuation)`` of these, of which the
            continuation alone is scored. A request has at most ``n_ctx + 1`` tokens, as the last one is not
            read. Where context and continuation are both texts, the tokens are those of the joined text.
        source : str or sequence of int, optional
            What the encoder reads, of a model that has one; of a list of requests the same for all.
        sources : str, sequence of int, or a list of these, optional
            For a list of requests: a source for all, or one for each.
        top_logprobs : int, default 0
            For a list of requests: how many of the most probable tokens to name in place of each token.
        rolling : bool, default False
            For a list of requests: they are texts of any length, scored in windows. The first token follows
            the token that begins a text (BOS), or else the one that ends it; every window but the first has
            as much of the text before it as there is room for, as lm-evaluation-harness has it.
        batch_size : int, optional
            Contexts that are read at once, by default 16 or fewer, as many as fill a forward pass; each
            takes the memory of the longest. It changes no result.
        n_threads : int, optional
            None: :func:`specdec.threads.default_threads`. It changes no result.
        progress : bool, default False
            For a list of requests: show a progress bar (needs tqdm).

        Returns
        -------
        ndarray of float64, shape (n_tokens - 1,)
            Of one text: ln p(ids[i + 1] | ids[: i + 1]), natural logarithm; its negated mean is the
            cross-entropy in nats.
        list of Score
            Of a list of requests: what was found of each, in their order. What several requests begin with
            is read once. The numbers of a request are those that it has alone, bit for bit.

        Raises
        ------
        InputError
            As in :meth:`logits`; the message names the request. And for a context or a continuation without
            tokens, and windows of a model with an encoder or without a token to begin with.
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
        """Return the ids of a source that a model with an encoder needs; None for others, which take none."""
        if source is not None:
            return self.source_ids(source)
        if self.config.encoder is not None:
            raise InputError(f"source is None, but {self.path} has an encoder; expected a text, or token ids")
        return None

    def quantization_report(
        self,
        ids: str | ArrayLike | None = None,
        source: str | ArrayLike | None = None,
        *,
        n_threads: int | None = None,
        progress: bool | None = None,
    ) -> QuantizationReport:
        """What this model's number format costs, measured against its checkpoint.

        The checkpoint is opened again, and each matrix compared with the one that is computed with. Where
        there is a text, its cross-entropy is measured with this model and with the same checkpoint in f32,
        which is loaded for it and needs 4 bytes a weight.

        Parameters
        ----------
        ids : str or sequence of int, optional
            At least two tokens; what exceeds the context, ``n_ctx``, is read in pieces of that length, each
            by itself. None: a page of an English novel for a model with a tokenizer, no text for one without
            or with an encoder.
        source, n_threads
            As in :meth:`logits`.
        progress : bool, optional
            Show progress bars; None: for large checkpoints, in a terminal.

        Returns
        -------
        QuantizationReport
            ``print`` shows all of it.

        Raises
        ------
        InputError
            As in :meth:`logits`, fewer than two tokens, or a model that was made in memory.
        CheckpointError
            The checkpoint is no longer there, or is another one than was loaded.

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
        """Token ids as the core takes them.

        Parameters
        ----------
        ids : str or sequence of int
            A text is encoded with BOS, where the model has one; the text of a decoder with an encoder begins
            with :attr:`decoder_start`.
        minimum, maximum : int
            How many tokens; ``maximum`` None: the context, ``n_ctx``.

        Returns
        -------
        ndarray of int32, shape (n_tokens,)

        Raises
        ------
        InputError
            Which token, at which position, is wrong and what was expected.
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
"""The models of this process that have files, by key; an unpickled one has that of the one pickled."""
_UNPICKLED: deque[Model] = deque(maxlen=2)
"""The last ones that were loaded for pickles. They stay, for pools whose every task brings its models."""
_unpickling = threading.Lock()


def _unpickled(reference: ModelOrigin) -> Model:
    """The model that a pickle refers to: the one of this process, or loaded from its files."""
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
            origin: Any = model.origin  # specdec.load gives every model one
            files = replace(origin.files, hub=reference.files.hub)
            model = model._changed(origin=replace(origin, key=reference.key, files=files))
        elif model in _UNPICKLED:
            _UNPICKLED.remove(model)
        else:
            return model
        _UNPICKLED.append(model)
        return model


@dataclass(frozen=True)
class _Beside:
    """An adapter beside the weights of the model `base`; without a `key` the pair cannot be pickled."""

    base: Model
    files: ReadFiles
    path: Path
    key: str | None = field(default_factory=lambda: secrets.token_hex(16))


def _unpickled_adapted(key: str, base: Model, files: ReadFiles) -> Model:
    """The model with an adapter that a pickle refers to, of this process or made anew."""
    if (model := _OF_KEY.get(key)) is None:
        model = _OF_KEY[key] = base.with_adapter(files.found())
    return model


def _after_fork() -> None:
    global _unpickling
    _unpickling = threading.Lock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork)


def _checked_ids(
    ids: Any, found: str, minimum: int, maximum: int | None, config: Mapping[str, Any], path: Path
) -> NDArray[np.int32]:
    """The ids of a decoder or an encoder of this configuration; `found` begins a message on their number."""
    n_vocab = config["n_vocab"]
    limit = config["n_ctx"] if maximum is None else maximum
    tokens = ids if type(ids) is list and len(ids) > limit else _as_integers(ids)
    if len(tokens) < minimum:
        raise InputError(f"{found} {len(tokens)} token ids; expected at least {shown(minimum)}")
    if len(tokens) > limit:
        message = f"{found} {len(tokens)} token ids; expected at most {shown(limit)}"
        if maximum is None:
            raise ContextLengthError(f"{message}, the context of {path}")
        raise InputError(message)
    for position, token in enumerate(tokens):
        if not 0 <= token < n_vocab:
            expected = f"0 to {n_vocab - 1}, the ids of {path}"
            raise InputError.of(f"token id at position {position}", token, expected)
    return np.asarray(tokens, dtype=np.int32)


def _as_integers(ids: Any) -> Sequence[int]:
    """A flat list of integers; floats, booleans and nested lists are refused, not rounded or flattened."""
    if isinstance(ids, np.ndarray):
        if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
            found = f"an array of shape {list(ids.shape)} and dtype {ids.dtype}"
            raise InputError.of("token ids", ids, "one dimension of integers", found, "are")
        listed: list[int] = np.asarray(ids).tolist()
        return listed
    iterator = None if isinstance(ids, bytes | bytearray | Mapping) else as_iterator(ids)
    if iterator is None:
        expected = "a sequence of integers, or a text"
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
