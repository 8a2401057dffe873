"""The command line's contract: what goes where, and every exit code."""

from __future__ import annotations

import gc
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import click
import pytest

from envbuilder import __main__, cli
from envbuilder.builds import pipeline
from envbuilder.builds.backends import docker
from envbuilder.core import console
from envbuilder.core.errors import (
    BuildError,
    EnvbuilderError,
    HostError,
    InvalidError,
    ToolError,
    VerifyError,
)
from envbuilder.host import model as host, probe
from envbuilder.verify import start
from tests.support.command_line import FILE, Command

HERE = host.Host(os="linux", machine="x86_64", platform="linux/amd64")


@pytest.fixture(autouse=True)
def plain_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "host", lambda *args, **options: HERE)


def test_help_names_every_command(envbuilder: Command) -> None:
    shown = envbuilder("--help").out
    for name in cli.COMMANDS:
        assert f"\n  {name} " in shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_each_command_explains_itself(name: str, envbuilder: Command) -> None:
    shown = envbuilder(name, "--help").out
    assert max(map(len, shown.splitlines())) <= 100
    examples = re.findall(r"^    (?:source <\()?envbuilder (.*?)\)?$", shown, re.MULTILINE)
    assert len(examples) >= 2
    for example in examples:
        context = click.Context(cli.cli)
        words = shlex.split(example.partition(" > ")[0], comments=True)
        while isinstance(context.command, click.Group):
            used, command, words = context.command.resolve_command(context, words)
            assert command is not None, example
            context = click.Context(command, context, used, **command.context_settings)
        context.command.make_parser(context).parse_args(words)  # its options exist


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["biuld"], "Did you mean 'build'?"),
        (["build", "--profil", "cpu"], "--profil"),
        (["build", "--profile", "nope"], "unknown profile 'nope'"),
        (["build", "--profile", "zendn"], "Did you mean 'zendnn'?"),
        *((["build", "--profile", name], "unknown profile") for name in ("../cpu", "/etc/passwd")),
        (["build", "--profile", "mps", "--backend", "docker"], "no docker backend"),
        (["build", "--profile", "cpu", "--backend", "conda"], "lock --backend conda"),
        (["build", "--profile", "cpu", "--tag", "a b; c"], "not an image reference"),
        (["build", "--profile", "cpu", "--base-image", "$(id)"], "not an image reference"),
        (["build", "--profile", "xpu-ipex", "--backend", "venv"], "not locked"),
        (["render", "--profile", "mps", "--target", "dockerfile"], "no Dockerfile"),
        (["render", "--profile", "cpu", "--python-version", "3.9"], "no Python 3.9"),
        (["build", "--output", "a.tar", "--output", "oci:b"], "--output is given 2 times"),
        (["ci"], "Choose from:\n    github,\n"),
        (["-q", "profiles", "-v"], "--quiet and --verbose cannot be combined"),
        (["verify", "--epochs", "0"], "--epochs"),
        (["verify", "--python", "/does/not/exist"], "does not exist"),
    ],
)
def test_usage_is_2(arguments: list[str], said: str, envbuilder: Command) -> None:
    captured = envbuilder(*arguments, code=2)
    assert said in captured.err
    assert captured.out == ""
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    ("error", "code"),
    [(BuildError, 1), (InvalidError, 2), (HostError, 3), (ToolError, 4), (VerifyError, 5)],
)
def test_each_error_has_its_code(
    error: type[EnvbuilderError],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    envbuilder: Command,
) -> None:
    monkeypatch.setattr(
        pipeline, "prepare", Mock(side_effect=error("what happened", "what to do next"))
    )
    assert (
        envbuilder("build", "--profile", "cpu", code=code).err
        == "error: what happened\nwhat to do next\n"
    )
    envbuilder("run", "--profile", "cpu", "--", "true", code=125)


def test_interrupted_is_130(monkeypatch: pytest.MonkeyPatch, envbuilder: Command) -> None:
    monkeypatch.setattr(pipeline, "prepare", Mock(side_effect=KeyboardInterrupt))
    assert "interrupted" in envbuilder("build", "--profile", "cpu", code=130).err


def test_interrupted_before_anything_is_imported_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "main", Mock(side_effect=KeyboardInterrupt))
    monkeypatch.setattr(gc, "set_threshold", Mock())
    with pytest.raises(SystemExit, match="130"):
        __main__.main()


def test_a_defect_has_no_traceback_without_debug(
    monkeypatch: pytest.MonkeyPatch, envbuilder: Command
) -> None:
    monkeypatch.setattr(pipeline, "prepare", Mock(side_effect=ZeroDivisionError("oops")))
    shown = envbuilder("build", "--profile", "cpu", code=1).err
    assert "ZeroDivisionError: oops" in shown
    assert "Traceback" not in shown
    for words in (
        ["--debug", "build", "--profile", "cpu"],
        ["build", "--profile", "cpu", "--debug"],
    ):
        with pytest.raises(ZeroDivisionError):
            cli.main(words)
    # What follows `--` is the program's.
    envbuilder("run", "--profile", "cpu", "--", "python", "x.py", "--debug", code=125)


def test_no_gpu_is_3_before_anything_is_built(
    monkeypatch: pytest.MonkeyPatch, envbuilder: Command
) -> None:
    monkeypatch.setattr(pipeline, "finish", Mock(side_effect=AssertionError("must not be reached")))
    assert "NVIDIA" in envbuilder("verify", "--profile", "cuda", code=3).err
    envbuilder("run", "--profile", "cuda", "--", "true", code=125)
    assert "macos" in envbuilder("build", "--profile", "mps", code=3).err


def test_render_writes_only_over_its_own(tmp_path: Path, envbuilder: Command) -> None:
    folder = tmp_path / "image"
    envbuilder("render", "--profile", "cpu", "-o", str(folder))
    first = {p.name: p.read_bytes() for p in folder.iterdir()}
    assert set(first) == {"Dockerfile", "requirements.txt", "compile_bytecode.py", "payload.pyz"}
    envbuilder("render", "--profile", "cpu", "-o", str(folder))
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == first
    (folder / "Dockerfile").write_text("FROM mine\n")
    (folder / "requirements.txt").unlink()
    assert (
        "was not made by envbuilder"
        in envbuilder("render", "--profile", "cpu", "-o", str(folder), code=2).err
    )
    assert (folder / "Dockerfile").read_text() == "FROM mine\n"
    assert not (folder / "requirements.txt").exists()


def test_check_of_a_profile_says_fresh_and_stale(tmp_path: Path, envbuilder: Command) -> None:
    assert "fresh" in envbuilder("check", "cpu").out
    FILE.write_text("")
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles/mine.yaml").write_text(
        "extends: cpu\ndescription: Mine\nrequirements: ['torch==2.13.0+cpu', numpy]\n"
    )
    assert "no lock" in envbuilder("check", "mine", code=2).out
    assert "envbuilder lock --profile mine" in envbuilder("build", "--profile", "mine", code=2).err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "extends: cpu\ndescription: x\naccelerater: cpu\n",
            "mine.yaml:3: accelerater: unknown key\nDid you mean 'accelerator'?",
        ),
        ("extends: cpu\ndescription: x\npython: 3\n", "python: expected"),
        ("extends: cpu\ndescription: x\nrequirements: ['torch; rm']\n", "requirements"),
        ("extends: cpu\ndescription: x\nsystem_packages: ['curl; touch /x']\n", "system_packages"),
        ("extends: cpu\ndescription: x\nenvironment: {A: '$(id)'}\n", "environment"),
        ("extends: mine\ndescription: x\n", "cycle"),
        ("extends: nope\ndescription: x\n", "unknown profile"),
        ("a: [\n", "not valid YAML"),
        ("!!python/object/apply:os.system ['true']\n", "not valid YAML"),
    ],
)
def test_bad_profiles_are_2_with_the_place(
    tmp_path: Path, text: str, said: str, envbuilder: Command
) -> None:
    FILE.write_text("")
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles/mine.yaml").write_text(text)
    shown = envbuilder("build", "--profile", "mine", code=2).err
    assert said in shown
    assert "Traceback" not in shown


def test_completion_beside_a_broken_file_offers_nothing() -> None:
    from envbuilder.commands.options import _complete_environment, _complete_profile

    FILE.write_text("requirements: [")
    for complete in (_complete_environment, _complete_profile):
        assert complete(None, None, "") == []  # type: ignore[arg-type]


def test_completion_knows_the_profiles() -> None:
    from envbuilder.commands.options import _complete_profile

    assert "cpu-ipex" in _complete_profile(None, None, "cpu")  # type: ignore[arg-type]


# --- text and names of files are UTF-8, whatever the locale


@pytest.mark.parametrize(
    ("encoding", "options", "again"),
    [
        ("utf-8", {}, False),
        ("iso8859-9", {}, True),
        ("ascii", {}, True),
        # Once is enough; who says how it is to be has it so.
        ("iso8859-9", {"utf8": "0"}, False),
    ],
)
def test_it_starts_again_where_text_is_not_utf8(
    encoding: str, options: dict[str, str], again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda program, argv: started.append(argv))
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: encoding)
    monkeypatch.setattr(sys, "_xoptions", options)
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "envbuilder", "--version"])
    monkeypatch.setattr(sys, "argv", ["envbuilder", "--version"])
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit):
        cli.main()
    wanted = [sys.executable, "-X", "utf8", "-m", "envbuilder", "--version"]
    assert started == ([wanted] if again else [])


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(
    ("option", "reported"),
    [(None, ["a note"]), ("-q", []), ("--verbose", ["+ uv --version", "a note"])],
)
def test_how_much_is_reported(
    option: str | None,
    reported: list[str],
    before: bool,
    monkeypatch: pytest.MonkeyPatch,
    envbuilder: Command,
) -> None:
    def prepare(*arguments: Any, **options: Any) -> None:
        console.detail("uv --version")
        arguments[2].note("a note")
        raise BuildError("it failed", "Do this.")

    monkeypatch.setattr(pipeline, "prepare", prepare)
    given = [option] if option else []
    command = ["build", "--profile", "cpu"]
    arguments = command + given
    if before:
        arguments = given + command
    shown = envbuilder(*arguments, code=1)
    assert shown.out == ""
    assert shown.err.splitlines() == [*reported, "error: it failed", "Do this."]
    assert not console.VERBOSITY.quiet
    assert not console.VERBOSITY.verbose


def test_every_command_takes_the_global_options() -> None:
    for name in cli.COMMANDS:
        command = cli.cli.get_command(None, name)  # type: ignore[arg-type]
        below = command.commands.values() if isinstance(command, click.Group) else ()
        for one in (command, *below):
            given = [option for param in one.params for option in param.opts]
            assert len(given) == len({*given}), "none means two things"
            listed = [o for o in given if o in {"-q", "-v", "--verbose", "--debug"}]
            shorter = [] if "--volume" in given else ["-v"]
            assert sorted(listed) == sorted(["-q", "-v", "--verbose", "--debug"]), name
            assert one.params[-2].opts == [*shorter, "--verbose"], name


@pytest.mark.parametrize("backend", ["venv", "conda"])
@pytest.mark.parametrize(
    ("command", "option"),
    [
        *((name, "--base-image=x:1") for name in ("build", "verify")),
        *((name, "--volume=/tmp:/data") for name in ("run", "shell")),
    ],
)
def test_what_is_for_images_is_refused_without_one(
    command: str, backend: str, option: str, envbuilder: Command
) -> None:
    rest = ["--", "true"] if command == "run" else []
    code = 125 if command in cli.PASSES_CODE_THROUGH else 2
    shown = envbuilder(command, "--backend", backend, option, *rest, code=code).err
    name = option.partition("=")[0]
    assert f"{name} applies only to images, but the {backend} backend makes none" in shown
    assert "Add --backend docker" in shown
    assert ("see all folders at their usual paths" in shown) == (name == "--volume")


def test_a_base_image_from_a_variable_is_for_images_only(
    monkeypatch: pytest.MonkeyPatch, envbuilder: Command
) -> None:
    monkeypatch.setattr(pipeline, "prepare", Mock(side_effect=BuildError("reached")))
    monkeypatch.setenv("ENVBUILDER_BASE_IMAGE", "python:3.11")
    assert "reached" in envbuilder("build", "--backend", "venv", code=1).err


def test_an_interpreter_is_found_on_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, envbuilder: Command
) -> None:
    seen: list[Any] = []

    def prepare(request: Any, executable: Any, *rest: Any, **options: Any) -> None:
        seen.append(executable)
        raise BuildError("reached")

    (tmp_path / "mypython").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(start, "prepare", prepare)
    monkeypatch.chdir("/")
    envbuilder("verify", "--quick", "--python", "mypython", code=1)
    assert seen == [tmp_path / "mypython"]
    envbuilder("verify", "--quick", "--python", "nopython", code=2)


def test_modules_are_compiled_on_the_platform_of_the_image(
    envbuilder: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker, "own_platform", lambda: "linux/arm64")
    words = ("build", "--profile", "cpu", "--backend", "docker", "--builder", "layers")
    refused = envbuilder(*words, "--output", "oci:image", code=4).err
    assert "error: this machine cannot compile modules for linux/amd64\n" in refused
    assert "bytecode: false in the profile" in refused
