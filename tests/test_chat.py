"""Chat templates: reading, rendering, and conversations as prompts of `generate`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from chat_templates import (
    COHERE,
    CONVERSATIONS,
    DOCUMENTS,
    SPECIAL_TOKENS,
    TEMPLATES,
    WEATHER,
    library_tokenizer,
    make_chat,
    said,
    write_tokenizer,
)
from specdec import ChatTemplate
from specdec.errors import InputError, TokenizerError
from tokenizer_files import write_json

Factory = Callable[..., Path]
EXTRAS: list[dict[str, Any]] = [
    {}, {"tools": [WEATHER]}, {"documents": DOCUMENTS}, {"tools": [WEATHER, WEATHER], "documents": DOCUMENTS},
    {"enable_thinking": False}, {"controls": {"length": "short"}}, {"date_string": "1 May 1900"},
]  # fmt: skip


def of_transformers(family: str) -> Any:
    """Return a tokenizer of transformers with a family's templates."""
    from transformers import PreTrainedTokenizerFast

    templates, tokens, _ = TEMPLATES[family]
    library = library_tokenizer(SPECIAL_TOKENS)
    return PreTrainedTokenizerFast(tokenizer_object=library, chat_template=templates, **tokens)


def of_family(name: str) -> ChatTemplate:
    templates, tokens, _ = TEMPLATES[name]
    return ChatTemplate(templates, tokens=tokens, source=name)


# ------------------------------------------------------------------------------------- rendering


@pytest.mark.oracle
@pytest.mark.parametrize("family", TEMPLATES)
def test_prompts_equal_those_of_transformers(family: str) -> None:
    templates, theirs, ours = TEMPLATES[family][0], of_transformers(family), of_family(family)
    n_equal = 0
    for messages in CONVERSATIONS.values():
        for extra in EXTRAS:
            for add, carry_on in ((True, False), (False, False), (False, True)):
                endings = {"add_generation_prompt": add, "continue_final_message": carry_on}
                try:
                    wanted = theirs.apply_chat_template(messages, tokenize=False, **extra, **endings)
                except Exception:
                    with pytest.raises(InputError):
                        ours.render(messages, **extra, **endings)
                    continue
                lacks = [name for name in extra if not ours.reads(name, tools="tools" in extra)]
                if lacks:  # theirs ignores variables that it does not use
                    with pytest.raises(InputError, match=f"{lacks[0]} is given, but"):
                        ours.render(messages, **extra, **endings)
                    continue
                assert ours.render(messages, **extra, **endings) == wanted
                n_equal += 1
    assert n_equal > 15
    if isinstance(templates, dict):
        for name in templates:
            given = {"tools": [WEATHER], "documents": DOCUMENTS}
            given = {one: value for one, value in given.items() if ours.reads(one, name)}
            wanted = theirs.apply_chat_template(said("a"), tokenize=False, chat_template=name, **given)
            found = ours.render(said("a"), chat_template=name, add_generation_prompt=False, **given)
            assert found == wanted


@pytest.mark.oracle
@pytest.mark.parametrize("family", TEMPLATES)
def test_ids_equal_those_of_transformers(make_llama: Factory, family: str) -> None:
    """For the folder written by `save_pretrained` and for the tokenizer object."""
    theirs, end = of_transformers(family), TEMPLATES[family][2]
    folder = make_llama(vocab_size=len(theirs), max_position_embeddings=4096)
    models = [specdec.load(folder, tokenizer=theirs)]
    for files in (True, False):  # chat_template.jinja, or within tokenizer_config.json
        theirs.save_pretrained(folder, save_jinja_files=files)
        assert (folder / "chat_template.jinja").is_file() == files
        models.append(specdec.load(folder))
        for left in [folder / "chat_template.jinja", *folder.glob("additional_chat_templates/*")]:
            left.unlink(missing_ok=True)
    for model in models:
        for messages in (CONVERSATIONS["question"], CONVERSATIONS["turns"]):
            wanted = theirs.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
            assert model.chat_ids(messages) == wanted
        assert model.chat_end_ids == (theirs.convert_tokens_to_ids(end),)


def test_what_is_begun_and_what_is_continued() -> None:
    template = of_family("smollm")
    begun, reply = template.render(said("Hi")), template.render(said("Hi", "Well,"))
    assert begun.endswith("<|im_start|>assistant\n") and reply == begun + "Well,"
    turn = "<|im_start|>assistant\n"
    assert template.render(said("Hi"), add_generation_prompt=False) == begun.removesuffix(turn)
    whole = template.render(said("Hi", "Well,"), continue_final_message=False)
    assert whole == reply + "<|im_end|>\n"
    assert template.render(said("Hi"), continue_final_message=True) == begun.removesuffix(
        f"<|im_end|>\n{turn}"
    )
    with pytest.raises(InputError, match="are both True"):
        template.render(said("Hi"), add_generation_prompt=True, continue_final_message=True)
    # text that the template strips stays stripped, other text is kept
    assert template.render(said("Hi", "Well, ")) == reply + " "
    assert of_family("gemma").render(said("Hi", "Well, ")).endswith("<start_of_turn>model\nWell,")
    blocks = [*said("Hi"), {"role": "assistant", "content": [{"type": "text", "text": "So"}]}]
    text = "{% for m in messages %}{% for b in m.content %}{{ b.text or b }}{% endfor %}.{% endfor %}"
    assert ChatTemplate(text).render(blocks) == "Hi.So"


def test_names_of_templates() -> None:
    cohere = of_family("cohere")
    assert cohere.text() == COHERE["default"] and cohere.text(tools=True) == COHERE["tool_use"]
    assert cohere.text("rag") == COHERE["rag"] and cohere.text("{{ 1 }}") == "{{ 1 }}"
    assert cohere.render(said("a"), chat_template="{{ messages[0].content }}!") == "a!"
    named = ChatTemplate({"a": "x", "b": "y"}, source="here")
    assert repr(named) == "<specdec.ChatTemplate of here: 'a', 'b'>"
    with pytest.raises(InputError, match="here has the chat templates 'a', 'b'"):
        named.render(said("a"))
    with pytest.raises(InputError, match="chat_template is 3"):
        named.render(said("a"), chat_template=3)  # type: ignore[arg-type]


MESSAGES = "messages[0].content"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{{ tools is none and documents is none }}", "True"),
        ("{{ messages[0].role }} {{ nothing }}!", "user !"),
        ("{%- for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "0234"),
        ("  {% if true %}\n  x\n  {% endif %}\n", "  x\n"),
        ('{{ {"b": "<ü>", "a": [1, 2.5, none, true]} | tojson }}', '{"b": "<ü>", "a": [1, 2.5, null, true]}'),
        ('{{ {"b": 1, "a": 2} | tojson(sort_keys=true, separators=(",", ":")) }}', '{"a":2,"b":1}'),
        ("{{ dict(a=1).a }}{% set ns = namespace(x=1) %}{% set ns.x = 2 %}{{ ns.x }}", "12"),
        ("{{ strftime_now('%Y') | int > 2000 }}", "True"),
        ("{% generation %}a{% endgeneration %}b", "ab"),
        ("{{ bos_token }}{{ number + 1 }}{{ array }}", "<s>8<object>"),
        ("{{ '1 %s' % 1000000 }}{{ '{:,} 2 {}'.format(10000, 'a') }}{{ '%05.2f'|format(2.5) }}",
         "1 100000010,000 2 a02.50"),
    ],
)  # fmt: skip
def test_what_a_template_can_use(text: str, found: str) -> None:
    template = ChatTemplate(text, tokens={"bos_token": "<s>"})
    values = {"number": np.int64(7), "array": object()}
    given = {name: value for name, value in values.items() if name in text}
    assert template.render(said("a"), **given) == found


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ messages[0].update(role='x') }}",
        "{{ cycler.__init__.__globals__ }}", "{{ namespace(__class__=1) }}",
        "{{ raise_exception.__globals__ }}", "{{ strftime_now.__code__ }}", "{{ dict.__init__ }}",
    ],
)  # fmt: skip
def test_a_template_cannot_leave_the_sandbox(text: str) -> None:
    """Unsafe access is an error or undefined; the caller's objects do not change."""
    messages = said("a")
    try:
        found = ChatTemplate(text).render(messages)
    except InputError:
        found = ""
    assert found == "" and messages == said("a")


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("{{ raise_exception('only one user') }}", InputError, "refuses these messages: only one user"),
        ("{{ 'a' + none }}", InputError, "cannot render these messages: TypeError"),
        ("{{ 1 // 0 }}", InputError, "cannot render these messages: ZeroDivisionError"),
        ("{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}", InputError, "RecursionError"),
        ("{{ range(10 ** 9) | list }}", InputError, "cannot render these messages: OverflowError"),
        ("{% if %}", TokenizerError, "here: the chat template is not valid Jinja"),
        ("{{ x | no_such_filter }}", TokenizerError, "not valid Jinja"),
        (25 * "{% for a in [1] %}" + 25 * "{% endfor %}", TokenizerError, "too many statically nested"),
        ("{{ lipsum(3) }}", InputError, "'lipsum' is undefined"),
        ("{% include 'x' %}", InputError, "here: the chat template"),
    ],
)
def test_templates_that_fail(text: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ChatTemplate(text, source="here").render(said("a"))


DEEP: Any = "x"
for _ in range(100):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"messages": []}, "messages is []; expected a list of at least one message"),
        ({"messages": "Hi"}, "messages is 'Hi'"),
        ({"messages": [3]}, "messages[0] is an int; expected a dict"),
        ({"messages": [{"role": "user", "content": DEEP}]}, "nested more than 64 deep"),
        ({"messages": said("a", None)}, "the last message has no text to continue"),
        ({"messages": said("a"), "tools": [len]}, "tools[0] is a builtin_function_or_method"),
        ({"messages": said("a"), "tools": 3}, "tools is 3; expected a list of dicts"),
        ({"messages": said("a"), "documents": ["x"]}, "documents[0] is a str"),
        (
            {"messages": said("a"), "tools": [WEATHER]},
            "tools is given, but the chat template of smollm ignores it",
        ),
        (
            {"messages": said("a"), "documents": DOCUMENTS},
            "documents is given, but the chat template of smollm",
        ),
        ({"messages": said("a"), "add_generation_prompt": "no"}, "add_generation_prompt is 'no'"),
        ({"messages": said("a", "b"), "chat_template": "{{ messages | length }}"}, "omits the text of the"),
    ],
)
def test_bad_messages(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        of_family("smollm").render(**arguments)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reads"),
    [
        ("{% if tools %}{{ tools | tojson }}{% endif %}", True),
        ("{% if not tools is defined %}{% set tools = none %}{% endif %}", True),
        ("tools{{ messages[0].content }}tools{# tools #}{{ 'tools' }}", False),
    ],
)
def test_templates_that_take_tools(text: str, reads: bool) -> None:
    """A template takes tools if its code names the variable."""
    template = ChatTemplate({"default": text, "other": "{{ tools }}"}, source="here")
    assert template.reads("tools") is reads and template.reads("tools", "other")
    assert template.render(said("a"), tools=[]) == template.render(said("a"))
    if not reads:
        with pytest.raises(InputError, match="the chat template of here ignores it"):
            template.render(said("a"), tools=[WEATHER])
    assert WEATHER["function"]["name"] in template.render(said("a"), tools=[WEATHER], chat_template="other")


# ----------------------------------------------------------------------------------------- files


def test_where_templates_are_read(make_llama: Factory, tmp_path: Path) -> None:
    folder = write_tokenizer(make_llama(vocab_size=300))
    assert specdec.load(folder).chat_template is None
    write_json(folder, tokenizer_config={"chat_template": "one"})
    assert specdec.load(folder).chat_template.templates == {"default": "one"}  # type: ignore[union-attr]
    (folder / "chat_template.jinja").write_text("two")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "rag.jinja").write_text("three")
    assert specdec.load(folder).chat_template.templates == {  # type: ignore[union-attr]
        "default": "two", "rag": "three",
    }  # fmt: skip
    assert specdec.load(folder, tokenizer=False).chat_template is None
    other = write_tokenizer(tmp_path, chat_template="other", bos_token={"content": "<s>"})
    write_json(other, special_tokens_map={"bos_token": "no", "eos_token": "</s>"})
    for path in (other, other / "tokenizer.json"):
        found = specdec.load(folder, tokenizer=path).chat_template
        assert found is not None and found.templates == {"default": "other"}
        assert found.tokens == {"bos_token": "no", "eos_token": "</s>"}  # as in transformers


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tokenizer_config.json", b'{"chat_template": 3}', "field 'chat_template' is 3; expected a template"),
        ("tokenizer_config.json", b'{"chat_template": [{"name": "a"}]}', "expected a template, or a list"),
        ("chat_template.jinja", b"\xff", "chat_template.jinja: is not UTF-8: invalid start byte at byte 0"),
        ("special_tokens_map.json", b"[1]", "special_tokens_map.json: holds a JSON list"),
    ],
)
def test_damaged_templates(make_llama: Factory, file: str, content: bytes, message: str) -> None:
    folder = write_tokenizer(make_llama(vocab_size=300), chat_template="x")
    (folder / file).write_bytes(content)
    with pytest.raises(TokenizerError, match=message):
        specdec.load(folder)


# --------------------------------------------------------------------------- generate and stream


def test_generate_takes_messages(make_llama: Factory) -> None:
    model = make_chat(make_llama, "qwen2.5", seed=3)
    messages = said("Hello?", system="Be brief.")
    wanted = specdec.generate(model, None, model.chat_ids(messages), max_new_tokens=20, ignore_eos=True)
    options: dict[str, Any] = {"max_new_tokens": 20, "ignore_eos": True}
    found = specdec.generate(model, model, messages=messages, **options)
    assert (found.tokens, found.prompt_ids) == (wanted.tokens, wanted.prompt_ids)
    several = specdec.generate(model, None, messages=[messages, said("Hi")], **options)
    assert several[0].tokens == wanted.tokens and several[1].prompt_ids == model.chat_ids(said("Hi"))
    stream = specdec.stream(model, None, messages=messages, **options)
    assert "".join(stream) == found.text and stream.result.tokens == wanted.tokens
    with_tools = specdec.generate(model, None, messages=messages, tools=[WEATHER], **options)
    assert with_tools.prompt_ids == model.chat_ids(messages, tools=[WEATHER]) != wanted.prompt_ids
    other = specdec.generate(
        model, None, messages=messages, chat_template_kwargs={"chat_template": "{{x}}", "x": "HI"}, **options
    )  # fmt: skip
    assert bytes(other.prompt_ids) == bytes(model.tokenizer.encode("HI"))  # type: ignore[union-attr]


def test_a_reply_ends_with_the_templates_token(make_llama: Factory) -> None:
    """Also if no file names that token as EOS."""
    model = make_chat(make_llama, "gemma")
    (end,) = model.chat_end_ids
    assert model.tokenizer is not None and end not in model.tokenizer.eos_ids
    bias = {"logit_bias": {end: 100.0}, "max_new_tokens": 5}
    chat = specdec.generate(model, None, messages=said("Hi"), **bias)
    assert (chat.tokens, chat.finish_reason, chat.stop, chat.text) == ([end], "stop", end, "")
    prompt = specdec.generate(model, None, model.chat_ids(said("Hi")), **bias)
    assert prompt.tokens == [end] * 5
    on = specdec.generate(model, None, messages=said("Hi"), ignore_eos=True, **bias)
    assert on.tokens == [end] * 5


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("{{ m.content }}<end>\n", (261,)),  # an added token that decoding shows is an end too
        ("{{ m.content }}###", ()),  # several tokens
        ("{{ m.content }}", ()),
        # the harmony format of gpt-oss, where a reply may have several messages
        ("<|start|>{{ m.role }}<|channel|>final<|message|>{{ m.content }}<|end|>", ()),
        ("<|start|>{{ m.role }}<|channel|>final<|message|>{{ m.content }}<|return|>", (260,)),
    ],
    ids=range(5),
)
def test_what_ends_a_reply(text: str, ids: tuple[int, ...], make_llama: Factory) -> None:
    tokenizer = library_tokenizer(["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>"])
    tokenizer.add_tokens(["<end>"])
    folder = make_llama(vocab_size=300)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text("{% for m in messages %}" + text + "{% endfor %}")
    assert specdec.load(folder).chat_end_ids == ids


class Sentences:
    """A tokenizer that strips a leading space, like SentencePiece's."""

    n_vocab, bos_id, eos_ids = 61, None, ()

    def __init__(self, chat_template: ChatTemplate) -> None:
        self.chat_template = chat_template

    def encode(self, text: str, *, add_bos: bool = True) -> list[int]:
        return [ord(char) % 61 for char in text]

    def decode(self, ids: Any) -> str:
        return "".join(f" w{i}" for i in ids)[1:]


def test_a_reply_is_a_text_by_itself(make_llama: Factory) -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", source="s")
    model = specdec.load(make_llama(), tokenizer=Sentences(template))
    assert model.chat_template is template
    reply = specdec.generate(model, None, messages=said("abc"), max_new_tokens=3)
    assert reply.text == " ".join(f"w{i}" for i in reply.tokens)


def test_what_goes_with_messages_alone(make_llama: Factory) -> None:
    model = make_chat(make_llama, "smollm")
    plain = specdec.load(write_tokenizer(make_llama("plain", vocab_size=300)))
    bare = specdec.load(make_llama("bare"))
    cases: list[tuple[specdec.Model, dict[str, Any], str]] = [
        (model, {"prompt": "a", "messages": said("b")}, "prompt and messages are both given"),
        (model, {}, "prompt is missing"),
        (model, {"prompt": "a", "tools": []}, "tools is given without messages"),
        (model, {"prompt": "a", "chat_template_kwargs": {}}, "chat_template_kwargs is given without"),
        (model, {"messages": 3}, "messages is an int"),
        (model, {"messages": []}, "messages is an empty list"),
        (model, {"messages": [said("a"), {}]}, "messages mixes messages with lists of them"),
        (model, {"messages": [said("a"), []]}, "conversation 1: messages is []"),
        (model, {"messages": said("a"), "chat_template_kwargs": 3}, "chat_template_kwargs is 3"),
        (model, {"messages": said("a"), "chat_template_kwargs": {"tools": 1}}, "has the key 'tools'"),
        (model, {"messages": said("a"), "chat_template_kwargs": {"self": 1}}, "has the key 'self'"),
        (model, {"messages": said("a" * 2100)}, "prompt: there are"),
        (model, {"prompt": said("a")}, "pass a conversation as messages="),
        (model, {"prompt": [said("a"), said("b")]}, "pass a conversation as messages="),
        (model, {"prompt": said("a")[0]}, "pass a conversation as messages="),
        (model, {"messages": said("a"), "chat_template_kwargs": {"chat_template": "no"}}, "is 'no'; ex"),
        (plain, {"messages": said("a")}, "has no chat template"),
        (bare, {"messages": said("a")}, "loaded without tokenizer"),
    ]
    for target, arguments, message in cases:
        with pytest.raises(InputError) as caught:
            specdec.generate(target, None, **arguments)
        assert message in str(caught.value)
    with pytest.raises(InputError, match="messages is a list of 2; expected one prompt"):
        specdec.stream(model, None, messages=[said("a"), said("b")])  # type: ignore[arg-type]


def test_tokenizers_that_read_no_special_tokens(make_llama: Factory, shared: Path) -> None:
    folder = make_llama(vocab_size=32000)
    named = {"chat_template": TEMPLATES["llama 2"][0], "bos_token": "<s>", "eos_token": "</s>"}
    write_json(folder, tokenizer_config=named)
    model = specdec.load(folder, tokenizer=shared / "data/tokenizers/llama2_tokenizer.bin")
    with pytest.raises(
        InputError, match="writes the special token '<s>', but .* does not parse special tokens"
    ):
        model.chat_ids(said("a"))
    assert model.chat_end_ids == ()
