"""torch is not imported where that could hang, and no import lasts for ever."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from envbuilder.payload.machine import facts, importing
from envbuilder.payload.machine.accelerators import ACCELERATORS
from envbuilder.payload.report import CheckError

if TYPE_CHECKING:
    from pathlib import Path

NULL = "/dev/null"
"""A device node that everybody may open."""


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """The device node that a build for AMD's GPUs needs."""
    path = str(request.param)
    monkeypatch.setitem(ACCELERATORS, "rocm", replace(ACCELERATORS["rocm"], nodes=(path,)))
    return path


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which a module `torch` is found, which ends whoever imports it."""
    folder = tmp_path / "site" / "torch"
    (folder / "lib").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(str(folder.parent))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    return folder


@pytest.mark.parametrize("node", [NULL], indirect=True)
def test_with_its_device_node_nothing_is_in_the_way(node: str) -> None:
    importing.require_nodes("rocm")


@pytest.mark.parametrize(
    ("node", "problem"),
    [
        ("/dev/there-is-no-kfd", "/dev/there-is-no-kfd cannot be used (No such file or directory)"),
        (__file__, f"{__file__} is no device"),
        ("/dev", "/dev is no device"),
    ],
    indirect=["node"],
)
def test_without_its_device_node_torch_is_not_imported(
    node: str, problem: str, build: Path
) -> None:
    for _ in ("a build for it", "another build"):
        with pytest.raises(CheckError) as failed:
            importing.torch_for("rocm")
        message = str(failed.value)
        assert message.startswith(f"{problem}; torch is not imported, since a build for rocm may")
        assert "amdgpu" in message
        (build / "lib" / "libtorch_hip.so").touch()


@pytest.mark.parametrize("node", [NULL], indirect=True)
def test_a_node_of_another_group_is_named(node: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(CheckError, match="may not be opened by this user; its group is 0"):
        importing.require_nodes("rocm")


@pytest.mark.parametrize("node", ["/dev/there-is-no-kfd"], indirect=True)
def test_what_counts_is_the_build_and_not_what_was_asked_of_it(node: str, build: Path) -> None:
    with pytest.raises(SystemExit, match="imported"):
        importing.torch_for("cpu")
    (build / "lib" / "libtorch_hip.so").touch()
    with pytest.raises(CheckError, match="torch is not imported"):
        importing.torch_for("cpu")
    assert "torch is not imported" in facts.probe()["error"]


@pytest.mark.parametrize("node", ["/dev/there-is-no-kfd"], indirect=True)
def test_without_any_torch_the_import_itself_says_so(
    node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ModuleNotFoundError):
        importing.torch_for("cpu")


def test_a_watchdog_guards_the_import_and_nothing_else(
    build: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []
    watchdog = SimpleNamespace(
        dump_traceback_later=lambda seconds, **named: calls.append((seconds, named["exit"])),
        cancel_dump_traceback_later=lambda: calls.append("cancelled"),
    )
    monkeypatch.setattr(importing, "faulthandler", watchdog)
    with pytest.raises(SystemExit, match="imported"):
        importing.torch_for("cpu")
    assert calls == [(importing.SECONDS, True), "cancelled"]
