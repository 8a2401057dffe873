"""What commands ask of a build, and what becomes of it: the data of the pipeline."""

# ruff: noqa: TC004 (a Build is never decoded, so its annotations are never evaluated)

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

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

_LATER: Any = None
"""The value of what a later stage decides."""


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
    locked: bool = False
    """A lock of the project that is missing or stale is an error: it is not made."""
    with_project: bool = False
    """The image contains the project's own files, if the project states any."""
    target_host: Path | None = None

    @property
    def image_option(self) -> str | None:
        """The first option that only images have, if any."""
        return self.builder or self.output or self.push


class Build(Struct, frozen=True, kw_only=True):
    """A build so far. Each stage of the pipeline returns it with what that stage decided."""

    request: Request
    settings: Settings
    progress: Progress
    library: Library
    host: Host
    """The host that the result is for: this one, or the assumed one."""
    assumed: bool = False
    running: bool
    """The result will run on that host, which must meet its requirements."""

    profile: Profile = _LATER
    judged: tuple[BackendFit, ...] = ()
    """How the profile fits the host with each backend; empty: not judged yet, or with --force."""
    backend: str = ""
    workaround: str = ""
    """How the profile works here otherwise; empty if nothing else is to be suggested."""
    device_variables: Mapping[str, str] = {}
    """Variables that choose the GPUs of this machine."""
    device_note: str = ""
    lock: Lock = _LATER
    product: Product = _LATER
    plan: Plan = _LATER
    """The product's plan, with the signatures that were accepted."""
    artifact: Artifact | None = None
    built: bool = False
    """Whether this build made the artifact; else an earlier one did."""
    started: float = 0.0
    """When it was looked for, by `time.monotonic`."""
    made_by: dict[str, str] = {}
    """Programs that decide the artifact's bytes → their versions."""
    documents: dict[str, str] = {}
    """Paths of the artifact's attestations."""
    result: BuildResult = _LATER

    @property
    def environment(self) -> Environment:
        """The product of a build to run in; no command that runs something offers an output."""
        return cast("Environment", self.product)


class Product(Protocol):
    """What a plan makes: whether it exists already, and what made it."""

    plan: Plan
    target: Target

    def existing(self) -> Artifact | None:
        """Return the finished artifact if an earlier build made exactly this one."""

    def changed(self) -> str:
        """Return a message if the artifact's name now means something else, else empty.

        A folder keeps its name. An image in a file or a registry that is not intact is built again.
        Changes that only reading every file reveals are left to `run_payload`.
        """
        return ""

    def made_by(self) -> dict[str, str]:
        """Return the programs that decide the existing artifact's bytes → their versions."""

    def restore_names(self) -> None:
        """Give the existing artifact those of its names that it lacks.

        A folder has one name, and no image outside of an engine exists without its names.
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
        """Run the payload, which can read `folders` (name → folder of this machine).

        It can also write the one named `build.payload.RECORD`.

        `arguments` is called with the same names → paths as the payload will see them.
        """

    def become(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        access: Access = NOTHING,
        start: Runner | None = None,
    ) -> int:
        """Replace this process with a command inside the environment, or `start` it instead.

        A command of a native environment has this machine's ports and folders as they are.
        """
