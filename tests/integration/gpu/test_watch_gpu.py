"""What `watch` says about trainings on an NVIDIA GPU: faults, honest ones, and what it disturbs.

ENVBUILDER_TEST_GPU names an interpreter with torch (and JAX, Lightning, …) that sees a GPU;
`tools/on_gpu.sh` does so.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from envbuilder.watch import model
from tests.conftest import missing
from tests.support import watching

FORMS = watching.HERE / "watched_forms.py"
JAX = watching.HERE / "watched_jax.py"
LIBRARIES = ("accelerate", "lightning", "transformers")
OF_TORCH = (
    "plain",
    "pinned",
    "halves",
    "compiled",
    "late",
    "compiles",
    "hooked",
    "lbfgs",
    "graphs",
    "adversaries",
    "folds",
    "threads",
    "starts",
    "spawned",
    "ranks",
)
FAULTS = [fault for fault in watching.FAULTS if fault[0] != "fallback"]


@pytest.fixture(scope="session")
def gpu_python() -> Path:
    named = os.environ.get("ENVBUILDER_TEST_GPU")
    if not named:
        missing("gpu", "ENVBUILDER_TEST_GPU names no interpreter that sees one")
    return Path(named)


Watch = Callable[..., tuple[model.Watched, str]]


@pytest.fixture
def watch(
    gpu_python: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> Watch:
    """`watch(*argv)` runs a training that ends well; its report goes into the results of tests."""

    def run(*argv: object, requested: str = "cuda") -> tuple[model.Watched, str]:
        report, done = watching.watched(gpu_python, tmp_path, tuple(map(str, argv)), requested)
        record_property("report", msgspec.json.encode(report).decode())
        record_property("stderr", done.stderr[-2000:])
        record_property("stdout", done.stdout)
        assert done.returncode == 0, done.stderr
        return report, done.stdout

    return run


def trained(report: model.Watched) -> list[model.Observed]:
    return [process for process in report.processes if process.steps]


@pytest.mark.parametrize(("fault", "named", "words"), [(f[0], f[2], f[3]) for f in FAULTS])
def test_a_fault_is_named_and_no_other(
    fault: str, named: list[str], words: str, watch: Watch
) -> None:
    report, _ = watch(watching.TRAINING, fault, "cuda")
    assert watching.kinds(report) == named, report.findings
    says = f"{report.findings[0].says} {report.findings[0].advice}"
    # With 16 CPUs, 8 workers are advised.
    assert words.partition("=")[0] in says
    assert report.on_device is (fault != "left on the CPU")
    assert report.processes[0].unseen == ()


@pytest.mark.parametrize("kind", [*watching.HONEST, "scaled"])
def test_an_honest_training_is_not_blamed_and_computes_the_same(
    kind: str, watch: Watch, gpu_python: Path
) -> None:
    report, printed = watch(watching.TRAINING, kind, "cuda")
    assert (report.findings, report.on_device) == ((), True)
    (process,) = report.processes
    assert process.steps == (30 if kind == "accumulation" else 60)
    assert process.windows >= 1
    assert process.unseen == ()
    assert max(device.peak or 0 for device in process.devices) > 1 << 20
    assert len(process.losses) >= process.steps / 2
    assert printed == watching.plain(gpu_python, kind, "cuda")


@pytest.mark.parametrize("form", [*OF_TORCH, *LIBRARIES])
def test_a_form_is_not_blamed(form: str, watch: Watch) -> None:
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2") if form == "ranks" else ()
    report, _ = watch(*launcher, FORMS, form, "cuda")
    assert report.findings == ()
    assert report.on_device is True or form == "compiles"
    for process in trained(report):
        assert process.unseen == ()
    if form not in {"compiles", "threads"}:
        assert trained(report)


def test_steps_that_are_captured_stay_whole_and_are_said_to_be_unseen(watch: Watch) -> None:
    """A look that waited for the device would end the capture with an error."""
    report, _ = watch(FORMS, "captures", "cuda")
    assert report.findings == ()
    (process,) = report.processes
    assert process.steps == 3
    assert any("CUDA graph" in sentence for sentence in process.unseen)


@pytest.mark.parametrize("form", LIBRARIES)
def test_a_library_left_on_the_cpu_is_named(form: str, watch: Watch) -> None:
    report, _ = watch(FORMS, form, "cpu")
    assert watching.kinds(report)[:1] == ["device"]
    assert report.on_device is False


@pytest.mark.parametrize(
    ("fault", "named"),
    [
        ("none", []),
        ("float64", ["float64"]),
        ("not a number", ["not finite"]),
    ],
)
def test_of_jax_a_fault_is_named_and_no_other(fault: str, named: list[str], watch: Watch) -> None:
    report, _ = watch(JAX, fault)
    assert watching.kinds(report) == named
    assert report.on_device is True


def test_jax_that_is_left_on_the_cpu_is_named(watch: Watch) -> None:
    script = "import jax, runpy, sys; jax.config.update('jax_platforms', 'cpu');"
    script += "sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    report, _ = watch("-c", script, JAX, "none")
    assert watching.kinds(report) == ["device"]
