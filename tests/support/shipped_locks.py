"""Shipped locks with small wheels in place of those of gigabytes: same names, versions and tags."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from envbuilder.core import resources, types as words
from envbuilder.packages.store import Store
from envbuilder.profiles import lock as lockfile, profile as profiles
from envbuilder.profiles.lock import File, Lock, Target
from tests.support import make_wheels
from tests.support.projects import lay_profile
from tests.support.shipped import shipped_lock

SHIPPED = resources.profiles_dir()


def target(profile: str, platform: words.Platform) -> Target:
    """A target of a shipped lock, for Python 3.11."""
    return lockfile.select(shipped_lock(profile), platform, "3.11")


def generate(folder: Path, shipped: Target, library: bytes) -> dict[str, Path]:
    """Write a wheel for each one of a target; file name → its path."""
    folder.mkdir()
    return {f.file: _wheel(folder, f, library) for f in shipped.of_kind("wheel")}


def _wheel(folder: Path, locked: File, library: bytes) -> Path:
    """A small wheel with a locked one's name, version and tags, and a library inside."""
    name, version, tag = locked.file.removesuffix(".whl").split("-", 2)
    files = {
        f"{name}/__init__.py": b"",
        f"{name}/lib/lib{name}.so": library + name.encode(),
        f"nvidia/cu13/{name}.txt": b"a folder that many wheels share",
    }
    return make_wheels.write(folder, name, files, version=version, tag=tag)


def lay(
    folder: Path, text: str, profile: str, shipped: Target, wheels: dict[str, Path], store: Store
) -> Lock:
    """Lay out a project with the profile `mine`, locked to generated wheels, which get stored."""
    lay_profile(folder, "mine", text)
    mine = profiles.load("mine", (folder / "profiles", SHIPPED))
    lock = shipped_lock(profile)
    files = tuple(_locked(f, wheels[f.file]) if f.kind == "wheel" else f for f in shipped.files)
    made = msgspec.structs.replace(
        lock,
        profile="mine",
        inputs=lockfile.inputs_digest(mine),
        targets=(msgspec.structs.replace(shipped, files=files),),
    )
    (folder / "profiles/locks/mine.json").write_text(lockfile.dump(made))
    for path in wheels.values():
        content = path.read_bytes()
        store.take(hashlib.sha256(content).hexdigest(), [content])
    return made


def _locked(file: File, wheel: Path) -> File:
    content = wheel.read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    return msgspec.structs.replace(file, sha256=sha256, size=len(content), size_about=None)
