"""What uv resolved to, as it writes it, and what it is given."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from envbuilder.core.errors import BuildError
from envbuilder.packages.python import uv as uv_compile
from tests.support.folders import names_in
from tests.support.resolving import TORCH, package


def test_find_links_without_what_the_index_offers(tmp_path: Path) -> None:
    for name in (TORCH, "six-1-py2.py3-none-any.whl", "six-1.tar.gz"):
        (tmp_path / name).touch()
    work = tmp_path / "work"
    work.mkdir()
    remote, mirror = uv_compile.links((str(tmp_path), "https://x"), {"torch": "up"}, work)
    assert remote == "https://x"
    assert names_in(Path(mirror)) == {"six-1-py2.py3-none-any.whl"}
    assert uv_compile.links((str(tmp_path),), {"torch": "up"}, work) == (mirror,), "for uv's cache"
    assert names_in(Path(mirror).parent) == {Path(mirror).name}
    (tmp_path / "more-1-py3-none-any.whl").touch()
    (other,) = uv_compile.links((str(tmp_path),), {}, work)
    assert names_in(Path(other)) == {TORCH, "six-1-py2.py3-none-any.whl", "more-1-py3-none-any.whl"}
    assert uv_compile.links((), {}, work) == ()


def test_the_wheel_pip_would_take() -> None:
    text = (
        '[[packages]]\nname = "x"\nversion = "1"\nwheels = [\n'
        '{ url = "https://i/x-1-py3-none-any.whl", hashes = { sha256 = "1" } },\n'
        '{ url = "https://i/x-1-cp311-cp311-musllinux_1_1_x86_64.whl", hashes = {} },\n'
        '{ name = "x-1-cp311-abi3-manylinux_2_17_x86_64.whl", url = "u", size = 5 },\n]\n'
    )
    (found,) = uv_compile.parse_pylock(text, "linux/amd64", "3.11")
    assert (found.file, found.size) == ("x-1-cp311-abi3-manylinux_2_17_x86_64.whl", 5)
    (found,) = uv_compile.parse_pylock(text, "linux/arm64", "3.11")
    assert (found.file, found.sha256) == ("x-1-py3-none-any.whl", "1")
    only = text.replace("py3-none-any", "cp39-cp39-win_amd64")
    with pytest.raises(BuildError, match="x: no matching wheel"):
        uv_compile.parse_pylock(only, "macos/arm64", "3.11")


@pytest.mark.parametrize(
    ("platform", "tag", "fits"),
    [
        ("linux/amd64", "cp312-cp312-manylinux_2_28_x86_64", True),
        ("linux/amd64", "cp312-cp312-linux_x86_64", True),
        ("linux/arm64", "py2.py3-none-manylinux2014_aarch64", True),
        ("macos/arm64", "cp312-cp312-macosx_14_0_arm64", True),
        ("linux/amd64", "cp311-cp311-manylinux_2_28_x86_64", False),
        ("linux/amd64", "cp312-cp312-manylinux_2_34_x86_64", False),
        ("linux/amd64", "cp312-cp312t-manylinux_2_28_x86_64", False),
        ("macos/arm64", "cp312-cp312-macosx_15_0_arm64", False),
    ],
)
def test_tags_that_fit(platform: Any, tag: str, fits: bool) -> None:
    text = package("x", "1", f"https://i/x-1-{tag}.whl")
    with nullcontext() if fits else pytest.raises(BuildError):
        assert uv_compile.parse_pylock(text, platform, "3.12")
