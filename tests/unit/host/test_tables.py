"""The data tables in `profiles/devices/`, and what reads them."""

from __future__ import annotations

import csv
import re
from typing import Any

import pytest

from envbuilder.core import resources
from envbuilder.host import tables
from tools import refresh_devices as refresh

DEVICES = resources.profiles_dir() / "devices"
ID = "[0-9a-f]{4}"
TEXT = r"\S.*\S|\S"
MAYBE = rf"({TEXT})?"
NUMBER = "0|[1-9][0-9]*"
GB_S = r"[1-9][0-9]*(\.[0-9]{1,2})?"
GFX = r"gfx[0-9a-f]{3,4}"
SM = r"[1-9][0-9]?\.[0-9]"
DRIVER = r"[1-9][0-9]{2}(\.[0-9]{2,3}){0,2}"
VENDORS = "AuthenticAMD|GenuineIntel"

# Of each table its columns with a pattern for their values, and how many make the key.
SCHEMAS: dict[str, tuple[dict[str, str], int]] = {
    "apple-chips": (
        {
            "name": r"Apple [AM][0-9]+( (Pro|Max|Ultra))?",
            "gb_s": GB_S,
            "gpu_cores": f"({NUMBER})?",
            "note": MAYBE,
            "source": TEXT,
        },
        1,
    ),
    "arm-cpus": (
        {"implementer": "0x[0-9a-f]{2}", "part": "0x[0-9a-f]{3}", "name": TEXT, "source": TEXT},
        2,
    ),
    "amd-chips": ({"chip": TEXT, "gfx": GFX, "source": TEXT}, 1),
    "amd-index": ({"gfx": GFX, "state": "release|build", "source": TEXT}, 1),
    "amd-gpus": ({"id": ID, "chip": TEXT, "name": MAYBE, "source": TEXT}, 1),
    "cuda-drivers": (
        {"cuda_major": NUMBER, "linux_driver": DRIVER, "windows_driver": DRIVER, "source": TEXT},
        1,
    ),
    "cudnn": ({"cudnn": r"[1-9][0-9]?\.[0-9]{1,2}", "sm": SM, "source": TEXT}, 1),
    "distribution-glibc": (
        {"release": r"[A-Z][A-Za-z/ ]+ [0-9.]+", "glibc": r"2\.[0-9]{2}", "source": TEXT},
        1,
    ),
    "intel-gpus": (
        {
            "id": ID,
            "family": TEXT,
            "torch_xpu": "validated|unlisted|unsupported",
            "memory": "dedicated|shared",
            "name": MAYBE,
            "source": TEXT,
        },
        1,
    ),
    "intel-targets": (
        {"family": TEXT, "targets": "[a-z0-9-]+( [a-z0-9-]+)*", "source": TEXT},
        1,
    ),
    "intel-memory": ({"id": ID, "gib": f"({NUMBER})?", "gb_s": GB_S, "source": TEXT}, 1),
    "nvidia-chips": (
        {"chip": "[A-Z]{2}[0-9]{1,2}[0-9A-F]?", "sm": SM, "source": TEXT},
        1,
    ),
    "nvidia-gpus": (
        {"id": ID, "chip": "[A-Z]{2}[0-9]{2}[0-9A-F]", "name": MAYBE, "source": TEXT},
        1,
    ),
    "nvidia-sm": ({"name": TEXT, "sm": SM, "note": MAYBE, "source": TEXT}, 1),
    "tegra-chips": (
        {
            "chip": "tegra[0-9]{3}",
            "name": TEXT,
            "sm": SM,
            "common_driver": "yes|no",
            "source": TEXT,
        },
        1,
    ),
    "x86-flags": ({"flag": "[a-z0-9_]+", "has": "[a-z0-9_]+", "source": TEXT}, 1),
    "x86-cpus": (
        {
            "vendor": VENDORS,
            "family": NUMBER,
            "first_model": NUMBER,
            "last_model": NUMBER,
            "generation": TEXT,
            "source": TEXT,
        },
        3,
    ),
}
RANGES = {
    "gb_s": (20, 20_000),
    "gib": (1, 1024),
    "gpu_cores": (1, 256),
    "family": (6, 26),
    "first_model": (0, 255),
    "last_model": (0, 255),
    "cuda_major": (11, 20),
}


def rows(name: str) -> list[dict[str, str]]:
    with (DEVICES / f"{name}.csv").open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def number(text: str) -> Any:
    """How values sort: numbers and versions by their size."""
    parts = re.fullmatch(r"([0-9]+)(?:\.([0-9]+))?", text)
    return tuple(int(part) for part in parts.groups("0")) if parts else text


def test_every_table_has_a_schema() -> None:
    assert {path.stem for path in DEVICES.iterdir()} == set(SCHEMAS)


@pytest.mark.parametrize("name", SCHEMAS)
def test_schema(name: str) -> None:
    columns, _ = SCHEMAS[name]
    text = (DEVICES / f"{name}.csv").read_bytes().decode("ascii")
    # One row is one line: `tables` looks for a key at its start.
    assert "\r" not in text
    assert text.endswith("\n")
    found = rows(name)
    assert found
    assert len(found) == text.count("\n") - 1
    for row in found:
        assert list(row) == list(columns), row
        for column, pattern in columns.items():
            assert re.fullmatch(pattern, row[column]), f"{column}: {row}"
            if column in RANGES and pattern != TEXT and row[column]:
                lowest, highest = RANGES[column]
                assert lowest <= float(row[column]) <= highest, row


@pytest.mark.parametrize("name", SCHEMAS)
def test_keys_are_unique_and_sorted(name: str) -> None:
    columns, size = SCHEMAS[name]
    names = list(columns)[:size]
    # Only where all of a column are numbers do they sort as such.
    numeric = {n: all(not isinstance(number(row[n]), str) for row in rows(name)) for n in names}
    keys = [tuple(number(r[n]) if numeric[n] else r[n] for n in names) for r in rows(name)]
    assert keys == sorted(keys)
    assert len(keys) == len(set(keys))


def test_ranges_of_cpu_models_do_not_overlap() -> None:
    seen: dict[tuple[str, str, int], str] = {}
    for row in rows("x86-cpus"):
        first = int(row["first_model"])
        last = int(row["last_model"])
        assert first <= last
        for model in range(first, last + 1):
            key = row["vendor"], row["family"], model
            assert key not in seen, (key, seen.get(key), row["generation"])
            seen[key] = row["generation"]


def test_a_family_of_intel_has_one_kind_of_memory() -> None:
    families = {(row["family"], row["memory"]) for row in rows("intel-gpus")}
    assert len(families) == len(dict(families))


def test_names_and_chips_of_nvidia_agree() -> None:
    """What the name says and what the chip says is the same, or the name's row tells of it."""
    notes = {row["name"]: row["note"] for row in rows("nvidia-sm")}
    compared = 0
    excepted = set()
    for row in rows("nvidia-gpus"):
        by_name = tables.nvidia_sm(row["name"])
        gpu = tables.nvidia_gpu(row["id"])
        if by_name is None or gpu.sm is None:
            continue
        compared += 1
        if by_name != gpu.sm:
            stems = [n for n in notes if row["name"].startswith(n.rstrip("*"))]
            assert f"{row['id']}: " in notes[max(stems, key=len)], (row, by_name, gpu.sm)
            excepted.add(row["id"])
    assert compared > 300
    mentioned = {i for note in notes.values() for i in re.findall(f"({ID}): ", note)}
    assert mentioned == excepted, "an exception that is none any more"


def test_chips_of_unknown_capability_are_the_newest() -> None:
    chips = {row["chip"] for row in rows("nvidia-gpus")}
    gpus = [tables.nvidia_gpu(row["id"]) for row in rows("nvidia-gpus")]
    unknown = {gpu.chip for gpu in gpus if gpu is not None and gpu.sm is None}
    assert unknown <= {"GB102", "GB112", "GB120", "GR100", "GR102"}
    assert unknown < chips


@pytest.mark.parametrize(
    ("device_id", "chip", "name", "sm"),
    [
        ("1b80", "GP104", "GeForce GTX 1080", "6.1"),
        ("2e12", "GB20B", "GB10", "12.1"),
        ("29bc", "GB102", "B100", None),
    ],
)
def test_nvidia_gpus(device_id: str, chip: str, name: str, sm: str | None) -> None:
    assert tables.nvidia_gpu(device_id) == tables.NvidiaGpu(name=name, chip=chip, sm=sm)


@pytest.mark.parametrize(
    "device_id",
    [
        "0040",  # NV40, long before Fermi
        "10f0",  # the sound of a GP104
        "1B80",
        "id",
        "\n1b80",
    ],
)
def test_what_is_no_nvidia_gpu(device_id: str) -> None:
    assert tables.nvidia_gpu(device_id) is None


def test_only_the_line_of_one_gpu_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> tuple[dict[str, str], ...]:
        raise AssertionError(f"all of {name} was parsed")

    monkeypatch.setattr(tables, "_rows", refuse)
    assert tables.nvidia_gpu("ffff") is None
    assert tables.intel_gpu("56a0") is not None


def test_intel_gpus() -> None:
    assert tables.intel_gpu("e20b") == tables.IntelGpu(
        family="Arc B (BMG)", support="validated", memory="dedicated", name="Arc B580"
    )
    iris = tables.intel_gpu("9a49")
    assert (iris.support, iris.memory) == ("unsupported", "shared")
    assert tables.intel_gpu("ffff") is None


def test_intel_memory() -> None:
    assert tables.intel_memory("e20b") == tables.MemoryFacts(
        memory_bytes=12 * 2**30, bandwidth=456 * 10**9
    )
    # Cards with 8 and with 16 GB have one id.
    assert tables.intel_memory("56a0") == tables.MemoryFacts(
        memory_bytes=None, bandwidth=560 * 10**9
    )
    assert tables.intel_memory("9a49") is None


@pytest.mark.parametrize(
    ("brand", "gb_s"),
    [("Apple M1", 68.25), ("Apple M3 Max", 300), ("Apple M4 Max", 410), ("Apple M2 Ultra", 800)],
)
def test_apple_bandwidth(brand: str, gb_s: float) -> None:
    assert tables.apple_bandwidth(brand) == gb_s * 10**9


def test_cuda_drivers() -> None:
    linux = [tables.cuda_driver(major) for major in (11, 12, 13)]
    assert linux == ["450.80.02", "525.60.13", "580.65.06"]
    windows = [tables.cuda_driver(major, wsl=True) for major in (11, 12, 13)]
    assert windows == ["452.39", "528.33", "580"]
    assert tables.cuda_driver(10) is None
    assert tables.cuda_driver(1) is None


@pytest.mark.parametrize(
    ("vendor", "family", "model", "name"),
    [
        ("AuthenticAMD", 25, 0x11, "Zen 4"),
        ("AuthenticAMD", 26, 0xFF, None),
        ("GenuineIntel", 6, 0x55, "Skylake-SP, Cascade Lake or Cooper Lake"),
        ("GenuineIntel", 19, 1, "Diamond Rapids"),
        ("GenuineIntel", None, 0x8F, None),
    ],
)
def test_x86_generations(
    vendor: str | None, family: int | None, model: int | None, name: str | None
) -> None:
    assert tables.x86_generation(vendor, family, model) == name


@pytest.mark.parametrize(
    ("implementer", "part", "name"),
    [
        (0x41, 0xD4F, "Neoverse-V2"),
        (0x61, 0x023, "Firestorm-M1"),
        (None, 0xD4F, None),
    ],
)
def test_arm_cores(implementer: int | None, part: int | None, name: str | None) -> None:
    assert tables.arm_core(implementer, part) == name


def test_amd_gpus() -> None:
    """Display devices alone, from Evergreen on."""
    pci = "1002  AMD\n\t744c  Navi 31 [Radeon RX 7900 XTX]\n\t164e  Raphael\n"
    pci += "\t1637  Renoir Radeon High Definition Audio Controller\n\t4144  R300 [Radeon 9500]\n"
    parsed = {f.values["id"]: f.values for f in refresh.parse_amd(f"#\n{pci}")}
    assert set(parsed) == {"744c", "164e"}
    navi = tables.AmdGpu(name="Radeon RX 7900 XT/7900 XTX/7900 GRE/7900M", gfx="gfx1100")
    assert tables.amd_gpu("744c") == navi
    assert tables.amd_gpu("164e") == tables.AmdGpu(name="Raphael", gfx="gfx1036")
    # Strix Halo is another chip than Strix, and Tahiti is too old for any target.
    targets = {i: found.gfx for i in ("150e", "1586", "6798") if (found := tables.amd_gpu(i))}
    assert targets == {"150e": "gfx1150", "1586": "gfx1151", "6798": None}
    assert tables.amd_gpu("ffff") is None


def test_which_gpus_amds_own_index_serves() -> None:
    states = [
        tables.amd_index(gfx) for gfx in ("gfx1032", "gfx1010", "gfx906", "gfx90c", "", "gfx")
    ]
    assert states == ["release", "release", "build", None, None, None]


@pytest.mark.parametrize(
    ("device_id", "family", "support"),
    [
        ("fd80", "Wildcat Lake", "unlisted"),
        ("7dd1", "Arrow Lake", "validated"),
    ],
)
def test_intel_ids_of_the_kernel(device_id: str, family: str, support: str) -> None:
    gpu = tables.intel_gpu(device_id)
    assert (gpu.family, gpu.support) == (family, support)


@pytest.mark.parametrize(
    ("name", "sm"),
    [
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "8.9"),
        ("NVIDIA GeForce RTX 2050", "8.6"),
        ("NVIDIA A100-SXM4-40GB", "8.0"),
        ("NVIDIA RTX 4000 Ada Generation", "8.9"),
        ("NVIDIA A1000", None),
    ],
)
def test_compute_capability_by_name(name: str, sm: str | None) -> None:
    assert tables.nvidia_sm(name) == sm
