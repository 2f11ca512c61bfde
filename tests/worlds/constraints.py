"""Constraints: hand-written automata on token ids; random schemas, regular expressions and grammars."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec import Model
from specdec.decoding.guided.guidance import Guidance
from worlds.draws import Draws


@dataclass
class RandomConstraint:
    """Constraint that allows tokens by a hash of all previous new tokens.

    Some positions allow a single, forced token, the others `n_allowed`. The text is complete after `length`
    tokens.
    """

    n_vocab: int
    n_allowed: int = 5
    length: int | None = None
    forced: float = 0.4
    """Share of positions that allow one token."""
    among: Sequence[int] | None = None
    """Tokens that may be allowed; all, without."""
    seed: int = 0
    n_asked: int = field(default=0, compare=False)
    known: dict[tuple[int, ...], NDArray[np.bool_]] = field(default_factory=dict, compare=False)

    def allowed(self, new: Sequence[int]) -> NDArray[np.bool_] | None:
        """Return the tokens allowed next; None if the text is complete."""
        if self.length is not None and len(new) >= self.length:
            return None
        if (known := self.known.get(tuple(new))) is not None:
            return known
        digest = blake2b(
            np.asarray(new, np.int64).tobytes(), digest_size=8, salt=self.seed.to_bytes(8, "little")
        ).digest()
        rng = np.random.default_rng(int.from_bytes(digest, "little"))
        tokens = np.arange(self.n_vocab) if self.among is None else np.asarray(self.among)
        n = 1 if rng.random() < self.forced else min(self.n_allowed, len(tokens))
        mask = np.zeros(self.n_vocab, bool)
        mask[rng.choice(tokens, n, replace=False)] = True
        return self.known.setdefault(tuple(new), mask)

    def start(self, tokens: Sequence[int]) -> State:
        return State(self, [])


class State:
    """State of a text under a `RandomConstraint`; checks its own use."""

    def __init__(self, constraint: RandomConstraint, new: list[int]) -> None:
        self.constraint, self.new, self.was_asked = constraint, new, False

    def fork(self) -> State:
        return State(self.constraint, self.new.copy())

    def advance(self, token: int) -> None:
        assert not self.was_asked, "a state that has been asked never changes"
        mask = self.constraint.allowed(self.new)
        assert mask is not None and mask[token], "only allowed tokens are passed"
        self.new.append(token)

    def mask(self) -> NDArray[np.bool_] | NDArray[np.uint32] | None:
        assert not self.was_asked, "a mask is asked for once"
        self.was_asked = True
        self.constraint.n_asked += 1
        mask = self.constraint.allowed(self.new)
        return mask if mask is None or len(self.new) % 2 else words(mask)


def words(mask: NDArray[np.bool_]) -> NDArray[np.uint32]:
    """Pack a mask into 32-bit words."""
    padded = np.zeros(-len(mask) % 32 + len(mask), bool)
    padded[: len(mask)] = mask
    return np.packbits(padded, bitorder="little").view(np.uint32)


def obeys(constraint: RandomConstraint, new: Sequence[int]) -> bool:
    """Return whether a text obeys the constraint so far."""
    masks: list[Any] = [constraint.allowed(new[:i]) for i in range(len(new))]
    return all(mask is not None and mask[token] for mask, token in zip(masks, new, strict=True))


_LITERALS = ("a", "b", "ab", "0", " ", "-", "é", '"', "{", "}, ", "name", "€1", "12", "\n", "true")
_CLASSES = ("[a-c]", "[0-9]", "[a-z0-9]", "[ab€]", "[A-Z]")
_TIMES = ((0, 1), (0, 2), (1, 3), (2, 2), (3, 7), (0, None), (1, None))
_NAMES = ("a", "name", "é", "b c", "x1", "true")

Part = list[Any]
"""A part of a pattern: ["text", str], ["class", str], ["row", Part, …], ["choice", Part, …] or
["times", Part, least, most or None]."""


def draw_constraint(draws: Draws) -> list[Any]:
    """[argument name, value, an equivalent regular expression or None]."""
    kind = draws.weighted(schema=3, regex=2, lark=1, gbnf=1)
    if kind == "schema":
        return ["schema", _draw_schema(draws, 3), None]
    pattern = _draw_pattern(draws, 3)
    if kind == "regex":
        return ["regex", _as_regex(pattern), _as_regex(pattern)]
    return ["grammar", _as_grammar(pattern, gbnf=kind == "gbnf"), _as_regex(pattern)]


def check_constraints(constraint: list[Any], text: str) -> None:
    """Assert that a complete text satisfies the constraint."""
    import jsonschema  # takes long to import

    kind, given, pattern = constraint
    if kind != "schema":
        assert re.fullmatch(pattern, text), f"the text {text!r} does not match {pattern!r}"
        return
    try:
        jsonschema.validate(json.loads(text), given)
    except (ValueError, jsonschema.ValidationError) as error:
        raise AssertionError(f"the text {text!r} does not have the schema") from error


def allowed_after(
    constraint: list[Any], target: Model, new: list[int], *, may_end: bool = True
) -> NDArray[np.bool_]:
    """Tokens [n_vocab] that may follow new ones; `may_end`: includes end tokens."""
    ends = target.tokenizer.eos_ids if may_end and target.tokenizer is not None else ()
    return _walked(json.dumps(constraint), target, tuple(new), ends)


@functools.lru_cache(maxsize=64)
def _walked(constraint: str, target: Model, new: tuple[int, ...], ends: tuple[int, ...]) -> NDArray[np.bool_]:
    kind, given, _ = json.loads(constraint)
    assert target.tokenizer is not None
    n_vocab = target.config.n_vocab
    state = Guidance.of(kind, given, target.tokenizer, n_vocab, ends).start(())
    for token in new:
        state.advance(token)
    mask = state.mask()
    if mask is None:
        return np.zeros(n_vocab, bool)
    return np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")[:n_vocab].astype(bool)


# ------------------------------------------------------------------------------------------- patterns


def _draw_pattern(draws: Draws, depth: int) -> Part:
    """Draw a pattern whose texts are not all empty."""
    if depth == 0 or draws.chance(0.2):
        return ["text", draws.choice(_LITERALS)] if draws.chance(0.6) else ["class", draws.choice(_CLASSES)]
    kind = draws.weighted(row=3, choice=2, times=2)
    if kind == "times":
        return ["times", _draw_pattern(draws, depth - 1), *draws.choice(_TIMES)]
    return [kind, *(_draw_pattern(draws, depth - 1) for _ in range(draws.randint(2, 4)))]


def _as_regex(part: Part) -> str:
    kind, *rest = part
    if kind == "text":
        return re.sub(
            r'([-{}.*+?|()\[\]^$\\"])', lambda found: "\\" + found[0] if found[0] != '"' else '"', rest[0]
        )
    if kind == "class":
        return str(rest[0])
    if kind == "times":
        inner, least, most = rest
        return f"(?:{_as_regex(inner)}){{{least},{'' if most is None else most}}}"
    return "(?:" + ("|" if kind == "choice" else "").join(map(_as_regex, rest)) + ")"


def _as_grammar(part: Part, *, gbnf: bool) -> str:
    """Convert to GBNF or Lark syntax."""
    rules: list[str] = []

    def rule(inside: str) -> str:
        rules.append(f"part{len(rules)}{' ::= ' if gbnf else ': '}{inside}")
        return f"part{len(rules) - 1}"

    def written(part: Part) -> str:
        kind, *rest = part
        if kind == "text":
            return json.dumps(rest[0], ensure_ascii=False)
        if kind == "class":
            return str(rest[0]) if gbnf else f"/{rest[0]}/"
        if kind == "times":
            inner, least, most = rest
            count = f"{{{least},{most}}}" if gbnf else f"~{least}..{most}"
            sign = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((least, most), count)
            return rule(written(inner)) + sign  # a rule, as the library reads no repeats of repeats in GBNF
        return rule((" | " if kind == "choice" else " ").join(map(written, rest)))

    start = f"{'root ::=' if gbnf else 'start:'} {written(part)}"
    return "\n".join([start, *rules]) + "\n"


# ------------------------------------------------------------------------------------------- schemas


def _draw_schema(draws: Draws, depth: int) -> dict[str, Any]:
    schema = _draw_value(draws, depth)
    if draws.chance(0.15):  # a list that holds lists
        names = {"$defs": {"again": {"type": "array", "items": {"anyOf": [schema, {"$ref": "#/$defs/again"}]},
                                     "maxItems": 2}}}  # fmt: skip
        schema = {"$ref": "#/$defs/again", **names}
    if draws.chance(0.3):
        schema["x-guidance"] = draws.one(
            {"whitespace_flexible": True}, {"item_separator": ",", "key_separator": ":"}
        )
    return schema


def _draw_value(draws: Draws, depth: int) -> dict[str, Any]:
    kinds = ("boolean", "null", "integer", "number", "string", "enum", "const", "pattern")
    kind = draws.choice(kinds if depth == 0 else (*kinds, *["array", "object", "object", "anyOf"] * 2))
    if kind == "integer":
        low = draws.randint(-20, 100)
        return {"type": "integer", "minimum": low, "maximum": low + draws.one(0, 1, 7, 1000)}
    if kind == "string":
        least = draws.randint(0, 4)
        found = {"type": "string", "minLength": least, "maxLength": least + draws.one(0, 1, 6, 30)}
        return found | ({"format": draws.one("password", "path", "binary")} if draws.chance(0.2) else {})
    if kind == "enum":
        return {"enum": draws.some(["a", "ab", "abc", "é", 1, 12, None, True, ["a"], {"a": 1}], 1)}
    if kind == "const":
        return {"const": draws.one("a" * draws.randint(1, 30), [1, "x"], {"name": {"a": None}}, -3, "€")}
    if kind == "pattern":
        return {"type": "string", "pattern": draws.one("^[a-c]{1,4}$", "^x[0-9]+$", "^(ab|é)*$")}
    if kind == "array":
        least = draws.randint(0, 2)
        return {"type": "array", "items": _draw_value(draws, depth - 1), "minItems": least,
                "maxItems": least + draws.randint(0, 2)}  # fmt: skip
    if kind == "object":
        names = draws.some(_NAMES, 1)
        properties = {name: _draw_value(draws, depth - 1) for name in names}
        found = {"type": "object", "properties": properties, "required": draws.some(names)}
        if draws.chance(0.3):  # a pattern that named keys match, with others or alone
            alone = draws.chance(0.5)
            pattern = f"^({'|'.join(names)})$" if alone else f"^{names[0][0]}"
            found["patternProperties"] = {pattern: True if len(names) > 1 else properties[names[0]]}
        return found | {"additionalProperties": False}
    if kind == "anyOf":
        return {"anyOf": [_draw_value(draws, depth - 1) for _ in range(draws.randint(2, 3))]}
    return {"type": kind}
