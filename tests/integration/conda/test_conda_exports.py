"""What `render` writes for conda hides what it must."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import exited, succeeded
from tests.integration.conftest import Cli, locked
from tests.support.conda_server import Served, serve
from tests.support.projects import lay_profile

pytestmark = pytest.mark.network
TOKEN = "s3cret-token"
PROFILE = {
    "description": "For tests",
    "accelerator": "cpu",
    "backends": ["venv", "conda"],
    "platforms": ["linux/amd64", "linux/arm64"],
    "python": {"default": "3.11", "supported": ["3.11"]},
    "tools": {"uv": "0.13.8"},
    "requirements": ["setuptools==80.9.0"],
    "expects": {"device": "cpu", "version": "2.13.0"},
    "conda": {
        "channels": ["lab"],
        "packages": ["tiny-lib"],
        "virtual_packages": {
            "linux/amd64": {"__glibc": "2.36"},
            "linux/arm64": {"__glibc": "2.28"},
        },
    },
}


@pytest.fixture(scope="module")
def wheel_lock(
    session_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> str:
    """The lock of the profile's wheels."""
    folder = tmp_path_factory.mktemp("lab")
    lay_profile(folder, "lab", json.dumps(PROFILE))
    return locked(folder, "lab", session_environment).read_text()


@pytest.fixture
def served(
    cli: Cli, conda_channel: Path, wheel_lock: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Served]:
    """A channel behind a token, a profile with it, and its environment.yml in `out`."""
    lay_profile(tmp_path, "lab", json.dumps(PROFILE))
    (tmp_path / "profiles/locks/lab.json").write_text(wheel_lock)
    with serve(conda_channel, token=TOKEN) as served:
        monkeypatch.setenv("ENVBUILDER_INDEX_LAB", served.secret_url)
        succeeded(cli("render", "--profile", "lab", "--target", "conda", "-o", "out"))
        yield served


def _shown(folder: Path) -> dict[str, str]:
    return {p.name: p.read_text() for p in folder.rglob("*") if p.is_file()}


def test_exports_give_nothing_away(served: Served, tmp_path: Path) -> None:
    shown = _shown(tmp_path / "out")
    assert set(shown) == {"environment.yml", "requirements.txt"}
    assert not any(TOKEN in text or str(tmp_path) in text for text in shown.values())
    for name, text in shown.items():
        assert ("wants credentials" in text) == (name != "requirements.txt")


def test_a_mirror_is_not_exported_and_a_folder_is_refused(
    served: Served, cli: Cli, conda_channel: Path, tmp_path: Path
) -> None:
    folder = {"ENVBUILDER_INDEX_LAB": conda_channel.as_uri()}
    done = exited(2, cli("render", "--profile", "lab", "--target", "conda", environment=folder))
    assert "'lab' is a folder on this machine" in done.stderr
    assert "ENVBUILDER_INDEX_LAB" in done.stderr
    assert done.stdout == ""
    shipped = {"ENVBUILDER_INDEX_CONDA_FORGE": served.url}
    done = succeeded(cli("render", "--profile", "cpu", "--target", "conda", environment=shipped))
    assert '  - "conda-forge"\n' in done.stdout
    assert served.host not in done.stdout
