"""What differs between two builds is found and named, whatever it is."""

from __future__ import annotations

import io
import tarfile
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuilder.build.backends import tree_digest as tree
from envbuilder.build.reproduce import differences as reproduce
from envbuilder.build.reproduce.differences import Difference, Member
from envbuilder.core.archives import Tar
from envbuilder.core.errors import BuildError


def layer(*entries: tuple[str, dict[str, Any], bytes]) -> dict[str, Member]:
    """The members of a layer with these entries: name, attributes, content."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, attributes, content in entries:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            for key, value in attributes.items():
                setattr(entry, key, value)
            archive.addfile(entry, io.BytesIO(content))
    buffer.seek(0)
    archive = Tar(buffer, len(buffer.getvalue()), BuildError)
    return reproduce.members((entry, archive) for entry in archive)


def compared(first: dict[str, Member], second: dict[str, Member]) -> dict[str, str]:
    return {d.path: d.how for d in reproduce.of_members(first, second)}


PLAIN = ("etc/stamp", {"mode": 0o644, "mtime": 5}, b"one")


@pytest.mark.parametrize(
    ("other", "how"),
    [
        (("etc/stamp", {"mode": 0o644, "mtime": 5}, b"two"), "content"),
        (("etc/stamp", {"mode": 0o644, "mtime": 6}, b"one"), "time 5 and 6"),
        (("etc/stamp", {"mode": 0o644, "mtime": 5.25}, b"one"), "time 5 and 5.25"),
        (("etc/stamp", {"mode": 0o600, "mtime": 5}, b"one"), "mode 644 and 600"),
        (("etc/stamp", {"mode": 0o644, "mtime": 5, "uid": 7}, b"one"), "owner 0:0 and 7:0"),
        (
            ("etc/stamp", {"mode": 0o600, "mtime": 6}, b"two"),
            "mode 644 and 600, time 5 and 6, content",
        ),
        (
            (
                "etc/stamp",
                {"mode": 0o644, "mtime": 5, "pax_headers": {"SCHILY.xattr.user.a": "b"}},
                b"one",
            ),
            "extra  and {'SCHILY.xattr.user.a': 'b'}",
        ),
    ],
)
def test_a_file_that_differs_is_named_with_what_differs(other: Any, how: str) -> None:
    assert compared(layer(PLAIN), layer(PLAIN)) == {}
    assert compared(layer(PLAIN), layer(other)) == {"etc/stamp": how}


def test_every_kind_of_entry_is_told_apart() -> None:
    link = {"type": tarfile.SYMTYPE, "linkname": "there"}
    entries = [
        ("a", link, b""),
        ("b", {"type": tarfile.DIRTYPE}, b""),
        ("c", {"type": tarfile.LNKTYPE, "linkname": "etc/stamp"}, b""),
        ("d", {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3}, b""),
    ]
    found = layer(PLAIN, *entries)
    assert [m.kind for m in found.values()] == ["file", "link", "folder", "hard link", "other"]
    assert found["d"].content == "1:3"
    moved = layer(("a", {**link, "linkname": "elsewhere"}, b""))
    assert compared({"a": found["a"]}, moved) == {"a": "content there and elsewhere"}
    assert compared({"b": found["a"]}, {"b": found["b"]})["b"].startswith("kind link and folder")
    assert compared(found, {})["c"] == "only in the first"
    assert compared({}, found)["c"] == "only in the second"


maps = st.dictionaries(
    st.text("abc/", min_size=1, max_size=4),
    st.builds(
        Member,
        kind=st.sampled_from(["file", "link"]),
        mode=st.sampled_from(["644", "755"]),
        owner=st.just("0:0"),
        time=st.sampled_from(["1", "2"]),
        content=st.sampled_from(["x", "y"]),
    ),
)


@given(maps, maps)
def test_exactly_what_differs_is_listed(first: Any, second: Any) -> None:
    wanted = {p for p in first.keys() | second.keys() if first.get(p) != second.get(p)}
    assert compared(first, second).keys() == wanted
    assert compared(second, first).keys() == wanted
    assert all(compared(first, second).values())


def test_configurations_are_compared_key_by_key() -> None:
    one = {"created": "2026-01-01", "config": {"Env": ["A=1"]}, "rootfs": {"diff_ids": ["x"]}}
    other = {"created": "2026-01-02", "config": {"Env": ["A=1", "B=2"]}, "rootfs": {}}
    assert list(reproduce.of_configurations(one, one)) == []
    assert list(reproduce.of_configurations(one, other)) == [
        Difference(path="configuration: config.Env.1", how='nothing and "B=2"'),
        Difference(path="configuration: created", how='"2026-01-01" and "2026-01-02"'),
    ]


def test_trees_are_told_in_the_same_words() -> None:
    before = (tree.Entry("a", "file", "1"), tree.Entry("b", "file", "1"))
    after = (tree.Entry("a", "file", "2"), tree.Entry("c", "file", "1"))
    found = reproduce.of_trees(tree.differences(before, after))
    assert [(d.path, d.how) for d in found] == [
        ("a", "content"),
        ("b", "only in the first"),
        ("c", "only in the second"),
    ]


def test_an_outcome_is_json_with_a_schema() -> None:
    outcome = reproduce.Outcome(
        status="different",
        profile="cpu",
        backend="docker",
        builder="buildkit",
        fingerprint="f",
        made_by={"buildkit": "v0.13.2"},
        digests=("a", "b"),
        compared="config",
        seconds=(1.0, 2.0),
        differences=(Difference(path="etc/stamp", how="content"),),
    )
    data = msgspec.json.decode(msgspec.json.encode(outcome))
    assert data["schema"] == 1
    assert data["differences"] == [{"path": "etc/stamp", "how": "content"}]
    assert data["diffoscope"] is None
    assert "manifest_digests" not in data  # unknown
