"""Projects that tests lay out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from envbuilder.core.settings import Settings, load as load_settings
from envbuilder.profiles import lock as profile_lock
from tests.support.shipped import shipped_lock, shipped_profile

LOCK = shipped_lock("cpu")


def project_settings(folder: Path, text: str) -> Settings:
    """The settings of a project with this envbuilder.yaml, and of a user who has nothing else."""
    (folder / "envbuilder.yaml").write_text(text)
    names = ("CONFIG", "CACHE", "DATA")
    environ = {f"ENVBUILDER_{name}_DIR": f"{folder}/own-{name.lower()}" for name in names}
    return load_settings(environ, folder)


def lay_profile(folder: Path, name: str, text: str) -> None:
    """A project with one profile, and a place for its locks."""
    (folder / "envbuilder.yaml").write_text("")
    (folder / "profiles/locks").mkdir(parents=True, exist_ok=True)
    (folder / f"profiles/{name}.yaml").write_text(text)


def lay_locked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project for `cpu` alone, as its profile is, with a lock; it becomes the working folder."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ENVBUILDER_CONFIG_DIR", str(folder / "config"))
    (folder / "envbuilder.yaml").write_text("profiles: [cpu]\npython: '3.11'\n")
    write_lock(folder)


def write_lock(folder: Path, **torch: Any) -> None:
    """Write the lock of that project, with another file of torch."""
    from envbuilder.project import variants

    project = variants.of_project(load_settings())
    variant = project.of(shipped_profile("cpu"))
    targets = []
    for target in (t for t in LOCK.targets if t.python == "3.11"):
        others = {f.name for f in target.of_kind("wheel")} - {"torch"}
        own = {"requires": tuple(sorted(others)), **torch}
        files = (replace(f, **own) if f.name == "torch" else f for f in target.files)
        targets.append(replace(target, files=tuple(files)))
    inputs = profile_lock.inputs_digest(variant)
    lock = replace(LOCK, inputs=inputs, targets=tuple(targets))
    (folder / "envbuilder.lock").mkdir(exist_ok=True)
    (folder / "envbuilder.lock/default.cpu.json").write_text(profile_lock.dump(lock))
