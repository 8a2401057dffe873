"""Man pages and completions as the programs that read them see them."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from tests.conftest import missing, ran, succeeded

COMPLETE = """\
source {file}
COMP_WORDS=({words} '') COMP_CWORD={number}
_envbuilder 2>/dev/null
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        missing(name, f"{name} is not installed")
    return found


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("envbuilder", {"detect", "verify", "--version"}),
        ("envbuilder build --backend", {"docker", "venv", "conda"}),
        ("envbuilder build --backend =", {"docker", "venv", "conda"}),
    ],
)
def test_bash_completes_without_a_process(
    repository: Path, line: str, offered: set[str], tmp_path: Path
) -> None:
    script = COMPLETE.format(
        file=shlex.quote(str(repository / "share/bash-completion/completions/envbuilder")),
        words=line,
        number=len(line.split()),
    )
    # No program can be found, envbuilder least of all.
    done = ran([program("bash"), "--norc", "-c", script], env={"PATH": str(tmp_path)})
    assert (done.returncode, done.stderr) == (0, "")
    assert offered <= set(done.stdout.split())


def test_bash_asks_envbuilder_for_profiles(repository: Path, tmp_path: Path) -> None:
    file = repository / "share/bash-completion/completions/envbuilder"
    stub = tmp_path / "envbuilder"
    stub.write_text("#!/bin/sh\nprintf 'plain,cpu\\nplain,mine\\n'\n")
    stub.chmod(0o755)
    words = "envbuilder verify --profile"
    script = COMPLETE.format(file=shlex.quote(str(file)), words=words, number=3)
    done = ran([program("bash"), "--norc", "-c", script], env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert done.stdout.split() == ["cpu", "mine"]


@pytest.mark.parametrize(
    ("shell", "file"),
    [
        ("bash", "bash-completion/completions/envbuilder"),
        ("zsh", "zsh/site-functions/_envbuilder"),
        ("fish", "fish/vendor_completions.d/envbuilder.fish"),
    ],
)
def test_every_shell_parses_its_file(repository: Path, shell: str, file: str) -> None:
    command = [program(shell), "-n", str(repository / "share" / file)]
    done = ran(command)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "command", [("mandoc", "-Tlint", "-Wwarning"), ("groff", "-man", "-ww", "-Tutf8")], ids=" ".join
)
def test_man_pages_have_no_faults(repository: Path, command: tuple[str, ...]) -> None:
    pages = sorted(map(str, (repository / "share/man/man1").iterdir()))
    done = succeeded(ran([program(command[0]), *command[1:], *pages]))
    assert done.stderr == ""
