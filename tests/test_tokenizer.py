"""Tokenizers against published ids, against their libraries, and against each other."""

from __future__ import annotations

import gzip
import itertools
import json
import random
import re
import struct
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refusals import refuses, refuses_field
from specdec.errors import MissingPackageError, TokenizerError, VocabularyMismatchError
from specdec.tokenizer import (
    StreamDecoder,
    Strip,
    Tokenizer,
    check_same_vocabulary,
    load_tokenizer,
    resolve_tokenizer,
)
from tokenizer_files import PUBLISHED, published_folder, word_level, write_json
from worlds.folders import write_llama2c_tokenizer

TEXTS = [
    "", " ", "  two  spaces ", "Once upon a time", "naïve café, 日本語, Ελληνικά",
    "👩‍👩‍👧 and 🏳️‍🌈\n\ttabs\r\n", "<s> </s> <|endoftext|> <0x0A>", "\x00\x7f\u200b\ufeff\ufffd",
]  # fmt: skip


def published_cases(shared: Path, name: str) -> list[tuple[str, list[int]]]:
    """Return (text, ids) of llama.cpp's vocabulary tests."""
    folder = shared / "data" / "tokenizers"
    texts = (folder / f"{name}.inp").read_bytes().decode("utf-8").split("\n__ggml_vocab_test__\n")
    lines = (folder / f"{name}.out").read_text().split("\n")
    assert texts[-1] == lines[-1] == ""  # both files end with their separator
    cases = [(text, [*map(int, line.split())]) for text, line in zip(texts[:-1], lines[:-1], strict=True)]
    assert len(cases) == 46
    return cases


LLAMA_FILES = ["llama2_tokenizer.model", "llama2_tokenizer.bin"]


@pytest.mark.parametrize("file", ["gpt2_vocab.json", *LLAMA_FILES])
def test_published_ids(shared, file):
    tokenizer = load_tokenizer(shared / "data" / "tokenizers" / file)
    name = "gpt-2" if file == "gpt2_vocab.json" else "llama-spm"
    for text, ids in published_cases(shared, f"ggml-vocab-{name}.gguf"):
        assert tokenizer.encode(text, add_bos=False) == ids, text
        assert tokenizer.decode(ids) == text


def test_bos(shared):
    folder = shared / "data" / "tokenizers"
    for file in LLAMA_FILES:
        tokenizer = load_tokenizer(folder / file)
        assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.n_vocab) == (1, (2,), 32000)
        assert tokenizer.encode("Hello world") == [1, 15043, 3186]
        assert tokenizer.decode([1, 15043, 3186, 2]) == "Hello world"
        ids = tokenizer.encode("Hello big world")
        assert tokenizer.decode(ids[:2]) + tokenizer.decode(ids[2:], continuing=True) == "Hello big world"
        assert tokenizer.decode(ids[2:]) == "big world"
    gpt2 = load_tokenizer(folder / "gpt2_vocab.json")
    assert (gpt2.bos_id, gpt2.eos_ids, gpt2.n_vocab) == (50256, (50256,), 50257)
    assert gpt2.encode("Hello world") == [15496, 995]  # trained without
    assert gpt2.encode("a<|endoftext|>b") == [64, 50256, 65]
    assert gpt2.decode([64, 50256, 65]) == "ab"


def test_formats_of_one_vocabulary_agree(shared):
    """SentencePiece's encoder and llama2.c's, on stories and token by token."""
    tokenizers, models = shared / "data" / "tokenizers", shared / "models"
    text = (shared / "data" / "tinystories" / "tiny.txt").read_text()[:60_000]
    one, two = (load_tokenizer(tokenizers / file) for file in LLAMA_FILES)
    assert one.vocabulary() == two.vocabulary() and one.fingerprint() == two.fingerprint()
    assert one.encode(text) == two.encode(text)
    one, two = (load_tokenizer(models / "chars105" / f"tok105.{end}") for end in ("model", "bin"))
    assert one.fingerprint() == two.fingerprint()
    single_spaced = re.sub(" +", " ", text)  # this file's own normalizer drops repeats
    for story in single_spaced.split("<|endoftext|>"):
        assert one.encode(story.strip()) == two.encode(story.strip())
    assert one.encode("a日本b") == two.encode("a日本b")  # unknown characters: one <unk> for the run


def random_ids(tokenizer: Tokenizer, rng: random.Random) -> list[int]:
    """Return ids with many single bytes, so that characters are split and broken."""
    byte_ids = [i for i, token in enumerate(tokenizer.vocabulary()) if token is not None and len(token) == 1]
    pools = byte_ids, range(tokenizer.n_vocab)
    return [rng.choice(pools[rng.random() < 0.5]) for _ in range(rng.randrange(0, 14))]


def streamed(stream: StreamDecoder, ids: list[int], steps: Iterator[int]) -> list[str]:
    """Return the pieces of a text whose ids arrive in steps, and the rest."""
    pieces, at = [], 0
    while at < len(ids):
        n = next(steps)
        pieces.append(stream.feed(ids[at : at + n]))
        at += n
    return [*pieces, stream.finish()]


def check_streaming(tokenizer: Tokenizer, ids: list[int], rng: random.Random, **options: bool) -> str:
    """Check that streamed pieces add up to the whole text, and return it."""
    pieces = streamed(StreamDecoder(tokenizer, **options), ids, iter(lambda: rng.randrange(1, 4), 0))
    assert "".join(pieces) == tokenizer.decode(ids, **options), ids
    return "".join(pieces)


def check_decoding(tokenizer: Tokenizer, n: int, less: range = range(0)) -> None:
    """Compare texts of random ids, except `less`, with the library's, ignoring its number of U+FFFD."""
    rng, n_compared = random.Random(2), 0
    for _ in range(n):
        check_streaming(tokenizer, random_ids(tokenizer, rng), rng, continuing=rng.random() < 0.5)
        ids = [i for i in random_ids(tokenizer, rng) if i not in less]
        text = check_streaming(tokenizer, ids, rng)
        if "\ufffd" not in text and hasattr(tokenizer, "library"):
            assert text == tokenizer.library.decode(ids), ids
            n_compared += 1
    assert n_compared > n / 15 or not hasattr(tokenizer, "library")


@pytest.mark.parametrize("file", ["gpt2_vocab.json", *LLAMA_FILES])
def test_streaming_adds_up_to_decode(shared, file):
    tokenizer = load_tokenizer(shared / "data" / "tokenizers" / file)
    check_decoding(tokenizer, 60)
    rng = random.Random(1)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        for start in range(len(ids)):
            check_streaming(tokenizer, ids[start:], rng)
        # A character is never split: without broken bytes no piece has U+FFFD.
        if "\ufffd" not in text:
            stream = StreamDecoder(tokenizer)
            assert not any("\ufffd" in stream.feed([i]) for i in ids) and stream.finish() == ""


# ------------------------------------------------------------------ against transformers, on a megabyte


def mixed_texts(shared: Path) -> list[str]:
    """Return prose, drama, code, JSON mathematics and Japanese: a megabyte ending in odd characters."""
    data = shared / "data"
    with gzip.open(data / "humaneval" / "HumanEval.jsonl.gz", "rt", encoding="utf-8") as file:
        tasks = [json.loads(line) for line in file]
    with tarfile.open(data / "enja.tar.xz") as archive:
        japanese = [archive.extractfile(f"./{part}.ja").read().decode("utf-8") for part in ("dev", "test")]
    texts = [
        (data / "wikitext2" / "wiki.test.txt").read_text(encoding="utf-8")[:450_000],
        (data / "shakespeare" / "tinyshakespeare.txt").read_text(encoding="utf-8")[:120_000],
        "".join(task["prompt"] + task["canonical_solution"] + task["test"] for task in tasks),
        (data / "gsm8k" / "test.jsonl").read_text(encoding="utf-8")[:220_000],
        *japanese,
        "\n".join(TEXTS[:-1]),
    ]
    assert sum(len(text.encode("utf-8")) for text in texts) > 1_000_000
    return texts


@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.parametrize("family", PUBLISHED)
def test_ids_equal_those_of_transformers(shared, tmp_path, family):
    from transformers import GPT2Tokenizer, PreTrainedTokenizerFast, Qwen2Tokenizer

    folder, texts = published_folder(family, shared, tmp_path / family), mixed_texts(shared)
    ours = load_tokenizer(folder)
    if family == "Llama 2":
        # transformers 5 orders the merges of a SentencePiece file in a way of its own: "a  b" is other ids
        # than SentencePiece gives. Phi-3's tokenizer.json has Llama 2's vocabulary and SentencePiece's order;
        # it reads names such as <unk> in a text as special tokens, which SentencePiece does not.
        folder = published_folder("Phi-3", shared, tmp_path / "Phi-3")
        texts = [text.replace("<", "(") for text in texts]
    if family in ("GPT-2", "Qwen2.5"):
        theirs = {"GPT-2": GPT2Tokenizer, "Qwen2.5": Qwen2Tokenizer}[family].from_pretrained(folder)
    else:
        theirs = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    for text in texts:
        ids = ours.encode(text, add_bos=False)
        assert ids == theirs.encode(text, add_special_tokens=False)
        for piece in (ids[:5000], ids[-300:]):
            decoded = theirs.decode(piece, skip_special_tokens=True, clean_up_tokenization_spaces=False)
            assert ours.decode(piece).strip("\ufffd") == decoded.strip("\ufffd")


@pytest.fixture(scope="module")
def families(shared, tmp_path_factory):
    folder = tmp_path_factory.mktemp("families")
    return {name: load_tokenizer(published_folder(name, shared, folder / name)) for name in PUBLISHED}


@pytest.mark.parametrize("family", PUBLISHED)
def test_others_run_while_a_long_text_is_encoded(families, family):
    """Another thread runs only if the library releases the GIL."""
    text, n, done = "Once upon a time, naïve 🙂 " * 4000, 0, threading.Event()

    def count():
        nonlocal n
        while not done.is_set():
            n += 1
            time.sleep(0)

    interval, other = sys.getswitchinterval(), threading.Thread(target=count)
    other.start()
    try:
        sys.setswitchinterval(60.0)
        time.sleep(0.01)
        before = n
        families[family].encode(text)
        assert n > before
    finally:
        sys.setswitchinterval(interval)
        done.set()
        other.join()


@settings(max_examples=75, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=40), cuts=st.lists(st.integers(1, 4), min_size=1, max_size=8))
def test_streaming_never_splits_a_character(families, text, cuts):
    """For any text and any split of its ids, pieces add up and end between characters."""
    for tokenizer in families.values():
        ids = tokenizer.encode(text, add_bos=False)
        pieces = streamed(StreamDecoder(tokenizer), ids, itertools.cycle(cuts))
        assert pieces[-1] == "" and "".join(pieces) == tokenizer.decode(ids)
        assert sum(piece.count("\ufffd") for piece in pieces) <= text.count("\ufffd")


@pytest.mark.parametrize(("name", "file"), [(3, "tokenizer_config.json"), ("CamembertTokenizer", ".")])
def test_bad_classes_of_bpe_files(tmp_path, name, file):
    write_json(tmp_path, vocab={"a": 0}, tokenizer_config={"tokenizer_class": name})
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    with refuses_field(tmp_path / file, "tokenizer_class", TokenizerError):
        load_tokenizer(tmp_path)


# -------------------------------------------------------------------------------------- tokenizer.json


def llama_json(*, decoder: str = "sequence") -> str:
    """Return a Llama-like tokenizer.json: BPE with byte fallback, "▁" for spaces, BOS by template."""
    from tokenizers import AddedToken, Regex, decoders, models, normalizers, processors
    from tokenizers import Tokenizer as Library

    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2, **{f"<0x{byte:02X}>": 3 + byte for byte in range(256)}}
    for token in ("▁", "a", "b", "c", "▁a", "ab", "▁ab", "é", "▁▁"):
        vocab[token] = len(vocab)
    merges = [("▁", "a"), ("a", "b"), ("▁a", "b"), ("▁", "▁")]
    tokenizer = Library(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = {
        "sequence": decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        ),
        "metaspace": decoders.Metaspace(),
        "never": decoders.Metaspace(prepend_scheme="never"),
        "wordpiece": decoders.WordPiece(),
        "strip first": decoders.Sequence([decoders.Strip(" ", 1, 0), decoders.Fuse()]),
        "regex": decoders.Sequence([decoders.Replace(Regex("x+"), " "), decoders.Fuse()]),
    }[decoder]
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in ("<unk>", "<s>", "</s>")])
    tokenizer.add_tokens(["plain added ▁"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=9)
    return tokenizer.to_str()


@pytest.mark.parametrize(
    ("decoder", "strip"),
    [("sequence", Strip.ONE_SPACE), ("metaspace", Strip.SPACES_OF_FIRST_TOKEN), ("never", Strip.NOTHING)],
)
def test_llama_json(tmp_path, decoder, strip):
    file = tmp_path / "tokenizer.json"
    file.write_text(llama_json(decoder=decoder))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.strip is strip
    assert isinstance(tokenizer, Tokenizer)
    assert (tokenizer.bos_id, tokenizer.adds_bos) == (1, True)
    ids = tokenizer.encode("ab ca ab bé")  # longer than the truncation that the file asks for
    assert ids[0] == 1 and ids[1:] == tokenizer.encode("ab ca ab bé", add_bos=False) and len(ids) == 9
    # Metaspace alone shows byte tokens by their names
    check_decoding(tokenizer, 1500, range(0) if decoder == "sequence" else range(3, 259))


def test_json_without_decoder(tmp_path):
    """The library joins words by spaces, and decodes an arbitrary one of two tokens with one id."""
    vocab = {"the": 0, "sat": 2, **{f"cat{i}": 1 for i in range(20)}}
    model = {"type": "WordLevel", "vocab": vocab, "unk_token": "the"}
    write_json(tmp_path, tokenizer=word_level(model=model, pre_tokenizer={"type": "Whitespace"}))
    for _ in range(3):
        tokenizer = load_tokenizer(tmp_path)
        text = f"the {tokenizer.library.id_to_token(1)} sat"
        assert tokenizer.encode("the cat7 sat") == [0, 1, 2]
        assert tokenizer.decode([0, 1, 2]) == tokenizer.library.decode([0, 1, 2]) == text
        assert tokenizer.decode([0]) + tokenizer.decode([1, 2], continuing=True) == text


@pytest.mark.parametrize("decoder", ["wordpiece", "strip first", "regex"])
def test_decoder_that_is_not_bytes(tmp_path, decoder):
    (tmp_path / "tokenizer.json").write_text(llama_json(decoder=decoder))
    with refuses_field(tmp_path / "tokenizer.json", "decoder", TokenizerError):
        load_tokenizer(tmp_path)


def test_settings_and_template_decide_about_bos(tmp_path):
    from tokenizers import Tokenizer as Library
    from tokenizers import processors

    (tmp_path / "tokenizer.json").write_text(llama_json())
    write_json(tmp_path, tokenizer_config={"add_bos_token": False, "eos_token": "</s>"})
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.eos_ids == (2,) and not tokenizer.adds_bos
    assert tokenizer.encode("a") == tokenizer.encode("a", add_bos=False)
    (tmp_path / "tokenizer_config.json").unlink()
    library = Library.from_str(llama_json())
    for template, ids, adds in (("$A </s>", [263], False), ("</s> $A", [2, 263], True)):
        names = [("<s>", 1), ("</s>", 2)]
        library.post_processor = processors.TemplateProcessing(single=template, special_tokens=names)
        library.save(str(tmp_path / "tokenizer.json"))
        tokenizer = load_tokenizer(tmp_path, bos_id=1)
        assert (tokenizer.encode("a"), tokenizer.adds_bos) == (ids, adds)
        assert tokenizer.bos_id == (2 if adds else 1)


# ---------------------------------------------------------------------------------- llama2.c's encoder


def plain_llama2c_encode(tokens: list[tuple[bytes, float]], text: str) -> list[int]:
    """Encode as llama2.c is written: scan all pairs, merge the best, repeat."""
    names = [token for token, _ in tokens]
    ids = []
    for char in " " + text if text else "":
        piece = char.encode()
        ids.extend([names.index(piece)] if piece in names else [3 + byte for byte in piece])
    while True:
        best = None
        for i in range(len(ids) - 1):
            pair = names[ids[i]] + names[ids[i + 1]]
            if pair in names and (best is None or tokens[names.index(pair)][1] > best[0]):
                best = (tokens[names.index(pair)][1], i, names.index(pair))
        if best is None:
            return ids
        ids[best[1] : best[1] + 2] = [best[2]]


def test_llama2c_encoder_equals_the_plain_one(tmp_path):
    rng = random.Random(4)
    for trial in range(20):
        tokens = [(b"<unk>", 0.0), (b"\n<s>\n", 0.0), (b"\n</s>\n", 0.0)]
        tokens += [(b"<0x%02X>" % byte, 0.0) for byte in range(256)]
        words = {bytes(rng.choices(b"ab ", k=rng.randrange(2, 6))) for _ in range(30)}
        # Few scores, so that ties decide.
        tokens += [(word, float(rng.randrange(4))) for word in sorted(words | {b"ab", b"ba", b" a", b"aa"})]
        tokens += [(letter, -9.0) for letter in (b"a", b"b", b" ")]
        tokenizer = load_tokenizer(write_llama2c_tokenizer(tmp_path / f"{trial}.bin", tokens))
        for _ in range(30):
            text = "".join(rng.choices("ab é", weights=[5, 5, 2, 1], k=rng.randrange(0, 25)))
            assert tokenizer.encode(text, add_bos=False) == plain_llama2c_encode(tokens, text), text
            assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens_are_not_text(shared):
    tokenizer = load_tokenizer(shared / "data" / "tokenizers" / "llama2_tokenizer.bin")
    for text in ("<s>", "\n<s>\n", "<0x41>", "<unk>"):
        ids = tokenizer.encode(text, add_bos=False)
        assert not {0, 1, 2} & set(ids) and tokenizer.decode(ids) == text


GOOD = [(b"<unk>", 0.0), (b"\n<s>\n", 0.0), (b"\n</s>\n", 0.0), (b"a", -1.0)]


def test_bad_llama2c_files(tmp_path):
    path = write_llama2c_tokenizer(tmp_path / "tok.bin", GOOD)
    content = path.read_bytes()
    assert load_tokenizer(path).n_vocab == 4
    cases = [
        (b"", "has 0 bytes"),
        (content[:7], "ends inside token 0"),
        (content[:-1], "token 3 has length 1; expected 0 to 6.* and at most the 0 bytes"),
        (content[:4], "has 0 tokens; expected at least <unk>"),
        (content[:8] + struct.pack("<i", -5) + content[12:], "token 0 has length -5"),
        (content[:8] + struct.pack("<i", 7) + content[12:], "token 0 has length 7; expected 0 to 6"),
        (content[:4] + struct.pack("<f", float("nan")) + content[8:], "token 0 has the score NaN"),
    ]
    for wrong, message in cases:
        path.write_bytes(wrong)
        with pytest.raises(TokenizerError, match=message) as caught:
            load_tokenizer(path)
        assert str(path) in str(caught.value)


# ------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("files", "file", "message"),
    [
        ({"tokenizer.json": "{"}, "tokenizer.json", "not valid JSON"),
        ({"tokenizer.json": '{"model": {}}'}, "tokenizer.json", "that `tokenizers` can read"),
        ({"tokenizer.json": "{}"}, "tokenizer.json", "expected a tokenizer.json, or a vocab.json"),
        ({"tokenizer.model": "nonsense"}, "tokenizer.model", "not a SentencePiece model"),
        ({"tokenizer.model": ""}, "tokenizer.model", "SentencePiece model"),
        ({"vocab.json": '{"a": 0}'}, "vocab.json", "expected a tokenizer.json"),
        ({"vocab.json": '{"a": 0}', "merges.txt": "x y\n"}, "", "vocab.json and merges.txt: not a BPE"),
        ({"words.txt": "a b c"}, "words.txt", "expected a folder, or a .json, .model or .bin"),
        ({}, "", "has no tokenizer; expected tokenizer.json"),
        ({}, "tok.model", "tok.model: no such file"),
    ],
    ids=range(10),
)
def test_bad_files(tmp_path, files, file, message):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(TokenizerError) as caught:
        load_tokenizer(tmp_path / file)
    assert str(tmp_path / file) in str(caught.value) and message in str(caught.value)
    assert resolve_tokenizer(False, tmp_path) is None


def test_ids_far_beyond_the_number_of_tokens(tmp_path):
    """A table up to the highest id would cost far more than the file's few bytes."""
    file = tmp_path / "tokenizer.json"
    for last, fits in ((10**6, True), (2 * 10**6, False), (2**32 - 1, False)):
        model = {"type": "WordLevel", "vocab": {"a": 0, "b": last}, "unk_token": "a"}
        write_json(tmp_path, tokenizer=word_level(model=model))
        if fits:
            assert load_tokenizer(file).n_vocab == last + 1
        else:
            with pytest.raises(TokenizerError, match=rf"tokenizer\.json: token 'b' has id {last}; expected"):
                load_tokenizer(file)


DOUBLING = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
TEMPLATE = {
    "type": "TemplateProcessing",
    "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 2,
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {},
}
BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": False}


@pytest.mark.parametrize(
    ("part", "steps"),
    [
        ("decoder", {"type": "Sequence", "decoders": [*[DOUBLING] * 27, {"type": "Fuse"}]}),
        ("decoder", {"type": "Sequence", "decoders": [DOUBLING] * 65}),
        ("normalizer", {"type": "Sequence", "normalizers": [DOUBLING] * 12}),
        ("normalizer", {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "a" * 2000}]}),
        ("normalizer", {"type": "Replace", "pattern": {"Regex": "a"}, "content": "b" * 2000}),
        ("pre_tokenizer", {"type": "Sequence", "pretokenizers": [BYTES] * 6}),
        ("post_processor", {"type": "Sequence", "processors": [TEMPLATE] * 12}),
    ],
    ids=range(7),
)
def test_steps_that_blow_a_text_up(tmp_path, part, steps):
    write_json(tmp_path, tokenizer=word_level(**{part: steps}))
    with refuses_field(tmp_path / "tokenizer.json", part, TokenizerError):
        load_tokenizer(tmp_path)


def test_steps_that_do_not(tmp_path):
    steps = [{"type": "NFKC"}, {"type": "Prepend", "prepend": "▁"}, *[DOUBLING] * 3]
    normalizer = {"type": "Sequence", "normalizers": steps}
    write_json(tmp_path, tokenizer=word_level(normalizer=normalizer))
    load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("prefix", "merges", "field"),
    [
        ("x", [["x▁", "x▁"], ["▁", "a"]], "merges[1]"),
        ("x", ["x▁ ▁"], "merges[0]"),
        ("x", [["▁", 1]], "merges[0]"),
        ("x", [1], "merges[0]"),
        ("▁", [["a", "▁a"]], "continuing_subword_prefix"),
    ],
    ids=range(5),
)
def test_merges_that_would_cut_a_character(tmp_path, prefix, merges, field):
    """The library would abort the process."""
    vocab = {token: i for i, token in enumerate(["a", "▁", "x▁", "x▁▁", "▁a"])}
    model = {"type": "BPE", "vocab": vocab, "merges": merges, "continuing_subword_prefix": prefix}
    write_json(tmp_path, tokenizer=word_level(model=model))
    with refuses_field(tmp_path / "tokenizer.json", f"model.{field}", TokenizerError):
        load_tokenizer(tmp_path)


def test_continuing_pieces(tmp_path):
    vocab = {token: i for i, token in enumerate(["▁", "a", "##▁", "##a", "▁a", "##▁a", "▁▁a"])}
    merges = [["▁", "##a"], ["##▁", "##a"], ["▁", "##▁a"]]
    model = {"type": "BPE", "vocab": vocab, "merges": merges, "continuing_subword_prefix": "##"}
    write_json(tmp_path, tokenizer=word_level(model=model))
    assert load_tokenizer(tmp_path).encode("▁▁a") == [6]


class PanicException(BaseException):
    """The exception of `tokenizers` when its Rust code panics."""


@pytest.mark.parametrize(
    "error",
    [PanicException("why \x1b[0m"), Exception("why"), UnicodeDecodeError("utf-8", b"", 0, 1, "why")],
    ids=lambda error: type(error).__name__,
)
def test_errors_of_the_library_are_tokenizer_errors(tmp_path, error):
    write_json(tmp_path, tokenizer=word_level())
    tokenizer, name = load_tokenizer(tmp_path), type(error).__name__
    library = SimpleNamespace(encode=raising(error), no_padding=raising(error))
    tokenizer.library = library
    with pytest.raises(TokenizerError, match=rf"tokenizer\.json: .*{name}.*why"):
        tokenizer.encode("a")
    with pytest.raises(TokenizerError, match=rf"x\.json: .*{name}.*why") as caught:
        type(tokenizer)(library, "x.json")
    assert str(caught.value).isprintable()
    for none_of_its in (KeyboardInterrupt(), MemoryError()):
        tokenizer.library = SimpleNamespace(encode=raising(none_of_its))
        with pytest.raises(type(none_of_its)):
            tokenizer.encode("a")


def raising(error):
    def fail(*arguments: object, **options: object) -> None:
        raise error

    return fail


def test_a_panic_of_the_library_is_a_tokenizer_error(tmp_path, capfd):
    """Its regex engine panics on long searches, which is not an Exception."""
    step = {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": "b"}
    write_json(tmp_path, tokenizer=word_level(normalizer=step))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("a") == [1]
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: .*cannot encode this text: PanicException: "):
        tokenizer.encode("a" * 2000 + "c")
    capfd.readouterr()  # Rust's own message


def test_names_of_end_tokens_that_are_no_text(tmp_path):
    write_json(tmp_path, tokenizer=word_level(), tokenizer_config={"bos_token": "\ud800"})
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: .*UnicodeEncodeError") as caught:
        load_tokenizer(tmp_path)
    assert str(caught.value).isprintable()


def test_missing_libraries(tmp_path, monkeypatch):
    write_json(tmp_path, tokenizer={"model": {}})
    (tmp_path / "x.model").touch()
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    for error_type in (TokenizerError, MissingPackageError):
        with pytest.raises(error_type, match="pip install tokenizers"):
            load_tokenizer(tmp_path)
        with pytest.raises(error_type, match="pip install sentencepiece"):
            load_tokenizer(tmp_path / "x.model")


def test_text_that_is_none(tmp_path):
    tokenizer = load_tokenizer(write_llama2c_tokenizer(tmp_path / "tok.bin", GOOD))
    for text in (b"a", None, 3):
        with refuses("text", text):
            tokenizer.encode(text)
    with refuses("text"):
        tokenizer.encode("a\ud800")
    with refuses("token id", -1):
        tokenizer.decode([-1])
    assert tokenizer.decode([3, 4, 3]) == "aa"  # a padded model's id past the vocabulary has no text


def test_tokenizer_objects(tmp_path):
    class Letters:
        n_vocab, bos_id, eos_ids = 26, None, ()

        def encode(self, text, *, add_bos=True):
            return [ord(char) - 97 for char in text]

        def decode(self, ids):
            return bytes(97 + i for i in ids).decode("utf-8", "replace")

    letters = Letters()
    assert isinstance(letters, Tokenizer) and resolve_tokenizer(letters, tmp_path) is letters
    with pytest.raises(TokenizerError, match="int without encode, decode, n_vocab"):
        resolve_tokenizer(3, tmp_path)
    stream = StreamDecoder(letters)
    assert [stream.feed([7, 8]), stream.feed([]), stream.feed([9]), stream.finish()] == ["hi", "", "j", ""]
    # 0xC3 then 0xA9 are "é": the first alone is held back, and given up at the end.
    stream = StreamDecoder(letters)
    assert [*(stream.feed([byte - 97]) for byte in (0xC3, 0xA9, 0xC3)), stream.finish()] == [
        "", "é", "", "\ufffd",
    ]  # fmt: skip

    class Rewriting(Letters):
        def decode(self, ids):
            return "ab"[: len(ids)] if len(ids) < 3 else "xyz"

    stream = StreamDecoder(Rewriting())
    assert stream.feed([0, 1]) == "ab"
    with pytest.raises(TokenizerError, match="changed earlier text"):
        stream.feed([2])


# ----------------------------------------------------------------------------------------------- pairs


def model(n_vocab: int, tokenizer: Tokenizer | None, path: str) -> SimpleNamespace:
    return SimpleNamespace(config={"n_vocab": n_vocab}, tokenizer=tokenizer, path=path)


def test_same_vocabulary(tmp_path):
    def tokenizer(name: str, tokens: list[tuple[bytes, float]]) -> Tokenizer:
        return load_tokenizer(write_llama2c_tokenizer(tmp_path / name, tokens))

    one = tokenizer("one.bin", GOOD)
    same = tokenizer("same.bin", [(token, score - 1.0) for token, score in GOOD])
    other = tokenizer("other.bin", [*GOOD[:3], (b"b", -1.0)])
    longer = tokenizer("longer.bin", [*GOOD, (b"z", -1.0)])
    check_same_vocabulary(model(4, one, "T"), model(4, same, "D"))
    check_same_vocabulary(model(8, one, "T"), model(8, one, "D"))
    check_same_vocabulary(model(4, None, "T"), model(4, one, "D"))
    check_same_vocabulary(model(4, one, "T"), model(8, same, "D"))  # padding
    for target, draft, message in (
        (model(4, one, "T"), model(4, other, "D"), "but id 3 is 'a' in the target and 'b' in the draft"),
        (model(4, one, "T"), model(4, other, "T"), "both of T, have tokenizers of different vocabularies"),
        (model(4, one, "T"), model(5, longer, "D"), "the first 4 agree, id 4 is 'z' in the draft only"),
        (model(5, longer, "T"), model(5, one, "D"), "has 5 tokens, the draft's 4; the first 4 agree"),
        (model(3, one, "T"), model(8, same, "D"), "to 3 ids, draft D to 8; expected both to have the 4 ids"),
        (model(4, None, "T"), model(8, one, "D"), "target T gives probabilities to 4 ids, draft D to 8"),
    ):
        with pytest.raises(VocabularyMismatchError, match=message):
            check_same_vocabulary(target, draft)


def test_bytes_of_byte_level_tokens(tmp_path):
    """GPT-2's own function makes the alphabet; tokens with other characters are UTF-8."""
    from tokenizers import Tokenizer as Library
    from tokenizers import decoders, models

    own = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    rest = [byte for byte in range(256) if byte not in own]
    alphabet = {byte: chr(byte) for byte in own} | {byte: chr(256 + i) for i, byte in enumerate(rest)}
    expected = [bytes([byte]) for byte in range(256)]
    expected += [b"ab", bytes(range(256))]
    tokens = ["".join(alphabet[byte] for byte in text) for text in expected]
    for i, other in enumerate(
        ["a b", "\x7f", "\xad", "\u0144", "\u0143x\uffff", "語", "a\U0010ffff", "<é>Ġ\n"]
    ):
        tokens += [other, f"Ġx{i}"]
        expected += [other.encode(), b" x%d" % i]
    library = Library(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="a b"))
    library.decoder = decoders.ByteLevel()
    library.save(str(tmp_path / "tokenizer.json"))
    assert list(load_tokenizer(tmp_path).vocabulary()) == expected
