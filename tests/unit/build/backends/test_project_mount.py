"""Where a container sees the project, and who can write it there."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from envbuilder.build.backends import container
from envbuilder.build.backends.container import ProjectMount
from envbuilder.containers.engine.container import Volume
from envbuilder.core.errors import InvalidError


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
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    (tmp_path / "home").symlink_to(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    stated = None if project is None else tmp_path / project
    assert container.project_folder(stated, tmp_path / here) == tmp_path / folder


@pytest.mark.parametrize(
    ("folder", "here", "uid", "target", "workdir"),
    [
        ("/home/me/x", "/home/me/x", 1000, "/home/me/x", "/home/me/x"),
        ("/home/me/x", "/home/me/x/a/b", 1000, "/home/me/x", "/home/me/x/a/b"),
        ("/home/user/x", "/home/user/x", 1000, "/home/user/x", "/home/user/x"),
        ("/tmp/x", "/tmp/x", 1000, "/tmp/x", "/tmp/x"),
        ("/root/x", "/root/x", 0, "/root/x", "/root/x"),
        ("/srv/a,b:c", "/srv/a,b:c", 1, "/srv/a,b:c", "/srv/a,b:c"),
        ("/work", "/work/a", 1, "/work", "/work/a"),
        # where it would cover something, or could not be reached
        ("/root/x", "/root/x/a", 1000, "/work", "/work/a"),
        ("/home/user", "/home/user/a", 1000, "/work", "/work/a"),
        ("/home", "/home", 1000, "/work", "/work"),
        ("/tmp", "/tmp/a", 1000, "/work", "/work/a"),
        ("/opt", "/opt", 1000, "/work", "/work"),
        ("/opt/env/x", "/opt/env/x", 1000, "/work", "/work"),
        ("/usr/src/x", "/usr/src/x", 1000, "/work", "/work"),
        ("/etc/x", "/etc/x", 1000, "/work", "/work"),
        ("/srv/a\nb", "/srv/a\nb", 1000, "/work", "/work"),
    ],
)
def test_it_is_at_its_own_path_unless_it_would_cover_something(
    folder: str, here: str, uid: int, target: str, workdir: str
) -> None:
    mount = container.project_mount(Path(folder), Path(here), uid)
    assert (str(mount.target), str(mount.workdir)) == (target, workdir)
    assert bool(mount.reason) == (target != folder)
    assert str(mount.inside(Path(folder) / "src")) == f"{target}/src"


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
    with pytest.raises(InvalidError, match=f"{folder} holds a container engine's socket"):
        container.require_project(Path(folder), socket)
    container.require_project(Path("/home/me/run"), socket)
    container.require_project(Path("/home/me/run"), None)


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
    work, socket = PurePosixPath("/work"), Path("/home/me/sockets/docker.sock")
    project = ProjectMount(folder=tmp_path, target=work, workdir=work)
    with pytest.raises(InvalidError, match=words):
        container.require_apart(Volume(source=source, target=target), project, socket)
    (tmp_path / "data").mkdir()
    for usual in ("/work/data", "/data"):
        container.require_apart(Volume(source="/home/me/x", target=usual), project, socket)
