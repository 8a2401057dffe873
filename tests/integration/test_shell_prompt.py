"""What real shells show at their prompt, and where they look for programs first."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import time
from pathlib import Path

import pytest

from envbuilder.commands import run
from tests.conftest import missing

NAME = "(envbuilder vision.cpu) "
_ESCAPES = re.compile(
    rb"\x1b(?:\[[0-9;?>=]*[A-Za-z]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[=>()][A-Z0-9]?)"
)
_SECONDS = 20
STARTUP = {
    "bash": (".bashrc", "PS1='mine> '\nPATH=/rc:$PATH\n"),
    "zsh": (".zshrc", "PROMPT='mine> '\npath=(/rc $path)\n"),
    "fish": (
        ".config/fish/config.fish",
        "function fish_prompt; printf 'mine> '; end\nset -gx PATH /rc $PATH\n",
    ),
    "dash": (".profile", ""),
}


def program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        missing(name, f"{name} is not installed")
    return path


class Terminal:
    """A shell on a terminal of its own."""

    def __init__(self, argv: tuple[str, ...], environ: dict[str, str]) -> None:
        self._shown = b""
        self._pid, self._descriptor = pty.fork()
        if self._pid == 0:
            os.execve(argv[0], argv, environ)

    def until(self, text: str) -> str:
        """Read until the text is shown; return everything that was shown up to it."""
        end = time.monotonic() + _SECONDS
        while text not in (shown := self._text()):
            assert time.monotonic() < end, f"{text!r} is not shown: {shown!r}"
            if select.select([self._descriptor], [], [], 0.1)[0]:
                try:
                    self._shown += os.read(self._descriptor, 1 << 16)
                except OSError:
                    pytest.fail(f"{text!r} was not shown before the end: {shown!r}")
        before, _, after = shown.partition(text)
        self._shown = after.encode()
        return before + text

    def _text(self) -> str:
        return _ESCAPES.sub(b"", self._shown).replace(b"\r", b"").decode(errors="replace")

    def type(self, line: str) -> None:
        os.write(self._descriptor, f"{line}\n".encode())

    def end(self) -> None:
        self.type("exit")
        end = time.monotonic() + _SECONDS
        while os.waitpid(self._pid, os.WNOHANG) == (0, 0):
            assert time.monotonic() < end, "the shell does not end"
            if select.select([self._descriptor], [], [], 0.05)[0]:
                try:
                    os.read(self._descriptor, 1 << 16)
                except OSError:  # the terminal's other side is closed
                    time.sleep(0.01)
        os.close(self._descriptor)


def environ(home: Path, **more: str) -> dict[str, str]:
    return {"HOME": str(home), "PATH": "/env/bin:/usr/bin:/bin", "TERM": "dumb", **more}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


def start(name: str, home: Path, prompt: str = NAME, **more: str) -> Terminal:
    """Start a shell with startup files that set its prompt, and put a folder first on PATH."""
    shell = program(name)
    file, text = STARTUP[name]
    (home / file).parent.mkdir(parents=True, exist_ok=True)
    if not (home / file).exists():
        (home / file).write_text(text)
    return Terminal(run.shell_command(shell, prompt), environ(home, **more))


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_the_users_own_prompt_follows_the_name_and_the_last_status_is_kept(
    name: str, home: Path
) -> None:
    terminal = start(name, home)
    terminal.until("mine> " if name == "fish" else f"{NAME}mine> ")
    terminal.type("echo PATH is $PATH")
    terminal.until("PATH is /env/bin")
    terminal.type("env | grep -e ENVBUILDER_ -e ZDOTDIR; echo the''end")
    assert "=" not in terminal.until("theend")
    terminal.until("mine> ")
    terminal.type("sh -c 'exit 7'")
    terminal.until("mine> ")
    terminal.type("echo it was $status" if name == "fish" else "echo it was $?")
    terminal.until("it was 7")
    terminal.end()


@pytest.mark.parametrize("name", ["bash", "zsh"])
def test_a_prompt_that_is_set_each_time(name: str, home: Path) -> None:
    hook = {
        "bash": "PROMPT_COMMAND='PS1=\"each> \";'\n",
        "zsh": "p() { PROMPT='each> ' }\nprecmd_functions+=(p)\n",
    }[name]
    (home / STARTUP[name][0]).write_text(hook)
    terminal = start(name, home)
    terminal.until("each> ")
    for _ in range(2):
        terminal.type("true")
        terminal.until(f"{NAME}each> ")
    terminal.end()


def test_zsh_finds_its_own_folder_of_startup_files(home: Path) -> None:
    (home / "dot").mkdir()
    (home / "dot/.zshrc").write_text("PROMPT='dotted> '\n")
    temporary = home / "tmp"
    temporary.mkdir()
    terminal = start("zsh", home, ZDOTDIR=str(home / "dot"), TMPDIR=str(temporary))
    terminal.until(f"{NAME}dotted> ")
    assert list(temporary.iterdir()) == [], "the folder of the start is removed"
    terminal.type("echo dots in $ZDOTDIR")
    terminal.until(f"dots in {home}/dot")
    terminal.end()


def test_a_plain_shell_has_a_prompt_of_its_own(home: Path) -> None:
    terminal = start("dash", home, PS1="(envbuilder other.cpu) $ ")
    shown = terminal.until("# " if os.getuid() == 0 else "$ ")
    assert shown.endswith(f"{NAME}# " if os.getuid() == 0 else f"{NAME}$ ")
    assert "other" not in shown
    terminal.end()


def test_sh_where_the_users_shell_is_missing(home: Path) -> None:
    terminal = Terminal(run.shell_command("/nowhere/zsh", NAME), environ(home))
    terminal.until(NAME)
    terminal.type("echo still here")
    terminal.until("still here")
    terminal.end()


@pytest.mark.parametrize("name", ["bash", "zsh", "fish", "dash"])
def test_no_name_leaves_the_prompt_alone(name: str, home: Path) -> None:
    terminal = start(name, home, prompt="", PS1="mine> ")
    assert "envbuilder" not in terminal.until("mine> ")
    terminal.end()
