"""What holds for every host of `tests/data/hosts`: whole, damaged, or with something missing."""

from __future__ import annotations

import csv
import functools
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import yaml
from hypothesis import given, settings, strategies as st

from envbuilder.commands import detect
from envbuilder.core import resources
from envbuilder.doctor import diagnosis as doctor
from envbuilder.doctor.problem import Problem
from envbuilder.doctor.surroundings import Case
from envbuilder.host import model_fit, probe, snapshot, tables
from envbuilder.host.accelerators import ACCELERATORS
from envbuilder.host.model import Gpu, Host
from envbuilder.profiles import releases
from envbuilder.profiles.choice import Choice, choose_best
from envbuilder.profiles.fit import Fit, judge
from envbuilder.profiles.lock import Lock
from envbuilder.profiles.profile import Profile
from tests.support import host_trees
from tests.support.shipped import LIBRARY

ORDER = ("fits", "warnings", "no")
VENDORS = {name: row.vendor for name, row in ACCELERATORS.items()}
# Without these nothing says that this is a Mac, WSL with a GPU, or a Jetson: they are what is seen.
ONLY_SIGNS = {"sysctl.txt", "dev/dxg", "dev/nvmap"}
DEVICE = re.compile(r"sys/bus/pci/devices/[^/]+\Z")
CPU_FACTS = """
vendor model_name family model generation flags logical physical sockets threads_per_core
numa_nodes l3_bytes affinity quota
"""
MEMORY_FACTS = "total_bytes limit_bytes shm_bytes kind speed channels bandwidth slots"
GPU_FACTS = "device_id sm support family memory_kind bandwidth driver_version kernel_driver"
garbage = st.one_of(
    st.binary(max_size=300),
    st.text(max_size=100).map(lambda s: s.encode("utf-8", "replace")),
    st.sampled_from(
        [b"", b"\n", b"0x03", b"9" * 5000, b"1e999 1", b"[" * 5000, b"0-99999999999\n", b"null"]
    ),
)


@functools.cache
def shipped() -> tuple[tuple[Profile, ...], Mapping[str, Lock | None]]:
    profiles = LIBRARY.candidates()
    return profiles, LIBRARY.locks(profiles)


class Judged(NamedTuple):
    """Everything that the program says about a host."""

    host: Host
    fits: dict[str, Fit]
    choice: Choice
    """Among the shipped profiles, with their locks."""
    problems: tuple[Problem, ...]


def judge_host(found: Host) -> Judged:
    """All that must never raise, for any host."""
    profiles, locks = shipped()
    assert list(detect.facts(found))
    for row in ACCELERATORS.values():
        assert model_fit.pools(found, row.vendor)
    return Judged(
        host=found,
        fits={
            p.name: judge(p, found, lock=host_trees.locks()[p.name]) for p in host_trees.PROFILES
        },
        choice=choose_best(profiles, found, locks=locks),
        problems=doctor.diagnose(Case(host=found, candidates=profiles, locks=locks)),
    )


def check_promise(judged: Judged, root: Path, what: str) -> None:
    """An accelerator is chosen only where a GPU is known to work."""
    profiles, _ = shipped()
    chosen = next((p for p in profiles if p.name == judged.choice.profile), None)
    if chosen is None or chosen.accelerator == "cpu":
        return
    verdicts = {fit.profile: fit.verdict for fit in judged.choice.fits}
    if verdicts[chosen.name] == "warnings":
        assert "fits" not in verdicts.values(), what
        return
    vendor = VENDORS[chosen.accelerator]
    gpus = [g for g in judged.host.gpus if g.vendor == vendor and g.state == "usable"]
    assert gpus, what
    # Those that do not are hidden, or torch.xpu leaves them alone beside a discrete one.
    assert any(works(gpu, judged.host, root) for gpu in gpus), (what, gpus)


def works(gpu: Gpu, found: Host, root: Path) -> bool:
    if gpu.vendor == "apple":
        return found.os == "macos" and found.rosetta is False
    node = (gpu.render_node or "/dev/dxg" if found.wsl else gpu.render_node or "/dev/nvidiactl")[1:]
    if not (root / node).exists() or not (root / node).stat().st_mode & 0o444:
        return False
    if gpu.vendor == "nvidia":
        if not found.wsl and not (root / "dev/nvidia-uvm").exists():
            return False
        return bool(gpu.sm and gpu.driver_version) and gpu.kernel_driver in (None, "nvidia")
    if gpu.vendor == "amd":
        compute = root / "dev/kfd"
        build = releases.of_version("torch", "2.14.0+rocm7.2", "linux/amd64")
        opened = compute.exists() and bool(compute.stat().st_mode & 0o444)
        return opened and gpu.kernel_driver == "amdgpu" and gpu.family in build.kernels
    known = tables.intel_gpu(gpu.device_id or "")
    listed = known is not None and known.support == "validated"
    return listed and gpu.kernel_driver in ("i915", "xe") and gpu.render_node_readable is True


def check_less_known(before: Judged, after: Judged, what: str) -> None:
    """Whoever sees less knows less: nothing vanishes, turns into something else or fits better."""
    check_gpus(before.host.gpus, after.host.gpus, what)
    for name, old in before.fits.items():
        new = after.fits[name]
        better = ORDER.index(new.verdict) < ORDER.index(old.verdict)
        assert not better or new.verdict == "warnings", (what, old, new)
        for vendor in ("NVIDIA", "AMD", "Intel", "Apple"):
            absent = f"no {vendor} GPU was found"
            assert absent not in new.reasons or absent in old.reasons, (what, name)
    for part, names in (("cpu", CPU_FACTS), ("memory", MEMORY_FACTS)):
        for name in names.split():
            old_value = getattr(getattr(before.host, part), name)
            assert getattr(getattr(after.host, part), name) in (old_value, None), (what, name)
    assert after.host.machine in (before.host.machine, "unknown"), what
    check_doctor(before, after, what)


def check_gpus(before: tuple[Gpu, ...], after: tuple[Gpu, ...], what: str) -> None:
    counted = cards(after)
    for vendor, count in cards(before).items():
        # One that is unknown may stand for all that could not be listed.
        assert counted[vendor] >= count or counted["unknown"], (what, vendor)
    found = {gpu.bus: gpu for gpu in after if gpu.bus}
    for old in before:
        new = found.get(old.bus or "")
        if new is None:
            continue
        assert new.vendor == old.vendor, what
        for name in GPU_FACTS.split():
            assert getattr(new, name) in (getattr(old, name), None), (what, name, old, new)
        # Another source may have another name for the same device.
        assert new.device_id == old.device_id or general(new.name, old.name), (what, old, new)


def cards(gpus: tuple[Gpu, ...]) -> Counter[str]:
    """The cards of each vendor: what says that one of AMD's is in partitions may be missing."""
    places = {gpu.bus: gpu.vendor for gpu in gpus if gpu.bus}
    return Counter([*places.values(), *(gpu.vendor for gpu in gpus if not gpu.bus)])


def general(name: str, known: str) -> bool:
    return name == known or name.startswith(("NVIDIA GPU", "Intel GPU", "AMD GPU"))


def check_doctor(before: Judged, after: Judged, what: str) -> None:
    """What was blocking still is, or its profile is not certain to fit any more."""
    profiles, locks = shipped()
    by_name = {profile.name: profile for profile in profiles}
    serious = {p.code for p in after.problems if p.severity != "slows"}
    for problem in before.problems:
        if problem.severity == "blocks" and problem.code not in serious:
            name = problem.text.partition(":")[0]
            # The doctor asks for an environment of the host's own where no engine answers.
            fit = judge(by_name[name], after.host, lock=locks.get(name), backend="venv")
            assert fit.verdict != "fits", (what, problem)


def planted(data: dict[str, Any]) -> Iterator[str]:
    """What can be taken away; not the entries of /sys/bus/pci, which are the devices themselves."""
    everything = {**data["files"], **data["binary"], **data["nodes"], **data["links"]}
    return (p for p in everything if p not in only_signs(data) and not DEVICE.match(p))


def only_signs(data: dict[str, Any]) -> set[str]:
    """A failure of NVML is one, too, as are MIG, the fabric's state and the switches of a board."""
    answer = str(data["files"].get("nvml.json", ""))
    failed = "error" in answer or "'mig': True" in answer or "'fabric': 1" in answer
    switches = {p for p in data["files"] if "devices/0000:c4:00.0" in p}
    switches |= {"sys/bus/pci/devices"} if switches else set()
    return ONLY_SIGNS | ({"nvml.json"} if failed else set()) | switches


def test_every_host_says_what_it_is_and_where_it_comes_from() -> None:
    assert len(host_trees.NAMES) >= 45
    known = {*host_trees.PLANTED, "cpus", "pci", "extends", "without", "doctor", "reasons"}
    every = {p.name for p in host_trees.PROFILES}
    origins = set()
    for name in host_trees.NAMES:
        data = host_trees.load(name)
        assert set(data) <= {*known, "origin", "source", "verdicts", "chosen"}, name
        assert set(data["verdicts"]) == every, name
        assert len(data["source"]) > 20, name
        assert "@" not in data["source"], name
        origins.add(data["origin"])
    assert origins == {"recorded", "constructed"}


def test_a_recording_of_this_machine_says_what_the_machine_says(tmp_path: Path) -> None:
    recorded = yaml.safe_load(host_trees.record())
    found = probe.host(host_trees.plant(tmp_path, recorded))
    live = probe.host(environ={})
    for name in ("os", "os_version", "kernel", "machine", "platform", "wsl", "libc", "cpu"):
        assert getattr(found, name) == getattr(live, name), name
    assert found.memory.total_bytes == live.memory.total_bytes
    assert [gpu.name for gpu in found.gpus] == [gpu.name for gpu in live.gpus]


@pytest.mark.parametrize("name", host_trees.EACH)
def test_the_doctor_and_the_reasons_name_what_is_wrong(name: str, tmp_path: Path) -> None:
    data = host_trees.load(name)
    judged = judge_host(host_trees.probed(tmp_path, name))
    check_promise(judged, tmp_path, name)
    codes = [problem.code for problem in judged.problems]
    assert set(data.get("doctor", ())) <= set(codes)
    for problem in judged.problems:
        assert problem.text
        assert problem.fix
    for profile, part in data.get("reasons", {}).items():
        assert part in "; ".join(judged.fits[profile].reasons), profile


@pytest.mark.parametrize("name", host_trees.EACH)
def test_one_file_less(name: str, tmp_path: Path) -> None:
    data = host_trees.load(name)
    root = host_trees.plant(tmp_path / "root", data)
    before = judge_host(probe.host(root))
    for path in planted(data):
        (root / path).rename(tmp_path / "away")
        found = probe.host(root)
        if found != before.host:
            after = judge_host(found)
            check_less_known(before, after, f"without {path}")
            check_promise(after, root, f"without {path}")
        (tmp_path / "away").rename(root / path)


class Refusing(snapshot.Reader):
    """Reads everything but one path, which this user may not read."""

    def __init__(self, root: Path, refused: str) -> None:
        super().__init__(root)
        self.refused = refused

    def _read(self, path: str, limit: int) -> bytes | None:
        return None if self.refuses(path) else super()._read(path, limit)

    def folder(self, path: str, *most: int) -> tuple[str, ...]:
        return () if self.refuses(path) else super().folder(path, *most)

    def link(self, path: str) -> str | None:
        return None if self.refuses(path) else super().link(path)

    def node(self, path: str) -> None:
        if not self.refuses(path):
            super().node(path)

    def exists(self, path: str) -> None:
        if not self.refuses(path):
            super().exists(path)

    def refuses(self, path: str) -> bool:
        if path == self.refused:
            self.unreadable[path] = "Permission denied"
        return path == self.refused


@pytest.mark.parametrize("name", host_trees.EACH)
def test_one_file_or_folder_that_may_not_be_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = host_trees.load(name)
    root = host_trees.plant(tmp_path, data)
    before = judge_host(probe.host(root))
    taken = probe.fetch(root)
    paths = {*taken.files, *taken.folders, *taken.links, *taken.nodes, *taken.blobs}
    for path in sorted(paths - only_signs(data)):
        monkeypatch.setattr(probe, "Reader", functools.partial(Refusing, refused=path))
        found = probe.host(root)
        if found != before.host:
            after = judge_host(found)
            check_less_known(before, after, f"{path} closed")
            check_promise(after, root, f"{path} closed")


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_no_bytes_crash_anything(data: st.DataObject, tmp_path_factory: object) -> None:
    name = data.draw(st.sampled_from(host_trees.NAMES))
    tree = host_trees.load(name)
    for extra in ("nvml.json", "engines.json", "sys/firmware/dmi/tables/DMI"):
        tree["files"].setdefault(extra, "{}")
    tree["files"] = {p: t for p, t in tree["files"].items() if p not in tree["binary"]}
    root = tmp_path_factory.mktemp("tree")  # type: ignore[attr-defined]
    host_trees.plant(root, tree)
    paths = sorted({*tree["files"], *tree["binary"]})
    for path in data.draw(st.lists(st.sampled_from(paths), max_size=3, unique=True)):
        whole = (root / path).read_bytes()
        cut = st.integers(0, len(whole)).map(lambda at, whole=whole: whole[:at])  # type: ignore[misc]
        content = data.draw(st.none() | garbage | cut)
        (root / path).unlink()
        if content is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(content)
    found = probe.host(root)
    assert msgspec.json.decode(msgspec.json.encode(found), type=Host) == found
    check_promise(judge_host(found), root, name)
    for gpu in found.gpus:
        assert (gpu.name + gpu.detail).isprintable()


@pytest.mark.parametrize(
    "name", ["epyc-vm", "gb10-dgx-spark", "h100-eight-nvlink", "lunar-lake", "mac-m3-max-wired"]
)
def test_files_that_are_cut_off_are_believed_up_to_there(name: str, tmp_path: Path) -> None:
    data = host_trees.load(name)
    root = host_trees.plant(tmp_path, data)
    before = judge_host(probe.host(root))
    for path in ("proc/cpuinfo", "proc/meminfo", "nvml.json", "proc/self/status", "sysctl.txt"):
        if path not in data["files"]:
            continue
        whole = (root / path).read_bytes()
        for cut in range(0, min(len(whole), 4000), 151):
            (root / path).write_bytes(whole[:cut])
            after = judge_host(probe.host(root))
            check_promise(after, root, f"{path} cut at {cut}")
            assert after.host.cpu.flags in (before.host.cpu.flags, None), (path, cut)
            assert after.host.memory.total_bytes in (before.host.memory.total_bytes, None)
            assert len(after.host.gpus) >= len(before.host.gpus) or path == "sysctl.txt"
        (root / path).write_bytes(whole)


def intel_devices() -> list[tuple[str, str, str]]:
    """The first device of each family and state in the table, and one that it does not have."""
    text = (resources.profiles_dir() / "devices/intel-gpus.csv").read_text()
    first: dict[tuple[str, str], str] = {}
    for row in csv.DictReader(text.splitlines()):
        first.setdefault((row["family"], row["torch_xpu"]), row["id"])
    found = [(number, family, state) for (family, state), number in first.items()]
    return [*found, ("ffff", "", "unknown")]


@pytest.mark.parametrize(("number", "family", "state"), intel_devices())
def test_every_intel_family(number: str, family: str, state: str, tmp_path: Path) -> None:
    """Whatever else is right or wrong, the table has the last word on what may be promised."""
    right = {"driver": "xe", "node": "renderD128"}
    wrong: list[tuple[dict[str, str], bool]] = [
        (right, False),
        ({**right, "driver": "vfio-pci"}, True),
        ({"node": "renderD128"}, True),
        ({"driver": "xe"}, True),
    ]
    for place, (device, readable) in enumerate([(right, True), *wrong]):
        data = host_trees.load("zen3")
        host_trees.add_device(data, "0000:03:00.0", f"8086:{number}", **device)
        data["nodes"]["dev/dri/renderD128"] = readable
        found = probe.host(host_trees.plant(tmp_path / str(place), data))
        (gpu,) = found.gpus
        xpu = host_trees.profile("xpu", backends=("docker",))
        verdict = judge(xpu, found, backend="docker").verdict
        assert (gpu.family or "", gpu.support or "unknown") == (family, state)
        if state == "unsupported":
            assert (verdict, gpu.state) == ("no", "present")
        elif (device, readable) == (right, True):
            assert verdict == ("fits" if state == "validated" else "warnings")
            assert gpu.state == ("unknown" if state == "unknown" else "usable")
        else:
            assert gpu.state != "usable"
            assert verdict != "fits"
