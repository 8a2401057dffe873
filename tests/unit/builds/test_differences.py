"""What differs between two images or trees, by layer and member."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from envbuilder.builds import reproduce
from envbuilder.builds.backends import integrity
from envbuilder.builds.reproduce import Image, Key, Member, Prefix
from envbuilder.core.archives import Tar
from envbuilder.core.errors import BuildError
from tests.support.packed import entry, tar

PLAIN = ("etc/stamp", {"mode": 0o644, "mtime": 5}, b"one")
LINK = {"type": tarfile.SYMTYPE, "linkname": "there"}
XATTR = {"SCHILY.xattr.user.a": "b"}


def packed(*entries: tuple[str, dict[str, Any], bytes]) -> bytes:
    """A layer with these entries: name, attributes, content."""
    return tar(*(entry(name, content, **facts) for name, facts, content in entries))


def layer(*entries: tuple[str, dict[str, Any], bytes]) -> dict[Key, Member]:
    data = packed(*entries)
    archive = Tar(io.BytesIO(data), len(data), BuildError)
    return {(1, each.name): reproduce.member(each, archive) for each in archive}


def device(minor: int) -> dict[str, Any]:
    return {"type": tarfile.CHRTYPE, "devmajor": 1, "devminor": minor}


@pytest.mark.parametrize(
    ("before", "after", "content", "how"),
    [
        (PLAIN[1], PLAIN[1], b"two", "content"),
        (PLAIN[1], {**PLAIN[1], "mtime": 5.25}, b"one", "metadata"),
        (PLAIN[1], {**PLAIN[1], "uid": 7}, b"one", "metadata"),
        (PLAIN[1], {**PLAIN[1], "pax_headers": XATTR}, b"one", "metadata"),
        (PLAIN[1], {"mode": 0o600, "mtime": 5}, b"two", "content, metadata"),
        (LINK, {**LINK, "linkname": "elsewhere"}, b"", "content"),
        (LINK, {**LINK, "type": tarfile.LNKTYPE}, b"", "metadata"),
        (device(3), device(5), b"", "content"),
    ],
)
def test_a_member_that_differs_is_named(
    before: dict[str, Any], after: dict[str, Any], content: bytes, how: str
) -> None:
    first = layer(("a", before, b"one" if before is PLAIN[1] else b""))
    second = layer(("a", after, content))
    (difference,) = reproduce.between(first, second)
    assert (difference.layer, difference.path, difference.how) == (1, "a", how)
    assert difference.digests[0] != difference.digests[1]
    (lost,) = reproduce.between(first, {})
    (new,) = reproduce.between({}, first)
    assert (lost.how, new.how) == ("only in the first", "only in the second")


maps = st.dictionaries(
    st.tuples(st.integers(1, 2), st.text("abc/", min_size=1, max_size=4)),
    st.builds(Member, st.sampled_from(["x", "y"]), st.sampled_from(["1", "2"])),
)


@given(maps, maps)
def test_exactly_what_differs_is_listed(first: Any, second: Any) -> None:
    expected = sorted(p for p in first.keys() | second.keys() if first.get(p) != second.get(p))
    for one, other in ((first, second), (second, first)):
        listed = list(reproduce.between(one, other))
        assert [(d.layer, d.path) for d in listed] == expected
        for d in listed:
            assert d.how
            assert d.digests[0] != d.digests[1]


def image(folder: Path, config: dict[str, Any], *layers: bytes) -> Image:
    """An image in a pretended layout; its layers are plain tars."""
    folder.mkdir()
    names = [hashlib.sha256(data).hexdigest() for data in layers]
    for name, data in zip(names, layers, strict=True):
        (folder / name).write_bytes(data)
    layout: Any = SimpleNamespace(
        manifest=lambda platform: SimpleNamespace(layers=names, config=SimpleNamespace(digest="c")),
        read_config=lambda manifest: {**config, "rootfs": {"diff_ids": names}},
        checked=lambda name: folder / name,
    )
    return Image(layout, "linux/amd64")


def listed(first: Any, second: Any, tmp_path: Path) -> dict[Key, str]:
    shown, more, _ = reproduce.listed(first, second, tmp_path / "differing")
    assert more == 0
    return {(d.layer, d.path): d.how for d in shown}


def test_images_are_compared_by_configuration_layer_and_member(tmp_path: Path) -> None:
    same = packed(("a", {}, b"same"))
    a = ("a", {}, b"1")
    b = ("b", {}, b"")
    config = {"created": "2026-01-01", "config": {"Env": ["A=1"]}}
    other = {"created": "2026-01-02", "config": {"Env": ["A=1"]}, "empty": {}}
    first = image(tmp_path / "1", config, same, packed(a, b), packed(b))
    second = image(tmp_path / "2", other, same, packed(b, a), packed(b, PLAIN))
    assert listed(first, second, tmp_path) == {
        (0, "configuration: created"): "content",
        (0, "configuration: empty"): "only in the second",  # a key without a value, too
        (2, ""): "content",  # the order of its members
        (3, "etc/stamp"): "only in the second",
    }


def prefix(folder: Path, **files: str) -> Prefix:
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_text(content)
    (folder / "pyvenv.cfg").write_text(str(folder))
    return Prefix(folder)


def test_trees_are_compared_without_host_dependent_files(tmp_path: Path) -> None:
    first = prefix(tmp_path / "1", a="1", b="same", c="", d="")
    second = prefix(tmp_path / "2", a="2", b="same", e="")
    (tmp_path / "1/d").chmod(0o755)
    (tmp_path / "2/d").symlink_to("b")
    assert listed(first, second, tmp_path) == {
        (0, "a"): "content",
        (0, "c"): "only in the first",
        (0, "d"): "content, metadata",
        (0, "e"): "only in the second",
    }


def test_the_list_of_host_dependent_files_is_compared_itself(tmp_path: Path) -> None:
    sides = [prefix(tmp_path / name, a=name) for name in "12"]
    for name, content in (("1", "a\n"), ("2", "a\nb\n")):
        (tmp_path / name / integrity.PLACED).parent.mkdir(parents=True)
        (tmp_path / name / integrity.PLACED).write_text(content)
    assert listed(*sides, tmp_path) == {(0, integrity.PLACED): "content"}


def test_diffoscope_gets_the_files_whose_content_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides = [
        image(tmp_path / text.decode(), {}, packed((*PLAIN[:2], text), ("../outside", {}, text)))
        for text in (b"one", b"two")
    ]
    monkeypatch.setattr(reproduce.process, "which", lambda program: None)
    assert reproduce.listed(*sides, tmp_path / "d")[2] is None
    monkeypatch.setattr(reproduce.process, "which", lambda program: program)

    def run(argv: list[str], **options: Any) -> Any:
        folder = tmp_path / "d"
        copies = {str(p.relative_to(tmp_path)) for p in folder.rglob("*") if p.is_file()}
        assert copies == {
            f"d/{side}/{name}"
            for side in ("first", "second")
            for name in ("etc/stamp", "configuration.json")
        }
        assert (argv[-2:], options["cwd"]) == (["first", "second"], folder)
        return SimpleNamespace(returncode=1, stdout="-1\n+2\n")

    monkeypatch.setattr(reproduce.process, "run", run)
    assert reproduce.listed(*sides, tmp_path / "d")[2] == "-1\n+2\n"
    assert reproduce.diffoscope((sides[0], sides[1]), [], tmp_path / "e") is None
