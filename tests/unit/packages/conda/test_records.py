"""Locked packages and py-rattler's records say the same."""

from __future__ import annotations

import time
from importlib import metadata
from typing import TYPE_CHECKING, Any

import pytest

from envbuilder.core.errors import ToolError
from envbuilder.packages.conda import records
from envbuilder.packages.conda.lock import Package

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("rattler")

LOCKED: dict[str, Any] = {
    "name": "numerik", "version": "1.10", "build": "h1_3", "build_number": 3, "subdir": "linux-64",
    "file": "numerik-1.10-h1_3.conda", "channel": "conda-forge", "sha256": "a1" * 32, "size": 12,
    "depends": ["python >=3.10", "libgcc"], "constrains": ["other <2"], "noarch": "",
    "timestamp": 1_735_689_600_123, "license": "MIT",
}  # fmt: skip
BARE = {"size": None, "depends": [], "constrains": [], "timestamp": None, "license": ""}


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose clock does not show UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC-9")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"noarch": "python", "subdir": "noarch"},
        {"noarch": "generic", "subdir": "noarch"},
        BARE,
    ],
)
def test_a_locked_package_comes_back_from_its_record(
    changes: dict[str, Any],
) -> None:
    stated = {**LOCKED, **changes}
    package = Package(**{k: tuple(v) if isinstance(v, list) else v for k, v in stated.items()})
    url = "file:///archives/numerik-1.10-h1_3.conda"
    record = records.record(package, url, "https://conda.anaconda.org/conda-forge")
    assert (record.url, record.channel) == (url, "https://conda.anaconda.org/conda-forge")
    assert record.sha256 == bytes.fromhex("a1" * 32)
    assert records.package(record, "conda-forge", "a1" * 32) == stated


def test_without_py_rattler_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert records.require_rattler() == metadata.version("py-rattler")

    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(ToolError, match="py-rattler, which is not installed") as raised:
        records.require_rattler()
    assert raised.value.hint == "Run: pip install 'envbuilder-ml[conda]'"
