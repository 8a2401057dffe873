"""Keys in the configuration: where they are, and who may say that they are needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from envbuilder.core import settings
from envbuilder.core.errors import InvalidError

if TYPE_CHECKING:
    from pathlib import Path

INLINE = "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"


def read(tmp_path: Path, user: str = "", project: str = "") -> settings.Signatures:
    for name, text in (("user/config.yaml", user), ("project/envbuilder.yaml", project)):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    environ = {"ENVBUILDER_CONFIG_DIR": str(tmp_path / "user")}
    return settings.read(environ, tmp_path / "project")[0].configuration.signatures


def test_paths_of_keys_are_relative_to_their_file(tmp_path: Path) -> None:
    text = "signatures:\n  locks: [keys/a.pub, /b.pub]\n  images: [" + repr(INLINE)[1:-1].join('""')
    signatures = read(tmp_path, project=text + "]\n")
    assert signatures.locks == (str(tmp_path / "project" / "keys" / "a.pub"), "/b.pub")
    assert signatures.images == (INLINE,)
    assert signatures.bundles is None


def test_a_project_cannot_lift_what_the_user_requires(tmp_path: Path) -> None:
    signatures = read(
        tmp_path,
        user="signatures: {locks: [mine.pub]}\n",
        project="signatures: {locks: [theirs.pub], bundles: [theirs.pub]}\n",
    )
    assert signatures.locks == (str(tmp_path / "user" / "mine.pub"),)
    assert signatures.bundles == (str(tmp_path / "project" / "theirs.pub"),)
    signatures = read(tmp_path, user="signatures: {locks: [mine.pub]}\n", project="profile: cpu\n")
    assert signatures.locks == (str(tmp_path / "user" / "mine.pub"),)


@pytest.mark.parametrize(
    "value", ["[]", "{lock: [a]}", "{locks: []}", "{locks: a.pub}", "{locks: [1]}"]
)
def test_an_empty_or_misspelt_policy_is_an_error(tmp_path: Path, value: str) -> None:
    """Otherwise nothing would be required, in silence."""
    with pytest.raises(InvalidError, match="signatures"):
        read(tmp_path, project=f"signatures: {value}\n")
