"""The commands that messages and written files suggest."""

from __future__ import annotations

import re
import shlex

from msgspec import Struct

COMMANDS = frozenset(
    {"add", "build", "bundle", "check", "ci", "clean", "compare", "detect", "doctor"}
    | {"fleet", "init", "jupyter", "lock", "profiles", "remove", "render", "reproduce"}
    | {"run", "sbom", "shell", "sign", "tune", "unbundle", "verify", "verify-signature", "watch"}
)
READING = frozenset({"detect", "doctor", "profiles", "check", "compare", "verify-signature"})
"""Commands that only tell; that they change nothing is right."""
SLOW = frozenset({"verify", "tune", "fleet", "jupyter", "shell", "reproduce"})
"""Commands that need a real framework or a terminal."""
_START = re.compile(r"(?:^|(?<=[\s`:(]))envbuilder (?=[a-z])")
_END = re.compile(r"(?<=\S)(?: \(|; |, |\. |`|\)|\s{2,}| and then | or | \u2192 |[.,;:]?$)")
_PROSE = re.compile(
    r" (?:makes|then|to|and|or|in|for|with|is|again|shows|says|first|which|that|of|on|does|writes"
    r"|after|before|has|can|would|adds|changes|builds|instead|here|there|once|from|by|as|it)(?: |$)"
)
_PLACEHOLDER = re.compile(
    r"\u2026|<[a-z]|\[[A-Z]|(?:^|[\s=/])[A-Z][A-Z_-]{2,}(?:$|[\s,.=:])|X\.Y|\*|train\.py"
)
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")
_USAGE = re.compile(
    r"No such (?:option|command)|Missing (?:option|argument|parameter)|unexpected extra argument"
    r"|requires (?:an|\d+) argument|does not take a value|is not one of|cannot be used with"
)


class Hint(Struct, frozen=True):
    """A command that a message suggests, and whether a shell can read it."""

    text: str
    words: tuple[str, ...]


def found_in(text: str) -> list[Hint]:
    """Return the commands that a text suggests; those with placeholders are left out."""
    hints = []
    for line in _ESCAPES.sub("", text).splitlines():
        for start in _START.finditer(line):
            command = line[start.start() :]
            if start.start() != len(line) - len(line.lstrip()) and not line.startswith("#"):
                command = _PROSE.split(_sentence(command))[0]
            command = command.strip().rstrip("`.")
            name = command.removeprefix("envbuilder").strip().partition(" ")[0]
            if name in COMMANDS and not _PLACEHOLDER.search(command):
                hints.append(Hint(text=command, words=_words(command)))
    return list(dict.fromkeys(hints))


def is_usage_error(code: int, message: str) -> bool:
    """Whether a command was refused for its options or arguments."""
    return code in (2, 125) and _USAGE.search(message) is not None


def _sentence(command: str) -> str:
    """Return a command without what follows it in its sentence."""
    quoted = ""
    for position, letter in enumerate(command):
        if letter in "'\"":
            quoted = "" if quoted == letter else quoted or letter
        if not quoted and position and _END.match(command, position):
            return command[:position]
    return command


def _words(command: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command))
    except ValueError:
        return ()
