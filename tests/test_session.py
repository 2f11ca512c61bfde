"""Sessions: greedy output equals plain output, sequences are independent, edge cases of bookkeeping."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import specdec
from descriptions import by_method
from sessions import Session, Settings, all_rounds
from specdec import drafts
from worlds.canonical import GPT, LLAMA, build, fixed_acceptance, perturbed, random_tensors, run_session

PROMPTS = [[3], list(range(7)), list(range(30, 60)), [5, 9] * 50]


@pytest.fixture(scope="module", params=["llama", "gpt"])
def models(request):
    """A target, a draft that often agrees with it, and an unrelated draft."""
    config, scale = (LLAMA, 0.02) if request.param == "llama" else (GPT, 0.1)
    tensors = random_tensors(config)
    stranger = random_tensors(config | {"n_layer": 1, "d_ff": 20}, seed=99)
    return (
        build(config, tensors),
        build(config, perturbed(tensors, scale)),
        build(config | {"n_layer": 1, "d_ff": 20}, stranger),
    )


def new_session(target, draft, prompts, **changes):
    return Session(target, draft, prompts, **{"gamma": 4, "max_new_tokens": 40, "temperature": 0.0} | changes)


def test_drafters_read_long_prompts_to_their_end():
    """Prompts read in slices end with their own first tokens: what follows there is drafted."""
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
            session = new_session(target, description, prompts, gamma=6)
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
        for record in batch:
            rows = record.pop("logits")
            kept = {key: value for key, value in record.items() if not key.endswith("_s")}
            records.append(kept | {"logits": rows if rows is None else rows.tobytes()})
        n_calls += 1
    return records, n_calls


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("n_prompts", [1, 4, pytest.param(70, marks=pytest.mark.slow)])
def test_several_rounds_in_one_call_are_the_same_rounds(models, temperature, n_prompts):
    """With logits that are kept, or more sequences than a call has room for, it makes one round."""
    how = {"temperature": temperature, "keep_logits": n_prompts == 1}
    prompts = [[i % 90, 5] for i in range(n_prompts)]
    expected, n_rounds = all_records(new_session(*models[:2], prompts, **how))
    records, n_calls = all_records(new_session(*models[:2], prompts, **how), seconds=60.0)
    assert records == expected
    assert n_calls < n_rounds if n_prompts == 4 else n_calls == n_rounds


@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.8, 1.0])
def test_a_draft_of_fixed_acceptance_is_accepted_at_that_rate(models, alpha):
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
    # independently of each other (equation 1 of the paper)
    whole = [len(r["tokens"]) for r in records if len(r["drafted"]) == 4]
    expected = (1 - alpha**5) / (1 - alpha)
    assert abs(np.mean(whole) - expected) < 4 * np.std(whole) / np.sqrt(len(whole))


BAD_PROMPTS = [
    ([], "has 0 tokens"), ([101], "token 0 is 101"), ([1, -2], "token 1 is -2"),
    ([1] * 256, "has 256 tokens"),
]  # fmt: skip


@pytest.mark.parametrize(("prompt", "message"), BAD_PROMPTS)
def test_bad_prompts_are_refused(models, prompt, message):
    """At the start of a session, and next to a text that continues undisturbed."""
    with pytest.raises(ValueError, match=message):
        new_session(*models[:2], [[1], prompt])
    plain, session = (new_session(*models[:2], [[1], [2]], max_new_tokens=8) for _ in range(2))
    session.prefill()
    session.finish(1)
    found = session.round()
    with pytest.raises(ValueError, match=message):
        session.replace(1, prompt, (1, 1))
    assert tokens_of(found + all_rounds(session)) == tokens_of(all_rounds(plain))


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
            pass  # not yet or no longer in the core: the call itself is refused for its argument
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


# ------------------------------------------------------------- slots: texts join, leave and sit rounds out

GREEDY = specdec.Sampling().core()
DRAWN = specdec.Sampling(temperature=1.0).core()
TENSORS = random_tensors(LLAMA | {"n_ctx": 2000})


@pytest.fixture(scope="module")
def pair():
    return tuple(build(LLAMA | {"n_ctx": 2000}, these) for these in (TENSORS, perturbed(TENSORS, 0.05)))


def slots_of(target, draft, gamma, n_text=120):
    return Session(
        target, draft, [], seeds=[], gamma=gamma, n_slots=2, n_text=n_text, max_top=3, mixed=True, n_threads=1
    )


def joined(session, slot, prompt, **how):
    settings = Settings(**({"max_new_tokens": 12, "sampling": GREEDY} | how))
    session.replace(slot, prompt, (3, slot), settings=settings)


def tokens_of(records, slot=0):
    return [token for record in records if record["sequence"] == slot for token in record["tokens"]]


def test_rounds_go_on_while_a_prompt_is_read(pair):
    """Between two slices of a long prompt the text that runs gets its rounds."""
    session = slots_of(*pair, 2, 1900)
    joined(session, 0, [1, 2, 3], max_new_tokens=300)
    session.prefill()
    joined(session, 1, [5, 6, 7] * 300, max_new_tokens=2)
    n_between = 0
    while session.prefill_slice():
        (record,) = session.round()
        assert record["sequence"] == 0 and record["tokens"]
        n_between += 1
    assert n_between >= 13
    assert {record["sequence"] for record in session.round()} == {0, 1}


@pytest.mark.parametrize("drafted", [False, True])
@pytest.mark.parametrize("prefill", ["rows", "tiles", "blas"])
def test_prompts_are_read_in_the_order_in_which_they_came(prefill, drafted):
    """Whatever their slots: slot 3 comes first, and the lowest slot is taken again and again."""
    config = LLAMA | {"n_ctx": 1000, "n_layer": 1}
    how = {"prefill": prefill, "dtype": "bf16" if prefill == "tiles" else "f32"}
    tensors = random_tensors(config)
    target = build(config, tensors, **how)
    draft = build(config, perturbed(tensors, 0.05), **how) if drafted else None
    options = {"gamma": 2 if drafted else 0, "n_slots": 4, "n_text": 900, "mixed": True}
    session = Session(target, draft, [], seeds=[], **options)
    sizes, waiting, ready = [800, 300, 600, *[200] * 9], {}, []
    for number, slot in enumerate((3, 1, 2)):
        joined(session, slot, [number] * sizes[number], max_new_tokens=1)
        waiting[slot] = number
    came = 3
    while waiting:
        unread = session.prefill_slice()
        read = sorted(waiting.pop(slot) for slot in set(waiting) - set(unread))
        ready += read
        if read:
            session.round()
        if came < 12 and 0 not in waiting:
            joined(session, 0, [came] * sizes[came], max_new_tokens=1)
            waiting[0], came = came, came + 1
    assert ready == list(range(12))


def test_a_text_with_a_negative_gamma_sits_a_round_out(pair):
    session, plain = slots_of(*pair, 3), slots_of(pair[0], None, 0)
    for slot in range(2):
        joined(session, slot, [1, 2, 3 + slot])
        joined(plain, slot, [1, 2, 3 + slot])
    session.prefill()
    found = []
    for gammas in [[-1, 3]] * 3 + [[0, -1]] * 3 + [[-1, -1]]:
        records = session.round(gammas=gammas)
        assert {record["sequence"] for record in records} == {i for i in range(2) if gammas[i] >= 0}
        assert all(len(record["drafted"]) <= gammas[record["sequence"]] for record in records)
        found += records
    found += all_rounds(session)
    expected = all_rounds(plain)
    assert all(tokens_of(found, slot) == tokens_of(expected, slot) for slot in range(2))


@pytest.mark.parametrize("draft", [None, "model", by_method("context_copy", None, 1, 1)])
def test_a_cancelled_prompt_is_read_no_further(pair, draft):
    session = slots_of(pair[0], pair[0] if draft == "model" else draft, 2, 1900)
    for n_slices in (0, 1, 5):
        joined(session, 0, list(range(100)) * 15, max_new_tokens=2)
        for _ in range(n_slices):
            assert session.prefill_slice() == [0]
        session.finish(0)
        assert session.prefill_slice() == []
    joined(session, 0, [1, 2, 3], max_new_tokens=5)
    assert len(tokens_of(all_rounds(session))) == 5


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"max_new_tokens": 119}, "may have 121 tokens, expected at most n_text, 120"),
        ({"logprobs_of": "model", "n_top": 4}, "n_top is 4, expected at most the session's, 3"),
        ({"prediction": [1, 101]}, "prediction: token 1 is 101, expected 0 to 100"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"), ({"gamma": -1}, "gamma is -1"),
        ({"rule": "fair"}, "the rule is 'fair'"), ({"lenience": 0.0}, "lenience is 0"),
        ({"rule": "block", "sampling": DRAWN}, "block"), ({"sampling": {"temperature": -0.1}}, "temperature"),
    ],
)  # fmt: skip
def test_a_prompt_that_does_not_fit_is_refused(pair, how, message):
    """Nothing has changed: the present text continues."""
    session = slots_of(pair[0], by_method("static_tree", pair[1], [0, 0], "sample"), 3)
    joined(session, 0, [1, 2], max_new_tokens=6)
    session.prefill()
    with pytest.raises(ValueError, match=message):
        joined(session, 1, [1, 2], **how)
    assert len(tokens_of(all_rounds(session))) == 6


def test_a_session_that_is_not_mixed_says_so(pair):
    session = new_session(*pair, [[1, 2]], max_new_tokens=2)
    session.prefill()
    while session.round():
        pass
    for rule, what in (("rejection", "let the draft draw"), ("coupled", "")):
        with pytest.raises(ValueError, match=f"{what}.*any settings"):
            joined(session, 0, [1, 2], max_new_tokens=2, sampling=DRAWN, rule=rule)
    joined(session, 0, [1, 2], max_new_tokens=2, sampling=DRAWN, draft_sampling=GREEDY)


def test_slots_are_taken_and_left_in_order(pair):
    session = slots_of(pair[0], None, 0)
    assert session.round() == [] == session.prefill_slice()
    joined(session, 1, [1, 2])
    with pytest.raises(RuntimeError, match="sequence 1 has not ended"):
        joined(session, 1, [1, 2])
    with pytest.raises(ValueError, match="sequence is 2, expected 0 to 1"):
        joined(session, 2, [1, 2])
    with pytest.raises(TypeError, match="settings: expected specdec._core.Settings"):
        session.replace(0, [1, 2], (1, 0))
    for seed in (3, (0, -1, 2)):
        with pytest.raises(TypeError, match="seed"):
            session.replace(0, [1, 2], seed, settings=Settings(max_new_tokens=2, sampling=GREEDY))
