"""What was asked for: one value that commands make and everything below them reads."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct


class Request(Struct, frozen=True, kw_only=True):
    """What was asked for; None where the profile or the host decides."""

    profile: str | None = None
    backend: str | None = None
    python: str | None = None
    base_image: str | None = None
    tag: str | None = None
    only_tag: str | None = None
    """The image gets this name and no other: for builds that are compared and removed."""
    builder: str | None = None
    """How the docker backend makes its image."""
    output: str | None = None
    """Where the image is written to instead of the engine: `oci:DIR` or `FILE.tar`."""
    push: str | None = None
    """Where the image is pushed to instead of the engine: a registry's reference with a tag."""
    rebuild: bool = False
    force: bool = False
    dry_run: bool = False
    to_run: bool = False
    """The result will be run on the host that was looked at, which must have what that takes."""
    target_host: Path | None = None
