"""Loading lower layers into an engine while the upper ones are made."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envbuilder.builds.image import assemble
from envbuilder.builds.image.assemble import WORTH, Preloader
from envbuilder.builds.image.base import Added
from envbuilder.containers.engine import images
from envbuilder.containers.oci.layer import Layer
from envbuilder.containers.oci.layout import Layout
from envbuilder.core.errors import BuildError
from tests.support.engines import FakeEngine

REF = "envbuilder/ahead:1"
COUNT: Any = len


class Engine(FakeEngine):
    """Stands in for an engine: notes how many layers each image has that it was given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.loaded: list[int] = []
        self.names: set[str] = set()
        self.go = threading.Event()
        self.go.set()
        self.began = threading.Event()
        self.error: Exception | None = None
        self.serve(monkeypatch)
        monkeypatch.setattr(images, "load", self.take)

    def forget(self, ref: str) -> None:
        self.names.discard(ref)

    def take(self, engine: object, layout: Any, recorded: object, preload: str) -> None:
        assert engine is self
        self.began.set()
        self.names.add(preload)
        self.loaded.append(layout)
        assert self.go.wait(10)
        if self.error:
            raise self.error

    def offer(self, ahead: Preloader, *sizes: int) -> None:
        """Offer layers, and wait until a load begins."""
        self.began.clear()
        offer(ahead, *sizes)
        assert self.began.wait(10)


def offer(ahead: Preloader, *sizes: int, left: int = WORTH) -> None:
    ahead.offer(added(*sizes), left, COUNT)


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Engine:
    return Engine(monkeypatch)


def added(*sizes: int) -> list[Added]:
    digest = f"sha256:{'0' * 64}"
    return [
        Added(layer=Layer(digest=digest, size=s, diff_id=digest, unpacked=s), reason="test")
        for s in sizes
    ]


@pytest.fixture
def begin(tmp_path: Path) -> Callable[..., Preloader]:
    return lambda ref=REF: Preloader(ref, Layout(tmp_path))


def test_what_was_offered_is_loaded_and_stays_for_the_whole_image(
    there: Engine, begin: Callable[..., Preloader]
) -> None:
    with begin() as ahead:
        there.offer(ahead, WORTH)
    assert there.loaded == [1]
    assert there.names == {REF}


@pytest.mark.parametrize(
    ("size", "left", "ref"),
    [(WORTH - 1, WORTH, REF), (WORTH, WORTH - 1, REF), (0, 0, REF), (WORTH, WORTH, "")],
)
def test_little_is_not_worth_a_load_and_nothing_is_without_a_name(
    there: Engine, begin: Callable[..., Preloader], size: int, left: int, ref: str
) -> None:
    with begin(ref) as ahead:
        offer(ahead, size, left=left)
    assert there.loaded == []


def test_small_layers_add_up(there: Engine, begin: Callable[..., Preloader]) -> None:
    with begin() as ahead:
        offer(ahead, WORTH // 2)
        there.offer(ahead, WORTH // 2, WORTH // 2)
    assert there.loaded == [2]


def test_an_offer_is_skipped_where_a_larger_one_has_come(
    there: Engine, begin: Callable[..., Preloader]
) -> None:
    there.go.clear()
    with begin() as ahead:
        there.offer(ahead, WORTH)
        offer(ahead, WORTH, WORTH)
        offer(ahead, WORTH, WORTH, WORTH)
        there.began.clear()
        there.go.set()
        assert there.began.wait(10)
    assert there.loaded == [1, 3]


def test_what_still_waits_in_the_end_is_for_the_whole_image(
    there: Engine, begin: Callable[..., Preloader]
) -> None:
    there.go.clear()
    timer = threading.Timer(0.05, there.go.set)
    with begin() as ahead:
        there.offer(ahead, WORTH)
        offer(ahead, WORTH, WORTH)
        timer.start()
    assert there.loaded == [1]


@pytest.mark.parametrize("error", [BuildError("full"), OSError("gone")])
def test_a_load_that_fails_is_for_the_last_one_to_tell(
    there: Engine, begin: Callable[..., Preloader], error: Exception
) -> None:
    there.error = error
    with begin() as ahead:
        there.offer(ahead, WORTH)
        there.offer(ahead, WORTH, WORTH)  # one failure does not end them all
    assert there.loaded == [1, 2]


def fail(there: Engine, ahead: Preloader, error: BaseException) -> None:
    with ahead:
        there.offer(ahead, WORTH)
        raise error


@pytest.mark.parametrize("error", [BuildError("full"), KeyboardInterrupt()])
def test_a_build_that_fails_leaves_no_name(
    there: Engine, begin: Callable[..., Preloader], error: BaseException
) -> None:
    with pytest.raises(type(error)):
        fail(there, begin(), error)
    assert there.names == set()


def test_an_engine_that_hangs_does_not_keep_a_failed_build(
    there: Engine, begin: Callable[..., Preloader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assemble, "_GRACE_SECONDS", 0.01)
    there.go.clear()
    with pytest.raises(BuildError, match="elsewhere"):
        fail(there, begin(), BuildError("elsewhere"))
    there.go.set()
