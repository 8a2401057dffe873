"""Which base a target has, and that its .debs are chosen for that base where it can be read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from envbuilder.core import resources
from envbuilder.core.errors import InvalidError
from envbuilder.core.settings import Configuration
from envbuilder.locks import system_packages as target_debs
from envbuilder.locks.system_packages import Debs
from envbuilder.packages.debian import suite as debian
from envbuilder.packages.debian.package import Package, Stanza
from envbuilder.packages.debian.status import Status
from envbuilder.packages.debian.suite import Suite
from envbuilder.profiles import lock as lockfile
from envbuilder.profiles import profile as profiles
from envbuilder.profiles.lock import Lock, LockedBase, Target
from tests.support.tools import tools

if TYPE_CHECKING:
    from envbuilder.core.settings import Settings
    from envbuilder.profiles.locked_file import File
    from envbuilder.profiles.profile import Profile

CPU = profiles.load("cpu", (resources.profiles_dir(),))
STATUS = "5" * 64


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


class Bases:
    """Reads bases; notes which were asked for."""

    def __init__(self, *installed: Stanza) -> None:
        self.status: Status | None = Status(packages={s.name: s for s in installed}, digest=STATUS)
        self.asked: list[tuple[str, str]] = []

    def __call__(self, ref: str, platform: str, *_: object) -> Status | None:
        self.asked.append((ref, platform))
        return self.status


FULL = (Stanza(name="libc6", version="2.36-9"), Stanza(name="helper", version="1-1"))


def profile(**changes: Any) -> Profile:
    plain = {"system_packages": ("tool",), "preload": (), "platforms": ("linux/amd64",)}
    return msgspec.structs.replace(CPU, **{**plain, **changes})


def debs(
    asked: Profile, settings: Settings, bases: Bases, kept: Lock | None = None, **more: Any
) -> tuple[LockedBase | None, tuple[File, ...]]:
    resolver = Debs(asked, settings, kept, lambda _: None, bases, **more)
    return resolver.of("linux/amd64", "3.11")


def names(files: tuple[File, ...]) -> list[str]:
    return [f.name for f in files]


def test_what_the_base_has_is_left_out(found: Settings) -> None:
    bases = Bases(*FULL)
    base, files = debs(profile(), found, bases)
    assert names(files) == ["tool"]
    assert base is not None
    assert base.status == STATUS
    image = CPU.base["3.11"]
    assert bases.asked == [(f"{image.ref}@{image.digest}", "linux/amd64")]


def test_where_the_base_cannot_be_read_any_will_do(found: Settings) -> None:
    bases = Bases()
    bases.status = None
    base, files = debs(profile(), found, bases)
    assert names(files) == ["helper", "libc6", "tool"]
    assert base is not None
    assert base.status is None


def test_the_base_that_will_be_used_is_the_one_that_is_read(found: Settings) -> None:
    bases = Bases(*FULL)
    mapped = Configuration(base_images={CPU.base["3.11"].ref: "mirror/python:3.11"})
    debs(profile(), msgspec.structs.replace(found, configuration=mapped), bases)
    debs(profile(), found, bases, base_image="own/base:1")
    assert [ref for ref, _ in bases.asked] == ["mirror/python:3.11", "own/base:1"]


def test_without_packages_no_base_is_read(found: Settings) -> None:
    bases = Bases(*FULL)
    base, files = debs(profile(system_packages=()), found, bases)
    assert (files, bases.asked) == ((), [])
    assert base is not None
    assert base.status is None


def test_a_library_to_preload_is_listed_whatever_the_base_has(found: Settings) -> None:
    bases = Bases(*FULL, Stanza(name="tool", version="1-1"))
    assert names(debs(profile(), found, bases)[1]) == []
    assert names(debs(profile(preload=("libtool.so.1",)), found, bases)[1]) == ["tool"]
    only_images = profile(preload=("libtool.so.1",), backends=("docker",))
    assert names(debs(only_images, found, bases)[1]) == []


def kept(asked: Profile, base: LockedBase | None, files: tuple[File, ...]) -> Lock:
    target = Target(platform="linux/amd64", python="3.11", base=base, files=files)
    return Lock(
        schema=2, profile=asked.name, inputs=lockfile.inputs_digest(asked), state="locked",
        reason="", tools=tools(), targets=(target,),
    )  # fmt: skip


def test_packages_stay_while_profile_and_base_stand(
    found: Settings, suite: list[tuple[object, ...]]
) -> None:
    before = kept(profile(), *debs(profile(), found, Bases(*FULL)))
    assert len(suite) == 1
    base, files = debs(profile(), found, Bases(*FULL), before)
    assert (len(suite), names(files)) == (1, ["tool"])
    assert base == before.targets[0].base
    other = Bases(*FULL)
    other.status = Status(packages={}, digest="6" * 64)
    base, files = debs(profile(), found, other, before)
    assert (len(suite), names(files)) == (2, ["helper", "libc6", "tool"])
    assert base is not None
    assert base.status == "6" * 64
    changed = profile(system_packages=("tool", "python3"))
    assert len(debs(changed, found, Bases(*FULL), before)[1]) > 1


def test_packages_for_any_base_stay_without_a_look(found: Settings) -> None:
    bases = Bases()
    bases.status = None
    before = kept(profile(), *debs(profile(), found, bases))
    again = Bases(*FULL)
    assert debs(profile(), found, again, before)[1] == before.targets[0].files
    assert again.asked == []


def test_packages_stay_while_the_base_cannot_be_read(found: Settings) -> None:
    """It is named by digest: not to see it does not mean that it changed."""
    before = kept(profile(), *debs(profile(), found, Bases(*FULL)))
    unknown = Bases()
    unknown.status = None
    base, files = debs(profile(), found, unknown, before)
    assert (base, files) == (before.targets[0].base, before.targets[0].files)


SYSTEM = {"3.11": profiles.DebianBase(include=("python3",), unpacked=("linux/arm64",))}


def test_a_base_made_of_packages(found: Settings) -> None:
    bases = Bases()
    base, files = debs(profile(debian_base=SYSTEM), found, bases)
    assert bases.asked == []
    assert [(f.name, f.role) for f in files] == [
        ("dpkg", "base"), ("libc6", "base"), ("python3", "base"), ("python3.11", "base"),
        ("helper", ""), ("tool", ""),
    ]  # fmt: skip
    assert base is not None
    assert (base.suite, base.date, base.digest) == ("bookworm", "2026-07-11", None)
    assert (base.python_path, base.python_version) == ("/usr/bin/python3.11", "3.11.2")
    assert base.ref.startswith("envbuilder/debian:bookworm-")
    assert not base.unpacked


def test_what_is_unpacked_has_another_name(found: Settings) -> None:
    resolver = Debs(profile(debian_base=SYSTEM), found, None, lambda _: None, Bases())
    base, _ = resolver.of("linux/arm64", "3.11")
    assert base is not None
    assert base.unpacked
    assert base.ref.startswith("envbuilder/debian:bookworm-unpacked-")


def test_a_base_of_packages_stays_while_the_profile_stands(
    found: Settings, suite: list[tuple[object, ...]]
) -> None:
    asked = profile(debian_base=SYSTEM)
    first = debs(asked, found, Bases())
    assert debs(asked, found, Bases(), kept(asked, *first)) == first
    assert len(suite) == 1


def test_a_base_without_its_python_is_refused(found: Settings) -> None:
    system = {"3.11": profiles.DebianBase(include=("helper",))}
    with pytest.raises(InvalidError, match=r"debian_base\.3\.11: brings no python3\.11"):
        debs(profile(debian_base=system), found, Bases())


@pytest.mark.parametrize("system", [{}, SYSTEM])
def test_a_target_is_current_until_its_base_changes(
    found: Settings, system: dict[str, profiles.DebianBase]
) -> None:
    asked = profile(debian_base=system)
    base, files = debs(asked, found, Bases(*FULL))
    target = Target(platform="linux/amd64", python="3.11", base=base, files=files)
    assert target_debs.is_current(asked, target)
    assert base is not None
    for change in ({"ref": "other:1"}, {"date": "2026-01-01"}, {"python_path": "/bin/python3"}):
        other = msgspec.structs.replace(target, base=msgspec.structs.replace(base, **change))
        assert not target_debs.is_current(asked, other)
    assert not target_debs.is_current(asked, msgspec.structs.replace(target, base=None))
    mac = Target(platform="macos/arm64", python="3.11", base=None, files=())
    assert target_debs.is_current(asked, mac)


def test_the_python_of_a_base_that_was_read(found: Settings) -> None:
    """Where Debian's Python is in the image already, its status says which one it is."""
    image = {"3.11": profiles.Base(ref="debian:bookworm", python_path="/usr/bin/python3.11")}
    asked = profile(base=image, system_packages=("python3", "tool"))
    bases = Bases(
        *FULL, Stanza(name="python3", version="3.11.2-1"),
        Stanza(name="python3.11", version="3.11.2-6"),
    )  # fmt: skip
    base, files = debs(asked, found, bases)
    assert base is not None
    assert base.python_version == "3.11.2"
    target = Target(platform="linux/amd64", python="3.11", base=base, files=files)
    assert target_debs.is_current(asked, target)
