"""Repositories on the Hugging Face Hub, through ``huggingface_hub`` (the extra ``huggingface_hub``)."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from specdec.checks import check_path
from specdec.errors import CheckpointError, InputError, MissingHubError, kind_of, shown

__all__ = ["HubOptions", "download", "is_repository_name"]

# The hub's own rule: words of letters, digits, "-", "_" and ".", one slash. A name that could be a relative
# path on this disk ("./x", "../x") does not match.
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)

# Names from before there were organisations, which the hub still takes.
_FORMER = {
    "distilgpt2": "distilbert/distilgpt2",
    **{name: f"openai-community/{name}" for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")},
}

# Everything the loader reads and nothing else: repositories also hold the same weights in other formats.
_WANTED = [
    "*.safetensors",
    "*.safetensors.index.json",
    "*.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "source.spm",
    "target.spm",
    "merges.txt",
    "chat_template.jinja",
]
_UNWANTED = ["*/*", "consolidated*"]
_TEMPLATES = "additional_chat_templates/*.jinja"


@dataclass(frozen=True)
class HubOptions:
    """How a repository is fetched; each argument is that of ``huggingface_hub``.

    Attributes
    ----------
    revision : str, optional
        A branch, a tag or a commit; None: the main branch.
    cache_dir : path-like, optional
        Where downloads are kept; None: ``HF_HOME`` and the like decide.
    token : str or bool, optional
        A token of the hub; True: the one of ``hf auth login``; False: none; None: that one, if there is one.

    Raises
    ------
    InputError
    """

    revision: str | None = None
    cache_dir: str | os.PathLike[str] | None = None
    token: str | bool | None = None

    def __post_init__(self) -> None:
        if self.revision is not None and not (isinstance(self.revision, str) and self.revision):
            raise InputError(
                f"revision is {shown(self.revision)}; expected a branch, a tag, a commit or None"
            )
        if self.cache_dir is not None:
            object.__setattr__(self, "cache_dir", check_path("cache_dir", self.cache_dir))
        if not isinstance(self.token, str | bool | None):
            raise InputError(f"token is {kind_of(self.token)}; expected a str, True, False or None")


def is_repository_name(text: str) -> bool:
    """Whether ``text`` has the form ``org/name``, or is one of the few names without organisation."""
    return text in _FORMER or _REPOSITORY.fullmatch(text) is not None


def download(name: str, options: HubOptions | None = None) -> Path:
    """The local folder of a hub repository, downloaded where the hub's cache does not have it.

    Raises
    ------
    CheckpointError
        The download failed, or ``huggingface_hub`` is not installed (also a MissingPackageError).
    """
    options = options or HubOptions()
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise MissingHubError(
            f"{name}: no such file or folder; to fetch it from the Hugging Face Hub: "
            "pip install huggingface_hub"
        ) from error
    where = {"revision": options.revision, "cache_dir": options.cache_dir, "token": options.token}
    try:
        name = _FORMER.get(name, name)
        folder = Path(snapshot_download(name, allow_patterns=_WANTED, ignore_patterns=_UNWANTED, **where))
        # By itself, as a pattern's * stands for slashes too.
        snapshot_download(name, allow_patterns=[_TEMPLATES], **where)
        return folder
    except Exception as error:  # the library's own errors, and those of its HTTP client, share no base class
        at = "" if options.revision is None else f" at revision {shown(options.revision)}"
        raise CheckpointError(
            f"{name}: no such file or folder here, and the Hugging Face Hub did not give it{at}: "
            f"{type(error).__name__}: {' '.join(str(error).split())}"
        ) from error
