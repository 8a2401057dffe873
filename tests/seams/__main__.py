"""Walk for long, and append what was found to a file: python -m tests.seams --help."""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.seams import running
from tests.seams.machine import Session, machine_of
from tests.seams.walk import replayed


def main() -> None:
    """Walk, or perform the steps of a file again."""
    parser = argparse.ArgumentParser(prog="python -m tests.seams")
    parser.add_argument("--program", type=Path, help="the envbuilder to try")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--shrink", type=float, default=0, help="seconds for each finding")
    parser.add_argument("--findings", type=Path, default=Path("build/seams.jsonl"))
    parser.add_argument("--folder", type=Path, default=Path("/dev/shm/seams"))
    parser.add_argument("--uv", type=Path, required=True, help="the wheel of uv")
    parser.add_argument("--replay", type=Path, help="a file with a list of steps, as JSON")
    parser.add_argument("--running", action="store_true", help="walk over what runs")
    parser.add_argument("--show", action="store_true", help="print each step")
    options = parser.parse_args()
    if options.replay:
        steps = [(name, arguments) for name, arguments in json.loads(options.replay.read_text())]
        troubles, history = replayed(steps, options.folder, options.program, options.uv)
        print(*history, "", *troubles, sep="\n")
        sys.exit(bool(troubles))
    session = Session(
        folder=options.folder,
        program=options.program,
        uv_wheel=options.uv,
        steps=options.steps,
        shrink_seconds=options.shrink,
        findings=options.findings,
        shows=options.show,
    )
    walks = running.run if options.running else run
    walks(session, seed=options.seed)
    minutes = (time.monotonic() - session.began) / 60
    print(f"seed {options.seed}: {session.done} steps in {minutes:.1f} minutes")
    for key, count in sorted(session.counts.items()):
        print(count, *key, sep=" | ")


def run(session: Session, *, seed: int, walk: int = 25) -> None:
    """Walk until the session's steps or seconds are used up."""
    configured = settings(
        max_examples=50,
        stateful_step_count=walk,
        phases=[Phase.generate],
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    while not session.is_over:
        run_state_machine_as_test(hypothesis.seed(seed)(machine_of(session)), settings=configured)
        seed += 1


if __name__ == "__main__":
    main()
