"""JSON schemas as ``llguidance`` reads them right: rewritten where it would refuse or misread them."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from typing import Any, Final

from specdec.decoding.forms.schema_limits import LIBRARY_LIMITS

__all__ = ["JSON_STYLE", "close_objects", "rewrite_schema"]

JSON_STYLE: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON as Python writes it: a space after "," and ":", and no other between tokens."""

# Formats that describe what a value is for, not its characters, so any string has them. Those of numbers do
# not restrict strings.
_ANNOTATING_FORMATS: Final = (
    "password", "binary", "path", "file-path", "directory-path", "zoneinfo",
    "int32", "int64", "float", "double",
)  # fmt: skip

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
    """
    for part in _schemas(schema):
        if part.get("format") in _ANNOTATING_FORMATS:
            del part["format"]
        properties, patterns = part.get("properties"), part.get("patternProperties")
        if isinstance(properties, dict) and isinstance(patterns, dict):
            _join_patterns(library, properties, patterns)
            if not patterns:
                del part["patternProperties"]


def _join_patterns(library: Any, properties: dict[str, Any], patterns: dict[str, Any]) -> None:
    """Move patterns that no key but named ones matches to these keys.

    The library would offer another key of such a pattern, and then find none.
    """
    names = tuple(properties)
    for pattern in list(patterns):
        if not _may_be_finite(pattern) or not _used_up(library, pattern, names):
            continue
        wanted = patterns.pop(pattern)
        for name in names:
            if _matches(library, pattern, name):
                properties[name] = {"allOf": [properties[name], wanted]}


def _may_be_finite(pattern: str) -> bool:
    """Whether a pattern might match a few keys alone."""
    plain = re.sub(r"\\.|\[(\\.|[^\]\\])*\]", "x", pattern, flags=re.DOTALL)
    return plain.startswith("^") and plain.endswith("$") and not re.search(r"[*+]|\{\d*,\}", plain)


@functools.lru_cache(maxsize=256)
def _used_up(library: Any, pattern: str, names: tuple[str, ...]) -> bool:
    """Whether no key but these matches a pattern."""
    first = dict.fromkeys(names, 0)
    schema = _object(first, {pattern: {"const": 0}})
    text = json.dumps(first, ensure_ascii=False)[:-1]
    return _accepts(library, schema, text) and not _accepts(library, schema, f'{text}, "')


@functools.lru_cache(maxsize=1024)
def _matches(library: Any, pattern: str, name: str) -> bool:
    """Whether a key matches a pattern: it cannot have a value that the pattern forbids."""
    text = json.dumps({name: 0}, ensure_ascii=False)
    return not _accepts(library, _object({name: 0}, {pattern: {"const": 1}}), text)


def _object(values: dict[str, int], patterns: dict[str, Any]) -> dict[str, Any]:
    """The schema of an object that has these values and further keys of some patterns."""
    return {
        "type": "object",
        "properties": {name: {"const": value} for name, value in values.items()},
        "required": list(values),
        "patternProperties": patterns,
        "additionalProperties": False,
    }


def _accepts(library: Any, schema: dict[str, Any], text: str) -> bool:
    """Whether a text that has a schema may begin so, in JSON as Python writes it."""
    grammar = library.LLMatcher.grammar_from_json_schema(json.dumps(schema), defaults=JSON_STYLE)
    tokenizer, limits = _byte_tokenizer(library), library.LLParserLimits(**LIBRARY_LIMITS)
    matcher = library.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
    return bool(matcher.consume_tokens(tokenizer.tokenize_str(text)))


@functools.cache
def _byte_tokenizer(library: Any) -> Any:
    return library.LLTokenizer("byte")
