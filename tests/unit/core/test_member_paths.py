"""What packages may bring into a layer or an environment."""

from __future__ import annotations

import posixpath
import tarfile
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuilder.containers.oci import layer
from envbuilder.containers.oci.layer import Member
from envbuilder.core import member_paths
from envbuilder.core.errors import BuildError
from envbuilder.packages.debian import members as deb_members
from envbuilder.packages.python import wheel_conflicts
from envbuilder.profiles.lock import File
from tests.support import debs
from tests.unit.build.image.test_debs import found

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

STRAY = [
    "", ".", "..", "/", "/etc/passwd", "a/../b", "../a", "a/..", "a//b", "a/", "./a", "a/./b",
    ".wh.a", "a/.wh.b", "a/.wh..wh..opq", ".wh..wh..opq", ".wh.d/e", "a/.wh.", "a\0b", "a\nb",
    "a/\x1b[2J", "a\x7f", "a\x9b", "x" * 256, "a/" * 2100 + "b",
]  # fmt: skip


@pytest.mark.parametrize("path", STRAY)
def test_stray_paths_are_refused(path: str) -> None:
    assert member_paths.objection(path)
    assert len(member_paths.objection(path)) < 200
    with pytest.raises(BuildError, match="a layer cannot be created"):
        layer.clean([Member(path=path)])


@pytest.mark.parametrize(
    "path",
    ["a", ".a", "a/...", "a/.wha", "wh.a", "a.wh.b", "ä/ö", "a b", "a\udcff", "x" * 255, "a:b"],
)
def test_odd_but_clean_paths_are_fine(path: str) -> None:
    assert not member_paths.objection(path)


@given(
    st.lists(st.sampled_from(["a", "b", ".", "..", "", ".wh.a", ".wh..wh..opq", "…"])).map("/".join)
)
def test_what_is_accepted_stays_below_its_root_and_deletes_nothing(path: str) -> None:
    if member_paths.objection(path):
        return
    assert posixpath.normpath(f"/{path}") == f"/{path}"
    assert ".wh." not in path


def paths_of(members: Iterable[Member]) -> list[str]:
    return [m.path for m in layer.clean(members)]


def test_nothing_leads_through_a_link_or_a_file() -> None:
    link = Member(path="a", kind="link", target="/etc")
    for below in ("a/passwd", "a/b/c"):
        with pytest.raises(BuildError, match="leads through 'a', which is not a folder"):
            layer.clean([Member(path=below), link])
    with pytest.raises(BuildError, match="leads through 'f'"):
        layer.clean([Member(path="f"), Member(path="f/g")])
    assert paths_of([Member(path="a-b"), link, Member(path="ab/c")]) == ["a", "a-b", "ab/c"]
    for target in ("", "a\nb", "\x1b"):
        with pytest.raises(BuildError, match="is a link to"):
            layer.clean([Member(path="a", kind="link", target=target)])


# --- wheels


@pytest.mark.parametrize(
    "path",
    [
        "pkg/.wh.torch", ".wh..wh..opq", "pkg/a\nb", "x-1.data/data/lib/envbuilder/placed.txt",
        "x-1.data/data/lib/envbuilder/files.jsonl", "x-1.data/data/LIB/EnvBuilder/placed.txt",
        "x-1.data/data/envbuilder.json", "x-1.data/data/pyvenv.cfg", "x-1.data/data/bin/python",
        "x-1.data/scripts/python", "x-1.data/scripts/python3.11", "x-1.data/data/venv/pyvenv.cfg",
        "x-1.data/data/lib/envbuilder",
    ],
)  # fmt: skip
def test_a_wheel_brings_no_file_of_the_build(path: str) -> None:
    with pytest.raises(ValueError, match=r"delete another|not a normalized path|writes itself"):
        wheel_conflicts.contents("x-1", "3.11", [path, "x-1.dist-info/RECORD"], "", "")


def test_a_wheel_brings_no_script_called_python() -> None:
    with pytest.raises(ValueError, match="writes itself"):
        wheel_conflicts.contents("x-1", "3.11", [], "", "[console_scripts]\npython3 = x:main\n")
    assert wheel_conflicts.contents("x-1", "3.11", ["envbuilder/x.py"], "", "")


# --- Debian packages


def package(path: Path, *entries: tuple[str, dict[str, Any]], name: str = "libx") -> Path:
    """A .deb with members of any kind."""
    import io

    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for member, changes in entries:
            info = tarfile.TarInfo(member)
            for key, value in changes.items():
                setattr(info, key, value)
            archive.addfile(info, io.BytesIO(bytes(info.size)))
    whole = debs.deb(name)
    control = debs.tar({"control": f"Package: {name}\nVersion: 1\nArchitecture: amd64\n".encode()})
    assert control
    # The same archive with other data.
    data = b"!<arch>\n"
    for part, content in (
        ("debian-binary", b"2.0\n"), ("control.tar", control), ("data.tar", out.getvalue()),
    ):  # fmt: skip
        data += f"{part:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode()
        data += content + b"\n" * (len(content) % 2)
    assert whole[:8] == data[:8]
    path.write_bytes(data)
    return path


def listed(path: Path) -> list[str]:
    file = File(
        kind="deb", name="libx", version="1", file="pool/libx_1_amd64.deb", sha256="0" * 64,
        size=1, source="debian", provenance="read", by="test",
    )  # fmt: skip
    with deb_members.opened(file, path) as opened:
        return [name for name, _ in deb_members.members(file, opened.data())]


LINK, HARD, FOLDER = {"type": tarfile.SYMTYPE}, {"type": tarfile.LNKTYPE}, {"type": tarfile.DIRTYPE}


@pytest.mark.parametrize(
    "entries",
    [
        [("./usr/.wh.bash", {})],
        [("./usr/.wh..wh..opq", {})],
        [("./usr/../../etc/passwd", {})],
        [("/etc/passwd", {})],
        [("usr//x", {})],
        [("./a", {}), ("./a", {})],
        [("./a", FOLDER), ("./a", LINK | {"linkname": "/etc"})],
        [("./null", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3})],
        [("./disk", {"type": tarfile.BLKTYPE})],
        [("./pipe", {"type": tarfile.FIFOTYPE})],
        [("./hard", HARD | {"linkname": "/etc/shadow"})],
        [("./hard", HARD | {"linkname": "../../etc/shadow"})],
        [("./hard", HARD | {"linkname": "./later"}), ("./later", {})],
        [("./link", LINK | {"linkname": "a\nb"})],
        [("./a\nb", {})],
    ],
)
def test_a_member_that_no_image_may_have_is_refused(
    entries: list[tuple[str, dict[str, Any]]], tmp_path: Path
) -> None:
    with pytest.raises(BuildError, match=r"libx_1_amd64\.deb: refused"):
        listed(package(tmp_path / "x.deb", *entries))


def test_usual_members_are_listed(tmp_path: Path) -> None:
    entries = [
        ("./", FOLDER), ("./usr/", FOLDER), ("./usr/a", {"size": 3}),
        ("./usr/b", HARD | {"linkname": "./usr/a"}), ("./usr/c", LINK | {"linkname": "a"}),
    ]  # fmt: skip
    assert listed(package(tmp_path / "x.deb", *entries)) == ["usr", "usr/a", "usr/b", "usr/c"]


def test_garbage_is_no_package(tmp_path: Path) -> None:
    whole = debs.deb("libx")
    for content in (b"", b"!<arch>\n", whole[:100], b"PK\x03\x04" + whole):
        (tmp_path / "x.deb").write_bytes(content)
        with pytest.raises(BuildError, match="refused"):
            listed(tmp_path / "x.deb")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"Package": "../../x"}, "policy"),
        ({"Package": "libx/../../y"}, "policy"),
        ({"Package": "Libx"}, "policy"),
        ({"Package": ".wh.libc6"}, "policy"),
        ({"Version": "../1"}, "policy"),
        ({"Version": ""}, "policy"),
        ({"Package": "liby"}, "its control file states liby 1"),
        ({"Version": "2"}, "its control file states libx 2"),
        ({"Architecture": "../../x"}, "architecture"),
        ({"Architecture": ""}, "architecture"),
    ],
)
def test_what_a_package_says_of_itself_is_checked(
    fields: dict[str, str], why: str, tmp_path: Path
) -> None:
    file = File(
        kind="deb", name="libx", version="1", file="pool/libx_1_amd64.deb", sha256="0" * 64,
        size=1, source="debian", provenance="read", by="test",
    )  # fmt: skip
    stated = {"Package": "libx", "Version": "1", "Architecture": "amd64"}
    deb_members.require_named(file, stated)
    with pytest.raises(BuildError, match=why):
        deb_members.require_named(file, {**stated, **fields})


@pytest.mark.parametrize(
    "path",
    [
        "opt/env/lib/x", "opt/envbuilder/payload.pyz", "home/user/.bashrc", "work/x",
        "var/lib/dpkg/info/other.list",
    ],
)  # fmt: skip
def test_no_package_brings_files_of_ours(path: str, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="is in a folder reserved for"):
        found(tmp_path, data={path: b"x"})


def test_new_folders_lie_where_the_bases_links_lead(tmp_path: Path) -> None:
    # In the base, /lib is a link to /usr/lib.
    assert "usr/lib/new/x" in found(tmp_path, data={"lib/new/x": b"x"})


def test_a_path_through_a_file_or_a_dangling_link_of_the_base_is_refused(tmp_path: Path) -> None:
    dangling = Member(path="gone", kind="link", target="/nowhere")
    for at, path in enumerate(("gone/x", "gone/a/x", "etc/passwd/x")):
        (tmp_path / str(at)).mkdir()
        with pytest.raises(BuildError, match="of the base image is not a folder"):
            found(tmp_path / str(at), dangling, data={path: b"x"})
