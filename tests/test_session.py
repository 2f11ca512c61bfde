"""Sessions: greedy output is plain output, sequences do not know of each other, bookkeeping at every edge."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from descriptions import by_method
from sessions import Session
from specdec import drafts
from worlds.canonical import GPT, LLAMA, build, fixed_acceptance, perturbed, random_tensors, run_session

PROMPTS = [[3], list(range(7)), list(range(30, 60)), [5, 9] * 50]


@pytest.fixture(scope="module", params=["llama", "gpt"])
def models(request):
    """Target; a draft that often agrees; a draft that knows nothing of it."""
    config, scale = (LLAMA, 0.02) if request.param == "llama" else (GPT, 0.1)
    tensors = random_tensors(config)
    stranger = random_tensors(config | {"n_layer": 1, "d_ff": 20}, seed=99)
    return (
        build(config, tensors),
        build(config, perturbed(tensors, scale)),
        build(config | {"n_layer": 1, "d_ff": 20}, stranger),
    )


@pytest.fixture(
    scope="module",
    params=[
        ("llama", "f32", "f32", "f32"), ("gpt", "f32", "f32", "int4"), ("llama", "f32", "bf16", "f32"),
        ("llama", "bf16", "bf16", "int4"), ("gpt", "int8", "f32", "int8"), ("llama", "int4", "bf16", "bf16"),
    ],
    ids="-".join,
)  # fmt: skip
def formats(request):
    """Target and drafts as above in other formats, the drafts in one of their own; and the plain output."""
    family, dtype, cache_dtype, draft_dtype = request.param
    config, scale = (LLAMA, 0.02) if family == "llama" else (GPT, 0.1)
    tensors = random_tensors(config)
    small = config | {"n_layer": 1, "d_ff": 20}
    target = build(config, tensors, dtype=dtype, cache_dtype=cache_dtype)
    friend = build(config, perturbed(tensors, scale), dtype=draft_dtype, cache_dtype=cache_dtype)
    stranger = build(small, random_tensors(small, seed=99), dtype=draft_dtype)
    return target, friend, stranger, run_session(target, None, PROMPTS)


@pytest.mark.parametrize("gamma", range(9))
def test_greedy_output_is_plain_output(formats, gamma):
    target, friend, stranger, (plain_tokens, plain_logits, records) = formats
    assert all(len(tokens) == 40 for tokens in plain_tokens)
    assert all(record["drafted"] == [] and record["betas"] == [] for record in records)
    for draft, n_threads in ((friend, 1), (friend, 2), (stranger, 2), (target, 1)):
        tokens, logits, _ = run_session(target, draft, PROMPTS, gamma=gamma, n_threads=n_threads)
        assert tokens == plain_tokens
        for row, plain in zip(logits, plain_logits, strict=True):
            assert np.array_equal(row, plain)


def test_drafters_read_long_prompts_to_their_end():
    """Prompts that are read in slices end with their own beginnings: what follows there is drafted."""
    n, known = 12_000, 6
    sizes = {"n_layer": 1, "d_model": 8, "d_ff": 8, "n_head": 1, "n_kv_head": 1, "sliding_window": 8}
    config = LLAMA | sizes | {"n_ctx": n + 200}
    target = build(config, random_tensors(config))
    rng = np.random.default_rng(0)
    texts = [rng.integers(0, 101, size).tolist() for size in (n, 9_000, 50)]
    prompts = [text + text[:known] for text in texts]
    counts = drafts.OnlineNgram(6)._table(101).core
    for draft in (by_method("context_copy", None, known, 1), by_method("online_ngram", counts)):
        pair = by_method("ensemble", False, [3, 3], (draft, draft))
        for description in (draft, pair):
            session = Session(
                target, description, prompts, gamma=6, max_new_tokens=20, sampling={"temperature": 0.0},
                draft_sampling={"temperature": 0.0}, seeds=[(1, 0)] * 3, n_threads=1,
            )  # fmt: skip
            session.prefill()
            records = session.round()
            for text, record in zip(texts, records, strict=True):
                assert record["drafted"][:3] == text[known : known + 3], description


def test_records_describe_their_rounds(models):
    target, friend, _ = models
    tokens, _, records = run_session(target, friend, PROMPTS, gamma=4)
    some_accepted = some_rejected = False
    for record in records:
        n = len(record["accepted"])
        assert record["parents"] == list(range(len(record["drafted"])))
        assert record["accepted"] == list(range(1, n + 1))
        assert record["tokens"][:-1] == record["drafted"][:n]
        assert record["betas"] == [1.0] * n + [0.0] * (n < len(record["drafted"]))  # greedy: all or nothing
        some_accepted |= n > 0
        some_rejected |= n < len(record["drafted"])
        assert min(record["draft_s"], record["verify_s"], record["other_s"]) >= 0
    assert some_accepted and some_rejected
    for i, new in enumerate(tokens):
        assert [token for r in records if r["sequence"] == i for token in r["tokens"]] == new


def test_a_draft_equal_to_its_target_is_always_right(models):
    """All accepted: the draft's cache lags one token behind, in every round."""
    target = models[0]
    for temperature in (0.0, 1.0):
        _, _, records = run_session(
            target, target, [[1, 2, 3]], gamma=4, max_new_tokens=50, temperature=temperature
        )
        assert [len(r["accepted"]) for r in records] == [4] * 10
        np.testing.assert_allclose([b for r in records for b in r["betas"]], 1.0, atol=1e-12)


def test_a_draft_with_a_shorter_context_falls_silent(models):
    target = models[0]
    short = {**target.config, "n_ctx": 64}
    draft = build(short, random_tensors(short))
    for n_prompt in (40, 60, 63, 64, 65, 100):
        prompt = [i % 90 for i in range(n_prompt)]
        plain, plain_logits, _ = run_session(target, None, [prompt])
        tokens, logits, records = run_session(target, draft, [prompt])
        assert tokens == plain and np.array_equal(logits[0], plain_logits[0])
        assert any(r["drafted"] for r in records) == (n_prompt <= 64)
        assert records[-1]["drafted"] == []


def all_records(session, seconds=0.0):
    """Every record of a session without its times, and the number of calls that gave them."""
    session.prefill()
    records, n_calls = [], 0
    while batch := session.round(seconds):
        records += [{key: value for key, value in r.items() if not key.endswith("_s")} for r in batch]
        n_calls += 1
    return records, n_calls


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("n_prompts", [1, 4, pytest.param(70, marks=pytest.mark.slow)])
def test_several_rounds_in_one_call_are_the_same_rounds(models, temperature, n_prompts):
    """More sequences than a call has room for too: then it makes one round."""
    settings = {"temperature": temperature}
    how = {"sampling": settings, "draft_sampling": settings, "max_new_tokens": 100}
    prompts = [[i % 90, 5] for i in range(n_prompts)]
    expected, n_rounds = all_records(new_session(*models[:2], prompts, **how))
    records, n_calls = all_records(new_session(*models[:2], prompts, **how), seconds=60.0)
    assert records == expected
    assert n_calls == n_rounds if n_prompts == 70 else n_calls < n_rounds


def test_kept_logits_are_those_of_their_round(models):
    how = {"max_new_tokens": 20, "keep_logits": True}
    rows = []
    for seconds in (0.0, 60.0):
        session = new_session(*models[:2], [[1, 2]], **how)
        session.prefill()
        found = []
        while batch := session.round(seconds=seconds):
            found += [record["logits"] for record in batch]
        rows.append(np.concatenate(found))
    assert np.array_equal(*rows)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.8, 1.0])
def test_a_draft_of_fixed_acceptance_is_right_as_often_as_it_is_told(models, alpha):
    target, _, stranger = models
    prompts = [[i, 7] for i in range(24)]
    plain, logits, _ = run_session(target, None, prompts, max_new_tokens=200)
    texts = [prompt + new for prompt, new in zip(prompts, plain, strict=True)]
    draft = fixed_acceptance(stranger, alpha, texts)
    tokens, found, records = run_session(target, draft, prompts, max_new_tokens=200, gamma=4, n_threads=2)
    assert tokens == plain
    assert all(np.array_equal(*rows) for rows in zip(logits, found, strict=True))
    betas = [beta for r in records for beta in r["betas"]]
    assert set(betas) <= {0.0, 1.0} and len(betas) > 1000
    if alpha in (0.0, 1.0):
        assert np.mean(betas) == alpha
        return
    deviation = np.sqrt(alpha * (1 - alpha) / len(betas))
    assert abs(np.mean(betas) - alpha) < 4 * deviation
    # each guess by itself: a right one says nothing about the next (equation 1 of the paper)
    whole = [len(r["tokens"]) for r in records if len(r["drafted"]) == 4]
    expected = (1 - alpha**5) / (1 - alpha)
    assert abs(np.mean(whole) - expected) < 4 * np.std(whole) / np.sqrt(len(whole))


def test_guesses_past_the_known_text_stand(models):
    target, friend, _ = models
    plain, _, _ = run_session(target, None, [[1, 2]])
    draft = fixed_acceptance(friend, 1.0, [[1, 2, *plain[0][:9]]])
    tokens, _, records = run_session(target, draft, [[1, 2]])
    assert tokens == plain
    assert [len(r["accepted"]) for r in records[:1]] == [4]


def new_session(target, draft, prompts, **changes):
    options = {
        "gamma": 4, "max_new_tokens": 40,
        "sampling": {"temperature": 0.0}, "draft_sampling": {"temperature": 0.0},
        "seeds": [(1, i) for i in range(len(prompts))], "n_threads": 1, "keep_logits": False,
    }  # fmt: skip
    return Session(target, draft, prompts, **(options | changes))


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "has 0 tokens"), ([101], "token 0 is 101"), ([1, -2], "token 1 is -2"),
        ([1] * 256, "has 256 tokens"),
    ],
)  # fmt: skip
def test_bad_prompts_are_refused(models, prompt, message):
    with pytest.raises(ValueError, match=message):
        new_session(models[0], models[1], [[1], prompt])


def test_rounds_need_the_prompt(models):
    session = new_session(models[0], models[1], [[1, 2, 3]])
    with pytest.raises(RuntimeError, match="prompts have not been read"):
        session.round()
    session.prefill()
    assert session.round()
    session.close()
    session.close()
    with pytest.raises(RuntimeError, match="closed"):
        session.round()


def test_a_second_thread_is_refused():
    """Whichever thread comes second during a call gets RuntimeError, and the session goes on."""
    config = LLAMA | {"n_layer": 8, "d_model": 512, "d_ff": 1500, "n_ctx": 4096}
    big = build(config, random_tensors(config))
    session = new_session(big, None, [list(range(100)) * 20], max_new_tokens=2)
    errors, inside = [], threading.Event()

    def prefill():
        inside.set()
        session.prefill()

    thread = threading.Thread(target=prefill)
    thread.start()
    inside.wait()
    while thread.is_alive():
        try:
            session.finish(1)
        except RuntimeError as error:
            errors.append(str(error))
        except ValueError:
            pass  # not yet or no longer inside: the call itself is refused for its argument
    thread.join()
    assert "in use: another call of it has not returned" in " ".join(errors)
    assert session.round()


def test_sessions_run_side_by_side(models):
    """Models are shared freely and sessions are independent, whichever session has the thread pool."""
    target, friend, _ = models
    expected, _, _ = run_session(target, None, PROMPTS)
    results = {}

    def work(i):
        results[i] = run_session(target, friend, PROMPTS, gamma=i + 1, n_threads=2)[0]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(results[i] == expected for i in range(4))
