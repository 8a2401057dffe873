"""Files of envbuilder before a project chose its release (f01c616f), kept in `tests/data/before`.

They are read, or refused with 2 and the command that makes them again.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from envbuilder.bundle import format as bundles
from envbuilder.core import resources
from envbuilder.profiles import lock as profile_lock, profile as profiles
from tests.support.command_line import run

KEPT = Path(__file__).parents[2] / "data" / "before"
SHIPPED = resources.profiles_dir()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CACHE", "DATA", "CONFIG"):
        monkeypatch.setenv(f"ENVBUILDER_{name}_DIR", str(tmp_path / name.lower()))
    shutil.copytree(KEPT, tmp_path / "kept")
    monkeypatch.chdir(tmp_path / "kept")
    return tmp_path / "kept"


@pytest.mark.parametrize(
    ("project", "printed"),
    [
        ("torch", "✓ default.cpu              claimed\n✓ default.mps              locked\n"),
        ("tensorflow", "✓ default.tensorflow-cpu   locked\n"),
    ],
)
def test_locks_are_read(
    here: Path,
    project: str,
    printed: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(here / project)
    assert run("check") == 0
    assert capsys.readouterr().out == printed
    name = printed.split()[1].partition(".")[2]
    assert run("render", "--profile", name, "--target", "requirements", "-o", "out") == 0


@pytest.mark.parametrize(
    "command",
    [
        ("check",),
        ("build", "--profile", "jax-cpu", "--backend", "venv"),
        ("sbom", "--profile", "jax-cpu"),
    ],
)
def test_a_lock_that_no_longer_fits_is_2_and_the_way_out_is_named(
    here: Path,
    command: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(here / "jax")
    assert run(*command) == 2
    printed = "".join(capsys.readouterr())
    assert "profile changed after" in printed
    assert re.search(r"^  envbuilder lock", printed, re.MULTILINE)


def test_a_report_is_read(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("compare", "--json", "report.json") == 0
    (report,) = json.loads(capsys.readouterr().out)["reports"]
    assert report["framework"] == "torch 2.13.0+cpu"


def test_a_bundle_is_read(here: Path) -> None:
    manifest = bundles.parse((here / "manifest.json").read_bytes(), "x.tar")
    assert (manifest.profiles, manifest.environment) == (("cpu",), "default")


def test_profiles_of_a_bundle_change_no_others(here: Path) -> None:
    """`unbundle` writes what they extend, too, for which shipped profiles are then read."""
    folders = [here / "profiles", SHIPPED]
    assert profiles.load("cpu", folders).requirements == ("torch==2.13.0+cpu",)
    for name in profiles.names([SHIPPED]):
        shipped = profile_lock.load(SHIPPED / "locks" / f"{name}.json")
        profile = profiles.load(name, folders)
        assert profile_lock.inputs_digest(profile) == shipped.inputs, name
