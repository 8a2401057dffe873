"""What a rendered Job starts, in a real image; what a kubelet would do is done by `docker run`."""

from __future__ import annotations

import base64
import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from envbuilder.core import resources
from envbuilder.fleet.kubernetes import collect, log
from envbuilder.fleet.kubernetes.jobs import SUBSET
from envbuilder.fleet.kubernetes.objects import JobList, PodList, parse
from envbuilder.fleet.kubernetes.stated import read
from envbuilder.payload.report import UNREPEATED
from envbuilder.payload.training.dataset import load
from envbuilder.profiles import profile as profiles

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.fleet.kubernetes.objects import JobObject, PodObject
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


class OnePod:
    """A client that knows one pod, which ended as a container here did."""

    def __init__(self, job: dict[str, Any], name: str, code: int, printed: str) -> None:
        self._job, self._name, self._code, self._printed = job, name, code, printed

    def jobs(self, run: str) -> tuple[JobObject, ...]:
        assert run == self._job["metadata"]["labels"]["envbuilder/run"]
        content = json.dumps({"items": [self._job]}).encode()
        return parse(content, JobList, "here").items

    def pods(self, run: str) -> tuple[PodObject, ...]:
        del run
        times = {"startedAt": "2026-11-23T09:00:00Z", "finishedAt": "2026-11-23T09:10:00Z"}
        ended = {"exitCode": self._code, "reason": "Completed", **times}
        pod = {
            "metadata": {
                "name": self._name,
                "labels": {"job-name": self._job["metadata"]["name"]},
            },
            "spec": {"nodeName": NODE},
            "status": {
                "phase": "Failed" if self._code else "Succeeded",
                "containerStatuses": [{"name": "verify", "state": {"terminated": ended}}],
            },
        }
        return parse(json.dumps({"items": [pod]}).encode(), PodList, "here").items

    def log(self, pod: str) -> str:
        assert pod == self._name
        return self._printed


@pytest.mark.slow
def test_the_container_of_a_job_proves_its_node(
    docker_client: Any, job: dict[str, Any], tmp_path: Path
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
    printed = log.read(done.stdout)
    assert printed.report is not None
    isolation = next(c for c in printed.report["checks"] if c["name"] == "isolation")
    assert isolation["status"] == "passed"

    (stated,) = read(tmp_path / "out")
    work = collect.Work(
        run=stated.run,
        subset=True,
        data=load(resources.mnist_subset_dir(), SUBSET),
        profiles={"cpu": profiles.load("cpu", (resources.profiles_dir(),))},
    )
    client = OnePod(job, variables["ENVBUILDER_POD"], done.returncode, done.stdout)
    (collected,) = collect.collect(work, [stated], client, lambda: None)
    entry = collected.judged.entry
    assert (entry.outcome, entry.detail) == ("unproven", UNREPEATED)
    assert (entry.node, entry.profile, entry.accelerator) == (NODE, "cpu", "cpu")
