"""A driver with H100s, of which the functions named in `failing` fail."""

from __future__ import annotations

import ctypes
import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from envbuilder.host import probe, snapshot, tables
from envbuilder.host.gpus import nvidia, nvml
from envbuilder.host.model import Gpu, Link, Peer
from tests.support import host_trees

PCI = "sys/bus/pci/devices"
FOUR = ["0000:01:00.0", "0000:02:00.0", "0000:03:00.0", "0000:04:00.0"]
RTX_4090 = {
    "name": "NVIDIA GeForce RTX 4090",
    "memory_bytes": 25757220864,
    "reserved_bytes": 398458880,
    "sm": "8.9",
    "memory_mhz": 10501,
    "memory_bits": 384,
    "link_generation": 1,
    "link_width": 4,
    "max_link_generation": 4,
    "max_link_width": 16,
    "power_limit_milliwatts": 350000,
    "power_default_milliwatts": 450000,
}


def tree(answer: object, *addresses: str, device: str = "2684") -> dict[str, Any]:
    data = host_trees.load("rtx4090")
    drop = (PCI, "proc/driver/nvidia/gpus")
    data["files"] = {p: t for p, t in data["files"].items() if not p.startswith(drop)}
    data["links"] = {}
    for address in addresses or FOUR[:1]:
        folder = f"{PCI}/{address}"
        data["files"] |= {
            f"{folder}/class": "0x030000\n",
            f"{folder}/vendor": "0x10de\n",
            f"{folder}/device": f"0x{device}\n",
        }
        data["links"][f"{folder}/driver"] = "../../../../bus/pci/drivers/nvidia"
    data["files"]["nvml.json"] = json.dumps(answer)
    return data


def told(**changes: object) -> dict[str, Any]:
    device = {**RTX_4090, "bus": "00000000:01:00.0", **changes}
    return {"driver_version": "580.95.05", "devices": [device]}


def probed(tmp_path: Path, data: dict[str, Any]) -> Gpu:
    (gpu,) = probe.host(host_trees.plant(tmp_path, data)).gpus
    return gpu


def test_an_rtx_4090_in_a_narrow_slot(tmp_path: Path) -> None:
    gpu = probed(tmp_path, tree(told()))
    assert (gpu.state, gpu.family, gpu.sm) == ("usable", "AD102", "8.9")
    assert (gpu.memory_kind, gpu.memory_bytes) == ("dedicated", 25757220864)
    assert gpu.usable_bytes == 25757220864 - 398458880
    assert gpu.bandwidth == 1_008_096_000_000
    assert gpu.link == Link(speed=2.5, width=4, max_speed=16.0, max_width=16)
    assert (gpu.power_limit_watts, gpu.power_default_watts) == (350.0, 450.0)
    assert gpu.mig is None


def test_a_slot_with_fewer_lanes_than_the_card_is_seen(tmp_path: Path) -> None:
    data = tree(told(link_width=4, max_link_width=4))
    data["files"] |= {f"{PCI}/0000:01:00.0/max_link_width": "16\n"}
    link = probed(tmp_path, data).link
    assert link is not None
    assert (link.width, link.max_width) == (4, 16)


def test_nvml_knows_the_link_better_and_sysfs_fills_in(tmp_path: Path) -> None:
    data = tree(told(link_width=16, max_link_generation=None))
    data["files"] |= {
        f"{PCI}/0000:01:00.0/current_link_width": "4\n",
        f"{PCI}/0000:01:00.0/max_link_speed": "32.0 GT/s PCIe\n",
    }
    found = probed(tmp_path, data).link
    assert found == Link(speed=2.5, width=16, max_speed=32.0, max_width=16)


@pytest.mark.parametrize(
    ("mhz", "bits", "gigabytes"),
    [(10501, 384, 1008), (2619, 5120, 3352), (877, 4096, 898), (14001, 192, 672), (5001, 256, 320)],
)
def test_bandwidth_of_known_cards(mhz: int, bits: int, gigabytes: int, tmp_path: Path) -> None:
    gpu = probed(tmp_path, tree(told(memory_mhz=mhz, memory_bits=bits)))
    assert gpu.bandwidth is not None
    assert gpu.bandwidth // 10**9 == gigabytes


@pytest.mark.parametrize(
    "changes",
    [
        {"memory_mhz": 2**32 - 1},
        {"memory_bits": 0},
        {"memory_bits": None},
        {"memory_bytes": None},
        {"memory_bytes": -1},
    ],
)
def test_no_bandwidth_from_what_is_not_available(
    changes: dict[str, object], tmp_path: Path
) -> None:
    assert probed(tmp_path, tree(told(**changes))).bandwidth is None


@pytest.mark.parametrize("value", [2**32 - 1, 0, -5, None])
def test_numbers_that_cannot_be_are_not_known(value: int | None, tmp_path: Path) -> None:
    names = (
        "link_generation link_width max_link_generation max_link_width "
        "power_limit_milliwatts power_default_milliwatts"
    )
    gpu = probed(tmp_path, tree(told(**dict.fromkeys(names.split(), value))))
    assert (gpu.link, gpu.power_limit_watts, gpu.power_default_watts) == (None, None, None)


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
                "link_generation": 1,
                "link_width": 1,
            }
        ],
    }
    gpu = probed(tmp_path, tree(answer, "000f:01:00.0", device="2e12"))
    assert (gpu.memory_kind, gpu.memory_bytes) == ("shared", 32768000 * 1024)
    assert (gpu.usable_bytes, gpu.bandwidth, gpu.link) == (None, None, None)
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
    assert (gpu.memory_kind, gpu.memory_bytes, gpu.link) == (None, None, None)


def test_an_unlisted_id_is_still_a_gpu(tmp_path: Path) -> None:
    data = tree(None, device="ffff")
    del data["files"]["nvml.json"]
    data["files"]["proc/driver/nvidia/gpus/0000:01:00.0/information"] = "Model: \t\t Unknown\n"
    gpu = probed(tmp_path, data)
    assert (gpu.name, gpu.family, gpu.sm) == ("NVIDIA GPU ffff", None, None)


@pytest.mark.parametrize(
    ("name", "sm"), [("GRID A100-10C", "8.0"), ("NVIDIA A40-8Q", "8.6"), ("GRID X1-1Q", None)]
)
def test_a_vgpu_is_known_by_the_gpu_that_it_is_named_after(
    name: str, sm: str | None, tmp_path: Path
) -> None:
    data = tree(told(name=name, sm=None), device="ffff")
    assert probed(tmp_path, data).sm == sm


def taken(answer: object) -> snapshot.Snapshot:
    files = {"nvml.json": answer if isinstance(answer, str) else json.dumps(answer)}
    return snapshot.Snapshot(live=False, system="linux", files=files)


def pair(**changes: object) -> dict[str, object]:
    return {"first": "00000000:01:00.0", "second": "00000000:02:00.0", **changes}


@pytest.mark.parametrize(
    ("changes", "path", "direct"),
    [
        ({"ancestor": 50, "nvlink": 0, "read": 0}, "nvlink", True),
        ({"ancestor": 0, "nvlink": 5, "read": 0}, "board", True),
        ({"ancestor": 10, "read": 0}, "switch", True),
        ({"ancestor": 20, "nvlink": 6, "read": 1}, "switch", False),
        ({"ancestor": 30, "nvlink": 5, "read": 5}, "bridge", False),
        ({"ancestor": 40, "read": 6}, "node", None),
        ({"ancestor": 50, "read": -1}, "system", None),
        ({"ancestor": 17}, None, None),
        ({}, None, None),
    ],
)
def test_how_two_gpus_reach_each_other(
    changes: dict[str, object], path: Any, direct: bool | None
) -> None:
    expected = Peer(first="0000:01:00.0", second="0000:02:00.0", path=path, direct=direct)
    assert nvidia.peers(taken({"pairs": [pair(**changes)]})) == (expected,)


@pytest.mark.parametrize(
    "answer",
    [
        {"pairs": [pair(first="?")]},
        {"pairs": [pair(second=None)]},
        {"pairs": [{}]},
        {"pairs": [pair(second="0000:01:00.0")]},
        {"pairs": [pair()], "error": "lost"},
        {"pairs": 5},
        {},
        "[",
    ],
)
def test_no_pair_of_nothing(answer: object) -> None:
    assert nvidia.peers(taken(answer)) == ()


def test_no_answer_means_no_pairs(tmp_path: Path) -> None:
    data = tree(None)
    del data["files"]["nvml.json"]
    assert nvidia.peers(probe.fetch(host_trees.plant(tmp_path, data))) == ()


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


class FakeNvml:
    """A driver with H100s, of which the functions named in `failing` fail."""

    nvmlMemory_v2 = 0x02000028  # noqa: N815 (its name there)
    NVMLError = NVMLError

    def __init__(self, count: int = 2, failing: tuple[str, ...] = (), code: int = 3) -> None:
        self.count = count
        self.failing = failing
        self.code = code
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def function(*arguments: Any, **named: Any) -> Any:
            self.asked.append(name)
            if name in self.failing or f"{name}({arguments[:1]})" in self.failing:
                raise NVMLError(self.code)
            return self.answer(name, *arguments, **named)

        return function

    def answer(self, name: str, *arguments: Any, **named: Any) -> Any:
        if name == "nvmlDeviceGetPciInfo":
            return SimpleNamespace(busId=f"00000000:{arguments[0] + 1:02X}:00.0".encode())
        if name == "nvmlDeviceGetMemoryInfo":
            reserved = {"reserved": 2**28} if named.get("version") == self.nvmlMemory_v2 else {}
            return SimpleNamespace(total=80 * 2**30, **reserved)
        if name == "nvmlDeviceGetP2PStatus":
            return {0: 0, 2: 0}[arguments[2]]
        if name == "nvmlDeviceGetMaxClockInfo":
            return {2: 2619}[arguments[1]]
        return {
            "nvmlInit": None,
            "nvmlShutdown": None,
            "nvmlSystemGetDriverVersion": b"580.95.05",
            "nvmlDeviceGetCount": self.count,
            "nvmlDeviceGetHandleByIndex": arguments[0] if arguments else None,
            "nvmlDeviceGetName": b"NVIDIA H100 80GB HBM3",
            "nvmlDeviceGetCudaComputeCapability": (9, 0),
            "nvmlDeviceGetMemoryBusWidth": 5120,
            "nvmlDeviceGetCurrPcieLinkGeneration": 5,
            "nvmlDeviceGetCurrPcieLinkWidth": 16,
            "nvmlDeviceGetMaxPcieLinkGeneration": 5,
            "nvmlDeviceGetMaxPcieLinkWidth": 16,
            "nvmlDeviceGetPowerManagementLimit": 700000,
            "nvmlDeviceGetPowerManagementDefaultLimit": 700000,
            "nvmlDeviceGetMigMode": [0, 0],
            "nvmlDeviceGetTopologyCommonAncestor": 50,
        }[name]


def ask(monkeypatch: pytest.MonkeyPatch, library: object) -> nvml.Answer:
    monkeypatch.setattr(importlib, "import_module", lambda _: library)
    text = nvml.ask()
    answer = nvml.parse(text)
    assert answer is not None
    assert text is not None
    return answer


H100 = nvml.Device(
    name="NVIDIA H100 80GB HBM3",
    bus="0000:01:00.0",
    memory_bytes=80 * 2**30,
    reserved_bytes=2**28,
    sm="9.0",
    memory_mhz=2619,
    memory_bits=5120,
    link_generation=5,
    link_width=16,
    max_link_generation=5,
    max_link_width=16,
    power_limit_milliwatts=700000,
    power_default_milliwatts=700000,
    mig=False,
)


def test_two_h100_with_nvlink(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = ask(monkeypatch, FakeNvml())
    assert answer.error == ""
    assert answer.devices[0] == H100
    assert answer.devices[1].bus == "0000:02:00.0"
    assert answer.pairs == (
        nvml.Pair(first="0000:01:00.0", second="0000:02:00.0", ancestor=50, nvlink=0, read=0),
    )


FUNCTIONS: dict[str, dict[str, Any]] = {
    "nvmlSystemGetDriverVersion": {},
    "nvmlDeviceGetName": {"name": "NVIDIA GPU"},
    "nvmlDeviceGetCudaComputeCapability": {"sm": None},
    "nvmlDeviceGetMemoryInfo": {
        "memory_bytes": None,
        "reserved_bytes": None,
        "shared_memory": True,
    },
    "nvmlDeviceGetMaxClockInfo": {"memory_mhz": None},
    "nvmlDeviceGetMemoryBusWidth": {"memory_bits": None},
    "nvmlDeviceGetCurrPcieLinkGeneration": {"link_generation": None},
    "nvmlDeviceGetCurrPcieLinkWidth": {"link_width": None},
    "nvmlDeviceGetMaxPcieLinkGeneration": {"max_link_generation": None},
    "nvmlDeviceGetMaxPcieLinkWidth": {"max_link_width": None},
    "nvmlDeviceGetPowerManagementLimit": {"power_limit_milliwatts": None},
    "nvmlDeviceGetPowerManagementDefaultLimit": {"power_default_milliwatts": None},
    "nvmlDeviceGetMigMode": {"mig": None},
    "nvmlDeviceGetTopologyCommonAncestor": {},
    "nvmlDeviceGetP2PStatus": {},
}


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_failing_call_costs_only_its_own_value(
    function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = ask(monkeypatch, FakeNvml(failing=(function,)))
    assert answer.error == ""
    expected = {name: getattr(H100, name) for name in nvml.Device.__struct_fields__}
    assert answer.devices[0] == nvml.Device(**{**expected, **FUNCTIONS[function]})
    assert len(answer.pairs) == 1
    assert (answer.driver_version is None) == (function == "nvmlSystemGetDriverVersion")
    assert (answer.pairs[0].ancestor is None) == (function == "nvmlDeviceGetTopologyCommonAncestor")
    assert (answer.pairs[0].read is None) == (function == "nvmlDeviceGetP2PStatus")


def test_memory_that_may_not_be_asked_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = ask(monkeypatch, FakeNvml(failing=("nvmlDeviceGetMemoryInfo",), code=4))
    assert (answer.devices[0].memory_bytes, answer.devices[0].shared_memory) == (None, None)


def test_an_old_package_has_only_the_first_form_of_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Old(FakeNvml):
        def nvmlDeviceGetMemoryInfo(self, handle: int) -> object:
            del handle
            return SimpleNamespace(total=16 * 2**30)

    device = ask(monkeypatch, Old()).devices[0]
    assert (device.memory_bytes, device.reserved_bytes) == (16 * 2**30, None)


def test_a_lost_gpu_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = "nvmlDeviceGetHandleByIndex((0,))"
    answer = ask(monkeypatch, FakeNvml(failing=(lost,), code=15))
    assert [device.bus for device in answer.devices] == ["0000:02:00.0"]
    only = ask(monkeypatch, FakeNvml(count=1, failing=(lost,), code=15))
    assert (only.devices, only.error) == ((), "error 15")


@pytest.mark.parametrize("function", ["nvmlInit", "nvmlDeviceGetCount"])
def test_without_a_start_there_is_no_answer(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = ask(monkeypatch, FakeNvml(failing=(function,)))
    assert (answer.devices, answer.error) == ((), "error 3")


def test_without_the_package_nvml_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_: str) -> None:
        raise ImportError

    monkeypatch.setattr(importlib, "import_module", absent)
    assert nvml.ask() is None


def test_at_most_sixteen_gpus_are_paired(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = ask(monkeypatch, FakeNvml(count=20))
    assert len(answer.devices) == 20
    assert len(answer.pairs) == 16 * 15 // 2
    assert max(pair.second or "" for pair in answer.pairs) == "0000:10:00.0"


def test_the_recorded_form_is_what_the_library_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib, "import_module", lambda _: FakeNvml())
    data = tree(None, *FOUR[:2], device="2330")
    data["files"]["nvml.json"] = nvml.ask()
    root = host_trees.plant(tmp_path, data)
    gpus = probe.host(root).gpus
    assert [gpu.state for gpu in gpus] == ["usable", "usable"]
    assert [gpu.bandwidth for gpu in gpus] == [3_352_320_000_000] * 2
    assert [peer.path for peer in nvidia.peers(probe.fetch(root))] == ["nvlink"]


@given(st.recursive(st.none() | st.integers() | st.text(max_size=9), st.lists, max_leaves=3))
def test_any_value_in_the_answer_is_survived(value: object) -> None:
    for key in nvml.Device.__struct_fields__:
        nvml.parse(json.dumps(told(**{key: value})))
    for key in nvml.Pair.__struct_fields__:
        nvidia.peers(taken({"pairs": [pair(**{key: value})]}))


class InMig(FakeNvml):
    """A card in MIG mode, with the handles of these instances."""

    instances: tuple[int, ...] = ()

    def answer(self, name: str, *arguments: Any, **named: Any) -> Any:
        if name == "nvmlDeviceGetMigMode":
            return [1, 1]
        if name == "nvmlDeviceGetMaxMigDeviceCount":
            return 7
        if name == "nvmlDeviceGetMigDeviceHandleByIndex":
            if arguments[1] in self.instances:
                return object()
            raise NVMLError(6)
        return super().answer(name, *arguments, **named)


@pytest.mark.parametrize("instances", [(), (0, 3)])
def test_instances_are_counted(instances: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    library = InMig(count=1)
    library.instances = instances
    (device,) = ask(monkeypatch, library).devices
    assert (device.mig, device.instances) == (True, len(instances))


class Fabric(ctypes.Structure):
    _fields_ = (("status", ctypes.c_uint), ("state", ctypes.c_uint))


@pytest.mark.parametrize(
    ("state", "status", "expected"), [(0, 0, 0), (1, 0, 1), (2, 0, 2), (3, 0, 3), (3, 15, 2)]
)
def test_the_state_of_the_fabric(
    state: int, status: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class WithFabric(FakeNvml):
        c_nvmlGpuFabricInfo_t = Fabric  # noqa: N815 (its name there)

        def answer(self, name: str, *arguments: Any, **named: Any) -> Any:
            if name == "nvmlDeviceGetGpuFabricInfo":
                info = arguments[1]._obj
                info.state, info.status = state, status
                return None
            return super().answer(name, *arguments, **named)

    (device,) = ask(monkeypatch, WithFabric(count=1)).devices
    assert device.fabric == expected


TREE = "sys/firmware/devicetree/base/compatible"
VERSION = "proc/driver/nvidia/version"


def tegra_gpus(root: Path, *, node: bool = False, **files: str) -> tuple[Gpu, ...]:
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
    (gpu,) = tegra_gpus(tmp_path, tree=f"nvidia,p0-0000\0nvidia,{chip}\0", node=node)
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
