"""Every rendered Dockerfile passes hadolint."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.conftest import missing, ran, succeeded

GOLDEN = Path(__file__).parents[2] / "golden"
DOCKERFILES = sorted(GOLDEN.glob("*/dockerfile/Dockerfile"))


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda p: p.parent.parent.name)
def test_hadolint_accepts(path: Path) -> None:
    program = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which(
        "hadolint"
    )
    if program is None:
        missing("hadolint", "it is not installed (python3 bootstrap.py setup dev)")
    succeeded(ran([program, "--no-color", path]))


def test_there_are_dockerfiles() -> None:
    assert len(DOCKERFILES) >= 6
