"""What locked wheels need of a host: kernels, driver, C library, macOS."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from envbuilder.core import types
from envbuilder.host.accelerators import ACCELERATORS
from envbuilder.host.gpus.accelerator import Needs
from envbuilder.host.model import Cpu, Gpu, Host
from envbuilder.profiles import needs
from envbuilder.profiles.choice import choose_best
from envbuilder.profiles.fit import judge
from envbuilder.profiles.lock import File
from envbuilder.profiles.profile import Requires
from tests.support.host_trees import profile
from tests.support.shipped import LIBRARY
from tests.support.tools import lock_of, wheel


@pytest.fixture(autouse=True)
def nothing_is_remembered() -> None:
    """What an earlier test read from the same names would hide a change (`make mutants`)."""
    needs.of_wheels.cache_clear()


def needs_of(name: str, platform: types.Platform) -> Needs:
    return needs.needs(LIBRARY.profile(name), LIBRARY.lock(name), platform)


def test_the_shipped_locks_say_what_the_hardware_notes_say() -> None:
    cuda = needs_of("cuda", "linux/amd64")
    assert cuda.kernels == ("7.5", "8.0", "8.6", "9.0", "10.0", "12.0")
    assert cuda.ptx is False
    assert cuda.driver == "580.65.06"
    assert cuda.glibc == "2.28"
    assert needs_of("cuda", "linux/arm64").kernels == ("8.0", "9.0", "10.0", "11.0", "12.0")
    legacy = needs_of("cuda-legacy", "linux/amd64")
    assert legacy.kernels[:3] == ("5.0", "6.0", "7.0")
    assert legacy.ptx is False
    assert legacy.driver == "525.60.13"
    assert needs_of("mps", "macos/arm64") == Needs(macos="14.0")
    assert needs_of("cpu", "linux/amd64") == Needs(glibc="2.28")


def test_what_a_profile_states_goes_before_what_its_lock_says() -> None:
    mine = profile("cuda", requires=Requires(kernels=("6.1",), driver="500"))
    files = (
        wheel("torch-2.14.1-cp312-cp312-manylinux_2_28_x86_64.whl"),
        wheel("nvidia_cuda_runtime-13.0.96-py3-none-any.whl", "nvidia-cuda-runtime", "13.0.96"),
    )
    found = needs.needs(mine, lock_of(*files), "linux/amd64")
    assert found.kernels == ("6.1",)
    assert found.ptx is False
    assert found.driver == "500"
    newer = profile("cuda", requires=Requires(kernels=("6.1",), kernels_ptx=True))
    assert needs.needs(newer, lock_of(*files), "linux/amd64").ptx
    silent = needs.needs(profile("cuda", requires=Requires()), lock_of(*files), "linux/amd64")
    assert "7.5" in silent.kernels
    assert silent.driver == "580.65.06"


@pytest.mark.parametrize(
    "files",
    [
        (wheel("torch-9.9-cp312-cp312-linux_x86_64.whl", version="9.9"),),
        (wheel("r-x-py3-none-any.whl", "nvidia-cuda-runtime", "x"),),
        (),
    ],
)
def test_a_torch_that_no_table_knows_is_never_promised(files: tuple[File, ...]) -> None:
    mine = profile("cuda", requires=Requires())
    gpu = Gpu(vendor="nvidia", name="RTX", state="usable", driver_version="999", sm="8.9")
    here = Host(os="linux", machine="x86_64", platform="linux/amd64", gpus=(gpu,))
    found = judge(mine, here, lock=lock_of(*files))
    assert found.verdict == "warnings"
    assert "it is unknown for which GPUs its wheels have kernels" in found.reasons


@pytest.mark.parametrize(("cudnn", "verdict"), [("9.10.2.21", "fits"), ("?", "warnings")])
@pytest.mark.parametrize("sm", ["6.0", "7.0"])
def test_the_locked_cudnn_decides_whether_pascal_and_volta_are_served(
    cudnn: str, verdict: str, sm: str
) -> None:
    files = (
        wheel("tensorflow-2.20.0-cp312-cp312-manylinux_2_17_x86_64.whl", "tensorflow", "2.20.0"),
        wheel("r-12.9.79-py3-none-any.whl", "nvidia-cuda-runtime-cu12", "12.9.79"),
        wheel("c.whl", "nvidia-cudnn-cu12", cudnn),
    )
    gpu = Gpu(vendor="nvidia", name="GPU", state="usable", driver_version="580.95", sm=sm)
    host = Host(
        os="linux", machine="x86_64", platform="linux/amd64", gpus=(gpu,), libc="glibc 2.39"
    )
    mine = replace(profile("cuda", requires=Requires()), framework="tensorflow")
    assert judge(mine, host, lock=lock_of(*files), backend="venv").verdict == verdict


@pytest.mark.parametrize(
    ("torch", "runtime", "machine", "sm", "verdict"),
    [
        ("2.7.1", "12.8.57", "x86_64", "7.0", "no"),  # V100
        ("2.8.0", "12.8.90", "x86_64", "7.0", "fits"),
        ("2.10.0", "13.0.96", "x86_64", "13.0", "warnings"),  # PTX, for what is newer
        ("2.5.1", "12.4.127", "aarch64", "9.0", "fits"),  # GH200
        ("2.6.0", "12.6.77", "aarch64", "9.0", "warnings"),  # no source says
    ],
)
def test_a_gpu_fits_where_the_release_has_its_kernels(
    torch: str, runtime: str, machine: str, sm: str, verdict: str
) -> None:
    platform: types.Platform = "linux/amd64" if machine == "x86_64" else "linux/arm64"
    files = (
        wheel(f"torch-{torch}-cp312-cp312-manylinux_2_28_{machine}.whl", version=torch),
        wheel(f"r-{runtime}-py3-none-any.whl", "nvidia-cuda-runtime", runtime),
    )
    gpu = Gpu(vendor="nvidia", name="GPU", state="usable", driver_version="999", sm=sm)
    here = Host(os="linux", machine=machine, platform=platform, gpus=(gpu,), libc="glibc 2.39")
    mine = profile("cuda", requires=Requires())
    assert judge(mine, here, lock=lock_of(*files, platform=platform)).verdict == verdict


def test_without_a_lock_only_the_profile_counts() -> None:
    stated = Requires(kernels=("6.1",), kernels_ptx=True, driver="500", macos="15.0")
    mine = profile("cuda", requires=stated)
    expected = Needs(kernels=("6.1",), ptx=True, driver="500", macos="15.0")
    assert needs.needs(mine, None, "linux/amd64") == expected
    mac = wheel("a-1-cp312-cp312-macosx_14_0_arm64.whl")
    locked = needs.needs(mine, lock_of(mac, platform="macos/arm64"), "macos/arm64")
    assert locked.macos == "15.0"


def test_each_wheel_may_have_several_tags_and_the_newest_wheel_decides() -> None:
    files = (
        wheel("a-1-cp312-cp312-manylinux2014_x86_64.manylinux_2_17_x86_64.whl"),
        wheel("b-1-cp312-cp312-manylinux_2_34_x86_64.manylinux_2_24_x86_64.whl"),
        wheel("c-1-py3-none-any.whl"),
        wheel("d-1-cp312-cp312-linux_x86_64.whl"),
    )
    mine = profile("cpu")
    assert needs.needs(mine, lock_of(*files), "linux/amd64").glibc == "2.24"
    assert needs.needs(mine, lock_of(*files), "linux/arm64") == Needs()
    mac = (
        wheel("a-1-cp312-cp312-macosx_11_0_arm64.whl"),
        wheel("b-1-cp312-cp312-macosx_14_0_arm64.whl"),
    )
    found = needs.needs(profile("mps"), lock_of(*mac, platform="macos/arm64"), "macos/arm64")
    assert found.macos == "14.0"


def test_a_native_environment_needs_the_c_library_of_its_wheels() -> None:
    cpu = LIBRARY.profile("cpu")
    lock = LIBRARY.lock("cpu")
    here = Host(os="linux", machine="x86_64", platform="linux/amd64", cpu=Cpu(flags=("avx2",)))
    for libc, verdict in (("glibc 2.28", "fits"), ("glibc 2.17", "no"), (None, "warnings")):
        native = judge(cpu, msgspec.structs.replace(here, libc=libc), lock=lock, backend="venv")
        assert (native.verdict, native.impossible) == (verdict, verdict == "no")
    # An image brings its own.
    assert judge(cpu, here, lock=lock, backend="docker").verdict == "fits"


def test_without_a_usable_lock_nothing_is_chosen() -> None:
    here = Host(os="linux", machine="x86_64", platform="linux/amd64")
    cpu = profile("cpu")
    good = lock_of()
    bad = msgspec.structs.replace(lock_of(), state="unlocked", targets=())
    assert choose_best([cpu], here, locks={"cpu": good}).profile == "cpu"
    for locks in ({}, {"cpu": None}, {"cpu": bad}):
        choice = choose_best([cpu], here, locks=locks)
        assert choice.profile is None
        assert "run `envbuilder lock --profile cpu`" in choice.fits[0].reasons[0]


OLDER = Gpu(vendor="nvidia", name="GTX 980", state="usable", driver_version="580.95", sm="5.2")
NEWER = replace(OLDER, name="GTX 1080", sm="6.1")
PAIR = Host(os="linux", machine="x86_64", platform="linux/amd64", gpus=(OLDER, NEWER))


def test_of_gpus_that_do_not_work_the_most_capable_is_reported() -> None:
    unfit = Needs(kernels=("7.5", "8.0"), driver="580")
    findings = needs.of_gpus(ACCELERATORS["cuda"], PAIR, unfit, native=True)
    sentences = [finding.text for finding in findings if finding.level == "no"]
    assert sentences == ["GTX 1080 is SM 6.1, but the wheels have kernels for 7.5, 8.0"]


def test_packages_need_no_kernels_for_a_gpu_that_is_not_used() -> None:
    required = Needs(kernels=("6.1",), driver="580", packages={"kernels 1.0": {"sm_61": 1}})
    findings = needs.of_gpus(ACCELERATORS["cuda"], PAIR, required, native=True)
    assert [finding.code for finding in findings if finding.level == "warning"] == ["left-out"]
