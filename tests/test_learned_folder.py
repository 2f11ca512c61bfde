"""Folders of learned drafts: what is written is read back, and mismatches are rejected by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import specdec
from refusals import refuses, refuses_field
from specdec import drafts, reference
from toy_pair import ToyTokenizer, load_pair
from worlds.folders import llama_config, tensors_for, write_hf
from worlds.learned import learned_weights, random_heads, read_weights

SHAPES = {"a.weight": (3, 4), "a.bias": (3,)}


def weights_for(target: specdec.Model, *, tokens: Any = None) -> Any:
    rng = np.random.default_rng(0)
    tensors = {name: rng.normal(size=shape).astype(np.float32) for name, shape in SHAPES.items()}
    return learned_weights("some", target, {"size": 3}, tensors, captures=[0, 2], tokens=tokens)


def changed(folder: Path, **fields: Any) -> None:
    config = json.loads((folder / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v != "absent"}))


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_what_is_written_is_read(target: specdec.Model, tmp_path: Path, dtype: str) -> None:
    """Rounded to nearest, from memory and from a file."""
    tokens = [5, 3, 60]
    written = weights_for(target, tokens=tokens)
    for weights in (written, read_weights(written.save(tmp_path / "one", dtype))):
        read = read_weights(weights.save(tmp_path / "two", dtype))
        assert (read.method, read.captures, read.n_draft_vocab) == ("some", (0, 2), 3)
        assert read.fields.integer("size") == 3
        assert read.tokens is not None and read.tokens.tolist() == tokens
        read.check_target(target)
        both = zip(read.tensors(SHAPES), written.tensors(SHAPES), strict=True)
        for (name, array, stored), (_, wanted, _) in both:
            assert stored == dtype, name
            if dtype == "bf16":
                array = (array.astype(np.uint32) << 16).view(np.float32)
                wanted = reference.formats.stored(wanted, "bf16")
            np.testing.assert_array_equal(array, wanted.astype("f2" if dtype == "f16" else "f4"))
        assert read.dtype == ("bf16" if dtype == "bf16" else "f32")


def test_numbers_that_the_format_has_not_are_refused(target: specdec.Model, tmp_path: Path) -> None:
    for value, dtype in ((1e5, "f16"), (3.4e38, "bf16"), (np.inf, "f32"), (np.nan, "bf16")):
        weights = learned_weights("some", target, {}, {"a": np.array([[0.0, value]])})
        with refuses("tensor 'a': element [0, 1]"):
            weights.save(tmp_path / "folder", dtype)
        assert not (tmp_path / "folder" / "config.json").exists()


def test_halves_of_two_drafts_are_no_draft(target: specdec.Model, tmp_path: Path) -> None:
    one, two = (weights_for(target).save(tmp_path / name) for name in ("one", "two"))
    (one / "model.safetensors").replace(two / "model.safetensors")
    with pytest.raises(specdec.CheckpointError, match="'weights' .* belong to different drafts"):
        read_weights(two)
    changed(two, weights="absent")
    read_weights(two)  # a folder without the random word


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"specdec_draft": 1}, "specdec_draft"),
        ({"specdec_draft": "1"}, "specdec_draft"),
        ({"method": 3}, "method"),
        ({"method": "some"}, "method"),
        ({"target": "absent"}, "target"),
        ({"target": {"name": "x"}}, "target.d_model"),
        ({"captures": 3}, "captures"),
        ({"captures": [1, 1]}, "captures"),
        ({"captures": [4]}, "captures[0]"),
        ({"captures": [True]}, "captures[0]"),
        ({"n_draft_vocab": 62}, "n_draft_vocab"),
    ],
)
def test_damaged_fields_are_named(
    target: specdec.Model, tmp_path: Path, fields: dict[str, Any], named: str
) -> None:
    folder = weights_for(target, tokens=[5, 3, 60]).save(tmp_path)
    changed(folder, **fields)
    with refuses_field(folder / "config.json", named):
        drafts.load(folder, target)
    for n_draft_vocab, message in ((61, "'d2t' is present"), (4, r"'d2t' has shape \[3\]; expected \[4\]")):
        folder = weights_for(target, tokens=[5, 3, 60]).save(tmp_path)
        changed(folder, n_draft_vocab=n_draft_vocab)
        with pytest.raises(specdec.CheckpointError, match=message):
            drafts.load(folder, target)


@pytest.mark.parametrize(
    ("d2t", "message"),
    [
        ([0, 0, 59], r"element \[2\] is 59; expected -2 to 58"),
        ([-1, 0, 0], r"element \[0\] is -1; expected 0 to 60"),
        ([2**63 - 1, 0, 0], r"element \[0\] is 9223372036854775807"),
        ([0, 5, 4], "gives the target's token 6 2 times; expected each once"),
    ],
)
def test_a_damaged_vocabulary_is_named(
    target: specdec.Model, tmp_path: Path, d2t: list[int], message: str
) -> None:
    folder = weights_for(target, tokens=[5, 3, 60]).save(tmp_path, "f32")
    changed(folder, weights="absent")
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {"d2t": np.array(d2t)}, folder / "model.safetensors")
    with pytest.raises(specdec.CheckpointError, match=message):
        read_weights(folder)


def test_missing_and_other_tensors_are_named(target: specdec.Model, tmp_path: Path) -> None:
    read = read_weights(weights_for(target).save(tmp_path / "a"))
    for shapes, message in (
        (SHAPES | {"b": (2,)}, r"tensor 'b' is missing; expected it with shape \[2\]"),
        ({"a.weight": (3, 4)}, "tensor 'a.bias' is not part of this draft"),
        (SHAPES | {"a.bias": (4,)}, r"tensor 'a.bias' has shape \[3\]; expected it with shape \[4\]"),
    ):
        with pytest.raises(specdec.CheckpointError, match=message):
            list(read.tensors(shapes))
    (tmp_path / "a" / "model.safetensors").unlink()
    with pytest.raises(specdec.CheckpointError, match=r"model\.safetensors: no such file"):
        drafts.load(tmp_path / "a", target)


def test_a_wrong_target_is_refused_by_name(target: specdec.Model, tmp_path: Path) -> None:
    weights = read_weights(weights_for(target).save(tmp_path / "draft"))
    settings = llama_config(vocab_size=61, max_position_embeddings=96)
    for change, message in (
        ({"vocab_size": 60}, "with n_vocab 60; expected 61"),
        ({"hidden_size": 64}, "with d_model 64; expected"),
        ({"num_hidden_layers": 3}, "with n_layer 3; expected 2"),
        ({"rope_theta": 5e5}, "with the same sizes but another configuration"),
    ):
        other = settings | change
        model = specdec.load(write_hf(tmp_path / "-".join(change), other, tensors_for(other)))
        name = f"{target.path.parent.name}/{target.path.name}"
        with pytest.raises(specdec.InputError, match=f"'{name}'; the given one is {model.path}, {message}"):
            weights.check_target(model)


def test_the_identity_is_that_of_numbers_and_tokens(target: specdec.Model) -> None:
    """It must not change between versions, or drafts would no longer fit their targets."""

    class Other(ToyTokenizer):
        def vocabulary(self) -> tuple[bytes | None, ...]:
            return (*super().vocabulary()[:-1], b"?")

    weights = weights_for(target)
    for options in ({"n_ctx": 40}, {"dtype": "int8"}, {"tokenizer": False}):
        weights.check_target(specdec.load(target.path, **options))
    with pytest.raises(specdec.InputError, match="with other tokens; expected the same vocabulary"):
        weights.check_target(specdec.load(target.path, tokenizer=Other()))
    config = {name: target.config[name] for name in ("n_vocab", "d_model", "n_layer")}
    assert {name: getattr(weights.target, name) for name in config} == config
    assert weights.target.vocabulary is not None
    assert weights.target.fingerprint == "9e29949c46efba90019733be352eb7f0"


def test_a_model_is_loaded_as_what_it_is(target: specdec.Model, tmp_path: Path) -> None:
    _, small = load_pair(tmp_path)
    found = drafts.load(small.path, specdec.load(target.path), tree=drafts.StaticTree((2, 1)))
    assert isinstance(found, drafts.ModelDraft) and found.gamma == 4
    with pytest.raises(specdec.CheckpointError, match="no such file or folder"):
        drafts.load("/no/such/draft", target)


def test_drafts_that_are_one_file_are_opened(target: specdec.Model, tmp_path: Path) -> None:
    memory, matrix, table = (
        drafts.SuffixDecoding(),
        drafts.TokenRecycling(4),
        drafts.Ngram([3, 5, 8, 5], 61, 2),
    )
    memory.add([3, 5, 8, 13])
    specdec.generate(target, matrix, [3, 5], max_new_tokens=4)
    for draft in (memory, matrix, table):
        file = tmp_path / f"{type(draft).__name__}.bin"  # whatever it is called
        draft.save(file)
        found = drafts.load(file, target)
        assert type(found) is type(draft) and repr(found) == repr(draft)
        runs = [specdec.generate(target, one, [3, 5, 8], max_new_tokens=6) for one in (file, draft)]
        assert runs[0].tokens == runs[1].tokens
        with refuses("gamma", 3):
            drafts.load(file, target, gamma=3)
    drafts.Ngram([3], 60, 2).save(tmp_path / "other")
    with pytest.raises(specdec.VocabularyMismatchError):
        drafts.load(tmp_path / "other", target)
    drafts.OnlineDraft(table, interval=None).save(tmp_path / "online")
    with pytest.raises(
        specdec.InputError,
        match=r"is the state of a specdec.drafts.OnlineDraft; expected specdec\.drafts\.OnlineDraft\.load",
    ):
        drafts.load(tmp_path / "online", target)
    with pytest.raises(specdec.CheckpointError, match="is part of a Hugging Face folder"):
        drafts.load(next(target.path.glob("*.safetensors")), target)
    damaged = tmp_path / "damaged.safetensors"
    damaged.write_bytes(b"\xff" * 20)
    with pytest.raises(specdec.CheckpointError, match=r"damaged\.safetensors: header length"):
        drafts.load(damaged, target)


def test_a_learned_draft_is_no_model(target: specdec.Model, tmp_path: Path) -> None:
    folder = drafts.DecodingHeads(random_heads(target)).weights.save(tmp_path / "heads")
    for use in (specdec.load, drafts.ModelDraft):
        with pytest.raises(specdec.UnsupportedModelError) as caught:
            use(folder)
        assert f"specdec.drafts.load('{folder}', target)" in str(caught.value)


def test_an_exit_is_in_the_folder_of_its_model(tmp_path: Path) -> None:
    target = load_pair(tmp_path)[0]
    (target.path / "specdec_exit.json").write_text('{"layer": 1, "gamma": 3}')
    found = drafts.load(target.path, target)
    assert isinstance(found, drafts.EarlyExit) and (found.layer, found.gamma) == (1, 3)
    assert drafts.load(target.path, target, gamma=2).gamma == 2
    with refuses("tree"):
        drafts.load(target.path, target, tree=drafts.ParallelChains(2))
    config = llama_config(vocab_size=61, num_hidden_layers=3)
    other = specdec.load(write_hf(tmp_path / "other", config, tensors_for(config)))
    untuned = load_pair(tmp_path / "untuned")[0]  # of the same configuration
    for wrong in (other, untuned):
        with refuses("target", wrong.path):
            drafts.load(target.path, wrong)
    moved = target.path.rename(tmp_path / "moved")
    with refuses("target", target.path):
        drafts.load(moved, target)
    target = specdec.load(moved)
    assert drafts.load(moved, target).layer == 1
    for layer in (0, target.config.n_layer):
        file = target.path / "specdec_exit.json"
        file.write_text(json.dumps({"layer": layer}))
        with refuses_field(file, "layer"):
            drafts.load(target.path, target)
