"""JSON schemas, regular expressions and grammars through llguidance."""

from __future__ import annotations

import gc
import json
import re
import sys
import threading
import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import jsonschema
import llguidance
import numpy as np
import pytest

import specdec
from refusals import refuses
from specdec import drafts
from specdec.decoding.guided import grammars as schema_rewriting
from specdec.decoding.guided.constraint_vocabulary import ConstraintVocabulary
from specdec.decoding.guided.grammars import JSON_STYLE, json_text
from specdec.decoding.guided.guidance import Guidance, GuidanceState, _known, _left, in_time
from specdec.errors import ConstraintError, InputError, MissingPackageError
from specdec.tokenizer import ByteTokenizer, load_tokenizer
from toy_pair import ToyTokenizer, load_pair
from trained import small_pair
from worlds.encoder_decoders import EncoderDecoder
from worlds.vocabularies import VOCABULARIES, model_with

Pair = tuple[specdec.Model, specdec.Model]

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 2},
        "married": {"type": "boolean"},
    },
    "required": ["name", "age", "tags", "married"], "additionalProperties": False,
}  # fmt: skip
REGEX = r"[A-Z][a-z]{2,9}, (January|July) [1-9][0-9]?, 18[0-9][0-9]"
LARK = """
start: sum
sum: number (("+" | "-") number)~1..4 " = " number
number: /[1-9][0-9]{0,2}/
"""
GBNF = """
root ::= "yes, " ("it is" | "it was") " " word "."
word ::= [a-z] [a-z]? [a-z]?
"""
TEXTS_OF: dict[str, tuple[dict[str, Any], str]] = {
    "schema": ({"schema": PERSON}, ""),
    "regex": ({"regex": REGEX}, REGEX),
    "grammar": ({"grammar": LARK}, r"[1-9]\d{0,2}([+-][1-9]\d{0,2}){1,4} = [1-9]\d{0,2}"),
    "gbnf": ({"grammar": GBNF}, r"yes, it (is|was) [a-z]{1,3}\."),
}
DRAFTS: dict[str, Any] = {
    "model": lambda target, draft: draft,
    "tree": lambda target, draft: drafts.ModelDraft(draft, tree=drafts.DynamicTree(8, width=3, steps=4)),
    "copying": lambda target, draft: drafts.PromptLookup(min_match=1),
    "early exit": lambda target, draft: drafts.EarlyExit(1),
    "ensemble": lambda target, draft: drafts.Ensemble(drafts.PromptLookup(min_match=1), draft),
    "nested": lambda target, draft: drafts.ModelDraft(draft, draft=drafts.PromptLookup(min_match=1), gamma=5),
}


@pytest.fixture(scope="module")
def pair() -> Pair:
    return small_pair()


def check(name: str, text: str) -> None:
    if name == "schema":
        jsonschema.validate(json.loads(text), PERSON)
        assert json.dumps(json.loads(text), ensure_ascii=False) == text  # as Python writes it
    else:
        assert re.fullmatch(TEXTS_OF[name][1], text), text


def allowed_by(mask: bytes | None) -> list[int]:
    assert mask is not None
    bits: list[int] = np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")).tolist()
    return bits


def guidance_of(name: Any, given: Any, pair: Pair, end_ids: Any = (0,)) -> Guidance:
    return Guidance.of(name, given, pair[0].tokenizer, pair[0].config.n_vocab, end_ids)


def after(state: GuidanceState, *tokens: int) -> GuidanceState:
    """Return the state after more tokens, without changing the given one."""
    state = state.fork()
    for token in tokens:
        state.advance(token)
    return state


SLOW = pytest.mark.slow
SAMPLED: dict[str, Any] = {"n": 2, "seed": 1, "temperature": 1.2, "max_new_tokens": 150}


@pytest.mark.parametrize(
    "name", ["schema", *(pytest.param(name, marks=SLOW) for name in TEXTS_OF if name != "schema")]
)
def test_texts_satisfy_the_constraint_and_equal_plain_decoding(name: str, pair: Pair) -> None:
    """Greedy and coupled, over types of drafts; every draft is tested on automata written by hand.

    Samples of the other rules satisfy the constraint.
    """
    target, draft = pair
    constraint, _ = TEXTS_OF[name]
    for options in ({}, {"temperature": 1.0, "verify": "coupled", "seed": 3}):
        plain = specdec.generate(target, None, "It was", max_new_tokens=150, **constraint, **options)
        check(name, plain.text)
        assert plain.finish_reason == "stop"
        assert plain.trace.n_calls < len(plain.tokens)
        for draft_name in DRAFTS:
            how = {"max_new_tokens": 150, **constraint, **options}
            out = specdec.generate(target, DRAFTS[draft_name](target, draft), "It was", **how)
            assert out.tokens == plain.tokens, draft_name
    for rule in ("rejection", "traversal", "classical"):
        for out in specdec.generate(target, draft, "It was", verify=rule, **SAMPLED, **constraint):
            assert out.finish_reason == "stop"
            check(name, out.text)


def test_without_an_end_of_text_a_constraint_ends_itself(pair: Pair) -> None:
    """With ignore_eos no token ends a text, so it continues to the end of its constraint."""
    target, draft = pair
    for one in (None, draft):
        out = specdec.generate(target, one, "It was", regex="[ab]{3,7}", ignore_eos=True)
        assert re.fullmatch("[ab]{7}", out.text)
        assert (out.finish_reason, out.stop) == ("stop", None)
    with pytest.raises(ConstraintError, match="regex allows only the empty text"):
        specdec.generate(target, None, "It was", regex="", ignore_eos=True)
    assert specdec.generate(target, None, "It was", regex="").text == ""


def test_schemas_come_in_several_types(pair: Pair) -> None:
    target, _ = pair

    class Point:
        @classmethod
        def model_json_schema(cls) -> dict[str, Any]:
            return {"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"],
                    "additionalProperties": False}  # fmt: skip

    schemas = [Point, Point.model_json_schema(), json.dumps(Point.model_json_schema())]
    texts = {specdec.generate(target, None, "It was", schema=schema).text for schema in schemas}
    assert len(texts) == 1 and texts <= {'{"x": true}', '{"x": false}'}
    out = specdec.generate(target, None, "It was", schema=True, max_new_tokens=60, temperature=1.0, seed=2)
    assert out.finish_reason == "length" or json.loads(out.text) is not ...
    compact = {**Point.model_json_schema(), "x-guidance": {"key_separator": ":"}}
    assert specdec.generate(target, None, "It was", schema=compact).text in ('{"x":true}', '{"x":false}')


@pytest.mark.oracle
def test_classes_name_all_of_their_keys(pair: Pair) -> None:
    """By default pydantic ignores keys that a class does not name: a text has none, and is an instance."""
    from pydantic import Field, create_model

    inner = create_model("Inner", color=(Literal["red", "blue"], ...))
    name, more = Annotated[str, Field(max_length=8)], Annotated[list[inner], Field(max_length=1)]
    outer = create_model("Outer", name=(name, ...), inner=(inner, ...), more=(more, ...))
    before = outer.model_json_schema()
    closed = json.loads(json_text(outer))
    assert closed["additionalProperties"] is closed["$defs"]["Inner"]["additionalProperties"] is False
    opened = create_model("Open", a=(bool, ...), __config__={"extra": "allow"})
    assert json.loads(json_text(opened))["additionalProperties"] is True
    counts = json.loads(json_text(create_model("Counts", counts=(dict[str, bool], ...))))
    assert counts["properties"]["counts"]["additionalProperties"] == {"type": "boolean"}
    for made in (inner, outer, create_model("Empty")):
        for seed in range(3):
            out = specdec.generate(*pair, "It", schema=made, temperature=1.0, seed=seed)
            assert out.finish_reason == "stop"
            assert json.loads(out.text).keys() == made.model_validate_json(out.text).model_dump().keys()
    assert outer.model_json_schema() == before
    assert "additionalProperties" not in json_text({"properties": {"a": True}})  # a dict is taken literally


@pytest.mark.oracle
def test_formats_that_annotate_take_any_string(pair: Pair) -> None:
    import pydantic

    types: dict[str, Any] = {"a": pydantic.SecretStr, "b": Path, "c": bytes, "d": pydantic.SecretBytes}
    fields: Any = {key: (Annotated[entry, pydantic.Field(max_length=4)], ...) for key, entry in types.items()}
    fields["b"] = (Path, ...)
    made = pydantic.create_model("Made", **fields)
    text = '{"a": "é", "b": "/x", "c": "", "d": "1234"}'
    tokenizer = pair[0].tokenizer
    state = guidance_of("schema", made, pair, tokenizer.eos_ids).start(())
    state = after(state, *tokenizer.encode(text, add_bos=False))  # which would raise
    assert state.mask() is not None  # an end of text may come
    data = {"const": {"format": "password"}}  # no format, but data
    assert specdec.generate(*pair, "It", schema=data).text == '{"format": "password"}'
    with pytest.raises(ConstraintError, match=r"at /properties/a: Unknown format: iri.*lenient"):
        specdec.generate(*pair, "It", schema={"properties": {"a": {"format": "iri"}}, "type": "object"})


PATTERNED: dict[str, Any] = {
    "one key": ({"score": {"type": "integer", "multipleOf": 5}}, {"^score$": {"minimum": 0, "maximum": 20}}),
    "all of several": ({"a": {"minimum": 3}, "é": True, "x": {"const": 1}}, {"^(a|é)$": {"enum": [1, 5]}}),
    "two patterns": ({"a": {"enum": [3, 4]}, "b": True}, {"^a$": {"enum": [3, ""]}, "^b$": {"const": 2}}),
    "and others": ({"a": {"enum": [3, 5, "x"]}}, {"^[ab]$": {"enum": [5, 6]}}),
    "and many others": ({"a1": {"type": "integer"}}, {"^a[0-9]$": {"enum": [5, "five"]}}),
    "and no named keys": ({}, {"^a$": {"const": 1}, "^b$": {"const": 2}}),
}


@pytest.mark.parametrize("name", PATTERNED)
def test_keys_that_properties_and_patterns_name(name: str, pair: Pair) -> None:
    """Both hold of such a key, and no other key of a used-up pattern is begun."""
    properties, patterns = PATTERNED[name]
    schema = {
        "type": "object", "properties": properties, "required": list(properties),
        "patternProperties": patterns, "additionalProperties": False,
    }  # fmt: skip
    n_keys = set()
    for seed in range(16):  # nearly uniform, so that both ends and further keys occur
        out = specdec.generate(*pair, "It", schema=schema, seed=seed, max_new_tokens=200, temperature=20.0)
        if out.finish_reason == "stop":
            jsonschema.validate(json.loads(out.text), schema)
            n_keys.add(out.text.count(": "))
        else:
            assert name.startswith("and")
    assert (n_keys == {len(properties)}) != (name.startswith("and") and len(n_keys) > 1)


def test_too_many_patterns_and_keys_are_refused(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time to compare each pattern with each key has a bound."""
    names = [f"a{i}" for i in range(100)]
    schema = {
        "type": "object", "properties": dict.fromkeys(names, True),
        "patternProperties": {f"^{one}$": True for one in names},
    }  # fmt: skip
    monkeypatch.setattr(schema_rewriting, "_REWRITE_S", 0.02)
    with pytest.raises(ConstraintError, match="schema takes longer"):
        specdec.generate(*pair, "It", schema=schema, max_new_tokens=1)


def test_a_pattern_in_another_part_is_named(pair: Pair) -> None:
    named = {"properties": {"a": {"const": 1}}, "required": ["a"]}
    patterned = {"patternProperties": {"^a$": True}, "additionalProperties": False}
    schema = {"type": "object", "allOf": [named, patterned]}
    with pytest.raises(ConstraintError, match="patternProperties"):
        for seed in range(20):
            specdec.generate(*pair, "It", schema=schema, temperature=1.5, seed=seed, max_new_tokens=60)


SMALL = "(abc|c a?b){2,5}\n"  # in letters that the made-up vocabularies share


@pytest.mark.parametrize("how", [{}, {"temperature": 1.1, "verify": "coupled", "seed": 6}])
def test_constraints_with_all_other_settings(how: dict[str, Any]) -> None:
    """Prompt caches, several samples, streams, drafts of other vocabularies: the text of plain decoding."""
    target, other = model_with(VOCABULARIES["target"], 0), model_with(VOCABULARIES["overlapping"], 1)
    options: dict[str, Any] = {"regex": SMALL, "max_new_tokens": 40, "n_threads": 1, **how}
    plain = specdec.generate(target, None, "abc a", n=3, **options)
    assert all(re.fullmatch(SMALL, one.text) for one in plain)
    cache = specdec.PromptCache()
    for vocabulary in ("intersection", "text", "auto"):
        draft = drafts.ModelDraft(other, vocabulary=vocabulary)
        assert specdec.generate(target, draft, "abc a", n=3, prompt_cache=cache, **options) == plain
        with specdec.stream(target, draft, "abc a", prompt_cache=cache, **options) as stream:
            assert "".join(stream) == stream.result.text == plain[0].text


@pytest.mark.parametrize("how", [{}, {"temperature": 1.1, "verify": "coupled", "seed": 6}])
def test_constraints_of_encoder_decoders(how: dict[str, Any]) -> None:
    """The text after a source satisfies the constraint, without the decoder's start."""
    models, constraint = EncoderDecoder(text=True), "(ab|ba){2,6}z"
    options: dict[str, Any] = {"regex": constraint, "max_new_tokens": 30, "n_threads": 1, "batch_size": 2}
    options |= how
    plain = specdec.generate(models.target, None, ["ab", "bab"], **options)
    assert all(re.fullmatch(constraint, one.text) for one in plain)
    assert specdec.generate(models.target, models.draft, ["ab", "bab"], **options) == plain


def test_a_tokenizer_is_not_kept() -> None:
    """Its compiled constraints are freed with it once the cache drops them."""
    tokenizer = ToyTokenizer()
    made = [Guidance.of("regex", "(ab)+z", tokenizer, 61, (2,)) for _ in range(2)]
    assert made[0].start(()).mask() and made[0]._compiled is made[1]._compiled
    del made
    _known.clear()
    gone = weakref.ref(tokenizer)
    del tokenizer
    gc.collect()
    assert gone() is None


def test_a_mask_does_not_depend_on_other_draft_tokens(pair: Pair) -> None:
    """Masks of alternating tree nodes, in grammars for which the library's rollback is wrong or refused."""
    letters = 'start: ("a" | "12")? /[A-Z]/~3..7 /[0-9ab]/ /[A-Z]/~3..7 (/[A-Z]/ | "0")?\n'
    ends = ('stop="z"', "max_tokens=3")
    grammars = [letters, *(f"start: a b\na[{how}]: /[a-z ]*/\nb: /[0-9]+/\n" for how in ends)]
    rng = np.random.default_rng(8)
    for name, given in (*(("grammar", grammar) for grammar in grammars), ("schema", PERSON)):
        guidance = guidance_of(name, given, pair, ())
        states: dict[tuple[int, ...], GuidanceState] = {(): guidance.start(())}
        for _ in range(60):
            tokens = list(states)[int(rng.integers(len(states)))]
            mask = states[tokens].mask()
            assert mask == after(guidance.start(()), *tokens).mask()
            if mask is not None:
                token = int(rng.choice(allowed_by(mask)))
                states[(*tokens, token)] = after(states[tokens], token)


class Impatient:
    """The library's matcher, in which computing forced text never returns."""

    grammar_from_lark = staticmethod(llguidance.LLMatcher.grammar_from_lark)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._matcher = llguidance.LLMatcher(*arguments, **options) if options else arguments[0]

    def deep_copy(self) -> Impatient:
        return Impatient(self._matcher.deep_copy())

    def compute_ff_tokens(self) -> list[int]:
        raise AssertionError("it would write for ever")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._matcher, name)


ENDLESS = {
    "a word after itself": "start: WORD WORD\nWORD: /(12)+/\n",
    "repeated": 'start: "ab" /(12)+/~2 "x"\n',
    "with options": 'start: /a+/ /a+/\n%llguidance {\n"no_forcing": false\n}\n',
    "gbnf": 'root ::= twice{2,2}\nonce ::= "12"\ntwice ::= once+\n',
}


@pytest.mark.parametrize("name", ENDLESS)
def test_grammars_that_force_bytes_without_end_are_refused(
    name: str, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library would write them until memory is exhausted, and block all other threads."""
    monkeypatch.setattr("specdec.decoding.guided.guidance._library", lambda: Library)
    with pytest.raises(ConstraintError, match="grammar forces more than 4096 bytes"):
        guidance_of("grammar", ENDLESS[name], pair)


class Library:
    """llguidance with matchers that are `Impatient`."""

    LLMatcher = Impatient
    LLParserLimits, LLTokenizer = llguidance.LLParserLimits, llguidance.LLTokenizer
    TokenizerWrapper = llguidance.TokenizerWrapper


@pytest.mark.parametrize("name", ["item_separator", "key_separator", "whitespace_pattern"])
def test_separators_without_end_are_refused(name: str, pair: Pair) -> None:
    target, _ = pair
    items = {"type": "array", "items": {"const": 1}, "minItems": 2, "maxItems": 2}
    with pytest.raises(
        ConstraintError, match=rf"schema has x-guidance\.{name} '1\+'; expected no unbounded repetition"
    ):
        specdec.generate(target, None, "It was", schema={**items, "x-guidance": {name: "1+"}})
    spaced = {**items, "x-guidance": {"item_separator": r",[ \n]*"}}
    out = specdec.generate(target, None, "It was", schema=spaced, max_new_tokens=30)
    assert out.finish_reason == "length" or json.loads(out.text) == [1, 1]


@pytest.mark.parametrize(
    "grammar", ['start: (/[ab€]/ " ")+ "."', 'start: ("xa" | "xb")+ /c/', 'start: "ab"~300']
)
def test_grammars_that_go_on_by_choice_are_no_endless_ones(grammar: str, pair: Pair) -> None:
    """Positions with a single next byte but several after it, and where these end."""
    target, _ = pair
    state = guidance_of("grammar", grammar, pair).start(())
    for _ in range(20):
        if (mask := state.mask()) is None:
            break
        allowed = [token for token in allowed_by(mask) if token != 0]
        state = after(
            state, min(allowed, key=lambda token: len(target.tokenizer.text_bytes(token)), default=0)
        )


def test_a_text_ends_by_an_error_where_its_grammar_forces_bytes_without_end(pair: Pair) -> None:
    target, _ = pair
    grammar = 'start: "x" /[a-z]+/ | "y" /(12)+/~2\n'
    states = {letter: guidance_of("grammar", grammar, pair).start(()) for letter in "xy"}
    for letter, state in states.items():
        state.mask()
        state.advance(target.tokenizer.encode(letter, add_bos=False)[0])
        state._own_reader()._matcher = Impatient(state._own_reader()._matcher)
    with pytest.raises(AssertionError, match="it would write for ever"):
        states["x"].mask()  # computes the forced tokens
    with pytest.raises(ConstraintError, match="grammar forces more than 4096 bytes"):
        states["y"].mask()


def test_masks_have_all_that_may_come(pair: Pair) -> None:
    """Against what texts of a regular expression begin with, written by hand."""
    guidance = guidance_of("regex", r"( [a-z]{1,9}){4}[.!?]", pair)
    prefix = re.compile(r"(?: [a-z]{1,9}){0,3}(?: [a-z]{0,9})?|(?: [a-z]{1,9}){4}[.!?]")
    pieces = [pair[0].tokenizer.text_bytes(i).decode(errors="replace") for i in range(pair[0].config.n_vocab)]
    rng = np.random.default_rng(3)
    for _ in range(5):
        state, text = guidance.start(()), ""
        while not text.endswith((".", "!", "?")):
            wanted = [i for i, piece in enumerate(pieces) if piece and prefix.fullmatch(text + piece)]
            assert allowed_by(state.mask()) == wanted
            token = int(rng.choice(wanted))
            state, text = after(state, token), text + pieces[token]


# ---------------------------------------------------------------------------------------- tokenizers

TEXTS = ['{"name": "', "January", "naïve café", "日本", "\n\n", " two  spaces", "🙂", "a" * 300, '", "age": ']


def check_tokenizer(tokenizer: ByteTokenizer, n_vocab: int) -> None:
    """Tokens of forced text have exactly its bytes; random walks satisfy the constraint."""
    vocabulary = ConstraintVocabulary(tokenizer, n_vocab, tokenizer.eos_ids or (n_vocab - 1,))
    for text in TEXTS:
        ids = vocabulary(text)
        assert b"".join(tokenizer.text_bytes(token) for token in ids) == text.encode()
        assert len(ids) <= len(text.encode())
    assert len(vocabulary('{"name": "')) < 10  # as the tokenizer writes it, not byte by byte
    state = Guidance.of("schema", PERSON, tokenizer, n_vocab, tokenizer.eos_ids).start(())
    rng, tokens = np.random.default_rng(5), []
    while (mask := state.mask()) is not None:
        tokens.append(int(rng.choice(allowed_by(mask))))
        state = after(state, tokens[-1])
    data = b"".join(tokenizer.text_bytes(token) for token in tokens)
    jsonschema.validate(json.loads(data), PERSON)
    assert json.loads(tokenizer.decode(tokens, continuing=True)) == json.loads(data)


FILES = ["models/stories260K/tok512.bin", *(pytest.param(f"data/tokenizers/{name}", marks=SLOW) for name in (
    "llama2_tokenizer.model", "llama2_tokenizer.bin", "phi3.tokenizer.json"
))]  # fmt: skip


@pytest.mark.parametrize("file", ["embedded", *FILES])
def test_tokenizers(file: str, pair: Pair, request: pytest.FixtureRequest) -> None:
    embedded, folder = pair[0].tokenizer, Path() if file == "embedded" else request.getfixturevalue("shared")
    tokenizer = embedded if file == "embedded" else load_tokenizer(folder / file)
    check_tokenizer(tokenizer, tokenizer.n_vocab + 37)  # as a model with a padded vocabulary


def test_what_a_tokenizer_cannot_write_is_named(tmp_path: Path) -> None:
    """The toy tokenizer has no digits and no quotation marks; other objects are no tokenizers."""
    target, draft = load_pair(tmp_path)
    assert re.fullmatch("(ab|ba){2,5}z", specdec.generate(target, draft, "ab", regex="(ab|ba){2,5}z").text)
    for name, given in (("schema", PERSON), ("regex", "[0-9]"), ("regex", "ab7")):
        with pytest.raises(ConstraintError, match=name):
            specdec.generate(target, draft, "ab", **{name: given})
    for tokenizer in (None, SimpleNamespace(n_vocab=3, bos_id=None, eos_ids=())):
        with refuses("regex", tokenizer):
            Guidance.of("regex", "a", tokenizer, 10, ())  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------- errors

DEEP = 60_000
BAD: dict[str, tuple[str, Any, str]] = {
    "an open group": ("regex", "b(a", r"^regex: unclosed group, at character 2 of .* 'b\(a'$"),
    "an open group in a schema": ("schema", {"type": "string", "pattern": "b(a"}, "^schema: unclosed group"),
    "an open group in a grammar": ("grammar", "start: /b(a/", r"^grammar: at 1\(8\): unclosed group, at cha"),
    "nothing matches": ("regex", r"[^\x00-\U0010FFFF]", "regex"),
    "too long": ("regex", "ab" * 150_000, "regex has 300000 bytes; expected at most 131072"),
    "deep": ("regex", "(" * DEEP + "a" + ")" * DEEP, "regex"),
    "too many symbols": (
        "schema", {"type": "object", "properties": {f"k{i}": {"type": "string"} for i in range(2500)}},
        "schema: grammar size .*too big",
    ),
    "no JSON": ("schema", "{", "schema is not valid JSON"),
    "no schema": ("schema", "[1]", "schema is a list; expected a dict"),
    "an unknown type": ("schema", {"type": "wibble"}, "schema.*wibble"),
    "an unknown format": ("schema", {"type": "string", "format": "wobble"}, "schema.*wobble"),
    "false": ("schema", False, "schema is False, which no text matches"),
    "an empty range": ("schema", {"type": "integer", "minimum": 5, "maximum": 4}, "schema.*[Uu]nsatisfiable"),
    "a loop": ("schema", {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "schema"),
    "no start": ("grammar", 'begin: "a"', "^grammar has no start rule; expected a"),
    "a name that is missing": ("grammar", "start: foo", "grammar.*foo"),
    "without end": ("grammar", 'start: "a" start', "grammar"),
    "patterns of which all hold": (
        "schema",
        {"allOf": [{"type": "string", "pattern": f"a.*{letter}"} for letter in "abcdefghijklmnopqrs"]},
        "schema may join 19 patterns by allOf; expected at most 16",
    ),
    "GBNF with a fault": ("grammar", 'root ::= "a" foo(', "grammar"),
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=SLOW) if name == "too many symbols" else name for name in BAD]
)
def test_constraints_that_cannot_be_used_are_named_in_time(name: str, pair: Pair) -> None:
    target, _ = pair
    name, constraint, message = BAD[name]
    begun = time.monotonic()
    with pytest.raises(InputError, match=message) as caught:
        specdec.generate(target, None, "It was", max_new_tokens=8, **{name: constraint})
    assert time.monotonic() - begun < 20
    assert len(str(caught.value)) < 5000


@pytest.mark.parametrize(
    ("pointer", "schema"),
    [
        ("", {"type": "wibble"}),
        ("/properties/a~1b/items", {"properties": {"a/b": {"items": {"type": "wibble"}}}}),
        ("/anyOf/1/properties/type", {"anyOf": [{}, {"properties": {"type": {"type": "wibble"}}}]}),
        ("/properties/x", {"properties": {"x": {"$ref": "#/$defs/y"}}, "$defs": {"y": {"type": "wibble"}}}),
        ("/items", {"items": {"type": "wibble"}, "const": {"type": "wibble"}, "default": {"type": "wibble"}}),
    ],
)
def test_a_fault_of_a_schema_has_a_pointer(pointer: str, schema: dict[str, Any], pair: Pair) -> None:
    where = f"schema, at {pointer}" if pointer else "schema"
    with pytest.raises(ConstraintError, match=f"^{re.escape(where)}: Invalid type: wibble$"):
        specdec.generate(pair[0], None, "It was", schema=schema)


def test_rules_that_lead_to_each_other_take_no_stack_of_the_caller(pair: Pair) -> None:
    """The library goes into rules by recursion, which ended the process."""
    rules = "".join(f"r{i}: r{i + 1}\n" for i in range(7000))
    constraint = f'start: r0\n{rules}r7000: "It was"'
    assert specdec.generate(pair[0], None, "It was", grammar=constraint, ignore_eos=True).text == "It was"
    names = {f"{i}": {"$ref": f"#/$defs/{i + 1}"} for i in range(3000)} | {"3000": {"type": "null"}}
    schema = {"$ref": "#/$defs/0", "$defs": names}
    assert specdec.generate(pair[0], None, "It was", schema=schema).text == "null"


def test_a_constraint_that_takes_long_to_compile_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec.decoding.guided.guidance._COMPILE_S", 0.05)
    go_on = threading.Event()
    for _ in range(2):
        with pytest.raises(ConstraintError, match="regex takes longer than 0.05 s to compile"):
            in_time("regex", go_on.wait)
    with pytest.raises(ConstraintError, match="regex is refused while 2 others are still compiling"):
        in_time("regex", int)
    go_on.set()
    for thread in _left:
        thread.join()
    assert in_time("regex", int) == 0
    with pytest.raises(ZeroDivisionError):
        in_time("regex", lambda: 1 // 0)


def test_the_library_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch, pair: Pair) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'specdec-cpu\[guided\]'"):
        specdec.generate(pair[0], None, "It was", regex="a+")


def test_special_tokens_are_never_text(pair: Pair) -> None:
    vocabulary = ConstraintVocabulary(ToyTokenizer(), 70, (2,))
    assert all(vocabulary.tokens[token].startswith(b"\xff") for token in (0, 1, 2, 61, 69))
    assert vocabulary.special_token_ids == [0, 1, 2, *range(61, 70)]
    assert JSON_STYLE["item_separator"] == ", "
