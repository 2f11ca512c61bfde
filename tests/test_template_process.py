"""Chat templates run in a process with limits: they end, and the program continues."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from chat_templates import said
from specdec import ChatTemplate
from specdec.errors import InputError, MissingPackageError, SpecdecError, TokenizerError
from specdec.models import template_process

PLAIN = ChatTemplate("{{ messages[0].content }}", source="plain")
ENDLESS = (
    "{% set n = namespace(a=[], b=[]) %}{% for _ in range(100) %}"
    "{% set n.a = [n.a, n.a] %}{% set n.b = [n.b, n.b] %}{% endfor %}{{ n.a < n.b }}"
)
"""2**100 comparisons within one operation of Python."""


@contextmanager
def short_limit() -> Iterator[None]:
    """Set a time limit that tests can wait for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(template_process, "TIME_LIMIT_S", 0.4)
        yield


@pytest.fixture
def fresh_helpers() -> Iterator[None]:
    """Start new helpers for the test, and end them after it."""
    template_process.close_helpers()
    yield
    template_process.close_helpers()


@pytest.mark.parametrize(
    "text",
    [
        ENDLESS,
        "{% macro f(n) %}{{ f(n - 1) ~ f(n - 1) if n }}{% endmacro %}{{ f(60) }}",
        "{% for a in range(99999) %}{{ range(99999) | select('none') | list }}{% endfor %}",
        "{{ 3 ** 100000000 }}",
        "{% for a in range(99999) %}{% if 'b' in 'a' * 10000000 %}{% endif %}{% endfor %}",
        "{% set x" + ",x" * 200_000 + " = 1 %}",  # takes long to parse and to compile
    ],
    ids=range(6),
)
def test_a_template_that_computes_for_too_long_ends(text: str) -> None:
    """Also when it is only checked."""
    template = ChatTemplate(text, source="here")
    is_long = len(text) > 1000
    for call in (
        lambda: template.render(said("x")),
        *([template.check, lambda: template.reads("x")] * is_long),
    ):
        with short_limit(), pytest.raises(InputError, match="here: .* takes more than 0.4 seconds"):
            call()
    assert PLAIN.render(said("b")) == "b"


@pytest.mark.parametrize(
    "text",
    [
        "{{ 'a' * 10**10 }}",
        "{% set n = namespace(s='a') %}{% for _ in range(60) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
        "{% set n = namespace(a=[]) %}{% for _ in range(99) %}{% set n.a = [n.a, [1] * 10**8] %}{% endfor %}",
        "{{ 'a' | center(10**10) }}{{ '{:>{}}'.format(1, 10**10) }}",
        "{{ range(99999) | join('a' * 100000) }}",
    ],
)  # fmt: skip
@pytest.mark.skipif(sys.platform != "linux", reason="the address space of a process has no bound")
def test_a_template_that_takes_too_much_memory_ends(text: str) -> None:
    with pytest.raises(InputError, match="here: the chat template needs more than 1024 MiB"):
        ChatTemplate(text, source="here").render(said("x"))
    assert PLAIN.render(said("b")) == "b"


def test_texts_and_reasons_of_a_template_are_bounded() -> None:
    """They cannot fill this process's memory instead."""
    with pytest.raises(InputError, match="renders 70000000 bytes; expected at most 67108864"):
        ChatTemplate("{{ 'a' * 70000000 }}").render(said("x"))
    assert len(ChatTemplate("{{ 'a' * 9000000 }}").render(said("x"))) == 9_000_000
    with pytest.raises(InputError, match="refuses these messages: aaa") as caught:
        ChatTemplate("{{ raise_exception('a' * 10000000) }}").render(said("x"))
    assert len(str(caught.value)) < 3000


def test_a_template_that_is_nested_too_deep() -> None:
    deep, deeper = ("{{ " + "(" * depth + "1" + ")" * depth + " }}" for depth in (50, 100_000))
    assert ChatTemplate(deep).render(said("a")) == "1"
    with pytest.raises(TokenizerError, match="not valid Jinja"):
        ChatTemplate(deeper).check()


VALUES: list[Any] = [
    {"b": [1, 2.5, None, True, 2**100]}, "\ud83d\ude00", "🙂\0\r\n", float("inf"), "x" * 300_000,
    {3: "three", None: "none", "": []}, -0.0,
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_values_and_texts_pass_unchanged(value: Any) -> None:
    """As if Jinja ran here: non-string keys, lone surrogates, large numbers included."""
    import jinja2

    text = "{{ value }} {{ value is mapping }} {{ value is string }}"
    assert ChatTemplate(text).render(said("a"), value=value) == jinja2.Template(text).render(value=value)


def test_templates_and_variables_of_one_rendering_are_unknown_to_the_next() -> None:
    assert ChatTemplate("{% set kept = 1 %}{{ x }}").render(said("a"), x="y") == "y"
    assert ChatTemplate("{{ kept }}{{ x }}").render(said("a")) == ""


@pytest.mark.usefixtures("fresh_helpers")
def test_one_process_renders_all_that_comes_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A helper that died while idle is replaced."""
    started: list[Any] = []
    start = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **kw: started.append(1) or start(*args, **kw))
    for i in range(5):
        assert PLAIN.render(said(str(i))) == str(i)
    assert len(started) == 1
    template_process.close_helpers()
    assert PLAIN.render(said("b")) == "b"
    assert len(started) == 2


def test_threads_render_at_once() -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: PLAIN.render(said(f"{i}" * 5000)), range(64)))
    assert found == [f"{i}" * 5000 for i in range(64)]


@pytest.mark.slow
def test_a_slow_template_does_not_hold_up_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_process, "TIME_LIMIT_S", 20.0)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(ChatTemplate(ENDLESS).render, said("x"))
        time.sleep(0.2)
        assert PLAIN.render(said("b")) == "b" and not slow.done()
        template_process.close_helpers()
        with pytest.raises(InputError, match="ends the process that renders it, with status -9"):
            slow.result()


@pytest.mark.usefixtures("fresh_helpers")
@pytest.mark.parametrize("executable", ["/nowhere/python", "", None])
def test_a_process_that_cannot_start(monkeypatch: pytest.MonkeyPatch, executable: str | None) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    with pytest.raises(SpecdecError, match=f"cannot be started: .*{executable or ''}"):
        PLAIN.render(said("a"))


@pytest.mark.usefixtures("fresh_helpers")
def test_jinja_is_needed_for_chats_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(MissingPackageError, match=r"pip install 'specdec-cpu\[chat\]'"):
        PLAIN.render(said("a"))
    template_process.close_helpers()
    (tmp_path / "jinja2").mkdir()
    for module in ("ext", "sandbox"):
        (tmp_path / "jinja2" / f"{module}.py").touch()
    (tmp_path / "jinja2" / "__init__.py").write_text("__version__ = '3.1.5'")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(
        MissingPackageError, match=r"3\.1\.6 or newer, which fixes its sandbox; found 3\.1\.5"
    ):
        PLAIN.render(said("a"))


def test_the_exception_of_a_signal_handler_passes_through() -> None:
    """Like any exception that does not come from the template; the time limit is 10 s."""

    def handler(*_: Any) -> None:
        raise ZeroDivisionError

    before = signal.signal(signal.SIGUSR1, handler)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1))
    try:
        timer.start()
        begun = time.monotonic()
        with pytest.raises(ZeroDivisionError):
            ChatTemplate(ENDLESS).render(said("a"))
        assert time.monotonic() - begun < template_process.TIME_LIMIT_S / 2
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
    assert PLAIN.render(said("b")) == "b"


def start(script: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a program without main guard that shows every warning."""
    head = """
        import os, signal, sys
        from specdec import ChatTemplate
        from specdec.models import template_process
        def render(text, content="a"):
            return ChatTemplate(text).render([{"role": "user", "content": content}])
        def helpers():
            return [helper._process.pid for helper in template_process._helpers]
    """
    code = textwrap.dedent(head) + textwrap.dedent(script)
    command = [sys.executable, "-W", "always", "-c", code, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def has_ended(pid: int, seconds: float = 5.0) -> bool:
    """Return whether a process ends within some seconds."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
        if state.strip()[:1] in ("", "Z"):  # no process may wait for it after its parent has ended
            return True
        time.sleep(0.05)
    return False


@pytest.mark.slow
def test_forks_have_helpers_of_their_own_and_leave_none_running() -> None:
    program = start(
        """
        print(render("{{ messages[0].content }}", "one"), *helpers(), flush=True)
        child = os.fork()
        if not child:
            assert not helpers()
            print(render("{{ messages[0].content }}", "two"), *helpers(), flush=True)
            sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        print(render("{{ messages[0].content }}", "three"), *helpers(), flush=True)
        """
    )
    out, err = program.communicate(timeout=60)
    (one, first), (two, second), (three, third) = (line.split() for line in out.splitlines())
    assert (one, two, three, err, program.returncode) == ("one", "two", "three", "", 0)
    assert first == third != second
    assert has_ended(int(first)) and has_ended(int(second))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_program_that_is_ended_leaves_no_helper(number: signal.Signals) -> None:
    """Also while rendering: Ctrl-C ends the helper too; otherwise the time limit does."""
    program = start(
        """
        template_process.TIME_LIMIT_S = float(sys.argv[2])
        render("a")
        print(*helpers(), flush=True)
        render(sys.argv[1])
        """,
        ENDLESS,
        "600" if number == signal.SIGINT else "3",
    )
    assert program.stdout is not None
    helper = int(program.stdout.readline())
    time.sleep(0.2)
    program.send_signal(number)
    _, err = program.communicate(timeout=60)
    assert "ResourceWarning" not in err and ("KeyboardInterrupt" in err) == (number == signal.SIGINT)
    assert has_ended(helper, 20.0)


@pytest.mark.slow
def test_modules_in_the_current_folder_are_not_imported(tmp_path: Path) -> None:
    """Even if the program's search path starts with it, as in an interactive session."""
    for name in ("jinja2", "markupsafe", "json", "pickle"):
        (tmp_path / f"{name}.py").write_text("open('imported', 'w')")
    program = start(
        """
        assert sys.path[0] == ""
        os.chdir(sys.argv[1])
        print(render("{{ messages[0].content }}", "one"))
        """,
        str(tmp_path),
    )
    assert program.communicate(timeout=60) == ("one\n", "")
    assert not (tmp_path / "imported").exists()
