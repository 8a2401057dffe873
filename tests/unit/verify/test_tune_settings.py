"""What is tried on which machine, and what never is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuilder.core.errors import VerifyError
from envbuilder.verify import tune, tune_settings
from tests.support.tuning import SURVEY, settings


@pytest.mark.parametrize(("device", "name"), [("cuda", "cuda"), ("rocm", "cuda"), ("cpu", "cpu")])
def test_advice_names_devices_as_torch_does(device: str, name: str) -> None:
    assert settings(device)["bfloat16 autocast"].advice.startswith(f'torch.autocast("{name}"')


def test_what_is_in_effect_already_is_not_tried() -> None:
    names = settings()
    assert "2 threads" not in names
    assert {"1 thread", "4 threads"} <= set(names)
    assert not [n for n in names if n.startswith("tcmalloc")]
    assert "OMP_WAIT_POLICY=active" in names
    assert "OMP_WAIT_POLICY=active" not in settings(wait_policy="ACTIVE")
    assert "libc's allocator" not in settings(allocator="libc")


def test_a_missing_jemalloc_is_not_tried_and_one_that_is_there_is_not_written() -> None:
    assert not [n for n in settings() if "jemalloc" in n]
    found = settings(
        allocators={"jemalloc": "/usr/lib/libjemalloc.so.2"}, preload=["/b/libfaketime.so.1"]
    )
    assert found["jemalloc"].variables == {
        "LD_PRELOAD": "/usr/lib/libjemalloc.so.2:/b/libfaketime.so.1"
    }
    assert "MALLOC_CONF" in found["jemalloc, as advised"].variables
    assert found["jemalloc"].profile == {}
    assert "export LD_PRELOAD=/usr/lib/libjemalloc.so.2" in found["jemalloc"].advice


def test_glibcs_own_settings_need_glibc() -> None:
    assert "libc's allocator, keeping memory" in settings()
    assert "libc's allocator, keeping memory" not in settings(glibc=False)


def test_loaders_are_tried_with_the_start_methods_there_are() -> None:
    loaders = [n for n in settings() if n.startswith("DataLoader")]
    assert loaders == [
        "DataLoader, 0 workers",
        "DataLoader, 1 worker, fork",
        "DataLoader, 1 worker, spawn",
        "DataLoader, 2 workers, fork",
        "DataLoader, 2 workers, spawn",
    ]


def test_no_setting_that_lowers_precision_unseen_or_binds_threads_is_tried() -> None:
    variables = {v for s in settings().values() for v in s.variables}
    assert not {v for v in variables if "FPMATH" in v or "TF32" in v or "AFFINITY" in v}
    assert not {v for v in variables if "BIND" in v}


def test_threads_never_go_into_a_profile() -> None:
    for device in ("cpu", "cuda", "xpu", "mps"):
        for setting in settings(device).values():
            assert "OMP_NUM_THREADS" not in str(setting.profile)
            assert setting.profile or setting.advice, f"{setting.name} says not how to have it"


def test_mps_is_kept_from_channels_last() -> None:
    assert not [n for n in settings("mps") if "channels_last" in n]
    assert "channels_last layout" in settings("cuda")
    assert not [n for n in settings("cuda") if "denormal" in n or "libc" in n or "WAIT" in n]


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=5))
def test_a_survey_from_outside_never_breaks(report: Any) -> None:
    for broken in (report, {**SURVEY, "threads": report}, {**SURVEY, "allocators": report}):
        try:
            tune_settings.candidates(tune.read(broken, tune_settings.Survey), "cpu")
        except VerifyError:
            continue
