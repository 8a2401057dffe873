"""Output of containers comes in lines, in bounded memory."""

from __future__ import annotations

import pytest
from docker.errors import APIError

from envbuilder.containers.engine import docker_run
from envbuilder.core import process
from envbuilder.core.errors import ToolError, VerifyError


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("CDI device injection failed: unresolvable CDI devices amd.com/gpu=all", ToolError),
        ('could not select device driver "cdi" with capabilities: []', ToolError),
        (
            'error gathering device information while adding custom device "/dev/kfd"',
            ToolError,
        ),
        ("nvidia-container-cli: initialization error: nvml error", ToolError),
        ("no such image", VerifyError),
        ('exec: "python": executable file not found in $PATH', VerifyError),
        ("exec: permission denied", VerifyError),
    ],
)
def test_a_device_that_docker_cannot_give_is_4(text: str, kind: type[Exception]) -> None:
    assert isinstance(docker_run._not_started(APIError(text)), kind)


def test_lines_come_whole_whatever_the_pieces() -> None:
    seen: list[str] = []
    lines = docker_run._Lines(seen.append)
    for piece in (b"on", b"e\ntw", b"o\n", b"", b"\xffthree"):
        lines.feed(piece)
    lines.end()
    assert seen == ["one", "two", "\ufffdthree"]


def test_a_long_line_costs_time_and_memory_in_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "KEPT_BYTES", 1000)
    seen: list[str] = []
    lines = docker_run._Lines(seen.append)
    for _ in range(50_000):
        lines.feed(b"x" * 1000)
    lines.feed(b"\nend")
    lines.end()
    # In pieces that are no longer than a line may be, give or take what came at once.
    assert max(map(len, seen)) < process.LONGEST_LINE + 1000
    assert sum(map(len, seen)) == 50_000_003
    assert seen[-1] == "end"
    assert len(lines.text) <= 2000
    assert lines.text.endswith("\nend")
