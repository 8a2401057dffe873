"""Ways to fool a verification of TensorFlow: the verdict must not believe one of them.

The table is `tests/support/sabotages.py`, and tests/support/overlays.py says how a fault comes into
an environment. A few run with --all, all with `make soak`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envbuilder.builds import payload as pack
from envbuilder.payload.start import Start
from tests.support import warm
from tests.support.overlays import Bench, Overlay, Verdict, Words
from tests.support.sabotages import (
    CLOCKS,
    TENSORFLOW_DEVICES,
    TENSORFLOW_LEARNING,
    TENSORFLOW_NUMBERS,
    TENSORFLOW_STEPS,
    Sabotage,
    parameters,
)

MODULES = Path(__file__).with_name("sabotage")
OF_TORCH = MODULES.parents[1] / "torch/sabotage"
ON_CPU = ("--framework", "tensorflow", "--device", "cpu")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def kept(tensorflow_prefix: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return warm.keep(tensorflow_prefix, "tensorflow, keras", tmp_path_factory.mktemp("kept"))


@pytest.fixture
def bench(
    tmp_path: Path, tensorflow_prefix: Path, session_environment: dict[str, str], kept: Path
) -> Bench:
    return Bench(tmp_path, tensorflow_prefix, session_environment, kept, MODULES, OF_TORCH)


@pytest.mark.soak
def test_an_overlay_without_a_fault_passes(bench: Bench, few_digits: Words) -> None:
    found = bench.payload(bench.overlay, *ON_CPU, *few_digits)
    assert (found.code, found.report["status"], found.report["reasons"]) == (0, "passed", [])
    assert found.report["device"]["used"] == "cpu"
    assert any("Conv2DBackpropFilter" in name for name in found.report["kernels"]["training"])


@pytest.mark.parametrize("sabotage", parameters(TENSORFLOW_STEPS))
def test_a_fault_that_the_repeated_steps_show(bench: Bench, sabotage: Sabotage) -> None:
    overlay = bench.overlay.after("tensorflow", sabotage.name)
    found = bench.verify(overlay, profile="tensorflow-cpu")
    found.require_failed(sabotage.check, sabotage.words)


@pytest.mark.parametrize("sabotage", parameters(TENSORFLOW_DEVICES))
def test_a_device_that_is_not_what_it_says(
    bench: Bench, few_digits: Words, sabotage: Sabotage
) -> None:
    overlay = bench.overlay
    if sabotage.name:
        overlay.after("tensorflow", sabotage.name)
    found = bench.payload(overlay, "--framework", "tensorflow", "--device", "cuda", *few_digits)
    found.require_failed(sabotage.check, sabotage.words)
    assert found.report["device"]["used"] != "cuda"


@pytest.mark.parametrize("sabotage", parameters(TENSORFLOW_NUMBERS))
def test_wrong_numbers_and_wrong_witnesses(
    bench: Bench, few_digits: Words, sabotage: Sabotage
) -> None:
    overlay = bench.overlay.after("tensorflow", sabotage.name)
    found = bench.payload(overlay, *ON_CPU, *few_digits)
    found.require_failed(sabotage.check, sabotage.words)


@pytest.mark.parametrize("sabotage", parameters(TENSORFLOW_LEARNING))
def test_learning_that_did_not_happen(bench: Bench, sabotage: Sabotage) -> None:
    overlay = bench.overlay.after("tensorflow", sabotage.name)
    found = bench.verify(overlay, profile="tensorflow-cpu")
    found.require_failed(sabotage.check, sabotage.words)


@pytest.mark.parametrize("sabotage", [pytest.param(s, marks=pytest.mark.soak) for s in CLOCKS])
def test_a_clock_that_lies(bench: Bench, few_digits: Words, sabotage: Sabotage) -> None:
    found = bench.payload(bench.overlay.at_start(sabotage.name), *ON_CPU, *few_digits)
    found.require_failed(sabotage.check, sabotage.words)


# Code from elsewhere.


def promised(bench: Bench, overlay: Overlay, *options: str | Path) -> Verdict:
    """Run the payload as the core does: isolated, with a promise of how it is started."""
    python = str(overlay.python)
    bytecode = str(bench.bytecode(overlay))
    start = Start(False, str(overlay.python.parents[1]), python, bytecode)
    pyz = bench.folder / "payload.pyz"
    pyz.write_bytes(pack.payload_pyz())
    isolated = (python, "-I", "-X", f"pycache_prefix={bytecode}", pyz, "--promise", start.text())
    done = bench.run(*isolated, "verify", *options)
    last = json.loads(done.stdout.splitlines()[-1])
    return Verdict(done.returncode, last.get("report", {}), done.stderr)


@pytest.mark.soak
def test_a_module_from_outside_is_not_looked_for(bench: Bench, few_digits: Words) -> None:
    folder = bench.folder / "outside"
    folder.mkdir()
    (folder / "tensorflow.py").write_text("raise SystemExit('this is another tensorflow')\n")
    (folder / "keras.py").write_text("raise SystemExit('this is another keras')\n")
    bench.environment["PYTHONPATH"] = str(folder)
    found = promised(bench, bench.overlay, *ON_CPU, *few_digits)
    found.require_failed("isolation", "PYTHONPATH")
    assert "another" not in found.stderr


@pytest.mark.soak  # with the other tests, packages of torch's environment are
@pytest.mark.parametrize("name", ["keras", "ml_dtypes"])
def test_a_package_of_another_environment_is_foreign(
    bench: Bench, few_digits: Words, name: str
) -> None:
    overlay = bench.overlay
    folder = bench.folder / "outside"
    folder.mkdir()
    (overlay.site / name).rename(folder / name)
    (overlay.site / "outside.pth").write_text(f"{folder}\n")
    found = promised(bench, overlay, *ON_CPU, *few_digits)
    found.require_failed("origins", f"{name} was imported from {folder}")
