"""The project's own code as the last layer of its image."""

from __future__ import annotations

import hashlib
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from envbuilder.builds import conventions
from envbuilder.core import console, types
from envbuilder.core.errors import BuildError, first
from envbuilder.core.settings import PROJECT_FILE, Settings
from envbuilder.project import environments, image_files, package

if TYPE_CHECKING:
    from collections.abc import Iterator

    from envbuilder.containers.oci.layer import Member

NEWEST = "project"
"""Tag of the newest image that includes the project's files. (`latest` contains only the
environment.)"""
CONTEXT = "project"
"""Folder that contains the project's files in the build context of a Dockerfile."""
_SHOWN = 5
"""Maximum number of the user's files that a note lists."""


class ProjectLayer(Struct, frozen=True, kw_only=True):
    """A project's own files for an image, and the settings for starting the image's containers."""

    folder: str
    """The project's folder on this machine."""
    laid: str = ""
    """Folder that contains the files that envbuilder adds to the project's files. Empty if it adds
    none."""
    digest: types.Sha256
    """Digest of the names, contents and modes of all the files."""
    files: tuple[image_files.ImageFile, ...]
    command: tuple[str, ...] = conventions.COMMAND
    ports: tuple[int, ...] = ()
    python_path: tuple[str, ...] = ()
    """Folders in the project from which Python imports modules."""
    programs: str = ""
    """Folder that contains the project's commands. Empty if there are none."""

    @property
    def facts(self) -> dict[str, Any]:
        """The settings that determine an image's bytes, except those specific to this machine."""
        facts: dict[str, Any] = {
            "digest": self.digest,
            "command": self.command,
            "ports": self.ports,
            "python_path": self.python_path,
        }
        if self.programs:
            facts["programs"] = self.programs
        return facts

    def place(self, file: image_files.ImageFile) -> Path:
        """Return the path on this machine of a file in the layer."""
        is_added = PurePosixPath(file.path).is_relative_to(package.FOLDER)
        return Path(self.laid if is_added else self.folder, file.path)

    @property
    def path(self) -> str:
        """The folders to put before the base image's `PATH`, separated by colons."""
        own = [f"{conventions.WORK}/{self.programs}"] if self.programs else []
        return ":".join((conventions.PATH, *own))

    def variables(self, others: dict[str, str]) -> dict[str, str]:
        """Return an image's variables, with the project's folders added to `PYTHONPATH`."""
        folders = (PurePosixPath(conventions.WORK, path) for path in self.python_path)
        return {**others, **conventions.imports_from(folders, others.get("PYTHONPATH"))}


def planned(settings: Settings) -> ProjectLayer | None:
    """Return the layer for the environment that `settings` specifies.

    Return None if the environment needs no layer. Print a note that lists the files that are not
    copied into the image. Raise `InvalidError` if files are missing or too large.
    """
    environment = environments.of(settings)
    project = settings.project
    if settings.definition is None or project is None:
        return None
    if not environment.files and not settings.definition.install_project:
        return None
    entries = [*environments.entries(settings.definition, settings.environment, project, "files")]
    texts: dict[str, str] = {}
    python_path = environment.python_path
    programs = ""
    laid = ""
    if settings.definition.install_project:
        from envbuilder.builds import project_folder

        installable = package.of(settings)
        laid = str(project_folder.lay(settings, installable.texts))
        python_path = (*python_path, package.FOLDER)
        programs = project_folder.PROGRAMS if installable.commands else ""
        entries += [
            (path, f"{PROJECT_FILE}: install_project") for path in installable.modules(project)
        ]
        texts = installable.texts
    contents = image_files.collect(project, entries, texts)
    if contents.omitted:
        names = first(contents.omitted, _SHOWN)
        console.progress().note(
            "note: not copied into the image, since they may hold secrets or belong to one"
            f" machine: {names}"
        )
    return ProjectLayer(
        folder=str(project),
        laid=laid,
        digest=contents.digest,
        files=contents.files,
        command=environment.command or conventions.COMMAND,
        ports=tuple(dict.fromkeys(environment.ports)),
        python_path=python_path,
        programs=programs,
    )


class _Content(Struct, frozen=True):
    """The content of a file.

    Reading the content raises `BuildError` if the file has changed since it was listed.
    """

    _path: Path
    _file: image_files.ImageFile

    @property
    def size(self) -> int:
        return self._file.size

    def pieces(self) -> Iterator[bytes]:
        from envbuilder.core import archives

        digest = hashlib.sha256()
        with self._path.open("rb") as stream:
            while piece := stream.read(archives.PIECE):
                digest.update(piece)
                yield piece
        if digest.hexdigest() != self._file.sha256:
            raise BuildError(
                f"{self._path} changed while the image was being built",
                "Run the same command again.",
            )


def members(layer: ProjectLayer) -> Iterator[Member]:
    """Yield the members of the layer, owned by the image's user, with mode 0755 or 0644."""
    from envbuilder.containers.oci.layer import Member  # no environment of this machine needs it

    work = conventions.WORK.lstrip("/")
    folders = {PurePosixPath(work)}
    for file in layer.files:
        folders.update(PurePosixPath(work, file.path).parents)
    for folder in sorted(folders - {PurePosixPath(".")}):
        yield Member(
            path=str(folder), kind="folder", mode=0o755, uid=conventions.ID, gid=conventions.ID
        )
    for file in layer.files:
        yield Member(
            path=f"{work}/{file.path}",
            mode=0o755 if file.executable else 0o644,
            uid=conventions.ID,
            gid=conventions.ID,
            source=_Content(layer.place(file), file),
        )


def copy(layer: ProjectLayer, target: Path) -> None:
    """Copy the layer's files to the new folder `target`, from which a builder can read them."""
    target.mkdir(parents=True)
    for file in layer.files:
        path = target / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as out:
            out.writelines(_Content(layer.place(file), file).pieces())
        path.chmod(0o755 if file.executable else 0o644)
