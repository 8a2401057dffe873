"""The archive of a recording, and its form as a host of `tests/data/hosts`."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import yaml
from msgspec.structs import replace

from envbuilder.host import probe, record
from envbuilder.host.snapshot import Snapshot
from envbuilder.profiles.choice import choose_best
from tests.support import host_trees
from tools import record_host


def test_the_archive_holds_no_user_and_no_time(tmp_path: Path) -> None:
    tree = record.plant(
        tmp_path / "tree", {"files": {"proc/version": "Linux"}, "nodes": {"dev/nvidia0": False}}
    )
    content = record_host.archive(tree, "origin: recorded\n")
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        members = {member.name: member for member in tar}
        assert yaml.safe_load(tar.extractfile("host.yaml") or b"") == {"origin": "recorded"}
    assert {"host/proc/version", "host/dev/nvidia0", "host.yaml"} <= set(members)
    owners = {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in members.values()}
    assert owners == {(0, 0, "", "", 0)}
    assert members["host/dev/nvidia0"].mode & 0o777 == 0


def test_a_recording_s_yaml_can_be_planted_again() -> None:
    read = Snapshot(
        live=True,
        system="linux",
        machine="x86_64",
        files={"a": "text\n", "b": "", "c": "ends\n\n"},
        nodes={"dev/kfd": True},
    )
    choice = choose_best(host_trees.PROFILES, probe.decide(read, {}), locks=host_trees.locks())
    data = record.recording(read, record.Scrubber())
    found = yaml.safe_load(record_host.as_yaml(data, choice))
    assert {key: found.get(key) or {} for key in ("files", "nodes")} == {
        key: data[key] for key in ("files", "nodes")
    }
    assert found["chosen"] == choice.profile


def test_that_buildx_is_not_there_is_known_of_the_live_machine_alone() -> None:
    """A recording does not say whose home folder it might be in: its replay leaves it open."""
    live = Snapshot(live=True, system="linux", machine="x86_64")
    hosts = [probe.decide(replace(live, live=is_live), {}) for is_live in (True, False)]
    assert [host.containers.buildx for host in hosts] == [False, None]
    facts = [record_host.judged(host)[1] for host in hosts]
    assert record_host.differences(*facts, record.Scrubber()) == []


def test_differences_are_named_and_public() -> None:
    scrubber = record.Scrubber(names=("alice",), home="/home/alice")
    live = {"host": {"gpu": "H100", "engines": ["/home/alice/x", "alice's"]}}
    replayed = {"host": {"gpu": "H200", "engines": ["/home/user/x", "name's"]}}
    changed = [
        line for line in record_host.differences(live, replayed, scrubber)[2:] if line[0] in "+-"
    ]
    assert changed == ['-  "gpu": "H100",', '+  "gpu": "H200",']
