"""The run on a machine with a GPU: what is planned, judged and brought back. Nothing is started."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.folders import names_in
from tools import on_gpu
from tools.on_gpu import Result, Runner, Setting, Step

SETTING = Setting(
    envbuilder=("envbuilder",),
    script=("script",),
    module=("module",),
    python="/torch/bin/python",
    device="cuda",
    data="/mnist",
    work=Path("/work-folder"),
    overlay="/copy/bin/python",
    quick=False,
)


def named(steps: list[Step]) -> dict[str, Step]:
    return {step.name: step for step in steps}


def test_every_group_has_steps_and_comes_in_the_order_of_its_worth() -> None:
    everything = on_gpu.plan(SETTING, on_gpu.GROUPS)
    each = [on_gpu.plan(SETTING, (group,)) for group in on_gpu.GROUPS]
    assert all(each)
    assert everything == [step for steps in each for step in steps]
    assert len(named(everything)) == len(everything)


def test_a_copy_with_a_fault_is_tried_only_where_one_without_passed() -> None:
    control, *faults = on_gpu.plan(SETTING, ("faults",))
    assert control.codes == (0,)
    assert {fault.after for fault in faults} == {(control.name, 0)}
    assert {fault.argv for fault in faults} == {control.argv}
    assert all(fault.codes == (5,) and fault.failed_check for fault in faults)
    assert SETTING.overlay in control.argv
    assert SETTING.python not in control.argv
    for fault in faults:
        assert (on_gpu.FAULTS_DIR / f"{fault.fault}.py").is_file()


def test_a_fault_of_accelerators_is_none_of_a_cpu() -> None:
    faults = {step.fault for step in on_gpu.plan(SETTING, ("faults",))}
    on_cpu = {step.fault for step in on_gpu.plan(replace(SETTING, device="cpu"), ("faults",))}
    assert faults - on_cpu == {"device_that_is_the_cpu"}
    assert on_cpu - faults == {"profiler_that_sees_nothing"}


def test_no_step_gives_the_payload_variables_of_envbuilder_s() -> None:
    groups = tuple(name for name in on_gpu.GROUPS if name != "watch")  # has tests' own
    variables = [step.variables for step in on_gpu.plan(SETTING, groups)]
    assert {name for one in variables for name in one} == {"CUDA_VISIBLE_DEVICES"}
    assert "environ" not in on_gpu.LAUNCHER


FAILED = json.dumps({"checks": [{"name": "arithmetic", "status": "failed"}]})
STEP = Step("one", ("true",), 10)


@pytest.mark.parametrize(
    ("step", "code", "printed", "outcome", "why"),
    [
        (STEP, 0, "", "expected", ""),
        (STEP, None, "", "out of time", ""),
        (STEP, 3, "", "unexpected", "exit code 3, not 0"),
        (replace(STEP, codes=(0, 3)), 1, "", "unexpected", "exit code 1, not 0 or 3"),
        (replace(STEP, codes=(5,)), 0, "", "unexpected", "exit code 0, not 5"),
        (replace(STEP, codes=(5,), failed_check="arithmetic"), 5, FAILED, "expected", ""),
        (
            replace(STEP, codes=(5,), failed_check="precision"),
            5,
            FAILED,
            "unexpected",
            "the check 'precision' did not fail; failed: arithmetic",
        ),
        (
            replace(STEP, codes=(5,), failed_check="precision"),
            5,
            "Traceback",
            "unexpected",
            "no report was printed",
        ),
    ],
)
def test_how_a_step_is_judged(
    step: Step, code: int | None, printed: str, outcome: str, why: str
) -> None:
    assert on_gpu.judge(step, code, printed) == (outcome, why)


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], list[float]]:
    """Steps end with this code at once; returns the limits that they got."""
    limits: list[float] = []

    def end(code: int | None) -> list[float]:
        def run(argv: Any, limit: float, environment: Any, out: Any, log: Any) -> int | None:
            del argv, environment, out
            limits.append(limit)
            log.write(b"first\nthe last words\n")
            return code

        monkeypatch.setattr(on_gpu, "_to_its_end", run)
        return limits

    return end


def test_a_step_that_failed_stops_only_what_builds_on_it(
    ended: Callable[[int | None], list[float]], tmp_path: Path
) -> None:
    ended(1)
    runner = Runner(tmp_path, 100)
    first = runner.run(STEP)
    assert (first.outcome, first.why) == ("unexpected", "exit code 1, not 0: the last words")
    after = runner.run(Step("two", ("true",), 10, after=("one", 0)))
    assert (after.outcome, after.why) == ("not run", "only after one with exit code 0")
    assert (
        runner.run(Step("three", ("true",), 10, after=("one", 1), codes=(1,))).outcome == "expected"
    )


def test_a_fault_is_taken_out_again_whatever_happens(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("")

    def interrupted() -> None:
        with on_gpu.injected(tmp_path, "matmul_a_thousandth_off"):
            assert (tmp_path / "sabotage.pth").read_text() == "import sabotage_starter\n"
            assert "1.001" in (tmp_path / "sabotage_fault.py").read_text()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert names_in(tmp_path) == {"torch.py"}


# What comes back. The limits are those of the machines that are lent: 8 files, 16 MiB each, at
# most two folders down, plain names.


def test_what_comes_back_is_little_plain_and_whole(tmp_path: Path) -> None:
    work = tmp_path / "work"
    out = tmp_path / "out"
    (work / "logs").mkdir(parents=True)
    out.mkdir()
    (work / "logs/verify.log").write_bytes(b"begin" + bytes(3 * 2**20) + b"end")
    (work / "logs/detect.out").write_text("{}")
    (work / "host.tar.gz").write_bytes(b"host")
    (work / "report.html").write_bytes(bytes(on_gpu.MOST_BYTES + 1))
    (work / "report.json").write_text(
        json.dumps(
            {
                "status": "passed",
                "reasons": [],
                "device": {"name": "H100"},
                "framework": {"version": "2.11.0+cu130"},
            }
        )
    )
    (work / "epochs.json").write_text('{"medians": {"a": 1.5}, "ratios": {"last epoch": 0.2}}')
    results = [Result("verify", "expected", code=0, seconds=9.5), Result("jax", "not run", "why")]
    for _ in range(2):
        on_gpu.collect(results, {"device": "cuda", **on_gpu.findings(work)}, work, out)
    names = {path.name for path in out.rglob("*")}
    assert names == {"summary.json", "summary.txt", *on_gpu._RETURNED, "logs.tar.gz"} - {
        "report.html"
    }
    assert len(on_gpu._RETURNED) + 3 <= 8
    for name in names:
        assert re.fullmatch(r"[A-Za-z0-9._-]+", name)
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["verdict"], summary["name"], summary["ratios"]) == (
        "passed",
        "H100",
        {"last epoch": 0.2},
    )
    assert [(s["name"], s["outcome"], s["code"]) for s in summary["steps"]] == [
        ("verify", "expected", 0),
        ("jax", "not run", None),
    ]
    with tarfile.open(out / "logs.tar.gz") as tar:
        assert {m.name: m.size for m in tar} == {"logs/detect.out": 2, "logs/verify.log": 2**20 + 7}
        log = tar.extractfile("logs/verify.log")
        content = log.read()
    assert (content[:5], content[-3:]) == (b"begin", b"end")
    text = (out / "summary.txt").read_text()
    assert "name: H100" in text
    assert re.search(r"^expected +verify +0 +9\.5 s$", text, re.MULTILINE)
