"""One project with one `envbuilder.lock/`, decided on constructed machines of every kind.

What a container really gets of devices is in engine/test_devices.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envbuilder.builds.backends import devices
from envbuilder.containers.engine.container import Devices
from envbuilder.core.settings import load as load_settings
from envbuilder.project import variants
from tests.conftest import exited, succeeded
from tests.integration.conftest import Cli
from tests.support import examples, host_trees

RENDER = 992
GROUP = 44
"""The groups of render nodes and of every other node on the constructed machines."""
NONE = Devices(shm_size="1g")
NVIDIA = Devices(gpus="all", shm_size="1g")
AMD = Devices(nodes=("/dev/kfd", "/dev/dri"), groups=(GROUP, RENDER), shm_size="1g")
INTEL = Devices(nodes=("/dev/dri",), groups=(RENDER,), shm_size="1g")
NATIVE = ("--backend", "venv")
IMAGE = ("--output", "image.tar")
AMD64 = "linux/amd64"
ARM64 = "linux/arm64"
ON_PYPI = "torch-2.13.0-cp311-cp311-"

# The machine → how it is built for, the platform, the profile, torch's wheel, the device's flags.
HOSTS: dict[str, tuple[tuple[str, ...], str, str, str, Devices]] = {
    "rtx4090": (NATIVE, AMD64, "cuda", ON_PYPI, NVIDIA),
    "h100-eight-nvlink": (NATIVE, AMD64, "cuda", ON_PYPI, NVIDIA),
    "gh200": (IMAGE, ARM64, "cuda", ON_PYPI, NVIDIA),
    "p100": (NATIVE, AMD64, "cuda-legacy", "torch-2.13.0+cu126-cp311-", NVIDIA),
    "rx7900": (NATIVE, AMD64, "rocm", "torch-2.14.0+rocm7.2-cp311-", AMD),
    "strix-halo": (NATIVE, AMD64, "rocm", "torch-2.14.0+rocm7.2-cp311-", AMD),
    "arc-b580": (NATIVE, AMD64, "xpu", "torch-2.12.1+xpu-cp311-", INTEL),
    "zen4-epyc": (NATIVE, AMD64, "cpu", "torch-2.13.0+cpu-cp311-", NONE),
    "skylake-sp": (IMAGE, AMD64, "cpu", "torch-2.13.0+cpu-cp311-", NONE),
    "graviton3": (IMAGE, ARM64, "cpu", "torch-2.13.0+cpu-cp311-", NONE),
    # Nothing can be read of it, not even the architecture.
    "bare": (IMAGE, AMD64, "cpu", "torch-2.13.0+cpu-cp311-", NONE),
}
NO_ENGINE = {"DOCKER_HOST": "unix:///nonexistent", "PATH": "/nonexistent"}


def recording(name: str) -> str:
    return str(host_trees.FOLDER / f"{name}.json")


def access(name: str, profile: str, project: Path) -> Devices:
    """What a container of the project's profile gets on a constructed machine."""
    settings = load_settings({"ENVBUILDER_CONFIG_DIR": str(project / "config")}, project)
    paths = [Path("/", path) for path in host_trees.load(name)["nodes"]]
    nodes = {str(p): RENDER if p.match("/dev/dri/renderD*") else GROUP for p in paths}
    nodes |= {str(p.parent): 0 for p in paths if p.parent.name == "dri"}
    return devices.devices(variants.library(settings).profile(profile), nodes)


@pytest.mark.parametrize("name", HOSTS)
def test_each_machine_takes_its_own_build_from_the_one_lock(
    name: str, cli: Cli, tmp_path: Path
) -> None:
    how, platform, profile, wheel, expected = HOSTS[name]
    examples.copy(examples.LOCKED, tmp_path)
    options = ("--dry-run", "--target-host", recording(name), *how)
    plan: dict[str, Any] = json.loads(
        succeeded(cli("build", *options, environment=NO_ENGINE)).stdout
    )
    backend = "venv" if how == NATIVE else "docker"
    assert (plan["profile"], plan["backend"], plan["platform"]) == (profile, backend, platform)
    files = {file["name"]: file["file"] for file in plan["files"] if file["kind"] == "wheel"}
    assert files["torch"].startswith(wheel)
    assert files["torch"].endswith(f"{'aarch64' if platform == ARM64 else 'x86_64'}.whl")
    assert files["einops"] == "einops-0.8.2-py3-none-any.whl", "the project's own are the same"
    assert access(name, profile, tmp_path) == expected


def test_a_mac_is_set_up_by_a_script_with_the_same_lock(cli: Cli, tmp_path: Path) -> None:
    examples.copy(examples.LOCKED, tmp_path)
    host = ("--target-host", recording("mac-m2"))
    refused = exited(3, cli("build", "--dry-run", *host))
    assert "profile mps: mps fits: macOS 14.5; Apple M2 Pro GPU" in refused.stderr
    assert "cannot build a native environment for macos/arm64 on linux/" in refused.stderr
    assert cli("render", *host, "-o", "mac").returncode == 0
    requirements = (tmp_path / "mac/requirements.txt").read_text()
    assert "\ntorch==2.13.0 " in requirements
    assert "\neinops==0.8.2 " in requirements
    assert (tmp_path / "mac/setup-venv.sh").is_file()
