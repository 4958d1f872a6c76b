"""Renders a conversation with the model's own chat template, which is foreign code.

Two things are kept apart from what they must not touch:

* *The template from the daemon.* It runs in Jinja's sandbox, and what it may spend is metered: loop
  rounds and calls against one budget, sizes of strings it builds, length of its output. The syntax
  tree is rewritten once at load so that every loop pays.
* *The client's text from the template's control tokens.* A control token's string inside a message
  is broken up by a nonce before rendering; the rendered text is then cut at the unbroken ones,
  which can only be the template's own, and the nonce is taken out of the rest.

Environment and extensions are those that templates on the model hub are written for (transformers,
``utils/chat_template_utils.py``).
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from vertumnusd.node.errors import RequestError, invalid
from vertumnusd.node.gguf_tokenizer import TokenizerError

Message = Mapping[str, str]

MAX_SPENT = 200_000  # loop rounds and calls of one rendering
MAX_BUILT = 32 * 1024 * 1024  # characters of a string, or of the whole output
MAX_NUMBER = 1_000_000  # as an argument of a call, or a factor

_NONCE_LETTERS = 8
_PRIVATE_USE = range(0xE000, 0xF900)

_spent: ContextVar[int] = ContextVar("spent")


class ChatTemplate:
    """One compiled template. ``control`` maps the string of each control token to its id."""

    def __init__(
        self, source: str, control: Mapping[str, int], variables: Mapping[str, str]
    ) -> None:
        self._control = dict(control)
        self._variables = dict(variables)
        # Private-use letters have no case and are no white space: templates pass them through.
        self._nonce = "".join(chr(secrets.choice(_PRIVATE_USE)) for _ in range(_NONCE_LETTERS))
        longest_first = sorted(map(re.escape, control), key=len, reverse=True)
        self._control_string = re.compile(f"({'|'.join(longest_first) or '(?!)'})")
        self._beginnings = {text[:length] for text in control for length in range(1, len(text))}
        self._longest = max(map(len, control), default=0)
        try:
            self._template = _compile(source)
        except jinja2.TemplateError as error:
            raise TokenizerError(f"the chat template cannot be compiled: {error}") from error

    def render(self, messages: Sequence[Message]) -> str:
        """The conversation as text, ready for :meth:`split`, ending where the answer begins.

        Raises :class:`RequestError` 400 if the template refuses the conversation, 500 if it fails.
        """
        guarded = [
            {key: self.guard(text) if key == "content" else text for key, text in message.items()}
            for message in messages
        ]
        token = _spent.set(0)
        try:
            return "".join(self._pieces(guarded))
        except _Refusal as error:
            raise invalid(
                f"the chat template refuses this: {self._unguard(str(error))}", "messages"
            ) from error
        except Exception as error:  # a template can raise whatever the operations in it can
            raise RequestError(
                500, "chat_template_error", f"the chat template failed: {type(error).__name__}"
            ) from error
        finally:
            _spent.reset(token)

    def guard(self, text: str) -> str:
        """``text`` as it may stand in a rendered conversation: it holds no control token."""
        guarded = self._control_string.sub(lambda match: self._broken(match[0]), text)
        for length in range(min(self._longest, len(guarded)), 0, -1):
            # Text that follows in the template could complete a control token begun here.
            if guarded[-length:] in self._beginnings:
                return guarded + self._nonce
        return guarded

    def split(self, rendered: str) -> Iterator[str | int]:
        """Plain text, in which nothing is a control token, and ids of the template's own ones."""
        for index, piece in enumerate(self._control_string.split(rendered)):
            if index % 2:
                yield self._control[piece]
            elif plain := self._unguard(piece):
                yield plain

    def _broken(self, text: str) -> str:
        return text[0] + self._nonce + text[1:]

    def _unguard(self, text: str) -> str:
        return text.replace(self._nonce, "")

    def _pieces(self, messages: list[dict[str, str]]) -> Iterator[str]:
        built = 0
        for piece in self._template.generate(
            messages=messages,
            tools=None,
            documents=None,
            add_generation_prompt=True,
            **self._variables,
        ):
            built += len(piece)
            if built > MAX_BUILT:
                raise SecurityError("the output is too long")
            yield piece


class _Refusal(jinja2.TemplateError):
    """The template called ``raise_exception``: its way to say that the messages are wrong."""


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, with a meter."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def wrap_str_format(self, value: Any) -> Any:
        if super().wrap_str_format(value) is None:
            return None
        raise SecurityError("str.format is not available: a width in it asks for any memory")

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "+":
            _check_size(_size(left) + _size(right))
        elif operator == "%" and isinstance(left, str):
            raise SecurityError("printf formatting is not available")
        elif operator == "**" or _size(left) or _size(right):
            _check_number(left, right)
            _check_size(max(_size(left), 1) * max(_size(right), 1) * _factor(left) * _factor(right))
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        _spend(1)
        _check_number(*args, *kwargs.values())
        return super().call(context, function, *args, **kwargs)


class _Generation(Extension):
    """``{% generation %}`` marks the assistant's words for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - the name and type that Jinja asks for

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Meter(jinja2.visitor.NodeTransformer):
    """Rewrites a template so that its loops pay per round and its ``~`` is bounded."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = nodes.Filter(node.iter, "metered", [], [], None, None)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        operands = nodes.List(node.nodes)
        return nodes.Filter(operands, "concatenated", [], [], None, None)


def _compile(source: str) -> jinja2.Template:
    environment = _Sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, "jinja2.ext.loopcontrols"],
    )
    for unbounded in ("center", "format", "indent", "wordwrap"):
        del environment.filters[unbounded]
    environment.filters["tojson"] = _to_json
    environment.filters["metered"] = _metered
    environment.filters["concatenated"] = _concatenated
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    del environment.globals["lipsum"]
    tree = _Meter().visit(environment.parse(source))
    tree.set_environment(environment)
    code = environment.compile(tree)
    return jinja2.Template.from_code(environment, code, environment.make_globals(None))


def _raise(message: object) -> None:
    raise _Refusal(str(message))


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    """Unlike Jinja's own filter this one does not escape HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _metered(values: Any) -> list[Any]:
    items = list(values)
    _spend(len(items))
    return items


def _concatenated(operands: list[Any]) -> str:
    texts = [str(operand) for operand in operands]
    _check_size(sum(map(len, texts)))
    return "".join(texts)


def _spend(units: int) -> None:
    spent = _spent.get() + units
    _spent.set(spent)
    if spent > MAX_SPENT:
        raise SecurityError("the template does too much")


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple) else 0


def _factor(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 1


def _check_size(size: int) -> None:
    if size > MAX_BUILT:
        raise SecurityError("a value gets too long")


def _check_number(*values: Any) -> None:
    if any(isinstance(value, int) and abs(value) > MAX_NUMBER for value in values):
        raise SecurityError("a number is too large")
