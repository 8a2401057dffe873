"""Claims say who states what; everything else in them is refused."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuilder.core import resources
from envbuilder.core.errors import InvalidError
from envbuilder.packages.python import claims, indexes, upstream

if TYPE_CHECKING:
    from pathlib import Path

HASH = "a" * 64
TEXT = f"""\
distribution: torch
version: 2.0+x
index: pytorch-cpu
metadata: {{provenance: assumed, by: a wheel, requires_dist: ['jinja2; python_version > "3"']}}
files:
  - {{file: torch-2.0+x-cp311-cp311-linux_x86_64.whl, sha256: {HASH}, by: a lock}}
"""


def load(folder: Path, text: str) -> claims.Claim:
    path = folder / "claim.yaml"
    path.write_text(text)
    return claims.load(path)


def test_shipped_claims_are_whole() -> None:
    found = claims.load_all()
    assert len(found) >= 5
    for claim in found:
        assert claim.index in indexes.upstreams()
        assert claim.files
        assert claim.metadata.by
        assert all(f.by for f in claim.files)


def test_bytes_checked_by_us_are_read() -> None:
    found = [f for c in claims.load_all() for f in c.files if f.provenance == "read"]
    assert [f.file for f in found] == ["torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("torch-2.0+x-", "torch-2.1+x-", "is not torch 2.0"),
        (
            "torch-2.0+x-cp311-cp311-linux_x86_64.whl",
            "torch-2.0+x.tar.gz",
            "not the name of a wheel",
        ),
        ("torch-2.0+x-", "../torch-2.0+x-", "file"),
        (HASH, "abc", "sha256"),
        ("by: a lock", "from: a lock", "unknown key"),
        ("jinja2;", "jinja2 ~", "requires_dist"),
        ("index: pytorch-cpu", "index: https://x", "index"),
    ],
)
def test_wrong_claims_are_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    load(tmp_path, TEXT)
    with pytest.raises(InvalidError, match=message):
        load(tmp_path, TEXT.replace(old, new))


def test_a_file_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="appears twice"):
        load(tmp_path, TEXT + TEXT.splitlines()[-1] + "\n")


def test_offers_say_the_weaker_provenance(tmp_path: Path) -> None:
    (offer,) = upstream.from_claim(load(tmp_path, TEXT))
    assert offer.provenance == "assumed"
    assert offer.by == "a lock; requirements: a wheel"
    assert offer.requires_dist == ('jinja2; python_version > "3"',)
    (sure,) = upstream.from_claim(load(tmp_path, TEXT.replace("assumed", "claim")))
    assert sure.provenance == "claim"
    read = TEXT.replace("by: a lock", "by: us, provenance: read")
    assert upstream.from_claim(load(tmp_path, read))[0].provenance == "read"


@given(st.text(max_size=200))
def test_any_text_is_a_claim_or_a_clear_error(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    with pytest.raises(InvalidError):
        load(tmp_path_factory.mktemp("c"), text.replace("\r", "\n"))


def test_a_version_that_is_none_is_an_error(tmp_path: Path) -> None:
    source = next(iter(sorted((resources.profiles_dir() / "claims").glob("*.yaml"))))
    text = re.sub(r"(?m)^version: .*$", "version: NaN.8", source.read_text())
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(InvalidError, match=r"'NaN\.8' is not a version"):
        claims.load(tmp_path / "x.yaml")
