"""What layers add up to, without unpacking them."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuilder.containers.oci import rootfs
from envbuilder.containers.oci.layer import Member
from envbuilder.core.errors import BuildError
from tests.support.images import BASE, PYTHON, image

PATH = "/usr/local/bin:/usr/bin"


def listing(folder: Path, *layers: list[Member]) -> rootfs.RootFs:
    layout = image(folder, (list(BASE), *layers))
    return rootfs.read(layout, layout.manifest("linux/amd64"))


def test_upper_layers_replace_and_remove(tmp_path: Path) -> None:
    root = listing(
        tmp_path,
        [Member(path="opt/a/b", content=b"1"), Member(path="opt/c", content=b"1")],
        [Member(path="opt/.wh.c"), Member(path="etc/passwd", content=b"changed")],
    )
    assert "opt/c" not in root.entries
    assert "opt/.wh.c" not in root.entries
    assert root.entries["opt/a"].kind == "folder", "leads to a file, though no layer names it"
    assert root.contents["etc/passwd"] == b"changed"


def test_an_opaque_folder_hides_what_is_below_and_nothing_beside(tmp_path: Path) -> None:
    root = listing(
        tmp_path,
        [Member(path="opt/a/old"), Member(path="opt/ab")],
        [Member(path="opt/a/.wh..wh..opq"), Member(path="opt/a/new")],
    )
    assert {p for p in root.entries if p.startswith("opt/")} == {"opt/a", "opt/a/new", "opt/ab"}


def test_a_file_in_a_folders_place_ends_the_folder(tmp_path: Path) -> None:
    root = listing(tmp_path, [Member(path="opt/a/b")], [Member(path="opt/a")])
    assert "opt/a/b" not in root.entries


def test_python_is_found_as_a_shell_would_and_told_by_its_bytes(tmp_path: Path) -> None:
    assert listing(tmp_path).python("3.11", PATH) == ("/usr/bin/python3.11", "3.11.2")


def test_a_python_in_a_library_is_found_behind_links(tmp_path: Path) -> None:
    root = listing(
        tmp_path,
        [
            Member(path="usr/local/bin/python3", kind="link", target="python3.12"),
            Member(path="usr/local/bin/python3.12", mode=0o755, content=b"\x7fELF"),
            Member(path="usr/local/lib/libpython3.12.so.1.0", content=b"\x003.12.14\x00"),
        ],
    )
    assert root.python("3.12", PATH) == ("/usr/local/bin/python3.12", "3.12.14")


def test_a_base_of_another_python_is_refused(tmp_path: Path) -> None:
    said = r"Python 3\.13 is needed, but the base image has 3\.11\.2"
    with pytest.raises(BuildError, match=said) as caught:
        listing(tmp_path).python("3.13", PATH)
    assert "ENVBUILDER_BASE_IMAGE" in caught.value.hint


@pytest.mark.parametrize(
    ("path", "leads"),
    [
        ("/lib/x", "usr/lib/x"),
        ("/lib/../lib/x", "usr/lib/x"),
        ("/absolute/x", "usr/lib/x"),
        ("/loop/x", None),
        ("/none", None),
        ("/", ""),
    ],
)
def test_links_are_followed_within_the_image(tmp_path: Path, path: str, leads: str | None) -> None:
    root = listing(
        tmp_path,
        [
            Member(path="usr/lib/x"),
            Member(path="absolute", kind="link", target="/../usr/lib"),
            Member(path="loop", kind="link", target="loop"),
        ],
    )
    assert root.resolve(path) == leads


def test_one_more_layer_leaves_the_listing_below_alone(tmp_path: Path) -> None:
    root = listing(tmp_path)
    layout = image(tmp_path / "other", ([Member(path="etc/passwd", content=b"new")],))
    (layer,) = layout.manifest("linux/amd64").layers
    over = rootfs.over(root, layout.blob(layer.digest))
    assert over.contents["etc/passwd"] == b"new"
    assert root.contents["etc/passwd"].startswith(b"root:")
    assert over.versions == root.versions == {"usr/bin/python3.11": "3.11.2"}
    assert PYTHON not in over.contents.values(), "only small files are kept"
