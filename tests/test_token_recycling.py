"""Token recycling against plain Python: the matrix after every round, and every tree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

import specdec
from refusals import refuses
from sessions import Session
from specdec import CheckpointError, InputError, VocabularyMismatchError
from specdec.drafts import StaticTree, TokenRecycling
from trained import small_pair
from worlds.canonical import LLAMA, random_tensors, with_drafts
from worlds.encoder_decoders import model_of

CONFIG = LLAMA | {"n_ctx": 128, "n_layer": 1}
TARGET = model_of(CONFIG, random_tensors(CONFIG))
N_VOCAB = CONFIG["n_vocab"]


class Plain:
    """The method in plain Python, for one sequence."""

    def __init__(self, rows: np.ndarray, parents: list[int]) -> None:
        self.rows, self.parents = rows.copy(), parents

    def propose(self, root: int, budget: int, depth: int) -> tuple[list[int], list[int]]:
        """Breadth first: child r of a node is the token of rank r after its token."""
        nodes, tokens, found, depths = {0: 0}, [root], [], [0]
        for i, parent in enumerate(self.parents, 1):
            rank = self.parents[: i - 1].count(parent)
            node = nodes.get(parent)
            if i > budget or node is None or depths[node] >= depth or self.rows[tokens[node], rank] < 0:
                continue
            nodes[i] = len(tokens)
            tokens.append(int(self.rows[tokens[node], rank]))
            depths.append(depths[node] + 1)
            found.append(node)
        return tokens[1:], found

    def observe(self, tokens: list[int], logits: np.ndarray) -> None:
        """The largest logits after each token, the lower id first on ties; the last node wins."""
        for token, row in zip(tokens, logits, strict=True):
            self.rows[token] = np.argsort(-row, kind="stable")[: self.rows.shape[1]]


def written(path: Path, arrays: dict[str, np.ndarray], **metadata: str) -> Path:
    save_file(arrays, path, TokenRecycling.metadata | {"n_begun": "0"} | metadata)
    return path


def parents_of(draw: st.DrawFn) -> list[int]:
    parents: list[int] = []
    for i in range(draw(st.integers(1, 9))):
        low = parents[-1] if parents else 0
        if parents[-3:] == [low] * 3:  # at most three children
            low += 1
        parents.append(draw(st.integers(min(low, i), i)))
        if parents.count(parents[-1]) > 3:
            parents.pop()
    return parents


@settings(deadline=None, max_examples=40)
@given(
    st.composite(parents_of)(), st.integers(3, 5), st.integers(1, 9), st.integers(0, 2**32), st.booleans()
)  # fmt: skip
def test_matrix_and_trees_are_those_of_the_method_in_plain_python(
    tmp_path_factory: pytest.TempPathFactory, parents: list[int], k: int, gamma: int, seed: int, sampled: bool
) -> None:
    """From a matrix of which something is known; a batch of two, which share it."""
    rng = np.random.default_rng(seed)
    rows = np.full((N_VOCAB, k), -1, np.int32)
    known = rng.integers(0, N_VOCAB, 20)
    rows[known] = rng.integers(0, N_VOCAB, (20, k))
    path = written(tmp_path_factory.mktemp("m") / "matrix", {"rows": rows.reshape(-1)}, k=str(k))
    draft = TokenRecycling.load(path, tree=StaticTree(parents=parents))
    plain = Plain(rows, parents)
    prompts = rng.integers(0, N_VOCAB, (2, 3)).tolist()
    n_new = 14
    session = Session(
        TARGET.core, draft.describe(TARGET), prompts, gamma=gamma, max_new_tokens=n_new,
        temperature=float(sampled), seeds=[(seed, 0), (seed, 1)],
    )  # fmt: skip
    with_drafts(session).prefill()
    assert np.array_equal(draft.rows(), rows)
    texts = [list(prompt) for prompt in prompts]
    while records := session.round():
        left = {r["sequence"]: n_new + 3 - len(texts[r["sequence"]]) for r in records}
        for record in records:
            n_free = left[record["sequence"]]
            root = texts[record["sequence"]][-1]
            budget = gamma if n_free > 1 else 0
            assert (record["drafted"], record["parents"]) == plain.propose(root, budget, n_free - 1)
        asked = any(n_free > 1 for n_free in left.values())
        for record in records:
            text = texts[record["sequence"]]
            if asked:
                plain.observe([text[-1], *record["drafted"]], record["node_logits"])
            text += record["tokens"]
        assert np.array_equal(draft.rows(), plain.rows)
    session.close()


def test_equal_logits_come_in_the_order_of_their_tokens() -> None:
    """Of a model whose head is zero, and where three logits are above the others."""
    tensors = random_tensors(CONFIG)
    tensors["head"] *= 0.0
    tensors["head"][[7, 40, 90]] = 1.0
    draft = TokenRecycling(5, tree=StaticTree(parents=[0]))
    specdec.generate(model_of(CONFIG, tensors), draft, [3, 4], max_new_tokens=3)
    assert draft.rows()[4].tolist() in ([7, 40, 90, 0, 1], [0, 1, 2, 3, 4])


def test_calls_learn_from_one_another() -> None:
    """The first round of a new draft drafts nothing, and the text leaves the matrix to the next call."""
    draft = TokenRecycling()
    runs = [specdec.generate(small_pair()[0], draft, "Once upon a time", max_new_tokens=60) for _ in range(2)]
    assert runs[0].trace.rounds[0].drafted == () and (draft.rows() >= 0).any()
    assert runs[1].tokens == runs[0].tokens
    assert len(runs[1].trace.rounds) < len(runs[0].trace.rounds)


def test_a_chain_is_taken_by_every_rule() -> None:
    options: dict[str, Any] = {"verify": "block", "temperature": 1.0, "max_new_tokens": 10, "seed": 1}
    chain = TokenRecycling(2, tree=StaticTree((1, 1, 1)))
    specdec.generate(small_pair()[0], chain, "One day", **options)
    with pytest.raises(InputError, match="verify is 'block'"):
        specdec.generate(small_pair()[0], TokenRecycling(2), "One day", **options)


def test_arguments_out_of_range() -> None:
    with refuses("tree"):
        TokenRecycling(2, tree=StaticTree((3,)))
    assert [TokenRecycling(k).gamma for k in (1, 2, 64)] == [8] * 3
    with pytest.raises(InputError, match="no target yet"):
        TokenRecycling().rows()
    recycled = TokenRecycling()
    specdec.generate(small_pair()[0], recycled, "a", max_new_tokens=2)
    recycled.n_vocab = 7
    with pytest.raises(VocabularyMismatchError, match="7 tokens; expected the target's"):
        specdec.generate(small_pair()[0], recycled, "a", max_new_tokens=2)
    chances = TokenRecycling().describe(small_pair()[0])[1]["chances"]
    assert sorted(chances, reverse=True) == chances and sum(chances) < 1


def test_a_file_holds_all_of_it(tmp_path: Path) -> None:
    recycled = TokenRecycling(4)
    specdec.generate(small_pair()[0], recycled, "Once upon a time", max_new_tokens=30)
    recycled.save(tmp_path / "matrix")
    found = TokenRecycling.load(tmp_path / "matrix", tree=StaticTree((2, 2)))
    assert (found.k, found.gamma, found.n_vocab) == (4, 6, recycled.n_vocab)
    assert np.array_equal(found.rows(), recycled.rows())
    assert found.rng_key() not in [(i,) for i in range(3)]
    with pytest.raises(InputError):
        TokenRecycling().save(tmp_path / "nothing")


def test_damaged_files(tmp_path: Path) -> None:
    path, rows = tmp_path / "matrix.safetensors", np.array([0, 1, -1, 2, 1, 0], np.int32)
    sound = TokenRecycling.load(written(path, {"rows": rows}, k="2"))
    assert sound.rows().tolist() == [[0, 1], [-1, 2], [1, 0]]
    for metadata, arrays, message in [
        ({"format": "other"}, {"rows": rows}, "'format' is \"other\""),
        ({"k": "0"}, {"rows": rows}, "'k' is .*expected an integer, 1 to 64"),
        ({"k": "4"}, {"rows": rows}, "'rows' has 6 entries; expected 4 for each"),
        ({"k": "6"}, {"rows": rows}, r"rows\[0, 1\] is 1, expected -1 to 0"),
        ({"n_begun": "x"}, {"rows": rows}, "'n_begun' is"),
        ({}, {}, "'rows' is missing"),
        ({}, {"rows": rows[:0]}, "'rows' has 0 entries"),
        ({}, {"rows": rows.astype(np.int64)}, "expected one dimension and int32"),
        ({}, {"rows": rows.reshape(3, 2)}, "expected one dimension and int32"),
        ({}, {"rows": rows, "more": rows}, "'more' is not part of a matrix"),
    ]:
        with pytest.raises(CheckpointError, match=rf"matrix\.safetensors.*{message}"):
            TokenRecycling.load(written(path, arrays, **{"k": "2"} | metadata))
