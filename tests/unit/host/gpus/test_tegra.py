"""GPUs that only the device tree and the allocator's node of a Tegra chip show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from envbuilder.host import fetch, probe, tables
from envbuilder.host.gpus import tegra
from tests.support import host_trees

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.host.model import Gpu

TREE = "sys/firmware/devicetree/base/compatible"
VERSION = "proc/driver/nvidia/version"


def gpus(root: Path, *, node: bool = False, **files: str) -> tuple[Gpu, ...]:
    data = host_trees.load("graviton3")
    data["files"] |= {{"tree": TREE, "version": VERSION}[name]: t for name, t in files.items()}
    data["nodes"] |= {"dev/nvmap": True} if node else {}
    return probe.host(host_trees.plant(root, data)).gpus


@pytest.mark.parametrize(
    ("chip", "name", "sm", "obstacle"),
    [
        ("tegra210", "NVIDIA Tegra X1", "5.3", "unsupported"),
        ("tegra194", "NVIDIA Xavier", "7.2", "unsupported"),
        ("tegra234", "NVIDIA Orin", "8.7", "unsupported"),
        ("tegra264", "NVIDIA Thor", "11.0", "driver-missing"),
        ("tegra999", "NVIDIA Tegra", None, "unsupported"),
    ],
)
@pytest.mark.parametrize("node", [False, True])
def test_the_device_tree_names_the_chip(
    chip: str, name: str, sm: str | None, obstacle: str, tmp_path: Path, *, node: bool
) -> None:
    (gpu,) = gpus(tmp_path, tree=f"nvidia,p0-0000\0nvidia,{chip}\0", node=node)
    assert (gpu.name, gpu.sm, gpu.obstacle, gpu.state) == (name, sm, obstacle, "present")


def test_a_container_sees_the_allocator_alone(tmp_path: Path) -> None:
    (gpu,) = gpus(tmp_path, node=True)
    assert (gpu.name, gpu.obstacle, gpu.state) == ("NVIDIA Tegra", "unsupported", "present")
    assert tables.JETSON_TORCH in gpu.detail


def test_a_driver_on_thor_without_a_bus_is_unknown(tmp_path: Path) -> None:
    version = "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  595.78  Release\n"
    (gpu,) = gpus(tmp_path, tree="nvidia,tegra264\0", version=version)
    assert (gpu.name, gpu.obstacle, gpu.state) == ("NVIDIA Thor", "unread", "unknown")


@pytest.mark.parametrize("tree", ["", "raspberrypi,5-model-b\0brcm,bcm2712\0", "tegra234", "\0"])
def test_other_boards_have_no_such_gpu(tree: str, tmp_path: Path) -> None:
    assert gpus(tmp_path, tree=tree) == ()
    assert tegra.gpu(fetch.fetch(tmp_path), loaded=True) is None
