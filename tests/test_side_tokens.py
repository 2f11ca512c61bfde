"""Tokens from the files next to a vocabulary: added, named and special ones, against AutoTokenizer."""

from __future__ import annotations

import functools
import json
import re
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import specdec
from chat_templates import library_tokenizer
from refusals import refuses_field
from specdec.errors import InputError, TokenizerError, UnusedFieldWarning
from specdec.tokenizer import ByteTokenizer, load_tokenizer
from tokenizer_files import trained_pieces, write_json

POOL = ["<|im_start|>", "<|im_end|>", "<tool>", "</tool>", "[X]", "<|end|>"]
WORDS = ["user", " hi", "\n", "the assistant", " ", "é日", "hello", "x", "<", "|>", "e\u0301"]
NAMES = ["bos_token", "eos_token", "pad_token", "unk_token", "image_token"]
CORPUS = "user says hi and the assistant says hello to the user in a friendly way\n" * 50
CLASSES = {
    "tokenizer.json": ["PreTrainedTokenizerFast"],
    "bpe": ["GPT2Tokenizer", "Qwen2TokenizerFast", None],
    "sentencepiece bpe": ["LlamaTokenizer", "LlamaTokenizerFast", None],
    "sentencepiece unigram": ["PreTrainedTokenizerFast"],
    "t5": ["T5Tokenizer", "T5TokenizerFast", None],
}
MODEL_TYPES = {
    "tokenizer.json": ["llama"], "bpe": ["gpt2"], "sentencepiece unigram": ["granite"], "t5": ["t5"],
    "sentencepiece bpe": ["llama", "mistral", "phi3", "granite"],
}  # fmt: skip
"""Model types of config.json; some ignore the tokenizer class that a file names."""


@functools.cache
def sentencepiece_model(model_type: str) -> bytes:
    """A small trained model with pieces from the corpus."""
    options: dict[str, Any] = {"unk_id": 2, "bos_id": -1, "eos_id": 1, "pad_id": 0, "vocab_size": 50}
    if model_type != "t5":
        options = {
            "unk_id": 0, "pad_id": -1, "vocab_size": 320, "byte_fallback": True,
            "normalization_rule_name": "identity", "remove_extra_whitespaces": False,
        }  # fmt: skip
    trainer_options = {"model_type": "bpe" if model_type == "sentencepiece bpe" else "unigram"}
    with tempfile.TemporaryDirectory() as folder:
        lines = CORPUS.splitlines()
        return trained_pieces(Path(folder) / "m.model", lines, **trainer_options, **options).read_bytes()


def write_vocabulary(folder: Path, family: str, own: list[dict[str, Any]] = []) -> int:  # noqa: B006
    """Write the file of a vocabulary, a tokenizer.json with `own` added tokens; return its size."""
    if family == "tokenizer.json":
        from tokenizers import AddedToken

        library = library_tokenizer([])
        library.add_tokens([AddedToken(**token) for token in own])
        library.save(str(folder / "tokenizer.json"))
        return library.get_vocab_size()
    if family == "bpe":
        vocab = library_tokenizer(["<|endoftext|>"]).get_vocab()
        write_json(folder, vocab=vocab)
        (folder / "merges.txt").write_text("#version: 0.2\n")
        return len(vocab)
    import sentencepiece

    model = sentencepiece_model(family)
    (folder / ("spiece.model" if family == "t5" else "tokenizer.model")).write_bytes(model)
    library = sentencepiece.SentencePieceProcessor(model_proto=model)
    return library.vocab_size() + (100 if family == "t5" else 0)


@st.composite
def tokens_with_flags(draw: st.DrawFn, contents: list[str]) -> list[dict[str, Any]]:
    def flags() -> dict[str, bool]:
        usual = {name: draw(st.booleans()) for name in ("special", "normalized")}
        return usual | {name: draw(st.integers(0, 4)) == 0 for name in ("lstrip", "rstrip", "single_word")}

    return [{"content": content} | flags() for content in contents]


def named(draw: st.DrawFn, contents: list[str]) -> dict[str, Any]:
    """Some named tokens, as texts or as objects."""
    found: dict[str, Any] = {}
    for name in draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=3)):
        content = draw(st.sampled_from(contents))
        as_object = name != "image_token" and draw(st.integers(0, 3)) == 0
        flags = {"lstrip": False, "normalized": draw(st.booleans()), "rstrip": False, "single_word": False}
        found[name] = {"__type": "AddedToken", "content": content, **flags} if as_object else content
    return found


@st.composite
def folders(draw: st.DrawFn, family: str) -> tuple[dict[str, Any], list[dict[str, Any]], list[str]]:
    """Side files by name with ids counted from the end of the vocabulary, its own tokens, a text in parts."""
    order = draw(st.permutations(POOL))
    n_own = draw(st.integers(0, 3)) if family == "tokenizer.json" else 0
    own = draw(tokens_with_flags(list(order[:n_own])))
    added = list(order[n_own : n_own + draw(st.integers(0, 3))])
    config: dict[str, Any] = {}
    tokenizer_class = draw(st.sampled_from(CLASSES[family]))
    if tokenizer_class is not None:
        config["tokenizer_class"] = tokenizer_class
    if family == "bpe":
        for name in draw(st.sampled_from([[], ["add_prefix_space"], ["add_bos_token"]])):
            config[name] = draw(st.booleans())
    if family == "sentencepiece bpe":
        config |= draw(st.sampled_from([{}, {"legacy": None}, {"legacy": False}, {"legacy": True}]))
        if draw(st.integers(0, 3)) == 0:
            config["add_prefix_space"] = draw(st.booleans())
    files: dict[str, Any] = {"config.json": {"model_type": draw(st.sampled_from(MODEL_TYPES[family]))}}
    if tokenizer_class == "Qwen2TokenizerFast":
        files["config.json"] = {"model_type": "qwen2_moe"}
    if draw(st.booleans()):
        listed = draw(tokens_with_flags(added))
        config["added_tokens_decoder"] = dict(enumerate(listed))
    elif draw(st.booleans()):
        files["added_tokens.json"] = {content: i for i, content in enumerate(added)}
    config |= named(draw, [*POOL, "<|endoftext|>"] if family == "bpe" else POOL)  # which the vocabulary has
    extras = draw(st.lists(st.sampled_from(POOL), unique=True, max_size=2))
    field = draw(st.sampled_from(["additional_special_tokens", "extra_special_tokens", "dict", "none"]))
    if field == "dict" and extras:
        config["extra_special_tokens"] = {f"extra_{i}_token": content for i, content in enumerate(extras)}
    elif field != "none" and extras:
        config[field] = extras
    if draw(st.booleans()):
        files["special_tokens_map.json"] = named(draw, POOL)
        if draw(st.booleans()) and family in ("tokenizer.json", "bpe"):
            files["special_tokens_map.json"]["additional_special_tokens"] = draw(
                st.lists(st.sampled_from(POOL), unique=True, min_size=1, max_size=2)
            )
    if draw(st.integers(0, 5)) > 0 or "legacy" in config:
        files["tokenizer_config.json"] = config
    parts = draw(st.lists(st.sampled_from([*POOL, *WORDS]), max_size=8))
    return files, own, parts


def write_side_files(folder: Path, files: dict[str, Any], n: int) -> None:
    for name, content in files.items():
        if name == "added_tokens.json":
            content = {token: n + i for token, i in content.items()}
        if "added_tokens_decoder" in content:
            listed = content["added_tokens_decoder"].items()
            content = content | {"added_tokens_decoder": {str(n + i): token for i, token in listed}}
        (folder / name).write_text(json.dumps(content))


def check_agreement(family: str, drawn: tuple[dict[str, Any], list[dict[str, Any]], list[str]]) -> None:
    from transformers import AutoTokenizer

    files, own, parts = drawn
    text = "".join(parts)
    if family not in ("tokenizer.json", "bpe"):  # SentencePiece keeps spaces that transformers drops
        text = re.sub(r"(^|[>\]\s]) +", r"\1", text)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_side_files(folder, files, write_vocabulary(folder, family, own))
        theirs = AutoTokenizer.from_pretrained(folder)
        ours = load_tokenizer(folder)
    ids = ours.encode(text, add_bos=False)
    assert ids == theirs.encode(text, add_special_tokens=False)
    if family == "bpe":  # other files do not say whether BOS comes first
        assert ours.encode(text) == theirs.encode(text)
    ends = () if theirs.eos_token_id is None else (theirs.eos_token_id,)
    assert (ours.bos_id, ours.eos_ids) == (theirs.bos_token_id, ends)
    assert ours.n_vocab == len(theirs)
    unknown = {"t5": 2}.get(family, 0) if family.startswith(("t5", "sentencepiece")) else -1
    if unknown not in ids:  # SentencePiece writes a mark for it
        decoded = theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert ours.decode(ids) == decoded
    assert isinstance(ours, ByteTokenizer)
    special = {i for i, token in theirs.added_tokens_decoder.items() if token.special}
    assert special <= {*ours.special_tokens().values(), unknown}


@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.parametrize("family", CLASSES)
def test_folders_are_read_as_by_transformers(family: str) -> None:
    @settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=[*HealthCheck])
    @given(drawn=folders(family))
    def check(drawn: tuple[dict[str, Any], list[dict[str, Any]], list[str]]) -> None:
        check_agreement(family, drawn)

    check()


LLAMA = {"tokenizer_class": "LlamaTokenizer"}


def entry(content: str, **flags: bool) -> dict[str, Any]:
    return {"content": content, "special": True, "normalized": False} | flags


@pytest.mark.parametrize("name", ["add_eos_token", "split_special_tokens"])
def test_a_setting_of_encoding_that_is_not_applied(tmp_path: Path, name: str) -> None:
    write_vocabulary(tmp_path, "tokenizer.json", [entry("<x>")])
    for value in (False, None):
        write_json(tmp_path, tokenizer_config={name: value})
        load_tokenizer(tmp_path)  # without a warning, which is an error in tests
    write_json(tmp_path, tokenizer_config={name: True})
    with pytest.warns(UnusedFieldWarning) as caught:
        load_tokenizer(tmp_path)
    assert [one.message.names for one in caught if isinstance(one.message, UnusedFieldWarning)] == [(name,)]


def test_a_named_token_that_no_file_defines(make_llama: Any) -> None:
    """It gets the next id, as in transformers; a model without this id is refused if the token ends texts."""
    for n_vocab, defined in ((257, True), (256, False)):
        folder = make_llama(vocab_size=n_vocab, bos_token_id=None, eos_token_id=None)
        write_vocabulary(folder, "tokenizer.json")
        write_json(folder, tokenizer_config={"eos_token": "<|im_end|>"})
        assert load_tokenizer(folder).eos_ids == (256,)
        if defined:
            model = specdec.load(folder)
            assert model.eos_ids == (256,) and model.check_ids("a<|im_end|>").tolist()[1:] == [256]
            continue
        with refuses_field(folder / "tokenizer_config.json", "eos_token", TokenizerError):
            specdec.load(folder)
        assert specdec.load(folder, tokenizer=False).eos_ids == ()
        write_json(folder, generation_config={"eos_token_id": 7})
        with pytest.warns(UserWarning, match="257 ids; expected at most 256"):
            model = specdec.load(folder)
        assert model.eos_ids == (7,)  # the model's own configuration counts
        assert len(model.check_ids("abc")) == 3
        with pytest.raises(InputError, match="is 256; expected 0 to 255"):
            model.check_ids("a<|im_end|>")


def test_ids_that_contradict_the_vocabulary(tmp_path: Path) -> None:
    write_vocabulary(tmp_path, "tokenizer.json", [entry("<x>")])
    write_json(tmp_path, tokenizer_config={"added_tokens_decoder": {"300": entry("<x>")}})
    with pytest.warns(UserWarning, match="'<x>' has id 300; expected 256"):
        assert load_tokenizer(tmp_path).encode("<x>") == [256]
    for name, content in (
        ("tokenizer_config", {"added_tokens_decoder": {"300": entry("<y>")}}),
        ("added_tokens", {"<y>": 300}),
    ):
        write_json(tmp_path, **{"tokenizer_config": {}, name: content})
        with pytest.raises(TokenizerError, match=f"{name}.json: token '<y>' has id 300; expected 257"):
            load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "field"),
    [
        ("added_tokens", {"<x>": "256"}, "<x>"),
        ("added_tokens", {"<x>": 256, "<y>": 256}, "<y>"),
        ("special_tokens_map", {"additional_special_tokens": "<x>"}, "extra_special_tokens"),
        ("tokenizer_config", {"extra_special_tokens": [3]}, "extra_special_tokens"),
        ("tokenizer_config", {"eos_token": {"content": "x", "lstrip": 1}}, "x.lstrip"),
        ("tokenizer_config", {"added_tokens_decoder": {"256": "<x>"}}, "added_tokens_decoder"),
        ("tokenizer_config", {"added_tokens_decoder": {"a": {}}}, "added_tokens_decoder"),
        ("tokenizer_config", {"added_tokens_decoder": [1]}, "added_tokens_decoder"),
        ("tokenizer_config", {"tokenizer_class": "LlamaTokenizer", "legacy": "yes"}, "legacy"),
        (
            "tokenizer_config",
            {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": 1},
            "add_prefix_space",
        ),
        ("tokenizer_config", {"add_bos_token": "yes"}, "add_bos_token"),
    ],
)
def test_side_files_that_are_wrong(tmp_path: Path, name: str, content: Any, field: str) -> None:
    write_vocabulary(tmp_path, "sentencepiece bpe")
    write_json(tmp_path, **{name: content})
    with refuses_field(tmp_path / f"{name}.json", field, TokenizerError):
        load_tokenizer(tmp_path)


def test_t5_has_its_sentinels_without_a_tokenizer_json(tmp_path: Path) -> None:
    n = write_vocabulary(tmp_path, "t5")
    write_json(tmp_path, config={"model_type": "t5"})
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("<extra_id_0><extra_id_99>") == [n - 1, n - 100] and tokenizer.n_vocab == n
    write_json(tmp_path, tokenizer_config={"extra_ids": 0})
    assert load_tokenizer(tmp_path).n_vocab == n - 100
    write_json(tmp_path, tokenizer_config={"extra_ids": -1})
    with refuses_field(tmp_path / "tokenizer_config.json", "extra_ids", TokenizerError):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("legacy", [False, True])
def test_added_tokens_survive_conversion(make_llama: Any, tmp_path: Path, legacy: bool) -> None:
    """To a packed file, to GGUF and back to a folder; a space that GGUF files lack is warned of."""
    folder = make_llama(vocab_size=400, bos_token_id=1, eos_token_id=None)
    n = write_vocabulary(folder, "sentencepiece bpe")
    settings = {"tokenizer_class": "LlamaTokenizer", "legacy": legacy, "eos_token": "<|im_end|>"}
    added = {str(n): entry("<|im_end|>"), str(n + 1): entry("<tool>", special=False)}
    write_json(folder, tokenizer_config=settings | {"added_tokens_decoder": added})
    text = "user says<|im_end|>hello<tool>hi"
    ours = load_tokenizer(folder)
    specdec.convert(folder, tmp_path / "packed.specdec")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        specdec.convert(folder, tmp_path / "model.gguf", "F32")
    assert bool(caught) != legacy
    specdec.convert(tmp_path / "model.gguf", tmp_path / "back")
    for name in ("packed.specdec", "model.gguf", "back"):
        model = specdec.load(tmp_path / name)
        tokenizer = model.tokenizer
        assert tokenizer is not None and model.eos_ids == ours.eos_ids == (n,)
        assert tokenizer.encode("<|im_end|><tool>", add_bos=False) == [n, n + 1]
        assert tokenizer.decode([n, n + 1]) == "<tool>"
        ids = [i for i in tokenizer.encode(text) if i >= n]
        assert ids == [n, n + 1]
        assert (tokenizer.encode(text) == ours.encode(text)) == (legacy or name == "packed.specdec")
