"""Collecting through the real `kubectl`, from a server that answers what was recorded.

No cluster: the server runs nothing, and knows a few requests only (tests/support/api_server.py).
"""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.conftest import missing
from tests.support.api_server import serving
from tests.support.kubernetes import OUTCOMES, RUN
from tests.support.manifests import LEAST

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.conftest import Cli
    from tests.support.api_server import Requests


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Requests]:
    """A server that the context `lab` of kubectl's configuration leads to."""
    if shutil.which("kubectl") is None:
        missing("kubectl", "it is not installed")
    with serving() as (url, requests):
        configuration = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "lab", "cluster": {"server": url}}],
            "users": [{"name": "me", "user": {}}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "me"}}],
        }
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(configuration))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        # For its cache of what the server offers.
        monkeypatch.setenv("HOME", str(tmp_path))
        yield requests


def test_a_run_is_collected(cli: Cli, server: Requests) -> None:
    done = cli("fleet", "collect", "--run", RUN, "--context", "lab", "--namespace", "ml", "--json")
    assert done.returncode == 5, done.stderr
    outcomes = {e["node"]: e["outcome"] for e in json.loads(done.stdout)["summary"]["entries"]}
    # Whose job is gone is not known without the folder.
    assert outcomes == {n: o for n, o in OUTCOMES.items() if n != "vanished"}
    lists = [query for _, path, query in server if path.endswith(("/jobs", "/pods"))]
    assert {query["labelSelector"][0] for query in lists} == {f"envbuilder/run={RUN}"}
    assert {method for method, _, _ in server} == {"GET"}, "it only reads"
    logs = [query for _, path, query in server if path.endswith("/log")]
    assert logs
    assert {query["container"][0] for query in logs} == {"verify"}


def test_the_files_can_be_created(cli: Cli, server: Requests, tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text(
        yaml.safe_dump({"kubernetes": {**LEAST, "namespace": "ml"}})
    )
    assert cli("fleet", "render", "-o", "out").returncode == 0
    done = subprocess.run(
        ["kubectl", "--context", "lab", "create", "--validate=false", "-f", "out"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [each["kind"] for each in server.created] == ["ConfigMap", "Job", "Job"]
    for sent in server.created:
        kind = (
            "data"
            if sent["kind"] == "ConfigMap"
            else f"job-{sent['metadata']['labels']['envbuilder/node']}"
        )
        assert sent == yaml.safe_load((tmp_path / "out" / f"{kind}.yaml").read_text())
