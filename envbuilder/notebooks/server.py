"""JupyterLab: its environment, from a lock that envbuilder brings, and the command that serves it.

The environment is never part of the user's. Its own Python runs `inside/serve.py`. What a kernel
needs is in an environment of the user's Python, whose packages come after the user's.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from envbuilder.builds import pipeline
from envbuilder.builds.backends import venv
from envbuilder.builds.request import Build, Request
from envbuilder.core import ownership, resources
from envbuilder.core.errors import Hint, InvalidError, ToolError
from envbuilder.core.project_file import DEFAULT
from envbuilder.notebooks import kernels
from envbuilder.notebooks.inside import SERVE
from envbuilder.notebooks.kernels import Spec
from envbuilder.profiles.library import Library
from envbuilder.profiles.lock import select

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envbuilder.core.settings import Settings
    from envbuilder.profiles.lock import Target


class Server(Struct, frozen=True, kw_only=True):
    """What is served, and where."""

    folder: str
    """The folder whose files are shown."""
    browser: bool
    kernel: Spec
    shell: tuple[str, ...]
    """What a terminal runs."""


def command(
    prefix: Path, server: Server, arguments: Sequence[str], settings: Settings
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the command that serves, and variables for it; `arguments` are JupyterLab's own.

    JupyterLab keeps its settings in envbuilder's folders: those of another version, or a
    configuration for another server, have no effect. Raise `InvalidError` for other users' files
    there: they would run.
    """
    ownership.require_own(settings.data_dir / "jupyter")
    variables = {
        "JUPYTER_CONFIG_DIR": str(settings.config_dir / "jupyter"),
        "JUPYTER_DATA_DIR": str(settings.data_dir / "jupyter"),
        "JUPYTER_CONFIG_PATH": "",
        "JUPYTER_PATH": "",
    }
    # Isolated: modules of the user's are not JupyterLab's.
    python = (str(prefix / "bin" / "python"), "-I", str(SERVE))
    return (*python, msgspec.json.encode(server).decode(), *arguments), variables


def has_display(environ: Mapping[str, str], system: str = sys.platform) -> bool:
    """Return whether a browser can open; without a display, one for terminals would."""
    displays = ("DISPLAY", "WAYLAND_DISPLAY")
    return system == "darwin" or any(environ.get(name) for name in displays)


NAME = "jupyter"
KERNEL = "kernel"
"""The profiles of JupyterLab, and of what kernels need."""


def library() -> Library:
    """Return the profiles of envbuilder's own tools; a user's profiles cannot replace them.

    Their locks come with envbuilder, as its code does: keys of the user's are not required of them.
    """
    shipped = resources.profiles_dir()
    return Library((shipped / "tools", shipped))


def prefix(project: Build, name: str = NAME, python: str | None = None) -> Path:
    """Build a tool's environment if it is missing, and return its folder, which stays in use.

    `project` is the build of the kernel's environment.
    """
    tools = library()
    profile = tools.profile(name)
    # It is of no project, whose link to its own environment it must not take over.
    settings = replace(project.settings, project=None, definition=None, environment=DEFAULT)
    build = Build(
        request=Request(python=python),
        settings=settings,
        progress=project.progress,
        library=tools,
        host=project.host,
        running=True,
        profile=profile,
        backend="venv",
        lock=tools.usable_lock(profile),
    )
    product = venv.prepare(build)
    done = pipeline.finish(replace(build, product=product, plan=product.plan))
    product.stay_in_use()
    return Path(done.result.artifact.ref)


def beside(project: Build) -> tuple[Path | None, str]:
    """Return the folder of what a kernel needs, and the version of ipykernel.

    The folder is None if the environment's own lock has it. Raise `InvalidError` or `ToolError` if
    it has none, and none can be beside it.
    """
    own = _version(project.environment.target)
    if own:
        return None, own
    plan = project.plan
    tools = library()
    hint = Hint("Put it into the environment", ("add", kernels.PACKAGE))
    if plan.platform != project.host.platform:
        raise InvalidError(f"this machine has no {kernels.PACKAGE} for {plan.platform}", hint)
    try:
        target = select(tools.usable_lock(tools.profile(KERNEL)), plan.platform, plan.python)
        folder = prefix(project, KERNEL, plan.python)
    except (InvalidError, ToolError) as error:
        raise type(error)(
            f"what a kernel needs cannot be put beside the environment: {error.message}", hint
        ) from error
    return folder / "lib" / f"python{plan.python}" / "site-packages", _version(target)


def _version(target: Target) -> str:
    """Return the locked version of ipykernel; empty if there is none."""
    wheels = target.of_kind("wheel")
    return next((file.version for file in wheels if file.name == kernels.PACKAGE), "")
