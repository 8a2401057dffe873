"""Why a package is not at its newest version: what the resolver answers, in a line for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

from envbuilder.core import resources
from envbuilder.core.errors import BuildError
from envbuilder.locks import newer
from envbuilder.packages.python.uv import Found, UnresolvableError
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles.lock import File
from envbuilder.profiles.profile import load as load_profile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuilder.profiles.lock import Lock
    from envbuilder.profiles.profile import Profile

CPU = load_profile("cpu", (resources.profiles_dir(),))
LOCK = profile_lock.load(resources.profiles_dir() / "locks" / "cpu.json")
TORCH = "2.13.0+cpu"


def wheel(name: str, version: str, source: str = "default") -> File:
    return File(
        kind="wheel", name=name, version=version, file=f"{name}-{version}-py3-none-any.whl",
        size=5, sha256="a" * 64, source=source, provenance="read", by="a test",
    )  # fmt: skip


class Index(Struct):
    """A resolver that knows the newest version of some packages, and why others do not fit."""

    proof: str | None = None
    versions: dict[str, str] = {}
    options: tuple[str, ...] = ()
    pins: list[Mapping[str, str]] = []
    """What it was asked about."""

    def newest(
        self, names: Sequence[str], platform: str, python: str, *, from_first_index: bool
    ) -> tuple[Found, ...]:
        source = "pytorch-cpu" if from_first_index else "default"
        return tuple(
            Found(file=wheel(n, self.versions.get(n, TORCH), source), url="") for n in names
        )

    def require_together(self, *arguments: Any) -> None:
        self.pins.append(arguments[3])
        if self.proof is not None:
            raise UnresolvableError("", f"No solution found ╰─▶ Because {self.proof}.")


def resolver(proof: str | None = None, kind: type[Index] = Index, **versions: str) -> Any:
    return kind(proof, versions)


def profile(*requirements: str) -> Profile:
    return replace(CPU, requirements=(*CPU.requirements, *requirements))


def lock(**pins: str) -> Lock:
    """A lock that holds some versions, and torch."""
    files = (wheel("torch", TORCH, "pytorch-cpu"), *(wheel(n, v) for n, v in pins.items()))
    return replace(LOCK, targets=(replace(LOCK.targets[0], files=files),))


def unmoved(
    index: Any, *requirements: str, names: Sequence[str] = (), places: Any = (), **pins: str
) -> list[str]:
    """The lines of an upgrade whose lock holds `pins` and torch."""
    asked = profile(*requirements)
    return [*newer.unmoved(asked, lock(**pins), index, dict(places), names)]


def test_what_is_the_newest_needs_no_word() -> None:
    assert unmoved(resolver(rich="2.0"), "rich", rich="2.0") == []


def test_what_the_profile_pins() -> None:
    index = resolver(torch="2.15.0+cpu", rich="1")
    assert unmoved(index, "rich", rich="1") == [
        f"torch {TORCH}: pinned by the profile (2.15.0+cpu exists)"
    ]
    assert unmoved(resolver(rich="2"), "rich<2", rich="1") == [
        "rich 1: the profile requires rich<2 (2 exists)"
    ]


def test_what_a_file_of_the_project_limits() -> None:
    places = {"numpy<2": "requirements.txt:3"}
    assert unmoved(resolver(numpy="2.3.1"), "numpy<2", places=places, numpy="1.26.4") == [
        "numpy 1.26.4: requirements.txt:3 says numpy<2 (2.3.1 exists)"
    ]


def test_what_another_package_holds() -> None:
    index = resolver("lit==2 depends on fsspec<2024 and you require lit==2", fsspec="2026", lit="2")
    assert unmoved(index, "fsspec", "lit", fsspec="2023", lit="2") == [
        "fsspec 2023: held by lit, which requires fsspec<2024 (2026 exists)"
    ]
    assert index.pins == [{"fsspec": "2026"}]


def test_what_only_the_versions_of_the_lock_exclude() -> None:
    class Late(Index):
        def require_together(self, *arguments: Any) -> None:
            if len(arguments[3]) > 1:
                super().require_together(*arguments)

    index = resolver(
        "fsspec==2026 depends on lit>2 and you require lit==2", fsspec="2026", lit="2", kind=Late
    )
    assert unmoved(index, "fsspec", "lit", fsspec="2023", lit="2") == [
        "fsspec 2023: a newer one requires lit>2 (2026 exists)"
    ]
    assert index.pins == [{"torch": TORCH, "fsspec": "2026", "lit": "2"}]


@pytest.mark.parametrize("proof", ["it rains", None])
def test_what_nothing_is_named_for(proof: str | None) -> None:
    assert unmoved(resolver(proof, rich="2"), "rich", rich="1") == [
        "rich 1: the newest that fits the others (2 exists)"
    ]


def test_the_resolver_is_asked_a_few_times_only() -> None:
    names = [f"package-{number}" for number in range(9)]
    index = resolver("it rains", **dict.fromkeys(names, "2"))
    assert len(unmoved(index, *names, **dict.fromkeys(names, "1"))) == 9
    assert len(index.pins) == 8


def test_packages_that_are_named_get_a_line_and_no_others() -> None:
    index = resolver(rich="2", leaf="1", other="2")
    assert unmoved(
        index, "rich", "other", names=["Leaf", "none"], rich="1", leaf="1", other="1"
    ) == ["leaf 1: no newer version is known"]


def test_builds_of_other_hardware_do_not_count() -> None:
    class Everything(Index):
        def newest(self, *arguments: Any, from_first_index: bool) -> tuple[Found, ...]:
            return (Found(file=wheel("torch", "2.15.0"), url=""),)

    assert unmoved(resolver(kind=Everything)) == []


def test_an_index_that_fails_is_one_line() -> None:
    class Broken(Index):
        def newest(self, *_: Any, **__: Any) -> tuple[Found, ...]:
            raise BuildError("uv could not resolve")

    assert unmoved(resolver(kind=Broken), "rich", rich="1") == [
        "which newer versions exist is unknown: an index did not answer"
    ]


def unexpected(
    index: Any, *requirements: str, before: Lock | None = None, **pins: str
) -> list[str]:
    """The lines of a lock that holds `pins` and torch, and was not an upgrade."""
    return [*newer.unexpected(profile(*requirements), lock(**pins), index, before)]


def test_a_new_package_in_a_version_that_nobody_would_expect() -> None:
    index = resolver(
        "antlr4>=4.9 has no usable wheels. hydra==1.3 depends on antlr4==4.9.*", hydra="1.3"
    )
    line = "hydra 0.11: a newer one requires antlr4==4.9.*, which has no wheel (1.3 exists)"
    assert unexpected(index, "hydra", hydra="0.11") == [line]
    assert unexpected(index, "hydra", hydra="0.11", before=lock(rich="1")) == [line]
    assert unexpected(index, "hydra", hydra="0.11", before=lock(hydra="0.10")) == []


def test_the_network_is_not_used_for_it() -> None:
    class Offline(Index):
        def newest(self, *arguments: Any, **options: Any) -> tuple[Found, ...]:
            assert self.options == ("--offline",)
            raise BuildError("not in the cache")

    assert unexpected(resolver(kind=Offline), "rich", rich="1") == []


def test_a_limit_that_somebody_wrote_is_expected() -> None:
    index = resolver(torch="2.15.0+cpu", rich="2")
    assert unexpected(index, "rich<2", rich="1") == []


def test_a_pre_release_that_nobody_asked_for() -> None:
    index = resolver(hydra="1.4rc3")
    assert unexpected(index, "hydra>=1.3", hydra="1.4rc3") == [
        "hydra 1.4rc3: a pre-release, since no release that fits has a wheel"
    ]
    assert unexpected(index, "hydra>=1.4rc1", hydra="1.4rc3") == []
