"""Environments and images with an interpreter of their own, from a mirror, by hash."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from envbuilder.core.settings import LOCKS
from tests.conftest import exited, succeeded
from tests.integration.conftest import TINY, Cli, locked
from tests.integration.network.test_layers import built, require_equal
from tests.support.projects import lay_profile
from tests.support.python_archive import Archive, mirrored

PROFILE = (
    TINY
    + """\
python: {default: "3.10", supported: ["3.10"]}
base:
  "3.10": {ref: "python:3.11-slim-bookworm", python_path: /opt/python/bin/python3.10}
"""
)
FACTS = "import json, sys; print(json.dumps([sys.version.split()[0], sys.base_prefix]))"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    return Archive(tmp_path_factory.mktemp("mirror"))


@pytest.fixture
def lock(tmp_path: Path, session_environment: dict[str, str]) -> Path:
    """The lock of a project with Python 3.10."""
    lay_profile(tmp_path, "tiny", PROFILE)
    (tmp_path / "envbuilder.yaml").write_text("profiles: [tiny]\nrequirements: [setuptools]\n")
    locked(tmp_path, "tiny", session_environment)
    return tmp_path / LOCKS / "default.tiny.json"


@pytest.mark.slow
def test_a_machine_without_that_python_gets_the_locks(
    cli: Cli, archive: Archive, lock: Path, tmp_path: Path
) -> None:
    archive.put_into(lock)
    mirror = tmp_path / "mirror"
    mirror.symlink_to(archive.path.parents[1])
    # No interpreter of the user's is found.
    nowhere = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path / "home"), "PYENV_ROOT": ""}
    environment = {**nowhere, **mirrored(mirror.as_uri()), "ENVBUILDER_CACHE_DIR": str(tmp_path)}
    argv = ("--profile", "tiny", "--backend", "venv")
    done = succeeded(cli("build", *argv, "--json", environment=environment))
    prefix = Path(json.loads(done.stdout)["artifact"]["ref"])
    assert "hashes claimed by other locks" in done.stderr
    # Nothing that it is made of is needed any more.
    mirror.unlink()
    (tmp_path / "store").rename(tmp_path / "gone")
    done = succeeded(cli("run", *argv, "--", "python", "-c", FACTS, environment=environment))
    assert json.loads(done.stdout) == [archive.version, f"{prefix}/lib/envbuilder/python"]
    subprocess.run([prefix / "bin/python3", "-c", "import setuptools, zlib"], check=True)
    marker = json.loads((prefix / "envbuilder.json").read_text())
    assert marker["facts"]["python"] == [archive.version, archive.sha256]
    assert marker["base"] == []
    for document in ("sbom.cdx", "provenance"):
        assert archive.sha256 in Path(f"{prefix}.{document}.json").read_text()


@pytest.mark.slow
def test_another_file_than_the_locked_one_is_refused(
    cli: Cli, archive: Archive, lock: Path, tmp_path: Path
) -> None:
    archive.put_into(lock, sha256="0" * 64)
    project = tmp_path / "envbuilder.yaml"
    project.write_text(project.read_text() + "python: managed\n")
    environment = mirrored(archive.path.parents[1].as_uri())
    done = exited(2, cli("build", "--backend", "venv", environment=environment))
    assert "stale" in done.stderr, "the lock was made for whatever the machine has"
    succeeded(cli("lock", environment=environment))
    archive.put_into(lock, sha256="0" * 64)
    done = exited(1, cli("build", "--backend", "venv", environment=environment))
    assert f"expected sha256 {'0' * 64}" in done.stderr


@pytest.mark.engine
@pytest.mark.soak
def test_every_builder_puts_it_on_a_base_with_another_python(
    cli: Cli,
    archive: Archive,
    session_environment: dict[str, str],
    tmp_path: Path,
    base_image: str,
    docker_client: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lay_profile(tmp_path, "tiny", PROFILE)
    archive.put_into(locked(tmp_path, "tiny", session_environment))
    for name, url in mirrored(archive.path.parents[1].as_uri()).items():
        monkeypatch.setenv(name, url)
    require_equal(cli, docker_client, "tiny", base_image)
    ref = built(cli, "tiny", base_image, "layers")["artifact"]["ref"]
    said = docker_client.containers.run(
        ref, ["python", "-c", f"import setuptools; {FACTS}"], remove=True, network_mode="none"
    )
    assert json.loads(said) == [archive.version, "/opt/python"]
