"""`Records`: what a run has made, in the order of its data."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, overload

from specdec.atomic_file import replacing
from specdec.checks import check_path
from specdec.errors import InputError, number_of, shown
from specdec.ray.output_folder import OutputFolder

__all__ = ["Records", "block_names"]


def block_names(n_records: int, block_size: int) -> list[str]:
    """The files of a run, each of the records of a block."""
    return [f"block-{i:06d}.jsonl" for i in range(-(-n_records // block_size))]


class Records(Sequence[dict[str, Any]]):
    """The records that a run has made, in the order of its data; they are read when they are asked for.

    Parameters
    ----------
    folder : path-like
        The output folder of `specdec.ray.generate` or `specdec.ray.score`.

    Raises
    ------
    InputError
        The folder holds no such run, or one that is not through.

    Examples
    --------
    >>> records = specdec.ray.Records("out")
    >>> records[0]["text"]
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = OutputFolder.open(folder, "generate", "score")
        self._blocks = block_names(self.run["n_records"], self.run["block_size"])
        missing = [job for job in self._blocks if not self._folder.has(job)]
        if missing:
            raise InputError(
                f"folder {shown(str(folder))} lacks {number_of(len(missing), 'block')} of "
                f"{len(self._blocks)}; expected a run that is through (the same call goes on with it)"
            )
        self._read: tuple[str, list[dict[str, Any]]] = ("", [])

    @property
    def folder(self) -> Path:
        """Where the files lie."""
        return self._folder.path

    @property
    def run(self) -> dict[str, Any]:
        """What was asked for: kind, target, seed, and all else that the records depend on."""
        return dict(self._folder.run)

    def __len__(self) -> int:
        n: int = self._folder.run["n_records"]
        return n

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        block, row = divmod(place, self._folder.run["block_size"])
        record: dict[str, Any] = self._block(self._blocks[block])[row]
        return record

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for job in self._blocks:
            yield from self._block(job)

    def _block(self, job: str) -> list[dict[str, Any]]:
        name, records = self._read
        if name != job:
            path = self._folder.file(job)
            try:
                records = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]
            except ValueError as error:
                raise InputError(
                    f"{path}: expected a JSON object a line ({error}); without the file the same call "
                    "makes it anew"
                ) from error
            self._read = job, records
        return records

    def to_dataset(self) -> Any:
        """The records as a ``ray.data.Dataset``, in order."""
        import ray.data

        return ray.data.from_items(list(self))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all records to one file, a JSON object a line.

        Raises
        ------
        InputError
            `path` is none.
        OSError
            The file cannot be written.
        """
        with replacing(check_path("path", path)) as file:
            for job in self._blocks:
                file.write(self._folder.file(job).read_bytes())

    def __repr__(self) -> str:
        return f"<specdec.ray.Records: {number_of(len(self), 'record')} in {shown(str(self.folder))}>"
