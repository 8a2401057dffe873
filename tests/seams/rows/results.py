"""Results are kept, and processes end well (groups 7 and 8)."""

from __future__ import annotations

import json
import sys

from tests.seams.rows import World, bash, built, coded, done, locked, row, says, says_not
from tests.seams.rows.advice import environment
from tests.support.folders import read_json

TRAINS = "import torch"


@row("7.1", "A")
def a_report_is_kept_before_it_is_printed(world: World) -> None:
    built(world)
    bash(world, "envbuilder verify --quick --output r.json > /dev/full")
    assert world.path("r.json").exists()


@row("7.2", "A")
def an_argument_may_have_any_bytes(world: World) -> None:
    built(world)
    ended = bash(world, "envbuilder watch --output r.json -- python -c pass $'\\xff'")
    coded(ended, 0)
    assert world.path("r.json").exists()


@row("7.3", "B")
def each_result_is_written_on_its_own(world: World) -> None:
    built(world)
    watch = ("watch", "--output", "missing/r.json", "--html", "r.html", "--", "touch", "ran")
    ended = world.envbuilder(*watch)
    kept = world.path("r.html").exists() and "missing/r.json" in ended.err
    assert kept or not world.path("ran").exists(), ended.err


@row("7.4", "B")
def a_closed_stderr_changes_no_code(world: World) -> None:
    built(world)
    ended = bash(world, "{ sleep 0.5; envbuilder watch -- sh -c 'exit 3'; } 2> >(exit)")
    coded(ended, 3)


@row("7.5", "A")
def no_report_replaces_another_file(world: World) -> None:
    built(world)
    lock = world.path("envbuilder.lock/default.cpu.json")
    before = lock.read_bytes()
    world.envbuilder("verify", "--quick", "--output", str(lock))
    assert lock.read_bytes() == before


@row("7.6", "B")
def two_verifications_have_their_own_logs(world: World) -> None:
    built(world)
    one = "envbuilder verify --quick"
    ended = bash(world, f"{one} & {one} & wait")
    logs = [line.split()[-1] for line in ended.err.splitlines() if "Its output is in" in line]
    assert len(set(logs)) == 2, ended.err


@row("7.7", "C")
def a_report_of_an_older_version_is_not_damaged(world: World) -> None:
    built(world)
    world.envbuilder("verify", "--quick", "--output", "r.json")
    report = read_json(world.path("r.json"))
    world.write("old.json", json.dumps({**report, "schema": 1}))
    says_not(world.envbuilder("compare", "old.json", "r.json"), "damaged")


@row("7.8", "C")
def a_report_may_be_written_on_one_line(world: World) -> None:
    built(world)
    done(world.envbuilder("watch", "--output", "r.json", "--", "true"))
    report = read_json(world.path("r.json"))
    report["unseen"] = []
    world.write("one.json", json.dumps(report, separators=(",", ":")))
    done(world.envbuilder("watch", "--against", "one.json", "--", "true"))


INTERRUPTS = """
import os, signal, time
signal.signal(signal.SIGINT, lambda *_: None)
ends = os.pipe()
os.set_blocking(ends[1], False)
signal.set_wakeup_fd(ends[1])
open('ready', 'w').close()
time.sleep(2)
print('interrupts:', len(os.read(ends[0], 9)))
"""
TERMINAL = """
import os, signal, subprocess, sys, time
child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True)
while not os.path.exists('ready'): time.sleep(0.05)
os.kill(child.pid, signal.SIGSTOP)
os.killpg(child.pid, signal.SIGINT)
time.sleep(0.5)  # else the program would see two interrupts as one
os.kill(child.pid, signal.SIGCONT)
sys.exit(child.wait())
"""


@row("8.1", "A")
def an_interrupt_arrives_once(world: World) -> None:
    built(world)
    world.write("train.py", INTERRUPTS)
    watch = (str(world.program), "watch", "--", "python", "train.py")
    says(world.run((sys.executable, "-c", TERMINAL, *watch)), "interrupts: 1")


USES = """
envbuilder run -- sh -c 'touch started; while [ ! -e stop ]; do sleep .1; done;
  test -e "$VIRTUAL_ENV/bin/python"' & run=$!
while [ ! -e started ]; do sleep .1; done
"""


@row("8.3", "A")
def clean_leaves_what_a_command_uses(world: World) -> None:
    built(world, alone=True)
    ended = bash(world, f"{USES} envbuilder clean --yes; touch stop; wait $run")
    coded(ended, 0)


@row("8.5", "B")
def an_environment_without_python_is_built_again(world: World) -> None:
    built(world, alone=True)
    (environment(world) / "bin/python").unlink()
    world.history.append("rm …/bin/python")
    says_not(done(world.envbuilder("build")), "unchanged, reused")
    coded(world.envbuilder("run", "--", "python", "-c", "import six"), 0)


@row("8.6", "A")
def a_watched_command_may_itself_watch(world: World) -> None:
    built(world)
    inner = f"{world.program} watch -- python -c \"import torch; print('trained')\""
    says(world.envbuilder("watch", "--", "sh", "-c", inner), "trained")


@row("8.7", "C")
def a_program_that_cannot_run_is_said_at_once(world: World) -> None:
    locked(world)
    world.write("plain", "echo 1\n")
    says(coded(world.envbuilder("run", "--", "./plain"), 125, 126), "executable")
    assert not list((world.home / "data").glob("envs/cpu-*")), "it was built first"


@row("8.8", "A")
def clean_without_a_terminal_needs_consent(world: World) -> None:
    built(world, alone=True)
    world.envbuilder("clean")
    assert environment(world).is_dir()
