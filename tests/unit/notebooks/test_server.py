"""The command that serves JupyterLab."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from envbuilder.build.request import Request
from envbuilder.core.errors import InvalidError
from envbuilder.notebooks import kernel_spec, server
from envbuilder.notebooks.kernel_spec import Choice

if TYPE_CHECKING:
    from envbuilder.core.settings import Settings

CHOICE = Choice(project=Path("/project"), environment="default", request=Request())


def test_jupyterlab_runs_isolated_with_folders_of_envbuilders(found: Settings) -> None:
    served = server.Server(
        folder="/project",
        port=0,
        browser=False,
        kernel=kernel_spec.spec(CHOICE, "7.4.0", {}),
        shell=CHOICE.command("shell"),
    )
    argv, variables = server.command(Path("/lab"), served, ["--ip", "::1"], found)
    assert argv[:2] == ("/lab/bin/python", "-I")
    assert Path(argv[2]).is_file()
    assert argv[4:] == ("--ip", "::1")
    given = json.loads(argv[3])
    assert given["kernel"]["argv"][-1] == "{connection_file}"
    assert given["shell"][-3:] == ["shell", "--environment", "default"]
    assert {Path(value).parent for value in variables.values() if value} == {
        found.config_dir,
        found.data_dir,
    }


def test_extensions_that_others_can_write_are_refused(found: Settings) -> None:
    """The configuration folder was judged as a whole when the settings were read."""
    served = server.Server(
        folder="/", port=0, browser=False, kernel=kernel_spec.spec(CHOICE, "7", {}), shell=()
    )
    extensions = found.data_dir / "jupyter" / "nbextensions"
    extensions.mkdir(parents=True)
    server.command(Path("/lab"), served, [], found)
    extensions.chmod(0o777)
    with pytest.raises(InvalidError, match="nbextensions can be written by every user"):
        server.command(Path("/lab"), served, [], found)


@pytest.mark.parametrize(
    ("environ", "system", "expected"),
    [
        ({}, "linux", False),
        ({"DISPLAY": ""}, "linux", False),
        ({"DISPLAY": ":0"}, "linux", True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, "linux", True),
        ({}, "darwin", True),
    ],
)
def test_a_browser_opens_where_there_is_a_display(
    environ: dict[str, str], system: str, expected: bool
) -> None:
    assert server.has_display(environ, system) is expected
