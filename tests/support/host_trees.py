"""Recorded and constructed hosts: `tests/data/hosts/NAME.yaml` is planted as a tree of files.

`NAME.json` beside it is what detection makes of it. `python -m tests.support.host_trees` writes
those again: read the difference, it is the review. `… record` prints the machine that it runs on.

A host says its `origin` (recorded or constructed) and `source`, which profile is `chosen` and the
`verdicts` of all, "no" if not stated; if it likes, the `reasons` of some (a part of a sentence) and
the codes of problems that the `doctor` must report. Names that begin with "_" are parts, for
`extends`:

    extends     hosts or parts that this one is made of, one after the other
    without     paths, or beginnings of paths, of those that this one does not have
    files       text, or what is written as JSON
    binary      base64
    links       symbolic links, as they are written
    folders     empty folders, also in place of files that cannot be read
    nodes       device nodes: whether they may be opened
    cpus        `text` in /proc/cpuinfo of each of `sockets` × `cores` × `threads`
    pci         devices by address: id, class, driver, node
"""

from __future__ import annotations

import functools
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from envbuilder.host import model as host, probe, record as recorder
from envbuilder.host.record import PLANTED, plant
from envbuilder.profiles.choice import choose_best
from envbuilder.profiles.lock import Lock
from envbuilder.profiles.profile import Expects, Profile, Python, Requires, Tools
from tests.support.shipped import LIBRARY
from tools import record_host

FOLDER = Path(__file__).parents[1] / "data/hosts"
NAMES = sorted(path.stem for path in FOLDER.glob("[!_]*.yaml"))
EACH = [
    pytest.param(name, marks=pytest.mark.slow if number % 4 else ())
    for number, name in enumerate(NAMES)
]
"""All hosts; one of four is enough for a quick look."""
_DEVICES = "sys/bus/pci/devices"


@functools.cache
def _text(name: str) -> Any:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load((FOLDER / f"{name}.yaml").read_text(), loader)


def load(name: str) -> dict[str, Any]:
    """A host with everything that it is made of; the short forms are spelled out."""
    own: dict[str, Any] = _text(name)
    data: dict[str, Any] = {key: {} for key in PLANTED}
    extended = own.get("extends", ())
    for below in [extended] if isinstance(extended, str) else extended:
        part = load(below)
        for key in PLANTED:
            data[key] |= part[key]
    for path in own.get("without", ()):
        for key in PLANTED:
            data[key] = {p: v for p, v in data[key].items() if not p.startswith(path)}
    if "cpus" in own:
        data["files"] |= cpus(**own["cpus"])
    spelled = {**own, "folders": dict.fromkeys(own.get("folders", ()))}
    for key in PLANTED:
        data[key] |= spelled.get(key) or {}
    for address, device in own.get("pci", {}).items():
        add_device(data, address, **device)
    if "verdicts" in own:
        data["verdicts"] = dict.fromkeys(_PROFILES, "no") | own["verdicts"]
    return {**own, **data}


def cpus(text: str, sockets: int = 1, cores: int = 1, threads: int = 1) -> dict[str, str]:
    """Files about CPUs, numbered as Linux does: second threads of all cores come after the first.

    All are online, and this process may use them.
    """
    blocks = []
    for cpu in range(sockets * cores * threads):
        socket, core = divmod(cpu % (sockets * cores), cores)
        where = f"physical id\t: {socket}\nsiblings\t: {cores * threads}\ncore id\t\t: {core}\n"
        # 64-bit ARM and RISC-V do not say where a CPU is.
        told = f"{where}cpu cores\t: {cores}\n" if "vendor_id" in text else ""
        blocks.append(f"processor\t: {cpu}\n{text}{told}\n")
    everything = f"0-{len(blocks) - 1}" if len(blocks) > 1 else "0"
    return {
        "proc/cpuinfo": "".join(blocks),
        "proc/self/status": f"Cpus_allowed_list:\t{everything}\n",
        "sys/devices/system/cpu/online": f"{everything}\n",
    }


def add_device(
    data: dict[str, Any],
    address: str,
    id: str,  # noqa: A002 (its name in the files)
    driver: str | None = None,
    node: str | None = None,
    **more: str,
) -> None:
    """A PCI device: "vendor:device", and what else sysfs shows of it."""
    folder = f"{_DEVICES}/{address}"
    vendor, _, device = id.partition(":")
    files = {"class": more.get("class", "030000"), "vendor": vendor, "device": device}
    for name, value in files.items():
        data["files"][f"{folder}/{name}"] = f"0x{value}\n"
    if driver:
        data["links"][f"{folder}/driver"] = f"../../../../bus/pci/drivers/{driver}"
    if node:
        data["files"][f"{folder}/drm/{node}/dev"] = f"226:{node.removeprefix('renderD')}\n"


def probed(root: Path, name: str) -> host.Host:
    """What detection makes of a host, planted below `root`."""
    return probe.host(plant(root, load(name)))


@functools.cache
def recorded(name: str) -> host.Host:
    """The same, as it was recorded: `test_recorded_hosts` compares it with the tree."""
    return msgspec.json.decode((FOLDER / f"{name}.json").read_bytes(), type=host.Host)


def profile(kind: str, **changes: Any) -> Profile:
    """A profile as the shipped ones are, without what selection does not read."""
    accelerator, platforms, backends, requires, extension = _PROFILES[kind]
    values = {
        "name": kind,
        "description": kind,
        "accelerator": accelerator,
        "python": Python(default="3.11", supported=("3.11",)),
        "platforms": platforms,
        "backends": backends,
        "tools": Tools(uv="0.13.8"),
        "requirements": ("torch==2.13.0",),
        "expects": Expects(device=accelerator, version="2.13.0", extension=extension),
        "requires": requires,
        **changes,
    }
    return Profile(**values)


_BOTH = ("linux/amd64", "linux/arm64")
_AMD64 = ("linux/amd64",)
_ALL = ("docker", "venv", "conda")
_SSE41 = ("sse4_1",)
_ZEN4 = Requires(
    cpu_flags=("avx512f", "avx512vl", "avx512_vnni", "avx512_bf16"),
    without_cpu_flags="zentorch would return the graph unchanged",
)
_CUDA_13 = Requires(
    driver="580.65.06",
    kernels=("7.5", "8.0", "8.6", "9.0", "10.0", "12.0"),
    kernels_arm64=("8.0", "9.0", "10.0", "11.0", "12.0"),
    kernels_ptx=True,
    cpu_flags_wanted=_SSE41,
)
_CUDA_12 = Requires(
    driver="525.60.13",
    kernels=("5.0", "6.0", "7.0", "7.5", "8.0", "8.6", "9.0"),
    cpu_flags_wanted=_SSE41,
)
_ROCM_72 = Requires(
    kernels=(
        "gfx90a",
        "gfx942",
        "gfx950",
        "gfx1100",
        "gfx1101",
        "gfx1102",
        "gfx1150",
        "gfx1151",
        "gfx1200",
        "gfx1201",
    ),
    kernels_partly=("gfx908", "gfx1030", "gfx1103"),
    cpu_flags_wanted=_SSE41,
)
_PROFILES: dict[str, Any] = {
    "cpu": ("cpu", _BOTH, _ALL, Requires(cpu_flags=_SSE41), ""),
    "zendnn": ("cpu", _AMD64, _ALL, _ZEN4, "zentorch"),
    "cuda": ("cuda", _BOTH, _ALL, _CUDA_13, ""),
    "cuda-legacy": ("cuda", _AMD64, _ALL, _CUDA_12, ""),
    "rocm": ("rocm", _AMD64, _ALL, _ROCM_72, ""),
    "xpu": (
        "xpu",
        _AMD64,
        ("docker", "venv"),
        Requires(cpu_flags_wanted=_SSE41),
        "",
    ),
    "mps": ("mps", ("macos/arm64",), ("venv",), Requires(macos="14.0"), ""),
}
PROFILES = tuple(profile(name) for name in _PROFILES)


@functools.cache
def locks() -> dict[str, Lock | None]:
    """The shipped locks of profiles of these names: what their wheels need counts here, too."""
    return LIBRARY.locks(PROFILES)


def record() -> str:
    """This machine as a host's YAML, without what tells one machine from the next of its kind.

    What says where and when it was recorded, and whether the verdicts are right, is for people.
    """
    taken = probe.fetch(Path("/"))
    choice = choose_best(PROFILES, probe.decide(taken, {}), locks=locks())
    scrubber = recorder.this_machine()
    return record_host.as_yaml(recorder.recording(taken, scrubber), choice)


def main(arguments: list[str]) -> None:
    """Write the expected answers again, or record this machine."""
    if arguments == ["record"]:
        sys.stdout.write(record())
        return
    for name in NAMES:
        with tempfile.TemporaryDirectory() as folder:
            found = probed(Path(folder), name)
        text = msgspec.json.format(msgspec.json.encode(found)).decode()
        (FOLDER / f"{name}.json").write_text(text + "\n")
        sys.stdout.write(f"{name}.json\n")


if __name__ == "__main__":
    main(sys.argv[1:])
