"""Which release would work on a host instead of a project's, and what keeps it from that."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuilder.core.settings import load as load_settings
from envbuilder.host.model import Cpu, Gpu, Host
from envbuilder.profiles import fit
from envbuilder.project import catalog

OWN = "a profile of your own takes that build (extends: cuda, builds"
ASKS = "envbuilder.yaml:1 asks for torch=="


@pytest.mark.parametrize(
    ("wish", "sm", "driver", "verdict", "advice"),
    [
        ("torch==1.13.1", "6.0", "470.256.02", "fits", ""),
        ("torch==2.1.2", "7.5", "525.60.13", "fits", ""),
        ("torch==2.1.2", "12.0", "580.95", "no", f"2.8.0 (cu128) is the first.*{ASKS}2.1.2"),
        ("torch==2.4.1", "10.0", "580.95", "no", f"2.8.0 (cu128) is the first.*{ASKS}2.4.1"),
        ("torch==2.13.0", "5.0", "470.1", "no", f"2.0.1 (cu117) is the last.*{ASKS}2.13.0"),
        ("torch==2.1.2", "7.5", "470.1", "no", "2.1.2 (cu118) works here (driver 450.80.02"),
        ("torch==2.7.1", "12.0", "580.95", "no", f"2.7.1 (cu128) works.*{OWN}: [cu128]"),
        ("torch==2.13.0", "7.0", "580.95", "no", f"2.13.0 (cu126) works here.*{OWN}: [cu126]"),
        ("torch>=2.7", "7.5", "550.54", "no", '2.10.0 (cu128).*framework_version: "2.10'),
        # Nothing works without a driver, and no release serves what is older than all kernels.
        ("torch==2.1.2", "7.5", "390.1", "no", ""),
        ("torch==2.1.2", "3.0", "470.1", "no", ""),
    ],
)  # fmt: skip
def test_the_release_for_a_gpu_and_its_driver(
    wish: str, sm: str, driver: str, verdict: str, advice: str, tmp_path: Path
) -> None:
    """Of a project that is not locked yet: it is judged by the release that it will get."""
    (tmp_path / "envbuilder.yaml").write_text(f"requirements: ['{wish}']\n")
    variables = {"ENVBUILDER_CONFIG_DIR": str(tmp_path / "config")}
    library = catalog.library(load_settings(variables, tmp_path))
    gpu = Gpu(vendor="nvidia", name="GPU", state="usable", sm=sm, driver_version=driver)
    host = Host(
        os="linux", machine="x86_64", platform="linux/amd64", libc="glibc 2.39", gpus=(gpu,),
        cpu=Cpu(flags=("sse2", "sse4_1")),
    )  # fmt: skip
    profile = library.profile("cuda")
    judged = fit.judge(profile, host, lock=library.lock("cuda"), backend="venv")
    assert judged.verdict == verdict, judged.reasons
    text = library.advice(profile, host)
    assert bool(text) == bool(advice)
    place = 0
    for part in advice.split(".*"):
        place = text.index(part, place)
