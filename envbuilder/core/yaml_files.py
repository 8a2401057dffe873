"""Parse YAML strictly as plain data, and edit its lists without changing anything else.

Aliases, tags and duplicate keys are rejected, and sizes are limited. The data is built from the
parser's events. No part of a document can refer to another part, so memory use is proportional to
the length of the text, and no message can repeat more than a short piece of it.

Lists are edited in the text, at the positions that PyYAML's nodes report. The alternative,
ruamel.yaml 0.19, parses YAML and writes it again. It would change spaces and line breaks, drop
comments within brackets, and put a new item after the comment that belongs to the next key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import lru_cache
from typing import Any, NoReturn

import yaml

from envbuilder.core.errors import SHOWN, shown

Path = tuple[str, ...]

LONGEST_SCALAR = 1 << 16
"""Maximum number of characters in a scalar in a file of a user or a repository."""
LONGEST_NUMBER = 100
"""Maximum number of characters in a number or date in a file of a user or a repository.

Parsing a number in base 60 takes time quadratic in its length.
"""
DEEPEST = 32
"""Maximum number of nested levels in a file of a user or a repository."""

_PARSER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_TYPED = frozenset(f"{_TAG}{name}" for name in ("null", "bool", "int", "float", "timestamp"))
# PyYAML's own expression, compiled already: another one takes 5 ms of every start.
_NOT_TEXT = yaml.reader.Reader.NON_PRINTABLE
"""Characters that no YAML document may contain (YAML 1.1, 5.1), mainly control characters."""


class StrictYamlError(ValueError):
    """Error raised if a text is not valid YAML or uses features that this module rejects."""

    def __init__(self, problem: str, line: int, hint: str = "") -> None:
        super().__init__(f"line {line}: {problem}")
        self.problem = problem
        self.line = line
        self.hint = hint


class _Scalars(yaml.constructor.SafeConstructor, yaml.resolver.Resolver):
    """Resolver that determines the types and values of plain scalars as in YAML 1.1."""

    def __init__(self) -> None:
        yaml.constructor.SafeConstructor.__init__(self)
        yaml.resolver.Resolver.__init__(self)

    def tag(self, event: Any) -> str:
        """Return the type of a scalar that has no explicit tag."""
        resolve: Callable[..., str] = self.resolve
        return resolve(yaml.ScalarNode, event.value, event.implicit)


def load(text: str, *, scalars_as_text: bool = False) -> Any:
    """Parse the single YAML document in `text`. Return None if the text is empty.

    With `scalars_as_text`, numbers, dates and other scalars remain strings. Raise `StrictYamlError`
    if the text is not a supported document.
    """
    document = _Document(text, scalars_as_text)
    return deepcopy(document.data)


def lines(text: str) -> dict[Path, int]:
    """Return the line of each key and item in a YAML text.

    The result maps the path of each key or item to its line. Indexes in a path are strings. The
    text must be one that `load` accepts.
    """
    return _Document(text, False).lines


# Profiles extend each other, and each place in a message needs the lines of the whole text.
@lru_cache(maxsize=64)
class _Document:
    """A document built from parser events. Its values are nested at most `DEEPEST` levels deep."""

    def __init__(self, text: str, scalars_as_text: bool) -> None:
        self.data: Any = None
        self.lines: dict[Path, int] = {}
        self._scalars = None if scalars_as_text else _Scalars()
        stray = _NOT_TEXT.search(text, 1 if text.startswith("\ufeff") else 0)
        if stray or "\ufeff" in text[1:]:
            at = stray.start() if stray else text.index("\ufeff", 1)
            name = f"U+{ord(text[at]):04X}"
            raise StrictYamlError(
                f"the character {name} is not allowed", text.count("\n", 0, at) + 1
            )
        self._events: Iterator[Any] = yaml.parse(text, _PARSER)
        try:
            self._read()
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            problem = (error.problem or "it cannot be parsed")[: 2 * SHOWN]
            line = mark.line + 1 if mark else 1
            raise StrictYamlError(problem, line, _syntax_hint(text, line)) from error
        except (yaml.YAMLError, RecursionError) as error:
            raise StrictYamlError("it cannot be parsed", 1) from error

    def _read(self) -> None:
        documents = 0
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if event.tags:
                    _refuse(event, "%TAG is not supported: files hold plain data")
                if documents > 1:
                    _refuse(event, "a file may contain only one document, but a second one begins")
            elif isinstance(event, yaml.NodeEvent):
                self.data = self._value(event, ())

    def _value(self, event: Any, path: Path) -> Any:
        """Return the value that starts with this event.

        Record the line of each key and item in the value.
        """
        _require_plain(event)
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event)
        if len(path) >= DEEPEST:
            _refuse(event, f"nested too deeply: more than {DEEPEST} levels")
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[Any] = []
            while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
                below = (*path, str(len(items)))
                self.lines[below] = event.start_mark.line + 1
                items.append(self._value(event, below))
            return items
        data: dict[str, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._key(event)
            if key in data:
                _refuse(event, f"key {shown(key)} appears twice: keep one of them")
            below = (*path, key)
            self.lines[below] = event.start_mark.line + 1
            data[key] = self._value(next(self._events), below)
        return data

    def _scalar(self, event: Any) -> Any:
        tag = self._tag(event)
        value = event.value
        if tag not in _TYPED:
            return value
        build: Callable[[Any, Any], Any] = _Scalars.yaml_constructors[tag]
        kind = tag.removeprefix(_TAG)
        invalid = f"{shown(value)} is not a valid {kind} (quote it if it is text)"
        if len(value) > LONGEST_NUMBER:
            _refuse(event, invalid)
        try:
            return build(self._scalars, yaml.ScalarNode(tag, value))
        except (ValueError, KeyError, OverflowError):
            _refuse(event, invalid)

    def _key(self, event: Any) -> str:
        _require_plain(event)
        if not isinstance(event, yaml.ScalarEvent):
            _refuse(event, "a key is not text")
        tag = self._tag(event)
        if tag == f"{_TAG}merge":
            _refuse(event, "the merge key << is not supported: write the keys out")
        if tag in _TYPED:
            _refuse(event, f"key {shown(event.value)} is not text: quote it")
        return str(event.value)

    def _tag(self, event: Any) -> str:
        """Return a scalar's tag, or an empty string if all scalars are read as text.

        Raise `StrictYamlError` if the scalar is too long.
        """
        if len(event.value) > LONGEST_SCALAR:
            _refuse(event, f"text longer than {LONGEST_SCALAR} characters")
        return self._scalars.tag(event) if self._scalars else ""


def _require_plain(event: Any) -> None:
    if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
        _refuse(event, "anchors and aliases are not supported: write the value out")
    if event.tag is not None:
        _refuse(event, "tags (!…) are not supported: files hold plain data")


def _syntax_hint(text: str, line: int) -> str:
    """Return advice on what to check if this line cannot be parsed."""
    lines = text.split("\n")[line - 1 : line]
    if any("\t" in before for before in re.findall(r"\A\s*(?:- *)?\s*", "".join(lines))):
        return "Indent with spaces instead of tabs."
    return "Check the indentation, quotes and brackets in this line and the line above."


def _refuse(event: Any, problem: str) -> NoReturn:
    raise StrictYamlError(problem, event.start_mark.line + 1)


_DASH = re.compile(r"[ \t]*-[ \t]+")
_COMMA = re.compile(r"[ \t]*,[ \t]*")
_LINE = re.compile(r"[^\r\n]*")
_REST_OF_LINE = re.compile(r"[ \t]*(,?)[ \t]*(?:#[^\r\n]*)?(?=[\r\n]|\Z)")


class EditError(ValueError):
    """Error raised if a YAML text has a form that cannot be edited."""


def edit_list(text: str, path: Path, value: str | None, index: int | None = None) -> str:
    """Return the text with `value` in place of the item at `index` in the list at `path`.

    If `index` is None, append `value`, and create the list if it is missing. The mapping that
    contains the list must exist. If `value` is None, remove the item. Raise `EditError` if the edit
    would change anything else in the parsed data.
    """
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    body = text.removeprefix(mark)
    data = load(body) or {}
    holder = data
    for key in path[:-1]:
        holder = holder[key]
    items = holder.setdefault(path[-1], [])
    position = len(items) if index is None else index
    items[position : position + 1] = [] if value is None else [value]
    try:
        file = _List(body, path)
        if index is None:
            result = file.append(str(value))
        else:
            result = file.remove(index) if value is None else file.replace(index, value)
        if load(result) == data:
            return mark + result
    except StrictYamlError:
        pass
    raise EditError(f"the list at {'.'.join(path)} uses YAML syntax that cannot be edited")


def edit_value(text: str, key: str, value: str) -> str:
    """Return the text with a top-level key set to `value`. If the key is missing, append it.

    Raise `EditError` if the edit would change anything else in the parsed data.
    """
    data = {**(load(text) or {}), key: load(value)}
    root: Any = yaml.compose(text, _PARSER)
    node = next((node for name, node in getattr(root, "value", ()) if name.value == key), None)
    if node:
        result = text[: node.start_mark.index] + value + text[node.end_mark.index :]
    else:
        result = f"{text}{'' if text.endswith(chr(10)) or not text else chr(10)}{key}: {value}\n"
    try:
        if load(result) == data:
            return result
    except StrictYamlError:
        pass
    raise EditError(f"{key} uses YAML syntax that cannot be edited")


class _List:
    """A list at a path in a YAML text, for editing.

    The text must be one that `load` accepts, so that no node is nested too deeply.
    """

    def __init__(self, text: str, path: Path) -> None:
        self._text = text
        self._name = path[-1]
        self._newline = "\r\n" if "\r\n" in text else "\n"
        self._holder: Any = yaml.compose(text, _PARSER) if load(text) is not None else None
        self._key: Any = None
        self._list: Any = None
        for depth, name in enumerate(path):
            self._holder = self._list if depth else self._holder
            pairs = {key.value: (key, value) for key, value in getattr(self._holder, "value", ())}
            self._key, self._list = pairs.get(name, (None, None))

    def append(self, value: str) -> str:
        if self._list is None:
            return self._with_list(value)
        items = self._list.value
        in_flow = self._list.flow_style
        new = scalar(value, in_flow=in_flow)
        if not items:
            return self._put(self._list.start_mark.index + 1, new)
        end = items[-1].end_mark.index
        if not in_flow:
            return self._put(self._line_end(end), self._newline + self._dash(items[-1]) + new)
        rest = self._own_line(items[-1])
        if rest is None:
            return self._put(end, f", {new}")
        indent = self._newline + self._before(items[-1].start_mark.index)
        between = self._text[end : rest.end()] if rest[1] else f",{self._text[end : rest.end()]}"
        return self._put(end, f"{between}{indent}{new}{rest[1]}", rest.end())

    def replace(self, index: int, value: str) -> str:
        item = self._list.value[index]
        quote = item.style if item.style in {"'", '"'} else ""
        new = scalar(value, in_flow=self._list.flow_style, quote=quote)
        return self._put(item.start_mark.index, new, item.end_mark.index)

    def remove(self, index: int) -> str:
        items = self._list.value
        start = items[index].start_mark.index
        end = items[index].end_mark.index
        if self._list.flow_style:
            after = _COMMA.match(self._text, end)
            if rest := self._own_line(items[index]):
                start, end = self._lines(start, rest.end())
            elif after:
                end = after.end()
            elif before := re.search(r",[ \t]*\Z", self._text[:start]):
                start = before.start()
            return self._put(start, "", end)
        self._dash(items[index])
        start, end = self._lines(start, self._line_end(end))
        result = self._put(start, "", end)
        if len(items) > 1:
            return result
        colon = result.index(":", self._key.end_mark.index) + 1
        return f"{result[:colon]} []{result[colon:]}"

    def _with_list(self, value: str) -> str:
        """Return the text with a new list that contains `value`.

        The list is added to the mapping that should contain it, or at the end of the text.
        """
        holder = self._holder
        text = self._text
        item = scalar(value, in_flow=False)
        if holder and holder.flow_style:
            return self._put(
                holder.start_mark.index + 1,
                f"{self._name}: [{scalar(value, in_flow=True)}]{', ' if holder.value else ''}",
            )
        indent = self._before(holder.start_mark.index) if holder else ""
        if not indent:
            start = self._newline if text and not text.endswith("\n") else ""
            return text + self._newline.join((f"{start}{self._name}:", f"  - {item}", ""))
        last = holder
        while not getattr(last, "flow_style", True) and last.value:
            last = last.value[-1][1] if isinstance(last, yaml.MappingNode) else last.value[-1]
        lines = ("", f"{indent}{self._name}:", f"{indent}  - {item}")
        return self._put(self._line_end(last.end_mark.index), self._newline.join(lines))

    def _put(self, start: int, new: str, end: int | None = None) -> str:
        return self._text[:start] + new + self._text[start if end is None else end :]

    def _dash(self, item: Any) -> str:
        """Return the text before an item on its line.

        Raise `EditError` if this text is not a dash.
        """
        before = self._before(item.start_mark.index)
        if not _DASH.fullmatch(before):
            raise EditError("an item does not begin on the same line as its dash")
        return before

    def _own_line(self, item: Any) -> re.Match[str] | None:
        """Match the rest of the line after an item, including a comma if there is one.

        Return None if other text on the line precedes the item.
        """
        if not self._before(item.start_mark.index).strip():
            return _REST_OF_LINE.match(self._text, item.end_mark.index)
        return None

    def _before(self, position: int) -> str:
        return self._text[self._text.rfind("\n", 0, position) + 1 : position]

    def _line_end(self, position: int) -> int:
        """Return the position at which the last line of a value ends, before the line break."""
        position = len(
            self._text[:position].rstrip("\r\n")
        )  # a block scalar ends with its line break
        line = _LINE.match(self._text, position)
        return line.end() if line else position

    def _lines(self, start: int, end: int) -> tuple[int, int]:
        """Return the start and end of the whole lines that cover a part of the text.

        One line break is included, so that removing the range removes the lines.
        """
        start = start - len(self._before(start))
        if after := re.compile(r"[ \t]*\r?\n").match(self._text, end):
            return start, after.end()
        return len(self._text[:start].removesuffix("\n").removesuffix("\r")), self._line_end(end)


def scalar(value: str, *, in_flow: bool, quote: str = "") -> str:
    """Return a string as a YAML scalar, without quotes if it is safe to omit them.

    `in_flow` says whether the scalar is in a list in brackets. If `quote` is given, the scalar is
    always quoted, with this quotation mark if possible.
    """
    if not quote:
        try:
            if load(f"[{value}]" if in_flow else f"- {value}") == [value]:
                return value
        except StrictYamlError:
            pass
        quote = "'" if '"' in value else '"'
    if quote == '"' and not {'"', "\\"} & set(value):
        return f'"{value}"'
    return "'" + value.replace("'", "''") + "'"
