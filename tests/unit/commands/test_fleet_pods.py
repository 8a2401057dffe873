"""`compare` of a folder with the guide's Jobs and the logs of their pods."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envbuilder.fleet.table import NOT_ATTESTED
from envbuilder.packages import mnist
from envbuilder.payload.report import UNREPEATED
from tests.support import command_line
from tests.support.kubernetes import RUN, job_name, job_text, log_of, pod_name


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    return command_line.printed(capsys, "compare", *arguments)


def lay(folder: Path, saved: str, run: str = RUN) -> None:
    """The Jobs of two nodes, and the log of one of them."""
    (folder / "results").mkdir(parents=True)
    for node in ("n1", "n2"):
        (folder / f"job-{node}.yaml").write_text(job_text(node, "cpu", run))
    log = log_of(saved, run_id=f"{run}/{saved}/{pod_name(saved)}")
    (folder / f"results/{job_name(saved)}.json").write_text(log)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    lay(tmp_path / "jobs", "n1")
    return tmp_path


def test_saved_logs_are_shown_and_marked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, table, err = run(capsys, "jobs", "-o", "page.html")
    assert code == 5, err
    assert "2 nodes: 1 unproven, 1 lost" in table
    assert f"n1: unproven: {UNREPEATED}" in " ".join(table.split())
    assert "there is no results/envbuilder-n2" in table
    assert NOT_ATTESTED in table
    assert max(map(len, table.splitlines())) <= 80
    page = (folder / "page.html").read_text()
    assert NOT_ATTESTED in page
    assert f"{pod_name('n1')}, not attested" in page
    assert "NOT VERIFIED" in page
    summary = json.loads(run(capsys, "jobs", "--json")[1])["summary"]
    assert (summary["scheduler"], summary["attested"]) == ("kubernetes", False)
    assert summary["entries"][0]["pod"] == pod_name("n1")


def test_a_later_run_is_compared_with_an_earlier_one(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lay(folder / "later", "n2", f"{RUN[:-1]}0")
    code, table, _ = run(capsys, "later", "--against", "jobs")
    assert code == 5
    assert "n2: changed: was lost, is unproven" in " ".join(table.split())
    assert run(capsys, "jobs", "--against", "jobs")[0] == 2


def test_logs_of_all_images_need_them(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in (folder / "jobs").glob("*.yaml"):
        path.write_text(path.read_text().replace("images: subset", "images: all"))
    monkeypatch.setattr(mnist, "obtain", lambda *arguments: mnist.subset())
    code, _, err = run(capsys, "jobs")
    assert code == 2
    assert "cannot be checked without the files of MNIST" in err
