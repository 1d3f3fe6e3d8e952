"""The Jinja environment of chat templates: what transformers' environment offers, sandboxed and bounded.

Imported only when a template is rendered, because Jinja costs start-up time.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError
from jinja2.visitor import NodeTransformer

from . import template_limits as limits
from .template_limits import LimitError, step, toll


class RefusalError(jinja2.TemplateError):
    """The template called raise_exception."""


class GenerationTag(jinja2.ext.Extension):
    """{% generation %}...{% endgeneration %} marks the assistant's words for training; here it only shows them."""

    tags = frozenset(("generation",))

    def parse(self, parser) -> nodes.Scope:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class Counted:
    """A sequence each of whose loop rounds is a step."""

    def __init__(self, items: Any) -> None:
        self._items = items

    def __iter__(self) -> Iterator:
        for item in self._items:
            step()
            yield item

    def __len__(self) -> int:
        return len(self._items)


class Namespace(jinja2.utils.Namespace):
    """Jinja's namespace, whose text form would show all that it holds, itself perhaps included."""

    def __repr__(self) -> str:
        return "<namespace>"


class _AddTolls(NodeTransformer):
    """Put a call into the template wherever Jinja leaves the environment no say: loops, ~, literals, comparisons,
    slices and constant text."""

    def _call(self, name: str, *args: nodes.Node) -> nodes.Call:
        line = args[0].lineno
        return nodes.Call(nodes.EnvironmentAttribute(name, lineno=line), list(args), [], None, None, lineno=line)

    def visit_For(self, node: nodes.For, *args, **kwargs) -> nodes.Node:
        self.generic_visit(node)
        node.iter = self._call("counted", node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat, *args, **kwargs) -> nodes.Node:
        self.generic_visit(node)
        return self._call("joined", *node.nodes)

    def _paid(self, node: nodes.Expr, *args, **kwargs) -> nodes.Node:
        self.generic_visit(node)
        return self._call("paid", node)

    visit_List = visit_Dict = visit_Compare = _paid

    def visit_Tuple(self, node: nodes.Tuple, *args, **kwargs) -> nodes.Node:
        return self._paid(node) if node.ctx == "load" else self.generic_visit(node)

    def visit_Getitem(self, node: nodes.Getitem, *args, **kwargs) -> nodes.Node:
        return self._paid(node) if isinstance(node.arg, nodes.Slice) else self.generic_visit(node)

    def visit_TemplateData(self, node: nodes.TemplateData, *args, **kwargs) -> nodes.Node:
        return self._call("same", nodes.MarkSafe(nodes.Const(node.data, lineno=node.lineno), lineno=node.lineno))


def _free(function: Callable) -> Callable:
    """Mark one of the environment's own functions, which pay by themselves."""
    function.own_toll = True
    return function


class ChatEnvironment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        # Constant folding would run a template's operations while it is compiled, before anything is counted.
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=_shown,
            extensions=[GenerationTag, jinja2.ext.loopcontrols],
        )
        for name in ("urlize", "pprint", "xmlattr"):  # slow on long input, and no chat template has a use for them
            del self.filters[name]
        self.filters["tojson"] = _tojson
        self.filters = {name: _bounded(name, function) for name, function in self.filters.items()}
        self.tests = {name: _bounded("", function) for name, function in self.tests.items()}
        del self.globals["lipsum"]
        self.globals.update(
            raise_exception=_raise_exception, strftime_now=_strftime_now, namespace=Namespace, dict=_make_dict
        )

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = _AddTolls().visit(super()._parse(source, name, filename))
        return tree.set_environment(self)

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """Jinja joins what a macro, a block or the whole template printed with this."""
        parts = list(parts)
        limits.need(sum(map(len, parts)))
        return "".join(parts)

    def unsafe_undefined(self, obj: Any, attribute: str) -> jinja2.Undefined:
        if attribute.startswith("_"):  # Jinja would print nothing and go on
            raise SecurityError(f"access to attribute {attribute!r} of a {type(obj).__name__}")
        return super().unsafe_undefined(obj, attribute)

    def call_binop(self, context, operator: str, left: Any, right: Any) -> Any:
        step()
        limits.before_operator(operator, left, right)
        return toll(super().call_binop(context, operator, left, right))

    def call(
        __self, __context, __obj: Any, *args: Any, **kwargs: Any
    ) -> Any:  # odd names, as in Jinja: kwargs may hold any
        if getattr(__obj, "own_toll", False) and getattr(__obj, "__self__", None) is __self:
            return __obj(*args)
        step()
        if isinstance(owner := getattr(__obj, "__self__", None), (str, bytes, int, type)):
            args = limits.before_method(owner, __obj.__name__, args, kwargs)
        return toll(super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        safe = super().wrap_str_format(value)
        if safe is None:
            return None

        def bounded(*args: Any, **kwargs: Any) -> str:
            limits.before_format(value.__self__, args, kwargs)
            return safe(*args, **kwargs)

        return functools.update_wrapper(bounded, value)

    @_free
    def counted(self, items: Any) -> Counted:
        return Counted(items)

    @_free
    def paid(self, value: Any) -> Any:
        return toll(value)

    @_free
    def same(self, value: str) -> str:
        return value

    @_free
    def joined(self, *parts: Any) -> str:
        limits.need(sum(limits.weigh(part) for part in parts))
        return toll("".join(map(str, parts)))


@jinja2.pass_context
def _shown(context, value: Any) -> Any:
    """Everything that is printed, at the top or inside a macro or block, passes here."""
    if isinstance(value, (list, tuple, dict)):
        limits.weigh(value)
        value = str(value)
    return toll(value)


def _raise_exception(message: str) -> None:
    raise RefusalError(str(message)[:10_000])


def _strftime_now(pattern: str) -> str:
    if len(pattern) > 1000 or re.search(r"%[^a-zA-Z%]*\d\d\d", pattern):
        raise LimitError("the date format")
    return datetime.now().strftime(pattern)


def _make_dict(*args: Any, **kwargs: Any) -> dict:
    return dict(*args, **kwargs)


def _tojson(value: Any, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
    """As in transformers: no HTML escapes, readable Unicode."""
    limits.width(indent, 16)
    if (isinstance(indent, str) and len(indent) > 16) or (separators and sum(len(text) for text in separators) > 64):
        raise LimitError("JSON indents and separators of that length")
    step_in = len(indent) if isinstance(indent, str) else int(indent or 0)
    limits.weigh(value, 64 + step_in * _depth(value))
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    if isinstance(value, (list, tuple)):
        return 1 + max(map(_depth, value), default=0)
    return 0


def _bounded(name: str, function: Callable) -> Callable:
    """A filter or test that pays, and whose result is refused before it is made where it could be out of proportion."""
    skip = 1 if hasattr(function, "jinja_pass_arg") else 0
    check = _CHECKS.get(name)

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        step()
        if name == "join" and len(args) > skip and not isinstance(args[skip], (str, list, tuple)):
            args = (*args[:skip], list(args[skip]), *args[skip + 1 :])
        if check is not None:
            check(*args[skip:], **kwargs)
        return toll(function(*args, **kwargs))

    return run


def _check_replace(s: Any, old: Any, new: Any, count: Any = None) -> None:
    limits.before_replace(s, old, new)


def _check_indent(s: Any, width: Any = 4, first: Any = False, blank: Any = False) -> None:
    limits.width(width)
    size = len(width) if isinstance(width, str) else int(width)
    limits.need(len(str(s)) + (str(s).count("\n") + 1) * size)


def _check_join(value: Any, d: Any = "", attribute: Any = None) -> None:
    limits.need(limits.weigh(value) + len(str(d)) * len(value))


def _check_format(value: Any, *args: Any, **kwargs: Any) -> None:
    limits.before_printf(str(value), kwargs or args)


def _check_wordwrap(s: Any, width: Any = 79, break_long_words: Any = True, wrapstring: Any = None, *_: Any) -> None:
    limits.need(len(str(s)) * (1 + len(str(wrapstring or ""))))


def _check_sum(iterable: Any, attribute: Any = None, start: Any = 0) -> None:
    if not isinstance(start, (int, float)):  # adding lists up one by one takes quadratic time
        raise LimitError("the filter sum over anything but numbers")


_CHECKS: dict[str, Callable[..., None]] = {
    "center": lambda value, width=80: limits.width(width),
    "replace": _check_replace,
    "indent": _check_indent,
    "join": _check_join,
    "format": _check_format,
    "wordwrap": _check_wordwrap,
    "sum": _check_sum,
    "batch": lambda value, linecount, fill_with=None: limits.width(linecount),
    "slice": lambda value, slices, fill_with=None: limits.width(slices),
    "round": lambda value, precision=0, method="common": limits.width(precision, 100),
}
