"""What is locked for envbuilder itself is what pyproject.toml asks for, by hash."""

from __future__ import annotations

import itertools
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.folders import names_in

SETS = {"run": None, "test": "test", "docs": "docs", "dev": "dev"}
"""Names of the files, and the extra that each is for."""
PLATFORMS = {
    "linux/amd64": {"sys_platform": "linux", "platform_machine": "x86_64"},
    "linux/arm64": {"sys_platform": "linux", "platform_machine": "aarch64"},
    "macos/arm64": {"sys_platform": "darwin", "platform_machine": "arm64"},
}
PLATFORM_SYSTEM = {"linux": "Linux", "darwin": "Darwin"}
PIN = re.compile(r"(?P<requirement>[^\\]+?)(?P<hashes>( --hash=sha256:[0-9a-f]{64})+)")
Project = dict[str, Any]


@pytest.fixture(scope="module")
def project(repository: Path) -> Project:
    return tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def files(repository: Path) -> dict[str, str]:
    folder = repository / "requirements"
    assert names_in(folder) == {f"{name}.txt" for name in SETS}
    return {name: (folder / f"{name}.txt").read_text(encoding="utf-8") for name in SETS}


def pythons(project: Project) -> list[str]:
    found = [c.rpartition(" ")[2] for c in project["project"]["classifiers"] if ":: 3." in c]
    assert len(found) >= 4
    return found


def lines(text: str) -> list[str]:
    """The logical lines, without comments."""
    kept = [line for line in text.splitlines() if not line.strip().startswith("#")]
    joined = "\n".join(kept).replace("\\\n", " ")
    return [" ".join(line.split()) for line in joined.splitlines() if line.strip()]


def pins(text: str, environment: dict[str, str]) -> dict[str, str]:
    """The versions that hold in an environment; each line must be a pin with its hashes."""
    found: dict[str, str] = {}
    for line in lines(text):
        match = PIN.fullmatch(line)
        assert match, f"not a pin with hashes: {line[:80]}"
        requirement = Requirement(match["requirement"])
        (specifier,) = requirement.specifier
        assert specifier.operator == "==", line[:80]
        if requirement.marker is None or requirement.marker.evaluate(environment):
            assert requirement.name not in found, f"{requirement.name} is pinned twice"
            found[requirement.name] = specifier.version
    return found


def environments(project: Project) -> list[dict[str, str]]:
    """The markers of every platform and Python that envbuilder supports."""
    return [
        {
            **platform,
            "platform_system": PLATFORM_SYSTEM[platform["sys_platform"]],
            "os_name": "posix",
            "python_version": python,
            "python_full_version": f"{python}.0",
            "platform_python_implementation": "CPython",
            "implementation_name": "cpython",
            "extra": "",
        }
        for platform, python in itertools.product(PLATFORMS.values(), pythons(project))
    ]


def needed(project: Project, extra: str | None) -> list[Requirement]:
    """What a set must hold: build backend, dependencies, those of its extra and the extra's own."""
    listed = [*project["build-system"]["requires"], *project["project"]["dependencies"]]
    waiting = [extra] if extra else []
    while waiting:
        for text in project["project"]["optional-dependencies"][waiting.pop()]:
            if canonicalize_name(Requirement(text).name) == project["project"]["name"]:
                waiting += Requirement(text).extras
            else:
                listed.append(text)
    return [Requirement(text) for text in listed]


def unmet(project: Project, name: str, text: str) -> set[str]:
    """The requirements of a set that its file does not meet on some platform or Python."""
    found = set()
    for environment in environments(project):
        locked = pins(text, environment)
        for requirement in needed(project, SETS[name]):
            if requirement.marker is None or requirement.marker.evaluate(environment):
                version = locked.get(canonicalize_name(requirement.name))
                if version is None or not requirement.specifier.contains(version):
                    found.add(str(requirement))
    return found


@pytest.mark.parametrize("name", SETS)
def test_every_requirement_is_locked_in_its_range(
    project: Project, files: dict[str, str], name: str
) -> None:
    assert unmet(project, name, files[name]) == set(), "run: make requirements"


def test_what_an_editable_install_asks_for_is_locked(
    project: Project, files: dict[str, str]
) -> None:
    for environment in environments(project):
        assert {"hatchling", "editables"} <= set(pins(files["run"], environment))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("jinja2>=3.1.5,<4", "jinja2>=4"),
        ("jinja2>=3.1.5,<4", "jinja3>=3"),
        ("hatchling>=1.27", "hatchling>=1000"),
    ],
)
def test_a_change_of_pyproject_is_seen(
    repository: Path, files: dict[str, str], old: str, new: str
) -> None:
    text = (repository / "pyproject.toml").read_text(encoding="utf-8")
    changed = tomllib.loads(text.replace(f'"{old}"', f'"{new}"'))
    assert unmet(changed, "run", files["run"]) == {new}


def test_the_sets_are_one_resolution(project: Project, files: dict[str, str]) -> None:
    for environment in environments(project):
        run, test, docs, dev = (pins(files[name], environment).items() for name in SETS)
        assert run < test < dev
        assert run < docs < dev


def test_nothing_for_tests_is_in_what_users_install(
    project: Project, files: dict[str, str]
) -> None:
    for environment in environments(project):
        locked = set(pins(files["run"], environment))
        assert not locked & {"pytest", "hypothesis", "mypy", "ruff", "py-rattler", "pip"}


@pytest.mark.parametrize("name", SETS)
def test_no_host_url_or_path_is_named(files: dict[str, str], name: str) -> None:
    """Any mirror must do, and nothing of the machine that resolved may show."""
    assert "://" not in files[name]
    comments = {line.strip() for line in files[name].splitlines() if line.strip()[:1] == "#"}
    assert not [c for c in comments if re.search(r"/|\w\.(com|org|net|io|local)\b", c)]
    # Nothing but pins with hashes, so no options: `pins` checks each line.
    assert pins(files[name], {})


@pytest.mark.parametrize("name", SETS)
def test_nothing_is_locked_for_pythons_that_are_not_supported(
    project: Project, files: dict[str, str], name: str
) -> None:
    assert project["project"]["requires-python"].removeprefix(">=") in pythons(project)
    versions = set(re.findall(r"python_\w*version [<>=!]+ '([\d.]+)'", files[name]))
    assert versions <= set(pythons(project))
