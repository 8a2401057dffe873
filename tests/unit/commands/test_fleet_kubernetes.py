"""`fleet render`: files, options and exit codes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from envbuilder import cli
from tests.support.kubernetes import DATA

if TYPE_CHECKING:
    from pathlib import Path

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
