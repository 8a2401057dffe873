"""Versions as engines report them."""

from __future__ import annotations

import pytest

from envbuilder.containers.engine import docker_client


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("26.1.5+dfsg1", (26, 1)), ("20.10.24", (20, 10)), ("v0.13", (0, 0)), ("", (0, 0))],
)
def test_engine_versions(text: str, numbers: tuple[int, int]) -> None:
    assert docker_client.version_numbers(text) == numbers
