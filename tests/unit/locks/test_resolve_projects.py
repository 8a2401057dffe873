"""The lock of a project's variant, and what `check` has against a lock."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from envbuilder.core.errors import InvalidError
from envbuilder.core.process import Completed
from envbuilder.core.settings import Settings
from envbuilder.locks import compare
from envbuilder.packages.debian import suite as debian
from envbuilder.packages.python.uv import Offer
from envbuilder.packages.sources.source_locker import SourceLocker
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles.lock import Lock
from envbuilder.profiles.profile import Base, Profile, Python, Resolution, Source, Tools
from tests.support.resolving import (
    DEB,
    UVS,
    FakeUv,
    done,
    in_project,
    made,
    offer,
    package,
    profile,
)

OVERRIDES = (
    "numpy<2",
    "six==1; platform_machine != 'arm64'",
    # There, uv would leave the package out where the marker does not hold.
    "idna<4; sys_platform == 'darwin'",
)


def test_what_a_project_says_of_all_packages_reaches_uv(
    found: Settings, offered: list[Offer]
) -> None:
    uv = FakeUv()
    said = Resolution(as_of="2022-03-01", overrides=OVERRIDES, exclude=("einops",))
    made(found, uv, msgspec.structs.replace(profile(), resolution=said))
    first = uv.calls[0]
    assert "einops" in first["--excludes"].split()
    assert first["--overrides"] == "numpy<2\nsix==1"
    assert ("--exclude-newer", "2022-03-01T23:59:59Z") in itertools.pairwise(first["argv"])
    tool = uv.calls[-1]
    assert tool["requirements"].startswith("uv==")
    assert not {"--exclude-newer", "--excludes", "--overrides"}.intersection(tool["argv"])


def test_a_target_whose_index_is_silent_says_so_and_stops_no_other(
    found: Settings, offered: list[Offer]
) -> None:
    offered.clear()
    lines = (
        'torch==2.5.1+cpu; platform_machine == "x86_64"',
        'torch==2.5.1; platform_machine == "aarch64"',
        "torchvision",
    )
    both = profile(platforms=("linux/amd64", "linux/arm64"), release="2.5.1", requirements=lines)
    file = "https://i/torch-2.5.1-cp311-cp311-manylinux_2_17_aarch64.whl"
    uv = FakeUv(
        lambda r, _: (
            package("uv", "0.13.8", *UVS) if r[0] == "u" else package("torch", "2.5.1", file)
        )
    )
    lock = made(in_project(found), uv, both)
    assert [target.platform for target in lock.targets] == ["linux/arm64"]
    (cause,) = lock.missing.values()
    assert cause.text.startswith("torch==2.5.1+cpu: the index pytorch-cpu cannot be reached")
    with pytest.raises(InvalidError, match="ENVBUILDER_INDEX_PYTORCH_CPU") as raised:
        profile_lock.select(lock, "linux/amd64", "3.11")
    assert raised.value.hint == "Then run: envbuilder lock"


def test_each_target_is_offered_the_source_that_is_for_it(
    found: Settings, offered: list[Offer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is for no target of the profile is not even fetched."""
    prepared = []

    def prepare(_: object, name: str, *, location: str, pythons: object) -> SimpleNamespace:
        prepared.append((location, pythons))
        file = "tiny-1.0-py3-none-any.whl"
        return SimpleNamespace(
            offer=offer(distribution=name, version="1.0", file=file, source="built", by=location,
                        sha256=location[-1] * 64)
        )  # fmt: skip

    monkeypatch.setattr(SourceLocker, "prepare", prepare)
    pages = {}

    def answer(_: str, url: str) -> Completed:
        page = Path(url.removeprefix("file://"), "tiny", "index.html")
        pages[page.parents[2]] = page.read_text() if page.is_file() else ""
        return done(1, "No solution found when resolving dependencies")

    said = [
        Source(name="tiny", location=location, marker=f"python_version {versions}")
        for location, versions in (("./a", "< '3.12'"), ("./b", "== '3.12'"), ("./c", "> '3.14'"))
    ]
    asked = profile(
        python=Python(default="3.11", supported=("3.11", "3.12", "3.13")),
        resolution=Resolution(sources=tuple(said)),
    )
    uv = FakeUv(answer)
    made(found, uv, asked)
    of_python = {}
    for call in uv.calls:
        folder = Path(call["argv"][3]).parent
        of_python[call["argv"][call["argv"].index("--python-version") + 1]] = pages[folder]
    assert prepared == [("./a", ("3.11",)), ("./b", ("3.12",))]
    assert "a" * 64 in of_python["3.11"]
    assert "b" * 64 in of_python["3.12"]
    assert of_python["3.13"] == ""


def test_a_projects_lock_begins_with_what_the_profile_locks(
    found: Settings, offered: list[Offer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debian, "load", lambda *_: {})
    monkeypatch.setattr(debian, "lock", lambda *_: (DEB,))
    plain = profile(system_packages=("tool",))
    shipped = made(found, FakeUv(), plain)
    monkeypatch.setattr(debian, "lock", lambda *_: pytest.fail("chosen again"))
    uv = FakeUv()
    variant = profile(system_packages=("tool",), requirements=(*plain.requirements, "einops"))
    project = in_project(found)
    lock = made(project, uv, variant, origin=(plain, shipped))
    assert lock.tools == shipped.tools
    assert lock.targets[0].of_kind("deb") == (DEB,)
    assert lock.targets[0].base == shipped.targets[0].base
    assert [call["argv"][call["argv"].index("--format") + 1] for call in uv.calls] == [
        "pylock.toml", "requirements.txt",
    ]  # fmt: skip
    assert "jinja2==3.1" in uv.calls[0]["constraints"]
    # Newer versions of all that it resolves, but still the profile's own uv and .debs.
    uv = FakeUv()
    upgraded = made(project, uv, variant, previous=lock, upgrade=True, origin=(plain, shipped))
    assert uv.calls[0]["constraints"] == ""
    assert upgraded.targets[0].of_kind("deb") == (DEB,)


def test_an_index_with_other_bytes_than_the_profile_locks_is_refused(found: Settings) -> None:
    plain = profile()
    shipped = made(found, FakeUv(), plain)
    text = profile_lock.dump(shipped).replace(shipped.targets[0].files[-1].sha256, "c" * 64)
    other = profile_lock.parse(text.encode(), Path("cpu.json"))
    lock = made(in_project(found), FakeUv(), plain, origin=(plain, other))
    assert lock.state == "unlocked"
    assert lock.obstacle
    assert "differs from the profile's own lock" in lock.obstacle.items[0]
    assert lock.obstacle.items[-1].startswith("Use an index with upstream's own files")


def test_a_projects_lock_has_an_interpreter_that_stays(
    found: Settings, offered: list[Offer]
) -> None:
    assert made(found, FakeUv()).targets[0].interpreter is None, (
        "those of profiles stay as they are"
    )
    project = in_project(found)
    lock = made(project, FakeUv())
    (target,) = lock.targets
    assert target.interpreter
    assert "cpython" not in lock.reason, "most machines have one"
    older = msgspec.structs.replace(target.interpreter, sha256="f" * 64)
    target = msgspec.structs.replace(target, interpreter=older)
    before = msgspec.structs.replace(lock, targets=(target,))
    assert made(project, FakeUv(), previous=before) == before
    assert made(project, FakeUv(), previous=before, upgrade=True) == lock


def test_an_interpreter_that_images_get_is_a_claim(found: Settings, offered: list[Offer]) -> None:
    """Also in the lock of a profile: without it, there is no image."""
    offered[:] = [offer(provenance="read")]
    base = {"3.11": Base(ref="debian:bookworm-slim", python_path="/opt/python/bin/python3.11")}
    lock = made(found, FakeUv(), profile(base=base))
    assert lock.targets[0].of_image
    assert lock.state == "claimed"
    assert "cpython 3.11" in lock.reason


def test_a_marker_may_leave_a_requirement_out(found: Settings, offered: list[Offer]) -> None:
    asked = profile(requirements=(*profile().requirements, 'colorama; sys_platform == "win32"'))
    lock = made(found, FakeUv(), asked)
    assert compare.check(asked, lock) == ()
    # One that holds here must be there, whatever machine checks it.
    for marker in ('sys_platform == "linux"', 'platform_release == ""', 'python_version < "3.12"'):
        missing = profile(requirements=(*profile().requirements, f"colorama; {marker}"))
        assert "linux/amd64 Python 3.11: colorama is missing" in compare.check(missing, lock)


def test_a_projects_lock_states_what_requires_what(found: Settings, offered: list[Offer]) -> None:
    plain = profile()
    shipped = made(found, FakeUv())
    for file in shipped.files:
        assert not file.requires, "those of profiles stay as they are"
    lock = made(in_project(found), FakeUv())
    assert {f.name: f.requires for f in lock.targets[0].files} == {
        "jinja2": (), "torch": ("jinja2",),
    }  # fmt: skip
    assert profile_lock.parse(profile_lock.dump(lock).encode(), Path("cpu.json")) == lock
    assert compare.check(plain, lock) == ()
    (target,) = lock.targets
    evil = msgspec.structs.replace(target.files[0], name="evil", requires=())
    altered = msgspec.structs.replace(target, files=(*target.files, evil))
    assert compare.check(plain, msgspec.structs.replace(lock, targets=(altered,))) == (
        "linux/amd64 Python 3.11: nothing requires evil",
    )


def test_what_uv_has_just_read_is_asked_for_only_if_it_did_not_keep_it(
    found: Settings, offered: list[Offer]
) -> None:
    """An index may forbid that its answers are kept."""
    kept = FakeUv()
    forgotten = FakeUv()
    usual = forgotten.usual

    def offline(uv: FakeUv) -> list[bool]:
        return ["--offline" in call["argv"] for call in uv.calls if "line" in call["argv"]]

    def answer(*question: str) -> str | Completed:
        if "--offline" in forgotten.calls[-1]["argv"]:
            return done(1, "No solution found when resolving dependencies: not in the cache")
        return usual(*question)

    forgotten.answer = answer
    project = in_project(found)
    assert made(project, kept) == made(project, forgotten)
    assert (offline(kept), offline(forgotten)) == ([True], [True, False])


def stale(lock: Lock, asked: Profile) -> str:
    return "; ".join(compare.check(asked, lock))


def test_check_says_why(found: Settings, offered: list[Offer]) -> None:
    lock = made(found, FakeUv())
    assert "the profile changed" in stale(lock, profile(requirements=("torch==2.14.0",)))
    assert "torch 2.13.0+cpu does not satisfy torch==2.14.0" in stale(
        lock, profile(requirements=("torch==2.14.0",))
    )
    assert "numpy is missing" in stale(lock, profile(requirements=("numpy",)))
    assert "uv is 0.13.8, not 9.9" in stale(lock, profile(tools=Tools(uv="9.9")))
    assert "has no target linux/arm64 with Python 3.11" in stale(
        lock, profile(platforms=("linux/amd64", "linux/arm64"))
    )
    assert "has an unnecessary target linux/amd64" in stale(
        lock, profile(platforms=("linux/arm64",))
    )
    assert "base image" in stale(lock, profile(base={}, backends=("venv",)))
    assert "lock is for profile 'cpu'" in stale(lock, profile(name="other"))
