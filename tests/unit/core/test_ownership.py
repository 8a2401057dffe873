"""Whose files decide: ownership as data."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from envbuilder.core import files
from envbuilder.core.errors import InvalidError
from envbuilder.core.files import Trust
from envbuilder.core.settings import load as load_settings
from envbuilder.locks import entries

ME = 1000
MALLORY = 1001
FOLDER = stat.S_IFDIR
FILE = stat.S_IFREG
LINK = stat.S_IFLNK
PROJECT = Path("/x/project")


def facts(uid: int, mode: int, device: int = 0, inode: int = 0) -> os.stat_result:
    return os.stat_result((mode, inode, device, 1, uid, 0, 0, 0, 0, 0))


def looking(
    tree: Mapping[str, os.stat_result], links: Mapping[str, str] | None = None
) -> files.Look:
    def look(path: Path, *, follow: bool) -> os.stat_result | None:
        name = str(path)
        return tree.get((links or {}).get(name, name) if follow else name)

    return look


def folder(uid: int = ME, mode: int = 0o755, device: int = 1, inode: int = 0) -> os.stat_result:
    return facts(uid, FOLDER | mode, device, inode)


def file(uid: int = ME, mode: int = 0o644) -> os.stat_result:
    return facts(uid, FILE | mode)


DECIDES = PROJECT / "envbuilder.yaml"


@pytest.mark.parametrize(
    ("project", "decides", "why"),
    [
        (folder(), file(), ""),
        (folder(0, 0o1777), file(), ""),
        (folder(mode=0o775), file(mode=0o664), ""),
        (folder(0, 0o1777), file(MALLORY), "envbuilder.yaml belongs to"),
        (folder(MALLORY), file(), "project belongs to"),
        (folder(MALLORY), file(0), "project belongs to"),
        (folder(mode=0o777), file(), "writable by every user"),
        (folder(), file(mode=0o666), "writable by every user"),
        (folder(), folder(MALLORY), "envbuilder.yaml belongs to"),
        (folder(), folder(0, 0o1777), "writable by every user"),
    ],
)
def test_what_other_users_can_write_does_not_count(
    project: os.stat_result, decides: os.stat_result, why: str
) -> None:
    look = looking({"/": folder(0), "/x": folder(0), str(PROJECT): project, str(DECIDES): decides})
    objection = files.objection(DECIDES, Trust(uids=frozenset({0, ME})), look)
    assert why in objection
    assert bool(objection) == bool(why)


def test_modes_say_nothing_where_a_file_system_keeps_none() -> None:
    """As on a Windows drive in WSL, whose root is shown as writable by everybody, too."""
    drive = PROJECT.parent
    tree = {
        str(drive): folder(mode=0o777, device=2),
        str(PROJECT): folder(mode=0o777, device=2),
        str(DECIDES): file(mode=0o777),
    }
    trusted = Trust(uids=frozenset({0, ME}))
    assert files.objection(DECIDES, trusted, looking(tree)) == ""
    tree[str(DECIDES)] = file(MALLORY, 0o777)
    assert "belongs to" in files.objection(DECIDES, trusted, looking(tree))


@pytest.mark.parametrize(
    ("link", "target", "counts"),
    [(ME, ME, True), (ME, 0, True), (MALLORY, ME, False), (ME, MALLORY, False), (0, ME, True)],
)
def test_a_link_counts_with_what_it_names(link: int, target: int, counts: bool) -> None:
    tree = {
        str(PROJECT): folder(0, 0o1777),
        str(DECIDES): facts(link, LINK | 0o777),
        "/elsewhere": file(target),
    }
    look = looking(tree, {str(DECIDES): "/elsewhere"})
    assert counts == (not files.objection(DECIDES, Trust(uids=frozenset({0, ME})), look))


def test_a_named_folder_counts_whoever_owns_it() -> None:
    look = looking({str(PROJECT): folder(MALLORY), str(DECIDES): file(MALLORY)})
    named = {files.TRUSTED_VARIABLE: f"relative:/elsewhere:{PROJECT}"}
    assert not files.objection(DECIDES, files.trust(named, ME), look)
    assert files.objection(DECIDES, files.trust({files.TRUSTED_VARIABLE: "/x"}, ME), look)
    assert files.objection(DECIDES, files.trust({}, ME), look)


def test_root_trusts_root_and_behind_sudo_the_one_who_called_it() -> None:
    assert files.trust({}, 0).uids == {0}
    assert files.trust({"SUDO_UID": "1000"}, 0).uids == {0, ME}
    assert files.trust({"SUDO_UID": "1001"}, ME).uids == {0, ME}  # anybody can set it
    for odd in ("", "-1", "x", "9" * 40, "\uff11", "1 "):
        assert files.trust({"SUDO_UID": odd}, 0).uids == {0}


def test_the_search_ends_at_home_and_at_mount_points() -> None:
    tree = {
        "/": folder(0, inode=1),
        "/home": folder(0, inode=2),
        "/home/me": folder(inode=3),
        "/home/me/a": folder(inode=4),
        "/home/me/a/b": folder(inode=5),
        "/home/me/disk": folder(device=2, inode=4),
        "/home/me/disk/a": folder(device=2, inode=5),
    }
    look = looking(tree, {"/link/to/me": "/home/me"})

    def above(start: str, home: str | None) -> list[str]:
        found = files.folders_above(Path(start), Path(home) if home else None, look)
        return [str(f) for f in found]

    assert above("/home/me/a/b", "/home/me") == ["/home/me/a/b", "/home/me/a", "/home/me"]
    assert above("/home/me/a", "/link/to/me") == ["/home/me/a", "/home/me"]
    assert above("/home/me", "/home/me") == ["/home/me"]
    assert above("/home", "/home/me") == ["/home", "/"]
    assert above("/home/me/a", None) == ["/home/me/a", "/home/me", "/home", "/"]
    assert above("/home/me/disk/a", "/home/me") == ["/home/me/disk/a", "/home/me/disk"]


def _written(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("profile: zendnn\n" if Path(name).parent == Path() else "")


def test_a_project_whose_file_others_can_write_is_ignored_and_noted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    _written(project, "envbuilder.yaml", "below/file")
    notes: list[str] = []
    assert load_settings(cwd=project / "below", note=notes.append).project == project
    assert not notes
    (project / "envbuilder.yaml").chmod(0o666)
    ignoring = load_settings(cwd=project / "below", note=notes.append)
    assert ignoring.project is None
    assert ignoring.configuration.profile is None
    (note,) = notes
    assert f"{project / 'envbuilder.yaml'} is writable by every user" in note
    monkeypatch.setenv(files.TRUSTED_VARIABLE, str(project))
    assert load_settings(cwd=project / "below", note=notes.append).project == project


BESIDE = ("profiles/mine.yaml", "profiles/locks/a.json", "envbuilder.lock/default.cpu.json")


@pytest.mark.parametrize("name", [*BESIDE, "profiles", "envbuilder.lock"])
def test_what_others_can_write_beside_a_projects_file_is_refused(name: str, tmp_path: Path) -> None:
    """Ignoring it would lift the signatures that the project requires."""
    _written(tmp_path, "envbuilder.yaml", *BESIDE)
    assert load_settings(cwd=tmp_path).project == tmp_path
    mode = (tmp_path / name).stat().st_mode
    (tmp_path / name).chmod(mode | 0o002)
    with pytest.raises(InvalidError, match=f"{name} is writable by every user"):
        load_settings(cwd=tmp_path)
    named = {files.TRUSTED_VARIABLE: str(tmp_path)}
    assert load_settings(named, cwd=tmp_path).project == tmp_path


@pytest.mark.parametrize("name", ["profiles", "profiles/locks", "envbuilder.lock"])
def test_locks_are_never_written_through_a_link(name: str, tmp_path: Path) -> None:
    """It may lead to another project, whose locks would be replaced and removed."""
    project = tmp_path / "project"
    other = tmp_path / "other"
    _written(project, "envbuilder.yaml")
    _written(other, "locks/default.cpu.json")
    (project / name).parent.mkdir(exist_ok=True)
    (project / name).symlink_to(other)
    with pytest.raises(InvalidError, match=f"{name} is a symbolic link"):
        entries.place("cpu", load_settings(cwd=project), None)
    settings = replace(load_settings(cwd=tmp_path), project=project)
    assert entries.place("cpu", settings, other) == other / "cpu.json"


@pytest.mark.parametrize(
    "name", ["", "config.yaml", "profiles/mine.yaml", "jupyter/jupyter_server_config.py"]
)
def test_a_configuration_folder_that_others_can_write_is_refused(name: str, tmp_path: Path) -> None:
    """Ignoring it would lift the signatures that the user requires."""
    user = tmp_path / "user"
    _written(user, "config.yaml", "profiles/mine.yaml", "jupyter/jupyter_server_config.py")
    environ = {"ENVBUILDER_CONFIG_DIR": str(user)}
    assert load_settings(environ).configuration.profile == "zendnn"
    (user / name).chmod((user / name).stat().st_mode | 0o002)
    with pytest.raises(InvalidError, match="is writable by every user"):
        load_settings(environ)
    environ[files.TRUSTED_VARIABLE] = str(user)
    assert load_settings(environ).configuration.profile == "zendnn"


def test_a_file_of_another_user_is_refused_with_the_way_to_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run/scripts/node.sbatch"
    path.parent.mkdir(parents=True)
    path.write_text("")
    files.require_own(tmp_path / "run")
    files.require_own(tmp_path / "nothing")
    itself = files.look

    def foreign(looked_at: Path, *, follow: bool) -> os.stat_result | None:
        if looked_at == path:
            return facts(MALLORY, FILE | 0o644)
        return itself(looked_at, follow=follow)

    monkeypatch.setattr(files, "look", foreign)
    with pytest.raises(InvalidError, match=f"{path} belongs to .*neither you nor root") as refused:
        files.require_own(tmp_path / "run")
    assert refused.value.hint.endswith(f"{files.TRUSTED_VARIABLE}={tmp_path / 'run'}")
    files.require_own(tmp_path / "run", Trust(uids=frozenset({0}), folders=frozenset({tmp_path})))


OURS = Path("/x/cache/store")


@pytest.mark.parametrize(
    ("above", "ours", "why"),
    [
        (folder(), None, ""),
        (folder(), folder(), ""),
        (folder(mode=0o2775), folder(mode=0o2775), ""),
        (folder(), folder(MALLORY, 0o700), "belongs to"),
        (folder(), folder(mode=0o777), "store is writable by every user"),
        (folder(MALLORY), folder(), "cache belongs to"),
        (folder(mode=0o777), folder(), "cache is writable by every user"),
    ],
)
def test_who_can_put_files_into_a_folder_of_ours(
    above: os.stat_result, ours: os.stat_result | None, why: str
) -> None:
    tree = {"/": folder(0), "/x": folder(), str(OURS.parent): above}
    look = looking(tree | ({str(OURS): ours} if ours else {}))
    stated = files.exposure(OURS, Trust(uids=frozenset({0, ME})), look)
    assert why in stated
    assert bool(stated) == bool(why)
    for trusted in (OURS, OURS.parent):
        trust = Trust(uids=frozenset({0, ME}), folders=frozenset({trusted}))
        assert files.exposure(OURS, trust, look) == ""
