"""What a bundle for some profiles holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from envbuilder.builds import mnist
from envbuilder.bundle import contents, self_wheel
from envbuilder.bundle.contents import Needed, Selection
from envbuilder.bundle.format import Part
from envbuilder.core.settings import Configuration, Settings
from envbuilder.packages.store import Store
from envbuilder.payload.training.dataset import MNIST_SHA256
from envbuilder.profiles import profile as profiles
from envbuilder.profiles.library import Library
from envbuilder.profiles.lock import File
from tests.support import conda_locks
from tests.support.bundles import QUIET, part, sha


@pytest.fixture
def cpu(there: Settings) -> Selection:
    """The shipped profile `cpu`, for both its Pythons."""
    library = Library(profiles.search_path(None, there.config_dir))
    return contents.select(["cpu"], ["linux/amd64"], ["3.12", "3.11"], library)[0]


# --- base images


def needed(selection: Selection, settings: Settings, override: str | None = None) -> set[Needed]:
    images = contents.needed_bases([selection], override, settings)
    assert len(set(images)) == len(images)
    return set(images)


def test_the_locked_base_image_of_each_target_goes_along(cpu: Selection, there: Settings) -> None:
    first, second = (target.base for target in cpu.targets)
    assert second is not None
    assert needed(cpu, there) == {
        Needed(ref=f"{base.ref}@{base.digest}", platform="linux/amd64", digest=base.digest)
        for base in (first, second)
    }
    assert needed(replace(cpu, targets=cpu.targets[:1] * 2), there) == {
        Needed(ref=f"{first.ref}@{first.digest}", platform="linux/amd64", digest=first.digest)
    }


def test_another_base_image_goes_along_whatever_its_digest_is(
    cpu: Selection, there: Settings
) -> None:
    assert needed(cpu, there, "mine:1") == {Needed(ref="mine:1", platform="linux/amd64")}
    first, second = (target.base for target in cpu.targets)
    configured = replace(there, configuration=Configuration(base_images={first.ref: "ours:1"}))
    assert needed(cpu, configured) == {
        Needed(ref="ours:1", platform="linux/amd64"),
        Needed(ref=f"{second.ref}@{second.digest}", platform="linux/amd64", digest=second.digest),
    }


def test_what_needs_no_base_image_gets_none(cpu: Selection, there: Settings) -> None:
    no_images = replace(cpu, profile=replace(cpu.profile, backends=("venv",)))
    assert needed(no_images, there) == set()
    bare = replace(cpu, targets=tuple(replace(t, base=None) for t in cpu.targets))
    assert needed(bare, there) == set()
    assert needed(bare, there, "mine:1") == set()


def test_a_base_that_is_made_here_goes_along_as_packages(cpu: Selection, there: Settings) -> None:
    target = cpu.targets[0]
    base = cpu.targets[0].base
    made = replace(base, suite="bookworm", digest=None)
    selection = replace(cpu, targets=(replace(target, base=made),))
    assert needed(selection, there) == set()
    assert needed(selection, there, "mine:1") == {Needed(ref="mine:1", platform="linux/amd64")}


# --- files


@pytest.mark.parametrize("managed", [False, True])
def test_all_files_are_fetched_and_listed_once(
    cpu: Selection, there: Settings, monkeypatch: pytest.MonkeyPatch, managed: bool
) -> None:
    python = replace(cpu.tools[0], kind="python", name="cpython", sha256="d" * 64)
    profile = replace(cpu.profile, python=replace(cpu.profile.python, managed=managed))
    targets = tuple(replace(target, interpreter=python) for target in cpu.targets)
    cpu = replace(cpu, profile=profile, targets=targets)
    fetched: list[str] = []
    monkeypatch.setattr(
        contents, "fetch", lambda files, *_: fetched.extend(f.sha256 for f in files)
    )
    conda = conda_locks.target_of(conda_locks.package("python", sha256="c" * 64))
    locked = contents.locked_files([replace(cpu, conda=(conda,)), cpu], there, QUIET)
    hashes = [f.sha256 for f in locked]
    assert len(set(hashes)) == len(hashes)
    expected = {f.sha256 for t in cpu.targets for f in t.files} | {cpu.tools[0].sha256, "c" * 64}
    # Machines that have a Python need no other, unless the project says so.
    assert set(hashes) == set(fetched) == expected | ({"d" * 64} if managed else set())


def wheel(content: bytes) -> File:
    name = content.decode()
    return File(
        kind="wheel", name=name, version="1.0", file=f"{name}-1.0-py3-none-any.whl",
        sha256=sha(content), size=len(content), source="default", provenance="read", by="a test",
    )  # fmt: skip


def test_files_kept_apart_are_left_out(found: Settings) -> None:
    store = Store(found.store_dir)
    files = []
    for content in (b"a", b"b"):
        store.take(sha(content), [content])
        files.append(wheel(content))
    (only,) = contents.of_files(files, found, [sha(b"a")])
    assert (only.member.path, only.member.what) == (f"files/{sha(b'b')}", "wheel b 1.0")
    assert (only.member.size, only.member.kind) == (1, "file")
    assert only.content == store.path(sha(b"b"))


def test_mnist_goes_along_where_it_can_be_had(
    found: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in MNIST_SHA256:
        (tmp_path / name).write_bytes(name.encode())
    given = mnist.Dataset(folder=tmp_path, name="MNIST", subset=False)
    monkeypatch.setattr(mnist, "obtain", lambda settings, progress: given)
    parts = contents.dataset(found, QUIET)
    assert [p.member.path for p in parts] == [f"datasets/mnist/{n}" for n in sorted(MNIST_SHA256)]
    for p in parts:
        assert p.content == tmp_path / p.member.name
    assert all(p.member.sha256 == MNIST_SHA256[p.member.name] for p in parts)
    assert {p.member.what for p in parts} == {"MNIST"}
    monkeypatch.setattr(mnist, "obtain", lambda settings, progress: replace(given, subset=True))
    assert contents.dataset(found, QUIET) == ()


# --- envbuilder itself, and the manifest


@pytest.mark.parametrize("extra", ["", "conda"])
def test_envbuilder_goes_along_for_each_platform_and_with_a_conda_lock_its_installer(
    cpu: Selection, found: Settings, monkeypatch: pytest.MonkeyPatch, extra: str
) -> None:
    asked: list[tuple[Any, ...]] = []

    def dependencies(itself: Any, platform: str, python: str, *more: Any) -> tuple[Any, ...]:
        asked.append((platform, python, *more[2:]))
        return ()

    monkeypatch.setattr(
        self_wheel, "wheel", lambda settings: self_wheel.Wheel(file="e.whl", content=b"e")
    )
    monkeypatch.setattr(self_wheel, "accepts", lambda itself, python: True)
    monkeypatch.setattr(self_wheel, "dependencies", dependencies)
    wanted = replace(cpu, conda=(conda_locks.target_of(),) if extra else ())
    platforms: list[Any] = ["linux/amd64", "macos/arm64"]
    (itself,) = contents.of_envbuilder([wanted], platforms, found, QUIET)
    assert (itself.member.path, itself.content) == ("wheels/e.whl", b"e")
    assert itself.member.what == "envbuilder itself"
    uv = cpu.tools[0].version  # of the lock
    assert asked == [(p, python, uv, extra) for p in platforms for python in ("3.11", "3.12")]


def test_a_manifest_lists_its_parts_and_targets_in_order(cpu: Selection) -> None:
    older = replace(cpu.targets[0], python="3.9", platform="linux/arm64")
    other = replace(cpu, profile=replace(cpu.profile, name="a"), targets=(older, *cpu.targets))
    parts: list[Part] = [
        part(f"files/{sha(b'x')}", b"x", "file"),
        part("profiles/cpu.yaml", b"", "profile"),
    ]
    made = contents.manifest([cpu, other], parts, iter(["a base image"]))
    assert made.profiles == ("a", "cpu")
    assert made.platforms == ("linux/amd64", "linux/arm64")
    assert made.pythons == ("3.9", "3.11", "3.12")
    assert made.lacks == ("a base image",)
    assert made.members == (parts[1].member, parts[0].member)
    assert made.made_by.startswith("envbuilder ")
