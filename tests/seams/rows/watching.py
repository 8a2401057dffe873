"""What a report of `watch` says of what it saw (group 9), and rows that need an engine.

Trainings are recorded parts: the watched command writes what the hook would have written.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.conftest import missing
from tests.seams.rows import RELEASE, World, bash, built, coded, done, project, row, says, says_not
from tests.seams.world import SECRET, Ended
from tests.support import watched
from tests.support.folders import read_json

WRITES = """
import json, os, pathlib, sys
hooks = [pathlib.Path(p) for p in os.environ["PYTHONPATH"].split(":") if p]
out = next(p.parent / "out" for p in hooks if (p.parent / "out").is_dir())
for number, part in enumerate(json.loads(pathlib.Path(sys.argv[1]).read_text())):
    (out / f"{number}-{part['framework']}.json").write_text(json.dumps(part))
"""


def trained(world: World, *parts: Any, options: tuple[str, ...] = ()) -> Ended:
    """Watch a command in which these processes trained."""
    world.write("train.py", WRITES)
    world.write("parts.json", msgspec.json.encode(parts))
    return world.envbuilder("watch", *options, "--", "python", "train.py", "parts.json")


def judged(world: World, expression: str) -> str:
    """Return what the program's own judge finds of a recorded report, an expression."""
    tests = world.folder / "path/tests"
    tests.parent.mkdir()
    tests.symlink_to(Path(__file__).parents[2])
    code = (
        "from envbuilder.watch import judge\nfrom envbuilder.watch.model import Machine\n"
        "from tests.support import watched\n"
        f"for each in judge.judged({expression}).findings: print(each.kind, each.says)"
    )
    python = world.program.with_name("python")
    path = {"PYTHONPATH": str(tests.parent)}
    return done(world.run((str(python), "-c", code), variables=path)).out


@row("9.1", "A")
def small_helpers_do_not_outweigh_the_training(world: World) -> None:
    built(world)
    helpers = [
        watched.observed(pid=pid, work=(watched.work(flops=1000),), seconds=0.1)
        for pid in (2, 3, 4)
    ]
    training = watched.on_cpu(pid=1, work=(watched.work("cpu", flops=10**15),))
    says(trained(world, training, *helpers, options=("--device", "cuda")), "NOT ON CUDA")


@row("9.2", "A")
def rates_of_trainings_at_once_are_added(world: World) -> None:
    built(world)
    one = {"seconds": 0.01, "training_seconds": 0.01, "steps": 101, "samples": 3200}
    parts = [watched.on_cpu(pid=pid, **one) for pid in (1, 2)]
    says(trained(world, *parts), "640,000")


CHILD = """
import multiprocessing, os, sys
def work():
    import torch
    torch.train(200)
if __name__ == '__main__':
    child = multiprocessing.get_context('fork').Process(target=work)
    child.start(); child.join()
    if os.fork() == 0:
        work(); os._exit(0)
    os.wait()
    if len(sys.argv) == 1: os.execv(sys.executable, [sys.executable, __file__, 'again'])
    work()
"""


@row("9.3", "B")
def every_process_is_seen_however_it_ends(world: World) -> None:
    built(world)
    world.write("train.py", CHILD)
    done(world.envbuilder("watch", "--output", "r.json", "--", "python", "train.py"))
    processes = read_json(world.path("r.json"))["processes"]
    assert sum(process["steps"] or 0 for process in processes) == 1000


@row("9.4", "B")
def a_quota_is_named_where_it_stops_the_training(world: World) -> None:
    stopped = "Machine(cpus=64, quota=2.0, throttled_seconds=70.0)"
    found = judged(world, f"watched.watched(watched.on_cpu(), machine={stopped}, seconds=70.0)")
    assert "quota" in found, found


@row("9.5", "A")
def a_secret_is_hidden_wherever_it_stands(world: World) -> None:
    built(world)
    options = ("--output", "r.json", "--html", "r.html")
    inner = f"true --token {SECRET} --max-tokens 512"
    done(world.envbuilder("watch", *options, "--", "bash", "-c", inner))
    for name in ("r.json", "r.html"):
        assert SECRET not in world.path(name).read_text(), name
    assert "512" in world.path("r.json").read_text()


@row("9.7", "B")
def reports_that_are_compared_are_named(world: World) -> None:
    built(world)
    done(trained(world, watched.on_cpu(), options=("--output", "first.json")))
    done(trained(world, watched.on_cpu(samples=0), options=("--output", "second.json")))
    says(world.envbuilder("compare", "first.json", "second.json"), "first", "second")


@row("9.8", "B")
def a_report_knows_the_commit_of_a_folder_below(world: World) -> None:
    built(world)
    bash(
        world,
        "cd ..; git init -q; git add project; git -c user.name=x -c user.email=x commit -qm x",
    )
    done(world.envbuilder("watch", "--output", "r.json", "--", "true"))
    assert read_json(world.path("r.json"))["project"]["commit"]


ENGINE = (pytest.mark.engine, pytest.mark.soak)


def use_base_image(world: World) -> None:
    """Lock this world, and have its images made from the base image of tests."""
    ref = os.environ.get("ENVBUILDER_TEST_BASE_IMAGE")
    if not ref:
        missing("engine", "no engine with a base image was set up (.ci/engine)")
    project(world, "requirements: [six]", RELEASE)
    done(world.envbuilder("lock"))
    world.variables["ENVBUILDER_BASE_IMAGE"] = ref


@row("5.5", "B", *ENGINE)
def watch_in_a_container_sees_the_training(world: World) -> None:
    use_base_image(world)
    os.chown(world.project, 1000, 1000)
    world.variables["ENVBUILDER_TRUSTED_FOLDERS"] = str(world.project)
    watch = ("watch", "--backend", "docker", "--output", "r.json")
    world.write("train.py", WRITES)
    world.write("parts.json", msgspec.json.encode([watched.on_cpu()]))
    says_not(world.envbuilder(*watch, "--", "python", "train.py", "parts.json"), "NOT SEEN")
    owners = {path.stat().st_uid for path in world.path(".envbuilder").glob("*")}
    assert owners <= {1000}, owners


@row("8.2", "B", *ENGINE)
def a_container_ends_with_its_command(world: World) -> None:
    use_base_image(world)
    done(world.envbuilder("build", "--backend", "docker"))
    run = f"{world.program} run --backend docker"
    waits = "while [ ! -e started ]; do sleep .1; done; SECONDS=0; kill $pid; wait $pid; code=$?"
    begins = f"{run} -- sh -c 'touch started; sleep 30' & pid=$!"
    ended = bash(world, f"{begins}\n{waits}; echo took $SECONDS; exit $code")
    coded(ended, 143)
    assert int(ended.out.split("took")[1]) < 6, ended.out
    assert ended.seconds < 25, "the container runs on"


@row("8.4", "A", *ENGINE)
def clean_leaves_images_that_another_made(world: World) -> None:
    use_base_image(world)
    build = ("build", "--backend", "docker")
    done(world.envbuilder(*build))
    world.variables["ENVBUILDER_DATA_DIR"] = str(world.home / "second")
    done(world.envbuilder(*build))
    listed = done(world.envbuilder("clean", "--dry-run")).err.partition("left alone")[0]
    assert "envbuilder/" not in listed, listed
