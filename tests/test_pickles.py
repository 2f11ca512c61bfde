"""Pickles and copies: models by reference to their files, drafts by their arguments."""

from __future__ import annotations

import copy
import dataclasses
import os
import pickle
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import processes
import specdec
from drafters import DRAFTS, REMEMBERING, World, named
from specdec import drafts
from specdec.errors import CheckpointError, CheckpointNotFoundError, InputError
from specdec.models import model as model_module
from specdec.models.checkpoints import hub
from specdec.models.origin import HubLocation, ReadFiles
from toy_pair import N_VOCAB, ToyTokenizer
from trained import small_pair
from worlds.adapters import llama_adapter
from worlds.eagles import eagle_folder, mimo_target
from worlds.folders import llama_config, write_llama2c, write_llama2c_tokenizer
from worlds.learned import look_ahead_weights, random_heads, recurrent_weights

Factory = Callable[..., Path]
OPTIONS: dict[str, Any] = {"max_new_tokens": 12, "temperature": 0.8, "verify": "coupled", "seed": 3}


def again(value: Any) -> Any:
    """Pickle and unpickle a value in this process."""
    return pickle.loads(pickle.dumps(value))


def forgotten(*models: specdec.Model) -> bytes:
    """Pickle models as seen from another process, where none exist."""
    pickled = pickle.dumps(models[0] if len(models) == 1 else models)
    for model in models:
        assert model.origin is not None
        del model_module._OF_KEY[model.origin.key]
    return pickled


def elsewhere(value: Any, expression: str) -> Any:
    """Evaluate an expression of a pickled `value` in another process."""
    program = (
        "import os, pickle, sys\n"
        "value = pickle.load(sys.stdin.buffer)\n"
        f"sys.stdout.buffer.write(pickle.dumps({expression}))\n"
    )
    options: dict[str, Any] = {"check": True, "capture_output": True, "timeout": 120}
    run = subprocess.run([sys.executable, "-c", program], input=pickle.dumps(value), **options)
    return pickle.loads(run.stdout)


# ------------------------------------------------------------------------------------------- models


def test_a_pickle_of_a_model_is_small_and_gives_the_model(make_llama: Factory) -> None:
    path = make_llama()
    model, other = specdec.load(path, "int8"), specdec.load(path, "int8")
    assert again(model) is model and again(other) is other
    assert len(pickle.dumps(model)) < 4000
    assert copy.copy(model) is model and copy.deepcopy({"of": [model]})["of"][0] is model
    with pytest.raises(InputError, match=r"made in memory, which cannot be pickled"):
        pickle.dumps(specdec.Model(model.core, model.config, None, model.path, "made"))


def test_another_process_loads_the_same_files_in_the_same_formats(
    make_llama: Factory, tmp_path: Path
) -> None:
    path, adapter = make_llama(), llama_adapter(tmp_path / "adapter", llama_config(), 1)
    models = [
        specdec.load(path, "int4", cache_dtype="f32", tokenizer=False, n_ctx=40),
        specdec.load(os.path.relpath(path), prefill="blas"),
        specdec.load(path, adapter=adapter),
        specdec.load(path).with_adapter(adapter),
        *small_pair("int8"),
    ]
    said = (
        "[(m.dtype, m.cache_dtype, m.prefill, m.config.n_ctx, m.tokenizer is None, os.path.abspath(m.path), "
        "m.logits([1, 2, 3]).tobytes()) for m in value]"
    )
    assert elsewhere(models, said) == eval(said, {"os": os, "value": models})


def test_a_process_loads_a_model_once_and_keeps_the_last_two(make_llama: Factory) -> None:
    path = make_llama()
    models = [specdec.load(path) for _ in range(3)]
    pickles = [forgotten(model) for model in models]
    first = pickle.loads(pickles[0])
    assert first.core is not models[0].core and pickle.loads(pickles[0]) is first is again(first)
    kept = weakref.ref(first)
    del first
    second = weakref.ref(pickle.loads(pickles[1]))
    assert pickle.loads(pickles[0]) is kept()
    pickle.loads(pickles[2])
    assert kept() is not None and second() is None


def test_a_tokenizer_goes_along(make_llama: Factory, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    pieces = [b"<unk>", b"<s>", b"</s>", b" ", b"a", b"b", b" a", b" b"]
    names = write_llama2c_tokenizer(tmp_path / "other" / "names.bin", [(piece, 0.0) for piece in pieces])
    by_path = specdec.load(write_llama2c(tmp_path / "model.bin"), tokenizer=names)
    by_object = specdec.load(make_llama(vocab_size=N_VOCAB), tokenizer=ToyTokenizer())
    assert by_path.tokenizer is not None and by_object.tokenizer is not None
    for model, copied in zip((by_path, by_object), pickle.loads(forgotten(by_path, by_object)), strict=True):
        assert copied is not model and copied.tokenizer.encode("a b") == model.tokenizer.encode("a b")
    names.write_bytes(names.read_bytes() + b"\0" * 4)
    with pytest.raises(CheckpointError, match=r"names\.bin: has changed since it was read"):
        pickle.dumps(by_path)


def test_a_tokenizer_that_cannot_be_pickled_is_named(make_llama: Factory) -> None:
    class Local(ToyTokenizer):
        pass

    model = specdec.load(make_llama(vocab_size=N_VOCAB), tokenizer=Local())
    with pytest.raises(InputError, match=r"^tokenizer is a Local, which cannot be pickled"):
        pickle.dumps(model)


def changed(path: Path) -> None:
    """Change a byte, keeping the size."""
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_file_that_has_changed_is_refused_by_name(make_llama: Factory, name: str) -> None:
    model = specdec.load(make_llama())
    pickled = pickle.dumps(model)
    file = model.path / name
    status = file.stat()
    if name == "config.json":
        file.write_text(file.read_text() + " ")
    else:
        changed(file)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 10**7))
    assert pickle.loads(pickled) is model  # which needs no file
    with pytest.raises(CheckpointError, match=rf"{name}: has changed since it was read"):
        pickle.dumps(model)
    del model  # so that it is not found, as in another process
    said = r"has the digest \w+; expected" if name == "model.safetensors" else r"has \d+ bytes; expected"
    with pytest.raises(CheckpointError, match=rf"{name}: {said}"):
        pickle.loads(pickled)


def test_a_file_of_another_time_and_the_same_bytes_is_taken(make_llama: Factory) -> None:
    model = specdec.load(make_llama())
    pickled = forgotten(model)
    for file in model.path.iterdir():
        os.utime(file, ns=(1, 1))
    assert pickle.loads(pickled).path == model.path


def test_the_time_of_a_file_counts_unless_it_was_just_written(tmp_path: Path) -> None:
    """File systems count time in steps: two writes may have the same time."""
    file, now = tmp_path / "file", time.time_ns()
    for written_at, expects in (
        (now + 60 * 10**9, pytest.raises(CheckpointError, match="file: has the digest")),
        (now - 60 * 10**9, nullcontext()),
    ):
        file.write_bytes(b"abc")
        os.utime(file, ns=(written_at, written_at))
        reference = ReadFiles.at(file, [file]).reference()
        file.write_bytes(b"abd")
        os.utime(file, ns=(written_at, written_at))
        with expects:
            assert reference.found() == file


def test_files_that_came_or_went_are_refused_by_name(make_llama: Factory, tmp_path: Path) -> None:
    model = specdec.load(make_llama())
    pickled = forgotten(model)
    (model.path / "generation_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"generation_config\.json: did not exist when the pickled"):
        pickle.loads(pickled)
    (model.path / "generation_config.json").unlink()
    (model.path / "config.json").unlink()
    with pytest.raises(CheckpointNotFoundError, match=r"config\.json: no such file"):
        pickle.loads(pickled)
    model.path.rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointNotFoundError, match=r"llama: no such folder"):
        pickle.loads(pickled)


def test_files_of_the_hub_are_fetched_by_their_commit(
    make_llama: Factory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[tuple[str, hub.HubOptions]] = []

    def download(name: str, options: hub.HubOptions) -> Path:
        fetched.append((name, options))
        return there

    commit = "0123456789abcdef" * 2 + "01234567"
    there = make_llama(commit)
    monkeypatch.setattr(hub, "download", download)
    monkeypatch.chdir(tmp_path)
    model = specdec.load("org/name", revision="main", cache_dir="cache", token="secret")
    pickled = pickle.dumps(model)
    assert b"secret" not in pickled
    there = there.rename(tmp_path / "moved")
    del model  # so that it is not found, as in another process
    copied = pickle.loads(pickled)
    assert copied.path == there
    expected = ("org/name", hub.HubOptions(commit, "cache"))
    assert fetched == [("org/name", hub.HubOptions("main", "cache", "secret")), expected]
    again(copied)
    assert copied.origin.reference().files.hub == HubLocation("org/name", commit, "cache")


def test_models_of_the_package_are_found_where_the_package_lies() -> None:
    for model in (*specdec.embedded_pair(), specdec.load(specdec.embedded_pair()[1].path, "int4")):
        assert model.origin is not None
        reference = model.origin.reference().files
        assert dataclasses.replace(reference, folder="/nowhere").found() == model.path


def test_what_is_of_a_process_is_pickled_empty() -> None:
    target, draft = small_pair()
    auto, cache = specdec.AdaptiveGamma(5), specdec.PromptCache(2**20)
    specdec.generate(target, draft, "It was", max_new_tokens=8, gamma=auto, prompt_cache=cache)
    assert (again(auto).max_gamma, again(auto).to_dict()) == (5, {})
    assert (again(cache).max_bytes, again(cache).n_bytes) == (2**20, 0) and cache.n_bytes > 0


# ------------------------------------------------------------------------------------------- drafts


WITHOUT_FILES = {"mtp", "assistant", "assistant in a tree"}


@pytest.mark.parametrize("name", named(name for name in DRAFTS if name not in WITHOUT_FILES))
def test_every_draft_is_pickled_or_refused_by_name(world: World, name: str) -> None:
    draft = DRAFTS[name](world)
    if name in REMEMBERING:  # it has learned only in this process
        draft_types = "OnlineDraft|SuffixDecoding|TokenRecycling"
        with pytest.raises(InputError, match=rf"^<specdec\.drafts\.({draft_types}) .*cannot be pickled"):
            pickle.dumps(draft)
        return
    prompts = [world.ids[:9], world.ids[20:60]]
    expected = processes.tokens_of(world.target, draft, prompts, OPTIONS)
    copied = again(draft)
    of_models = ("drafted by a bigram", "three models deep", "eagle 3", "samples")
    assert name not in of_models or len(pickle.dumps(draft)) < 60_000
    assert processes.tokens_of(world.target, copied, prompts, OPTIONS) == expected
    assert repr(copied) == repr(draft) or " at 0x" in repr(draft)


def test_drafts_decode_the_same_tokens_in_another_process() -> None:
    """A model, a table, copies, and an ensemble, with their target."""
    target, small = specdec.embedded_pair()
    ids = target.tokenizer.encode("It was the best of times, it was the worst of times. " * 3)
    tree = drafts.ModelDraft(small, window=9, tree=drafts.StaticTree((2, 1)))
    made = [tree, drafts.PromptLookup(min_match=1), drafts.Ngram(ids, target.config.n_vocab, 3)]
    made.append(drafts.Ensemble(*made, adaptive=False))
    said = (
        "[(run.tokens, [round_.drafted for round_ in run.trace.rounds]) for draft in value[1] for run in "
        "[__import__('specdec').generate(value[0], draft, value[2], **value[3])]]"
    )
    value = target, made, ids[:20], OPTIONS
    here = eval(said, {"value": value})
    assert elsewhere(value, said) == here and all(any(drafted) for _, drafted in here)


def test_a_learned_draft_in_a_folder_is_pickled_by_reference(world: World, tmp_path: Path) -> None:
    made = {
        "heads": (drafts.DecodingHeads, random_heads(world.target)),
        "recurrent": (drafts.RecurrentDraft, recurrent_weights(world.target, world.ids)),
        "vectors": (drafts.LookAheadEmbeddings, look_ahead_weights(world.target)),
    }
    for name, (draft_type, weights) in made.items():
        folder = weights.save(tmp_path / name, "f32")
        draft = draft_type(folder, gamma=2)
        pickled = pickle.dumps(draft)
        assert len(pickled) < 2000
        copied = pickle.loads(pickled)
        assert (type(copied), copied.gamma, repr(copied)) == (draft_type, 2, repr(draft))
        changed(folder / "model.safetensors")
        with pytest.raises(CheckpointError, match=r"model\.safetensors: has the digest"):
            pickle.loads(pickled)


def test_mtp_and_eagle_are_pickled_by_reference() -> None:
    target = mimo_target()
    head = drafts.MTP(target, gamma=2)
    copied = again(head)
    assert (type(copied), copied.gamma, copied.target) == (drafts.MTP, 2, target)
    folder = eagle_folder(small_pair()[1], "reduced")
    eagle = drafts.Eagle(folder, small_pair()[1], dtype="int8")
    copied = again(eagle)
    assert (copied.dtype, copied.captures, copied.path) == ("int8", eagle.captures, folder)


def test_a_mapped_table_is_pickled_by_its_file(world: World, tmp_path: Path) -> None:
    table = drafts.Ngram(world.ids, world.n_vocab, 3)
    table.save(tmp_path / "table")
    mapped = drafts.Ngram.load(tmp_path / "table", mmap=True)
    assert len(pickle.dumps(mapped)) < 1000 < len(pickle.dumps(table))
    copied = again(mapped)
    assert copied.n_ngrams == table.n_ngrams and isinstance(copied, drafts.Ngram)
    mapped.update(world.ids[:9])
    n_counted = table.counts.unigrams.sum() + 9  # no longer what the file has
    assert again(mapped).counts.unigrams.sum() == mapped.counts.unigrams.sum() == n_counted
    bigram = again(drafts.Bigram(world.ids, world.n_vocab, smoothing="backoff"))
    assert type(bigram) is drafts.Bigram and bigram.smoothing == "backoff"


def test_memories_are_pickled_by_their_file(world: World, tmp_path: Path) -> None:
    memory = drafts.SuffixDecoding(min_match=1, factor=2.0)
    matrix = drafts.TokenRecycling(3, tree=drafts.StaticTree((2, 1)))
    assert again(memory).factor == 2.0 and again(matrix).tree == matrix.tree
    for draft, name in ((memory, "memory"), (matrix, "matrix")):
        specdec.generate(world.target, draft, [world.ids[:9]], max_new_tokens=5, verify="coupled")
        with pytest.raises(InputError, match="expected one that was saved"):
            pickle.dumps(draft)
        draft.save(tmp_path / name)
    copied = again(again(memory))
    assert (copied.n_texts, copied.factor, copied.min_match) == (1, 2.0, 1)
    assert np.array_equal(again(matrix).rows(), matrix.rows())
    pickled = pickle.dumps(matrix)
    (tmp_path / "matrix").unlink()
    with pytest.raises(CheckpointNotFoundError, match="matrix: no such file"):
        pickle.loads(pickled)


def test_a_draft_that_learns_is_pickled_by_its_file(world: World, tmp_path: Path) -> None:
    online = drafts.OnlineDraft(drafts.Ngram(world.ids, world.n_vocab, 3), interval=None, n_positions=50)
    specdec.generate(world.target, online, [world.ids[:9]], max_new_tokens=20)
    assert online.learn()
    with pytest.raises(InputError, match="was not saved; expected one with the default trainer"):
        pickle.dumps(online)
    online.save(tmp_path / "learned")
    copied = again(online)
    assert (copied.n_seen, copied.n_updates) == (online.n_seen, 1)
    assert (copied.interval, copied.n_positions) == (None, 50)
    assert np.array_equal(copied.draft.counts.unigrams, online.draft.counts.unigrams)  # type: ignore[attr-defined]
    assert np.array_equal(again(copied).draft.counts.unigrams, copied.draft.counts.unigrams)
