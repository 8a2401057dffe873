"""Building for a host that is not this machine: a recorded host, or assumed GPUs."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, strategies as st

from envbuilder.core.errors import InvalidError
from envbuilder.host import model as host, probe
from envbuilder.host.model import Host
from envbuilder.profiles.choice import choose_best
from tests.support import host_trees
from tests.support.host_trees import PROFILES

PLAIN = Host(os="linux", machine="x86_64", platform="linux/amd64", libc="glibc 2.36")


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    real = probe.host
    monkeypatch.setattr(probe, "host", lambda *where, **how: real(*where) if where else PLAIN)


def chosen(variable: str) -> str | None:
    found = probe.target(None, {probe.GPU_VARIABLE: variable})
    return choose_best(PROFILES, found, locks=host_trees.locks()).profile


@pytest.mark.parametrize(
    ("variable", "profile"),
    [
        ("nvidia:sm=8.9,driver=580.65.06", "cuda"),
        ("NVIDIA:driver=580.65,sm=8.9", "cuda"),
        ("nvidia:sm=6.0,driver=535", "cuda-legacy"),
        ("nvidia:sm=8.9,driver=470.82", "cpu"),
        ("nvidia:sm=8.9", "cpu"),  # an unknown driver is not promised
        ("nvidia", "cpu"),
        ("intel:id=e20b", "xpu"),
        ("amd:gfx=gfx1100", "rocm"),
        ("intel:id=9a49", "cpu"),  # Iris Xe
        ("intel:id=ffff", "cpu"),
        ("none", "cpu"),
    ],
)
def test_assumed_gpus_decide(variable: str, profile: str) -> None:
    assert chosen(variable) == profile


@pytest.mark.parametrize(
    "variable",
    [
        "amd",
        "amd:gfx=1100",
        "nvidia:sm=89",
        "nvidia:id=e20b",
        "intel",
        "intel:id=e20",
        "nvidia:sm",
        "x",
    ],
)
def test_what_is_not_understood_is_refused(variable: str) -> None:
    with pytest.raises(InvalidError, match="not understood") as error:
        chosen(variable)
    assert "nvidia:sm=8.9,driver=580.65" in error.value.hint


def test_a_file_replaces_this_machine_and_says_so(tmp_path: Path) -> None:
    mac = host_trees.probed(tmp_path / "mac", "mac-m2")
    (tmp_path / "mac.json").write_bytes(msgspec.json.encode({"schema": 1, "host": mac}))
    found = probe.target(tmp_path / "mac.json", {})
    assert (found.os, found.gpus) == ("macos", mac.gpus)
    assert "not this machine" in found.notes[0]
    assert probe.target(None, {}) == PLAIN
    assert probe.is_target(tmp_path, {})
    assert probe.is_target(None, {probe.GPU_VARIABLE: "none"})
    assert not probe.is_target(None, {probe.GPU_VARIABLE: " "})


@given(st.text(max_size=40))
def test_any_variable_is_understood_or_refused(text: str) -> None:
    with contextlib.suppress(InvalidError):
        probe.target(None, {probe.GPU_VARIABLE: text})


def test_a_host_without_an_end_is_not_read_to_it(tmp_path: Path) -> None:
    endless = tmp_path / "host.json"
    endless.symlink_to("/dev/zero")
    with pytest.raises(InvalidError, match="larger than the limit of 16 MiB"):
        host.read(endless)
