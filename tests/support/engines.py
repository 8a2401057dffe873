"""A container engine in memory, and how to build with real ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from envbuilder.containers.engine.container import Container, Limits
from envbuilder.containers.engine.interface import BuildCommand, Engine, Image, StoredVolume
from envbuilder.containers.oci.layout import Layout
from envbuilder.core.process import Completed

BARE = Container(image="x:1", user="1:1", limits=Limits())
BUILDKIT = BuildCommand(
    builder="buildkit",
    argv=("docker", "buildx", "build", "--output", "x"),
    digests_option="--metadata-file",
    version_argv=("docker", "buildx", "inspect", "default"),
    takes_epoch=True,
)
BUILDAH = BuildCommand(
    builder="buildah",
    argv=("podman", "build"),
    digests_option="--iidfile",
    version_argv=("podman", "info"),
)


class FakeEngine(Engine):
    """An engine that has `images`, by reference; `done` is what it was asked to do."""

    command = ("docker",)
    removal = ("rm", "--force")
    limits = Limits(memory=6 << 30, processes=4096)

    def __init__(self, *refs: str, build: BuildCommand = BUILDKIT) -> None:
        self.images: dict[str, Image] = {}
        for ref in refs:
            self.add(ref)
        self.build, self.done, self.closed = build, list[str](), False
        self.containers: list[Container] = []
        self.output: str | Exception = ""
        self.contents: dict[str, bytes] | None = None
        self.described = frozenset[str]()
        self.stored_volumes: dict[str, StoredVolume] = {}
        self.running = list[str]()

    def add(self, ref: str) -> None:
        self.images[ref] = Image(id=f"sha256:{ref}", tags=(ref,), labels={})

    def serve(self, monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
        """Be the engine of this machine."""
        from envbuilder.containers.engine import connection, interface

        monkeypatch.setattr(interface, "configured_docker", lambda: True)
        monkeypatch.setattr(connection, "connect", lambda: self)
        return self

    @property
    def build_command(self) -> BuildCommand:
        return self.build

    def image(self, ref: str) -> Image | None:
        listed = self.images.get(ref) or next(
            (i for i in self.images.values() if i.id == ref), None
        )
        return listed and replace(
            listed, tags=tuple(name for name, image in self.images.items() if image.id == listed.id)
        )

    def tag(self, image: Image, name: str) -> None:
        self.done.append(f"tag {name}")
        self.images[name] = image

    def variables(self, ref: str) -> tuple[str, ...]:
        return ()

    def labelled(self) -> tuple[Image, ...]:
        return tuple(self.images.values())

    def pull(self, ref: str, platform: str) -> None:
        self.done.append(f"pull {ref} for {platform}")
        self.add(ref)

    def files(
        self, ref: str, platform: str, paths: Sequence[str], limit: int
    ) -> dict[str, bytes] | None:
        self.done.append(f"read {ref} {platform}")
        return self.contents

    def run(
        self, container: Container, on_stdout: Callable[[str], None], timeout: float
    ) -> Completed:
        self.done.append("run")
        self.containers.append(container)
        if isinstance(self.output, Exception):
            raise self.output
        return Completed(argv=(), returncode=0, stdout=self.output, stderr="", seconds=0)

    def _list_volumes(self, label: str) -> Sequence[dict[str, Any]]:
        return [{"Name": v.name, "Labels": v.labels} for v in self.stored_volumes.values()]

    def remove_volume(self, name: str) -> None:
        self.done.append(f"remove the volume {name}")
        self.stored_volumes.pop(name)

    def _make_volume(self, name: str, container: Container, labels: Mapping[str, str]) -> None:
        volume = StoredVolume(name=name, labels=dict(labels))
        self.stored_volumes.setdefault(name, volume)

    def _list_containers(self) -> Sequence[dict[str, Any]]:
        return [{"ImageID": image} for image in self.running]

    def knows_gpus(self) -> bool:
        return True

    def cdi_devices(self) -> frozenset[str]:
        return self.described

    def require_builder(self) -> None:
        self.done.append("require the builder")

    def close(self) -> None:
        self.closed = True

    def save(self, image: Image, folder: Path) -> None:
        raise NotImplementedError

    def load(self, layout: Layout, names: Sequence[str], without: Collection[str]) -> None:
        raise NotImplementedError

    def manifests(self) -> Sequence[str]:
        return ()

    def _inspect(self, ref: str) -> dict[str, Any] | None:
        raise NotImplementedError

    def _list(self, label: str) -> Sequence[dict[str, Any]]:
        raise NotImplementedError

    def _remove(self, ref: str) -> None:
        self.done.append(f"remove {ref}")
        self.images.pop(ref, None)

    def _home_options(self, container: Container) -> str:
        return "mode=0700"

    def _isolated_run(self, folder: str) -> tuple[tuple[str, ...], dict[str, str]]:
        raise NotImplementedError

    def _not_started(self, words: str) -> Any:
        raise NotImplementedError

    def _gpu_flags(self, gpus: str) -> tuple[str, ...]:
        return ("--gpus", gpus) if gpus else ()
