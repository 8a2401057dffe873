from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from envbuilder.core import resources
from envbuilder.payload import cli, events, verify
from envbuilder.payload.machine import threads
from envbuilder.payload.machine.threads import CpuFacts
from envbuilder.payload.options import Options
from envbuilder.payload.training.dataset import Dataset

SHIPPED = resources.mnist_subset_dir()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Options, Dataset]]:
    """Runs of verify, none of which does anything; each reports the status in ``status``."""
    calls: list[tuple[Options, Dataset]] = []

    def record(options: Options, data: Dataset, out: events.Events) -> dict[str, Any]:
        calls.append((options, data))
        return {"status": "passed" if options.device == "cpu" else "failed"}

    monkeypatch.setattr(verify, "verify", record)
    import sys

    monkeypatch.setattr(events, "take_stdout", lambda: sys.stdout)
    return calls


def test_every_option_arrives(asked: list[tuple[Options, Dataset]]) -> None:
    arguments = (
        f"verify --device cpu --data {SHIPPED} --dataset-name mine --epochs 4 --seed 9"
        " --precision tf32 --framework-version 2.13.0+cpu"
        " --require-kernels zentorch:: --require-kernels torch_ipex:: --compile-backend inductor"
        " --compile-backend zentorch --extension zentorch --extension ipex"
    )
    assert cli.main(arguments.split()) == 0
    options, data = asked[0]
    assert options == Options(
        device="cpu",
        epochs=4,
        quick=False,
        seed=9,
        precision="tf32",
        version="2.13.0+cpu",
        require_kernels=["zentorch::", "torch_ipex::"],
        compile_backends=["inductor", "zentorch"],
        extensions=["zentorch", "ipex"],
    )
    assert data.name == "mine"


def test_a_failed_verification_exits_5(
    asked: list[tuple[Options, Dataset]], capsys: pytest.CaptureFixture[str]
) -> None:
    asked_for = ["--device", "cuda", "--data", str(SHIPPED), "--run-id", "f00"]
    assert cli.main(["verify", *asked_for]) == 5
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert last == {"event": "report", "run_id": "f00", "report": {"status": "failed"}}


def test_damaged_data_exits_2_and_says_which_file(
    asked: list[tuple[Options, Dataset]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["verify", "--device", "cpu", "--data", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert "train-images-idx3-ubyte: is missing" in captured.err
    assert json.loads(captured.out.splitlines()[-1])["event"] == "error"
    assert not asked


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "verify --device cpu",
        "verify --device cpu --data . --epochs 0",
        "verify --device cpu --data . --compile-backend tvm",
        # An abbreviation would change its meaning with the next option.
        "verify --device cpu --data . --qui",
    ],
)
def test_usage_errors_exit_2(arguments: str) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(arguments.split())
    assert exit_.value.code == 2


# ---- exec


class BecameError(Exception):
    """Raised in place of becoming the command."""


@pytest.fixture
def became(monkeypatch: pytest.MonkeyPatch) -> None:
    def execvp(file: str, args: list[str]) -> None:
        raise BecameError(file, args, os.environ.get("OMP_NUM_THREADS"))

    monkeypatch.setattr(os, "execvp", execvp)
    monkeypatch.setattr(threads, "fetch", lambda: CpuFacts(8, 3.0, 4))
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    monkeypatch.setattr(signal, "signal", lambda *args: None)


@pytest.mark.usefixtures("became")
@pytest.mark.parametrize(
    ("arguments", "threads_set", "command", "count"),
    [
        (["--", "nproc", "--all"], "", ["nproc", "--all"], "3"),
        (["--", "x"], "7", ["x"], "7"),
        # Options of the command are its own.
        (["--", "x", "--help", "--", "-y"], "", ["x", "--help", "--", "-y"], "3"),
    ],
)
def test_the_command_gets_the_thread_count(
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    threads_set: str,
    command: list[str],
    count: str,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", threads_set)
    with pytest.raises(BecameError) as became:
        cli.main(["exec", *arguments])
    assert became.value.args == (command[0], command, count)


@pytest.mark.usefixtures("became")
def test_signals_that_python_ignores_are_not_ignored_in_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changed = []
    monkeypatch.setattr(signal, "signal", lambda number, action: changed.append((number, action)))
    with pytest.raises(BecameError):
        cli.become(["x"])
    assert (signal.SIGPIPE, signal.SIG_DFL) in changed


@pytest.mark.usefixtures("became")
@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (FileNotFoundError(2, "No such file"), 127, "nothing-here: command not found"),
        (PermissionError(13, "Permission denied"), 126, "cannot be executed: Permission denied"),
    ],
)
def test_a_command_that_cannot_start(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: OSError,
    code: int,
    words: str,
) -> None:
    monkeypatch.setattr(os, "execvp", Mock(side_effect=error))
    assert cli.main(["exec", "--", "nothing-here"]) == code
    captured = capsys.readouterr()
    assert words in captured.err
    assert len(captured.err.splitlines()) == 1
    assert not captured.out


@pytest.mark.parametrize("arguments", [["exec"], ["exec", "--"]])
def test_no_command_is_a_usage_error(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    assert "no command given" in capsys.readouterr().err


def test_an_interrupt_exits_130(
    asked: list[tuple[Options, Dataset]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "verify", Mock(side_effect=KeyboardInterrupt))
    assert cli.main(["verify", "--device", "cpu", "--data", str(SHIPPED)]) == 130
