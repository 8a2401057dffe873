"""Conda packages are installed by py-rattler, and checked where it does not check."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from envbuilder.core.errors import BuildError
from envbuilder.packages.conda import prefixes
from envbuilder.packages.conda.lock import InstallConda, Package, Rehome
from tests.support import conda_channel as conda, conda_packages as packages

rattler = pytest.importorskip("rattler")
zstandard = pytest.importorskip("zstandard")


PREFIX = "/final/prefix"


def step(folder: Path, *made: conda.Package, target: str = PREFIX) -> InstallConda:
    """The step that installs these packages, whose archives are written, too."""
    for package in made:
        conda.write(package, folder / "archives/conda-forge")
    return InstallConda(
        what="install",
        packages=tuple(
            Package(
                name=p.name, version=p.version, build=p.build, build_number=p.build_number,
                subdir=p.subdir, file=p.file, channel="conda-forge", sha256="0" * 64,  # type: ignore[arg-type]
                size=None, depends=p.depends, noarch=p.noarch,
            )
            for p in made
        ),
        subdir="linux-64",
        folder=str(folder / "archives"),
        channels={"conda-forge": "https://conda.anaconda.org/conda-forge"},
        env=str(folder / "env"),
        prefix=target,
        cache=str(folder / "cache"),
    )  # fmt: skip


def refused(given: InstallConda) -> BuildError:
    """The error for packages that are refused before anything is installed."""
    with pytest.raises(BuildError) as raised:
        prefixes.install(given, print)
    assert not os.path.lexists(given.env)
    return raised.value


def plain(name: str, **files: bytes) -> conda.Package:
    entries = {path.replace("__", "/"): conda.Entry(text) for path, text in files.items()}
    return conda.Package(name=name, files=entries or {"share/x": conda.Entry(b"x")})


def test_packages_are_installed_as_if_in_their_final_place(tmp_path: Path) -> None:
    made = (packages.PYTHON_STUB, packages.TINY_LIB, packages.PLACED, packages.OWNER_A)
    notes: list[str] = []
    placed = prefixes.install(step(tmp_path, *made), notes.append)
    env = tmp_path / "env"
    assert (env / "etc/placed.conf").read_bytes() == f"home = {PREFIX}/share\n".encode()
    assert (env / "lib/python3.11/site-packages/tiny_lib/__init__.py").is_file()
    assert sorted(placed) == [
        "bin/placed",
        "bin/tiny",
        "conda-meta/placed-1.0-0.json",
        "conda-meta/tiny-lib-1.0-pyh0_0.json",
        "etc/placed.conf",
        "lib/placed.bin",
    ]
    assert notes == []
    written = {i.name: i.data for i in prefixes.read(env)}
    assert written.keys() == {"python", "tiny-lib", "placed", "owner-a"}
    for record in written.values():
        assert record["url"].startswith("https://conda.anaconda.org/conda-forge/")
        assert str(tmp_path) not in json.dumps(record)


def test_only_the_named_cache_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("RATTLER_CACHE_DIR", raising=False)
    prefixes.install(step(tmp_path, packages.OWNER_A), print)
    assert any((tmp_path / "cache").iterdir())
    assert not (tmp_path / "home").exists()


def scripted(name: str) -> conda.Package:
    script = b'#!/bin/sh\ntouch "$PREFIX/ran"\n'
    return conda.Package(name=name, files={f"bin/.{name}-post-link.sh": conda.Entry(script, 0o755)})


def test_scripts_are_not_run_and_their_packages_named(tmp_path: Path) -> None:
    notes: list[str] = []
    prefixes.install(
        step(tmp_path, *map(scripted, "dcba"), plain("e", **{"bin__.x-post-link.sh": b""})),
        notes.append,
    )
    (note,) = notes
    assert note.endswith("scripts are not run, because they could do anything: a, b, c and 1 more")
    assert not (tmp_path / "env/ran").exists()


def test_packages_for_another_platform_are_refused(tmp_path: Path) -> None:
    error = refused(step(tmp_path, packages.PYTHON_OSX))
    file = packages.PYTHON_OSX.file
    assert error.message == f"{file} is a package for osx-arm64, not for linux-64"


def test_two_packages_with_different_content_at_one_path_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError) as raised:
        prefixes.install(step(tmp_path, packages.OWNER_A, packages.OWNER_B), print)
    assert raised.value.message == (
        "the conda packages owner-a and owner-b both install share/owned.txt, with different"
        " content"
    )
    assert "envbuilder lock --backend conda" in raised.value.hint
    same = (plain("one", share__same=b"same"), plain("other", share__same=b"same"))
    prefixes.install(step(tmp_path / "same", *same), print)


# --- paths


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("../escaped", "the path ../escaped leads outside its environment"),
        ("share/../../escaped", "the path share/../../escaped leads outside its environment"),
        ("/escaped", "the path /escaped leads outside its environment"),
        ("share/.wh.x", "would delete another file"),
        ("share/a\nb", "is not a normalized path"),
        ("envbuilder.json", "is a file that envbuilder writes itself"),
        ("venv/bin/python", "is a file that envbuilder writes itself"),
    ],
)
@pytest.mark.parametrize("kind", [".conda", ".tar.bz2"])
def test_forbidden_paths_are_refused(path: str, reason: str, kind: Any, tmp_path: Path) -> None:
    made = conda.Package(name="evil", kind=kind, files={path: conda.Entry(b"evil")})
    error = refused(step(tmp_path, plain("good"), made))
    assert error.message.startswith(f"evil-1.0-0{kind}: ")
    assert reason in error.message
    assert not list(tmp_path.rglob("escaped"))


def test_a_prefix_may_be_as_long_as_the_longest_that_packages_take(tmp_path: Path) -> None:
    longest = len(conda.PLACEHOLDER)
    fits = "/ä".ljust(longest - 1, "x")  # ä has two bytes
    prefixes.install(step(tmp_path / "fits", packages.PLACED, target=fits), print)
    error = refused(step(tmp_path, packages.PLACED, target=f"{fits}x"))
    assert error.message == (
        f"{packages.PLACED.file}: cannot be installed in {fits}x: lib/placed.bin"
        f" limits the length of this path to {longest} bytes"
    )
    assert "ENVBUILDER_DATA_DIR" in error.hint
    text = replace(packages.PLACED, files={"x": packages.PLACED.files["etc/placed.conf"]})
    prefixes.install(step(tmp_path / "text", text, target=f"{fits}x"), print)


@pytest.mark.parametrize("kind", [".conda", ".tar.bz2"])
@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\3\4" + bytes(100)])
def test_what_is_no_archive_is_refused(content: bytes, kind: Any, tmp_path: Path) -> None:
    made = conda.Package(name="broken", kind=kind, files={"share/x": conda.Entry(b"x")})
    given = step(tmp_path, made)
    prefixes.archive(given, given.packages[0]).write_bytes(content)
    error = refused(given)
    assert error.message.startswith(f"broken-1.0-0{kind}: ")
    assert "None" not in error.message


# --- failures of the library


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    async def installed(*args: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(rattler, "install", installed)


def test_a_full_disk_is_told_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, RuntimeError("failed to link\nNo space left on device (os error 28)"))
    given = step(tmp_path, plain("a"))
    with pytest.raises(OSError, match="No space left") as raised:
        prefixes.install(given, print)
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, given.env)
    failing(monkeypatch, PermissionError(errno.EACCES, "denied", "x"))
    with pytest.raises(PermissionError):
        prefixes.install(given, print)


def test_a_failure_is_told_in_one_line_without_folders_of_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = step(tmp_path, plain("a"))
    failing(
        monkeypatch,
        RuntimeError(
            f"cannot link {given.env}/share/x \n  Caused by: {given.cache}/a/x is damaged\n"
            f" \n of {given.folder}/a.conda\n"
        ),
    )
    with pytest.raises(BuildError) as raised:
        prefixes.install(given, print)
    assert raised.value.message == (
        "conda packages cannot be installed: cannot link share/x: a/x is damaged: of a.conda"
    )
    assert "profile's conda.packages" in raised.value.hint
    assert "envbuilder lock --backend conda" in raised.value.hint


def test_a_venv_is_pointed_at_its_final_interpreter(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").symlink_to("/build/python")
    (tmp_path / "pyvenv.cfg").write_text("home = /build\n")
    settings = {"home": f"{PREFIX}/bin", "version": "3.11.9"}
    python = f"{PREFIX}/bin/python3.11"
    prefixes.rehome(Rehome(what="", env=str(tmp_path), settings=settings, python=python))
    expected = f"home = {PREFIX}/bin\nversion = 3.11.9\n"
    assert (tmp_path / "pyvenv.cfg").read_text() == expected
    assert str((tmp_path / "bin/python").readlink()) == python
