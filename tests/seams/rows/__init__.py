"""Faults that were found by reading, each as the shortest list of commands that shows it.

A row's function takes a world, does its steps, and asserts what is wanted. Steps that lead there go
through `done`, which fails the test in a way that no expected failure covers.
"""

from __future__ import annotations

import hashlib
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

from tests.seams import world as worlds
from tests.seams.index import Index
from tests.seams.world import Ended


class World(worlds.World):
    """A world that takes locks and environments which others made, where they are the same."""

    made: Path
    """Folder of a session's locks and environments."""

    def take(self, *lines: str) -> Path:
        """Return the folder of a project with these lines that is locked and built."""
        folder = self.made / hashlib.sha256(repr(lines).encode()).hexdigest()[:16]
        if not (folder / "ready").exists():
            maker = World(folder, self.index, self.program)
            maker.write("envbuilder.yaml", "\n".join([*lines, ""]))
            for command in ("lock", "build"):
                done(maker.envbuilder(command))
            (folder / "ready").touch()
        return folder / "home"


class Row(Struct, frozen=True):
    """One fault: its number, its degree (A: believed, lost or a stranger's; B: breaks; C)."""

    id: str
    degree: str
    wanted: Callable[[World], None]
    marks: tuple[Any, ...] = ()


ROWS: dict[str, Row] = {}


def row(number: str, degree: str, *marks: Any) -> Callable[[Callable[[World], None]], None]:
    """Register a function as what is wanted of a row."""

    def register(wanted: Callable[[World], None]) -> None:
        assert number not in ROWS, f"two rows are called {number}"
        ROWS[number] = Row(id=number, degree=degree, wanted=wanted, marks=marks)

    return register


class StepsFailedError(Exception):
    """A step that leads to what is asked did not do what it always does."""


def done(ended: Ended, *codes: int) -> Ended:
    """Return a step's end; it must have one of these codes, 0 unless given."""
    if ended.code not in (codes or (0,)):
        raise StepsFailedError(f"{ended.argv}: exit code {ended.code}\n{ended.out}\n{ended.err}")
    return ended


def coded(ended: Ended, *codes: int) -> Ended:
    """Assert that a command ended with one of these codes."""
    assert ended.code in codes, f"exit code {ended.code}, not {codes}\n{ended.out}\n{ended.err}"
    return ended


def says(ended: Ended, *words: str) -> None:
    """Assert that a command printed each of these."""
    printed = ended.out + ended.err
    absent = [word for word in words if word not in printed]
    assert not absent, f"exit code {ended.code}; not said: {absent}\n{printed}"


def says_not(ended: Ended, *words: str) -> None:
    """Assert that a command printed none of these."""
    printed = ended.out + ended.err
    present = [word for word in words if word in printed]
    assert not present, f"exit code {ended.code}; said: {present}\n{printed}"


def small_torch() -> str:
    """Return the source of a framework that counts steps."""
    text = Path(__file__).with_name("small_torch.py").read_text()
    return text.replace("from __future__ import annotations\n", "")


def fill(index: Index, uv_wheel: Path) -> None:
    """Fill an index; its torch 2.12.1 counts steps, and no stranger is there yet."""
    worlds.fill(index, uv_wheel)
    for name in worlds.STRANGERS:
        for wheel in index.wheels("default").glob(f"{name}-*"):
            wheel.unlink()
    counting_torch(index)


def counting_torch(index: Index) -> None:
    """Let an index's torch 2.12.1 count steps."""
    text = small_torch()
    for wheel in index.wheels("torch").glob("torch-2.12.1*"):
        tag = wheel.stem.split("-", 2)[2]
        wheel.unlink()
        needs = worlds.TORCH_NEEDS
        worlds.package(wheel.parent, "torch", "2.12.1+cpu", needs=needs, tag=tag, text=text)


def project_lines(*lines: str) -> tuple[str, ...]:
    """Return the lines of an envbuilder.yaml for the CPU and Python 3.11, with more of them."""
    base = {"profiles": "profiles: [cpu]", "python": "python: '3.11'"}
    given = {line.partition(":")[0] for line in lines}
    return (*(text for key, text in base.items() if key not in given), *lines)


def project(world: World, *lines: str) -> None:
    """Write such a file."""
    world.write("envbuilder.yaml", "\n".join([*project_lines(*lines), ""]))


RELEASE = "framework_version: '2.12.1'"
"""A release that the world's index has, so that no public hash is taken for it."""


def locked(world: World, *lines: str) -> None:
    """Lock a project with torch 2.12.1 and these lines."""
    project(world, *(lines or ("requirements: [six]",)), RELEASE)
    done(world.envbuilder("lock"))


def built(world: World, *lines: str, alone: bool = False) -> None:
    """Lock and build such a project; its environment is shared, unless it is `alone`."""
    wanted = (*(lines or ("requirements: [six]",)), RELEASE)
    if alone:
        locked(world, *wanted[:-1])
        done(world.envbuilder("build"))
        return
    home = world.take(*project_lines(*wanted))
    project(world, *wanted)
    shutil.copytree(home / "project/envbuilder.lock", world.path("envbuilder.lock"))
    world.history.append("envbuilder lock; envbuilder build")
    world.variables["ENVBUILDER_DATA_DIR"] = str(home / "data")
    world.variables["ENVBUILDER_CACHE_DIR"] = str(home / "cache")


def python(world: World, code: str) -> Ended:
    """Run code in the project's environment."""
    return world.envbuilder("run", "--", "python", "-c", code)


def bash(world: World, script: str, **options: Any) -> Ended:
    """Run a script of bash, in which `envbuilder` is the command line."""
    function = f'envbuilder() {{ {shlex.quote(str(world.program))} "$@"; }}\n'
    return world.run(("bash", "-c", function + script), **options)
