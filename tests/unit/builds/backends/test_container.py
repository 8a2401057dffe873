"""How commands of users are started in an image."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from unittest.mock import Mock

import pytest

from envbuilder.builds import conventions
from envbuilder.builds.access import Access
from envbuilder.builds.backends import container, devices
from envbuilder.builds.backends.container import ProjectMount
from envbuilder.containers.engine.container import Port, Volume
from envbuilder.containers.engine.interface import Image
from envbuilder.core import console, process
from envbuilder.core.errors import InvalidError, VerifyError
from envbuilder.core.settings import Settings
from tests.support.engines import FakeEngine
from tests.unit.builds.backends.test_backends import OTHER, built_image


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """On the disk: in a container, a project below /dev would be elsewhere."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder).resolve()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The command lines that replaced this process."""
    lines: list[list[str]] = []
    monkeypatch.setattr(process, "exec_program", lambda argv, env: lines.append(list(argv)))
    monkeypatch.setattr(process, "when_ended", lambda argv: 0)
    monkeypatch.setattr(devices, "host_nodes", lambda profile: {})
    return lines


@pytest.fixture
def image(
    found: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[container.DockerEnvironment, FakeEngine]:
    """The `cpu` image `trial:1`, which is as the last build recorded it, and its engine."""
    monkeypatch.chdir(tmp_path)
    built = built_image(found, (OTHER,))
    built[1].images["trial:1"] = Image(id=OTHER, tags=("trial:1",), labels={})
    return built


def test_a_command_gets_its_folder_and_says_what_it_is_left_with(
    image: tuple[container.DockerEnvironment, FakeEngine],
    started: list[list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1234)
    monkeypatch.setattr(os, "getgid", lambda: 1235)
    image[0].become(["python", "x.py"], {})
    (argv,) = started
    assert argv[-2:] == ["python", "x.py"]
    assert OTHER in argv, "the image that was compared"
    python, *entrypoint = conventions.ENTRYPOINT
    assert argv[argv.index("--entrypoint") + 1] == python
    assert argv[-2 - len(conventions.ENTRYPOINT) : -2] == [python, *entrypoint]
    assert argv[:5] == ["docker", "run", "--rm", "--pull=never", "--interactive"]
    assert {"--env=HOME=/tmp", "1234:1235", "--read-only"} <= set(argv)
    assert "--env=HF_HOME=/tmp/.cache/huggingface" in argv
    assert f"type=bind,source={tmp_path},target={tmp_path}" in argv
    assert "none" not in argv, "it has a network"
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "container: user 1234:1235, without capabilities or setuid programs; only"
        f" {tmp_path} and /tmp are writable; at most 6.4 GB of memory and 4096 processes and"
        " threads"
    )
    monkeypatch.setattr(console.VERBOSITY, "quiet", True)
    image[0].become(["python"], {})
    assert capsys.readouterr().err == ""


def test_a_command_whose_output_is_read_gets_no_terminal(
    image: tuple[container.DockerEnvironment, FakeEngine],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As when modules are imported: `import_check` asks through this door."""
    for stream in ("stdin", "stdout"):
        monkeypatch.setattr(container.sys, stream, Mock(isatty=lambda: True))
    started: list[tuple[str, ...]] = []

    def start(argv: Sequence[str], variables: Mapping[str, str]) -> int:
        started.append(tuple(argv))
        return 7

    words = ("python", "-I", "-c", "import json", '{"modules": ["pip"]}')
    assert image[0].become(words, {}, Access(is_read=True), start) == 7
    assert capsys.readouterr().err == ""
    assert image[0].become(words, {}, start=start) == 7
    quiet, usual = started
    assert (quiet[-5:], usual[-5:]) == (words, words)
    assert ("--tty" in quiet, "--tty" in usual) == (False, True)


def test_a_command_gets_what_the_user_states(
    image: tuple[container.DockerEnvironment, FakeEngine],
    started: list[list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1234)
    monkeypatch.setattr(image[1], "variables", lambda _: ("PATH=/opt/env/bin:/usr/bin", "A=1"))
    given = Access(
        ports=(Port(outside=8080, inside=80),),
        volumes=(
            Volume(source="models", target="/models"),
            Volume(source="/srv", target="/srv", writable=False),
        ),
        variables={"A": "b", "HOME": "/models"},
        passed=("HF_TOKEN", "TORCH_HOME"),
        python_path=(tmp_path / "src", tmp_path),
        programs=(tmp_path / "own",),
    )
    image[0].become(["python"], {"HF_TOKEN": "secret"}, given)
    (argv,) = started
    assert {"--publish=127.0.0.1:8080:80", "--env=A=b", "--env=HF_TOKEN"} <= set(argv)
    assert "--env=HOME=/models" in argv
    assert f"--env=PYTHONPATH={tmp_path}/src:{tmp_path}" in argv
    assert f"--env=PATH=/opt/env/bin:{tmp_path}/own:/usr/bin" in argv
    assert "--env=HOME=/tmp" not in argv
    assert "type=volume,source=models,target=/models" in argv
    assert "secret" not in "".join(argv)
    assert "--env=TORCH_HOME" in argv
    assert not [word for word in argv if word.startswith("--env=TORCH_HOME=")]
    assert "type=volume,source=envbuilder-cache-1234,target=/tmp/.cache" in argv
    assert "--env=HF_HOME=/tmp/.cache/huggingface" in argv
    assert [*image[1].stored_volumes] == ["models", "envbuilder-cache-1234"]
    line = capsys.readouterr().err
    assert f"only {tmp_path}, /models and /tmp are writable" in line
    assert "127.0.0.1:8080 is forwarded to port 80" in line
    with pytest.raises(InvalidError, match="/run contains"):
        image[0].become(["python"], {}, Access(volumes=(Volume(source="/run", target="/r"),)))
    assert len(started) == 1


@pytest.mark.parametrize(
    ("value", "expected"), [("x.so", "libtcmalloc_minimal.so.4:x.so"), ("", "")]
)
def test_a_command_preloads_after_the_profile(
    image: tuple[container.DockerEnvironment, FakeEngine],
    started: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    value: str,
    expected: str,
) -> None:
    monkeypatch.setenv("LD_PRELOAD", value)
    for given in (Access(variables={"LD_PRELOAD": value}), Access(passed=("LD_PRELOAD",))):
        image[0].become(["python"], {}, given)
    words = [[w for w in argv if "LD_PRELOAD" in w] for argv in started]
    assert words == [[f"--env=LD_PRELOAD={expected}"]] * 2


def test_a_projects_commands_share_a_cache_with_no_other_ones(
    image: tuple[container.DockerEnvironment, FakeEngine],
    started: list[list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for folder in ("a", "a/below", "b"):
        (tmp_path / folder).mkdir()
    for project, cwd in (("a", "a"), ("a", "a/below"), ("b", "b"), ("a", "b"), (None, "b")):
        image[0]._project = project and tmp_path / project
        monkeypatch.chdir(tmp_path / cwd)
        image[0].become(["python"], {})
    words = (word for argv in started for word in argv if word.endswith("target=/tmp/.cache"))
    first, below, other, outside, without = words
    assert first == below
    assert len({first, other, outside}) == 3
    assert outside == without, "given outside of the project"


def test_no_other_image_is_started_under_the_name(
    image: tuple[container.DockerEnvironment, FakeEngine],
    started: list[list[str]],
) -> None:
    environment, engine = image
    engine.add("trial:1")
    with pytest.raises(VerifyError, match="trial:1 was changed after the build"):
        environment.become(["python"], {})
    engine.images.clear()
    with pytest.raises(VerifyError, match="trial:1: the engine does not have this image"):
        environment.become(["python"], {})
    assert started == []


def test_a_volume_takes_the_place_of_the_cache() -> None:
    mine = Volume(source="/srv/cache", target=container._CACHE)
    assert container.with_cache([mine], 1000, None) == (mine,)


@pytest.mark.parametrize(
    ("project", "here", "folder"),
    [
        ("a", "a", "a"),
        ("a", "a/b/c", "a"),
        (None, "a/b", "a/b"),
        ("", "a/b", "a/b"),  # the home folder
        ("a/b", "a", "a"),
    ],
)
def test_the_projects_folder_is_seen_wherever_a_command_is_given(
    project: str | None, here: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a/b/c").mkdir(parents=True)
    (tmp_path / "home").symlink_to(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    stated = None if project is None else tmp_path / project
    assert container.project_folder(stated, tmp_path / here) == tmp_path / folder


@pytest.mark.parametrize(
    ("folder", "here", "uid", "target", "workdir"),
    [
        ("/home/me/x", "/home/me/x", 1000, "/home/me/x", "/home/me/x"),
        ("/home/me/x", "/home/me/x/a/b", 1000, "/home/me/x", "/home/me/x/a/b"),
        ("/root/x", "/root/x", 0, "/root/x", "/root/x"),
        ("/srv/a,b:c", "/srv/a,b:c", 1, "/srv/a,b:c", "/srv/a,b:c"),
        # where it would cover something, or could not be reached
        ("/root/x", "/root/x/a", 1000, "/work", "/work/a"),
        ("/home/user", "/home/user/a", 1000, "/work", "/work/a"),
        ("/opt", "/opt", 1000, "/work", "/work"),
        ("/opt/env/x", "/opt/env/x", 1000, "/work", "/work"),
        ("/srv/a\nb", "/srv/a\nb", 1000, "/work", "/work"),
    ],
)
def test_it_is_at_its_own_path_unless_it_would_cover_something(
    folder: str, here: str, uid: int, target: str, workdir: str
) -> None:
    mount = container.project_mount(Path(folder), Path(here), uid)
    assert (str(mount.target), str(mount.workdir)) == (target, workdir)
    assert bool(mount.reason) == (target != folder)
    paths = mount.inside((Path(folder) / "src", Path("/elsewhere/src")))
    assert [*map(str, paths)] == [f"{target}/src"]


class Folder:
    """What `stat` knows of a folder."""

    def __init__(self, uid: int, gid: int) -> None:
        self.st_uid = uid
        self.st_gid = gid


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
    assert container.user_in(folder, *caller) == user


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
    assert container.groups_in(folder, user, groups) == needed


@pytest.mark.parametrize("folder", ["/", "/run", "/run/podman", "/home/me/sockets"])
def test_a_project_may_not_hold_an_engines_socket(folder: str) -> None:
    socket = Path("/home/me/sockets/docker.sock")
    with pytest.raises(InvalidError, match=f"{folder} contains a container engine's socket"):
        container.require_project(Path(folder), socket)
    container.require_project(Path("/home/me/run"), socket)
    container.require_project(Path("/home/me/run"), None)


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        ("/", "/data", "/ contains a container engine's socket and cannot be a volume"),
        ("/home/me/sockets", "/data", "/home/me/sockets contains"),
        ("/srv", "/work", "/work would cover the project, which is at /work"),
        ("models", "/work", "/work would cover"),
        ("models", "/work/none", "/work/none: no such folder in the project"),
    ],
)
def test_a_volume_holds_no_socket_and_leaves_the_project_alone(
    source: str, target: str, words: str, tmp_path: Path
) -> None:
    work = PurePosixPath("/work")
    socket = Path("/home/me/sockets/docker.sock")
    project = ProjectMount(folder=tmp_path, target=work, workdir=work)
    with pytest.raises(InvalidError, match=words):
        container.require_apart(Volume(source=source, target=target), project, socket)
    (tmp_path / "data").mkdir()
    for usual in ("/work/data", "/data"):
        container.require_apart(Volume(source="/home/me/x", target=usual), project, socket)
