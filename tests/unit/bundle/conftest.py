"""A bundle of a small profile, and another machine."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from envbuilder.bundle import contents, format as form
from envbuilder.bundle.format import Manifest, Part
from envbuilder.core.settings import Settings
from envbuilder.profiles import lock as lockfile, profile as profiles
from envbuilder.profiles.library import Library
from tests.support.bundles import PARENT, PROFILE, QUIET, made_of, part, small_lock


@pytest.fixture
def parts(found: Settings) -> tuple[Part, ...]:
    """The profile `tiny` of the user, its lock, and the wheel that the lock names."""
    folder = found.config_dir / "profiles"
    (folder / "locks").mkdir(parents=True)
    (folder / "tiny.yaml").write_text(PROFILE)
    (folder / "_mine.yaml").write_text(PARENT)
    lock = small_lock("tiny", profiles.load("tiny", [folder]), found)
    (folder / "locks/tiny.json").write_text(lockfile.dump(lock))
    wanted = contents.select(["tiny"], ["linux/amd64"], [], Library([folder]))
    locked = contents.locked_files(wanted, found, QUIET)
    return (
        *contents.texts(wanted, Library([folder])),
        *contents.of_files(locked, found, []),
        part("wheels/envbuilder_ml-1-py3-none-any.whl", b"itself", "wheel"),
    )


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
