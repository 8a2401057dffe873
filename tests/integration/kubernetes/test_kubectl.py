"""What the real `kubectl` sends of a rendered folder, to a server of the tests; no cluster."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import exited, missing, succeeded
from tests.integration.conftest import Cli
from tests.support.api_server import serving
from tests.support.kubernetes import log_of
from tests.support.manifests import LEAST


def saved_log(run: str, node: str, pod: str) -> str:
    return log_of(node, run_id=f"{run}/{node}/{pod}")


@pytest.fixture
def created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """What a server holds to which kubectl's configuration leads."""
    if shutil.which("kubectl") is None:
        missing("kubectl", "it is not installed")
    with serving(saved_log) as (url, created):
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


def test_the_commands_of_the_readme_create_save_and_show(
    cli: Cli, created: list[dict[str, Any]], tmp_path: Path
) -> None:
    settings = {**LEAST, "namespace": "ml", "nodes": {"cpu-1": "cpu", "cpu-2": "cpu"}}
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump({"kubernetes": settings}))
    assert cli("fleet", "render", "-o", "out").returncode == 0
    folder = tmp_path / "out"
    create, save, _ = (folder / "README.md").read_text().split("\n```\n")[1::2]
    # The server has no schema to validate with.
    create = create.replace("kubectl create", "kubectl create --validate=false")
    # What is there already must not be sent.
    (folder / "results").mkdir()
    (folder / "results" / "old.json").write_text("{}")
    shell(folder, create)
    sent = {f"{each['kind']} {each['metadata']['name']}": each for each in created}
    files = [yaml.safe_load(path.read_text()) for path in folder.glob("*.yaml")]
    assert sent == {f"{each['kind']} {each['metadata']['name']}": each for each in files}
    assert len(created) == 3
    shell(folder, save.replace("envbuilder fleet show .", ""))
    summary = json.loads(exited(5, cli("fleet", "show", "out", "--json")).stdout)["summary"]
    assert [(e["node"], e["outcome"]) for e in summary["entries"]] == [
        ("cpu-1", "unproven"),
        ("cpu-2", "unproven"),
    ]
    assert summary["attested"] is False


def shell(folder: Path, script: str) -> None:
    succeeded(
        subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    )
