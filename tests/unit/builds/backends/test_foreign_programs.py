"""Programs of another Python are refused by name; the environment's own and others run."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from envbuilder.builds.access import Access
from envbuilder.builds.backends import foreign_programs as foreign
from envbuilder.builds.backends.venv import NativeEnvironment
from envbuilder.core import process
from envbuilder.core.errors import EnvbuilderError, ToolError
from tests.support.recorded import replaced
from tests.support.shipped import shipped_profile


def lay(folder: Path, name: str, head: bytes = b"\x7fELF") -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(head)
    path.chmod(0o755)
    return str(path)


def refused(argv: list[str], path: str | None, *folders: Path) -> ToolError | None:
    try:
        foreign.require_own(argv, path, folders, "cpu")
    except ToolError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("name", "target", "hint"),
    [
        ("pip3.11", "pip3.11", "add_requirements"),
        ("conda", "conda", "add_requirements"),
        ("uvx", "uvx", "add_requirements"),
        ("easy_install-3.11", "easy_install-3.11", "add_requirements"),
        ("torchrun", "torchrun", "add_requirements"),
        ("pip", "mise", "add_requirements"),
        ("install-it", "pip3", "add_requirements"),
        ("pypy3", "pypy3", "python: in"),
        ("py", "python3.13t", "python: in"),
        ("pipewire", "pipewire", ""),
        ("python3-config", "python3-config", ""),
        ("gcc", "x86_64-linux-gnu-gcc-12", ""),
    ],
)
def test_programs_are_refused_by_name(name: str, target: str, hint: str, tmp_path: Path) -> None:
    real = lay(tmp_path / "else", target)
    path = tmp_path / "else" / name
    if name != target:
        path.symlink_to(real)
    error = refused([name], str(path), tmp_path / "bin")
    assert (error is None) == (not hint)
    if error:
        assert error.message.startswith(f"{name} is not in this environment: the one on PATH is")
        assert str(path) in error.message
        assert hint in error.hint
    # The environment's own may run, and so may one that is named by its path.
    assert refused([name], str(path), tmp_path / "bin", tmp_path / "else") is None
    assert refused([str(path), "install", "x"], str(path)) is None


@pytest.mark.parametrize(
    ("argv", "command"),
    [
        (["pip3", "-q", "--proxy", "http://x", "uninstall", "-y", "x"], "pip3 uninstall"),
        (["python", "-m", "pip", "install", "x"], "pip install"),
        (["python3.11", "-X", "dev", "-I", "-mpip", "install"], "pip install"),
        (["uv", "pip", "sync", "x"], "uv sync"),
        (["conda", "env", "create"], "conda create"),
        (["python", "-m", "pip", "--version"], ""),
        (["python", "train.py", "-m", "pip", "install"], ""),
        (["python", "-c", "x", "-m", "pip", "install"], ""),
        (["python", "-X"], ""),
        (["npm", "install"], ""),
    ],
)
def test_commands_that_change_an_environment_are_refused_in_it(
    argv: list[str], command: str
) -> None:
    assert foreign.changing_command(argv) == command
    error = refused(argv, f"/env/bin/{argv[0]}", Path("/env/bin"))
    assert (error.message if error else "") == (
        f"{command} would change this environment" if command else ""
    )


def test_advice_names_the_key_the_file_and_the_command() -> None:
    shipped, mine = ("\n".join(map(str, foreign.advice(name))) for name in ("cpu", "of-mine"))
    for text in (shipped, mine):
        assert "Changes made by hand would be lost and fail verification." in text
        assert "to a project: envbuilder add NAME\n" in text
    assert "add_requirements: in profiles/mine.yaml, a profile of yours that extends cpu" in shipped
    assert shipped.endswith("envbuilder lock --profile mine")
    assert "in profiles/of-mine.yaml" in mine
    assert mine.endswith("envbuilder lock --profile of-mine")


@pytest.mark.parametrize(
    ("argv", "packages"),
    [
        (["python", "-m", "pip", "install", "scipy", "rich>=13"], "scipy 'rich>=13'"),
        (["uv", "pip", "install", "torch[optree]"], "'torch[optree]'"),
        (["pip", "uninstall", "rich"], "rich"),
        (["pip", "install", "-r", "requirements.txt"], "NAME"),
        (["pip", "install", "git+https://host/x"], "NAME"),
        (["pip", "list"], None),
        (["/usr/bin/pip", "install", "scipy"], None),
        (["python", "train.py", "install"], None),
    ],
)
def test_an_installer_is_refused_before_anything_is_built(
    argv: list[str], packages: str | None
) -> None:
    if packages is None:
        foreign.require_unchanged(argv, "cpu", of_project=True)
        return
    with pytest.raises(ToolError, match="would change the environment") as caught:
        foreign.require_unchanged(argv, "cpu", of_project=True)
    way = "remove" if "uninstall" in argv else "add"
    assert caught.value.hint.endswith(
        f" To change the project's packages: envbuilder {way} {packages}"
    )
    with pytest.raises(ToolError) as caught:
        foreign.require_unchanged(argv, "cpu", of_project=False)
    assert "add_requirements" in caught.value.hint


@pytest.mark.parametrize(
    ("argv", "locked", "message"),
    [
        (
            ["pip", "install", "x"],
            (),
            "the result of pip install would be lost when the container ends",
        ),
        (["python", "-m", "pip", "install", "x"], ("pip",), "would be lost"),
        (["pip", "list"], (), "pip is not in this environment"),
        (["pip3.11", "list"], ("pip",), ""),
        (["python", "train.py"], (), ""),
        (["/usr/local/bin/pip", "list"], (), ""),
    ],
)
def test_installers_of_an_image_are_refused(
    argv: list[str], locked: tuple[str, ...], message: str
) -> None:
    if not message:
        foreign.require_lasting(argv, locked, "cpu")
        return
    with pytest.raises(ToolError, match=message) as caught:
        foreign.require_lasting(argv, locked, "cpu")
    assert "add_requirements" in caught.value.hint


# --- where commands are started


class Native(NativeEnvironment):
    """An environment in a folder, of which only the programs matter."""

    def __init__(self, prefix: Path) -> None:
        self.prefix = prefix
        self.device_variables = {}
        self._hold = None
        self.profile = shipped_profile("cpu")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The command lines and variables of the programs that replaced this process."""
    return replaced(monkeypatch, process, "exec_program", None).calls


@pytest.mark.parametrize(
    ("name", "runs"),
    [("pip", False), ("jupyter", False), ("make", True), ("python", True)],
)
def test_a_native_environment_starts_no_program_of_another_python(
    name: str, runs: bool, tmp_path: Path, started: list[Any]
) -> None:
    own = lay(tmp_path / "env/bin", "python")
    path = lay(tmp_path / "elsewhere", name)
    environment = Native(tmp_path / "env")
    environ = {**os.environ, "PATH": str(tmp_path / "elsewhere")}
    if runs:
        environment.become([name, "x"], environ)
        program = own if name == "python" else path
    else:
        with pytest.raises(ToolError, match=f"{name} is not in this environment"):
            environment.become([name, "x"], environ)
        environment.become([path, "x"], environ)
        program = path
    ((argv, _),) = started
    assert argv == [program, "x"]


@pytest.mark.parametrize(
    ("value", "expected"), [("x.so", "{}/lib/envbuilder/libtcmalloc_minimal.so.4:x.so"), ("", "")]
)
def test_a_native_command_preloads_after_the_profile(
    tmp_path: Path, started: list[Any], value: str, expected: str
) -> None:
    lay(tmp_path / "bin", "python")
    for access in (Access(variables={"LD_PRELOAD": value}), Access(passed=("LD_PRELOAD",))):
        Native(tmp_path).become(["python"], {"PATH": "", "LD_PRELOAD": value}, access)
    assert [env["LD_PRELOAD"] for _, env in started] == [expected.format(tmp_path)] * 2


def test_a_native_command_imports_from_the_project_first(
    tmp_path: Path, started: list[Any]
) -> None:
    lay(tmp_path / "bin", "python")
    given = Access(python_path=(tmp_path / "src", tmp_path / "lib"))
    Native(tmp_path).become(["python"], {"PATH": "", "PYTHONPATH": "/mine"}, given)
    ((_, variables),) = started
    assert variables["PYTHONPATH"] == f"{tmp_path}/src:{tmp_path}/lib:/mine"


@pytest.mark.parametrize("name", ["tool", "accelerate"])
def test_a_command_of_the_project_is_found_after_the_environments(
    tmp_path: Path, started: list[Any], name: str
) -> None:
    own = lay(tmp_path / "bin", "python")
    lay(tmp_path / "elsewhere", name)
    command = lay(tmp_path / "own", name)
    lay(tmp_path / "own", "python")
    given = Access(programs=(tmp_path / "own",))
    for word, expected in ((name, command), ("python", own)):
        Native(tmp_path).become([word], {"PATH": str(tmp_path / "elsewhere")}, given)
        argv, variables = started.pop()
        assert argv[0] == expected
        refused = f"{tmp_path}/{foreign.FOLDER}"
        assert variables["PATH"] == f"{tmp_path}/bin:{refused}:{tmp_path}/own:{tmp_path}/elsewhere"


def test_an_installer_that_is_nowhere_is_explained_too(tmp_path: Path) -> None:
    lay(tmp_path / "bin", "python")
    with pytest.raises(ToolError) as caught:
        Native(tmp_path).become(["pip", "install", "x"], {"PATH": ""})
    assert caught.value.message == "pip is not in this environment"
    assert "add_requirements" in caught.value.hint
    with pytest.raises(EnvbuilderError, match="nothing: not found in the environment"):
        Native(tmp_path).become(["nothing"], {"PATH": ""})


# --- and what a shell or a script in the environment finds


@pytest.mark.parametrize("profile", ["cpu", "of-mine"])
def test_the_programs_that_refuse_are_one_quoted_script(profile: str) -> None:
    text = foreign.stub(profile)
    assert text.startswith("#!/bin/sh\n")
    words = shlex.split(text, comments=True)
    assert words[0] == "printf"
    for hint in foreign.advice(profile):
        assert hint.command_line() in text
    assert words[-2:] == ["exit", "125"]
    assert {"pip", "pip3", "conda", "mamba", "uv"} <= set(foreign.REFUSED)


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("#!/usr/bin/python3\n", False),
        ("#!/opt/tools/bin/python3.11 -I\n", False),
        ("#!/bin/sh\n'''exec' \"/long path/bin/python\" \"$0\" \"$@\"\n' '''\n", False),
        ("#!/usr/bin/env python3\n", True),  # the first one on PATH is the environment's
        ("#!{}/env/bin/python\n", True),
        ("#!/bin/sh\nexec /usr/bin/python3 x.py\n", True),
        ("\x7fELF", True),
    ],
)
def test_a_script_of_another_python_is_refused_whatever_its_name(
    text: str, runs: bool, tmp_path: Path, started: list[Any]
) -> None:
    script = lay(tmp_path / "elsewhere", "pytest")
    Path(script).write_text(text.format(tmp_path))
    environment = Native(tmp_path / "env")
    environ = {"PATH": str(tmp_path / "elsewhere")}
    if not runs:
        with pytest.raises(ToolError, match="a script that runs another Python") as caught:
            environment.become(["pytest"], environ)
        assert f"give its path: {script}" in caught.value.hint
        environment.become([script], environ)
    else:
        environment.become(["pytest"], environ)
    assert started == [([script], ANY)]
