"""Kernel specifications: how Jupyter and editors start a kernel in an environment.

A specification names this envbuilder, the project and what was chosen, never an environment's
folder: after a new lock, the kernel runs in the new environment.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, to_builtins

from envbuilder.build.request import Request
from envbuilder.core import decoding, files
from envbuilder.core.errors import InvalidError
from envbuilder.core.files import save

if TYPE_CHECKING:
    from collections.abc import Mapping

PACKAGE = "ipykernel"
_CURVE = (7, 3)
"""The first version of ipykernel that encrypts its connections."""
_LARGEST = 64 << 10
_FILE = "kernel.json"
_FOLDERS = ("ENVBUILDER_CACHE_DIR", "ENVBUILDER_CONFIG_DIR", "ENVBUILDER_DATA_DIR")


class Choice(Struct, frozen=True, kw_only=True):
    """An environment of a project, and what chooses how it is built."""

    project: Path
    environment: str
    request: Request

    @property
    def title(self) -> str:
        """What a user sees in a list of kernels."""
        return f"{self.project.name} ({self.environment})"

    def command(self, *words: str) -> tuple[str, ...]:
        """Return a command of this envbuilder, which any folder and any PATH can run."""
        options = {
            "--environment": self.environment,
            "--profile": self.request.profile,
            "--backend": self.request.backend,
            "--python-version": self.request.python,
            "--base-image": self.request.base_image,
        }
        stated = (word for name, value in options.items() if value for word in (name, value))
        # -P: a file of the notebook's folder shadows no module.
        return (sys.executable, "-P", "-m", "envbuilder", words[0], *stated, *words[1:])


class Spec(Struct, frozen=True, kw_only=True):
    """The content of `kernel.json`."""

    argv: tuple[str, ...]
    env: dict[str, str]
    display_name: str
    language: str = "python"
    interrupt_mode: str = "message"
    """A signal would reach the launcher or a container's client, not the kernel."""
    metadata: dict[str, Any]


def spec(choice: Choice, version: str, environ: Mapping[str, str]) -> Spec:
    """Return how the kernel of an environment is started, whose lock has `version` of ipykernel."""
    # Quiet: what is used was said when JupyterLab started, and each kernel would say it again.
    project = ("--quiet", "--project", str(choice.project))
    encrypts = tuple(map(int, re.findall(r"\d+", version)[:2])) >= _CURVE
    return Spec(
        argv=choice.command("jupyter", *project, "--connection-file", "{connection_file}"),
        # An editor that the desktop started lacks what a shell's startup files set.
        env={name: environ[name] for name in _FOLDERS if environ.get(name)},
        display_name=choice.title,
        metadata={
            "debugger": True,
            **({"supported_encryption": "curve"} if encrypts else {}),
            "envbuilder": {"project": str(choice.project), "environment": choice.environment},
        },
    )


def data_folder(environ: Mapping[str, str], home: Path, system: str = sys.platform) -> Path:
    """Return the folder in which a user's Jupyter and editors look for kernels."""
    if environ.get("JUPYTER_DATA_DIR"):
        return Path(environ["JUPYTER_DATA_DIR"])
    if system == "darwin":
        return home / "Library" / "Jupyter"
    return Path(environ.get("XDG_DATA_HOME") or home / ".local" / "share") / "jupyter"


def install(choice: Choice, content: Spec, data: Path) -> Path:
    """Write a specification into a user's data folder; return the folder of the kernel."""
    folders = _folders(choice, data)
    folder = _installed(choice, data) or next((f for f in folders if not f.exists()), folders[-1])
    text = json.dumps(to_builtins(content), indent=1, ensure_ascii=False) + "\n"
    save(folder / _FILE, text.encode(), InvalidError, "Set JUPYTER_DATA_DIR to a folder of yours.")
    return folder


def remove(choice: Choice, data: Path) -> Path | None:
    """Remove a project's specification from a user's data folder; None if it has none."""
    folder = _installed(choice, data)
    if folder is None:
        return None
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise InvalidError(f"{folder}: cannot be removed: {error.strerror or error}") from error
    return folder


def _folders(choice: Choice, data: Path) -> tuple[Path, Path]:
    """Return a kernel's folder, and the one it gets if another folder's project has that already.

    Its name is the kernel's. Notebooks store that, so it is the same on every machine if it can be.
    """
    words = f"envbuilder-{choice.project.name}-{choice.environment}".lower()
    name = re.sub(r"[^a-z0-9]+", "-", words).strip("-")
    digest = hashlib.sha256(str(choice.project).encode()).hexdigest()
    kernels = data / "kernels"
    return kernels / name, kernels / f"{name}-{digest[:6]}"


def _installed(choice: Choice, data: Path) -> Path | None:
    """Return the folder in which the kernel is installed already, if it is."""
    expected = {"project": str(choice.project), "environment": choice.environment}
    for folder in _folders(choice, data):
        try:
            content = decoding.strict_json(files.read(folder / _FILE, _LARGEST))
            if content["metadata"]["envbuilder"] == expected:
                return folder
        except (OSError, ValueError, LookupError, TypeError):
            continue  # not there, or not ours
    return None
