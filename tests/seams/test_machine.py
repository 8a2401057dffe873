"""Random walks over the real command line: with a fixed seed, which gates, and with a fresh one."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.seams.__main__ import run
from tests.seams.edits import STEPS
from tests.seams.hints import found_in, is_usage_error
from tests.seams.machine import Session
from tests.seams.walk import shortest

SEED = 41
SECONDS = 140
"""How long the gating walks may take; on a slow machine they end before their last step."""
MEMORY = Path("/dev/shm")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory, where there is one: the walks copy their worlds often."""
    above = MEMORY if MEMORY.is_dir() else None
    made = Path(tempfile.mkdtemp(prefix="seams-", dir=above))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.quiet
def test_walks_with_a_fixed_seed_find_nothing(folder: Path, uv_wheel: Path) -> None:
    session = Session(folder=folder, program=None, uv_wheel=uv_wheel, steps=60, seconds=SECONDS)
    run(session, seed=SEED, walk=14)
    session.shrink_new()
    assert session.done > 5
    assert not session.new, "\n\n".join(session.new.values())


@pytest.mark.slow
@pytest.mark.quiet
def test_walks_with_a_fresh_seed_report_what_they_find(folder: Path, uv_wheel: Path) -> None:
    seed = random.randrange(2**32)
    session = Session(folder=folder, program=None, uv_wheel=uv_wheel, seconds=60)
    run(session, seed=seed, walk=14)
    if session.new:
        print(f"seed {seed}, {session.done} steps; not failed, but to be looked at:")
        print(*session.new.values(), sep="\n\n")


@pytest.mark.soak
def test_thousands_of_steps_find_nothing(folder: Path, uv_wheel: Path) -> None:
    seed = random.randrange(2**32)
    session = Session(
        folder=folder, program=None, uv_wheel=uv_wheel, steps=3000, shrink_seconds=180
    )
    run(session, seed=seed)
    print(f"seed {seed}: {session.done} steps")
    assert not session.new, "\n\n".join(session.new.values())


def test_steps_that_do_not_matter_are_left_out() -> None:
    steps = [(name, {}) for name in "abcdefgh"]
    kept = shortest(steps, lambda some: {"b", "g"} <= {s[0] for s in some}, seconds=10)
    assert [name for name, _ in kept] == ["b", "g"]


def test_commands_are_found_in_sentences_and_in_lines_of_their_own() -> None:
    text = (
        "error: stale\nMake it again: envbuilder lock --profile cpu, then build.\n"
        "To add it:\n  envbuilder add \"rich>=13; sys_platform == 'linux'\"\n"
        "envbuilder itself failed; see envbuilder add NAME\n"
        "#   envbuilder render --profile cpu > requirements.txt\n"
    )
    assert [hint.text for hint in found_in(text)] == [
        "envbuilder lock --profile cpu",
        "envbuilder add \"rich>=13; sys_platform == 'linux'\"",
        "envbuilder render --profile cpu > requirements.txt",
    ]


def test_usage_errors_are_told_from_other_failures() -> None:
    assert is_usage_error(2, "error: No such option '--ouput'.")
    assert not is_usage_error(2, "error: the lock is stale")


def test_each_step_has_a_name_that_a_file_can_hold() -> None:
    assert {"command", "set_key", "recover", "settled", "interrupted"} <= set(STEPS)
