"""What a new lock changes, and whether a lock still is what its profile asks for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from envbuilder.locks import compare, target_wheels
from envbuilder.packages import interpreters
from envbuilder.packages.python.uv import Found, Uv
from envbuilder.profiles import lock as profile_lock, profile as profiles, releases
from envbuilder.profiles.lock import File, Recipe, Target
from tests.support.shipped import FOLDERS, shipped_lock, shipped_profile

CPU = shipped_lock("cpu")


def with_versions(**versions: str | None) -> profile_lock.Lock:
    """The lock with other versions of some packages, or without them."""
    targets = []
    for target in CPU.targets:
        files = [f for f in target.files if versions.get(f.name, "") is not None]
        moved = tuple(replace(f, version=versions.get(f.name) or f.version) for f in files)
        targets.append(replace(target, files=moved))
    return replace(CPU, targets=tuple(targets))


def test_versions_that_differ_by_hardware() -> None:
    other = with_versions(jinja2="3.0", torch="2.14.0", filelock="1.0")
    locks = [
        ("default", "default.cpu", CPU),
        ("default", "default.cuda", other),
        ("default", "default.mps", CPU),
        ("test", "test.cuda", other),
        ("", "cuda", other),
    ]
    version = {f.name: f.version for f in CPU.targets[0].files}
    assert dict(compare.differences(locks)) == {
        "default.cuda": "versions differ from other profiles:"
        f" filelock 1.0 ({version['filelock']}), jinja2 3.0 ({version['jinja2']})"
    }


def test_each_package_that_came_left_or_moved() -> None:
    before = with_versions(jinja2="3.0", mpmath=None)
    after = with_versions(sympy=None)
    version = {f.name: f.version for f in CPU.targets[0].files}
    assert compare.changes(before, after) == [
        f"jinja2 3.0 → {version['jinja2']}",
        f"+ mpmath {version['mpmath']}",
        f"- sympy {version['sympy']}",
    ]


def test_what_images_have_for_wheels() -> None:
    assert not compare.in_images(CPU)
    by = {"libgl1": ("pyqt5", "opencv-python"), "git": (), "libxcb1": ("opencv-python",)}
    targets = tuple(replace(target, system_packages=by) for target in CPU.targets)
    said = compare.in_images(replace(CPU, targets=targets))
    size = sum(deb.size or 0 for deb in CPU.targets[0].of_kind("deb"))
    assert said == f"in images: libgl1, libxcb1 for opencv-python, pyqt5 ({size / 1024:.1f} KiB)"


def test_targets_may_differ() -> None:
    first, *others = CPU.targets
    files = tuple(replace(f, version="1" if f.name == "jinja2" else f.version) for f in first.files)
    mixed = replace(CPU, targets=(replace(first, files=files), *others))
    version = next(f.version for f in CPU.files if f.name == "jinja2")
    assert compare.changes(CPU, mixed) == [f"jinja2 {version} → 1, {version}"]


def test_the_commit_of_a_source_and_the_hash_of_another_are_compared() -> None:
    first, *others = CPU.targets

    def built(**changes: str) -> profile_lock.Lock:
        recipe = Recipe(sha256="1" * 64, **changes)  # type: ignore[arg-type]
        files = (*first.files, replace(first.files[0], name="tiny", version="1", recipe=recipe))
        return replace(CPU, targets=(replace(first, files=files), *others))

    one = built(kind="git", location="https://x/g", commit="a" * 40)
    other = built(kind="git", location="https://x/g", commit="b" * 40)
    assert compare.changes(one, other) == ["tiny 1 (aaaaaaaaa) → 1 (bbbbbbbbb)"]
    for kind, location in (("path", "./g"), ("sdist", "https://x/g.zip")):
        assert compare.changes(CPU, built(kind=kind, location=location)) == ["+ tiny 1 (111111111)"]
    assert compare.changes(CPU, built(kind="sdist", location="g-1.tar.gz")) == ["+ tiny 1"]


def test_nothing_to_say_of_a_first_lock_the_same_or_none() -> None:
    assert compare.changes(None, CPU) == compare.changes(CPU, CPU) == []
    unlocked = replace(CPU, state="unlocked", targets=())
    assert compare.changes(unlocked, CPU) == compare.changes(CPU, unlocked) == []


def test_what_is_for_other_hardware_is_named() -> None:
    listed = [
        "xformers>=0.0.30",
        "faiss-gpu",
        "rich",
        "cupy-cuda12x",
        "nvidia-cublas-cu12==12.1.3.1",
    ]
    assert [*compare.left_out(shipped_profile("rocm"), listed)] == [
        "faiss-cpu for faiss-gpu",
        "without xformers and cupy-cuda12x",
    ]
    assert not [*compare.left_out(shipped_profile("cuda"), listed)]


TORCH_AND_RICH = msgspec.structs.replace(
    shipped_profile("cpu"),
    requirements=("torch==2.13.0+cpu", 'rich; sys_platform == "linux"'),
)


def wheel(name: str, *requires: str) -> File:
    return File(
        kind="wheel", name=name, version="1", file=f"{name}-1-py3-none-any.whl", sha256="0" * 64,
        size=1, source="default", provenance="read", by="a test", requires=requires,
    )  # fmt: skip


def target(*files: File) -> Target:
    return Target(platform="linux/amd64", python="3.11", base=None, files=files)


TORCH = wheel("torch", "jinja2", "sympy")
REST = (wheel("jinja2", "markupsafe"), wheel("markupsafe"), wheel("sympy", "torch"), wheel("rich"))


@pytest.mark.parametrize(
    ("files", "problems"),
    [
        ((TORCH, *REST), []),
        # As locks of profiles are, which state nothing of it.
        ((wheel("torch"), wheel("jinja2")), []),
        ((TORCH, *REST, wheel("evil")), ["nothing requires evil"]),
        # Two that require each other alone.
        (
            (TORCH, *REST, wheel("evil", "worse"), wheel("worse", "evil")),
            ["nothing requires evil", "nothing requires worse"],
        ),
        ((TORCH, REST[0], *REST[2:]), ["markupsafe is missing, but jinja2 requires it"]),
        (
            (TORCH, *REST[1:]),
            ["jinja2 is missing, but torch requires it", "nothing requires markupsafe"],
        ),
    ],
)
def test_what_is_missing_and_what_nothing_requires(
    files: Sequence[File], problems: list[str]
) -> None:
    assert [*compare.dependency_problems(TORCH_AND_RICH, target(*files))] == problems


class Resolver:
    """uv, to which tf-keras requires tensorflow, which is locked as tensorflow-cpu."""

    pins: dict[str, str]

    def edges(self, _: Any, __: Any, ___: Any, pins: dict[str, str], ____: Any) -> Iterable[Any]:
        self.pins = pins
        return [
            ("tensorflow", "1", ("tf-keras",)),
            ("numpy", "2", ("tensorflow", "tensorflow-cpu")),
            ("protobuf", "3", ("tensorflow",)),
            ("tensorflow-cpu", "1", ("tensorflow",)),
        ]


def test_what_requires_another_name_of_the_framework_requires_the_locked_one() -> None:
    uv = Resolver()
    names = ("tensorflow-cpu", "tf-keras", "numpy", "protobuf")
    wheels = [Found(file=wheel(name), url="") for name in names]
    tensorflow = shipped_profile("tensorflow-cpu")
    stated = target_wheels.with_dependencies(
        wheels, tensorflow, "linux/amd64", "3.11", cast("Uv", uv)
    )
    assert {w.file.name: w.file.requires for w in stated} == {
        "tensorflow-cpu": ("numpy", "protobuf"),
        "tf-keras": ("tensorflow-cpu",),
        "numpy": (),
        "protobuf": (),
    }
    assert uv.pins["tensorflow"] == uv.pins["tensorflow-cpu"] == "1"


PROFILE = shipped_profile("cpu")


def with_torch(**changes: str) -> profile_lock.Lock:
    """The lock with another file of torch in its first target."""
    first, *others = CPU.targets
    files = tuple(replace(f, **changes) if f.name == "torch" else f for f in first.files)
    return replace(CPU, targets=(replace(first, files=files), *others))


def objections(lock: profile_lock.Lock, origin: profile_lock.Lock | None = CPU) -> list[str]:
    return [*compare.foreign_files(PROFILE, lock, origin)]


def test_the_profiles_own_build() -> None:
    assert objections(CPU) == objections(CPU, None) == []


def test_without_the_profiles_lock_only_the_source_is_known() -> None:
    assert objections(with_torch(sha256="0" * 64), None) == []


def test_another_release_is_the_project_s_choice() -> None:
    older = with_torch(sha256="0" * 64, version="2.4.1+cpu")
    assert objections(older) == []
    every = releases.choices("torch", PROFILE.builds, PROFILE.platforms, "2.4.1")
    chosen = profiles.pinned(PROFILE, every["2.4.1"])
    # On ARM PyPI's own wheel is the CPU's.
    files = {"source": "default", "version": "2.4.1", "sha256": "0" * 64}
    first, second = (
        replace(t, files=tuple(replace(f, **files) if f.name == "torch" else f for f in t.files))
        for t in (CPU.targets[0], next(t for t in CPU.targets if t.platform == "linux/arm64"))
    )
    assert [*compare.foreign_files(chosen, replace(CPU, targets=(second,)), CPU)] == []
    (found,) = compare.foreign_files(chosen, replace(CPU, targets=(first,)), CPU)
    assert "is from default, not from pytorch-cpu" in found


def test_another_build_of_the_same_release_from_a_folder() -> None:
    cuda = shipped_profile("cuda")
    lock = shipped_lock("cuda")
    first, *others = lock.targets
    files = tuple(replace(f, version="2.13.0+cpu") if f.name == "torch" else f for f in first.files)
    mixed = replace(lock, targets=(replace(first, files=files), *others))
    (found,) = compare.foreign_files(cuda, mixed, lock)
    assert found.endswith("torch 2.13.0+cpu is a build for other hardware")


def test_a_companion_from_elsewhere() -> None:
    vision = File(
        kind="wheel", name="torchvision", version="0.28.0",
        file="torchvision-0.28.0-cp311-cp311-manylinux_2_28_x86_64.whl", sha256="0" * 64,
        size=1, source="default", provenance="read", by="an index",
    )  # fmt: skip
    first, *others = CPU.targets
    lock = replace(CPU, targets=(replace(first, files=(*first.files, vision)), *others))
    indexes = {**PROFILE.indexes, "torchvision": "pytorch-cpu"}
    (found,) = compare.foreign_files(replace(PROFILE, indexes=indexes), lock, CPU)
    assert "torchvision 0.28.0 is from default, not from pytorch-cpu" in found


def test_an_interpreter_from_elsewhere() -> None:
    first = CPU.targets[0]
    interpreter = interpreters.of_target(first, None)
    assert interpreter
    lock = replace(CPU, targets=(replace(first, interpreter=interpreter),))
    assert objections(lock) == []
    other = replace(first, interpreter=replace(interpreter, source="somewhere"))
    (found,) = objections(replace(CPU, targets=(other,)))
    assert found.endswith("its interpreter is from somewhere, not from python-standalone")


@pytest.mark.parametrize("name", profiles.names(FOLDERS))
def test_no_shipped_lock_has_objections(name: str) -> None:
    lock = shipped_lock(name)
    assert [*compare.foreign_files(shipped_profile(name), lock, lock)] == []


@pytest.mark.parametrize("name", ["rocm", "xpu", "cuda", "cuda-legacy"])
def test_a_second_triton(name: str) -> None:
    profile = shipped_profile(name)
    lock = shipped_lock(name)
    assert [*compare.foreign_files(profile, lock, lock)] == []
    other = "triton-rocm" if name.startswith("cuda") else "triton"
    first, *others = lock.targets
    own = next(file for file in first.files if file.name.startswith("triton"))
    second = replace(own, name=other, version="3.9.0", source="default")
    both = replace(lock, targets=(replace(first, files=(*first.files, second)), *others))
    (found,) = compare.foreign_files(profile, both, lock)
    assert found == (
        f"{first.platform} Python {first.python}: {other} 3.9.0 is {own.name} for other hardware:"
        " both install the same modules"
    )


def test_what_is_made_for_another_cuda_is_named() -> None:
    listed = ["cupy-cuda12x", "cupy-cuda13x", "nvidia-cublas-cu12==12.1.3.1", "tensorrt-cu12-libs"]
    assert [*compare.other_cuda(shipped_profile("cuda"), listed)] == [
        f"{name} is made for CUDA 12, for which profile 'cuda' has no build of 2.13.0"
        for name in ("cupy-cuda12x", "tensorrt-cu12-libs")
    ]
    assert not [*compare.other_cuda(shipped_profile("cuda-legacy"), ["cupy-cuda12x"])]
    assert not [*compare.other_cuda(shipped_profile("cpu"), listed)]
