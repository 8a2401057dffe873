"""Sources are found on an index, packed to the same bytes, and unpacked within their folder."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from packaging.specifiers import SpecifierSet

from envbuilder.core.errors import BuildError, InvalidError
from envbuilder.core.files import file_sha256
from envbuilder.core.settings import Settings
from envbuilder.packages import fetch, upstream
from envbuilder.packages.fetch import Place
from envbuilder.packages.sources import sealed, source
from envbuilder.packages.sources.source import Location
from envbuilder.packages.store import Store
from envbuilder.profiles.lock import Recipe
from tests.support import sources
from tests.support.folders import names_in
from tests.support.packed import entry, tar
from tests.support.repositories import lay


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("git+https://h/p@v1", Location("git", "https://h/p", "v1", "")),
        ("git+https://h/p.git", Location("git", "https://h/p.git", "", "")),
        ("git+https://h/p@a/b#egg=x&subdirectory=c", Location("git", "https://h/p", "a/b", "c")),
        (
            "https://h/x-1.tar.gz#subdirectory=/a/",
            Location("sdist", "https://h/x-1.tar.gz", "", "a"),
        ),
        ("./sub/x", Location("path", "./sub/x", "", "")),
    ],
)
def test_locations(text: str, expected: Location) -> None:
    assert source.located(text) == expected


@pytest.mark.parametrize("text", ["git+https://h/p@-x", "./x#subdirectory=../y"])
def test_hostile_locations(text: str) -> None:
    with pytest.raises(InvalidError):
        source.located(text)


def page(*entries: tuple[str, str, str, bool]) -> str:
    """An index page: file, Python, day of the upload, whether it was yanked."""
    listed = [
        f'{{"filename": "{file}", "url": "{file}", "hashes": {{}}, "requires-python": "{python}",'
        f' "upload-time": "{day}", "yanked": {str(yanked).lower()}}}'
        for file, python, day, yanked in entries
    ]
    return f'{{"files": [{", ".join(listed)}]}}'


PAGE = page(
    ("tiny-1.0.tar.gz", "", "2021-01-01T00:00:00Z", False),
    ("tiny-1.1-py3-none-any.whl", "", "2021-01-01T00:00:00Z", False),
    ("tiny-1.5.zip", ">=3.9", "2022-01-01T00:00:00Z", False),
    ("tiny-2.0.tar.gz", "<3.9", "2022-02-01T00:00:00Z", False),
    ("tiny-2.1.tar.gz", "", "2022-02-01T00:00:00Z", True),
    ("tiny-3.0rc1.tar.gz", "", "2022-02-01T00:00:00Z", False),
    ("tinyer-4.0.tar.gz", "", "", False),
    ("tiny-1.6.tar.gz", ">=3.11.4", "", False),
    ("nonsense", "", "", False),
)


@pytest.mark.parametrize(
    ("specifier", "as_of", "file"),
    [
        ("", "", "tiny-1.6.tar.gz"),
        ("", "2022-01-01", "tiny-1.5.zip"),
        ("", "2021-12-31", "tiny-1.0.tar.gz"),
        ("<1.5", "", "tiny-1.0.tar.gz"),
        (">=3.0rc1", "", "tiny-3.0rc1.tar.gz"),
        ("==2.1", "", "tiny-2.1.tar.gz"),
        ("", "2020-01-01", ""),
    ],
)
def test_the_newest_release_that_fits(
    monkeypatch: pytest.MonkeyPatch, specifier: str, as_of: str, file: str
) -> None:
    monkeypatch.setattr(fetch, "places", lambda: (Place(url="https://index.example/simple"),))
    monkeypatch.setattr(upstream, "read_url", lambda url: PAGE.encode())

    def newest() -> str:
        return source.newest("tiny", SpecifierSet(specifier), ["3.11"], as_of)[1].file

    if file:
        assert newest() == file
        return
    with pytest.raises(InvalidError, match="no source of a matching release") as caught:
        newest()
    assert "1.0, 1.5, 1.6, 2.0" in caught.value.hint


def test_an_index_in_a_folder(
    found: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    archive = sources.archive(tmp_path / "tiny-1.0.tar.gz", sources.files())
    monkeypatch.setattr(fetch, "places", lambda: (Place(url=str(tmp_path), flat=True),))
    _, link = source.newest("tiny", SpecifierSet(), ["3.11"], "")
    recipe = source.of_release(link, found)
    assert recipe == Recipe(kind="sdist", location=archive.name, sha256=file_sha256(archive))
    folder = source.unpack(recipe, found, tmp_path / "unpacked")
    assert names_in(folder) == {"own.py", "pyproject.toml"}


@pytest.mark.parametrize(
    "member",
    [
        entry("../x"),
        entry("/x"),
        entry("a", type=tarfile.LNKTYPE, linkname="../../etc/passwd"),
        entry(".wh.x"),
    ],
)
def test_archives_that_lead_out(tmp_path: Path, found: Settings, member: Any) -> None:
    (tmp_path / "x.tar").write_bytes(tar(member))
    sha256 = source.downloaded(str(tmp_path / "x.tar"), "", "x.tar", found)
    with pytest.raises(BuildError, match="cannot be unpacked"):
        source.unpack(Recipe(kind="sdist", location="x", sha256=sha256), found, tmp_path / "out")


def test_links_are_made_last_and_stay_within(tmp_path: Path, found: Settings) -> None:
    links = entry("t/a", "/etc"), entry("t/b", "c"), entry("t/d", "."), entry("t/d/e", "../..")
    (tmp_path / "x.tar").write_bytes(tar(*links, entry("t/a/x", b"1"), entry("t/c", b"2")))
    sha256 = source.downloaded(str(tmp_path / "x.tar"), "", "x.tar", found)
    recipe = Recipe(kind="sdist", location="x", sha256=sha256)
    folder = source.unpack(recipe, found, tmp_path / "out")
    assert (folder / "a/x").read_text() == "1"
    assert not (folder / "a").is_symlink()
    assert (folder / "b").read_text() == "2"
    assert not os.path.lexists(folder / "e")  # two links that lead out together


def test_only_what_is_stated_alike_stays_a_location() -> None:
    text = "git+https://example.org/x@v1#subdirectory=a"
    recipe = Recipe(
        kind="git", location="https://example.org/x", sha256="1" * 64, commit="2" * 40,
        reference="v1", subdirectory="a",
    )  # fmt: skip
    assert source.located(text).stays(recipe)
    for other in (text.replace("v1", "v2"), text.replace("@v1", ""), text.removesuffix("a") + "b"):
        assert not source.located(other).stays(recipe)
    archive = Recipe(kind="sdist", location="https://example.org/x.zip", sha256="1" * 64)
    for end, expected in (("", True), ("1" * 64, True), ("2" * 64, False)):
        location = source.located(f"{archive.location}#sha256={end}")
        assert location.stays(archive) == expected
    folder = Recipe(kind="path", location="./x", sha256="1" * 64)
    assert not source.located("./x").stays(folder), "it is what it is now"


def test_a_folder_is_its_files(tmp_path: Path, found: Settings) -> None:
    files = {"b/x.py": "1", "a.py": "2", ".git/config": "3", "b/__pycache__/x.pyc": "4"}
    first = tmp_path / "1"
    second = tmp_path / "2"
    lay(first, files)
    lay(second, dict(reversed(files.items())))
    (first / "link").symlink_to("b/x.py")
    (second / "link").symlink_to("b/x.py")
    os.utime(second / "a.py", (1, 1))
    (second / ".git/config").write_text("other")
    (second / "a.py").chmod(0o600)
    sha256 = source.pack(first, found, "x")
    assert sha256 == source.pack(second, found, "x")
    recipe = Recipe(kind="path", location="./x", sha256=sha256, subdirectory="b")
    assert source.unpack(recipe, found, tmp_path / "out").joinpath("x.py").read_text() == "1"
    (second / "a.py").chmod(0o755)
    assert sha256 != source.pack(second, found, "x")
    (second / "out").symlink_to("../..")
    with pytest.raises(InvalidError, match="links to a path outside"):
        source.pack(second, found, "x")


def test_logins_and_keys_are_no_part_of_a_local_source(tmp_path: Path, found: Settings) -> None:
    code = {"ops/pyproject.toml": "1", "ops/x.py": "2"}
    more = {
        ".env": "3",
        ".netrc": "4",
        "deploy.key": "5",
        "env/pyvenv.cfg": "6",
        "x/.ssh/id_rsa": "7",
    }
    lay(tmp_path / "mine", {**code, **{f"ops/{name}": text for name, text in more.items()}})
    lay(tmp_path / "clone", code)
    mine, clone = (
        source.of_path(source.located("./ops"), replace(found, project=tmp_path / name))
        for name in ("mine", "clone")
    )
    assert mine.sha256 == clone.sha256


@pytest.mark.parametrize("location", ["../x", "./missing", "./file", "/etc", "./link"])
def test_folders_outside_of_the_project(tmp_path: Path, found: Settings, location: str) -> None:
    project = lay(tmp_path / "p", {"file": ""})
    (project / "link").symlink_to("/usr/include")
    with pytest.raises(InvalidError, match="folder"):
        source.of_path(Location("path", location, "", ""), replace(found, project=project))


def test_a_hash_that_differs(tmp_path: Path, found: Settings) -> None:
    (tmp_path / "x").write_text("1")
    with pytest.raises(BuildError, match="expected sha256 0000"):
        source.downloaded(str(tmp_path / "x"), "0" * 64, "x", found)
    assert not Store.of(found).has(file_sha256(tmp_path / "x"))


def test_a_build_for_gpus_alone_is_left_out() -> None:
    words = "OSError: CUDA_HOME environment variable is not set."
    assert "exclude: in envbuilder.yaml" in sealed._advice(words)
