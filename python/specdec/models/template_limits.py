"""Limits of a chat template: what it computes ends, and fits in memory.

Jinja's sandbox keeps a template from the program's objects, but not from loops without end or texts without
bound. `limited` makes an environment whose templates count what they do against the budget of a rendering.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sized
from contextvars import ContextVar
from typing import Any, Final

__all__ = ["limited", "limited_filter", "rendered"]

_STEPS: Final = 1_000_000  # iterations of loops and calls
_LARGEST: Final = 1 << 26  # characters of a text, entries of a list
_COPIED: Final = 1 << 32  # characters and entries of all results
_LARGEST_INTEGER: Final = 1 << 20  # as an argument, which may be a width
_WIDEST: Final = 1_000  # indentation
_BITS: Final = 1 << 14  # of integers
_WIDTH: Final = re.compile(r"%[^a-zA-Z%]*(\d{5}|\*)|\{[^{}]*:[^{}]*(\d{5}|\{)")


class _Budget:
    """What a rendering has used so far."""

    def __init__(self) -> None:
        self.steps = self.copied = 0


_budget: ContextVar[_Budget | None] = ContextVar("budget", default=None)


def rendered(template: Any, values: dict[str, Any]) -> str:
    """The text of a template of a limited environment, within a budget of its own."""
    token = _budget.set(_Budget())
    try:
        pieces, n = [], 0
        for piece in template.generate(values):
            n += len(piece)
            _check(n, "the text")
            pieces.append(piece)
        return "".join(pieces)
    finally:
        _budget.reset(token)


def limited(jinja2: Any, base: type[Any]) -> type[Any]:
    """A class of environments with limits, derived from one of Jinja's sandboxes."""
    nodes = jinja2.nodes

    class Counting(jinja2.visitor.NodeTransformer):  # type: ignore[misc]
        """Count what is repeated and what is joined, where a template says so."""

        def repeated(self, node: Any) -> Any:
            self.generic_visit(node)
            n = 1 + sum(len(data.data) for data in node.find_all(nodes.TemplateData))
            step = nodes.Call(nodes.EnvironmentAttribute("step"), [nodes.Const(n)], [], None, None)
            node.body.insert(0, nodes.ExprStmt(step).set_lineno(node.lineno))
            return node

        visit_For = visit_Macro = visit_CallBlock = repeated  # noqa: N815

        def visit_Concat(self, node: Any) -> Any:  # noqa: N802
            self.generic_visit(node)
            return nodes.Call(nodes.EnvironmentAttribute("join"), node.nodes, [], None, None)

    class Limited(base):  # type: ignore[misc]
        filters: dict[str, Any]
        intercepted_binops = frozenset({"+", "*", "**", "%"})

        def __init__(self, *args: Any, **values: Any) -> None:
            super().__init__(*args, **values, optimized=False, finalize=finalize)
            self.filters = {name: limited_filter(name, plain) for name, plain in self.filters.items()}
            self.step, self.join = _count, _joined
            del self.globals["lipsum"]

        def _generate(self, source: Any, *args: Any, **values: Any) -> Any:
            return super()._generate(Counting().visit(source), *args, **values)

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            _check_operands(operator, left, right)
            return super().call_binop(context, operator, left, right)

        def call(self, context: Any, function: Any, /, *args: Any, **values: Any) -> Any:
            if function is _count or function is _joined:
                return function(*args)
            method = getattr(function, "__wrapped__", function)  # the sandbox wraps str.format
            text = getattr(method, "__self__", None)
            if isinstance(text, str):
                _check_arguments(method.__name__, (text, *args), values)
            _count(0)
            return super().call(context, function, *args, **values)

    @jinja2.pass_context  # type: ignore[untyped-decorator]
    def finalize(context: Any, value: Any) -> Any:
        """What is printed; with a context, so that nothing is computed before the template is rendered."""
        if isinstance(value, str):
            _check(len(value), "a text")
        return value

    return Limited


def _joined(*values: Any) -> str:
    """The texts of some values, one after the other."""
    texts = [str(value) for value in values]
    _check(sum(map(len, texts)), "a text")
    return "".join(texts)


def _refuse(what: str) -> None:
    import jinja2

    raise jinja2.exceptions.SecurityError(f"{what}, more than a chat template may have")


def _count(n: int) -> None:
    """A call, or a loop or a macro with n characters that begins once more."""
    budget = _budget.get()
    if budget is None:
        return
    budget.steps += 1
    budget.copied += n
    if budget.steps > _STEPS:
        _refuse(f"{_STEPS} iterations and calls")
    if budget.copied > _COPIED:
        _refuse(f"{_COPIED} characters computed")


def _check(n: int, what: str) -> None:
    """Something of n characters or entries is made."""
    if n > _LARGEST:
        _refuse(f"{what} of {n} characters or entries")
    budget = _budget.get()
    if budget is not None:
        budget.copied += n
        if budget.copied > _COPIED:
            _refuse(f"{_COPIED} characters computed")


def _check_operands(operator: str, left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        n_left, n_right = left.bit_length(), right.bit_length()
        n_bits = n_left * max(right, 0) if operator == "**" and n_left > 1 else n_left + n_right
        if n_bits > _BITS:
            _refuse(f"an integer of {n_bits if n_bits < 1 << 60 else 'very many'} bits")
    elif operator == "*":
        for sequence, n in ((left, right), (right, left)):
            if isinstance(sequence, str | list | tuple) and isinstance(n, int):
                _check(len(sequence) * max(n, 0), "a sequence")
    elif operator == "+" and isinstance(left, Sized) and isinstance(right, Sized):
        _check(len(left) + len(right), "a sequence")
    elif operator == "%" and isinstance(left, str):
        _check_arguments("format", (left, right), {})


def _check_arguments(name: str, args: tuple[Any, ...], values: dict[str, Any]) -> None:
    """The arguments of a filter, or of a text's method, whose result may be far larger than they are."""
    integers = [value for value in (*args[1:], *values.values()) if isinstance(value, int)]
    most = _WIDEST if name in ("indent", "tojson") else _LARGEST_INTEGER
    for value in integers if name != "format" else ():
        if value > most:
            _refuse(f"{name} with {value if value < 1 << 60 else 'a very large number'}")
    text = args[0] if args else None
    if name == "join":
        separator = text if isinstance(text, str) and len(args) > 1 and not values else ""
        items = args[1] if separator else text
        if not separator or isinstance(args[1], str):  # the filter: the items come first
            items, separator = text, next(iter([*args[1:2], *values.values()]), "")
        if isinstance(items, Sized) and isinstance(separator, str):
            _check(len(items) * len(separator), "a text")
    if not isinstance(text, str):
        return
    if name in ("format", "format_map"):
        if _WIDTH.search(text):
            _refuse("a format with a width")
    elif name in ("indent", "expandtabs"):
        _check(len(text) * max([8, *integers]), "a text")
    elif name == "replace" and len(args) > 2 and isinstance(args[1], str) and isinstance(args[2], str):
        _check(len(text) + text.count(args[1]) * len(args[2]), "a text")


def limited_filter(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose arguments and result are checked."""
    n_before = 1 if getattr(plain, "jinja_pass_arg", None) is not None else 0

    @functools.wraps(plain)
    def checked(*args: Any, **values: Any) -> Any:
        _count(0)
        _check_arguments(name, args[n_before:], values)
        result = plain(*args, **values)
        if isinstance(result, str | list | tuple | dict):
            _check(len(result), "a result")
        return result

    return checked
