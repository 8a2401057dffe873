"""Which release would work on a host instead of a project's, and what keeps it from that."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from envbuilder.core.settings import load as load_settings
from envbuilder.host.model import Cpu, Gpu, Host
from envbuilder.profiles import fit
from envbuilder.profiles.library import Library
from envbuilder.project import variants
from tests.support import host_trees
from tests.support.shipped import shipped_profile
from tests.support.tools import lock_of, wheel

OWN = "to use that build, write your own profile (extends: cuda, builds"
ASKS = "envbuilder.yaml:1 asks for torch=="
FIRST = "2.7.0 (cu128) is the first"
OLDEST = "Driver"


def library_of(folder: Path, wish: str) -> Library:
    """Return the profiles of a project that is not locked yet.

    It is judged by the release that it will get.
    """
    (folder / "envbuilder.yaml").write_text(f"requirements: ['{wish}']\n")
    variables = {"ENVBUILDER_CONFIG_DIR": str(folder / "config")}
    return variants.library(load_settings(variables, folder))


def nvidia(sm: str, driver: str) -> Host:
    """Return a machine with one GPU of NVIDIA's."""
    gpu = Gpu(vendor="nvidia", name="GPU", state="usable", sm=sm, driver_version=driver)
    return Host(
        os="linux", machine="x86_64", platform="linux/amd64", libc="glibc 2.39", gpus=(gpu,),
        cpu=Cpu(flags=("sse2", "sse4_1")),
    )  # fmt: skip


def require_advice(library: Library, name: str, host: Host, verdict: str, advice: str) -> None:
    """Check the verdict on a profile, and that its advice has these parts in this order."""
    profile = library.profile(name)
    judged = fit.judge(profile, host, lock=library.lock(name), backend="venv")
    assert judged.verdict == verdict, judged.reasons
    text = library.advice(profile, host)
    assert bool(text) == bool(advice), text
    place = 0
    for part in advice.split(".*"):
        place = text.index(part, place)
    if "is the first" in text:  # as `detect` says which releases work
        *_, first = (b.release for b, level in fit.serving(profile, host) if level == "note")
        assert f" {first} (" in text


@pytest.mark.parametrize(
    ("wish", "sm", "driver", "verdict", "advice"),
    [
        ("torch==1.13.1", "6.0", "470.256.02", "fits", ""),
        ("torch==2.1.2", "12.0", "580.95", "no", f"{FIRST}.*{ASKS}2.1.2; {OWN}: [cu128]"),
        (
            "torch==2.13.0", "5.0", "470.1", "no",
            f"2.7.1 (cu118) is the last.*{OWN}: [cu118].*, or use cuda's build of 2.0.1.",
        ),
        ("torch>=2.12", "6.0", "580.95", "no", f"{OWN}: [cu126], release: 2.13.0)."),
        ("torch==2.1.2", "7.5", "470.1", "no", "2.1.2 (cu118) works here (driver 450.80.02"),
        ("torch>=2.7", "7.5", "550.54", "no", '2.10.0 (cu128).*framework_version: "2.10'),
        # Nothing works with this driver: which one would do, within the project's limits if any.
        (
            "torch==2.1.2", "7.5", "390.1", "no",
            f"{OLDEST} 450.80.02 or newer is sufficient, for PyTorch 2.1.2 (cu118).",
        ),
        (
            "einops", "7.5", "390.1", "no",
            f"{OLDEST} 440.33 or newer is sufficient, for PyTorch 1.12.1 (cu102).",
        ),
        (
            "torch==2.4.1", "12.0", "470.1", "no",
            f"{OLDEST} 525.60.13 or newer is sufficient, for.*; {ASKS}2.4.1.",
        ),
        # No release serves what is older than all kernels.
        ("torch==2.1.2", "3.0", "470.1", "no", ""),
    ],
)  # fmt: skip
def test_the_release_for_a_gpu_and_its_driver(
    wish: str, sm: str, driver: str, verdict: str, advice: str, tmp_path: Path
) -> None:
    require_advice(library_of(tmp_path, wish), "cuda", nvidia(sm, driver), verdict, advice)


@pytest.mark.parametrize(
    ("torch", "runtime", "advice"),
    [
        # This release has a build that works, as a newer one does.
        ("2.12.1", "13.0.96", "PyTorch 2.12.1 (cu126) works here"),
        # Nothing is better than what is locked, or than what is not known.
        ("2.12.1+cu126", "12.6.77", ""),
        ("9.9", "13.0.96", ""),
    ],
)
def test_what_is_locked_is_compared_with_other_releases(
    torch: str, runtime: str, advice: str
) -> None:
    profile = shipped_profile("cuda")
    lock = lock_of(
        wheel(f"torch-{torch}-cp312-cp312-manylinux_2_28_x86_64.whl", version=torch),
        wheel(f"r-{runtime}-py3-none-any.whl", "nvidia-cuda-runtime", runtime),
    )
    choices = profile.choices()
    offers = [(choices["2.13.0"], ""), (choices["2.12.1"], "")]
    text = fit.other_release(profile, nvidia("6.0", "580.95"), lock, offers)
    assert text.startswith(advice)
    assert bool(text) == bool(advice)


@pytest.mark.parametrize(
    ("name", "profile", "wish", "verdict", "advice"),
    [
        ("rtx5090-driver-570", "cuda", "torch==2.4.1", "no", FIRST),
        ("rx7900", "rocm", "torch==2.0.1", "no", f"2.1.0 (rocm5.6) is the first.*{ASKS}2.0.1."),
        # Of 2.6.0 no source states the kernels.
        ("rx7900", "rocm", "torch==2.6.0", "warnings", "2.7.0 (rocm6.3) is the next"),
        ("rx7900", "rocm", "torch<2.7,>=2.4", "warnings", 'framework_version: "2.5.1"'),
        ("arc-b580", "xpu", "torch==2.6.0", "warnings", "2.7.0 (xpu) is the"),
    ],
)
def test_the_release_for_other_machines(
    name: str, profile: str, wish: str, verdict: str, advice: str, tmp_path: Path
) -> None:
    host = msgspec.json.decode((host_trees.FOLDER / f"{name}.json").read_bytes(), type=Host)
    require_advice(library_of(tmp_path, wish), profile, host, verdict, advice)
