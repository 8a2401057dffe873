"""Reports side by side: what is compared, what is refused, and that no cell breaks a table."""

from __future__ import annotations

import csv
import functools
import io
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from envbuilder.core.errors import InvalidError, VerifyError
from envbuilder.verify import show
from envbuilder.verify.report import comparison, regression
from tests.support.command_line import Command
from tests.support.json_values import json_values
from tests.support.reports import CUDA, epoch, loaded, whole, written
from tests.support.repositories import lay


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(signal, "signal", lambda *args: None)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def compare(envbuilder: Command) -> Command:
    return functools.partial(envbuilder, "compare")


def gpu(name: str, first: float, *warm: float, cpu: float | None = 25.0, **more: Any) -> Any:
    changes = {**CUDA, "training__epochs": [epoch(s) for s in (first, *warm)], **more}
    changes["device"] = {**CUDA["device"], "name": name}  # type: ignore[dict-item]
    changes["baseline"] = None if cpu is None else {"seconds": cpu}
    return loaded(f"{name}.json", **changes)


# ---- rows


def test_a_row_says_what_the_report_says() -> None:
    (row,) = comparison.rows([gpu("H200", 2.5, 1.0, 9.0, 2.0)])
    assert (row.machine, row.memory_bytes, row.profile) == ("H200", 141 * 2**30, "cuda")
    assert (row.cpu_seconds, row.accelerator_seconds, row.warm_seconds) == (25.0, 2.5, 2.0)
    assert (row.speedup, row.accuracy, row.status) == (10.0, 0.984, "passed")
    (row,) = comparison.rows([loaded()])
    assert (row.cpu_seconds, row.accelerator_seconds, row.speedup) == (20.0, None, None)
    (row,) = comparison.rows([gpu("x", 1e300, status="failed")])
    assert (row.accelerator_seconds, row.speedup) == (None, None), "a time that cannot be"


def test_the_fastest_accelerator_is_first_and_what_does_not_compare_last() -> None:
    failed = {"status": "failed", "reasons": ["wrong"]}
    ordered = [
        gpu("b fast", 1.0),
        gpu("a slow", 2.0),
        loaded("fast-cpu.json", training__epochs=[epoch(0.5)]),
        loaded("slow-cpu.json", training__epochs=[epoch(9.0)]),
        gpu("quick", 0.1, quick=True),
        gpu("tf32", 0.2, precision__cuda_tf32=True),
        gpu("wrong", 0.01, **failed),
        loaded("nothing.json", training=None, **failed),
    ]
    rows = comparison.rows(reversed(ordered))
    assert [r.file for r in rows] == [str(r.path) for r in ordered]
    assert [r.file for r in rows if not r.standard] == ["quick.json", "tf32.json"]


def test_time_on_another_device_is_not_the_accelerators() -> None:
    device = {**CUDA["device"], "used": "cpu"}  # type: ignore[dict-item]
    (row,) = comparison.rows([loaded(status="failed", **{**CUDA, "device": device})])
    assert (row.accelerator_seconds, row.cpu_seconds, row.speedup) == (None, None, None)


@given(json_values, json_values, json_values, json_values, st.integers(), st.text())
def test_nothing_in_a_report_breaks_a_table(
    host: Any, precision: Any, baseline: Any, train: Any, memory: int, name: str
) -> None:
    try:
        report = loaded(
            known__host=host,
            known__profile=name,
            precision=precision,
            baseline={"seconds": baseline},
            dataset__train=train,
            device__memory_bytes=memory,
            device__name=name,
        )
    except VerifyError:  # What the model refuses comes into no table.
        return
    rows = comparison.rows([report])
    lines = comparison.markdown(rows).splitlines()
    bars = {line.replace("\\|", "").count("|") for line in lines[:3]}
    assert bars == {len(comparison.COLUMNS) + 1}
    parsed = list(csv.reader(io.StringIO(comparison.comma_separated(rows))))
    assert [len(line) for line in parsed] == [len(comparison.Row.__struct_fields__)] * 2
    for cell in parsed[1]:
        assert cell[:1] not in set("=+-@")
    assert json.loads(comparison.as_json(rows))["schema"] == 1


@pytest.mark.parametrize("name", ["=1+1", "-1", "\uff1d1", "\t=1"])
def test_no_name_is_a_formula(name: str) -> None:
    text = comparison.comma_separated(comparison.rows([loaded(device__name=name)]))
    assert next(iter(csv.DictReader(io.StringIO(text))))["machine"][0] in "'?"


def test_markdown_is_not_markup() -> None:
    name = "a|b`c`*d*_e_<i>[f](g)\\|"
    line = comparison.markdown(comparison.rows([loaded(device__name=name)])).splitlines()[2]
    cell = line.removeprefix("| ").partition(" | ")[0]
    assert cell == r"a\|b\`c\`\*d\*\_e\_\<i\>\[f\](g)\\\|"
    assert "a|b`c`*d*_e_&lt;i&gt;[f](g)" in show.render_comparison(
        comparison.rows([loaded(device__name=name)])
    )


# ---- compare


def test_compare_as_a_table_is_80_wide(tmp_path: Path, compare: Command) -> None:
    written(tmp_path / "r/a.json", device__name="A CPU with a very long name " * 3)
    written(tmp_path / "r/b.json", **CUDA, baseline={"seconds": 12345.0})
    written(tmp_path / "r/c.json", quick=True)
    lay(tmp_path / "r", {".hidden.json": "damaged", "notes.txt": "no report"})
    shown = compare("r", "r/a.json").out
    assert max(map(len, shown.splitlines())) <= 80
    assert "\x1b" not in shown
    assert shown.index("NVIDIA H200") < shown.index("A CPU")
    assert shown.count("a.json") == 1, "a report named twice is shown once"
    assert "617×" in shown
    assert "20.0 s*" in shown
    assert "* not the standard epoch" in shown
    header, about, numbers, *_ = shown.splitlines()
    assert header == "  GPU epoch  CPU epoch   speed-up   accuracy   start-up  verdict"
    assert about.rstrip() == "NVIDIA H200, cuda, venv, torch 2.14.1+cu130, b.json, 2026-11-20"
    assert numbers == "     20.0 s   12,345 s       617×    98.40 %     3.00 s  passed"
    assert "GPU epoch" not in compare("r/a.json").out, "a column without a value"


def test_compare_for_machines(tmp_path: Path, compare: Command) -> None:
    written(tmp_path / "a.json", **CUDA, baseline={"seconds": 30.0})
    data = json.loads(compare("a.json", "--json").out)
    assert data["schema"] == 1
    (row,) = data["reports"]
    assert (row["file"], row["speedup"], row["memory_bytes"]) == ("a.json", 1.5, 141 * 2**30)
    text = compare("a.json", "--format", "markdown").out
    assert (
        "| NVIDIA H200 | passed | cuda | 20.0 s | 30.0 s | - | 1.50× | 3,000 | 98.40 % | 3.00 s |"
        " - | 141 GiB | venv | torch 2.14.1+cu130 |" in text
    )
    assert "standard" not in text


def test_damaged_reports_are_all_named(tmp_path: Path, compare: Command) -> None:
    written(tmp_path / "r/good.json")
    lay(tmp_path / "r", {"empty.json": "", "other.json": '{"schema": 2}'})
    (tmp_path / "no").mkdir()
    said = compare("r", "no", code=2).err
    assert "empty.json: damaged" in said
    assert "other.json: damaged" in said
    assert "no: this folder contains no reports" in said
    assert "good.json" not in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "REPORT"),
        (["empty"], "folder contains no reports"),
    ],
)
def test_compare_refuses_what_makes_no_sense(
    tmp_path: Path, compare: Command, arguments: list[str], said: str
) -> None:
    written(tmp_path / "a.json")
    (tmp_path / "empty").mkdir()
    assert said in compare(*arguments, code=2).err


# ---- against


def judged(new: dict[str, Any], earlier: regression.StoredReport) -> dict[str, Any]:
    return regression.judge(new, earlier)


def seconds(*values: float) -> list[dict[str, Any]]:
    return [epoch(v) for v in values]


@pytest.mark.parametrize(
    ("before", "now", "which", "status"),
    [
        (seconds(20), seconds(26), "first", "passed"),
        (seconds(20), seconds(26.1), "first", "failed"),
        (seconds(20), seconds(1e300), "first", "failed"),
        # Warm epochs where both have one: the first, cold one may take what it likes.
        (seconds(20, 10), seconds(90, 12), "warm", "passed"),
        (seconds(20, 10), seconds(20, 14), "warm", "failed"),
        # The median, so that one disturbed epoch says nothing.
        (seconds(20, 10, 10, 10), seconds(20, 11, 90, 11), "warm", "passed"),
    ],
)
def test_speed(before: Any, now: Any, which: str, status: str) -> None:
    result = judged(whole(training__epochs=now), loaded("old.json", training__epochs=before))
    check = result["checks"][-1]
    assert (check["name"], check["status"], result["status"]) == ("against", status, status)
    assert check["detail"].startswith("old.json: ")
    assert f"{which} epoch" in check["detail"]
    assert (result["against"]["epoch"], result["against"]["report"]) == (which, "old.json")


SLOW = {"training__epochs": [epoch(80.0)]}
NOT_JUDGED = {"speed": "not_judged", "speed_reason": "machine busy: epoch 1: it waited"}


@pytest.mark.parametrize(
    ("now", "before", "which"),
    [(NOT_JUDGED, {}, "this"), ({}, NOT_JUDGED, "the earlier"), (NOT_JUDGED, NOT_JUDGED, "this")],
)
def test_a_busy_machine_is_no_regression_and_it_is_said(
    now: dict[str, Any], before: dict[str, Any], which: str
) -> None:
    result = judged(whole(**SLOW, **now), loaded("old.json", **before))
    check = result["checks"][-1]
    assert (result["status"], check["status"]) == ("passed", "warning")
    assert "80.0 s against 20.0 s: 4.00×; speed not judged in" in check["detail"]
    assert f"in {which} verification: machine busy: epoch 1: it waited" in check["detail"]
    assert result["against"]["speed"] == "not_judged"
    assert judged(whole(), loaded())["against"]["speed"] == "judged"
    worse = judged(whole(training__epochs=[epoch(20.0, 0.97)], **now), loaded(**before))
    assert "less accurate" in worse["reasons"][0], "whatever the machine did"


def test_times_of_a_busy_machine_are_marked_and_come_later(
    tmp_path: Path, compare: Command
) -> None:
    fast = written(tmp_path / "fast.json", training__epochs=[epoch(5.0)], **NOT_JUDGED)
    slow = written(tmp_path / "slow.json", training__epochs=[epoch(50.0)])
    shown = comparison.rows([regression.read(fast), regression.read(slow)])
    assert [row.file for row in shown] == ["slow.json", "fast.json"]
    assert [row.speed for row in shown] == [None, "not_judged"]
    table = compare(str(fast), str(slow)).out
    assert "5.00 s†" in table
    assert "† the machine was busy, so its speed was not judged" in table
    markdown = comparison.markdown(shown)
    assert markdown.endswith("\n† the machine was busy, so its speed was not judged\n")
    assert show.render_comparison(shown).count("† the machine was busy") == 1


def test_a_regression_names_both_numbers() -> None:
    new = whole(training__epochs=[epoch(40.0, 0.97)])
    result = judged(new, loaded("old.json"))
    (reason,) = result["reasons"]
    assert "slower: first epoch 40.0 s against 20.0 s: 2.00×, at most 1.30× is allowed" in reason
    assert "less accurate: accuracy 97.00 % against 98.40 % after 1 epoch" in reason
    assert new["status"] == "passed", "the report itself is not changed"


@pytest.mark.parametrize(
    ("before", "now", "status"),
    [
        ([0.984], [0.9791], "passed"),
        ([0.984], [0.9789], "failed"),
        # After as many epochs as both trained.
        ([0.984, 0.99, 0.992], [0.984], "passed"),
        ([0.984], [0.97, 0.99], "failed"),
        ([0.984, None, 0.99], [0.984, 0.1, 0.99, 0.1], "passed"),
    ],
)
def test_accuracy(before: list[Any], now: list[Any], status: str) -> None:
    new, old = ([epoch(20, a) for a in accuracies] for accuracies in (now, before))
    result = judged(whole(training__epochs=new), loaded(training__epochs=old))
    assert result["status"] == status


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"device__name": "Intel Xeon"}, "device: AMD EPYC, then Intel Xeon"),
        ({"known__host": {"cpu": {"model_name": "AMD EPYC", "threads": 8}}}, "threads: 2, then 8"),
        ({"framework__version": "2.8.0+cpu"}, "framework: torch 2.13.0+cpu, then torch 2.8.0+cpu"),
        ({"precision__matmul": "medium"}, "precision: float32, then bfloat16"),
        ({"threads": {"quota": 0.5}}, "CPU quota: unknown, then 0.5"),
        ({"known__backend": "docker"}, "backend: venv, then docker"),
    ],
)
def test_another_kind_is_compared_and_named(changes: Any, said: str) -> None:
    old = loaded("old.json", **changes)
    result = judged(whole(), old)
    assert (result["status"], result["checks"][-1]["status"]) == ("passed", "warning")
    assert said in result["checks"][-1]["detail"]
    assert any(said in d for d in result["against"]["differences"])


@pytest.mark.parametrize(
    "changes",
    [{"quick": True}, {"dataset__subset": True}, {"dataset__train": 3000}, {"dataset__sha256": {}}],
)
def test_other_digits_are_never_compared(changes: Any) -> None:
    for new, old in ((whole(), loaded(**changes)), (whole(**changes), loaded())):
        with pytest.raises(InvalidError, match="different images"):
            judged(new, old)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"status": "failed", "reasons": ["x"]}, "report of a failed verification"),
        ({"training__epochs": [epoch(0)]}, "took 0 s"),
        ({"training__epochs": [epoch(1e300)]}, "invalid duration"),
    ],
)
def test_a_bad_report_is_no_yardstick(tmp_path: Path, changes: Any, said: str) -> None:
    path = written(tmp_path / "old.json", **changes)
    with pytest.raises(InvalidError, match=said):
        regression.yardstick(path, quick=False)


@pytest.mark.parametrize(
    ("form", "begins"),
    [("html", "<!DOCTYPE html>"), ("markdown", "| machine"), ("csv", "file,"), ("json", "{")],
)
def test_each_form_is_printed(form: str, begins: str, tmp_path: Path, compare: Command) -> None:
    written(tmp_path / "a.json")
    assert compare("a.json", "--format", form).out.startswith(begins)


def test_a_report_may_come_through_a_pipe(tmp_path: Path, compare: Command) -> None:
    """A pipe can be read once, before it is known what comes through it."""
    content = written(tmp_path / "report.json").read_bytes()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(content))
    writer.start()
    shown = compare("pipe", "--json").out
    writer.join()
    assert len(json.loads(shown)["reports"]) == 1
