"""Records of images: what clients tell is checked, and damaged records say nothing."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from envbuilder.builds import records
from envbuilder.core.errors import BuildError

ONE = f"sha256:{1:064}"
TWO = f"sha256:{2:064}"
RECORD = records.ImageRecord(
    profile="cpu",
    fingerprint="f" * 64,
    ref="envbuilder/cpu:py311",
    digest=ONE,
    ids=(ONE, TWO),
    builder="buildkit",
    made_by={"buildkit": "v0.13.2"},
)


def told(config: object, image: object) -> str:
    return json.dumps(
        {"containerimage.config.digest": config, "containerimage.digest": image, "other": {}}
    )


@pytest.mark.parametrize(
    ("text", "digests"),
    [
        (told(ONE, TWO), (ONE, TWO)),
        (told(ONE, ONE), (ONE,)),
        (f"{ONE}\n", (ONE,)),
        (ONE, (ONE,)),
        (ONE.removeprefix("sha256:"), (ONE,)),
    ],
)
def test_a_client_tells_what_it_made(text: str, digests: tuple[str, ...]) -> None:
    assert records.digests(text) == digests


@pytest.mark.parametrize(
    "text",
    ["", "{", "{}", "sha256:1", f"{ONE} {TWO}", told("x", ONE), told(ONE, None), "[" * 9999],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(BuildError, match="did not report which image"):
        records.digests(text)


@given(st.text() | st.dictionaries(st.text(), st.text()).map(json.dumps))
def test_no_text_is_taken_for_a_digest(text: str) -> None:
    with pytest.raises(BuildError):
        records.digests(text)


@pytest.mark.parametrize(
    ("text", "versions"),
    [
        ("Name: default\nBuildKit version: v0.13.2\n", {"buildkit": "v0.13.2"}),
        ("Name:     default\nBuildkit:  v0.11.6+0a1567\n", {"buildkit": "v0.11.6+0a1567"}),
        ("host:\n  arch: amd64\n  buildahVersion: 1.39.3\n", {"buildah": "1.39.3"}),
        ("BuildKit version: v0.0.0+unknown\n", {}),
        ("nothing", {}),
    ],
)  # fmt: skip
def test_builders_tell_their_versions(text: str, versions: dict[str, str]) -> None:
    assert records.versions(text) == versions


def test_records_are_kept_by_fingerprint(tmp_path: Path) -> None:
    folder = tmp_path / RECORD.fingerprint
    assert records.read(folder) == ()
    other = replace(RECORD, digest=TWO, ids=(TWO,))
    records.keep(folder, RECORD)
    records.keep(folder, other)
    records.keep(folder, other)
    assert records.read(folder) == (RECORD, other)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"\xff",
        b"[" * 9999,
        msgspec.json.encode(RECORD)[:-1],
        msgspec.json.encode(RECORD).replace(b"sha256:0", b"sha256:x"),
        msgspec.json.encode(replace(RECORD, fingerprint="0" * 64)),
    ],
)
def test_a_damaged_record_says_nothing(tmp_path: Path, content: bytes) -> None:
    folder = tmp_path / RECORD.fingerprint
    records.keep(folder, RECORD)
    (path,) = folder.iterdir()
    path.write_bytes(content)
    assert records.read(folder) == ()
