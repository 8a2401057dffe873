"""The machine that looks for seams: Hypothesis draws the steps, walks perform them."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import Counter
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.seams import draws
from tests.seams.draws import Step
from tests.seams.scene import Trouble
from tests.seams.walk import Key, Walk, key_of, new_walk, replayed, shortest


class Session:
    """What all walks of a run share: bounds, and what was found."""

    def __init__(
        self,
        *,
        folder: Path,
        program: Path | None,
        uv_wheel: Path,
        steps: int = 10**9,
        seconds: float = 10**9,
        shrink_seconds: float = 0,
        findings: Path | None = None,
        shows: bool = False,
    ) -> None:
        self.folder = folder / str(os.getpid())
        self.program = program
        self.uv_wheel = uv_wheel
        self.steps = steps
        self.until = time.monotonic() + seconds
        self.shrink_seconds = shrink_seconds
        self.findings = findings
        self.shows = shows
        self.done = 0
        self.began = time.monotonic()
        self.counts: Counter[Key] = Counter()
        self.new: dict[Key, str] = {}
        """What was found → how to see it."""
        self.steps_of: dict[Key, list[Step]] = {}
        self.hints_tried: set[str] = set()

    @property
    def is_over(self) -> bool:
        """Whether the bounds are reached."""
        return self.done >= self.steps or time.monotonic() > self.until

    def new_walk(self) -> AbstractContextManager[Walk]:
        """Make a world, and begin a walk in it."""
        return new_walk(self.folder, self.program, self.uv_wheel, self.hints_tried)

    def begin(self, step: Step) -> None:
        """Count a step, and show it where that is wanted."""
        self.done += 1
        if self.shows:
            seconds = time.monotonic() - self.began
            print(f"{self.done} {seconds:.0f} {step}", flush=True)

    def note(self, trouble: Trouble, steps: list[Step], history: list[str]) -> None:
        """Note what a step broke; the first of its kind is shortened and written down."""
        key = key_of(trouble)
        self.counts[key] += 1
        if self.counts[key] > 1:
            return
        steps = list(steps)
        if self.shrink_seconds:
            steps = shortest(
                steps, lambda some: self._breaks(some, key), seconds=self.shrink_seconds
            )
            with contextlib.suppress(OSError):
                history = replayed(steps, self.folder, self.program, self.uv_wheel)[1]
        self.new[key] = _shown(trouble, history)
        self.steps_of[key] = steps
        if self.findings:
            found = {
                "invariant": trouble.invariant,
                "command": trouble.command,
                "message": trouble.message,
                "steps": steps,
                "shell": history,
            }
            self.findings.parent.mkdir(parents=True, exist_ok=True)
            with self.findings.open("a") as file:
                print(json.dumps(found), file=file)

    def _breaks(self, steps: Any, key: Key) -> bool:
        found = replayed(steps, self.folder, self.program, self.uv_wheel)[0]
        return key in map(key_of, found)

    def shrink_new(self, *, seconds: float = 60, most: int = 2) -> None:
        """Shorten what was found; only the first few, since all of a world is made anew often."""
        for key, steps in list(self.steps_of.items())[:most]:
            kept = shortest(steps, lambda some, key=key: self._breaks(some, key), seconds=seconds)
            found, history = replayed(kept, self.folder, self.program, self.uv_wheel)
            for trouble in found:
                if key_of(trouble) == key:
                    self.new[key] = _shown(trouble, history)


def _shown(trouble: Trouble, history: list[str]) -> str:
    shell = "\n".join(f"  {line}" for line in history)
    return f"{trouble.invariant}, {trouble.command}: {trouble.message}\n{shell}"


class Machine(RuleBasedStateMachine):
    """Draws steps for walks; each of its objects is one walk."""

    session: Session
    made = 0

    def __init__(self) -> None:
        super().__init__()
        self.world = contextlib.ExitStack()
        of_run = type(self)
        of_run.made += 1
        # The first walk that Hypothesis draws is the simplest: one command, again and again.
        self.is_idle = of_run.made == 1 or self.session.is_over
        if not self.is_idle:
            self.walk = self.world.enter_context(self.session.new_walk())

    def do(self, step: Step) -> None:
        """Perform a step, and note what it breaks."""
        if self.is_idle or self.session.is_over or step == draws.NOTHING:
            return
        self.session.begin(step)
        for trouble in self.walk.perform(step):
            self.session.note(trouble, self.walk.steps, list(self.walk.scene.world.history))

    def leave(self) -> None:
        """Leave a refused state: a command has seen it."""
        if not self.is_idle and self.walk.scene.refused:
            self.do(("recover", {}))

    def change(self, steps: list[Step], look: Step) -> None:
        """Change something, and look at it."""
        if look != draws.NOTHING:
            self.leave()
            for step in (*steps, look):
                self.do(step)

    @initialize(steps=draws.beginnings())
    def start(self, steps: list[Step]) -> None:
        """Write a project."""
        for step in steps:
            self.do(step)

    @rule(steps=draws.EDITS, look=draws.drawn(draws.LOOK))
    def edit(self, steps: list[Step], look: Step) -> None:
        """Change the project, and look at it."""
        self.change(steps, look)

    @rule(steps=draws.EDITS, look=draws.drawn(draws.LOOK))
    def edit_again(self, steps: list[Step], look: Step) -> None:
        """Change what most walks change most."""
        self.change(steps, look)

    @rule(step=draws.SOURCE, look=draws.drawn(draws.SOURCE_LOOK))
    def change_source(self, step: Step, look: Step) -> None:
        """Change a source tree or a repository."""
        self.change([step], look)

    @rule(step=draws.ELSEWHERE, look=draws.drawn(draws.ELSEWHERE_LOOK))
    def change_elsewhere(self, step: Step, look: Step) -> None:
        """Change what is not in the project."""
        self.change([step], look)

    @rule(step=draws.LOCK_HARM, look=draws.drawn(draws.LOCK_LOOK))
    def change_lock(self, step: Step, look: Step) -> None:
        """Do to a lock what others do."""
        self.change([step], look)

    @rule(step=draws.DAMAGE, look=draws.drawn(draws.DAMAGE_LOOK))
    def damage(self, step: Step, look: Step) -> None:
        """Delete something."""
        self.change([step], look)

    @rule(step=draws.drawn(draws.SHARED))
    def share(self, step: Step) -> None:
        """Do what reaches environments by what they share."""
        self.leave()
        self.do(step)

    @rule(step=draws.PLANT, look=draws.drawn(draws.PLANT_LOOK))
    def plant(self, step: Step, look: Step) -> None:
        """Let another user leave something."""
        self.change([step], look)

    @rule(step=draws.drawn(draws.DECIDE))
    def decide(self, step: Step) -> None:
        """Change what decides; `check` must notice."""
        self.leave()
        self.do(step)

    @rule(step=draws.drawn(draws.DECIDE))
    def decide_again(self, step: Step) -> None:
        """Change what decides, as most days do."""
        self.decide(step)

    @rule(step=draws.drawn(draws.COMMAND))
    def command(self, step: Step) -> None:
        """Run a command."""
        self.leave()
        self.do(step)

    @rule(step=draws.drawn(draws.LOOK))
    def look(self, step: Step) -> None:
        """Compare what several commands say."""
        self.leave()
        self.do(step)

    @rule(step=draws.drawn(draws.HARD))
    def hard_command(self, step: Step) -> None:
        """Run a command under hard conditions."""
        self.leave()
        self.do(step)

    def teardown(self) -> None:
        """Remove the world."""
        self.world.close()


def machine_of(session: Session) -> type[RuleBasedStateMachine]:
    """Return a machine whose walks belong to this session."""
    return type("SessionMachine", (Machine,), {"session": session, "made": 0})
