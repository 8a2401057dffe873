"""One project on constructed machines: what a container started by `run` gets of their devices.

The project's one `envbuilder.lock/` holds the profiles of four kinds of hardware, with generated
wheels under the names and versions of torch's builds.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import missing, succeeded
from tests.integration.conftest import start
from tests.integration.engine.conftest import PODMAN_BASE
from tests.support import constructed_machine, make_wheels
from tests.support.folders import names_in
from tests.support.projects import lay_profile

TORCH = {
    "cpu": "2.13.0+cpu", "cuda": "2.14.1+cu130", "rocm": "2.14.0+rocm7.2", "xpu": "2.12.1+xpu",
}  # fmt: skip
PROFILE = """\
extends: _{kind}
description: A small environment with a torch that is none
platforms: [linux/amd64]
backends: [docker, venv]
python: {{default: "3.11", supported: ["3.11"]}}
requirements: [torch=={version}]
base:
  "3.11":
    ref: python:3.11-slim-bookworm
    digest: sha256:{digest}
    python_path: /usr/local/bin/python3
    python_version: 3.11.16
system_packages: []
preload: []
expects: {{version: {version}}}
"""
PROJECT = "requirements: [asked]\nprofiles: [cpu, cuda, rocm, xpu]\n"
ASKED = b"""\
import json, os, stat
from pathlib import Path
import torch
ORDINARY = {"null", "zero", "full", "random", "urandom", "tty", "console", "ptmx"}
nodes = {}
for path in sorted(Path("/dev").rglob("*")):
    status = path.lstat()
    inside = str(path.relative_to("/dev"))
    if stat.S_ISCHR(status.st_mode) and inside not in ORDINARY and not inside.startswith("pts/"):
        try:
            path.write_text("x")
        except OSError:
            opened = False
        else:
            opened = True
        nodes[inside] = [oct(stat.S_IMODE(status.st_mode)), status.st_gid, opened]
shared = os.statvfs("/dev/shm")
names = ("NVIDIA_", "CUDA_", "HIP_", "HSA_", "ROCR_", "ZE_", "ONEAPI_", "PROOF")
print(json.dumps({
    "torch": torch.__version__, "nodes": nodes, "by_path": Path("/dev/dri/by-path").is_dir(),
    "user": os.getuid(), "groups": sorted(os.getgroups()),
    "shared_gib": round(shared.f_blocks * shared.f_frsize / 2**30),
    "variables": {k: v for k, v in os.environ.items() if k.startswith(names)},
}))
"""
OWNER = 1000
KFD = 4240
CARD = 4241
RENDER = 4242
AMD = {"kfd": KFD, "dri/card0": CARD, "dri/renderD128": RENDER}
INTEL = {"dri/card0": CARD, "dri/renderD128": RENDER}
BY_PATH = {"dri/by-path/pci-0000:00:02.0-render": "../renderD128"}
NVIDIA = {"nvidiactl": KFD, "nvidia0": KFD, "nvidia-uvm": KFD}
PLAIN = {
    "nodes": {}, "by_path": False, "user": OWNER, "groups": [OWNER], "shared_gib": 1,
    "variables": {},
}  # fmt: skip
ON_RADEON = PLAIN | {
    "torch": TORCH["rocm"],
    "nodes": {
        "kfd": ["0o660", KFD, True],
        "dri/card0": ["0o660", CARD, False],
        "dri/renderD128": ["0o660", RENDER, True],
    },
    "groups": [OWNER, KFD, RENDER],
}


class Project:
    """The project, locked for all of its profiles, and how it is run."""

    def __init__(self, folder: Path, base: str, environment: dict[str, str]) -> None:
        self.folder = folder
        self.base = base
        self.environment = environment

    def ask(
        self, machine: constructed_machine.Machine, *options: str, base: str = "", **variables: str
    ) -> dict[str, Any]:
        """What a command finds in a container, started on a machine."""
        started = [sys.executable, "-m", "envbuilder", "run"]
        command = [*started, *options, "--", "python", "-m", "asked"]
        variables["ENVBUILDER_BASE_IMAGE"] = base or self.base
        done = machine.run(command, self.folder, {**self.environment, **variables})
        if "cannot be reached" in done.stderr:
            missing("network", f"uv cannot be had here: {done.stderr[-400:]}")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@pytest.fixture(scope="module")
def project(
    base_image: str,
    docker_client: Any,
    session_environment: dict[str, str],
    no_network: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Project]:
    if why := constructed_machine.unsupported():
        missing("machine", why)
    folder = tmp_path_factory.mktemp("project")
    wheels = tmp_path_factory.mktemp("wheels")
    make_wheels.write(wheels, "asked", {"asked.py": ASKED})
    for kind, version in TORCH.items():
        text = f"__version__ = {version!r}\n".encode()
        make_wheels.write(wheels, "torch", {"torch/__init__.py": text}, version=version)
        lay_profile(folder, kind, PROFILE.format(kind=kind, version=version, digest="0" * 64))
    (folder / "envbuilder.yaml").write_text(PROJECT)
    os.chown(folder, OWNER, OWNER)
    environment = {
        **session_environment,
        **no_network,
        "ENVBUILDER_DATA_DIR": str(tmp_path_factory.mktemp("data")),
        "ENVBUILDER_TRUSTED_FOLDERS": str(folder),
        "PIP_FIND_LINKS": str(wheels),
    }
    done = start(("lock",), environment, cwd=folder)
    assert done.returncode != 2, f"{done.stdout}{done.stderr}"
    if done.returncode != 0:
        missing("network", f"the package index cannot be asked: {done.stdout}{done.stderr}")
    locks = names_in(folder / "envbuilder.lock")
    assert locks == {f"default.{kind}.json" for kind in TORCH}
    yield Project(folder, base_image, environment)
    succeeded(start(("clean", "--yes"), environment, cwd=folder))


def test_a_radeons_nodes_are_given_and_its_groups_joined(project: Project, tmp_path: Path) -> None:
    assert project.ask(constructed_machine.Machine("rx7900", tmp_path, AMD)) == ON_RADEON


def test_a_gpu_that_nothing_serves_is_hidden_inside_too(project: Project, tmp_path: Path) -> None:
    both = AMD | {"dri/renderD129": RENDER}
    found = project.ask(constructed_machine.Machine("amd-igpu-and-rx7900", tmp_path, both))
    nodes = {**ON_RADEON["nodes"], "dri/renderD129": ["0o660", RENDER, True]}
    variables = {"HIP_VISIBLE_DEVICES": "0"}
    assert found == ON_RADEON | {"nodes": nodes, "variables": variables}


@pytest.mark.slow
def test_podman_gives_the_same(project: Project, alone: dict[str, str], tmp_path: Path) -> None:
    variables = {**alone, "ENVBUILDER_DATA_DIR": str(tmp_path / "data")}
    try:
        inside = project.ask(
            constructed_machine.Machine("rx7900", tmp_path, AMD), base=PODMAN_BASE, **variables
        )
    finally:
        start(("clean", "--yes"), {**project.environment, **variables}, cwd=project.folder)
    assert inside == ON_RADEON


def test_an_arcs_nodes_are_given_and_its_group_joined(project: Project, tmp_path: Path) -> None:
    assert project.ask(
        constructed_machine.Machine("arc-b580", tmp_path, INTEL, BY_PATH)
    ) == PLAIN | {
        "torch": TORCH["xpu"],
        "nodes": {
            "dri/card0": ["0o660", CARD, False],
            "dri/renderD128": ["0o660", RENDER, True],
        },
        "groups": [OWNER, RENDER],
        "by_path": True,
    }


def test_without_a_gpu_a_container_gets_no_node(project: Project, tmp_path: Path) -> None:
    assert project.ask(constructed_machine.Machine("zen3", tmp_path, {})) == PLAIN | {
        "torch": TORCH["cpu"]
    }


def test_nvidias_gpus_come_through_cdi(
    project: Project, tmp_path: Path, docker_client: Any
) -> None:
    folder = os.environ.get("ENVBUILDER_TEST_CDI_DIR", "")
    if not folder or folder not in (docker_client.info().get("CDISpecDirs") or ()):
        missing("cdi", "the engine reads no CDI files from ENVBUILDER_TEST_CDI_DIR")
    nodes = [
        {"path": f"/dev/{name}", "type": "c", "major": 1, "minor": 3, "fileMode": 0o666}
        for name in NVIDIA
    ]
    edits = {"env": ["PROOF=cdi"], "deviceNodes": nodes}
    devices = [{"name": "all", "containerEdits": edits}]
    file = Path(folder) / "nvidia.json"
    file.write_text(
        json.dumps({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices})
    )
    try:
        # Only NVML could say that the GPU works, and there is none: the profile is named.
        inside = project.ask(
            constructed_machine.Machine("rtx4090", tmp_path, NVIDIA), "--profile", "cuda"
        )
    finally:
        file.unlink()
    assert inside == PLAIN | {
        "torch": TORCH["cuda"],
        "nodes": {name: ["0o666", 0, True] for name in NVIDIA},
        "variables": {
            "NVIDIA_VISIBLE_DEVICES": "all",
            "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
            "PROOF": "cdi",
        },
    }
