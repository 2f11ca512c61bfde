"""Garbage collection: cycles through objects of the core are found, and nothing else is freed."""

from __future__ import annotations

import functools
import gc
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import specdec
from descriptions import ARGUMENTS, by_method
from sessions import read_prompts
from specdec import _core, drafts
from trained import small_pair
from worlds.canonical import LLAMA, build, perturbed, random_tensors, run_session

pytestmark = pytest.mark.usefixtures("quick_gc")

TENSORS = random_tensors(LLAMA)
GREEDY = {"temperature": 0.0}


@pytest.fixture(scope="module")
def models() -> tuple[_core.Model, _core.Model]:
    return build(LLAMA, TENSORS), build(LLAMA, perturbed(TENSORS))


@pytest.fixture(autouse=True)
def nothing_leaks(models: Any) -> Iterator[None]:
    """Check that the test leaves no block of the core and no session."""
    small_pair()  # whose blocks stay
    gc.collect()
    before = live()
    yield
    gc.collect()
    assert live() == before


def live() -> tuple[int, int]:
    blocks = _core._alloc_live() if hasattr(_core, "_alloc_live") else 0
    return blocks, sum(type(entry) is _core.Session for entry in gc.get_objects())


# --------------------------------------------------------------------------------- the public functions


class Chat:
    """An object that holds its stream and is called by the stream's session."""

    stream: specdec.Stream

    def mask(self, probs: np.ndarray, tokens: list[int]) -> np.ndarray:
        return probs

    def propose(self, sequence: int, tokens: Any, budget: int) -> list[int]:
        return [1] * budget

    def policy(self, rounds: Any) -> int:
        return 2


class Telling(Chat):
    """A draft that is notified of its texts."""

    def begin(self, sequence: int, prompt: Any) -> None: ...

    def commit(self, sequence: int, tokens: Any) -> None: ...


def calling(**options: Callable[[Chat], Any]) -> Callable[..., Chat]:
    """Make a stream with options that refer to the chat."""

    def make(target: specdec.Model, draft: specdec.Model) -> Chat:
        chat = Chat()
        made = {name: option(chat) for name, option in options.items()}
        chat.stream = specdec.stream(target, draft, "It was", max_new_tokens=12, **made)
        return chat

    return make


def partial_mask(chat: Chat) -> Any:
    return functools.partial(lambda chat, probs, tokens: probs, chat)


def drafting(wrap: Callable[[Any, specdec.Model], Any], chat_type: type[Chat] = Chat) -> Callable[..., Chat]:
    def make(target: specdec.Model, draft: specdec.Model) -> Chat:
        chat = chat_type()
        chat.stream = specdec.stream(target, wrap(chat, draft), "It was", max_new_tokens=12)
        return chat

    return make


OWNERS = {
    "transform": calling(transform=lambda chat: chat.mask),
    "partial": calling(transform=partial_mask),
    "policy": calling(gamma=lambda chat: chat.policy),
    "object draft": drafting(lambda chat, draft: chat),
    "begin and commit": drafting(lambda chat, draft: chat, Telling),
    "draft among several": drafting(lambda chat, draft: drafts.Ensemble(chat, draft), Telling),
    "draft of a draft": drafting(lambda chat, draft: drafts.ModelDraft(draft, draft=chat), Telling),
    "attribute of a draft": drafting(lambda chat, draft: attributed(drafts.PromptLookup(), chat)),
}


def attributed(draft: Any, chat: Chat) -> Any:
    draft.owner = chat
    return draft


@pytest.mark.parametrize("ending", ["not begun", "begun", "ended", "closed"])
@pytest.mark.parametrize("owner", OWNERS)
def test_an_owner_of_its_own_stream_is_collected(owner: str, ending: str) -> None:
    chat = OWNERS[owner](*small_pair())
    if ending != "not begun":
        next(chat.stream)
    if ending == "ended":
        list(chat.stream)
    if ending == "closed":
        chat.stream.close()
    reference = weakref.ref(chat)
    del chat
    gc.collect()
    assert reference() is None


# ------------------------------------------------------------------------------------ the core's types


class Node:
    """An observable object that can be part of a cycle."""

    made: Any


def session_of(target: _core.Model, draft: Any, gamma: int = 4, **options: Any) -> _core.Session:
    settings = _core.Settings(**{"max_new_tokens": 8, "sampling": GREEDY} | options)
    session = _core.Session(target, draft, gamma=gamma, n_slots=1, n_text=20, n_threads=1, settings=settings)
    session.admit(0, [1, 2, 3], (1, 0), settings)
    return session


def python_draft(propose: Any) -> tuple[Any, ...]:
    return by_method("python", "a test", propose, None, None, drafts.Proposal, None, False, False)


class Array(np.ndarray):
    """An array with attributes."""

    node: Node


def own_transform(node: Node, models: Any) -> Any:
    """No object of the cycle but the session can be cleared: a method and a tuple cannot."""
    session = session_of(models[0], None)
    session.finish(0)
    transform = types.MethodType(lambda *_: None, (session, node))
    session.admit(0, [1], (1, 0), _core.Settings(max_new_tokens=8, sampling=GREEDY, transform=transform))
    return session


def bearing(node: Node) -> _core.Model:
    """Make a model whose configuration contains the node."""
    return build(LLAMA | {"node": node}, TENSORS)


def search_of(node: Node, models: Any) -> _core.BeamSearch:
    options: dict[str, Any] = {"width": 2, "draft_width": 2, "gamma": 2, "max_new_tokens": 4}
    return _core.BeamSearch(models[0], bearing(node), [1, 2], **options)


def table_of(node: Node, models: Any) -> _core.Ngram:
    counts = np.ones(LLAMA["n_vocab"], np.int32).view(Array)
    counts.node = node
    return _core.Ngram(counts, ())


def own_draft(node: Node, models: Any) -> Any:
    return session_of(models[0], python_draft(types.MethodType(lambda *_: [], (node,))))


CYCLES: dict[str, Callable[[Node, Any], Any]] = {
    "a session's draft": own_draft,
    "a model": lambda node, models: bearing(node),
    "a session of a model": lambda node, models: session_of(bearing(node), None),
    "a decoder of a model": lambda node, models: _core.Decoder(bearing(node), capacity=8),
    "a search with a model": search_of,
    "a table over an array": table_of,
    "a session's transform": own_transform,
}
"""Objects that refer to a node, also to themselves through the session's transform."""


@pytest.mark.parametrize("name", CYCLES)
def test_a_cycle_through_the_core_is_collected(name: str, models: Any) -> None:
    node = Node()
    reference = weakref.ref(node)
    made = CYCLES[name](node, models)
    if name != "a session's transform":
        node.made = made
    assert gc.is_tracked(made)
    del made, node
    gc.collect()
    assert reference() is None


def keep(probs: Any, tokens: Any) -> Any:
    """A transform that changes nothing."""
    return probs


def test_what_a_session_refers_to_is_what_it_was_given(models: Any) -> None:
    """Each reference is counted once and visited by the collector once."""

    def transform(probs: Any, tokens: Any) -> Any:
        return probs

    def propose(*_: Any) -> list[int]:
        return [1]

    nested = by_method("nested", models[1], python_draft(propose), 2)
    description = by_method("ensemble", False, [4, 4], (python_draft(propose), nested))
    given = (models[0], models[1], transform, propose, description)
    before = list(map(sys.getrefcount, given))
    session = session_of(models[0], description, transform=transform)
    read_prompts(session)
    session.round()
    held = [after - n for after, n in zip(map(sys.getrefcount, given), before, strict=True)]
    assert held == [1, 1, 1, 2, 0]  # of the description the session keeps the arguments
    shown = gc.get_referents(session)
    (failures,) = (entry for entry in shown if isinstance(entry, dict))  # of drafts, by text
    assert failures == {}
    (arguments,) = (entry for entry in shown if isinstance(entry, list))
    assert [set(entry) for entry in arguments] == [
        set(ARGUMENTS[m]) for m in ("ensemble", "python", "nested", "python")
    ]
    (settings,) = {id(entry): entry for entry in shown if isinstance(entry, _core.Settings)}.values()
    assert any(entry is transform for entry in gc.get_referents(settings))
    assert set(map(id, shown)) == set(map(id, (_core.Session, models[0], arguments, failures, settings)))
    del shown, arguments, settings
    session.close()
    del session
    assert list(map(sys.getrefcount, given)) == before


def test_a_session_that_could_not_be_made_refers_to_nothing(models: Any) -> None:
    before = sys.getrefcount(keep)
    for wrong in ({"gamma": -1}, {"max_new_tokens": 0}, {"stop_ids": ["x"]}, {"n_top": 10**6}):
        with pytest.raises((ValueError, TypeError)):
            session_of(models[0], models[1], transform=keep, **wrong)
        assert sys.getrefcount(keep) == before


def test_collections_during_rounds_change_nothing(models: Any) -> None:
    """Another thread collects all the time, and so does the draft, from within the session."""
    target, draft = models

    def propose(sequence: int, tokens: Any, budget: int) -> list[int]:
        gc.collect()
        return [int(tokens[-1])] * budget

    description = by_method("ensemble", False, [4, 4], (python_draft(propose), by_method("model", draft)))
    prompts = [[1, 2, 3], [4, 5]]
    plain, *_ = run_session(target, None, prompts, max_new_tokens=12)
    stop = threading.Event()

    def collect() -> None:
        while not stop.is_set():
            gc.collect(0)

    thread = threading.Thread(target=collect)
    thread.start()
    try:
        tokens, *_ = run_session(target, description, prompts, transform=keep, max_new_tokens=12)
    finally:
        stop.set()
        thread.join()
    assert tokens == plain


def test_no_object_is_half_made() -> None:
    """`__new__` makes the whole object: no incomplete object is visible, and `__init__` does nothing."""
    types_ = [value for value in vars(_core).values() if isinstance(value, type)]
    assert len(types_) == 17
    for type_ in types_:
        if type_ is not _core.AdaptiveGamma:
            with pytest.raises(TypeError):
                type_.__new__(type_)
    matrix = _core.TokenMatrix(np.zeros((3, 2), np.int32))
    matrix.__init__(np.ones((3, 2), np.int32))  # type: ignore[misc]
    assert not matrix.rows().any()
