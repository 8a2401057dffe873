"""A bundle of a small profile, and another machine."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from envbuilder.bundle import format as form
from envbuilder.bundle.format import Manifest, Part
from envbuilder.core.settings import Settings
from tests.support.bundles import QUIET, made_of, parts_of


@pytest.fixture
def parts(found: Settings) -> tuple[Part, ...]:
    """The profile `tiny` of the user, its lock, and the wheel that the lock names."""
    return parts_of(found)


@pytest.fixture
def manifest(parts: tuple[Part, ...]) -> Manifest:
    return made_of(parts)


@pytest.fixture
def bundle(parts: tuple[Part, ...], manifest: Manifest, tmp_path: Path) -> Path:
    path = tmp_path / "out/tiny.tar"
    form.write(path, manifest, parts, QUIET)
    return path


@pytest.fixture
def there(tmp_path: Path, found: Settings) -> Settings:
    """Settings of another, empty machine."""
    home = tmp_path / "there"
    return msgspec.structs.replace(
        found, config_dir=home / "config", cache_dir=home / "cache", data_dir=home / "data"
    )
