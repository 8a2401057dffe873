"""Manifests are what the schema of Kubernetes says, by `kubernetes-validate`, which carries it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.conftest import missing, succeeded
from tests.integration.conftest import Cli
from tests.support.manifests import FULL, LEAST

OLD, NEW = "1.30.0", "1.37.0"


@pytest.fixture
def validate() -> str:
    beside = str(Path(sys.executable).parent)
    name = "kubernetes-validate"
    program = shutil.which(name, path=beside) or shutil.which(name)
    if program is None:
        missing("kubernetes", f"{name} is not installed")
    return program


def refusals(validate: str, version: str, *paths: Path) -> str:
    done = subprocess.run(
        [validate, "--strict", "--quiet", "--kubernetes-version", version, *map(str, paths)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) == (not done.stdout + done.stderr), done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(("settings", "version"), [(FULL, OLD), (LEAST, NEW)], ids=[OLD, NEW])
def test_the_strict_schema_accepts_all_files(
    cli: Cli, tmp_path: Path, validate: str, settings: object, version: str
) -> None:
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump({"kubernetes": settings}))
    done = succeeded(cli("fleet", "render", "-o", "out"))
    files = [Path(tmp_path, line) for line in done.stdout.splitlines() if line.endswith("yaml")]
    assert len(files) == 3
    assert refusals(validate, version, *files) == ""


def test_the_strict_schema_accepts_a_training_across_nodes(
    cli: Cli, tmp_path: Path, validate: str
) -> None:
    settings = {**LEAST, "nodes": {"a": "cuda", "b": "cuda"}, "shared": {"claim": "scratch"}}
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump({"kubernetes": settings}))
    done = succeeded(cli("fleet", "render", "--ddp", "-o", "out"))
    files = [Path(tmp_path, line) for line in done.stdout.splitlines() if line.endswith("yaml")]
    assert len(files) == 3
    assert refusals(validate, NEW, *files) == ""


def test_the_schema_notices_an_unknown_field(cli: Cli, tmp_path: Path, validate: str) -> None:
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump({"kubernetes": LEAST}))
    assert cli("fleet", "render", "-o", "out").returncode == 0
    path = tmp_path / "out" / "job-gpu-1.yaml"
    path.write_text(path.read_text().replace("backoffLimit", "backOffLimit"))
    assert "backOffLimit" in refusals(validate, NEW, path)
