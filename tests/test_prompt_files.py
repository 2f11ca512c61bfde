"""Prompt caches on disk: the bits of texts that begin from files, bounds, damage, and several processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from allocations import needs_hooks, nothing_leaks
from drafters import DRAFTS, World, named
from processes import printed
from refusals import refuses
from specdec import PromptCache
from trained import small_pair
from worlds.canonical import VARIANTS, random_tensors
from worlds.encoder_decoders import START, EncoderDecoder, model_of

N_NEW = 12
RUN: dict[str, Any] = {"max_new_tokens": N_NEW, "ignore_eos": True, "logits": True, "seed": 4, "n_threads": 1}


@pytest.fixture(scope="module")
def target() -> specdec.Model:
    return small_pair()[1]  # the smaller model


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    """A warning is an error, also in the thread that writes."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def restarted(cache: PromptCache) -> PromptCache:
    """The cache as another process finds it: with the files alone."""
    cache.flush()
    create, arguments = cache.__reduce__()
    return create(*arguments)


def ask(model: specdec.Model, draft: Any, prompt: Any, cache: PromptCache, **options: Any) -> int:
    """Generate with and without cache and draft, write files; return the prompt tokens from the cache."""
    found = specdec.generate(model, draft, prompt, prompt_cache=cache, **(RUN | options))
    cache.flush()
    wanted = specdec.generate(model, None, prompt, **(RUN | options))
    assert found.tokens == wanted.tokens
    assert np.array_equal(found.logits, wanted.logits)  # type: ignore[arg-type]
    return found.n_cached_tokens


def files_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*"))


# ------------------------------------------------------------------------------------------------ bits


@pytest.mark.parametrize("name", [None, *named()])
@pytest.mark.grid
def test_a_conversation_over_restarts(world: World, name: str | None, tmp_path: Path) -> None:
    """Each turn begins with what the files have: all panels of the turn before, for any draft."""
    cache, prompt, n_before = PromptCache(path=tmp_path), world.ids[:70], 0
    draft = None if name is None else DRAFTS[name](world)
    for turn in range(3):
        found = specdec.generate(world.target, draft, prompt, prompt_cache=cache, **RUN)
        wanted = specdec.generate(world.target, None, prompt, **RUN)
        assert found.tokens == wanted.tokens and np.array_equal(found.logits, wanted.logits)  # type: ignore[arg-type]
        assert found.n_cached_tokens >= n_before - 1
        n_before = len(prompt) + N_NEW
        prompt = [*prompt, *found.tokens, *world.ids[80 + 40 * turn : 120 + 40 * turn]]
        cache = restarted(cache)


STATES = [("delta", 4), ("mamba2", 4), ("mamba2", 1), ("convolution", 3),
          ("delta-wide-convolution-first-attention", 3)]  # fmt: skip


@pytest.mark.parametrize(("kind", "conv_width"), STATES)
def test_recurrent_states(kind: str, conv_width: int, tmp_path: Path) -> None:
    """After a restart, texts return to snapshots, and continue from their ends."""
    config = VARIANTS[kind] | {"n_ctx": 6000, "conv_width": conv_width}
    model = model_of(config, {name: 3 * tensor for name, tensor in random_tensors(config).items()})
    ids: list[int] = np.random.default_rng(0).integers(0, 101, 2500).tolist()
    cache = PromptCache(path=tmp_path)
    first = specdec.generate(model, model, ids, prompt_cache=cache, **RUN)
    assert ask(model, model, [*ids, *first.tokens, 5, 6], restarted(cache)) >= len(ids) + N_NEW - 1
    windows = any(config.get("windows", ()))
    assert ask(model, None, [*ids[:2200], 1, 2, 3], restarted(cache)) == (0 if windows else 2048)


@pytest.mark.parametrize(("dtype", "prefill"), [("bf16", "tiles"), ("int8", "tiles"), ("f32", "blas")])
def test_prompts_with_bits_of_their_own(dtype: Any, prefill: Any, tmp_path: Path) -> None:
    """Tiles and OpenBLAS: generated tokens are read again, also where another text read them as a prompt."""
    config = VARIANTS["llama"] | {"n_ctx": 1000}
    model = model_of(config, random_tensors(config), prefill=prefill, dtype=dtype)
    ids: list[int] = np.random.default_rng(0).integers(0, 101, 600).tolist()
    cache = PromptCache(path=tmp_path)
    reply = specdec.generate(model, None, ids[:300], prompt_cache=cache, **(RUN | {"max_new_tokens": 100}))
    slices = 256 if prefill == "blas" else 1
    for prompt, n in (([*ids[:300], *reply.tokens, *ids[400:450]], 299), ([*ids[:280], *ids[300:400]], 280)):
        cache = restarted(cache)
        assert ask(model, None, prompt, cache) == n // slices * slices
    assert (
        ask(model, None, [*ids[:300], *reply.tokens, *ids[400:520]], restarted(cache))
        == 449 // slices * slices
    )


def test_sources(tmp_path: Path) -> None:
    """An encoder-decoder's text serves the same source alone, of any length of text."""
    pair = EncoderDecoder("t5")
    one, other = pair.sources(60, 60)
    cache = PromptCache(path=tmp_path)
    options: dict[str, Any] = {"decoder_prompt": [*START, 5, 6, 7]}
    assert ask(pair.target, pair.draft, one, cache, **options) == 0
    cache = restarted(cache)
    assert ask(pair.target, pair.draft, other, cache, **options) == 0
    assert ask(pair.target, pair.draft, one, restarted(cache), **options) == 4
    assert ask(pair.target, pair.draft, other, restarted(cache), **options) == 4


def test_beams(world: World, tmp_path: Path) -> None:
    cache = PromptCache(path=tmp_path)
    wanted = specdec.beam_search(world.target, None, world.ids[:90], width=3, max_new_tokens=8)
    for known in (0, 89):
        options: dict[str, Any] = {"width": 3, "max_new_tokens": 8, "prompt_cache": cache}
        found = specdec.beam_search(world.target, world.draft, world.ids[:90], **options)
        assert [beam.tokens for beam in found.beams] == [beam.tokens for beam in wanted.beams]
        assert [beam.score for beam in found.beams] == [beam.score for beam in wanted.beams]
        assert found.n_cached_tokens == known
        cache = restarted(cache)


def test_an_engine_reads_files_where_it_is_asked(world: World, tmp_path: Path) -> None:
    """The thread of a request reads them, before the request has a slot; texts keep their bits."""
    cache, prompts = PromptCache(path=tmp_path), [[i, *world.ids[:90]] for i in range(4)]
    options: dict[str, Any] = {"max_new_tokens": N_NEW, "ignore_eos": True, "seed": 4}
    wanted = specdec.generate(world.target, None, prompts, **options)
    for known in (0, 90):
        with specdec.Engine(world.target, world.draft, n_slots=1, prompt_cache=cache, n_threads=1) as engine:
            running = [engine.submit(prompt, **options) for prompt in prompts]
            for path in files_of(tmp_path) if known else ():
                path.unlink(missing_ok=True)  # the last prompts still wait for the slot
            found = [one.result() for one in running]
        for one, other in zip(found, wanted, strict=True):
            assert (one.tokens, one.n_cached_tokens) == (other.tokens, known)
        cache = restarted(cache)


# ---------------------------------------------------------------------------------- what files serve for


def test_a_common_prefix_is_stored_once(target: specdec.Model, world: World, tmp_path: Path) -> None:
    """Of prompts that share a document, and of a conversation, each file holds what is new."""
    cache, document = PromptCache(path=tmp_path), world.ids[:128]
    ask(target, None, document, cache, max_new_tokens=1)
    (first,) = files_of(tmp_path)
    for i in range(3):
        prompt = [*document, *[7 * i + 1, 5, 6, 7] * 8]
        assert ask(target, None, prompt, restarted(cache), max_new_tokens=1) == 128
    others = [path for path in files_of(tmp_path) if path != first]
    assert len(others) == 3
    panel = first.stat().st_size / 4
    assert all(path.stat().st_size < 1.2 * panel for path in others)
    # a text that is there, or has few new tokens, writes nothing
    before = [path.stat().st_ino for path in files_of(tmp_path)]
    ask(target, None, [*document, 9, 9], restarted(cache), max_new_tokens=1)
    assert [path.stat().st_ino for path in files_of(tmp_path)] == before
    first.unlink()  # without it, the others serve nothing
    assert ask(target, None, prompt, restarted(cache), max_new_tokens=1) == 0


def test_the_least_recently_used_files_are_removed(
    target: specdec.Model, world: World, tmp_path: Path
) -> None:
    def prompt(i: int) -> list[int]:
        return [i + 1, *world.ids[:100]]

    def used() -> int:
        return sum(path.stat().st_size for path in files_of(tmp_path))

    cache = PromptCache(path=tmp_path)
    ask(target, None, prompt(0), cache, max_new_tokens=1)
    size = used()
    cache = PromptCache(path=tmp_path, max_disk_bytes=3 * size + size // 2)
    for i in (1, 2):
        ask(target, None, prompt(i), cache, max_new_tokens=1)
    assert ask(target, None, prompt(0), restarted(cache), max_new_tokens=1) == 100  # now 1 is the oldest
    ask(target, None, prompt(3), cache, max_new_tokens=1)
    assert used() <= 3 * size + size // 2 and len(files_of(tmp_path)) == 3
    # a child of the text 0, whose panels it keeps from being removed
    ask(target, None, [*prompt(0), *world.ids[:120]], restarted(cache), max_new_tokens=1)
    found = [ask(target, None, prompt(i), restarted(cache), max_new_tokens=1) for i in (0, 1, 2)]
    assert found == [100, 0, 0]
    # a text that does not fit next to the one that it continues
    small = PromptCache(path=tmp_path / "small", max_disk_bytes=size + 1000)
    for longer in ([], world.ids[:120]):
        ask(target, None, [*prompt(0), *longer], small, max_new_tokens=1)
    assert ask(target, None, prompt(0), restarted(small), max_new_tokens=1) == 100
    nothing = PromptCache(path=tmp_path / "none", max_disk_bytes=100)
    assert ask(target, None, prompt(0), nothing) == 0
    assert files_of(tmp_path / "none") == []
    cache.clear()
    assert not list(tmp_path.glob("*/*.prompt"))


# ---------------------------------------------------------------------------------------------- damage


def stored(target: specdec.Model, prompt: list[int], folder: Path) -> Path:
    cache = PromptCache(path=folder)
    specdec.generate(target, None, prompt, prompt_cache=cache, **RUN)
    cache.flush()
    (path,) = files_of(folder)
    return path


def flipped(data: bytes, at: int) -> bytes:
    """The data with a bit changed."""
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


DAMAGE = {
    "empty": lambda data: b"",
    "truncated head": lambda data: data[:20],
    "truncated header": lambda data: data[:100],
    "truncated panels": lambda data: data[: len(data) // 2],
    "truncated sums": lambda data: data[:-1],
    "longer": lambda data: data + b"\0",
    "magic number": lambda data: flipped(data, 0),
    "version": lambda data: flipped(data, 7),
    "length of the header": lambda data: flipped(data, 15),
    "tokens": lambda data: flipped(data, 20),
    "header": lambda data: flipped(data, 60),
    "panels": lambda data: flipped(data, len(data) // 2),
    "sums": lambda data: flipped(data, len(data) - 3),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files_are_ignored_and_replaced(
    target: specdec.Model, world: World, damage: str, tmp_path: Path
) -> None:
    path = stored(target, world.ids[:150], tmp_path)
    data = path.read_bytes()
    path.write_bytes(DAMAGE[damage](data))
    cache = PromptCache(path=tmp_path)
    with pytest.warns(UserWarning, match=f"{path.name}: .*ignored by the prompt cache") as caught:
        assert ask(target, None, world.ids[:150], cache) == 0
    assert len(caught) == 1
    assert path.read_bytes() == data
    assert ask(target, None, world.ids[:150], restarted(cache)) == 149


def test_a_damaged_prefix(target: specdec.Model, world: World, tmp_path: Path) -> None:
    """The warning names the file of the common prefix, not the one that needs it."""
    path = stored(target, world.ids[:150], tmp_path)
    prompt = [*world.ids[:150], *world.ids[:90]]
    ask(target, None, prompt, cache := PromptCache(path=tmp_path))
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    cache = restarted(cache)
    with pytest.warns(UserWarning, match=f"{path.name}: is damaged") as caught:
        assert ask(target, None, prompt, cache) == 0
    assert len(caught) == 1


def test_foreign_files_are_left_alone(target: specdec.Model, world: World, tmp_path: Path) -> None:
    """Files of others, in the folder and in a model's, and a valid file under another name."""
    path = stored(target, world.ids[:150], tmp_path)
    moved = path.with_name(f"{'0' * 24}.prompt")
    foreign = [tmp_path / "notes.txt", path.parent / "notes.txt", moved]
    for one in foreign:
        one.write_bytes(path.read_bytes())
    with pytest.warns(UserWarning) as caught:
        cache = PromptCache(path=tmp_path, max_disk_bytes=path.stat().st_size + 1000)
        assert ask(target, None, world.ids[:150], cache) == 149
        assert ask(target, None, [5, *world.ids[:150]], cache) == 0
        cache.clear()
    messages = [str(one.message) for one in caught]
    assert all(any(str(one) in message for message in messages) for one in foreign)
    assert [one.exists() for one in foreign] == [True, True, False]


def test_folders_that_cannot_be_used(target: specdec.Model, world: World, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    with refuses("path", str(file)):
        PromptCache(path=file)
    with refuses("path", ""):
        PromptCache(path="")
    with refuses("path", 3):
        PromptCache(path=3)  # type: ignore[arg-type]
    with refuses("max_disk_bytes", -1):
        PromptCache(path=tmp_path, max_disk_bytes=-1)
    cache = PromptCache(path=tmp_path / "new")
    os.rmdir(tmp_path / "new")
    (tmp_path / "new").write_bytes(b"")
    with pytest.warns(UserWarning, match="Not a directory") as caught:
        assert ask(target, None, world.ids[:150], cache) == 0
    reasons = [" cannot be read: ", " a prompt could not be stored: "]
    assert all(reason in str(one.message) for one, reason in zip(caught, reasons, strict=True))
    assert ask(target, None, world.ids[:150], cache) == 149  # from memory


_FULL = """
import resource, signal, sys, warnings
import specdec
target, draft = specdec.embedded_pair()
prompt = "It was the best of times. " * 20
wanted = specdec.generate(target, draft, prompt, max_new_tokens=20, temperature=0, n_threads=1).tokens
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
cache = specdec.PromptCache(path=sys.argv[1])
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    options = dict(max_new_tokens=20, temperature=0, n_threads=1, prompt_cache=cache)
    found = [specdec.generate(target, draft, prompt + end, **options).tokens for end in ("", "", "x" * 90)]
    cache.flush()
assert found[:2] == [wanted, wanted], found
print(*[str(one.message) for one in caught], sep="\\n")
"""


@pytest.mark.slow
def test_a_full_disk(tmp_path: Path) -> None:
    """The limit of a file's size stands for it: one warning, no file, and the text goes on."""
    lines = printed(_FULL, str(tmp_path)).splitlines()
    assert len(lines) == 1 and f"{tmp_path}: a prompt could not be stored: File too large" in lines[0]
    assert files_of(tmp_path) == []


@needs_hooks
def test_memory_is_given_back(world: World, tmp_path: Path) -> None:
    with nothing_leaks():
        cache = PromptCache(path=tmp_path)
        for _ in range(2):
            specdec.generate(world.target, world.draft, world.ids[:90], prompt_cache=cache, **RUN)
            cache = restarted(cache)
        path = files_of(tmp_path)[0]
        path.write_bytes(path.read_bytes()[:-20] + bytes(20))
        with pytest.warns(UserWarning):
            specdec.generate(world.target, world.draft, world.ids[:90], prompt_cache=cache, **RUN)
            cache.flush()
        cache.clear()


# ------------------------------------------------------------------------------------------- processes


_RUN = """
import json, sys
import specdec
folder, n_bytes, first, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
target, draft = specdec.embedded_pair()
document = target.tokenizer.encode("It was the best of times, it was the worst of times. " * 8)
cache = specdec.PromptCache(path=folder, max_disk_bytes=n_bytes)
found = []
for i in range(12):
    prompt = [*document[: 40 + 20 * ((first + 5 * i) % 6)], *document[:33 + (first + i) % 3]]
    options = dict(max_new_tokens=10, ignore_eos=True, n_threads=1, seed=seed, temperature=0.7)
    one = specdec.generate(target, draft, prompt, prompt_cache=cache, **options)
    found.append([prompt, one.tokens, one.n_cached_tokens])
    cache = specdec.PromptCache(path=folder, max_disk_bytes=n_bytes)
print(json.dumps(found))
"""


def run_of(folder: Path, n_bytes: int, first: int) -> list[Any]:
    found: list[Any] = json.loads(printed(_RUN, str(folder), str(n_bytes), str(first), "3"))
    return found


def check_texts(found: list[Any]) -> None:
    target, draft = specdec.embedded_pair()
    options: dict[str, Any] = {"max_new_tokens": 10, "ignore_eos": True, "seed": 3, "temperature": 0.7}
    for prompt, tokens, _ in found:
        assert specdec.generate(target, draft, prompt, n_threads=1, **options).tokens == tokens


@pytest.mark.slow
def test_a_restart(tmp_path: Path) -> None:
    """Another process finds all panels, and Python writes the last text at its end."""
    check_texts(run_of(tmp_path, 1 << 30, 0))
    again = run_of(tmp_path, 1 << 30, 0)
    check_texts(again)
    assert all(n >= len(prompt) - 32 for prompt, _, n in again)


@pytest.mark.slow
def test_processes_at_once(tmp_path: Path) -> None:
    """Three processes write, read and remove files in a folder for few texts; no warning, no other text."""
    n_bytes = 20_000_000
    command = [sys.executable, "-W", "error", "-c", _RUN, str(tmp_path), str(n_bytes)]
    running = [
        subprocess.Popen([*command, str(i), "3"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for i in range(3)
    ]
    for process in running:
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0 and errors == "", errors
        check_texts(json.loads(output))
    largest = max(path.stat().st_size for path in files_of(tmp_path))
    assert sum(path.stat().st_size for path in files_of(tmp_path)) <= n_bytes + 2 * largest
    assert not [path for path in files_of(tmp_path) if path.suffix != ".prompt"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python warns about forks with threads
def test_a_fork_while_threads_hold_locks(target: specdec.Model, world: World, tmp_path: Path) -> None:
    cache = PromptCache(path=tmp_path)
    ask(target, None, world.ids[:150], cache)
    cache.flush()
    with cache._lock, cache._files._lock:  # type: ignore[union-attr]
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            os._exit(0 if ask(target, None, world.ids[:150], cache) == 149 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
