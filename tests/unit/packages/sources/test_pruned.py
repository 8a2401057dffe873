"""Stray files that two packages install with other bytes: one of both goes without them."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from msgspec.structs import replace

from envbuilder.core.console import PlainProgress
from envbuilder.core.errors import BuildError
from envbuilder.core.files import file_sha256
from envbuilder.core.settings import Settings
from envbuilder.locks.target_wheels import ClashError, compared
from envbuilder.packages.python import wheel_conflicts
from envbuilder.packages.python.uv import Found
from envbuilder.packages.sources import source_locker
from envbuilder.packages.sources.source_locker import SourceLocker
from envbuilder.packages.store import Store
from envbuilder.profiles.lock import File, Target, problem
from envbuilder.profiles.profile import Resolution
from tests.support import make_wheels

LARGE = {f"large/{n}.py": b"" for n in range(9)} | {"tests/__init__.py": b"large"}
SMALL = {"small.py": b"", "small_more.py": b"", "tests/__init__.py": b"small"}


def found_in(folder: Path, name: str, files: dict[str, bytes], settings: Settings) -> Found:
    """A wheel that an index has, which is in the store."""
    path = make_wheels.write(folder, name, files)
    sha256 = file_sha256(path)
    Store.of(settings).take(sha256, iter([path.read_bytes()]))
    file = File(
        kind="wheel", name=name, version="1.0", file=path.name, sha256=sha256,
        size=path.stat().st_size, source="default", provenance="read", by="the package index",
    )  # fmt: skip
    return Found(file=file, url=path.as_uri())


def target_of(
    settings: Settings,
    folder: Path,
    small: dict[str, bytes],
    large: dict[str, bytes] = LARGE,
    requires: dict[str, tuple[str, ...]] | None = None,
) -> Target:
    """A target of two wheels, and one of each name in `requires`: what it requires."""
    wheels = [
        found_in(folder, "small", small, settings),
        found_in(folder, "large", large, settings),
    ]
    for name, needs in (requires or {}).items():
        other = found_in(folder, name, {f"{name}.py": b""}, settings)
        wheels.append(replace(other, file=replace(other.file, requires=needs)))
    paths = {w.file.sha256: Store.of(settings).path(w.file.sha256) for w in wheels}
    contents = {sha256: wheel_conflicts.opened(path, "3.11") for sha256, path in paths.items()}
    files = tuple(w.file for w in compared(wheels, "linux/amd64", "3.11", contents))
    return Target(platform="linux/amd64", python="3.11", base=None, files=files)


def test_the_smaller_one_goes_without_as_a_wheel_of_its_own(
    found: Settings, tmp_path: Path
) -> None:
    said: list[str] = []
    whole = target_of(found, tmp_path, SMALL)
    target = SourceLocker(Resolution(build=True), found, said.append).finish(whole)
    small, large = target.files
    assert (large.source, large.recipe) == ("default", None)
    assert small.recipe
    assert (small.source, small.recipe.without) == ("pruned", ("tests/__init__.py",))
    assert small.recipe.sha256 == whole.files[0].sha256 != small.sha256
    assert problem(target.files) == ""
    assert said == [
        "note: small is installed without tests/__init__.py, which another package also installs"
    ]
    with zipfile.ZipFile(Store.of(found).path(small.sha256)) as archive:
        assert "small.py" in archive.namelist()
        assert "tests/__init__.py" not in archive.namelist()
        assert b"tests" not in archive.read("small-1.0.dist-info/RECORD")
    wheel_conflicts.require_compatible(target.files, "3.11", Store.of(found))

    # Another machine makes the same one of the index's; what has other bytes is not taken.
    Store.of(found).path(small.sha256).unlink()
    progress = PlainProgress(lambda _: None)
    assert source_locker.fetch(target.files, target, found, progress) == 1
    assert Store.of(found).has(small.sha256)
    with pytest.raises(BuildError, match="small"):
        source_locker.fetch([replace(small, sha256="0" * 64)], target, found, progress)


def test_a_copy_of_another_package_inside_a_larger_one_is_stray(
    found: Settings, tmp_path: Path
) -> None:
    """So eva-decord has an older `packaging` in it."""
    copied = {"small/__init__.py": b"old", "small/a.py": b"old"}
    whole = target_of(found, tmp_path, dict.fromkeys(copied, b"new"), {**LARGE, **copied})
    target = SourceLocker(Resolution(build=True), found, lambda _: None).finish(whole)
    small, large = target.files
    assert small.recipe is None
    assert large.recipe
    assert large.recipe.without == ("small/__init__.py", "small/a.py")


@pytest.mark.parametrize(
    ("small", "large"),
    [
        # The same package twice, under another name.
        ({**LARGE, "tests/__init__.py": b"", **dict.fromkeys(list(LARGE)[:9], b"x")}, LARGE),
        ({"shared.so": b"1", "b.py": b""}, {**LARGE, "shared.so": b"2"}),
        ({"a.py": b"", "small-1.0.data/scripts/tool": b"1"},
         {**LARGE, "large-1.0.data/scripts/tool": b"2"}),
    ],
    ids=["most of it", "machine code", "a program"],
)  # fmt: skip
def test_what_is_no_stray_file_stays_a_conflict(
    found: Settings, tmp_path: Path, small: dict[str, bytes], large: dict[str, bytes]
) -> None:
    with pytest.raises(ClashError, match="would depend on chance"):
        target_of(found, tmp_path, small, large)


def programs(name: str) -> dict[str, bytes]:
    """The files of a package with a program `tool` of entry points, one of a file, and another."""
    return {
        f"{name}.py": b"",
        f"{name}-1.0.data/scripts/run-tool": name.encode(),
        f"{name}-1.0.dist-info/entry_points.txt": (
            f"[console_scripts]\ntool = {name}:main\n{name} = {name}:main\n\n"
            f"[plugins]\ntool = {name}\n"
        ).encode(),
    }


@pytest.mark.parametrize(
    ("requires", "loser"),
    [
        ({"other": ("large",)}, "large"),
        ({"other": ("small",)}, "small"),
        ({"other": ("large", "small")}, "large"),
    ],
    ids=["small is listed", "large is listed", "neither is listed"],
)
def test_a_program_is_that_of_the_package_which_the_project_lists(
    found: Settings, tmp_path: Path, requires: dict[str, tuple[str, ...]], loser: str
) -> None:
    """litserve, and lightning-sdk, which litlogger requires, both have a program `lightning`."""
    said: list[str] = []
    whole = target_of(found, tmp_path, programs("small"), programs("large"), requires)
    target = SourceLocker(Resolution(build=True), found, said.append).finish(whole)
    (pruned,) = (file for file in target.files if file.recipe)
    assert pruned.recipe
    assert (pruned.name, pruned.recipe.without) == (loser, ())
    assert pruned.recipe.without_programs == ("run-tool", "tool")
    assert said == [
        (
            f"note: {loser} is installed without bin/run-tool, bin/tool, which another"
            " package also installs"
        )
    ]
    with zipfile.ZipFile(Store.of(found).path(pruned.sha256)) as archive:
        text = archive.read(f"{loser}-1.0.dist-info/entry_points.txt").decode()
        assert f"{loser}-1.0.data/scripts/run-tool" not in archive.namelist()
    assert text == f"[console_scripts]\n{loser} = {loser}:main\n\n[plugins]\ntool = {loser}\n"
    wheel_conflicts.require_compatible(target.files, "3.11", Store.of(found))


def test_two_listed_packages_with_one_program_are_for_the_project_to_decide(
    found: Settings, tmp_path: Path
) -> None:
    with pytest.raises(ClashError, match="would depend on chance"):
        target_of(found, tmp_path, programs("small"), programs("large"), {"other": ("one",)})
