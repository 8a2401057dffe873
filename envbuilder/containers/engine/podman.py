"""The podman engine, accessed through podman's own client, whether or not it has a socket.

podman's Docker-compatible socket has no BuildKit and silently ignores parts of requests. For builds
and runs, the `podman` command is used instead, with `--url` if an engine is configured.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec.structs import replace

from envbuilder.containers.engine import cdi
from envbuilder.containers.engine.container import NO_LABELS, Container, Limits, limits
from envbuilder.containers.engine.interface import (
    BuildCommand,
    Endpoint,
    Engine,
    Image,
)
from envbuilder.containers.oci import archive
from envbuilder.containers.oci.layout import INDEX, MARK, Descriptor, Index, Layout
from envbuilder.containers.oci.reference import qualified
from envbuilder.core import process, types
from envbuilder.core.errors import BuildError, ToolError, VerifyError
from envbuilder.core.text import version_numbers

OLDEST = (4, 8)
"""Oldest supported version of podman.

According to podman's release notes, `--build-context` was added in 4.2, `RUN --network` in 4.5
(Buildah 1.30), and heredocs and `ADD --checksum` in 4.8 (Buildah 1.33).
"""
_GPU = "nvidia.com/gpu"
"""Kind of the devices that NVIDIA's toolkit writes to Container Device Interface (CDI) files."""
_UNLIMITED = Limits()
_SECONDS = 60.0
_TRANSFER_SECONDS = 1800.0
"""Timeout in seconds for transferring an image. It is long because podman unpacks the whole image
during the transfer."""
_HINT = f"Install podman {OLDEST[0]}.{OLDEST[1]} or newer, use Docker, or use --backend venv."


class PodmanEngine(Engine):
    """The podman engine, accessed through its client."""

    removal = ("rm", "--force", "--time", "0", "--ignore")
    receives_layers = False  # it reads those that it lacks from the layout itself

    def __init__(
        self,
        command: Sequence[str],
        *,
        rootless: bool,
        remote: bool = False,
        limits: Limits = _UNLIMITED,
    ) -> None:
        """Create an engine to which the client's command line `command` connects.

        If `remote` is true, a service does the work. The service may be on another machine, and it
        cannot read local files.
        """
        self.command = tuple(command)
        self.rootless = rootless
        self._remote = remote
        self._limits = limits

    def close(self) -> None:
        """Do nothing, because each command opens and closes its own connection."""

    def pull_name(self, ref: str) -> str:
        """Return the reference with its registry, because podman does not assume Docker Hub."""
        return qualified(ref)

    def files(
        self, ref: str, platform: str, paths: Sequence[str], limit: int
    ) -> dict[str, bytes] | None:
        """Return None, because podman's client can only copy whole folders out of images."""
        del ref, platform, paths, limit
        return None

    def save(self, image: Image, folder: Path) -> None:
        """Export an image as an OCI layout in a new folder."""
        saved = folder.with_name("saved.tar")
        target = ("--format", "oci-archive", "--output", str(saved))
        self._transfer("save", "--quiet", *target, image.id)
        archive.unpack(saved, folder)

    def load(self, layout: Layout, names: Sequence[str], without: Collection[types.Digest]) -> None:
        """Load the only image in a layout, then give it the names in `names`.

        The image is loaded without names, because podman loads nothing if the index has several
        entries. A local podman reads the blobs from the layout itself, and skips the blobs that it
        already has. A remote podman receives all blobs in an archive.
        """
        del without
        image = layout.index().manifests[0]
        with TemporaryDirectory(prefix=".part-", dir=layout.folder.parent) as scratch:
            single = _nameless(layout, image, Path(scratch) / "image")
            if self._remote:
                archive.write(single, Path(scratch) / "image.tar")
                self._transfer("load", "--quiet", "--input", str(Path(scratch) / "image.tar"))
            else:
                # A relative path: podman cuts a path off at its first colon.
                self._transfer("pull", "--quiet", "oci:image", cwd=Path(scratch))
        config = layout.read_manifest(image).config.digest
        for name in names:
            self._transfer("tag", config.removeprefix("sha256:"), name)

    def tag(self, image: Image, name: str) -> None:
        """Give an image an additional name.

        If another image has the name, that image loses it. Raise `BuildError` if podman fails.
        """
        self._transfer("tag", image.id.removeprefix("sha256:"), name)

    def _inspect(self, ref: str) -> dict[str, Any] | None:
        done = self._query("image", "inspect", ref)
        if done.returncode != 0:
            if re.search(r"image not known|no such image", done.stderr, re.IGNORECASE):
                return None
            raise ToolError(f"podman cannot inspect {ref}: {done.last_words}")
        data: dict[str, Any] = json.loads(done.stdout)[0]
        return data

    def _list(self, label: str) -> Sequence[dict[str, Any]]:
        return self._listed("list its images", "images", "--filter", f"label={label}")

    def _remove(self, ref: str) -> None:
        self._removed(ref, self._query("rmi", ref))

    def _removed(self, name: str, done: process.Completed) -> None:
        if done.returncode != 0:
            raise BuildError(
                f"{name}: cannot be removed: {done.last_words}",
                "Stop the containers that use it, then try again.",
            )

    @property
    def build_command(self) -> BuildCommand:
        """The command with which podman builds images."""
        # One layer for the whole final stage.
        return BuildCommand(
            builder="buildah",
            argv=(*self.command, "build", "--layers=false", *NO_LABELS),
            digests_option="--iidfile",
            version_argv=(*self.command, "info"),
        )

    def require_builder(self) -> None:
        """Do nothing, because podman is its own builder and has already answered."""

    def _list_volumes(self, label: str) -> Sequence[dict[str, Any]]:
        return self._listed("list its volumes", "volume", "ls", "--filter", f"label={label}")

    def remove_volume(self, name: str) -> None:
        """Remove a volume. Raise `BuildError` if it is in use or podman fails."""
        self._removed(name, self._query("volume", "rm", name))

    def _make_volume(self, name: str, container: Container, labels: Mapping[str, str]) -> None:
        # A new volume gets the owner of the first container that uses it.
        del container
        options = [f"--label={key}={value}" for key, value in labels.items()]
        words = ("volume", "create", "--ignore", *options, name)
        self._answer(f"create the volume {name}", *words)

    def _list_containers(self) -> Sequence[dict[str, Any]]:
        return self._listed("list its containers", "ps")

    def knows_gpus(self) -> bool:
        """Return whether CDI files written by NVIDIA's toolkit describe the GPUs to podman."""
        return any(name.startswith(f"{_GPU}=") for name in cdi.devices(cdi.FOLDERS))

    def cdi_devices(self) -> frozenset[str]:
        """Return the devices in this machine's CDI files, or no devices if podman is remote."""
        return frozenset() if self._remote else cdi.devices(cdi.FOLDERS)

    @property
    def limits(self) -> Limits:
        """Limits on the resources that a container may use on podman's machine."""
        return self._limits

    def _user_flags(self, container: Container) -> tuple[str, ...]:
        # Else root inside would be this user, and any other user inside a stranger to the host.
        mapping = ("--userns", "keep-id") if self.rootless and container.project else ()
        return (*super()._user_flags(container), *mapping)

    def _home_options(self, container: Container) -> str:
        # runc keeps the folder's mode in the image, whatever is given here: so it is the user's.
        return "mode=1777,U"

    def _isolated_run(self, folder: str) -> tuple[tuple[str, ...], dict[str, str]]:
        # A remote client cannot pass on variables, and has no option against that.
        variables = () if self._remote else ("--env-host=false",)
        return (*self.command, "run", "--http-proxy=false", *variables), {}

    def _not_started(self, words: str) -> VerifyError | ToolError:
        if "CDI devices" in words:
            return ToolError(
                f"podman cannot find the device: {words}",
                "Install the vendor's container toolkit, and run `nvidia-ctk cdi generate"
                " --output=/etc/cdi/nvidia.yaml` or `amd-ctk cdi generate"
                " --output=/etc/cdi/amd.json`. Or use --force to omit the device flags.",
            )
        if "no such file or directory" in words and "/dev/" in words:
            return ToolError(
                f"podman cannot pass the device to the container: {words}",
                "Install the GPU's driver, or use --force to omit the device flags.",
            )
        return VerifyError(f"the container cannot be started: {words}")

    def _gpu_flags(self, gpus: str) -> tuple[str, ...]:
        return ("--device", f"{_GPU}={gpus}") if gpus else ()

    def _query(self, *arguments: str) -> process.Completed:
        return process.run([*self.command, *arguments], timeout=_SECONDS)

    def _answer(self, what: str, *arguments: str) -> str:
        """Run a podman command and return its output.

        Raise `ToolError` if the command fails. `what` describes the command in this error.
        """
        done = self._query(*arguments)
        if done.returncode != 0:
            raise ToolError(f"podman cannot {what}: {done.last_words}")
        return done.stdout

    def _listed(self, what: str, *arguments: str) -> Sequence[dict[str, Any]]:
        """Run a podman command that prints a JSON list, and return the list."""
        answer = self._answer(what, *arguments, "--format", "json")
        items: list[dict[str, Any]] | None = json.loads(answer or "[]")
        return items or ()

    def _transfer(self, *arguments: str, cwd: Path | None = None) -> None:
        done = process.run([*self.command, *arguments], timeout=_TRANSFER_SECONDS, cwd=cwd)
        if done.returncode != 0:
            raise BuildError(f"podman {arguments[0]}: {done.last_words or done.status}")


def connect(url: str | None) -> PodmanEngine:
    """Connect to the podman at `url`, or to this user's own podman if `url` is None.

    Raise `ToolError` if podman is missing, does not answer, or is too old.
    """
    if process.which("podman") is None:
        raise ToolError("podman's socket answers, but the podman client is not on PATH", _HINT)
    command = ("podman", "--url", url) if url else ("podman",)
    client = process.run(["podman", "--version"], timeout=_SECONDS)
    if client.returncode != 0:
        raise ToolError(f"the podman client does not work: {client.last_words}", _HINT)
    _require(client.stdout.strip().rpartition(" ")[2], "the podman client")
    done = process.run([*command, "info", "--format", "json"], timeout=_SECONDS)
    try:
        info = json.loads(done.stdout)
        version = info["version"]["Version"]
        machine = info["host"]
        rootless = bool(machine["security"]["rootless"])
        remote = bool(machine.get("serviceIsRemote"))
        allowed = _limits(machine)
    except (ValueError, KeyError, TypeError) as error:
        raise ToolError(f"podman does not answer: {done.last_words}", _HINT) from error
    _require(version, "podman")
    engine = PodmanEngine(command, rootless=rootless, remote=remote, limits=allowed)
    engine.socket = Endpoint(url=url).socket
    return engine


def _limits(machine: dict[str, Any]) -> Limits:
    """Return limits for the machine that podman describes in `machine`.

    A limit is 0 if this user is not allowed to set it.
    """
    controllers = machine.get("cgroupControllers") or ()
    return limits(
        int(machine.get("memTotal") or 0) if "memory" in controllers else 0,
        int(machine.get("cpus") or 0) if "pids" in controllers else 0,
    )


def _require(version: str, program: str) -> None:
    if version_numbers(version) < OLDEST:
        oldest = f"{OLDEST[0]}.{OLDEST[1]}"
        raise ToolError(
            f"{program} {version or '(unknown version)'} is too old: {oldest} or newer is needed",
            _HINT,
        )


def _nameless(layout: Layout, image: Descriptor, folder: Path) -> Layout:
    """Create a layout in the new folder `folder` that contains one image without its names.

    The blobs are links to those in the original layout.
    """
    single = Layout(folder)
    folder.mkdir()
    (folder / MARK).symlink_to((layout.folder / MARK).resolve())
    (folder / "blobs").symlink_to((layout.folder / "blobs").resolve())
    entry = replace(image, annotations={})
    single.write_index(Index(schema_version=2, media_type=INDEX, manifests=(entry,)))
    return single
