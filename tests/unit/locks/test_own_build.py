"""A project's lock has the hardware's own build of PyTorch, or says what it has instead."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from envbuilder.core import resources
from envbuilder.locks import own_build
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles import profile as profiles
from envbuilder.profiles.lock import File

FOLDERS = (resources.profiles_dir(),)
PROFILE = profiles.load("cpu", FOLDERS)
CPU = profile_lock.load(resources.profiles_dir() / "locks" / "cpu.json")


def with_torch(**changes: str) -> profile_lock.Lock:
    """The lock with another file of torch in its first target."""
    first, *others = CPU.targets
    files = tuple(replace(f, **changes) if f.name == "torch" else f for f in first.files)
    return replace(CPU, targets=(replace(first, files=files), *others))


def objections(lock: profile_lock.Lock, origin: profile_lock.Lock | None = CPU) -> list[str]:
    return [*own_build.objections(PROFILE, lock, origin)]


def test_the_profiles_own_build() -> None:
    assert objections(CPU) == objections(CPU, None) == []


def test_pypis_build_is_for_other_hardware() -> None:
    (found,) = objections(with_torch(source="default", version="2.13.0", sha256="0" * 64))
    assert found == (
        "linux/amd64 Python 3.11: torch 2.13.0 is from default, not from pytorch-cpu: another"
        " hardware's build"
    )


def test_other_bytes_of_the_same_name() -> None:
    lock = with_torch(sha256="0" * 64)
    (found,) = objections(lock)
    assert found == (
        "linux/amd64 Python 3.11: torch 2.13.0+cpu is not the file that the profile locks"
    )
    assert objections(lock, None) == [], "without the profile's lock only the source is known"


def test_a_companion_from_elsewhere() -> None:
    vision = File(
        kind="wheel", name="torchvision", version="0.28.0",
        file="torchvision-0.28.0-cp311-cp311-manylinux_2_28_x86_64.whl", sha256="0" * 64,
        size=1, source="default", provenance="read", by="an index",
    )  # fmt: skip
    first, *others = CPU.targets
    lock = replace(CPU, targets=(replace(first, files=(*first.files, vision)), *others))
    indexes = {**PROFILE.indexes, "torchvision": "pytorch-cpu"}
    (found,) = own_build.objections(replace(PROFILE, indexes=indexes), lock, CPU)
    assert "torchvision 0.28.0 is from default, not from pytorch-cpu" in found


def test_a_source_that_the_profile_does_not_name() -> None:
    first, *others = CPU.targets
    files = tuple(
        replace(f, source="somewhere") if f.name == "filelock" else f for f in first.files
    )
    (found,) = objections(replace(CPU, targets=(replace(first, files=files), *others)))
    assert found.startswith("linux/amd64 Python 3.11: filelock ")
    assert found.endswith(" is from somewhere, not from default")
    tools = {p: replace(tool, source="pytorch-cpu") for p, tool in CPU.tools.items()}
    assert len(objections(replace(CPU, tools=tools))) == len(tools)


def test_a_claim_that_was_relabelled() -> None:
    claimed = next(t for t in CPU.targets for f in t.files if f.provenance != "read")
    files = tuple(replace(f, provenance="read") for f in claimed.files)
    (found,) = objections(replace(CPU, targets=(replace(claimed, files=files),)))
    assert found == (
        f"{claimed.platform} Python {claimed.python}: torch 2.13.0+cpu is 'assumed' in the"
        " profile's lock, not 'read'"
    )
    read = tuple(replace(f, provenance="read", by="an index") for f in claimed.files)
    assert objections(replace(CPU, targets=(replace(claimed, files=read),))) == []


@pytest.mark.parametrize("name", profiles.names(FOLDERS))
def test_no_shipped_lock_has_objections(name: str) -> None:
    lock = profile_lock.load(resources.profiles_dir() / "locks" / f"{name}.json")
    assert [*own_build.objections(profiles.load(name, FOLDERS), lock, lock)] == []


@pytest.mark.parametrize("name", ["rocm", "xpu", "cuda", "cuda-legacy"])
def test_a_second_triton(name: str) -> None:
    profile = profiles.load(name, FOLDERS)
    lock = profile_lock.load(resources.profiles_dir() / "locks" / f"{name}.json")
    assert [*own_build.objections(profile, lock, lock)] == []
    other = "triton-rocm" if name.startswith("cuda") else "triton"
    first, *others = lock.targets
    own = next(file for file in first.files if file.name.startswith("triton"))
    second = replace(own, name=other, version="3.9.0", source="default")
    both = replace(lock, targets=(replace(first, files=(*first.files, second)), *others))
    (found,) = own_build.objections(profile, both, lock)
    assert found == (
        f"{first.platform} Python {first.python}: {other} 3.9.0 is {own.name} for other hardware:"
        " both install the same modules"
    )
