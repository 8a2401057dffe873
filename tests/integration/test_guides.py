"""The commands of guides run as the guides say, one after the other, and print what they show."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support import guides
from tests.support.conda_project import CHANNEL
from tests.support.guides import Guide

TESTED = [
    pytest.param(guide, id=guide.name, marks=[getattr(pytest.mark, n) for n in guide.needs.split()])
    for guide in guides.tested()
]
NEEDED = {"conda": "conda_channel", "network": "tiny_lock", "torch": "torch_prefix"}
"""What a guide needs → the fixture that skips where it is missing."""
OF_HARDWARE = {
    "amd", "arc-laptop", "epyc", "mac", "old-repository", "pascal", "several-devices",
}  # fmt: skip
OF_PROJECTS = {
    "your-own-project", "mirrors", "from-elsewhere 1", "from-elsewhere 2", "from-elsewhere 3",
    "conda", "cuda-extension", "notebooks", "offline", "which-pytorch",
    "somebodys-repository 1", "somebodys-repository 2",
}  # fmt: skip
SHORT = {"arc-laptop", "epyc", "mac", "old-repository", "pascal"}
LONGEST = 110
"""Lines of a short guide: two screens, and its test."""
HONEST = "We ran these commands with `--target-host`, because we had no such machine."


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
    folder = tmp_path / "examples" / "project"
    (tmp_path / "tests").symlink_to(guides.FOLDER.parents[1] / "tests")
    guides.lay(guide, folder)
    variables = guides.environment(tmp_path / "home", session_environment)
    if guide.channel:
        channel = tmp_path / "channel"
        guides.lay_channel(guide, request.getfixturevalue("conda_python"), channel)
        variables[CHANNEL] = channel.as_uri()
    for step in guide.steps:
        guides.run(step, folder, variables)


def test_guides_are_tested_and_short() -> None:
    tested = guides.tested()
    assert {guide.name for guide in tested} >= OF_HARDWARE | OF_PROJECTS
    for guide in tested:
        assert guide.steps, guide.name
    for name in SHORT:
        assert len((guides.FOLDER / f"{name}.md").read_text().splitlines()) <= LONGEST, name


def test_guides_about_hardware_say_that_it_was_not_here() -> None:
    with_hosts = {
        guide.name.split()[0]
        for guide in guides.tested()
        if any("--target-host" in step.commands for step in guide.steps)
    }
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


GUIDE = """```yaml
# envbuilder.yaml
profiles: [cpu]
```

```sh
envbuilder lock
```

<!-- serves -->
```sh
envbuilder jupyter
```

```text
http://…
```

<!-- tested
project: script
writes: envbuilder.yaml
channel: ffmpeg=6 ninja=1.13
needs: conda
-->
"""


def test_what_a_guide_says_of_its_test(tmp_path: Path) -> None:
    path = tmp_path / "x.md"
    path.write_text(GUIDE)
    (guide,) = guides.read(path)
    assert guide.name == "x"
    assert guide.written == {"envbuilder.yaml": "profiles: [cpu]\n"}
    assert guide.channel == ("ffmpeg=6", "ninja=1.13")
    assert [(step.commands, step.serves) for step in guide.steps] == [
        ("envbuilder lock\n", False),
        ("envbuilder jupyter\n", True),
    ]


def test_parts_of_a_guide_have_projects_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "x.md"
    path.write_text(GUIDE + GUIDE.replace("project: script", "project: uv") + "The end.\n")
    assert [(guide.name, guide.project) for guide in guides.read(path)] == [
        ("x 1", "script"),
        ("x 2", "uv"),
    ]
    path.write_text("No test.\n")
    assert guides.read(path) == ()


def test_what_serves_must_print_a_link(tmp_path: Path) -> None:
    step = guides.Step(commands="echo ready\n", serves=True)
    with pytest.raises(AssertionError, match="prints no link that opens\n\nready"):
        guides.run(step, tmp_path, os.environ)
