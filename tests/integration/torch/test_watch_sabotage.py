"""Trainings with one fault each, and honest ones: what `watch` says about them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import watching

HONEST = [*((kind, "cpu") for kind in watching.HONEST), ("none", "other")]
OFTEN = {"layer left", "copied twice", "no gradients", "autocast lost", "eval left on"}
"""Those that CI runs; the others are soak's."""


def _soak(name: str, *values: object) -> object:
    return pytest.param(name, *values, marks=() if name in OFTEN else pytest.mark.soak)


def _python(prefix: Path) -> Path:
    return prefix / "bin/python"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "device", "kinds", "words"), [_soak(*f) for f in watching.FAULTS]
)
def test_a_fault_is_named_and_no_other(
    fault: str, device: str, kinds: list[str], words: str, torch_prefix: Path, tmp_path: Path
) -> None:
    argv = (str(watching.TRAINING), fault, device)
    report = watching.require(torch_prefix, tmp_path, argv, device, kinds, words)
    assert report.on_device is (fault != "left on the CPU")
    assert report.processes[0].unseen == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "device"),
    [
        pytest.param(*each, marks=() if number < 2 else pytest.mark.soak)
        for number, each in enumerate(HONEST)
    ],
)
def test_an_honest_training_is_not_blamed_and_computes_the_same(
    kind: str, device: str, torch_prefix: Path, tmp_path: Path
) -> None:
    argv = (str(watching.TRAINING), kind, device)
    report, done = watching.watched(_python(torch_prefix), tmp_path, argv, device)
    assert (report.findings, report.on_device) == ((), True)
    (trained,) = report.processes
    assert trained.steps == (30 if kind == "accumulation" else 60)
    if kind == "evaluation":
        assert trained.samples == 59 * 64
    assert trained.windows >= 1
    assert trained.finished
    assert done.stdout == watching.plain(_python(torch_prefix), kind, device)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", watching.IN_TURN)
def test_a_training_whose_parts_have_their_turns_is_not_blamed(
    kind: str, torch_prefix: Path, tmp_path: Path
) -> None:
    argv = (str(watching.TRAINING), kind)
    report, done = watching.watched(_python(torch_prefix), tmp_path, argv)
    assert (done.returncode, report.findings) == (0, ())
