"""`generate` and `stream`: equal bits, batches, seeds, arguments, interrupts."""

from __future__ import annotations

import inspect
import math
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import specdec
from refusals import refuses
from specdec import drafts
from specdec.errors import InputError, VocabularyMismatchError
from toy_pair import (
    N_CTX,
    N_VOCAB,
    RecordedSession,
    ToyTokenizer,
    greedy_tokens,
    notice_interrupts,
    write_pair,
)
from worlds.canonical import DTYPES
from worlds.folders import gpt2_config, llama_config, mistral_config, write_hf

pytestmark = pytest.mark.usefixtures("one_thread")
TESTS = Path(__file__).parent
PROMPT = [1, 5, 9, 30, 7, 12]
Pair = tuple[specdec.Model, specdec.Model]


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> specdec.Model:
    """A draft unrelated to the target, of another family and size."""
    config = gpt2_config(vocab_size=N_VOCAB, n_positions=N_CTX, n_embd=16, n_layer=1, n_head=2)
    folder = write_hf(tmp_path_factory.mktemp("stranger") / "gpt2", config, seed=9)
    return specdec.load(folder, tokenizer=ToyTokenizer())


def run(*arguments: Any, **options: Any) -> specdec.Result:
    out = specdec.generate(*arguments, **options)
    assert isinstance(out, specdec.Result)
    return out


# -------------------------------------------------------------------------------------- contract 2: bits


@pytest.fixture(scope="module")
def plain(pair: Pair) -> specdec.Result:
    return run(pair[0], None, PROMPT, max_new_tokens=40, n_threads=1, logits=True, ignore_eos=True)


def test_plain_decoding_is_argmax_of_each_forward_pass(pair: Pair, plain: specdec.Result) -> None:
    """Against the bare forward pass, and its logits against those of the whole text as a prompt."""
    assert plain.tokens == greedy_tokens(pair[0], PROMPT, 40)
    assert plain.logits is not None
    assert plain.logits.shape == (40, N_VOCAB)
    assert plain.logits.dtype == np.float32
    assert np.array_equal(np.argmax(plain.logits, axis=1), plain.tokens)
    whole = pair[0].logits([*PROMPT, *plain.tokens])[len(PROMPT) - 1 : -1]
    assert np.array_equal(plain.logits, whole)


@pytest.mark.grid
@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("gamma", range(9))
@pytest.mark.parametrize("drafter", ["alike", "itself", "stranger"])
def test_greedy_speculative_equals_plain(
    pair: Pair, stranger: specdec.Model, plain: specdec.Result, drafter: str, gamma: int, n_threads: int
) -> None:
    target, alike = pair
    draft = {"alike": alike, "itself": target, "stranger": stranger}[drafter]
    how: dict[str, Any] = {"max_new_tokens": 40, "n_threads": n_threads, "logits": True, "ignore_eos": True}
    out = run(target, draft, PROMPT, gamma=gamma, **how)
    assert out.tokens == plain.tokens
    assert np.array_equal(out.logits, plain.logits)
    assert out.text == plain.text
    if drafter == "itself":
        assert out.trace.n_accepted == out.trace.n_drafted
    if gamma == 0:
        assert out.trace.n_drafted == 0
        assert out.trace.n_calls == 40
    elif drafter == "alike":
        assert 0 < out.trace.n_accepted < out.trace.n_drafted  # else the test would prove little


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2"])
def test_greedy_speculative_equals_plain_in_every_family(tmp_path: Path, family: str, dtype: str) -> None:
    """With more prompt than a slice, more text than a window, and a draft whose context ends first."""
    config = {"llama": llama_config, "mistral": mistral_config, "gpt2": gpt2_config}[family]
    n_ctx = "n_positions" if family == "gpt2" else "max_position_embeddings"
    target = specdec.load(write_hf(tmp_path / "target", config(**{n_ctx: 160}), seed=1), dtype)
    draft = specdec.load(write_hf(tmp_path / "draft", config(**{n_ctx: 110}), seed=2))
    prompt = np.random.default_rng(0).integers(0, 61, 70)
    wanted = run(target, None, prompt, max_new_tokens=None, logits=True)
    assert len(wanted.tokens) == 90
    for drafter, gamma in ((draft, 3), (draft, 8), (target, 5)):
        out = run(target, drafter, prompt, gamma=gamma, max_new_tokens=None, logits=True)
        assert out.tokens == wanted.tokens
        assert np.array_equal(out.logits, wanted.logits)


# ---------------------------------------------------------------------------------- sampling and seeds

SAMPLED: dict[str, Any] = {"temperature": 0.9, "top_k": 30, "top_p": 0.95, "max_new_tokens": 30}
SAMPLED |= {"ignore_eos": True}


def test_a_seed_gives_the_run_again(pair: Pair) -> None:
    first = run(*pair, PROMPT, seed=11, **SAMPLED)
    assert first.seed == (11, 0)
    for n_threads in (1, 2):
        again = run(*pair, PROMPT, seed=11, n_threads=n_threads, logits=True, **SAMPLED)
        assert again.tokens == first.tokens
    assert [r.betas for r in again.trace.rounds] == [r.betas for r in first.trace.rounds]
    for seed in ([first.seed], [11]):
        assert run(*pair, PROMPT, seed=seed, **SAMPLED).tokens == first.tokens
    assert run(*pair, PROMPT, **SAMPLED).seed != run(*pair, PROMPT, **SAMPLED).seed
    for other in (None, 12, [(11, 1)], [(2**64 - 1, 2**32 - 1)]):
        assert run(*pair, PROMPT, seed=other, **SAMPLED).tokens != first.tokens


# --------------------------------------------------------------------------------------------- arguments


def test_prompts_as_text_and_ids_are_one(pair: Pair) -> None:
    ids = pair[0].tokenizer.encode("abc")
    (out,) = specdec.generate(*pair, ["abc"], max_new_tokens=5)
    for prompt in ("abc", ids, tuple(ids), np.asarray(ids, np.uint16)):
        assert run(*pair, prompt, max_new_tokens=5) == out and out.prompt_ids == ids
    assert run(*pair, "", max_new_tokens=2).prompt_ids == [1]  # BOS alone is a prompt


@pytest.mark.parametrize(
    ("argument", "values"),
    [
        ("gamma", [-1, 1025, 2.0, True, "much"]), ("max_new_tokens", [0, 1.5]),
        ("temperature", [-0.5, math.nan, math.inf, "1", None, True]), ("top_k", [0, -1, 1.0, "5", True]),
        ("top_p", [0.0, -0.5, 1.0001, math.nan, "1", True]), ("n_threads", [0, 10**6, "2"]),
        ("seed", [-1, 2**64, 0.5, [1, 2]]), ("logprobs", [-1, True, N_VOCAB + 1]),
        ("prompt_logprobs", [1.5, N_VOCAB + 1]), ("logprobs_of", ["draft"]), ("prompt_cache", [{}]),
        # not of `stream`
        ("batch_size", [0, -1, 1.5, True, "4"]), ("node_budget", [0, -1, 1.5, True, "4"]),
        ("n", [0, -1, True, 1.5, 2**40]),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused_and_named(pair: Pair, argument: str, values: list[Any]) -> None:
    for call in (specdec.generate, specdec.stream):
        for value in values if argument in inspect.signature(call).parameters else ():
            with refuses(argument, value):
                call(*pair, PROMPT, **{argument: value})


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"seed": [(1, 2, 3)]}, "seed[0]"), ({"seed": [(1, -1)]}, "sequence of seed[0]"),
        ({"stop": ""}, "stop"), ({"stop": [N_VOCAB]}, "stop"),
        ({"logprobs": 1, "logprobs_of": "sampling", "lenience": 0.5}, "logprobs_of"),
    ],
)  # fmt: skip
def test_parts_of_arguments_are_refused_and_named(pair: Pair, options: dict[str, Any], named: str) -> None:
    with refuses(named):
        specdec.generate(*pair, PROMPT, **options)


BAD_PROMPTS: list[tuple[Any, str]] = [
    ([], "prompt is an empty list"), ([[]], "prompt 0: there are 0 token ids"),
    (np.zeros(0, int), "prompt: there are 0 token ids"),
    ([3, N_VOCAB], f"prompt: token id at position 1 is {N_VOCAB}; expected 0 to {N_VOCAB - 1}"),
    ([[3], [3, -1]], "prompt 1: token id at position 1 is -1"), ([3, 2**70], "position 1"),
    ([3, 1.0], "position 1 is 1.0"), ([3, True], "position 1 is True"), ([3, None], "position 1 is None"),
    (["a", 3], "prompt mixes both"), ([[3], 3], "prompt mixes both"),
    ([[[3]]], "prompt 0: token id at position 0 is [3]"),
    (np.zeros((2, 2)), "prompt 0: token ids are an array of shape [2] and dtype float64"),
    (np.zeros((1, 2, 2), int), "shape [1, 2, 2]"), (np.zeros((0, 2), int), "prompt is an empty list"),
    (np.zeros(3), "float64"), (None, "prompt is missing"), (7, "prompt is an int"),
    (b"abc", "prompt is a bytes"), ({1, 2}, "prompt is a set"),
    ([3] * N_CTX, f"the context of {N_CTX} is then full"), ([3] * (N_CTX + 1), f"expected at most {N_CTX}"),
    ("\ud800", "surrogate"),
]  # fmt: skip


@pytest.mark.parametrize(("prompt", "message"), BAD_PROMPTS, ids=range(len(BAD_PROMPTS)))
def test_bad_prompts_are_refused_and_named(pair: Pair, prompt: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        specdec.generate(*pair, prompt)
    assert message in str(caught.value) and "expected" in str(caught.value)


def test_paths_of_models_without_tokenizer(tmp_path: Path) -> None:
    target, draft = write_pair(tmp_path)
    model = specdec.load(target)
    for how in ({"prompt": "text"}, {"prompt": PROMPT, "stop": "text"}):
        with pytest.raises(InputError, match="tokenizer"):
            specdec.generate(model, None, **how)
    with pytest.raises(InputError, match="no tokenizer"):
        specdec.stream(model, None, PROMPT)
    out = run(model, None, PROMPT, max_new_tokens=4)
    assert (out.text, len(out.tokens)) == (None, 4)
    assert run(target, str(draft), PROMPT, max_new_tokens=4).tokens == out.tokens


def test_a_forgotten_draft_is_named(pair: Pair) -> None:
    with pytest.raises(specdec.CheckpointError, match=r"specdec.drafts.named\('prompt-lookup', target\)"):
        specdec.generate(pair[0], "prompt-lookup", PROMPT)
    for call in (specdec.generate, specdec.stream):
        with pytest.raises(InputError, match="the second argument is the draft, None for plain decoding"):
            call(pair[0], "text")


@pytest.mark.parametrize("rule", ["rejection", "block", "coupled"])
def test_threads_that_verify_a_batch_change_nothing(pair: Pair, rule: Any) -> None:
    def found(n_threads: int) -> list[Any]:
        results = specdec.generate(
            *pair, [[1 + i] * (2 + i) for i in range(23)], gamma=3, max_new_tokens=12, temperature=0.9,
            seed=5, top_k=30, repetition_penalty=1.2, verify=rule, logprobs=2, logprobs_of="sampling",
            batch_size=23, ignore_eos=True, n_threads=n_threads,
        )  # fmt: skip
        return [(one.tokens, list(one.logprobs), [r.betas for r in one.trace.rounds]) for one in results]

    assert found(3) == found(1)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("max_length", "max_new_tokens"), ("max_tokens", "max_new_tokens"), ("temprature", "temperature"),
        ("zzzz", None),
    ],
)  # fmt: skip
def test_unknown_options_name_the_one_that_is_meant(pair: Pair, name: str, meant: str | None) -> None:
    """And `stream` takes one prompt, and one sample of it."""
    hint = "" if meant is None else rf"; did you mean {meant}\?"
    for call in (specdec.generate, specdec.stream):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'{hint}$"):
            call(*pair, PROMPT, **{name: 1})
    with pytest.raises(TypeError, match=r"'kv_cache_dtype'; did you mean cache_dtype\?$"):
        specdec.load("path", **{"kv_cache_dtype": "int8"})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="'prefill'; specdec.load has it"):
        specdec.generate(*pair, PROMPT, **{"prefill": "tiles"})  # type: ignore[arg-type]
    with refuses("prompt"):
        specdec.stream(*pair, ["a", "b"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"'n'; generate, agenerate, submit have it"):
        specdec.stream(*pair, PROMPT, n=2)  # type: ignore[call-arg]


def test_a_model_has_no_method_generate(pair: Pair) -> None:
    for name in ("generate", "stream"):
        with pytest.raises(AttributeError, match=rf"did you mean specdec\.{name}\(model, draft, prompt\)"):
            getattr(pair[0], name)
    with pytest.raises(AttributeError, match="has no attribute 'zzzz'$"):
        getattr(pair[0], "zzzz")  # noqa: B009
    assert not hasattr(pair[0], "__len__")


def test_wrong_models_are_refused(pair: Pair, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"target is a NoneType; expected a specdec\.Model"):
        specdec.generate(None, None, PROMPT)  # type: ignore[arg-type]
    for wrong in (3, drafts.PromptLookup):
        with pytest.raises(InputError, match="draft is "):
            specdec.generate(pair[0], wrong, PROMPT)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        specdec.generate(tmp_path / "nothing", None, PROMPT)
    other = specdec.load(write_hf(tmp_path / "other", llama_config(vocab_size=N_VOCAB + 3)), tokenizer=False)
    for gamma in (0, 4):
        with pytest.raises(VocabularyMismatchError, match=f"{N_VOCAB + 3}"):
            specdec.generate(pair[0], other, PROMPT, gamma=gamma)


def test_nothing_is_computed_before_all_is_checked(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec._core.Session", None)
    with pytest.raises(InputError):
        specdec.generate(*pair, [PROMPT, [N_VOCAB]])


# ------------------------------------------------------------------------------------------------ results


def test_result(pair: Pair) -> None:
    out = run(*pair, "abc", max_new_tokens=12, gamma=4, ignore_eos=True)
    assert out.text == pair[0].tokenizer.decode(out.tokens, continuing=True)
    assert len(out.tokens) == out.trace.n_tokens == 12
    assert (out.finish_reason, out.stop) == ("length", None)
    assert out.trace.prefill_s > 0 and out.trace.verify_s > 0 and out.trace.draft_s > 0
    assert repr(out).startswith("Result(text=") and "\n" not in repr(out)
    assert [token for round_ in out.trace.rounds for token in round_.tokens] == out.tokens
    assert [round_.index for round_ in out.trace.rounds] == list(range(out.trace.n_calls))


def test_the_progress_bar_comes_to_its_end(
    pair: Pair, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text of a batch that ends early drops its unused draft tokens."""
    prompts = [PROMPT[:n] for n in range(1, 6)]
    outs = specdec.generate(*pair, prompts, batch_size=3, max_new_tokens=20, stop="b", progress=True)
    n = sum(len(out.tokens) for out in outs)
    assert n < 100 and capsys.readouterr().err.rpartition("\r")[2].count(f"{n}/{n}") == 1
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.raises(InputError, match="pip install"):
        specdec.generate(*pair, PROMPT, progress=True)


# ------------------------------------------------------------------------------------------------- streams


@pytest.mark.parametrize("prompt", ["abc", "", [5, 6]])
def test_stream_gives_the_text(pair: Pair, prompt: Any) -> None:
    options: dict[str, Any] = {"max_new_tokens": 30, "seed": 2, "temperature": 1.0, "ignore_eos": True}
    stream = specdec.stream(*pair, prompt, **options)
    assert repr(stream) == "<specdec.Stream, open: 0 characters>"
    with pytest.raises(RuntimeError, match="the stream has not ended"):
        _ = stream.result
    pieces = list(stream)
    whole = run(*pair, prompt, **options)
    assert "".join(pieces) == stream.result.text == whole.text
    assert all(pieces) and 1 < len(pieces) <= whole.trace.n_calls
    assert next(stream, None) is None
    assert stream.result.tokens == whole.tokens and stream.result.logits is None
    assert repr(stream) == f"<specdec.Stream, ended by 'length': {len(whole.text)} characters>"


def test_stream_left_early_frees_the_session(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec._core.Session", RecordedSession)
    made, closed = RecordedSession.made, RecordedSession.closed
    with specdec.stream(*pair, PROMPT, ignore_eos=True) as stream:
        next(stream)
        assert (RecordedSession.made, RecordedSession.closed) == (made + 1, closed)
    assert RecordedSession.closed == closed + 1
    stream.close()
    assert list(stream) == []
    with pytest.raises(RuntimeError, match="no result"):
        _ = stream.result
    stream = specdec.stream(*pair, PROMPT, ignore_eos=True)
    next(stream)
    del stream
    assert (RecordedSession.made, RecordedSession.closed) == (made + 2, closed + 2)


# -------------------------------------------------------------------------------------- threads, interrupts


INTERRUPTED = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import specdec
from toy_pair import RecordedSession, load_pair
target, draft = load_pair(Path(sys.argv[2]), max_position_embeddings=2_000_000)
specdec._core.Session = RecordedSession
specdec.generate, specdec.stream  # imported before the wait, which would take long on a busy machine
print("begun", flush=True)
try:
    options = dict(max_new_tokens=100_000, ignore_eos=True, n_threads=1)
    if sys.argv[3] == "generate":
        specdec.generate(target, draft, [1, 2, 3], **options)
    elif sys.argv[3] == "beam_search":
        specdec.beam_search(target, draft, [1, 2, 3], width=2, **options)
    else:
        for piece in specdec.stream(target, draft, "abc", **options):
            pass
except KeyboardInterrupt:
    print("interrupted", RecordedSession.closed, flush=True)
    assert len(specdec.generate(target, draft, [1, 2, 3], max_new_tokens=5, ignore_eos=True).tokens) == 5
    raise
"""


@pytest.mark.parametrize("call", ["generate", "stream", "beam_search"])
def test_ctrl_c_ends_a_long_run_at_once(tmp_path: Path, call: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(TESTS), str(tmp_path), call]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, preexec_fn=notice_interrupts) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n", process.communicate()
        time.sleep(1.0)
        assert process.poll() is None
        sent = time.perf_counter()
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
        took = time.perf_counter() - sent
    assert output == f"interrupted {int(call != 'beam_search')}\n"  # which has no session
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert process.returncode == -signal.SIGINT
    assert took < 20.0  # a round takes some 0.1 ms, the whole run minutes; the rest is for busy machines
