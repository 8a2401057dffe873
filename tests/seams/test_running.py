"""Random walks over what runs in an environment."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.seams.machine import Session
from tests.seams.running import drawn, run

SEED = 41
SECONDS = 40
MEMORY = Path("/dev/shm")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory, where there is one."""
    above = MEMORY if MEMORY.is_dir() else None
    made = Path(tempfile.mkdtemp(prefix="running-", dir=above))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.quiet
def test_walks_with_a_fixed_seed_find_nothing(folder: Path, uv_wheel: Path) -> None:
    session = Session(folder=folder, program=None, uv_wheel=uv_wheel, steps=25, seconds=SECONDS)
    run(session, seed=SEED)
    session.shrink_new(seconds=30)
    assert session.done > 5
    assert not session.new, "\n\n".join(session.new.values())


@pytest.mark.soak
def test_a_thousand_steps_find_nothing(folder: Path, uv_wheel: Path) -> None:
    seed = random.randrange(2**32)
    session = Session(
        folder=folder, program=None, uv_wheel=uv_wheel, steps=1000, shrink_seconds=180
    )
    run(session, seed=seed, walk=15)
    print(f"seed {seed}: {session.done} steps")
    assert not session.new, "\n\n".join(session.new.values())


def test_steps_are_data() -> None:
    steps = [drawn(random.Random(number)) for number in range(50)]
    assert {name for name, _ in steps} == {"ran", "harmed"}
