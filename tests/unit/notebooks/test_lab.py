"""The lock of JupyterLab's own environment, which envbuilder brings."""

from __future__ import annotations

import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from envbuilder.build import pipeline
from envbuilder.build.backends import venv
from envbuilder.core import types
from envbuilder.core.console import PlainProgress
from envbuilder.core.project_file import Definition
from envbuilder.core.settings import Configuration, Signatures
from envbuilder.locks import resolve
from envbuilder.notebooks import lab
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles import profile as profiles
from tools import refresh_requirements

if TYPE_CHECKING:
    import pytest

    from envbuilder.core.settings import Settings


def test_it_is_whole_for_every_platform_and_python_of_envbuilders(repository: Path) -> None:
    library = lab.library()
    profile = library.profile(lab.NAME)
    lock = library.usable_lock(profile)
    assert resolve.check(profile, lock) == ()
    assert (lock.state, lock.missing) == ("locked", {})
    project = tomllib.loads((repository / "pyproject.toml").read_text())
    pythons = refresh_requirements.pythons(project)
    pairs = {(target.platform, target.python) for target in lock.targets}
    assert pairs == {(p, v) for p in types.PLATFORMS for v in pythons}
    for target in lock.targets:
        assert {"jupyterlab", "ipykernel"} <= {file.name for file in target.files}


def test_it_names_no_place() -> None:
    path = profile_lock.path_for(lab.NAME, lab.library().folders)
    assert path is not None
    text = path.read_text()
    assert "://" not in text
    assert '"/' not in text
    assert profile_lock.dump(profile_lock.load(path)) == text


def test_it_is_no_profile_to_choose() -> None:
    folders = lab.library().folders
    assert lab.NAME not in profiles.names(folders[1:])


def test_it_is_built_apart_from_the_project(
    found: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def prepare(build: Any) -> Any:
        seen.append(build.profile.name)
        return SimpleNamespace(plan=None)

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
    host: Any = None
    prefix = lab.prefix(host, settings, PlainProgress(seen.append))
    assert prefix == Path("/envs/jupyter")
    name, used = seen
    assert (name, used) == (lab.NAME, signed)
