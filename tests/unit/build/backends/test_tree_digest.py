"""Folder trees as digests, and the integrity manifest of an environment."""

from __future__ import annotations

import json
import os
import socket
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuilder.build.backends import integrity, tree_digest
from envbuilder.build.backends.tree_digest import Difference, Entry
from envbuilder.core import resources
from envbuilder.core.errors import VerifyError
from tests.support.sabotages import PLANTED, Planted, plant

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HELLO = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "env"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to("/usr/bin/python3")
    (folder / "bin" / "tool").write_text("hello")
    (folder / "bin" / "tool").chmod(0o755)
    (folder / "lib" / "empty").mkdir(parents=True)
    (folder / "lib" / "module.py").write_text("hello")
    (folder / "lib" / "module.py").chmod(0o644)
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\n")
    return folder


def test_what_is_read(root: Path) -> None:
    (root / "lib" / "__pycache__").mkdir()
    (root / "lib" / "__pycache__" / "module.pyc").write_text("bytecode")
    assert tree_digest.read(root, {"pyvenv.cfg"}) == (
        Entry("bin", "folder"),
        Entry("bin/python", "link", "/usr/bin/python3"),
        Entry("bin/tool", "executable", HELLO),
        Entry("lib", "folder"),
        Entry("lib/empty", "folder"),
        Entry("lib/module.py", "file", HELLO),
    )


def test_neither_times_nor_users_nor_umask_count(root: Path) -> None:
    before = tree_digest.digest(tree_digest.read(root))
    for path in [*root.rglob("*"), root]:
        os.utime(path, (1, 1), follow_symlinks=False)
        if not path.is_symlink():
            path.chmod(path.stat().st_mode & 0o700)
    assert tree_digest.digest(tree_digest.read(root)) == before


def test_a_link_is_not_followed_and_nothing_is_waited_for(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "loop").symlink_to(".")
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(root)  # a socket's path must be short
        listening.bind("socket")
        found = {e.path: e for e in tree_digest.read(root)}
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
    (root / resources.OWN).mkdir(parents=True)
    integrity.close(root, {"fingerprint": "f"})
    return root


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_a_planted_file_is_found_and_named(root: Path, planted: Planted) -> None:
    """Also bytecode without a source: Python imports it like a module, it is no cache."""
    site = root / "lib" / "python3.11" / "site-packages"
    for name in ("torch/version.py", "torch/nn/functional.py", "torch/lib/libtorch_cpu.so"):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_bytes(b"torch")
    (root / resources.OWN).mkdir(parents=True)
    integrity.close(root, {"fingerprint": "f"})
    plant(site, planted)
    with pytest.raises(VerifyError, match="was changed after the build") as caught:
        integrity.require_unchanged(root)
    assert planted.words in caught.value.message


def test_a_seal_holds_until_something_changes(sealed: Path) -> None:
    integrity.require_unchanged(sealed)
    (sealed / "lib" / "__pycache__").mkdir()
    (sealed / "lib" / "__pycache__" / "module.pyc").write_text("bytecode")
    integrity.require_unchanged(sealed)
    assert integrity.marker(sealed)["fingerprint"] == "f"


@pytest.mark.parametrize("name", sorted(CHANGES.keys() - {"list"}))
def test_a_change_is_found_and_named(sealed: Path, name: str) -> None:
    change, named = CHANGES[name]
    change(sealed)
    with pytest.raises(VerifyError, match="was changed after the build") as caught:
        integrity.require_unchanged(sealed)
    assert named in caught.value.message
    assert "--rebuild" in caught.value.hint


def test_a_change_is_found_without_the_list_of_files(sealed: Path) -> None:
    (sealed / integrity.FILES).unlink()
    integrity.require_unchanged(sealed)  # the digest says it all
    CHANGES["content"][0](sealed)
    with pytest.raises(VerifyError, match="its list of files"):
        integrity.require_unchanged(sealed)


def test_many_changes_are_counted(sealed: Path) -> None:
    for number in range(5):
        (sealed / f"new-{number}").write_text("")
    with pytest.raises(VerifyError, match=r"new-2 \(added\) and 2 more$"):
        integrity.require_unchanged(sealed)


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


@pytest.mark.parametrize("text", ["", "[]", "{", '"text"', "\x00"])
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
    assert tree_digest.parse(tree_digest.dump(entries)) == entries


@given(TREES, TREES)
def test_digests_differ_as_trees_do(one: tuple[Entry, ...], other: tuple[Entry, ...]) -> None:
    different = tree_digest.differences(one, other)
    same = tree_digest.digest(one) == tree_digest.digest(other)
    assert same == (not different) == (one == other)
    swapped = {"missing": "added", "added": "missing", "changed": "changed"}
    assert tree_digest.differences(other, one) == tuple(
        Difference(d.path, swapped[d.how])
        for d in different  # type: ignore[arg-type]
    )


@given(st.text(max_size=40))
@settings(max_examples=200)
def test_a_damaged_list_is_a_value_error(text: str) -> None:
    try:
        found = tree_digest.parse(text)
    except ValueError:
        return
    assert all(json.loads(line) for line in text.splitlines())
    assert all(isinstance(e, Entry) for e in found)


def test_a_list_nested_without_end_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        tree_digest.parse("[" * 100_000)
