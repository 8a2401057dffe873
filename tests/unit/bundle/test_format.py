"""The bytes of a bundle are determined by its manifest; no path in it leads elsewhere."""

from __future__ import annotations

import io
import posixpath
import tarfile
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuilder.bundle import format as form
from envbuilder.bundle import read as reading
from envbuilder.bundle import write as packing
from envbuilder.core.errors import InvalidError
from tests.support.bundles import QUIET, WHEEL, made_of, part, read, sha

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.bundle.contents import Part
    from envbuilder.bundle.format import Manifest


NAMES = st.text("abcdefghijklmnopqrstuvwxyz0123456789._+-", min_size=1, max_size=200)


@given(st.sampled_from(["", "wheels/", "bases/blobs/sha256/"]), NAMES, st.integers(0, 2**40))
def test_any_header_is_what_tar_reads(folder: str, name: str, size: int) -> None:
    path = f"{folder}{name.strip('.') or 'x'}"
    head = form.header(path, size)
    assert len(head) % form.BLOCK == 0
    with tarfile.open(fileobj=io.BytesIO(head + form.END), mode="r:") as archive:
        member = archive.next()
    assert member is not None
    assert (member.name, member.size, member.isreg()) == (path, size, True)
    assert (member.mtime, member.uid, member.gid, member.mode) == (0, 0, 0, 0o644)


def test_a_bundle_is_a_plain_tar(bundle: Path, parts: tuple[Part, ...]) -> None:
    with tarfile.open(bundle, "r:") as archive:
        names = archive.getnames()
        itself = archive.extractfile("wheels/envbuilder_ml-1-py3-none-any.whl")
        assert itself is not None
        assert itself.read() == b"itself"
    assert names[0].startswith("manifest-")
    assert names[1:] == [
        "profiles/_mine.yaml", "profiles/tiny.yaml", "locks/tiny.json",
        "wheels/envbuilder_ml-1-py3-none-any.whl",
        *sorted(f"files/{sha(c)}" for c in (WHEEL, b"linux/amd64")),
    ]  # fmt: skip
    assert read(bundle)[f"files/{sha(WHEEL)}"] == WHEEL


def test_the_same_content_gives_the_same_bytes(
    bundle: Path, parts: tuple[Part, ...], manifest: Manifest, tmp_path: Path
) -> None:
    other = tmp_path / "elsewhere.tar"
    packing.write(other, manifest, tuple(reversed(parts)), QUIET)
    assert other.read_bytes() == bundle.read_bytes()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("../x.yaml", "profile"),
        ("/etc/x.yaml", "profile"),
        ("profiles/../x.yaml", "profile"),
        ("profiles/x.yaml\n", "profile"),
        ("profiles/x.yaml", "lock"),
        ("locks/a/b.json", "lock"),
        ("locks/a.other.json", "lock"),
        ("wheels/a b.whl", "wheel"),
        ("wheels/../../a.whl", "wheel"),
        ("files/x", "file"),
        (f"files/{'0' * 64}", "file"),
        ("datasets/mnist/train-images-idx3-ubyte", "dataset"),
        ("datasets/mnist/other", "dataset"),
        (f"bases/blobs/sha256/{'0' * 64}", "base"),
        ("bases/index", "base"),
    ],
)
def test_paths_that_lead_elsewhere_are_refused(path: str, kind: Any) -> None:
    assert form.problem(made_of((part(path, b"x", kind),)))


@pytest.mark.parametrize(
    "path",
    ["../x", "/x", ".", "..", "a/../b", "./a", "a//b", "a/", "a/.", "a/..", "a\nb", "C:\\x", "$x",
     "a" * 300, ""],
)  # fmt: skip
def test_a_file_of_a_project_stays_in_it(path: str) -> None:
    named = part(f"project/{path}", b"x", "project")
    assert "not a valid path" in form.problem(of_project(named))


@given(st.text("./\\ab\n~é :", max_size=12))
def test_no_path_that_is_accepted_leads_out_of_the_project(path: str) -> None:
    if form.problem(of_project(part(f"project/{path}", b"x", "project"))) == "":
        normal = posixpath.normpath(f"/root/project/{path}")
        assert normal == f"/root/project/{path}"
        assert "\\" not in path
        assert path.isprintable()


def of_project(*parts: Part) -> form.Manifest:
    return made_of(parts, schema=form.WITH_PROJECT, environment="default")


def test_files_of_a_project_have_any_other_name() -> None:
    names = ("envbuilder.yaml", "a b/données.txt", ".hidden", "..a", "a..", "reqs/x.in")
    assert form.problem(of_project(*(part(f"project/{n}", b"x", "project") for n in names))) == ""
    both = (part("project/a", b"x", "project"), part("project/a/b", b"x", "project"))
    assert "'project/a' is a file and a folder" in form.problem(of_project(*both))


def test_what_types_cannot_say() -> None:
    good = part(f"files/{sha(b'x')}", b"x", "file")
    other = part(f"files/{sha(b'y')}", b"y", "file")
    assert form.problem(made_of((good, other))) == ""
    assert form.problem(made_of((part("locks/x.conda.json", b"x", "lock"),))) == ""
    assert "twice" in form.problem(made_of((good, good)))
    backwards = tuple(reversed(made_of((good, other)).members))
    assert "order" in form.problem(made_of((), members=backwards))
    large = msgspec.structs.replace(part("locks/x.json", b"", "lock").member, size=2**30)
    assert "too large" in form.problem(made_of((), members=(large,)))
    many = tuple(
        msgspec.structs.replace(part(f"locks/x{n}.json", b"", "lock").member, size=16 << 20)
        for n in range(5)
    )
    assert form.problem(made_of((), members=many[:4])) == ""
    assert "83886080 bytes together" in form.problem(made_of((), members=many))
    assert len(form.problem(made_of((part("x" * 9_999, b"", "file"),)))) < 200


def test_a_member_is_no_larger_than_a_locked_file_can_be() -> None:
    huge = msgspec.structs.replace(part(f"files/{sha(b'x')}", b"x", "file").member, size=2**63)
    with pytest.raises(
        InvalidError, match=r"members\.0\.size: expected a whole number <= 68719476736"
    ):
        reading.parse(form.encode(made_of((), members=(huge,))), "x.tar")


def test_a_manifest_has_the_same_bytes_everywhere() -> None:
    assert form.encode(made_of((), lacks=("für arm64",))).decode() == (
        '{\n "schema": 2,\n "made_by": "a test",\n "profiles": [\n  "tiny"\n ],\n "platforms": [\n'
        '  "linux/amd64"\n ],\n "pythons": [\n  "3.11"\n ],\n "lacks": [\n  "für arm64"\n ],\n'
        ' "members": []\n}\n'
    )
