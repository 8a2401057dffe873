"""Change a list of text in YAML by changing its text, so that all else stays as it is.

Libraries that read YAML and write it again change spaces, indentation and line breaks, and take the
comment above the next key for part of the list before it (ruamel.yaml 0.19). The result is read
again: it is returned only if the list alone has changed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from envbuilder.core import strict_yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from envbuilder.core.strict_yaml import Span

    Path = tuple[str, ...]
    Edit = tuple[int, int, str]

_DASH = re.compile(r"[ \t]*-[ \t]+\Z")
_COMMA = re.compile(r"[ \t]*,[ \t]*")
_COMMA_BEFORE = re.compile(r",[ \t]*\Z")
_BREAK = re.compile(r"\r?\n")
_REST_OF_LINE = re.compile(r"[ \t]*(,?)[ \t]*(?:#[^\r\n]*)?(?=[\r\n]|\Z)")


class EditError(ValueError):
    """The text is YAML of a form that is not edited."""


def append(text: str, path: Path, value: str) -> str:
    """Return the text with `value` at the end of the list at `path`, or as a new list there.

    The mapping that holds the list exists. Raises `EditError`.
    """
    return _edited(text, path, lambda items: [*items, value], lambda d: d.append(path, value))


def replace(text: str, path: Path, index: int, value: str) -> str:
    """Return the text with another item of the list at `path`. Raises `EditError`."""

    def changed(items: list[Any]) -> list[Any]:
        return [*items[:index], value, *items[index + 1 :]]

    return _edited(text, path, changed, lambda d: d.replace(path, index, value))


def remove(text: str, path: Path, index: int) -> str:
    """Return the text without an item of the list at `path`. Raises `EditError`."""

    def changed(items: list[Any]) -> list[Any]:
        return [*items[:index], *items[index + 1 :]]

    return _edited(text, path, changed, lambda d: d.remove(path, index))


def _edited(
    text: str,
    path: Path,
    expected: Callable[[list[Any]], list[Any]],
    edits: Callable[[_Document], Iterator[Edit]],
) -> str:
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    body = result = text.removeprefix(mark)
    in_order = sorted(edits(_Document(body)), key=lambda edit: edit[:2])
    for start, end, new in reversed(in_order):
        result = result[:start] + new + result[end:]
    data = strict_yaml.load(body) or {}
    holder = data
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = expected(holder.get(path[-1], []))
    try:
        is_right = strict_yaml.load(result) == data
    except strict_yaml.StrictYamlError:
        is_right = False
    if not is_right:
        raise EditError(f"the list at {'.'.join(path)} is written in an unusual way")
    return mark + result


class _Document:
    """A text and where its values stand."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._spans = strict_yaml.spans(text)

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
            if strict_yaml.load(f"[{value}]" if in_flow else f"- {value}") == [value]:
                return value
        except strict_yaml.StrictYamlError:
            pass
        quote = "'" if '"' in value else '"'
    if quote == '"' and not {'"', "\\"} & set(value):
        return f'"{value}"'
    return "'" + value.replace("'", "''") + "'"
