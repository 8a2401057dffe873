"""Containers that podman cannot start."""

from __future__ import annotations

import pytest

from envbuilder.containers.engine import podman_run
from envbuilder.core.errors import ToolError, VerifyError


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all", ToolError),
        ("Error: stat /dev/dri: no such file or directory", ToolError),
        ("Error: x: image not known", VerifyError),
    ],
)
def test_what_podman_cannot_start_is_told(text: str, kind: type[Exception]) -> None:
    assert isinstance(podman_run.not_started(text), kind)
