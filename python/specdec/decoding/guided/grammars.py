"""Grammars for ``llguidance``: size limits, and JSON schemas rewritten where it misreads them."""

from __future__ import annotations

import copy
import functools
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias

from specdec.errors import ConstraintError, InputError, type_of
from specdec.time_limit import TimeLimit

ConstraintType: TypeAlias = Literal["schema", "regex", "grammar"]

_MOST_BYTES: Final = 1 << 17
"""Maximum bytes of a constraint's text."""


def json_text(schema: Any) -> str:
    """Return a JSON schema as text, from a dict, a bool, text, or a class with ``model_json_schema``.

    Objects of a class get no keys beyond those it names, unless it allows extra keys. Raises InputError for
    other types, ConstraintError for text that is not JSON.
    """
    if isinstance(schema, type) and callable(getattr(schema, "model_json_schema", None)):
        schema = copy.deepcopy(schema.model_json_schema())  # type: ignore[attr-defined]
        close_objects(schema)
    if isinstance(schema, str):
        _check_size("schema", schema)
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise ConstraintError.about("schema", f"schema is not valid JSON: {error}") from None
    if not isinstance(schema, Mapping | bool):
        expected = "a dict, True, the text of a JSON schema, or a class with the method model_json_schema"
        raise InputError.of("schema", schema, expected, type_of(schema))
    if schema is False:
        raise ConstraintError.about("schema", "schema is False, which no text matches")
    if schema is True:
        schema = {}
    try:
        return json.dumps(dict(schema))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConstraintError.about("schema", f"schema cannot be written as JSON: {error}") from None


def _check_size(name: str, text: str) -> None:
    n_bytes = len(text.encode("utf-8", "surrogatepass"))
    if n_bytes > _MOST_BYTES:
        raise ConstraintError.about(name, f"{name} has {n_bytes} bytes; expected at most {_MOST_BYTES}")


def grammar_of(library: Any, name: ConstraintType, given: Any) -> str:
    """Return the grammar to compile; raises ConstraintError if it is too large or would never end."""
    text: str = json_text(given) if name == "schema" else given
    _check_size(name, text)
    matcher: Any = library.LLMatcher
    if name == "schema":
        _check_schema(schema := json.loads(text))
        rewrite_schema(library, schema)
        return str(matcher.grammar_from_json_schema(json.dumps(schema), defaults=JSON_STYLE))
    if name == "regex":
        return str(matcher.grammar_from_regex(text))
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        lark = any_to_lark(given)
    except Exception:
        if "::=" not in given:
            expected = "a rule 'start: …' (Lark) or 'root ::= …' (GBNF)"
            found = "no start rule"
            raise ConstraintError.of("grammar", given, expected, found, "has") from None
        raise
    return str(matcher.grammar_from_lark(lark))


# ------------------------------------------------------------------------------------------- cost limits

# Bounds in the library's units: a grammar compiles in seconds, its lexer's states take up to some hundred
# megabytes. They hardly bound time; mask_time.py does.
LIBRARY_LIMITS: Final = {
    "max_items_in_row": 2000, "initial_lexer_fuel": 1_000_000, "step_lexer_fuel": 200_000,
    "step_max_items": 50_000, "max_lexer_states": 50_000, "max_grammar_size": 20_000, "verbose_errors": False,
}  # fmt: skip

_MOST_JOINED: Final = 16  # simultaneous patterns: time doubles with each

# Unbounded white space in a regular expression.
_SPACE: Final = re.compile(r"(\\[snrt]| |\[( |\\[snrt]|[\n\r\t])+\])([*+]|\{\d+,\})")


def _check_schema(schema: Any) -> None:
    """Refuse schemas that would compile or write forever: many allOf patterns, endless separators."""
    patterns: set[str] = set()
    n_entries = 0
    for part in _objects(schema):
        patterns |= {str(part[name]) for name in ("pattern", "format") if name in part}
        n_entries += len(part["allOf"]) if isinstance(part.get("allOf"), list) else 0
        given = part.get("x-guidance")
        for name in ("item_separator", "key_separator", "whitespace_pattern"):
            pattern = given.get(name) if isinstance(given, dict) else None
            if isinstance(pattern, str) and re.search(r"[*+]|\{\d*,\}", _SPACE.sub("", pattern)):
                expected = "no unbounded repetition but white space"
                raise ConstraintError.of("schema", pattern, expected, f"x-guidance.{name} {pattern!r}", "has")
    n_joined = min(len(patterns), n_entries)
    if n_joined > _MOST_JOINED:
        found = f"{n_joined} patterns by allOf"
        raise ConstraintError.of("schema", n_joined, f"at most {_MOST_JOINED}", found, "may join")


def _objects(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield all objects within a schema."""
    left = [schema]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            yield part
            left += part.values()
        elif isinstance(part, list):
            left += part


# ---------------------------------------------------------------------------------------------- rewriting

JSON_STYLE: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""Separators as Python writes JSON: a space after "," and ":", and none elsewhere."""

# Formats that describe meaning, not characters, so they allow any string. Formats of numbers do not
# restrict strings.
_ANNOTATING_FORMATS: Final = (
    "password", "binary", "path", "file-path", "directory-path", "zoneinfo",
    "int32", "int64", "float", "double",
)  # fmt: skip

_REWRITE_S: Final = 2.0  # processor seconds for all patterns of a schema

_OF_MAPS: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_OF_LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_ALONE: Final = (
    "items", "additionalProperties", "additionalItems", "unevaluatedProperties", "unevaluatedItems",
    "contains", "propertyNames", "not", "if", "then", "else", "contentSchema",
)  # fmt: skip


def _schemas(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield the schema and all object schemas within it, but not values such as those of `const`."""
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
    """Forbid extra keys in the objects of a schema made from a class.

    pydantic by default ignores extra keys and omits them in schemas; a model would invent them without end.
    Objects that allow or forbid extra keys explicitly are unchanged.
    """
    for part in _schemas(schema):
        if "properties" in part and not part.keys() & {"additionalProperties", "unevaluatedProperties"}:
            part["additionalProperties"] = False


def rewrite_schema(library: Any, schema: Any) -> None:
    """Rewrite in place what ``llguidance`` would refuse or misread, with the same meaning."""
    limit = TimeLimit(_REWRITE_S, time.thread_time)
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
    """Move patterns that match only named keys to these keys.

    Otherwise the library would offer another key for such a pattern, and then find none.
    """
    names = tuple(properties)
    for pattern in filter(_may_be_finite, list(patterns)):
        if limit.is_over:
            found = f"longer than {_REWRITE_S:g} s to match properties with patternProperties"
            raise ConstraintError.of("schema", None, "fewer of both", found, "takes")
        matched = _only_matches(library, pattern, names)
        if matched is not None:
            wanted = patterns.pop(pattern)
            for name in matched:
                properties[name] = {"allOf": [properties[name], wanted]}


def _may_be_finite(pattern: str) -> bool:
    """Whether a pattern may match only finitely many keys."""
    plain = re.sub(r"\\.|\[(\\.|[^\]\\])*\]", "x", pattern, flags=re.DOTALL)
    return plain.startswith("^") and plain.endswith("$") and not re.search(r"[*+]|\{\d*,\}", plain)


@functools.lru_cache(maxsize=256)
def _only_matches(library: Any, pattern: str, names: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the names that match a pattern; None if other keys match too."""
    of_pattern = {"patternProperties": {pattern: {"const": 1}}, "additionalProperties": {"const": 0}}
    accepts = _prefixes_of(library, {"type": "object", **of_pattern})
    matched = tuple(name for name in names if accepts(json.dumps({name: 1}, ensure_ascii=False)[:-1]))
    all_matched = {
        "type": "object", "properties": {name: {"const": 0} for name in matched}, "required": list(matched),
        "patternProperties": {pattern: {"const": 0}}, "additionalProperties": False,
    }  # fmt: skip
    accepts = _prefixes_of(library, all_matched)
    text = json.dumps(dict.fromkeys(matched, 0), ensure_ascii=False)[:-1]
    another = f'{text}{", " if matched else ""}"'
    return matched if accepts(text) and not accepts(another) else None


def _prefixes_of(library: Any, schema: dict[str, Any]) -> Callable[[str], bool]:
    """Return a function that tells whether a JSON text of a schema may start with a prefix."""
    grammar = library.LLMatcher.grammar_from_json_schema(json.dumps(schema), defaults=JSON_STYLE)
    tokenizer, limits = _byte_tokenizer(library), library.LLParserLimits(**LIBRARY_LIMITS)
    matcher = library.LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
    return lambda text: bool(matcher.deep_copy().consume_tokens(tokenizer.tokenize_str(text)))


@functools.cache
def _byte_tokenizer(library: Any) -> Any:
    return library.LLTokenizer("byte")


# --------------------------------------------------------------------------------------- error locations

_FAULT_S: Final = 1.0  # seconds for the search
_NO_SCHEMAS: Final = ("const", "default", "enum", "examples")
_SHARED: Final = ("$defs", "definitions")


def fault_pointer(given: Any, error_of: Callable[[Any], str]) -> str:
    """Find the JSON pointer of the innermost part of a schema that has its error, as time allows.

    `error_of` returns the library's error for a schema, or "".
    """
    schema = json.loads(json_text(given))
    shared = {name: schema[name] for name in _SHARED if name in schema}
    wanted, until = error_of(schema), time.monotonic() + _FAULT_S
    pointer, left = "", _parts(schema)
    while time.monotonic() < until and (tried := next(left, None)) is not None:
        names, part = tried
        if error_of(shared | part) == wanted:
            pointer += "".join(f"/{name.replace('~', '~0').replace('/', '~1')}" for name in names)
            left = _parts(part)
    return pointer


def _parts(schema: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield likely subschemas with their names: values, and entries of lists and maps."""
    for name, value in schema.items():
        if name in _NO_SCHEMAS or not isinstance(value, dict | list):
            continue
        if isinstance(value, dict):
            yield (name,), value
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        yield from (((name, str(key)), part) for key, part in inner if isinstance(part, dict))
