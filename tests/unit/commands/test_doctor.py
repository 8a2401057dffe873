"""`envbuilder doctor`: what --fix may run, what is shown, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from envbuilder import cli
from envbuilder.commands import doctor as command
from envbuilder.core import process
from envbuilder.core.errors import HostError, ToolError
from envbuilder.core.text import wrapped
from envbuilder.doctor import remedies, repair, surroundings
from envbuilder.doctor.problem import Problem, Repair
from envbuilder.doctor.surroundings import Around
from envbuilder.host import probe
from envbuilder.host.model import Containers, Gpu, Host, Link
from envbuilder.profiles import choice
from tests.support import host_trees
from tests.support.broken_hosts import (
    ADA,
    ARC,
    BY_NAME,
    CLOSED,
    LINUX,
    OBSTACLES,
    SEEN,
    TOOLS,
    broken,
    changed,
    diagnose,
    only,
    with_gpu,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

# What --fix may run.


def joining(gpu: Gpu = CLOSED, seen: Around = SEEN, **changes: object) -> Repair | None:
    return remedies.repair(gpu, with_gpu(gpu, **changes), seen)


def test_the_user_joins_the_group_of_the_render_node() -> None:
    found = joining()
    assert found is not None
    assert found.commands == (("usermod", "-aG", "render", "ada"),)
    assert found.undo == (("gpasswd", "-d", "ada", "render"),)
    assert "logs in again" in found.after


@pytest.mark.parametrize("group", ["root", "docker", "sudo", "wheel", "disk", "992", "-x", None])
def test_nobody_is_put_into_a_group_that_may_do_more(group: str | None) -> None:
    gpu = changed(CLOSED, render_node_group=group)
    found = joining(gpu)
    # Without a group that was read, `render` is a guess, and a guess is not acted on.
    assert found is None


@pytest.mark.parametrize("user", ["", "root", "-aG", "a b", "ada;id", "ada\n"])
def test_only_a_real_user_is_put_into_a_group(user: str) -> None:
    assert joining(seen=changed(SEEN, user=user)) is None


def test_no_group_is_joined_in_a_container_or_without_usermod_or_twice() -> None:
    assert joining(container=True) is None
    assert joining(seen=changed(SEEN, programs=frozenset())) is None
    assert joining(seen=changed(SEEN, joined=frozenset({"render"}))) is None


def test_a_membership_that_waits_for_a_login_is_told() -> None:
    seen = changed(SEEN, joined=frozenset({"render"}))
    found = only(diagnose(with_gpu(CLOSED, containers=Containers()), seen), "node-closed")
    assert found.severity == "blocks"
    assert found.fix == "Log in again: ada joined render after this session began."
    assert found.repair is None


def test_in_a_container_the_node_is_opened_from_outside() -> None:
    found = remedies.of_gpu(CLOSED, changed(LINUX, container=True))
    assert "--group-add $(stat -c %g /dev/dri/renderD128)" in found


def test_missing_nodes_are_made_with_the_right_minors() -> None:
    gpu = broken(ADA, "node-missing")
    second = changed(gpu, bus="0000:02:00.0")
    found = remedies.repair(gpu, with_gpu(gpu, second), SEEN)
    assert found is not None
    assert found.commands == (
        ("nvidia-modprobe", "-c", "0", "-c", "1", "-c", "255"),
        ("nvidia-modprobe", "-u", "-c", "0", "-c", "1"),
    )
    assert found.undo[0][:4] == ("rm", "-f", "/dev/nvidia0", "/dev/nvidia1")
    for here in (with_gpu(gpu, container=True), with_gpu(gpu, wsl=True)):
        assert remedies.repair(gpu, here, SEEN) is None
    assert remedies.repair(gpu, with_gpu(gpu), changed(SEEN, programs=frozenset())) is None


def test_undoing_keeps_the_nodes_that_existed_before() -> None:
    gpu = broken(ADA, "node-missing")
    there = frozenset({"/dev/nvidia0", "/dev/nvidia-uvm"})
    found = remedies.repair(gpu, with_gpu(gpu), changed(SEEN, nodes=there))
    assert found is not None
    assert found.undo == (("rm", "-f", "/dev/nvidiactl", "/dev/nvidia-uvm-tools"),)


@pytest.mark.parametrize(
    "obstacle", [o for o in OBSTACLES if o not in ("node-closed", "node-missing")]
)
def test_nothing_else_about_a_gpu_is_repaired(obstacle: str) -> None:
    for gpu in (ADA, ARC):
        assert joining(broken(gpu, obstacle)) is None


@pytest.mark.parametrize("name", host_trees.NAMES)
def test_a_recorded_tree_offers_no_repair(name: str) -> None:
    here = host_trees.recorded(name)
    for asked in (None, *BY_NAME):
        assert all(p.repair is None and p.fix for p in diagnose(here, Around(), asked))


def completed(argv: Sequence[str], returncode: int = 0, stderr: str = "") -> process.Completed:
    return process.Completed(
        argv=tuple(argv), returncode=returncode, stdout="", stderr=stderr, seconds=0.0
    )


class Recorder:
    """Stands in for `process.run` and remembers what it was asked to run."""

    def __init__(self, returncode: int = 0, stderr: str = "") -> None:
        self.ran: list[tuple[str, ...]] = []
        self.returncode, self.stderr = returncode, stderr

    def __call__(self, argv: Sequence[str], **options: Any) -> process.Completed:
        assert options["timeout"] > 0
        self.ran.append(tuple(argv))
        return completed(argv, self.returncode, self.stderr)


TWO = Repair(commands=(("first",), ("second", "a b")), undo=(("third",),))


def test_commands_run_in_order_and_as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    monkeypatch.setattr(process, "run", recorder)
    assert repair.apply(TWO, root=True) == ""
    assert recorder.ran == [("first",), ("second", "a b")]
    recorder.ran.clear()
    assert repair.apply(TWO, root=False) == ""
    assert recorder.ran == [("sudo", "-n", "first"), ("sudo", "-n", "second", "a b")]


def test_the_first_failure_ends_a_repair_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(1, "no such group\n")
    monkeypatch.setattr(process, "run", recorder)
    assert repair.apply(TWO, root=True) == "no such group"
    assert recorder.ran == [("first",)]
    monkeypatch.setattr(process, "run", Recorder(7))
    assert repair.apply(TWO, root=True) == "exit status 7"


def test_a_program_that_is_missing_or_hangs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(argv: Sequence[str], **options: Any) -> process.Completed:
        raise ToolError("sudo: not found or not executable")

    monkeypatch.setattr(process, "run", missing)
    assert "not found" in repair.apply(TWO, root=False)
    monkeypatch.setattr(
        process, "run", lambda argv, **options: changed(completed(argv, -9), timed_out=True)
    )
    assert "did not end" in repair.apply(TWO, root=True)


def test_each_repair_is_offered_once_and_only_to_who_may() -> None:
    one = Problem(severity="blocks", code="a", text="a", fix="a", repair=TWO)
    other = changed(one, code="b")
    assert repair.offered([one, other], may=True) == (TWO,)
    assert repair.offered([one, other], may=False) == ()


# The command.


class Machine:
    """What the command sees: a host, what is around it, and what a repair changes."""

    def __init__(self, here: Host, seen: Around) -> None:
        self.here, self.seen, self.looks = here, seen, 0

    def probe(self, root: Path = Path("/")) -> Host:
        assert root == Path("/")
        return self.here

    def look(self, *arguments: object) -> Around:
        self.looks += 1
        return self.seen


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    found = Machine(with_gpu(CLOSED, containers=Containers()), SEEN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(probe, "host", found.probe)
    monkeypatch.setattr(surroundings, "look", found.look)
    monkeypatch.setattr(command, "_is_terminal", lambda: False)
    return found


def run(*arguments: str, typed: str | None = None) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli.cli, ["doctor", *arguments], input=typed, standalone_mode=False)
    if result.exception:
        raise result.exception
    return result.return_value, result.stdout, result.stderr


def test_exit_codes(machine: Machine) -> None:
    assert run()[0] == 3
    machine.here = with_gpu(ADA, containers=Containers())
    status, out, _ = run()
    assert (status, out) == (0, "no problems found\n")
    assert run("--profile", "xpu")[0] == 3
    machine.here = with_gpu(changed(ADA, link=Link(width=8, max_width=16)), containers=Containers())
    status, out, _ = run()
    assert status == 0
    assert "performance: " in out


def test_an_unknown_profile_is_refused(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli._run(["doctor", "--profile", "nope"]) == 2
    assert "nope" in capsys.readouterr().err


def test_a_machine_without_any_profile_is_diagnosed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*arguments: object) -> None:
        raise HostError("no profile fits this machine", "See: envbuilder detect")

    monkeypatch.setattr(choice, "choose", none)
    machine.here = changed(LINUX, machine="riscv64", platform=None)
    status, out, _ = run()
    assert status == 3
    assert "riscv64" in out


def test_what_is_printed_fits_80_columns_and_keeps_commands_whole(machine: Machine) -> None:
    machine.here = with_gpu(ARC, level_zero=False, containers=Containers())
    _, out, _ = run()
    assert max(map(len, out.splitlines())) <= 80
    assert all(line == line.rstrip() for line in out.splitlines())
    assert "`sudo add-apt-repository ppa:kobuk-team/intel-graphics`" in out
    assert "blocking: xpu: Level Zero" in out


@given(st.lists(st.sampled_from(["a", "--option", "a-long-word"]), max_size=40), st.integers(0, 39))
def test_lines_are_short_and_a_command_is_never_broken(words: list[str], place: int) -> None:
    command_line = "`sudo first --second third`"
    words.insert(place, command_line)
    said = wrapped(" ".join(words), 80, "    ", "    ")
    assert command_line in said
    assert all(len(line) <= 80 and line == line.rstrip() for line in said.splitlines())
    assert " ".join(said.split()) == " ".join(words)


def test_json_has_a_schema_and_says_everything(machine: Machine) -> None:
    status, out, _ = run("--json")
    said = json.loads(out)
    assert status == 3
    assert set(said) == {"schema", "problems", "repairs"}
    assert said["schema"] == 1
    assert said["repairs"] == []
    (found,) = said["problems"]
    assert set(found) == {"severity", "code", "text", "fix", "repair"}
    assert found["code"] == "node-closed"
    assert found["repair"]["commands"] == [["usermod", "-aG", "render", "ada"]]
    assert found["repair"]["undo"] == [["gpasswd", "-d", "ada", "render"]]


def test_without_fix_it_is_only_offered(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    monkeypatch.setattr(process, "run", recorder)
    _, out, _ = run("--yes")
    assert "`envbuilder doctor --fix` can fix one of these" in out
    assert recorder.ran == []
    machine.seen = changed(SEEN, programs=TOOLS - {"sudo"})
    assert "--fix" not in run()[1]


def test_off_a_terminal_nothing_is_changed_without_yes(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    monkeypatch.setattr(process, "run", recorder)
    status, _, err = run("--fix", typed="y\n")
    assert recorder.ran == []
    assert "sudo usermod -aG render ada" in err
    assert "undo: sudo gpasswd -d ada render" in err
    assert "nothing was changed" in err
    assert status == 3
    assert machine.looks == 1


@pytest.mark.parametrize(("answer", "count"), [("y\n", 1), ("n\n", 0), ("\n", 0)])
def test_on_a_terminal_it_asks(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, answer: str, count: int
) -> None:
    recorder = Recorder()
    monkeypatch.setattr(process, "run", recorder)
    monkeypatch.setattr(command, "_is_terminal", lambda: True)
    _, _, err = run("--fix", typed=answer)
    assert err.index("undo:") < err.index("Run them?")
    assert recorder.ran == [("sudo", "-n", "usermod", "-aG", "render", "ada")] * count


def test_no_answer_at_all_is_no(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    monkeypatch.setattr(process, "run", recorder)
    monkeypatch.setattr(command, "_is_terminal", lambda: True)
    with pytest.raises(click.Abort):
        run("--fix", typed="")
    assert recorder.ran == []


def test_only_what_was_offered_is_run_and_then_it_looks_again(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = changed(LINUX.memory, shm_bytes=64 << 20)
    machine.here = with_gpu(CLOSED, memory=small, containers=Containers())
    machine.seen = changed(SEEN, root=True, may_mount=True)
    offered = {
        argv for p in diagnose(machine.here, machine.seen) if p.repair for argv in p.repair.commands
    }
    recorder = Recorder()

    def mending(argv: Sequence[str], **options: Any) -> process.Completed:
        if argv[0] == "mount":
            machine.here = changed(machine.here, memory=LINUX.memory)
        else:
            machine.seen = changed(machine.seen, joined=frozenset({"render"}))
        return recorder(argv, **options)

    monkeypatch.setattr(process, "run", mending)
    status, out, err = run("--fix", "--yes")
    assert len(recorder.ran) == 2
    assert set(recorder.ran) == offered
    before, after = out.split("After that:\n")
    assert "/dev/shm has 64 MiB" in before
    assert "/dev/shm" not in after
    assert "Log in again: ada joined render" in after
    assert "it takes effect when ada logs in again" in err
    assert status == 3


def test_a_repair_that_helped_ends_well(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def mending(argv: Sequence[str], **options: Any) -> process.Completed:
        machine.here = with_gpu(ARC, containers=Containers())
        return completed(argv)

    monkeypatch.setattr(process, "run", mending)
    status, out, _ = run("--fix", "--yes", "--json")
    said = json.loads(out)
    assert status == 0
    assert said["problems"] == []
    assert [done["error"] for done in said["repairs"]] == [""]


def test_a_repair_that_fails_is_told_and_the_problem_stays(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "run", Recorder(1, "sudo: a password is required"))
    status, out, err = run("--fix", "--yes")
    assert status == 3
    assert "failed: sudo: a password is required" in err
    assert "sudo -v" in err
    assert out.count("blocking: ") == 2
    said = json.loads(run("--fix", "--yes", "--json")[1])
    assert said["repairs"][0]["error"] == "sudo: a password is required"


def test_where_nothing_may_be_mended_nothing_is(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    monkeypatch.setattr(process, "run", recorder)
    machine.here = with_gpu(broken(ADA, "driver-missing"), containers=Containers())
    status, _, err = run("--fix", "--yes")
    assert status == 3
    assert recorder.ran == []
    assert "none of these can be fixed" in err


@pytest.mark.parametrize("name", ["arc-b580-unreadable", "container-without-gpu", "zen3"])
def test_a_tree_is_diagnosed_without_this_machine(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*arguments: object, **options: object) -> None:
        raise AssertionError("this machine was looked at")

    root = tmp_path / "root"
    root.mkdir()
    host_trees.plant(root, host_trees.load(name))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for place in ((surroundings, "look"), (choice, "choose"), (process, "run")):
        monkeypatch.setattr(*place, never)
    status, out, _ = run("--root", str(root), "--json")
    found = json.loads(out)["problems"]
    assert found
    assert all(problem["repair"] is None for problem in found)
    assert status == (0 if name == "zen3" else 3)


def test_a_tree_cannot_be_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "run", Recorder())
    with pytest.raises(click.UsageError, match="cannot fix another"):
        run("--root", str(tmp_path), "--fix", "--yes")


def test_findings_for_another_machine(machine: Machine, tmp_path: Path) -> None:
    """Only what its recording shows: neither this machine's disks nor its repairs."""
    other = tmp_path / "other.json"
    other.write_bytes(msgspec.json.encode(with_gpu(changed(ADA, driver_version="470.82"))))
    status, out, _ = run("--target-host", str(other))
    assert status == 3
    assert "470.82 is older than" in out
    assert machine.looks == 0
    with pytest.raises(click.UsageError, match="cannot fix another"):
        run("--fix", "--target-host", str(other))
