"""Folder trees as digests, and the integrity manifest of an environment."""

from __future__ import annotations

import errno
import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given, strategies as st

from envbuilder.builds.backends import integrity
from envbuilder.builds.backends.integrity import Entry
from envbuilder.core import process, resources
from envbuilder.core.errors import BuildError, VerifyError
from envbuilder.packages.store import Store
from tests.support.programs import completed
from tests.support.recorded import replaced
from tests.support.repositories import lay

HELLO = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    files = {"bin/tool": "hello", "lib/module.py": "hello", "pyvenv.cfg": "home = /usr/bin\n"}
    folder = lay(tmp_path / "env", files)
    (folder / "bin/python").symlink_to("/usr/bin/python3")
    (folder / "bin/tool").chmod(0o755)
    (folder / "lib/empty").mkdir()
    (folder / "lib/module.py").chmod(0o644)
    return folder


def test_what_is_read(root: Path) -> None:
    (root / "lib/__pycache__").mkdir()
    (root / "lib/__pycache__/module.pyc").write_text("bytecode")
    assert integrity.read_tree(root, {"pyvenv.cfg"}) == (
        Entry("bin", "folder"),
        Entry("bin/python", "link", "/usr/bin/python3"),
        Entry("bin/tool", "executable", HELLO),
        Entry("lib", "folder"),
        Entry("lib/empty", "folder"),
        Entry("lib/module.py", "file", HELLO),
    )


def test_hashes_that_a_store_remembers_are_of_files_that_stayed_the_same(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "store")
    entries = integrity.read_tree(root)
    reading = Mock(side_effect=integrity.file_sha256)
    monkeypatch.setattr(integrity, "file_sha256", reading)
    for _ in range(2):
        assert integrity.hashed(root, integrity.walk(root), store) == entries
    assert reading.call_count == 3
    module = root / "lib/module.py"
    before = module.stat()
    while module.stat().st_ctime_ns == before.st_ctime_ns:  # until the clock has moved on
        module.write_text("HELLO")
    os.utime(module, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert integrity.hashed(root, integrity.walk(root), store) == integrity.read_tree(root)
    assert integrity.read_tree(root) != entries


def test_neither_times_nor_users_nor_umask_count(root: Path) -> None:
    before = integrity.tree_digest(integrity.read_tree(root))
    for path in [*root.rglob("*"), root]:
        os.utime(path, (1, 1), follow_symlinks=False)
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & 0o700)
    assert integrity.tree_digest(integrity.read_tree(root)) == before


def test_a_link_is_not_followed_and_nothing_is_waited_for(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "loop").symlink_to(".")
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(root)  # a socket's path must be short
        listening.bind("socket")
        found = {e.path: e for e in integrity.read_tree(root)}
    assert found["loop"] == Entry("loop", "link", ".")
    assert found["pipe"].kind == found["socket"].kind == "other"


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "content": (lambda r: (r / "lib/module.py").write_text("Hello"), "lib/module.py (changed)"),
    "mode": (lambda r: (r / "lib/module.py").chmod(0o755), "lib/module.py (changed)"),
    "added": (lambda r: (r / "lib/torch.py").write_text(""), "lib/torch.py (added)"),
    "folder": (lambda r: (r / "lib/torch").mkdir(), "lib/torch (added)"),
    "missing": (lambda r: (r / "bin/tool").unlink(), "bin/tool (missing)"),
    "link": (
        lambda r: ((r / "bin/python").unlink(), (r / "bin/python").symlink_to("/opt/python")),
        "bin/python (changed)",
    ),
    "settings": (
        lambda r: (r / "pyvenv.cfg").write_text("include-system-site-packages = true\n"),
        "pyvenv.cfg (changed)",
    ),
    "list": (lambda r: (r / integrity.FILES).write_text("[]"), ""),
    "marker": (lambda r: (r / integrity.MARKER).write_text("{}"), f"({integrity.FILES})"),
}


@pytest.fixture
def sealed(root: Path) -> Path:
    integrity.close(root, {"fingerprint": "f"})
    return root


def require_unchanged(prefix: Path) -> None:
    integrity.require_unchanged(prefix, "bin/python")


def test_a_seal_holds_until_something_changes(sealed: Path) -> None:
    require_unchanged(sealed)
    (sealed / "lib/__pycache__").mkdir()
    (sealed / "lib/__pycache__/module.pyc").write_text("bytecode")
    require_unchanged(sealed)
    assert integrity.marker(sealed)["fingerprint"] == "f"


@pytest.mark.parametrize("name", sorted(CHANGES.keys() - {"list"}))
def test_a_change_is_found_and_named(sealed: Path, name: str) -> None:
    change, named = CHANGES[name]
    change(sealed)
    with pytest.raises(VerifyError, match="was changed after the build") as caught:
        require_unchanged(sealed)
    assert named in caught.value.message
    assert "--rebuild" in caught.value.hint


def test_a_change_is_found_without_the_list_of_files(sealed: Path) -> None:
    (sealed / integrity.FILES).unlink()
    require_unchanged(sealed)  # the digest says it all
    CHANGES["content"][0](sealed)
    with pytest.raises(VerifyError, match="its list of files"):
        require_unchanged(sealed)


@pytest.mark.parametrize(("number", "end"), [(3, ""), (4, " and 1 more"), (5, " and 2 more")])
def test_three_changes_are_named_and_further_ones_counted(
    sealed: Path, number: int, end: str
) -> None:
    for name in range(number):
        (sealed / f"new-{name}").write_text("")
    named = ", ".join(f"new-{name} (added)" for name in range(3))
    with pytest.raises(VerifyError) as caught:
        require_unchanged(sealed)
    assert caught.value.message == f"{sealed} was changed after the build: {named}{end}"


def test_a_file_that_cannot_be_read_is_named(sealed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        integrity,
        "hashed",
        Mock(side_effect=PermissionError(errno.EACCES, "Permission denied", "lib/module.py")),
    )
    with pytest.raises(VerifyError, match=r"lib/module\.py: cannot be read: Permission denied"):
        require_unchanged(sealed)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """An interpreter outside of the environment, with its library, as Debian installs them."""
    paths = ("lib/copy.py", "lib/__pycache__/copy.pyc", "lib/site-packages/x.py", "python3.11")
    base = lay(tmp_path / "base", dict.fromkeys(paths, "hello"))
    (tmp_path / "etc").write_text("hello")
    (base / "lib/sitecustomize.py").symlink_to(tmp_path / "etc")
    (base / "lib/broken").symlink_to("nowhere")
    (base / "lib/loop").symlink_to(".")
    return base


@pytest.fixture
def on_base(root: Path, base: Path) -> Path:
    parts = ("python3.11", "lib", "python311.zip")
    integrity.close(root, {}, [str(base / part) for part in parts])
    return root


def answering(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    replaced(monkeypatch, process, "run", completed(0, answer, "no library\n"))


def test_a_folder_inside_of_another_one_is_sealed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, '["/b/python", "/b/lib", "/b/lib/lib-dynload", "/b/lib-other"]')
    assert integrity.base_of("python") == ("/b/python", "/b/lib", "/b/lib-other")


@pytest.mark.parametrize("answer", ["", "[", "{}", "[1]", "null"])
def test_an_interpreter_that_names_no_library(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, answer)
    with pytest.raises(BuildError, match="does not report the path of libpython: no library"):
        integrity.base_of("/opt/python")


def in_place(path: Path, text: str = "Hello") -> None:
    """Replace content of the same size, and restore the times."""
    before = path.stat()
    path.write_text(text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


OF_BASE: dict[str, Callable[[Path], object]] = {
    "lib/copy.py (changed)": lambda b: in_place(b / "lib/copy.py"),
    "lib/usercustomize.py (added)": lambda b: (b / "lib/usercustomize.py").write_text(""),
    "lib/sitecustomize.py (changed)": lambda b: in_place(b.parent / "etc"),
    "python3.11 (changed)": lambda b: in_place(b / "python3.11"),
    "python311.zip (added)": lambda b: (b / "python311.zip").write_text(""),
}


@pytest.mark.parametrize("named", OF_BASE)
def test_a_changed_base_interpreter_is_named_without_blame(
    on_base: Path, base: Path, named: str
) -> None:
    require_unchanged(on_base)
    OF_BASE[named](base)
    with pytest.raises(VerifyError, match="the base interpreter has changed") as caught:
        require_unchanged(on_base)
    assert caught.value.message.endswith(f", perhaps by an upgrade: {base}/{named}")
    assert "--rebuild" in caught.value.hint


def test_what_an_environment_does_not_load_of_its_base_may_change(
    on_base: Path, base: Path
) -> None:
    paths = ("lib/__pycache__/copy.pyc", "lib/site-packages/x.py", "lib/site-packages/y.pth")
    lay(base, dict.fromkeys(paths, "changed"))
    require_unchanged(on_base)


def test_a_changed_environment_is_not_excused_by_its_base(on_base: Path, base: Path) -> None:
    in_place(base / "lib/copy.py")
    in_place(on_base / "lib/module.py")
    with pytest.raises(VerifyError, match=f"^{on_base} was changed after the build: "):
        require_unchanged(on_base)


def test_the_base_is_not_in_the_portable_digest(on_base: Path, base: Path) -> None:
    assert integrity.portable_digest(on_base) == integrity.marker(on_base)["digest"]
    marked = integrity.marker(on_base)
    in_place(base / "lib/copy.py")
    integrity.close(on_base, {}, marked["base"])
    assert integrity.marker(on_base)["digest"] == marked["digest"]
    assert integrity.marker(on_base)["tree"] != marked["tree"]


def test_a_base_that_the_marker_no_longer_names_is_missed(on_base: Path) -> None:
    marked = integrity.marker(on_base)
    for base in ([], [5], {}, 5):
        (on_base / integrity.MARKER).write_text(json.dumps({**marked, "base": base}))
        with pytest.raises(VerifyError, match=r"the base interpreter|list of files"):
            require_unchanged(on_base)


def require_untouched(prefix: Path, before: tuple[Entry, ...]) -> None:
    integrity.require_untouched(prefix, "bin/python", before)


def remounted(path: Path) -> None:
    """Another file in its place that has its content, size and times, as bind mounts have."""
    in_place(path, "hello")
    twin = path.with_suffix(".twin")
    twin.write_bytes(path.read_bytes())
    os.utime(twin, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    twin.replace(path)


TOUCHES: dict[str, Callable[[Path], object]] = {
    "written": in_place,
    "written through a hard link": lambda path: (
        (path.parent / "link").hardlink_to(path),
        in_place(path.parent / "link"),
        (path.parent / "link").unlink(),
    ),
    "written and restored": lambda path: (in_place(path), in_place(path, "hello")),
    "replaced": remounted,
}


@pytest.mark.parametrize("how", TOUCHES)
@pytest.mark.parametrize("where", ["env/lib/module.py", "base/lib/copy.py", "etc"])
def test_a_file_that_changes_after_the_comparison_is_named(
    on_base: Path, tmp_path: Path, how: str, where: str
) -> None:
    before = integrity.require_unchanged(on_base, "bin/python")
    require_untouched(on_base, before)
    time.sleep(0.01)  # file systems count in steps of some milliseconds
    TOUCHES[how](tmp_path / where)
    with pytest.raises(VerifyError, match=f"{on_base} was changed while it was used: ") as caught:
        require_untouched(on_base, before)
    name = "sitecustomize" if where == "etc" else where.partition("/")[2]
    assert name in caught.value.message


def test_what_vanishes_during_a_comparison_is_named(
    on_base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = integrity.require_unchanged(on_base, "bin/python")

    monkeypatch.setattr(
        integrity,
        "walk",
        Mock(
            side_effect=FileNotFoundError(
                errno.ENOENT, "No such file or directory", "lib/module.py"
            )
        ),
    )
    with pytest.raises(VerifyError, match=r"while it was used: lib/module\.py: cannot be read"):
        require_untouched(on_base, before)


def test_files_that_hold_the_location_are_not_in_the_portable_digest(sealed: Path) -> None:
    """But the list of them is: else any file could be changed by adding it to the list."""
    before = integrity.portable_digest(sealed)
    assert before == integrity.marker(sealed)["digest"]
    integrity.bind(sealed, ["bin/tool"])
    listed = integrity.portable_digest(sealed)
    assert listed != before
    (sealed / "bin/tool").write_text(f"#!{sealed}/bin/python")
    assert integrity.portable_digest(sealed) == listed
    (sealed / "lib/module.py").write_text("changed")
    assert integrity.portable_digest(sealed) != listed


def test_files_that_hold_the_location_are_listed_once(tmp_path: Path) -> None:
    integrity.bind(tmp_path, ["bin/tool", "bin/activate"])
    integrity.bind(tmp_path, ["etc/settings", "bin/tool"])
    assert (tmp_path / integrity.PLACED).read_text() == "bin/activate\nbin/tool\netc/settings\n"
    assert integrity.host_bound(tmp_path) - integrity.HOST_BOUND == {
        "bin/activate", "bin/tool", "etc/settings",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("paths", "ours"),
    [
        ([], True),
        ([integrity.MARKER], True),
        ([f"{resources.OWN}/x"], True),
        (["notes.txt"], False),
    ],
    ids=["empty", "marker", "own", "notes"],
)
def test_only_what_envbuilder_made_may_be_replaced(
    tmp_path: Path, paths: list[str], ours: bool
) -> None:
    assert integrity.is_sealed(lay(tmp_path, dict.fromkeys(paths, ""))) is ours


def test_the_digest_is_the_same_wherever_the_interpreter_lies(sealed: Path) -> None:
    before = integrity.marker(sealed)
    for name in ("link", "settings"):
        CHANGES[name][0](sealed)
    integrity.close(sealed, {})
    after = integrity.marker(sealed)
    assert after["digest"] == before["digest"]
    assert after["tree"] != before["tree"]
    CHANGES["mode"][0](sealed)
    integrity.close(sealed, {})
    assert integrity.marker(sealed)["digest"] != before["digest"]


@pytest.mark.parametrize("text", ["", "[]", "{", '"text"', "\x00", '{"landmarks": 1}'])
def test_a_damaged_marker_says_nothing(root: Path, text: str) -> None:
    (root / integrity.MARKER).write_text(text)
    assert integrity.marker(root) == {}


NAMES = st.text(
    st.characters(exclude_categories=(), exclude_characters="/\0"), min_size=1, max_size=8
)
TREES = st.dictionaries(
    NAMES, st.tuples(st.sampled_from(["file", "executable", "link", "folder"]), NAMES), max_size=6
).map(lambda d: tuple(sorted(Entry(p, k, c) for p, (k, c) in d.items())))


@given(TREES)
def test_entries_survive_their_text(entries: tuple[Entry, ...]) -> None:
    assert integrity.parsed(integrity.listed(entries)) == entries


def test_a_list_nested_without_end_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        integrity.parsed("[" * 100_000)
