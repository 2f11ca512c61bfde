"""Texts, token ids and tokenizers of other libraries are accepted like lists."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import numpy as np
import pytest

import specdec
from chat_templates import library_tokenizer
from refusals import refuses
from specdec import drafts
from specdec.errors import InputError, TokenizerError
from specdec.tokenizer import ByteTokenizer, resolve_tokenizer
from trained import small_pair


class Tensor:
    """The interface of a tensor: `__array__`, and `cpu` on another device."""

    def __init__(self, values: Any, device: str = "cpu") -> None:
        self._array, self._device = np.asarray(values), device

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        if self._device != "cpu":
            raise TypeError("can't convert a tensor of another device")
        return self._array

    def __len__(self) -> int:
        return len(self._array)

    def __iter__(self) -> Any:
        return (Tensor(item, self._device) for item in self._array)

    def __index__(self) -> int:
        return int(self._array)

    def cpu(self) -> Tensor:
        return Tensor(self._array)


class Series:
    """The interface of a table's column."""

    def __init__(self, values: list[Any]) -> None:
        self._values = values

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        array = np.empty(len(self._values), object)
        array[:] = self._values
        return array if isinstance(self._values[0], str | list) else np.asarray(self._values)

    def __iter__(self) -> Any:
        return iter(self._values)


IDS = [5, 17, 3, 200]


def encoding(ids: Any, mask: Any = None) -> Any:
    return UserDict({"input_ids": ids} if mask is None else {"input_ids": ids, "attention_mask": mask})


class Encoding:
    """The interface of an encoding of `tokenizers`."""

    ids, attention_mask = [*IDS, 0], [1, 1, 1, 1, 0]


ONE = [
    Tensor(IDS), Tensor(IDS, "gpu"), Tensor([IDS]), np.array(IDS, np.uint16), np.array([IDS]), Series(IDS),
    encoding(IDS), encoding([IDS]), encoding(Tensor([IDS])), encoding([0, 0, *IDS], [0, 0, 1, 1, 1, 1]),
    encoding([[*IDS, 9]], [[1, 1, 1, 1, 0]]), encoding(Tensor([[9, *IDS]]), Tensor([[0, 1, 1, 1, 1]])),
    Encoding(), list(Tensor(IDS)), tuple(Tensor(IDS)),
]  # fmt: skip


@pytest.fixture(scope="module")
def target() -> specdec.Model:
    return small_pair()[0]


@pytest.mark.parametrize("ids", ONE)
def test_ids_of_one_text(target: specdec.Model, ids: Any) -> None:
    assert np.array_equal(target.check_ids(ids), IDS)
    tables = [drafts.Bigram(one, target.config["n_vocab"]).probabilities([5]) for one in (ids, IDS)]
    assert np.array_equal(*tables)
    copying = [drafts.InputCopy(source).describe(target)[1]["source"] for source in (ids, IDS)]
    assert np.array_equal(*copying)
    wanted = specdec.generate(target, None, IDS, max_new_tokens=3)
    found = specdec.generate(target, None, ids, max_new_tokens=3)
    found = found[0] if isinstance(found, list) else found
    assert (found.prompt_ids, found.tokens) == (IDS, wanted.tokens)
    assert specdec.beam_search(target, None, ids, width=2, max_new_tokens=2).prompt_ids == IDS


SEVERAL = [[5, 6, 7], [8, 9, 10]]


@pytest.mark.parametrize(
    "batch",
    [
        Tensor(SEVERAL), np.array(SEVERAL), encoding(SEVERAL), encoding(Tensor(SEVERAL)), Series(SEVERAL),
        list(Tensor(SEVERAL)), [Tensor(SEVERAL[0]), SEVERAL[1]], [Tensor(SEVERAL[:1]), encoding(SEVERAL[1:])],
        encoding([[0, 5, 6, 7], [8, 9, 10, 0]], [[0, 1, 1, 1], [1, 1, 1, 0]]),
    ],
)  # fmt: skip
def test_ids_of_several_texts(target: specdec.Model, batch: Any) -> None:
    found = specdec.generate(target, None, batch, max_new_tokens=1)
    assert [result.prompt_ids for result in found] == SEVERAL
    tables = [drafts.Bigram(one, target.config["n_vocab"]).probabilities([8]) for one in (batch, SEVERAL)]
    assert np.array_equal(*tables)


def test_columns_of_texts(target: specdec.Model) -> None:
    texts = ["Once upon a time", "The sea"]
    wanted = [result.tokens for result in specdec.generate(target, None, texts, max_new_tokens=4)]
    for column in (Series(texts), np.array(texts), np.array(texts, object)):
        found = specdec.generate(target, None, column, max_new_tokens=4)
        assert [result.tokens for result in found] == wanted
    assert target.score(Series(texts[:1])).shape == target.score(texts[0]).shape
    copying = drafts.PromptLookup(Series(texts))
    assert repr(copying) == repr(drafts.PromptLookup(texts))
    counted = [drafts.Ngram.from_text(one, target, 2).probabilities([3]) for one in (Series(texts), texts)]
    assert counted[0].shape == (1, target.config["n_vocab"]) and np.array_equal(*counted)


def test_stop_ids_in_a_tensor(target: specdec.Model) -> None:
    plainly = specdec.generate(target, None, "The sea", max_new_tokens=6)
    stop = plainly.tokens[3]
    for given in (Tensor([stop]), Tensor(stop), np.array([stop])):
        assert specdec.generate(target, None, "The sea", max_new_tokens=6, stop=given).stop == stop
        found = specdec.beam_search(target, None, "The sea", width=1, max_new_tokens=6, stop=given)
        assert found.beams[0].tokens == plainly.tokens[: plainly.tokens.index(stop) + 1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Tensor([1.5, 2.0]), "expected one dimension of integers"),
        (Tensor(SEVERAL), "shape [2, 3]"),
        (encoding(IDS, [1, 1]), "attention_mask has 2 entries for 4 of input_ids"),
        ({"ids": IDS}, "expected a sequence of integers, or text"),
        (Series(["a", "b"]), "token id at position 0 is 'a'"),
        (encoding([]), "there are 0 token ids"),
        (encoding(IDS, 5), "attention_mask is an int; expected lists or arrays if both"),
        (encoding(5, [1]), "input_ids is an int; expected lists or arrays if both"),
        (encoding({"a": 1}, [1]), "input_ids is a dict; expected lists"),
        (encoding([[1, 2], [3]], [1, 1]), "attention_mask is an int; expected lists or arrays if both"),
    ],
)
def test_what_is_not_one_text(target: specdec.Model, given: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        target.check_ids(given)
    assert message in str(caught.value)


@pytest.mark.parametrize("error", [TypeError, RuntimeError, NotImplementedError])  # PyTorch has all three
def test_a_tensor_that_cannot_be_read(target: specdec.Model, error: type[Exception]) -> None:
    class Broken:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            raise error("this tensor has no storage")

    with pytest.raises(InputError, match="'Broken' cannot be read as an array: this tensor has no storage"):
        target.check_ids(Broken())


# ------------------------------------------------------------------------------------ tokenizers


TEXT = "Once upon a time, ein Mädchen 走了 🙂 <0x41>\n\n  x"


def test_an_object_of_tokenizers(tmp_path: Any) -> None:
    given = library_tokenizer(["<s>", "</s>"])
    given.enable_truncation(3)
    found = resolve_tokenizer(given, tmp_path, bos_id=256, eos_ids=(257,))
    assert isinstance(found, ByteTokenizer) and (found.bos_id, found.eos_ids) == (256, (257,))
    assert found.decode(found.encode(TEXT)) == TEXT
    assert given.truncation is not None  # the caller's object is unchanged


class Slow:
    """The interface of a Python tokenizer of transformers."""

    bos_token_id, eos_token_id = 1, 2

    def __len__(self) -> int:
        return 300

    def convert_ids_to_tokens(self, ids: Any) -> Any:
        raise NotImplementedError

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [1] * add_special_tokens + [3 + byte for byte in text.encode()]

    def decode(self, ids: list[int], skip_special_tokens: bool, clean_up_tokenization_spaces: bool) -> str:
        assert skip_special_tokens and not clean_up_tokenization_spaces
        return bytes(i - 3 for i in ids if i > 2).decode("utf-8", "replace")


def test_a_slow_tokenizer(tmp_path: Any) -> None:
    found = resolve_tokenizer(Slow(), tmp_path, eos_ids=(7,))
    assert (found.bos_id, found.eos_ids, found.n_vocab) == (1, (7, 2), 300)
    assert found.encode("hi") == [1, 107, 108] and found.encode("hi", add_bos=False) == [107, 108]
    assert found.decode(found.encode(TEXT)) == TEXT
    with refuses("text", 3):
        found.encode(3)  # type: ignore[arg-type]
    with pytest.raises(TokenizerError, match="cannot decode these ids"):
        found.decode([10**6])


@pytest.mark.oracle
def test_objects_of_transformers(tmp_path: Any, target: specdec.Model) -> None:
    """Fast and slow tokenizers, with their tensors and encodings."""
    import torch
    from transformers import PreTrainedTokenizerFast

    ends = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}
    given = PreTrainedTokenizerFast(tokenizer_object=library_tokenizer(["<s>", "</s>"]), **ends)
    found = resolve_tokenizer(given, tmp_path, eos_ids=(3,))
    assert isinstance(found, ByteTokenizer) and (found.bos_id, found.eos_ids) == (256, (3, 257))
    assert found.encode(TEXT, add_bos=False) == given(TEXT, add_special_tokens=False)["input_ids"]
    model = specdec.load(target.path, tokenizer=given)
    texts = ["Once upon", "A"]
    for side in ("left", "right"):
        given.padding_side = side
        for framework in ("pt", "np", None):
            batch = given(texts, padding=True, return_tensors=framework)
            prompts = [result.prompt_ids for result in specdec.generate(model, None, batch, max_new_tokens=1)]
            assert prompts == [model.tokenizer.encode(text) for text in texts]
    one = given("Once upon", return_tensors="pt")
    assert np.array_equal(model.logits(one), model.logits("Once upon"))
    ids = torch.tensor(model.check_ids("Once upon"))
    assert np.array_equal(model.logits(one["input_ids"]), model.logits(ids))
    assert specdec.generate(model, None, given(texts[0]), max_new_tokens=3).tokens
