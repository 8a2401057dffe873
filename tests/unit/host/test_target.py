"""Building for a recorded host, not for this machine."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from envbuilder.core.errors import InvalidError
from envbuilder.host import model as host, probe
from envbuilder.host.model import Host
from tests.support import host_trees

PLAIN = Host(os="linux", machine="x86_64", platform="linux/amd64", libc="glibc 2.36")


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    real = probe.host
    monkeypatch.setattr(probe, "host", lambda *where, **how: real(*where) if where else PLAIN)


def test_a_file_replaces_this_machine_and_says_so(tmp_path: Path) -> None:
    mac = host_trees.probed(tmp_path / "mac", "mac-m2")
    (tmp_path / "mac.json").write_bytes(msgspec.json.encode({"schema": 1, "host": mac}))
    found = probe.target(tmp_path / "mac.json")
    assert (found.os, found.gpus) == ("macos", mac.gpus)
    assert "not this machine" in found.notes[0]
    assert probe.target(None) == PLAIN


def test_a_host_without_an_end_is_not_read_to_it(tmp_path: Path) -> None:
    endless = tmp_path / "host.json"
    endless.symlink_to("/dev/zero")
    with pytest.raises(InvalidError, match="larger than 16 MiB"):
        host.read(endless)
