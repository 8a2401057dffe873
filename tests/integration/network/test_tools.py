"""The uv installed beside envbuilder installs nothing: builds take the locked one.

The store is filled first, since the installed uv is what finds files in indexes.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import exited
from tests.integration.conftest import lay_tiny, locked, start
from tests.support.arm_host import arm_host
from tests.support.images import BASE, image as small_image
from tests.support.projects import lay_profile

ARM = """\
extends: _cpu
description: A package with a compiled part, for a platform that this machine may not have
platforms: [linux/amd64, linux/arm64]
requirements: [markupsafe==3.0.2]
system_packages: []
preload: []
bytecode: false
expects:
  version: 2.13.0+cpu
"""
PACKAGE = """\
raise ImportError("no uv here")
"""
OTHER = """\
def find_uv_bin():
    return {program!r}
"""
PROGRAM = """\
#!/bin/sh
echo "$@" >> {log}
echo "uv {version}"
exit 70
"""


@pytest.fixture(scope="module")
def project(session_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with the locked profiles `tiny` and `arm`."""
    folder = tmp_path_factory.mktemp("tools")
    lay_tiny(folder)
    lay_profile(folder, "arm", ARM)
    for name in ("tiny", "arm"):
        locked(folder, name, session_environment)
    return folder


def beside(version: str, tmp_path: Path) -> dict[str, str]:
    """Variables with which another uv, or none, is installed beside envbuilder and on PATH.

    It fails whatever it is asked, and notes that it was.
    """
    packages = tmp_path / "packages"
    programs = tmp_path / "programs"
    (packages / "uv").mkdir(parents=True)
    programs.mkdir()
    if version:
        program = programs / "uv"
        program.write_text(PROGRAM.format(log=tmp_path / "asked", version=version))
        program.chmod(0o755)
        (packages / "uv/__init__.py").write_text(OTHER.format(program=str(program)))
        info = packages / f"uv-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: uv\nVersion: {version}\n")
    else:
        (packages / "uv/__init__.py").write_text(PACKAGE)
    return {
        "PYTHONPATH": str(packages),
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "UV": str(programs / "uv"),
    }


def built(
    project: Path, environment: dict[str, str], *arguments: str | Path, code: int = 0
) -> dict[str, Any]:
    done = start(("build", *map(str, arguments), "--json"), environment, cwd=project)
    assert done.returncode == code, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "version"),
    [
        pytest.param("venv", "99.0", marks=pytest.mark.slow),
        ("venv", ""),
        ("image", "99.0"),
        ("another platform", "99.0"),
        ("another platform", "0.0.1"),
        ("another platform", ""),
    ],
)
def test_a_build_takes_the_uv_of_the_lock(
    kind: str, version: str, project: Path, session_environment: dict[str, str], tmp_path: Path
) -> None:
    arguments: tuple[str | Path, ...] = ("--profile", "tiny", "--backend", "venv", "--rebuild")
    if kind != "venv":
        architecture = "amd64" if kind == "image" else "arm64"
        base = small_image(tmp_path / "base", (BASE,), architecture)
        arguments = ("--profile", "arm", "--base-image", f"oci:{base.folder}", "--rebuild")
        arguments += ("--output", f"oci:{tmp_path / 'image'}")
    if kind == "another platform":
        arguments += ("--target-host", arm_host(session_environment, tmp_path))
    usual = built(project, session_environment, *arguments)
    environment = (
        session_environment
        | beside(version, tmp_path)
        | {"ENVBUILDER_DATA_DIR": str(tmp_path / "data")}
    )
    other = built(project, environment, *arguments)
    assert not (tmp_path / "asked").exists(), (tmp_path / "asked").read_text()
    assert other["artifact"]["digest"] == usual["artifact"]["digest"]
    assert other["fingerprint"] == usual["fingerprint"]
    assert other["made_by"]["uv"] == "0.13.8"


def test_without_any_uv_what_must_be_fetched_is_4(
    project: Path, session_environment: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "uv").mkdir()
    (tmp_path / "uv/__init__.py").write_text(PACKAGE)
    environment = {
        **session_environment,
        "PYTHONPATH": str(tmp_path),
        "ENVBUILDER_CACHE_DIR": str(tmp_path / "cache"),
        "ENVBUILDER_DATA_DIR": str(tmp_path / "data"),
        "PIP_FIND_LINKS": "",
    }
    for arguments in (
        ("build", "--profile", "tiny", "--backend", "venv"),
        ("lock", "--profile", "tiny", "--output-dir", "out"),
    ):
        done = exited(4, start(arguments, environment, cwd=project))
        assert "uv: not found" in done.stderr
        assert "pip install uv" in done.stderr
