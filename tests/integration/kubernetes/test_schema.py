"""The guide's Job is what the schema of Kubernetes says, by `kubernetes-validate`, which has it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.conftest import missing, ran
from tests.support.kubernetes import job_text


def refusals(version: str, *paths: Path) -> str:
    name = "kubernetes-validate"
    program = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if program is None:
        missing("kubernetes", f"{name} is not installed")
    done = ran([program, "--strict", "--quiet", "--kubernetes-version", version, *paths])
    assert (done.returncode == 0) == (not done.stdout + done.stderr), done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("version", [pytest.param("1.30.0", marks=pytest.mark.slow), "1.37.0"])
def test_the_strict_schema_accepts_the_guides_job_and_notices_an_unknown_field(
    tmp_path: Path, version: str
) -> None:
    right, wrong = tmp_path / "right.yaml", tmp_path / "wrong.yaml"
    right.write_text(job_text())
    wrong.write_text(job_text().replace("backoffLimit", "backOffLimit"))
    refused = refusals(version, right, wrong)
    assert "backOffLimit" in refused
    assert "right.yaml" not in refused
