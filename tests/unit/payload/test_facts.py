from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from envbuilder.payload.frameworks.torch_ import Torch
from envbuilder.payload.machine import facts
from tests.support.hip import HipTorch


def test_facts_of_torch_and_of_the_platform() -> None:
    of_torch = Torch(HipTorch(), "rocm").facts()
    assert of_torch == {"version": "2.14.0+rocm7.2", "build": "rocm7.2", "runtime": "7.2.26015"}
    assert facts.platform_facts()["python"] == ".".join(map(str, sys.version_info[:3]))
    assert facts.platform_facts()["platform"].startswith(sys.platform)


@pytest.mark.parametrize(
    ("maps", "expected"),
    [
        ("7f r-xp 0 08:01 12  /usr/lib/x86_64-linux-gnu/libc.so.6\n", "libc"),
        ("7f r-xp 0 08:01 12  /a/libtcmalloc_minimal.so.4\n", "/a/libtcmalloc_minimal.so.4"),
        ("7f r-xp 0 08:01 12  /usr/lib/libjemalloc.so.2\n", "/usr/lib/libjemalloc.so.2"),
        ("7f r-xp 0 08:01 12  /home/libtcmalloc/lib/libz.so.1\n", "libc"),
        ("", "libc"),
    ],
)
def test_the_preloaded_allocator(tmp_path: Path, maps: str, expected: str) -> None:
    (tmp_path / "maps").write_text(maps)
    assert facts.allocator(tmp_path / "maps") == expected


def test_the_age_of_a_process_whose_name_holds_spaces_and_parentheses() -> None:
    if not hasattr(time, "CLOCK_BOOTTIME"):
        pytest.skip("no boot clock: not Linux")
    started = (time.clock_gettime(time.CLOCK_BOOTTIME) - 5) * os.sysconf("SC_CLK_TCK")
    stat = "42 (a) b (c) S " + " ".join(["0"] * 18) + f" {int(started)} 0 0"
    age = facts.parse_age(stat)
    assert 5 <= age < 6


@pytest.mark.parametrize("stat", ["", "42 (python) S 1 2", "42 (python) S " + "x " * 30])
def test_an_age_that_nobody_tells_is_unknown(stat: str) -> None:
    assert facts.parse_age(stat) is None
