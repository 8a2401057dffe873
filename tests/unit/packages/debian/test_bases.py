"""Which base a target has, and which .debs go on it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from envbuilder.core.errors import InvalidError
from envbuilder.core.settings import Settings
from envbuilder.packages.debian import suite as debian
from envbuilder.packages.debian.suite import Debs, Package, Suite
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles.lock import File, Lock, LockedBase, Target
from envbuilder.profiles.profile import DebianBase, Profile
from tests.support.shipped import shipped_profile
from tests.support.tools import tools

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
)


@pytest.fixture(autouse=True)
def suite(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """Debian's lists; notes who asked for them."""
    asked: list[tuple[object, ...]] = []

    def load(*args: object) -> Suite:
        asked.append(args)
        return Suite(packages={p.name: p for p in SUITE}, rolling=False)

    monkeypatch.setattr(debian, "load", load)
    return asked


def profile(**changes: Any) -> Profile:
    plain = {"system_packages": ("tool",), "preload": (), "platforms": ("linux/amd64",)}
    return msgspec.structs.replace(CPU, **{**plain, **changes})


def debs(
    asked: Profile, settings: Settings, kept: Lock | None = None
) -> tuple[LockedBase | None, tuple[File, ...]]:
    return Debs(asked, settings, kept, lambda _: None).of("linux/amd64", "3.11")


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
    chosen = Debs(asked, found, None, lambda _: None, (profile(), origin)).of("linux/amd64", "3.10")
    assert chosen[0] is not None
    assert (chosen[0].ref, chosen[1]) == (image.ref, files)
    assert len(suite) == 1, "no list was read again"


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
    resolver = Debs(profile(debian_base=SYSTEM), found, None, lambda _: None)
    base, _ = resolver.of("linux/arm64", "3.11")
    assert base.unpacked
    assert base.ref.startswith("envbuilder/debian:bookworm-unpacked-")


def test_a_base_without_its_python_is_refused(found: Settings) -> None:
    system = {"3.11": DebianBase(include=("helper",))}
    with pytest.raises(InvalidError, match=r"debian_base\.3\.11: lacks python3\.11"):
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
