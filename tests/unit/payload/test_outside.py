from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envbuilder.payload.events import Events
from envbuilder.payload.report import CheckError
from envbuilder.payload.training import outside

FRAMEWORK: Any = SimpleNamespace(images=lambda content: content)


@pytest.fixture
def job() -> Any:
    """A network that answers 0 and 1 in turns, two images at a time."""
    pair = [[0.5, 0.1], [0.1, 0.5]]
    return SimpleNamespace(predict=lambda images: iter([pair, pair]))


def answered(job: Any, folder: Path) -> list[dict[str, Any]]:
    """The events of answering the questions in a folder, of which there are four."""
    stream = io.StringIO()
    assert outside.answer(FRAMEWORK, job, folder, Events(stream)) == 4
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_it_asks_and_answers_in_order(job: Any, tmp_path: Path) -> None:
    (tmp_path / outside.IMAGES).write_bytes(bytes(4 * 784))
    events = answered(job, tmp_path)
    assert events[0] == {"event": "questions"}
    assert [(e["first"], e["classes"]) for e in events[1:]] == [(0, [0, 1]), (2, [0, 1])]


@pytest.mark.parametrize("size", [0, 1, 785])
def test_what_is_no_image_is_refused(job: Any, tmp_path: Path, size: int) -> None:
    (tmp_path / outside.IMAGES).write_bytes(bytes(size))
    with pytest.raises(CheckError, match=f"sent {size} bytes, which are not images"):
        answered(job, tmp_path)


def test_questions_that_never_come(
    job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outside, "PATIENCE", 0.0)
    monkeypatch.setattr(outside, "PAUSE", 0.0)
    with pytest.raises(CheckError, match="did not arrive within"):
        answered(job, tmp_path)
