"""A target that states what its wheels require lacks none of it, and holds nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from envbuilder.core import resources
from envbuilder.locks import dependencies
from envbuilder.packages.python.uv import Found, Uv
from envbuilder.profiles import profile as profiles
from envbuilder.profiles.lock import File, Target

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FOLDERS = (resources.profiles_dir(),)
CPU = msgspec.structs.replace(
    profiles.load("cpu", FOLDERS),
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
        ((TORCH, *REST, wheel("evil")), ["nothing requires evil"]),
        # Two that require each other alone.
        (
            (TORCH, *REST, wheel("evil", "worse"), wheel("worse", "evil")),
            ["nothing requires evil", "nothing requires worse"],
        ),
        ((TORCH, REST[0], *REST[2:]), ["markupsafe is missing, which jinja2 requires"]),
        (
            (TORCH, *REST[1:]),
            ["jinja2 is missing, which torch requires", "nothing requires markupsafe"],
        ),
    ],
)
def test_what_is_missing_and_what_nothing_requires(
    files: Sequence[File], problems: list[str]
) -> None:
    assert [*dependencies.problems(CPU, target(*files))] == problems


def test_an_earlier_lock_states_nothing_and_is_not_judged() -> None:
    earlier = target(wheel("torch"), wheel("evil"))
    assert not dependencies.are_stated(earlier)
    assert [*dependencies.problems(CPU, earlier)] == []


class Resolver:
    """uv, to which tf-keras requires tensorflow, which is locked as tensorflow-cpu."""

    pins: dict[str, str]

    def edges(self, _: Any, __: Any, ___: Any, pins: dict[str, str], ____: Any) -> Iterable[Any]:
        self.pins = pins
        return [
            ("tf-keras", "tensorflow"), ("tensorflow", "numpy"), ("tensorflow-cpu", "numpy"),
            ("tensorflow", "protobuf"), ("tensorflow", "tensorflow-cpu"),
        ]  # fmt: skip


def test_what_requires_another_name_of_the_framework_requires_the_locked_one() -> None:
    uv = Resolver()
    names = ("tensorflow-cpu", "tf-keras", "numpy", "protobuf")
    wheels = [Found(file=wheel(name), url="") for name in names]
    tensorflow = profiles.load("tensorflow-cpu", FOLDERS)
    stated = dependencies.stated(wheels, tensorflow, "linux/amd64", "3.11", cast("Uv", uv))
    assert {w.file.name: w.file.requires for w in stated} == {
        "tensorflow-cpu": ("numpy", "protobuf"),
        "tf-keras": ("tensorflow-cpu",),
        "numpy": (),
        "protobuf": (),
    }
    assert uv.pins["tensorflow"] == uv.pins["tensorflow-cpu"] == "1"
