"""Errors and their exit codes, hints for messages, and functions that make text safe to print.

Every message says what happened and where. The hints of an error say what to do next. `cli.main` is
the only place that catches these errors and turns them into text and an exit code.

Before a message repeats untrusted text, the text is escaped, quoted and shortened, and credentials
are removed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

BUILD_FAILED = 1
INVALID = 2
NOTHING_FITS = 3
TOOL_MISSING = 4
VERIFY_FAILED = 5
RUN_FAILED = 125  # envbuilder's own failure: `run` and `shell` pass the command's exit code through
NOT_EXECUTABLE = 126
NOT_FOUND = 127
INTERRUPTED = 130
_PASTED = re.compile(r"`[^`]*`|\b[a-z_]+: (?:\[[^\]]*\]|\{[^}]*\}|\"[^\"]*\")")
"""Text that users paste: a command in backticks, or a line of envbuilder.yaml."""
_LONGEST_LINE = 20_000
"""Maximum length of a reason in characters.

A reason may list dozens of packages or repeat a build's output.
"""
_HARD_SPACE = "\N{NO-BREAK SPACE}"
SHOWN = 60
"""Maximum number of characters that a message repeats from a file."""
LONGEST = 1000
"""Default maximum length, in characters, of text from files, servers and programs."""

_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")
"""Characters that Unicode classifies as printable, but that are invisible."""


def printable(text: str, limit: int = LONGEST, *, instead: str = "?", lines: bool = False) -> str:
    """Return untrusted text in a form that cannot move a terminal's cursor or hide other text.

    Control characters (C0 and C1), bidirectional and zero-width characters, and lone surrogates are
    replaced by `instead`. Line breaks and tabs are replaced too, unless `lines` is set. Text longer
    than `limit` characters is shortened and ends in "…".
    """
    # One more than the limit, so that a cut is noticed without reading megabytes.
    start = text.strip(" ")[: limit + 1]
    clean = "".join(c if _shown(c) or (lines and c in "\n\t") else instead for c in start)
    return clipped(clean.strip(" "), limit)


def escaped(text: str, limit: int = LONGEST) -> str:
    r"""Return text on one line, with escapes (`\x1b`) for the characters that `printable` replaces.

    Messages use this function for names of the user's own files and for other programs' output,
    because an escape shows which character to look for.
    """
    return escaped_lines(clipped(text, limit)).replace("\n", "\\n").replace("\t", "\\t")


def escaped_lines(text: str) -> str:
    """Return text of any length, with escapes for the characters that `printable` replaces.

    Line breaks and tabs are kept.
    """
    if _is_shown(text):
        return text
    return "".join(
        c if c in "\n\t" or _shown(c) else c.encode("unicode_escape").decode() for c in text
    )


def escaped_json(text: str) -> str:
    """Return a JSON document with JSON escapes for the characters that `printable` replaces.

    The value of the document does not change, because such characters occur only in strings. Line
    breaks between values are kept.
    """
    if _is_shown(text):
        return text
    import json

    return "".join(c if c in "\n\t" or _shown(c) else json.dumps(c)[1:-1] for c in text)


def _is_shown(text: str) -> bool:
    """Return whether the text contains no characters that need an escape.

    This is a fast preliminary check, since most text needs no escapes.
    """
    return text.replace("\n", "").replace("\t", "").isprintable() and _BLANK.isdisjoint(text)


def is_encodable(text: str) -> bool:
    """Return whether the text has no lone surrogates, which UTF-8 and JSON cannot represent."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def encodable(text: str) -> str:
    r"""Return text with an escape such as `\udcff` for each lone surrogate.

    In Python, a lone surrogate stands for a byte in a file name or an argument that is not UTF-8.
    """
    return text.encode(errors="backslashreplace").decode()


def clipped(text: str, limit: int) -> str:
    """Return the text, shortened to `limit` characters and ending in "…" if it is longer."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _shown(character: str) -> bool:
    return character.isprintable() and character not in _BLANK


def wrapped(text: str, width: int, first: str = "", rest: str = "  ") -> str:
    """Wrap one line of text between words, but not within commands or lines that users paste.

    `first` is put before the first line, and `rest` before every other line.
    """
    import textwrap

    protected = _PASTED.sub(lambda match: match[0].replace(" ", _HARD_SPACE), text)
    lines = textwrap.wrap(
        protected,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return "\n".join(lines).replace(_HARD_SPACE, " ")


def one_line(text: str) -> str:
    """Return any text as a single line of limited length that can be stored in a lock."""
    return escaped(" ".join(text.split()), _LONGEST_LINE)


def counted(number: float, noun: str) -> str:
    """Return a number with a noun, such as `3 files`. The noun is plural unless the number is 1."""
    if number != 1:
        noun += "es" if noun.endswith("s") else "s"
    return f"{number:g} {noun}"


def first(items: Sequence[str], most: int) -> str:
    """Join the first `most` items, then add how many items remain, as in `a, b and 3 more`."""
    more = len(items) - most
    return ", ".join(items[:most]) + (f" and {more:,} more" if more > 0 else "")


def escaped_markdown(text: str) -> str:
    """Escape all characters of a text that Markdown would interpret as markup."""
    return re.sub(r"([\\`*_{}\[\]<>&#|~$!])", r"\\\1", text)


def shown(text: str) -> str:
    """Return untrusted text for a message, quoted, shortened and without control characters."""
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}…")


HIDDEN = "…"
"""Text shown in place of a credential."""

# Texts: `re` compiles them at the first use and keeps them, no start waits for them.
_URL = r"://([^\s'\"<>`]+)"
_ENCODED_USER = r"(?i)(%3A%2F%2F)[^\s'\"<>`&]{1,512}?%40"
_AUTHORITY = r"(?:\[[^\]]*\]|[^:@]*)(?::[0-9]*)?[),.;:]*"
"""A host with an optional port but without a user.

Any other text before the first slash may be the start of a password that contains a slash.
"""
_WITHOUT_SCHEME = (
    r"(?m)(?:(?<=[\s'\"<>`=(])|^)[^\s'\"<>`=(/@:]+:(?!//)[^\s'\"<>`=(@]+@(?!sha(?:256|384|512):)"
)
_HEADER = r"(?i)(\bauthorization['\"]?\s{0,4}[:=]\s{0,4}['\"]?[a-z]{1,20} )[^\s'\",]+"
_PORT = r"(integer value as )'[^'\s]*'"
"""Python's error message for an invalid port.

If a password contains a slash, the message repeats a part of the password.
"""
_CONDA_PATH = r"/t/[^/]+(?=/|\Z)"


def public(url: str) -> str:
    """Return a URL without its user name, password, query, fragment and conda token.

    Raise `ValueError` if the URL cannot be parsed.
    """
    from urllib.parse import urlsplit, urlunsplit

    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, re.sub(_CONDA_PATH, "", parts.path), "", ""))


def is_public(url: str) -> bool:
    """Return whether the URL contains none of the parts that `public` removes."""
    return public(url) == url


_PART = r"[\w.-]{0,40}"
_NAME = (
    rf"(?!(?:{_PART}[_.-])?(?:tik|max|min|num|new|next|per|pad|eos|bos|unk|sep|cls|mask|stop|start|end"
    rf"|image|special)[_-]?token){_PART}(?:(?:secret|passw(?:or)?d|passphrase|credential){_PART}"
    r"(?<!file)(?<!path)(?<!name)(?<!ref)(?<!dir)(?<!url)(?<!type)(?<!length)(?<!stdin)|token\d*"
    r"|(?:access|account|api|auth|encryption|master|private|signing)[_.-]?key\d*|[_.-](?:pass|pwd))"
)
"""The name of a secret, such as `hf-token` or `AWS_SECRET_ACCESS_KEY`.

`tokens` and `pad_token` do not match.
"""
_HARMLESS = (
    r"\$(?:[{(\[]|(?-i:[A-Z_]))|%\w+%|\{[{\w]|<\w|[\[(]|…|\*\*|id=|[<>=^~]{0,2} ?\d+(?:\.\d+)+"
    r"|(?:true|false|none|null|yes|no|str|string|inherit)(?![\w-])"
)
"""The beginning of a value that is not a secret.

Such a value is a reference to a secret, a switch, a type or a version.
"""
_SECRET = (
    rf"(?im)(?<![\w./-])(?P<dash>--?)?(?P<name>{_NAME})(?:(?:\\?[\"'])?\s{{0,4}}=\s{{0,4}}(?!=)"
    r"|(?(dash)(?:\\?[\"']\s{0,4},?\s{0,4}(?=\\?[\"'])|\s+)(?!\\?[\"']?-)|(?!))"
    r"|\\?[\"']\s{0,4}:\s{0,4}|:\s{0,4}(?=\\?[\"'])"
    r"|:[ ]{1,4}(?=[^\s\"']+(?:[\"']|[ \t]{0,40}(?:$|#))))"
    rf"(?P<quote>\\?[\"'])?+(?!{_HARMLESS})"
    r"(?P<value>(?(quote)(?!(?P=quote))(?:\\.|[^\\\n])+?(?=(?P=quote)|$)"
    r"|(?![\w.]+[(\[])[^\s\"'`;&|<>()]*[^\s\"'`;&|<>(),.:\]}]))"
)
_OPTION = rf"(?i)--?{_NAME}"
_WORD = rf"(?is)\A(--?{_NAME}=|{_NAME}=(?=\S+\Z))(?!{_HARMLESS}).+"
"""A command-line argument that contains an unquoted secret."""
_FORMS = (
    r"(?<![\w/+-])(?P<name>hf_|gh[oprsu]_|github_pat_|glpat-|AKIA|ASIA|AIza|npm_|sk-|[rs]k_live_"
    r"|xox[abeoprs]-|pypi-AgE|nvapi-|gsk_|r8_|dckr_pat_|-----BEGIN[ ][A-Z ]{0,40}PRIVATE[ ]KEY|eyJ)"
    r"(?:(?<=hf_)(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{10,}|(?<=IA)[0-9A-Z]{16}|(?<=sk-)(?:[a-z0-9]+-){0,2}"
    r"[A-Za-z0-9_]{16,}[\w-]*|(?<=eyJ)[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]*"
    r"|(?<=KEY)[\s\S]+?(?:-----END[^\n]*|\Z)|(?<!hf_|sk-|eyJ|KEY|KIA|SIA)[\w-]{16,})(?!\w)"
)
"""Tokens and keys in well-known formats, recognized by their prefixes."""
_LOGIN = rf"(?i)\b(?P<name>https?|ftp)://(?!{_HARMLESS})[^\s/@'\"]+@"
_NAMED = r"(?i)token|secret|passw|passphrase|credential|key|pass|pwd"


def redacted(text: str) -> str:
    """Replace each credential in the text with an ellipsis.

    All text that is written or printed passes through this function. Credentials are the user name,
    password and query in a URL, any value that follows the name of a secret, and tokens in a
    well-known format.
    """
    if any(sign in text for sign in ("@", "://", "%40", "uthorization", "integer value as")):
        text = re.sub(_URL, _redacted_url, text)
        text = re.sub(_ENCODED_USER, rf"\1{HIDDEN}%40", text)
        text = re.sub(_WITHOUT_SCHEME, f"{HIDDEN}@", text)
        text = re.sub(_PORT, rf"\1'{HIDDEN}'", text)
        text = re.sub(_HEADER, rf"\1{HIDDEN}", text)
    if re.search(_NAMED, text):
        text = re.sub(_SECRET, lambda m: m[0].removesuffix(m["value"]) + HIDDEN, text)
    return re.sub(_FORMS, HIDDEN, text)


def redacted_words(words: Iterable[str]) -> list[str]:
    """Return a command's arguments in a form that is safe to write to a file.

    An ellipsis replaces each credential, and the result can be encoded as UTF-8.
    """
    result: list[str] = []
    is_secret = False
    for word in words:
        if is_secret and not re.match(rf"(?i)-|{_HARMLESS}", word):
            result.append(HIDDEN)
        else:
            result.append(encodable(redacted(re.sub(_WORD, rf"\1{HIDDEN}", word))))
        is_secret = re.fullmatch(_OPTION, word) is not None
    return result


def redacted_values(value: Any) -> Any:
    """Return plain data in a form that is safe to write to a file.

    An ellipsis replaces each credential, and the result can be encoded as UTF-8. Strings in a list
    are treated as the arguments of a command, where the name of a secret may be followed by its
    value.
    """
    match value:
        case str():
            return encodable(redacted(value))
        case dict():
            return {
                encodable(str(key)): redacted_values([f"--{key}", inner])[1]
                for key, inner in value.items()
            }
        case list() | tuple():
            words = iter(redacted_words(word for word in value if isinstance(word, str)))
            return [next(words) if isinstance(v, str) else redacted_values(v) for v in value]
    return value


def secrets_in(text: str) -> list[tuple[int, str]]:
    """Return the line number and name of each credential in a file that will be shared.

    References such as `${HF_TOKEN}` and the queries of URLs are not treated as credentials.
    """
    result: list[tuple[int, str]] = []
    for pattern in (_SECRET, _FORMS, _LOGIN):
        found = re.finditer(pattern, text)
        result += [(text.count("\n", 0, m.start()) + 1, m["name"]) for m in found]
    return sorted(result)


def log_text(text: str) -> str:
    """Return another program's output with credentials removed and control characters escaped.

    The result is safe to keep in a log and to show on a terminal.
    """
    return escaped_lines(redacted(text))


def _redacted_url(match: re.Match[str]) -> str:
    rest = match[1]
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    # A password with an unescaped slash continues after it.
    scope = rest if not re.fullmatch(_AUTHORITY, authority.rpartition("@")[2]) else authority
    user, at, _ = scope.rpartition("@")
    rest = f"{HIDDEN}@{rest[len(user) + 1 :]}" if at and user != HIDDEN else rest
    rest, question, _ = rest.partition("?")
    return f"://{re.sub(_CONDA_PATH, f'/t/{HIDDEN}', rest)}{question and f'?{HIDDEN}'}"


class Hint(NamedTuple):
    """Advice on what to do next: a sentence and, optionally, the command to run.

    A sentence that introduces a command does not end in a period, because `str` adds a colon.
    """

    sentence: str
    command: tuple[str, ...] = ()
    """The words after `envbuilder`. The user replaces words in capitals, such as NAME."""

    def __str__(self) -> str:
        """Return the sentence and the command on one line, for JSON and for use in other text."""
        return ": ".join(filter(None, (self.sentence, self.command_line())))

    def command_line(self) -> str:
        """Return the command on one line, quoted for a shell, or "" if there is no command."""
        import shlex

        if not self.command:
            return ""
        return escaped_lines(shlex.join(("envbuilder", *self.command))).replace("\n", "\\n")


def as_hints(hints: str | Hint | Iterable[Hint]) -> tuple[Hint, ...]:
    """Return the given hint or hints as a tuple, with credentials removed."""
    if isinstance(hints, str):
        hints = (Hint(hints),) if hints else ()
    elif isinstance(hints, Hint):
        hints = (hints,)
    return tuple(Hint(redacted(h.sentence), tuple(map(redacted, h.command))) for h in hints)


def make_room(setting: str) -> tuple[Hint, ...]:
    """Return the hints for a full disk.

    `setting` contains the names of the environment variables that select another disk.
    """
    return (
        Hint(f"Set {setting} to a folder on a larger disk."),
        Hint("Or remove environments and images that are no longer used", ("clean",)),
    )


class EnvbuilderError(Exception):
    """Base class of all expected failures.

    The `message` says what failed and where. The `hints` say what to do next. Credentials are
    removed from both, since a message or a hint may quote text from any source.
    """

    exit_code = BUILD_FAILED

    def __init__(self, message: str, hint: str | Hint | Iterable[Hint] = "") -> None:
        self.message = redacted(message)
        self.hints = as_hints(hint)
        super().__init__(self.message)

    @property
    def hint(self) -> str:
        """The hints as text, one per line."""
        return "\n".join(map(str, self.hints))


_Error = TypeVar("_Error", bound=EnvbuilderError)


def with_context(
    error: _Error, context: str = "", hint: str | Hint | Iterable[Hint] = ""
) -> _Error:
    """Put `context: ` before an error's message, add the given hints, and return the error.

    The same object is returned, so the error keeps its class, cause and traceback.
    """
    if context:
        error.message = redacted(f"{context}: {error.message}")
        error.args = (error.message,)
    error.hints += as_hints(hint)
    return error


class BuildError(EnvbuilderError):
    """Error raised if a download or build step fails (exit 1).

    Possible causes are a wrong hash, a full disk and a failed command.
    """

    exit_code = BUILD_FAILED


class UnreachableError(BuildError):
    """Error raised if an index does not answer or refuses the request (exit 4)."""

    exit_code = TOOL_MISSING


class WrongHashError(BuildError):
    """Error raised if a file does not match its hash in the lock (exit 1).

    No part of the file is kept.
    """

    def __init__(
        self, message: str, hint: str | Hint | Iterable[Hint] = "", *, actual: str = ""
    ) -> None:
        super().__init__(message, hint)
        self.actual = actual
        """The file's sha256, or an empty string if it was not computed."""


class ChangedFileError(WrongHashError):
    """Error raised if a source offers a different file under the name of a locked file (exit 1).

    No part of the different file is kept.
    """


class InvalidError(EnvbuilderError):
    """Error raised for invalid, stale or missing input (exit 2).

    The input can be the command line, a profile, the configuration or a lock.
    """

    exit_code = INVALID


class UnlockedError(InvalidError):
    """Error raised if a project's lock is missing or stale (exit 2).

    To create the lock, run `envbuilder lock`.
    """


class HostError(EnvbuilderError):
    """Error raised if this host cannot run the profile (exit 3)."""

    exit_code = NOTHING_FITS


class ToolError(EnvbuilderError):
    """Error raised if an engine, tool or interpreter is missing or too old (exit 4)."""

    exit_code = TOOL_MISSING


class CommandError(ToolError):
    """Error raised if the user's command is missing (exit 127) or cannot be executed (exit 126).

    The exit codes are the same as in a shell.
    """

    def __init__(self, message: str, hint: str = "", *, run_code: int) -> None:
        super().__init__(message, hint)
        self.run_code = run_code


class VerifyError(EnvbuilderError):
    """Error raised if the payload fails, is killed or exceeds its time limit (exit 5)."""

    exit_code = VERIFY_FAILED


class SignatureError(EnvbuilderError):
    """Error raised if a required signature is missing or not accepted (exit 5)."""

    exit_code = VERIFY_FAILED


class LimitError(OSError):
    """Error raised if a server takes too long to send its data, or if the session was stopped.

    The message says which of the two happened.
    """


class TooLongError(OSError):
    """Error raised if a response body is longer than allowed."""
