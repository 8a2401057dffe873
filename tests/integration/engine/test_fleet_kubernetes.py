"""What a rendered Job starts, in a real image; what a kubelet would do is done by `docker run`."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from envbuilder.payload.report import UNREPEATED
from tests.integration.conftest import Cli

NODE = "cpu-1.example.internal"
CPU = ("--profile", "cpu", "--backend", "docker", "--base-image")


@pytest.fixture
def job(cli: Cli, base_image: str, tmp_path: Path) -> dict[str, Any]:
    """The rendered Job; its image is in the engine, and its data are in `data`."""
    done = cli("build", *CPU, base_image, "--json")
    assert done.returncode == 0, done.stderr
    images = {"cpu": json.loads(done.stdout)["artifact"]["ref"]}
    settings = {"kubernetes": {"images": images, "nodes": {NODE: "cpu"}}}
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(settings))
    assert cli("fleet", "render", "-o", "out").returncode == 0
    folder = tmp_path / "data"
    folder.mkdir(mode=0o755)
    carried = yaml.safe_load((tmp_path / "out" / "data.yaml").read_text())["binaryData"]
    for name, text in carried.items():
        (folder / name).write_bytes(base64.b64decode(text))
    manifest: dict[str, Any] = yaml.safe_load((tmp_path / "out" / f"job-{NODE}.yaml").read_text())
    return manifest


@pytest.mark.slow
def test_the_container_of_a_job_proves_its_node(
    cli: Cli, docker_client: Any, job: dict[str, Any], tmp_path: Path
) -> None:
    del docker_client
    (container,) = job["spec"]["template"]["spec"]["containers"]
    variables = {
        "ENVBUILDER_NODE": NODE,
        "ENVBUILDER_POD": f"{job['metadata']['name']}-x7k2p",
    }
    assert {each["name"] for each in container["env"]} == set(variables)
    arguments = container["args"]
    for name, value in variables.items():
        arguments = [word.replace(f"$({name})", value) for word in arguments]
    done = subprocess.run(
        [
            *("docker", "run", "--rm", "--network", "none", "--shm-size", "1g"),
            *("--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
            *("--volume", f"{tmp_path / 'data'}:/data:ro"),
            *(word for pair in variables.items() for word in ("--env", "=".join(pair))),
            *(container["image"], *arguments),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,  # as in the log of a pod
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout
    (tmp_path / "out" / "results").mkdir()
    path = tmp_path / "out" / "results" / f"{job['metadata']['name']}.json"
    path.write_text(done.stdout)
    shown = cli("fleet", "show", "out", "--json")
    assert shown.returncode == 5, shown.stderr
    (entry,) = json.loads(shown.stdout)["summary"]["entries"]
    assert (entry["outcome"], entry["detail"]) == ("unproven", UNREPEATED)
    assert (entry["node"], entry["profile"], entry["accelerator"]) == (NODE, "cpu", "cpu")
    assert entry["pod"] == variables["ENVBUILDER_POD"]
