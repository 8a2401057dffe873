"""JupyterLab: its environment, from a lock that envbuilder brings, and the command that serves it.

The environment is never part of the user's. Its own Python runs `inside/serve.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from envbuilder.build import pipeline
from envbuilder.build.backends import venv
from envbuilder.build.request import Build, Request
from envbuilder.core import ownership, resources
from envbuilder.core.project_file import DEFAULT
from envbuilder.notebooks.inside import SERVE
from envbuilder.notebooks.kernels import Spec
from envbuilder.profiles.library import Library

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from envbuilder.core.settings import Settings


class Server(Struct, frozen=True, kw_only=True):
    """What is served, and where."""

    folder: str
    """The folder whose files are shown."""
    port: int
    """0: the first free one from 8888 on."""
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


def library() -> Library:
    """Return the profiles of envbuilder's own tools; a user's profiles cannot replace them.

    Their locks come with envbuilder, as its code does: keys of the user's are not required of them.
    """
    shipped = resources.profiles_dir()
    return Library((shipped / "tools", shipped))


def prefix(project: Build) -> Path:
    """Build the environment if it is missing, and return its folder.

    `project` is the build of the kernel's environment.
    """
    tools = library()
    profile = tools.profile(NAME)
    # It is of no project, whose link to its own environment it must not take over.
    settings = replace(project.settings, project=None, definition=None, environment=DEFAULT)
    build = Build(
        request=Request(),
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
    return Path(done.result.artifact.ref)
