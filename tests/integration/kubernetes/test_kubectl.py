"""What the real `kubectl` sends of a rendered folder, to a server of the tests; no cluster."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.conftest import missing
from tests.support.api_server import serving
from tests.support.manifests import LEAST

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.conftest import Cli


@pytest.fixture
def created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """What a server holds to which kubectl's configuration leads."""
    if shutil.which("kubectl") is None:
        missing("kubectl", "it is not installed")
    with serving() as (url, created):
        configuration = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "lab", "cluster": {"server": url}}],
            "users": [{"name": "me", "user": {}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "me"}}],
            "current-context": "lab",
        }
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(configuration))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        # For its cache of what the server offers.
        monkeypatch.setenv("HOME", str(tmp_path))
        yield created


def test_the_files_can_be_created(cli: Cli, created: list[dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text(
        yaml.safe_dump({"kubernetes": {**LEAST, "namespace": "ml"}})
    )
    assert cli("fleet", "render", "-o", "out").returncode == 0
    done = subprocess.run(
        ["kubectl", "create", "--validate=false", "-f", "out"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    sent = {f"{each['kind']} {each['metadata']['name']}": each for each in created}
    files = [yaml.safe_load(path.read_text()) for path in (tmp_path / "out").glob("*.yaml")]
    assert sent == {f"{each['kind']} {each['metadata']['name']}": each for each in files}
    assert len(created) == 3
