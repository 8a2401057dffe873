"""From a clone to a training: what its user types, and nothing else, whatever lists packages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import ran, succeeded
from tests.support import clones, guides

USUAL = ("requirements", "pep621", "conda")
"""The forms that every run tries: what they list is the same, so there is one environment."""
FORMS = [
    pytest.param(form, marks=pytest.mark.slow if form in USUAL else pytest.mark.soak)
    for form in clones.CLONES
]
TYPED = """\
git clone -q {0} corners
cd corners
envbuilder init 2>../said || sh -c "$(sed -n 's/.*, or run: //p' ../said)"
envbuilder run -- {1}
"""
"""Where `init` says that nothing lists the packages, its user does what it says."""


@pytest.mark.network
@pytest.mark.parametrize("form", FORMS)
def test_a_clone_trains(
    session_environment: dict[str, str], torch_prefix: Path, tmp_path: Path, form: str
) -> None:
    clone = clones.CLONES[form]
    url = clones.commit(clone, tmp_path / "origin")
    done = ran(
        ["sh", "-eu", "-c", TYPED.format(url, clone.program)],
        cwd=tmp_path,
        env=guides.environment(tmp_path / "home", session_environment),
    )
    assert "device cpu, torch 2.13.0" in succeeded(done).stdout
    losses = [*map(float, re.findall(r"^epoch \d loss (\S+)$", done.stdout, re.MULTILINE))]
    assert len(losses) == 3
    assert losses[-1] < losses[0] / 2
