"""`envbuilder doctor`: which commands are shown, and how it ends."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest
from hypothesis import given, strategies as st

from envbuilder.builds.backends import integrity
from envbuilder.builds.shared import SHARED
from envbuilder.core import process
from envbuilder.core.errors import HostError, wrapped
from envbuilder.doctor import accelerators, surroundings
from envbuilder.host import probe
from envbuilder.host.model import Containers, Host
from envbuilder.profiles import choice
from tests.support import host_trees
from tests.support.broken_hosts import (
    ADA,
    ARC,
    CLOSED,
    LINUX,
    SEEN,
    broken,
    changed,
    diagnose,
    only,
    with_gpu,
)
from tests.support.command_line import Command

# The commands of a fix.


@pytest.mark.parametrize("group", ["render", "video"])
def test_the_user_joins_the_group_of_the_render_node(group: str) -> None:
    gpu = changed(CLOSED, render_node_group=group)
    assert f"`sudo usermod -aG {group} $USER`" in accelerators.of_gpu(gpu, with_gpu(gpu))


@pytest.mark.parametrize("group", ["root", "docker", "sudo", "wheel", "disk", "992", "-x", "a;id"])
def test_nobody_is_told_to_join_a_group_that_may_do_more(group: str) -> None:
    gpu = changed(CLOSED, render_node_group=group)
    fix = accelerators.of_gpu(gpu, with_gpu(gpu))
    assert "usermod" not in fix
    assert f"Its group is {group}" in fix


def test_a_membership_that_waits_for_a_login_is_told() -> None:
    seen = changed(SEEN, joined=frozenset({"render"}))
    found = only(diagnose(with_gpu(CLOSED, containers=Containers()), seen), "node-closed")
    assert found.severity == "blocks"
    assert found.fix == "Log in again: ada joined render after this session began."


def test_in_a_container_the_node_is_opened_from_outside() -> None:
    found = accelerators.of_gpu(CLOSED, changed(LINUX, container=True))
    assert "--group-add $(stat -c %g /dev/dri/renderD128)" in found


def test_missing_nodes_are_made_with_the_right_minors() -> None:
    gpu = broken(ADA, "node-missing")
    second = changed(gpu, bus="0000:02:00.0")
    fix = accelerators.of_gpu(gpu, with_gpu(gpu, second))
    assert "`sudo nvidia-modprobe -c 0 -c 1 -c 255`" in fix
    assert "`sudo nvidia-modprobe -u -c 0 -c 1`" in fix


# The command.


class Machine:
    """What the command sees: a host, and what is around it."""

    def __init__(self, here: Host, seen: surroundings.Around) -> None:
        self.here = here
        self.seen = seen
        self.looks = 0

    def probe(self, root: Path = Path("/")) -> Host:
        assert root == Path("/")
        return self.here

    def look(self, *arguments: object) -> surroundings.Around:
        self.looks += 1
        return self.seen


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    found = Machine(with_gpu(CLOSED, containers=Containers()), SEEN)
    monkeypatch.setattr(probe, "host", found.probe)
    monkeypatch.setattr(surroundings, "look", found.look)
    return found


@pytest.fixture
def doctor(envbuilder: Command) -> Command:
    return functools.partial(envbuilder, "doctor")


def test_a_library_that_comes_before_the_environments_own_is_named(
    machine: Machine, doctor: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "libcublas.so.12").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path}:/nowhere")
    problems = json.loads(doctor("--json", code=3).out)["problems"]
    (text,) = (each["text"] for each in problems if each["code"] == "shadowing")
    assert text == (
        f"library path: {tmp_path} holds libcublas.so.12, used before the environment's own"
    )


def test_an_environment_whose_shared_files_were_changed_is_named(
    machine: Machine, doctor: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ENVBUILDER_DATA_DIR", str(tmp_path))
    records = tmp_path / "envs/cpu-py3.11-0" / SHARED
    records.parent.mkdir(parents=True)
    integrity.close(tmp_path / "envs/cpu-py3.11-0", {})
    records.write_text('[["of another", false, "", 0, 0, 0]]')
    problems = json.loads(doctor("--json", code=3).out)["problems"]
    (text,) = (each["text"] for each in problems if each["code"] == "altered")
    assert text.endswith(f"cpu-py3.11-0 was changed since it was built: {SHARED}")


def test_exit_codes(machine: Machine, doctor: Command) -> None:
    doctor(code=3)
    machine.here = with_gpu(ADA, containers=Containers())
    assert doctor().out == "no problems found\n"
    doctor("--profile", "xpu", code=3)
    memory = changed(LINUX.memory, shm_bytes=1 << 20)
    machine.here = with_gpu(ADA, memory=memory, containers=Containers())
    assert "performance: " in doctor().out


def test_a_machine_without_any_profile_is_diagnosed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, doctor: Command
) -> None:
    monkeypatch.setattr(
        choice,
        "choose",
        Mock(side_effect=HostError("no profile fits this machine", "See: envbuilder detect")),
    )
    machine.here = changed(LINUX, machine="riscv64", platform=None)
    assert "riscv64" in doctor(code=3).out


def test_what_is_printed_fits_80_columns_and_keeps_commands_whole(
    machine: Machine, doctor: Command
) -> None:
    machine.here = with_gpu(ARC, level_zero=False, containers=Containers())
    out = doctor(code=3).out
    assert max(map(len, out.splitlines())) <= 80
    for line in out.splitlines():
        assert line == line.rstrip()
    assert "`sudo add-apt-repository ppa:kobuk-team/intel-graphics`" in out
    assert "blocking: xpu: Level Zero" in out


@given(st.lists(st.sampled_from(["a", "--option", "a-long-word"]), max_size=40), st.integers(0, 39))
def test_lines_are_short_and_a_command_is_never_broken(words: list[str], place: int) -> None:
    command_line = "`sudo first --second third`"
    words.insert(place, command_line)
    said = wrapped(" ".join(words), 80, "    ", "    ")
    assert command_line in said
    for line in said.splitlines():
        assert len(line) <= 80
        assert line == line.rstrip()
    assert " ".join(said.split()) == " ".join(words)


def test_json_has_a_schema_and_says_everything(machine: Machine, doctor: Command) -> None:
    said = json.loads(doctor("--json", code=3).out)
    (found,) = said.pop("problems")
    assert said == {"schema": 2}
    assert set(found) == {"severity", "code", "text", "fix"}
    assert found["code"] == "node-closed"
    assert "`sudo usermod -aG render $USER`" in found["fix"]


@pytest.mark.parametrize("name", ["arc-b580-unreadable", "container-without-gpu", "zen3"])
def test_a_tree_is_diagnosed_without_this_machine(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, doctor: Command
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    host_trees.plant(root, host_trees.load(name))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for place in ((surroundings, "look"), (choice, "choose"), (process, "run")):
        monkeypatch.setattr(*place, Mock(side_effect=AssertionError("this machine was looked at")))
    code = 0 if name == "zen3" else 3
    found = json.loads(doctor("--root", str(root), "--json", code=code).out)["problems"]
    assert found
    for problem in found:
        assert problem["fix"]


def test_findings_for_another_machine(machine: Machine, tmp_path: Path, doctor: Command) -> None:
    """Only what its recording shows, not this machine's disks."""
    other = tmp_path / "other.json"
    other.write_bytes(msgspec.json.encode(with_gpu(changed(ADA, driver_version="470.82"))))
    assert "470.82 is older than" in doctor("--target-host", str(other), code=3).out
    assert machine.looks == 0
