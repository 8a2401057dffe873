"""Steps that change the world around the commands. Each is data: a name and plain arguments."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.seams.forms import FORMS, Listed
from tests.seams.scene import STRANGER, Scene
from tests.seams.sources import write_source
from tests.seams.world import SECRET, package

PLAIN = "profiles: [cpu]\npython: '3.11'\nframework_version: '2.12.1'\nrequirements: [six]\n"
"""A project that can be locked."""
STEPS: dict[str, Callable[..., None]] = {}
"""Name → what performs the step on a scene."""


def step(function: Callable[..., None]) -> Callable[..., None]:
    """Register a step by its name."""
    STEPS[function.__name__] = function
    return function


def with_key(text: str, key: str, raw: str | None) -> str:
    """Return YAML with a top-level key of this raw value, or without the key."""
    pattern = re.compile(rf"^{key}:.*\n(?:[ \t-].*\n)*", re.MULTILINE)
    line = "" if raw is None else f"{key}: {raw}\n"
    if pattern.search(text):
        return pattern.sub(lambda _: line, text, count=1)
    return text + ("" if text.endswith("\n") or not text else "\n") + line


def _definition(scene: Scene) -> str:
    path = scene.world.project / "envbuilder.yaml"
    return path.read_text() if path.exists() else ""


@step
def set_key(scene: Scene, key: str, raw: str | None) -> None:
    """Give a key of envbuilder.yaml a value, none, or take it away."""
    scene.world.write("envbuilder.yaml", with_key(_definition(scene), key, raw))
    scene.ours = None


@step
def write_definition(scene: Scene, text: str) -> None:
    """Write envbuilder.yaml anew."""
    scene.world.write("envbuilder.yaml", text)
    scene.ours = None


@step
def write_list(scene: Scene, form: str, lines: list[str], named: bool) -> None:
    """Write a file of requirements; `named`: and name it in envbuilder.yaml."""
    name, make = FORMS[form]
    text, listed = make([_line(scene, line) for line in lines])
    index = scene.world.index.page_url("default")
    secret = index.replace("://", f"://user:{SECRET}@")
    scene.world.write(name, text.replace("@INDEX_WITH_SECRET@", secret))
    asked = [_asked(scene, line) for line in listed.lines]
    scene.lists[name] = Listed(tuple(line for line in asked if line), listed.requires_python)
    if form == "setup, from a file":
        scene.world.write("base.txt", "".join(f"{line}\n" for line in lines))
    if form.startswith("source "):
        _source(scene, "sixes", "six", "9.1", "local")
    if named:
        names = [name, *(n for n in _named(scene) if n != name)]
        set_key(scene, "requirements_from", json.dumps(names))


def _named(scene: Scene) -> list[str]:
    found = (scene.yaml() or {}).get("requirements_from") or []
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def _line(scene: Scene, line: str) -> str:
    return line.replace("@GIT@", scene.repository.url)


def _asked(scene: Scene, line: str) -> str:
    """Return what a line asks for, by name and version; empty if that cannot be told."""
    if line.startswith("./"):
        text = scene.world.project / line / "pyproject.toml"
        found = (
            re.search(r'^name = "(.*)"', text.read_text(), re.MULTILINE) if text.is_file() else None
        )
        return found[1] if found else ""
    found = re.match(r"g @ \S+@(\w+)(\s*;.*)?$", line)
    if found:
        wanted = {"v1": "g==0.1", "v2": "g==0.2", "main": "g>=0.3"}[found[1]]
        return wanted + (found[2] or "")
    return line


def _source(scene: Scene, folder: str, name: str, version: str, value: str) -> None:
    write_source(scene.world.project / folder, name, version, value)
    scene.values[name] = value
    scene.world.history.append(f"# a package {name} {version} (VALUE = {value!r}) in {folder}/")


@step
def write_package(scene: Scene, folder: str, name: str, version: str, value: str) -> None:
    """Write a source tree of the project, or change it."""
    _source(scene, folder, name, version, value)


@step
def write_own_package(scene: Scene, value: str) -> None:
    """Make the project itself a package, with a module."""
    if "pyproject.toml" not in scene.lists:
        _source(scene, ".", "thing", "1.0", value)


@step
def ignored_secret(scene: Scene, folder: str) -> None:
    """Put a secret into a file that git ignores."""
    scene.world.write(f"{folder}/.gitignore", ".env\nbuild/\n")
    scene.world.write(f"{folder}/.env", f"HF_TOKEN={SECRET}\n")


@step
def repository_of_project(scene: Scene) -> None:
    """Make the project a git repository with all its files committed."""
    scene.world.run(("git", "init", "-q"))
    scene.world.run(("git", "add", "-A"))
    identity = ("-c", "user.email=a@example.org", "-c", "user.name=A")
    scene.world.run(("git", *identity, "commit", "-q", "-m", "all"))


@step
def commit(scene: Scene) -> None:
    """Move `main` of the git repository."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        scene.repository.commit()
    scene.world.history.append("# a commit on main of the git repository")


@step
def git_host(scene: Scene) -> None:
    """Take the git host away, or bring it back."""
    scene.repository.leave()
    scene.world.history.append(f"# mv {scene.repository.folder} away, or back")


@step
def index_away(scene: Scene, away: bool) -> None:
    """Let the index answer with 503, or as it should."""
    scene.world.index.is_away = away
    scene.world.history.append(f"# the index is {'away' if away else 'back'}")


@step
def release(scene: Scene, name: str, version: str) -> None:
    """Put a release on the index."""
    package(scene.world.index.wheels("default"), name, version)
    scene.world.history.append(f"# {name} {version} appears on the index")


@step
def change_wheel(scene: Scene, name: str, version: str) -> None:
    """Change the bytes of a release on the index."""
    _withdraw(scene, name, version)
    package(scene.world.index.wheels("default"), name, version, text="changed = True\n")
    scene.world.history.append(f"# the wheel of {name} {version} changes on the index")


@step
def withdraw(scene: Scene, name: str, version: str) -> None:
    """Take a release from the index."""
    _withdraw(scene, name, version)
    scene.world.history.append(f"# {name} {version} leaves the index")


def _withdraw(scene: Scene, name: str, version: str) -> None:
    stem = name.replace("-", "_")
    for path in scene.world.index.wheels("default").glob(f"{stem}-{version}-*"):
        path.unlink()


@step
def user_file(scene: Scene, name: str, text: str) -> None:
    """Write the user's own configuration of uv, pip or envbuilder."""
    index = scene.world.index.page_url("default")
    scene.world.write(name, text.replace("@INDEX@", index).replace("@SECRET@", SECRET))


@step
def other_file(scene: Scene, name: str, text: str) -> None:
    """Write a file of the project that is no business of ours."""
    scene.world.write(name, text)


@step
def remove_file(scene: Scene, name: str) -> None:
    """Remove a file of the project."""
    scene.world.remove(name)
    scene.lists.pop(name, None)


@step
def change_lock(scene: Scene, how: str) -> None:
    """Do to a lock what newer versions, git and editors do."""
    for path in sorted((scene.world.project / "envbuilder.lock").glob("*.json"))[:1]:
        text = path.read_text()
        changed = {
            "newer schema": text.replace('"schema": 2', '"schema": 99', 1),
            "older schema": text.replace('"schema": 2', '"schema": 1', 1),
            "conflict": f"<<<<<<< ours\n{text}=======\n{text}>>>>>>> theirs\n",
            "empty": "",
            "half": text[: len(text) // 2],
            "hash": re.sub(r'"sha256": "[0-9a-f]{8}', '"sha256": "00000000', text, count=1),
            "removed": None,
        }[how]
        scene.locks_touched = how != "removed"
        inside = path.relative_to(scene.world.project)
        if changed is None:
            scene.world.remove(str(inside))
        else:
            scene.world.write(str(inside), changed)


@step
def plant(scene: Scene, place: str, name: str) -> None:
    """Let another user put a program or module into a folder; it tells when it is run."""
    above = {
        "project": scene.world.project,
        ".envbuilder": scene.world.project / ".envbuilder",
        "hook": scene.world.project / ".envbuilder/hook",
        "data": scene.world.home / "data",
        "cache": scene.world.home / "cache",
        "tmp": scene.world.folder / "tmp",
    }[place]
    made = [path for path in (above, *above.parents) if not path.exists()]
    above.mkdir(parents=True, exist_ok=True)
    for path in made:
        os.chown(path, STRANGER, STRANGER)
    path = above / name
    if path.exists():
        return
    mark = scene.ran / f"{place}-{name}"
    path.write_text(
        f"open({str(mark)!r}, 'w')\n"
        if name.endswith(".py")
        else f"#!/bin/sh\ntouch {mark}\nexit 97\n"
    )
    path.chmod(0o755)
    os.chown(path, STRANGER, STRANGER)
    scene.world.history.append(f"# another user (65534) writes {path}, which touches {mark}")


@step
def damage(scene: Scene, what: str) -> None:
    """Delete a part of what was built."""
    pattern = {
        "python": "bin/python",
        "package": "lib/python*/site-packages/six",
        "framework": "lib/python*/site-packages/torch",
        "environment": ".",
        "manifest": "*.json",
    }[what]
    for environment in sorted((scene.world.home / "data/envs").glob("[!.]*")):
        for path in environment.glob(pattern) if pattern != "." else (environment,):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
            scene.world.history.append(f"rm -rf {path}")


@step
def move(scene: Scene) -> None:
    """Move the project to another folder."""
    old = scene.world.project
    new = old.with_name("moved" if old.name == "project" else "project")
    if new.exists():
        return
    old.rename(new)
    scene.world.project = new
    scene.made = {_moved(path, old, new): by for path, by in scene.made.items()}
    scene.world.history.append(f"mv {old} {new}; cd {new}")


def _moved(path: Path, old: Path, new: Path) -> Path:
    return new / path.relative_to(old) if path.is_relative_to(old) else path


@step
def recover(scene: Scene) -> None:
    """Return to the last project that was good, if the present one is refused."""
    if not scene.refused:
        return
    if scene.good is None:
        write_definition(scene, PLAIN)
    for name, content in (scene.good or {}).items():
        path = scene.world.project / name
        if not path.exists() or path.read_bytes() != content:
            scene.world.write(name, content)
    scene.lists.update(scene.good_lists)
    scene.values.update(scene.good_values)
    if "pyproject.toml" not in scene.good_lists:
        scene.lists.pop("pyproject.toml", None)
    scene.world.index.is_away = False
    scene.refused = False


def perform(scene: Scene, name: str, arguments: dict[str, Any]) -> None:
    """Perform a step."""
    STEPS[name](scene, **arguments)
