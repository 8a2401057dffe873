"""The command that serves JupyterLab."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from envbuilder.builds import pipeline
from envbuilder.builds.backends import venv
from envbuilder.builds.request import Request
from envbuilder.core import types
from envbuilder.core.console import PlainProgress
from envbuilder.core.errors import InvalidError
from envbuilder.core.project_file import Definition
from envbuilder.core.settings import Configuration, Settings, Signatures
from envbuilder.locks import resolve
from envbuilder.notebooks import kernels, server
from envbuilder.profiles import lock as profile_lock, profile as profiles
from tests.support.projects import LOCK
from tools import refresh_requirements

CHOICE = kernels.Choice(project=Path("/project"), environment="default", request=Request())


def test_jupyterlab_runs_isolated_with_folders_of_envbuilders(found: Settings) -> None:
    served = server.Server(
        folder="/project",
        browser=False,
        kernel=kernels.spec(CHOICE, "7.4.0", {}),
        shell=CHOICE.command("shell"),
    )
    argv, variables = server.command(Path("/lab"), served, ["--ip", "::1"], found)
    assert argv[:2] == ("/lab/bin/python", "-I")
    assert Path(argv[2]).is_file()
    assert argv[4:] == ("--ip", "::1")
    given = json.loads(argv[3])
    assert given["kernel"]["argv"][-1] == "{connection_file}"
    assert given["shell"][-3:] == ["shell", "--environment", "default"]
    assert {Path(value).parent for value in variables.values() if value} == {
        found.config_dir,
        found.data_dir,
    }


def test_extensions_that_others_can_write_are_refused(found: Settings) -> None:
    """The configuration folder was judged as a whole when the settings were read."""
    served = server.Server(
        folder="/", browser=False, kernel=kernels.spec(CHOICE, "7", {}), shell=()
    )
    extensions = found.data_dir / "jupyter/nbextensions"
    extensions.mkdir(parents=True)
    server.command(Path("/lab"), served, [], found)
    extensions.chmod(0o777)
    with pytest.raises(InvalidError, match="nbextensions can be written by every user"):
        server.command(Path("/lab"), served, [], found)


@pytest.mark.parametrize(
    ("environ", "system", "expected"),
    [
        ({}, "linux", False),
        ({"DISPLAY": ""}, "linux", False),
        ({"DISPLAY": ":0"}, "linux", True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, "linux", True),
        ({}, "darwin", True),
    ],
)
def test_a_browser_opens_where_there_is_a_display(
    environ: dict[str, str], system: str, expected: bool
) -> None:
    assert server.has_display(environ, system) is expected


def test_it_is_whole_for_every_platform_and_python_of_envbuilders(repository: Path) -> None:
    library = server.library()
    profile = library.profile(server.NAME)
    lock = library.usable_lock(profile)
    assert resolve.check(profile, lock) == ()
    assert (lock.state, lock.missing) == ("locked", {})
    project = tomllib.loads((repository / "pyproject.toml").read_text())
    pythons = refresh_requirements.pythons(project)
    pairs = {(target.platform, target.python) for target in lock.targets}
    assert pairs == {(p, v) for p in types.PLATFORMS for v in pythons}
    for target in lock.targets:
        assert {"jupyterlab", "ipykernel"} <= {file.name for file in target.files}


def test_kernels_are_there_for_every_python_of_environments() -> None:
    library = server.library()
    profile = library.profile(server.KERNEL)
    lock = library.usable_lock(profile)
    assert resolve.check(profile, lock) == ()
    assert (lock.state, lock.missing) == ("locked", {})
    pythons = [f"3.{minor}" for minor in range(8, 15)]
    assert [(t.platform, t.python) for t in lock.targets] == [
        (platform, python) for platform in types.PLATFORMS for python in pythons
    ]


WHEEL = LOCK.targets[0].of_kind("wheel")[0]


def wheels(*names: str) -> Any:
    return replace(LOCK.targets[0], files=tuple(replace(WHEEL, name=name) for name in names))


@pytest.mark.parametrize(
    ("own", "python", "platform", "expected"),
    [
        (("torch", "ipykernel"), "3.7", "linux/arm64", (None, WHEEL.version)),
        (("torch",), "3.11", "linux/amd64", ("/k/lib/python3.11/site-packages", "7.4.0")),
        (("torch",), "3.7", "linux/amd64", "no files for linux/amd64 with Python 3.7"),
        (("torch",), "3.11", "linux/arm64", "has no ipykernel for linux/arm64"),
    ],
)
def test_what_a_kernel_needs_is_beside_the_environment(
    monkeypatch: pytest.MonkeyPatch, own: Any, python: str, platform: str, expected: Any
) -> None:
    monkeypatch.setattr(server, "prefix", lambda build, name, version: Path("/k"))
    build: Any = SimpleNamespace(
        plan=SimpleNamespace(platform=platform, python=python),
        host=SimpleNamespace(platform="linux/amd64"),
        environment=SimpleNamespace(target=wheels(*own)),
    )
    if isinstance(expected, str):
        with pytest.raises(InvalidError, match=expected) as refused:
            server.beside(build)
        assert refused.value.hint.endswith("envbuilder add ipykernel")
        return
    folder, version = server.beside(build)
    assert (folder and str(folder), version) == expected


@pytest.mark.parametrize("name", [server.NAME, server.KERNEL])
def test_it_names_no_place(name: str) -> None:
    path = profile_lock.path_for(name, server.library().folders)
    text = path.read_text()
    assert "://" not in text
    assert '"/' not in text
    assert profile_lock.dump(profile_lock.load(path)) == text


def test_it_is_no_profile_to_choose() -> None:
    folders = server.library().folders
    assert server.NAME not in profiles.names(folders[1:])


def test_it_is_built_apart_from_the_project(
    found: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def prepare(build: Any) -> Any:
        seen.append(build.profile.name)
        return SimpleNamespace(plan=None, stay_in_use=lambda: seen.append("in use"))

    def finish(build: Any) -> Any:
        seen.append(build.settings)
        return SimpleNamespace(
            result=SimpleNamespace(artifact=SimpleNamespace(ref="/envs/jupyter"))
        )

    monkeypatch.setattr(venv, "prepare", prepare)
    monkeypatch.setattr(pipeline, "finish", finish)
    # Locks that the user signs are the user's: this one comes with envbuilder, as its code does.
    signed = replace(
        found, configuration=Configuration(signatures=Signatures(locks=("/team.pub",)))
    )
    settings = replace(
        signed, project=Path("/project"), definition=Definition(), environment="notebooks"
    )
    progress = PlainProgress(seen.append)
    project: Any = SimpleNamespace(settings=settings, host=None, progress=progress)
    assert server.prefix(project) == Path("/envs/jupyter")
    assert seen == [server.NAME, signed, "in use"]
