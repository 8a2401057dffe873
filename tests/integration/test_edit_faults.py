"""What may happen to environments that share files: kills, a full disk, a changed file, strangers.

The real command line, on small wheels. Afterwards the next command works, and nothing is half made.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import missing
from tests.seams.conftest import uv_wheel
from tests.seams.edits import PLAIN
from tests.seams.index import Index
from tests.seams.world import Ended, World, fill
from tests.support import make_wheels

__all__ = ["uv_wheel"]
pytestmark = [pytest.mark.quiet]
SEED = 44
RUN = ("run", "--", "python", "-c")
SIX = (*RUN, "import six; print(six.__version__)")
OTHER = "requirements: [six, einops]"
EDITS = ("six", "einops", "attrs", "idna", "rich")
KERNEL = b"""
import os, sys, time
with open(sys.argv[-1], "w") as file:
    file.write(sys.prefix)
while os.path.getsize(sys.argv[-1]):
    time.sleep(0.1)
import six
print(six.__file__)
"""
"""Stands in for ipykernel's: runs until its connection file is emptied, then imports a module."""


@pytest.fixture
def world(tmp_path: Path, uv_wheel: Path) -> Iterator[World]:
    """A project that is locked and built."""
    index = Index(tmp_path / "index")
    fill(index, uv_wheel)
    with index.served():
        made = World(tmp_path / "w", index)
        made.write("envbuilder.yaml", PLAIN)
        for command in ("lock", "build"):
            exited_with(0, made.envbuilder(command))
        yield made


def exited_with(code: int, ended: Ended) -> Ended:
    assert ended.code == code, ended.err
    return ended


def environments(world: World) -> list[Path]:
    return sorted(p for p in (world.home / "data/envs").glob("[!.]*") if p.is_dir())


def half_made(world: World) -> list[Path]:
    """What belongs to no command that runs, and to nothing that is finished."""
    data = world.home / "data"
    left = [p for p in data.glob("envs/.*.partial") if p.is_dir()]
    left += [p for p in data.glob("unpacked/work/*") if p.is_dir()]
    left += [p for p in data.glob("unpacked/.*") if p.is_dir()]
    return left + [e for e in environments(world) if not (e / "envbuilder.json").is_file()]


def module(environment: Path, name: str = "six") -> Path:
    (found,) = environment.glob(f"lib/python*/site-packages/{name}/__init__.py")
    return found


def change(path: Path, text: str = "__version__ = 'evil'\n") -> None:
    """Write into a file in place, as root does or after a chmod."""
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.write(text.encode())
        file.truncate()


def killed(world: World, kills: int) -> None:
    """Kill edits at random moments of their whole duration, then end each."""
    drawn = random.Random(SEED)
    edit = '"$0" add einops && "$0" run -- python -c "import einops"'
    argv = ("bash", "-c", edit, str(world.program))
    definition = world.path("envbuilder.yaml").read_bytes()
    duration = exited_with(0, world.run(argv)).seconds
    for number in range(kills):
        # What the edit makes is made again.
        for environment in environments(world):
            if list(environment.glob("lib/python*/site-packages/einops")):
                shutil.rmtree(environment)
        if number % 2:
            shutil.rmtree(world.home / "data/unpacked")
        world.write("envbuilder.yaml", definition)
        exited_with(0, world.envbuilder("lock"))
        moment = drawn.uniform(0.1, duration)
        world.run(argv, kill_after=moment)
        for environment in environments(world):
            assert (environment / "envbuilder.json").is_file(), f"half made after {moment:.2f} s"
            python = str(environment / "bin/python")
            exited_with(0, world.run((python, "-c", "import six, torch")))
        exited_with(0, world.run(argv))
    exited_with(0, world.envbuilder("clean", "--yes"))
    assert half_made(world) == []


@pytest.mark.slow
def test_an_edit_is_killed(world: World) -> None:
    killed(world, 3)


@pytest.mark.soak
def test_an_edit_is_killed_a_hundred_times(world: World) -> None:
    killed(world, 100)


@contextlib.contextmanager
def little_room(folder: Path, kibibytes: int) -> Iterator[None]:
    """A disk below a folder with so much room."""
    aside = folder.with_name("aside")
    folder.rename(aside)
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kibibytes}k", "none", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        missing("root", "nothing can be mounted")
    subprocess.run(["cp", "-a", f"{aside}/.", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
        folder.rmdir()
        aside.rename(folder)


def used(folder: Path) -> int:
    """KiB that files take on a tmpfs, by pages; a file with several names once."""
    sizes = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode):
            sizes[status.st_ino] = -(-status.st_size // 4096) * 4
    return sum(sizes.values())


@pytest.mark.slow
@pytest.mark.parametrize("room", [8, 30, 100, 200])
def test_a_disk_is_full(world: World, room: int) -> None:
    data = world.home / "data"
    exited_with(0, world.envbuilder("add", "einops"))
    with little_room(data, used(data) + room):
        ended = exited_with(1, world.envbuilder("build"))
        assert "space" in ended.err
        assert len(environments(world)) == 1
        exited_with(0, world.run((str(environments(world)[0] / "bin/python"), "-c", "import six")))
        subprocess.run(["mount", "-o", "remount,size=1g", data], check=True)
        exited_with(0, world.envbuilder("build"))
        assert half_made(world) == []


@pytest.mark.slow
@pytest.mark.parametrize("is_same_project", [True, False])
def test_two_edits_at_once(world: World, is_same_project: bool) -> None:
    other = world.project if is_same_project else world.home / "other"
    if not is_same_project:
        shutil.copytree(world.project, other, symlinks=True)
    shutil.rmtree(world.home / "data/unpacked")
    edit = f'"{world.program}" add einops && "{world.program}" run -- python -c "import einops"'
    ended: list[Ended] = []

    def start(folder: Path) -> None:
        ended.append(world.run(("bash", "-c", edit), cwd=folder))

    threads = [threading.Thread(target=start, args=(f,)) for f in (world.project, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Of two edits of one file, one may come too late.
    late = [each for each in ended if "was edited while this command ran" in each.err]
    assert len(late) <= is_same_project
    if late:
        ended.remove(late[0])
        start(world.project)
    for each in ended:
        exited_with(0, each)
    assert half_made(world) == []


def lock_of(world: World, requirements: str) -> Callable[[], None]:
    """Lock this list; return what checks that lock out again, as a branch is."""
    world.write("envbuilder.yaml", PLAIN.replace("requirements: [six]", requirements))
    exited_with(0, world.envbuilder("lock"))
    files = [world.path("envbuilder.yaml"), *world.path("envbuilder.lock").glob("*.json")]
    contents = {path: path.read_bytes() for path in files}

    def switch() -> None:
        for path, content in contents.items():
            path.write_bytes(content)

    return switch


@pytest.mark.slow
def test_a_file_is_changed_in_place(world: World) -> None:
    (first,) = environments(world)
    before = module(first).read_bytes()
    switch = lock_of(world, "requirements: [six]")
    change(module(first))
    assert str(module(first).relative_to(first)) in world.envbuilder("doctor").out
    lock_of(world, OTHER)
    exited_with(0, world.envbuilder("build"))
    (second,) = (each for each in environments(world) if each != first)
    assert module(second).read_bytes() == before
    switch()
    assert "rebuilding from wheels" in exited_with(0, world.envbuilder("build")).err
    assert module(first).read_bytes() == before
    assert "was changed" not in world.envbuilder("doctor").out
    change(module(first))
    assert "rebuilding from wheels" in world.envbuilder("verify", "--quick").err
    assert module(first).read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("moment", [0.0, 0.2])
def test_a_file_is_written_while_another_environment_is_made(world: World, moment: float) -> None:
    (first,) = environments(world)
    before = module(first).read_bytes()
    switches = [lock_of(world, "requirements: [six]"), lock_of(world, OTHER)]
    is_over = threading.Event()

    def write() -> None:
        is_over.wait(moment)
        change(module(first))  # even if the build took less time
        while not is_over.is_set():
            change(module(first))

    writer = threading.Thread(target=write)
    writer.start()
    exited_with(0, world.envbuilder("build"))
    is_over.set()
    writer.join()
    changed = [e for e in environments(world) if module(e).read_bytes() != before]
    # What is written before it is looked at goes no further; what is later is found.
    assert first in changed
    assert moment or changed == [first]
    for switch in switches:
        switch()
        exited_with(0, world.envbuilder("build"))
    assert "was changed" not in world.envbuilder("doctor").out
    assert {module(each).read_bytes() for each in environments(world)} == {before}
    lock_of(world, "requirements: [six, attrs]")
    exited_with(0, world.envbuilder("build"))
    assert {module(each).read_bytes() for each in environments(world)} == {before}


def emptied(path: Path) -> None:
    path.write_text("[]")


@pytest.mark.slow
def test_a_shared_part_is_removed(world: World) -> None:
    (first,) = environments(world)
    unpacked = world.home / "data/unpacked"
    harms: tuple[Callable[[], object], ...] = (
        lambda: shutil.rmtree(unpacked),
        lambda: [shutil.rmtree(path) for path in unpacked.glob("*/files")],
        lambda: [path.unlink() for path in unpacked.glob("*/files/*/__init__.py")],
        lambda: [path.unlink() for path in unpacked.glob("*/rest.whl")],
        lambda: [emptied(path) for path in unpacked.glob("*/*.json")],
        lambda: [planted(path, world.home) for path in unpacked.glob("*/files/*/__init__.py")],
    )
    for number, harm in enumerate(harms):
        harm()
        shutil.rmtree(first)
        exited_with(0, world.envbuilder("build"))
        assert "1." in exited_with(0, world.envbuilder(*SIX)).out, number
        assert not module(first).is_symlink()
    (records,) = first.rglob("shared.json")
    for lose in (Path.unlink, emptied):
        lose(records)
        assert "rebuilding from wheels" in exited_with(0, world.envbuilder("build")).err
        assert module(first).stat().st_ino in map(ino, unpacked.glob("*/files/six/__init__.py"))


def ino(path: Path) -> int:
    return path.stat().st_ino


def planted(path: Path, elsewhere: Path) -> None:
    """Put a link to other bytes where a file was."""
    target = elsewhere / "evil.py"
    target.write_text("__version__ = 'evil'\n")
    path.unlink()
    path.symlink_to(target)


@pytest.mark.slow
def test_branches_and_projects_keep_their_environments(world: World) -> None:
    switches = [lock_of(world, "requirements: [six]"), lock_of(world, OTHER)]
    for number in range(10):
        switches[number % 2]()
        ended = exited_with(0, world.envbuilder("build"))
        assert ("reuse" in ended.out + ended.err) or number < 2, ended.out + ended.err
        assert number < 1 or len(environments(world)) == 2
    other = world.home / "other"
    shutil.copytree(world.project, other, symlinks=True)
    exited_with(0, world.envbuilder("build", cwd=other))
    shutil.rmtree(world.project)
    kept = (other / ".envbuilder/default").resolve()
    exited_with(0, world.envbuilder("clean", "--yes", cwd=world.home))
    assert kept in environments(world)
    exited_with(0, world.envbuilder(*SIX, cwd=other))


@pytest.mark.slow
def test_a_kernel_keeps_the_environment_of_another_branch(world: World) -> None:
    files = {"ipykernel/__init__.py": b"", "ipykernel_launcher.py": KERNEL}
    make_wheels.write(world.index.wheels("default"), "ipykernel", files, version="7.1")
    lock_of(world, "requirements: [six, ipykernel]")
    exited_with(0, world.envbuilder("jupyter", "--install-kernel"))
    (spec,) = world.home.rglob("kernel.json")
    connection = world.home / "connection.json"
    connection.touch()
    argv = [
        word.replace("{connection_file}", str(connection))
        for word in json.loads(spec.read_text())["argv"]
    ]
    ended: list[Ended] = []
    kernel = threading.Thread(target=lambda: ended.append(world.run(argv)))
    kernel.start()
    try:
        while kernel.is_alive() and not connection.stat().st_size:
            time.sleep(0.1)
        prefix = Path(connection.read_text())
        for edit in range(10):
            lock_of(world, f"requirements: [{', '.join(EDITS[: edit % 5 + 1])}]")
            exited_with(0, world.envbuilder(*RUN, ""))
        exited_with(0, world.envbuilder("clean", "--yes"))
    finally:
        connection.write_text("")
        kernel.join()
    assert prefix in environments(world)
    assert exited_with(0, ended[0]).out.strip() == str(module(prefix))
