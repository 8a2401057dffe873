"""Where a package comes from, and what readers make of a project's files (groups 3 and 4)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.seams.rows import RELEASE, World, bash, coded, done, project, python, row, says, says_not
from tests.seams.rows.deciding import unanswered
from tests.seams.world import SECRET, Ended, package
from tests.support import sources

BUILT = "build_from_source: [tiny]"
FROM_FILE = "requirements_from: [requirements.txt]"
LOCK = "envbuilder.lock/default.cpu.json"


def tiny(world: World, folder: str, content: str = "x = 1") -> None:
    """Write the source of a package called tiny, which builds itself."""
    more = f"def content():\n    return {content!r}\n"
    for name, text in sources.files(more).items():
        world.write(f"{folder}/{name}", text)


def target(world: World, lock: str = LOCK) -> Any:
    """Return what a lock has for this machine."""
    return json.loads(world.path(lock).read_text())["targets"][0]


def git(world: World, folder: str, *arguments: str) -> str:
    """Run git in a folder of this world."""
    identity = ("-c", "user.name=x", "-c", "user.email=x@x")
    return done(world.run(("git", *identity, *arguments), cwd=world.path(folder))).out.strip()


def commit(world: World, folder: str) -> str:
    """Commit all that is in a folder."""
    git(world, folder, "init", "--quiet", "--initial-branch", "main")
    git(world, folder, "add", "--all")
    git(world, folder, "commit", "--quiet", "--message", "x")
    return git(world, folder, "rev-parse", "HEAD")


@row("3.1", "A")
def an_edited_local_source_is_stale(world: World) -> None:
    tiny(world, "ops")
    world.write("requirements.txt", "tiny @ ./ops\n")
    project(world, FROM_FILE, BUILT, RELEASE)
    done(world.envbuilder("lock"))
    tiny(world, "ops", "x = 2")
    says(coded(world.envbuilder("check"), 2), "./ops changed")
    done(python(world, "import tiny; assert tiny.x == 2"))
    coded(world.envbuilder("check"), 0)


@row("3.2", "A")
def a_locked_commit_stays_until_an_upgrade(world: World) -> None:
    tiny(world, "~/g")
    first = commit(world, "~/g")
    url = world.path("~/g").as_uri()
    world.write("requirements.txt", f"tiny @ git+{url}@main\n")
    project(world, FROM_FILE, BUILT, RELEASE)
    done(world.envbuilder("lock"))
    assert first in world.path(LOCK).read_text(), "the lock does not state the commit"
    tiny(world, "~/g", "x = 2")
    second = commit(world, "~/g")
    away = world.path("~/g").rename(world.path("~/away"))
    ended = done(world.envbuilder("add", "attrs"))
    assert first in world.path(LOCK).read_text(), ended.out
    away.rename(world.path("~/g"))
    ended = done(world.envbuilder("lock", "--upgrade-package", "tiny"))
    says(ended, f"tiny 1.0 ({first[:9]}) → 1.0 ({second[:9]})")


@row("3.3", "A")
def two_sources_with_markers_are_each_their_own(world: World) -> None:
    tiny(world, "one")
    tiny(world, "two", "x = 2")
    one = "./one; sys_platform == 'linux'"
    world.write("requirements.txt", f"tiny @ {one}\ntiny @ ./two; sys_platform == 'darwin'\n")
    project(world, FROM_FILE, BUILT, RELEASE)
    done(world.envbuilder("lock"))
    text = world.path(LOCK).read_text()
    assert "./one" in text, text
    assert "./two" not in text, text


@row("3.4", "A")
def a_source_of_another_system_is_not_taken(world: World) -> None:
    package(world.index.wheels("default"), "tiny", "1.0")
    tiny(world, "ops")
    source = 'tiny = [{path = "ops", marker = "sys_platform == \'darwin\'"}]'
    world.write(
        "pyproject.toml",
        '[project]\nname = "own"\nversion = "1"\ndependencies = ["tiny"]\n'
        f"[tool.uv.sources]\n{source}\n",
    )
    project(world, "requirements_from: [pyproject.toml]", BUILT, RELEASE)
    done(world.envbuilder("lock"))
    taken = next(file for file in target(world)["files"] if file["name"] == "tiny")
    assert taken["source"] == "default", taken


@row("3.5", "A")
def two_sources_of_one_package_are_refused(world: World) -> None:
    tiny(world, "one")
    tiny(world, "two", "x = 2")
    world.write("requirements.txt", "tiny @ ./one\n")
    world.write("more.txt", "tiny @ ./two\n")
    project(world, "requirements_from: [requirements.txt, more.txt]", BUILT, RELEASE)
    ended = coded(world.envbuilder("lock"), 2)
    says(ended, "requirements.txt:1", "more.txt:1")


@row("3.6", "A")
def what_git_ignores_is_packed_nowhere(world: World) -> None:
    tiny(world, "ops")
    world.write("ops/.gitignore", ".env\n")
    world.write("requirements.txt", "tiny @ ./ops\n")
    project(world, FROM_FILE, BUILT, RELEASE)
    commit(world, ".")
    world.write("ops/.env", f"TOKEN={SECRET}\n")
    done(world.envbuilder("lock"))
    done(world.envbuilder("render", "--profile", "cpu", "-o", "rendered"))
    holders = [p for p in files_below(world.home) if SECRET in content_of(p) and p.name != ".env"]
    assert not holders, holders


def files_below(folder: Path) -> list[Path]:
    """Return all files below a folder."""
    return [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]


def content_of(path: Path) -> str:
    """Return a file's text, unpacked if gzip packed it."""
    content = path.read_bytes()
    if content.startswith(b"\x1f\x8b"):
        content = gzip.decompress(content)
    return content.decode(errors="replace")


def bundle(world: World) -> Ended:
    """Pack the project; envbuilder itself comes from the machine's own indexes."""
    done(world.envbuilder("build"))
    ours = "unset UV_DEFAULT_INDEX PIP_INDEX_URL PIP_CONFIG_FILE; export"
    script = f"{ours} HOME={Path.home()}; envbuilder bundle --profile cpu -o all.bundle"
    return bash(world, script)


@row("3.7", "B", pytest.mark.soak)
def what_a_list_was_read_from_is_packed(world: World) -> None:
    world.write("setup.py", "from setuptools import setup\nsetup()\n")
    world.write("setup.cfg", "[options]\ninstall_requires =\n    six\n")
    project(world, "requirements_from: [setup.py]", RELEASE)
    done(world.envbuilder("lock"))
    done(bundle(world))
    assert b"project/setup.cfg" in world.path("all.bundle").read_bytes()


@row("3.8", "A", pytest.mark.soak)
def a_password_in_a_file_is_packed_nowhere(world: World) -> None:
    world.write(
        "pyproject.toml",
        '[project]\nname = "own"\nversion = "1"\ndependencies = ["six"]\n'
        f'[[tool.uv.index]]\nname = "lab"\nurl = "https://user:{SECRET}@index.invalid/simple"\n',
    )
    project(world, "requirements_from: [pyproject.toml]", RELEASE)
    done(world.envbuilder("lock"))
    done(bundle(world), 0, 2)
    packed = world.path("all.bundle")
    assert not packed.exists() or SECRET.encode() not in packed.read_bytes()


@row("4.1", "A")
def a_list_that_cannot_be_followed_is_not_dropped(world: World) -> None:
    world.write("needs.txt", "six\n")
    world.write(
        "setup.py",
        "from setuptools import setup\n"
        "with open('needs.txt') as f:\n    required = f.read().splitlines()\n"
        "required.append('idna')\nsetup(install_requires=required)\n",
    )
    project(world, "requirements_from: [setup.py]", RELEASE)
    ended = world.envbuilder("lock")
    assert ended.code != 0 or "idna" in world.path(LOCK).read_text(), ended.out


@row("4.2", "A")
def both_tables_of_a_project_are_read(world: World) -> None:
    world.write(
        "pyproject.toml",
        '[project]\nname = "own"\nversion = "1"\nrequires-python = ">=3.9,<3.11"\n'
        'dynamic = ["dependencies"]\n'
        '[tool.poetry.dependencies]\npython = "*"\nsix = "*"\n',
    )
    unanswered(world)
    world.write("envbuilder.yaml", "profiles: [cpu]\nrequirements_from: [pyproject.toml]\n")
    done(world.envbuilder("lock"))
    assert target(world)["python"] == "3.10"


@row("4.3", "A")
def a_managed_python_keeps_the_projects_version(world: World) -> None:
    unanswered(world)
    project(world, "python: '3.12'", "environments:\n  other:\n    python: managed")
    world.envbuilder("lock")
    assert target(world, "envbuilder.lock/other.cpu.json")["python"] == "3.12"


@row("4.4", "B")
def a_name_that_means_another_package_is_said(world: World) -> None:
    default = world.index.wheels("default")
    sources.archive(default / "sklearn-0.0.tar.gz", sources.files(), "sklearn-0.0/")
    package(default, "scikit_learn", "1.5")
    project(world, "requirements: [sklearn]", RELEASE)
    ended = world.envbuilder("lock")
    says_not(ended, "build_from_source: [sklearn]")
    says(ended, "scikit-learn")


@row("4.5", "B")
def a_marker_keeps_its_last_quote(world: World) -> None:
    project(world, RELEASE)
    coded(world.envbuilder("add", "attrs; python_version < '3.12'"), 0)
    coded(world.envbuilder("lock"), 0)


@row("4.6", "B")
def add_changes_nothing_if_the_lock_cannot_be_written(world: World) -> None:
    project(world, RELEASE)
    world.write("envbuilder.lock", "a file where the folder should be\n")
    before = world.path("envbuilder.yaml").read_bytes()
    ended = world.envbuilder("add", "six")
    assert world.path("envbuilder.yaml").read_bytes() == before, ended.err
    says_not(ended, "--output-dir")


@row("4.7", "B")
def a_release_with_a_build_is_refused_with_its_place(world: World) -> None:
    project(world, "framework_version: '2.7+cu118'")
    says(coded(world.envbuilder("lock"), 2), "envbuilder.yaml:")


@row("4.8", "B")
def a_file_with_an_odd_name_is_meant(world: World) -> None:
    world.write("requirements #1.txt", "six\n")
    done(world.envbuilder("init", "--offline"))
    says_not(
        world.envbuilder("check"),
        "not valid YAML",
        "does not read requirements from this kind of file",
    )


@row("4.9", "B")
def a_folder_called_profiles_may_hold_other_files(world: World) -> None:
    world.write("requirements.txt", "six\n")
    world.write("profiles/slurm.yaml", "jobs: 3\n")
    coded(world.envbuilder("init", "--offline"), 0)


@row("4.10", "C")
def what_an_empty_file_is_told_works(world: World) -> None:
    world.write("envbuilder.yaml", "")
    says_not(world.envbuilder("check"), "Write one: envbuilder init")
