"""An OSV database of known vulnerabilities: its questions, and its answers as checked data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from envbuilder import indexes, origins
from envbuilder.download import TIMEOUT_SECONDS, reason
from envbuilder.errors import ToolError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuilder.settings import Settings

SOURCE = "osv"
"""The database's symbolic name; where it is can be set like an index."""
HINT = (
    f"Check the network and the proxy, or name a mirror of the database in"
    f" {indexes.variable(SOURCE)} (or indexes: in envbuilder.yaml)."
)
BATCH = 1000
"""Packages that one question may hold."""
_PAGES = 50
_ANSWER_LIMIT = 32 << 20
_CHUNK = 1 << 16
_T = TypeVar("_T")

Identifier = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,99}\Z")]


class Pin(Struct, frozen=True, order=True):
    """A package in a version, as the database names it."""

    ecosystem: str
    package: str
    version: str


class Package(Struct, frozen=True):
    """What an advisory is about."""

    ecosystem: str = ""
    name: str = ""


class Event(Struct, frozen=True):
    """Where a range of versions begins or ends."""

    fixed: str = ""


class Range(Struct, frozen=True):
    """Versions that are affected."""

    type: str = ""
    events: tuple[Event, ...] = ()


class Affected(Struct, frozen=True):
    """A package that is affected, and in which versions."""

    package: Package = Package()
    ranges: tuple[Range, ...] = ()


class Advisory(Struct, frozen=True):
    """One entry of the database."""

    id: Identifier
    aliases: tuple[Identifier, ...] = ()
    upstream: tuple[Identifier, ...] = ()
    """What it was made from: a Debian advisory names CVEs there."""
    summary: str = ""
    withdrawn: str = ""
    affected: tuple[Affected, ...] = ()


class _Hit(Struct, frozen=True):
    id: Identifier


class _Result(Struct, frozen=True):
    vulns: tuple[_Hit, ...] = ()
    next_page_token: str = ""


class _Answer(Struct, frozen=True):
    results: tuple[_Result, ...]


class Database:
    """The database that the configuration names, or the public one."""

    def __init__(self, settings: Settings) -> None:
        self._root = indexes.url(SOURCE, settings)
        self._session = origins.session()

    def ask(self, pins: Sequence[Pin]) -> dict[Pin, tuple[str, ...]]:
        """The ids of the advisories that affect each of at most `BATCH` pins.

        `ToolError` where the database cannot be reached or answers something else.
        """
        found: dict[Pin, list[str]] = {p: [] for p in pins}
        todo = [(p, "") for p in pins]
        for _ in range(_PAGES):
            questions = [_question(p, token) for p, token in todo]
            answer = self._get("querybatch", _Answer, {"queries": questions})
            if len(answer.results) != len(todo):
                raise _strange(f"{len(answer.results)} answers to {len(todo)} questions")
            for (p, _), result in zip(todo, answer.results, strict=True):
                found[p] += [hit.id for hit in result.vulns]
            todo = [
                (p, result.next_page_token)
                for (p, _), result in zip(todo, answer.results, strict=True)
                if result.next_page_token
            ]
            if not todo:
                return {p: tuple(dict.fromkeys(ids)) for p, ids in found.items()}
        raise _strange("it never comes to an end")

    def advisory(self, name: str) -> Advisory:
        """One entry by its id; with nothing but that id where it cannot be read.

        That the entry exists is known by then, and must not be lost with its details.
        """
        try:
            return self._get(f"vulns/{name}", Advisory)
        except ToolError:
            return Advisory(id=name, summary="(its entry could not be read)")

    def _get(self, path: str, kind: type[_T], question: object = None) -> _T:
        """A checked answer: to a question, or of what is at a path."""
        import requests

        url = f"{self._root}/{path}"
        method = "GET" if question is None else "POST"
        try:
            with self._session.request(
                method, url, json=question, timeout=TIMEOUT_SECONDS, stream=True
            ) as response:
                response.raise_for_status()
                body = b""
                for chunk in response.iter_content(_CHUNK):
                    body += chunk
                    if len(body) > _ANSWER_LIMIT:
                        raise _strange(f"more than {_ANSWER_LIMIT >> 20} MiB")
        except requests.RequestException as error:
            raise ToolError(f"the vulnerability database: {reason(error)}", HINT) from error
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _strange(str(error)) from error


def _question(pin: Pin, token: str) -> dict[str, object]:
    asked: dict[str, object] = {
        "package": {"ecosystem": pin.ecosystem, "name": pin.package},
        "version": pin.version,
    }
    return asked | ({"page_token": token} if token else {})


def _strange(what: str) -> ToolError:
    return ToolError(f"the vulnerability database answers something else than OSV: {what}", HINT)
