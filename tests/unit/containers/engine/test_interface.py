"""What every engine does the same way."""

from __future__ import annotations

import pytest

from envbuilder.containers.engine.interface import short
from envbuilder.core.errors import BuildError
from tests.support.engines import FakeEngine


def test_a_tag_is_forgotten_if_the_engine_has_it() -> None:
    engine = FakeEngine("x:1")
    engine.forget("x:1")
    engine.forget("x:1")
    assert engine.done == ["remove x:1"]


def test_only_the_image_that_was_chosen_is_removed() -> None:
    engine = FakeEngine("x:1")
    for ref, only in (("x:1", "sha256:other"), ("y:1", "sha256:y:1")):
        with pytest.raises(BuildError, match=f"{ref}: now names another image, or none"):
            engine.remove(ref, only=only)
    assert engine.done == []
    engine.remove("x:1", only="sha256:x:1")
    assert engine.done == ["remove x:1"]


def test_an_engine_is_closed_with_its_scope() -> None:
    with FakeEngine() as engine:
        assert not engine.closed
    assert engine.closed


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("('Connection aborted.', PermissionError(13, 'Permission denied'))", "permission denied"),
        ("first line\nsecond line", "first line"),
        ("", "OSError"),
        ("x" * 300, "x" * 200),
    ],
)
def test_a_failure_is_told_in_a_few_words(text: str, said: str) -> None:
    assert short(OSError(text)) == said
