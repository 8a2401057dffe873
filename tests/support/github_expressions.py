"""Expressions of GitHub's workflows: those that our template uses; any other is an error.

Raising is the point: what is not understood must not pass as if it had been run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Context = Mapping[str, Any]
"""Names → text, mappings, or functions of texts: `{"github": {…}, "hashFiles": …}`."""
_TOKEN = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<name>[A-Za-z_][A-Za-z0-9_-]*(?:\.[A-Za-z_][A-Za-z0-9_-]*)*)"
    r"|(?P<mark>\|\||&&|==|!=|!|\(|\)|,))"
)
_INSERTED = re.compile(r"\$\{\{(.*?)\}\}")
STATUS = ("success", "cancelled")
"""Functions of which one makes a condition hold after a failure; `success` does not."""


class UnknownWorkflowError(Exception):
    """A workflow has something that is not understood."""


def filled(text: str, context: Context) -> str:
    """Return a text with the values of its expressions."""
    result = _INSERTED.sub(lambda match: _as_text(value(match[1], context)), text)
    if "${{" in result:
        raise UnknownWorkflowError(f"an expression without its end: {text}")
    return result


def holds(condition: str, context: Context) -> bool:
    """Return whether an `if` holds. Unless it names a status, nothing may have failed before."""
    inner = _INSERTED.fullmatch(condition.strip())
    text = inner[1] if inner else condition
    if not re.search(rf"\b({'|'.join(STATUS)})\(", text):
        text = f"success() && ({text})"
    return bool(value(text, context))


def value(expression: str, context: Context) -> Any:
    """Return the value of an expression."""
    parser = _Parser(expression, context)
    result = parser.alternative()
    parser.end()
    return result


def _as_text(result: Any) -> str:
    if isinstance(result, bool):
        return str(result).lower()
    if not isinstance(result, str):
        raise UnknownWorkflowError(f"not a text: {result!r}")
    return result


class _Parser:
    """Reads and evaluates at once; both sides of an operator, so that nothing goes unread."""

    def __init__(self, expression: str, context: Context) -> None:
        self.expression, self.context = expression, context
        self.tokens: list[tuple[str, str]] = []
        position, text = 0, expression.rstrip()
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None or match.lastgroup is None:
                raise self.unknown(text[position:])
            self.tokens.append((match.lastgroup, match[match.lastgroup]))
            position = match.end()

    def unknown(self, what: str) -> UnknownWorkflowError:
        return UnknownWorkflowError(f"unknown in the expression {self.expression.strip()}: {what}")

    def next_is(self, *marks: str) -> str:
        """Take the next token if it is one of these; empty if it is not."""
        if self.tokens and self.tokens[0][0] == "mark" and self.tokens[0][1] in marks:
            return self.tokens.pop(0)[1]
        return ""

    def end(self) -> None:
        if self.tokens:
            raise self.unknown(self.tokens[0][1])

    def alternative(self) -> Any:
        result = self.conjunction()
        while self.next_is("||"):
            other = self.conjunction()
            result = result or other
        return result

    def conjunction(self) -> Any:
        result = self.comparison()
        while self.next_is("&&"):
            other = self.comparison()
            result = result and other
        return result

    def comparison(self) -> Any:
        result = self.operand()
        if mark := self.next_is("==", "!="):
            other = self.operand()
            if not isinstance(result, str) or not isinstance(other, str):
                raise self.unknown(f"{result!r} {mark} {other!r}")
            return (result == other) == (mark == "==")
        return result

    def operand(self) -> Any:
        if self.next_is("!"):
            return not self.operand()
        if self.next_is("("):
            result = self.alternative()
            self.close()
            return result
        if not self.tokens:
            raise self.unknown("its end")
        kind, token = self.tokens.pop(0)
        if kind == "text":
            return token[1:-1].replace("''", "'")
        if kind != "name":
            raise self.unknown(token)
        return self.call(token) if self.next_is("(") else self.looked_up(token)

    def close(self) -> None:
        if not self.next_is(")"):
            raise self.unknown("a bracket that is not closed")

    def call(self, name: str) -> Any:
        function = self.context.get(name)
        if not isinstance(function, Callable):
            raise self.unknown(f"{name}()")
        arguments = []
        while not self.next_is(")"):
            arguments.append(self.alternative())
            if not self.next_is(","):
                self.close()
                break
        return function(*arguments)

    def looked_up(self, name: str) -> Any:
        found: Any = self.context
        for part in name.split("."):
            if not isinstance(found, Mapping) or part not in found:
                raise self.unknown(name)
            found = found[part]
        if not isinstance(found, str):
            raise self.unknown(f"{name}, which is no text")
        return found
