"""Run a script with the hook of `envbuilder watch`, and judge it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from envbuilder.commands import watch
from envbuilder.watch import judge, model

HERE = Path(__file__).parent
TRAINING = HERE / "watched_training.py"
QUIET = model.Machine(cpus=2)
FAULTS = [
    ("left on the CPU", "other", ["device"], "model.to"),
    ("layer left", "other", ["split"], "watched_training.py:"),
    ("copied twice", "other", ["copied twice"], "watched_training.py:"),
    ("sent twice", "other", ["copied twice"], "watched_training.py:"),
    ("float64", "cpu", ["float64"], "model.double"),
    ("autocast lost", "cpu", ["autocast"], "torch.autocast"),
    ("no gradients", "cpu", ["gradients"], "no_grad"),
    ("other model", "cpu", ["gradients"], "6 of 6"),
    ("rate zero", "cpu", ["no update"], "learning rate"),
    ("rate zero from step 17", "cpu", ["no update"], "After step"),
    ("eval left on", "cpu", ["eval mode"], "model.train()"),
    ("one sample", "cpu", ["single sample"], "batch_size"),
    ("fallback", "cpu", ["fallback"], "linalg_qr"),
    ("not a number", "cpu", ["not finite"], "at step 3"),
    ("random labels", "cpu", ["not learning"], "The loss stayed"),
    ("slow reading", "cpu", ["data"], "num_workers=2"),
    ("slow workers", "cpu", ["data"], "more workers"),
]
"""Fault of watched_training.py, where it should run, what is found, and words of it."""
HONEST = ("none", "autocast", "frozen backbone", "accumulation", "evaluation", "workers")
IN_TURN = ("heads in turn", "teacher")
"""Honest ones of which a few steps show a part."""


def plain(python: Path, *arguments: str, training: Path = TRAINING) -> str:
    """What a training prints without a hook."""
    done = alone(python, (str(training), *arguments))
    assert done.returncode == 0, done.stderr
    return done.stdout


def alone(python: Path, argv: Sequence[str], *path: Path) -> subprocess.CompletedProcess[str]:
    """Run `python ARGV` with folders on its path."""
    return subprocess.run(
        [python, *argv],
        capture_output=True,
        text=True,
        check=False,
        env={**_CALM, **_DRIVER, "PYTHONPATH": os.pathsep.join(map(str, path))},
    )


_CALM = {"OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
_DRIVER = {name: path for name, path in os.environ.items() if name == "LD_LIBRARY_PATH"}
"""Where a container finds the driver of its GPU."""


def watched(
    python: Path,
    folder: Path,
    argv: Sequence[str],
    requested: str = "cpu",
    beside: Sequence[Path] = (),
    machine: model.Machine | None = None,
) -> tuple[model.Watched, subprocess.CompletedProcess[str]]:
    """Run `python ARGV` with the hook laid in `folder`; return the judged report.

    Unless another machine is given, it knows what else ran on this one, and says nothing of that.
    """
    running = watch.Running(in_container=False)
    with watch.Session.laid(folder) as session, running.counted():
        done = alone(python, argv, session.hook, *beside)
        processes, left_out = session.parts()
    report = judge.judged(
        model.Watched(
            envbuilder="0",
            time="20260101T000000Z",
            host="here",
            command=tuple(map(str, argv)),
            profile="cpu",
            backend="venv",
            fingerprint="0" * 64,
            lock="0" * 64,
            requested=requested,
            exit_code=done.returncode,
            seconds=running.seconds,
            machine=machine or running.machine,
            processes=processes,
            left_out=left_out,
        )
    )
    findings = tuple(each for each in report.findings if each.kind != "load")
    return replace(report, findings=findings), done


def kinds(report: model.Watched) -> list[str]:
    """The kinds of its findings."""
    return [finding.kind for finding in report.findings]


def require(
    prefix: Path, folder: Path, argv: Sequence[str], device: str, named: list[str], words: str
) -> model.Watched:
    """Run a training that ends well; what is found must be of these kinds, the first with words."""
    report, done = watched(prefix / "bin/python", folder, argv, device, machine=QUIET)
    assert done.returncode == 0, done.stderr
    assert kinds(report) == named, report.findings
    assert words in f"{report.findings[0].says} {report.findings[0].advice}"
    return report
