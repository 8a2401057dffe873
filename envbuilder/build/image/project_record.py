"""Record the project's own files that a built image contains, next to the image's record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import Struct

from envbuilder.build.image import records
from envbuilder.build.plan import project_of
from envbuilder.core import decoding
from envbuilder.core.errors import BuildError
from envbuilder.core.files import save
from envbuilder.project.image_files import ImageFile

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.build.image.records import ImageRecord
    from envbuilder.build.plan import Artifact, Plan
    from envbuilder.core.settings import Settings

SUFFIX = ".files.json"
"""Suffix of its file, appended to the digest of the image."""


class ProjectRecord(Struct, frozen=True, kw_only=True):
    """The files in an image, and where they came from."""

    schema: Literal[1] = 1
    folder: str
    environment: str
    files: tuple[ImageFile, ...]


def keep(plan: Plan, artifact: Artifact, settings: Settings) -> None:
    """Record the project's files in an image, if there are any; `BuildError` on a full disk."""
    project = project_of(plan)
    if project is None or artifact.kind not in {"image", "registry"} or artifact.digest is None:
        return
    record = ProjectRecord(
        folder=project.folder, environment=settings.environment, files=project.files
    )
    name = artifact.digest.removeprefix("sha256:") + SUFFIX
    save(
        settings.records_dir / plan.fingerprint / name,
        msgspec.json.encode(record),
        BuildError,
        "The image itself is finished. Make room, then run the same command again.",
    )


def newest(plan: Plan, settings: Settings) -> tuple[ImageRecord, ProjectRecord] | None:
    """Return the last image that `build` made of the plan's project, profile and builder."""
    project = project_of(plan)
    if project is None:
        return None
    paths = sorted(settings.records_dir.glob(f"*/*{SUFFIX}"), key=_time, reverse=True)
    for path in paths:
        try:
            record = decoding.from_json(path.read_bytes(), ProjectRecord)
        except (OSError, msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            continue
        if (record.folder, record.environment) != (project.folder, settings.environment):
            continue
        digest = f"sha256:{path.name.removesuffix(SUFFIX)}"
        for image in records.read(path.parent):
            if (image.digest, image.profile, image.builder) == (digest, plan.profile, plan.builder):
                return image, record
    return None


def _time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
