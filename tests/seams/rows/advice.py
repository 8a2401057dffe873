"""Advice that works, and what random walks found (groups 10 and 11, D1, U1 to U3)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tests.seams.rows import (
    RELEASE,
    World,
    built,
    coded,
    done,
    locked,
    project,
    python,
    row,
    says,
    says_not,
)
from tests.seams.rows.deciding import old, release_of, torch
from tests.seams.world import package
from tests.support import sources

LOCK = "envbuilder.lock/default.cpu.json"


def environment(world: World) -> Path:
    """Return the folder of the environment that was built."""
    folders = [path for path in (world.home / "data/envs").glob("cpu-*") if path.is_dir()]
    assert folders, "no environment is there"
    return folders[0]


@row("10.1", "A")
def a_module_of_the_project_is_no_strangers_package(world: World) -> None:
    built(world)
    world.write("common/utils.py", "x = 1\n")
    says_not(python(world, "import utils"), "envbuilder add utils")


@row("10.2", "B")
def what_is_excluded_is_not_to_be_added(world: World) -> None:
    built(world, "requirements: [six, einops]", "exclude: [einops]")
    ended = python(world, "import einops")
    says_not(ended, "envbuilder add einops")
    says(ended, "exclude")


@row("10.3", "A")
def a_rendered_file_names_no_command_that_empties_ours(world: World) -> None:
    locked(world)
    ended = done(world.envbuilder("render", "--profile", "cpu", "--target", "pylock"))
    says_not(ended, "> requirements.txt")


@row("10.4", "B")
def an_edited_hash_is_no_matter_of_the_network(world: World) -> None:
    locked(world)
    lock = json.loads(world.path(LOCK).read_text())
    for each in lock["targets"]:
        six = next(file for file in each["files"] if file["name"] == "six")
        six["sha256"] = "0" * 64
    world.write(LOCK, json.dumps(lock))
    wheel = next(world.index.wheels("default").glob("six-1.17*"))
    (world.home / "links").mkdir()
    wheel.rename(world.home / "links" / wheel.name)
    world.variables["PIP_FIND_LINKS"] = str(world.home / "links")
    says_not(world.envbuilder("build"), "Check the network")


@row("10.5", "C")
def what_a_message_suggests_makes_what_it_asked_for(world: World) -> None:
    locked(world)
    ended = world.envbuilder("sbom", "--profile", "cpu", "--python-version", "3.12")
    says_not(ended, "Make it again: envbuilder lock --profile cpu")


@row("10.6", "C")
def a_host_is_read_from_one_place(world: World) -> None:
    world.write(
        "pyproject.toml", '[project]\nname = "own"\nversion = "1"\n[tool.uv]\npackage = false\n'
    )
    done(world.envbuilder("init", "--offline"))
    assert "install_project: true" not in world.path("envbuilder.yaml").read_text()


@row("11.1", "B")
def adding_what_is_listed_locks_it(world: World) -> None:
    project(world, "requirements: [six]", RELEASE)
    done(world.envbuilder("add", "six"))
    coded(world.envbuilder("check"), 0)


@row("11.2", "B")
def a_release_that_the_mirror_lacks_is_not_locked(world: World) -> None:
    project(world)
    ended = done(world.envbuilder("lock"))
    told = [line for line in ended.err.splitlines() if "2.13.0" in line and "pytorch-cpu" in line]
    assert release_of(world, "cpu") == "2.12.1+cpu" or told, ended.err


@row("11.3", "B")
def check_knows_that_a_folder_is_missing(world: World) -> None:
    project(world, "python_path: [missing]", RELEASE)
    if world.envbuilder("lock").code == 0:
        coded(world.envbuilder("check"), 2)


@row("11.4", "B")
def a_damaged_environment_is_built_again(world: World) -> None:
    built(world, alone=True)
    for path in environment(world).glob("lib/python*/site-packages/torch*"):
        shutil.rmtree(path)
    world.history.append("rm -r …/site-packages/torch*")
    ended = python(world, "import torch")
    says_not(coded(ended, 0), "envbuilder add torch")


@row("11.5", "B")
def only_the_file_that_is_gone_is_named(world: World) -> None:
    locked(world, "requirements: [six, einops]")
    for path in world.index.wheels("default").glob("einops-*"):
        path.unlink()
    world.history.append("# einops leaves the index")
    ended = coded(world.envbuilder("build"), 1)
    says(ended, "einops", "envbuilder lock")
    says_not(ended, "filelock")


@row("11.6", "C")
def a_page_that_is_missing_is_no_index_out_of_reach(world: World) -> None:
    project(world, RELEASE)
    says_not(done(world.envbuilder("lock")), "unreachable")


@row("11.7", "C")
def no_name_is_meant_by_itself(world: World) -> None:
    project(world, "requirements: [tbb]", RELEASE)
    says_not(done(world.envbuilder("lock"), 2), "similar: tbb")


@row("11.8", "C")
def check_gives_the_reason_that_lock_gave(world: World) -> None:
    project(world, "profiles: [cpu, rocm, xpu]")
    done(world.envbuilder("lock"), 2)
    says_not(world.envbuilder("check"), "changed after the lock was made")


@row("11.9", "C")
def a_warning_is_of_the_release_that_is_built(world: World) -> None:
    locked(world)
    says_not(done(world.envbuilder("build")), "torch 2.13.0+cpu miscompiles")


CONDA = "dependencies:\n  - python=3.11\n  - gromacs\n  - plink\n"


@row("D1", "A")
def a_program_of_conda_is_no_strangers_package(world: World) -> None:
    default = world.index.wheels("default")
    package(default, "plink", "2.4")
    sources.archive(default / "gromacs-0.0.0.tar.gz", sources.files(), "gromacs-0.0.0/")
    world.write("environment.yml", CONDA)
    done(world.envbuilder("init"))
    world.envbuilder("lock", "--profile", "cpu")
    assert not world.path(LOCK).exists() or '"plink"' not in world.path(LOCK).read_text()
    assert "build_from_source: [gromacs]" not in world.path("envbuilder.yaml").read_text()


@row("U1", "A")
def releases_that_differ_are_said_with_the_reason(world: World) -> None:
    package(world.index.wheels("default"), "torch", "2.13.0")
    # Its made-up files are refused in place of those that are shipped, but not of one's own.
    done(world.envbuilder("lock", "--profile", "cuda", cwd=world.home))
    project(world, "profiles: [cpu, cuda]")
    why = "no reachable index or public lock has a hash of 2.13.0 (cpu)"
    says(done(world.envbuilder("lock")), "2.12.1 (cpu)", "2.13.0 (cu130)", why)
    says(done(world.envbuilder("add", "rich")), "2.12.1 (cpu)", "2.13.0 (cu130)", why)
    says(world.envbuilder("check"), "2.12.1 (cpu)", "2.13.0 (cu130)", why)


@row("U1b", "A")
def what_moves_is_said(world: World) -> None:
    old(world)
    done(world.envbuilder("lock"))
    world.write("envbuilder.yaml", "profiles: [cpu]\nrequirements: [six]\n")
    says(done(world.envbuilder("check"), 2), "1.13.1")
    says(done(world.envbuilder("add", "rich")), "torch 1.13.1", "as_of")


@row("U10", "C")
def versions_that_differ_by_hardware_are_said(world: World) -> None:
    torch(world, "default", "2.12.1", "filelock")
    newest = next(world.index.wheels("default").glob("filelock-3.20.3*"))
    newest.rename(world.home / newest.name)
    locked(world, "requirements: [filelock]")
    (world.home / newest.name).rename(newest)
    project(world, "profiles: [cpu, cuda]", "requirements: [filelock]", RELEASE)
    says(world.envbuilder("lock"), "filelock 3.20.3 (3.19)", "default.cuda:")


@row("U2", "A")
def a_workflow_installs_no_strangers_envbuilder(world: World) -> None:
    locked(world)
    ended = world.envbuilder("ci", "--provider", "github")
    assert ended.code != 0 or "--require-hashes" in ended.out, ended.out


@row("U3", "A")
def clean_leaves_what_another_project_uses(world: World) -> None:
    built(world, alone=True)
    other = world.home / "other"
    other.mkdir()
    world.envbuilder("clean", "--yes", cwd=other)
    assert environment(world).is_dir()
