"""The command that serves JupyterLab: its own Python runs `inside/serve.py`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from envbuilder.core import ownership
from envbuilder.notebooks.inside import SERVE
from envbuilder.notebooks.kernel_spec import Spec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

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
