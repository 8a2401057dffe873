"""The list of sabotages: long enough, of every class, and nothing of it lies about unused."""

from __future__ import annotations

from pathlib import Path

from tests.support.sabotages import DEVICES, EVERY, FORGED, OF_TENSORFLOW, PLANTED, Device

CLASSES = {
    "nothing learned",
    "labels leak",
    "clock",
    "device faked",
    "other data",
    "precision lowered",
    "framework shadowed",
    "report forged",
    "optimizer no-op",
    "gradient wrong",
    "dropout off",
    "profiler lies",
    "wrong numbers",
    "changed after the build",
    "payload ends",
    "step wrong",
    "trained before",
    "answers wrong",
}
HELPERS = {"forged_report.py"}


def test_there_are_at_least_fifty_and_each_class_is_tried_in_ci() -> None:
    names = [(s.name, s.profile, s.node) if isinstance(s, Device) else s.name for s in EVERY]
    assert len(names) == len(set(names)) >= 50
    assert {sabotage.kind for sabotage in EVERY} == CLASSES
    assert {sabotage.kind for sabotage in EVERY if sabotage.in_ci} == CLASSES


def test_every_fault_is_tried_and_every_name_is_one(repository: Path) -> None:
    folder = repository / "tests/integration/torch"
    tests = "".join(path.read_text() for path in folder.glob("test_*.py"))
    modules = {path.stem for path in (folder / "sabotage").glob("*.py") if path.name not in HELPERS}
    listed = {s.name for s in EVERY if s not in (*FORGED, *PLANTED) and s.name}
    listed |= {s.node for s in DEVICES if s.node}
    assert listed <= modules
    assert {name for name in modules - listed if f'"{name}"' not in tests} == set()


def test_the_faults_of_tensorflow_are_those_that_are_listed(repository: Path) -> None:
    folder = repository / "tests/integration/tensorflow/sabotage"
    assert {path.stem for path in folder.glob("*.py")} == {s.name for s in OF_TENSORFLOW if s.name}
    assert {s.kind for s in OF_TENSORFLOW} < CLASSES
