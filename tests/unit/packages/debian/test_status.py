"""The packages of a Debian system are read from its dpkg status."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuilder.containers.oci import rootfs
from envbuilder.containers.oci.layout import (
    CONFIG,
    LAYER,
    MANIFEST,
    Index,
    Layout,
    Manifest,
    encode,
    oci_platform,
)
from envbuilder.core.errors import BuildError, InvalidError
from envbuilder.packages.debian import status
from tests.support import debs
from tests.support.engines import FakeEngine

if TYPE_CHECKING:
    from pathlib import Path


STATUS = b"""\
Package: libc6
Status: install ok installed
Priority: optional
Architecture: amd64
Version: 2.36-9
Depends: libgcc-s1,
 libcrypt1 (>= 1:4)
Breaks: old (<< 1)
Conffiles:
 /etc/ld.so.conf.d/x.conf d4e7a7b88a71b5ffd9e2644e71a0cfab
Description: GNU C Library
 Depends: not a field

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1

Package: waiting
Status: install ok triggers-pending
Architecture: all
Version: 1

Package: raw
Status: install ok unpacked
Architecture: amd64
Version: 1

Package: foreign
Status: install ok installed
Architecture: arm64
Version: 1
"""


def test_a_status_says_what_is_installed() -> None:
    packages = status.parse({status.FILE: STATUS}, "amd64")
    assert packages == {"libc6": "2.36-9", "waiting": "1", "raw": "1"}


def test_one_file_a_package() -> None:
    files = {
        f"{status.FOLDER}base": b"Package: base\nVersion: 1\nArchitecture: amd64\n",
        f"{status.FOLDER}libc6": b"Package: libc6\nVersion: 2\nArchitecture: amd64\n",
        f"{status.FOLDER}libc6.md5sums": b"d41d8cd98f00b204e9800998ecf8427e  etc/x\n",
    }
    assert status.parse(files, "amd64") == {"base": "1", "libc6": "2"}


def test_no_status_and_an_empty_one() -> None:
    assert status.parse({}, "amd64") is None
    with pytest.raises(InvalidError, match="no installed package for arm64"):
        status.parse({status.FILE: b"Package: x\n"}, "arm64")


@given(st.binary(max_size=300))
def test_any_bytes_can_be_a_status(data: bytes) -> None:
    try:
        status.parse({status.FILE: b"Package: p\nVersion: 1\n\n" + data}, "amd64")
    except InvalidError:
        return


text = st.text(st.characters(codec="ascii", exclude_categories=["C"]), max_size=20)


@given(
    st.dictionaries(
        st.from_regex(r"[a-z][a-z0-9+.-]{1,8}", fullmatch=True),
        st.tuples(st.from_regex(r"[0-9][0-9.]{0,5}", fullmatch=True), text),
        min_size=1,
    )
)
def test_what_is_written_is_read(packages: dict[str, tuple[str, str]]) -> None:
    written = "\n".join(
        f"Package: {name}\nStatus: install ok installed\nVersion: {version}\n"
        f"Description: x\n .{said}\n"
        for name, (version, said) in packages.items()
    )
    assert status.parse({status.FILE: written.encode()}, "amd64") == {
        name: version for name, (version, _) in packages.items()
    }


Members = list[tuple[str, bytes | str | None]]


def says(*names: str) -> bytes:
    return "\n".join(
        f"Package: {n}\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1\n"
        for n in names
    ).encode()


def layout(folder: Path, *layers: Members) -> Layout:
    made = Layout.create(folder)
    blobs = []
    for number, members in enumerate(layers):
        packed = gzip.compress(debs.layer(folder / "x.tar", members).read_bytes(), mtime=number)
        blobs.append(made.add(packed, f"{LAYER}+gzip"))
    config = made.add(b'{"os":"linux","architecture":"amd64"}', CONFIG)
    manifest = Manifest(schema_version=2, config=config, layers=tuple(blobs))
    found = made.add(
        encode(manifest),
        MANIFEST,
        platform=oci_platform("linux/amd64"),
    )
    made.write_index(Index(schema_version=2, manifests=(found,)))
    return made


def names(made: Layout) -> list[str]:
    contents = rootfs.read(made, made.manifest("linux/amd64")).contents
    return sorted(status.of_contents(contents, "linux/amd64", "base:1"))


def test_upper_layers_win(tmp_path: Path) -> None:
    lower: Members = [("etc/x", b""), (f"./{status.FILE}", says("a"))]
    assert names(layout(tmp_path / "1", lower)) == ["a"]
    assert names(layout(tmp_path / "2", lower, [(status.FILE, says("a", "b"))])) == ["a", "b"]
    assert names(layout(tmp_path / "3", lower, [("etc/y", b"")])) == ["a"]


@pytest.mark.parametrize(
    "gone",
    [
        "var/lib/dpkg/.wh.status", "var/lib/.wh.dpkg", "var/lib/dpkg/.wh..wh..opq", ".wh.var",
        ".wh..wh..opq",
    ],
)  # fmt: skip
def test_what_a_layer_removes_is_gone(tmp_path: Path, gone: str) -> None:
    lower: Members = [(status.FILE, says("a"))]
    with pytest.raises(InvalidError, match="not a Debian system"):
        names(layout(tmp_path / "1", lower, [(gone, b"")]))
    # Wherever in the layer it stands: what the same layer adds is there.
    both: Members = [(status.FILE, says("b")), (gone, b"")]
    assert names(layout(tmp_path / "2", lower, both)) == ["b"]
    assert names(layout(tmp_path / "3", lower, both[::-1])) == ["b"]


def test_a_link_in_place_of_a_folder_hides_what_was_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="not a Debian system"):
        names(layout(tmp_path, [(status.FILE, says("a"))], [("var/lib/dpkg", "/elsewhere")]))


def test_one_file_a_package_of_an_image(tmp_path: Path) -> None:
    folder = "var/lib/dpkg/status.d"
    lower: Members = [(f"{folder}/a", says("a")), (f"{folder}/b", says("b"))]
    assert names(layout(tmp_path / "1", lower)) == ["a", "b"]
    upper: Members = [(f"{folder}/.wh.a", b""), (f"{folder}/c", says("c"))]
    assert names(layout(tmp_path / "2", lower, upper)) == ["b", "c"]


def test_a_damaged_layer_is_an_error(tmp_path: Path) -> None:
    made = layout(tmp_path, [(status.FILE, says("a"))])
    blob = made.blob(made.manifest("linux/amd64").layers[0].digest)
    blob.write_bytes(blob.read_bytes()[:-1] + b"?")
    with pytest.raises(BuildError, match="damaged"):
        names(made)


# --- an engine


def test_an_image_of_the_engine_is_read() -> None:
    engine = FakeEngine("base:1")
    assert status.of_engine(engine, "base:1", "linux/amd64") is None
    for path, name in ((status.FILE, "a"), ("var/lib/dpkg/status.d/b", "b")):
        engine.contents = {path: says(name)}
        assert status.of_engine(engine, "base:1", "linux/amd64") == {name: "1"}
    engine.contents = {}
    with pytest.raises(InvalidError, match="base:1: not a Debian system"):
        status.of_engine(engine, "base:1", "linux/amd64")
    assert set(engine.done) == {"read base:1 linux/amd64"}
