"""Whose a folder is, and what a command's variables are (groups 5 and 6)."""

from __future__ import annotations

import os
import shutil
import sys

from tests.seams.rows import (
    RELEASE,
    World,
    bash,
    built,
    coded,
    done,
    locked,
    project,
    row,
    says,
    small_torch,
)

STRANGER = 65534


def planted(world: World) -> int:
    """Make .envbuilder as another user would; return when it was last written to."""
    folder = world.path(".envbuilder")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    folder.chmod(0o777)
    os.chown(folder, STRANGER, STRANGER)
    world.history.append("mkdir .envbuilder; chown nobody .envbuilder")
    return folder.stat().st_mtime_ns


def own_package(world: World) -> None:
    """Write a project that is a package, which is installed."""
    world.write("pyproject.toml", '[project]\nname = "own"\nversion = "1"\ndependencies = []\n')
    world.write("own/__init__.py", "x = 1\n")
    project(world, "install_project: true", RELEASE)
    done(world.envbuilder("lock"))


@row("5.1", "A")
def watch_lays_nothing_into_a_strangers_folder(world: World) -> None:
    built(world)
    before = planted(world)
    world.envbuilder("watch", "--", "true")
    assert world.path(".envbuilder").stat().st_mtime_ns == before


@row("5.2", "A")
def run_lays_nothing_into_a_strangers_folder(world: World) -> None:
    own_package(world)
    before = planted(world)
    world.envbuilder("run", "--", "true")
    assert world.path(".envbuilder").stat().st_mtime_ns == before


@row("5.3", "B")
def an_environment_may_be_called_watch(world: World) -> None:
    locked(world, "environments:\n  watch: {}\n  hook: {}")
    for name in ("watch", "hook"):
        done(world.envbuilder("build", "--environment", name))
        assert world.path(f".envbuilder/{name}").exists(), f"no link leads to {name}"
    coded(world.envbuilder("watch", "--", "true"), 0)


@row("5.4", "B")
def several_runs_at_once_do_not_disturb_each_other(world: World) -> None:
    own_package(world)
    done(world.envbuilder("build"))
    others = ": >.envbuilder/hook/.a; mv .envbuilder/hook/.a .envbuilder/hook/.b"
    another = f"while [ ! -e stop ]; do {others}; rm -f .envbuilder/hook/.b; done"
    runs = "for i in 1 2 3; do envbuilder run -- true & all+=($!); done"
    waits = "for i in ${all[@]}; do wait $i || code=$?; done; touch stop; exit $code"
    ended = bash(world, f"code=0; {another} 2>/dev/null &\n{runs}; {waits}")
    coded(ended, 0)


@row("5.6", "C")
def what_a_killed_watch_left_is_cleaned_by_the_next(world: World) -> None:
    built(world)
    world.envbuilder("watch", "--", "sleep", "60", kill_after=6)
    done(world.envbuilder("watch", "--", "true"))
    left = list(world.path(".envbuilder").glob("watch/*"))
    assert not left, left


@row("6.1", "A")
def no_program_of_the_working_folder_runs(world: World) -> None:
    built(world)
    code = "import os; print(os.environ['PATH'])"
    command = (str(world.program), "run", "--", "python", "-c", code)
    ended = done(world.run(("env", "-u", "PATH", *command)))
    assert "" not in ended.out.strip().split(":"), ended.out


@row("6.2", "B")
def torchrun_shares_the_cores_itself(world: World) -> None:
    built(world)
    world.write(
        "bin/torchrun",
        "#!/usr/bin/env python\nimport os\nprint('threads:', os.environ.get('OMP_NUM_THREADS'))\n",
    )
    world.path("bin/torchrun").chmod(0o755)
    torchrun = ("bin/torchrun", "--nproc-per-node", "2", "x.py")
    says(world.envbuilder("run", "--", *torchrun), "threads: None")


@row("6.3", "B")
def the_callers_threads_are_kept(world: World) -> None:
    seen = world.home / "seen"
    world.write("~/py", f'#!/bin/sh\necho $OMP_NUM_THREADS >>{seen}\nexec {sys.executable} "$@"\n')
    world.path("~/py").chmod(0o755)
    world.envbuilder(
        "verify",
        "--quick",
        "--profile",
        "cpu",
        "--inherit-environment",
        "--python",
        str(world.path("~/py")),
        variables={"OMP_NUM_THREADS": "1"},
    )
    assert set(seen.read_text().split()) == {"1"}, seen.read_text()


@row("6.4", "B")
def an_added_path_keeps_the_projects_own(world: World) -> None:
    own_package(world)
    code = "import os; os.chdir('/'); import sys; sys.path.remove(''); import own"
    done(world.envbuilder("run", "--", "python", "-c", code))
    coded(world.envbuilder("run", "-e", "PYTHONPATH=x", "--", "python", "-c", code), 0)


@row("6.5", "A")
def a_report_names_no_environment_that_did_not_do_the_work(world: World) -> None:
    built(world)
    bash(world, f"{sys.executable} -m venv --without-pip ~/other")
    module = "~/other/lib/python3.11/site-packages/torch.py"
    world.write(module, f"__version__ = '9.9'\n{small_torch()}")
    world.write("go.sh", ". ~/other/bin/activate\npython -c 'import torch; torch.train()'\n")
    ended = done(world.envbuilder("watch", "--output", "r.json", "--", "bash", "go.sh"))
    assert "another environment" in ended.out + ended.err, ended.err


@row("6.6", "B")
def a_program_of_another_python_is_said(world: World) -> None:
    built(world)
    world.write("~/bin/pytest", f"#!{sys.executable}\nprint('elsewhere')\n")
    world.path("~/bin/pytest").chmod(0o755)
    world.variables["PATH"] = f"{world.path('~/bin')}:{world.variables['PATH']}"
    ended = world.envbuilder("run", "--", "pytest")
    assert ended.code != 0 or "pytest" in ended.err, ended
