"""How commands of users are started in an image."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import pytest

from envbuilder.build.access import Access
from envbuilder.build.backends import container, devices
from envbuilder.containers.engine.container import Port, Volume
from envbuilder.containers.engine.interface import Image
from envbuilder.core import console, process
from envbuilder.core.errors import InvalidError, VerifyError
from tests.unit.build.backends.test_backends import OTHER, built_image

if TYPE_CHECKING:
    from envbuilder.core.settings import Settings
    from tests.support.engines import FakeEngine


class Folder:
    """What `stat` knows of a folder."""

    def __init__(self, uid: int, gid: int) -> None:
        self.st_uid, self.st_gid = uid, gid


@pytest.mark.parametrize(
    ("owner", "caller", "user"),
    [
        ((1000, 1000), (1000, 1000), (1000, 1000)),
        ((0, 0), (1000, 100), (1000, 100)),
        ((1000, 1001), (0, 0), (1000, 1001)),
        ((0, 0), (0, 0), (0, 0)),
    ],
)
def test_roots_commands_run_as_the_folders_owner(
    owner: tuple[int, int], caller: tuple[int, int], user: tuple[int, int]
) -> None:
    folder: Any = Folder(*owner)
    assert container._user(folder, *caller) == user


@pytest.mark.parametrize(
    ("owner", "user", "groups", "needed"),
    [
        ((1001, 500), (1000, 1000), (1000, 500, 44), (500,)),
        ((1001, 500), (1000, 1000), (1000, 44), ()),
        ((1001, 1000), (1000, 1000), (1000, 44), ()),
        ((1000, 500), (1000, 1000), (1000, 500), ()),
        ((0, 0), (0, 0), (0, 500), ()),
    ],
)
def test_of_the_callers_groups_only_the_shared_folders_is_kept(
    owner: tuple[int, int],
    user: tuple[int, int],
    groups: tuple[int, ...],
    needed: tuple[int, ...],
) -> None:
    folder: Any = Folder(*owner)
    assert container._groups(folder, user, groups) == needed


@pytest.mark.parametrize("folder", ["/", "/run", "/run/podman", "/home/me/sockets"])
def test_a_project_may_not_hold_an_engines_socket(folder: str) -> None:
    socket = Path("/home/me/sockets/docker.sock")
    with pytest.raises(InvalidError, match=f"{folder} holds a container engine's socket"):
        container._require_project(Path(folder), socket)
    container._require_project(Path("/home/me/run"), socket)
    container._require_project(Path("/home/me/run"), None)


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        ("/", "/data", "/ holds a container engine's socket, and cannot be a volume"),
        ("/run", "/data", "/run holds"),
        ("/home/me/sockets", "/data", "/home/me/sockets holds"),
        ("/srv", "/work", "/work would cover the project, which is at /work"),
        ("models", "/work", "/work would cover"),
        ("models", "/work/none", "/work/none: there is no such folder in the project"),
    ],
)
def test_a_volume_holds_no_socket_and_leaves_the_project_alone(
    source: str, target: str, words: str, tmp_path: Path
) -> None:
    project, socket = (tmp_path, PurePosixPath("/work")), Path("/home/me/sockets/docker.sock")
    with pytest.raises(InvalidError, match=words):
        container._require_apart(Volume(source=source, target=target), project, socket)
    (tmp_path / "data").mkdir()
    for usual in ("/work/data", "/data"):
        container._require_apart(Volume(source="/home/me/x", target=usual), project, socket)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The command lines that replaced this process."""
    lines: list[list[str]] = []
    monkeypatch.setattr(process, "replace", lambda argv, env: lines.append(list(argv)))
    monkeypatch.setattr(devices, "host_nodes", lambda profile: {})
    return lines


@pytest.fixture
def image(found: Settings) -> tuple[container.DockerEnvironment, FakeEngine]:
    """The `cpu` image `trial:1`, which is as the last build recorded it, and its engine."""
    environment, engine = built_image(found, (OTHER,))
    engine.images["trial:1"] = Image(id=OTHER, tags=("trial:1",), labels={})
    return environment, engine


def test_a_command_gets_its_folder_and_says_what_it_is_left_with(
    image: tuple[container.DockerEnvironment, FakeEngine],
    started: list[list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "getuid", lambda: 1234)
    monkeypatch.setattr(os, "getgid", lambda: 1235)
    image[0].become(["python", "x.py"], {})
    (argv,) = started
    assert argv[-3:] == [OTHER, "python", "x.py"], "the image that was compared"
    assert argv[:5] == ["docker", "run", "--rm", "--pull=never", "--interactive"]
    assert {"--env=HOME=/tmp", "1234:1235", "--read-only"} <= set(argv)
    assert f"type=bind,source={tmp_path},target=/work" in argv
    assert "none" not in argv, "it has a network"
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "container: user 1234:1235, without capabilities or setuid programs; only this folder"
        " (/work) and /tmp can be written; at most 6.4 GB of memory and 4096 processes and threads"
    )
    monkeypatch.setattr(console.VERBOSITY, "quiet", True)
    image[0].become(["python"], {})
    assert capsys.readouterr().err == ""


def test_a_command_gets_what_the_user_states(
    image: tuple[container.DockerEnvironment, FakeEngine],
    started: list[list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    given = Access(
        ports=(Port(outside=8080, inside=80),),
        volumes=(
            Volume(source="models", target="/models"),
            Volume(source="/srv", target="/srv", writable=False),
        ),
        variables={"A": "b", "HOME": "/models"},
        passed=("HF_TOKEN",),
    )
    image[0].become(["python"], {"HF_TOKEN": "secret"}, given)
    (argv,) = started
    assert {"--publish=127.0.0.1:8080:80", "--env=A=b", "--env=HF_TOKEN"} <= set(argv)
    assert "--env=HOME=/models" in argv
    assert "--env=HOME=/tmp" not in argv
    assert "type=volume,source=models,target=/models" in argv
    assert "secret" not in "".join(argv)
    line = capsys.readouterr().err
    assert "only this folder (/work), /models and /tmp can be written" in line
    assert "127.0.0.1:8080 leads to port 80" in line
    with pytest.raises(InvalidError, match="/run holds"):
        image[0].become(["python"], {}, Access(volumes=(Volume(source="/run", target="/r"),)))
    assert len(started) == 1


def test_no_other_image_is_started_under_the_name(
    image: tuple[container.DockerEnvironment, FakeEngine],
    started: list[list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    environment, engine = image
    engine.add("trial:1")
    with pytest.raises(VerifyError, match="trial:1 was changed after the build"):
        environment.become(["python"], {})
    engine.images.clear()
    with pytest.raises(VerifyError, match="trial:1: not in the engine"):
        environment.become(["python"], {})
    assert started == []
