"""The output folder of a run: what was asked for, and a file for each job that is done."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specdec.atomic_file import replacing
from specdec.checks import check_path
from specdec.errors import InputError, shown

__all__ = ["OutputFolder"]

_FORMAT = 1
_RUN = "run.json"


class OutputFolder:
    """A folder in which a run can be interrupted at any moment and go on later.

    ``run.json`` says what was asked for. The output of each job is a file of its name, which is there as a
    whole or not at all.

    Attributes
    ----------
    path : Path
    run : dict
        What was asked for.
    """

    def __init__(self, path: Path, run: dict[str, Any]) -> None:
        self.path = path
        self.run = run

    @classmethod
    def open(cls, path: str | os.PathLike[str], *kinds: str) -> OutputFolder:
        """The folder of a run that has begun.

        Raises
        ------
        InputError
            It holds no run of these kinds.
        """
        folder = cls._found(check_path("folder", path))
        if folder is None or folder.run["kind"] not in kinds:
            held = "no run" if folder is None else f"a run of {folder.run['kind']!r}"
            raise InputError(f"folder {shown(str(path))} holds {held}; expected one of {', '.join(kinds)}")
        return folder

    @classmethod
    def begin(
        cls, path: str | os.PathLike[str], kind: str, asked: Mapping[str, Any], chosen: Mapping[str, Any]
    ) -> OutputFolder:
        """The folder of a run that begins, or goes on if it has begun.

        Parameters
        ----------
        path : path-like
            A new or empty folder, or that of the same run.
        kind : str
        asked : mapping
            What the results depend on. JSON, None for what is left open.
        chosen : mapping
            For fields that are None: what a new run takes. A run that goes on keeps what it took.

        Raises
        ------
        InputError
            The folder holds something else, or a run that was asked for something else.
        """
        location = check_path("output", path)
        folder = cls._found(location)
        asked = json.loads(json.dumps({"specdec_ray_run": _FORMAT, "kind": kind, **asked}))
        if folder is not None:
            for field in dict.fromkeys([*asked, *folder.run]):
                ours, held = asked.get(field), folder.run.get(field)
                if ours != held and not (field in chosen and ours is None):
                    raise InputError(
                        f"output {shown(str(path))} holds a run with {field} {shown(held)}, and this one has "
                        f"{shown(ours)}; expected the same run, or another folder"
                    )
            return folder
        run = {**asked, **{field: value for field, value in chosen.items() if asked[field] is None}}
        location.mkdir(parents=True, exist_ok=True)
        if any(location.iterdir()):
            raise InputError(
                f"output {shown(str(path))} holds files, but no {_RUN}; expected an empty folder, or "
                "that of a run"
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
                f"{path / _RUN}: expected the file of a run of specdec.ray ({type(error).__name__}: {error})"
            ) from error
        return cls(path, run)

    def file(self, job: str) -> Path:
        """Where the output of a job lies."""
        return self.path / job

    def has(self, job: str) -> bool:
        """Whether a job is done."""
        return self.file(job).exists()

    def store(self, job: str, output: str) -> None:
        """Keep the output of a job."""
        with replacing(self.file(job)) as file:
            file.write(output.encode())
