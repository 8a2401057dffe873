"""The Python of an image, as it is unpacked to compile the image's modules."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from envbuilder.builds.image import interpreter
from envbuilder.builds.image.unpacked import Compiler
from envbuilder.builds.image.wheels import Python
from envbuilder.containers.oci import rootfs
from envbuilder.containers.oci.layer import Member
from envbuilder.core.errors import BuildError
from tests.support.images import BASE, image

LOADER = "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"
PYTHON = Python(path="/usr/bin/python3", version="3.11.2", platform="linux/amd64")
LIBRARY = (
    Member(path="usr/lib/python3.11/encodings/__init__.py", content=b"new"),
    Member(path="usr/lib/python3.11/site-packages/a.py"),
    Member(path="usr/lib/x86_64-linux-gnu/libc-2.31.so", content=b"libc"),
    Member(path="usr/lib/x86_64-linux-gnu/libc.so.6", kind="link", target="libc-2.31.so"),
    Member(path="usr/lib/x86_64-linux-gnu/libtorch.so"),
)
LOADING = (*LIBRARY, Member(path=LOADER, content=b"loader"))
OLD = Member(path="usr/lib/python3.11/encodings/__init__.py", content=b"old")


def compiler(folder: Path, *layers: tuple[Member, ...], python: Python = PYTHON) -> Compiler | None:
    layout = image(folder / "image", ((*BASE, OLD), *layers))
    manifest = layout.manifest("linux/amd64")
    blobs = {blob.digest: layout.blob(blob.digest) for blob in manifest.layers}
    return interpreter.compiler(python, rootfs.read(layout, manifest), blobs, folder / "store")


def test_what_it_needs_is_unpacked_and_its_own_loader_starts_it(tmp_path: Path) -> None:
    found = compiler(tmp_path, LOADING)
    assert found
    loader, *_, folders, program = found.argv
    unpacked = Path(program).parents[2]
    assert program == f"{unpacked}/usr/bin/python3.11"
    assert loader == f"{unpacked}/{LOADER}"
    assert folders == str(Path(loader).parent)
    assert found.variables == {}, "none of this machine's"
    files = {str(p.relative_to(unpacked)): p for p in unpacked.rglob("*") if p.is_file()}
    names = ("libc-2.31.so", "libc.so.6", "ld-linux-x86-64.so.2")
    assert files.keys() == {
        "usr/bin/python3.11", "usr/lib/python3.11/encodings/__init__.py",
        *(f"usr/lib/x86_64-linux-gnu/{name}" for name in names),
    }  # fmt: skip
    assert files["usr/lib/python3.11/encodings/__init__.py"].read_text() == "new"
    assert files["usr/lib/x86_64-linux-gnu/libc.so.6"].read_text() == "libc"


def test_it_is_unpacked_again_if_a_file_of_it_was_changed(tmp_path: Path) -> None:
    first = compiler(tmp_path, LOADING)
    assert first
    loader = Path(first.argv[0])
    before = loader.stat()
    assert compiler(tmp_path, LOADING) == first
    assert loader.stat() == before
    loader.chmod(0o755)
    loader.write_bytes(b"evil")
    assert compiler(tmp_path, LOADING) == first
    assert loader.read_bytes() == b"loader"


def test_another_program_of_the_same_version_is_another_compiler(tmp_path: Path) -> None:
    other = Member(path="usr/bin/python3.11", content=b"\x003.11.2\x00", mode=0o755)
    made = [compiler(tmp_path / n, (*LOADING, *m)) for n, m in (("a", ()), ("b", (other,)))]
    one, two = (found.identity for found in made if found)
    assert one != two
    assert one.startswith("3.11.2-")


def test_a_python_without_its_library_compiles_nothing(tmp_path: Path) -> None:
    python = replace(PYTHON, version="3.12.1")
    assert compiler(tmp_path, LOADING, python=python) is None


def test_an_image_without_a_loader_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"/usr/bin/python3: the image has no ld-linux-x86-64"):
        compiler(tmp_path, LIBRARY)
