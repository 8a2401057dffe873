"""Standard streams and working folders as shells leave them: an exit code and a sentence each."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import exited, ran, succeeded

PROGRAM = f"{shlex.quote(sys.executable)} -m envbuilder"
PRINTING = [
    "--help",
    "profiles",
    "profiles --json",
    "detect",
    "sbom --profile cpu",
    "render --profile cpu --target requirements",
    "build --profile cpu --backend venv --dry-run",
]


def shell(
    script: str, environment: dict[str, str], folder: Path
) -> subprocess.CompletedProcess[str]:
    return ran(
        ["bash", "-o", "pipefail", "-c", script],
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), **environment},
        cwd=folder,
        timeout=120,
    )


def plain(done: subprocess.CompletedProcess[str]) -> bool:
    return not any(t in done.stderr for t in ("Traceback", "defect", "Exception ignored"))


@pytest.mark.parametrize("command", PRINTING)
@pytest.mark.parametrize(
    ("where", "why"),
    [("> /dev/full", "No space left on device"), (">&-", "it is closed")],
)
def test_results_that_are_lost_are_an_error(
    command: str, where: str, why: str, session_environment: dict[str, str], tmp_path: Path
) -> None:
    if "/dev/full" in where and not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    done = exited(1, shell(f"{PROGRAM} {command} {where}", session_environment, tmp_path))
    assert f"error: cannot write to standard output: {why}" in done.stderr
    assert plain(done)


@pytest.mark.parametrize("command", PRINTING)
def test_a_reader_that_has_gone_ends_it_quietly(
    command: str, session_environment: dict[str, str], tmp_path: Path
) -> None:
    script = f"{PROGRAM} {command} | python3 -c 'import os; os.close(0)'; echo ${{PIPESTATUS[0]}}"
    done = shell(
        script.replace("python3", shlex.quote(sys.executable)), session_environment, tmp_path
    )
    # Where it printed before the reader had gone, it ended well.
    assert done.stdout.strip() in {"141", "0"}, done.stderr
    assert "error" not in done.stderr
    assert plain(done)


@pytest.mark.parametrize("where", ["2> /dev/full", "2>&-", "<&-", "<&- 2>&-"])
def test_messages_and_input_may_be_missing(
    where: str, session_environment: dict[str, str], tmp_path: Path
) -> None:
    done = succeeded(shell(f"{PROGRAM} profiles --json {where}", session_environment, tmp_path))
    assert '"schema"' in done.stdout
    wrong = exited(
        2, shell(f"{PROGRAM} build --profile nope {where}", session_environment, tmp_path)
    )
    assert plain(wrong)


@pytest.mark.parametrize(
    ("command", "code"),
    [("profiles", 2), ("detect --json", 2), ("build --profile cpu", 2), ("run -- true", 125)],
)
def test_a_removed_working_folder(
    command: str, code: int, session_environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "gone").mkdir()
    done = shell(f"cd gone && rmdir ../gone && {PROGRAM} {command}", session_environment, tmp_path)
    assert done.returncode == code, done.stderr
    assert "error: the working folder cannot be used: No such file" in done.stderr
    assert plain(done)


def test_a_full_output_of_run_is_ours_to_tell(
    session_environment: dict[str, str], tmp_path: Path
) -> None:
    done = exited(125, shell(f"{PROGRAM} run --help > /dev/full", session_environment, tmp_path))
    assert plain(done)
