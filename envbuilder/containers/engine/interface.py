"""The interface of a container engine, which `docker.py` and `podman.py` implement; its endpoint.

An engine's failure is raised as a `ToolError`, `BuildError` or `VerifyError` that says what to do.
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
"""Exit codes of the clients themselves; others are the container's."""


class Image(Struct, frozen=True, kw_only=True):
    """An image in the engine."""

    id: str
    """sha256 of its configuration or manifest, whichever the engine uses."""
    tags: tuple[str, ...]
    labels: dict[str, str]


class StoredVolume(Struct, frozen=True, kw_only=True):
    """A volume in the engine."""

    name: str
    labels: dict[str, str]


class BuildCommand(Struct, frozen=True, kw_only=True):
    """How a plan builds an image with an engine."""

    builder: Literal["buildkit", "buildah"]
    argv: tuple[str, ...]
    """The build command, up to the options that are the same for all engines."""
    digests_option: str
    """The option that names the file to which the digests of the built image are written."""
    version_argv: tuple[str, ...]
    """The command that reports the builder's version."""
    docker_version: str = ""
    """Docker's version, which includes the builder; empty for other engines."""
    takes_epoch: bool = False
    """Whether the builder takes its timestamps from the build argument SOURCE_DATE_EPOCH."""
    layout_argv: tuple[str, ...] = ()
    """The same to write an image as an OCI layout, to the folder after `dest=` in the last word,
    instead of keeping it in the engine; empty if the builder cannot do that."""
    exports_layouts: bool = True
    """Whether the engine exports images as OCI layouts."""
    keeps_blobs: bool = False
    """Whether it stores layers as received, so that existing layers need not be sent again."""
    storage: str = ""
    """The folder where it stores images, if known and on this machine; else empty."""


class Engine(abc.ABC):
    """A container engine that answers and is recent enough; closed at the end of `with`."""

    command: tuple[str, ...]
    """The client's command line, pointed at this engine."""
    rootless: bool = False
    """Whether users in containers are mapped: root inside is this user."""
    receives_layers: bool = True
    """Whether `load` sends layers: then it helps to know which of them the engine has."""
    removal: tuple[str, ...]
    """The client's command that removes a container, even while it runs."""
    socket: Path | None = None
    """The socket through which the engine is reached; None if it has none on this machine."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @abc.abstractmethod
    def close(self) -> None:
        """Close connections to the engine."""

    # --- images

    def image(self, ref: str) -> Image | None:
        """Return an image by tag or id, or None."""
        data = self._inspect(ref)
        return None if data is None else _described(data)

    def variables(self, ref: str) -> tuple[str, ...]:
        """Return an image's own variables as `NAME=VALUE`; empty if the image is gone."""
        data = self._inspect(ref) or {}
        return tuple(map(str, (data.get("Config") or {}).get("Env") or ()))

    def labelled(self) -> tuple[Image, ...]:
        """Return the images with envbuilder's label, including those that inherited it."""
        images = {i.id: i for i in map(_described, self._list(f"{LABEL}fingerprint"))}
        return tuple(images[key] for key in sorted(images))

    def shares(self) -> dict[str, int]:
        """Return image ids → bytes that no other image shares, where reported."""
        return {}

    def pull(self, ref: str, platform: str) -> None:
        """Pull an image; raise `BuildError` if that fails."""
        done = process.run([*self.command, "pull", "--quiet", "--platform", platform, ref])
        if done.returncode != 0:
            raise BuildError(f"{ref}: cannot be pulled: {done.last_words}", no_base(ref))

    def forget(self, ref: str) -> None:
        """Remove a tag if the engine has it; raise `BuildError` if it cannot be removed."""
        if self.image(ref) is not None:
            self.remove(ref)

    def remove(self, ref: str, only: str = "") -> None:
        """Remove an image by tag; its parent images stay.

        Raise `BuildError` if it is in use, if the engine fails or, with `only`, if the tag no
        longer names the image with that id.
        """
        if only and ((image := self.image(ref)) is None or image.id != only):
            raise BuildError(f"{ref}: now names another image, or none", "Run it again.")
        self._remove(ref)

    def pull_name(self, ref: str) -> str:
        """Return the reference by which the engine pulls an image that it does not have."""
        return ref

    @abc.abstractmethod
    def files(
        self, ref: str, platform: str, paths: Sequence[str], limit: int
    ) -> dict[str, bytes] | None:
        """Return the files at or below some paths of an image, at most `limit` bytes for each path.

        None if the engine lacks the image for this platform, or cannot export single files.
        """

    @abc.abstractmethod
    def save(self, image: Image, folder: Path) -> None:
        """Export an image as an OCI layout in a new folder."""

    @abc.abstractmethod
    def load(self, layout: Layout, names: Sequence[str], without: Collection[types.Digest]) -> None:
        """Load a layout's one image under these names; the blobs `without` need not be sent."""

    @abc.abstractmethod
    def tag(self, image: Image, name: str) -> None:
        """Give an image a further name, taking it from any other; raise `BuildError` on failure."""

    @abc.abstractmethod
    def _inspect(self, ref: str) -> dict[str, Any] | None:
        """Return the engine's report about an image, or None."""

    @abc.abstractmethod
    def _list(self, label: str) -> Sequence[dict[str, Any]]:
        """Return the engine's report about each image with this label."""

    @abc.abstractmethod
    def _remove(self, ref: str) -> None:
        """Remove an image by tag or id."""

    # --- builds

    @property
    @abc.abstractmethod
    def build_command(self) -> BuildCommand:
        """How to build with this engine."""

    @abc.abstractmethod
    def require_builder(self) -> None:
        """Raise `ToolError` (exit 4) if a program that builds is missing or too old."""

    # --- volumes

    def make_volumes(self, container: Container, labels: Mapping[str, str]) -> None:
        """Make the missing volumes of a container; they belong to its user.

        Raise `ToolError` if one cannot be made.

        Raise `ToolError` if one cannot be made.
        """
        for volume in container.volumes:
            if not volume.is_folder:
                self._make_volume(volume.source, container, labels)

    def volumes(self) -> tuple[StoredVolume, ...]:
        """Return the volumes with envbuilder's label."""
        labels = {v["Name"]: dict(v.get("Labels") or {}) for v in self._list_volumes(VOLUME_LABEL)}
        return tuple(StoredVolume(name=name, labels=labels[name]) for name in sorted(labels))

    @abc.abstractmethod
    def _list_volumes(self, label: str) -> Sequence[dict[str, Any]]:
        """Return the engine's report about each volume with this label."""

    @abc.abstractmethod
    def remove_volume(self, name: str) -> None:
        """Remove a volume; raise `BuildError` if it is in use or the engine fails."""

    @abc.abstractmethod
    def _make_volume(self, name: str, container: Container, labels: Mapping[str, str]) -> None:
        """Make a volume that belongs to a container's user, unless it exists."""

    # --- containers

    def used(self) -> frozenset[str]:
        """Return the image ids of running containers."""
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
        """Run a container to its end, and always remove it.

        Raise `VerifyError` if it cannot be started or the engine goes away, `ToolError` if the
        engine cannot provide its device.
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
        """Return whether the engine can give NVIDIA GPUs to a container."""

    @abc.abstractmethod
    def cdi_devices(self) -> frozenset[str]:
        """Return the names of the devices that the engine can give by CDI."""

    def foreground(self, container: Container, *, terminal: bool) -> tuple[str, ...]:
        """Return the client's command that runs a container in this process's place.

        The container ends with the process, even if that is killed; engines alone do not ensure
        that.
        """
        name = _new_name()
        process.when_ended((*self.command, *self.removal, name))
        return self.run_command(container, terminal=terminal, name=name)

    def run_command(
        self, container: Container, *, terminal: bool, name: str = ""
    ) -> tuple[str, ...]:
        """Return the client's command that runs a container in the foreground and removes it."""
        words = [*self.command, "run", "--rm", "--pull=never", "--interactive"]
        if name:
            words += ["--name", name]
        if terminal:
            words.append("--tty")
        return (*words, *self._flags(container), *container.words)

    def _flags(self, container: Container) -> tuple[str, ...]:
        """Return a container as flags of the client's `run`."""
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
        """The limits for containers on the engine's machine."""

    def _user_flags(self, container: Container) -> tuple[str, ...]:
        """Return the flags of `run` for a container's user; with a project, one of the host."""
        return ("--user", container.user)

    @abc.abstractmethod
    def _isolated_run(self, folder: str) -> tuple[tuple[str, ...], dict[str, str]]:
        """Return the client's `run` and variables for it, without the user's client settings.

        Those may add variables and proxies to containers. `folder` is an empty folder.
        """

    @abc.abstractmethod
    def _not_started(self, words: str) -> VerifyError | ToolError:
        """Return the error for a container that could not be run; `words`: the client's output."""

    @abc.abstractmethod
    def _home_options(self, container: Container) -> str:
        """Return the options of `--tmpfs` for a folder that belongs to a container's user."""

    @abc.abstractmethod
    def _gpu_flags(self, gpus: str) -> tuple[str, ...]:
        """Return the flags of `run` for NVIDIA GPUs."""


def _new_name() -> str:
    """Return a name for a container."""
    return f"envbuilder-{secrets.token_hex(6)}"


def _described(data: dict[str, Any]) -> Image:
    """Return an image from an engine's report of it."""
    tags = data.get("RepoTags") or data.get("Names") or ()
    labels = data.get("Labels") or (data.get("Config") or {}).get("Labels") or {}
    return Image(
        id=f"sha256:{data['Id'].removeprefix('sha256:')}",
        tags=tuple(tag for tag in tags if tag != _NO_NAME),
        labels={str(k): str(v) for k, v in labels.items()},
    )


def no_base(ref: str) -> str:
    """Return a hint for a base image that cannot be obtained."""
    return (
        f"The base image {ref} is not in the engine and cannot be pulled. Name another with"
        " ENVBUILDER_BASE_IMAGE=REF, or set a mirror in envbuilder.yaml (base_images:)."
    )


def short(error: Exception) -> str:
    """Return an engine's failure in a few words."""
    text = str(error)
    for cause in ("Permission denied", "No such file or directory", "Connection refused"):
        if cause in text:
            return cause.lower()
    return text.partition("\n")[0][:200] or type(error).__name__


_SOCKET = "/var/run/docker.sock"


class Endpoint(Struct, frozen=True, kw_only=True):
    """An engine's endpoint, and whether it was configured."""

    url: str | None
    tls: Any = None
    builder: str = "default"
    flags: tuple[str, ...] = ()
    named: bool = True
    """Whether it was configured instead of found."""

    @property
    def socket(self) -> Path | None:
        """The Unix socket; None if it is another kind of endpoint."""
        path = (self.url or "").removeprefix("unix://")
        return Path(path) if path.startswith("/") else None

    @property
    def explicit_flags(self) -> tuple[str, ...]:
        """Flags that point the docker client here, whatever its configuration and variables are."""
        words = ["--host", self.url or ""]
        if self.tls:
            words.append("--tlsverify" if self.tls.verify else "--tls")
            certificate, key = self.tls.cert or ("", "")
            for name, file in (("cacert", self.tls.ca_cert), ("cert", certificate), ("key", key)):
                if file:
                    words += [f"--tls{name}", str(file)]
        return tuple(words)

    def may_be_opened(self) -> bool:
        """Return whether this user may open the endpoint; only Unix sockets are checked."""
        path = (self.url or "").removeprefix("unix://")
        return bool(self.url) and (path == self.url or os.access(path, os.R_OK | os.W_OK))


def find_docker() -> Endpoint:
    """Return the endpoint that the docker client uses."""
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
    """Return whether an engine seems to exist: a variable, a context, a socket or podman."""
    context = Path(os.environ.get("DOCKER_CONFIG", Path.home() / ".docker")) / "contexts" / "meta"
    return (
        bool(os.environ.get("DOCKER_HOST"))
        or context.is_dir()
        or any(Path(s).exists() for s in (_SOCKET, _rootless()))
        or process.which("podman") is not None
    )


def _context() -> Any:
    """Return the configured docker context, or None; raise `ToolError` if it cannot be read."""
    from docker.context import ContextAPI

    name = os.environ.get("DOCKER_CONTEXT")
    try:
        context: Any = ContextAPI.get_context(name)
    except Exception as error:  # the SDK raises bare exceptions
        raise ToolError(f"the docker context cannot be read: {short(error)}") from error
    if context is None and name:
        raise ToolError(f"there is no docker context '{name}'", "See: docker context ls")
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
