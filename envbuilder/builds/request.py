"""The options of a build, and the state of the build at each stage of the pipeline."""

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
    """The options of a build. If an option is None, the profile and the host determine it."""

    profile: str | None = None
    backend: str | None = None
    python: str | None = None
    base_image: str | None = None
    tag: str | None = None
    only_tag: str | None = None
    """The only name to give the image, for builds that are made only for comparison."""
    builder: str | None = None
    """Builder that the docker backend uses to make the image: `buildkit` or `layers`."""
    output: str | None = None
    """Where to save the image instead of loading it: `oci:DIR` or `FILE.tar`."""
    push: str | None = None
    """Registry reference, including a tag, to which the image is pushed instead of being loaded."""
    rebuild: bool = False
    restore: bool = False
    """Whether to rebuild an environment if files that it shares with others were changed.

    Checking this takes a moment.
    """
    force: bool = False
    dry_run: bool = False
    locked: bool = False
    """Whether to fail if the project's lock is missing or outdated, instead of making a new one."""
    with_project: bool = False
    """Whether to put the project's own files into the image, if the project's file lists any."""
    project_copy: Path | None = None
    """Folder from which to read the project's own files. None to read them from the project
    itself."""
    target_host: Path | None = None

    @property
    def image_option(self) -> str | None:
        """The value of the first option in the request that applies only to images, or None."""
        return self.builder or self.output or self.push


class Chosen(Struct, frozen=True, kw_only=True):
    """A build for which the profile has been chosen."""

    request: Request
    settings: Settings
    progress: Progress
    library: Library
    host: Host
    """The host for which the result is intended: this machine, or a host described in a file."""
    assumed: bool = False
    running: bool
    """Whether the result will run on `host`. If so, the profile must fit the host."""
    profile: Profile
    judged: tuple[BackendFit, ...] = ()
    """How well the profile fits the host with each backend.

    Empty if this has not been judged yet, or with `--force`.
    """


class Judged(Chosen, frozen=True, kw_only=True):
    """A build whose backend has been chosen and whose profile has been checked against the host."""

    backend: str
    workaround: str = ""
    """Advice on another way to use the profile on this host. Empty if there is none."""
    device_variables: Mapping[str, str] = {}
    """Variables that select which of this machine's GPUs to use."""
    device_note: str = ""


class Locked(Judged, frozen=True, kw_only=True):
    """A build whose lock has been read and can be used with the backend."""

    lock: Lock


class Planned(Locked, frozen=True, kw_only=True):
    """A build whose steps have been planned."""

    product: Product

    @property
    def plan(self) -> Plan:
        """The plan that makes the product."""
        return self.product.plan

    @property
    def environment(self) -> Environment:
        """The product, as an environment in which commands can run.

        The product must not be an `Output`. The envbuilder commands that run other commands never
        plan an `Output`.
        """
        return cast("Environment", self.product)


class Built(Planned, frozen=True, kw_only=True):
    """A build whose product exists."""

    result: BuildResult


_Stage = TypeVar("_Stage", bound=Chosen)


def advance(build: Chosen, to: type[_Stage], **decided: Any) -> _Stage:
    """Return the build at its next stage `to`, with the fields in `decided` added."""
    return to(**msgspec.structs.asdict(build), **decided)


class Product(Protocol):
    """The product of a plan, with methods that tell whether it exists and how it was made."""

    plan: Plan
    target: Target

    def existing(self) -> Artifact | None:
        """Return the finished artifact if an earlier build made it, else None."""

    def changed(self) -> str:
        """Return a message if the artifact is damaged or replaced, else an empty string.

        An artifact is replaced if its name refers to another artifact. By default, return an empty
        string, because a damaged image in a file or a registry is simply built again. Changes that
        can be detected only by reading every file are left to `run_payload`.
        """
        return ""

    def altered(self) -> str:
        """Return a message if shared files of the artifact were changed, else an empty string.

        Builds call this only if `Request.restore` is set.
        """
        return ""

    def made_by(self) -> dict[str, str]:
        """Return the versions of the programs that determined the artifact's bytes.

        The keys are the programs' names.
        """

    def restore_names(self) -> None:
        """Restore any missing names of the existing artifact.

        By default, do nothing: a folder has only one name, and an image that is not in an engine
        always has all of its names.
        """
        return None  # noqa: RET501 (mypy takes an empty body for an abstract method)


class Environment(Product, Protocol):
    """A product in which commands run: a folder on this machine, or an image in an engine."""

    def run_payload(
        self,
        arguments: Callable[[Mapping[str, str]], Sequence[str]],
        folders: Mapping[str, Path],
        on_line: Callable[[str], None],
    ) -> Completed:
        """Run the payload in the environment, and return its result.

        `folders` maps names to folders on this machine. The payload can read all of them, but can
        write only to the folder named `builds.payload.RECORD`. `arguments` is called with a mapping
        from the same names to the paths in the environment, and returns the payload's arguments.
        `on_line` is called with each line of output.
        """

    def become(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        access: Access = NOTHING,
        start: Runner | None = None,
    ) -> int:
        """Replace this process with a command in the environment, or run the command with `start`.

        Return the exit code. A command in a native environment has direct access to this machine's
        ports and folders.
        """
