"""Walks: steps performed in a new world, what they broke, and the shortest list that breaks it."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.seams import commands, edits, invariants
from tests.seams.draws import Step
from tests.seams.index import Index
from tests.seams.scene import Scene, Trouble
from tests.seams.world import World, fill

assert commands.run
Key = tuple[str, str, str]
_NUMBERS = itertools.count()


def key_of(trouble: Trouble) -> Key:
    """Return what makes two troubles the same."""
    return trouble.invariant, trouble.command, trouble.message[:90]


class Walk:
    """A new world, and what was done to it."""

    def __init__(self, world: World, hints_tried: set[str]) -> None:
        self.scene = Scene(world)
        self.steps: list[Step] = []
        self.hints_tried = hints_tried

    def perform(self, step: Step) -> list[Trouble]:
        """Perform a step; return what must not have happened."""
        self.steps.append(step)
        scene = self.scene
        found: list[Trouble] = []
        name, arguments = step
        original = scene.note

        def note(*args: object, **options: object) -> object:
            act = original(*args, **options)  # type: ignore[arg-type]
            if scene.observing:
                scene.observing = False
                found.extend(invariants.broken(scene, act))
                invariants.remember(scene, act)
                found.extend(invariants.suggested(scene, act, self.hints_tried))
                scene.observing = True
            return act

        scene.note = note  # type: ignore[method-assign, assignment]
        try:
            edits.perform(scene, name, arguments)
        except Exception as error:  # a fault of ours must not end the walks
            found.append(Trouble("machine", name, "".join(traceback.format_exception(error))))
        finally:
            scene.note = original  # type: ignore[method-assign]
        found.extend(scene.troubles)
        scene.troubles.clear()
        return found


@contextlib.contextmanager
def new_walk(
    folder: Path, program: Path | None, uv_wheel: Path, hints_tried: set[str] | None = None
) -> Iterator[Walk]:
    """Make a world with its own index, and remove it afterwards."""
    filled = folder / "filled"
    if not filled.exists():
        fill(Index(filled), uv_wheel)
        for wheel in uv_wheel.parent.glob("*.whl"):  # what builds envbuilder's own, for bundles
            shutil.copy(wheel, filled / "default")
    root = folder / f"w{next(_NUMBERS)}"
    shutil.rmtree(root, ignore_errors=True)
    (root / "x").mkdir(parents=True)
    index = Index(root / "index")
    shutil.copytree(filled, index.folder, copy_function=os.link)
    tried = set() if hints_tried is None else hints_tried
    try:
        with index.served():
            yield Walk(World(root / "x/w", index, program), tried)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def shortest(
    steps: Sequence[Step],
    is_broken: Callable[[Sequence[Step]], bool],
    *,
    seconds: float,
) -> list[Step]:
    """Return the fewest steps that still break it, by deletion; stop after so many seconds."""
    until = time.monotonic() + seconds
    kept = list(steps)
    size = max(1, len(kept) // 2)
    while size:
        position = 0
        while position < len(kept) and time.monotonic() < until:
            fewer = kept[:position] + kept[position + size :]
            if fewer and is_broken(fewer):
                kept = fewer
            else:
                position += size
        size //= 2
    return kept


def replayed(
    steps: Sequence[Step], folder: Path, program: Path | None, uv_wheel: Path
) -> tuple[list[Trouble], list[str]]:
    """Perform steps in a new world; return what they broke, and what a shell would be told."""
    found: list[Trouble] = []
    with new_walk(folder, program, uv_wheel) as walk:
        for step in steps:
            found += walk.perform(step)
        return found, list(walk.scene.world.history)
