"""NVIDIA's GPUs: what NVML, the kernel and the PCI id say of one, and of Tegra."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envbuilder.host import probe, tables
from envbuilder.host.gpus.nvidia import VERSION
from envbuilder.host.model import Gpu
from tests.support import host_trees

PCI = "sys/bus/pci/devices"
RTX_4090 = {
    "name": "NVIDIA GeForce RTX 4090",
    "memory_bytes": 25757220864,
    "reserved_bytes": 398458880,
    "sm": "8.9",
    "memory_mhz": 10501,
    "memory_bits": 384,
}


def tree(answer: object, address: str = "0000:01:00.0", device: str = "2684") -> dict[str, Any]:
    data = host_trees.load("rtx4090")
    drop = (PCI, "proc/driver/nvidia/gpus")
    data["files"] = {p: t for p, t in data["files"].items() if not p.startswith(drop)}
    data["links"] = {}
    host_trees.add_device(data, address, f"10de:{device}", "nvidia")
    data["files"]["nvml.json"] = json.dumps(answer)
    return data


def told(**changes: object) -> dict[str, Any]:
    device = {**RTX_4090, "bus": "00000000:01:00.0", **changes}
    return {"driver_version": "580.95.05", "devices": [device]}


def probed(tmp_path: Path, data: dict[str, Any]) -> Gpu:
    (gpu,) = probe.host(host_trees.plant(tmp_path, data)).gpus
    return gpu


def test_an_rtx_4090(tmp_path: Path) -> None:
    gpu = probed(tmp_path, tree(told()))
    assert (gpu.state, gpu.family, gpu.sm) == ("usable", "AD102", "8.9")
    assert (gpu.memory_kind, gpu.memory_bytes) == ("dedicated", 25757220864)
    assert gpu.usable_bytes == 25757220864 - 398458880
    assert gpu.bandwidth == 1_008_096_000_000
    assert gpu.mig is None


@pytest.mark.parametrize(
    ("mhz", "bits", "gigabytes"),
    [
        (10501, 384, 1008),
        (2619, 5120, 3352),
    ],
)
def test_bandwidth_of_known_cards(mhz: int, bits: int, gigabytes: int, tmp_path: Path) -> None:
    gpu = probed(tmp_path, tree(told(memory_mhz=mhz, memory_bits=bits)))
    assert gpu.bandwidth // 10**9 == gigabytes


@pytest.mark.parametrize(
    "changes",
    [
        {"memory_mhz": 2**32 - 1},
        {"memory_bits": None},
        {"memory_bytes": -1},
    ],
)
def test_no_bandwidth_from_what_is_not_available(
    changes: dict[str, object], tmp_path: Path
) -> None:
    assert probed(tmp_path, tree(told(**changes))).bandwidth is None


@pytest.mark.parametrize("value", [25757220865, -5, None])
def test_memory_that_the_driver_cannot_keep(value: int | None, tmp_path: Path) -> None:
    gpu = probed(tmp_path, tree(told(reserved_bytes=value)))
    assert (gpu.memory_bytes, gpu.usable_bytes) == (25757220864, None)


def test_gb10_shares_the_main_memory(tmp_path: Path) -> None:
    answer = {
        "driver_version": "580.95.05",
        "devices": [
            {
                "name": "NVIDIA GB10",
                "bus": "0000000F:01:00.0",
                "sm": "12.1",
                "shared_memory": True,
            }
        ],
    }
    gpu = probed(tmp_path, tree(answer, "000f:01:00.0", device="2e12"))
    assert (gpu.memory_kind, gpu.memory_bytes) == ("shared", 32768000 * 1024)
    assert gpu.usable_bytes is None
    assert gpu.bandwidth is None
    assert (gpu.state, gpu.sm) == ("usable", "12.1")


def test_mig_is_usable_but_not_all_of_it(tmp_path: Path) -> None:
    answer = told(name="NVIDIA H100 80GB HBM3", mig=True, instances=2)
    gpu = probed(tmp_path, tree(answer, device="2330"))
    assert (gpu.state, gpu.mig) == ("usable", True)
    assert "MIG" in gpu.detail
    assert (gpu.memory_bytes, gpu.usable_bytes) == (25757220864, None)
    unknown = told(mig=True, memory_bytes=None, shared_memory=True)
    assert probed(tmp_path / "unknown", tree(unknown)).memory_kind is None
    whole = probed(tmp_path / "whole", tree(told(mig=False)))
    assert (whole.mig, whole.detail) == (False, "")


def test_without_a_driver_the_pci_id_tells_name_chip_and_capability(tmp_path: Path) -> None:
    data = tree(None, device="1b38")
    del data["files"]["nvml.json"], data["files"]["proc/driver/nvidia/version"]
    data["links"] = {}
    data["nodes"] = {}
    gpu = probed(tmp_path, data)
    assert (gpu.name, gpu.family, gpu.sm) == ("NVIDIA Tesla P40", "GP102", "6.1")
    assert gpu.state == "present"
    assert gpu.memory_kind is None
    assert gpu.memory_bytes is None


def test_an_unlisted_id_is_still_a_gpu(tmp_path: Path) -> None:
    data = tree(None, device="ffff")
    del data["files"]["nvml.json"]
    data["files"]["proc/driver/nvidia/gpus/0000:01:00.0/information"] = "Model: \t\t Unknown\n"
    gpu = probed(tmp_path, data)
    assert (gpu.name, gpu.family, gpu.sm) == ("NVIDIA GPU ffff", None, None)


@pytest.mark.parametrize(("name", "sm"), [("GRID A100-10C", "8.0"), ("GRID X1-1Q", None)])
def test_a_vgpu_is_known_by_the_gpu_that_it_is_named_after(
    name: str, sm: str | None, tmp_path: Path
) -> None:
    data = tree(told(name=name, sm=None), device="ffff")
    assert probed(tmp_path, data).sm == sm


TREE = "sys/firmware/devicetree/base/compatible"


def tegra_gpus(root: Path, *, node: bool = False, **files: str) -> tuple[Gpu, ...]:
    data = host_trees.load("graviton3")
    data["files"] |= {{"tree": TREE, "version": VERSION}[name]: t for name, t in files.items()}
    data["nodes"] |= {"dev/nvmap": True} if node else {}
    return probe.host(host_trees.plant(root, data)).gpus


@pytest.mark.parametrize(
    ("chip", "name", "sm", "obstacle"),
    [
        ("tegra194", "NVIDIA Xavier", "7.2", "unsupported"),
        ("tegra234", "NVIDIA Orin", "8.7", "unsupported"),
        ("tegra264", "NVIDIA Thor", "11.0", "driver-missing"),
        ("tegra999", "NVIDIA Tegra", None, "unsupported"),
    ],
)
def test_the_device_tree_names_the_chip(
    chip: str, name: str, sm: str | None, obstacle: str, tmp_path: Path
) -> None:
    (gpu,) = tegra_gpus(tmp_path, tree=f"nvidia,p0-0000\0nvidia,{chip}\0")
    assert (gpu.name, gpu.sm, gpu.obstacle, gpu.state) == (name, sm, obstacle, "present")


def test_a_container_sees_the_allocator_alone(tmp_path: Path) -> None:
    (gpu,) = tegra_gpus(tmp_path, node=True)
    assert (gpu.name, gpu.obstacle, gpu.state) == ("NVIDIA Tegra", "unsupported", "present")
    assert tables.JETSON_TORCH in gpu.detail


def test_a_driver_on_thor_without_a_bus_is_unknown(tmp_path: Path) -> None:
    version = "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  595.78  Release\n"
    (gpu,) = tegra_gpus(tmp_path, tree="nvidia,tegra264\0", version=version)
    assert (gpu.name, gpu.obstacle, gpu.state) == ("NVIDIA Thor", "unread", "unknown")


@pytest.mark.parametrize("tree", ["", "raspberrypi,5-model-b\0brcm,bcm2712\0", "tegra234", "\0"])
def test_other_boards_have_no_such_gpu(tree: str, tmp_path: Path) -> None:
    assert tegra_gpus(tmp_path, tree=tree) == ()
