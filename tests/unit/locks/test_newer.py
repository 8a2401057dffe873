"""Why a package is not at its newest version: what the resolver answers, in a line for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from envbuilder.core import resources
from envbuilder.core.errors import BuildError
from envbuilder.locks import newer
from envbuilder.packages.python.uv import Found, UnresolvableError
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles.locked_file import File
from envbuilder.profiles.profile import load as load_profile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envbuilder.profiles.profile import Profile

CPU = load_profile("cpu", (resources.profiles_dir(),))
LOCK = profile_lock.load(resources.profiles_dir() / "locks" / "cpu.json")
TORCH = "2.13.0+cpu"


def wheel(name: str, version: str, source: str = "default") -> File:
    return File(
        kind="wheel", name=name, version=version, file=f"{name}-{version}-py3-none-any.whl",
        size=5, sha256="a" * 64, source=source, provenance="read", by="a test",
    )  # fmt: skip


class Index:
    """A resolver that knows the newest version of some packages, and why others do not fit."""

    def __init__(self, proof: str | None = None, **versions: str) -> None:
        self.versions, self.proof = {"torch": TORCH, **versions}, proof
        self.pins: list[Mapping[str, str]] = []

    def newest(
        self, names: Sequence[str], platform: str, python: str, *, from_first_index: bool
    ) -> tuple[Found, ...]:
        source = "pytorch-cpu" if from_first_index else "default"
        return tuple(Found(file=wheel(n, self.versions[n], source), url="") for n in names)

    def require_together(self, *arguments: Any) -> None:
        self.pins.append(arguments[3])
        if self.proof is not None:
            raise UnresolvableError("", f"No solution found ╰─▶ Because {self.proof}.")


def unmoved(
    index: Any, *requirements: str, names: Sequence[str] = (), places: Any = (), **pins: str
) -> list[str]:
    """The lines for a lock that holds `pins` and torch."""
    profile: Profile = replace(CPU, requirements=(*CPU.requirements, *requirements))
    files = (wheel("torch", TORCH, "pytorch-cpu"), *(wheel(n, v) for n, v in pins.items()))
    lock = replace(LOCK, targets=(replace(LOCK.targets[0], files=files),))
    return [*newer.unmoved(profile, lock, index, dict(places), names)]


def test_what_is_the_newest_needs_no_word() -> None:
    assert unmoved(Index(rich="2.0"), "rich", rich="2.0") == []


def test_what_the_profile_pins() -> None:
    index = Index(torch="2.15.0+cpu", rich="1")
    assert unmoved(index, "rich", rich="1") == [
        f"torch {TORCH}: pinned by the profile (2.15.0+cpu exists)"
    ]
    assert unmoved(Index(rich="2"), "rich<2", rich="1") == [
        "rich 1: the profile requires rich<2 (2 exists)"
    ]


def test_what_a_file_of_the_project_limits() -> None:
    places = {"numpy<2": "requirements.txt:3"}
    assert unmoved(Index(numpy="2.3.1"), "numpy<2", places=places, numpy="1.26.4") == [
        "numpy 1.26.4: requirements.txt:3 says numpy<2 (2.3.1 exists)"
    ]


def test_what_another_package_holds() -> None:
    index = Index("lit==2 depends on fsspec<2024 and you require lit==2", fsspec="2026", lit="2")
    assert unmoved(index, "fsspec", "lit", fsspec="2023", lit="2") == [
        "fsspec 2023: held by lit, which requires fsspec<2024 (2026 exists)"
    ]
    assert index.pins == [{"torch": TORCH, "fsspec": "2026", "lit": "2"}]


@pytest.mark.parametrize("proof", ["it rains", None])
def test_what_nothing_is_named_for(proof: str | None) -> None:
    assert unmoved(Index(proof, rich="2"), "rich", rich="1") == [
        "rich 1: the newest that fits the others (2 exists)"
    ]


def test_the_resolver_is_asked_a_few_times_only() -> None:
    names = [f"package-{number}" for number in range(9)]
    index = Index("it rains", **dict.fromkeys(names, "2"))
    assert len(unmoved(index, *names, **dict.fromkeys(names, "1"))) == 9
    assert len(index.pins) == 4


def test_packages_that_are_named_get_a_line_and_no_others() -> None:
    index = Index(rich="2", leaf="1", other="2")
    assert unmoved(
        index, "rich", "other", names=["Leaf", "none"], rich="1", leaf="1", other="1"
    ) == ["leaf 1: no newer version is known"]


def test_builds_of_other_hardware_do_not_count() -> None:
    class Everything(Index):
        def newest(self, *arguments: Any, from_first_index: bool) -> tuple[Found, ...]:
            return (Found(file=wheel("torch", "2.15.0"), url=""),)

    assert unmoved(Everything()) == []


def test_an_index_that_fails_is_one_line() -> None:
    class Broken(Index):
        def newest(self, *_: Any, **__: Any) -> tuple[Found, ...]:
            raise BuildError("uv could not resolve")

    assert unmoved(Broken(), "rich", rich="1") == [
        "which newer versions exist is unknown: an index did not answer"
    ]
