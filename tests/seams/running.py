"""Steps that run commands in an environment under hard conditions, and what must hold of each.

A command writes what it saw into a folder of the world: how it began, what it was given, how many
interrupts it got, how many steps it trained. That is compared with what envbuilder says of it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from msgspec import Struct

from tests.seams.draws import Step
from tests.seams.edits import step
from tests.seams.machine import Session
from tests.seams.rows import counting_torch
from tests.seams.scene import STRANGER, Act, Scene, normalised
from tests.seams.world import SECRET, World
from tests.support.folders import read_json

COMMAND = """
import json, os, signal, sys, time
plan = json.loads(sys.argv[1])
reads, writes = os.pipe()
os.set_blocking(writes, False)
os.set_blocking(reads, False)
signal.signal(signal.SIGINT, lambda *_: None)
signal.set_wakeup_fd(writes)
place = os.path.join(os.environ["SEAMS_SEEN"], str(os.getpid()))
import six
seen = {"steps": 0, "interrupts": 0, "six": six.__version__, "prefix": sys.prefix, "is_over": False,
    **{name: os.environ.get(name) for name in ("PATH", "OMP_NUM_THREADS", "GIVEN")}}
def note():
    with open(place + ".part", "w") as file:
        json.dump(seen, file)
    os.replace(place + ".part", place)
def train(steps):
    import torch
    torch.train(steps)
    seen["steps"] += steps
note()
if plan["trains"] == "here":
    train(100)
elif plan["trains"] == "in a fork":
    if os.fork() == 0:
        train(100)
        os._exit(0)
    os.wait()
    seen["steps"] += 100
until = time.monotonic() + plan["seconds"]
while time.monotonic() < until:
    time.sleep(0.05)
    try:
        seen["interrupts"] += os.read(reads, 100).count(bytes([signal.SIGINT]))
        until = min(until, time.monotonic() + 1)
    except BlockingIOError:
        pass
seen["is_over"] = True
note()
os._exit(plan["code"]) if plan["trains"] != "here" else sys.exit(plan["code"])
"""
INTERRUPTED = """
import os, signal, subprocess, sys, time
child = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL)
began = time.monotonic()
while child.poll() is None and not os.listdir(os.environ["SEAMS_SEEN"]):
    time.sleep(0.05)
    if time.monotonic() > began + 60: break
time.sleep(0.3)
number = int(sys.argv[1])
if child.poll() is None and number == signal.SIGINT:
    signal.signal(number, signal.SIG_IGN)
    os.kill(child.pid, signal.SIGSTOP)
    os.killpg(0, number)
    time.sleep(0.3)  # else the command would see two interrupts as one
    os.kill(child.pid, signal.SIGCONT)
elif child.poll() is None:
    child.send_signal(number)
code = child.wait()
sys.exit(code if code >= 0 else 128 - code)
"""
SHELL = {
    "plain": 'exec "$@"',
    "stdout full": 'exec "$@" > /dev/full',
    "stdout closed": 'exec "$@" >&-',
    "stdout unread": '{ sleep 0.2; "$@"; } | true; exit ${PIPESTATUS[0]}',
    "stderr full": 'exec "$@" 2> /dev/full',
    "stderr closed": 'exec "$@" 2>&-',
    "stderr unread": '{ sleep 0.2; "$@"; } 2> >(exit)',
    "stdin closed": 'exec "$@" <&-',
    "odd argument": "exec \"$@\" $'\\xff'",
    "no PATH": 'exec env -u PATH "$@"',
    "no HOME": 'exec env -u HOME "$@"',
    "other folder": 'cd below && exec "$@"',
    "three at once": (
        'for i in 1 2 3; do "$@" & all+=($!); done; code=0;'
        " for one in ${all[@]}; do wait $one || code=$?; done; exit $code"
    ),
    "cleaned meanwhile": (
        '"$@" & one=$!; for i in {1..100}; do [ -n "$(ls $SEAMS_SEEN)" ] && break; sleep 0.1; done;'
        ' "$1" clean --yes < /dev/null >&2; wait $one'
    ),
}
"""How a command is run → the script that runs it."""
SIGNALS = {"interrupt": signal.SIGINT, "terminate": signal.SIGTERM}
HOW = (*SHELL, *SIGNALS)
SILENT = frozenset({"stderr full", "stderr closed", "stderr unread"})
"""What leaves nothing to say a loss with."""
PLACES = (
    "r.json",
    "new/r.json",
    ".",
    "envbuilder.yaml",
    "envbuilder.lock/default.cpu.json",
    "/dev/full",
)
TRAINS = ("not", "here")
"""Not "in a fork" before row 9.3 is mended: what ends with os._exit is not seen."""
HARMS = ("python", "torch", "six", "environment", "link", "strangers folder", "namesake")


@step
def prepared(scene: Scene) -> None:
    """Write, lock and build a project whose torch counts steps."""
    world = scene.world
    counting_torch(world.index)
    world.write("command.py", COMMAND)
    lines = ("profiles: [cpu]", "python: '3.11'", "framework_version: '2.12.1'")
    world.write("envbuilder.yaml", "\n".join([*lines, "requirements: [six==1.16]", ""]))
    world.variables["SEAMS_SEEN"] = str(_seen(world))
    world.path("below").mkdir(exist_ok=True)
    scene.locks_touched = True
    for words in (("lock",), ("build",)):
        ended = world.envbuilder(*words)
        if ended.code:
            scene.trouble("machine", words[0], ended.err)
    _remember(scene)


def _remember(scene: Scene) -> None:
    """Remember the project's files, as a list of commands begins with them."""
    project = scene.world.project
    files = (project / "envbuilder.yaml", *project.glob("envbuilder.lock/*.json"))
    scene.good = {str(path.relative_to(project)): path.read_bytes() for path in files}


def _restore(scene: Scene) -> None:
    """Write these files again if a command replaced one, or wrote another of their name."""
    scene.world.path("below/envbuilder.yaml").unlink(missing_ok=True)
    for name, content in (scene.good or {}).items():
        path = scene.world.path(name)
        if not path.is_file() or path.read_bytes() != content:
            scene.world.write(name, content)


def _seen(world: World) -> Path:
    folder = world.folder / "seen"
    folder.mkdir(exist_ok=True)
    return folder


def _environments(world: World) -> list[Path]:
    return [path for path in (world.home / "data/envs").glob("cpu-*") if path.is_dir()]


@step
def harmed(scene: Scene, what: str) -> None:
    """Damage the environment, or put something where envbuilder writes."""
    world = scene.world
    world.history.append(f"# harmed: {what}")
    place = world.project / ".envbuilder"
    if what == "strangers folder":
        place.unlink() if place.is_symlink() else shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        place.chmod(0o777)
        for name in ("a.py", "watch/sitecustomize.py", "hook/sitecustomize.py"):
            (place / name).parent.mkdir(exist_ok=True)
            (place / name).write_text("raise SystemExit(97)\n")
            os.chown(place / name, STRANGER, STRANGER)
            os.chown((place / name).parent, STRANGER, STRANGER)
    elif what == "namesake":
        definition = world.path("envbuilder.yaml").read_text()
        if "watch: {}" not in definition:
            world.write("envbuilder.yaml", f"{definition}environments:\n  watch: {{}}\n")
            world.envbuilder("lock")
            world.envbuilder("build", "--environment", "watch")
            _remember(scene)
    for environment in _environments(world):
        if what == "environment":
            shutil.rmtree(environment)
        elif what == "python":
            (environment / "bin/python").unlink(missing_ok=True)
        elif what in {"torch", "six"}:
            for path in environment.glob(f"lib/python*/site-packages/{what}*"):
                shutil.rmtree(path)
    if what == "link" and not place.is_symlink():
        shutil.rmtree(place, ignore_errors=True)
        place.symlink_to(world.home / "elsewhere")


@step
def ran(
    scene: Scene,
    command: str,
    how: str,
    code: int,
    trains: str,
    output: str,
    html: bool,
    variables: dict[str, str],
    other: bool,
) -> None:
    """Run a command in the environment, and look at what came of it."""
    world = scene.world
    for path in _seen(world).iterdir():
        path.unlink()
    seconds = 2.0 if how == "cleaned meanwhile" else 30.0 if how in SIGNALS else 0.0
    plan = {"code": code, "seconds": seconds, "trains": trains}
    words, outputs = _words(world, command, plan, output, html=html, other=other)
    if how == "other folder":
        outputs = [world.path("below") / os.path.relpath(path, world.project) for path in outputs]
    before = scene.files()
    argv = (str(world.program), *words)
    if how in SIGNALS:
        argv = (sys.executable, "-c", INTERRUPTED, str(int(SIGNALS[how])), *argv)
    else:
        argv = ("bash", "-c", SHELL[how], "-", *argv)
    ended = world.run(argv, variables=variables, kill_after=120)
    asked = (*words, "--yes") if how == "cleaned meanwhile" else words
    made = [path.parent for path in outputs if str(path.parent) not in before]
    places = [*outputs, *(folder for folder in made if folder.is_relative_to(world.project))]
    act = scene.note(asked, ended, before, places, stopped=how in SIGNALS or "std" in how)
    saw = [read_json(path) for path in sorted(_seen(world).iterdir())]
    call = Call(
        scene=scene, act=act, how=how, plan=plan, variables=variables, saw=saw, outputs=outputs
    )
    for invariant in (codes, kept, interrupts, alone, environment, truth, temporary):
        for message in invariant(call):
            scene.trouble(invariant.__name__, f"{command}, {how}", message)
    scene.made.update((path, command) for path in outputs if path.is_file())
    _restore(scene)
    is_refused = command != "verify" and not saw and output in {"", "r.json"}
    if is_refused and world.envbuilder("run", "--", "true").code == 0:
        message = f"refused, where another command runs: {normalised(ended.err)[-300:]}"
        scene.trouble("refused", f"{command}, {how}", message)


def drawn(random: Random) -> Step:
    """Draw a step: mostly a command, where most is as usual."""

    def rarely(usual: Any, others: Sequence[Any]) -> Any:
        return random.choice(others) if random.random() < 0.3 else usual

    if random.random() < 0.15:
        return "harmed", {"what": random.choice(HARMS)}
    number = rarely(None, ("1", "3"))
    step = {
        "command": random.choices(("run", "watch", "verify"), (4, 6, 1))[0],
        "how": random.choice((*HOW, "plain", "plain")),
        "code": rarely(0, (1, 3, 7)),
        "trains": random.choice(TRAINS),
        "output": rarely("r.json", PLACES),
        "html": random.random() < 0.2,
        "variables": {"OMP_NUM_THREADS": number} if number else {},
        "other": random.random() < 0.1,
    }
    return "ran", step


def run(session: Session, *, seed: int, walk: int = 25) -> None:
    """Walk until the session's steps or seconds are used up."""
    random = Random(seed)
    while not session.is_over:
        with session.new_walk() as made:
            steps: list[Step] = [("prepared", {}), *(drawn(random) for _ in range(walk))]
            for each in steps:
                if session.is_over:
                    break
                session.begin(each)
                for trouble in made.perform(each):
                    session.note(trouble, made.steps, list(made.scene.world.history))


def _words(
    world: World, command: str, plan: dict[str, Any], output: str, *, html: bool, other: bool
) -> tuple[tuple[str, ...], list[Path]]:
    """Return the words of a command, and the files that it is to write."""
    words = [command]
    if command == "verify":
        words += ["--quick", "--profile", "cpu"]
    outputs: list[Path] = []
    if command != "run" and output:
        output = output.replace("r.json", f"{command}.json")
        words += ["--output", output]
        outputs.append(world.path(output))
    if command != "run" and html:
        words += ["--html", f"{command}.html"]
        outputs.append(world.path(f"{command}.html"))
    if command == "verify":
        return tuple(words), outputs
    words += ["-e", "GIVEN=a value", "--"]
    inner = ["python", str(world.path("command.py")), json.dumps(plan), "--token", SECRET]
    if other and has_other(world):
        inner = ["bash", "-c", '. ~/other/bin/activate && "$@"', "-", *inner]
    return (*words, *inner), outputs


def has_other(world: World) -> bool:
    """Make another virtual environment, with a framework of its own, if there is one to copy."""
    folder = world.home / "other"
    if folder.exists():
        return True
    found = [path for env in _environments(world) for path in env.glob("lib/python*/site-packages")]
    names = ("torch", "six")
    if not found or not all((found[0] / name).is_dir() for name in names):
        return False
    make = (sys.executable, "-m", "venv", "--without-pip", str(folder))
    subprocess.run(make, check=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    for name in names:
        shutil.copytree(found[0] / name, packages / name)
    module = packages / "torch/__init__.py"
    module.write_text(module.read_text().replace("2.12.1+cpu", "9.9.9", 1))
    return True


class Call(Struct, frozen=True, kw_only=True):
    """A command in the environment, how it was run, and what it saw itself."""

    scene: Scene
    act: Act
    how: str
    plan: dict[str, Any]
    variables: dict[str, str]
    saw: Sequence[dict[str, Any]]
    outputs: Sequence[Path]


def codes(call: Call) -> Iterator[str]:
    """The command's own code passes through; a command that did not run ends with 125."""
    if call.act.command == "verify":
        if call.act.ended.code == 0:
            yield "a framework that trains nothing is verified"
        return
    code = call.act.ended.code
    ended = all(each["is_over"] for each in call.saw)
    if not call.saw and code not in {125, 130, 143}:
        yield f"the command never ran: exit code {code}"
    elif call.saw and ended and code != call.plan["code"]:
        yield f"the command ended with {call.plan['code']}: exit code {code}"
    elif not call.saw and call.how not in SILENT and not call.act.ended.err.strip():
        yield "the command never ran, without a word"


def kept(call: Call) -> Iterator[str]:
    """Each promised output is kept, or its loss is said."""
    worked = bool(call.saw) or (call.act.command == "verify" and call.act.ended.code in {1, 5})
    for path in call.outputs:
        is_said = str(path.name) in call.act.ended.err and "report:" not in call.act.ended.err
        if not worked or is_said or call.how in SIGNALS:
            continue
        if not path.is_file():
            if call.how not in SILENT and path.name not in call.act.ended.err:
                yield f"{normalised(path.name)} is not there, without a word"
            elif path.stem == call.act.command and path.parent.is_dir():
                yield f"{normalised(path.name)} is lost"
        elif path.suffix == ".json" and path.parent == call.scene.world.project:
            try:
                read_json(path)
            except ValueError:
                yield f"{path.name} is no JSON"


def interrupts(call: Call) -> Iterator[str]:
    """Exactly one interrupt reaches the command."""
    wanted = int(call.how == "interrupt")
    for each in call.saw:
        if each["is_over"] and each["interrupts"] != wanted:
            yield f"{each['interrupts']} interrupts instead of {wanted}"


def alone(call: Call) -> Iterator[str]:
    """Nothing stays running."""
    mark = f"SEAMS_SEEN={_seen(call.scene.world)}".encode()
    until = time.monotonic() + 5
    while running := _with(mark):
        if time.monotonic() > until:
            yield f"still running: {running[0][:100]}"
            return
        time.sleep(0.1)


def _with(mark: bytes) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return [line for line in found if line]


def environment(call: Call) -> Iterator[str]:
    """What runs is what the lock says, with the caller's call.variables."""
    for each in call.saw:
        if "" in (each["PATH"] or "x").split(":"):
            yield "PATH has an empty element"
        if each["GIVEN"] != "a value":
            yield f"-e GIVEN: {each['GIVEN']}"
        wanted = call.variables.get("OMP_NUM_THREADS")
        if wanted and each["OMP_NUM_THREADS"] != wanted:
            yield f"OMP_NUM_THREADS: {each['OMP_NUM_THREADS']} instead of {wanted}"
        if each["six"] != "1.16":
            yield f"six {each['six']} instead of 1.16"
        if not Path(each["prefix"]).exists():
            yield "the environment was removed under the command"


def truth(call: Call) -> Iterator[str]:
    """A report says of the command what the command call.saw."""
    act = call.act
    path = call.scene.world.path("watch.json")
    is_new = act.before.get(str(path)) != act.after.get(str(path))
    if not (act.command == "watch" and is_new and call.saw) or call.how == "three at once":
        return
    report = read_json(path)
    trained = sum(process.get("steps") or 0 for process in report["processes"])
    wanted = sum(each["steps"] for each in call.saw)
    if trained != wanted:
        yield f"{trained} steps, where the command trained {wanted}"
    if report["exit_code"] != act.ended.code:
        yield f"the report has exit code {report['exit_code']}, not {act.ended.code}"
    strangers = {process["version"] for process in report["processes"]} - {"2.12.1+cpu"}
    if strangers and report.get("lock") and "another environment" not in act.text:
        yield f"the report names our lock for torch {strangers}"


def temporary(call: Call) -> Iterator[str]:
    """Folders for one run are gone."""
    left = [path.name for path in (call.scene.world.folder / "tmp").iterdir()]
    if left:
        yield f"left in the temporary folder: {normalised(left[0])}"
