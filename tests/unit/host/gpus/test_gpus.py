from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from envbuilder.host import probe, snapshot
from envbuilder.host.gpus import pci
from envbuilder.host.model import Gpu, Link
from tests.support import host_trees

PCI = "sys/bus/pci/devices"
GIB = 2**30
MEMORY = 32_768_000 * 1024
GEN4_X16 = "16.0 16 16.0 16"
GEN5_X16 = "32.0 16 32.0 16"


def machine() -> dict[str, Any]:
    return {
        "files": {
            "proc/meminfo": "MemTotal:       32768000 kB\n",
            "proc/sys/kernel/osrelease": "6.17.0-5-generic\n",
        },
        "links": {},
        "nodes": {"dev/kfd": True, "dev/dri/renderD128": True},
    }


def card(
    number: str,
    driver: str,
    chain: str = "0000:00:01.0/0000:01:00.0",
    link: str = "",
    **files: str,
) -> dict[str, Any]:
    """A machine with one GPU at the end of a chain of bridges; `files` are below its folder."""
    data = machine()
    path, _, address = f"pci0000:00/{chain}".rpartition("/")
    host_trees.add_device(data, address, number, driver, "renderD128", link, path)
    folder = f"sys/devices/{path}/{address}"
    data["files"] |= {f"{folder}/{name.replace('__', '/')}": text for name, text in files.items()}
    data["files"][f"{folder}/drm/card1/dev"] = "226:1\n"
    return data


def behind_a_switch(data: dict[str, Any], vendor: str, upstream: str) -> str:
    """Give the bridges above a card to a vendor; returns the folder of the lower one.

    As lspci shows them: the GPU's own link says x1, the switch's upstream port the truth.
    """
    (gpu,) = (path.removesuffix("/class") for path in data["files"] if path.endswith("/class"))
    down = gpu.rpartition("/")[0]
    up = gpu.rsplit("/", 2)[0]
    bridges = {f"{down}/vendor": f"0x{vendor}\n", f"{up}/vendor": f"0x{vendor}\n"}
    data["files"] |= host_trees.link_files(up, upstream) | bridges
    return down


SWITCH = "0000:00:01.0/0000:01:00.0/0000:02:01.0/0000:03:00.0"


def arc_b580() -> dict[str, Any]:
    data = card(
        "8086:e20b",
        "xe",
        SWITCH,
        "2.5 1 2.5 1",
        tile0__physical_vram_size_bytes=f"{12 * GIB}\n",
        hwmon__hwmon3__power1_max="190000000\n",
        hwmon__hwmon3__power1_rated_max="200000000\n",
    )
    behind_a_switch(data, "8086", "8.0 4 16.0 8")
    return data


def lunar_lake(driver: str = "xe") -> dict[str, Any]:
    data = card("8086:64a0", driver, "0000:00:02.0", "Unknown 0 16.0 16")
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
        "0000:00:08.1/0000:c5:00.0",
        GEN4_X16,
        mem_info_vram_total=f"{512 * 2**20}\n",
        mem_info_gtt_total=f"{24 * GIB}\n",
        hwmon__hwmon4__in1_label="vddnb\n",
    )
    data["files"] |= {
        "sys/devices/pci0000:00/0000:00:08.1/vendor": "0x1022\n",
        "sys/class/kfd/kfd/topology/nodes/0/properties": "cpu_cores_count 32\nsimd_count 0\n",
        "sys/class/kfd/kfd/topology/nodes/1/properties": compute_node(0xC500, 110501),
    }
    return data


def mi300x() -> dict[str, Any]:
    data = card(
        "1002:74a1",
        "amdgpu",
        "0000:00:01.1/0000:01:00.0",
        GEN5_X16,
        mem_info_vram_total=f"{192 * GIB}\n",
        mem_info_gtt_total=f"{512 * GIB}\n",
        hwmon__hwmon4__freq2_label="mclk\n",
        hwmon__hwmon4__power1_cap="700000000\n",
        hwmon__hwmon4__power1_cap_default="750000000\n",
    )
    data["files"] |= {
        "sys/devices/pci0000:00/0000:00:01.1/vendor": "0x1022\n",
        "sys/class/kfd/kfd/topology/nodes/7/properties": compute_node(0x0100, 90402),
    }
    return data


def probed(tmp_path: Path, data: dict[str, Any]) -> Gpu:
    (gpu,) = probe.host(host_trees.plant(tmp_path, data)).gpus
    return gpu


def test_an_arc_card_has_the_link_of_its_own_switch(tmp_path: Path) -> None:
    gpu = probed(tmp_path, arc_b580())
    assert gpu.link == Link(speed=8.0, width=4, max_speed=16.0, max_width=8)
    assert (gpu.memory_kind, gpu.memory_bytes) == ("dedicated", 12 * GIB)
    assert gpu.usable_bytes == 12 * GIB * 95 // 100
    assert gpu.bandwidth == 456 * 10**9
    assert (gpu.power_limit_watts, gpu.power_default_watts) == (190.0, 200.0)
    assert (gpu.name, gpu.state) == ("Intel Arc B580 (E20B)", "usable")


@pytest.mark.parametrize("missing", ["bridge", "upstream", "virtual"])
def test_an_arc_card_never_has_one_lane(missing: str, tmp_path: Path) -> None:
    data = arc_b580()
    up = "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0"
    if missing == "bridge":
        del data["files"][f"{up}/vendor"]
    elif missing == "upstream":
        for path in host_trees.link_files(up, GEN4_X16):
            del data["files"][path]
    else:
        data = card("8086:e20b", "xe", "0000:00:01.0/0000:06:00.0", "2.5 1 2.5 1")
        data["files"]["sys/devices/pci0000:00/0000:00:01.0/vendor"] = "0x1b36\n"
    gpu = probed(tmp_path, data)
    assert gpu.link is None
    assert gpu.memory_bytes == 12 * GIB


def test_a_card_without_its_own_switch_has_its_own_link(tmp_path: Path) -> None:
    data = card("8086:0bda", "xe", link=GEN5_X16)
    data["files"]["sys/devices/pci0000:00/0000:00:01.0/vendor"] = "0x8086\n"
    assert probed(tmp_path, data).link == Link(speed=32, width=16, max_speed=32, max_width=16)


def test_a_sleeping_card_is_not_woken(tmp_path: Path) -> None:
    data = arc_b580()
    data["files"][f"sys/devices/pci0000:00/{SWITCH}/power/runtime_status"] = "suspended\n"
    found = probed(tmp_path, data)
    assert (found.link, found.power_limit_watts) == (None, None)
    assert found.memory_bytes == 12 * GIB


@pytest.mark.parametrize(
    ("speed", "width", "expected"),
    [
        ("16.0 GT/s PCIe", "16", Link(speed=16, width=16)),
        ("Unknown", "0", None),
        ("7.0 GT/s PCIe", "255", None),
        ("99999999999.0 GT/s", "", None),
    ],
)
def test_what_the_kernel_writes_of_a_link(speed: str, width: str, expected: Link | None) -> None:
    files = {"a/current_link_speed": speed, "a/current_link_width": width}
    taken = snapshot.Snapshot(live=True, system="linux", files=files)
    assert pci._link_of(taken, "a") == expected


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
    assert gpu.link is None


def test_tiles_add_up_and_an_unreadable_one_is_not_nothing(tmp_path: Path) -> None:
    data = card(
        "8086:0bd5",
        "xe",
        tile0__physical_vram_size_bytes=f"{64 * GIB}\n",
        tile1__physical_vram_size_bytes=f"{64 * GIB}\n",
    )
    assert probed(tmp_path / "whole", data).memory_bytes == 128 * GIB
    folder = "sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0"
    damaged = host_trees.plant(tmp_path / "damaged", data)
    (damaged / folder / "tile1/physical_vram_size_bytes").write_text("many\n")
    # The specification's number instead of half of it, here and below.
    assert probe.host(damaged).gpus[0].memory_bytes == 128 * GIB
    (damaged / folder / "tile1/physical_vram_size_bytes").unlink()
    (damaged / folder / "tile1/physical_vram_size_bytes").mkdir()
    assert probe.host(damaged).gpus[0].memory_bytes == 128 * GIB


def test_an_amd_apu_shares_the_main_memory(tmp_path: Path) -> None:
    gpu = probed(tmp_path, strix_halo())
    assert (gpu.memory_kind, gpu.family, gpu.link) == ("shared", "gfx1151", None)
    assert gpu.memory_bytes == MEMORY + GIB // 2
    assert gpu.usable_bytes == 24 * GIB + GIB // 2
    assert gpu.state == "usable"


def test_an_old_apu_is_one_node_of_the_compute_driver(tmp_path: Path) -> None:
    data = strix_halo()
    del data["files"]["sys/devices/pci0000:00/0000:00:08.1/0000:c5:00.0/hwmon/hwmon4/in1_label"]
    assert probed(tmp_path / "unknown", data).memory_kind is None
    node = compute_node(0xC500, 90002, cpu_cores_count=8)
    data["files"]["sys/class/kfd/kfd/topology/nodes/1/properties"] = node
    gpu = probed(tmp_path / "node", data)
    assert (gpu.memory_kind, gpu.family) == ("shared", "gfx902")


def test_an_amd_accelerator(tmp_path: Path) -> None:
    gpu = probed(tmp_path, mi300x())
    assert (gpu.memory_kind, gpu.memory_bytes, gpu.family) == ("dedicated", 192 * GIB, "gfx942")
    assert (gpu.power_limit_watts, gpu.power_default_watts) == (700.0, 750.0)
    assert gpu.link == Link(speed=32, width=16, max_speed=32, max_width=16)
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


def test_a_radeon_has_the_link_of_its_own_switch(tmp_path: Path) -> None:
    data = card(
        "1002:744c",
        "amdgpu",
        SWITCH,
        GEN4_X16,
        mem_info_vram_total=f"{24 * GIB}\n",
        hwmon__hwmon4__freq2_label="mclk\n",
    )
    down = behind_a_switch(data, "1002", "8.0 4 16.0 16")
    assert probed(tmp_path / "known", data).link == Link(
        speed=8, width=4, max_speed=16, max_width=16
    )
    del data["files"][f"{down}/vendor"]
    assert probed(tmp_path / "unknown", data).link is None


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
