"""The interface of backends: what they plan, and their `prepare` function."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, NoReturn, Protocol

from envbuilder.build.access import NOTHING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from envbuilder.build.access import Access
    from envbuilder.build.plan import Artifact, Plan
    from envbuilder.build.request import Request
    from envbuilder.core.process import Completed
    from envbuilder.core.settings import Settings
    from envbuilder.host.model import Host
    from envbuilder.profiles.lock import Lock, Target
    from envbuilder.profiles.profile import Profile


class Product(Protocol):
    """What a plan makes: whether it exists already, and what made it."""

    plan: Plan
    target: Target

    def existing(self) -> Artifact | None:
        """Return the finished artifact if an earlier build made exactly this one."""

    def changed(self) -> str:
        """Return a message if the artifact's name now means something else, else empty.

        Changes that only reading every file reveals are left to `run_payload`.
        """

    def made_by(self) -> dict[str, str]:
        """Return the programs that decide the existing artifact's bytes → their versions."""

    def restore_names(self) -> None:
        """Give the existing artifact those of the plan's names that it lacks."""


class Environment(Product, Protocol):
    """A product in which commands run: a folder of this machine, or an image in an engine."""

    device_variables: Mapping[str, str]
    """Variables that choose the GPUs of this machine; set by the workflow."""

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
        self, argv: Sequence[str], environ: Mapping[str, str], access: Access = NOTHING
    ) -> NoReturn:
        """Replace this process with a command inside the environment.

        A command of a native environment has this machine's ports and folders as they are.
        """


class Prepare(Protocol):
    """A backend's `prepare`: checks its tools (`ToolError`, exit 4) and plans.

    It returns an `Environment`, unless the request has the result delivered elsewhere. It downloads
    none of the plan's files, only a base image if that must be identified first.
    """

    def __call__(
        self, profile: Profile, lock: Lock, host: Host, request: Request, settings: Settings
    ) -> Product:
        """Plan the product."""


def prepare(name: str) -> Prepare:
    """Return the `prepare` function of a backend, importing only that backend's module."""
    function: Prepare = import_module(f"{__package__}.{name}").prepare
    return function
