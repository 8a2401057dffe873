"""`envbuilder fleet`: options, folder, table and exit codes; the scheduler is a recorded one."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from envbuilder.commands import fleet_node
from envbuilder.core import console, process
from envbuilder.fleet import folder as folders, judge, show, slurm
from envbuilder.fleet.model import Detected, Node
from tests.support import fleets
from tests.support.command_line import Command
from tests.support.fleet_runs import entry, summary
from tests.support.folders import names_in

NODES = (
    fleets.node("n1", features=("cpu",)),
    fleets.node("n2", features=("cpu",)),
    fleets.node("n3", usable=False, state="drained", reason="fan"),
)


class Cluster(fleets.RecordedScheduler):
    """Slurm with three nodes, whose jobs pass as soon as somebody looks."""

    def nodes(self) -> tuple[Node, ...]:
        return NODES

    def text(self, name: str = "n1") -> str:
        """The script of a job."""
        return folders.script(self.folder, name).read_text()

    def jobs(self, run: str) -> dict[str, Any]:
        for job, (name, _) in self.submitted.items():
            path = folders.result_path(self.folder, name, job)
            path.write_bytes(fleets.result(name, job, run=run))
        return {}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    known = Cluster(tmp_path / "run")
    monkeypatch.setattr(slurm, "Slurm", lambda partition: known)
    return known


@pytest.fixture
def fleet(envbuilder: Command) -> Command:
    return functools.partial(envbuilder, "fleet")


@pytest.fixture
def verify(fleet: Command) -> Command:
    """`verify(*options, code=0)`: every node verifies the profile cpu, in the folder `run`."""
    return functools.partial(fleet, "verify", "--folder", "run", "--profile", "cpu")


def test_every_usable_node_has_a_job_and_a_row(cluster: Cluster, verify: Command) -> None:
    done = verify("--quick")
    assert sorted(name for name, _ in cluster.submitted.values()) == ["n1", "n2"]
    assert "3 nodes: 2 verified, 1 drained" in done.out
    assert "n3: drained: drained: fan" in done.out
    assert max(map(len, done.out.splitlines())) <= 80
    text = cluster.text()
    assert text.rstrip().endswith("-- --profile cpu --quick")


def test_the_result_is_json_too(cluster: Cluster, verify: Command) -> None:
    shown = json.loads(verify("--json").out)
    assert shown["schema"] == 2
    assert [e["outcome"] for e in shown["summary"]["entries"]] == [
        "verified",
        "verified",
        "drained",
    ]
    assert json.loads((cluster.folder / folders.SUMMARY).read_text()) == shown["summary"]


def test_a_node_that_is_not_verified_is_5(cluster: Cluster, verify: Command) -> None:
    cluster.refused = {"n2": "Invalid account"}
    done = verify(code=5)
    assert "n2: refused: Invalid account" in done.out


def test_a_dry_run_writes_the_scripts_of_nodes(cluster: Cluster, verify: Command) -> None:
    done = verify("--dry-run")
    assert [line.rpartition("/")[2] for line in done.out.split()] == ["n1.sbatch", "n2.sbatch"]
    assert cluster.submitted == {}


SIF = "sif: {cpu: /shared/cpu.sif}\n"


@pytest.mark.parametrize(
    ("file", "options", "why"),
    [
        # An image is not verified as something else.
        (SIF, ("--profile", "cpu", "--python=/usr/bin/python3"), "--python cannot be combined"),
        ("profiles: [{node: n2, profile: cudda}]\n", ("--dry-run",), "cudda"),
    ],
)
def test_what_makes_no_sense_is_2_and_writes_nothing(
    cluster: Cluster, tmp_path: Path, file: str, options: tuple[str, ...], why: str, fleet: Command
) -> None:
    (tmp_path / "fleet.yaml").write_text(file)
    assert why in fleet("verify", "--folder", "run", *options, code=2).err
    assert not (tmp_path / "run").exists()


def test_the_file_in_this_folder_is_read(cluster: Cluster, tmp_path: Path, fleet: Command) -> None:
    (tmp_path / "fleet.yaml").write_text("profiles: [{node: n2, profile: zendnn}]\n")
    fleet("verify", "--folder", "run", "--dry-run")
    assert names_in(tmp_path / "run/scripts") == {"n2.sbatch"}


@pytest.mark.parametrize("folder", ["a b", "a%j", "a'b", "a\nb"])
def test_a_folder_that_jobs_cannot_name_is_refused(
    folder: str, cluster: Cluster, fleet: Command
) -> None:
    assert (
        "cannot write to a folder with this name" in fleet("verify", "--folder", folder, code=2).err
    )


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_a_profile_that_does_not_exist_is_2_before_slurm_is_asked(
    options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fleet: Command
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "cudda" in fleet("verify", "--profile", "cudda", "--folder", "run", *options, code=2).err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("python", "passed"),
    [
        (".venv/bin/python", "{}/.venv/bin/python"),
        ("../p", "{}/../p"),
        ("/opt/p", "/opt/p"),
        ("mine", "{}/mine"),
        # By its name, as on the nodes' PATH.
        ("python3", "python3"),
    ],
)
def test_an_interpreter_is_the_one_that_is_meant_here(
    python: str, passed: str, cluster: Cluster, tmp_path: Path, verify: Command
) -> None:
    """Jobs start in another folder. A link is not followed: its place tells the environment."""
    (tmp_path / "mine").symlink_to(sys.executable)
    verify("--python", python, "--dry-run")
    text = cluster.text()
    assert text.rstrip().endswith(f"--python {passed.format(tmp_path)}")


def test_a_folder_of_the_user_is_the_same_on_the_nodes(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verify: Command
) -> None:
    monkeypatch.setenv("ENVBUILDER_DATA_DIR", "data")
    verify("--dry-run")
    text = cluster.text()
    assert f"export ENVBUILDER_DATA_DIR={tmp_path}/data\n" in text


def test_a_run_elsewhere_is_for_the_project_that_it_was_started_in(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fleet: Command
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "envbuilder.yaml").write_text("profile: cpu\n")
    monkeypatch.chdir(project)
    fleet("verify", "--folder", str(cluster.folder), "--dry-run")
    assert f"cd {project} || exit 1\n" in cluster.text()


@pytest.mark.parametrize("value", ["0s", "5", "5d", "-1m", "200h", "9999999s", ""])
def test_times_have_a_unit_and_an_end(value: str, cluster: Cluster, fleet: Command) -> None:
    assert "is not a time such as 90s" in fleet("verify", "--limit", value, code=2).err


def test_without_slurm_the_tool_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fleet: Command
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "sinfo is missing" in fleet("verify", code=4).err


def test_a_verification_that_takes_too_long_is_the_nodes_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fleet: Command
) -> None:
    (tmp_path / "results").mkdir()
    monkeypatch.setattr(fleet_node, "_detected", lambda settings: Detected(cpu="AMD EPYC"))
    ended = process.Completed(
        argv=(), returncode=-15, stdout="", stderr="Killed", seconds=9.0, timed_out=True
    )
    monkeypatch.setattr(process, "run", lambda argv, **options: ended)
    named = ("--run", fleets.RUN, "--node", "n1", "--job", "7")
    fleet("node", *named, "--folder", str(tmp_path), "--limit", "9", "--", "--quick", code=5)
    content = folders.result_path(tmp_path, "n1", "7").read_bytes()
    entry = judge.examined(fleets.promise(), fleets.RUN, "7", content).entry
    assert entry.outcome == "timed-out"
    assert entry.detail == "stopped after 9.00 s"


def test_many_nodes_are_summed_up(capsys: pytest.CaptureFixture[str]) -> None:
    broken = entry("n42", outcome="broken", detail="error: x", share=None)
    busy = [entry(f"busy{n}", outcome="busy", detail="", share=None) for n in range(2)]
    others = [entry(f"n{n}") for n in range(98) if n != 42]
    show.print_table(summary(*others, *busy, broken), console.rich_console())
    shown = capsys.readouterr().out
    assert "and 99 nodes: 97 verified, 2 busy\n" in shown
    assert "n42" in shown
    assert "n41" not in shown
    assert "100 nodes: 97 verified, 2 busy, 1 broken" in shown


def test_a_dry_run_has_no_result(fleet: Command) -> None:
    assert "cannot be combined with --json" in fleet("verify", "--dry-run", "--json", code=2).err
