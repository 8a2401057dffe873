"""The Docker engine. Its SDK handles images and volumes, and its client handles everything else."""

from __future__ import annotations

import io
import tarfile
import weakref
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docker.errors import APIError, NotFound
from docker.types import Mount
from docker.utils import parse_repository_tag
from requests import RequestException

from envbuilder.containers.engine import cdi, interface
from envbuilder.containers.engine.container import Container, Limits, limits
from envbuilder.containers.engine.interface import (
    BuildCommand,
    Engine,
    Image,
    short,
)
from envbuilder.containers.oci import archive
from envbuilder.core.archives import Tar
from envbuilder.core.errors import BuildError, InvalidError, ToolError, VerifyError
from envbuilder.core.text import version_numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from docker import DockerClient

    from envbuilder.containers.oci.layout import Layout
    from envbuilder.core import types

_EXPORTS_LAYOUTS = (25, 0)
"""The first version of Docker that exports images as OCI layouts."""
_SECONDS = 60
_LOAD_SECONDS = 1800
"""Timeout in seconds for loading an image. It is long because Docker unpacks the image before it
responds."""
_REMOVAL_SECONDS = 600
"""Timeout in seconds for a removal.

It is long because Docker's containerd store waits for running builds and cleans up before it
responds.
"""
_DAEMON = "Error response from daemon: "
_DEVICE_FAILURES = (
    "could not select device driver",
    "gathering device information",
    "nvidia-container-cli",
    "CDI device injection failed",
)
_FOLDER = "volume"


class DockerEngine(Engine):
    """The Docker engine, accessed through its SDK and its client.

    The SDK is used for images and volumes, and the client for everything else.
    """

    removal = ("rm", "--force")

    def __init__(self, client: DockerClient, version: str, endpoint: interface.Endpoint) -> None:
        self._client = client
        self._version = version
        self._endpoint = endpoint
        self._api: Any = client.api  # types-docker leaves much of it untyped
        self.command = ("docker", *endpoint.flags)
        self.socket = endpoint.socket
        # An environment has its engine until the command ends: no `with` closes that one.
        self._close = weakref.finalize(self, client.close)

    def close(self) -> None:
        """Close the SDK client's connections."""
        self._close()

    def files(
        self, ref: str, platform: str, paths: Sequence[str], limit: int
    ) -> dict[str, bytes] | None:
        """Return files in an image, copied from a container that is created but not started.

        Return None if the engine does not have the image for this platform.
        """
        api = self._api
        try:
            info = api.inspect_image(ref)
            if f"{info.get('Os')}/{info.get('Architecture')}" != platform:
                return None
            container = api.create_container(info["Id"], command=["none"], network_disabled=True)
            try:
                contents: dict[str, bytes] = {}
                for path in paths:
                    contents |= self._copied(container, path, limit)
                return contents
            finally:
                _discard(api.remove_container, container["Id"], force=True, v=True)
        except NotFound:
            return None
        except OSError as error:  # of the SDK and of requests, too
            raise ToolError(f"the engine does not answer: {short(error)}") from error

    def _copied(
        self, container: dict[str, Any], path: str, limit: int
    ) -> Iterator[tuple[str, bytes]]:
        """Yield the path and content of a file in a container, or of each file in a folder.

        The paths are relative to the container's root. Raise `InvalidError` if the archive that
        contains the file or the folder is larger than `limit` bytes.
        """
        try:
            pieces, _ = self._api.get_archive(container["Id"], f"/{path}")
        except NotFound:
            return
        data = bytearray()
        for piece in pieces:
            data += piece
            if len(data) > limit:
                raise InvalidError(f"/{path} is larger than the limit of {limit} bytes")
        parent = path.rstrip("/").rpartition("/")[0]
        tar = Tar(
            io.BytesIO(data),
            len(data),
            lambda reason: ToolError(f"the engine sent a damaged archive of /{path}: {reason}"),
        )
        for member in tar:
            if member.isreg():
                yield f"{parent}/{member.name}", tar.content(member)

    def save(self, image: Image, folder: Path) -> None:
        """Export an image as an OCI layout in a new folder. This requires Docker 25 or later."""
        archive.receive(self._exported(image), folder, f"the image {image.id} of the engine")

    def _exported(self, image: Image) -> Iterator[bytes]:
        with _reported(f"the engine cannot export {image.id}"):
            # By name: only then does the layout record which image it holds.
            yield from self._api.get_image(image.tags[0] if image.tags else image.id)

    def load(self, layout: Layout, names: Sequence[str], without: Collection[types.Digest]) -> None:
        """Load the only image in a layout, without sending the blobs in `without`.

        The image gets the names that are in the layout, and `names` is ignored. Raise `BuildError`
        if the image cannot be loaded.
        """
        del names  # the layout's own
        with self._waiting(_LOAD_SECONDS):
            try:
                for event in self._api.load_image(archive.pieces(layout, without), quiet=True):
                    if "error" in event or "message" in event:
                        reason = event.get("error") or event["message"]
                        raise BuildError(f"the engine cannot load the image: {reason}")
            except (APIError, RequestException) as error:
                raise BuildError(f"the engine cannot load the image: {short(error)}") from error

    def shares(self) -> dict[str, int]:
        """Return the number of bytes that each image shares with no other image, by image id.

        Images of unknown size are omitted.
        """
        with _reported("the engine cannot report sizes"):
            images = self._api.df().get("Images") or ()
        sizes = {i["Id"]: (i.get("Size", -1), i.get("SharedSize", -1)) for i in images}
        return {key: size - shared for key, (size, shared) in sizes.items() if 0 <= shared <= size}

    def remove(self, ref: str, only: str = "") -> None:
        """Remove an image by tag, but not its parent images.

        The engine is given more time to respond than for other requests.
        """
        with self._waiting(_REMOVAL_SECONDS):
            super().remove(ref, only)

    @contextmanager
    def _waiting(self, seconds: int) -> Iterator[None]:
        """Set the timeout for the engine's responses, in seconds, within the context."""
        previous = self._api.timeout
        self._api.timeout = seconds
        try:
            yield
        finally:
            self._api.timeout = previous

    def tag(self, image: Image, name: str) -> None:
        """Give an image an additional name.

        If another image has the name, that image loses it. Raise `BuildError` if the engine fails.
        """
        repository, tag = parse_repository_tag(name)
        try:
            self._api.tag(image.id, repository, tag)
        except (APIError, RequestException) as error:
            raise BuildError(
                f"the engine cannot tag {image.id} as {name}: {short(error)}"
            ) from error

    def _inspect(self, ref: str) -> dict[str, Any] | None:
        with _reported(f"the engine cannot inspect {ref}"):
            try:
                data: dict[str, Any] = self._api.inspect_image(ref)
            except NotFound:
                return None
        return data

    def _list(self, label: str) -> Sequence[dict[str, Any]]:
        with _reported("the engine cannot list its images"):
            images: list[dict[str, Any]] = self._api.images(filters={"label": [label]})
        return images

    def _remove(self, ref: str) -> None:
        """Remove an image by tag or id, but not its parent images.

        The parent images might not be envbuilder's. Another reason to keep them is a bug in Docker
        26.1 with the containerd store. If a tag used to belong to an image that `docker commit`
        made from the image that has the tag now, Docker mistakes the latter image for its own
        parent, and follows the chain of parents forever.
        """
        with _removing(ref):
            self._api.remove_image(ref, noprune=True)

    @cached_property
    def build_command(self) -> BuildCommand:
        """The command with which this engine builds images.

        With the containerd store, layers are compressed with zstd. In measurements, zstd was 2 to 3
        times faster than gzip, and the layers were smaller. The classic store only accepts the
        output type `docker`, which is the same as `--load`.
        """
        endpoint = self._endpoint
        status = self._info.get("DriverStatus") or ()
        containerd = any("containerd.snapshotter" in str(value) for _, value in status)
        output = "type=image,oci-mediatypes=true,compression=zstd" if containerd else "type=docker"
        local = (endpoint.url or "").startswith("unix://")
        build = (
            *self.command,
            "buildx",
            "build",
            "--progress",
            "plain",
            "--provenance=false",
            "--sbom=false",
            "--builder",
            endpoint.builder,
            "--output",
        )
        to_layout = "type=oci,tar=false,oci-mediatypes=true,compression=uncompressed,dest="
        return BuildCommand(
            builder="buildkit",
            argv=(*build, output),
            digests_option="--metadata-file",
            layout_argv=(*build, to_layout) if containerd else (),
            version_argv=(*self.command, "buildx", "inspect", endpoint.builder),
            docker_version=self._version,
            takes_epoch=True,
            exports_layouts=version_numbers(self._version) >= _EXPORTS_LAYOUTS,
            keeps_blobs=containerd,
            storage=str(self._info.get("DockerRootDir") or "") if local else "",
        )

    def require_builder(self) -> None:
        """Raise `ToolError` (exit 4) if the docker client or a recent enough buildx is missing."""
        interface.require_plugin()

    def _list_volumes(self, label: str) -> Sequence[dict[str, Any]]:
        with _reported("the engine cannot list its volumes"):
            volumes = self._api.volumes(filters={"label": [label]}).get("Volumes")
        return volumes or ()

    def remove_volume(self, name: str) -> None:
        """Remove a volume. Raise `BuildError` if it is in use or the engine fails."""
        with _removing(name):
            self._api.remove_volume(name)

    def _make_volume(self, name: str, container: Container, labels: Mapping[str, str]) -> None:
        """Create a volume owned by the container's user, unless the volume exists already.

        A new volume belongs to root, and envbuilder's containers are not allowed to change owners.
        The engine itself therefore writes the volume's folder from an archive, through a container
        that is never started.
        """
        api = self._api
        flags = self._user_flags(container)
        options = dict(zip(flags[::2], flags[1::2], strict=True))
        with _reported(f"the engine cannot create the volume {name}"), ExitStack() as undo:
            with suppress(NotFound):
                api.inspect_volume(name)
                return
            api.create_volume(name, labels=dict(labels))
            undo.callback(_discard, api.remove_volume, name)
            helper = api.create_container(
                container.image,
                command=["none"],
                host_config=api.create_host_config(
                    mounts=[Mount(f"/{_FOLDER}", name, type="volume")],
                    userns_mode=options.get("--userns"),
                ),
                network_disabled=True,
            )
            try:
                api.put_archive(helper["Id"], "/", _folder(options["--user"]))
            finally:
                api.remove_container(helper["Id"], force=True)
            undo.pop_all()

    def _list_containers(self) -> Sequence[dict[str, Any]]:
        with _reported("the engine cannot list its containers"):
            containers: list[dict[str, Any]] = self._api.containers()
        return containers

    def knows_gpus(self) -> bool:
        """Return whether NVIDIA's container runtime is configured in Docker."""
        return "nvidia" in (self._info.get("Runtimes") or {})

    def cdi_devices(self) -> frozenset[str]:
        """Return the CDI devices that Docker reports.

        If this version of Docker does not report CDI devices, return the devices in the CDI files
        that Docker reads.
        """
        devices = self._info.get("DiscoveredDevices")
        if devices is None and self.socket:  # else its files are on another machine
            return cdi.devices(map(Path, self._info.get("CDISpecDirs") or ()))
        return frozenset(str(d.get("ID")) for d in devices or () if d.get("Source") == "cdi")

    @cached_property
    def limits(self) -> Limits:
        """Limits on the resources that a container may use on the engine's machine."""
        info = self._info
        return limits(
            int(info.get("MemTotal") or 0) if info.get("MemoryLimit") else 0,
            int(info.get("NCPU") or 0) if info.get("PidsLimit") else 0,
        )

    def _user_flags(self, container: Container) -> tuple[str, ...]:
        mapping = str(self._info.get("SecurityOptions")) if container.project else ""
        if "name=rootless" in mapping:
            return ("--user", "0:0")  # this user; any other one inside is a stranger to the host
        remapped = ("--userns", "host") if "name=userns" in mapping else ()
        return (*super()._user_flags(container), *remapped)

    @cached_property
    def _info(self) -> dict[str, Any]:
        """The engine's report about itself, requested only once because the request is slow."""
        with _reported("the engine does not answer"):
            info: dict[str, Any] = self._client.info()
        return info

    def _home_options(self, container: Container) -> str:
        uid, _, gid = container.user.partition(":")
        return f"uid={uid},gid={gid}"

    def _isolated_run(self, folder: str) -> tuple[tuple[str, ...], dict[str, str]]:
        interface.require_client()
        # The configuration may hold proxies for containers; the endpoint comes as flags instead.
        variables = {"DOCKER_CONFIG": folder, "DOCKER_TLS": "", "DOCKER_TLS_VERIFY": ""}
        return ("docker", *self._endpoint.explicit_flags, "run"), variables

    def _not_started(self, words: str) -> VerifyError | ToolError:
        text = words.rpartition("docker: ")[2].removeprefix(_DAEMON).partition("\n\n")[0].strip()
        if any(failure in text for failure in _DEVICE_FAILURES):
            return ToolError(
                f"the engine cannot pass the device to the container: {text}",
                "Install the GPU's driver or its container toolkit, or use --force to omit the"
                " device flags.",
            )
        if "error waiting for container" in text:
            return VerifyError(f"the connection to the engine was lost: {text}")
        return VerifyError(f"the container cannot be started: {text}")

    def _gpu_flags(self, gpus: str) -> tuple[str, ...]:
        return ("--gpus", gpus) if gpus else ()


@contextmanager
def _reported(failure: str) -> Iterator[None]:
    """Raise `ToolError` with the message `failure` if an SDK request in the context fails."""
    try:
        yield
    except (APIError, RequestException) as error:
        raise ToolError(f"{failure}: {short(error)}") from error


def _discard(remove: Callable[..., None], *arguments: str, **options: bool) -> None:
    """Call an SDK function that removes something temporary, ignoring failures."""
    with suppress(APIError, RequestException):
        remove(*arguments, **options)


@contextmanager
def _removing(name: str) -> Iterator[None]:
    """Raise `BuildError` if the SDK request in the context, which removes `name`, fails."""
    try:
        yield
    except (APIError, RequestException) as error:
        reason = getattr(error, "explanation", None) or short(error)
        raise BuildError(
            f"{name}: cannot be removed: {reason}",
            "Stop the containers that use it, then try again.",
        ) from error


def _folder(user: str) -> bytes:
    """Return a tar archive of an empty folder for a volume, owned by `user` (`uid:gid`)."""
    uid, _, gid = user.partition(":")
    member = tarfile.TarInfo(_FOLDER)
    member.type = tarfile.DIRTYPE
    member.mode = 0o700
    member.uid = int(uid)
    member.gid = int(gid)
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        archive.addfile(member)
    return data.getvalue()
