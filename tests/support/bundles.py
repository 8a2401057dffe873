"""Bundles of a small profile, and what is in them."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec

from envbuilder.bundle import format as form
from envbuilder.bundle import unpack as unpacking
from envbuilder.bundle.format import Manifest, Member, Part
from envbuilder.core.console import PlainProgress

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.core.settings import Settings

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


def part(path: str, content: bytes, kind: Any) -> Part:
    member = Member(path=path, size=len(content), sha256=sha(content), kind=kind, what="a part")
    return Part(member=member, content=content)


def made_of(parts: tuple[Part, ...], **changes: object) -> Manifest:
    plain = Manifest(
        schema=form.SCHEMA, made_by="a test", profiles=("tiny",), platforms=("linux/amd64",),
        pythons=("3.11",), lacks=(), members=form.order(p.member for p in parts),
    )  # fmt: skip
    return msgspec.structs.replace(plain, **changes)


def unpack(path: Path, settings: Settings, *, force: bool = False) -> unpacking.Unpacked:
    return unpacking.unpack(path, settings, QUIET, force=force)


def read(path: Path) -> dict[str, bytes]:
    with form.opened(path) as reader:
        return {m.path: b"".join(c) for m, c in reader.members()}
