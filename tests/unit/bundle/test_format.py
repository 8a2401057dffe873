"""The bytes of a bundle are determined by its manifest."""

from __future__ import annotations

from envbuilder.bundle import format as form
from tests.support.bundles import made_of


def test_a_manifest_has_the_same_bytes_everywhere() -> None:
    assert form.encode(made_of((), lacks=("für arm64",))).decode() == (
        '{\n "schema": 2,\n "made_by": "a test",\n "profiles": [\n  "tiny"\n ],\n "platforms": [\n'
        '  "linux/amd64"\n ],\n "pythons": [\n  "3.11"\n ],\n "lacks": [\n  "für arm64"\n ],\n'
        ' "members": []\n}\n'
    )
