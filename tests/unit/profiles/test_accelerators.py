"""The table of accelerators: whole, without contradictions, and in the order of preference."""

from __future__ import annotations

from typing import get_args

import pytest

from envbuilder.core import resources, types
from envbuilder.host.model import Gpu, Host
from envbuilder.profiles import accelerators
from envbuilder.profiles.accelerators import ACCELERATORS
from envbuilder.profiles.needs import Needs
from envbuilder.profiles.profile import Requires
from envbuilder.profiles.profile import load as load_profile
from tests.support.host_trees import PROFILES, profile

BY_NAME = {p.name: p for p in PROFILES}


def test_every_accelerator_of_a_profile_has_a_row_and_the_cpu_comes_last() -> None:
    assert set(ACCELERATORS) == set(get_args(types.Accelerator))
    assert list(ACCELERATORS) == ["cuda", "rocm", "xpu", "mps", "cpu"]


def test_no_vendor_has_two_rows() -> None:
    vendors = [row.vendor for row in ACCELERATORS.values()]
    assert len(set(vendors)) == len(vendors)
    assert accelerators.of_vendor("intel") == "xpu"
    assert accelerators.of_vendor("amd") == "rocm"
    assert accelerators.of_vendor("unknown") is None


def test_variants_are_shipped_and_for_their_rows_accelerator() -> None:
    folders = (resources.profiles_dir(),)
    for name, row in ACCELERATORS.items():
        for variant in row.variants:
            assert load_profile(variant, folders).accelerator == name


@pytest.mark.parametrize(
    ("name", "requires", "wanted", "vendor"),
    [
        ("cpu", Requires(), Needs(), None),
        ("cpu", Requires(), Needs(nvidia_driver="580"), "nvidia"),
        ("cpu", Requires(), Needs(sm=("9.0",)), "nvidia"),
        ("cpu", Requires(intel_gpu=True), Needs(), "intel"),
        ("cpu", Requires(), Needs(gfx=("gfx1100",)), "amd"),
        ("rocm", Requires(), Needs(), "amd"),
        ("xpu", Requires(), Needs(), "intel"),
        ("mps", Requires(), Needs(macos="14.0"), "apple"),
    ],
)
def test_a_profile_needs_its_own_gpu_or_the_one_that_it_requires(
    name: str, requires: Requires, wanted: Needs, vendor: str | None
) -> None:
    assert accelerators.needed(profile(name, requires=requires), wanted).vendor == vendor


def test_the_cpu_has_nothing_to_find_and_a_missing_gpu_is_named_by_its_brand() -> None:
    host = Host(os="linux")
    assert accelerators.findings(BY_NAME["cpu"], host, Needs(), native=True) == []
    (found,) = accelerators.findings(BY_NAME["cuda"], host, Needs(), native=False)
    assert (found.level, found.text) == ("no", "no NVIDIA GPU was found")
    unread = Host(os="linux", gpus=(Gpu(vendor="unknown", name="?", state="unknown", detail="x."),))
    (found,) = accelerators.findings(BY_NAME["cuda"], unread, Needs(), native=False)
    assert (found.level, found.code) == ("warning", "unread")


def test_only_a_native_environment_needs_the_hosts_runtime() -> None:
    host = Host(os="linux", level_zero=False)
    for native, codes in ((True, ["no-gpu", "level-zero"]), (False, ["no-gpu"])):
        found = accelerators.findings(BY_NAME["xpu"], host, Needs(), native=native)
        assert [f.code for f in found] == codes
