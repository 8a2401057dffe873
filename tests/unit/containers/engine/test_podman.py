"""What podman's client is asked to do."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest

from envbuilder.containers.engine import podman, podman_run
from envbuilder.containers.engine.container import Container, Devices
from envbuilder.containers.engine.interface import Image
from envbuilder.containers.engine.podman import PodmanEngine
from envbuilder.core.errors import BuildError, ToolError

if TYPE_CHECKING:
    from pathlib import Path

PODMAN = PodmanEngine(["podman"], rootless=False)
ROOTLESS = PodmanEngine(["podman"], rootless=True)
XPU = Devices(nodes=("/dev/dri",), groups=(992,), volumes=("/dev/dri/by-path",), shm_size="1g")


@pytest.mark.parametrize(
    ("devices", "engine", "flags"),
    [
        (Devices(shm_size="1g"), PODMAN, []),
        (Devices(shm_size="1g"), ROOTLESS, []),
        (Devices(gpus="all", shm_size="1g"), PODMAN, ["--device", "nvidia.com/gpu=all"]),
        (XPU, PODMAN, ["--device", "/dev/dri", "--group-add", "992"]),
        (XPU, ROOTLESS, ["--device", "/dev/dri", "--group-add", "keep-groups"]),
    ],
)
def test_device_flags(devices: Devices, engine: PodmanEngine, flags: list[str]) -> None:
    """Its documentation's: no GPU of either make was at hand with podman."""
    made = engine.run_flags(devices)
    wanted = ["--shm-size", "1g", "--security-opt", "label=disable", *flags]
    assert list(made[: len(wanted)]) == wanted
    assert all("readonly" in volume for volume in made[len(wanted) + 1 :: 2])


def test_a_container_becomes_flags_of_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    monkeypatch.setattr(podman_run, "run", lambda *arguments: started.append(arguments))
    made = Container(
        image="x:1",
        entrypoint=("python", "-I"),
        arguments=("payload",),
        variables={"A": "1"},
        home="/home/env",
        home_owner=1000,
        mounts={"/d": "/data"},
        devices=XPU,
    )
    PODMAN.run(made, print, 60)
    bare = Container(image="x:1", entrypoint=("sh",), platform="linux/arm64", user="0:0")
    PODMAN.run(bare, print, 60)
    (command, flags, image, arguments, *_), (_, other, *_) = started
    assert (command, image, arguments) == (("podman",), "x:1", ("payload",))
    pairs = list(itertools.pairwise(flags))
    for pair in (
        ("--network", "none"),
        ("--tmpfs", "/tmp:exec"),
        ("--tmpfs", "/home/env:mode=1777"),
        ("--workdir", "/home/env"),
        ("--entrypoint", json.dumps(["python", "-I"])),
        ("--security-opt", "label=disable"),
    ):
        assert pair in pairs
    words = {"--mount=type=bind,source=/d,target=/data,readonly", "--env=A=1", "--read-only"}
    assert {*words, "--env-host=false", "--http-proxy=false"} <= set(flags)
    assert {"linux/arm64", "0:0", "none", "--read-only"} <= set(other)
    assert not {"--tmpfs", "--workdir", "--shm-size"} & set(other)


@pytest.mark.parametrize("remote", [False, True])
def test_a_remote_client_gets_only_the_flags_that_it_has(
    remote: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tried with 5.4.2: with `--url` it refuses --env-host, and can pass no such variables."""
    started: list[Any] = []
    monkeypatch.setattr(podman_run, "run", lambda command, flags, *rest: started.extend(flags))
    engine = PodmanEngine(["podman", "--url", "unix:///x"], rootless=False, remote=remote)
    engine.run(Container(image="x:1", entrypoint=("sh",)), print, 60)
    assert ("--env-host=false" in started) is not remote
    assert "--http-proxy=false" in started


def test_it_is_asked_for_full_names(programs: dict[str, tuple[int, str, str]]) -> None:
    assert PODMAN.pull_name("python:3.11") == "docker.io/library/python:3.11"
    programs["podman pull --quiet --platform linux/amd64 b:1"] = (1, "", "Error: denied\n")
    with pytest.raises(BuildError, match="b:1: cannot be pulled: Error: denied") as caught:
        PODMAN.pull("b:1", "linux/amd64")
    assert "--base-image REF" in caught.value.hint


def test_an_image_is_what_podman_says_of_it(programs: dict[str, tuple[int, str, str]]) -> None:
    data = {
        "Id": "12", "RepoTags": ["localhost/x:1"], "Labels": {"a": "b"},
        "Config": {"Env": ["PATH=/bin"]},
        "History": [{"created_by": "first"}, {"created_by": "last"}],
    }  # fmt: skip
    programs["podman image inspect x:1"] = (0, json.dumps([data]), "")
    programs["podman image inspect sha256:12"] = (0, json.dumps([data]), "")
    programs["podman image inspect y:1"] = (125, "[]", "Error: y:1: image not known\n")
    programs["podman image inspect z:1"] = (125, "[]", "Error: database is locked\n")
    image = PODMAN.image("x:1")
    assert image == Image(id="sha256:12", tags=("localhost/x:1",), labels={"a": "b"})
    assert PODMAN.last_step(image) == "last"
    assert PODMAN.variables("x:1") == ("PATH=/bin",)
    assert PODMAN.image("y:1") is None
    with pytest.raises(ToolError, match="podman cannot inspect z:1: Error: database is locked"):
        PODMAN.image("z:1")


def test_its_images_have_names_and_no_digest_algorithm(
    programs: dict[str, tuple[int, str, str]],
) -> None:
    listed = [{"Id": "2", "Names": ["localhost/x:1"], "Labels": {"a": "b"}}, {"Id": "1"}]
    programs["podman images"] = (0, json.dumps(listed), "")
    assert [(i.id, i.tags) for i in PODMAN.labelled()] == [
        ("sha256:1", ()),
        ("sha256:2", ("localhost/x:1",)),
    ]
    programs["podman images"] = (125, "", "Error: database is locked\n")
    with pytest.raises(ToolError, match="podman cannot list its images: Error: database"):
        PODMAN.labelled()


def test_an_image_that_cannot_be_removed_is_1(programs: dict[str, tuple[int, str, str]]) -> None:
    programs["podman rmi x:1"] = (2, "", "Error: image is in use\n")
    with pytest.raises(BuildError, match="x:1: cannot be removed: Error: image is in use"):
        PODMAN.remove("x:1")


def test_gpus_are_known_from_their_specification(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(podman, "_SPECIFICATIONS", (tmp_path, tmp_path / "none"))
    assert not PODMAN.knows_gpus()
    (tmp_path / "nvidia.yaml").write_text("kind: nvidia.com/gpu\n")
    assert PODMAN.knows_gpus()
