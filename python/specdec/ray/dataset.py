"""What a dataset holds, as a list of JSON values: the records of a run."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from specdec.checks import check_items
from specdec.containers import plain
from specdec.errors import InputError, kind_of, shown
from specdec.fields import without_nan

__all__ = ["digest", "field_of", "json_value", "line", "records_of"]


def records_of(ray: Any, data: Any) -> list[Any]:
    """The records of a dataset, in order, as JSON values.

    Raises
    ------
    InputError
        It is no dataset, or holds something that JSON has not.
    """
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
        raise InputError(f"data is {kind_of(data)}; expected {expected}")
    else:
        items = check_items("data", data, expected)
    if not items:
        raise InputError(f"data has no records; expected {expected}")
    return [json_value(f"record {i}", item) for i, item in enumerate(items)]


def field_of(index: int, record: Any, column: str) -> Any:
    """A field of a record; a record that is no dict is its own.

    Raises
    ------
    InputError
        A dict without it.
    """
    if not isinstance(record, dict):
        return record
    if column not in record:
        raise InputError(
            f"record {index} has the fields {shown(list(record))}; expected {column!r} among them"
        )
    return record[column]


def line(record: Mapping[str, Any]) -> str:
    """A record as a line of a file; a number that is not finite is null, as JSON has none."""
    return json.dumps(without_nan(dict(record)), allow_nan=False) + "\n"


def digest(records: list[Any]) -> str:
    """What tells one list of records from another."""
    text = json.dumps(records, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def json_value(name: str, value: Any) -> Any:
    """A value as JSON has it.

    Raises
    ------
    InputError
    """
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
