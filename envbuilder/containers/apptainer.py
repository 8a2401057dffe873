"""Apptainer: read the labels of an image file, and run a program in it, isolated from the host."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

from msgspec import Struct

from envbuilder.containers.engine.container import Devices, Volume as Bound, bound, mount
from envbuilder.core import decoding, process
from envbuilder.core.errors import InvalidError, ToolError, printable
from envbuilder.core.text import version_numbers

PROGRAM = "apptainer"
DRIVERS = "/.singularity.d/libs"
"""Folder in a container that contains the host's driver libraries, if there are any."""
FAILED = 255
"""Exit code of Apptainer's own failures. All other exit codes are the program's."""
_OLDEST = (1, 2)
"""Oldest version that supports `--no-mount bind-paths`; 1.1 ignores it with a warning."""
_TMP = "/tmp"  # noqa: S108 (the container's own)
_LABELS_SECONDS = 60.0
TEMPORARY = "APPTAINER_TMPDIR"
"""Variable that names the folder in which Apptainer unpacks images that it cannot mount."""
_PASSED = ("APPTAINER_CACHEDIR", "APPTAINER_CONFIGDIR")
"""The user's variables that are passed to Apptainer; they name the folders of its own files.

Other variables of Apptainer bind the user's paths into every container, or change the program that
starts in it.
"""


class Execution(Struct, frozen=True, kw_only=True):
    """A program to run in an image, isolated from the host.

    It has no network, its own process namespace and a minimal /dev.
    """

    image: Path
    argv: tuple[str, ...]
    variables: Mapping[str, str]
    """Variables to set in addition to the image's own."""
    mounts: Mapping[str, str]
    """Files and folders of the host → their read-only paths in the container."""
    devices: Devices
    scratch: Path
    """Folder of the host for the container's /tmp and home folder, and for an unpacked image.

    Apptainer does not clean it up if it is killed.
    """
    writable: Mapping[str, str] = {}
    """Folders of the host → their writable paths in the container."""

    @property
    def command(self) -> tuple[str, ...]:
        """The command line that runs the program, without the variables."""
        binds = [bound(source, target) for source, target in self.mounts.items()]
        binds += [bound(s, target, writable=True) for s, target in self.writable.items()]
        nodes = self.devices.nodes
        binds += [mount(Bound(source=node, target=node)) for node in nodes]
        for path in self.devices.volumes:
            if not any(map(PurePath(path).is_relative_to, nodes)):
                binds.append(bound(path, path))
        words = [
            PROGRAM,
            "--quiet",
            "exec",
            "--containall",
            "--no-mount",
            "bind-paths",
            # Else the container's shell would evaluate the variables' values.
            "--no-eval",
            "--net",
            "--network",
            "none",
            "--workdir",
            str(self.scratch / "work"),
            "--pwd",
            _TMP,
        ]
        # Not --rocm for AMD: it puts the host's ROCm in front of the wheels' own.
        if self.devices.gpus:
            words.append("--nv")
        for bind in binds:
            words += ["--mount", bind]
        return (*words, str(self.image), *self.argv)

    def environment(self, base: Mapping[str, str], caller: Mapping[str, str]) -> dict[str, str]:
        """Return the variables for Apptainer's own process.

        These are `base`, the folders of Apptainer's own files (from the user's variables in
        `caller`), and the variables that Apptainer passes on to the program.
        """
        folders = {name: caller[name] for name in _PASSED if caller.get(name)}
        passed = {f"APPTAINERENV_{name}": value for name, value in self.variables.items()}
        return {**base, **folders, TEMPORARY: str(self.scratch), **passed}


def require() -> None:
    """Raise `ToolError` if Apptainer is missing or too old."""
    if process.which(PROGRAM) is None:
        raise ToolError(
            "apptainer not found: it is needed to run SIF images",
            "Load your site's apptainer module, or install it: https://apptainer.org",
        )
    output = process.run((PROGRAM, "--version")).stdout
    if version_numbers(output) < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        raise ToolError(
            f"{printable(output, 60) or 'apptainer'}: this Apptainer is too old, or it is another"
            " program",
            f"Install Apptainer {oldest} or newer: https://apptainer.org",
        )


def labels(image: Path) -> dict[str, str]:
    """Return an image's labels. Raise `InvalidError` if Apptainer cannot read the file."""
    done = process.run(
        (PROGRAM, "--quiet", "inspect", "--json", "--labels", str(image)), timeout=_LABELS_SECONDS
    )
    if done.returncode:
        raise InvalidError(f"{image}: Apptainer cannot read this image: {reason(done.stderr)}")
    try:
        value: Any = decoding.strict_json(done.stdout.encode())
        for key in ("data", "attributes", "labels"):
            value = value.get(key) or {}
        return {name: text for name, text in value.items() if isinstance(text, str)}
    except (ValueError, AttributeError) as error:
        raise InvalidError(f"{image}: its labels cannot be read: {error}") from error


def reason(stderr: str) -> str:
    """Return the line of Apptainer's stderr that says why it failed."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    fatal = [line.partition("FATAL:")[2].strip() for line in lines if "FATAL:" in line]
    return printable((fatal or lines[-1:] or ["it printed nothing"])[0], 300)
