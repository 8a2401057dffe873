"""AMD: which GPUs the wheels serve, and which of several HIP is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from envbuilder.core import resources
from envbuilder.profiles import accelerators, gpus
from envbuilder.profiles.library import Library
from envbuilder.profiles.needs import Needs, worst
from envbuilder.profiles.profile import Requires
from tests.support.broken_hosts import RAPHAEL, changed
from tests.support.host_trees import profile

if TYPE_CHECKING:
    from envbuilder.host.model import Gpu

LIBRARY = Library((resources.profiles_dir(),))
SERVED = accelerators.needs(LIBRARY.profile("rocm"), LIBRARY.lock("rocm"), "linux/amd64")
NAVI = msgspec.structs.replace(RAPHAEL, name="AMD RX 7900", bus="0000:03:00.0", family="gfx1100")
FITS = ["90a", "942", "950", "1100", "1101", "1102", "1150", "1151", "1200", "1201"]
PERHAPS = ["908", "1030", "1103"]
REFUSED = [
    *("900", "902", "906", "90c", "940", "1010", "1012", "1031", "1032", "1036"),
    *("1152", "1153", "1250", "9999"),
]


@pytest.mark.parametrize(
    ("targets", "level"), [(FITS, "note"), (PERHAPS, "warning"), (REFUSED, "no")]
)
def test_what_the_shipped_wheels_serve(targets: list[str], level: str) -> None:
    for target in targets:
        found = gpus.judge_amd(changed(NAVI, family=f"gfx{target}"), SERVED, native=True)
        assert worst(found) == level, target
        assert f"gfx{target}" in found[0].text


def test_a_target_or_a_torch_that_is_unknown_is_a_warning() -> None:
    (unread, _) = gpus.judge_amd(changed(NAVI, family=None), SERVED, native=True)
    assert (unread.level, unread.code) == ("warning", "gfx-unread")
    (other, _) = gpus.judge_amd(NAVI, Needs(), native=True)
    assert (other.level, other.code) == ("warning", "lock-unread")


def test_what_a_profile_states_itself_goes_before_the_table() -> None:
    own = profile("rocm", requires=Requires(gfx=("gfx1032",)))
    stated = accelerators.needs(own, LIBRARY.lock("rocm"), "linux/amd64")
    assert (stated.gfx, stated.gfx_partly) == (("gfx1032",), ())


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
    assert worst(gpus.judge_amd(gpu, SERVED, native=True)) == native
    assert worst(gpus.judge_amd(gpu, SERVED, native=False)) == image


def hidden(*cards: Gpu) -> dict[str, str] | None:
    return gpus.hide_amd(cards, [gpu for gpu in cards if gpu.family == "gfx1100"])


def test_hip_numbers_the_gpus_that_this_process_can_open() -> None:
    assert hidden(NAVI, RAPHAEL) == {"HIP_VISIBLE_DEVICES": "0"}
    assert hidden(RAPHAEL, NAVI) == {"HIP_VISIBLE_DEVICES": "1"}
    second = changed(NAVI, bus="0000:04:00.0")
    assert hidden(NAVI, RAPHAEL, second) == {"HIP_VISIBLE_DEVICES": "0,2"}
    for obstacle in ("node-missing", "not-given", "driver-other", "unsupported"):
        gone = changed(RAPHAEL, state="present", obstacle=obstacle)
        assert hidden(gone, RAPHAEL, NAVI) == {"HIP_VISIBLE_DEVICES": "1"}


def test_without_a_certain_order_nothing_is_hidden() -> None:
    for state, obstacle in (("unknown", "unread"), ("present", "node-closed")):
        assert hidden(changed(RAPHAEL, state=state, obstacle=obstacle), RAPHAEL, NAVI) is None


def test_a_card_goes_before_an_apu_and_what_works_before_what_does_not() -> None:
    card = changed(NAVI, memory_kind="dedicated", memory_bytes=16 << 30)
    apu = changed(RAPHAEL, memory_kind="shared", memory_bytes=64 << 30)
    broken = changed(card, state="present", memory_bytes=99 << 30)
    assert sorted([apu, broken, card], key=gpus.amd_capability) == [broken, apu, card]
