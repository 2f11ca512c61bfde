"""The engine: every text equals a run by itself, whatever other requests join, leave, fail or stop."""

from __future__ import annotations

import asyncio
import inspect
import os
import random
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import specdec
from drafters import DRAFTS, World, small_world
from processes import wait_for
from refusals import refuses
from specdec import BusyError, Engine, EngineClosedError, InputError, PromptCache, Sampling, Speculative
from specdec.errors import ContextLengthError

TEXT = "It was the best of times, it was the worst of times, it was the age of wisdom. " * 4
WAIT_S = 120.0
QUICK = ["model", "samples", "ensemble"]
OTHERS = [name for name in DRAFTS if name not in QUICK]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return small_world(tmp_path_factory.mktemp("draft"), TEXT)


@pytest.fixture(scope="module")
def engine(world: World) -> Iterator[Engine]:
    with Engine(world.target, world.draft, n_slots=3, n_text=200, n_threads=1) as engine:
        yield engine


def halved(probs: NDArray[np.float64], tokens: list[int]) -> NDArray[np.float64]:
    probs[:: len(tokens)] *= 0.5
    return probs


def request_of(world: World, draws: random.Random) -> tuple[list[int], dict[str, Any]]:
    """A prompt and options for which the text does not depend on the draft."""
    at, size = draws.randrange(30), draws.choice([1, 2, 9, 40, 85])
    how: dict[str, Any] = {"max_new_tokens": draws.randint(1, 30), "seed": draws.randrange(1000)}
    if draws.random() < 0.5:
        how |= {"temperature": draws.choice([0.7, 1.2]), "top_p": 0.95, "verify": "coupled"}
    more: list[tuple[float, str, list[Any]]] = [
        (0.3, "presence_penalty", [-0.5, 0.7]), (0.3, "frequency_penalty", [0.2, 1.0]),
        (0.3, "stop", [["e"], [" the", "zz"], [262]]), (0.3, "logprobs", [0, 1, 2, 3]),
        (0.2, "transform", [halved]), (0.2, "n", [2]), (0.2, "repetition_penalty", [1.2]),
        (0.2, "logit_bias", [{300: -2.0}, {262: 3.0}]),
        (0.3, "draft_sampling", [Sampling(0.0), Sampling(1.0)]),
    ]  # fmt: skip
    how |= {name: draws.choice(values) for chance, name, values in more if draws.random() < chance}
    return world.ids[at : at + size], how


def alone(world: World, prompt: list[int], how: dict[str, Any]) -> list[specdec.Result]:
    found = specdec.generate(world.target, None, prompt, n_threads=1, **how)
    return found if isinstance(found, list) else [found]


def check_equal(found: list[specdec.Result], expected: list[specdec.Result]) -> None:
    for one, plain in zip(found, expected, strict=True):
        assert one == plain
        assert (one.logprobs is None) == (plain.logprobs is None)
        if plain.logprobs is not None:
            assert np.array_equal(one.logprobs, plain.logprobs) and one.top_logprobs == plain.top_logprobs


@pytest.mark.parametrize("gamma", [4, "auto"])
@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_clients_that_come_and_go(world: World, name: str, gamma: Any) -> None:
    """Clients that submit at random moments, read or do not, and leave."""

    def client(number: int) -> None:
        draws = random.Random(f"{name} {number}")
        for _ in range(4):
            prompt, how = request_of(world, draws)
            choices = [None, Speculative(draft=False), Speculative(gamma=draws.randint(0, 3))]
            speculative = draws.choice(choices)
            expected = alone(world, prompt, how)
            prediction = expected[0].tokens if draws.random() < 0.3 else None
            generation = engine.submit(prompt, prediction=prediction, speculative=speculative, **how)
            if draws.random() < 0.2:  # a disconnected client
                time.sleep(draws.random() * 0.02)
                generation.cancel()
                for one, plain in zip(generation.results(WAIT_S), expected, strict=True):
                    assert one.tokens == plain.tokens[: len(one.tokens)]
                    assert one.finish_reason in ("cancelled", plain.finish_reason)
                continue
            if draws.random() < 0.5:
                texts, tokens = [""] * generation.n, [[] for _ in range(generation.n)]
                for piece in generation:
                    texts[piece.index] += piece.text
                    tokens[piece.index] += piece.tokens
                assert texts == [result.text for result in expected]
                assert tokens == [result.tokens for result in expected]
            check_equal(generation.results(WAIT_S), expected)
            assert [one.seed for one in generation.results()] == [one.seed for one in expected]

    how: dict[str, Any] = {"gamma": gamma, "n_slots": 3, "n_text": 200, "n_threads": 1}
    with Engine(world.target, DRAFTS[name](world), **how) as engine, ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(client, number) for number in range(4)]:
            future.result(WAIT_S)
        metrics = engine.metrics()
    assert metrics.n_running == metrics.n_reading == metrics.n_waiting == 0
    assert metrics.n_new_tokens > metrics.n_rounds and (name != "model" or metrics.n_accepted_tokens > 0)


def test_an_error_is_of_its_own_request(world: World, engine: Engine) -> None:
    def fails(probs: NDArray[np.float64], tokens: list[int]) -> NDArray[np.float64]:
        if len(tokens) > 14:
            raise ZeroDivisionError("no more")
        return probs

    expected = alone(world, world.ids[:10], {"max_new_tokens": 30})
    n_failed = engine.metrics().n_failed
    hows: list[dict[str, Any]] = [{}, {"transform": fails}, {}]
    generations = [engine.submit(world.ids[:10], max_new_tokens=30, n=2, **how) for how in hows]
    for i in (0, 2):
        check_equal(generations[i].results(WAIT_S), expected * 2)
    with pytest.raises(ZeroDivisionError, match="no more"):
        generations[1].results(WAIT_S)
    with pytest.raises(ZeroDivisionError, match="no more"):
        for piece in generations[1]:
            assert piece.tokens == expected[0].tokens[: len(piece.tokens)]
    assert generations[1].done
    wait_for(lambda: not engine.metrics().n_running)
    assert engine.metrics().n_failed == n_failed + 1  # one request, though both of its samples fail


def test_settings_that_cannot_be_met_end_their_own_request(world: World, engine: Engine) -> None:
    expected = alone(world, world.ids[:10], {"max_new_tokens": 20})
    unmet = {"presence_penalty": -3e38, "frequency_penalty": -3e38}
    generations = [engine.submit(world.ids[:10], max_new_tokens=20, **how) for how in ({}, unmet, {})]
    with pytest.raises(InputError, match="presence_penalty and frequency_penalty: the logit of token"):
        generations[1].results(WAIT_S)
    for i in (0, 2):
        check_equal(generations[i].results(WAIT_S), expected)


class Noting:
    """Draft that proposes wrong tokens, records calls, and fails in a method for some texts."""

    trees = True

    def __init__(self, proposal: Sequence[int] = (), fails: tuple[str, int] | None = None) -> None:
        self.proposal, self.fails = list(proposal), fails
        self.asked: set[int] = set()

    def _note(self, method: str, tokens: Any) -> None:
        self.asked.add(tokens[0])
        if (method, tokens[0]) == self.fails:
            raise ZeroDivisionError(method)

    def begin(self, sequence: int, prompt: Any) -> None:
        self._note("begin", prompt)

    def propose(self, sequence: int, tokens: Any, budget: int) -> list[int]:
        self._note("propose", tokens)
        return self.proposal

    def commit(self, sequence: int, tokens: Any) -> None:
        self._note("commit", tokens)


@pytest.mark.parametrize("method", ["begin", "propose", "commit"])
@pytest.mark.parametrize("where", ["alone", "predicted", "several", "nested"])
def test_a_draft_that_fails_for_a_text_ends_it_alone(world: World, method: str, where: str) -> None:
    """A text continues without draft tokens when the draft proposes none."""
    draft: Any = Noting([1], (method, 7))
    if where == "several":
        draft = specdec.drafts.Ensemble(world.draft, draft, adaptive=False)
    if where == "nested":
        draft = specdec.drafts.ModelDraft(world.draft, draft=draft)
    how: dict[str, Any] = {"max_new_tokens": 12, "ignore_eos": True}
    with Engine(world.target, draft, n_slots=4, n_text=100, predictions=where == "predicted") as engine:
        n_failed = 0
        for _ in range(2):  # in slots that have had such a text too
            good = [engine.submit([first, 2, 3], **how) for first in (5, 6)]
            bad = [engine.submit([7, first, 3], **how) for first in (2, 4)]
            plain = engine.submit([7, 2, 3], speculative=Speculative(draft=False), **how)
            for generation in (*good, plain):
                check_equal(generation.results(WAIT_S), alone(world, generation.prompt_ids, how))
            for generation in bad:
                with pytest.raises(ZeroDivisionError, match=method):
                    generation.result(WAIT_S)
            n_failed += 2
            assert engine.metrics().n_failed == n_failed
    with pytest.raises(ZeroDivisionError, match=method):
        specdec.generate(world.target, draft, [[5, 2, 3], [7, 2, 3]], **how)


@pytest.mark.parametrize("predictions", [True, False])
def test_requests_choose_among_drafts(world: World, predictions: bool) -> None:
    silent = Noting()
    drafts = {"small": world.draft, "copy": specdec.drafts.PromptLookup(min_match=1), "silent": silent}
    how: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 25, "seed": 5}
    prompts = {name: [i, *world.ids[:30]] for i, name in enumerate(["small", "copy", "silent", "none"])}
    with Engine(world.target, drafts, n_slots=8, n_text=100, predictions=predictions) as engine:
        assert list(engine.drafts) == list(drafts) and engine.draft is engine.drafts["small"]
        choices = {name: Speculative(name) for name in drafts} | {"none": Speculative(False)}
        begun = [engine.submit(prompts[name], speculative=choices[name], **how) for name in choices]
        for name, generation in zip(choices, begun, strict=True):
            draft = drafts.get(name)
            wanted = specdec.generate(world.target, draft, prompts[name], **how)
            found = generation.result(WAIT_S)
            assert found == wanted
            assert [r.drafted for r in found.trace.rounds] == [r.drafted for r in wanted.trace.rounds]
        assert engine.submit(prompts["small"], **how).result(WAIT_S) == begun[0].result()
        if predictions:
            copying = Speculative(draft="copy")
            engine.submit(prompts["none"], prediction=[1, 2], speculative=copying, **how).result(WAIT_S)
        with refuses("speculative.draft", "other"):
            engine.submit([1, 2], speculative=Speculative(draft="other"))
    assert silent.asked == {2}
    for wrong in ({}, {"": None}):
        with pytest.raises(InputError, match="draft has "):
            Engine(world.target, wrong)
    with Engine(world.target, world.draft, n_slots=1, n_text=50) as engine:
        with refuses("speculative.draft", "small"):
            engine.submit([1, 2], speculative=Speculative(draft="small"))


@pytest.mark.parametrize("error_type", [RuntimeError, SystemExit])
@pytest.mark.parametrize("method", ["remember", "rng_key"])
def test_a_draft_that_fails_before_or_after_a_text(
    world: World, error_type: type[BaseException], method: str
) -> None:
    """Whatever the draft raises, also for cancelled texts, the engine continues."""

    def fail(*_: Any) -> int:
        raise error_type(method)

    draft = type("Fails", (specdec.drafts.OnlineNgram,), {method: fail})(3)
    with Engine(world.target, draft, n_slots=1, n_text=100) as engine:
        for cancelled in (False, False, method == "remember"):
            generation = engine.submit([1, 2, 3], max_new_tokens=90 if cancelled else 5, ignore_eos=True)
            if cancelled:
                generation.next(WAIT_S)
                generation.cancel()
            with pytest.raises(error_type, match=method):
                generation.results(WAIT_S)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_has_no_engine(world: World, engine: Engine) -> None:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            engine.submit([1, 2])
        except EngineClosedError:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.fixture
def scores_that_wait(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """An event for which scoring of prompts waits."""
    go, score = threading.Event(), specdec.decoding.request_queue.score_prompts

    def held_up(*args: Any, **how: Any) -> Any:
        go.wait(WAIT_S)
        return score(*args, **how)

    monkeypatch.setattr(specdec.decoding.request_queue, "score_prompts", held_up)
    return go


def test_a_prompt_is_scored_while_one_sample_is_wanted(
    world: World, scores_that_wait: threading.Event
) -> None:
    with Engine(world.target, None, n_slots=2, n_text=100) as engine:
        how: dict[str, Any] = {"max_new_tokens": 2, "prompt_logprobs": 0}
        generations = [engine.submit([1, 2, 3], n=2, **how) for _ in range(2)]
        assert engine.metrics().n_waiting == 4
        generations[1].cancel(0)
        scores_that_wait.set()
        expected = alone(world, [1, 2, 3], how)[0].prompt_logprobs
        reasons = [result.finish_reason for result in generations[1].results(WAIT_S)]
        assert reasons == ["cancelled", "length"]
        assert np.array_equal(generations[1].results()[1].prompt_logprobs, expected)
        generations[0].results(WAIT_S)
        assert engine.metrics().n_waiting == 0


def test_an_engine_that_breaks_tells_those_whose_prompts_are_scored(
    world: World, monkeypatch: pytest.MonkeyPatch, scores_that_wait: threading.Event
) -> None:
    def fail(*args: Any) -> None:
        scores_that_wait.set()
        raise ZeroDivisionError("an engine")

    with Engine(world.target, None, n_slots=1, n_text=100) as engine:
        scored = [engine.submit([1, 2, 3], max_new_tokens=2, prompt_logprobs=0) for _ in range(2)]
        monkeypatch.setattr(engine, "_step", fail)
        monkeypatch.setattr(engine, "_begin_again", fail)
        for generation in (engine.submit([1, 2], max_new_tokens=2), *scored):
            with pytest.raises(ZeroDivisionError, match="an engine"):
                generation.result(WAIT_S)
        assert engine.closed


def test_slow_readers_hold_nobody_up_and_lose_nothing(world: World, engine: Engine) -> None:
    idle = [engine.submit(world.ids[:10], max_new_tokens=30, logprobs=1) for _ in range(2)]
    other = engine.submit(world.ids[:10], max_new_tokens=30, logprobs=1).result(WAIT_S)
    assert other.tokens == alone(world, world.ids[:10], {"max_new_tokens": 30})[0].tokens
    for generation in idle:
        generation.results(WAIT_S)
        (piece,) = generation  # all of them, merged
        assert (piece.text, piece.tokens, piece.finish_reason) == (other.text, other.tokens, "length")
        assert np.array_equal(piece.logprobs, other.logprobs) and piece.top_logprobs == other.top_logprobs
        assert generation.next() is None
        times = generation.times
        assert times.submitted <= times.started <= times.first_token <= times.ended


def test_predictions_are_copied_and_counted(world: World) -> None:
    (plain,) = alone(world, world.ids[:10], {"max_new_tokens": 60})
    half = plain.tokens[:30] + [5] * 30
    with Engine(world.target, None, n_text=200) as engine:
        without = engine.submit(world.ids[:10], max_new_tokens=60)
        right = engine.submit(world.ids[:10], max_new_tokens=60, prediction=plain.tokens)
        wrong = engine.submit(world.ids[:10], max_new_tokens=60, prediction=half)
        off = Speculative(draft=False)
        unused = engine.submit(world.ids[:10], max_new_tokens=60, prediction=half, speculative=off)
        for generation in (without, right, wrong, unused):
            assert generation.result(WAIT_S) == plain
        assert without.prediction is None and without.result().trace.n_calls == 60
        assert (right.prediction.n_tokens, right.prediction.n_rejected) == (60, 0)
        assert right.prediction.n_accepted >= 54 and right.result().trace.n_calls <= 5
        assert 20 <= wrong.prediction.n_accepted < 60 and wrong.prediction.n_rejected > 0
        assert (unused.prediction.n_accepted, unused.prediction.n_rejected) == (0, 0)
        text = engine.submit(world.ids[:10], max_new_tokens=60, prediction=plain.text)
        assert text.result(WAIT_S) == plain and text.prediction.n_accepted > 0
        used, metrics = (right.prediction, wrong.prediction, text.prediction), engine.metrics()
        assert metrics.n_prediction_accepted == sum(one.n_accepted for one in used)
        assert metrics.n_prediction_rejected == sum(one.n_rejected for one in used)


@pytest.mark.parametrize("rule", ["block", "k-sequential"])
def test_rules_for_one_draft_copy_predictions_alone(world: World, rule: Any) -> None:
    """These rules cannot judge copies together with a draft's tokens: the prediction replaces the draft."""
    how: dict[str, Any] = {"max_new_tokens": 40, "temperature": 0.3, "seed": 3, "verify": rule}
    with Engine(world.target, world.draft, n_slots=2, n_text=200) as engine:
        text = engine.submit(world.ids[:30], **how).result(WAIT_S)
        copied = engine.submit(world.ids[:30], prediction=text.tokens, **how)
        result = copied.result(WAIT_S)
        assert copied.prediction.n_accepted > 0
        n_copied = copied.prediction.n_accepted + copied.prediction.n_rejected
        assert n_copied == sum(round_.n_drafted for round_ in result.trace.rounds)
        greedy = engine.submit(world.ids[:30], prediction=text.tokens, max_new_tokens=20, verify=rule)
        check_equal(greedy.results(WAIT_S), alone(world, world.ids[:30], {"max_new_tokens": 20}))


def test_prompts_are_cached_and_scored(world: World) -> None:
    cache = PromptCache()
    with Engine(world.target, world.draft, n_text=200, prompt_cache=cache) as engine:
        first = engine.submit(world.ids[:60], max_new_tokens=5)
        first.result(WAIT_S)
        again = engine.submit(world.ids[:70], max_new_tokens=5, prompt_logprobs=2)
        expected = specdec.generate(world.target, None, world.ids[:70], max_new_tokens=5, prompt_logprobs=2)
        found = again.result(WAIT_S)
        assert found == expected and np.array_equal(found.prompt_logprobs, expected.prompt_logprobs)
        assert found.prompt_top_logprobs == expected.prompt_top_logprobs
        assert first.n_cached_tokens == 0 and again.n_cached_tokens == found.n_cached_tokens >= 59
        score = engine.score(world.ids[:70], 2)
        assert np.array_equal(score.log_probs, expected.prompt_logprobs)


class Gate:
    """A transform that blocks the engine's thread until the gate opens."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, probs: NDArray[np.float64], tokens: list[int]) -> NDArray[np.float64]:
        self.reached.set()
        assert self.opened.wait(WAIT_S)
        return probs


def test_too_many_and_closed(world: World) -> None:
    gate = Gate()
    engine = Engine(world.target, None, n_slots=1, n_text=50, max_waiting=2)
    held = engine.submit([1, 2], max_new_tokens=3, transform=gate)
    assert gate.reached.wait(WAIT_S)
    queued = [engine.submit([1, 2], max_new_tokens=3) for _ in range(2)]
    with pytest.raises(BusyError, match="2 texts waiting; expected at most 2 with 1 text more"):
        engine.submit([1, 2], max_new_tokens=3)
    assert engine.metrics().n_refused == 1 and engine.metrics().n_waiting == 2
    queued[0].cancel()
    closer = threading.Thread(target=engine.close)
    closer.start()
    wait_for(lambda: engine.closed)
    with pytest.raises(EngineClosedError):
        engine.submit([1, 2], max_new_tokens=3)
    gate.opened.set()
    closer.join(WAIT_S)
    assert not closer.is_alive()
    assert held.result().finish_reason == "length" and queued[1].result() == held.result()
    assert queued[0].result().finish_reason == "cancelled" and queued[0].result().tokens == []
    engine.close()


def test_a_close_that_does_not_drain_cancels_all(world: World) -> None:
    engine = Engine(world.target, world.draft, n_slots=2, n_text=200)
    generations = [engine.submit([1, 2], max_new_tokens=190, ignore_eos=True) for _ in range(5)]
    engine.close(drain=False)
    expected = alone(world, [1, 2], {"max_new_tokens": 190, "ignore_eos": True})[0].tokens
    for generation in generations:
        result = generation.result(0)
        assert result.tokens == expected[: len(result.tokens)]
        assert result.finish_reason == ("length" if len(result.tokens) == 190 else "cancelled")
    assert generations[-1].result(0).finish_reason == "cancelled"


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"prompt": list(range(200))}, ContextLengthError, "200 tokens; expected fewer than n_text .200"),
    ({"prompt": []}, InputError, "prompt"), ({"prompt": ["a", "b"]}, InputError, "one prompt"),
    ({"logprobs": 21}, InputError, "logprobs is 21; expected .*20"),
    ({"gamma": 3}, TypeError, "'gamma'; generate, stream, agenerate, astream have it"),
    ({"speculative": {"draft": False}}, InputError, "speculative is a dict"),
    ({"speculative": Speculative(gamma=-1)}, InputError, "speculative.gamma is -1"),
    ({"speculative": Speculative(verify="fair")}, InputError, "verify is 'fair'"),  # type: ignore[arg-type]
    ({"prediction": 3}, InputError, "prediction is an int"),
    ({"prediction": [10**6]}, InputError, "prediction.0. is 1000000"),
]  # fmt: skip


@pytest.mark.parametrize(("how", "error", "message"), REFUSED)
def test_bad_requests_are_refused(engine: Engine, how: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        engine.submit(**({"prompt": [1, 2]} | how))


def test_bad_engines_and_waits_are_refused(world: World) -> None:
    wrong = {"n_slots": 0, "n_text": 10**9, "max_waiting": -1, "gamma": lambda rounds: 1, "node_budget": 3}
    for name, value in wrong.items():
        with refuses(name, value):
            Engine(world.target, world.draft, **{name: value})  # type: ignore[arg-type]
    with Engine(world.target, None, n_slots=1, n_text=50) as engine:
        generation = engine.submit([1, 2], max_new_tokens=2)
        for timeout in ("x", -1, float("nan"), 1e300):
            for wait in (generation.next, generation.results, engine.close):
                with refuses("timeout", timeout):
                    wait(timeout=timeout)  # type: ignore[operator]
        for index in (1, -1, "x"):
            with refuses("index", index):
                generation.cancel(index)  # type: ignore[arg-type]
        assert not engine.closed and generation.result(WAIT_S).finish_reason == "length"


# -------------------------------------------------------------------------------------- event loops


def test_agenerate_and_astream(world: World, engine: Engine) -> None:
    one, two = (engine.submit(world.ids[:9], max_new_tokens=6, n=n) for n in (1, 2))
    assert asyncio.run(one.aresult()) == one.result() and asyncio.run(two.aresults()) == two.results()
    with pytest.raises(InputError, match="there are 2 samples"):
        asyncio.run(two.aresult())
    assert inspect.iscoroutinefunction(specdec.agenerate) and inspect.isasyncgenfunction(specdec.astream)
    prompts = [world.ids[:5], world.ids[:30], "It was"]
    how: dict[str, Any] = {"max_new_tokens": 20, "seed": 3, "temperature": 1.0, "verify": "coupled"}

    async def stream(prompt: Any) -> str:
        return "".join([piece async for piece in specdec.astream(world.target, world.draft, prompt, **how)])

    async def run() -> tuple[Any, Any, Any]:
        singles = [specdec.agenerate(world.target, world.draft, prompt, **how) for prompt in prompts]
        several = specdec.agenerate(world.target, world.draft, prompts, n=2, **how)
        return await asyncio.gather(asyncio.gather(*singles), asyncio.gather(*map(stream, prompts)), several)

    singles, streamed, several = asyncio.run(run())
    expected = [specdec.generate(world.target, None, prompt, **how) for prompt in prompts]
    assert singles == expected and streamed == [one.text for one in expected]
    assert several == specdec.generate(world.target, None, prompts, n=2, **how)


def test_tasks_that_are_cancelled_end_their_texts(world: World, engine: Engine) -> None:
    before = engine.metrics().n_finished.get("cancelled", 0)

    async def run() -> None:
        task = asyncio.create_task(
            specdec.agenerate(prompt=[1, 2], engine=engine, max_new_tokens=190, ignore_eos=True)
        )
        async for piece in engine.submit([1, 2], max_new_tokens=3):
            assert piece.tokens or piece.finish_reason is not None
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        pieces = specdec.astream(prompt=[1, 2], engine=engine, max_new_tokens=190, ignore_eos=True)
        async for _ in pieces:
            break
        await pieces.aclose()  # type: ignore[attr-defined]

    asyncio.run(run())
    wait_for(lambda: not engine.metrics().n_running)
    assert engine.metrics().n_finished["cancelled"] - before >= 1


def test_a_task_that_is_cancelled_while_a_thread_begins_it(
    world: World, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No request and no engine of one call remains."""
    for name in ("submit", "__init__"):
        inside, goes_on = threading.Event(), threading.Event()
        plain = getattr(Engine, name)

        def slow(self: Engine, *args: Any, plain: Any = plain, **kwargs: Any) -> Any:
            inside.set()  # noqa: B023
            goes_on.wait(WAIT_S)  # noqa: B023
            return plain(self, *args, **kwargs)

        async def run(how: dict[str, Any]) -> None:
            task = asyncio.create_task(specdec.agenerate(prompt=[1, 2], max_new_tokens=190, **how))
            await asyncio.to_thread(inside.wait, WAIT_S)  # noqa: B023
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            goes_on.set()  # noqa: B023

        before = engine.metrics()
        with monkeypatch.context() as patched:
            patched.setattr(Engine, name, slow)
            shares = {"target": world.target, "ignore_eos": True}
            asyncio.run(run({"engine": engine, "ignore_eos": True} if name == "submit" else shares))
        wait_for(lambda: not (engine.metrics().n_running or engine.metrics().n_waiting))
        if name == "submit":
            assert engine.metrics().n_finished["cancelled"] > before.n_finished.get("cancelled", 0)
        assert not shared_engines(engine)


def shared_engines(known: Engine) -> list[threading.Thread]:
    """Engine threads except that of a known engine."""
    threads = (one for one in threading.enumerate() if one.name == "specdec-engine")
    return [thread for thread in threads if thread is not known._thread]


def test_a_loop_that_ends_with_an_open_stream(
    world: World, engine: Engine, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    async def run(how: dict[str, Any]) -> AsyncIterator[str]:
        pieces = specdec.astream(prompt=[1, 2], max_new_tokens=190, ignore_eos=True, **how)
        await anext(pieces)
        return pieces  # neither read to its end nor closed

    for how in ({"engine": engine}, {"target": world.target}):
        asyncio.run(run(how))
    assert not shared_engines(engine) and not caplog.records and not capsys.readouterr().err


def test_bad_calls_of_event_loops(world: World, engine: Engine) -> None:
    calls: dict[str, dict[str, Any]] = {
        "target or draft cannot be combined with an engine": {"engine": engine, "target": world.target},
        "gamma cannot be combined with an engine": {"engine": engine, "gamma": 3}, "target is None": {},
        "prompt is missing": {"engine": engine, "prompt": None},
    }  # fmt: skip
    for message, how in calls.items():
        with pytest.raises(InputError, match=message):
            asyncio.run(specdec.agenerate(**({"prompt": [1]} | how)))  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------- fair shares


def test_requests_take_turns_in_a_single_slot(world: World) -> None:
    """A request with many samples neither keeps the slot nor loses it to a steady stream of requests."""
    gate = Gate()
    how: dict[str, Any] = {"max_new_tokens": 4, "ignore_eos": True}
    with Engine(world.target, None, n_slots=1, n_text=100, n_threads=1) as engine:
        blocker = engine.submit(world.ids[:3], max_new_tokens=1, transform=gate)
        assert gate.reached.wait(WAIT_S)
        requests = [engine.submit(world.ids[:4], n=n, **how) for n in (3, 1, 2, 1, 5, 1)]
        requests[3].cancel()
        gate.opened.set()
        for request in (blocker, *requests):
            request.results(WAIT_S)
    del requests[3]
    started = [one.times.started for one in requests]
    assert started == sorted(started)
    by_end = sorted(requests, key=lambda one: one.times.ended)
    assert by_end == [requests[i] for i in (1, 4, 2, 0, 3)]


@pytest.mark.parametrize("drafted", [False, True])
def test_prompts_are_read_in_the_order_in_which_they_came(world: World, drafted: bool) -> None:
    """Also sequences that wait in higher slots while lower slots are reused."""
    long = (world.ids * 5)[:400]
    with Engine(world.target, world.draft if drafted else None, n_slots=4, n_text=500, n_threads=1) as engine:
        requests = [engine.submit([3 + i, *long], max_new_tokens=1) for i in range(12)]
        ended = [request.results(WAIT_S) and request.times.first_token for request in requests]
    assert ended == sorted(ended, key=float)  # type: ignore[arg-type]
