"""Locked tools, wheels and locks for tests that make a lock by hand."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from envbuilder.core import types as words
from envbuilder.profiles.lock import File, Lock, Target

WHEELS: Mapping[words.Platform, str] = {
    "linux/amd64": "manylinux_2_17_x86_64",
    "linux/arm64": "manylinux_2_28_aarch64",
    "macos/arm64": "macosx_11_0_arm64",
}


def tools(version: str = "0.13.8") -> dict[words.Platform, File]:
    """Return uv for each platform that envbuilder runs on, as a lock lists it."""
    return {
        platform: File(
            kind="tool",
            name="uv",
            version=version,
            file=f"uv-{version}-py3-none-{tag}.whl",
            sha256=hashlib.sha256(f"{version} {tag}".encode()).hexdigest(),
            size=None,
            source="default",
            provenance="read",
            by="a test",
        )
        for platform, tag in WHEELS.items()
    }


def wheel(file: str, name: str = "torch", version: str = "2.14.1") -> File:
    """Return a wheel as a lock lists it."""
    return File(
        kind="wheel",
        name=name,
        version=version,
        file=file,
        sha256="0" * 64,
        size=1,
        source="default",
        provenance="read",
        by="a test",
    )


def lock_of(*files: File, platform: words.Platform = "linux/amd64") -> Lock:
    """Return a lock with one target."""
    return Lock(
        schema=2,
        profile="cpu",
        inputs="0" * 64,
        state="locked",
        reason="",
        tools=tools(),
        targets=(Target(platform=platform, python="3.12", base=None, files=files),),
    )
