"""The doctor: what it finds, how bad that is, and that every problem has its fix."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from envbuilder.doctor import accelerators, diagnosis
from envbuilder.doctor.surroundings import Case
from envbuilder.host.gpus import intel, nvidia
from envbuilder.host.gpus.accelerator import Finding, Needs
from envbuilder.host.model import Containers, Gpu
from tests.support.broken_hosts import (
    ADA,
    ARC,
    BY_NAME,
    CLOSED,
    LINUX,
    OBSTACLES,
    RAPHAEL,
    SEEN,
    broken,
    changed,
    codes,
    diagnose,
    only,
    with_gpu,
)
from tests.support.host_trees import PROFILES

# What there is to say about each finding and obstacle.


def finding_codes(repository: Path) -> set[str]:
    """The codes that the judges give to findings, read from their source."""
    found = set()
    folders = [repository / "envbuilder" / name for name in ("profiles", "host/gpus")]
    trees = [ast.parse(path.read_text()) for folder in folders for path in folder.rglob("*.py")]
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Finding":
            code = node.args[2] if len(node.args) > 2 else None
            found |= (
                {c.value for c in ast.walk(code) if isinstance(c, ast.Constant)} if code else set()
            )
    return {code for code in found if isinstance(code, str)}


def test_every_code_of_a_finding_has_a_remedy(repository: Path) -> None:
    known = finding_codes(repository)
    assert {"kernels", "driver-old", "level-zero", "cpu-flags"} <= known
    for code in known:
        for system in ("linux", "macos", "other"):
            finding = Finding("no", "text", code, ADA)
            said = accelerators.fix(finding, Needs(), changed(LINUX, os=system), ())
            assert said.endswith("."), code


HOSTS = {
    "linux": LINUX,
    "container": changed(LINUX, container=True),
    "wsl": changed(LINUX, wsl=True),
    "macos": changed(LINUX, os="macos"),
    "nameless": changed(LINUX, os_version=None, kernel=None),
}


@pytest.mark.parametrize("place", HOSTS)
@pytest.mark.parametrize("vendor", ["nvidia", "intel", "amd", "apple", "unknown"])
@pytest.mark.parametrize("obstacle", [*OBSTACLES, None])
def test_every_obstacle_has_a_remedy(obstacle: Any, vendor: Any, place: str) -> None:
    gpu = Gpu(vendor=vendor, name="GPU", state="present", detail="So.", obstacle=obstacle)
    said = accelerators.of_gpu(gpu, HOSTS[place], "580")
    assert said.endswith(".")
    assert "  " not in said
    assert "None" not in said.removeprefix("None")


@given(
    st.sampled_from([*OBSTACLES, None]),
    st.sampled_from(["nvidia", "amd", "intel", "unknown"]),
    st.text(max_size=30) | st.none(),
    st.text(max_size=30) | st.none(),
    st.booleans(),
)
def test_no_host_makes_it_raise(
    obstacle: Any, vendor: Any, release: str | None, kernel: str | None, wsl: bool
) -> None:
    gpu = Gpu(vendor=vendor, name="GPU", state="present", detail="So.", obstacle=obstacle)
    here = changed(LINUX, gpus=(gpu,), os_version=release, kernel=kernel, wsl=wsl)
    for p in diagnose(here):
        assert p.fix
    assert intel.fixes_of_host(here)["level-zero"]


def test_a_profile_that_fits_goes_first() -> None:
    old = changed(ADA, driver_version="550.54")
    found = only(diagnose(with_gpu(old), asked="cuda"), "driver-old")
    assert found.fix.startswith("Use --profile cuda-legacy, which fits. Or: Run `sudo ubuntu-driv")


def test_where_the_profile_can_never_work_another_one_is_the_whole_answer() -> None:
    pascal = changed(ADA, name="Tesla P100", sm="6.0")
    found = only(diagnose(with_gpu(pascal), asked="cuda"), "kernels")
    assert found.fix == "Use --profile cuda-legacy, which fits."
    assert diagnose(with_gpu(pascal)) == ()


def test_another_release_is_named_once() -> None:
    here = with_gpu(changed(ADA, sm="5.0", driver_version="390.1"))
    case = Case(
        host=here,
        candidates=PROFILES,
        requested=BY_NAME["cuda"],
        advice=lambda *_: "Take another.",
    )
    found = diagnosis.diagnose(case)
    assert {"driver-old", "kernels"} <= {*codes(found)}
    assert sum(p.fix.count("Take another.") for p in found) == 1


# Where drivers come from.


@pytest.mark.parametrize(
    ("release", "needed", "said"),
    [
        ("Ubuntu 24.04.3 LTS", "580", "sudo ubuntu-drivers install"),
        ("Debian GNU/Linux 12 (bookworm)", "580", "Debian 12 has driver 535, but 580 or newer"),
        ("Debian GNU/Linux 13 (trixie)", "525", "sudo apt install nvidia-driver"),
        ("Debian GNU/Linux forky/sid", "580", "580 or newer (your distribution's package"),
        ("Fedora Linux 43 (Workstation Edition)", "580", "akmod-nvidia"),
        ("Arch Linux", "580", "nvidia.com/drivers"),
        (None, "", "Install NVIDIA's driver (your"),
    ],
)
def test_nvidias_driver_comes_from_where_it_is_new_enough(
    release: str | None, needed: str, said: str
) -> None:
    assert said in nvidia.install(ADA, changed(LINUX, os_version=release), needed)


@pytest.mark.parametrize(("sm", "jetson"), [("8.7", True), ("11.0", True), ("12.1", False)])
def test_the_driver_of_a_jetson_comes_with_jetpack(sm: str, *, jetson: bool) -> None:
    ubuntu = changed(LINUX, os_version="Ubuntu 24.04.3 LTS")
    advice = nvidia.install(changed(ADA, sm=sm), ubuntu, "580.65.06")
    assert ("JetPack" in advice) == jetson
    assert ("ubuntu-drivers" in advice) == (not jetson)


def test_an_old_gpu_is_told_its_last_branch() -> None:
    debian = changed(LINUX, os_version="Debian GNU/Linux 12 (bookworm)")
    said = nvidia.install(changed(ADA, sm="7.0"), debian, "580")
    assert "Branch 580 is the last" in said
    assert "nvidia-open" not in said  # the open modules do not drive it
    assert "Branch" not in nvidia.install(changed(ADA, sm="7.5"), debian, "580")
    assert "Branch" not in nvidia.install(changed(ADA, sm=None), debian, "580")


def test_inside_wsl_and_containers_no_driver_is_installed() -> None:
    gpu = broken(ADA, "driver-missing")
    for here, said in ((HOSTS["wsl"], "in Windows"), (HOSTS["container"], "machine itself")):
        fix = accelerators.of_gpu(gpu, here, "580")
        assert said in fix
        assert "apt" not in fix
        assert "ubuntu-drivers" not in fix
        assert "modprobe" not in fix


@pytest.mark.parametrize(
    ("kernel", "family", "said"),
    [
        (
            "6.11.0-29-generic",
            "Arc B (BMG)",
            "Update Linux from 6.11.0-29-generic to 6.12 or later",
        ),
        ("6.12.1", "Arc B (BMG)", "sudo modprobe xe"),
        ("6.8.0", "Arc A (DG2)", "sudo modprobe i915"),
        ("6.8.0", "Data Center GPU Max (PVC)", "intel-i915-dkms"),
        ("6.8.0", None, "Update Linux"),
        (None, "Arc B (BMG)", "sudo modprobe xe"),
    ],
)
def test_intels_kernel_driver_depends_on_family_and_kernel(
    kernel: str | None, family: str | None, said: str
) -> None:
    assert said in intel.install(changed(ARC, family=family), changed(LINUX, kernel=kernel), "")


@pytest.mark.parametrize(
    ("release", "said"),
    [
        ("Ubuntu 24.04.3 LTS", "ppa:kobuk-team/intel-graphics"),
        ("Ubuntu 25.10", "Run `sudo apt install libze1 libze-intel-gpu1`"),
        ("Debian GNU/Linux 12 (bookworm)", "no package for the driver"),
        ("Debian GNU/Linux 14 (forky)", "Run `sudo apt install"),
        ("Fedora Linux 43", "dnf install intel-compute-runtime intel-level-zero oneapi-level-zero"),
        (None, "github.com/intel/compute-runtime"),
    ],
)
def test_level_zero_comes_from_where_it_is(release: str | None, said: str) -> None:
    fix = intel.fixes_of_host(changed(LINUX, os_version=release))["level-zero"]
    assert said in fix
    assert "--backend docker" in fix


def test_level_zero_is_missed_less_where_an_image_could_bring_it() -> None:
    here = with_gpu(ARC, level_zero=False)
    assert only(diagnose(here), "level-zero").severity == "limits"
    alone = changed(here, containers=Containers())
    assert only(diagnose(alone), "level-zero").severity == "blocks"
    nothing = changed(alone, gpus=())
    assert codes(diagnose(nothing, asked="xpu")) == ["no-gpu"]


@pytest.mark.parametrize(
    ("detail", "place", "said"),
    [
        ("failed: Driver/library version mismatch.", "linux", "Restart the machine."),
        ("failed: Driver/library version mismatch.", "wsl", "wsl --shutdown"),
        ("failed: NVML Shared Library Not Found.", "container", "compute,utility"),
        ("failed: NVML Shared Library Not Found.", "linux", "nvidia-smi"),
        ("failed: GPU is lost.", "linux", "dmesg"),
    ],
)
def test_a_library_that_fails_is_told_by_its_words(detail: str, place: str, said: str) -> None:
    gpu = changed(broken(ADA, "library-failed"), detail=detail)
    assert said in accelerators.of_gpu(gpu, HOSTS[place])


# Which problems there are, how bad, in which order.


def test_nothing_is_wrong_with_a_good_machine() -> None:
    assert diagnose(with_gpu(ADA)) == ()
    assert diagnose(with_gpu(ARC)) == ()
    assert diagnose(LINUX) == ()


def test_problems_are_sorted_by_how_bad_they_are() -> None:
    here = with_gpu(
        ADA,
        broken(ADA, "not-given", bus="0000:41:00.0"),
        CLOSED,
        containers=Containers(),
        memory=changed(LINUX.memory, shm_bytes=64 << 20),
    )
    found = diagnose(here)
    assert [p.severity for p in found] == ["blocks", "limits", "slows"]
    assert codes(found) == ["node-closed", "not-given", "shared-memory"]


def test_an_accelerator_that_cannot_work_does_not_stand_in_the_way_unless_asked_for() -> None:
    gpu = broken(ARC, "unsupported", support="unsupported")
    here = with_gpu(gpu, level_zero=False, containers=Containers())
    assert [(p.severity, p.code) for p in diagnose(here)] == [("limits", "unsupported")]
    assert only(diagnose(here, asked="xpu"), "unsupported").severity == "blocks"


def test_a_display_gpu_beside_an_accelerator_is_not_mentioned() -> None:
    intel = broken(ARC, "unsupported", support="unsupported")
    assert diagnose(with_gpu(ADA, intel, RAPHAEL)) == ()
    assert only(diagnose(with_gpu(RAPHAEL)), "kernels").severity == "limits"


@pytest.mark.parametrize(
    ("gfx", "fix"),
    [
        ("gfx1032", "AMD's own index has wheels for gfx1032"),
        ("gfx906", "AMD's own index has wheels, listed there as untested, for gfx906"),
        ("gfx90c", "Use --profile cpu: neither PyTorch's nor AMD's wheels have kernels"),
    ],
)
def test_where_pytorchs_wheels_do_not_serve_an_amd_gpu_amds_may(gfx: str, fix: str) -> None:
    found = only(diagnose(with_gpu(changed(RAPHAEL, family=gfx)), asked="rocm"), "kernels")
    assert f"is {gfx}, but the wheels only support gfx90a, " in found.text
    assert found.fix.startswith(fix)


def test_what_comes_before_the_environments_own_is_named() -> None:
    around = changed(SEEN, shadowing=("library path: /x holds libcudnn.so.9",))
    assert only(diagnose(with_gpu(ADA), around), "shadowing").text.endswith("libcudnn.so.9")
    assert "shadowing" not in codes(diagnose(with_gpu(ADA), SEEN))


@pytest.mark.parametrize("asked", [None, "rocm"])
def test_an_override_of_the_gpus_target_is_named_with_the_real_one(asked: str | None) -> None:
    around = changed(SEEN, variables={"HSA_OVERRIDE_GFX_VERSION": "10.3.0"})
    here = with_gpu(RAPHAEL)
    of_one = changed(SEEN, variables={"HSA_OVERRIDE_GFX_VERSION_1": "11.0.0"})
    assert "_VERSION_1=11.0.0 makes" in only(diagnose(here, of_one, asked), "gfx-override").text
    found = only(diagnose(here, around, asked), "gfx-override")
    assert "HSA_OVERRIDE_GFX_VERSION=10.3.0" in found.text
    assert "AMD Raphael at 0000:13:00.0 is gfx1036" in found.text
    assert "unset HSA_OVERRIDE_GFX_VERSION" in found.fix
    assert "gfx-override" not in codes(diagnose(with_gpu(ADA), around))
    assert "gfx-override" not in codes(diagnose(here, asked=asked))
    assert "gfx-override" not in codes(diagnose(here, around, "cpu"))


@pytest.mark.parametrize(
    ("obstacle", "detail", "container", "fix"),
    [
        ("node-missing", "/dev/kfd is missing", True, "--device /dev/kfd --device /dev/dri."),
        ("node-missing", "/dev/kfd is missing", False, "CONFIG_HSA_AMD"),
        ("node-closed", "/dev/kfd is not readable", True, "$(stat -c %g /dev/kfd)"),
        ("node-closed", "/dev/dri/renderD129 is not readable", True, "/dev/dri/renderD129)"),
        ("driver-missing", "None is bound.", False, "modprobe amdgpu"),
    ],
)
def test_remedies_for_amds_nodes_and_driver(
    obstacle: Any, detail: str, container: bool, fix: str
) -> None:
    gpu = changed(RAPHAEL, state="present", obstacle=obstacle, detail=detail, family="gfx1100")
    here = changed(with_gpu(gpu), container=container)
    assert fix in only(diagnose(here, asked="rocm"), obstacle).fix


def test_a_profile_that_was_asked_for_is_the_only_one_looked_at() -> None:
    here = with_gpu(broken(ADA, "driver-missing"), CLOSED)
    assert codes(diagnose(here, asked="xpu")) == ["node-closed"]
    assert codes(diagnose(here, asked="cuda")) == ["driver-missing"]
    assert codes(diagnose(here, asked="cpu")) == []
    assert codes(diagnose(here, asked="zendnn")) == ["cpu-flags"]


def test_one_gpu_that_does_not_work_is_told_once_and_does_not_block() -> None:
    idle = broken(ADA, "not-given", bus="0000:41:00.0")
    found = diagnose(with_gpu(ADA, idle))
    assert [(p.severity, p.code) for p in found] == [("limits", "not-given")]
    assert "0000:41:00.0" in found[0].text


def test_a_gpu_that_could_not_be_read_is_no_gpu_without_a_profile() -> None:
    unread: Any = {"vendor": "unknown", "name": "unknown", "state": "unknown"}
    gpu = Gpu(**unread, detail="PCI was not listed.", obstacle="unread")
    found = only(diagnose(with_gpu(gpu)), "unread")
    assert found.text == "whether there is a GPU is unknown: PCI was not listed"
    hidden = with_gpu(changed(gpu, obstacle="wsl"), wsl=True)
    assert "Windows" in only(diagnose(hidden), "wsl").fix
    assert "Windows" in only(diagnose(hidden, asked="cuda"), "unread").fix


def test_a_machine_for_which_there_is_nothing_is_told_so() -> None:
    riscv = changed(LINUX, machine="riscv64", platform=None)
    assert [(p.severity, p.code) for p in diagnose(riscv)] == [("blocks", "platform")]
    mac = changed(LINUX, os="macos", platform=None, containers=Containers())
    assert "engine" in only(diagnose(mac), "platform").fix


def test_wsl_1_has_its_own_problem() -> None:
    here = changed(LINUX, wsl=True, kernel="4.4.0-19041-Microsoft")
    assert only(diagnose(here), "wsl1").severity == "blocks"
    assert "wsl1" not in codes(diagnose(changed(here, kernel="6.6.87.2-microsoft-standard-WSL2")))


def test_a_profile_without_a_lock_cannot_be_built() -> None:
    found = diagnosis.diagnose(Case(host=LINUX, candidates=PROFILES, requested=BY_NAME["cpu"]))
    assert [(p.severity, p.code) for p in found] == [("blocks", "lock")]
    assert "envbuilder lock --profile cpu" in found[0].fix
