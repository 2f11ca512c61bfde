"""The page at `/`: what a browser shows of a reply is what the engine has done."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest

import specdec
from chromium import CHROMIUM, Browser, browser
from http_talk import ask
from specdec import Engine
from specdec.serve import Server, Service

Pair = tuple[specdec.Model, specdec.Model]
PROMPT = "The captain looked"
CHAT = [{"role": "user", "content": PROMPT}]
TYPES = {"draft": "accepted", "correction": "recovered", "bonus": "bonus", "target": "target"}


@pytest.fixture(scope="module")
def engine(chatting_pair: Pair) -> Iterator[Engine]:
    with Engine(*chatting_pair, n_slots=2, n_threads=1, gamma=3) as engine:
        yield engine


@pytest.fixture(scope="module")
def url(engine: Engine) -> Iterator[str]:
    with Server(Service(engine, ["mine"], draft_name="small"), port=0) as server:
        yield server.url


# ── Rounds


def tokens_of(rounds: list[dict[str, Any]]) -> list[tuple[int, str]]:
    """(id, type) of the tokens that were kept."""
    found = [(token["id"], token["type"]) for one in rounds for token in one["tokens"]]
    return [pair for pair in found if pair[1] != "rejected"]


def expected(result: specdec.Result) -> list[tuple[int, str]]:
    rounds = result.trace.rounds
    origins = [TYPES[origin] for one in rounds for origin in one.origin[: one.kept]]
    return list(zip(result.tokens, origins, strict=True))


def rounds_of(answer: Any) -> tuple[list[dict[str, Any]], str]:
    """Rounds and text of a choice, of a stream or a whole answer."""
    if isinstance(answer, dict):
        choice = answer["choices"][0]
        return choice["rounds"], choice["text"] if "text" in choice else choice["message"]["content"]
    choices = [event["choices"][0] for event in answer[:-1]]
    texts = [one["text"] if "text" in one else one["delta"].get("content", "") for one in choices]
    return [round_ for one in choices for round_ in one.get("rounds", [])], "".join(texts)


@pytest.mark.parametrize("stream", [False, True])
def test_rounds_of_an_answer(url: str, chatting_pair: Pair, stream: bool) -> None:
    """`return_rounds`: the trace of the same request alone; the texts of its tokens join to the text."""
    target, draft = chatting_pair
    out = specdec.generate(target, draft, PROMPT, gamma=3, max_new_tokens=40)
    body = {"max_tokens": 40, "temperature": 0, "return_rounds": True, "stream": stream}
    rounds, text = rounds_of(ask(url, "/v1/completions", {**body, "prompt": PROMPT})[1])
    assert tokens_of(rounds) == expected(out) and text == out.text
    for found, one in zip(rounds, out.trace.rounds, strict=True):
        assert found["num_draft_tokens"] == one.n_drafted and found["draft_depth"] == one.depth
        assert found["num_accepted_draft_tokens"] == one.n_accepted
        rejected = [token["id"] for token in found["tokens"] if token["type"] == "rejected"]
        assert rejected == [t for k, t in enumerate(one.drafted, 1) if k not in one.path]
    assert "".join(t["text"] for one in rounds for t in one["tokens"] if t["type"] != "rejected") == text
    assert {kind for _, kind in tokens_of(rounds)} >= {"accepted", "recovered", "bonus"}
    out = specdec.generate(target, draft, messages=CHAT, gamma=3, max_new_tokens=12)
    rounds, text = rounds_of(
        ask(url, "/v1/chat/completions", {**body, "messages": CHAT, "max_tokens": 12})[1]
    )
    assert tokens_of(rounds) == expected(out) and text == out.text
    plain = {**body, "prompt": PROMPT, "max_tokens": 9, "speculative": {"draft": False}}
    assert {kind for _, kind in tokens_of(rounds_of(ask(url, "/v1/completions", plain)[1])[0])} == {"target"}
    _, answer = ask(url, "/v1/completions", {"prompt": PROMPT, "max_tokens": 2})
    assert "rounds" not in answer["choices"][0]


def test_rounds_of_trees_and_samples(chatting_pair: Pair) -> None:
    """Tokens off the accepted path are rejected; each sample has its own rounds."""
    target, draft = chatting_pair
    tree = specdec.drafts.ModelDraft(draft, tree=specdec.drafts.StaticTree((2, 2)))
    with (
        Engine(target, tree, n_slots=2, n_threads=1) as engine,
        Server(Service(engine, ["a"]), port=0) as server,
    ):
        body = {"prompt": PROMPT, "n": 2, "max_tokens": 12, "seed": 5, "return_rounds": True}
        _, answer = ask(server.url, "/v1/completions", {**body, "stop": ["the"]})
    for i, choice in enumerate(answer["choices"]):
        out = specdec.generate(
            target, tree, PROMPT, temperature=1.0, seed=[(5, i)], max_new_tokens=12, stop=["the"]
        )
        assert tokens_of(choice["rounds"]) == expected(out)
        for found, one in zip(choice["rounds"], out.trace.rounds, strict=True):
            rejected = [token["id"] for token in found["tokens"] if token["type"] == "rejected"]
            assert len(rejected) == one.n_drafted - one.n_accepted and found["draft_depth"] == one.depth


# ── The file


def test_the_page_permits_its_own_code_alone(url: str) -> None:
    connection = HTTPConnection(urlsplit(url).netloc, timeout=60)
    connection.request("GET", "/")
    answer = connection.getresponse()
    html = answer.read().decode()
    connection.close()
    assert answer.status == 200 and answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
    for name in ("script", "style"):
        (content,) = re.findall(f"<{name}>(.*?)</{name}>", html, re.DOTALL)
        digest = b64encode(sha256(content.encode()).digest()).decode()
        assert policy[f"{name}-src"] == f"'sha256-{digest}'"
    assert policy["default-src"] == "'none'" and policy["connect-src"] == "'self'"
    assert not re.search(r"https?://", html)
    assert ask(url, "/", method="POST")[0] == 405


# ── In a browser


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("needs Chromium")
    with browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


def fill(page: Browser, **values: Any) -> None:
    for name, value in values.items():
        page.run(f"document.getElementById('{name}').value = {value!r}, null")


def click(page: Browser, name: str) -> None:
    """Click a button, and wait until the texts have ended."""
    page.run(f"document.getElementById('{name}').click()")
    page.wait_for("document.getElementById('main').ariaBusy === 'false'")


def panel(page: Browser, index: int) -> dict[str, Any]:
    """What a panel shows."""
    found: dict[str, Any] = page.run(
        f"(() => {{ const root = document.querySelectorAll('#panels > section')[{index}];"
        "const all = (name) => [...root.querySelectorAll(name)], one = (name) => root.querySelector(name);"
        "return {tokens: all('.text span:not(.prompt)').map((e) => [e.className, e.textContent]),"
        "numbers: Object.fromEntries(all('dl > div').map((e) => [...e.children].map((x) => x.textContent))),"
        "shares: all('.chart > div').map((e) => e.textContent), rate: one('.rate span').textContent,"
        "prompt: one('.prompt').textContent, text: one('.text').innerText}; })()"
    )
    return found


def error_of(page: Browser) -> str:
    found: str = page.run("document.getElementById('error').textContent")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("path", ["completion", "chat"])
def test_a_reply_in_the_browser(page: Browser, url: str, chatting_pair: Pair, path: str) -> None:
    """Tokens, counts and the chart are those of `specdec.generate`; nothing else is requested."""
    target, draft = chatting_pair
    page.errors.clear()
    page.requested.clear()
    page.open(f"{url}/")
    page.wait_for("!document.getElementById('compare').disabled")
    assert "mine" in page.run("document.getElementById('served').textContent")
    fill(page, path=path, prompt=PROMPT, tokens=40)
    click(page, "compare")
    prompt: Any = {"messages": CHAT} if path == "chat" else {"prompt": PROMPT}
    out = specdec.generate(target, draft, gamma=3, max_new_tokens=40, **prompt)
    trace, (drafted, plain) = out.trace, (panel(page, 0), panel(page, 1))
    kept = [(kind, text) for kind, text in drafted["tokens"] if kind != "rejected"]
    assert [kind for kind, _ in kept] == [kind for _, kind in expected(out)]
    assert "".join(text for _, text in kept) == out.text
    assert drafted["prompt"] == ("" if path == "chat" else PROMPT)
    assert drafted["numbers"]["tokens"] == str(trace.n_tokens)
    assert drafted["numbers"]["tokens per pass"] == f"{trace.tokens_per_call:.2f}"
    api = "/v1/chat/completions" if path == "chat" else "/v1/completions"
    n_prompt = ask(url, api, {**prompt, "max_tokens": 1})[1]["usage"]["prompt_tokens"]
    assert drafted["numbers"]["prompt read"] == f"{n_prompt} of {n_prompt}"  # without a prompt cache
    n_accepted = sum(one.n_accepted for one in trace.rounds)
    assert drafted["numbers"]["accepted"] == f"{n_accepted} of {trace.n_drafted}"
    shares = [int(text.split(" %")[0]) for text in drafted["shares"]]
    assert shares == pytest.approx([100 * share for share in trace.acceptance_by_position], abs=0.51)
    assert {kind for kind, _ in plain["tokens"]} == {"target"}
    assert "".join(text for _, text in plain["tokens"]) == out.text
    assert float(drafted["rate"]) > 0 and float(plain["rate"]) > 0
    assert "Same text." in page.run("document.getElementById('verdict').textContent")
    assert error_of(page) == "" and page.errors == []
    assert {one for one in page.requested if not one.startswith(f"{url}/")} <= {"data:,"}
    # Rejected tokens show on request.
    rejected = [text for kind, text in drafted["tokens"] if kind == "rejected"]
    assert rejected and len(panel(page, 0)["text"]) == len(drafted["text"])
    page.run("document.getElementById('all').click()")
    assert len(panel(page, 0)["text"]) > len(drafted["text"])


@pytest.mark.slow
def test_errors_and_stops_in_the_browser(page: Browser, url: str) -> None:
    page.open(f"{url}/")
    page.wait_for("!document.getElementById('compare').disabled")
    fill(page, path="completion", prompt=PROMPT, gamma=5000)
    click(page, "with")
    assert error_of(page).startswith("speculative.gamma is 5000; expected")
    fill(page, gamma="", tokens=1000)
    page.run("document.getElementById('without').click()")
    page.wait_for("document.querySelectorAll('.text .target').length > 3")
    click(page, "stop")
    assert error_of(page) == "" and 3 < len(panel(page, 1)["tokens"]) < 1000
    fill(page, tokens=4)
    click(page, "without")
    assert len(panel(page, 1)["tokens"]) == 4


@pytest.mark.slow
def test_keys_and_servers_without_a_draft_in_the_browser(page: Browser, chatting_pair: Pair) -> None:
    with Engine(chatting_pair[0], None, n_slots=1, n_threads=1) as engine:
        service = Service(engine, ["mine"])
        with Server(service, port=0, api_key="secret") as server:
            assert ask(server.url, "/")[0] == 200 and ask(server.url, "/v1/models")[0] == 401
            page.open(f"{server.url}/")
            page.wait_for("!document.getElementById('key-field').hidden")
            assert error_of(page).startswith("the API key is missing or wrong")
            for key, is_right in (("wrong", False), ("secret", True)):
                fill(page, key=key)
                page.run("document.getElementById('key').onchange()")
                assert page.run("document.getElementById('without').disabled") is not is_right
            assert error_of(page) == "" and page.run("document.getElementById('compare').disabled")
            fill(page, tokens=5)
            click(page, "without")
            assert len(panel(page, 1)["tokens"]) == 5


@pytest.mark.slow
def test_foreign_code_and_addresses_are_blocked_in_the_browser(page: Browser, url: str) -> None:
    page.open(f"{url}/")
    inline = "const s = document.createElement('script'); s.textContent = 'window.ran = 1'"
    page.run(f"(() => {{ {inline}; document.head.append(s) }})()")
    assert page.run("window.ran ?? null") is None
    fetched = "fetch('http://127.0.0.1:9/').then(() => 'sent', (error) => String(error))"
    assert page.run(fetched).startswith("TypeError")
    assert any("Content Security Policy" in one for one in page.errors)
