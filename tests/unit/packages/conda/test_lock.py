"""Conda locks: read back as written, and refused where they do not hold together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from envbuilder.core import resources
from envbuilder.core.errors import InvalidError
from envbuilder.core.signatures import UnsignedError
from envbuilder.packages.conda import lock as lockfile
from envbuilder.packages.conda.lock import Lock, Package, Target
from envbuilder.profiles import profile as profiles
from envbuilder.profiles.library import Library
from tests.support import signing
from tests.support.shipped import shipped_profile

CPU = shipped_profile("cpu")


def package(name: str = "python", **changes: Any) -> Package:
    made = Package(
        name=name,
        version="3.11.9",
        build="h1_0_cpython",
        build_number=0,
        subdir="linux-64",
        file=f"{name}-3.11.9-h1_0_cpython.conda",
        channel="conda-forge",
        sha256="a" * 64,
        size=10,
    )
    return replace(made, **changes)


def lock(*packages: Package, **changes: Any) -> Lock:
    target = Target(
        platform="linux/amd64",
        python="3.11",
        virtual_packages={"__glibc": "2.28", "__archspec": "1=x86_64"},
        packages=packages or (package(),),
    )
    made = Lock(
        schema=lockfile.SCHEMA,
        profile="cpu",
        inputs=lockfile.inputs_digest(CPU),
        channels=("conda-forge",),
        targets=(target,),
    )
    return replace(made, **changes)


def read(text: str, folder: Path) -> Lock:
    path = folder / "cpu.conda.json"
    path.write_text(text)
    return lockfile.load(path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sha256": None}, "sha256"),
        ({"sha256": "a" * 64 + "\n"}, "sha256"),
        ({"file": "../python-3.11.9-0.conda"}, "file"),
        ({"name": "Python"}, "name"),
        ({"subdir": "win-64"}, "subdir"),
        ({"version": "3.12.1"}, "the file name does not match"),
        ({"size": -1}, "size"),
        ({"channel": "https://example.org"}, "channel"),
        ({"depends": ["a\nb"]}, "depends"),
        ({"md5": "0"}, "md5"),
    ],
)
def test_a_package_is_checked_at_the_door(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    data = json.loads(lockfile.dump(lock()))
    entry = data["targets"][0]["packages"][0]
    entry.update(change)
    if change.get("sha256", "") is None:
        del entry["sha256"]
    with pytest.raises(InvalidError) as caught:
        read(json.dumps(data), tmp_path)
    assert said in caught.value.message


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lock(targets=()), "targets"),
        (lock(targets=lock().targets * 2), "targets"),
        (lock(schema=2), "schema 2"),
    ],
)
def test_what_types_cannot_say_is_refused(made: Lock, said: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match=said):
        read(lockfile.dump(made), tmp_path)


def test_a_refusal_names_the_lock_and_its_target(tmp_path: Path) -> None:
    where = f"{tmp_path}/cpu.conda.json: linux/amd64 Python 3.11"
    for made, reason in (
        (lock(package("zlib"), package("zlib")), "zlib appears twice"),
        (lock(package(build="h2")), "python-3.11.9-h1_0_cpython.conda: the file name does not"),
        (lock(package(), package("zlib", subdir="osx-arm64")), "zlib-3.11.9-h1_0_cpython.conda is"),
        (lock(package("zlib")), "expected Python 3.11, found none"),
        (
            lock(package(version="3.110.1", file="python-3.110.1-h1_0_cpython.conda")),
            "expected Python 3.11, found 3.110.1",
        ),
    ):
        with pytest.raises(InvalidError) as raised:
            read(lockfile.dump(made), tmp_path)
        assert raised.value.message.startswith(f"{where}: {reason}")


def test_packages_for_any_platform_belong_to_every_target(tmp_path: Path) -> None:
    tzdata = package(
        "tzdata", subdir="noarch", noarch="generic", depends=("a >=1",), timestamp=1, size=None
    )
    made = lock(package(), tzdata)
    assert read(lockfile.dump(made), tmp_path) == made
    other = Target(
        platform="linux/arm64",
        python="3.12",
        virtual_packages={},
        packages=(
            package(
                subdir="linux-aarch64", version="3.12.1", file="python-3.12.1-h1_0_cpython.tar.bz2"
            ),
        ),
    )
    both = lock(targets=(*lock().targets, other))
    assert read(lockfile.dump(both), tmp_path) == both
    assert lockfile.select(both, "linux/arm64", "3.12") == other
    with pytest.raises(InvalidError) as raised:
        lockfile.select(both, "linux/arm64", "3.11")
    assert "It covers: linux/amd64 Python 3.11, linux/arm64 Python 3.12." in raised.value.hint


def test_the_lock_of_the_first_folder_counts(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("none", "mine", "shipped")]
    for folder in folders[1:]:
        (folder / "locks").mkdir(parents=True)
        made = lock(inputs=("1" if folder.name == "mine" else "2") * 64)
        (folder / "locks/cpu.conda.json").write_text(lockfile.dump(made))
    library = Library(folders)
    assert lockfile.path_for("cpu", library) == folders[1] / "locks/cpu.conda.json"
    found = lockfile.find("cpu", library)
    assert found.inputs == "1" * 64
    assert lockfile.find_for_use("cpu", library) == found
    assert lockfile.path_for("other", library) is None
    assert lockfile.find_for_use("other", Library(folders, ("a.pub",))) is None


def test_a_lock_that_must_be_signed_is_refused_without_a_signature(tmp_path: Path) -> None:
    path = tmp_path / "locks/cpu.conda.json"
    path.parent.mkdir()
    path.write_text("garbage")  # which is not even read
    public = signing.lay_key(tmp_path / "key.pem").with_suffix(".pub")
    with pytest.raises(UnsignedError, match=r"cpu\.conda\.json: not signed"):
        lockfile.find_for_use("cpu", Library([tmp_path], (str(public),)))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not a lock: "),
        ("{}", "conda lock schema None is not supported"),
        (
            '{"schema": 1, "profile": "other"}',
            "profile: this conda lock is for another profile, 'other'",
        ),
    ],
)
def test_what_is_no_lock_says_how_to_make_one(text: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidError) as raised:
        read(text, tmp_path)
    assert raised.value.message.startswith(f"{tmp_path}/cpu.conda.json: {reason}")
    assert "envbuilder lock --backend conda" in raised.value.hint


def test_a_missing_or_stale_lock_says_how_to_make_it() -> None:
    for found in (None, lock(inputs="0" * 64)):
        with pytest.raises(InvalidError) as caught:
            lockfile.require_usable(CPU, found)
        assert caught.value.hint == "Make the lock: envbuilder lock --backend conda --profile cpu"
    assert lockfile.require_usable(CPU, lock()) == lock()


def test_what_conda_wants_makes_a_lock_stale_and_what_wheels_want_does_not() -> None:
    more = replace(CPU, conda=replace(CPU.conda, packages=("gxx",)))
    assert lockfile.inputs_digest(more) != lockfile.inputs_digest(CPU)
    wheels = replace(CPU, requirements=("torch==1",))
    assert lockfile.inputs_digest(wheels) == lockfile.inputs_digest(CPU)


def test_locks_that_were_made_stay_valid() -> None:
    """The digest is stored in every lock."""
    plain = replace(CPU, conda=type(CPU.conda)(), python=replace(CPU.python, supported=("3.11",)))
    only = replace(plain, platforms=("linux/amd64",))
    assert lockfile.inputs_digest(only) == (
        "fe031162c8eacb2d452a700b47c878e7a83c54f693427f5c64276dd92c38b75b"
    )


@pytest.mark.parametrize("name", list(profiles.names((resources.profiles_dir(),))))
def test_shipped_profiles_declare_every_platform_and_cuda_only_where_it_is(name: str) -> None:
    profile = shipped_profile(name)
    if "conda" not in profile.backends:
        return
    for platform in profile.platforms:
        declared = profile.conda.virtual_packages[platform]
        assert ("__cuda" in declared) == (profile.accelerator == "cuda"), platform
        assert {"__glibc", "__linux"} <= set(declared) or "__osx" in declared


def test_dependencies_are_names_with_or_without_a_space_before_the_version() -> None:
    depends = ("python >=3.10,<3.12.0a0", "numpy>=1", "libgcc", "", "python_abi 3.11.* *_cp311")
    assert package("x", depends=depends).dependencies == {"python", "numpy", "libgcc", "python_abi"}
