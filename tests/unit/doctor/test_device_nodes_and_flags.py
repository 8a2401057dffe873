"""Hosts, one a row, on which a profile would be said to fit that does not work there.

Each is a host of `tests/data/hosts` with something changed: device nodes missing or closed,
processors without the instructions that the wheels need, no engine for what works in images only.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from envbuilder.doctor import diagnosis
from envbuilder.doctor.surroundings import Case
from envbuilder.host import probe
from envbuilder.host.model import Host
from envbuilder.profiles.choice import Choice, choose_best, workarounds
from tests.support import host_trees
from tests.support.shipped import LIBRARY, shipped_profile

PROFILES = LIBRARY.candidates()
LOCKS = LIBRARY.locks(PROFILES)
TWO = ("0000:01:00.0", "0000:02:00.0")
GPUS = "proc/driver/nvidia/gpus"


def minors(**numbers: int) -> dict[str, str]:
    """What the driver says of cards ("01" is 0000:01:00.0) and the numbers of their nodes."""
    return {
        f"{GPUS}/0000:{slot.removeprefix('_')}:00.0/information": "Model: \t NVIDIA GPU\n"
        f"Bus Location: \t 0000:{slot.removeprefix('_')}:00.0\nDevice Minor: \t {number}\n"
        for slot, number in numbers.items()
    }


INSIDE = {".dockerenv": ""}
KUBERNETES = {"proc/self/cgroup": "0::/kubepods/besteffort/pod12/34\n"}
MODPROBE = {"usr/bin/nvidia-modprobe": ""}
ANSWERS = {
    "engines.json": '{"run/docker.sock": {"Version": "28.5.1", "Components": [{"Name": "Engine"}]}}'
}
REFUSES = {"engines.json": '{"run/docker.sock": {"error": "Permission denied"}}'}
UVM = "dev/nvidia-uvm"
CTL = "dev/nvidiactl"

# What it is: a host, what it lacks, more files, more nodes, the verdict of cuda, what is said.
NVIDIA: dict[str, tuple[str, tuple[str, ...], dict[str, str], dict[str, bool], str, str]] = {
    "container": ("t4-container", (), {}, {}, "fits", ""),
    "container without uvm": ("t4-container", (UVM,), {}, {}, "no", "/dev/nvidia-uvm is missing"),
    "container without uvm that has nvidia-modprobe": (
        "t4-container", (UVM,), MODPROBE, {}, "no", "/dev/nvidia-uvm is missing",
    ),
    "container without its card's node": (
        "t4-container", ("dev/nvidia0",), {}, {}, "no", "/dev/nvidia0 is missing",
    ),
    "container with a node that is its own by number": (
        "t4-container", ("dev/nvidia0",),
        {f"{GPUS}/0000:00:1e.0/information": "Model: \t Tesla T4\nDevice Minor: \t 3\n"},
        {"dev/nvidia3": True}, "fits", "",
    ),
    "container with a node that is not its own by number": (
        "t4-container", (),
        {f"{GPUS}/0000:00:1e.0/information": "Model: \t Tesla T4\nDevice Minor: \t 3\n"},
        {}, "no", "this container was given other GPUs",
    ),
    "container with a closed card": (
        "t4-container", (), {}, {"dev/nvidia0": False}, "no", "/dev/nvidia0 may not be opened",
    ),
    "container with two cards and both nodes": (
        "rtx3090-two-without-p2p", (), INSIDE | minors(_01=0, _02=1), {"dev/nvidia1": True},
        "fits", "",
    ),
    "container with two cards and the second one's node, numbered the other way round": (
        "rtx3090-two-without-p2p", (), INSIDE | minors(_01=1, _02=0), {}, "fits", "",
    ),
    "container with two cards and the node of a third": (
        "rtx3090-two-without-p2p", ("dev/nvidia0",), INSIDE | minors(_01=0, _02=1),
        {"dev/nvidia2": True}, "no", "this container was given other GPUs",
    ),
    "container with two cards and no node": (
        "rtx3090-two-without-p2p", ("dev/nvidia0",), INSIDE, {}, "no", "/dev/nvidia0 is missing",
    ),
    "container with two cards, one node, NVML silent": (
        "rtx3090-two-without-p2p", ("nvml.json",), INSIDE, {}, "warnings",
        "The number of its /dev/nvidia*",
    ),
    "machine before the first use of uvm": (
        "rtx4090", (UVM,), MODPROBE, {}, "warnings", "CUDA creates it on first use",
    ),
    "machine without uvm and nvidia-modprobe": (
        "rtx4090", (UVM,), {"usr/bin/env": ""}, {}, "no", "run nvidia-modprobe",
    ),
    "machine without any node, with nvidia-modprobe": (
        "nvidia-without-nodes", (), MODPROBE, {}, "warnings", "/dev/nvidiactl is missing",
    ),
    "machine without its card's node": (
        "rtx4090", ("dev/nvidia0",), {"usr/bin/env": ""}, {}, "no", "/dev/nvidia0 is missing",
    ),
    "tree without /dev": ("rtx4090", ("dev/",), {}, {}, "warnings", "could not be read"),
    "WSL has one node for all": ("wsl2-nvidia", (), INSIDE, {}, "fits", ""),
    "WSL container without dxg": (
        "wsl2-nvidia", ("dev/dxg",), INSIDE, {"dev/null": True}, "no", "/dev/dxg is missing",
    ),
    "Jetson Thor": ("jetson-thor", (), {}, {}, "fits", ""),
    "MIG with the nodes of its instances": (
        "a100-mig", (), {"proc/driver/nvidia-caps/mig-minors": ""},
        {"dev/nvidia-caps/nvidia-cap21": True}, "fits", "",
    ),
    "MIG without the nodes of its instances": (
        "a100-mig", (), {"proc/driver/nvidia-caps/mig-minors": ""}, {}, "warnings",
        "/dev/nvidia-caps are missing",
    ),
}  # fmt: skip


def planted(
    root: Path, name: str, without: tuple[str, ...], files: dict[str, str], nodes: dict[str, bool]
) -> Host:
    data = host_trees.load(name)
    for key in host_trees.PLANTED:
        data[key] = {p: v for p, v in data[key].items() if not p.startswith(without or "\0")}
    data["nodes"] |= nodes
    data["files"] = {p: t for p, t in data["files"].items() if p not in data["nodes"]} | files
    for path in files:
        data["nodes"].pop(path, None)
    return probe.host(host_trees.plant(root, data))


def chosen(here: Host) -> Choice:
    return choose_best(PROFILES, here, locks=LOCKS)


def blocking(here: Host, name: str) -> list[str]:
    asked = shipped_profile(name)
    found = diagnosis.diagnose(Case(host=here, candidates=PROFILES, locks=LOCKS, requested=asked))
    return [f"{p.text} {p.fix}" for p in found if p.severity == "blocks"]


@pytest.mark.parametrize("what", NVIDIA)
def test_cuda_needs_its_nodes_whatever_nvml_says(what: str, tmp_path: Path) -> None:
    name, without, files, nodes, verdict, said = NVIDIA[what]
    here = planted(tmp_path, name, without, files, nodes)
    choice = chosen(here)
    fits = {fit.profile: fit for fit in choice.fits}
    assert fits["cuda"].verdict == verdict, fits["cuda"].reasons
    assert said in "; ".join(fits["cuda"].reasons)
    assert (choice.profile == "cuda") == (verdict == "fits")
    if verdict == "no":
        # cuda-legacy needs the same nodes, and the doctor names them, too.
        assert fits["cuda-legacy"].verdict == "no"
        assert any(said in text for text in blocking(here, "cuda")), blocking(here, "cuda")
    if verdict == "fits":
        assert blocking(here, "cuda") == []


@pytest.mark.parametrize(
    ("what", "fix"),
    [
        ("container without uvm", "`sudo nvidia-modprobe -u -c=0` on the machine itself"),
        ("container without its card's node", "--device nvidia.com/gpu=all"),
        ("machine without uvm and nvidia-modprobe", "`sudo nvidia-modprobe -u -c 0 -c 1`"),
    ],
)
def test_the_doctor_says_how_to_get_the_nodes(what: str, fix: str, tmp_path: Path) -> None:
    name, without, files, nodes, *_ = NVIDIA[what]
    here = planted(tmp_path, name, without, files, nodes)
    assert fix in " ".join(blocking(here, "cuda"))


INTEL: dict[str, tuple[str, tuple[str, ...], dict[str, bool], str]] = {
    "container": ("podman-arc", (), {}, "fits"),
    "container with another card's node": (
        "podman-arc", ("dev/dri",), {"dev/dri/renderD140": True}, "no",
    ),
    "container with the display's node alone": (
        "podman-arc", ("dev/dri",), {"dev/dri/card0": True}, "no",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", INTEL)
def test_xpu_needs_the_node_of_that_very_card(what: str, tmp_path: Path) -> None:
    name, without, nodes, verdict = INTEL[what]
    here = planted(tmp_path, name, without, {}, nodes)
    level = {fit.profile: fit.verdict for fit in chosen(replace(here, level_zero=True)).fits}
    assert level["xpu"] == verdict


_BASE = "fpu de pse tsc msr pae mce cx8 apic sep mtrr pge mca cmov pat clflush mmx fxsr sse sse2"
_CORE2 = f"{_BASE} ss ht syscall nx lm constant_tsc pni ssse3 cx16"
_K10 = f"{_BASE} ht syscall nx mmxext fxsr_opt lm 3dnowext 3dnow pni cx16 popcnt abm sse4a"
_QEMU = f"{_BASE} syscall nx lm pni cx16 hypervisor"


def cpu(vendor: str, family: int, model: int, name: str, flags: str) -> str:
    return (
        f"vendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\n"
        f"model name\t: {name}\nflags\t\t: {flags}\n"
    )


INTEL_CPU = "GenuineIntel"
AMD_CPU = "AuthenticAMD"
VIA = "CentaurHauls"
_NEHALEM = f"{_CORE2} sse4_1 sse4_2 popcnt"
_IVY = f"{_NEHALEM} aes xsave avx f16c"
_HASWELL = f"{_IVY} fma avx2"
# Its /proc/cpuinfo, and the verdicts of cpu, cpu-ipex, and cuda beside a T4.
CPUS: dict[str, tuple[str, str, str, str]] = {
    "Merom": (cpu(INTEL_CPU, 6, 15, "Core 2 Duo T7500", _CORE2), "no", "no", "warnings"),
    "Penryn": (cpu(INTEL_CPU, 6, 23, "Core 2 Duo P8600", f"{_CORE2} sse4_1"), "fits", "no", "fits"),
    "Haswell": (cpu(INTEL_CPU, 6, 60, "Core i5-4570", _HASWELL), "fits", "fits", "fits"),
    "K10": (cpu(AMD_CPU, 16, 10, "Phenom II X6 1090T", _K10), "no", "no", "warnings"),
    "Jaguar": (cpu(AMD_CPU, 22, 0, "A4-5000", f"{_IVY} sse4a"), "fits", "no", "fits"),
    "qemu64": (cpu(AMD_CPU, 15, 107, "QEMU Virtual CPU", _QEMU), "no", "no", "warnings"),
    "x86-64-v2": (
        cpu(AMD_CPU, 15, 107, "QEMU Virtual CPU version 2.5+", f"{_QEMU} ssse3 sse4_1 sse4_2"),
        "fits", "no", "fits",
    ),
    "abridged": (cpu(INTEL_CPU, 6, 60, "Core i5-4570", "fpu lm avx2"), "fits", "fits", "fits"),
}  # fmt: skip


@pytest.mark.parametrize("name", CPUS)
def test_profiles_need_the_instructions_of_their_wheels(name: str, tmp_path: Path) -> None:
    text, plain, ipex, cuda = CPUS[name]
    here = planted(tmp_path, "t4-container", (), host_trees.cpus(text), {})
    fits = {fit.profile: fit for fit in chosen(here).fits}
    assert (fits["cpu"].verdict, fits["cpu-ipex"].verdict) == (plain, ipex)
    assert fits["cuda"].verdict == cuda, fits["cuda"].reasons
    assert fits["xpu-ipex"].verdict == "no"
    if plain == "no":
        assert "no SSE4.1" in fits["cpu"].reasons[0]
        assert "could not create a primitive" in fits["cpu"].reasons[0]
        assert "full verification" in fits["cuda"].reasons[0]
        # A GPU that works goes before a CPU that does not.
        assert chosen(here).profile == "cuda"
        assert any("CPU type host" in text for text in blocking(here, "cpu"))
    if ipex == "no":
        assert "ends the process at import" in fits["cpu-ipex"].reasons[0]


def test_flags_of_x86_are_asked_of_x86_alone(tmp_path: Path) -> None:
    here = host_trees.probed(tmp_path, "graviton3")
    fits = {fit.profile: fit for fit in chosen(here).fits}
    assert fits["cpu"].verdict == "fits"
    for reason in fits["zendnn"].reasons:
        assert "avx" not in reason


NATIVELY = "or natively once Level Zero is installed. See `envbuilder doctor`."
# More files of lunar-lake, where Level Zero is missing: the verdict of xpu, what is chosen, the way
# out.
IMAGE_ONLY: dict[str, tuple[dict[str, str], str, str, str]] = {
    "an engine": (ANSWERS, "fits", "xpu", f"xpu works here in a Docker image, {NATIVELY}"),
    "a closed engine": (
        REFUSES, "warnings", "cpu",
        f"xpu works here in a Docker image once a container engine runs, {NATIVELY}",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", IMAGE_ONLY)
def test_what_works_in_images_only_needs_an_engine(what: str, tmp_path: Path) -> None:
    files, verdict, profile, way_out = IMAGE_ONLY[what]
    here = planted(tmp_path, "lunar-lake", (), files, {})
    choice = chosen(here)
    (xpu,) = [fit for fit in choice.fits if fit.profile == "xpu"]
    assert (xpu.verdict, xpu.backend, choice.profile) == (verdict, "docker", profile)
    assert xpu.reasons[0] == "image only: Level Zero is missing"
    assert xpu.workaround == way_out
    assert workarounds(choice) == (way_out,)
    assert (blocking(here, "xpu") == []) == (verdict == "fits")


def test_a_native_environment_that_works_has_no_way_out(tmp_path: Path) -> None:
    here = host_trees.probed(tmp_path, "arc-b580")
    (xpu,) = [fit for fit in chosen(here).fits if fit.profile == "xpu"]
    assert (xpu.verdict, xpu.backend, xpu.workaround) == ("fits", "venv", "")
