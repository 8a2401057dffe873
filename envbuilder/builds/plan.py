"""Build plans as data: computed purely, printed by `--dry-run`, run by `execute`."""

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
    """Write text to a file, creating its folder."""

    path: str
    text: str


class WritePayload(types.Action, frozen=True, kw_only=True):
    """Write `payload.pyz`."""

    path: str


class WritePrograms(types.Action, frozen=True, kw_only=True):
    """Write one executable script under several names."""

    folder: str
    names: tuple[str, ...]
    text: str


class LinkFiles(types.Action, frozen=True, kw_only=True):
    """Link files of the store into a folder under their own names."""

    files: tuple[File, ...]
    folder: str


class UnpackWheels(types.Action, frozen=True, kw_only=True):
    """Unpack wheels of the store; write the rest for an installer, with its requirements."""

    files: tuple[File, ...]
    unpacked: str
    """Folder of unpacked wheels."""
    folder: str


class UnpackTool(types.Action, frozen=True, kw_only=True):
    """Extract the executable `name` from a wheel of the store."""

    file: File
    name: str
    path: str


class UnpackLibraries(types.Action, frozen=True, kw_only=True):
    """Extract shared libraries from .deb files of the store."""

    files: tuple[File, ...]
    libraries: tuple[str, ...]
    folder: str


class UnpackPython(types.Action, frozen=True, kw_only=True):
    """Unpack an interpreter of the store into a new folder."""

    file: File
    folder: str


class MakeBase(types.Action, frozen=True, kw_only=True):
    """Make a base image from locked Debian packages, as an OCI layout, unless it exists."""

    identity: types.Sha256
    """Hash of everything that decides its bytes."""
    ref: types.ImageRef
    """Its name in engines."""
    suite: types.DebianSuite
    platform: types.Platform
    files: tuple[File, ...]
    epoch: int
    unpacked: bool
    layout: str


class CopyProject(types.Action, frozen=True, kw_only=True):
    """Copy the project's own files to the folder from which a builder reads them."""

    project: ProjectLayer
    folder: str


class Run(types.Action, frozen=True, kw_only=True):
    """Run a command; its failure ends the build."""

    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    hints: dict[str, str] = field(default_factory=dict)
    """Text that a failing command may print → what to do about it."""
    output: str = ""
    """A file for its stdout, in addition to the log."""


class RunUv(Run, frozen=True, kw_only=True):
    """Run the locked uv, with `process.run_uv`."""


class ShareWheels(types.Action, frozen=True, kw_only=True):
    """Add the unpacked files of wheels and their bytecode to a venv that has the rest of them.

    They are linked into a separate folder while `steps` make the venv: uv never sees a shared file.
    """

    files: tuple[File, ...]
    unpacked: str
    folder: str
    meanwhile: tuple[UnpackTool | RunUv, ...]
    env: str
    venv: str
    """The venv; `env`, or a folder in it."""
    python: str
    """The interpreter of the venv."""
    version: str
    """Its version X.Y.Z."""


class Seal(types.Action, frozen=True, kw_only=True):
    """Write the integrity manifest of a finished environment, and its marker with `facts`."""

    folder: str
    facts: dict[str, Any]
    base_python: str = ""
    """The outside interpreter that the environment is based on, if any."""


class Move(types.Action, frozen=True, kw_only=True):
    """Move a finished folder to its final location, replacing what was there."""

    source: str
    target: str


class Recording(types.Action, frozen=True, kw_only=True):
    """A step that records the image that it delivers."""

    profile: types.Name
    fingerprint: types.Sha256
    builder: str
    made_by: dict[str, str]
    """Programs that decide the image's bytes → their versions."""
    folder: str
    """Folder for the record."""


class RecordImage(Recording, frozen=True, kw_only=True):
    """Record a build's report about its image, outside the image."""

    metadata: str
    """The file in which the client reports the image's digests."""
    versions: str
    """The file with the client's description of its builder."""
    names: tuple[str, ...]
    """All names of the image."""


class System(Struct, frozen=True, kw_only=True):
    """System packages whose maintainer scripts must run: an engine installs them, once per base."""

    recipe: types.Sha256
    """Hash of the Dockerfile text that installs them."""
    steps: tuple[LinkFiles | Write | Run, ...]
    """Steps that build the engine's image; skipped if the layer is cached."""
    ref: str
    """Temporary name of that image; empty if it is not kept in the engine."""
    exported: str | UnsetType = UNSET
    """Otherwise, folder of the layout that the builder exports."""


class Assemble(types.Action, frozen=True, kw_only=True):
    """Assemble an image from a base and layers, as an OCI layout."""

    base: str
    """Folder of the base's layout."""
    layout: str
    """Folder for the image's layout."""
    platform: types.Platform
    python: types.PythonVersion
    epoch: int
    """Timestamp of everything in the image, in seconds."""
    uv: File
    """Installs the wheels; for the machine that makes the image."""
    wheels: tuple[File, ...]
    unpacked: str
    """Folder of unpacked wheels and their bytecode; if empty, the image has no bytecode."""
    debs: tuple[File, ...]
    interpreter: File | UnsetType = UNSET
    """The image's Python, if it is not the base's."""
    system: System | None
    """How the packages are installed; None: they consist of files only and are unpacked."""
    project: ProjectLayer | UnsetType = UNSET
    """The project's own files, for the last layer."""
    variables: dict[str, str]
    labels: dict[str, str]
    names: tuple[str, ...]
    ahead: str
    """Temporary name under which an engine preloads the lower layers; empty: no preload."""
    cache: str
    """Folder of the layer cache."""
    fresh: bool
    """Make every layer without using the cache."""
    work: str
    """Folder for temporary files."""
    records: str
    """Folder for records of images that are in the engine temporarily."""


class Load(Recording, frozen=True, kw_only=True):
    """Load the image of an OCI layout into the engine, and keep a record of it."""

    layout: str
    cache: str
    names: tuple[str, ...]
    ahead: str
    """Name of the preloaded layers, removed after loading; empty if there was no preload."""


class LoadBase(types.Action, frozen=True, kw_only=True):
    """Load a locally made base image into the engine, unless the engine has it."""

    layout: str
    cache: str
    ref: types.ImageRef
    identity: types.Sha256
    folder: str
    """Folder for the record that it was loaded."""


class Save(types.Action, frozen=True, kw_only=True):
    """Write the image of an OCI layout as a folder, or as an archive if `target` ends in .tar."""

    layout: str
    target: str


class Push(Recording, frozen=True, kw_only=True):
    """Push the image of an OCI layout to a registry, and keep a record of it."""

    layout: str
    ref: str
    plain_http: bool
    uploads: str
    """Folder that records which repository of a registry has which blob."""


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
"""Kinds of artifacts that are environments on this machine, identified by a tree digest."""


class Artifact(Struct, frozen=True, kw_only=True):
    """What a build makes: an image's name or a prefix, with its digest once it is known."""

    kind: str
    ref: str
    digest: str | None = None
    """Of an image: the digest of its configuration, which names layers by their uncompressed bytes
    and so does not depend on compression or engine. Of a prefix: the digest of its tree, without
    host-dependent files."""
    config_digest: str | UnsetType = UNSET
    """Of an image: the digest of its configuration, the image id of Docker's classic store and of
    podman."""
    manifest_digest: str | UnsetType = UNSET
    """Of an image, if known: the digest of its manifest, by which registries name it and
    `REF@sha256:…` pulls it. The image id of Docker's containerd store."""

    def identified(self, config: str, manifest: str | None) -> Artifact:
        """Return the artifact of an image with its digests."""
        return replace(self, digest=config, config_digest=config, manifest_digest=manifest or UNSET)


class UsedBase(Struct, frozen=True, kw_only=True):
    """The base image of an image."""

    ref: str
    digest: str
    """Its digest, or its id in the engine if no registry names it; may be empty in a dry run."""


class BaseCheck(Struct, frozen=True, kw_only=True):
    """A base image whose Python is checked before anything is fetched."""

    ref: str
    layout: str
    """Folder of its OCI layout; empty if it is checked in the engine."""
    pythons: tuple[types.PythonVersion, ...]
    """The versions for which the lock has images on this platform."""


class Plan(Struct, frozen=True, kw_only=True):
    """Everything that one build will do."""

    schema: int = 1
    profile: types.Name
    backend: types.Backend
    builder: str
    platform: types.Platform
    python: types.PythonVersion
    fingerprint: str
    artifact: Artifact
    lock: str = ""
    """Digest of the lock that names the files; empty if only a conda lock names them."""
    conda_lock: str = ""
    """Digest of the conda lock that names the files from conda channels."""
    base: UsedBase | None = None
    """None for native environments, and if the base itself is made from the plan's files."""
    base_check: BaseCheck | None = None
    """None if the Python is not from a base image."""
    workdir: str
    files: tuple[File, ...]
    steps: tuple[Step, ...]
    room: tuple[Room, ...] = ()
    notes: tuple[str, ...] = ()
    signatures: tuple[Signed, ...] = ()
    """Accepted signatures of the locks that the plan uses."""


class BuildResult(Struct, frozen=True, kw_only=True):
    """What a build did (`build --json`)."""

    schema: int = 1
    status: str
    profile: str
    backend: str
    builder: str
    artifact: Artifact
    documents: dict[str, str] = {}
    """Paths of the artifact's attestations: `sbom` and `provenance`."""
    fingerprint: str
    seconds: float
    made_by: dict[str, str] = {}
    """Programs that decide the artifact's bytes → their versions at build time."""


def fingerprint(facts: Mapping[str, Any]) -> str:
    """Return the sha256 of all facts that decide the result."""
    return hashlib.sha256(msgspec.json.encode(facts, order="sorted")).hexdigest()


def install_wheels(
    what: str, *, uv: str, wheels: str, cache: str, python: str, requirements: str
) -> RunUv:
    """Return the step that installs a folder's wheels into the venv of `python`."""
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
    """Return the project's own files that a plan puts into an image; None if there are none."""
    for step in plan.steps:
        if isinstance(step, Assemble | CopyProject) and step.project is not UNSET:
            return step.project
    return None


def names_of(plan: Plan) -> tuple[str, ...]:
    """Return all names that a plan gives its image."""
    return next(s.names for s in plan.steps if isinstance(s, Assemble | RecordImage))


def tool_versions(plan: Plan) -> dict[str, str]:
    """Return the locked tools that a plan runs → their versions."""
    return {file.name: file.version for file in plan.files if file.kind == "tool"}
