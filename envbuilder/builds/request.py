"""What a command asks of a build, and the state of the build at each stage of the pipeline."""

# ruff: noqa: TC004 (no stage is ever decoded, so annotations are never evaluated)

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import msgspec
from msgspec import Struct

from envbuilder.builds.access import NOTHING, Access, Runner

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from envbuilder.builds.plan import Artifact, BuildResult, Plan
    from envbuilder.core.console import Progress
    from envbuilder.core.process import Completed
    from envbuilder.core.settings import Settings
    from envbuilder.host.model import Host
    from envbuilder.profiles.fit import BackendFit
    from envbuilder.profiles.library import Library
    from envbuilder.profiles.lock import Lock, Target
    from envbuilder.profiles.profile import Profile


class Request(Struct, frozen=True, kw_only=True):
    """The options of a build; None means that the profile or the host decides."""

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
    restore: bool = False
    """Rebuild an environment whose shared files were changed; the check takes a moment."""
    force: bool = False
    dry_run: bool = False
    locked: bool = False
    """Fail if the project's lock is missing or stale, instead of locking."""
    with_project: bool = False
    """Put the project's own files into the image, if the project lists any."""
    project_copy: Path | None = None
    """The folder to read them from, instead of the project."""
    target_host: Path | None = None

    @property
    def image_option(self) -> str | None:
        """The first given option that applies to images only, if any."""
        return self.builder or self.output or self.push


class Chosen(Struct, frozen=True, kw_only=True):
    """A build whose profile is chosen."""

    request: Request
    settings: Settings
    progress: Progress
    library: Library
    host: Host
    """The host that the result is for: this one or an assumed one."""
    assumed: bool = False
    running: bool
    """The result will run on that host, which must therefore fit."""
    profile: Profile
    judged: tuple[BackendFit, ...] = ()
    """How the profile fits the host with each backend; empty: not judged yet, or with --force."""


class Judged(Chosen, frozen=True, kw_only=True):
    """A build whose backend is chosen, and whose profile fits the host with it."""

    backend: str
    workaround: str = ""
    """Another way to use the profile here; empty if there is nothing to suggest."""
    device_variables: Mapping[str, str] = {}
    """Variables that choose the GPUs of this machine."""
    device_note: str = ""


class Locked(Judged, frozen=True, kw_only=True):
    """A build whose lock is read and usable with the backend."""

    lock: Lock


class Planned(Locked, frozen=True, kw_only=True):
    """A build whose steps are known."""

    product: Product

    @property
    def plan(self) -> Plan:
        """The steps that make the product."""
        return self.product.plan

    @property
    def environment(self) -> Environment:
        """The product as an environment to run in: commands that run something offer no outputs."""
        return cast("Environment", self.product)


class Built(Planned, frozen=True, kw_only=True):
    """A build whose product exists."""

    result: BuildResult


_Stage = TypeVar("_Stage", bound=Chosen)


def advance(build: Chosen, to: type[_Stage], **decided: Any) -> _Stage:
    """Return a build at its next stage, with that stage's results."""
    return to(**msgspec.structs.asdict(build), **decided)


class Product(Protocol):
    """The product of a plan: whether it exists, and how it was made."""

    plan: Plan
    target: Target

    def existing(self) -> Artifact | None:
        """Return the finished artifact if an earlier build made exactly this one."""

    def changed(self) -> str:
        """Return a message if the artifact's name now means something else, else empty.

        A folder keeps its name. A damaged image in a file or a registry is built again. Changes
        that can only be seen by reading every file are left to `run_payload`.
        """
        return ""

    def altered(self) -> str:
        """Return a message if the artifact must be restored, else empty; only on request."""
        return ""

    def made_by(self) -> dict[str, str]:
        """Return the programs that decide the existing artifact's bytes → their versions."""

    def restore_names(self) -> None:
        """Give the existing artifact the names that it lacks.

        A folder has one name; outside of an engine, an image always has its names.
        """
        return None  # noqa: RET501 (mypy takes an empty body for an abstract method)


class Environment(Product, Protocol):
    """A product in which commands run: a folder of this machine, or an image in an engine."""

    def run_payload(
        self,
        arguments: Callable[[Mapping[str, str]], Sequence[str]],
        folders: Mapping[str, Path],
        on_line: Callable[[str], None],
    ) -> Completed:
        """Run the payload, which can read `folders` (name → folder on this machine).

        It can also write the one named `build.payload.RECORD`.

        `arguments` is called with the same names → paths inside.
        """

    def become(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        access: Access = NOTHING,
        start: Runner | None = None,
    ) -> int:
        """Replace this process with a command inside the environment, or `start` it instead.

        A command in a native environment has direct access to this machine's ports and folders.
        """
