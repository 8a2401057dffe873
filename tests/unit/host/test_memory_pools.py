from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuilder.host import memory_pools as capacity
from envbuilder.host.model import Gpu, Host, Memory

GIB = 2**30
MAIN = Memory(total_bytes=64 * GIB, bandwidth=80 * 10**9)
LINUX = Host(os="linux", memory=MAIN)
ADA = Gpu(
    vendor="nvidia",
    name="RTX 4090",
    state="usable",
    memory_kind="dedicated",
    memory_bytes=24 * GIB,
    usable_bytes=23 * GIB,
    bandwidth=1008 * 10**9,
)
M2 = Gpu(
    vendor="apple",
    name="Apple M2 GPU",
    state="usable",
    memory_kind="shared",
    memory_bytes=16 * GIB,
    usable_bytes=10 * GIB,
)


def changed(value: Any, **changes: object) -> Any:
    return msgspec.structs.replace(value, **changes)


def sizes(here: Host, vendor: Any) -> list[tuple[str, int | None, int | None]]:
    return [(p.kind, p.usable_bytes, p.bandwidth) for p in capacity.pools(here, vendor)]


def test_each_gpu_with_its_own_memory_is_a_pool_and_main_memory_comes_last() -> None:
    here = changed(LINUX, gpus=(ADA, ADA))
    own = ("accelerator", 23 * GIB, 1008 * 10**9)
    assert sizes(here, "nvidia") == [own, own, ("memory", 64 * GIB, 80 * 10**9)]


def test_memory_that_is_shared_is_counted_once() -> None:
    here = changed(LINUX, os="macos", gpus=(M2,))
    assert sizes(here, "apple") == [("accelerator", 10 * GIB, 80 * 10**9)]
    own = changed(M2, bandwidth=100 * 10**9)
    assert sizes(changed(here, gpus=(own,)), "apple") == [("accelerator", 10 * GIB, 100 * 10**9)]


def test_what_a_shared_gpu_may_have_is_never_taken_from_the_total() -> None:
    here = changed(LINUX, gpus=(changed(M2, usable_bytes=None),))
    assert sizes(here, "apple") == [("accelerator", None, 80 * 10**9)]


def test_shared_gpus_do_not_count_beside_dedicated_ones() -> None:
    arc = changed(ADA, vendor="intel", name="Arc B580")
    display = changed(M2, vendor="intel", name="Arc 140V")
    here = changed(LINUX, gpus=(display, arc))
    assert [p.name for p in capacity.pools(here, "intel")] == ["Arc B580", "main memory"]


@pytest.mark.parametrize("state", ["present", "unknown"])
def test_only_usable_gpus_of_the_right_vendor_count(state: str) -> None:
    here = changed(LINUX, gpus=(changed(ADA, state=state), changed(M2, vendor="intel")))
    assert sizes(here, "nvidia") == [("memory", 64 * GIB, 80 * 10**9)]
    assert sizes(changed(LINUX, gpus=(ADA,)), None) == [("memory", 64 * GIB, 80 * 10**9)]


def test_all_memory_of_a_gpu_where_nobody_says_what_the_driver_keeps() -> None:
    here = changed(LINUX, gpus=(changed(ADA, usable_bytes=None),))
    assert sizes(here, "nvidia")[0][1] == 24 * GIB


def test_how_much_a_process_gets_of_a_split_gpu_is_not_known() -> None:
    here = changed(LINUX, gpus=(changed(ADA, mig=True, usable_bytes=None),))
    assert sizes(here, "nvidia")[0][1] is None


@pytest.mark.parametrize(
    ("total", "limit", "usable"),
    [(64, 8, 8), (64, 128, 64), (64, None, 64), (None, 8, 8), (None, None, None)],
)
def test_main_memory_is_what_the_container_allows(
    total: int | None, limit: int | None, usable: int | None
) -> None:
    here = changed(LINUX, memory=Memory(total_bytes=total, limit_bytes=limit))
    assert sizes(here, None) == [("memory", usable, None)]


@given(
    st.lists(
        st.builds(
            Gpu,
            vendor=st.sampled_from(["nvidia", "intel", "amd", "apple", "unknown"]),
            name=st.text(max_size=5),
            state=st.sampled_from(["usable", "present", "unknown"]),
            memory_kind=st.sampled_from(["dedicated", "shared", None]),
            memory_bytes=st.none() | st.integers(0, 2**53),
            mig=st.none() | st.booleans(),
        ),
        max_size=4,
    ),
    st.sampled_from([None, "nvidia", "intel", "apple"]),
)
def test_there_is_always_a_pool_and_main_memory_at_most_once(gpus: list[Gpu], vendor: Any) -> None:
    found = capacity.pools(changed(LINUX, gpus=tuple(gpus)), vendor)
    assert found
    assert [p.kind for p in found].count("memory") <= 1
    assert all(p.kind == "accelerator" for p in found[:-1])
