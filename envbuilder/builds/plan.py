"""Build plans as data. `--dry-run` prints them, and the module `execute` runs them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType, field
from msgspec.structs import replace

from envbuilder.builds.project_layer import ProjectLayer
from envbuilder.core import types
from envbuilder.core.signatures import Signed
from envbuilder.packages.conda.lock import InstallConda, Rehome, WriteActivation
from envbuilder.packages.store import Room
from envbuilder.profiles.lock import File


class Write(types.Action, frozen=True, kw_only=True):
    """A step that writes text to a file, creating the file's folder if necessary."""

    path: str
    text: str


class WritePayload(types.Action, frozen=True, kw_only=True):
    """A step that writes `payload.pyz`."""

    path: str


class WritePrograms(types.Action, frozen=True, kw_only=True):
    """A step that writes the same executable script under several names."""

    folder: str
    names: tuple[str, ...]
    text: str


class LinkFiles(types.Action, frozen=True, kw_only=True):
    """A step that links files from the store into a folder, under their original names."""

    files: tuple[File, ...]
    folder: str


class UnpackWheels(types.Action, frozen=True, kw_only=True):
    """A step that unpacks those wheels from the store that have not been unpacked before."""

    files: tuple[File, ...]
    unpacked: str
    """Folder that contains unpacked wheels."""


class UnpackTool(types.Action, frozen=True, kw_only=True):
    """A step that extracts the executable `name` from a wheel in the store to the path `path`."""

    file: File
    name: str
    path: str
    unpacked: str
    """Folder that contains unpacked wheels. The executable is kept there."""


class UnpackLibraries(types.Action, frozen=True, kw_only=True):
    """A step that extracts shared libraries from .deb files in the store."""

    files: tuple[File, ...]
    libraries: tuple[str, ...]
    folder: str


class UnpackPython(types.Action, frozen=True, kw_only=True):
    """A step that unpacks a Python interpreter from the store into a new folder."""

    file: File
    folder: str


class MakeBase(types.Action, frozen=True, kw_only=True):
    """A step that makes a base image from locked Debian packages, as an OCI layout.

    The step does nothing if the base image already exists.
    """

    identity: types.Sha256
    """Hash of all inputs that determine the image's bytes."""
    ref: types.ImageRef
    """Name of the image in engines."""
    suite: types.DebianSuite
    platform: types.Platform
    files: tuple[File, ...]
    epoch: int
    unpacked: bool
    layout: str


class CopyProject(types.Action, frozen=True, kw_only=True):
    """A step that copies the project's own files into a folder that a builder can read."""

    project: ProjectLayer
    folder: str


class Run(types.Action, frozen=True, kw_only=True):
    """A step that runs a command. The build fails if the command fails."""

    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    hints: dict[str, str] = field(default_factory=dict)
    """Advice for the user. Each key is text that the command may print when it fails."""
    output: str = ""
    """Path of a file to write the command's stdout to, in addition to the log. Empty if there is
    none."""


class RunUv(Run, frozen=True, kw_only=True):
    """A step that runs the locked uv, using `process.run_uv`."""


class ShareWheels(types.Action, frozen=True, kw_only=True):
    """A step that makes a venv from links to the files and bytecode of unpacked wheels.

    Wheels that have not been installed before are installed by uv into a scratch venv, so that uv
    never sees a shared file.
    """

    files: tuple[File, ...]
    unpacked: str
    """Folder that contains unpacked wheels."""
    installed: str
    """Name of the folders for the files that uv installs. It identifies the versions of uv and
    Python."""
    identity: str
    """Hash of the facts that determine a venv without packages. If empty, uv makes such a venv each
    time."""
    unpack_uv: UnpackTool
    make_venv: RunUv
    """The step that makes the scratch venv."""
    install: RunUv
    """The step that installs `wheels` into the scratch venv."""
    scratch: str
    wheels: str
    """Folder for the wheels that uv must install."""
    requirements: str
    """Path of the requirements file for the wheels in `wheels`."""
    env: str
    venv: str
    """Folder of the venv, which is either `env` itself or a folder inside it."""
    python: str
    """Path of the venv's interpreter."""
    version: str
    """Version of the venv's interpreter, in the form X.Y.Z."""

    @property
    def site(self) -> str:
        """The path of site-packages, relative to the venv."""
        return f"lib/python{self.version.rpartition('.')[0]}/site-packages"


class Seal(types.Action, frozen=True, kw_only=True):
    """A step that writes a finished environment's integrity manifest and marker file.

    The marker file contains `facts`.
    """

    folder: str
    facts: dict[str, Any]
    base_python: str = ""
    """Path of the interpreter on which the environment is based, if it is outside the environment.
    Otherwise empty."""


class Move(types.Action, frozen=True, kw_only=True):
    """A step that moves a finished folder to its final location, replacing any folder there."""

    source: str
    target: str


class Recording(types.Action, frozen=True, kw_only=True):
    """Base class for steps that deliver an image and record it."""

    profile: types.Name
    fingerprint: types.Sha256
    builder: str
    made_by: dict[str, str]
    """Versions of the programs that determine the image's bytes, by program name."""
    folder: str
    """Folder in which to write the record."""


class RecordImage(Recording, frozen=True, kw_only=True):
    """A step that records an image built by the engine's client, based on the client's report."""

    metadata: str
    """Path of the file in which the client reports the image's digests."""
    versions: str
    """Path of the file in which the client describes its builder."""
    names: tuple[str, ...]
    """All names of the image."""


class System(Struct, frozen=True, kw_only=True):
    """System packages that an engine must install, because their maintainer scripts have to run.

    The engine installs them only once for each base image.
    """

    recipe: types.Sha256
    """Hash of the content of the Dockerfile that installs the packages."""
    steps: tuple[LinkFiles | Write | Run, ...]
    """Steps that build the image with the packages. They are skipped if its layer is cached."""
    ref: str
    """Temporary name in the engine of the image with the packages. Empty if the engine does not
    keep the image."""
    exported: str | UnsetType = UNSET
    """Folder of the OCI layout that the builder exports. Unset if the engine keeps the image."""


class Assemble(types.Action, frozen=True, kw_only=True):
    """A step that assembles an image from a base image and additional layers, as an OCI layout."""

    base: str
    """Folder that contains the base image as an OCI layout."""
    layout: str
    """Folder for the new image's OCI layout."""
    platform: types.Platform
    python: types.PythonVersion
    epoch: int
    """Timestamp of all files in the image, in seconds since 1970."""
    uv: File
    """The locked uv that installs the wheels. It runs on the machine that makes the image."""
    wheels: tuple[File, ...]
    unpacked: str
    """Folder that contains unpacked wheels and their bytecode. If empty, no bytecode is added to
    the image."""
    debs: tuple[File, ...]
    interpreter: File | UnsetType = UNSET
    """The Python to install in the image. Unset if the image uses the Python of its base image."""
    system: System | None
    """How an engine installs the Debian packages.

    None if the packages consist only of files, which are unpacked without an engine.
    """
    project: ProjectLayer | UnsetType = UNSET
    """The project's own files, which become the last layer."""
    variables: dict[str, str]
    labels: dict[str, str]
    names: tuple[str, ...]
    ahead: str
    """Temporary name under which an engine loads the lower layers in advance. Empty if it does not
    load them in advance."""
    cache: str
    """Folder of the layer cache."""
    fresh: bool
    """Whether to rebuild every layer instead of using the cache."""
    work: str
    """Folder for temporary files."""
    records: str
    """Folder for the records of images that are in the engine only temporarily."""


class Load(Recording, frozen=True, kw_only=True):
    """A step that loads the image in an OCI layout into the engine, and records the image."""

    layout: str
    cache: str
    names: tuple[str, ...]
    ahead: str
    """Temporary name of the layers loaded in advance. The name is removed after loading. Empty if
    there are none."""


class LoadBase(types.Action, frozen=True, kw_only=True):
    """A step that loads a base image made on this machine into the engine.

    The step does nothing if the engine already has the base image.
    """

    layout: str
    cache: str
    ref: types.ImageRef
    identity: types.Sha256
    folder: str
    """Folder for the record of the loaded image."""


class Save(types.Action, frozen=True, kw_only=True):
    """A step that saves the image in an OCI layout.

    The image is saved as an archive if `target` ends in .tar, otherwise as a folder.
    """

    layout: str
    target: str


class Push(Recording, frozen=True, kw_only=True):
    """A step that pushes the image in an OCI layout to a registry, and records the image."""

    layout: str
    ref: str
    plain_http: bool
    uploads: str
    """Folder for records of which blobs each repository of a registry contains."""


ImageStep = MakeBase | LoadBase | Assemble | Load | Save | Push | RecordImage
FileStep = (
    Write
    | WritePayload
    | WritePrograms
    | LinkFiles
    | UnpackWheels
    | CopyProject
    | UnpackTool
    | UnpackLibraries
    | UnpackPython
)
Step = (
    Run | ShareWheels | Seal | InstallConda | Rehome | WriteActivation | Move | FileStep | ImageStep
)


NATIVE = frozenset({"venv", "conda"})
"""Kinds of artifacts that are environments on this machine. They are identified by the digest of
their file tree."""


class Artifact(Struct, frozen=True, kw_only=True):
    """The artifact that a build makes: an image or a native environment.

    `ref` is the name of the image, or the path of the environment's prefix.
    """

    kind: str
    ref: str
    digest: str | None = None
    """Digest of the artifact, once it is known.

    For an image, this is the digest of its configuration. It depends neither on the compression of
    the layers nor on the engine, because a configuration identifies layers by their uncompressed
    bytes. For a native environment, it is the digest of the file tree in its prefix, without
    host-dependent files.
    """
    config_digest: str | UnsetType = UNSET
    """Digest of an image's configuration. This is the image ID in Docker's classic store and in
    podman."""
    manifest_digest: str | UnsetType = UNSET
    """Digest of an image's manifest, if it is known.

    Registries identify the image by this digest, and `REF@sha256:…` pulls it. It is also the image
    ID in Docker's containerd store.
    """

    def identified(self, config: str, manifest: str | None) -> Artifact:
        """Return a copy of the artifact, adding the digests of the image's config and manifest."""
        return replace(self, digest=config, config_digest=config, manifest_digest=manifest or UNSET)


class UsedBase(Struct, frozen=True, kw_only=True):
    """The base image from which an image is built."""

    ref: str
    digest: str
    """Digest of the base image, or its ID in the engine if it is not in a registry.

    The digest may be empty in a dry run.
    """


class BaseCheck(Struct, frozen=True, kw_only=True):
    """A check of a base image's Python version, performed before files are fetched."""

    ref: str
    layout: str
    """Folder of the image's OCI layout. Empty if the image to check is in the engine."""
    pythons: tuple[types.PythonVersion, ...]
    """Python versions for which the lock has images on this platform."""


class Plan(Struct, frozen=True, kw_only=True):
    """The inputs, the steps and the artifact of one build."""

    schema: int = 1
    profile: types.Name
    backend: types.Backend
    builder: str
    platform: types.Platform
    python: types.PythonVersion
    fingerprint: str
    artifact: Artifact
    lock: str = ""
    """Digest of the lock that lists the files. Empty if they are listed only in a conda lock."""
    conda_lock: str = ""
    """Digest of the conda lock that lists the files from conda channels."""
    base: UsedBase | None = None
    """The base image. None for native environments, and for images whose base is made from
    `files`."""
    base_check: BaseCheck | None = None
    """The check of the base image's Python. None if Python does not come from a base image."""
    workdir: str
    files: tuple[File, ...]
    steps: tuple[Step, ...]
    room: tuple[Room, ...] = ()
    notes: tuple[str, ...] = ()
    signatures: tuple[Signed, ...] = ()
    """The signatures that were accepted for the locks on which the plan is based."""


class BuildResult(Struct, frozen=True, kw_only=True):
    """The result of a build, in the form printed by `build --json`."""

    schema: int = 1
    status: str
    profile: str
    backend: str
    builder: str
    artifact: Artifact
    documents: dict[str, str] = {}
    """Paths of the artifact's attestations, under the keys `sbom` and `provenance`."""
    fingerprint: str
    seconds: float
    made_by: dict[str, str] = {}
    """Versions of the programs that determined the artifact's bytes, by program name."""


def fingerprint(facts: Mapping[str, Any]) -> str:
    """Return the sha256 of `facts`, which should include all inputs that determine the artifact."""
    return hashlib.sha256(msgspec.json.encode(facts, order="sorted")).hexdigest()


def install_wheels(
    what: str, *, uv: str, wheels: str, cache: str, python: str, requirements: str
) -> RunUv:
    """Return the step that installs wheels into the venv whose interpreter is `python`.

    `wheels` is the folder that contains the wheels.
    """
    return RunUv(
        what=what,
        argv=(
            uv,
            "pip",
            "install",
            "--quiet",
            "--no-config",
            "--offline",
            "--no-index",
            "--find-links",
            wheels,
            "--no-deps",
            "--require-hashes",
            "--no-installer-metadata",
            "--cache-dir",
            cache,
            "--link-mode",
            "hardlink",
            "--python",
            python,
            "--requirements",
            requirements,
        ),
    )


def project_of(plan: Plan) -> ProjectLayer | None:
    """Return the layer that contains the project's own files in the plan's image, or None."""
    for step in plan.steps:
        if isinstance(step, Assemble | CopyProject) and step.project is not UNSET:
            return step.project
    return None


def names_of(plan: Plan) -> tuple[str, ...]:
    """Return all names that the plan gives to its image."""
    return next(s.names for s in plan.steps if isinstance(s, Assemble | RecordImage))


def tool_versions(plan: Plan) -> dict[str, str]:
    """Return the versions of the locked tools that the plan runs, by tool name."""
    return {file.name: file.version for file in plan.files if file.kind == "tool"}
