"""requirements.txt and pylock.toml name every wheel once, where it belongs."""

from __future__ import annotations

import re
import tomllib

import pytest
from hypothesis import given
from packaging.requirements import Requirement

from envbuilder.builds import render
from envbuilder.core import types
from envbuilder.profiles import profile as profiles
from envbuilder.profiles.lock import File, Lock, Target
from tests.support.random_locks import COMMON, LINUX, PYTHON, cases, rendered, used, wheel


def parsed(requirements: str) -> list[tuple[Requirement, list[str]]]:
    """Each pin with its hashes, as pip reads them."""
    found = []
    joined = requirements.replace("\\\n", " ")
    for line in joined.split("\n"):
        if not line.strip() or line.startswith(("#", "--extra-index-url ")):
            continue
        pin, *options = line.split(" --hash=")
        found.append((Requirement(pin), [o.strip() for o in options]))
    return found


def holds(requirement: Requirement, platform: types.Platform) -> bool:
    where = {
        "sys_platform": types.system(platform),
        "platform_machine": types.machine(platform),
    }
    return requirement.marker is None or requirement.marker.evaluate(where)


@given(cases(types.PLATFORMS))
@COMMON
def test_requirements_and_pylock_name_every_wheel_once_where_it_belongs(
    case: tuple[profiles.Profile, Lock],
) -> None:
    _, lock = case
    lines = parsed(rendered(case, "requirements")["requirements.txt"])
    for target in used(lock):
        wheels = target.of_kind("wheel")
        mine = [(r, h) for r, h in lines if holds(r, target.platform)]
        assert sorted(r.name.lower() for r, _ in mine) == sorted(f.name.lower() for f in wheels)
        for file in wheels:
            (found,) = [h for r, h in mine if r.name.lower() == file.name.lower()]
            assert found.count(f"sha256:{file.sha256}") == 1
            (pin,) = [r for r, _ in mine if r.name.lower() == file.name.lower()]
            assert str(next(iter(pin.specifier))) == f"=={file.version}"
            assert len(pin.specifier) == 1
    everything = {f"sha256:{f.sha256}" for t in used(lock) for f in t.of_kind("wheel")}
    assert {h for _, hashes_of in lines for h in hashes_of} == everything
    assert all(h for _, h in lines)
    check_pylock(case)


def two(amd: tuple[File, ...], arm: tuple[File, ...]) -> tuple[render.Requirement, ...]:
    return render.requirements(
        tuple(
            Target(platform=p, python=PYTHON, base=None, files=f)
            for p, f in zip(LINUX, (amd, arm), strict=True)
        )
    )


AMD = "(sys_platform == 'linux' and platform_machine == 'x86_64')"

ARM = "(sys_platform == 'linux' and platform_machine == 'aarch64')"


@pytest.mark.parametrize(
    ("amd", "arm", "expected"),
    [
        ((wheel("1", "a"),), (wheel("1", "a"),), [("1", "", "a")]),
        ((wheel("1", "a"),), (wheel("1", "b"),), [("1", "", "ab")]),
        ((wheel("1", "a"),), (wheel("2", "b"),), [("1", AMD, "a"), ("2", ARM, "b")]),
        ((wheel("1", "a"),), (), [("1", AMD, "a")]),
        ((), (wheel("1", "b"),), [("1", ARM, "b")]),
        ((wheel("1", "a"), wheel("1", "b")), (), [("1", AMD, "ab")]),
        ((), (), []),
    ],
)
def test_markers_stand_where_platforms_differ(
    amd: tuple[File, ...], arm: tuple[File, ...], expected: list[tuple[str, str, str]]
) -> None:
    found = [
        (line.version, line.marker, "".join(h[0] for h in line.hashes)) for line in two(amd, arm)
    ]
    assert found == expected


def check_pylock(case: tuple[profiles.Profile, Lock]) -> None:
    profile, lock = case
    (name, text_of), *_ = rendered(case, "pylock").items()
    # PEP 751: one name without a dot between `pylock.` and `.toml`.
    assert re.fullmatch(r"pylock\.[^.]+\.toml", name)
    assert profile.name in name
    data = tomllib.loads(text_of)
    assert data["lock-version"] == "1.0"
    assert data["requires-python"] == f">={PYTHON}"
    listed = [
        (p["name"], p["version"], w["name"], w["hashes"]["sha256"], w.get("size"))
        for p in data.get("packages", [])
        for w in p["wheels"]
    ]
    expected = {
        (f.name.lower(), f.version, f.basename, f.sha256, f.size)
        for t in used(lock)
        for f in t.of_kind("wheel")
    }
    assert len(listed) == len(expected)
    assert set(listed) == expected
    for package in data.get("packages", []):
        for w in package["wheels"]:
            assert w["path"] == f"wheels/{w['name']}"
        marked = Requirement(
            package["name"] + (f" ; {package['marker']}" if "marker" in package else "")
        )
        for target in used(lock):
            has = any(
                (f.name.lower(), f.version) == (package["name"], package["version"])
                for f in target.of_kind("wheel")
            )
            assert holds(marked, target.platform) == has
