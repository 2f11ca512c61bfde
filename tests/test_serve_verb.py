"""`specdec serve`: the process, its options, and its page."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import command_line
import specdec
from http_talk import ask
from specdec.serve import Server, Service
from trained import small_pair

ROOT = Path(__file__).parents[1]


@contextmanager
def serving(port: int = 0, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server in its own process, and the line that shows its address."""
    command = [sys.executable, "-m", "specdec", "serve", "--port", str(port), *arguments]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            yield process, process.stderr.readline().strip()
        finally:
            process.kill()


@pytest.mark.slow
def test_a_process_that_serves_and_stops_gently() -> None:
    body = {"model": "embedded", "prompt": "Once", "temperature": 0, "max_tokens": 300, "ignore_eos": True}
    target, _ = specdec.embedded_pair()
    wanted = specdec.generate(target, None, "Once", max_new_tokens=300, ignore_eos=True).text
    answers: list[Any] = []
    with serving(0, "--threads", "1") as (process, line):
        found = re.search(r"at (http://[\d.:]+)/v1$", line)
        assert found, line
        url = found[1]
        thread = threading.Thread(target=lambda: answers.append(ask(url, "/v1/completions", body)))
        thread.start()
        while 'vllm:num_requests_running{model_name="embedded"} 1.0' not in ask(url, "/metrics")[1]:
            assert thread.is_alive()
        process.send_signal(signal.SIGTERM)
        thread.join(60)
        assert process.wait(60) == 0
        assert process.stderr is not None
        assert process.stderr.read() == "specdec serve: finishing running requests; repeat to stop now\n"
    status, answer = answers[0]
    assert status == 200 and answer["choices"][0]["text"] == wanted


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    found = SimpleNamespace(service=None, options=None)

    def init(server: Server, service: Service, **options: Any) -> None:
        found.service, found.options = service, options

    monkeypatch.setattr(Server, "__init__", init)
    monkeypatch.setattr(Server, "run", lambda server, begun: begun("http://127.0.0.1:1"))
    monkeypatch.delenv("SPECDEC_API_KEY", raising=False)
    return found


def run(*arguments: str) -> Any:
    return command_line.run("serve", "--threads", "1", *arguments)


def fails(*arguments: str) -> str:
    """Output of a server that does not start."""
    done = run(*arguments)
    assert done.exit_code == 2
    return str(done.stderr)


def test_options_reach_the_server(started: SimpleNamespace, tmp_path: Path) -> None:
    template, key = tmp_path / "template.jinja", tmp_path / "key"
    template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}{{ tools }}[TOOL_CALLS]")
    key.write_text("secret\n")
    done = run(
        "--chat-template", str(template), "--api-key-file", str(key), "--name", "a", "--name", "b",
        "--slots", "3", "--text-tokens", "99", "--max-waiting", "5", "--max-tokens", "7",
        "--max-n", "2", "--gamma", "auto",
        "--max-body-bytes", "1000", "--max-constraint-bytes", "10", "--drain-seconds", "1.5",
        "--recommended", "--stream-interval", "0",
        "--host", "0.0.0.0", "--port", "9", "--prompt-cache", str(tmp_path / "prompts"),
        "--prompt-cache-bytes", "12345", "--cors-origin", "https://a.example", "--cors-origin", "*",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    service = started.service
    assert service.names == ["a", "b"] and service.draft_name == "embedded"
    assert service.tool_format == "mistral"
    read = service.target.chat_template
    assert read is not None and template.name not in read.source  # which errors report to clients
    limits = service.limits
    assert (limits.n_waiting, limits.n_new_tokens, limits.n_texts) == (5, 7, 2)
    assert (limits.n_body_bytes, limits.n_constraint_bytes, limits.event_s) == (1000, 10, 0.0)
    assert (service.engine.n_slots, service.engine.n_text, service.engine.max_waiting) == (3, 99, 5)
    assert service.engine.closed
    assert (tmp_path / "prompts").is_dir() and service.engine._prompt_cache._files.max_bytes == 12345
    assert "--prompt-cache needs memory" in fails("--prompt-cache", str(tmp_path), "--cache-bytes", "0")
    options = started.options
    assert options["api_key"] == "secret" and options["drain_s"] == 1.5
    assert options["cors_origins"] == ("https://a.example", "*")
    assert (options["host"], options["port"], options["log"]) == ("0.0.0.0", 9, None)
    assert "'a' with embedded at http://127.0.0.1:1/v1" in done.stderr


def test_a_key_from_the_environment(started: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECDEC_API_KEY", "secret")
    assert run("--target", "embedded").exit_code == 0
    assert started.options["api_key"] == "secret"
    assert started.service.draft_name is None
    monkeypatch.setenv("SPECDEC_API_KEY", " ")
    assert "the API key in SPECDEC_API_KEY is empty" in fails()


def test_files_that_cannot_be_read(started: SimpleNamespace, tmp_path: Path) -> None:
    """The server does not start, unless it is asked to run without a draft."""
    file, broken = tmp_path / "chat.jinja", tmp_path / "draft"
    file.write_text("{{ messages }}\n{% if %}")
    message = f"{file}: the chat template is not valid Jinja: line 2: "
    assert message in fails("--chat-template", str(file)) and started.service is None
    broken.mkdir()
    (broken / "config.json").write_text("{}")
    assert fails("--draft", str(broken)) and started.service is None
    done = run("--draft", str(broken), "--plain-without-draft")
    assert done.exit_code == 0 and "warning: serving without a draft" in done.stderr
    assert started.service.draft_name is None
    assert "without a draft at" in done.stderr


def test_the_name_of_a_folder_that_one_is_in(
    started: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, _ = small_pair()
    monkeypatch.chdir(target.path)
    assert run("--target", ".").exit_code == 0
    assert started.service.names == ["target"]


def test_several_drafts(started: SimpleNamespace, tmp_path: Path) -> None:
    done = run("--draft", "small=embedded", "--draft", "copy=prompt-lookup")
    assert done.exit_code == 0, done.output
    assert started.service.draft_names == ["small", "copy"]
    assert list(started.service.engine.drafts) == ["small", "copy"]
    assert "with small or copy at" in done.stderr
    for drafts, message in (
        (("copy", "a=prompt-lookup"), "--draft copy: has no name; expected NAME=copy"),
        (("a=prompt-lookup", "a=embedded"), "--draft a=embedded: the name is already used"),
        (("none=prompt-lookup",), "--draft none=prompt-lookup: this name means no draft"),
    ):
        assert message in fails(*(word for draft in drafts for word in ("--draft", draft)))
    done = run("--draft", "a=prompt-lookup", "--draft", f"b={tmp_path}", "--plain-without-draft")
    assert done.exit_code == 0 and "warning: draft b left out" in done.stderr
    assert started.service.draft_names == ["a"]


def test_packages_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "specdec.serve.server")
    assert "needs the package uvicorn" in fails()
    assert "Usage: specdec serve" in run("--help").stdout


@pytest.mark.oracle
def test_the_first_request_of_the_page() -> None:
    """The commands of docs/SERVER.md, with another port."""
    text = (ROOT / "docs" / "SERVER.md").read_text(encoding="utf-8")
    server, curl, client = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert server == "specdec serve\n"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with serving(port) as (_, line):
        shown = re.search(r"`(specdec serve: .*?)`", text)
        assert shown and line == shown[1].replace("8000", str(port))
        script = re.search(r"<<'END'\n(.*)^END$", client, re.MULTILINE | re.DOTALL)
        assert script
        source = script[1].replace("8000", str(port))
        done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=60)
        if shutil.which("curl"):
            asked = ["bash", "-c", curl.replace("8000", str(port))]
            answer = json.loads(subprocess.run(asked, capture_output=True, timeout=60, check=True).stdout)
            assert answer["choices"][0]["text"]
    assert done.returncode == 0, done.stderr
    text, _, figures = done.stdout.rpartition("\n {")
    assert len(text) > 50
    found = json.loads("{" + figures.replace("'", '"'))
    assert found["num_accepted_draft_tokens"] > 0
