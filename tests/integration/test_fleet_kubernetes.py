"""`fleet collect` with a program called kubectl that answers from files, fails or hangs."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import pytest
import yaml

from tests.support import kubernetes_groups
from tests.support.kubernetes import DATA, OUTCOMES, RUN, log_of, pod_name

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.integration.conftest import Cli

PROGRAM = """#!{python}
import pathlib, sys
folder = pathlib.Path({folder!r})
with (folder / "calls").open("a") as calls:
    print(*sys.argv[1:], file=calls)
options = [word for word in sys.argv[1:] if word.startswith("-")]
verb, name = [word for word in sys.argv[1:] if not word.startswith("-")]
path = folder / (f"{{name}}.json" if verb == "get" else f"{{name}}.log")
if not path.exists():
    sys.exit(f"Error from server (NotFound): {{name}} not found")
sys.stdout.write(path.read_text())
"""


@pytest.fixture
def kubectl(tmp_path: Path) -> Path:
    """The folder of the program, and of the files that it answers from."""
    folder = tmp_path / "programs"
    folder.mkdir()
    program = folder / "kubectl"
    program.write_text(PROGRAM.format(python=sys.executable, folder=str(folder)))
    program.chmod(0o755)
    for name in ("jobs.json", "pods.json"):
        (folder / name).write_bytes((DATA / "run" / name).read_bytes())
    for node in OUTCOMES:
        (folder / f"{pod_name(node)}.log").write_text(log_of(node))
    return folder


@pytest.fixture
def collect(cli: Cli, kubectl: Path) -> Callable[..., tuple[int, str, str]]:
    path = {"PATH": f"{kubectl}{os.pathsep}{os.environ['PATH']}"}

    def run(*arguments: str) -> tuple[int, str, str]:
        done = cli("fleet", "collect", *arguments, environment=path)
        return done.returncode, done.stdout, done.stderr

    return run


def test_a_run_is_collected_by_its_id(
    collect: Callable[..., tuple[int, str, str]], kubectl: Path
) -> None:
    code, out, err = collect("--run", RUN, "--namespace", "ml", "--context", "lab", "--json")
    assert code == 5, err
    outcomes = {e["node"]: e["outcome"] for e in json.loads(out)["summary"]["entries"]}
    assert outcomes == {n: o for n, o in OUTCOMES.items() if n != "vanished"}
    calls = (kubectl / "calls").read_text().splitlines()
    assert {call.split()[0] for call in calls} == {"get", "logs"}
    for call in calls:
        assert {"--context=lab", "--namespace=ml"} <= set(call.split())
        assert "--request-timeout=" in call
    assert all("--limit-bytes=" in call for call in calls if call.startswith("logs"))
    # Only what has ended has a log to read.
    assert not any("running" in call or "full" in call for call in calls)


def test_a_folder_knows_the_nodes_that_the_cluster_has_forgotten(
    cli: Cli, collect: Callable[..., tuple[int, str, str]], kubectl: Path, tmp_path: Path
) -> None:
    (tmp_path / "fleet.yaml").write_text(
        yaml.safe_dump(
            {"kubernetes": {"images": {"cpu": "r.example/cpu:1"}, "nodes": {"n1": "cpu"}}}
        )
    )
    assert cli("fleet", "render", "-o", "out").returncode == 0
    for name in ("jobs.json", "pods.json"):
        (kubectl / name).write_text('{"items": []}')
    code, out, err = collect("out", "--json")
    assert code == 5, err
    (entry,) = json.loads(out)["summary"]["entries"]
    assert (entry["node"], entry["outcome"]) == ("n1", "lost")
    assert "--namespace" not in (kubectl / "calls").read_text()


def test_nodes_that_train_together_are_collected_by_their_job(
    collect: Callable[..., tuple[int, str, str]], kubectl: Path
) -> None:
    for name in ("jobs.json", "pods.json"):
        (kubectl / name).write_bytes((DATA / "together" / name).read_bytes())
    for pod in json.loads((kubectl / "pods.json").read_text())["items"]:
        name = pod["metadata"]["name"]
        (kubectl / f"{name}.log").write_text(kubernetes_groups.log_of(name))
    code, out, err = collect("--run", RUN, "--json")
    assert code == 5, err
    outcomes = {g["nodes"][0]: g["outcome"] for g in json.loads(out)["summary"]["groups"]}
    expected = {f"{name}-1": outcome for name, outcome in kubernetes_groups.OUTCOMES.items()}
    assert outcomes == {n: o for n, o in expected.items() if n != "vanished-1"}
    calls = (kubectl / "calls").read_text().splitlines()
    assert all("--selector=envbuilder/run=" in call for call in calls if call.startswith("get"))
    # The first pod's log says it all.
    assert all("-0-x7k2p" in call for call in calls if call.startswith("logs"))


def test_a_log_that_is_gone_is_its_nodes_loss(
    collect: Callable[..., tuple[int, str, str]], kubectl: Path
) -> None:
    (kubectl / f"{pod_name('right')}.log").unlink()
    summary = json.loads(collect("--run", RUN, "--json")[1])["summary"]
    entries = {e["node"]: e for e in summary["entries"]}
    assert entries["right"]["outcome"] == "lost"
    assert "NotFound" in entries["right"]["detail"]
    assert entries["failing"]["outcome"] == "failed"


@pytest.mark.parametrize("content", ["", "[]", "no JSON", '{"items": 3}'])
def test_an_answer_that_is_none_is_an_error(
    collect: Callable[..., tuple[int, str, str]], kubectl: Path, content: str
) -> None:
    (kubectl / "pods.json").write_text(content)
    code, out, err = collect("--run", RUN)
    assert (code, out) == (2, "")
    assert "kubectl get pods: not a list of Kubernetes' objects" in " ".join(err.split())


def test_a_cluster_that_refuses_is_quoted(
    collect: Callable[..., tuple[int, str, str]], kubectl: Path
) -> None:
    (kubectl / "jobs.json").unlink()
    code, _, err = collect("--run", RUN)
    assert code == 4
    assert "Error from server (NotFound)" in err
    assert "kubectl auth can-i" in err


def test_without_kubectl_it_is_named(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = cli("fleet", "collect", "--run", RUN, environment={"PATH": str(tmp_path / "empty")})
    assert done.returncode == 4
    assert "kubectl: not found" in done.stderr
