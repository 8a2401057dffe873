"""`tools/on_gpu.sh` on a machine without a GPU: its plumbing, over the `cpu` profile's torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from envbuilder.host import probe
from tests.support.folders import names_in

pytestmark = pytest.mark.slow


def start(repository: Path, out: Path, python: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            repository / "tools/on_gpu.sh",
            "run",
            out,
            "--quick",
            "--device",
            "cpu",
            "--python",
            python,
            "--packed",
            out / "nothing",
            *options,
        ],
        env={**os.environ, "PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=out.parent,
    )


def summary(out: Path) -> dict[str, Any]:
    found = json.loads((out / "summary.json").read_text())
    return {**found, "steps": {step["name"]: step for step in found["steps"]}}


@pytest.mark.soak
def test_all_of_it_but_what_takes_long(
    repository: Path, tmp_path: Path, torch_python: Path
) -> None:
    """The epoch and JAX fail, for this torch has neither torchvision nor JAX: the rest goes on."""
    out = tmp_path / "out"
    groups = "host,verify,epoch,refusals,faults,jax"
    running = start(repository, out, torch_python, "--only", groups, "--seconds", "3000")
    printed, errors = running.communicate(timeout=3000)
    found = summary(out)
    ends = {name: (step["outcome"], step["code"]) for name, step in found["steps"].items()}
    assert ends.pop("doctor") in {("expected", 0), ("expected", 3)}
    assert ends == {
        "detect": ("expected", 0),
        "record": ("expected", 0),
        "verify": ("expected", 0),
        "verify-forced": ("not run", None),
        "epoch": ("unexpected", 1),
        "hidden": ("expected", 3),
        "hidden-forced": ("expected", 5),
        "other-device": ("expected", 5),
        "jax": ("unexpected", 5),
        "without-fault": ("expected", 0),
        "fault-matmul-a-thousandth-off": ("expected", 5),
    }, found["steps"]
    assert (running.returncode, errors) == (1, ""), printed
    assert found["verdict"] == "passed"
    files = names_in(out)
    assert files == {
        "summary.json",
        "summary.txt",
        "host.tar.gz",
        "report.json",
        "report.html",
        "logs.tar.gz",
    }
    with tarfile.open(out / "logs.tar.gz") as tar:
        log = tar.extractfile("logs/epoch.log")
        assert b"No module named 'numpy'" in log.read()
    with tarfile.open(out / "host.tar.gz") as tar:
        tar.extractall(tmp_path / "recorded", filter="data")
    assert probe.host(tmp_path / "recorded/host").cpu == probe.host(environ={}).cpu
    # The interpreter in question is as it was, and its copy is gone.
    prefix = torch_python.parent.parent
    assert not list(prefix.glob("lib/python*/site-packages/sabotage*"))
    assert not list(prefix.parent.glob("on-gpu-*"))


def test_a_step_is_ended_when_its_time_is_over(
    repository: Path, tmp_path: Path, torch_python: Path
) -> None:
    out = tmp_path / "out"
    running = start(repository, out, torch_python, "--only", "tune,devices", "--seconds", "6")
    running.communicate(timeout=120)
    steps = summary(out)["steps"]
    assert {name: step["outcome"] for name, step in steps.items()} == {
        "tune": "out of time",
        "devices": "not run",
    }
    assert running.returncode == 1
    assert working(torch_python) == []


def test_what_was_done_is_kept_where_all_of_it_is_ended(
    repository: Path, tmp_path: Path, torch_python: Path
) -> None:
    out = tmp_path / "out"
    running = start(repository, out, torch_python, "--only", "host,tune")
    for line in running.stdout:
        if "record" in line:
            break
    time.sleep(2)  # the next step has begun
    running.send_signal(signal.SIGTERM)
    running.communicate(timeout=60)
    assert running.returncode == 128 + signal.SIGTERM
    steps = summary(out)["steps"]
    assert {"detect", "doctor", "record"} <= set(steps)
    assert steps["tune"]["why"] == "ended from outside"
    assert (out / "host.tar.gz").exists()
    assert working(torch_python) == []


def working(python: Path) -> list[str]:
    """Commands that run in this environment."""
    lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if readable(path)]
    mark = f"{python.parent}{os.sep}".encode()
    return [line.decode() for line in lines if line.startswith(mark)]


def readable(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError:
        return False
    return True
