from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from envbuilder.core import types
from envbuilder.core.errors import HostError
from envbuilder.host.model import Cpu, Gpu, Host
from envbuilder.profiles.choice import Choice, choose_best, require_host
from envbuilder.profiles.fit import judge
from envbuilder.profiles.profile import Profile
from tests.support import host_trees
from tests.support.host_trees import PROFILES, profile
from tests.support.shipped import LIBRARY
from tests.support.tools import lock_of

LINUX = Host(os="linux", machine="x86_64", platform="linux/amd64", cpu=Cpu(flags=("avx2",)))
ADA = Gpu(
    vendor="nvidia",
    name="NVIDIA GeForce RTX 4090",
    state="usable",
    bus="0000:01:00.0",
    driver_version="580.95.05",
    sm="8.9",
)
BY_NAME = {p.name: p for p in PROFILES}
OLD = {"old 1.0": {"sm_13": 1, "gfx600": 1}}


def with_gpu(*gpus: Gpu, **changes: object) -> Host:
    return msgspec.structs.replace(LINUX, gpus=gpus, **changes)


def best(profiles: Sequence[Profile], host: Host) -> Choice:
    """Choose among profiles whose locks say nothing of the host."""
    return choose_best(profiles, host, locks={p.name: lock_of() for p in profiles})


def changed(gpu: Gpu, **changes: object) -> Gpu:
    return msgspec.structs.replace(gpu, **changes)


@pytest.mark.parametrize("name", host_trees.NAMES)
def test_each_host_has_its_verdicts(name: str) -> None:
    """What a lock says of kernels, drivers and systems is what the profiles of the tests state."""
    host = host_trees.recorded(name)
    expected = host_trees.load(name)
    shipped = LIBRARY.candidates()
    for candidates, locks in (
        (PROFILES, host_trees.locks()),
        (shipped, LIBRARY.locks(shipped)),
    ):
        choice = choose_best(candidates, host, locks=locks)
        {p.name: p.accelerator for p in candidates}
        fits = [fit for fit in choice.fits if fit.profile in BY_NAME]
        assert {fit.profile: fit.verdict for fit in fits} == expected["verdicts"]
        assert choice.profile == expected["chosen"]
        assert all(fit.reasons for fit in fits if fit.verdict != "fits")


ARM = msgspec.structs.replace(LINUX, machine="aarch64", platform="linux/arm64")
DRIVER = "580.95.05"


@pytest.mark.parametrize(
    ("host", "sm", "driver", "verdict"),
    [
        (LINUX, "7.5", DRIVER, "fits"),
        # binary compatible with 8.6
        (LINUX, "13.0", DRIVER, "warnings"),  # PTX only
        (LINUX, "11.0", DRIVER, "no"),  # no kernels of that major, and older than the PTX
        (LINUX, None, DRIVER, "warnings"),
        (LINUX, "8.9", "580.65.05", "no"),
        (LINUX, "8.9", "580.65.06", "fits"),
        (LINUX, "8.9", None, "warnings"),
        # Wheels for ARM carry other kernels, and Tegra runs only those of its own.
        (ARM, "8.7", "595.78", "no"),  # although an Ampere of SM 8.6 runs the kernels for 8.0
        (ARM, "11.0", "580.00", "fits"),  # JetPack's number of a driver with CUDA 13.0
        (ARM, "11.0", "540.4.0", "no"),
    ],
)
def test_kernels_and_driver(host: Host, sm: str | None, driver: str | None, verdict: str) -> None:
    gpu = changed(ADA, name="NVIDIA", sm=sm, driver_version=driver)
    fit = judge(BY_NAME["cuda"], msgspec.structs.replace(host, gpus=(gpu,)))
    assert fit.verdict == verdict
    assert ("Jetson AI Lab" in "; ".join(fit.reasons)) == (sm == "8.7") or host is LINUX


P100 = changed(ADA, name="Tesla P100", sm="6.0", bus="0000:02:00.0")
RTX_5090 = changed(ADA, name="RTX 5090", sm="12.0", bus="0000:41:00.0")


def test_a_profile_for_all_gpus_takes_precedence_and_unusable_ones_do_not_count() -> None:
    away = changed(P100, state="present", detail="No kernel driver has it.")
    assert best(PROFILES, with_gpu(ADA, P100)).profile == "cuda-legacy"
    choice = best(PROFILES, with_gpu(away, ADA))
    assert choice.profile == "cuda"
    for fit in choice.fits:
        assert not fit.environment


@pytest.mark.parametrize("gpus", [(P100, RTX_5090), (RTX_5090, P100)])
def test_gpus_that_do_not_work_are_hidden(gpus: tuple[Gpu, ...]) -> None:
    choice = best(PROFILES, with_gpu(*gpus))
    fits = {fit.profile: fit for fit in choice.fits}
    assert choice.profile == "cuda"
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert fits["cuda"].environment == {**order, "CUDA_VISIBLE_DEVICES": "1"}
    assert fits["cuda-legacy"].environment == {**order, "CUDA_VISIBLE_DEVICES": "0"}
    assert "Tesla P100 at 0000:02:00.0 not used" in choice.reason


def test_numbers_are_those_of_the_gpus_that_the_driver_gives() -> None:
    away = changed(ADA, state="present", obstacle="driver-other", detail="vfio-pci.")
    fit = judge(BY_NAME["cuda"], with_gpu(away, P100, RTX_5090))
    assert fit.environment["CUDA_VISIBLE_DEVICES"] == "1"
    assert "not used" in fit.reasons[-1]
    nowhere = changed(P100, bus=None)
    unsure = judge(BY_NAME["cuda"], with_gpu(nowhere, RTX_5090))
    assert (unsure.verdict, unsure.environment) == ("warnings", {})


@pytest.mark.parametrize(
    ("driver", "verdict"), [("527.41", "no"), ("528.24", "no"), ("528.33", "fits")]
)
def test_under_wsl_the_driver_is_that_of_windows(driver: str, verdict: str) -> None:
    """Windows' 527.41 is newer than the 525.60.13 that Linux needs."""
    (legacy,) = [p for p in LIBRARY.profiles() if p.name == "cuda-legacy"]
    host = with_gpu(changed(ADA, driver_version=driver), wsl=True, libc="glibc 2.39")
    fit = judge(legacy, host, lock=LIBRARY.lock("cuda-legacy"))
    assert fit.verdict == verdict, fit.reasons
    linux = msgspec.structs.replace(host, wsl=False)
    assert judge(legacy, linux, lock=LIBRARY.lock("cuda-legacy")).verdict == "fits"


def test_only_what_cannot_exist_here_is_impossible() -> None:
    mac = Host(
        os="macos", machine="arm64", platform="macos/arm64", os_version="14.5", rosetta=False
    )
    assert judge(BY_NAME["mps"], LINUX, building=True).impossible
    assert judge(BY_NAME["cuda"], mac, backend="venv", building=True).impossible
    assert not judge(BY_NAME["cuda"], mac, backend="docker", building=True).impossible
    # amd64 only: an image can be built on another platform, but nothing promises that it runs.
    image = judge(BY_NAME["zendnn"], mac, backend="docker")
    assert (image.verdict, image.impossible) == ("no", False)
    assert judge(BY_NAME["zendnn"], mac, backend="docker", building=True).verdict == ("warnings")
    other = Host(os="other", machine="x86_64")
    assert judge(BY_NAME["cpu"], other, backend="venv").impossible


def test_xpu_in_a_venv_needs_level_zero(tmp_path: Path) -> None:
    host = host_trees.probed(tmp_path, "arc-b580")
    xpu = BY_NAME["xpu"]
    assert judge(xpu, host, backend="venv").verdict == "fits"
    for value, verdict in ((False, "no"), (None, "warnings")):
        without = msgspec.structs.replace(host, level_zero=value)
        assert judge(xpu, without, backend="venv").verdict == verdict
        assert judge(xpu, without, backend="docker").verdict == "fits"


def test_an_unreadable_node_keeps_a_venv_from_it_but_not_docker(tmp_path: Path) -> None:
    host = host_trees.probed(tmp_path / "a", "arc-b580-unreadable")
    venv = judge(BY_NAME["xpu"], host, backend="venv")
    assert venv.verdict == "no"
    assert "usermod -aG render $USER" in venv.reasons[0]
    assert judge(BY_NAME["xpu"], host, backend="docker").verdict == "warnings"
    named = judge(BY_NAME["xpu"], host_trees.probed(tmp_path / "b", "iris-xe"))
    assert named.reasons == ("Intel Iris Xe (9A49) is not supported by torch.xpu",)


def refused(name: str, host: Host) -> HostError:
    with pytest.raises(HostError, match="cannot run on this host") as raised:
        require_host(LIBRARY.profile(name), host, LIBRARY, backend=None, building=False)
    return raised.value


def test_a_refusal_names_all_reasons_and_what_would_fit() -> None:
    old = changed(ADA, name="Tesla P100", sm="6.0", driver_version="535.183")
    error = refused("cuda", with_gpu(old, libc="glibc 2.39"))
    assert error.exit_code == 3
    assert "535.183 is older than 580" in error.message
    assert "is SM 6.0" in error.message
    assert error.hint.startswith("`--profile cuda-legacy` fits")
    nothing = refused("mps", Host(os="other", machine="riscv64"))
    assert nothing.hint == "To see what was found: envbuilder detect"


def test_the_reason_says_what_may_work_too(tmp_path: Path) -> None:
    unlisted = best(PROFILES, host_trees.probed(tmp_path / "a", "nvidia-unlisted"))
    assert "cuda may work too" in unlisted.reason
    vm = best(PROFILES, host_trees.probed(tmp_path / "b", "epyc-vm"))
    assert vm.reason == ("no GPU was found; zendnn fits too, but only speeds up inference")


def test_opt_in_profiles_and_the_order_of_a_users_own() -> None:
    host = with_gpu(ADA)
    opt_in = [msgspec.structs.replace(p, opt_in=True) for p in PROFILES if p.name == "cuda"]
    own = [profile("cuda", name=n) for n in ("b-gpu", "a-gpu")]
    rest = [p for p in PROFILES if p.name != "cuda"]
    assert best([*own, *PROFILES], host).profile == "cuda"
    assert best([*own, *opt_in, *rest], host).profile == "cuda-legacy"
    rest = [p for p in rest if p.name != "cuda-legacy"]
    assert best([*own, *opt_in, *rest], host).profile == "a-gpu"
    assert best([profile("cpu", name="a-cpu"), *PROFILES], LINUX).profile == "cpu"


@pytest.mark.parametrize(
    ("framework", "sm", "driver", "chosen", "verdict"),
    [
        ("jax", "8.9", "580.95.05", "jax-cuda", "fits"),
        ("jax", "13.0", "580.95.05", "jax-cpu", "warnings"),  # PTX alone
        ("jax", "8.9", "570.00", "jax-cpu", "no"),  # CUDA 13
        ("tensorflow", "7.5", "525.60.13", "tensorflow-cuda", "fits"),
        ("tensorflow", "6.0", "525.60.13", "tensorflow-cpu", "warnings"),  # not its cuDNN
        ("tensorflow", "8.9", "520.00", "tensorflow-cpu", "no"),
    ],
)
def test_profiles_of_other_frameworks_are_judged_by_their_own_wheels(
    framework: types.Framework, sm: str, driver: str, chosen: str, verdict: str
) -> None:
    candidates = LIBRARY.candidates(framework)
    gpu = changed(ADA, sm=sm, driver_version=driver)
    host = with_gpu(gpu, cpu=Cpu(flags=("avx", "avx2")), libc="glibc 2.36")
    choice = choose_best(candidates, host, locks=LIBRARY.locks(candidates))
    assert choice.profile == chosen
    assert {f.profile: f.verdict for f in choice.fits}[f"{framework}-cuda"] == verdict


@pytest.mark.parametrize("framework", ["jax", "tensorflow"])
def test_a_cpu_without_avx_has_no_other_framework(framework: types.Framework) -> None:
    candidates = LIBRARY.candidates(framework)
    host = msgspec.structs.replace(LINUX, cpu=Cpu(flags=("sse2", "sse4_1")))
    choice = choose_best(candidates, host, locks=LIBRARY.locks(candidates))
    assert choice.profile is None
    fits = {f.profile: f for f in choice.fits}
    assert "no avx (avx missing)" in fits[f"{framework}-cpu"].reasons[0]
