"""Projects whose files list requirements, and what is read from them, as plain text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from envbuilder.core.errors import InvalidError
from envbuilder.project.forms import read
from envbuilder.project.lines import Line, Listed

DATA = Path(__file__).parent.parent / "data/project_files"


def texts(lines: Sequence[Line]) -> list[str]:
    return [line.text for line in lines]


def places(lines: Sequence[Line]) -> list[str]:
    return [line.where for line in lines]


def refusal(
    project: Path, file: str, extras: Sequence[str] = (), groups: Sequence[str] = ()
) -> tuple[str, str]:
    """Return message and hint of the refusal to read a file."""
    with pytest.raises(InvalidError) as caught:
        read(project, file, extras, groups)
    message = caught.value.message
    hint = caught.value.hint
    assert f"{message}{hint}".isprintable()
    assert len(message) < 800
    return message, hint


def outcome(project: Path, file: str, text: str) -> Listed | None:
    """Return what a file lists, None if it is refused; nothing else may happen."""
    (project / file).write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        return read(project, file)
    except InvalidError as refused:
        message = refused.message
    assert message.isprintable()
    return None
