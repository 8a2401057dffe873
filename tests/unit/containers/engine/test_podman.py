"""What podman's client is asked to do."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from envbuilder.containers.engine import cdi, podman
from envbuilder.containers.engine.container import Devices, Limits, Volume
from envbuilder.containers.engine.interface import VOLUME_LABEL, Image, StoredVolume
from envbuilder.containers.engine.podman import PodmanEngine
from envbuilder.core.errors import BuildError, ToolError
from tests.support.engines import BARE
from tests.unit.containers.engine.conftest import Programs, started

PODMAN = PodmanEngine(["podman"], rootless=False)
ROOTLESS = PodmanEngine(["podman"], rootless=True)
XPU = Devices(nodes=("/dev/dri",), groups=(992,), volumes=("/dev/dri/by-path",), shm_size="1g")


@pytest.mark.parametrize(
    ("devices", "engine", "flags"),
    [
        (Devices(shm_size="1g"), PODMAN, []),
        (Devices(gpus="all", shm_size="1g"), PODMAN, ["--device", "nvidia.com/gpu=all"]),
        (XPU, PODMAN, ["--device", "/dev/dri", "--group-add", "992"]),
        (XPU, ROOTLESS, ["--device", "/dev/dri", "--group-add", "keep-groups"]),
        (
            Devices(cdi=("amd.com/gpu=all",), groups=(110, 992), shm_size="1g"),
            ROOTLESS,
            ["--device", "amd.com/gpu=all", "--group-add", "keep-groups"],
        ),
    ],
)
def test_device_flags(devices: Devices, engine: PodmanEngine, flags: list[str]) -> None:
    """Its documentation's: no GPU of either make was at hand with podman."""
    container = replace(BARE, devices=devices)
    made = list(engine.run_command(container, terminal=False))
    assert made[made.index("--shm-size") :] == ["--shm-size", "1g", *flags, "x:1"]


@pytest.mark.parametrize(
    ("controllers", "limits"),
    [
        (["cpu", "memory", "pids"], Limits(memory=15 << 29, processes=4096)),
        (["pids"], Limits(processes=4096)),
        ([], Limits()),
    ],
)
def test_limits_are_those_that_this_user_may_set(
    controllers: list[str], limits: Limits, programs: Programs
) -> None:
    """Without systemd's delegation, or with the old cgroups, a user may set none: it would fail."""
    machine = {
        "security": {"rootless": True},
        "memTotal": 8 << 30,
        "cpus": 4,
        "cgroupControllers": controllers,
    }
    programs["podman --version"] = "podman version 5.4.2\n"
    programs["podman info"] = json.dumps({"host": machine, "version": {"Version": "5.4.2"}})
    assert podman.connect(None).limits == limits
    assert podman.connect(None).socket is None
    programs["podman --url"] = programs["podman info"]
    assert str(podman.connect("unix:///run/x.sock").socket) == "/run/x.sock"


@pytest.mark.parametrize("engine", [PODMAN, ROOTLESS])
def test_a_projects_user_is_the_hosts(engine: PodmanEngine) -> None:
    project = replace(BARE, project=("/p", "/work"))
    for container in (project, BARE):
        argv = engine.run_command(container, terminal=False)
        assert ("--user", "1:1") in itertools.pairwise(argv)
        mapped = engine.rootless and container is project
        assert (("--userns", "keep-id") in itertools.pairwise(argv)) == mapped


def test_a_container_becomes_flags_of_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tried with 5.4.2: with `--url` it refuses --env-host, and can pass no such variables."""
    calls = started(monkeypatch)
    made = replace(BARE, home="/home/env", is_held=True)
    for remote in (False, True):
        PodmanEngine(["podman"], rootless=False, remote=remote).run(made, print, 60)
        argv, options = calls[-2]
        assert {"--http-proxy=false", "/home/env:mode=1777,U", "--interactive"} <= {*argv}
        assert ("--env-host=false" in argv) is not remote
        assert options["holds_stdin"]
        assert calls[-1][0][1:-1] == ["rm", "--force", "--time", "0", "--ignore"]


def test_it_is_asked_for_full_names(programs: Programs) -> None:
    assert PODMAN.pull_name("python:3.11") == "docker.io/library/python:3.11"
    programs["podman pull --quiet --platform linux/amd64 b:1"] = (1, "", "Error: denied\n")
    with pytest.raises(BuildError, match="b:1: cannot be pulled: Error: denied") as caught:
        PODMAN.pull("b:1", "linux/amd64")
    assert "ENVBUILDER_BASE_IMAGE=REF" in caught.value.hint


def test_an_image_gets_a_further_name(programs: Programs) -> None:
    image = Image(id="sha256:12", tags=(), labels={})
    programs["podman tag 12 x:1"] = ""
    PODMAN.tag(image, "x:1")
    programs["podman tag 12 y:1"] = (125, "", "Error: 12: image not known\n")
    with pytest.raises(BuildError, match="podman tag: Error: 12: image not known"):
        PODMAN.tag(image, "y:1")


def test_an_image_is_what_podman_says_of_it(programs: Programs) -> None:
    data = {
        "Id": "12", "RepoTags": ["localhost/x:1"], "Labels": {"a": "b"},
        "Config": {"Env": ["PATH=/bin"]},
    }  # fmt: skip
    programs["podman image inspect x:1"] = json.dumps([data])
    programs["podman image inspect y:1"] = (125, "[]", "Error: y:1: image not known\n")
    programs["podman image inspect z:1"] = (125, "[]", "Error: database is locked\n")
    image = PODMAN.image("x:1")
    assert image == Image(id="sha256:12", tags=("localhost/x:1",), labels={"a": "b"})
    assert PODMAN.variables("x:1") == ("PATH=/bin",)
    assert PODMAN.image("y:1") is None
    with pytest.raises(ToolError, match="podman cannot inspect z:1: Error: database is locked"):
        PODMAN.image("z:1")


def test_volumes_are_made_once_and_listed_by_label(
    programs: Programs,
) -> None:
    volume = Volume(source="models", target="/models")
    folder = Volume(source="/data", target="/data")
    container = replace(BARE, volumes=(folder, volume))
    create = f"podman volume create --ignore --label={VOLUME_LABEL}=1000 models"
    programs[create] = "models\n"
    PODMAN.make_volumes(container, {VOLUME_LABEL: "1000"})
    programs[create] = (125, "", "Error: no space\n")
    with pytest.raises(ToolError, match="cannot create the volume models: Error: no space"):
        PODMAN.make_volumes(container, {VOLUME_LABEL: "1000"})
    listing = f"podman volume ls --filter label={VOLUME_LABEL} --format json"
    labels = {VOLUME_LABEL: "1000"}
    programs[listing] = json.dumps([{"Name": "models", "Labels": labels}])
    assert PODMAN.volumes() == (StoredVolume(name="models", labels=labels),)
    programs[listing] = "[]\n"
    assert PODMAN.volumes() == ()
    programs[listing] = (125, "", "Error: it is broken\n")
    with pytest.raises(ToolError, match="cannot list its volumes: Error: it is broken"):
        PODMAN.volumes()
    programs["podman volume rm models"] = (2, "", "Error: volume is being used\n")
    with pytest.raises(BuildError, match="models: cannot be removed: Error: volume is being"):
        PODMAN.remove_volume("models")


def test_its_images_have_names_and_no_digest_algorithm(
    programs: Programs,
) -> None:
    listed = [{"Id": "2", "Names": ["localhost/x:1"], "Labels": {"a": "b"}}, {"Id": "1"}]
    programs["podman images"] = json.dumps(listed)
    assert [(i.id, i.tags) for i in PODMAN.labelled()] == [
        ("sha256:1", ()),
        ("sha256:2", ("localhost/x:1",)),
    ]
    programs["podman images"] = (125, "", "Error: database is locked\n")
    with pytest.raises(ToolError, match="podman cannot list its images: Error: database"):
        PODMAN.labelled()


def test_an_image_that_cannot_be_removed_is_1(programs: Programs) -> None:
    programs["podman rmi x:1"] = (2, "", "Error: image is in use\n")
    with pytest.raises(BuildError, match="x:1: cannot be removed: Error: image is in use"):
        PODMAN.remove("x:1")


def test_gpus_are_known_from_their_specification(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cdi, "FOLDERS", (tmp_path, tmp_path / "none"))
    assert not PODMAN.knows_gpus()
    os.mkfifo(tmp_path / "pipe.yaml")  # nobody writes to it
    assert not PODMAN.knows_gpus()
    (tmp_path / "nvidia.yaml").write_text("kind: nvidia.com/gpu\ndevices:\n- name: all\n")
    assert PODMAN.knows_gpus()


def test_cdi_devices_are_those_of_this_machines_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cdi, "FOLDERS", (tmp_path,))
    (tmp_path / "gpu.json").write_text('{"kind": "amd.com/gpu", "devices": [{"name": "all"}]}')
    assert PODMAN.cdi_devices() == {"amd.com/gpu=all"}
    remote = PodmanEngine(["podman"], rootless=False, remote=True)
    assert remote.cdi_devices() == set(), "its files are on another machine"


def test_the_images_of_running_containers_are_used(
    programs: Programs,
) -> None:
    programs["podman ps --format json"] = json.dumps([{"ImageID": "1" * 64}])
    assert PODMAN.used() == {"sha256:" + "1" * 64}
    programs["podman ps --format json"] = "[]\n"
    assert PODMAN.used() == frozenset()
