"""Parse YAML strictly as plain data, and change its lists so that all else stays as it is.

No aliases, tags or duplicate keys, and limits on sizes: the data is built from the parser's events.
No part of a document refers to another, so memory use is proportional to the text, and no message
can repeat more than a short piece of it.

Lists are changed in the text. Libraries that read YAML and write it again change spaces and line
breaks, drop comments within brackets, and take the comment above the next key for part of the list
before it (ruamel.yaml 0.19). The result is read again: it is returned
only if the list alone has changed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn

import yaml

from envbuilder.core.text import SHOWN, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Path = tuple[str, ...]
    Edit = tuple[int, int, str]

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


_DASH = re.compile(r"[ \t]*-[ \t]+\Z")
_COMMA = re.compile(r"[ \t]*,[ \t]*")
_COMMA_BEFORE = re.compile(r",[ \t]*\Z")
_BREAK = re.compile(r"\r?\n")
_REST_OF_LINE = re.compile(r"[ \t]*(,?)[ \t]*(?:#[^\r\n]*)?(?=[\r\n]|\Z)")


class EditError(ValueError):
    """The text is YAML of a form that is not edited."""


def append_item(text: str, path: Path, value: str) -> str:
    """Return the text with `value` at the end of the list at `path`, or as a new list there.

    The mapping that holds the list exists. Raises `EditError`.
    """
    return _edited(text, path, lambda items: [*items, value], lambda d: d.append(path, value))


def replace_item(text: str, path: Path, index: int, value: str) -> str:
    """Return the text with another item of the list at `path`. Raises `EditError`."""

    def changed(items: list[Any]) -> list[Any]:
        return [*items[:index], value, *items[index + 1 :]]

    return _edited(text, path, changed, lambda d: d.replace(path, index, value))


def remove_item(text: str, path: Path, index: int) -> str:
    """Return the text without an item of the list at `path`. Raises `EditError`."""

    def changed(items: list[Any]) -> list[Any]:
        return [*items[:index], *items[index + 1 :]]

    return _edited(text, path, changed, lambda d: d.remove(path, index))


def _edited(
    text: str,
    path: Path,
    expected: Callable[[list[Any]], list[Any]],
    edits: Callable[[_Editor], Iterator[Edit]],
) -> str:
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    body = result = text.removeprefix(mark)
    in_order = sorted(edits(_Editor(body)), key=lambda edit: edit[:2])
    for start, end, new in reversed(in_order):
        result = result[:start] + new + result[end:]
    data = load(body) or {}
    holder = data
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = expected(holder.get(path[-1], []))
    try:
        is_right = load(result) == data
    except StrictYamlError:
        is_right = False
    if not is_right:
        raise EditError(f"the list at {'.'.join(path)} is written in an unusual way")
    return mark + result


class _Editor:
    """A text and where its values stand."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._spans = spans(text)

    def append(self, path: Path, value: str) -> Iterator[Edit]:
        place = self._spans.get(path)
        if place is None:
            yield self._new_list(path, value)
            return
        items = self._items(path)
        in_flow = place.style == "flow"
        new = _scalar(value, in_flow=in_flow)
        if not items:
            yield place.start + 1, place.start + 1, new
        elif not in_flow:
            end = self._line_end(items[-1].end)
            yield end, end, self._newline(end) + self._dash(items[-1]) + new
        elif rest := self._own_line(items[-1]):
            last, end = items[-1], rest.end()
            indent = self._before(last.start)
            if not rest[1]:
                yield last.end, last.end, ","
            yield end, end, self._newline(end) + indent + new + rest[1]
        else:
            yield items[-1].end, items[-1].end, f", {new}"

    def replace(self, path: Path, index: int, value: str) -> Iterator[Edit]:
        item = self._items(path)[index]
        in_flow = self._spans[path].style == "flow"
        quote = self._text[item.start] if self._text[item.start] in "\"'" else ""
        yield item.start, item.end, _scalar(value, in_flow=in_flow, quote=quote)

    def remove(self, path: Path, index: int) -> Iterator[Edit]:
        items, place = self._items(path), self._spans[path]
        item = items[index]
        if place.style != "flow":
            self._dash(item)
            yield self._lines(item.start, self._line_end(item.end))
            if len(items) == 1:
                colon = self._text.index(":", place.key_end) + 1
                yield colon, colon, " []"
        elif rest := self._own_line(item):
            yield self._lines(item.start, rest.end())
            if index == len(items) - 1 > 0 and not rest[1]:
                yield from self._comma(items[-2].end)
        elif index and (before := _COMMA_BEFORE.search(self._text, 0, item.start)):
            yield before.start(), item.end, ""
        else:
            after = _COMMA.match(self._text, item.end)
            yield item.start, after.end() if after else item.end, ""

    def _new_list(self, path: Path, value: str) -> Edit:
        holder, key = self._spans.get(path[:-1]), path[-1]
        in_block = f"- {_scalar(value, in_flow=False)}"
        if holder is None or (holder.style != "flow" and not path[:-1]):
            end = len(self._text)
            start = [""] if self._text and not self._text.endswith("\n") else []
            return end, end, self._newline(end).join([*start, f"{key}:", f"  {in_block}", ""])
        if holder.style == "flow":
            more = ", " if self._last_end(path[:-1]) > holder.start else ""
            new = f"{key}: [{_scalar(value, in_flow=True)}]{more}"
            return holder.start + 1, holder.start + 1, new
        indent, end = self._before(holder.start), self._line_end(self._last_end(path[:-1]))
        below = re.compile(rf"(?:\r?\n{re.escape(indent)}[ \t]*#[^\r\n]*)*")
        comments = below.match(self._text, end)
        end = comments.end() if comments else end
        return end, end, self._newline(end).join(("", f"{indent}{key}:", f"{indent}  {in_block}"))

    def _items(self, path: Path) -> list[Span]:
        items: list[Span] = []
        while item := self._spans.get((*path, str(len(items)))):
            items.append(item)
        return items

    def _last_end(self, path: Path) -> int:
        """Return where the last value below a mapping ends; -1 if it is empty."""
        return max(
            (
                span.end
                for place, span in self._spans.items()
                if place[: len(path)] == path and place != path and span.style != "block"
            ),
            default=-1,
        )

    def _dash(self, item: Span) -> str:
        """Return what precedes an item of a block list on its line."""
        before = self._before(item.start)
        if not _DASH.match(before):
            raise EditError("an item does not begin on the line of its dash")
        return before

    def _own_line(self, item: Span) -> re.Match[str] | None:
        """Return what follows an item in brackets, with its comma, if its lines hold no other."""
        return (
            None if self._before(item.start).strip() else _REST_OF_LINE.match(self._text, item.end)
        )

    def _comma(self, start: int) -> Iterator[Edit]:
        if match := _COMMA.match(self._text, start):
            yield match.start(), match.end(), match[0].partition(",")[2]

    def _before(self, place: int) -> str:
        return self._text[self._line_start(place) : place]

    def _newline(self, place: int) -> str:
        """Return the line break at the end of a line, or at the end of the text one as before."""
        breaks = _BREAK.findall(self._text, place) or _BREAK.findall(self._text)
        return breaks[0] if breaks else "\n"

    def _line_start(self, place: int) -> int:
        return self._text.rfind("\n", 0, place) + 1

    def _line_end(self, place: int) -> int:
        """Return where the line of a value's end ends, without its line break."""
        while place and self._text[place - 1] in "\r\n":  # a block scalar ends with its line break
            place -= 1
        match = re.compile(r"[^\r\n]*").match(self._text, place)
        return match.end() if match else place

    def _lines(self, start: int, end: int) -> Edit:
        """Return the removal of whole lines, with one line break."""
        start = self._line_start(start)
        after = _BREAK.match(self._text, end)
        if after:
            return start, after.end(), ""
        return len(self._text[:start].removesuffix("\n").removesuffix("\r")), end, ""


def _scalar(value: str, *, in_flow: bool, quote: str = "") -> str:
    """Return a text as YAML, without quotes if it is safe to omit them."""
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
