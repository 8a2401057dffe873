"""A framework that has several names is locked under that of the profile alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from envbuilder.core import resources
from envbuilder.locks import target_wheels
from envbuilder.packages.python.uv import Found, UnresolvableError, Uv
from envbuilder.profiles import profile as profiles
from envbuilder.profiles.lock import File

if TYPE_CHECKING:
    from collections.abc import Sequence

    from envbuilder.core import types

TENSORFLOW_CPU = profiles.load("tensorflow-cpu", (resources.profiles_dir(),))


def wheel(name: str, version: str) -> Found:
    file = File(
        kind="wheel", name=name, version=version, file=f"{name}-{version}-py3-none-any.whl",
        sha256="0" * 64, size=1, source="default", provenance="read", by="a test",
    )  # fmt: skip
    return Found(file=file, url="")


class Resolver:
    """An index on which tf-keras requires tensorflow, of which 2.22.0 is the newest."""

    def __init__(self, *, fits: bool = True) -> None:
        self.fits = fits
        self.constraints: list[tuple[str, ...]] = []

    def compile(
        self,
        requirements: Sequence[str],
        platform: types.Platform,
        python: str,
        preferred: Any,
        constraints: Sequence[str],
    ) -> tuple[Found, ...]:
        self.constraints.append(tuple(constraints))
        limited = "tensorflow==2.21.0" in constraints
        if limited and not self.fits:
            raise UnresolvableError("tf-keras requires tensorflow>=2.22")
        if platform != "linux/amd64":
            return (wheel("tensorflow", "2.21.0"), wheel("tf-keras", "2.21.0"))
        version = "2.21.0" if limited else "2.22.0"
        return (
            wheel("tensorflow-cpu", "2.21.0"),
            wheel("tensorflow", version),
            wheel("tf-keras", version),
        )


def names(resolver: Resolver, platform: types.Platform) -> list[str]:
    wheels = target_wheels.of_target(TENSORFLOW_CPU, platform, "3.12", {}, cast("Uv", resolver))
    return [f"{w.file.name} {w.file.version}" for w in wheels]


def test_the_other_name_sets_limits_and_is_left_out() -> None:
    resolver = Resolver()
    assert names(resolver, "linux/amd64") == ["tensorflow-cpu 2.21.0", "tf-keras 2.21.0"]
    assert resolver.constraints == [(), ("tensorflow==2.21.0",)]


def test_where_the_profile_has_that_name_nothing_is_left_out() -> None:
    resolver = Resolver()
    assert names(resolver, "macos/arm64") == ["tensorflow 2.21.0", "tf-keras 2.21.0"]
    assert resolver.constraints == [()]


def test_a_package_that_needs_another_version_cannot_be_locked() -> None:
    with pytest.raises(UnresolvableError, match=r"tf-keras requires tensorflow>=2.22"):
        names(Resolver(fits=False), "linux/amd64")
