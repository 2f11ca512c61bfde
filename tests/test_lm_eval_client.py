"""lm-evaluation-harness as a client, unchanged: `local-completions` and `local-chat-completions`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import specdec
from specdec import Engine
from specdec.serve import Server, Service

pytestmark = [
    pytest.mark.oracle,
    # What the harness and its packages say about themselves.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

Pair = tuple[specdec.Model, specdec.Model]
CONTEXT = "It was a dark and stormy night, and the rain fell upon the roof of the old house."


@pytest.fixture(scope="module")
def url(chatting_pair: Pair) -> Iterator[str]:
    with (
        Engine(*chatting_pair, n_slots=4, n_threads=1) as engine,
        Server(Service(engine, ["mine"], draft_name="small"), port=0) as server,
    ):
        yield server.url


def asked(kind: str, *arguments: Any) -> list[Any]:
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, one, i) for i, one in enumerate(arguments)]


@pytest.mark.parametrize("n_concurrent", [1, 4])
def test_completions(
    url: str, chatting_pair: Pair, n_concurrent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores are those of `Model.score`, texts those of `generate`; the harness's ids have no BOS."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from lm_eval.api.registry import get_model

    target = chatting_pair[0]
    lm = get_model("local-completions")(
        base_url=f"{url}/v1/completions", model="mine", num_concurrent=n_concurrent, batch_size=2,
        max_retries=1, max_length=target.config.n_ctx,
    )  # fmt: skip
    assert lm.tokenizer_backend == "remote"

    def ids_of(text: str) -> list[int]:
        assert target.tokenizer is not None
        return target.tokenizer.encode(text, add_bos=False)

    texts = [(CONTEXT, " He"), (CONTEXT, " He was afraid."), ("", "The rain"), ("The", " rain")]
    pairs = [(ids_of(begin) or [0], ids_of(begin + rest)[len(ids_of(begin)) :]) for begin, rest in texts]
    wanted = target.score(pairs, n_threads=1)
    found = lm.loglikelihood(asked("loglikelihood", *texts))
    assert [one[1] for one in found] == [score.is_greedy for score in wanted]
    assert [one[0] for one in found] == pytest.approx([score.total for score in wanted], rel=1e-12)
    prompts = [CONTEXT, "The rain", "He"]
    for stop, n_new, settings in ((["the", "\n\n"], 30, {}), ([","], 12, {"repetition_penalty": 1.3})):
        theirs = {"until": stop, "max_gen_toks": n_new, "do_sample": False, **settings}
        written = lm.generate_until(asked("generate_until", *((text, dict(theirs)) for text in prompts)))
        how: Any = {"stop": stop, "max_new_tokens": n_new, **settings}
        assert written == [specdec.generate(target, None, ids_of(text), **how).text for text in prompts]


def test_chat(url: str, chatting_pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from lm_eval.api.registry import get_model

    theirs = get_model("local-chat-completions")(
        base_url=f"{url}/v1/chat/completions", model="mine", max_retries=1, eos_string="<|im_end|>"
    )
    messages: Any = [{"role": "user", "content": CONTEXT}]
    prompt = theirs.apply_chat_template(messages)
    found = theirs.generate_until(asked("generate_until", (prompt, {"until": ["."], "max_gen_toks": 30})))
    wanted = specdec.generate(chatting_pair[0], None, messages=messages, max_new_tokens=30, stop=["."])
    assert found == [wanted.text]
