"""Read the labels of Apptainer images, and run programs in them, isolated from the host."""

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
"""Folder in a container for the host's driver libraries, if the host has any."""
FAILED = 255
"""Exit code with which Apptainer itself fails. All other exit codes come from the program."""
_OLDEST = (1, 2)
"""Oldest version of Apptainer that supports `--no-mount bind-paths`. Version 1.1 prints a warning
and ignores the option."""
_TMP = "/tmp"  # noqa: S108 (the container's own)
_LABELS_SECONDS = 60.0
TEMPORARY = "APPTAINER_TMPDIR"
"""Name of the environment variable for the folder in which Apptainer unpacks images that it cannot
mount."""
_PASSED = ("APPTAINER_CACHEDIR", "APPTAINER_CONFIGDIR")
"""Names of the user's environment variables that Apptainer receives.

They specify folders for Apptainer's own files.

Other Apptainer variables mount the user's paths in every container, or change the program that is
started in it.
"""


class Execution(Struct, frozen=True, kw_only=True):
    """A program to run in an image, isolated from the host.

    The program has no network, its own process namespace, and a minimal /dev.
    """

    image: Path
    argv: tuple[str, ...]
    variables: Mapping[str, str]
    """Variables to set in addition to the image's own."""
    mounts: Mapping[str, str]
    """Path of a file or folder on the host → its path in the container, where it is read-only."""
    devices: Devices
    scratch: Path
    """Folder on the host for the container's /tmp and home folder, and for an unpacked image.

    Apptainer does not clean up this folder if it is killed.
    """
    writable: Mapping[str, str] = {}
    """Path of a folder on the host → its path in the container, where it is writable."""

    @property
    def command(self) -> tuple[str, ...]:
        """The command line that runs the program, without setting the program's variables."""
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
        """Return the variables to set for Apptainer's own process.

        These are the variables in `base`, those of the user's variables in `caller` that specify
        folders for Apptainer's own files, and the variables that Apptainer passes on to the
        program.
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
            f"{printable(output, 60) or 'apptainer'}: this program is too old, or it is not"
            " Apptainer",
            f"Install Apptainer {oldest} or newer: https://apptainer.org",
        )


def labels(image: Path) -> dict[str, str]:
    """Return an image file's labels. Raise `InvalidError` if Apptainer cannot read the file."""
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
        raise InvalidError(f"{image}: the image's labels cannot be read: {error}") from error


def reason(stderr: str) -> str:
    """Return the line in Apptainer's stderr output that says why Apptainer failed."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    fatal = [line.partition("FATAL:")[2].strip() for line in lines if "FATAL:" in line]
    return printable((fatal or lines[-1:] or ["it printed nothing"])[0], 300)
