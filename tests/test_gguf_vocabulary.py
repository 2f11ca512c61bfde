"""Vocabularies of GGUF files against the libraries' own tokenizers, from the same files."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter

from refusals import refuses_field
from specdec.errors import TokenizerError
from specdec.tokenizer import load_tokenizer
from tensor_files import GGUF_WORDS, cut_into_words, gguf_metadata, gguf_tokenizer
from tokenizer_files import published_folder

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

TEXTS = [
    "Hello world", "  two  spaces and\ttabs\n\nnew lines \r\n", "it's DON'T we'LL 1234567 12 3.14",
    "Ünïcödé ß 東京タワー 한국어 العربية हिन्दी", "emoji 😀👩‍👩‍👧 🇫🇷",
    "def f(x):\n    return x**2 # comment", "", "a", "\n", "   ", "trailing   ", "“quotes” – dash… £5",
]  # fmt: skip


def written(path: Path, model: str, tokens: list[str], **fields: Any) -> Path:
    """Write a file with only a vocabulary."""
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    writer.add_token_list(tokens)
    for name, value in fields.items():
        getattr(writer, f"add_{name}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def llama2(path: Path, shared: Path) -> tuple[Path, Any]:
    expected: Any = load_tokenizer(shared / "data" / "tokenizers" / "llama2_tokenizer.model")
    library = expected.library
    n = library.vocab_size()
    token_types = [BYTE if library.is_byte(i) else NORMAL for i in range(n)]
    token_types[:3] = [UNKNOWN, CONTROL, CONTROL]
    path = written(
        path, "llama", [library.id_to_piece(i) for i in range(n)], token_types=token_types,
        token_scores=[library.get_score(i) for i in range(n)], bos_token_id=1, eos_token_id=2, unk_token_id=0,
    )  # fmt: skip
    return path, expected


def byte_level(family: str, pre: str) -> Callable[[Path, Path], tuple[Path, Any]]:
    def make(path: Path, shared: Path) -> tuple[Path, Any]:
        folder = published_folder(family, shared, path.parent / "folder")
        vocab = json.loads((folder / "vocab.json").read_text())
        merges = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
        marks = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"][: 1 if family == "GPT-2" else 3]
        tokens = list(dict.fromkeys([*sorted(vocab, key=vocab.__getitem__), *marks]))
        file = written(
            path, "gpt2", tokens, tokenizer_pre=pre, eos_token_id=tokens.index("<|endoftext|>"),
            token_types=[CONTROL if token in marks else NORMAL for token in tokens],
            token_merges=[merge for merge in merges if merge and not merge.startswith("#version")],
        )  # fmt: skip
        return file, load_tokenizer(folder)

    return make


def t5(path: Path, shared: Path) -> tuple[Path, Any]:
    file = shared / "data" / "tokenizers" / "t5-small.tokenizer.json"
    values = json.loads(file.read_text())
    pieces = values["model"]["vocab"]
    special = {token["id"]: token for token in values["added_tokens"]}
    charsmap = base64.b64decode(values["normalizer"]["precompiled_charsmap"])
    token_types = [
        UNKNOWN if i == values["model"]["unk_id"] else CONTROL if i in special else NORMAL
        for i in range(len(pieces))
    ]
    path = written(
        path, "t5", [piece for piece, _ in pieces], token_scores=[score for _, score in pieces],
        token_types=token_types, precompiled_charsmap=charsmap, eos_token_id=1,
        unk_token_id=values["model"]["unk_id"], add_space_prefix=True, remove_extra_whitespaces=True,
    )  # fmt: skip
    return path, load_tokenizer(file)


@pytest.mark.oracle
def test_ids_and_texts_of_gemma_4_are_those_of_transformers(tmp_path: Path, shared: Path) -> None:
    """For merges learned from stories, with all bytes as a fallback."""
    import tokenizers
    import transformers

    story = (shared / "data" / "tinystories" / "tiny.txt").read_text()[:60_000]
    story = story.replace("<|endoftext|>", "")  # a control token in every GGUF file
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    learner = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>", byte_fallback=True))
    learner.normalizer = tokenizers.normalizers.Replace(" ", "▁")
    learner.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("\n+|▁*[^▁\n]*"), "isolated")
    of_bytes = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=1000, special_tokens=[*special, *of_bytes])
    learner.train_from_iterator([story, "\n\n\n " * 50], trainer)
    model = json.loads(learner.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    merges = [tuple(merge) for merge in model["merges"]]
    expected = transformers.GemmaTokenizer(vocab=model["vocab"], merges=merges)
    token_types = [BYTE if token in of_bytes else NORMAL for token in tokens]
    token_types[:5] = [CONTROL, CONTROL, CONTROL, UNKNOWN, CONTROL]
    file = written(
        tmp_path / "vocabulary.gguf", "gemma4", tokens, token_types=token_types, bos_token_id=2,
        eos_token_id=1, unk_token_id=3, token_merges=[" ".join(merge) for merge in merges],
    )  # fmt: skip
    found, _ = gguf_tokenizer(file)
    assert found.encode("a", add_bos=True)[0] == 2
    for text in [*TEXTS, story[:5000]]:
        ids = expected.encode(text, add_special_tokens=False)
        assert found.encode(text, add_bos=False) == ids, text
        assert found.decode(ids) == expected.decode(ids)


@pytest.mark.parametrize(
    "model_type", ["llama2", "gpt2", pytest.param("qwen2.5", marks=pytest.mark.slow), "t5"]
)
def test_ids_and_texts_are_those_of_the_library(tmp_path: Path, shared: Path, model_type: str) -> None:
    of_bpe = {"gpt2": byte_level("GPT-2", "gpt-2"), "qwen2.5": byte_level("Qwen2.5", "qwen2")}
    make = of_bpe | {"llama2": llama2, "t5": t5}
    file, expected = make[model_type](tmp_path / "vocabulary.gguf", shared)
    found, _ = gguf_tokenizer(file)
    texts = [*TEXTS, (shared / "data" / "tinystories" / "tiny.txt").read_text()[:20_000]]
    if model_type == "t5":  # transformers' own file drops spaces of other lengths than the model's
        texts = [text for text in texts if "  " not in text and "\n" not in text and text.strip() == text]
    for text in texts:
        ids = expected.encode(text, add_bos=False)
        assert found.encode(text, add_bos=False) == ids, text
        if not (model_type == "t5" and 2 in ids):  # SentencePiece writes a mark for unknown characters
            assert found.decode(ids) == expected.decode(ids)
    assert found.encode("a", add_bos=True)[0] == 1 if model_type == "llama2" else True


def test_the_reader_of_the_package_finds_the_same(tmp_path: Path) -> None:
    lists = {"token_types": [3, 1, 4], "token_scores": [0.0, -1.5, 2.0], "token_merges": ["a b", "ä c"]}
    rest = {"bos_token_id": 2, "add_bos_token": True, "chat_template": "{{ x }}", "tokenizer_pre": "gpt-2"}
    file = written(tmp_path / "vocabulary.gguf", "gpt2", ["<s>", "ä", "\n"], **lists, **rest)
    fields = GGUFReader(file).fields
    expected = {key: field.contents() for key, field in fields.items() if not key.startswith("GGUF.")}
    found = gguf_metadata(file)
    assert found == expected and list(found) == list(expected) and len(found) > 8


def test_control_tokens_are_looked_for_in_a_text(tmp_path: Path, shared: Path) -> None:
    file, expected = llama2(tmp_path / "vocabulary.gguf", shared)
    found, special = gguf_tokenizer(file)
    assert special == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    encode = expected.library.encode
    wanted = [1, *encode("[INST] hi"), 2, *encode(" there")]
    assert found.encode("<s>[INST] hi</s> there", add_bos=False) == wanted


def test_marks_of_the_type_of_text_are_control_tokens(tmp_path: Path) -> None:
    """Named EOS tokens and known end-of-turn tokens become control tokens; plain words do not."""
    pieces = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<stop>", "<b>", "a", "b", "<", ">", "▁"]
    token_types = [UNKNOWN, CONTROL, CONTROL, USER_DEFINED, NORMAL, NORMAL, NORMAL, *[NORMAL] * 5]
    scores = [0.0, 0.0, 0.0, *[-float(i) for i in range(3, len(pieces))]]
    options: dict[str, Any] = {"token_scores": scores, "token_types": token_types, "add_space_prefix": False}
    for named, ends in ({"eos_token_id": 5, "bos_token_id": 7}, (5,)), ({"eot_token_id": 4}, (4,)):
        file = written(tmp_path / "vocabulary.gguf", "llama", pieces, **options, **named)
        tokenizer, _ = gguf_tokenizer(file)
        assert tokenizer.eos_ids == ends
        assert tokenizer.encode("<|im_start|>a<|im_end|>b", add_bos=False) == [3, 7, 4, 8]
        assert tokenizer.decode([3, 7, 4, 8]) == "<|im_start|>ab"
        special = tokenizer.special_tokens()
        assert ("<stop>" in special) == (5 in ends) and "a" not in special and "<b>" not in special
    vocab = {char: i for i, char in enumerate(["a", "<", "|", "e", "n", "d", ">", "<|end|>", "ae"])}
    file = written(tmp_path / "b.gguf", "gpt2", list(vocab), tokenizer_pre="gpt-2", token_merges=["a e"])
    assert gguf_tokenizer(file)[0].encode("a<|end|>a") == [0, 7, 0]


def test_thousands_of_control_tokens_are_found_as_by_a_search_for_the_longest(tmp_path: Path) -> None:
    marks = [f"<unused{i}>" for i in range(5000)] + ["<", "<un", "<unused1", "ü<"]
    pieces = ["<unk>", *marks, "▁", *"unsed<>0123456789xü"]
    token_types = [UNKNOWN, *[CONTROL] * len(marks), *[NORMAL] * (len(pieces) - len(marks) - 1)]
    ids = {piece: i for i, piece in enumerate(pieces)}
    pieces[ids["<"]] = "<<"  # a text may consist of it alone
    file = written(
        tmp_path / "vocabulary.gguf", "llama", pieces, token_types=token_types, add_space_prefix=False,
        token_scores=[-float(i) for i in range(len(pieces))],
    )  # fmt: skip
    found, _ = gguf_tokenizer(file)
    table = {piece for i, piece in enumerate(pieces) if token_types[i] == CONTROL}
    rng = np.random.default_rng(2)
    for _ in range(200):
        parts = rng.choice(["<", "<unused", "<unused1", ">", "1", "9", "x", "ü", "<unused42>"], 12)
        text, expected, rest = "".join(parts), [], "".join(parts)
        while rest:
            expected.append(next((rest[:n] for n in range(len(rest), 0, -1) if rest[:n] in table), rest[0]))
            rest = rest[len(expected[-1]) :]
        assert [pieces[i] for i in found.encode(text, add_bos=False)] == expected, text


def cut(text: str, steps: tuple[str, ...]) -> list[str]:
    """Split text by successive expressions, as llama.cpp does, with another regex library."""
    import regex

    names = {
        "digits": r"\p{N}",
        "bytes": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    }
    pieces = [text]
    for step in steps:
        found = []
        for piece in pieces:
            at = 0
            for match in regex.finditer(names.get(step, step), piece):
                found += [piece[at : match.start()], match[0]]
                at = match.end()
            found.append(piece[at:])
        pieces = [piece for piece in found if piece]
    return pieces


@pytest.mark.oracle
@pytest.mark.parametrize("pre", sorted(GGUF_WORDS))
def test_texts_are_cut_into_words_as_the_expressions_of_llama_cpp_say(pre: str) -> None:
    odd = ["1234567890 12 x12,345.6", "«Ёлки» ÅÄÖ ǅ ﬁ Ａｂ！？ ‘x’ 、。", "a\r\nb\n\n c  \t d "]
    for text in TEXTS + odd:
        assert cut_into_words(text, pre) == cut(text, GGUF_WORDS[pre])


@pytest.mark.parametrize(
    ("pre", "text", "words"),
    [
        ("deepseek-llm", "Hi, Ünï 42 日!\n", ["Hi", ",", " Ü", "n", "ï", " ", "42", " ", "日", "!", "\n"]),
        ("seed-coder", "x12 (a)\n\n", ["x", "1", "2", " (", "a", ")", "\n\n"]),
        ("superbpe", "a b1234567 c", ["a b", "1", "234", "567", " c"]),
        ("tiny_aya", "x 1234567 Ab", ["x", " ", "1", "234", "567", " Ab"]),
        ("kormo", "it's 123", ["it", "'s", " ", "1", "2", "3"]),
        ("a.x-4.0", "it's 123", ["it", "'s", " 123"]),
        ("midm-2.0", "IT'S 1234", ["IT", "'S", " ", "123", "4"]),
        ("lfm2", "ab 1234", ["ab", " ", "123", "4"]),
        ("falcon-h1", "ab 1234", ["ab", " ", "123", "4"]),
    ],
)
def test_words_of_pre_tokenizers(pre: str, text: str, words: list[str]) -> None:
    assert cut_into_words(text, pre) == words


LISTS: dict[str, Any] = {"token_scores": [0.0] * 3, "token_types": [UNKNOWN, NORMAL, NORMAL]}


@pytest.mark.parametrize(
    ("model", "fields", "field"),
    [
        ("bert", {}, "model"),
        ("llama", {"token_types": [1] * 3}, "scores"),
        ("llama", LISTS | {"token_scores": [0.0]}, "scores"),
        ("llama", LISTS | {"token_types": [1, 2]}, "token_type"),
        ("llama", LISTS | {"token_types": [1, 2, 9]}, "token_type"),
        ("gpt2", {"tokenizer_pre": "new"}, "pre"),
        ("gpt2", {"tokenizer_pre": "gpt-2"}, "merges"),
        ("gpt2", {"tokenizer_pre": "gpt-2", "token_merges": ["ab"]}, "merges"),
    ],
)
def test_bad_vocabularies(tmp_path: Path, model: str, fields: dict[str, Any], field: str) -> None:
    file = written(tmp_path / "vocabulary.gguf", model, ["<unk>", "a", "b"], **fields)
    with refuses_field(file, f"tokenizer.ggml.{field}", TokenizerError):
        gguf_tokenizer(file)
