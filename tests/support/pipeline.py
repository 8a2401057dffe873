"""Prepare and build a request as the commands do, with profiles of the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from envbuilder.builds import pipeline
from envbuilder.builds.request import Locked, Request
from envbuilder.core import resources
from envbuilder.core.console import PlainProgress
from envbuilder.core.errors import EnvbuilderError
from envbuilder.core.settings import Settings
from envbuilder.host import interpreters, model as host
from envbuilder.profiles import lock as lockfile, profile as profiles
from envbuilder.project import variants
from tests.support.shipped import shipped_lock, shipped_profile

SHIPPED = (resources.profiles_dir(),)
FITS = "extends: cpu\n"
PLAIN = host.Host(
    os="linux",
    machine="x86_64",
    platform="linux/amd64",
    libc="glibc 2.39",
    cpu=host.Cpu(flags=("avx2",), threads=2),
)
RISCV = host.Host(os="linux", machine="riscv64")
PYTHON = interpreters.Interpreter(
    path=Path("/usr/bin/python3.11"),
    version="3.11.9",
)


class Said:
    """Progress that keeps what was said."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        plain = PlainProgress(self.lines.append)
        self.note = plain.note
        self.task = plain.task

    def __contains__(self, text: str) -> bool:
        return any(text in line for line in self.lines)


def a_build(settings: Settings, profile: Any = None, lock: Any = None, **fields: Any) -> Locked:
    """A build of a profile (a shipped one by its name) as the stages before the plan leave it."""
    if isinstance(profile, str):
        lock = shipped_lock(profile)
        profile = shipped_profile(profile)
    return Locked(
        request=fields.pop("request", Request()),
        settings=settings,
        progress=fields.pop("progress", Said()),
        library=variants.library(settings),
        host=fields.pop("host", PLAIN),
        running=fields.pop("running", False),
        profile=profile,
        backend=fields.pop("backend", ""),
        lock=lock,
        **fields,
    )


UNLOCKED = {"state": "unlocked", "obstacle": lockfile.Reason(text="nobody did"), "targets": ()}


def add(found: Settings, text: str, lock: str | None = "fresh", name: str = "mine") -> None:
    """A profile of the user's, with a lock made from that of `cpu`: fresh, stale, unlocked."""
    folder = found.config_dir / "profiles"
    (folder / "locks").mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.yaml").write_text(f"description: Mine\n{text}")
    if lock is None:
        return
    profile = profiles.load(name, (folder, *SHIPPED))
    made = msgspec.structs.replace(
        shipped_lock("cpu"),
        profile=name,
        inputs="0" * 64 if lock == "stale" else lockfile.inputs_digest(profile),
        **(UNLOCKED if lock == "none" else {}),
    )
    if lock == "3.12 only":
        targets = tuple(t for t in made.targets if t.python == "3.12")
        made = msgspec.structs.replace(made, targets=targets)
    (folder / f"locks/{name}.json").write_text(lockfile.dump(made))


def go(found: Settings, running: bool = True, said: Said | None = None, **asked: Any) -> Any:
    """Prepare and build, as the commands do."""
    build = pipeline.prepare(Request(**asked), found, said or Said(), running=running)
    return pipeline.finish(build).result


def fails(found: Settings, kind: type[EnvbuilderError], running: bool = True, **asked: Any) -> str:
    with pytest.raises(EnvbuilderError) as caught:
        go(found, running, **asked)
    assert type(caught.value) is kind, caught.value.message
    return f"{caught.value.message} {caught.value.hint}"
