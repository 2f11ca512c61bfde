"""Loading of models from a path or hub name, in any supported file format."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from importlib.resources import as_file, files
from typing import Any, Final

from specdec import _core
from specdec.checks import check_choice, check_path, similar, suggesting
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
    PREFILL_CHOICES,
    CacheDtype,
    Dtype,
    MatrixDtype,
    PrefillChoice,
    default_cache_dtype,
    fastest_prefill,
)
from specdec.models.origin import HubLocation, ModelOrigin, ReadFiles
from specdec.models.packed_file import cached_model, is_packed, packed_model
from specdec.models.thresholds import settle
from specdec.models.tokenizer import Tokenizer, warn_of_ids_beyond
from specdec.progress import reading
from specdec.threads import check_threads

_ELSEWHERE: Final = {
    "kv_cache_dtype": "cache_dtype", "type_k": "cache_dtype", "type_v": "cache_dtype", "torch_dtype": "dtype",
    "max_model_len": "n_ctx", "num_threads": "n_threads", "lora": "adapter",
}  # fmt: skip
"""Names of arguments in other libraries."""


@suggesting(lambda name, known: similar(name, known, _ELSEWHERE))
def load(
    path: str | os.PathLike[str],
    dtype: Dtype | None = None,
    *,
    cache_dtype: CacheDtype | None = None,
    prefill: PrefillChoice = "auto",
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

    The first load on a machine takes about 0.2 s more to find the fastest kernel thresholds, which never
    change results. They are kept in ``$XDG_CACHE_HOME/specdec/thresholds``, else
    ``~/.cache/specdec/thresholds``, or in the folder named by the environment variable
    ``SPECDEC_THRESHOLDS`` ("off": no measurement).

    Parameters
    ----------
    path : path-like
        A Hugging Face folder (``*.safetensors`` in f32, f16, bf16, compressed-tensors, GPTQ or AWQ;
        docs/MODELS.md lists the architectures), a GGUF file, a packed file (``.specdec``, written by
        :func:`specdec.convert` and ``cache``), a llama2.c ``.bin`` file of version 0, or a name on the
        Hugging Face Hub (needs huggingface_hub): ``org/name``, and for GGUF files ``org/name:Q4_K_M`` or
        ``hf://org/name/file.gguf``.
    dtype : {None, "f32", "bf16", "int8", "int4"}
        Number format of the matrices; norms and biases stay f32. None: bf16 if all matrices are stored in it,
        else f32; quantized files keep each matrix in its own type. bf16 rounds activations to bf16 before a
        matrix. int8 and int4 have one scale per block of 32 weights and quantize activations to int8.
        :meth:`Model.quantization_report` measures the loss.
    cache_dtype : {None, "f32", "bf16", "int8"}
        Number format of the KV cache. None: f32 for a model in f32, else bf16. int8 takes 8.5 bits per
        number, which makes long contexts faster than in bf16.
    prefill : {"auto", "rows", "tiles", "blas"}
        Matrix multiplication for prompts, scored texts and sources; :attr:`Model.prefill` is the one in use.
        Under each, speculative decoding equals plain decoding, a text in a batch equals the text alone, and
        threads change nothing. "auto": "tiles" on processors with AMX for formats other than f32, else
        "rows". "rows", the portable method: prompts have the bits of decoding, the same on every processor;
        prompts that continue a conversation reuse its replies. "tiles": sums in the order of AMX tiles, with
        bits of their own, the same on every processor. "blas": OpenBLAS, for f32 models without mixture of
        experts; bits depend on the processor type (docs/NUMERICS.md), and matrices of a decoder-only model
        take twice the memory.
    tokenizer : None, False, path-like or Tokenizer
        None: the folder's tokenizer, if any. False: none; prompts and results are ids, and sequences end at
        the configuration's :attr:`Model.eos_ids`. Or a path, an object of ``transformers`` or ``tokenizers``,
        or one with the methods of :class:`specdec.tokenizer.Tokenizer`.
    n_ctx : int, optional
        Context length in tokens. None: the checkpoint's, without length-dependent scaling (LongRoPE, dynamic
        NTK); a larger ``n_ctx`` applies the frequencies of that length to all sequences. For T5 it also
        bounds the source; None: 2048.
    n_threads : int, optional
        Number of threads, here for packing; it never changes results. None:
        :func:`specdec.threads.default_threads`.
    progress : bool, optional
        Show a progress bar (needs tqdm). None: for large checkpoints, in a terminal.
    revision, cache_dir, token : optional
        For a hub name: branch, tag or commit; download folder (None: ``HF_HOME``); access token (True, or
        None if there is one: from ``hf auth login`` or ``HF_TOKEN``; False: none).
    cache : bool or path-like
        Keep the packed model on disk and map it on the next load. A folder, or True for
        ``$XDG_CACHE_HOME/specdec/packed``, else ``~/.cache/specdec/packed``. Rewritten if the model's files
        change. For models on disk with their own tokenizer or none.
    adapter : path-like, optional
        A PEFT folder of a LoRA adapter to merge: W + scale · B A in f32, then converted to ``dtype``; a GGUF
        file then does not keep its types. :meth:`Model.with_adapter` attaches one unmerged
        (docs/MODELS.md).

    Returns
    -------
    Model

    Warns
    -----
    UserWarning
        Ids in ``generation_config.json`` outside the vocabulary, a tokenizer with more ids than the model.

    Raises
    ------
    CheckpointError
        A damaged, inconsistent or missing checkpoint or adapter (missing: also a FileNotFoundError), weights
        that are NaN, infinite or too large for ``dtype``, or an adapter of another model.
    UnsupportedModelError
        An unsupported architecture, adapter or setting.
    TokenizerError
        A damaged tokenizer, or a missing library; for a packed file raised on first use of the tokenizer.
    MissingLibraryError
        OpenBLAS is missing or unusable, with ``prefill="blas"``.
    InputError
        An invalid argument.

    Examples
    --------
    >>> model = specdec.load("path/to/folder")
    >>> model.logits("Once upon a time").shape
    (5, 4096)
    """
    check_choice("dtype", dtype, DTYPES, optional=True)
    check_choice("cache_dtype", cache_dtype, CACHE_DTYPES, optional=True)
    check_choice("prefill", prefill, PREFILL_CHOICES)
    threads = check_threads(n_threads)
    settle()
    location = check_path("path", path, CheckpointError)
    arguments: dict[str, Any] = {
        "dtype": dtype, "cache_dtype": cache_dtype, "prefill": prefill, "n_ctx": n_ctx,
        "tokenizer": tokenizer,
    }  # fmt: skip
    of_adapter = None if adapter is None else check_path("adapter", adapter)
    if location.is_file() and is_packed(location):
        if of_adapter is not None:
            found = f"adapter is given, but {location} is a packed file, whose weights are fixed"
            raise InputError(f"{found}; expected None, the original model, or Model.with_adapter")
        return packed_model(location, arguments, load, threads)
    if cache is not False:
        adapted = {} if of_adapter is None else {"adapter": str(of_adapter)}
        again = functools.partial(load, progress=progress)
        return cached_model(location, cache, arguments | adapted, again, threads)
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
    if prefill == "auto":  # the method itself, which a pickle takes to other processors
        held: MatrixDtype = "file" if stored else arguments["dtype"]
        arguments["prefill"] = fastest_prefill(_core.kernels(), held)
    arguments["cache_dtype"] = cache_dtype or default_cache_dtype(arguments["dtype"])
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
    """Pack a checkpoint's model; with `stored`, matrices keep the file's types."""
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
        # The core's checks, such as for finite weights, name the tensor but not the file.
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


def embedded_pair(
    dtype: Dtype | None = None, draft_dtype: Dtype | None = None, *, prefill: PrefillChoice = "auto",
    cache_dtype: CacheDtype | None = None,
) -> tuple[Model, Model]:  # fmt: skip
    """Load the bundled target (92M parameters) and draft (3.9M), each once per format.

    They are a GPT-like pair as in section 4.2 of Leviathan et al. (2023), trained on public-domain English
    fiction. The target's weights are exact in f32, bf16 and int4.

    Parameters
    ----------
    dtype, draft_dtype : {None, "f32", "bf16", "int8", "int4"}
        Number formats, as in :func:`load`. None: int8.
    prefill : {"auto", "rows", "tiles", "blas"}
        As in :func:`load`.
    cache_dtype : {None, "f32", "bf16", "int8"}
        Number format of the target's KV cache, as in :func:`load`.

    Returns
    -------
    (Model, Model)
        Target and draft, with a shared vocabulary of 8,192 tokens and a context of 1,024.
    """
    # Checked here, because the cache needs hashable values.
    check_choice("dtype", dtype, DTYPES, optional=True)
    check_choice("draft_dtype", draft_dtype, DTYPES, optional=True)
    check_choice("prefill", prefill, PREFILL_CHOICES)
    check_choice("cache_dtype", cache_dtype, CACHE_DTYPES, optional=True)
    target = embedded_model("target", dtype, prefill, cache_dtype)
    return target, embedded_model("draft", draft_dtype, prefill)


def embedded_model(
    name: str, dtype: Dtype | None, prefill: PrefillChoice, cache_dtype: CacheDtype | None = None
) -> Model:
    """Load the bundled "target" or "draft", once per format and method."""
    dtype = dtype or "int8"
    method = fastest_prefill(_core.kernels(), dtype) if prefill == "auto" else prefill
    return _embedded(name, dtype, method, cache_dtype or default_cache_dtype(dtype))


@functools.cache
def _embedded(name: str, dtype: Dtype, prefill: PrefillChoice, cache_dtype: CacheDtype) -> Model:
    with as_file(files("specdec") / "embedded" / name) as folder:
        return load(folder, dtype, prefill=prefill, cache_dtype=cache_dtype)


def _checked(
    checkpoint: Checkpoint, stored: StoredTensors | None, done: Callable[[int], object]
) -> Iterator[CanonicalTensor]:
    """Yield the checkpoint's tensors, checked against those that the core needs."""
    shapes = _core.tensor_shapes(checkpoint.config)
    missing = dict(shapes)
    for name, array, number_format in checkpoint.unread_tensors(stored.blocks if stored else ()):
        if name not in shapes:
            found = f"tensor '{name}' is not part of this model"
            raise CheckpointError(f"{checkpoint.path}: {found}; expected only the model's tensors")
        # the core checks sizes of blocks and of rows in a file
        is_numbers = number_format in ("f32", "f16", "bf16")
        if is_numbers and not isinstance(array, FileRows) and tuple(array.shape) != tuple(shapes[name]):
            raise wrong_shape(checkpoint.path, name, array.shape, shapes[name])
        missing.pop(name, None)
        n_bytes = array.nbytes
        yield name, array, number_format  # type: ignore[misc]
        del array  # freed before the next is read
        done(n_bytes)
    for name, shape in missing.items():
        found = f"tensor '{name}' is missing"
        raise CheckpointError(f"{checkpoint.path}: {found}; expected a tensor of shape {list(shape)}")


def as_model(name: str, given: object, *, prefill: PrefillChoice = "auto") -> Model:
    """Return the argument `name` as a model, loading a path or hub name."""
    if isinstance(given, Model):
        return given
    if isinstance(given, str | os.PathLike):
        return load(given, prefill=prefill)
    raise InputError(f"{name} is {type_of(given)}; expected a specdec.Model, a path or a hub name")
