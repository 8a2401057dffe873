"""The table of accelerators: whole, without contradictions, and in the order of preference;
of AMD's GPUs, which the wheels serve, and which of several HIP is shown."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from envbuilder.core import resources
from envbuilder.host import accelerators
from envbuilder.host.accelerators import ACCELERATORS
from envbuilder.host.gpus.accelerator import Needs, worst
from envbuilder.host.model import Gpu, Host
from envbuilder.profiles import needs
from envbuilder.profiles.profile import Requires, load as load_profile
from tests.support.broken_hosts import RAPHAEL, changed
from tests.support.host_trees import PROFILES, profile
from tests.support.shipped import LIBRARY

BY_NAME = {p.name: p for p in PROFILES}


def test_the_cpu_comes_last() -> None:
    assert list(ACCELERATORS) == ["cuda", "rocm", "xpu", "mps", "cpu"]


def test_no_vendor_has_two_rows() -> None:
    vendors = [row.vendor for row in ACCELERATORS.values()]
    assert len(set(vendors)) == len(vendors)
    assert accelerators.of_vendor("intel") == ACCELERATORS["xpu"]
    assert accelerators.of_vendor("unknown") is None


def test_variants_are_shipped_and_for_their_rows_accelerator() -> None:
    folders = (resources.profiles_dir(),)
    for name, row in ACCELERATORS.items():
        for variant in row.variants:
            assert load_profile(variant, folders).accelerator == name


def test_the_cpu_has_nothing_to_find_and_a_missing_gpu_is_named_by_its_brand() -> None:
    host = Host(os="linux")
    assert needs.findings(BY_NAME["cpu"], host, Needs(), native=True) == []
    (found,) = needs.findings(BY_NAME["cuda"], host, Needs(), native=False)
    assert (found.level, found.text) == ("no", "no NVIDIA GPU was found")
    unread = Host(os="linux", gpus=(Gpu(vendor="unknown", name="?", state="unknown", detail="x."),))
    (found,) = needs.findings(BY_NAME["cuda"], unread, Needs(), native=False)
    assert (found.level, found.code) == ("warning", "unread")


def test_only_a_native_environment_needs_the_hosts_runtime() -> None:
    host = Host(os="linux", level_zero=False)
    for native, codes in ((True, ["no-gpu", "level-zero"]), (False, ["no-gpu"])):
        found = needs.findings(BY_NAME["xpu"], host, Needs(), native=native)
        assert [f.code for f in found] == codes


# AMD

AMD = ACCELERATORS["rocm"]
SERVED = needs.needs(LIBRARY.profile("rocm"), LIBRARY.lock("rocm"), "linux/amd64")
NAVI = msgspec.structs.replace(RAPHAEL, name="AMD RX 7900", bus="0000:03:00.0", family="gfx1100")
FITS = ["90a", "942", "950", "1100", "1101", "1102", "1150", "1151", "1200", "1201"]
PERHAPS = ["908", "1030", "1103"]
REFUSED = [
    "900",
    "902",
    "906",
    "90c",
    "940",
    "1010",
    "1012",
    "1031",
    "1032",
    "1036",
    "1152",
    "1153",
    "1250",
    "9999",
]


@pytest.mark.parametrize(
    ("targets", "level"), [(FITS, "note"), (PERHAPS, "warning"), (REFUSED, "no")]
)
def test_what_the_shipped_wheels_serve(targets: list[str], level: str) -> None:
    for target in targets:
        found = AMD.judge(changed(NAVI, family=f"gfx{target}"), SERVED, True)
        assert worst(found) == level, target
        assert f"gfx{target}" in found[0].text


def test_a_target_or_a_torch_that_is_unknown_is_a_warning() -> None:
    (unread, _) = AMD.judge(changed(NAVI, family=None), SERVED, True)
    assert (unread.level, unread.code) == ("warning", "gfx-unread")
    (other, _) = AMD.judge(NAVI, Needs(), True)
    assert (other.level, other.code) == ("warning", "lock-unread")


def test_what_a_profile_states_itself_goes_before_the_table() -> None:
    own = profile("rocm", requires=Requires(kernels=("gfx1032",)))
    stated = needs.needs(own, LIBRARY.lock("rocm"), "linux/amd64")
    assert (stated.kernels, stated.partly) == (("gfx1032",), ())


@pytest.mark.parametrize(
    ("changes", "native", "image"),
    [
        ({}, "note", "note"),
        ({"state": "present", "obstacle": "node-closed"}, "no", "warning"),
        ({"state": "present", "obstacle": "node-closed", "family": "gfx1032"}, "no", "no"),
        ({"state": "present", "obstacle": "node-missing"}, "no", "no"),
        ({"state": "present", "obstacle": "wsl", "family": None}, "no", "no"),
        ({"state": "unknown", "obstacle": "unread"}, "warning", "warning"),
        ({"state": "unknown", "obstacle": "unread", "family": "gfx90c"}, "no", "no"),
    ],
)
def test_driver_and_nodes(changes: dict[str, Any], native: str, image: str) -> None:
    gpu = changed(NAVI, detail="It is so.", **changes)
    assert worst(AMD.judge(gpu, SERVED, True)) == native
    assert worst(AMD.judge(gpu, SERVED, False)) == image


def numbers(*cards: Gpu) -> list[int] | None:
    """The numbers of the cards among those that HIP sees; None if their order is unknown."""
    order = AMD.order(cards, ())
    if order is None:
        return None
    return [number for number, gpu in enumerate(order) if gpu.family == "gfx1100"]


def test_hip_numbers_the_gpus_that_this_process_can_open() -> None:
    assert numbers(RAPHAEL, NAVI) == [1]
    second = changed(NAVI, bus="0000:04:00.0")
    assert numbers(NAVI, RAPHAEL, second) == [0, 2]
    for obstacle in ("node-missing", "not-given", "driver-other", "unsupported"):
        gone = changed(RAPHAEL, state="present", obstacle=obstacle)
        assert numbers(gone, RAPHAEL, NAVI) == [1]


def test_without_a_certain_order_nothing_is_hidden() -> None:
    for state, obstacle in (("unknown", "unread"), ("present", "node-closed")):
        assert numbers(changed(RAPHAEL, state=state, obstacle=obstacle), RAPHAEL, NAVI) is None


def test_a_card_goes_before_an_apu_and_what_works_before_what_does_not() -> None:
    card = changed(NAVI, memory_kind="dedicated", memory_bytes=16 << 30)
    apu = changed(RAPHAEL, memory_kind="shared", memory_bytes=64 << 30)
    broken = changed(card, state="present", memory_bytes=99 << 30)
    assert sorted([apu, broken, card], key=AMD.capability) == [broken, apu, card]
