"""Backends: each turns a profile and a lock into an `Environment`, planned but not yet built."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, NoReturn, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from envbuilder.build.plan import Artifact, Plan
    from envbuilder.build.request import Request
    from envbuilder.core.process import Completed
    from envbuilder.core.settings import Settings
    from envbuilder.host.model import Host
    from envbuilder.profiles.lock import Lock, Target
    from envbuilder.profiles.profile import Profile


class Environment(Protocol):
    """A planned environment: how to build it, whether it exists, how to run something inside."""

    plan: Plan
    target: Target

    def existing(self) -> Artifact | None:
        """The finished artifact, if an earlier build made exactly this one."""

    def changed(self) -> str:
        """Says that something else has the artifact's name than what was built, else empty.

        What only a look at every file can tell is left to `run_payload`.
        """

    def made_by(self) -> dict[str, str]:
        """The programs that decide the existing artifact's bytes → their versions."""

    def run_payload(
        self,
        arguments: Callable[[Mapping[str, str]], Sequence[str]],
        folders: Mapping[str, Path],
        on_line: Callable[[str], None],
    ) -> Completed:
        """Run the payload, which can read `folders` (name → folder of this machine).

        `arguments` gets the same names with each folder's path as the payload will see it.
        """

    def become(self, argv: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
        """Replace this process by a command inside the environment."""


class Prepare(Protocol):
    """A backend's `prepare`: check its tools (`ToolError`, exit 4) and plan; downloads nothing."""

    def __call__(
        self, profile: Profile, lock: Lock, host: Host, request: Request, settings: Settings
    ) -> Environment:
        """Plan the environment."""


def prepare(name: str) -> Prepare:
    """The `prepare` function of a backend; its module is imported when it is used."""
    function: Prepare = import_module(f"{__package__}.{name}").prepare
    return function
