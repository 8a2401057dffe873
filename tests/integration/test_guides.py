"""The commands of guides run as the guides say, one after the other, and print what they show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support import guides

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.guides import Guide

TESTED = [
    pytest.param(guide, id=guide.name, marks=[getattr(pytest.mark, n) for n in guide.needs.split()])
    for guide in guides.tested()
]
NEEDED = {"network": "tiny_lock", "torch": "torch_prefix"}
"""What a guide needs → the fixture that skips where it is missing."""
OF_HARDWARE = {"arc-laptop", "epyc", "mac", "pascal", "radeon", "two-gpus"}
OF_PROJECTS = {
    *("your-own-project", "behind-a-proxy", "from-uv", "from-pixi", "from-dockerfile"),
}  # fmt: skip
LONGEST = 110
"""Lines of a guide: two screens, and its test."""
HONEST = "Run here with `--target-host`; no such machine was at hand."


@pytest.mark.parametrize("guide", TESTED)
def test_its_commands_run(
    guide: Guide,
    session_environment: dict[str, str],
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    for need in guide.needs.split():
        if need in NEEDED:
            request.getfixturevalue(NEEDED[need])
    folder = tmp_path / "project"
    guides.lay(guide, folder)
    variables = guides.environment(tmp_path / "home", session_environment)
    for step in guide.steps:
        guides.run(step, folder, variables)


def test_guides_are_tested_and_short() -> None:
    tested = guides.tested()
    assert {guide.name for guide in tested} >= OF_HARDWARE | OF_PROJECTS
    for guide in tested:
        assert guide.steps, guide.name
    for name in OF_HARDWARE | OF_PROJECTS - {"your-own-project"}:
        assert len((guides.FOLDER / f"{name}.md").read_text().splitlines()) <= LONGEST, name


def test_guides_about_hardware_say_that_it_was_not_here() -> None:
    with_hosts = {guide.name for guide in guides.tested() if guide.hosts}
    assert with_hosts >= OF_HARDWARE
    for name in with_hosts:
        assert HONEST in (guides.FOLDER / f"{name}.md").read_text(), name


@pytest.mark.parametrize(
    ("shown", "printed", "missing"),
    [
        ("", "anything", ""),
        ("a b\nc", "x a  b c\nd", ""),
        ("a …\n… c", "a b c", ""),
        ("c … a", "a b c", "a"),
        ("…", "", ""),
    ],
)
def test_what_is_shown_is_compared_part_by_part(shown: str, printed: str, missing: str) -> None:
    assert guides.first_missing(shown, printed) == missing
