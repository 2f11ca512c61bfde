"""The slots of a session: texts with settings of their own join, leave and fail, and no other text changes.

The reference of each text is plain decoding of it alone. With greedy and coupled settings every draft gives
that to the bit, so the drafts, the batch and the moment at which a text joins must not show.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import specdec
from compiled import Model
from descriptions import by_method
from distributions import embedded_llama2c, first_layers
from drafters import DRAFTS, World, named
from sessions import Session, Settings
from specdec.drafts.model_draft import open_draft
from worlds.canonical import LLAMA, build, perturbed, random_tensors

TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom. " * 4
N_TEXT = 120


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("draft")
    _, target = specdec.embedded_pair()
    return World(target, first_layers(embedded_llama2c(folder), 1, folder), target.tokenizer.encode(TEXT))


def sampling(**changes: Any) -> dict[str, Any]:
    return specdec.Sampling(**changes).core()


def halved(probs: NDArray[np.float64], tokens: list[int]) -> NDArray[np.float64]:
    """A transform: tokens that are multiples of the text's length are half as probable."""
    probs[:: len(tokens)] *= 0.5
    return probs


def make_settings(draws: random.Random) -> dict[str, Any]:
    """Of a text whose tokens do not depend on its draft."""
    how: dict[str, Any] = {"max_new_tokens": draws.randint(1, 30)}
    adjusted: dict[str, Any] = {}
    if draws.random() < 0.3:
        adjusted["presence_penalty"] = draws.choice([-0.5, 0.7])
    if draws.random() < 0.3:
        adjusted["frequency_penalty"] = draws.choice([0.2, 1.0])
    if draws.random() < 0.2:
        adjusted["repetition_penalty"] = 1.2
    if draws.random() < 0.2:
        adjusted["logit_bias"] = {draws.randrange(400): draws.choice([-2.0, 3.0])}
    if draws.random() < 0.5:
        how["rule"] = draws.choice(["rejection", "coupled"])
        how["sampling"] = sampling(**adjusted)
    else:
        how["rule"] = "coupled"
        how["sampling"] = sampling(temperature=draws.choice([0.7, 1.2]), top_p=0.95, **adjusted)
    if draws.random() < 0.3:
        how["draft_sampling"] = sampling(temperature=draws.choice([0.0, 1.0]))
    if draws.random() < 0.2:
        how["transform"] = halved
    if draws.random() < 0.3:
        how["stop_ids"] = [draws.randrange(100) for _ in range(3)]
    if draws.random() < 0.3:
        how["gamma"] = draws.randint(0, 3)
    if draws.random() < 0.3:
        how |= {"law": draws.choice(["model", "sampling"]), "n_top": draws.randint(0, 3)}
    if draws.random() < 0.2:
        how["drafters"] = draws.randrange(4)
    return how


class Text:
    """A text to be decoded, and what has come of it."""

    def __init__(self, world: World, draws: random.Random, number: int) -> None:
        at, size = draws.randrange(30), draws.choice([1, 2, 9, 40, 85])
        self.prompt = world.ids[at : at + size]
        self.how = make_settings(draws)
        self.key = (7, number)
        self.tokens: list[int] = []
        self.laws: list[Any] = []

    def take(self, record: dict[str, Any]) -> None:
        assert record["error"] is None, record["error"]
        self.tokens += record["tokens"]
        if record["laws"] is not None:
            self.laws += zip(*(part.tolist() for part in record["laws"]), strict=True)

    def length(self, tokens: list[int]) -> int:
        """Tokens up to a stop id."""
        stops = self.how.get("stop_ids", ())
        return next((i + 1 for i, token in enumerate(tokens) if token in stops), len(tokens))

    @property
    def ended(self) -> bool:
        stopped = bool(set(self.tokens) & set(self.how.get("stop_ids", ())))
        return stopped or len(self.tokens) == self.how["max_new_tokens"]

    def alone(self, target: Model) -> tuple[list[int], list[Any]]:
        """What plain decoding of this text by itself gives."""
        session = Session(
            target, None, [self.prompt], gamma=0, seeds=[self.key], n_threads=1,
            settings=Settings(**self.how),
        )  # fmt: skip
        session.prefill()
        found = Text.__new__(Text)
        found.tokens, found.laws = [], []
        while records := session.round():
            for record in records:
                found.take(record)
        return found.tokens, found.laws


def slots_of(target: Model, draft: Any, n_slots: int, gamma: int, **more: Any) -> Session:
    return Session(
        target, draft, [], seeds=[], gamma=gamma, n_slots=n_slots, n_text=N_TEXT, max_top=3, mixed=True,
        n_threads=1, **more,
    )  # fmt: skip


def run_together(session: Session, texts: list[Text], n_slots: int, draws: random.Random) -> set[int]:
    """Decode texts in slots, prompts read between rounds; cancel some. Returns which were cancelled."""
    waiting, running, cancelled = list(range(len(texts))), {}, set()
    free = list(range(n_slots))
    reading = False
    for _ in range(10_000):
        while waiting and free and draws.random() < 0.7:
            number, slot = waiting.pop(0), free.pop(draws.randrange(len(free)))
            text = texts[number]
            session.replace(slot, text.prompt, text.key, settings=Settings(**text.how))
            running[slot] = number
            reading = True
        if not running and not waiting:
            return cancelled
        if reading:
            reading = bool(session.prefill_slice())
        if running and draws.random() < 0.1:
            slot = draws.choice(list(running))
            cancelled.add(running.pop(slot))
            session.finish(slot)
            free.append(slot)
        try:
            records = session.round()
        except RuntimeError as error:
            assert "have not been read" in str(error) and reading
            continue
        ended = {r["sequence"] for r in records}
        for record in records:
            if record["sequence"] in running:
                texts[running[record["sequence"]]].take(record)
        for slot in ended:
            text = texts[running[slot]]
            if text.ended:
                del running[slot]
                free.append(slot)
    raise AssertionError("it does not come to an end")


@pytest.mark.parametrize("name", named(DRAFTS))
def test_texts_that_join_and_leave_are_what_they_are_alone(world: World, name: str) -> None:
    draft = open_draft("draft", DRAFTS[name](world))
    draws = random.Random(name)
    target = world.target.core
    texts = [Text(world, draws, number) for number in range(9)]
    session = slots_of(target, draft.describe(world.target), 3, 5)
    cancelled = run_together(session, texts, 3, draws)
    session.close()
    for number, text in enumerate(texts):
        tokens, laws = text.alone(target)
        if number in cancelled:
            assert text.tokens == tokens[: len(text.tokens)]
            continue
        n = text.length(tokens)  # the core commits a round whole, also what comes behind a stop id
        assert text.tokens[:n] == tokens[:n] and text.length(text.tokens) == n, (number, text.how)
        assert text.laws[:n] == laws[:n]


GREEDY = sampling()
DRAWN = sampling(temperature=1.0)


@pytest.fixture(scope="module")
def models() -> tuple[Model, Model]:
    tensors = random_tensors(LLAMA)
    return build(LLAMA, tensors), build(LLAMA, perturbed(tensors, 0.05))


def joined(session: Session, slot: int, prompt: list[int], **how: Any) -> None:
    settings = Settings(**({"max_new_tokens": 12, "sampling": GREEDY} | how))
    session.replace(slot, prompt, (3, slot), settings=settings)


def all_rounds(session: Session) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = {}
    while records := session.round():
        for record in records:
            found.setdefault(record["sequence"], []).append(record)
    return found


def tokens_of(records: list[dict[str, Any]]) -> list[int]:
    return [token for record in records for token in record["tokens"]]


class RefusalError(Exception):
    pass


@pytest.mark.parametrize("drafted", [False, True])
def test_a_transform_that_raises_ends_its_own_sequence(models: Any, drafted: bool) -> None:
    target, draft = models

    def refuse(probs: NDArray[np.float64], tokens: list[int]) -> NDArray[np.float64]:
        if len(tokens) >= 7:
            raise RefusalError(f"after {len(tokens)}")
        return probs

    prompts = [[1, 2, 3], [4, 5], [6, 7, 8]]
    expected = {}
    for slot in (0, 2):
        alone = slots_of(target, None, 3, 0)
        joined(alone, slot, prompts[slot])
        alone.prefill()
        expected[slot] = tokens_of(all_rounds(alone)[slot])
    session = slots_of(target, draft if drafted else None, 3, 4)
    for slot, prompt in enumerate(prompts):
        joined(session, slot, prompt, **({"transform": refuse} if slot == 1 else {}))
    session.prefill()
    found = all_rounds(session)
    assert {slot: tokens_of(found[slot]) for slot in (0, 2)} == expected
    *before, last = found[1]
    assert all(record["error"] is None for record in before)
    assert isinstance(last["error"], RefusalError) and last["tokens"] == []
    assert last["error"].__traceback__ is not None
    assert 2 + len(tokens_of(before)) <= 7
    joined(session, 1, prompts[0], transform=lambda probs, tokens: probs)  # the slot is sound
    session.prefill()
    assert tokens_of(all_rounds(session)[1])[:12] == expected[0]


def test_settings_that_cannot_be_met_end_their_own_sequence(models: Any) -> None:
    session = slots_of(models[0], models[1], 2, 3)
    joined(session, 0, [1, 2])
    joined(session, 1, [1, 2], sampling=sampling(presence_penalty=-3e38, frequency_penalty=-3e38))
    session.prefill()
    found = all_rounds(session)
    assert isinstance(found[1][-1]["error"], specdec.InputError)
    assert "presence_penalty and frequency_penalty: the logit of token" in str(found[1][-1]["error"])
    assert len(tokens_of(found[0])) == 12


def test_rounds_go_on_while_a_prompt_is_read(models: Any) -> None:
    """Between two slices of a long prompt the text that runs gets its rounds."""
    config = LLAMA | {"n_ctx": 2000}
    tensors = random_tensors(config)
    target, draft = build(config, tensors), build(config, perturbed(tensors, 0.05))
    session = Session(target, draft, [], seeds=[], gamma=2, n_slots=2, n_text=1900, n_threads=1, mixed=True)
    joined(session, 0, [1, 2, 3], max_new_tokens=300)
    while session.prefill_slice():
        pass
    joined(session, 1, [5, 6, 7] * 300, max_new_tokens=2)
    n_between, n_slices = 0, 0
    done = False
    while not done:
        done = not session.prefill_slice()
        n_slices += 1
        if not done:
            (record,) = session.round()
            assert record["sequence"] == 0 and record["tokens"]
            n_between += 1
    assert n_slices >= 14 and n_between == n_slices - 1
    assert {record["sequence"] for record in session.round()} == {0, 1}


@pytest.mark.parametrize("drafted", [False, True])
@pytest.mark.parametrize("prefill", ["rows", "tiles", "blas"])
def test_prompts_are_read_in_the_order_in_which_they_came(prefill: str, drafted: bool) -> None:
    """Whatever their slots, and while others come: slot 3 comes first, and lower ones are taken again."""
    config = LLAMA | {"n_ctx": 1000, "n_layer": 1}
    tensors = random_tensors(config)
    how: dict[str, Any] = {"prefill": prefill, "dtype": "bf16" if prefill == "tiles" else "f32"}
    target = build(config, tensors, **how)
    draft = build(config, perturbed(tensors, 0.05), **how) if drafted else None
    session = Session(
        target, draft, [], seeds=[], gamma=2 if drafted else 0, n_slots=4, n_text=900, n_threads=1,
        mixed=True,
    )  # fmt: skip
    draws = random.Random(5)
    came: list[int] = []
    ready: list[int] = []
    came_at: dict[int, int] = {}

    def join(slot: int, n_tokens: int) -> None:
        joined(session, slot, [draws.randrange(100) for _ in range(n_tokens)], max_new_tokens=1)
        came_at[slot] = len(came)
        came.append(slot)

    for slot, n_tokens in ((3, 800), (1, 300), (2, 600)):
        join(slot, n_tokens)
    for _ in range(300):
        unread = set(session.prefill_slice())
        now = sorted(set(came_at) - unread, key=came_at.__getitem__)
        ready += [came_at[slot] for slot in now]
        for slot in now:
            del came_at[slot]
        if now:
            session.round()
        if len(came) < 12 and 0 not in came_at:
            join(0, 200)  # it comes last, into the lowest slot
        if not came_at:
            break
    assert ready == list(range(12))


def test_a_text_with_a_negative_gamma_sits_a_round_out(models: Any) -> None:
    session = slots_of(*models, 2, 3)
    for slot in range(2):
        joined(session, slot, [1, 2, 3 + slot])
    session.prefill()
    found: dict[int, list[int]] = {0: [], 1: []}
    for gammas in [[-1, 3]] * 3 + [[0, -1]] * 3 + [[-1, -1]]:
        records = session.round(gammas=gammas)
        assert {record["sequence"] for record in records} == {i for i in range(2) if gammas[i] >= 0}
        for record in records:
            assert len(record["drafted"]) <= gammas[record["sequence"]]
            found[record["sequence"]] += record["tokens"]
    for slot, records in all_rounds(session).items():
        found[slot] += tokens_of(records)
    for slot in range(2):
        alone = slots_of(models[0], None, 2, 0)
        joined(alone, slot, [1, 2, 3 + slot])
        alone.prefill()
        assert found[slot] == tokens_of(all_rounds(alone)[slot])


def test_a_cancelled_prompt_is_read_no_further(models: Any) -> None:
    config = LLAMA | {"n_ctx": 2000}
    target = build(config, random_tensors(config))
    for draft in (None, target, by_method("context_copy", None, 1, 1)):
        session = slots_of(target, draft, 2, 2)
        session.close()
        session = Session(target, draft, [], seeds=[], gamma=2, n_slots=2, n_text=1900, n_threads=1)
        for n_slices in (0, 1, 5):
            joined(session, 0, list(range(100)) * 15, max_new_tokens=2)
            for _ in range(n_slices):
                assert session.prefill_slice() == [0]
            session.finish(0)
            assert session.prefill_slice() == []
        joined(session, 0, [1, 2, 3], max_new_tokens=5)
        session.prefill()
        assert len(tokens_of(all_rounds(session)[0])) == 5


REFUSED = [
    ({"max_new_tokens": 119}, "may have 121 tokens, expected at most n_text, 120"),
    ({"law": "model", "n_top": 4}, "n_top is 4, expected at most the session's, 3"),
    ({"prediction": [1, 101]}, "prediction: token 1 is 101, expected 0 to 100"),
    ({"max_new_tokens": 0}, "max_new_tokens is 0"), ({"gamma": -1}, "gamma is -1"),
    ({"rule": "fair"}, "the rule is 'fair'"), ({"lenience": 0.0}, "lenience is 0"),
    ({"rule": "block", "sampling": DRAWN}, "block"), ({"sampling": {"temperature": -0.1}}, "temperature"),
]  # fmt: skip


@pytest.mark.parametrize(("how", "message"), REFUSED)
def test_a_prompt_that_does_not_fit_is_refused(models: Any, how: dict[str, Any], message: str) -> None:
    """And nothing has changed: the text that is there goes on."""
    tree = by_method("static_tree", models[1], [0, 0], "sample")
    session = slots_of(models[0], tree, 2, 3)
    joined(session, 0, [1, 2], max_new_tokens=6)
    session.prefill()
    with pytest.raises(ValueError, match=message):
        joined(session, 1, [1, 2], **how)
    assert len(tokens_of(all_rounds(session)[0])) == 6


def test_a_session_that_is_not_mixed_says_so(models: Any) -> None:
    session = Session(
        models[0], models[1], [[1, 2]], seeds=[(1, 0)], gamma=2, n_threads=1, max_new_tokens=2,
        sampling=GREEDY,
    )  # fmt: skip
    session.prefill()
    all_rounds(session)
    for how, what in (
        ({"sampling": DRAWN}, "let the draft draw"),
        ({"sampling": DRAWN, "rule": "coupled"}, ""),
    ):
        with pytest.raises(ValueError, match=f"{what}.*any settings"):
            joined(session, 0, [1, 2], max_new_tokens=2, **how)
    joined(session, 0, [1, 2], max_new_tokens=2, sampling=DRAWN, draft_sampling=GREEDY)


def test_slots_are_taken_and_left_in_order(models: Any) -> None:
    session = slots_of(models[0], None, 2, 0)
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


def test_which_drafts_of_an_ensemble_guess_is_the_sequences_own(models: Any) -> None:
    """Origins of guesses, and predictions that are copied by the sequence that has one alone."""
    target = models[0]
    copies = by_method("prediction_copy", 0, 1, 1)
    pair = by_method("ensemble", False, [3, 3], (copies, models[1]))
    plain = slots_of(target, None, 1, 0)
    joined(plain, 0, [1, 2, 3])
    plain.prefill()
    expected = tokens_of(all_rounds(plain)[0])
    session = slots_of(target, pair, 4, 6)
    ways = [
        {"drafters": 3, "prediction": expected}, {"drafters": 1, "prediction": expected},
        {"drafters": 2, "prediction": expected}, {"drafters": 0},
    ]  # fmt: skip
    with pytest.raises(ValueError, match="block"):  # trees of two
        joined(session, 0, [1, 2, 3], rule="block", sampling=DRAWN, drafters=3)
    for slot, how in enumerate(ways):
        joined(session, slot, [1, 2, 3], **how)
    session.prefill()
    found = all_rounds(session)
    for slot in range(4):
        assert tokens_of(found[slot]) == expected
    origins = [{origin for record in found[slot] for origin in record["origins"] or ()} for slot in range(4)]
    assert origins == [{0, 1}, {0}, {1}, set()]
    assert found[3][0]["origins"] is None and all(record["drafted"] == [] for record in found[3])
    assert all(record["accepted"] for record in found[1][:-1])  # the prediction is right


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_a_draft_that_is_chosen_alone_draws_as_it_does_outside(models: Any, rule: Any) -> None:
    """With one seed the sample of an ensemble's only drafter is that of the drafter itself."""
    target, draft = models
    pair = by_method("ensemble", False, [3, 3], (by_method("context_copy", None, 1, 1), draft))
    texts = []
    for description, how in ((draft, {}), (pair, {"drafters": 2})):
        session = slots_of(target, description, 1, 3)
        joined(session, 0, [1, 2, 3], rule=rule, sampling=sampling(temperature=1.2), max_new_tokens=40, **how)
        session.prefill()
        found = all_rounds(session)[0]
        texts.append([(record["drafted"], record["tokens"]) for record in found])
    assert texts[0] == texts[1]
