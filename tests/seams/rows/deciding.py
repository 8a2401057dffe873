"""What was decided is written down, and one rule stands in one place (groups 1 and 2)."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime

from tests.seams.rows import RELEASE, World, coded, done, locked, project, row, says, says_not
from tests.seams.world import package
from tests.support.folders import read_json


def torch(world: World, index: str, version: str, *needs: str) -> None:
    """Put a release of torch into an index."""
    for machine in ("x86_64", "aarch64"):
        tag = f"cp311-cp311-manylinux_2_28_{machine}"
        package(world.index.wheels(index), "torch", version, needs=needs, tag=tag)


def unanswered(world: World) -> None:
    """Take torch's page from its index, so that public hashes are locked, as without a network."""
    for path in world.index.wheels("torch").glob("torch-*"):
        path.unlink()


def old(world: World, *lines: str) -> None:
    """Write a project of 2022."""
    came(world, "2022-12-01")
    unanswered(world)
    text = "\n".join(["profiles: [cpu]", "requirements: [six]", "as_of: '2022-12-31'", *lines, ""])
    world.write("envbuilder.yaml", text)


def came(world: World, day: str) -> None:
    """Let all files have come to the index on a day."""
    moment = datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()
    for path in world.index.wheels("default").glob("*"):
        os.utime(path, (moment, moment))


def release_of(world: World, profile: str) -> str:
    """Return the release of torch in a lock of this world."""
    lock = read_json(world.path(f"envbuilder.lock/default.{profile}.json"))
    files = lock["targets"][0]["files"]
    return next(file["version"] for file in files if file["name"] == "torch")


@row("1.1", "A")
def profiles_with_other_releases_are_named(world: World) -> None:
    torch(world, "torch", "2.8.0+cpu")
    for release in ("2.8.0", "2.13.0"):
        torch(world, "default", release)
    project(world, "profiles: [cpu, cuda]", "framework_version: '2.8'")
    done(world.envbuilder("lock"))
    project(world, "profiles: [cpu, cuda]")
    done(world.envbuilder("lock", "--upgrade", "--profile", "cpu"))
    assert release_of(world, "cpu") != release_of(world, "cuda"), "both moved"
    says(world.envbuilder("check"), "2.8.0")


@row("1.2", "A")
def as_of_takes_nothing_later(world: World) -> None:
    came(world, "2022-12-01")
    project(world, "python: '3.10'", "as_of: '2020-01-01'")
    ended = world.envbuilder("lock")
    assert ended.code != 0 or "2022-12-15" in ended.out + ended.err, ended.err


@row("1.3", "B")
def check_accepts_the_release_that_lock_chose(world: World) -> None:
    for release in ("2.12.1", "2.13.0"):
        torch(world, "default", release)
    tag = "cp311-cp311-manylinux_2_28_x86_64"
    package(world.index.wheels("default"), "triton", "3.5.0", tag=tag)
    world.write("envbuilder.yaml", "requirements: ['torch>=2.12', 'triton==3.5.0']\n")
    done(world.envbuilder("lock"))
    says_not(world.envbuilder("check"), "the profile changed after the lock was made")


@row("1.4", "B")
def lock_refuses_what_check_refuses(world: World) -> None:
    project(world, "profiles: [zendnn]", "exclude: [zentorch]")
    coded(world.envbuilder("lock"), 2)


@row("1.5", "B")
def upgrading_the_framework_alone_moves_it_or_says_how(world: World) -> None:
    project(world, "requirements: [six]", "framework_version: '2.11.0'")
    done(world.envbuilder("lock"))
    project(world, "requirements: [six]")
    ended = world.envbuilder("lock", "--upgrade-package", "torch")
    moved = release_of(world, "cpu") != "2.11.0+cpu"
    assert moved or "--upgrade" in ended.out + ended.err, ended.err


@row("1.6", "B")
def an_older_python_is_taken_if_only_it_will_do(world: World) -> None:
    default = world.index.wheels("default")
    for version in ("36", "37", "38", "39"):
        for machine in ("2010_x86_64", "2014_aarch64"):
            tag = f"cp{version}-cp{version}-manylinux{machine}"
            package(default, "numpy", "1.19.5", tag=tag)
    torch(world, "torch", "2.13.0+cpu")
    for machine in ("x86_64", "aarch64"):  # an index that answers has what it lists, and no more
        tag = f"cp39-cp39-manylinux_2_28_{machine}"
        package(world.index.wheels("torch"), "torch", "2.8.0+cpu", tag=tag)
    world.write("envbuilder.yaml", "profiles: [cpu]\nrequirements: ['numpy==1.19.5']\n")
    coded(world.envbuilder("lock"), 0)


@row("1.7", "A")
def a_decision_without_its_reason_is_made_again(world: World) -> None:
    old(world)
    done(world.envbuilder("lock"))
    before = release_of(world, "cpu")
    world.write("envbuilder.yaml", "profiles: [cpu]\nrequirements: [six]\n")
    world.envbuilder("run", "--", "true")
    assert release_of(world, "cpu") != before


@row("1.8", "B")
def a_suggested_override_works(world: World) -> None:
    old(world, "overrides: {torch: 'torch==2.13.0+cpu'}")
    coded(world.envbuilder("lock"), 0)


@row("1.9", "C")
def a_python_without_a_release_gets_the_oldest_there_is(world: World) -> None:
    project(world, "python: '3.7'")
    says_not(world.envbuilder("lock"), "for Python 3.7")


@row("1.10", "C")
def a_release_that_as_of_chose_is_named_with_it(world: World) -> None:
    old(world)
    done(world.envbuilder("lock"))
    says(world.envbuilder("run", "--", "true"), "as_of")


@row("2.1", "A")
def check_refuses_what_no_index_has(world: World) -> None:
    project(world, "profiles: [jax-cpu]", "framework: jax", "requirements: [no-such-package-x]")
    done(world.envbuilder("lock"), 2)
    coded(world.envbuilder("check"), 2)


JAX = "environments:\n  other:\n    requirements: ['jax==0.10.1']"


@row("2.2", "B")
def environments_of_other_frameworks_are_each_their_own(world: World) -> None:
    jax(world)
    project(world, "profiles: [cpu, jax-cpu]", JAX)
    coded(world.envbuilder("lock"), 0)


@row("2.3", "B")
def an_error_in_one_environment_stops_no_other(world: World) -> None:
    jax(world)
    world.write("envbuilder.yaml", f"framework_version: '2.8'\n{JAX}\n")
    world.envbuilder("lock")
    assert world.path("envbuilder.lock/default.cpu.json").exists()


@row("2.4", "B")
def commands_of_a_jax_project_know_its_profile(world: World) -> None:
    jax(world)
    project(world, "profiles: [jax-cpu]", "framework: jax", "framework_version: '0.10.1'")
    done(world.envbuilder("lock"))
    coded(world.envbuilder("sbom", "--profile", "cpu"), 0)


def jax(world: World) -> None:
    """Put JAX into the index."""
    default = world.index.wheels("default")
    package(default, "jax", "0.10.1", needs=("jaxlib==0.10.1",))
    for machine in ("manylinux_2_27_x86_64", "manylinux_2_27_aarch64", "macosx_11_0_arm64"):
        package(default, "jaxlib", "0.10.1", tag=f"cp311-cp311-{machine}")


LAB = "extends: cpu\ndescription: A lab's own\nsystem_packages: []\npreload: []\n"


def lab(world: World) -> None:
    """Write a profile of the project's own, whose tools are locked, too."""
    world.write("profiles/lab.yaml", LAB)
    for platform in ("manylinux_2_28_aarch64", "macosx_11_0_arm64"):
        package(world.index.wheels("default"), "uv", "0.13.8", tag=f"py3-none-{platform}")


@row("2.5", "B")
def the_tool_that_installs_has_no_day(world: World) -> None:
    came(world, "2022-12-01")
    unanswered(world)
    lab(world)
    for path in world.index.wheels("default").glob("uv-*"):
        os.utime(path)
    world.write("envbuilder.yaml", "profiles: [lab]\nas_of: '2022-12-31'\n")
    coded(world.envbuilder("lock"), 0)


@row("2.6", "B")
def a_lock_of_an_own_profile_is_judged_like_every_other(world: World) -> None:
    lab(world)
    locked(world, "profiles: [lab]", "requirements: [six]")
    done(world.envbuilder("check"))
    lock = read_json(world.path("envbuilder.lock/default.lab.json"))
    for target in lock["targets"]:
        target["files"] = [file for file in target["files"] if file["name"] != "sympy"]
    world.write("envbuilder.lock/default.lab.json", json.dumps(lock))
    says(coded(world.envbuilder("check"), 2), "sympy is missing, but torch requires it")


@row("2.6b", "B")
def an_own_profile_goes_without_a_platform_like_every_other(world: World) -> None:
    lab(world)
    for path in world.index.wheels("torch").glob("torch-2.12.1*aarch64*"):
        path.unlink()
    locked(world, "profiles: [lab]", "requirements: [six]")


@row("2.7", "B")
def a_lock_that_cannot_be_read_is_made_anew(world: World) -> None:
    locked(world)
    text = world.path("envbuilder.lock/default.cpu.json").read_text()
    world.write("envbuilder.lock/default.cpu.json", "<<<<<<< HEAD\n" + text)
    coded(world.envbuilder("lock"), 0)
    coded(world.envbuilder("check"), 0)


@row("2.8", "B")
def check_knows_that_there_is_no_package_to_install(world: World) -> None:
    project(world, "install_project: true", RELEASE)
    if world.envbuilder("lock").code == 0:
        coded(world.envbuilder("check"), 2)


@row("2.9", "B")
def a_large_lock_can_be_packed(world: World) -> None:
    locked(world)
    path = world.path("envbuilder.lock/default.cpu.json")
    large = json.dumps(read_json(path), indent=1) + "\n" * (1 << 20)
    world.write("envbuilder.lock/default.cpu.json", large)
    ended = world.envbuilder("bundle", "--profile", "cpu", "-o", "all.bundle")
    says_not(ended, "larger than")


@row("2.10", "C")
def options_that_check_has_no_use_for_are_refused(world: World) -> None:
    coded(world.envbuilder("check", "cpu", "--upgrade"), 2)


@row("2.11", "C")
def a_lock_takes_its_signature_with_it(world: World) -> None:
    locked(world)
    lock = "envbuilder.lock/default.cpu.json"
    world.write(f"{lock}.intoto.jsonl", "{}\n")
    jax(world)
    project(world, "profiles: [jax-cpu]", "framework: jax", "framework_version: '0.10.1'")
    done(world.envbuilder("lock"))
    assert not world.path(lock).exists(), "the lock of what is not supported stays"
    assert not world.path(f"{lock}.intoto.jsonl").exists()


@row("2.12", "A")
def a_reason_of_several_lines_can_be_read_again(world: World) -> None:
    world.write("requirements.txt", "g @ git+http://127.0.0.1:9/two%0Alines@main\n")
    project(world, "requirements_from: [requirements.txt]", "build_from_source: [g]", RELEASE)
    world.envbuilder("lock")
    says_not(world.envbuilder("check"), "expected one line of text")


@row("D18", "A")
def a_lock_made_without_its_repository_is_made_anew(world: World) -> None:
    world.write("requirements.txt", "g @ git+http://127.0.0.1:9/g@main\n")
    project(world, "requirements_from: [requirements.txt]", "build_from_source: [g]", RELEASE)
    world.envbuilder("lock")
    world.write("requirements.txt", "six\n")
    coded(world.envbuilder("lock"), 0)
    coded(world.envbuilder("check"), 0)


@row("D17", "B")
def build_says_that_nothing_is_locked(world: World) -> None:
    project(world, "requirements: [no-such-package-x]", RELEASE)
    done(world.envbuilder("lock"), 2)
    coded(world.envbuilder("build"), 2)
