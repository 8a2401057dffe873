"""Two nodes on one machine, with gloo and torchrun as they are: in step, and what stops them."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import envbuilder
from envbuilder.core import resources
from envbuilder.verify.report import model as report
from tests.conftest import missing
from tests.support.folders import names_in, read_json
from tests.support.left_over import left_over, wait_for

SUBSET = resources.mnist_subset_dir()
ROOT = Path(envbuilder.__file__).parents[1]
needs_proc = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="no /proc")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Nodes:
    """Two nodes that run `parallel-node`, each from a script that first runs some code."""

    def __init__(self, python: Path, folder: Path) -> None:
        self.python = python
        self.folder = folder
        self.shared = folder / "shared"
        self.shared.mkdir()
        self.mark = uuid.uuid4().hex
        self.address = "127.0.0.1"
        self.prefixes: list[list[str]] = [[], []]
        self.started: list[subprocess.Popen[str]] = []

    def start(self, code: str = "", limit: int = 200) -> None:
        script = self.folder / "script.py"
        port = free_port()
        last = "from envbuilder.payload.cli import main\nraise SystemExit(main())\n"
        script.write_text(f"import os\n{code}\n{last}")
        variables = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "EB_MARK": self.mark}
        for number, prefix in enumerate(self.prefixes):
            command = [*prefix, str(self.python), str(script), "parallel-node", "--device", "cpu"]
            command += ["--data", str(SUBSET), "--steps", "5", "--limit", str(limit)]
            command += ["--nodes", "2", "--node-rank", str(number), "--node-name", f"n{number}"]
            command += ["--master-address", self.address, "--master-port", str(port)]
            command += ["--folder", str(self.shared), "--attempt", "7"]
            with (self.folder / f"out{number}").open("w") as out:
                self.started.append(
                    subprocess.Popen(
                        command,
                        env={**os.environ, **variables},
                        stdout=out,
                        stderr=subprocess.DEVNULL,
                        text=True,
                    )
                )

    def report(self, number: int) -> dict[str, Any]:
        self.started[number].wait()
        last = (self.folder / f"out{number}").read_text().splitlines()[-1]
        content: dict[str, Any] = json.loads(last)["report"]
        return content

    def phase(self, rank: int) -> str:
        with contextlib.suppress(OSError, ValueError):
            state = self.shared / f"attempt-7/rank-{rank}.state.json"
            return str(read_json(state)["phase"])
        return ""

    def stop(self) -> None:
        for process in self.started:
            process.kill()
            process.wait()


@pytest.fixture
def nodes(torch_python: Path, tmp_path: Path) -> Iterator[Nodes]:
    pair = Nodes(torch_python, tmp_path)
    yield pair
    pair.stop()


def failed(content: dict[str, Any]) -> set[str]:
    return {check["name"] for check in content["checks"] if check["status"] == "failed"}


# ---- as a scheduler starts it


def join(
    python: Path, folder: Path, number: int, port: int, attempt: str, variables: dict[str, str]
) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "envbuilder", "fleet", "join", "--profile", "cpu"]
    command += ["--python", str(python), "--folder", str(folder), "--attempt", attempt]
    command += ["--nodes", "2", "--node-rank", str(number), "--limit", "300"]
    command += ["--master-address", "localhost", "--master-port", str(port)]
    command += ["--output", str(folder / f"result{number}.json")]
    return subprocess.Popen(
        command,
        env={**os.environ, **variables, "SLURMD_NODENAME": f"n{number}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.soak
def test_two_nodes_join_and_are_in_step(
    torch_python: Path, tmp_path: Path, session_environment: dict[str, str]
) -> None:
    variables = {**session_environment, "OMP_NUM_THREADS": "1"}
    # What an earlier attempt has left.
    (tmp_path / "attempt-16/node-1").mkdir(parents=True)
    (tmp_path / "attempt-16/node-1/node.json").write_text('{"ended": {"returncode": 1}}')
    port = free_port()
    pair = [join(torch_python, tmp_path, n, port, "17", variables) for n in (1, 0)]
    ends = [process.communicate() for process in pair]
    assert [process.returncode for process in pair] == [0, 0], ends
    assert not (tmp_path / "result1.json").exists()
    result = read_json(tmp_path / "result0.json")
    assert (result["status"], result["attempt"], result["backend"]) == ("passed", "17", "external")
    scaling = report.check_scaling(result["scaling"])
    assert [device.node for device in scaling.devices] == ["n0", "n1"]
    assert (scaling.ranks, scaling.backend, scaling.gradients_equal) == (2, "gloo", True)
    assert scaling.efficiency > 0
    details = {check.name: check.detail for check in scaling.checks}
    assert "bit for bit" in details["weights equal"]
    assert details["nodes"] == "n0, n1: 1 each; they meet at 127.0.0.1 through lo"
    left = names_in(tmp_path / "attempt-17")
    assert not {name for name in left if name.endswith((".gradients", ".weights"))}
    # The same attempt again: none of its files is taken for a new one.
    again = join(torch_python, tmp_path, 0, port, "17", variables)
    _, errors = again.communicate()
    assert again.returncode == 5
    assert "node 0 has taken part in attempt-17 before" in errors


@needs_proc
@pytest.mark.soak
def test_nothing_outlives_a_join_that_is_killed(
    torch_python: Path, tmp_path: Path, session_environment: dict[str, str]
) -> None:
    mark = uuid.uuid4().hex
    port = free_port()
    variables = {**session_environment, "XDG_CACHE_HOME": str(tmp_path / mark)}
    pair = [join(torch_python, tmp_path, n, port, "17", variables) for n in (0, 1)]
    try:
        # Two commands, two payloads, and the rank of each, alone.
        assert wait_for(lambda: len(left_over(mark)) == 6, 120)
    finally:
        for process in pair:
            process.kill()
            process.communicate()
    assert wait_for(lambda: left_over(mark) == [], 10)


# ---- what goes wrong


@pytest.mark.soak
@needs_proc
def test_a_node_that_is_killed_ends_the_others(nodes: Nodes) -> None:
    nodes.start(
        """
from envbuilder.payload.parallel import multi_node
from envbuilder.payload.training import eager
multi_node.PATIENCE = 3.0
real = eager.step
def step(*arguments):
    if "RANK" in os.environ:
        import time
        time.sleep(0.5)
    return real(*arguments)
eager.step = step
"""
    )
    assert wait_for(lambda: nodes.phase(1).startswith("train: block"), 150)
    nodes.started[1].send_signal(signal.SIGKILL)
    content = nodes.report(0)
    assert nodes.started[0].returncode == 5
    (reason,) = content["reasons"]
    assert reason.startswith(
        "together: ranks: node 1 (n1) is gone: it did not report its end; rank 0 on n0: "
    )
    assert content["samples_per_second"] is None
    # Those of the killed node, too.
    assert wait_for(lambda: left_over(nodes.mark) == [], 10)


OTHER_STEP = """
from envbuilder.payload.training import eager
eager.LEARNING_RATE = 1.01 if os.environ.get("RANK") == "1" else 1.0
"""


@pytest.mark.soak
def test_a_node_that_computes_something_else_fails(nodes: Nodes) -> None:
    nodes.start(OTHER_STEP)
    content = nodes.report(0)
    assert failed(content) == {"weights equal"}
    assert nodes.started[0].returncode == 5
    assert "the weights of rank 1 on n1 differ from rank 0's" in content["reasons"][0]
    # It did its part, as far as it can see.
    assert nodes.report(1)["status"] == "passed"


# ---- a network between them


@pytest.fixture
def network(nodes: Nodes) -> Iterator[Nodes]:
    """The nodes in network namespaces of their own, with one wire between them."""
    if shutil.which("ip") is None or shutil.which("nsenter") is None:
        pytest.skip("ip or nsenter is not installed")
    if os.geteuid() != 0:
        missing("root", "only root can make network namespaces")
    tag = secrets.token_hex(3)
    names = [f"eb{tag}a", f"eb{tag}b"]

    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)

    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        wire = ("link", "add", "wire0", "netns", names[0], "type", "veth")
        ip(*wire, "peer", "name", "wire1", "netns", names[1])
        for number, name in enumerate(names):
            ip("-n", name, "address", "add", f"10.98.0.{number + 1}/24", "dev", f"wire{number}")
            ip("-n", name, "link", "set", f"wire{number}", "up")
        nodes.address = "10.98.0.1"
        nodes.prefixes = [["nsenter", f"--net=/run/netns/{name}"] for name in names]
        yield nodes
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
    finally:
        nodes.stop()
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


@pytest.mark.soak
def test_ranks_use_the_interface_on_the_way_to_node_0(network: Nodes) -> None:
    network.start()
    content = network.report(0)
    assert content["reasons"] == []
    assert network.report(1)["reasons"] == []
    details = [check["detail"] for check in content["checks"] if check["name"] == "nodes"]
    assert details == ["n0, n1: 1 each; they meet at 10.98.0.1 through wire0"]
    assert report.check_scaling(content).gradients_equal


@pytest.mark.soak
def test_without_an_interface_they_do_not_meet(network: Nodes) -> None:
    network.start(
        """
from envbuilder.payload.parallel import multi_node
multi_node.variables = lambda *arguments: {}
"""
    )
    content = network.report(0)
    assert failed(content) == {"ranks"}
    assert network.report(1)["status"] == "failed"
