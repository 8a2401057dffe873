"""`fleet render`, and `fleet show` of its folder: files, options and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from envbuilder.fleet.table import NOT_ATTESTED
from envbuilder.packages import mnist
from envbuilder.payload.report import UNREPEATED
from tests.support import command_line
from tests.support.kubernetes import DATA, log_of

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
    return command_line.printed(capsys, "fleet", *arguments)


def test_files_are_written_and_what_is_left_out_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "render", "--nodes", "nodes.json", "-o", "out")
    assert code == 0, err
    assert out.splitlines() == [
        "out/data.yaml",
        "out/README.md",
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
    assert len(list((folder / "out").iterdir())) == 2, "nothing is written"
    (folder / "out" / name).unlink()
    assert run(capsys, "render", "--nodes", "nodes.json", "-o", "out")[0] == 0


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


@pytest.fixture
def logs(folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """A folder of rendered Jobs, and in it the log of one of two nodes."""
    settings = {"images": {"cpu": "r.example/cpu:1"}, "nodes": {"n1": "cpu", "n2": "cpu"}}
    (folder / "fleet.yaml").write_text(json.dumps({"kubernetes": settings}))
    assert run(capsys, "render", "-o", "out")[0] == 0
    save(folder / "out", "n1")
    return folder


def save(folder: Path, node: str) -> None:
    manifest = yaml.safe_load((folder / f"job-{node}.yaml").read_text())["metadata"]
    run_id = f"{manifest['labels']['envbuilder/run']}/{node}/{manifest['name']}-x7k2p"
    (folder / "results").mkdir(exist_ok=True)
    (folder / "results" / f"{manifest['name']}.json").write_text(log_of(node, run_id=run_id))


def test_saved_logs_are_shown_and_marked(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, table, err = run(capsys, "show", "out", "--html", "page.html")
    assert code == 5, err
    assert "2 nodes: 1 unproven, 1 lost" in table
    assert f"n1: unproven: {UNREPEATED}" in " ".join(table.split())
    assert "there is no results/envbuilder-" in table
    assert NOT_ATTESTED in table
    assert max(map(len, table.splitlines())) <= 80
    page = (logs / "page.html").read_text()
    assert NOT_ATTESTED in page
    assert "-n1-x7k2p, not attested" in page
    assert "NOT VERIFIED: 2 nodes" in page
    summary = json.loads(run(capsys, "show", "out", "--json")[1])["summary"]
    assert (summary["scheduler"], summary["attested"]) == ("kubernetes", False)
    assert summary["entries"][0]["pod"].endswith("-n1-x7k2p")
    # The next run compares with these files, too.
    assert run(capsys, "render", "-o", "later")[0] == 0
    save(logs / "later", "n2")
    code, table, _ = run(capsys, "show", "later", "--against", "out")
    assert code == 5
    assert "n1: worse" not in table
    assert "n2: changed: was lost, is unproven" in " ".join(table.split())
    assert run(capsys, "show", "out", "--against", "out")[0] == 2


def test_logs_of_all_images_need_them(
    logs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = json.loads((logs / "fleet.yaml").read_text())
    settings["kubernetes"]["data"] = {"claim": "mnist"}
    (logs / "fleet.yaml").write_text(json.dumps(settings))
    assert run(capsys, "render", "-o", "all")[0] == 0
    monkeypatch.setattr(mnist, "obtain", lambda *arguments: mnist.subset())
    code, _, err = run(capsys, "show", "all")
    assert code == 2
    assert "cannot be checked without the files of MNIST" in err
    code, _, err = run(capsys, "show", "all", "--data", ".")
    assert code == 2
    assert "no train-images-idx3-ubyte" in err


def test_nodes_that_train_together_need_no_images(
    logs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = json.loads((logs / "fleet.yaml").read_text())
    settings["kubernetes"] |= {"shared": {"claim": "scratch"}, "data": {"claim": "mnist"}}
    (logs / "fleet.yaml").write_text(json.dumps(settings))
    assert run(capsys, "render", "--ddp", "-o", "together")[0] == 0
    monkeypatch.setattr(mnist, "local", lambda *_, **__: pytest.fail("MNIST was read"))
    code, table, err = run(capsys, "show", "together")
    assert code == 5, err
    assert table.startswith("together  profile  images/s  efficiency  verdict")
    assert NOT_ATTESTED in table
