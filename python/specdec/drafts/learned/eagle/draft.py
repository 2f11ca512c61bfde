"""EAGLE and native multi-token prediction (MTP): a layer that drafts from the target's hidden states."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from specdec import _core
from specdec.checks import check_choice, check_path
from specdec.drafts.draft import Description, Draft, check_model
from specdec.drafts.learned.eagle.published import PublishedDraft, open_native_head, open_published
from specdec.drafts.learned.folder import TargetIdentity
from specdec.drafts.trees import Tree, check_tree, describe_shape, gamma_of
from specdec.errors import CheckpointError, SpecdecError
from specdec.models.model import Model
from specdec.models.number_formats import DTYPES, Dtype, default_cache_dtype
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

    Attributes
    ----------
    variant : str
        "EAGLE-1" or "EAGLE-3".
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
        n_threads: int | None = None,
    ) -> None:  # fmt: skip
        check_model("target", target)
        published = open_published(local_folder(path), target, captures)
        self._take(published, target, dtype, tree, gamma, n_threads, HubLocation.of(path))

    def _take(
        self, published: PublishedDraft, target: Model, dtype: Dtype | None, tree: Tree | None,
        gamma: int | None, n_threads: int | None, hub: HubLocation | None = None,
    ) -> None:  # fmt: skip
        dtype = check_choice("dtype", dtype, DTYPES, optional=True) or published.dtype
        self.tree = check_tree(tree)
        self.gamma = gamma_of(gamma, self.tree, self.gamma)
        self.path = published.path
        self.target = target
        self.variant = published.variant
        self.captures = published.layers
        self._files = ReadFiles.at(published.path, published.files, hub=hub)
        self.core = _packed(published, target, dtype, check_threads(n_threads))

    def __reduce__(self) -> tuple[Any, ...]:
        options: dict[str, Any] = {"tree": self.tree, "gamma": self.gamma, "dtype": self.dtype}
        return partial(_opened, captures=self.captures, **options), (self._files.reference(), self.target)

    @property
    def dtype(self) -> Dtype:
        """Number format of the draft's own matrices."""
        dtype = self.core.model.dtype
        assert dtype != "file"  # drafts are packed in one format
        return dtype

    def describe(self, target: Model) -> Description:
        if target is not self.target:
            TargetIdentity.of(self.target).check(target, str(self.path))
            check_same_vocabulary(target, self.target)
        return describe_shape(self.tree, self.core)

    def __repr__(self) -> str:
        more = "" if self.tree is None else f", tree={self.tree!r}"
        return (
            f"<specdec.drafts.{type(self).__name__} {str(self.path)!r}: {self.variant}, {self.dtype}{more}>"
        )


class MTP(Eagle):
    """The multi-token prediction (MTP) layer of a target (arXiv 2404.19737, 2412.19437).

    Reads each token with the input of the target's head after the previous token, and predicts the next one
    with the target's head; further draft tokens read its own output. Supports MiMo, whose folder has the
    layer's weights; embeddings and head are shared with the target.

    Examples
    --------
    >>> target = specdec.load("XiaomiMiMo/MiMo-7B-RL", "int4")
    >>> out = specdec.generate(target, specdec.drafts.MTP(target, gamma=2), "Once upon a time")
    """

    def __init__(
        self, target: Model, *, tree: Tree | None = None, gamma: int | None = None,
        dtype: Dtype | None = None, n_threads: int | None = None,
    ) -> None:  # fmt: skip
        check_model("target", target)
        self._take(open_native_head(target), target, dtype, tree, gamma, n_threads)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(MTP, tree=self.tree, gamma=self.gamma, dtype=self.dtype), (self.target,)


def _opened(reference: ReadFiles, target: Model, **options: Any) -> Eagle:
    return Eagle(reference.found(), target, **options)


def local_folder(path: str | os.PathLike[str]) -> Path:
    """Return the folder of a path or hub name; download it if needed."""
    from specdec.models.checkpoints import hub

    location = check_path("path", path, CheckpointError)
    name = os.fspath(path)
    if not location.exists() and isinstance(name, str) and hub.is_repository_name(name):
        return hub.download(name)
    return location


def _packed(published: PublishedDraft, target: Model, dtype: Dtype, n_threads: int) -> _core.Eagle:
    try:
        model = _core.Model(
            published.config, published.tensors(), dtype=dtype, n_threads=n_threads, target=target.core,
            cache_dtype=default_cache_dtype(dtype),
        )  # fmt: skip
        return _core.Eagle(
            model, layers=published.layers, tokens=published.tokens, normed_feedback=published.normed_feedback
        )
    except SpecdecError:
        raise
    except ValueError as error:
        # The core's checks, such as for finite weights, name the tensor but not the file.
        raise CheckpointError(f"{published.path}: {error}") from error
