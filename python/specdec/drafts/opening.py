"""`load`: a draft for a target from the path of whatever drafts."""

from __future__ import annotations

import os
from importlib.resources import as_file, files
from pathlib import Path
from typing import Final

from specdec.checks import check_choice, check_integer, check_path
from specdec.drafts.draft import MAX_GAMMA, Draft
from specdec.drafts.draft_file import open_draft_file
from specdec.drafts.early_exit import EarlyExit
from specdec.drafts.learnt.eagle_draft import Eagle, local_folder
from specdec.drafts.learnt.eagle_layouts import is_published
from specdec.drafts.learnt.heads_draft import Heads
from specdec.drafts.learnt.methods import open_learnt
from specdec.drafts.learnt.target_identity import configuration_digest
from specdec.drafts.model_draft import ModelDraft
from specdec.drafts.trees import Tree, check_tree
from specdec.errors import CheckpointError, InputError, kind_of, shown
from specdec.fields import Fields, read_json_object
from specdec.models.checkpoints import open_checkpoint
from specdec.models.loading import embedded_pair
from specdec.models.loading import load as load_model
from specdec.models.model import Model
from specdec.models.model_config import ModelConfig
from specdec.models.number_formats import DTYPES, Dtype
from specdec.text_files import reading

__all__ = ["EXIT_NAME", "load"]

EXIT_NAME: Final = "specdec_exit.json"
EMBEDDED_HEADS: Final = "embedded-heads"


def load(
    path: str | os.PathLike[str],
    target: Model | None = None,
    *,
    dtype: Dtype | None = None,
    tree: Tree | None = None,
    gamma: int | None = None,
) -> Draft:
    """A draft for a target, from the folder of a learnt draft or of a model, or from a memory's file.

    Parameters
    ----------
    path : path-like
        - The folder of a learnt draft (a ``config.json`` with ``specdec_draft``): that draft, such as
          `Heads`.
        - ``"embedded-heads"``: the heads of the target that comes with the package.
        - The folder of a published draft of EAGLE: `Eagle`.
        - The folder of a target that was trained to leave early (with ``specdec_exit.json``): `EarlyExit` at
          the layer that the file names. The target is the model of the same folder, loaded from there.
        - A file that `SuffixMemory`, `TokenRecycling` or `Ngram` has saved: that draft, with the settings of
          its class; `dtype`, `tree` and `gamma` must be None.
        - Any other folder, file or hub name that `specdec.load` takes: `ModelDraft` of that model.
    target : Model
        What it shall draft for. None, for ``"embedded-heads"`` only: the target of `specdec.embedded_pair`.
    dtype : {None, "f32", "bf16", "int8", "int4"}
        The number format of the draft's matrices; None: that of its file.
    tree : ParallelChains, StaticTree or DynamicTree, optional
        What it proposes; None: a chain.
    gamma : int, optional
        Guesses a round when the caller of `specdec.generate` does not say; None: as many as the draft's class
        has by default.

    Raises
    ------
    InputError
        The draft was trained for another target, which is named, or an argument is none of the above, or
        the file is one of `Online`, for which there is ``Online.load``.
    VocabularyMismatchError
        The tokens of a model are not the target's.
    CheckpointError, TokenizerError
        What lies there is damaged, missing or not supported.

    Examples
    --------
    >>> target = specdec.load("path/to/target")
    >>> draft = specdec.drafts.load("path/to/heads", target, tree=specdec.drafts.StaticTree((4, 2, 1)))
    >>> out = specdec.generate(target, draft, "Once upon a time")
    """
    embedded = isinstance(path, str) and path == EMBEDDED_HEADS and not Path(path).exists()
    if embedded and target is None:
        target, _ = embedded_pair()
    if not isinstance(target, Model):
        raise InputError(f"target is {kind_of(target)}; expected the specdec.Model that the draft is for")
    dtype = check_choice("dtype", dtype, DTYPES, optional=True)
    tree = check_tree(tree)
    gamma = None if gamma is None else check_integer("gamma", gamma, 1, MAX_GAMMA)
    if embedded:
        with as_file(files("specdec") / "embedded" / "heads") as place:
            heads = Heads(place, dtype=dtype, tree=tree, gamma=gamma)
        heads.describe(target)
        return heads
    folder = check_path("path", path, CheckpointError)
    with reading(folder, CheckpointError):
        draft = _open(path, folder, target, dtype, tree, gamma)
    draft.describe(target)  # refuses what does not fit
    return draft


def _open(
    path: str | os.PathLike[str], folder: Path, target: Model, dtype: Dtype | None, tree: Tree | None,
    gamma: int | None,
) -> Draft:  # fmt: skip
    """The draft of a file or folder, whichever kind it is."""
    draft: Draft | None
    if (folder / EXIT_NAME).is_file():
        draft = _open_exit(folder, target, tree, gamma)
    elif (draft := open_draft_file(folder)) is not None:
        _check_no_settings(folder, draft, dtype=dtype, tree=tree, gamma=gamma)
    elif is_published(folder := local_folder(path)):
        draft = Eagle(folder, target, dtype=dtype, tree=tree, gamma=gamma)
    else:
        draft = open_learnt(folder, dtype=dtype, tree=tree, gamma=gamma)
    if draft is None:
        draft = ModelDraft(load_model(path, dtype), tree=tree, gamma=gamma)
    return draft


def _check_no_settings(file: Path, draft: Draft, **settings: object) -> None:
    for name, value in settings.items():
        if value is not None:
            raise InputError(
                f"{name} is {shown(value)}, and {file} holds a {type(draft).__name__}; expected None, or "
                f"specdec.drafts.{type(draft).__name__}.load(path, ...) with the settings of the class"
            )


def _open_exit(folder: Path, target: Model, tree: Tree | None, gamma: int | None) -> EarlyExit:
    file = folder / EXIT_NAME
    fields = Fields(read_json_object(file), file)
    ours = ModelConfig.from_canonical(open_checkpoint(folder, tokenizer=False).config)
    layer = fields.integer("layer", maximum=ours.n_layer - 1)
    stored = fields.integer("gamma", maximum=MAX_GAMMA, default=None)
    beside = target.path.exists() and target.path.samefile(folder)
    if not beside or configuration_digest(ours) != configuration_digest(target.config):
        raise InputError(
            f"{file} is an exit of the model beside it; given is the target {target.path}; expected "
            f"specdec.load({str(folder)!r})"
        )
    if tree is not None:
        raise InputError(f"tree is given, and {file} is an early exit, which drafts chains; expected None")
    return EarlyExit(layer, gamma=stored if gamma is None else gamma)
