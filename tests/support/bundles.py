"""Bundles of a small profile, and what is in them."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from envbuilder.bundle import contents, format as form
from envbuilder.core.console import PlainProgress
from envbuilder.core.settings import Settings
from envbuilder.packages.store import Store
from envbuilder.profiles import lock as lockfile, profile as profiles
from envbuilder.profiles.library import Library
from envbuilder.profiles.profile import Profile
from tests.support.tools import tools

QUIET = PlainProgress(lambda line: None)
WHEEL = b"a wheel" * 1000
PROFILE = """\
extends: _mine
description: Small
requirements: [tiny==1.0]
"""
PARENT = """\
description: What it extends
accelerator: cpu
platforms: [linux/amd64]
backends: [venv]
python: {default: "3.11", supported: ["3.11"]}
tools: {uv: 0.13.8}
requirements: []
expects: {device: cpu, version: 2.13.0}
"""


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def part(path: str, content: bytes, kind: Any) -> form.Part:
    member = form.Member(
        path=path, size=len(content), sha256=sha(content), kind=kind, what="a part"
    )
    return form.Part(member=member, content=content)


def made_of(parts: tuple[form.Part, ...], **changes: object) -> form.Manifest:
    plain = form.Manifest(
        schema=form.SCHEMA, made_by="a test", profiles=("tiny",), platforms=("linux/amd64",),
        pythons=("3.11",), lacks=(), members=form.order(p.member for p in parts),
    )  # fmt: skip
    return msgspec.structs.replace(plain, **changes)


def small_lock(name: str, profile: Profile, settings: Settings) -> lockfile.Lock:
    """The lock of a profile that requires `tiny`, whose files are put into the store."""
    file = lockfile.File(
        kind="wheel", name="tiny", version="1.0", file="tiny-1.0-py3-none-any.whl",
        sha256=sha(WHEEL), size=len(WHEEL), source="default", provenance="read", by="a test",
    )  # fmt: skip
    target = lockfile.Target(platform="linux/amd64", python="3.11", base=None, files=(file,))
    uv = {
        p: msgspec.structs.replace(f, sha256=sha(p.encode()), size=len(p))
        for p, f in tools().items()
    }
    store = Store.of(settings)
    store.take(sha(WHEEL), [WHEEL])
    store.take(uv["linux/amd64"].sha256, [b"linux/amd64"])
    return lockfile.Lock(
        schema=lockfile.SCHEMA, profile=name, inputs=lockfile.inputs_digest(profile),
        state="locked", reason="", tools=uv, targets=(target,),
    )  # fmt: skip


def parts_of(settings: Settings) -> tuple[form.Part, ...]:
    """The profile `tiny` of the user, its lock, and the wheel that the lock names."""
    folder = settings.config_dir / "profiles"
    (folder / "locks").mkdir(parents=True)
    (folder / "tiny.yaml").write_text(PROFILE)
    (folder / "_mine.yaml").write_text(PARENT)
    lock = small_lock("tiny", profiles.load("tiny", [folder]), settings)
    (folder / "locks/tiny.json").write_text(lockfile.dump(lock))
    selection = contents.select(["tiny"], ["linux/amd64"], [], Library([folder]))
    locked = contents.locked_files(selection, settings, QUIET)
    return (
        *contents.texts(selection, Library([folder])),
        *contents.of_files(locked, settings, []),
        part("wheels/envbuilder_ml-1-py3-none-any.whl", b"itself", "wheel"),
    )


def small(settings: Settings, path: Path) -> None:
    """Write a bundle of these, which become the user's."""
    parts = parts_of(settings)
    form.write(path, made_of(parts), parts, QUIET)


def unpack(path: Path, settings: Settings, *, force: bool = False) -> contents.Unpacked:
    return contents.unpack(path, settings, QUIET, force=force)


def read(path: Path) -> dict[str, bytes]:
    with form.opened(path) as reader:
        return {m.path: b"".join(c) for m, c in reader.members()}


def texts_of(*parts: form.Part) -> dict[str, bytes]:
    """The contents of the parts that are texts, by path."""
    return {
        p.member.path: p.content
        for p in parts
        if p.member.kind in form.TEXTS and isinstance(p.content, bytes)
    }


class Counting(PlainProgress):
    """Notes its tasks and how far they came."""

    def __init__(self) -> None:
        super().__init__(lambda line: None)
        self.tasks: list[tuple[str, int | None, str]] = []
        self.advanced: list[int] = []

    @contextlib.contextmanager
    def task(self, name: str, total: int | None = None, unit: str = "") -> Iterator[Any]:
        self.tasks.append((name, total, unit))
        yield self

    def advance(self, amount: int) -> None:
        self.advanced.append(amount)
