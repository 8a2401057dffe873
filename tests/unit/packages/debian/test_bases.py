"""Which base a target has, and which .debs go on it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from envbuilder.core.errors import BuildError, InvalidError
from envbuilder.core.settings import Settings
from envbuilder.packages.debian import suite as debian
from envbuilder.packages.debian.suite import Debs, Package, Suites, Universe
from envbuilder.packages.python import libraries
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles.lock import File, Lock, LockedBase, Target
from envbuilder.profiles.profile import DebianBase, Profile, Resolution
from tests.support.shipped import shipped_profile
from tests.support.tools import tools, wheel

CPU = shipped_profile("cpu")


def package(name: str, version: str = "1-1", **fields: Any) -> Package:
    return Package(
        name=name, version=version, file=f"pool/{name}_{version}_amd64.deb", size=1,
        sha256=(name + version).encode().hex().ljust(64, "0")[:64],
        by="bookworm Release of 2026-07-11T10:16:37Z", **fields,
    )  # fmt: skip


SUITE = (
    package("dpkg", base=True, depends="libc6"),
    package("libc6", "2.36-9"),
    package("python3", "3.11.2-1", depends="python3.11"),
    package("python3.11", "3.11.2-6+deb12u6", depends="libc6"),
    package("tool", depends="libc6 (= 2.36-9), helper"),
    package("helper"),
    package("libgl1", depends="libc6"),
    package("libglib2.0-0t64", provides="libglib2.0-0 (= 1-1)"),
)


@pytest.fixture(autouse=True)
def suite(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """Debian's lists; notes who asked for them."""
    asked: list[tuple[object, ...]] = []

    def load(*args: object) -> Universe:
        asked.append(args)
        return {p.name: p for p in SUITE}

    monkeypatch.setattr(debian, "load", load)
    return asked


def profile(**changes: Any) -> Profile:
    plain = {"system_packages": ("tool",), "preload": (), "platforms": ("linux/amd64",)}
    return msgspec.structs.replace(CPU, **{**plain, **changes})


def debs(
    asked: Profile, settings: Settings, kept: Lock | None = None
) -> tuple[LockedBase | None, tuple[File, ...]]:
    target = bench(asked, settings, kept).of("linux/amd64", "3.11")
    return target.base, target.files


def bench(asked: Profile, settings: Settings, *kept: Any) -> Debs:
    return Debs(asked, Suites(settings, lambda _: None), *kept)


def names(files: tuple[File, ...]) -> list[str]:
    return [f.name for f in files]


def test_packages_fit_any_minimal_system(found: Settings) -> None:
    base, files = debs(profile(), found)
    # libc6 is in every minimal system, but `tool` needs this very version of it.
    assert names(files) == ["helper", "libc6", "tool"]
    image = CPU.base["3.11"]
    assert (base.ref, base.digest) == (image.ref, image.digest)


def test_without_packages_no_list_is_read(found: Settings, suite: list[tuple[object, ...]]) -> None:
    base, files = debs(profile(system_packages=()), found)
    assert (files, suite) == ((), [])
    assert base is not None


def kept(asked: Profile, base: LockedBase | None, files: tuple[File, ...]) -> Lock:
    target = Target(platform="linux/amd64", python="3.11", base=base, files=files)
    return Lock(
        schema=2, profile=asked.name, inputs=profile_lock.inputs_digest(asked), state="locked",
        reason="", tools=tools(), targets=(target,),
    )  # fmt: skip


def test_packages_stay_while_the_profile_stands(
    found: Settings, suite: list[tuple[object, ...]]
) -> None:
    before = kept(profile(), *debs(profile(), found))
    assert len(suite) == 1
    assert debs(profile(), found, before) == (before.targets[0].base, before.targets[0].files)
    assert len(suite) == 1
    changed = profile(system_packages=("tool", "python3"))
    assert len(debs(changed, found, before)[1]) > len(before.targets[0].files)


def test_another_python_of_a_project_has_the_packages_of_the_profile(
    found: Settings, suite: list[tuple[object, ...]]
) -> None:
    base, files = debs(profile(), found)
    origin = kept(profile(), base, files)
    image = CPU.base["3.11"]
    asked = profile(base={"3.10": image})
    chosen = bench(asked, found, None, (profile(), origin)).of("linux/amd64", "3.10")
    assert chosen.base is not None
    assert (chosen.base.ref, chosen.files) == (image.ref, files)
    assert len(suite) == 1, "no list was read again"


OPENCV = wheel("opencv_python-5.0-py3-none-any.whl", "opencv-python", "5.0")
"""Not in the store: its needs are in the table."""


@pytest.fixture
def needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenCV needs two packages, one of which the suite has by another name."""
    table = libraries.system_libraries()
    wheels = {"opencv-python": ("libgl1", "libglib2.0-0")}
    less = msgspec.structs.replace(table, wheels=wheels)
    monkeypatch.setattr(libraries, "system_libraries", lambda: less)


def locked(asked: Profile, target: Target) -> Lock:
    return msgspec.structs.replace(kept(asked, None, ()), targets=(target,))


SYSTEM = {"3.11": DebianBase(include=("python3",), unpacked=("linux/arm64",))}


def test_a_base_made_of_packages(found: Settings) -> None:
    base, files = debs(profile(debian_base=SYSTEM), found)
    assert [(f.name, f.role) for f in files] == [
        ("dpkg", "base"), ("libc6", "base"), ("python3", "base"), ("python3.11", "base"),
        ("helper", ""), ("tool", ""),
    ]  # fmt: skip
    assert (base.suite, base.date, base.digest) == ("bookworm", "2026-07-11", None)
    assert (base.python_path, base.python_version) == ("/usr/bin/python3.11", "3.11.2")
    assert base.ref.startswith("envbuilder/debian:bookworm-")
    assert not base.unpacked


def test_what_is_unpacked_has_another_name(found: Settings) -> None:
    target = bench(profile(debian_base=SYSTEM), found, None).of("linux/arm64", "3.11", [OPENCV])
    assert target.base is not None
    assert target.base.unpacked
    assert target.base.ref.startswith("envbuilder/debian:bookworm-unpacked-")
    assert not target.system_packages, "no script of theirs could run"


def test_a_base_without_its_python_is_refused(found: Settings) -> None:
    system = {"3.11": DebianBase(include=("helper",))}
    with pytest.raises(InvalidError, match=r"debian_base\.3\.11: the package python3\.11"):
        debs(profile(debian_base=system), found)


@pytest.mark.parametrize("system", [{}, SYSTEM])
def test_a_target_is_current_until_its_base_changes(
    found: Settings, system: dict[str, DebianBase]
) -> None:
    asked = profile(debian_base=system)
    base, files = debs(asked, found)
    target = Target(platform="linux/amd64", python="3.11", base=base, files=files)
    assert debian.is_current(asked, target)
    for change in ({"ref": "other:1"}, {"date": "2026-01-01"}, {"python_path": "/bin/python3"}):
        other = msgspec.structs.replace(target, base=msgspec.structs.replace(base, **change))
        assert not debian.is_current(asked, other)
    assert not debian.is_current(asked, msgspec.structs.replace(target, base=None))
    mac = Target(platform="macos/arm64", python="3.11", base=None, files=())
    assert debian.is_current(asked, mac)


@pytest.mark.usefixtures("needed")
@pytest.mark.parametrize("system", [{}, {"3.11": DebianBase(include=("python3",))}])
def test_what_wheels_need_of_an_image_is_added(
    found: Settings, suite: list[object], system: dict[str, DebianBase]
) -> None:
    asked = profile(debian_base=system)
    plain = bench(asked, found, None).of("linux/amd64", "3.11")
    target = bench(asked, found, None).of("linux/amd64", "3.11", [OPENCV])
    by = ("opencv-python",)
    assert target.system_packages == {"libgl1": by, "libglib2.0-0": by, "tool": ()}
    added = {*names(target.files)} - {*names(plain.files)}
    assert added == {"libgl1", "libglib2.0-0t64"}
    # They stay, and no list is read: in the same profile, after an edit, on another machine.
    number = len(suite)
    edited = msgspec.structs.replace(asked, requirements=("torch", "rich"))
    for other in (asked, edited):
        before = locked(asked, target)
        assert bench(other, found, before).of("linux/amd64", "3.11", [OPENCV]) == target
    assert len(suite) == number
    for_another = {**target.system_packages, "libgl1": ("gone",)}
    former = locked(asked, msgspec.structs.replace(target, system_packages=for_another))
    assert bench(edited, found, former).of("linux/amd64", "3.11", [OPENCV]) == target
    # They go with the wheel, or if the project excludes them; the profile's own do not.
    assert bench(edited, found, before).of("linux/amd64", "3.11") == plain
    excluded = Resolution(exclude=("libgl1", "libglib2-0-0", "tool"))
    less = msgspec.structs.replace(asked, resolution=excluded)
    assert bench(less, found, before).of("linux/amd64", "3.11", [OPENCV]) == plain
    # One that was locked before its needs were known gets them.
    assert bench(asked, found, locked(asked, plain)).of("linux/amd64", "3.11", [OPENCV]) == target


@pytest.mark.usefixtures("needed")
def test_a_lock_needs_no_mirror_for_what_wheels_need(
    found: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def load(*args: object) -> Universe:
        asked.append(args)
        raise BuildError("no mirror answers", "Set X.")

    monkeypatch.setattr(debian, "load", load)
    notes: list[str] = []
    suites = Suites(found, notes.append)
    for python in ("3.11", "3.12"):
        plain = profile(system_packages=(), base={python: CPU.base["3.11"]})
        target = Debs(plain, suites, None).of("linux/amd64", python, [OPENCV])
        assert (target.files, target.system_packages) == ((), {})
    assert notes == ["note: images lack libgl1, libglib2.0-0: no mirror answers. Set X."]
    assert len(asked) == 1
    with pytest.raises(BuildError):
        Debs(profile(), suites, None).of("linux/amd64", "3.11", [OPENCV])
