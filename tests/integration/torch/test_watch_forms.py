"""Honest trainings in many forms: `watch` blames none, and none notices that it is watched."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import uv

from tests.conftest import missing, ran
from tests.support import watching

FORMS = watching.HERE / "watched_forms.py"
STEPS = {"accelerate": 80, "lightning": 320}
EAGER = 64
"""Steps of which each loss is kept."""
OF_TORCH = ("lbfgs", "adversaries", "halves", "profiled", "hooked", "compiled", "spawned", "ranks")
OF_LIBRARIES = ("accelerate", "lightning", "transformers")
NO_TORCH = "torch; python_version < '3'\n"
"""The environment has it; the one of the package index is for CUDA."""


def _argv(form: str) -> tuple[str, ...]:
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
    return (*(launcher if form in {"ranks", "idle", "shards"} else ()), str(FORMS), form)


@pytest.fixture(scope="session")
def libraries(torch_prefix: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of libraries that train with the environment's torch."""
    folder = tmp_path_factory.mktemp("libraries")
    (folder / "overrides.txt").write_text(NO_TORCH)
    python = torch_prefix / "bin/python"
    options = ("--python", python, "--target", folder, "--overrides", folder / "overrides.txt")
    done = ran([uv.find_uv_bin(), "pip", "install", "-q", *options, *OF_LIBRARIES])
    if done.returncode != 0:
        missing("network", f"the libraries cannot be installed: {done.stderr[-400:]}")
    return folder


def _require_unnoticed(form: str, prefix: Path, folder: Path, *beside: Path) -> None:
    python = prefix / "bin/python"
    alone = watching.alone(python, _argv(form), *beside)
    report, done = watching.watched(python, folder, _argv(form), beside=beside)
    assert (report.findings, report.on_device) == ((), True)
    trained = [process for process in report.processes if process.steps]
    assert [process.rank for process in trained] == ([0, 1] if form == "ranks" else [None])
    for process in trained:
        assert process.steps == STEPS.get(form, 160)
        assert process.finished
        assert process.unseen == ()
        assert len(process.losses) >= min(process.steps, EAGER)
    assert (done.returncode, _lasting(done.stdout)) == (alone.returncode, _lasting(alone.stdout))
    assert _lasting(done.stderr) == _lasting(alone.stderr)


def _lasting(text: str) -> list[str]:
    """Return lines without those that tell the time or a process; PyTorch has such, on stderr."""
    changing = ("USDT", "runtime", "_logging")
    return [line for line in text.splitlines() if not any(word in line for word in changing)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "form",
    [pytest.param(f, marks=() if f == "adversaries" else pytest.mark.soak) for f in OF_TORCH],
)
def test_a_form_of_torch_is_not_blamed_and_computes_the_same(
    form: str, torch_prefix: Path, tmp_path: Path
) -> None:
    _require_unnoticed(form, torch_prefix, tmp_path)


@pytest.mark.soak
@pytest.mark.network
@pytest.mark.parametrize("form", OF_LIBRARIES)
def test_a_library_is_not_blamed_and_computes_the_same(
    form: str, torch_prefix: Path, libraries: Path, tmp_path: Path
) -> None:
    _require_unnoticed(form, torch_prefix, tmp_path, libraries)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("form", "steps"),
    [
        ("shards", [160, 160]),
        ("counted", [160]),
        ("folds", [160 + 160 - 1]),
        ("threads", None),
        ("compiles", []),
        ("late", [160]),
        ("starts", [160, 160]),
    ],
)
def test_what_trains_in_a_way_of_its_own_is_not_changed(
    form: str, steps: list[int] | None, torch_prefix: Path, tmp_path: Path
) -> None:
    python = torch_prefix / "bin/python"
    alone = watching.alone(python, _argv(form))
    report, done = watching.watched(python, tmp_path, _argv(form))
    assert (done.returncode, _lasting(done.stderr)) == (alone.returncode, _lasting(alone.stderr))
    assert sorted(done.stdout.splitlines()) == sorted(alone.stdout.splitlines())
    assert steps in (None, [process.steps for process in report.processes if process.steps])
    assert report.findings == ()


@pytest.mark.soak
def test_steps_of_a_compiled_model_are_looked_at(torch_prefix: Path, tmp_path: Path) -> None:
    report, done = watching.watched(torch_prefix / "bin/python", tmp_path, _argv("compiled"))
    assert report.processes[0].windows >= 1
    assert report.processes[0].work == ()
    assert done.returncode == 0, done.stderr


@pytest.mark.soak
def test_a_rank_that_never_trains_is_no_idle_rank(torch_prefix: Path, tmp_path: Path) -> None:
    report, done = watching.watched(torch_prefix / "bin/python", tmp_path, _argv("idle"))
    assert done.returncode == 0, done.stderr
    assert report.findings == ()


@pytest.mark.soak
@pytest.mark.parametrize(("form", "code"), [("leaves", 3), ("killed", -signal.SIGKILL)])
def test_what_ends_at_once_leaves_its_last_part(
    form: str, code: int, torch_prefix: Path, tmp_path: Path
) -> None:
    report, done = watching.watched(torch_prefix / "bin/python", tmp_path, _argv(form))
    assert done.returncode == code
    assert len(done.stdout.splitlines()) == 40
    (trained,) = report.processes
    assert trained.finished == (form == "leaves")
    assert trained.steps == 40 or form == "killed"
    assert report.findings == ()
