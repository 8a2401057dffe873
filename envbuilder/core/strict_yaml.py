"""Strict parsing of YAML as plain data: no aliases, tags or duplicate keys, and limits on sizes.

The data is built from the parser's events. No part of a document refers to another, so memory use
is proportional to the text, and no message can repeat more than a short piece of it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn

import yaml

from envbuilder.core.text import SHOWN, shown

if TYPE_CHECKING:
    from collections.abc import Callable

LARGEST_FILE = 1 << 20
"""Maximum size of a file in bytes; the largest shipped one has 1,800."""
LONGEST_SCALAR = 1 << 16
LONGEST_NUMBER = 100
"""Maximum length of a number or date; parsing base 60 takes time quadratic in the length."""
DEEPEST = 32

_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_TYPED = frozenset(f"{_TAG}{name}" for name in ("null", "bool", "int", "float", "timestamp"))
# PyYAML's own expression, compiled already: another one takes 5 ms of every start.
_NOT_TEXT = yaml.reader.Reader.NON_PRINTABLE
"""Characters that YAML allows in no document (YAML 1.1, 5.1), mainly control characters."""


class StrictYamlError(ValueError):
    """Text is not YAML, or uses features that are not supported here."""

    def __init__(self, problem: str, line: int, hint: str = "") -> None:
        super().__init__(f"line {line}: {problem}")
        self.problem = problem
        self.line = line
        self.hint = hint


class Span(NamedTuple):
    """Where a value stands in a text, in characters."""

    start: int
    end: int
    """Of a block collection, somewhere before what follows it."""
    key_end: int
    """Where the name of its key ends; -1 for an item of a list."""
    style: Literal["scalar", "flow", "block"]
    """A `flow` collection is in brackets."""


class _Scalars(yaml.constructor.SafeConstructor, yaml.resolver.Resolver):
    """Types and values of plain scalars in YAML 1.1."""

    def __init__(self) -> None:
        yaml.constructor.SafeConstructor.__init__(self)
        yaml.resolver.Resolver.__init__(self)

    def tag(self, event: Any) -> str:
        """Return the type of a scalar without a tag."""
        resolve: Callable[..., str] = self.resolve
        return resolve(yaml.ScalarNode, event.value, event.implicit)


def load(text: str, *, scalars_as_text: bool = False) -> Any:
    """Return the single document in `text`, None if it is empty. Raises `StrictYamlError`."""
    return _Document(text, scalars_as_text=scalars_as_text).data


def lines(text: str) -> dict[tuple[str, ...], int]:
    """Return the line of each key and item by path (indexes as text); `load` must accept `text`."""
    return _Document(text, scalars_as_text=False).lines


def spans(text: str) -> dict[tuple[str, ...], Span]:
    """Return where each value stands, by path as in `lines`; `load` must accept `text`.

    The text has no byte order mark.
    """
    return _Document(text, scalars_as_text=False).spans


class _Document:
    """A document, built from parser events without recursion."""

    def __init__(self, text: str, *, scalars_as_text: bool) -> None:
        self.data: Any = None
        self.lines: dict[tuple[str, ...], int] = {}
        self.spans: dict[tuple[str, ...], Span] = {}
        self._scalars = None if scalars_as_text else _Scalars()
        self._open: list[_Collection] = []
        self._documents = 0
        stray = _NOT_TEXT.search(text, 1 if text.startswith("\ufeff") else 0)
        if stray or "\ufeff" in text[1:]:
            at = stray.start() if stray else text.index("\ufeff", 1)
            name = f"U+{ord(text[at]):04X}"
            raise StrictYamlError(
                f"the character {name} is not allowed", text.count("\n", 0, at) + 1
            )
        try:
            for event in yaml.parse(text, _PARSER):
                self._take(event)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            problem = (error.problem or "it cannot be parsed")[: 2 * SHOWN]
            line = mark.line + 1 if mark else 1
            raise StrictYamlError(problem, line, _syntax_hint(text, line)) from error
        except (yaml.YAMLError, RecursionError) as error:
            raise StrictYamlError("it cannot be parsed", 1) from error

    def _take(self, event: Any) -> None:
        match event:
            case yaml.DocumentStartEvent():
                self._documents += 1
                if event.tags:
                    _refuse(event, "%TAG is not supported: files hold plain data")
                if self._documents > 1:
                    _refuse(event, "a file holds one document only, and a second one begins")
            case yaml.AliasEvent():
                _refuse(event, "anchors and aliases are not supported: write the value out")
            case yaml.ScalarEvent() | yaml.CollectionStartEvent():
                if event.anchor is not None:
                    _refuse(event, "anchors and aliases are not supported: write the value out")
                if event.tag is not None:
                    _refuse(event, "tags (!…) are not supported: files hold plain data")
                if isinstance(event, yaml.ScalarEvent):
                    self._scalar(event)
                else:
                    self._start(event)
            case yaml.CollectionEndEvent():
                self._end(event)
            case _:
                pass

    def _start(self, event: Any) -> None:
        if self._open and self._open[-1].wants_key:
            _refuse(event, "a key is not text")
        if len(self._open) >= DEEPEST:
            _refuse(event, f"nested too deeply: more than {DEEPEST} levels")
        data: Any = {} if isinstance(event, yaml.MappingStartEvent) else []
        path = self._put(data, event)
        self._open.append(_Collection(data, path))

    def _end(self, event: Any) -> None:
        path = self._open.pop().path
        self.spans[path] = self.spans[path]._replace(end=event.end_mark.index)

    def _scalar(self, event: Any) -> None:
        if len(event.value) > LONGEST_SCALAR:
            _refuse(event, f"text longer than {LONGEST_SCALAR} characters")
        tag = self._scalars.tag(event) if self._scalars else None
        if self._open and self._open[-1].wants_key:
            self._key(event, tag)
            return
        value: Any = event.value
        if tag in _TYPED:
            build: Callable[[Any, Any], Any] = _Scalars.yaml_constructors[tag]
            kind = tag.removeprefix(_TAG)
            invalid = f"{shown(value)} is not a valid {kind}; quote it if it is text"
            if len(value) > LONGEST_NUMBER:
                _refuse(event, invalid)
            try:
                value = build(self._scalars, yaml.ScalarNode(tag, value))
            except (ValueError, KeyError, OverflowError):
                _refuse(event, invalid)
        self._put(value, event)

    def _key(self, event: Any, tag: str | None) -> None:
        parent = self._open[-1]
        if tag == f"{_TAG}merge":
            _refuse(event, "the merge key << is not supported: write the keys out")
        if tag in _TYPED:
            _refuse(event, f"key {shown(event.value)} is not text: quote it")
        if event.value in parent.data:
            _refuse(event, f"key {shown(event.value)} appears twice: keep one of them")
        parent.key, parent.key_end = event.value, event.end_mark.index
        parent.wants_key = False
        self.lines[*parent.path, event.value] = event.start_mark.line + 1

    def _put(self, value: Any, event: Any) -> tuple[str, ...]:
        """Store a value in its parent and return its path."""
        path, key_end = self._stored(value, event)
        style: Literal["scalar", "flow", "block"] = "scalar"
        if isinstance(event, yaml.CollectionStartEvent):
            style = "flow" if event.flow_style else "block"
        self.spans[path] = Span(event.start_mark.index, event.end_mark.index, key_end, style)
        return path

    def _stored(self, value: Any, event: Any) -> tuple[tuple[str, ...], int]:
        if not self._open:
            self.data = value
            return (), -1
        parent = self._open[-1]
        if isinstance(parent.data, dict):
            parent.data[parent.key] = value
            parent.wants_key = True
            return (*parent.path, parent.key), parent.key_end
        path = (*parent.path, str(len(parent.data)))
        parent.data.append(value)
        self.lines[path] = event.start_mark.line + 1
        return path, -1


class _Collection:
    """A mapping or sequence that is still open."""

    def __init__(self, data: Any, path: tuple[str, ...]) -> None:
        self.data, self.path = data, path
        self.key, self.key_end = "", -1
        self.wants_key = isinstance(data, dict)


def _syntax_hint(text: str, line: int) -> str:
    """Return what to look for in a line that cannot be parsed."""
    stated = text.split("\n")[line - 1 : line]
    if any("\t" in before for before in re.findall(r"\A\s*(?:- *)?\s*", "".join(stated))):
        return "Indent with spaces instead of tabs."
    return "Check the indentation, quotes and brackets, in this line and the one above."


def _refuse(event: Any, problem: str) -> NoReturn:
    raise StrictYamlError(problem, event.start_mark.line + 1)
