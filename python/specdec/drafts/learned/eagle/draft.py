"""EAGLE, native multi-token prediction (MTP), and assistants: drafts from the target's hidden states."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec import _core
from specdec.checks import check_choice, check_flag, check_path
from specdec.drafts.draft import Description, Draft, check_model
from specdec.drafts.learned.eagle.assistant import open_assistant
from specdec.drafts.learned.eagle.native import open_native
from specdec.drafts.learned.eagle.published import PublishedDraft, open_published
from specdec.drafts.learned.folder import TargetIdentity
from specdec.drafts.learned.head_tokens import HeadTokens, check_head_tokens, usual_head_tokens
from specdec.drafts.trees import Tree, check_tree, describe_shape, gamma_of
from specdec.errors import CheckpointError, InputError, SpecdecError
from specdec.models.model import Model
from specdec.models.number_formats import DTYPES, Dtype, MatrixDtype, default_cache_dtype
from specdec.models.origin import HubLocation, ReadFiles
from specdec.models.tokenizer import check_same_vocabulary
from specdec.threads import check_threads


class Eagle(Draft):
    """EAGLE-1, EAGLE-2 or EAGLE-3: a layer that drafts from the target's hidden states.

    The draft reads each token with the target's hidden states of the previous token: one in EAGLE-1 (arXiv
    2401.15077), three layers' in EAGLE-3 (arXiv 2503.01840); after draft tokens it reads its own output.
    EAGLE-2 (arXiv 2406.16858) is ``tree=DynamicTree(n)`` with either.

    Parameters
    ----------
    path : path-like
        A folder or hub name with a published draft in safetensors: SpecForge's ``LlamaForCausalLMEagle3``,
        ``Eagle3LlamaForCausalLM`` of AngelSlim and vLLM, EAGLE-3 of ``speculators``, or the original layout
        of EAGLE-1.
    target : Model
        The model that it was trained for, in any number format. Shared embeddings or heads are in memory
        once.
    tree, gamma, dtype, n_threads
        See `specdec.drafts`.
    captures : sequence of int, optional
        Captured hidden states of the target, by the number of layers before them, in order. None: those that
        the files name (``eagle_config`` of ``LlamaForCausalLMEagle3`` counts as SGLang does, others as vLLM),
        else layers 2, the middle and the third last (EAGLE-3), or the input of the target's head (EAGLE-1).
    head_tokens : int, sequence of int or Ngram, optional
        Read the rows of the target's head for these tokens only, as `MTP` does; None: all.

    Attributes
    ----------
    variant : str
        "EAGLE-1" or "EAGLE-3".
    head_tokens : ndarray of int or None
        Tokens whose rows of the target's head the draft reads, ascending; None: all, or a head of its own.
    core : specdec._core.Eagle
        The packed weights.

    Examples
    --------
    >>> target = specdec.load("Qwen/Qwen3-1.7B", "int8")
    >>> draft = specdec.drafts.Eagle("AngelSlim/Qwen3-1.7B_eagle3", target)
    >>> out = specdec.generate(target, draft, "Once upon a time")
    >>> draft = specdec.drafts.Eagle(draft.path, target, tree=specdec.drafts.DynamicTree(24))
    """

    in_target_cache = True

    def __init__(
        self, path: str | os.PathLike[str], target: Model, *, tree: Tree | None = None,
        gamma: int | None = None, dtype: Dtype | None = None, captures: Sequence[int] | None = None,
        head_tokens: HeadTokens | None = None, n_threads: int | None = None,
    ) -> None:  # fmt: skip
        check_model("target", target)
        dtype = check_choice("dtype", dtype, DTYPES, optional=True)
        published = open_published(local_folder(path), target, captures)
        if dtype is not None:
            published = replace(published, dtype=dtype)
        self._take(published, target, tree, gamma, head_tokens, n_threads, HubLocation.of(path))

    def _take(
        self, published: PublishedDraft, target: Model, tree: Tree | None, gamma: int | None,
        head_tokens: HeadTokens | None, n_threads: int | None, hub: HubLocation | None = None,
    ) -> None:  # fmt: skip
        published = _with_head_tokens(published, check_head_tokens(head_tokens, target))
        self.tree = check_tree(tree)
        self.gamma = gamma_of(gamma, self.tree, self.gamma)
        self.path = published.path
        self.target = target
        self.variant = published.variant
        self.captures = published.layers
        self._files = ReadFiles.at(published.path, published.files, hub=hub)
        self.head_tokens = published.tokens if published.config["shared_head"] else None
        self.core = _packed(published, target, check_threads(n_threads))

    def __reduce__(self) -> tuple[Any, ...]:
        options = self._options() | {"captures": self.captures}
        return partial(_opened, **options), (self._files.reference(), self.target)

    def _options(self) -> dict[str, Any]:
        dtype = None if self.dtype == "file" else self.dtype
        options = {"tree": self.tree, "gamma": self.gamma, "dtype": dtype}
        return options | {"head_tokens": self.head_tokens}

    @property
    def dtype(self) -> MatrixDtype:
        """Number format of the draft's own matrices; "file": each has the type of its quantized file."""
        return self.core.model.dtype

    def describe(self, target: Model) -> Description:
        if target is not self.target:
            TargetIdentity.of(self.target).check(target, str(self.path))
            check_same_vocabulary(target, self.target)
        return describe_shape(self.tree, self.core)

    def __repr__(self) -> str:
        more = "" if self.head_tokens is None else f", {len(self.head_tokens):,} head tokens"
        more += "" if self.tree is None else f", tree={self.tree!r}"
        return (
            f"<specdec.drafts.{type(self).__name__} {str(self.path)!r}: {self.variant}, {self.dtype}{more}>"
        )


class MTP(Eagle):
    """The multi-token prediction (MTP) block of a target (arXiv 2404.19737, 2412.19437).

    Reads each token with the hidden state of the target before it, and predicts the next one with the
    target's head; further draft tokens read its own output. Embeddings and head are shared with the target.
    docs/MODELS.md lists the models that have such a block.

    Parameters
    ----------
    target : Model
        A model whose files hold the block.
    path : path-like, optional
        File with the block, if not the target's own: llama.cpp's ``mtp-*.gguf``, or for a packed target the
        model's folder or GGUF file.
    head_tokens : int, sequence of int or Ngram, optional
        Tokens that it may propose. Only their rows of the head are read; for a large vocabulary the head is
        most of a step (FR-Spec, arXiv 2502.14856). An integer: that many of the lowest ids, which in BPE
        vocabularies are common tokens. Or ids, or a table of frequencies, such as
        ``Unigram.from_text("texts.txt", target)``: its 32,768 most frequent tokens. Special tokens are added.
        None: 32,768, or all of up to 65,536. Any choice is exact.
    normed_input, normed_feedback : bool, default True
        Whether it reads the target's hidden state, and its own output, after the last norm or before it.
        Sources disagree about some models; only the acceptance rate depends on it.
    dtype : {None, "f32", "bf16", "int8", "int4"}
        Number format of its matrices; None: the target's format, or the types of its quantized file. Rows of
        the head have the target's format.
    tree, gamma, n_threads
        See `specdec.drafts`.

    Examples
    --------
    >>> target = specdec.load("XiaomiMiMo/MiMo-7B-RL", "int4")
    >>> out = specdec.generate(target, specdec.drafts.MTP(target, gamma=2), "Once upon a time")
    """

    def __init__(
        self, target: Model, path: str | os.PathLike[str] | None = None, *, tree: Tree | None = None,
        gamma: int | None = None, dtype: Dtype | None = None, head_tokens: HeadTokens | None = None,
        normed_input: bool = True, normed_feedback: bool = True, n_threads: int | None = None,
    ) -> None:  # fmt: skip
        check_model("target", target)
        self._norms = {
            "normed_input": check_flag("normed_input", normed_input),
            "normed_feedback": check_flag("normed_feedback", normed_feedback),
        }
        self._is_apart = path is not None
        published = open_native(
            target, target.path if path is None else local_folder(path), **self._norms,
            dtype=check_choice("dtype", dtype, DTYPES, optional=True),
        )  # fmt: skip
        if head_tokens is None:
            head_tokens = usual_head_tokens(target)
        self._take(published, target, tree, gamma, head_tokens, n_threads)

    def __reduce__(self) -> tuple[Any, ...]:
        options = self._options() | self._norms
        if self.head_tokens is None:
            options["head_tokens"] = self.target.config.n_vocab
        if self._is_apart:
            return partial(_opened_mtp, **options), (self._files.reference(), self.target)
        return partial(MTP, **options), (self.target,)


class Assistant(Eagle):
    """The assistant of a Gemma 4: a small model that reads the target's keys and values.

    Reads the target's hidden state of the last token but one, then its own output. Its layers attend to the
    text in the target's cache, so it has no cache, and prompts cost it nothing.

    Parameters
    ----------
    target : Model
        The Gemma 4 that it was trained for, in any number format.
    path : path-like
        A folder or hub name with a ``Gemma4AssistantForCausalLM`` or ``Gemma4UnifiedAssistantForCausalLM``.
    head_tokens : int, sequence of int or Ngram, optional
        Tokens that it may propose, as for `MTP`. Must be None if its centroids choose them for each token
        (``use_ordered_embeddings``).
    tree, gamma, dtype, n_threads
        See `specdec.drafts`.

    Examples
    --------
    >>> target = specdec.load("google/gemma-4-E2B-it", "int8")
    >>> draft = specdec.drafts.Assistant(target, "google/gemma-4-E2B-it-assistant")
    >>> out = specdec.generate(target, draft, "Once upon a time")
    """

    def __init__(
        self, target: Model, path: str | os.PathLike[str], *, tree: Tree | None = None,
        gamma: int | None = None, dtype: Dtype | None = None, head_tokens: HeadTokens | None = None,
        n_threads: int | None = None,
    ) -> None:  # fmt: skip
        check_model("target", target)
        published = open_assistant(
            local_folder(path), target, check_choice("dtype", dtype, DTYPES, optional=True), head_tokens
        )
        self._take(published, target, tree, gamma, None, n_threads, HubLocation.of(path))
        self._is_clustered = "n_clusters" in published.config
        if not self._is_clustered:
            self.head_tokens = published.tokens

    def __reduce__(self) -> tuple[Any, ...]:
        options = self._options()
        if self.head_tokens is None and not self._is_clustered:
            options["head_tokens"] = self.target.config.n_vocab
        return partial(_opened_assistant, **options), (self._files.reference(), self.target)


def _opened(reference: ReadFiles, target: Model, **options: Any) -> Eagle:
    return Eagle(reference.found(), target, **options)


def _opened_mtp(reference: ReadFiles, target: Model, **options: Any) -> MTP:
    return MTP(target, reference.found(), **options)


def _opened_assistant(reference: ReadFiles, target: Model, **options: Any) -> Assistant:
    return Assistant(target, reference.found(), **options)


def local_folder(path: str | os.PathLike[str]) -> Path:
    """Return the folder of a path or hub name; download it if needed."""
    from specdec.models.checkpoints import hub

    location = check_path("path", path, CheckpointError)
    name = os.fspath(path)
    if not location.exists() and isinstance(name, str) and hub.is_repository_name(name):
        return hub.download(name)
    return location


def _with_head_tokens(published: PublishedDraft, tokens: NDArray[np.int32] | None) -> PublishedDraft:
    """Return a draft with these tokens' rows of the target's head; None: unchanged."""
    if tokens is None:
        return published
    if not published.config["shared_head"]:
        found = f"{published.path}, which has a head of its own"
        raise InputError.of("head_tokens", tokens, f"None for {found}", f"{len(tokens)} tokens")
    return replace(published, config={**published.config, "n_draft_tokens": len(tokens)}, tokens=tokens)


def _packed(published: PublishedDraft, target: Model, n_threads: int) -> _core.Eagle:
    is_shared = published.config["shared_head"]
    try:
        model = _core.Model(
            published.config, published.tensors(), dtype=published.dtype, n_threads=n_threads,
            target=target.core, cache_dtype=default_cache_dtype(published.dtype),
            formats=published.formats or None, head_rows=published.tokens if is_shared else None,
        )  # fmt: skip
        return _core.Eagle(
            model, layers=published.layers, tokens=published.tokens, normed_feedback=published.normed_feedback
        )
    except SpecdecError:
        raise
    except ValueError as error:
        # The core's checks, such as for finite weights, name the tensor but not the file.
        raise CheckpointError(f"{published.path}: {error}") from error
