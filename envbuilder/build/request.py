"""The build request: one value that commands make and everything below them reads."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct


class Request(Struct, frozen=True, kw_only=True):
    """The options of a build; None: the profile or the host decides."""

    profile: str | None = None
    backend: str | None = None
    python: str | None = None
    base_image: str | None = None
    tag: str | None = None
    only_tag: str | None = None
    """The image's only name, for builds that are compared and then removed."""
    builder: str | None = None
    """How the docker backend makes its image."""
    output: str | None = None
    """Where to write the image instead of loading it into the engine: `oci:DIR` or `FILE.tar`."""
    push: str | None = None
    """Registry reference with a tag to push the image to instead of loading it into the engine."""
    rebuild: bool = False
    force: bool = False
    dry_run: bool = False
    with_project: bool = False
    """The image contains the project's own files, if the project states any."""
    to_run: bool = False
    """The result will run on the host that the plan is for, which must meet its requirements."""
    target_host: Path | None = None
