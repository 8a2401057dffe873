"""`envbuilder doctor`: which commands are shown, and how it ends."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from hypothesis import given, strategies as st

from envbuilder.builds.backends import integrity
from envbuilder.builds.shared import SHARED
from envbuilder.commands import verify
from envbuilder.core import process
from envbuilder.core.errors import HostError, VerifyError, wrapped
from envbuilder.doctor import accelerators, surroundings
from envbuilder.host import probe
from envbuilder.host.model import Containers, Host
from envbuilder.profiles import choice
from envbuilder.verify import start
from envbuilder.verify.run import Job
from tests.support import environments, host_trees, reports
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
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX", "PWD", "PATH"):
        monkeypatch.delenv(variable, raising=False)
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
        f"library path: {tmp_path} contains libcublas.so.12, which takes precedence"
        " over the environment's own"
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
    found, note, _ = doctor().out.splitlines()
    assert found == "no problems found"
    assert note.startswith("note: no environment with PyTorch")
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
    assert said == {"schema": 2, "environment": None, "proof": None}
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


# The environment in use.


@pytest.fixture
def active(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: Machine) -> Path:
    """An environment that is active, with a build for the CPU beside a GPU; its folder."""
    machine.here = with_gpu(ADA, containers=Containers())
    python = environments.lay(tmp_path, {"packages": {"torch": "2.5.1+cpu", "cupy-cuda13x": 1}})
    monkeypatch.setenv("VIRTUAL_ENV", str(python.parent.parent))
    return python.parent.parent


def test_the_environment_in_use_is_judged(active: Path, machine: Machine, doctor: Command) -> None:
    out = doctor().out
    assert out.startswith("environment:")
    assert "(VIRTUAL_ENV)\nworks, but slower than it could: PyTorch 2.5.1 (cpu): it has no" in out
    assert "\nuv pip install --python " in out
    assert "no problems found" not in out, "the environment has one"
    found = json.loads(doctor("--json").out)["environment"]
    assert found["verdict"] == "slower"
    assert found["place"]["tool"] == "uv"
    environments.install(active / "lib/python3.11/site-packages", {"torchvision": "0.20.1+cu121"})
    assert "broken: PyTorch 2.5.1 (cpu): torchvision 0.20.1+cu121 is for" in doctor(code=3).out


def test_builds_of_own_profiles_are_no_problem_of_another_environment(
    active: Path, machine: Machine, doctor: Command
) -> None:
    machine.here = with_gpu(changed(ADA, driver_version="550.54"), containers=Containers())
    assert "blocking" not in doctor().out
    assert (
        "blocking: cuda: NVIDIA driver 550.54 is older" in doctor("--profile", "cuda", code=3).out
    )


def test_an_index_of_ones_own_is_named_without_its_password(
    active: Path, doctor: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENVBUILDER_INDEX_PYTORCH_CU124", "https://me:secret@mirror.example/cu124")
    out = doctor().out
    assert "mirror.example/cu124" in out
    assert "secret" not in out


def test_another_host_is_judged_for_an_environment_that_is_named(
    active: Path, tmp_path: Path, doctor: Command
) -> None:
    other = str(host_trees.FOLDER / "arc-b580.json")
    assert "environment" not in doctor("--target-host", other).out
    python = str(active / "bin/python")
    assert "torch==2.5.1+cpu" not in doctor("--target-host", other, "--python", python).out
    doctor("--prove", "--python", python, "--target-host", other, code=2)


@pytest.mark.parametrize("status", ["passed", "failed"])
def test_the_proof_is_one_line(
    status: str, active: Path, doctor: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `verify` says of a quick run in that interpreter, on the device that it should use."""
    asked = []

    def trained(subject: start.Subject, job: Job, *others: object) -> dict[str, Any]:
        asked.append((subject.facts["artifact"]["ref"], job.expects.device, job.quick))
        if status == "failed":
            raise VerifyError("the payload was killed")
        return reports.measured()

    monkeypatch.setattr(verify, "trained", trained)
    ended = doctor("--prove", code=0 if status == "passed" else 5).out
    assert asked == [(str(active / "bin/python"), "cpu", True)]
    assert ("\nproved: cpu did the work; epoch " in ended) == (status == "passed")
    assert ("\nNOT PROVED: run: the payload was killed\n" in ended) == (status == "failed")


def test_nothing_is_proved_without_a_framework(machine: Machine, doctor: Command) -> None:
    printed = doctor("--prove", code=2).err
    assert "needs an environment with a framework" in printed
    assert "Name its interpreter with --python" in printed
