"""What `run` does before the command, and what it prints: what is being built, or one line."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from envbuilder import cli
from envbuilder.builds import pipeline
from envbuilder.builds.backends import integrity
from envbuilder.builds.request import Request
from envbuilder.commands import run as run_module
from envbuilder.commands.run import _Brief, _is_free, shell_command
from envbuilder.containers.engine.container import Port
from envbuilder.core import process
from envbuilder.core.console import PlainProgress
from envbuilder.core.settings import Settings, load as load_settings
from envbuilder.host import interpreters, model, probe
from envbuilder.locks import resolve, target_wheels
from envbuilder.locks.chooser import Chooser
from envbuilder.profiles import lock as profile_lock
from envbuilder.profiles.lock import Reason
from envbuilder.profiles.profile import Profile
from tests.support.command_line import FILE, Command
from tests.support.projects import LOCK, lay_locked

RUN = ("run", "--profile", "cpu", "--backend", "venv")
NOTES = ("profile cpu: it fits", "backend venv: no engine answers", "note: slow", "warning: busy")


@pytest.fixture
def printed() -> list[str]:
    return []


@pytest.fixture
def brief(printed: list[str]) -> _Brief:
    progress = _Brief(PlainProgress(printed.append))
    for note in NOTES:
        progress.note(note)
    return progress


def test_one_line_and_warnings_if_there_is_nothing_to_do(brief: _Brief, printed: list[str]) -> None:
    assert printed == []
    brief.release(briefly=True)
    assert printed == ["profile cpu: it fits", "warning: busy"]
    brief.note("warning: PYTHONPATH is set")
    assert printed[-1] == "warning: PYTHONPATH is set"


def test_everything_once_there_is_work(brief: _Brief, printed: list[str]) -> None:
    with brief.task("install"):
        brief.note("note: it takes long")
    brief.release(briefly=True)
    assert printed == [*NOTES, "· install", "note: it takes long"]


def test_everything_if_it_fails(brief: _Brief, printed: list[str]) -> None:
    brief.release()
    assert printed == [*NOTES]


def test_a_stated_port_that_is_in_use_stays_closed(printed: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as used, socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        busy, free = (Port(outside=s.getsockname()[1], inside=1) for s in (used, other))
        other.close()
        assert _is_free(free, printed.append)
        assert printed == []
        assert not _is_free(busy, printed.append)
    assert printed == [
        (
            f"warning: port {busy.outside} is in use on this machine, so it is not"
            " forwarded to the container"
        )
    ]


class ReplacedError(BaseException):
    """The command would run now."""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """How often the only Python of this machine was run; no unit test can start a program."""
    python = tmp_path / "bin/python3.11"
    python.parent.mkdir()
    python.touch(mode=0o755)
    values = {"version": "3.11.7", "final": True, "bits": 64, "implementation": "cpython"}
    values |= {"machine": "x86_64", "free_threaded": False, "executable": str(python)}
    values |= {"prefix": str(tmp_path), "base_prefix": str(tmp_path)}
    runs = list[str]()

    def answer(argv: list[str], **options: Any) -> process.Completed:
        runs.append(Path(argv[0]).name)
        out = json.dumps(values)
        return process.Completed(argv=tuple(argv), returncode=0, stdout=out, stderr="", seconds=0)

    def replace(argv: list[str], env: dict[str, str]) -> None:
        raise ReplacedError(argv, env)

    monkeypatch.setattr(sys, "executable", "")
    monkeypatch.setenv("PATH", f"{python.parent}:/usr/bin:/bin")
    monkeypatch.setitem(interpreters.find.__kwdefaults__, "runner", answer)
    monkeypatch.setattr(process, "exec_program", replace)
    return runs


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, asked: list[str]) -> Callable[[str], dict[str, str]]:
    """`envbuilder run` of a command in an environment that exists; return the variables."""
    host = model.Host(
        os="linux",
        machine="x86_64",
        platform="linux/amd64",
        libc="glibc 2.39",
        cpu=model.Cpu(flags=("avx2",), threads=2),
    )
    monkeypatch.setattr(probe, "host", lambda *args, **options: host)
    request = Request(profile="cpu", backend="venv", dry_run=True)
    progress = PlainProgress(lambda line: None)
    product = pipeline.prepare(request, load_settings(), progress, running=True).product
    asked.clear()
    prefix = Path(product.plan.artifact.ref)
    prefix.mkdir(parents=True)
    integrity.close(prefix, {"fingerprint": product.plan.fingerprint})

    def command(*argv: str) -> dict[str, str]:
        with pytest.raises(ReplacedError) as replaced:
            cli.main([*RUN, "--", *argv])
        variables: dict[str, str] = replaced.value.args[1]
        return variables

    return command


def test_a_second_run_starts_no_other_program(
    run: Callable[[str], dict[str, str]], asked: list[str]
) -> None:
    first = run("true")
    assert asked == ["python3.11"]
    assert run("true") == first
    assert asked == ["python3.11"]


def test_a_rebuild_asks_the_interpreter_again(
    run: Callable[[str], dict[str, str]], asked: list[str]
) -> None:
    prefix = Path(run("true")["VIRTUAL_ENV"])
    (prefix / integrity.MARKER).unlink()
    settings = load_settings()
    progress = PlainProgress(lambda line: None)
    for rebuild in (False, True):
        request = Request(profile="cpu", backend="venv", rebuild=rebuild)
        pipeline.prepare(request, settings, progress, running=True)
    assert asked == ["python3.11"] * 2


def test_an_installer_in_a_project_is_refused_before_anything_is_built(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run: Callable[[str], dict[str, str]],
    envbuilder: Command,
) -> None:
    lay_locked(tmp_path, monkeypatch)
    monkeypatch.setattr(pipeline, "finish", lambda *_: pytest.fail("built"))
    for project, words in ((True, "envbuilder add scipy"), (False, "add_requirements")):
        if not project:
            FILE.unlink()
        assert words in envbuilder(*RUN, "--", "pip", "install", "scipy", code=125).err


@pytest.fixture
def resolved(
    run: Callable[[str], dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """A project for three profiles and with two environments; collects what is locked.

    A package named `never` cannot be had.
    """
    names: list[str] = []

    def resolve_profile(profile: Profile, *_: Any, **__: Any) -> profile_lock.Lock:
        names.append(profile.name)
        inputs = profile_lock.inputs_digest(profile)
        if "never" in profile.requirements:
            return replace(
                profile_lock.nothing(profile), state="unlocked", obstacle=Reason(text="no never")
            )
        targets = tuple(t for t in LOCK.targets if t.python == "3.11")
        return replace(LOCK, inputs=inputs, targets=targets)

    monkeypatch.setattr(resolve, "resolve", resolve_profile)
    monkeypatch.setattr(target_wheels.Hashes, "__call__", lambda _, build: build.pythons)
    monkeypatch.setattr(Chooser, "alternatives", lambda *_: ())
    monkeypatch.setattr(pipeline, "finish", lambda build: pytest.fail("built"))
    monkeypatch.delenv("CI", raising=False)
    lay_locked(tmp_path, monkeypatch)
    (tmp_path / "envbuilder.lock/default.cpu.json").unlink()
    FILE.write_text(
        "profiles: [cpu, cuda, mps]\npython: '3.11'\nenvironments: {test: {requirements: [b]}}\n"
    )
    return names


def locks(project: Path) -> list[str]:
    return sorted(path.name for path in project.glob("envbuilder.lock/*"))


BUILT = pytest.raises(pytest.fail.Exception, match="built")


@pytest.mark.parametrize("ci", [None, "", "0", "false"])
@pytest.mark.parametrize("environment", ["default", "test"])
def test_what_is_not_locked_is_locked_for_this_host(
    resolved: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ci: str | None,
    environment: str,
) -> None:
    if ci is not None:
        monkeypatch.setenv("CI", ci)
    with BUILT:
        cli.main([*RUN, "--environment", environment, "--", "true"])
    assert (resolved, locks(tmp_path)) == (["cpu"], [f"{environment}.cpu.json"])
    printed = capsys.readouterr()
    line = "profile 'cpu' has no lock: locking it now (`envbuilder lock` locks all profiles)\n"
    assert printed.err.count(line) == 1
    assert printed.out == ""
    with BUILT:
        cli.main([*RUN, "--locked", "--environment", environment, "--", "true"])
    assert resolved == ["cpu"]


def test_a_script_that_states_its_requirements_needs_no_project(
    resolved: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FILE.unlink()
    block = "# /// script\n# requires-python = '==3.11.*'\n# dependencies = ['einops']\n# ///\n"
    (tmp_path / "train.py").write_text(block)
    words: list[tuple[str, ...]] = []
    enter = run_module.enter

    def entered(settings: Settings, request: Request, argv: Any, given: Any) -> int:
        words.append(argv(""))
        return enter(settings, request, argv, given)

    monkeypatch.setattr(run_module, "enter", entered)
    with BUILT:
        cli.main([*RUN, "train.py", "--epochs", "1"])
    assert words == [("python", "train.py", "--epochs", "1")]
    assert resolved == ["cpu"]
    assert locks(tmp_path) == ["train-py.cpu.json"]


@pytest.mark.parametrize("lock", ["missing", "stale"])
@pytest.mark.parametrize("why", ["CI", "--locked", "signatures", "never"])
def test_a_lock_that_may_not_or_cannot_be_made(
    resolved: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    envbuilder: Command,
    lock: str,
    why: str,
) -> None:
    if lock == "stale":
        with BUILT:
            cli.main([*RUN, "--", "true"])
        FILE.write_text(f"requirements: [a]\n{FILE.read_text()}")
    if why == "CI":
        monkeypatch.setenv("CI", "true")
    elif why == "signatures":
        FILE.write_text(f"signatures: {{locks: [team.pem]}}\n{FILE.read_text()}")
    elif why == "never":
        stale = "requirements: [a]\n"
        FILE.write_text(f"requirements: [never]\n{FILE.read_text().removeprefix(stale)}")
    before = {name: (tmp_path / "envbuilder.lock" / name).read_bytes() for name in locks(tmp_path)}
    resolved.clear()
    options = ("--locked",) if why == "--locked" else ()
    printed = envbuilder(*RUN, *options, "--", "true", code=125).err
    if why == "never":
        assert "default.cpu cannot be locked: no never" in printed
    else:
        assert resolved == []
        assert "Run:\n  envbuilder lock\n" in printed
        assert ("is stale" if lock == "stale" else "has no lock") in printed
    assert {n: (tmp_path / "envbuilder.lock" / n).read_bytes() for n in locks(tmp_path)} == before


def test_a_stale_lock_is_made_again_before_an_installer_is_not(
    resolved: list[str], capsys: pytest.CaptureFixture[str], envbuilder: Command
) -> None:
    printed = envbuilder(*RUN, "--", "pip", "install", "scipy", code=125).err
    assert "envbuilder add scipy" in printed
    assert resolved == []
    for requirements in ("[a]", "[a, b]"):
        FILE.write_text(f"requirements: {requirements}\nprofiles: [cpu]\n")
        with BUILT:
            cli.main([*RUN, "--", "true"])
    assert resolved == ["cpu", "cpu"]
    assert "is stale: the project or the profile changed after it was made: locking it now" in (
        capsys.readouterr().err
    )


NAME = "(envbuilder default.cpu) "


@pytest.mark.parametrize("shell", ["/bin/bash", "/usr/bin/zsh", "/usr/bin/fish", "/bin/sh", "nu"])
def test_shell_and_prompt_are_arguments(shell: str) -> None:
    program, option, script, zero, first = shell_command(shell, NAME)
    assert (program, option, zero, first) == ("/bin/sh", "-c", shell, NAME)
    assert NAME not in script
    assert script.startswith('if [ -x "$0" ]')
    assert script.endswith("exec /bin/sh -i\n")


def test_each_known_shell_has_its_own_start() -> None:
    scripts = {shell_command(s, NAME)[2] for s in ("bash", "zsh", "fish", "sh", "ksh")}
    assert len(scripts) == 4


@pytest.mark.parametrize("shell", ["/bin/ba;touch x;sh", "/bin/$(touch x)", "'", "", "-i"])
def test_a_strange_shell_is_only_an_argument(shell: str) -> None:
    assert shell_command(shell, NAME)[2] == shell_command("sh", NAME)[2]


@pytest.mark.parametrize(
    ("content", "mode", "code", "said"),
    [
        (None, 0, 127, "./train.sh: no such file"),
        ("#!/bin/sh\n", 0o644, 126, "./train.sh: the file is not executable"),
        ("import torch\n", 0o755, 126, "./train.sh: cannot be executed: it does not begin with #!"),
    ],
)
@pytest.mark.parametrize("command", ["run", "watch"])
def test_a_command_that_cannot_start_is_refused_before_anything_is_built(
    command: str,
    content: str | None,
    mode: int,
    code: int,
    said: str,
    tmp_path: Path,
    envbuilder: Command,
) -> None:
    if content is not None:
        (tmp_path / "train.sh").write_text(content)
        (tmp_path / "train.sh").chmod(mode)
    printed = envbuilder(command, "--profile", "cpu", "--", "./train.sh", code=code).err
    assert said.removeprefix("./") in printed


@pytest.mark.parametrize("command", ["run", "watch"])
def test_a_misspelt_option_is_no_program(command: str, envbuilder: Command) -> None:
    assert (
        "No such option '--profil'. Did you mean '--profile'?"
        in envbuilder(command, "--profil", "cpu", "--", "true", code=125).err
    )
