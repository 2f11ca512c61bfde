"""JSON schemas, regular expressions and grammars through llguidance."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

import specdec
from specdec import drafts
from specdec.decoding.guidance import _JSON, Guidance, _Vocabulary
from specdec.errors import FormError, InputError, MissingPackageError
from specdec.models.tokenizer import ByteTokenizer, load_tokenizer
from toy_pair import ToyTokenizer, load_pair

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 2},
        "married": {"type": "boolean"},
    },
    "required": ["name", "age", "tags", "married"],
    "additionalProperties": False,
}
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
FORMS: dict[str, tuple[dict[str, Any], str]] = {
    "schema": ({"schema": PERSON}, ""),
    "regex": ({"regex": REGEX}, REGEX),
    "grammar": ({"grammar": LARK}, r"[1-9]\d{0,2}([+-][1-9]\d{0,2}){1,4} = [1-9]\d{0,2}"),
    "gbnf": ({"grammar": GBNF}, r"yes, it (is|was) [a-z]{1,3}\."),
}
DRAFTS: dict[str, Any] = {
    "model": lambda target, draft: draft,
    "tree": lambda target, draft: drafts.ModelDraft(draft, tree=drafts.DynamicTree(8, width=3, steps=4)),
    "copying": lambda target, draft: drafts.ContextCopy(min_match=1),
    "early exit": lambda target, draft: drafts.EarlyExit(1),
    "ensemble": lambda target, draft: drafts.Ensemble(drafts.ContextCopy(min_match=1), draft),
    "nested": lambda target, draft: drafts.ModelDraft(draft, draft=drafts.ContextCopy(min_match=1), gamma=5),
}


@pytest.fixture(scope="module")
def pair() -> tuple[specdec.Model, specdec.Model]:
    return specdec.embedded_pair()


def check(name: str, text: str) -> None:
    if name == "schema":
        jsonschema.validate(json.loads(text), PERSON)
        assert json.dumps(json.loads(text), ensure_ascii=False) == text  # as Python writes it
    else:
        assert re.fullmatch(FORMS[name][1], text), text


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "name", ["schema", *(pytest.param(name, marks=SLOW) for name in FORMS if name != "schema")]
)
def test_texts_have_their_form_and_are_those_of_plain_decoding(
    name: str, pair: tuple[specdec.Model, specdec.Model]
) -> None:
    """Greedy and coupled, over kinds of drafts; every draft is tested on automata written by hand."""
    target, draft = pair
    form, _ = FORMS[name]
    for options in ({}, {"temperature": 1.0, "verify": "coupled", "seed": 3}):
        plain = specdec.generate(target, None, "It was", max_new_tokens=150, **form, **options)
        check(name, plain.text)
        assert plain.finish_reason == "stop"
        assert plain.trace.n_calls < len(plain.tokens)
        for kind in DRAFTS:
            out = specdec.generate(
                target, DRAFTS[kind](target, draft), "It was", max_new_tokens=150, **form, **options
            )
            assert out.tokens == plain.tokens, kind


@pytest.mark.parametrize(
    "rule", ["rejection", pytest.param("block", marks=SLOW), pytest.param("classical", marks=SLOW)]
)
def test_samples_have_their_form(rule: Any, pair: tuple[specdec.Model, specdec.Model]) -> None:
    target, draft = pair
    for name, (form, _) in FORMS.items():
        results = specdec.generate(
            target, draft, "It was", n=3, seed=1, temperature=1.2, verify=rule, max_new_tokens=150, **form
        )
        for out in results:
            assert out.finish_reason == "stop"
            check(name, out.text)


def test_a_text_that_is_cut_short_is_a_beginning(pair: tuple[specdec.Model, specdec.Model]) -> None:
    target, draft = pair
    whole = specdec.generate(target, draft, "It was", schema=PERSON)
    for n in (1, 3, 9):
        out = specdec.generate(target, draft, "It was", schema=PERSON, max_new_tokens=n)
        assert (out.tokens, out.finish_reason) == (whole.tokens[:n], "length")
    out = specdec.generate(target, draft, "It was", schema=PERSON, stop='"age"')
    assert out.text == whole.text[: whole.text.index('"age"')]


def test_without_an_end_of_text_a_form_ends_itself(pair: tuple[specdec.Model, specdec.Model]) -> None:
    """With ignore_eos no token ends a text; one that may go on does, up to the end of its form."""
    target, draft = pair
    for one in (None, draft):
        out = specdec.generate(target, one, "It was", regex="[ab]{3,7}", ignore_eos=True)
        assert re.fullmatch("[ab]{7}", out.text)
        assert (out.finish_reason, out.stop) == ("stop", None)
    with pytest.raises(FormError, match="regex: no text but the empty one"):
        specdec.generate(target, None, "It was", regex="", ignore_eos=True)
    assert specdec.generate(target, None, "It was", regex="").text == ""


def test_schemas_come_in_several_kinds(pair: tuple[specdec.Model, specdec.Model]) -> None:
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


def test_requests_of_an_engine_have_forms_of_their_own(pair: tuple[specdec.Model, specdec.Model]) -> None:
    target, draft = pair
    forms = [form for form, _ in FORMS.values()] + [{}]
    with specdec.Engine(target, draft, n_slots=3, n_text=300) as engine:
        requests = [engine.submit("It was", max_new_tokens=120, **form) for form in forms]
        with pytest.raises(FormError):
            engine.submit("It was", regex="(a")
        results = [request.result(timeout=60) for request in requests]
    for form, got in zip(forms, results, strict=True):
        one = specdec.generate(target, None, "It was", max_new_tokens=120, **form)
        assert (got.tokens, got.text, got.finish_reason) == (one.tokens, one.text, one.finish_reason)


def test_a_form_is_compiled_once(pair: tuple[specdec.Model, specdec.Model]) -> None:
    target, _ = pair
    made = [Guidance.of("regex", "a+b", target.tokenizer, target.config.n_vocab, (0,)) for _ in range(2)]
    assert made[0]._matcher is made[1]._matcher


def test_states_are_functions_of_their_tokens(pair: tuple[specdec.Model, specdec.Model]) -> None:
    """A mask does not depend on the forks and masks before: walked along one state or anew for each token."""
    target, _ = pair
    guidance = Guidance.of("schema", PERSON, target.tokenizer, target.config.n_vocab, (0,))
    rng = np.random.default_rng(4)
    for _ in range(3):
        state, tokens = guidance.start(()), []
        while (mask := state.mask()) is not None:
            fresh = guidance.start(())
            for token in tokens:
                fresh.advance(token)
            assert fresh.mask() == mask
            allowed = np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little"))
            token = int(rng.choice(allowed))
            other = state.fork()
            other.advance(int(rng.choice(allowed)))
            other.mask()
            state = state.fork()
            state.advance(token)
            tokens.append(token)


# ---------------------------------------------------------------------------------------- tokenizers

TEXTS = ['{"name": "', "January", "naïve café", "日本", "\n\n", " two  spaces", "🙂", "a" * 300, '", "age": ']


def check_tokenizer(tokenizer: ByteTokenizer, n_vocab: int) -> None:
    """Forced texts are written in tokens whose bytes are theirs; random walks keep the form."""
    vocabulary = _Vocabulary(tokenizer, n_vocab, tokenizer.eos_ids or (n_vocab - 1,))
    for text in TEXTS:
        ids = vocabulary(text)
        assert b"".join(tokenizer.text_bytes(token) for token in ids) == text.encode()
        assert len(ids) <= len(text.encode())
    assert len(vocabulary('{"name": "')) < 10  # as the tokenizer writes it, not byte by byte
    guidance = Guidance.of("schema", PERSON, tokenizer, n_vocab, tokenizer.eos_ids)
    rng = np.random.default_rng(5)
    state, tokens = guidance.start(()), []
    while (mask := state.mask()) is not None:
        assert len(mask) == (n_vocab + 31) // 32 * 4
        allowed = np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little"))
        assert allowed[-1] < n_vocab
        tokens.append(int(rng.choice(allowed)))
        state = state.fork()
        state.advance(tokens[-1])
    data = b"".join(tokenizer.text_bytes(token) for token in tokens)
    jsonschema.validate(json.loads(data), PERSON)
    text = tokenizer.decode(tokens, continuing=True)
    assert json.loads(text) == json.loads(data)


FILES = ["llama2_tokenizer.model", "llama2_tokenizer.bin", "phi3.tokenizer.json"]


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_tokenizers_of_files(file: str, shared: Path) -> None:
    tokenizer = load_tokenizer(shared / "data" / "tokenizers" / file)
    check_tokenizer(tokenizer, tokenizer.n_vocab + 37)  # as a model with a padded vocabulary


def test_tokenizers_that_are_small(pair: tuple[specdec.Model, specdec.Model], shared: Path) -> None:
    check_tokenizer(pair[0].tokenizer, pair[0].config.n_vocab)
    check_tokenizer(load_tokenizer(shared / "models" / "stories260K" / "tok512.bin"), 512)


def test_what_a_tokenizer_cannot_write_is_named(tmp_path: Path) -> None:
    """The toy tokenizer has no digits and no quotation marks."""
    target, draft = load_pair(tmp_path)
    out = specdec.generate(target, draft, "ab", regex="(ab|ba){2,5}z")
    assert re.fullmatch("(ab|ba){2,5}z", out.text)
    for form in ({"schema": PERSON}, {"regex": "[0-9]"}):
        with pytest.raises(InputError, match=r"schema|regex"):
            specdec.generate(target, draft, "ab", **form)
    with pytest.raises(InputError):
        specdec.generate(target, draft, "ab", regex="ab7")


def test_other_tokenizers_are_named() -> None:
    class Words:
        n_vocab, bos_id, eos_ids = 3, None, ()

    with pytest.raises(InputError, match="regex is given, but the target has no tokenizer"):
        Guidance.of("regex", "a", None, 10, ())
    with pytest.raises(InputError, match="the tokenizer a Words; expected one whose tokens are byte strings"):
        Guidance.of("regex", "a", Words(), 10, ())  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------- errors

DEEP = 60_000
BAD: dict[str, tuple[str, Any, str]] = {
    "an open group": ("regex", "(a", "regex: .*unclosed group"),
    "nothing matches": ("regex", r"[^\x00-\U0010FFFF]", "regex"),
    "too long": ("regex", "ab" * 150_000, "regex has 300000 bytes; expected at most 131072"),
    "deep": ("regex", "(" * DEEP + "a" + ")" * DEEP, "regex"),
    "too many symbols": (
        "schema",
        {"type": "object", "properties": {f"k{i}": {"type": "string"} for i in range(2500)}},
        "schema: grammar size .*too big",
    ),
    "no JSON": ("schema", "{", "schema is no JSON"),
    "no schema": ("schema", "[1]", "schema is a list; expected a dict"),
    "an unknown type": ("schema", {"type": "wibble"}, "schema.*wibble"),
    "an unknown format": ("schema", {"type": "string", "format": "wobble"}, "schema.*wobble"),
    "false": ("schema", False, "schema is False: no text has it"),
    "an empty range": ("schema", {"type": "integer", "minimum": 5, "maximum": 4}, "schema.*[Uu]nsatisfiable"),
    "a loop": ("schema", {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, "schema"),
    "no start": ("grammar", 'begin: "a"', "grammar"),
    "a name that is missing": ("grammar", "start: foo", "grammar.*foo"),
    "without end": ("grammar", 'start: "a" start', "grammar"),
    "GBNF with a fault": ("grammar", 'root ::= "a" foo(', "grammar"),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=SLOW) if name == "too many symbols" else name for name in BAD]
)
def test_forms_that_cannot_be_used_are_named_in_time(
    name: str, pair: tuple[specdec.Model, specdec.Model]
) -> None:
    target, _ = pair
    kind, form, message = BAD[name]
    begun = time.monotonic()
    with pytest.raises(InputError, match=message) as caught:
        specdec.generate(target, None, "It was", max_new_tokens=8, **{kind: form})
    assert time.monotonic() - begun < 20
    assert len(str(caught.value)) < 5000


def test_the_library_is_named_where_it_is_missing(
    monkeypatch: pytest.MonkeyPatch, pair: tuple[specdec.Model, specdec.Model]
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(MissingPackageError, match=r"pip install llguidance"):
        specdec.generate(pair[0], None, "It was", regex="a+")


def test_special_tokens_are_never_text(pair: tuple[specdec.Model, specdec.Model]) -> None:
    vocabulary = _Vocabulary(ToyTokenizer(), 70, (2,))
    assert all(vocabulary.tokens[token].startswith(b"\xff") for token in (0, 1, 2, 61, 69))
    assert vocabulary.special_token_ids == [0, 1, 2, *range(61, 70)]
    assert _JSON["item_separator"] == ", "
