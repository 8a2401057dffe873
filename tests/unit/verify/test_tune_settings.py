"""What is tried on which machine, what never is, and what decides."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, strategies as st

from envbuilder.verify import tune, tune_settings
from envbuilder.verify.tune_settings import Pair, Setting, Trial, judge
from tests.support.reports import BUSY, QUIET
from tests.support.tuning import ACTIVE, LIBC, ONE, PLAIN, finding, pairs, settings, trial


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


def test_a_missing_jemalloc_is_not_tried() -> None:
    assert not [n for n in settings() if "jemalloc" in n]
    found = settings(
        allocators={"jemalloc": "/usr/lib/libjemalloc.so.2"}, preload=["/b/libfaketime.so.1"]
    )
    assert found["jemalloc"].variables == {
        "LD_PRELOAD": "/usr/lib/libjemalloc.so.2:/b/libfaketime.so.1"
    }
    assert "MALLOC_CONF" in found["jemalloc, as advised"].variables
    assert "export LD_PRELOAD=/usr/lib/libjemalloc.so.2" in found["jemalloc"].advice


def test_glibcs_own_settings_need_glibc() -> None:
    assert "libc's allocator, keeping memory" in settings()
    assert "libc's allocator, keeping memory" not in settings(glibc=False)


def test_no_setting_that_lowers_precision_unseen_or_binds_threads_is_tried() -> None:
    variables = {v for s in settings().values() for v in s.variables}
    assert not {v for v in variables if "FPMATH" in v or "TF32" in v or "AFFINITY" in v}
    assert not {v for v in variables if "BIND" in v}


def test_every_setting_says_how_to_have_it() -> None:
    for device in ("cpu", "cuda", "xpu", "mps"):
        assert [name for name, setting in settings(device).items() if not setting.advice] == []


def test_mps_is_kept_from_channels_last() -> None:
    assert not [n for n in settings("mps") if "channels_last" in n]
    assert "channels_last layout" in settings("cuda")
    assert not [n for n in settings("cuda") if "libc" in n or "WAIT" in n]


def contended(
    *gains: float, candidate: Any = QUIET, baseline: Any = QUIET, **more: Any
) -> list[Pair]:
    def timed(speed: float, facts: Any, **more: Any) -> Trial:
        made = {"samples_per_second": speed, "accuracy": 0.95, "loss": 0.3, **more}
        return tune.read({**made, "contention": facts}, Trial)

    return [
        Pair(baseline=timed(100, baseline), candidate=timed(100 * g, candidate, **more))
        for g in gains
    ]


@pytest.mark.parametrize(
    ("judged", "spread", "verdict"),
    [
        # The median of three pairs decides.
        (pairs(1.05, 1.05, 1.05), 0.0, "helps"),
        (pairs(1.04, 1.04, 1.04), 0.0, "no gain"),
        (pairs(3.0, 1.0, 1.0), 0.0, "no gain"),
        (pairs(0.5, 1.2, 1.3), 0.0, "helps"),
        (pairs(1.2, 1.2), 0.0, "failed"),
        # A gain within the machine's noise is none.
        (pairs(1.2, 1.2, 1.2), 0.25, "noise"),
        # Worse accuracy never wins.
        (pairs(2, 2, 2, accuracy=0.93), 0.0, "less accurate"),
        (pairs(2, 2, 2, accuracy=0.945), 0.0, "helps"),
        (pairs(2, 2, 2, loss=None), 0.0, "less accurate"),
        # Nothing is decided on a busy machine; wrong results are wrong on it, too.
        *((contended(g, g, g, candidate=BUSY), 0.0, "machine busy") for g in (0.5, 1.0, 1.3)),
        *((contended(g, g, g, baseline=BUSY), 0.0, "machine busy") for g in (0.5, 1.0, 1.3)),
        (contended(1.3, 1.3, 1.3), 0.0, "helps"),
        (contended(1.3, 1.3, 1.3, candidate=BUSY, accuracy=0.5), 0.0, "less accurate"),
    ],
)
def test_pairs_decide(judged: list[Pair], spread: float, verdict: str) -> None:
    found = judge(PLAIN, judged, spread)
    assert found.verdict == verdict
    assert tune_settings.winners([found]) == ((found,) if verdict == "helps" else ())


def test_a_verdict_says_why() -> None:
    busy = judge(PLAIN, contended(1.3, candidate=BUSY), 0.0).detail
    assert "tasks waited for a CPU 95 % of the time: measure again" in busy
    assert judge(PLAIN, pairs(2, accuracy=0.93), 0.0).detail == "93.0% instead of 95.0%"
    assert judge(PLAIN, pairs(1.2), 0.0).detail == "only 1 of 3 pairs were finished"
    # With --quick the accuracy may vary more.
    assert judge(PLAIN, pairs(2, 2, 2, accuracy=0.93), 0.0, "", 0.03).verdict == "helps"


def test_precision_and_batch_are_told_but_do_not_win() -> None:
    for kind, verdict in (("precision", "other precision"), ("batch", "other batch")):
        setting = Setting(name="x", group="x", kind=kind)  # type: ignore[arg-type]
        found = judge(setting, pairs(2, 2, 2), 0.0)
        assert found.verdict == verdict
        assert tune_settings.winners([found]) == ()


def test_noise_is_what_the_defaults_differ_by() -> None:
    assert tune_settings.noise([trial(s) for s in (100, 110, 100)]) == pytest.approx(0.1)
    assert tune_settings.noise([trial(100)]) == 0.0
    assert tune_settings.noise([]) == 0.0


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=3))
def test_what_is_given_up_could_not_have_won(gains: list[float]) -> None:
    if tune_settings.hopeless(pairs(*gains)):
        best = pairs(*gains, *[100.0] * (3 - len(gains)))
        assert judge(PLAIN, best, 0.0).verdict == "no gain"


def test_an_infinite_speed_gains_nothing() -> None:
    assert Pair(baseline=trial(100), candidate=trial(math.inf)).gain == 0.0


def test_of_a_group_the_best_wins_and_the_best_comes_first() -> None:
    two = Setting(name="2 threads", group="threads")
    found = [finding(ONE, 1.2), finding(two, 1.3), finding(ACTIVE, 1.4), finding(LIBC, 2, "noise")]
    assert tune_settings.winners(found) == (found[2], found[1])


def test_what_is_tried_together_has_all_that_the_winners_have() -> None:
    both = tune_settings.together((ACTIVE, settings()["batch 256"], LIBC))
    assert both.variables == {"OMP_WAIT_POLICY": "active", "LD_PRELOAD": ""}
    assert both.arguments == ("--batch", "256")
    assert both.effect == {"batch": 256}
