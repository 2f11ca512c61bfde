"""JSON schemas as ``llguidance`` reads them right: rewritten where it would refuse or misread them."""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Iterator
from typing import Any, Final

from specdec.decoding.forms.schema_limits import LIBRARY_LIMITS
from specdec.errors import FormError
from specdec.time_limit import TimeLimit

__all__ = ["JSON_STYLE", "close_objects", "rewrite_schema"]

JSON_STYLE: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON as Python writes it: a space after "," and ":", and no other between tokens."""

# Formats that describe what a value is for, not its characters, so any string has them. Those of numbers do
# not restrict strings.
_ANNOTATING_FORMATS: Final = (
    "password", "binary", "path", "file-path", "directory-path", "zoneinfo",
    "int32", "int64", "float", "double",
)  # fmt: skip

_MOST_S: Final = 2.0  # of processor time, for all patterns of a schema

_OF_MAPS: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_OF_LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_ALONE: Final = (
    "items", "additionalProperties", "additionalItems", "unevaluatedProperties", "unevaluatedItems",
    "contains", "propertyNames", "not", "if", "then", "else", "contentSchema",
)  # fmt: skip


def _schemas(schema: Any) -> Iterator[dict[str, Any]]:
    """The schema and all schemas within it that are objects; values such as those of `const` are none."""
    left = [schema]
    while left:
        part = left.pop()
        if not isinstance(part, dict):
            continue
        yield part
        for name in _OF_MAPS:
            if isinstance(part.get(name), dict):
                left += part[name].values()
        for name in _OF_LISTS:
            if isinstance(part.get(name), list):
                left += part[name]
        left += [part[name] for name in _ALONE if isinstance(part.get(name), dict)]


def close_objects(schema: Any) -> None:
    """Allow no further keys in the objects of a schema that has been made of a class.

    By default pydantic ignores keys that a class does not name, and its schemas then do not mention them. A
    model would invent them without end.

    Parameters
    ----------
    schema : dict
        Changed in place. Objects that already allow or forbid further keys stay as they are.
    """
    for part in _schemas(schema):
        if "properties" in part and not part.keys() & {"additionalProperties", "unevaluatedProperties"}:
            part["additionalProperties"] = False


def rewrite_schema(library: Any, schema: Any) -> None:
    """Rewrite what ``llguidance`` would refuse or misread, with the same meaning.

    Parameters
    ----------
    library : module
        ``llguidance``.
    schema : dict or bool
        Changed in place.

    Raises
    ------
    FormError
        So many keys and patterns that it takes too long.
    """
    limit = TimeLimit(_MOST_S, time.thread_time)
    for part in _schemas(schema):
        if part.get("format") in _ANNOTATING_FORMATS:
            del part["format"]
        properties, patterns = part.get("properties"), part.get("patternProperties")
        if isinstance(properties, dict) and isinstance(patterns, dict):
            _join_patterns(library, properties, patterns, limit)
            if not patterns:
                del part["patternProperties"]


def _join_patterns(
    library: Any, properties: dict[str, Any], patterns: dict[str, Any], limit: TimeLimit
) -> None:
    """Move patterns that match named keys only to these keys.

    The library would offer another key of such a pattern, and then find none.
    """
    names = tuple(properties)
    for pattern in filter(_may_be_finite, list(patterns)):
        if limit.is_over:
            raise FormError(
                "schema: finding keys of properties that match patternProperties takes longer than "
                f"{_MOST_S:g} s; expected fewer of both"
            )
        matched = _only_matches(library, pattern, names)
        if matched is not None:
            wanted = patterns.pop(pattern)
            for name in matched:
                properties[name] = {"allOf": [properties[name], wanted]}


def _may_be_finite(pattern: str) -> bool:
    """Whether a pattern may match a finite number of keys."""
    plain = re.sub(r"\\.|\[(\\.|[^\]\\])*\]", "x", pattern, flags=re.DOTALL)
    return plain.startswith("^") and plain.endswith("$") and not re.search(r"[*+]|\{\d*,\}", plain)


@functools.lru_cache(maxsize=256)
def _only_matches(library: Any, pattern: str, names: tuple[str, ...]) -> tuple[str, ...] | None:
    """The names that match a pattern; None if other keys match it too."""
    of_pattern = {"patternProperties": {pattern: {"const": 1}}, "additionalProperties": {"const": 0}}
    matcher = _matcher(library, {"type": "object", **of_pattern})
    matched = tuple(name for name in names if _accepts(library, matcher, _text({name: 1})[:-1]))
    all_matched = {
        "type": "object",
        "properties": {name: {"const": 0} for name in matched},
        "required": list(matched),
        "patternProperties": {pattern: {"const": 0}},
        "additionalProperties": False,
    }
    matcher = _matcher(library, all_matched)
    text = _text(dict.fromkeys(matched, 0))[:-1]
    another = f'{text}{", " if matched else ""}"'
    complete = _accepts(library, matcher, text) and not _accepts(library, matcher, another)
    return matched if complete else None


def _text(value: dict[str, int]) -> str:
    return json.dumps(value, ensure_ascii=False)


def _matcher(library: Any, schema: dict[str, Any]) -> Any:
    """A matcher of JSON as Python writes it, where a text begins."""
    grammar = library.LLMatcher.grammar_from_json_schema(json.dumps(schema), defaults=JSON_STYLE)
    limits = library.LLParserLimits(**LIBRARY_LIMITS)
    return library.LLMatcher(_byte_tokenizer(library), grammar, log_level=0, limits=limits)


def _accepts(library: Any, matcher: Any, text: str) -> bool:
    """Whether a text of the matcher's schema may begin so."""
    return bool(matcher.deep_copy().consume_tokens(_byte_tokenizer(library).tokenize_str(text)))


@functools.cache
def _byte_tokenizer(library: Any) -> Any:
    return library.LLTokenizer("byte")
