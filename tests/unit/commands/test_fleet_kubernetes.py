"""`fleet render` and `fleet collect`: files, options, exit codes; with a recorded client."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from envbuilder import cli
from envbuilder.fleet import summaries
from envbuilder.fleet.kubernetes import cluster
from envbuilder.packages import mnist
from tests.support import fleet_runs, kubernetes, kubernetes_groups
from tests.support.kubernetes import DATA, OUTCOMES, RUN, Recorded
from tests.support.kubernetes_groups import RecordedGroups

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.fleet.kubernetes.stated import Stated, StatedGroup

SETTINGS = """
profiles:
  - {feature: nvidia.com/gpu.present=true, profile: cuda}
  - {node: "epyc-*", profile: zendnn}
kubernetes:
  images: {cuda: "registry.example/cuda:1", zendnn: "registry.example/zendnn:1"}
  namespace: ml
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fleet.yaml").write_text(SETTINGS)
    (tmp_path / "nodes.json").write_bytes((DATA / "nodes.json").read_bytes())
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main(["fleet", *arguments])
    printed = capsys.readouterr()
    return int(str(ended.value.code or 0)), printed.out, printed.err


def test_files_are_written_and_what_is_left_out_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "render", "--nodes", "nodes.json", "-o", "out")
    assert code == 0, err
    assert out.splitlines() == [
        "out/data.yaml",
        "out/job-gpu-a.yaml",
        "out/job-epyc-1.example.internal.yaml",
    ]
    assert {path.name for path in (folder / "out").iterdir()} == {
        line.removeprefix("out/") for line in out.splitlines()
    }
    assert "epyc-2.example.internal: left out: drained" in err
    assert "control-1: left out: unmapped" in err


def test_a_second_run_takes_the_first_ones_place(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("render", "--nodes", "nodes.json", "-o", "out")
    assert run(capsys, *arguments)[0] == 0
    before = (folder / "out" / "job-gpu-a.yaml").read_text()
    assert run(capsys, *arguments)[0] == 0
    assert (folder / "out" / "job-gpu-a.yaml").read_text() != before


@pytest.mark.parametrize("name", ["old.yaml", "old.yml", "old.json"])
def test_whatever_kubectl_would_send_is_of_this_run(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "out").mkdir()
    (folder / "out" / name).write_text("kind: Job\n")
    (folder / "out" / "notes.txt").write_text("kubectl reads no such file")
    code, _, err = run(capsys, "render", "--nodes", "nodes.json", "-o", "out")
    assert code == 2
    assert f"{name}: is not of this run" in err
    (folder / "out" / name).unlink()
    assert run(capsys, "render", "--nodes", "nodes.json", "-o", "out")[0] == 0


def test_the_files_of_another_run_are_not_created_with_these(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("render", "--nodes", "nodes.json", "-o", "out")
    assert run(capsys, *arguments, "--profile", "zendnn")[0] == 0
    before = {path: path.read_bytes() for path in (folder / "out").iterdir()}
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert "is not of this run" in err
    assert {path: path.read_bytes() for path in (folder / "out").iterdir()} == before


def test_files_of_the_users_are_not_overwritten(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "data.yaml").write_text("mine: true\n")
    code, _, err = run(capsys, "render", "--nodes", "nodes.json", "-o", "out")
    assert code == 2
    assert "was not made by envbuilder" in err
    assert [path.name for path in (folder / "out").iterdir()] == ["data.yaml"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("{}", "no key 'kubernetes'"),
        ("kubernetes: {}", "images"),
        ("kubernetes: {images: {}, nodez: {}}", "Did you mean 'nodes'?"),
        ("kubernetes: {images: {}, nodes: {a: cuda}}", "no image for the profile cuda"),
        ("kubernetes: {images: {}, nodes: {a: nothing}}", "nothing"),
    ],
)
def test_settings_that_say_too_little_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], settings: str, words: str
) -> None:
    (folder / "fleet.yaml").write_text(settings)
    code, _, err = run(capsys, "render", "-o", "out")
    assert code == 2
    assert words in err
    assert not (folder / "out").exists()


class Client(Recorded):
    """Takes the place of `Cluster`, and knows the recorded nodes."""

    nodes: tuple[str, ...] = tuple(OUTCOMES)

    def __init__(self, context: str | None, namespace: str | None) -> None:
        super().__init__()
        assert (context, namespace) == ("lab", "ml")

    def stated(self, run: str) -> tuple[Stated, ...]:
        return tuple(map(kubernetes.stated, self.nodes)) if run == RUN else ()


@pytest.fixture
def collect(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    del folder
    monkeypatch.setattr(cluster, "Cluster", Client)
    access = ("--context", "lab", "--namespace", "ml")
    return lambda *arguments: run(capsys, "collect", *access, *arguments)


def test_the_table_is_json_on_request_and_kept_in_a_folder(collect: Any, folder: Path) -> None:
    code, out, err = collect("--run", RUN, "--json", "-o", "results")
    assert code == 5, err
    summary = json.loads(out)["summary"]
    assert {e["node"]: e["outcome"] for e in summary["entries"]} == OUTCOMES
    assert summary["scheduler"] == "kubernetes"
    assert summary["quick"] is True
    assert summary["started"] == "20261123T091500Z"
    assert json.loads((folder / "results" / "summary.json").read_text()) == summary
    results = {path.name.partition(".")[0] for path in (folder / "results" / "results").iterdir()}
    assert "right" in results
    assert "oom" not in results


def test_what_is_kept_can_be_shown(
    collect: Any, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del folder
    table = collect("--run", RUN, "-o", "results")[1]
    assert "out of memory" in " ".join(table.split())
    assert run(capsys, "show", "results")[1] == table


def test_a_run_that_does_not_compare_is_refused_before_a_log_is_read(
    collect: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "slurm.json").write_bytes(summaries.encode(fleet_runs.earlier(quick=True)))
    monkeypatch.setattr(Client, "log", lambda self, pod: pytest.fail(f"{pod} was read"))
    code, out, err = collect("--run", RUN, "--against", "slurm.json")
    assert (code, out) == (2, "")
    assert "was on Slurm" in err


def test_the_page_shows_every_node(collect: Any, folder: Path) -> None:
    collect("--run", RUN, "--html", "fleet.html")
    page = (folder / "fleet.html").read_text()
    assert all(node in page for node in OUTCOMES)


def test_proven_nodes_alone_are_a_success(collect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "nodes", ("right",))
    assert collect("--run", RUN)[0] == 0


class Together(RecordedGroups):
    """Takes the place of `Cluster`, and knows the recorded groups."""

    groups: tuple[str, ...] = tuple(kubernetes_groups.OUTCOMES)

    def __init__(self, context: str | None, namespace: str | None) -> None:
        super().__init__()
        assert (context, namespace) == ("lab", "ml")

    def stated(self, run: str) -> tuple[StatedGroup, ...]:
        return tuple(map(kubernetes_groups.stated, self.groups)) if run == RUN else ()


@pytest.fixture
def collect_together(collect: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(cluster, "Cluster", Together)
    # Nothing that was trained is compared with the data.
    monkeypatch.setattr(mnist, "local", lambda *_, **__: pytest.fail("MNIST was read"))
    return collect


def test_nodes_that_trained_together_have_a_table_a_page_and_json(
    collect_together: Any, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ("-o", "results", "--html", "fleet.html")
    code, out, err = collect_together("--run", RUN, *files)
    assert code == 5, err
    lines = out.splitlines()
    assert lines[0].split() == ["together", "profile", "images/s", "efficiency", "verdict"]
    assert any(line.split()[-4:] == ["1,131", "105", "%", "verified"] for line in lines)
    assert "oom-1, oom-2: killed: out of memory (OOMKilled)" in out
    assert lines[-1] == "1 of 12 groups of nodes trained together."
    assert max(map(len, lines)) <= 80
    page = (folder / "fleet.html").read_text()
    assert "NOT VERIFIED: 24 nodes" in page
    assert "apart-1" in page
    assert "No node was examined" not in page
    assert run(capsys, "show", "results")[1] == out
    summary = json.loads(run(capsys, "show", "results", "--json")[1])["summary"]
    assert (summary["across"], summary["entries"]) == (True, [])
    results = {path.name.partition(".")[2] for path in (folder / "results" / "results").iterdir()}
    assert {"envbuilder-4f1a2b-in-step.json", "envbuilder-4f1a2b-apart.json"} <= results


def test_groups_in_step_are_a_success(
    collect_together: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Together, "groups", ("in-step",))
    assert collect_together("--run", RUN)[0] == 0


def test_reports_on_all_images_need_them(collect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Client, "nodes", ("right",))
    stated = kubernetes.stated
    monkeypatch.setattr(kubernetes, "stated", lambda node: replace(stated(node), subset=False))
    monkeypatch.setattr(mnist, "obtain", lambda *arguments: mnist.subset())
    code, _, err = collect("--run", RUN)
    assert code == 2
    assert "cannot be checked without the files of MNIST" in err
    code, _, err = collect("--run", RUN, "--data", ".")
    assert code == 2
    assert "no train-images-idx3-ubyte" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "name either"),
        (("--run", RUN, "."), "name either"),
        (("--run", "../../x"), "is not the ID of a run"),
        (("--run", "20261123t091500z-000000"), "no job of the run"),
        (("out",), "does not exist"),
        (("nothing",), "no job-"),
    ],
)
def test_a_run_that_is_not_named_is_refused(
    collect: Any, folder: Path, arguments: tuple[str, ...], words: str
) -> None:
    (folder / "nothing").mkdir()
    code, _, err = collect(*arguments)
    assert code == 2
    assert words in " ".join(err.split())
