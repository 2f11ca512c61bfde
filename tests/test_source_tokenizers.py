"""Tokenizers of encoder-decoders, for sources and outputs, against transformers."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from refusals import refuses
from specdec.errors import InputError, TokenizerError, VocabularyMismatchError
from specdec.models.tokenizer import source_side
from specdec.tokenizer import check_same_vocabulary, load_tokenizer, resolve_tokenizer
from tokenizer_files import trained_pieces, write_json
from worlds.families import CONFIGS, random_weights
from worlds.folders import write_hf

pytestmark = pytest.mark.oracle

TEXTS = [
    "Once upon a time",
    "One day, Lily's dog found a big, red ball.",
    "a",
    "naïve café, 日本語",
    "tabs\tand  two spaces",
]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
GERMAN = ["Es war einmal ein kleiner Frosch.", "der rote Ball", "einen"]
WORDS = [
    "Once upon a time there was a little girl who had a red ball.",
    "One day she found a big dog, and the dog's name was Max!",
    "Es war einmal ein kleiner Frosch, der einen roten Ball hatte.",
]


@pytest.fixture(scope="module", autouse=True)
def oracle() -> None:
    """Import the libraries lazily, because that takes seconds."""
    global sentencepiece, transformers
    import sentencepiece
    import transformers


def trained(path: Path, seed: int = 0, **settings: Any) -> Path:
    """Train a SentencePiece model of a few hundred words, without normalizer."""
    words = [f"{text} {i * (seed + 1)}" for i in range(40) for text in WORDS[seed:]]
    return trained_pieces(path, words, vocab_size=90, normalization_rule_name="identity", **settings)


def pieces(path: Path) -> list[tuple[str, float]]:
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return [(model.id_to_piece(i), model.get_score(i)) for i in range(model.vocab_size())]


def write_numbers(file: Path, model: Path, first: list[str], last: list[str] = [], start: int = 0) -> int:  # noqa: B006
    """Write ids of a model's pieces among other tokens; return their number."""
    known = dict.fromkeys([*first, *(piece for piece, _ in pieces(model)), *last])
    file.write_text(json.dumps({piece: start + i for i, piece in enumerate(known)}))
    return len(known)


def check(folder: Path, given: Any) -> Any:
    """Compare a folder's tokenizer with transformers': sources, texts and decoded ids."""
    tokenizer = load_tokenizer(folder)
    source = source_side(tokenizer)
    for text in TEXTS:
        expected = given(text).input_ids
        assert source.encode(text) == expected, text
        inner = given(text, add_special_tokens=False).input_ids
        assert tokenizer.encode(text, add_bos=False) == inner, text
        said = given.decode(inner, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert tokenizer.decode(expected).strip() == said.strip()
    return tokenizer


def test_t5_by_its_tokenizer_json_and_its_sentencepiece_file(tmp_path: Path, shared: Path) -> None:
    model = trained(tmp_path / "spiece.model", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    given = transformers.T5Tokenizer(vocab=pieces(model))
    given.save_pretrained(tmp_path / "saved")
    saved = check(tmp_path / "saved", given)
    assert source_side(saved).encode("a<extra_id_0>b")[-1] == 1
    files = load_tokenizer(model)
    for text in (" ".join(text.split()) for text in TEXTS):  # single spaces, as of tokenizers of words
        assert source_side(files).encode(text) == given(text).input_ids
        known = [token for token in files.encode(text) if token != 2]  # each has its own text of <unk>
        assert files.decode(known) == saved.decode(known)
    published = load_tokenizer(shared / "data" / "tokenizers" / "t5-small.tokenizer.json")
    assert source_side(published).encode("Das Haus ist wunderbar.") == [644, 4598, 229, 19250, 5, 1]


def test_byt5(tmp_path: Path) -> None:
    given = transformers.ByT5Tokenizer()
    given.save_pretrained(tmp_path)
    tokenizer = check(tmp_path, given)
    assert tokenizer.n_vocab == len(given) == 384
    assert tokenizer.decode([0, 198, 172, 259, 1]) == "é"


def marian(folder: Path, seed: int = 0, start: int = 0) -> Path:
    """Write a folder with two vocabularies; output ids start with `start`."""
    source, target = trained(folder / "source.spm", seed), trained(folder / "target.spm", seed=2)
    write_numbers(folder / "vocab.json", source, ["</s>", "<unk>"], ["<pad>"])
    write_numbers(folder / "target_vocab.json", target, ["</s>", "<unk>"], ["<pad>"], start)
    return folder


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
@pytest.mark.parametrize("separate", [False, True])
def test_marian_has_two_sides(tmp_path: Path, separate: bool) -> None:
    settings: dict[str, Any] = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": separate}
    target = marian(tmp_path) / "target_vocab.json"
    if separate:
        settings["target_vocab_file"] = str(target)
    else:
        target.unlink()
        first = ["</s>", "<unk>", ">>de<<", ">>nl<<"]
        of_texts = [piece for piece, _ in pieces(tmp_path / "target.spm")]
        write_numbers(tmp_path / "vocab.json", tmp_path / "source.spm", first, [*of_texts, "<pad>"])
    write_json(tmp_path, tokenizer_config=settings)
    given = transformers.MarianTokenizer.from_pretrained(tmp_path)
    given.save_pretrained(tmp_path / "saved")
    (tmp_path / "saved" / "tokenizer.json").write_text("of the source alone")
    found = [load_tokenizer(tmp_path), load_tokenizer(tmp_path / "saved"), resolve_tokenizer(given, tmp_path)]
    for tokenizer in found:
        for text in TEXTS if separate else [*TEXTS, ">>nl<<Once"]:
            assert source_side(tokenizer).encode(text) == given(text).input_ids
        for text in GERMAN:
            expected = given(text_target=text).input_ids
            assert [*tokenizer.encode(text), *tokenizer.eos_ids] == expected
            assert tokenizer.decode(expected) == text


def test_a_vocabulary_of_sources_has_its_own_end_of_text(tmp_path: Path) -> None:
    """Marian's sides may number "</s>" differently; the files name the output's id."""
    marian(tmp_path, start=7)
    for tokenizer in (load_tokenizer(tmp_path), load_tokenizer(tmp_path, eos_ids=(7,))):
        assert tokenizer.eos_ids == (7,)
        assert source_side(tokenizer).encode("")[-1:] == [0]


def test_m2m_has_language_tokens(tmp_path: Path) -> None:
    model = trained(tmp_path / "sentencepiece.bpe.model")
    write_numbers(tmp_path / "vocab.json", model, SPECIAL)
    given = transformers.M2M100Tokenizer.from_pretrained(tmp_path, src_lang="de")
    given.save_pretrained(tmp_path / "saved")
    given.src_lang = "de"
    found = [load_tokenizer(tmp_path), load_tokenizer(tmp_path / "saved"), resolve_tokenizer(given, tmp_path)]
    for source in map(source_side, found):
        assert source.languages == given.lang_code_to_id
        for text in TEXTS:
            assert source.in_language("de").encode(text) == given(text).input_ids
    assert found[2].before == source_side(found[1]).before == (given.get_lang_id("de"),)
    check(tmp_path / "saved", given)  # whose tokenizer_config.json names the language
    with refuses("src_lang", "xx"):
        source.in_language("xx")


def languages(name: str, tmp_path: Path) -> Any:
    model = trained(tmp_path / "some.model")
    known = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *pieces(model)[3:]]
    if name == "NllbTokenizer":
        return transformers.NllbTokenizer(vocab={p: i for i, (p, _) in enumerate(known)}, merges=[])
    if name == "MBartTokenizer":
        codes = transformers.models.mbart.tokenization_mbart.FAIRSEQ_LANGUAGE_CODES
        return transformers.MBartTokenizer(vocab=[*known, *((code, 0.0) for code in codes), ("<mask>", 0.0)])
    return transformers.MBart50Tokenizer(vocab=pieces(model))


@pytest.mark.parametrize(
    ("name", "codes"),
    [("NllbTokenizer", ["deu_Latn", "zho_Hans", "eng_Latn"]), ("MBartTokenizer", ["de_DE", "en_XX"]),
     ("MBart50Tokenizer", ["de_DE", "sl_SI", "en_XX"])],
)  # fmt: skip
def test_languages_of_a_tokenizer_json(tmp_path: Path, name: str, codes: list[str]) -> None:
    given = languages(name, tmp_path)
    given.save_pretrained(tmp_path / "saved")
    source = source_side(check(tmp_path / "saved", given))
    for code in codes:
        given.src_lang = code
        assert source.languages[code] == given.convert_tokens_to_ids(code)
        for text in TEXTS:
            assert source.in_language(code).encode(text) == given(text).input_ids
    assert len(source.languages) == {"NllbTokenizer": 202, "MBartTokenizer": 25, "MBart50Tokenizer": 52}[name]


def test_bart_stands_between_two_tokens(tmp_path: Path, shared: Path) -> None:
    """GPT-2's vocab.json and merges.txt with BART's special tokens, and its tokenizer.json."""
    folder = shared / "data" / "tokenizers"
    vocab = json.loads((folder / "gpt2_vocab.json").read_text(encoding="utf-8"))
    specials = {"<s>": 50257, "<pad>": 50258, "</s>": 50259, "<unk>": 50260, "<mask>": 50261}
    write_json(tmp_path, vocab=vocab | specials, tokenizer_config={"tokenizer_class": "BartTokenizer"})
    shutil.copy(folder / "gpt2_merges.txt", tmp_path / "merges.txt")
    given = transformers.BartTokenizer.from_pretrained(tmp_path)
    given.save_pretrained(tmp_path / "saved")
    for text in TEXTS:
        expected = given(text).input_ids
        assert expected[0] == 50257 and expected[-1] == 50259
        for folder in (tmp_path, tmp_path / "saved"):
            assert source_side(load_tokenizer(folder)).encode(text) == expected


@pytest.mark.parametrize(
    ("vocab", "message"),
    [
        ({"a": 0}, "'<unk>'"),
        ({"<unk>": 0, "a": 0}, "a unique non-negative integer"),
        ({"<unk>": 0, "a": -1}, "a unique non-negative integer"),
        ({"<unk>": 0, "a": True}, "a unique non-negative integer"),
        ({"<unk>": 0, "a": 10**12}, "without large gaps"),
        ([], "expected an object"),
    ],
)
def test_what_is_wrong_in_a_vocabulary_of_pieces(tmp_path: Path, vocab: Any, message: str) -> None:
    write_json(marian(tmp_path), vocab=vocab)
    with pytest.raises(TokenizerError, match=message):
        load_tokenizer(tmp_path)


def with_model(folder: Path, architecture: str, **fields: Any) -> specdec.Model:
    """Save a tiny random model next to a tokenizer, with an id for each token."""
    config = CONFIGS[architecture] | {"vocab_size": load_tokenizer(folder).n_vocab} | fields
    weights = random_weights(architecture, config)
    return specdec.load(write_hf(folder, config | {"architectures": [architecture]}, weights))


def test_languages_of_a_model(tmp_path: Path) -> None:
    """M2M-100 starts with EOS and the language; the first mBART with the language only."""
    model = trained(tmp_path / "sentencepiece.bpe.model")
    write_numbers(tmp_path / "vocab.json", model, SPECIAL)
    given = transformers.M2M100Tokenizer.from_pretrained(tmp_path, src_lang="fr")
    m2m = with_model(tmp_path, "M2M100ForConditionalGeneration", forced_bos_token_id=None)
    assert m2m.decoder_start == (2,) and m2m.languages[:3] == ("af", "am", "ar")
    french = m2m.with_languages(src_lang="fr", tgt_lang="de")
    assert french.decoder_start == (2, given.get_lang_id("de")) and french.core is m2m.core
    assert french.with_languages(tgt_lang="en").decoder_start == (2, given.get_lang_id("en"))
    assert french.source_ids("the red ball").tolist() == given("the red ball").input_ids
    assert m2m.source_ids("the red ball")[0] == given.get_lang_id("en")
    text = french.check_ids("der rote Ball").tolist()
    assert text == [2, given.get_lang_id("de"), *given("der rote Ball", add_special_tokens=False).input_ids]
    found, wanted = french.logits("der rote Ball", "the red ball"), m2m.logits(text, given("the red ball"))
    assert np.array_equal(found, wanted)
    assert pickle.loads(pickle.dumps(french)) is french
    again = pickle.loads(pickle.dumps(french.with_languages(tgt_lang="en")))  # of a deleted model
    assert again.core is not m2m.core and again.decoder_start == (2, given.get_lang_id("en"))
    assert again.source_ids("the red ball").tolist() == given("the red ball").input_ids
    with refuses("tgt_lang", "de_DE"):
        m2m.with_languages(tgt_lang="de_DE")

    (tmp_path / "mbart").mkdir()
    given = languages("MBartTokenizer", tmp_path)
    given.save_pretrained(tmp_path / "mbart")
    mbart = with_model(tmp_path / "mbart", "MBartForConditionalGeneration", decoder_start_token_id=None)
    assert mbart.decoder_start == ()
    german = mbart.with_languages(src_lang="de_DE", tgt_lang="ro_RO")
    assert german.decoder_start == (given.convert_tokens_to_ids("ro_RO"),)
    given.src_lang = "de_DE"
    assert german.source_ids("der rote Ball").tolist() == given("der rote Ball").input_ids


def test_a_language_that_the_model_has_no_id_for(tmp_path: Path) -> None:
    model = trained(tmp_path / "sentencepiece.bpe.model")
    n_vocab = write_numbers(tmp_path / "vocab.json", model, SPECIAL) + 3
    with pytest.warns(UserWarning, match=f"expected at most {n_vocab}"):
        m2m = with_model(
            tmp_path, "M2M100ForConditionalGeneration", vocab_size=n_vocab, forced_bos_token_id=None
        )
    assert m2m.with_languages(tgt_lang="ar").decoder_start == (2, n_vocab - 1)
    with pytest.raises(InputError, match=f"tgt_lang is 'ast', token id {n_vocab} of the tokenizer"):
        m2m.with_languages(tgt_lang="ast")


def test_a_model_without_languages(tmp_path: Path) -> None:
    transformers.ByT5Tokenizer().save_pretrained(tmp_path)
    model = with_model(tmp_path, "T5ForConditionalGeneration")
    assert model.languages == () and model.source_ids("a").tolist() == [100, 1]
    with refuses("src_lang", "en"):
        model.with_languages(src_lang="en")
    assert specdec.load(tmp_path, tokenizer=False).source_tokenizer is None


def test_pairs_of_models_read_the_same_sources(tmp_path: Path) -> None:
    """Marian pairs may agree in outputs and differ in sources."""
    found = []
    for seed in (0, 1):
        (tmp_path / str(seed)).mkdir()
        folder = marian(tmp_path / str(seed), seed)
        tokenizer = load_tokenizer(folder)
        n = source_side(tokenizer).tokenizer.n_vocab
        found.append(with_model(folder, "MarianMTModel", vocab_size=n, decoder_vocab_size=tokenizer.n_vocab))
    check_same_vocabulary(found[0], found[0])
    with pytest.raises(VocabularyMismatchError, match="have different vocabularies of sources"):
        check_same_vocabulary(*found)
