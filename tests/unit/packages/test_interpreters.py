"""An interpreter's archive becomes a folder, and never anything else."""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path

import pytest
from msgspec.structs import replace

from envbuilder.core.errors import BuildError
from envbuilder.packages import interpreters
from envbuilder.profiles.lock import File, Lock, Target
from tests.support import packed
from tests.support.folders import names_in

TARGET = Target(platform="linux/amd64", python="3.10", base=None, files=())
Entries = dict[str, bytes | str]
"""Path → content, or a link's target; one that begins with = is a hard link's."""
PLAIN: Entries = {"python/bin/python3.10": b"program", "python/lib/x.py": b"text"}


def newest() -> File:
    found = interpreters.of_target(TARGET, None)
    assert found
    return found


def unpacked(folder: Path, entries: Entries) -> Path:
    path = folder / "archive"
    target = folder / "target"
    made = [
        packed.entry(name, content, mode=0o4711 if "/bin/" in name else 0o600, uid=1000)
        for name, content in entries.items()
    ]
    for entry, _ in made:
        if entry.linkname.startswith("="):
            entry.type, entry.linkname = tarfile.LNKTYPE, entry.linkname.removeprefix("=")
    path.write_bytes(gzip.compress(packed.tar(*made)))
    interpreters.unpack(newest(), path, target)
    return target


def test_modes_are_plain_and_links_stay(tmp_path: Path) -> None:
    target = unpacked(
        tmp_path,
        {
            "python/bin/python3": "python3.10",  # before what it leads to
            **PLAIN,
            "python/share/deep/link": "../../lib",
            "python/lib/y.py": "=python/lib/x.py",
            "python/bin/copy": "=python/bin/python3.10",
        },
    )
    modes = {p.name: p.lstat().st_mode & 0o7777 for p in target.rglob("*") if p.is_file()}
    assert modes["python3.10"] == modes["copy"] == 0o755
    assert (target / "bin/python3").readlink() == Path("python3.10")
    assert (target / "share/deep/link/y.py").read_bytes() == b"text"
    assert modes["x.py"] == modes["y.py"] == 0o644


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"etc/x": b""}, "it contains more than the folder python"),
        ({"python/../../x": b""}, "x"),
    ],
)
def test_another_form_is_refused(tmp_path: Path, entries: Entries, words: str) -> None:
    outside = names_in(tmp_path)
    with pytest.raises(BuildError, match=words) as raised:
        unpacked(tmp_path, PLAIN | entries)
    assert "Choose another Python" in raised.value.hint
    assert raised.value.exit_code == 1
    assert names_in(tmp_path) <= outside | {"archive", "target"}


@pytest.mark.parametrize(
    "links",
    [
        {"python/x": "/etc"},
        {"python/x": "../../etc"},
        {"python/x": ".", "python/x/y": "../..", "python/y/z": b""},
    ],
)
def test_no_link_leads_out(tmp_path: Path, links: Entries) -> None:
    target = unpacked(tmp_path, PLAIN | links)
    for path in target.rglob("*"):
        assert path.resolve().is_relative_to(target)


def test_a_link_to_beside_the_interpreter_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="a/x links to a path outside the archive"):
        unpacked(tmp_path, PLAIN | {"python/a/x": "../.."})


@pytest.mark.parametrize("program", [{}, {"python/bin/python3.10": "python3.11"}])
def test_an_archive_of_another_python_is_refused(tmp_path: Path, program: Entries) -> None:
    with pytest.raises(BuildError, match=r"it has no bin/python3\.10"):
        unpacked(tmp_path, {"python/bin/python3.11": b"", **program})


def test_the_interpreter_of_a_lock_stays() -> None:
    assert (newest().provenance, newest().kind) == ("claim", "python")
    older = replace(newest(), version="3.10.1")
    before = Lock(
        schema=2, profile="x", inputs="0" * 64, state="locked", reason="", tools={},
        targets=(replace(TARGET, python="3.11"), replace(TARGET, interpreter=older)),
    )  # fmt: skip
    assert interpreters.of_target(TARGET, before) == older
    without = replace(before, targets=(TARGET,))
    assert interpreters.of_target(TARGET, without) == newest()
    assert interpreters.of_target(replace(TARGET, python="3.7"), before) is None
