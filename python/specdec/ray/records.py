"""Records of a run: input dataset, output folder, results."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np

from specdec.atomic_file import replacing
from specdec.checks import check_items, check_path
from specdec.containers import plain
from specdec.errors import InputError, number_of, shown, type_of
from specdec.fields import without_nan


def records_of(ray: Any, data: Any) -> list[Any]:
    """Return the records of a dataset, in order, as JSON values."""
    expected = "a list of prompts or of dicts, a ray.data.Dataset, or a table"
    if isinstance(data, ray.data.Dataset):
        options = data.context.execution_options
        before, options.preserve_order = options.preserve_order, True
        try:
            items = list(data.iter_rows())
        finally:
            options.preserve_order = before
    elif hasattr(data, "iterrows"):  # a DataFrame of pandas, which iterates over the names of its columns
        items = data.to_dict("records")
    elif isinstance(data, str | bytes | bytearray | Mapping):
        raise InputError(f"data is {type_of(data)}; expected {expected}")
    else:
        items = check_items("data", data, expected)
    if not items:
        raise InputError(f"data has no records; expected {expected}")
    return [json_value(f"record {i}", item) for i, item in enumerate(items)]


def field_of(index: int, record: Any, column: str) -> Any:
    """Return a field of a record, or a record that is not a dict."""
    if not isinstance(record, dict):
        return record
    if column not in record:
        raise InputError(
            f"record {index} has the fields {shown(list(record))}; expected {column!r} among them"
        )
    return record[column]


def line(record: Mapping[str, Any]) -> str:
    """Format a record as a JSON line; numbers that are not finite become null."""
    return json.dumps(without_nan(dict(record)), allow_nan=False) + "\n"


def json_value(name: str, value: Any) -> Any:
    """Convert a value to JSON types."""
    value = plain(value)
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, list | tuple):
        return [json_value(f"{name}[{i}]", item) for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {str(key): json_value(f"{name}[{key!r}]", item) for key, item in value.items()}
    raise InputError(f"{name} is {shown(value)}; expected text, finite numbers, or lists and dicts of these")


_FORMAT = 1
_RUN = "run.json"


class OutputFolder:
    """Output folder of a run that can be interrupted at any time and resumed.

    ``run.json`` holds the arguments. Each finished job is a file, written atomically.
    """

    def __init__(self, path: Path, run: dict[str, Any]) -> None:
        self.path = path
        self.run = run

    @classmethod
    def open(cls, path: str | os.PathLike[str], *run_types: str) -> OutputFolder:
        """Open the folder of an existing run of one of these types."""
        folder = cls._found(check_path("folder", path))
        if folder is None or folder.run["kind"] not in run_types:
            held = "no run" if folder is None else f"a run of {folder.run['kind']!r}"
            raise InputError(
                f"folder {shown(str(path))} holds {held}; expected one of {', '.join(run_types)}"
            )
        return folder

    @classmethod
    def begin(
        cls, path: str | os.PathLike[str], run_type: str, asked: Mapping[str, Any], chosen: Mapping[str, Any]
    ) -> OutputFolder:
        """Create the folder of a new run, or open that of the same run.

        `asked` holds all arguments that determine the results, as JSON. None means unset: a new run takes
        the value from `chosen`, and a resumed run keeps its own.
        """
        location = check_path("output", path)
        folder = cls._found(location)
        asked = json.loads(json.dumps({"specdec_ray_run": _FORMAT, "kind": run_type, **asked}))
        if folder is not None:
            for field in dict.fromkeys([*asked, *folder.run]):
                ours, held = asked.get(field), folder.run.get(field)
                if ours != held and not (field in chosen and ours is None):
                    raise InputError(
                        f"output {shown(str(path))} holds a run with {field} {shown(held)}, but this run has "
                        f"{shown(ours)}; expected the same run, or another folder"
                    )
            return folder
        run = {**asked, **{field: value for field, value in chosen.items() if asked[field] is None}}
        location.mkdir(parents=True, exist_ok=True)
        if any(location.iterdir()):
            raise InputError(
                f"output {shown(str(path))} holds files, but no {_RUN}; expected an empty folder, or that of "
                "a run"
            )
        with replacing(location / _RUN) as file:
            file.write(json.dumps(run, indent=1).encode())
        return cls(location, run)

    @classmethod
    def _found(cls, path: Path) -> OutputFolder | None:
        try:
            text = (path / _RUN).read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            run = dict(json.loads(text))
            if run["specdec_ray_run"] != _FORMAT or not isinstance(run["kind"], str):
                raise ValueError(f"format {run['specdec_ray_run']!r}")
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise InputError(
                f"{path / _RUN}: expected a run file of specdec.ray ({type(error).__name__}: {error})"
            ) from error
        return cls(path, run)

    def file(self, job: str) -> Path:
        """Return the path of a job's output."""
        return self.path / job

    def has(self, job: str) -> bool:
        """Return whether a job is done."""
        return self.file(job).exists()

    def store(self, job: str, output: str) -> None:
        """Store the output of a job."""
        with replacing(self.file(job)) as file:
            file.write(output.encode())


def block_names(n_records: int, block_size: int) -> list[str]:
    """Return the file names of a run's blocks."""
    return [f"block-{i:06d}.jsonl" for i in range(-(-n_records // block_size))]


class Records(Sequence[dict[str, Any]]):
    """Records of a run in the order of its data, read lazily.

    Parameters
    ----------
    folder : path-like
        The output folder of `specdec.ray.generate` or `specdec.ray.score`.

    Raises
    ------
    InputError
        The folder holds no such run, or an unfinished one.

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
                f"{len(self._blocks)}; expected a finished run (repeat the call to resume it)"
            )
        self._read: tuple[str, list[dict[str, Any]]] = ("", [])

    @property
    def folder(self) -> Path:
        """Path of the output folder."""
        return self._folder.path

    @property
    def run(self) -> dict[str, Any]:
        """Arguments of the run: kind, target, seed and all else that determines the records."""
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
        index = range(len(self))[index]
        block, row = divmod(index, self._folder.run["block_size"])
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
                    f"{path}: expected one JSON object per line ({error}); delete the file and repeat the "
                    "call to recreate it"
                ) from error
            self._read = job, records
        return records

    def to_dataset(self) -> Any:
        """Convert to a ``ray.data.Dataset``, in order."""
        import ray.data

        return ray.data.from_items(list(self))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all records to one JSON Lines file.

        Raises
        ------
        InputError
            `path` is not a path.
        OSError
            The file cannot be written.
        """
        with replacing(check_path("path", path)) as file:
            for job in self._blocks:
                file.write(self._folder.file(job).read_bytes())

    def __repr__(self) -> str:
        return f"<specdec.ray.Records: {number_of(len(self), 'record')} in {shown(str(self.folder))}>"
