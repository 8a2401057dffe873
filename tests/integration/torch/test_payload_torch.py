"""The packed payload as a process, in a real interpreter with a real torch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import envbuilder
from envbuilder.core import resources
from envbuilder.payload.report import UNREPEATED
from envbuilder.verify.report import model as report
from tests.conftest import exited, ran

SUBSET = resources.mnist_subset_dir()

RUN_ONLY = ("--quick", "--epochs", "1")
"""Few digits are learned badly; most faults show all the same."""


@pytest.fixture(scope="session")
def tiny(few_digits: tuple[str | Path, ...]) -> Path:
    """Too few digits to learn from, enough to run on."""
    return Path(few_digits[-1])


class Done:
    """A finished payload: exit code, events, and the report if there is one."""

    def __init__(self, done: subprocess.CompletedProcess[str]) -> None:
        self.code = done.returncode
        self.stderr = done.stderr
        self.events = [json.loads(line) for line in done.stdout.splitlines()]

    @property
    def report(self) -> dict[str, Any]:
        last = self.events[-1]
        assert last["event"] == "report", (self.code, self.stderr[-2000:])
        report: dict[str, Any] = last["report"]
        return report

    def check(self, name: str) -> dict[str, Any]:
        return next(check for check in self.report["checks"] if check["name"] == name)


def verify(
    python: Path, pyz: Path, *arguments: str, data: Path = SUBSET, **environment: str
) -> Done:
    command = [str(python), str(pyz), "verify", "--device", "cpu", "--data", str(data), *arguments]
    done = ran(command, env={**os.environ, **environment})
    return Done(done)


def sabotaged(
    python: Path, tmp_path: Path, code: str, *arguments: str, data: Path, **environment: str
) -> Done:
    """Run verify from the checkout after ``code`` has changed something in it."""
    script = tmp_path / "sabotage.py"
    script.write_text(
        f"{code}\nfrom envbuilder.payload.cli import main\nraise SystemExit(main())\n"
    )
    root = str(Path(envbuilder.__file__).parents[1])
    return verify(python, script, *arguments, data=data, PYTHONPATH=root, **environment)


@pytest.fixture(scope="session")
def quick(torch_python: Path, pyz: Path) -> Done:
    return verify(torch_python, pyz, "--quick", "--epochs", "2", "--framework-version", "2.13.0")


@pytest.mark.slow
def test_quick_passes_and_reports_what_happened(quick: Done) -> None:
    report = quick.report
    assert (quick.code, report["status"], report["reasons"]) == (0, "unproven", [UNREPEATED])
    assert report["device"]["used"] == report["device"]["requested"] == "cpu"
    assert report["dataset"]["name"] == "mnist-subset"
    assert report["dataset"]["subset"] is True
    assert report["framework"]["version"].startswith("2.13.0")
    # Started by hand it takes its environment as it finds it, and says so.
    others = {check["name"]: check["status"] for check in report["checks"]}
    assert {others.pop("isolation"), others.pop("origins")} == {"warning"}
    assert others.pop("step") == "skipped"
    assert report["origins"]["as_found"] is True
    assert set(others.values()) == {"passed"}
    assert any("convolution" in name for name in report["kernels"]["training"])


@pytest.mark.slow
def test_times_add_up(quick: Done) -> None:
    training = quick.report["training"]
    for epoch in training["epochs"]:
        assert epoch["seconds"] == pytest.approx(epoch["data_seconds"] + epoch["compute_seconds"])
        assert epoch["samples_per_second"] == pytest.approx(3000 / epoch["seconds"])
    assert training["cold_start_seconds"] > quick.check("import")["seconds"]


@pytest.mark.slow
def test_what_was_measured_is_believed_by_the_core(quick: Done) -> None:
    measured = report.check(quick.report)
    measurements = measured.measurements
    assert [m.dtype for m in measurements.matmul or ()] == ["float32", "bfloat16"]
    assert measurements.bandwidth.device is not None
    assert measurements.bandwidth.host_to_device is None
    for part in ("launch_seconds", "inference", "peak_memory_bytes"):
        assert getattr(measurements, part) is not None, part
    # 4.3 TFLOP an epoch of 60,000 images is the figure that is measured and published elsewhere.
    assert measurements.epoch_flops == pytest.approx(4.294e12 / 20, rel=1e-3)
    assert 0 < (measurements.matmul_share or 0) < 1.5


@pytest.mark.slow
def test_the_loss_curve_spans_all_epochs_and_falls(quick: Done) -> None:
    losses = quick.report["training"]["losses"]
    assert [step for step, _ in losses] == list(range(1, 95))
    assert losses[0][1] == pytest.approx(2.3, abs=0.3)
    assert sum(loss for _, loss in losses[-10:]) < sum(loss for _, loss in losses[:10]) / 3


def test_the_user_s_thread_count_is_honoured(torch_python: Path, pyz: Path) -> None:
    done = verify(torch_python, pyz, "--quick", "--device", "cuda", OMP_NUM_THREADS="1")
    threads = done.report["threads"]
    assert (threads["framework"], threads["OMP_NUM_THREADS"]) == (1, "1")


@pytest.mark.slow
def test_lower_precision_fails(torch_python: Path, pyz: Path, tiny: Path) -> None:
    lower = {"ONEDNN_DEFAULT_FPMATH_MODE": "BF16"}
    done = verify(torch_python, pyz, *RUN_ONLY, data=tiny, **lower)
    assert done.code == 5
    assert any("bfloat16 is in effect" in reason for reason in done.report["reasons"])


ONLY_WARNED_OF = """
import torch
from envbuilder.payload import measure
from envbuilder.payload.frameworks.torch_ import Torch
Torch._room = measure._inference = lambda *arguments: 1 / 0
"""


@pytest.mark.soak
def test_a_measurement_that_fails_is_warned_of(
    torch_python: Path, tmp_path: Path, tiny: Path
) -> None:
    done = sabotaged(torch_python, tmp_path, ONLY_WARNED_OF, *RUN_ONLY, data=tiny)
    assert (done.code, done.report["reasons"]) == (0, [UNREPEATED])
    measurements = done.report["measurements"]
    assert measurements["bandwidth"]["device"] is measurements["inference"] is None
    assert measurements["matmul"][0]["flops_per_second"] > 0
    detail = done.check("measurements")["detail"]
    assert f"measurements: {detail}" in done.report["warnings"]
    assert "bandwidth device could not be measured" in detail
    assert report.check(done.report).status == "unproven"


def test_a_crash_still_reports(torch_python: Path, tmp_path: Path, tiny: Path) -> None:
    code = "from envbuilder.payload.training import eager\neager.prepare = None\n"
    done = sabotaged(torch_python, tmp_path, code, *RUN_ONLY, data=tiny)
    assert done.code == 5
    assert "TypeError" in done.report["reasons"][0]
    assert "eager.prepare" in done.report["traceback"]


@pytest.mark.soak
def test_inductor_is_checked_before_its_numbers_count(
    torch_python: Path, pyz: Path, tiny: Path
) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no g++: Inductor cannot compile")
    done = verify(torch_python, pyz, *RUN_ONLY[1:], "--compile-backend", "inductor", data=tiny)
    assert done.code == 0, "a fault of a compile backend is a warning, not a failure"
    (entry,) = done.report["compile"]
    assert entry["training"]["counts"] is entry["gradients"]["passed"]
    assert entry["inference"]["counts"] is True
    if done.report["device"]["capability"] == "AVX512":
        # torch 2.13.0+cpu's known fault.
        published = entry["gradients"]["forms"]["published"]["gradients"]
        assert published["conv1.weight"] == pytest.approx(1.0)
        assert done.check("compile inductor")["status"] == "warning"
        advice = "do not use torch.compile for training"
        assert any(advice in warning for warning in done.report["warnings"])


@pytest.mark.soak
def test_a_missing_compiler_is_told_in_plain_words(
    torch_python: Path, pyz: Path, tiny: Path, tmp_path: Path
) -> None:
    backend = ("--compile-backend", "inductor")
    done = verify(torch_python, pyz, *RUN_ONLY[1:], *backend, data=tiny, PATH=str(tmp_path))
    assert done.code == 0
    (entry,) = done.report["compile"]
    assert "install g++" in entry["error"]
    assert entry["training"]["counts"] is entry["inference"]["counts"] is False


def execute(pyz: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    return ran([sys.executable, str(pyz), "exec", "--", *command], env={**variables, **environment})


def test_exec_becomes_the_command_with_a_thread_count(pyz: Path) -> None:
    code = "import os; print(os.environ['OMP_NUM_THREADS']); raise SystemExit(7)"
    assert int(exited(7, execute(pyz, sys.executable, "-c", code)).stdout) >= 1
    assert execute(pyz, sys.executable, "-c", code, OMP_NUM_THREADS="3").stdout == "3\n"


def test_exec_leaves_sigpipe_to_the_command(pyz: Path) -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("no /proc: not Linux")
    done = execute(pyz, "grep", "SigIgn", "/proc/self/status")
    ignored = int(done.stdout.split()[1], 16)
    assert not ignored & (1 << 12), "signal 13, SIGPIPE, is still ignored"


def test_every_file_compiles_in_python_3_8(tmp_path: Path, pyz: Path) -> None:
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [*versions.glob("3.8.*/bin/python"), shutil.which("python3.8")]
    # Executed, not just found: a shim of pyenv is there for versions that are not active.
    works = (str(path) for path in found if path and not subprocess.call([path, "-c", ""]))
    python = next(works, None)
    if python is None:
        pytest.skip("no Python 3.8 here")
    zipfile.ZipFile(pyz).extractall(tmp_path / "x")
    command = [python, "-W", "error", "-m", "compileall", "-q", str(tmp_path / "x")]
    subprocess.run(command, check=True)
    # Importing evaluates what compiling does not: decorators, defaults, base classes.
    folder = tmp_path / "x"
    modules = (path.relative_to(folder).with_suffix("") for path in folder.rglob("payload/**/*.py"))
    names = [".".join(path.parts) for path in modules if not path.stem.startswith("__")]
    assert "payload.checks" in names
    code = "".join(f"import {name}\n" for name in names)
    subprocess.run([python, "-c", code], check=True, cwd=tmp_path / "x")
