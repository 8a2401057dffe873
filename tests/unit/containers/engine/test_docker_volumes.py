"""A new volume of Docker's belongs to the user of the container that it is made for."""

from __future__ import annotations

import io
import tarfile
from typing import Any

import pytest
from docker.errors import APIError, NotFound

from envbuilder.containers.engine import docker_volumes
from envbuilder.containers.engine.interface import VOLUME_LABEL, StoredVolume
from envbuilder.core.errors import BuildError

LABELS = {VOLUME_LABEL: "1000"}


class Api:
    """The SDK's own calls, in memory."""

    def __init__(self, *, fails: bool = False) -> None:
        self.present: dict[str, dict[str, str]] = {}
        self.calls: list[str] = []
        self.archives: list[bytes] = []
        self.fails = fails

    def inspect_volume(self, name: str) -> object:
        if name not in self.present:
            raise NotFound("no such volume")
        return self.present[name]

    def create_volume(self, name: str, labels: dict[str, str]) -> None:
        self.present[name] = labels

    def remove_volume(self, name: str) -> None:
        if self.fails:
            raise APIError("conflict", explanation="volume is in use")
        del self.present[name]

    def volumes(self, filters: Any) -> dict[str, Any]:
        assert filters == {"label": [VOLUME_LABEL]}
        listed = [{"Name": n, "Labels": labels} for n, labels in self.present.items()]
        return {"Volumes": listed or None}

    def create_host_config(self, **options: Any) -> dict[str, Any]:
        return options

    def create_container(self, image: str, **options: Any) -> dict[str, str]:
        (mount,) = options["host_config"]["mounts"]
        self.calls.append(f"create {image} {mount['Source']} {options['host_config']}")
        return {"Id": "c1"}

    def put_archive(self, container: str, path: str, data: bytes) -> None:
        assert (container, path) == ("c1", "/")
        if self.fails:
            raise APIError("no space")
        self.archives.append(data)

    def remove_container(self, container: str, force: bool) -> None:
        self.calls.append(f"remove {container}")


def test_a_volume_is_made_once_as_its_users_own() -> None:
    api = Api()
    for _ in range(2):
        docker_volumes.make(api, "v", LABELS, "sha256:1", user="1000:1001", userns="host")
    first, last = api.calls
    assert first.startswith("create sha256:1 v ")
    assert "'userns_mode': 'host'" in first
    assert last == "remove c1"
    (data,) = api.archives
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        (folder,) = archive.getmembers()
    assert (folder.name, folder.isdir(), folder.mode) == ("volume", True, 0o700)
    assert (folder.uid, folder.gid) == (1000, 1001)
    assert docker_volumes.labelled(api) == (StoredVolume(name="v", labels=LABELS),)
    docker_volumes.remove(api, "v")
    assert docker_volumes.labelled(api) == ()


def test_a_half_made_volume_is_not_left_behind() -> None:
    api = Api(fails=True)
    with pytest.raises(APIError, match="no space"):
        docker_volumes.make(api, "v", LABELS, "sha256:1", user="0:0", userns=None)
    assert api.calls[-1] == "remove c1"
    with pytest.raises(BuildError, match="v: cannot be removed: volume is in use"):
        docker_volumes.remove(api, "v")
