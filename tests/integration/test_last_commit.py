"""The day of a clone's last commit, read without running what the clone's configuration names."""

from __future__ import annotations

import os
import subprocess
from datetime import date
from pathlib import Path

from envbuilder.project import repository


def git(folder: Path, *words: str, day: str = "") -> None:
    identity = ("-c", "user.name=a> 1 +0000", "-c", "user.email=b")
    moment = {"GIT_AUTHOR_DATE": "2001-01-01T12:00Z", "GIT_COMMITTER_DATE": f"{day}T12:00Z"}
    environment = {**os.environ, **(moment if day else {})}
    subprocess.run(["git", *identity, *words], cwd=folder, env=environment, check=True)


def test_the_day_of_the_last_commit_of_a_shallow_clone(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    clone = tmp_path / "clone"
    trap = tmp_path / "trap"
    origin.mkdir()
    git(origin, "init", "--quiet")
    git(
        origin,
        "commit",
        "--quiet",
        "--allow-empty",
        "-m",
        "committer x <x> 4 +0000",
        day="2021-05-04",
    )
    git(origin, "commit", "--quiet", "--allow-empty", "-m", "second", day="2022-03-01")
    git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{origin}", str(clone))
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {trap}\n")
    program.chmod(0o755)
    for key in ("core.fsmonitor", "core.pager", "gpg.program", "core.sshCommand", "diff.external"):
        git(clone, "config", key, str(program))
    git(clone, "config", "log.showSignature", "true")
    git(clone, "config", "core.hooksPath", str(tmp_path))
    assert repository.last_commit(clone) == date(2022, 3, 1)
    assert not trap.exists()
    (clone / "below").mkdir()
    assert repository.last_commit(clone / "below") is None


def test_what_is_no_clone_or_a_damaged_one_has_none(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: /nowhere\n")
    assert repository.last_commit(tmp_path) is None
    (tmp_path / ".git").unlink()
    git(tmp_path, "init", "--quiet")
    assert repository.last_commit(tmp_path) is None
