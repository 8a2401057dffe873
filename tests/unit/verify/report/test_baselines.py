"""Reports against those before them: what counts as worse, and what cannot be compared."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from envbuilder.verify.report import comparison, regression
from tests.support.command_line import Command
from tests.support.reports import epoch, loaded, written

FAST = {"training__epochs": [epoch(20.0)]}
SLOW = {"training__epochs": [epoch(40.0)]}


XEON = {"known__host": {"cpu": {"model_name": "Xeon", "threads": 2}}}
FAILED = {"status": "failed", "reasons": ["x"]}


def judge(new: dict[str, Any], before: dict[str, Any]) -> tuple[str, str]:
    earlier = loaded("cpu.json", **before)
    (judgement,) = regression.judge_all([loaded("cpu.json", **new)], {"cpu.json": earlier})
    return judgement.status, judgement.detail


@pytest.mark.parametrize(
    ("new", "before", "status", "why"),
    [
        (FAST, SLOW, "passed", ""),
        (SLOW, FAST, "failed", "slower"),
        ({"training__epochs": [epoch(20.0, 0.976)]}, FAST, "failed", "less accurate"),
        ({**SLOW, "framework__version": "2.14.0+cpu"}, FAST, "failed", "2.14.0"),
        ({**SLOW, **XEON}, FAST, "skipped", "another machine: CPU: Xeon, then AMD EPYC"),
        ({**SLOW, **FAILED}, FAST, "skipped", "its verification failed"),
        (SLOW, {**FAST, **FAILED}, "skipped", "cpu.json: this is the report of a failed"),
        ({**FAST, "framework__version": "2.14.0+cpu"}, FAST, "warning", "2.14.0"),
        ({**SLOW, "speed": "not_judged", "speed_reason": "busy"}, FAST, "warning", "not judged"),
    ],
)
def test_worse_is_slower_or_less_accurate(new: Any, before: Any, status: str, why: str) -> None:
    found, detail = judge(new, before)
    assert (found, why in detail) == (status, True)


def test_what_is_new_is_not_compared() -> None:
    (judgement,) = regression.judge_all([loaded("new.json")], {"cpu.json": loaded("cpu.json")})
    assert (judgement.report, judgement.status) == ("new.json", "skipped")


def test_no_name_breaks_the_markdown_table() -> None:
    (judgement,) = regression.judge_all([loaded("a|b<c>.json")], {})
    assert r"| a\|b\<c\>.json | not compared |" in comparison.markdown_table("abc", [judgement.row])


def test_the_command_fails_on_what_became_worse(tmp_path: Path, envbuilder: Command) -> None:
    now = tmp_path / "now"
    before = tmp_path / "before"
    written(now / "cpu.json", **SLOW)
    before.mkdir()
    compare = functools.partial(envbuilder, "compare", str(now), "--against")
    against = functools.partial(compare, str(before))
    assert "cpu.json: not compared" in against().out
    written(before / "cpu.json", **FAST)
    assert "| cpu.json | worse | slower" in against("--format", "markdown", code=5).out
    (judgement,) = json.loads(against("--json", code=5).out)["against"]
    assert judgement["status"] == "failed"
    against("--format", "html", code=2)
    compare(str(tmp_path / "nowhere"), code=2)
