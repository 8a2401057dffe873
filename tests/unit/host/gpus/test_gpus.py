from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from envbuilder.host import probe, snapshot
from envbuilder.host.gpus import pci
from envbuilder.host.model import Gpu
from tests.support import host_trees

FOLDER = "sys/bus/pci/devices/0000:01:00.0"
GIB = 2**30
MEMORY = 32_768_000 * 1024


def machine() -> dict[str, Any]:
    return {
        "files": {
            "proc/meminfo": "MemTotal:       32768000 kB\n",
            "proc/sys/kernel/osrelease": "6.17.0-5-generic\n",
        },
        "links": {},
        "nodes": {"dev/kfd": True, "dev/dri/renderD128": True},
    }


def card(number: str, driver: str, **files: str) -> dict[str, Any]:
    """A machine with one GPU; `files` are below its folder."""
    data = machine()
    host_trees.add_device(data, "0000:01:00.0", number, driver, "renderD128")
    data["files"] |= {f"{FOLDER}/{name.replace('__', '/')}": text for name, text in files.items()}
    data["files"][f"{FOLDER}/drm/card1/dev"] = "226:1\n"
    return data


def lunar_lake(driver: str = "xe") -> dict[str, Any]:
    data = card("8086:64a0", driver)
    data["files"]["sys/module/ttm/parameters/pages_limit"] = "1000\n"
    return data


def compute_node(location: int, target: int, **more: int) -> str:
    values = {"cpu_cores_count": 0, "simd_count": 80, "gfx_target_version": target}
    values |= {"location_id": location, "domain": 0, **more}
    return "".join(f"{key} {value}\n" for key, value in values.items())


def strix_halo() -> dict[str, Any]:
    data = card(
        "1002:1586",
        "amdgpu",
        mem_info_vram_total=f"{512 * 2**20}\n",
        mem_info_gtt_total=f"{24 * GIB}\n",
        hwmon__hwmon4__in1_label="vddnb\n",
    )
    data["files"] |= {
        "sys/class/kfd/kfd/topology/nodes/0/properties": "cpu_cores_count 32\nsimd_count 0\n",
        "sys/class/kfd/kfd/topology/nodes/1/properties": compute_node(0x0100, 110501),
    }
    return data


def mi300x() -> dict[str, Any]:
    data = card(
        "1002:74a1",
        "amdgpu",
        mem_info_vram_total=f"{192 * GIB}\n",
        mem_info_gtt_total=f"{512 * GIB}\n",
        hwmon__hwmon4__freq2_label="mclk\n",
    )
    data["files"] |= {
        "sys/class/kfd/kfd/topology/nodes/7/properties": compute_node(0x0100, 90402),
    }
    return data


def probed(tmp_path: Path, data: dict[str, Any]) -> Gpu:
    (gpu,) = probe.host(host_trees.plant(tmp_path, data)).gpus
    return gpu


def test_an_arc_card(tmp_path: Path) -> None:
    size = f"{12 * GIB}\n"
    gpu = probed(tmp_path, card("8086:e20b", "xe", tile0__physical_vram_size_bytes=size))
    assert (gpu.memory_kind, gpu.memory_bytes) == ("dedicated", 12 * GIB)
    assert gpu.usable_bytes == 12 * GIB * 95 // 100
    assert gpu.bandwidth == 456 * 10**9
    assert (gpu.name, gpu.state) == ("Intel Arc B580 (E20B)", "usable")


@pytest.mark.parametrize(
    ("driver", "kernel", "percent"),
    [
        ("xe", "6.15.0", 94),
        ("xe", "6.14.11-300.fc42.x86_64", 47),
        ("xe", "who knows", None),
        ("vfio-pci", "6.17.0", None),
    ],
)
def test_shared_memory_of_an_integrated_arc(
    driver: str, kernel: str, percent: int | None, tmp_path: Path
) -> None:
    data = lunar_lake(driver)
    data["files"]["proc/sys/kernel/osrelease"] = f"{kernel}\n"
    gpu = probed(tmp_path, data)
    assert (gpu.memory_kind, gpu.memory_bytes, gpu.bandwidth) == ("shared", MEMORY, None)
    assert gpu.usable_bytes == (MEMORY * percent // 100 if percent else None)


def test_tiles_add_up_and_an_unreadable_one_is_not_nothing(tmp_path: Path) -> None:
    data = card(
        "8086:0bd5",
        "xe",
        tile0__physical_vram_size_bytes=f"{64 * GIB}\n",
        tile1__physical_vram_size_bytes=f"{64 * GIB}\n",
    )
    assert probed(tmp_path / "whole", data).memory_bytes == 128 * GIB
    damaged = host_trees.plant(tmp_path / "damaged", data)
    (damaged / FOLDER / "tile1/physical_vram_size_bytes").write_text("many\n")
    # The specification's number instead of half of it, here and below.
    assert probe.host(damaged).gpus[0].memory_bytes == 128 * GIB
    (damaged / FOLDER / "tile1/physical_vram_size_bytes").unlink()
    (damaged / FOLDER / "tile1/physical_vram_size_bytes").mkdir()
    assert probe.host(damaged).gpus[0].memory_bytes == 128 * GIB


def test_an_amd_apu_shares_the_main_memory(tmp_path: Path) -> None:
    gpu = probed(tmp_path, strix_halo())
    assert gpu.memory_kind == "shared"
    assert gpu.family == "gfx1151"
    assert gpu.memory_bytes == MEMORY + GIB // 2
    assert gpu.usable_bytes == 24 * GIB + GIB // 2
    assert gpu.state == "usable"


def test_an_old_apu_is_one_node_of_the_compute_driver(tmp_path: Path) -> None:
    data = strix_halo()
    del data["files"][f"{FOLDER}/hwmon/hwmon4/in1_label"]
    assert probed(tmp_path / "unknown", data).memory_kind is None
    node = compute_node(0x0100, 90002, cpu_cores_count=8)
    data["files"]["sys/class/kfd/kfd/topology/nodes/1/properties"] = node
    gpu = probed(tmp_path / "node", data)
    assert (gpu.memory_kind, gpu.family) == ("shared", "gfx902")


def test_an_amd_accelerator(tmp_path: Path) -> None:
    gpu = probed(tmp_path, mi300x())
    assert (gpu.memory_kind, gpu.memory_bytes, gpu.family) == ("dedicated", 192 * GIB, "gfx942")
    assert (gpu.state, gpu.name) == ("usable", "AMD Instinct MI300X")


def test_partitions_of_a_card_are_gpus_of_their_own(tmp_path: Path) -> None:
    """Their numbers are in the highest bits of the location or, in Linux 6.6, in its lowest."""
    nodes = "sys/class/kfd/kfd/topology/nodes"
    for shift in (28, 0):
        data = mi300x()
        del data["files"][f"{nodes}/7/properties"]
        for part in range(2, 12):
            location = 0x0100 | (part % 8) << shift
            text = compute_node(location, 90402, drm_render_minor=126 + part)
            data["files"][f"{nodes}/{part}/properties"] = text
        gpus = probe.host(host_trees.plant(tmp_path / str(shift), data)).gpus
        assert [gpu.render_node for gpu in gpus] == [
            f"/dev/dri/renderD{n}" for n in range(128, 138)
        ]
        assert [gpu.state for gpu in gpus] == ["usable", *["present"] * 9]
        assert {gpu.memory_bytes for gpu in gpus} == {None}
        assert "1 of 10 partitions" in gpus[0].name


@pytest.mark.parametrize(
    "name", ["HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"]
)
def test_variables_hide_amds_gpus(name: str, tmp_path: Path) -> None:
    root = host_trees.plant(tmp_path, mi300x())
    for value, obstacle in (("", "hidden"), ("-1", "hidden"), ("0", None), ("1,0", None)):
        (gpu,) = probe.host(root, environ={name: value}).gpus
        assert gpu.obstacle == obstacle
        assert obstacle is None or name in gpu.detail


def test_a_container_is_given_one_of_two_cards(tmp_path: Path) -> None:
    """Linux then refuses to read the other's node, with an error of its own."""
    data = mi300x()
    nodes = "sys/class/kfd/kfd/topology/nodes"
    data["files"][f"{nodes}/8/properties"] = compute_node(0x0200, 90402)
    host_trees.add_device(
        data, "0000:02:00.0", "1002:74a1", driver="amdgpu", node="renderD129", **{"class": "120000"}
    )
    root = host_trees.plant(tmp_path, data)
    taken = probe.fetch(root)
    del taken.files[f"{nodes}/8/properties"]
    for why, state, obstacle in (
        ("Operation not permitted", "present", "not-given"),
        ("Permission denied", "unknown", "unread"),
    ):
        taken.unreadable[f"{nodes}/8/properties"] = why
        first, second = probe.decide(taken, {}).gpus
        assert (first.bus, first.state) == ("0000:01:00.0", "usable")
        assert (second.state, second.obstacle) == (state, obstacle)


def test_a_node_that_cannot_be_read_may_be_another_partition(tmp_path: Path) -> None:
    data = mi300x()
    data["files"]["sys/class/kfd/kfd/topology/nodes/8/name"] = "x\n"
    known, unknown = probe.host(host_trees.plant(tmp_path, data)).gpus
    assert (known.state, unknown.vendor, unknown.obstacle) == ("usable", "unknown", "unread")


def test_a_card_of_another_pci_domain_is_another_card(tmp_path: Path) -> None:
    data = mi300x()
    path = "sys/class/kfd/kfd/topology/nodes/7/properties"
    for more in ({"domain": 1}, {"location_id": 0x0108}, {"simd_count": 0}):
        data["files"][path] = compute_node(0x0100, 90402, **more)
        gpu = probed(tmp_path / str(len(more) + more.popitem()[1]), data)
        assert (gpu.state, gpu.obstacle) == ("present", "unsupported")


@pytest.mark.parametrize(
    ("kfd", "node", "obstacle", "named"),
    [
        (None, True, "node-missing", "--device /dev/kfd --device /dev/dri"),
        (False, True, "node-closed", "/dev/kfd is not readable"),
        (True, None, "node-missing", "/dev/dri/renderD128 is missing"),
        (True, False, "node-closed", "/dev/dri/renderD128 is not readable"),
    ],
)
def test_rocm_needs_two_nodes(
    kfd: bool | None, node: bool | None, obstacle: str, named: str, tmp_path: Path
) -> None:
    data = mi300x()
    data["nodes"] = {"dev/null": True}
    data["nodes"] |= {} if kfd is None else {"dev/kfd": kfd}
    data["nodes"] |= {} if node is None else {"dev/dri/renderD128": node}
    gpu = probed(tmp_path, data)
    assert (gpu.state, gpu.obstacle) == ("present", obstacle)
    assert named in gpu.detail


@pytest.mark.parametrize(
    ("number", "name"), [(110000, "gfx1100"), (90010, "gfx90a"), (0, "gfx942"), (10**6, "gfx942")]
)
def test_names_of_compiler_targets(number: int, name: str | None, tmp_path: Path) -> None:
    """What kfd does not state, the PCI id does."""
    data = mi300x()
    path = "sys/class/kfd/kfd/topology/nodes/7/properties"
    data["files"][path] = compute_node(0x0100, number)
    assert probed(tmp_path, data).family == name


def test_the_group_of_a_render_node() -> None:
    node = "dev/dri/renderD128"

    def group(text: str | None) -> str | None:
        files = {} if text is None else {"etc/group": text}
        taken = snapshot.Snapshot(live=True, system="linux", files=files, groups={node: 105})
        return pci.node_group(taken, f"/{node}")

    assert group("root:x:0:\nvideo:x:44:me\nrender:x:105:\n") == "render"
    assert group("root:x:0:\n") == group(None) == group("\x00:\n105") == "105"
    nothing = snapshot.Snapshot(live=True, system="linux")
    assert pci.node_group(nothing, f"/{node}") is None
    assert pci.node_group(nothing, None) is None


def test_the_group_file_is_read_only_where_there_is_a_render_node(tmp_path: Path) -> None:
    host_trees.plant(tmp_path, machine())
    reader = snapshot.Reader(tmp_path)
    pci.read(reader, ())
    assert "etc/group" not in reader.absent | set(reader.files)
    reader.groups["dev/dri/renderD128"] = 105
    pci.read(reader, ())
    assert "etc/group" in reader.absent | set(reader.unreadable)
