"""`load`: a model from a path or a name, whatever the format of its files."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from importlib.resources import as_file, files
from typing import Any

from specdec import _core
from specdec.checks import check_choice, check_path
from specdec.errors import CheckpointError, InputError, SpecdecError, type_of, warn
from specdec.models.adapter import merged
from specdec.models.checkpoints import CanonicalTensor, Checkpoint, StoredTensors, open_checkpoint
from specdec.models.checkpoints.file_tensor import FileRows
from specdec.models.families.family import wrong_shape
from specdec.models.model import Model, ModelTexts
from specdec.models.model_config import ModelConfig
from specdec.models.number_formats import (
    CACHE_DTYPES,
    DTYPES,
    PREFILL_METHODS,
    CacheDtype,
    Dtype,
    PrefillMethod,
)
from specdec.models.origin import HubLocation, ModelOrigin, ReadFiles
from specdec.models.packed_file import cached_model, is_packed, packed_model
from specdec.models.thresholds import settle
from specdec.models.tokenizer import Tokenizer, warn_of_ids_beyond
from specdec.progress import reading
from specdec.threads import check_threads


def load(
    path: str | os.PathLike[str],
    dtype: Dtype | None = None,
    *,
    cache_dtype: CacheDtype | None = None,
    prefill: PrefillMethod = "rows",
    tokenizer: Tokenizer | str | os.PathLike[str] | bool | Any | None = None,
    n_ctx: int | None = None,
    n_threads: int | None = None,
    progress: bool | None = None,
    revision: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    token: str | bool | None = None,
    cache: bool | str | os.PathLike[str] = False,
    adapter: str | os.PathLike[str] | None = None,
) -> Model:
    """Load a model.

    The first model that is loaded on a machine takes some 0.2 s more, in which the kernels find out which of
    their ways to compute the same product are the quickest there; no result depends on it. The thresholds are
    kept in ``$XDG_CACHE_HOME/specdec/thresholds``, else ``~/.cache/specdec/thresholds``, or in the folder
    that the environment variable ``SPECDEC_THRESHOLDS`` names ("off": nothing is measured).

    Parameters
    ----------
    path : path-like
        A Hugging Face folder (``*.safetensors`` of f32, f16 or bf16, or codes as compressed-tensors has them;
        docs/MODELS.md lists the architectures), a GGUF file, a packed file (``.specdec``, as
        :func:`specdec.convert` and ``cache`` write it), a llama2.c ``.bin`` file of version 0, or a name on
        the Hugging Face Hub (by the package huggingface_hub): ``org/name``, or of GGUF files
        ``org/name:Q4_K_M`` and ``hf://org/name/file.gguf``.
    dtype : {None, "f32", "bf16", "int8", "int4"}
        The number format of the matrices; norms and biases stay in f32. None: what the checkpoint holds: bf16
        if all its matrices are stored so, f32 otherwise; of files with codes each matrix in its own type,
        with the file's values. In bf16 activations are rounded to it where they meet a matrix. int8 and int4
        have blocks of 32 weights with one scale each and quantize activations to int8 by rows and blocks.
        :meth:`Model.quantization_report` says what a format costs.
    cache_dtype : {None, "f32", "bf16"}
        The number format of cached keys and values. None: f32 for a model in f32, else bf16.
    prefill : {"rows", "tiles", "blas"}
        What multiplies the rows of prompts, of texts that are scored, and of sources. "rows": the row
        kernels, which compute everything else. "tiles": in formats other than f32, sums in the order of a
        tile of Intel's AMX, which is faster on processors that have it; a prompt then has bits of its own,
        the same on every processor. "blas": OpenBLAS, for models in f32 without mixtures of experts; a prompt
        has bits that differ between kinds of processors (docs/NUMERICS.md), and matrices of a decoder-only
        model take twice the memory.
    tokenizer : None, False, path-like or Tokenizer
        None: the tokenizer of the folder, if there is one. False: none; ids in, ids out, and a text ends at
        the ids of the configuration (:attr:`Model.eos_ids`). A path: the one at that path. An object of
        ``transformers`` or ``tokenizers``, or one with the methods of :class:`specdec.tokenizer.Tokenizer`.
    n_ctx : int, optional
        The longest text, in tokens. None: what the checkpoint says, without scaling that depends on the
        length of a text (LongRoPE, dynamic NTK); a longer ``n_ctx`` takes the frequencies of a text of that
        length, for all texts. Of T5, whose relative positions have no end, it is the longest source too;
        None: 2048.
    n_threads : int, optional
        Threads that pack the weights. None: :func:`specdec.threads.default_threads`.
    progress : bool, optional
        Show a progress bar (needs tqdm). None: for large checkpoints, in a terminal.
    revision, cache_dir, token : optional
        Of a hub name: a branch, tag or commit; where downloads are kept (None: ``HF_HOME``); a token (True,
        or None where there is one: that of ``hf auth login`` or ``HF_TOKEN``; False: none).
    cache : bool or path-like
        Keep the packed model, which takes the model's memory on disk, and map it when it is loaded so again,
        at once. True: in ``$XDG_CACHE_HOME/specdec/packed``, else ``~/.cache/specdec/packed``; a path: in
        that folder. Written again when its files have changed. For models on disk with their own tokenizer or
        none.
    adapter : path-like, optional
        The folder of a LoRA adapter of PEFT, which is merged into the weights: W + scale · B A in f32, then
        rounded or quantized as ``dtype`` says; a GGUF file is then loaded in ``dtype``, not in its own types.
        :meth:`Model.with_adapter` keeps one next to the weights instead (docs/MODELS.md).

    Warns
    -----
    UserWarning
        Of ids in ``generation_config.json`` that are no tokens, and of a tokenizer with more ids than the
        model.

    Raises
    ------
    CheckpointError
        A damaged, contradictory or missing checkpoint or adapter (missing: also a FileNotFoundError), weights
        that are NaN, infinite or too large for ``dtype``, or an adapter of another model.
    UnsupportedModelError
        An architecture, an adapter or a setting that specdec does not have.
    TokenizerError
        A damaged tokenizer, or one whose library is not installed; of a packed file raised where its
        tokenizer is first needed.
    MissingLibraryError
        With ``prefill="blas"``: OpenBLAS is not there, or cannot be used.
    InputError
        An argument that is none of the above.

    Examples
    --------
    >>> model = specdec.load("path/to/folder")
    >>> model.logits("Once upon a time").shape
    (5, 4096)
    """
    check_choice("dtype", dtype, DTYPES, optional=True)
    check_choice("cache_dtype", cache_dtype, CACHE_DTYPES, optional=True)
    check_choice("prefill", prefill, PREFILL_METHODS)
    threads = check_threads(n_threads)
    settle()
    place = check_path("path", path, CheckpointError)
    arguments: dict[str, Any] = {
        "dtype": dtype, "cache_dtype": cache_dtype, "prefill": prefill, "n_ctx": n_ctx,
        "tokenizer": tokenizer,
    }  # fmt: skip
    of_adapter = None if adapter is None else check_path("adapter", adapter)
    if place.is_file() and is_packed(place):
        if of_adapter is not None:
            found = f"adapter is given, but {place} is a packed file, whose weights are as they are"
            raise InputError(f"{found}; expected None, the model that it was made of, or Model.with_adapter")
        return packed_model(place, arguments, load, threads)
    if cache is not False:
        adapted = {} if of_adapter is None else {"adapter": str(of_adapter)}
        again = functools.partial(load, progress=progress)
        return cached_model(place, cache, arguments | adapted, again, threads)
    checkpoint = open_checkpoint(
        path, tokenizer=tokenizer, n_ctx=n_ctx, revision=revision, cache_dir=cache_dir, token=token
    )
    adapter_files = None
    if of_adapter is not None:
        checkpoint, fitted = merged(checkpoint, of_adapter)
        adapter_files = ReadFiles.at(of_adapter, fitted.folder.files)
    stored = checkpoint.stored if dtype is None and prefill != "blas" else None
    if not stored:
        arguments["dtype"] = dtype or checkpoint.dtype
    arguments["cache_dtype"] = cache_dtype or ("f32" if arguments["dtype"] == "f32" else "bf16")
    tokenizer_files = None
    if isinstance(tokenizer, str | os.PathLike):
        named = check_path("tokenizer", tokenizer)
        arguments["tokenizer"] = None
        tokenizer_files = ReadFiles.of_model(named, [named] if named.is_file() else [])
    files = ReadFiles.of_model(
        checkpoint.path, checkpoint.weight_files, hub=HubLocation.of(path, revision, cache_dir)
    )
    origin = ModelOrigin(files, tokenizer_files, arguments, load, adapter_files=adapter_files)
    return _made(checkpoint, stored, origin, dtype or checkpoint.dtype, threads, progress)


def _made(
    checkpoint: Checkpoint,
    stored: StoredTensors | None,
    origin: ModelOrigin,
    dtype: Dtype,
    n_threads: int,
    progress: bool | None,
) -> Model:
    """The model of a checkpoint, packed; `stored`: its matrices stay in the types of the file."""
    if checkpoint.tokenizer is not None:
        warn_of_ids_beyond(checkpoint.tokenizer, checkpoint.config["n_vocab"], checkpoint.path)
    if stored is not None and stored.message:
        warn(stored.message)
    formats, types = (stored.formats, stored.types) if stored else ({}, "")
    how: dict[str, Any] = {name: origin.arguments[name] for name in ("cache_dtype", "prefill")}
    how |= {"dtype": dtype, "n_threads": n_threads, "formats": formats or None}
    try:
        with reading(checkpoint.n_bytes, f"loading in {types or dtype}", progress) as done:
            core = _core.Model(checkpoint.config, _checked(checkpoint, stored, done), **how)
    except SpecdecError:
        raise
    except ValueError as error:
        # The core's own checks, such as that of finite weights, name the tensor but not the file.
        raise CheckpointError(f"{checkpoint.path}: {error}") from error
    texts = ModelTexts(
        checkpoint.tokenizer,
        checkpoint.chat_template,
        checkpoint.source_tokenizer,
        checkpoint.bos_id,
        tuple(checkpoint.eos_ids),
    )
    return Model(
        core,
        ModelConfig.from_canonical(checkpoint.config),
        texts,
        checkpoint.path,
        checkpoint.architecture,
        checkpoint.default_sampling,
        decoder_start=tuple(checkpoint.decoder_start),
        origin=origin,
        formats=formats,
        types=types,
    )


def embedded_pair(dtype: Dtype | None = None, draft_dtype: Dtype | None = None) -> tuple[Model, Model]:
    """Load the target (92M parameters) and the draft (3.9M) in the package, each once in a format.

    They are the GPT-like pair of section 4.2 of Leviathan et al. (2023), trained on English fiction in the
    public domain. The target's weights are on the grid of int4, which f32, bf16 and int4 hold exactly.

    Parameters
    ----------
    dtype, draft_dtype : {None, "f32", "bf16", "int8", "int4"}
        Number formats of target and draft, as in :func:`load`. None: int8.

    Returns
    -------
    (Model, Model)
        Target and draft, of one vocabulary of 8,192 tokens and a context of 1,024.
    """
    # Checked here, as the cache needs values that can be hashed.
    check_choice("dtype", dtype, DTYPES, optional=True)
    check_choice("draft_dtype", draft_dtype, DTYPES, optional=True)
    return _embedded("target", dtype or "int8"), _embedded("draft", draft_dtype or "int8")


@functools.cache
def _embedded(name: str, dtype: Dtype) -> Model:
    with as_file(files("specdec") / "embedded" / name) as folder:
        return load(folder, dtype)


def _checked(
    checkpoint: Checkpoint, stored: StoredTensors | None, done: Callable[[int], object]
) -> Iterator[CanonicalTensor]:
    """The checkpoint's tensors, each compared with what the core says a model of this configuration needs."""
    shapes = _core.tensor_shapes(checkpoint.config)
    missing = dict(shapes)
    for name, array, form in checkpoint.unread_tensors(stored.blocks if stored else ()):
        if name not in shapes:
            found = f"tensor '{name}' is not part of this model"
            raise CheckpointError(f"{checkpoint.path}: {found}; expected none such")
        # the core knows how many numbers the bytes of blocks are, and of rows in a file
        is_numbers = form in ("f32", "f16", "bf16")
        if is_numbers and not isinstance(array, FileRows) and tuple(array.shape) != tuple(shapes[name]):
            raise wrong_shape(checkpoint.path, name, array.shape, shapes[name])
        missing.pop(name, None)
        n_bytes = array.nbytes
        yield name, array, form  # type: ignore[misc]
        del array  # before the next is read
        done(n_bytes)
    for name, shape in missing.items():
        found = f"tensor '{name}' is missing"
        raise CheckpointError(f"{checkpoint.path}: {found}; expected it with shape {list(shape)}")


def as_model(name: str, given: object) -> Model:
    """The argument `name` as a model, loaded if it is a path or hub name."""
    if isinstance(given, Model):
        return given
    if isinstance(given, str | os.PathLike):
        return load(given)
    raise InputError(f"{name} is {type_of(given)}; expected a specdec.Model, a path or a hub name")
