"""How a workflow's jobs get envbuilder: from a wheel that is this very version, or from none."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from envbuilder import __version__
from envbuilder.bundle import self_wheel
from envbuilder.core.files import file_sha256
from envbuilder.core.settings import load as load_settings
from envbuilder.packages.python.uv import Offer
from tests.integration.conftest import start
from tests.support import examples
from tests.support.index_server import serve

pytestmark = pytest.mark.slow

OPTIONS = ("ci", "--provider", "github", "--profile", "cpu", "--output", "ci.yml")


@pytest.mark.parametrize("more", [{}, {"envbuilder/more.py": "import os"}], ids=["own", "another"])
def test_a_release_counts_if_its_files_are_these(
    more: dict[str, str], session_environment: dict[str, str], tmp_path: Path
) -> None:
    """Anybody can register the name, and say that it is this version."""
    own = self_wheel.wheel(load_settings(session_environment))
    path = tmp_path / own.file
    path.write_bytes(own.content)
    with zipfile.ZipFile(path, "a") as archive:
        for name, text in more.items():
            archive.writestr(name, text)
    examples.copy(examples.LOCKED, tmp_path / "project")
    offer = Offer(
        distribution="envbuilder-ml",
        version=__version__,
        file=own.file,
        sha256=file_sha256(path),
        source="pypi",
        provenance="read",
        by="a test",
        location=str(path),
    )
    with serve([offer]) as url:
        environment = {**session_environment, "PIP_EXTRA_INDEX_URL": url}
        done = start(OPTIONS, environment, cwd=tmp_path / "project")
    written = tmp_path / "project/ci.requirements.txt"
    if more:
        assert done.returncode == 2, done.stderr
        assert "whose files differ from this installation" in done.stderr
        assert not written.exists()
        return
    assert done.returncode == 0, done.stderr
    lines = written.read_text().splitlines()
    assert lines[2] == f"envbuilder-ml=={__version__} --hash=sha256:{offer.sha256}"
    pins = [line for line in lines[3:] if not line.startswith("    --hash=sha256:")]
    assert {"click", "msgspec", "uv"} <= {pin.partition("==")[0] for pin in pins}
    for pin in pins:
        assert "==" in pin
        assert pin.endswith("\\")
