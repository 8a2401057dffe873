"""Whose files decide: ownership as data."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuilder.core import ownership
from envbuilder.core.ownership import Facts, Trust
from envbuilder.packages import configuration
from envbuilder.profiles import profile as profiles

if TYPE_CHECKING:
    from collections.abc import Mapping

ME, MALLORY = 1000, 1001
FOLDER, FILE, LINK = stat.S_IFDIR, stat.S_IFREG, stat.S_IFLNK
PROJECT = Path("/x/project")


def looking(tree: Mapping[str, Facts], links: Mapping[str, str] | None = None) -> ownership.Look:
    def look(path: Path, *, follow: bool) -> Facts | None:
        name = str(path)
        return tree.get((links or {}).get(name, name) if follow else name)

    return look


def folder(uid: int = ME, mode: int = 0o755, device: int = 1, inode: int = 0) -> Facts:
    return Facts(uid=uid, mode=FOLDER | mode, device=device, inode=inode)


def file(uid: int = ME, mode: int = 0o644) -> Facts:
    return Facts(uid=uid, mode=FILE | mode)


@pytest.mark.parametrize(
    ("tree", "why"),
    [
        ({"": folder(), "/envbuilder.yaml": file()}, ""),
        ({"": folder(0), "/envbuilder.yaml": file(0)}, ""),
        ({"": folder(0, 0o1777), "/envbuilder.yaml": file()}, ""),
        ({"": folder(mode=0o775), "/envbuilder.yaml": file(mode=0o664)}, ""),
        ({"": folder(0, 0o1777), "/envbuilder.yaml": file(MALLORY)}, "envbuilder.yaml belongs to"),
        ({"": folder(MALLORY), "/envbuilder.yaml": file()}, "project belongs to"),
        ({"": folder(MALLORY), "/envbuilder.yaml": file(0)}, "project belongs to"),
        ({"": folder(mode=0o777), "/envbuilder.yaml": file()}, "written by every user"),
        ({"": folder(0, 0o777), "/envbuilder.yaml": file()}, "written by every user"),
        ({"": folder(), "/envbuilder.yaml": file(mode=0o666)}, "written by every user"),
        ({"": folder(), "/envbuilder.yaml": file(), "/profiles": folder(MALLORY)}, "profiles bel"),
        ({"": folder(), "/envbuilder.yaml": file(), "/profiles": folder(mode=0o777)}, "every user"),
        (
            {"": folder(), "/profiles": folder(0, 0o1777), "/profiles/locks": folder(MALLORY)},
            "locks belongs to",
        ),
        ({"": folder(), "/config.yaml": file(MALLORY)}, "config.yaml belongs to"),
    ],
)
def test_what_other_users_can_write_does_not_count(tree: dict[str, Facts], why: str) -> None:
    above = {str(PROJECT.parent): folder(0)}
    look = looking(above | {f"{PROJECT}{name}": facts for name, facts in tree.items()})
    found = ownership.objection(PROJECT, Trust(uids=frozenset({0, ME})), look)
    assert why in found
    assert bool(found) == bool(why)


def test_modes_say_nothing_where_a_file_system_keeps_none() -> None:
    """As on a Windows drive in WSL, whose root is shown as writable by everybody, too."""
    drive = PROJECT.parent
    tree = {
        str(drive): folder(mode=0o777, device=2),
        str(PROJECT): folder(mode=0o777, device=2),
        f"{PROJECT}/envbuilder.yaml": file(mode=0o777),
    }
    trusted = Trust(uids=frozenset({0, ME}))
    assert ownership.objection(PROJECT, trusted, looking(tree)) == ""
    tree[f"{PROJECT}/envbuilder.yaml"] = file(MALLORY, 0o777)
    assert "belongs to" in ownership.objection(PROJECT, trusted, looking(tree))


@pytest.mark.parametrize(
    ("link", "target", "counts"),
    [(ME, ME, True), (ME, 0, True), (MALLORY, ME, False), (ME, MALLORY, False), (0, ME, True)],
)
def test_a_link_counts_with_what_it_names(link: int, target: int, counts: bool) -> None:
    tree = {
        str(PROJECT): folder(0, 0o1777),
        f"{PROJECT}/envbuilder.yaml": Facts(uid=link, mode=LINK | 0o777),
        "/elsewhere": file(target),
    }
    look = looking(tree, {f"{PROJECT}/envbuilder.yaml": "/elsewhere"})
    assert counts == (not ownership.objection(PROJECT, Trust(uids=frozenset({0, ME})), look))


def test_a_named_folder_counts_whoever_owns_it() -> None:
    look = looking({str(PROJECT): folder(MALLORY), f"{PROJECT}/envbuilder.yaml": file(MALLORY)})
    named = {ownership.VARIABLE: f"relative:/elsewhere:{PROJECT}"}
    assert not ownership.objection(PROJECT, ownership.trust(named, ME), look)
    assert ownership.objection(PROJECT, ownership.trust({ownership.VARIABLE: "/x"}, ME), look)
    assert ownership.objection(PROJECT, ownership.trust({}, ME), look)


def test_root_trusts_root_and_behind_sudo_the_one_who_called_it() -> None:
    assert ownership.trust({}, 0).uids == {0}
    assert ownership.trust({"SUDO_UID": "1000"}, 0).uids == {0, ME}
    assert ownership.trust({"SUDO_UID": "1001"}, ME).uids == {0, ME}  # anybody can set it
    for odd in ("", "-1", "x", "9" * 40, "\uff11", "1 "):
        assert ownership.trust({"SUDO_UID": odd}, 0).uids == {0}


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
        found = ownership.folders_above(Path(start), Path(home) if home else None, look)
        return [str(f) for f in found]

    assert above("/home/me/a/b", "/home/me") == ["/home/me/a/b", "/home/me/a", "/home/me"]
    assert above("/home/me/a", "/link/to/me") == ["/home/me/a", "/home/me"]
    assert above("/home/me", "/home/me") == ["/home/me"]
    assert above("/home", "/home/me") == ["/home", "/"]
    assert above("/home/me/a", None) == ["/home/me/a", "/home/me", "/home", "/"]
    assert above("/home/me/disk/a", "/home/me") == ["/home/me/disk/a", "/home/me/disk"]


_UIDS = st.sampled_from([0, ME, MALLORY, 65534])
_MODES = st.integers(0, 0o1777)


@given(
    st.dictionaries(
        st.sampled_from(["", *(f"/{n}" for n in ownership._DECIDING)]), st.tuples(_UIDS, _MODES)
    )
)
def test_nothing_of_another_user_ever_counts(owned: dict[str, tuple[int, int]]) -> None:
    folders = {"", "/profiles", "/profiles/locks"}
    tree = {
        f"{PROJECT}{n}": Facts(uid=uid, mode=(FOLDER if n in folders else FILE) | mode)
        for n, (uid, mode) in owned.items()
    }
    found = ownership.objection(PROJECT, Trust(uids=frozenset({0, ME})), looking(tree))
    if any(uid not in {0, ME} for uid, _ in owned.values()):
        assert found


@pytest.mark.parametrize("name", ["envbuilder.yaml", "profiles/mine.yaml", "profiles/locks/a.json"])
def test_a_project_that_others_can_write_is_ignored_and_noted_once(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    for each in ("envbuilder.yaml", "profiles/mine.yaml", "profiles/locks/a.json"):
        (project / each).parent.mkdir(parents=True, exist_ok=True)
        (project / each).write_text("profile: zendnn\n" if each == "envbuilder.yaml" else "")
    (project / "below").mkdir()
    notes: list[str] = []
    assert configuration.load(cwd=project / "below", note=notes.append).project == project
    assert not notes
    (project / name).chmod(0o666)
    found = configuration.load(cwd=project / "below", note=notes.append)
    assert found.project is None
    assert found.configuration.profile is None
    assert len(notes) == 1
    assert f"{project / name} can be written by every user" in notes[0]
    monkeypatch.setenv(ownership.VARIABLE, str(project))
    assert configuration.load(cwd=project / "below", note=notes.append).project == project


@pytest.mark.parametrize("name", ["config.yaml", "profiles/mine.yaml"])
def test_the_users_own_settings_count_only_where_they_are(name: str, tmp_path: Path) -> None:
    for each in ("config.yaml", "profiles/mine.yaml"):
        (tmp_path / each).parent.mkdir(exist_ok=True)
        (tmp_path / each).write_text("profile: zendnn\n" if each == "config.yaml" else "")
    environ = {"ENVBUILDER_CONFIG_DIR": str(tmp_path)}
    notes: list[str] = []
    assert configuration.load(environ, note=notes.append).configuration.profile == "zendnn"
    assert tmp_path / "profiles" in profiles.search_path(None, tmp_path)
    (tmp_path / name).chmod(0o666)
    assert configuration.load(environ, note=notes.append).configuration.profile is None
    assert tmp_path / "profiles" not in profiles.search_path(None, tmp_path)
    assert len(notes) == 1


OURS = Path("/x/cache/store")


@pytest.mark.parametrize(
    ("above", "ours", "why"),
    [
        (folder(), None, ""),
        (folder(), folder(mode=0o700), ""),
        (folder(), folder(), ""),
        (folder(0, 0o1777), folder(), ""),
        (folder(mode=0o2775), folder(mode=0o2775), ""),
        (folder(), folder(0), ""),
        (folder(), folder(MALLORY, 0o700), "belongs to"),
        (folder(0, 0o1777), folder(MALLORY), "belongs to"),
        (folder(), folder(mode=0o777), "store can be written by every user"),
        (folder(), folder(mode=0o1777), "store can be written by every user"),
        (folder(MALLORY), folder(), "cache belongs to"),
        (folder(mode=0o777), folder(), "cache can be written by every user"),
    ],
)
def test_who_can_put_files_into_a_folder_of_ours(
    above: Facts, ours: Facts | None, why: str
) -> None:
    tree = {"/": folder(0), "/x": folder(), str(OURS.parent): above}
    look = looking(tree | ({str(OURS): ours} if ours else {}))
    stated = ownership.exposure(OURS, Trust(uids=frozenset({0, ME})), look)
    assert why in stated
    assert bool(stated) == bool(why)
    for trusted in (OURS, OURS.parent):
        trust = Trust(uids=frozenset({0, ME}), folders=frozenset({trusted}))
        assert ownership.exposure(OURS, trust, look) == ""


def test_a_link_to_a_folder_of_ours_must_be_ours_too() -> None:
    trust = Trust(uids=frozenset({0, ME}))
    tree = {"/": folder(0), "/x": folder(), "/x/cache": folder(), "/disk/store": folder()}
    links = {str(OURS): "/disk/store"}
    for owner, why in ((ME, ""), (MALLORY, "belongs to")):
        tree[str(OURS)] = Facts(uid=owner, mode=LINK | 0o777)
        assert why in ownership.exposure(OURS, trust, looking(tree, links))


def test_where_modes_are_not_stored_nothing_is_known() -> None:
    tree = {"/": folder(0), "/x": folder(MALLORY, 0o777, device=2)}
    tree |= {str(p): folder(MALLORY, 0o777, device=2) for p in (OURS, OURS.parent)}
    assert ownership.exposure(OURS, Trust(uids=frozenset({0, ME})), looking(tree)) == ""
