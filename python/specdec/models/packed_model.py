"""Models from packed files, and from a folder of such files that later loads find."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from specdec.checks import check_path
from specdec.errors import CheckpointError, CheckpointNotFoundError, InputError, shown
from specdec.models import packed_file
from specdec.models.model import Model
from specdec.models.model_config import ModelConfig
from specdec.models.origin import ModelOrigin, ReadFiles
from specdec.models.tokenizer import warn_of_ids_beyond


def packed_model(
    path: Path, arguments: Mapping[str, Any], load: Callable[..., Model], n_threads: int
) -> Model:
    """The model of a packed file.

    `arguments`: Of `specdec.load`: dtype, cache_dtype, prefill, n_ctx, tokenizer; and adapter, if one has
    been merged. `load`: `specdec.load`.
    """
    file = packed_file.PackedFile(path)
    config = file.header["config"]
    for name, held in (("dtype", file.header["dtype"]), ("n_ctx", config["n_ctx"])):
        if arguments[name] not in (None, held):
            raise InputError(f"{name} is {shown(arguments[name])}; expected None or {held!r}, that of {path}")
    core = file.core(arguments["cache_dtype"], arguments["prefill"], n_threads)
    texts = file.texts(arguments["tokenizer"])
    if arguments["tokenizer"] is not None and (given := texts.get().tokenizer) is not None:
        warn_of_ids_beyond(given, config["n_vocab"], path)
    return Model(
        core,
        ModelConfig.from_canonical(config),
        None,
        path,
        file.header["architecture"],
        default_sampling=packed_file.sampling_of(file.header),
        decoder_start=file.header["decoder_start"],
        bos_id=file.header["bos_id"],
        eos_ids=file.header["eos_ids"],
        origin=ModelOrigin(
            ReadFiles.of_model(path, [path]),
            None,
            {
                **{name: value for name, value in arguments.items() if name != "adapter"},
                "cache_dtype": core.cache_dtype,
            },
            load,
        ),
        formats=file.header["formats"],
        types=file.header["types"],
        texts=texts,
        mapped=file.opened,
    )


def cached_model(
    path: Path, cache: Any, arguments: Mapping[str, Any], load: Callable[..., Model], n_threads: int
) -> Model:
    """The model on disk, by its packed file in a folder of such files, which is written if need be.

    `cache`: As of `specdec.load`. `arguments`, `load`, `n_threads`: As of `packed_model`.
    """
    if not path.exists():
        raise CheckpointNotFoundError(f"{path}: no such file or folder; expected one on disk, with cache=")
    if arguments["tokenizer"] not in (None, False):
        raise InputError("tokenizer is given, with cache=; expected None or False")
    if cache is True:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(home) / "specdec" / "packed"
    else:
        folder = check_path("cache", cache)
    adapter = None
    if arguments.get("adapter") is not None:
        adapter = Path(arguments["adapter"]).resolve()
        arguments = {**arguments, "adapter": str(adapter)}
    place = folder / packed_file.cache_name(path, arguments)
    if place.is_file():
        try:
            model = packed_model(place, arguments, load, n_threads)
        except CheckpointError:
            pass  # damaged, or of files that have changed: it is written anew
        else:
            return model
    model = load(path, **arguments, n_threads=n_threads)
    folder.mkdir(parents=True, exist_ok=True)
    with_tokenizer = arguments["tokenizer"] is None
    packed_file.write_packed(
        place, model, path, with_tokenizer=with_tokenizer, n_threads=n_threads, adapter=adapter
    )
    return model
