"""What a build will do, as data: computed purely, printed by `--dry-run`, run by `execute`."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct, field

from envbuilder.core import types as words
from envbuilder.core.step import Action
from envbuilder.packages.conda.steps import InstallConda, Rehome, WriteActivation
from envbuilder.packages.space import Room
from envbuilder.profiles.locked_file import File

if TYPE_CHECKING:
    from collections.abc import Mapping


class Write(Action, frozen=True, kw_only=True):
    """Write text to a file, making its folder."""

    path: str
    text: str


class WritePayload(Action, frozen=True, kw_only=True):
    """Write `payload.pyz`."""

    path: str


class WritePrograms(Action, frozen=True, kw_only=True):
    """Write one script under several names, each of which can be run."""

    folder: str
    names: tuple[str, ...]
    text: str


class LinkFiles(Action, frozen=True, kw_only=True):
    """Put files of the store into a folder under their own names."""

    files: tuple[File, ...]
    folder: str


class UnpackTool(Action, frozen=True, kw_only=True):
    """Take the executable `name` out of a wheel of the store."""

    file: File
    name: str
    path: str


class UnpackLibraries(Action, frozen=True, kw_only=True):
    """Take shared libraries out of .deb files of the store."""

    files: tuple[File, ...]
    libraries: tuple[str, ...]
    folder: str


class MakeBase(Action, frozen=True, kw_only=True):
    """Make a base from locked Debian packages, as an OCI layout, where it is not there yet."""

    identity: words.Sha256
    """Of everything that decides its bytes."""
    ref: words.ImageRef
    """What engines call it."""
    suite: words.DebianSuite
    platform: words.Platform
    files: tuple[File, ...]
    epoch: int
    unpacked: bool
    layout: str


class Run(Action, frozen=True, kw_only=True):
    """Run a command; a failing one ends the build."""

    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    hints: dict[str, str] = field(default_factory=dict)
    """What a failing command may print → what to do about it."""
    output: str = ""
    """A file for what it prints, besides the log."""


class Seal(Action, frozen=True, kw_only=True):
    """Write down what a finished environment holds, with facts about it."""

    folder: str
    facts: dict[str, Any]


class Remove(Action, frozen=True, kw_only=True):
    """Remove a folder of our own, if it is there."""

    path: str


class Move(Action, frozen=True, kw_only=True):
    """Move a finished folder to its place, replacing what was there."""

    source: str
    target: str


class RecordImage(Action, frozen=True, kw_only=True):
    """Keep what a build says of the image that it made, outside of the image."""

    profile: words.Name
    fingerprint: words.Sha256
    ref: str
    builder: str
    metadata: str
    """The file in which the client tells the image's digests."""
    engine: dict[str, str]
    """The engine's name and version, where its builder is a part of it."""
    versions: str
    """The file with what the client says of its builder."""
    folder: str
    names: tuple[str, ...] = ()
    """Every name that the image was given."""


class System(Struct, frozen=True, kw_only=True):
    """System packages whose scripts must run: an engine installs them, once for a base."""

    recipe: words.Sha256
    """Of the text that installs them."""
    steps: tuple[LinkFiles | Write | Run, ...]
    """What makes the engine's image; not done where the layer was made before."""
    ref: str
    """That image's name meanwhile."""


class Assemble(Action, frozen=True, kw_only=True):
    """Make an image out of layers on top of a base, as an OCI layout."""

    base: str
    """The folder with the base's layout."""
    layout: str
    """The folder for the image's."""
    platform: words.Platform
    python: words.PythonVersion
    epoch: int
    """Every time in the image, in seconds."""
    uv: File
    """Installs the wheels: that of the machine which makes the image."""
    wheels: tuple[File, ...]
    debs: tuple[File, ...]
    system: System | None
    """How the packages are installed; None: they are nothing but files, and are unpacked."""
    variables: dict[str, str]
    labels: dict[str, str]
    names: tuple[str, ...]
    ahead: str
    """The name under which an engine is given the lower layers meanwhile; empty: none is."""
    cache: str
    """The folder with layers that were made before."""
    fresh: bool
    """Make every layer, and use none that was made before."""
    work: str
    """A folder for what is only needed meanwhile."""
    records: str
    """Where images that the engine is given meanwhile are written down."""


class Load(Action, frozen=True, kw_only=True):
    """Load the image of an OCI layout into the engine, and keep a record of it."""

    layout: str
    cache: str
    profile: words.Name
    fingerprint: words.Sha256
    names: tuple[str, ...]
    ahead: str
    """The name of layers that were loaded before, which goes; empty: none were."""
    made_by: dict[str, str]
    folder: str
    """Where records are kept."""


class LoadBase(Action, frozen=True, kw_only=True):
    """Load a base that was made here into the engine, where it does not have it."""

    layout: str
    cache: str
    ref: words.ImageRef
    identity: words.Sha256
    folder: str
    """Where it is written down that the engine was given it."""


class Save(Action, frozen=True, kw_only=True):
    """Write the image of an OCI layout as a folder or, ending in .tar, as an archive."""

    layout: str
    target: str


class Push(Action, frozen=True, kw_only=True):
    """Bring the image of an OCI layout to a registry, and keep a record of it."""

    layout: str
    ref: str
    plain_http: bool
    uploads: str
    """Where what a later try needs is kept."""
    profile: words.Name
    fingerprint: words.Sha256
    made_by: dict[str, str]
    folder: str
    """Where records are kept."""


ImageStep = MakeBase | LoadBase | Assemble | Load | Save | Push | RecordImage
Step = (
    Write
    | WritePayload
    | WritePrograms
    | LinkFiles
    | UnpackTool
    | UnpackLibraries
    | Run
    | Seal
    | InstallConda
    | Rehome
    | WriteActivation
    | Remove
    | Move
    | ImageStep
)


class Artifact(Struct, frozen=True, kw_only=True):
    """What a build makes: an image's tag or a prefix; the digest once it is known."""

    kind: str
    ref: str
    digest: str | None = None
    """Of an image: of its configuration, which names its layers by their uncompressed bytes, so
    that neither a compression nor a kind of engine changes it. Of a prefix: of its tree."""


class UsedBase(Struct, frozen=True, kw_only=True):
    """The image that an image is built on."""

    ref: str
    digest: str
    """Its digest, or its id in the engine where no registry names it; empty in a dry run."""


class BaseCheck(Struct, frozen=True, kw_only=True):
    """A base whose Python is looked at before anything is fetched."""

    ref: str
    layout: str
    """The folder of its OCI layout; empty where it is looked at in the engine."""
    pythons: tuple[words.PythonVersion, ...]
    """Those that images of the lock can have on this platform."""


class Plan(Struct, frozen=True, kw_only=True):
    """Everything one build will do."""

    schema: int = 1
    profile: words.Name
    backend: words.Backend
    builder: str
    platform: words.Platform
    python: words.PythonVersion
    fingerprint: str
    artifact: Artifact
    lock: str = ""
    """Digest of the lock that names the files; empty where none but a conda lock does."""
    conda_lock: str = ""
    """Digest of the conda lock that names the files from channels."""
    base: UsedBase | None = None
    """None for native environments, and where the base itself is made of the plan's files."""
    base_check: BaseCheck | None = None
    """None where no base image has to bring the Python."""
    workdir: str
    files: tuple[File, ...]
    steps: tuple[Step, ...]
    room: tuple[Room, ...] = ()
    notes: tuple[str, ...] = ()


class BuildResult(Struct, frozen=True, kw_only=True):
    """What a build did (`build --json`)."""

    schema: int = 1
    status: str
    profile: str
    backend: str
    builder: str
    artifact: Artifact
    documents: dict[str, str] = {}
    """Where the artifact's documents are: `sbom` and `provenance`."""
    fingerprint: str
    seconds: float
    made_by: dict[str, str] = {}
    """The programs that decide the artifact's bytes → their versions when it was built."""


def fingerprint(facts: Mapping[str, Any]) -> str:
    """sha256 over everything that decides the result."""
    return hashlib.sha256(msgspec.json.encode(facts, order="sorted")).hexdigest()
