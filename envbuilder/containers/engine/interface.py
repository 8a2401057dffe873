"""The interface of the engines in `docker.py` and `podman.py`, and the endpoints of engines.

If an engine fails, its methods raise a `ToolError`, `BuildError` or `VerifyError` with advice.
"""

from __future__ import annotations

import abc
import os
import secrets
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal, Self

from msgspec import Struct

from envbuilder.containers.engine.container import Container, Limits, run_flags
from envbuilder.core import process, types
from envbuilder.core.errors import BuildError, ToolError, VerifyError
from envbuilder.core.text import version_numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from envbuilder.containers.oci.layout import Layout

LABEL = "io.envbuilder."
VOLUME_LABEL = f"{LABEL}volume"
_NO_NAME = "<none>:<none>"
_SECONDS = 60.0
_CLIENT_FAILURES = frozenset({125, 126, 127})
"""Exit codes with which the client itself fails. All other exit codes come from the container."""


class Image(Struct, frozen=True, kw_only=True):
    """An image in the engine, with its id, tags and labels."""

    id: str
    """Digest of the image's configuration or manifest, depending on which of them the engine uses
    as the id."""
    tags: tuple[str, ...]
    labels: dict[str, str]


class StoredVolume(Struct, frozen=True, kw_only=True):
    """A volume in the engine."""

    name: str
    labels: dict[str, str]


class BuildCommand(Struct, frozen=True, kw_only=True):
    """The command with which an engine builds images, and the capabilities of its builder."""

    builder: Literal["buildkit", "buildah"]
    argv: tuple[str, ...]
    """The build command, without the options that are the same for all engines."""
    digests_option: str
    """Name of the option that specifies the file to which the builder writes the image's
    digests."""
    version_argv: tuple[str, ...]
    """The command that prints the builder's version."""
    docker_version: str = ""
    """Version of Docker, if the builder is part of Docker; empty for other engines."""
    takes_epoch: bool = False
    """Whether the builder takes its timestamps from the build argument SOURCE_DATE_EPOCH."""
    layout_argv: tuple[str, ...] = ()
    """The build command that writes an OCI layout instead of storing the image in the engine.

    The layout's folder must be appended to the last argument, which ends in `dest=`. Empty if the
    builder cannot write layouts.
    """
    exports_layouts: bool = True
    """Whether the engine can export images as OCI layouts."""
    keeps_blobs: bool = False
    """Whether the engine stores layers exactly as it receives them, so that they need not be sent
    again."""
    storage: str = ""
    """Folder in which the engine stores images; empty if it is unknown or not on this machine."""


class Engine(abc.ABC):
    """A container engine that answers and is recent enough.

    An engine can be used as a context manager, which closes the connections at the end.
    """

    command: tuple[str, ...]
    """Command line of the client, including the flags that select this engine."""
    rootless: bool = False
    """Whether the engine maps users, so that root in a container is this user on the host."""
    receives_layers: bool = True
    """Whether `load` sends layers, so that knowing which layers the engine has saves time."""
    removal: tuple[str, ...]
    """The client's subcommand that removes a container, even if the container is running."""
    socket: Path | None = None
    """Unix socket of the engine. None if the engine has no socket on this machine."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @abc.abstractmethod
    def close(self) -> None:
        """Close all connections to the engine."""

    # --- images

    def image(self, ref: str) -> Image | None:
        """Look up an image by tag or id. Return None if the engine does not have the image."""
        data = self._inspect(ref)
        return None if data is None else _described(data)

    def variables(self, ref: str) -> tuple[str, ...]:
        """Return the variables that an image sets, as `NAME=VALUE`.

        Return an empty tuple if the engine no longer has the image.
        """
        data = self._inspect(ref) or {}
        return tuple(map(str, (data.get("Config") or {}).get("Env") or ()))

    def labelled(self) -> tuple[Image, ...]:
        """Return all images with envbuilder's label, including those that only inherited it."""
        images = {i.id: i for i in map(_described, self._list(f"{LABEL}fingerprint"))}
        return tuple(images[key] for key in sorted(images))

    def shares(self) -> dict[str, int]:
        """Return the number of bytes that each image shares with no other image, by image id.

        Images of unknown size are omitted.
        """
        return {}

    def pull(self, ref: str, platform: str) -> None:
        """Pull an image from its registry. Raise `BuildError` if this fails."""
        done = process.run([*self.command, "pull", "--quiet", "--platform", platform, ref])
        if done.returncode != 0:
            raise BuildError(f"{ref}: cannot be pulled: {done.last_words}", no_base(ref))

    def forget(self, ref: str) -> None:
        """Remove a tag if the engine has it. Raise `BuildError` if it cannot be removed."""
        if self.image(ref) is not None:
            self.remove(ref)

    def remove(self, ref: str, only: str = "") -> None:
        """Remove an image by tag, but not its parent images.

        Raise `BuildError` if the image is in use or the engine fails. If `only` is the id of an
        image, also raise it if the tag does not refer to that image.
        """
        if only and ((image := self.image(ref)) is None or image.id != only):
            raise BuildError(
                f"{ref} now refers to another image, or to none", "Run the same command again."
            )
        self._remove(ref)

    def pull_name(self, ref: str) -> str:
        """Return the reference that the engine needs in order to pull the image `ref`."""
        return ref

    @abc.abstractmethod
    def files(
        self, ref: str, platform: str, paths: Sequence[str], limit: int
    ) -> dict[str, bytes] | None:
        """Return the content of an image's files at or below the given paths, by path.

        `limit` is the maximum number of bytes for each of the given paths. Return None if the
        engine does not have the image for this platform, or cannot export single files.
        """

    @abc.abstractmethod
    def save(self, image: Image, folder: Path) -> None:
        """Export an image as an OCI layout in a new folder."""

    @abc.abstractmethod
    def load(self, layout: Layout, names: Sequence[str], without: Collection[types.Digest]) -> None:
        """Load the only image in a layout under the given names.

        The blobs in `without` are already in the engine, and therefore need not be sent.
        """

    @abc.abstractmethod
    def tag(self, image: Image, name: str) -> None:
        """Give an image an additional name.

        If another image has the name, that image loses it. Raise `BuildError` if the engine fails.
        """

    @abc.abstractmethod
    def _inspect(self, ref: str) -> dict[str, Any] | None:
        """Return the engine's report about an image, or None if it does not have the image."""

    @abc.abstractmethod
    def _list(self, label: str) -> Sequence[dict[str, Any]]:
        """Return the engine's report about each image that has this label."""

    @abc.abstractmethod
    def _remove(self, ref: str) -> None:
        """Remove an image by tag or id."""

    # --- builds

    @property
    @abc.abstractmethod
    def build_command(self) -> BuildCommand:
        """The command with which this engine builds images."""

    @abc.abstractmethod
    def require_builder(self) -> None:
        """Raise `ToolError` (exit 4) if a program that builds need is missing or too old."""

    # --- volumes

    def make_volumes(self, container: Container, labels: Mapping[str, str]) -> None:
        """Create the volumes of a container that do not exist yet, owned by the container's user.

        Raise `ToolError` if a volume cannot be created.
        """
        for volume in container.volumes:
            if not volume.is_folder:
                self._make_volume(volume.source, container, labels)

    def volumes(self) -> tuple[StoredVolume, ...]:
        """Return all volumes that have envbuilder's label."""
        labels = {v["Name"]: dict(v.get("Labels") or {}) for v in self._list_volumes(VOLUME_LABEL)}
        return tuple(StoredVolume(name=name, labels=labels[name]) for name in sorted(labels))

    @abc.abstractmethod
    def _list_volumes(self, label: str) -> Sequence[dict[str, Any]]:
        """Return the engine's report about each volume that has this label."""

    @abc.abstractmethod
    def remove_volume(self, name: str) -> None:
        """Remove a volume. Raise `BuildError` if it is in use or the engine fails."""

    @abc.abstractmethod
    def _make_volume(self, name: str, container: Container, labels: Mapping[str, str]) -> None:
        """Create a volume owned by the container's user, unless the volume exists already."""

    # --- containers

    def used(self) -> frozenset[str]:
        """Return the ids of the images that running containers use."""
        return frozenset(
            f"sha256:{str(running['ImageID']).removeprefix('sha256:')}"
            for running in self._list_containers()
        )

    @abc.abstractmethod
    def _list_containers(self) -> Sequence[dict[str, Any]]:
        """Return the engine's report about each running container."""

    def run(
        self, container: Container, on_stdout: Callable[[str], None], timeout: float
    ) -> process.Completed:
        """Run a container until it ends or `timeout` (in seconds) expires, then remove it.

        `on_stdout` is called with each line of the container's output. Raise `VerifyError` if the
        container cannot be started or the engine goes away, and `ToolError` if the engine cannot
        provide the device that the container needs.
        """
        name = _new_name()
        # podman leaves a file `oom` in its working folder when memory runs out.
        with TemporaryDirectory() as folder:
            command, variables = self._isolated_run(folder)
            started = (*command, "--rm", "--pull=never", "--name", name)
            if container.is_held:
                started += ("--interactive",)
            try:
                done = process.run(
                    [*started, *self._flags(container), *container.words],
                    env=variables,
                    cwd=Path(folder),
                    timeout=timeout,
                    on_stdout=on_stdout,
                    holds_stdin=container.is_held,
                )
            finally:
                # Killing the waiting client does not stop the container.
                process.run([*self.command, *self.removal, name], timeout=_SECONDS)
        if done.returncode in _CLIENT_FAILURES and not done.timed_out:
            raise self._not_started(done.last_words)
        return done

    @abc.abstractmethod
    def knows_gpus(self) -> bool:
        """Return whether the engine can provide NVIDIA GPUs to containers."""

    @abc.abstractmethod
    def cdi_devices(self) -> frozenset[str]:
        """Return the names of the devices that the engine can provide to containers through CDI."""

    def foreground(self, container: Container, *, terminal: bool) -> tuple[str, ...]:
        """Return the client's command that runs a container in place of this process.

        Also ensure that the container is removed when the process ends, even if the process is
        killed. Engines do not ensure this by themselves.
        """
        name = _new_name()
        process.when_ended((*self.command, *self.removal, name))
        return self.run_command(container, terminal=terminal, name=name)

    def run_command(
        self, container: Container, *, terminal: bool, name: str = ""
    ) -> tuple[str, ...]:
        """Return the client's command that runs a container in the foreground, then removes it."""
        words = [*self.command, "run", "--rm", "--pull=never", "--interactive"]
        if name:
            words += ["--name", name]
        if terminal:
            words.append("--tty")
        return (*words, *self._flags(container), *container.words)

    def _flags(self, container: Container) -> tuple[str, ...]:
        """Return the flags of the client's `run` command for a container."""
        return run_flags(
            container,
            user=self._user_flags(container),
            home_options=self._home_options(container),
            gpus=self._gpu_flags(container.devices.gpus) if container.devices else (),
            keep_groups=self.rootless,
        )

    @property
    @abc.abstractmethod
    def limits(self) -> Limits:
        """Limits on the resources that a container may use on the engine's machine."""

    def _user_flags(self, container: Container) -> tuple[str, ...]:
        """Return the flags of the client's `run` command that set the container's user.

        If the container has a project, the container's user is a user of the host.
        """
        return ("--user", container.user)

    @abc.abstractmethod
    def _isolated_run(self, folder: str) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return the client's `run` command, and the variables with which to run the client.

        The user's client settings are disabled, because they could add variables and proxies to
        containers. `folder` is an empty folder.
        """

    @abc.abstractmethod
    def _not_started(self, words: str) -> VerifyError | ToolError:
        """Return the error for a container that did not start.

        `words` is the client's output.
        """

    @abc.abstractmethod
    def _home_options(self, container: Container) -> str:
        """Return the options of `--tmpfs` for a folder that is owned by the container's user."""

    @abc.abstractmethod
    def _gpu_flags(self, gpus: str) -> tuple[str, ...]:
        """Return the flags of the client's `run` command that provide NVIDIA GPUs.

        `gpus` is a value for Docker's `--gpus`.
        """


def _new_name() -> str:
    """Return a new random name for a container."""
    return f"envbuilder-{secrets.token_hex(6)}"


def _described(data: dict[str, Any]) -> Image:
    """Convert the engine's report about an image to an `Image`."""
    tags = data.get("RepoTags") or data.get("Names") or ()
    labels = data.get("Labels") or (data.get("Config") or {}).get("Labels") or {}
    return Image(
        id=f"sha256:{data['Id'].removeprefix('sha256:')}",
        tags=tuple(tag for tag in tags if tag != _NO_NAME),
        labels={str(k): str(v) for k, v in labels.items()},
    )


def no_base(ref: str) -> str:
    """Return the hint to show if a base image is missing and cannot be pulled."""
    return (
        f"The base image {ref} is not in the engine and cannot be pulled. Name another image with"
        " ENVBUILDER_BASE_IMAGE=REF, or set a mirror in envbuilder.yaml (base_images:)."
    )


def short(error: Exception) -> str:
    """Return a short description of the error that an engine reported."""
    text = str(error)
    for cause in ("Permission denied", "No such file or directory", "Connection refused"):
        if cause in text:
            return cause.lower()
    return text.partition("\n")[0][:200] or type(error).__name__


_SOCKET = "/var/run/docker.sock"


class Endpoint(Struct, frozen=True, kw_only=True):
    """The address of an engine, with the settings that are needed to connect to it."""

    url: str | None
    tls: Any = None
    builder: str = "default"
    flags: tuple[str, ...] = ()
    named: bool = True
    """Whether the user configured the endpoint. False if it was found at a default path."""

    @property
    def socket(self) -> Path | None:
        """The path of the Unix socket, or None if the endpoint is not a Unix socket."""
        path = (self.url or "").removeprefix("unix://")
        return Path(path) if path.startswith("/") else None

    @property
    def explicit_flags(self) -> tuple[str, ...]:
        """Flags that make the docker client use this endpoint, regardless of its configuration."""
        words = ["--host", self.url or ""]
        if self.tls:
            words.append("--tlsverify" if self.tls.verify else "--tls")
            certificate, key = self.tls.cert or ("", "")
            for name, file in (("cacert", self.tls.ca_cert), ("cert", certificate), ("key", key)):
                if file:
                    words += [f"--tls{name}", str(file)]
        return tuple(words)

    def may_be_opened(self) -> bool:
        """Return whether this user is allowed to open the endpoint.

        Only the permissions of Unix sockets are checked. For any other URL, return True. For an
        endpoint without a URL, return False.
        """
        path = (self.url or "").removeprefix("unix://")
        return bool(self.url) and (path == self.url or os.access(path, os.R_OK | os.W_OK))


def find_docker() -> Endpoint:
    """Return the endpoint that the docker client would use. If there is none, `url` is None.

    Raise `ToolError` if the docker context cannot be read.
    """
    import docker.utils

    if os.environ.get("DOCKER_HOST"):
        options = docker.utils.kwargs_from_env()
        return Endpoint(url=options["base_url"], tls=options.get("tls"))
    context = _context()
    if context is not None:
        return Endpoint(url=str(context.Host), tls=context.TLSConfig, builder=context.name)
    if Path(_SOCKET).exists():
        return Endpoint(url=f"unix://{_SOCKET}", named=False)
    if _rootless().exists():
        url = f"unix://{_rootless()}"
        return Endpoint(url=url, flags=("--host", url), named=False)
    return Endpoint(url=None, named=False)


def configured_docker() -> bool:
    """Return whether a container engine seems to be installed or configured.

    This is assumed if the variable DOCKER_HOST is set, or if there is a docker context, a socket,
    or podman on PATH.
    """
    context = Path(os.environ.get("DOCKER_CONFIG", Path.home() / ".docker")) / "contexts" / "meta"
    return (
        bool(os.environ.get("DOCKER_HOST"))
        or context.is_dir()
        or any(Path(s).exists() for s in (_SOCKET, _rootless()))
        or process.which("podman") is not None
    )


def _context() -> Any:
    """Return the configured docker context, or None if only the default context is in use.

    Raise `ToolError` if the context cannot be read.
    """
    from docker.context import ContextAPI

    name = os.environ.get("DOCKER_CONTEXT")
    try:
        context: Any = ContextAPI.get_context(name)
    except Exception as error:  # the SDK raises bare exceptions
        raise ToolError(f"the docker context cannot be read: {short(error)}") from error
    if context is None and name:
        raise ToolError(
            f"there is no docker context '{name}'", "To list the contexts, run: docker context ls"
        )
    if context is not None and context.Host and context.name != "default":
        return context
    return None


def _rootless() -> Path:
    return Path(os.environ.get("XDG_RUNTIME_DIR", "/nonexistent")) / "docker.sock"


# --- the plugin

OLDEST_BUILDX = (0, 10)
_CLIENT_SECONDS = 60
_CLIENT_HINT = (
    "Install the docker client with its buildx plugin (packages docker-cli and docker-buildx, or"
    " docker-buildx-plugin), or use --backend venv."
)


def require_plugin() -> None:
    """Raise `ToolError` (exit 4) if the docker client or a recent enough buildx is missing."""
    require_client()
    done = process.run(["docker", "buildx", "version"], timeout=_CLIENT_SECONDS)
    if done.returncode != 0:
        raise ToolError("the docker client has no buildx plugin", _CLIENT_HINT)
    text = next((w for w in done.stdout.split() if w[:1] in "v0123456789" and "." in w), "")
    if version_numbers(text) < OLDEST_BUILDX:
        raise ToolError(
            f"buildx {text or '(unknown)'} is too old: 0.10 or newer is needed", _CLIENT_HINT
        )


def require_client() -> None:
    """Raise `ToolError` (exit 4) if the docker client is missing."""
    if process.which("docker") is None:
        raise ToolError("the docker client is not on PATH", _CLIENT_HINT)
