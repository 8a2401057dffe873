"""What is shown of a watched training, on a terminal, as a page, side by side, and signed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from envbuilder.core import console
from envbuilder.watch import judge, model, show
from envbuilder.watch.training import Run, finding
from tests.support import command_line, pages
from tests.support.watched import observed, watched

HOSTILE = "<script>alert(1)</script>\x1b[31m\n"


def test_the_text_says_what_did_the_work_and_that_it_is_no_proof(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show.show(judge.judged(watched()), ("about as fast",), console.rich_console(stderr=True))
    out, text = capsys.readouterr()
    assert out == ""
    assert "ON CUDA: A GPU (cuda:0) did the work" in text
    assert "Advice" not in text
    assert "about as fast" in text
    assert re.search(r"^Observed +5 sampled steps", text, re.MULTILINE)
    assert show.ADVICE.split(" it is ")[0] in text.replace("\n", " ")
    for line in text.splitlines():
        assert len(line) <= 80


def test_one_sentence_of_advice_for_the_largest_loss(capsys: pytest.CaptureFixture[str]) -> None:
    far = judge.judged(watched(requested="xpu"))
    show.show(far, (), console.rich_console(stderr=True))
    text = capsys.readouterr().err
    assert text.count("Advice: ") == 1
    assert "NOT ON XPU: the work was on A GPU (cuda:0)" in text


def test_a_rule_is_one_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def invented(run: Run) -> Iterator[model.Finding]:
        for process in run.trained:
            yield finding("moon", f"Process {process.pid} is full.", "Wait a week.", 0.5)

    monkeypatch.setattr(judge, "RULES", (*judge.RULES, invented))
    report = judge.judged(watched())
    assert [each.kind for each in report.findings] == ["moon"]
    show.show(report, (), console.rich_console(stderr=True))
    for shown in (capsys.readouterr().err, show.page(report), model.encoded(report)):
        assert "Process 4242 is full." in shown
        assert "Wait a week." in shown


def test_a_command_without_a_training_is_not_judged(capsys: pytest.CaptureFixture[str]) -> None:
    show.show(judge.judged(replace(watched(), processes=())), (), console.rich_console(stderr=True))
    assert "NOT SEEN: no training was seen" in capsys.readouterr().err


@pytest.mark.parametrize("processes", [(), (observed(),), (observed(), observed(rank=1))])
def test_the_page_is_inert_whatever_the_script_wrote(
    processes: tuple[model.Observed, ...],
) -> None:
    bad = tuple(
        replace(p, version=HOSTILE, unseen=(HOSTILE,), losses=((1, 2.0), (2, None), (3, 1.0)))
        for p in processes
    )
    report = replace(judge.judged(watched(*bad) if bad else watched()), host=HOSTILE)
    hostile = model.Finding(kind="device", says=HOSTILE, advice=HOSTILE)
    page = show.page(replace(report, findings=(hostile,), command=(HOSTILE,)))
    assert "\x1b" not in page
    assert "script" not in {tag for tag, _ in pages.Seen(page).tags}


def test_compare_names_what_compares_reports_of_watch(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "a.json").write_text(model.encoded(judge.judged(watched())))
    code, _, error = command_line.printed(capsys, "compare", str(tmp_path))
    assert code == 2
    assert "a.json: this report is from 'watch', not from 'verify'" in error
    assert "envbuilder watch --against" in error
