"""What an option promises is there afterwards, also if what the command makes existed before.

A product exists from one lock. The command with the option follows: with the first lock after
another one, or, for one option of each command, with the same or another. Each option of these
commands has a row.
"""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
from msgspec.structs import replace

from envbuilder import cli
from envbuilder.builds import execute
from envbuilder.builds.backends import integrity
from envbuilder.builds.image import assemble, base
from envbuilder.builds.plan import Assemble, Plan
from envbuilder.bundle import contents
from envbuilder.containers.engine.interface import LABEL, Image
from envbuilder.containers.oci import archive
from envbuilder.containers.oci.layout import Layout
from envbuilder.core import process
from envbuilder.core.settings import load as load_settings
from envbuilder.host import interpreters, probe
from envbuilder.packages import fetch, store
from envbuilder.packages.debian import deb
from envbuilder.packages.python import wheel_conflicts
from envbuilder.profiles import lock as profile_lock, profile as profiles
from envbuilder.project import variants
from tests.support import images, signing
from tests.support.command_line import FILE, Command
from tests.support.engines import FakeEngine
from tests.support.pipeline import PLAIN, PYTHON
from tests.support.projects import LOCK
from tests.support.registry_fixture import FakeRegistry
from tests.support.shipped import FOLDERS

PROJECT = """\
profiles: [cpu]
environments:
  test: {environment: {A: b}, python: "3.12"}
"""
COMMANDS = ("build", "run", "render", "bundle")
COMMON = {"--quiet", "--verbose", "--debug"}
"""Options that change nothing of what is built."""


class ReplacedError(BaseException):
    """The command would run now."""


class Loading(FakeEngine):
    """An engine whose images carry the labels of what it was given."""

    receives_layers = False

    def load(self, layout: Layout, names: Any, without: Any) -> None:
        (descriptor, *_) = layout.index().manifests
        manifest = layout.read_manifest(descriptor)
        labels = layout.read_config(manifest)["config"]["Labels"]
        made = Image(id=manifest.config.digest, tags=(), labels=labels)
        self.images |= dict.fromkeys(names, made)


class Assembly:
    """A small image that says what it is made from."""

    def __init__(self, step: Assemble, *rest: Any) -> None:
        self.step = step

    def make(self) -> None:
        step = self.step
        (torch,) = (f.sha256 for f in step.wheels if f.name == "torch")
        made = {"base": step.base, "python": step.python, "torch": torch, **step.variables}
        layout = images.image(Path(step.layout), config={"Labels": {**step.labels, **made}})
        (entry,) = layout.index().manifests
        entries = (replace(entry, annotations=archive.named(name)) for name in step.names)
        layout.write_index(replace(layout.index(), manifests=tuple(entries)))


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str
    argv: list[str]


class World:
    """A project with a lock for each environment, and all that a command can reach."""

    def __init__(self, folder: Path, engine: Loading, server: FakeRegistry, run: Any) -> None:
        self.folder, self.engine, self.server, self._run = folder, engine, server, run
        self.edition = 0
        self.executed: list[Plan] = []

    def lock(self, edition: int) -> None:
        """Lock the project; each edition and environment has a torch of its own."""
        self.edition = edition
        for environment in ("default", "test"):
            project = variants.of_project(load_settings(environment=environment))
            inputs = profile_lock.inputs_digest(project.of(profiles.load("cpu", FOLDERS)))
            targets = [
                replace(
                    t,
                    files=tuple(
                        replace(f, sha256=self.torch(environment), provenance="read")
                        if f.name == "torch"
                        else f
                        for f in t.files
                    ),
                )
                for t in LOCK.targets
                if t.platform == "linux/amd64" and t.python in {"3.11", "3.12"}
            ]
            lock = replace(LOCK, inputs=inputs, targets=tuple(targets))
            path = self.folder / f"envbuilder.lock/{environment}.cpu.json"
            path.parent.mkdir(exist_ok=True)
            path.write_text(profile_lock.dump(lock))

    def torch(self, environment: str = "default") -> str:
        """The hash of torch in the present lock of an environment."""
        return f"{self.edition}{int(environment == 'test')}" * 32

    def start(self, *words: str) -> Done:
        done: Done = self._run(*words)
        return done

    def named(self, tag: str, environment: str = "") -> Image:
        """The image of the engine that has a tag in the project's repository."""
        pattern = (
            rf"envbuilder/[a-z0-9-]+{environment and '-' + environment}-[0-9a-f]{{6}}/cpu:{tag}"
        )
        (name,) = (n for n in self.engine.images if re.fullmatch(pattern, n))
        return self.engine.images[name]


@pytest.fixture
def world(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    server: FakeRegistry,
) -> World:
    folder = tmp_path / "app"
    for below in ("data", "out"):
        (folder / below).mkdir(parents=True)
    (folder / "envbuilder.yaml").write_text(PROJECT)
    for name in ("base", "other"):
        images.image(folder / name, author=name)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ENVBUILDER_BASE_IMAGE", f"oci:{folder / 'base'}")
    signing.lay_key(folder / "key.pem")
    engine = Loading().serve(monkeypatch)

    def execute_plan(plan: Plan, *rest: Any) -> bool:
        made.executed.append(plan)
        if plan.backend == "docker":
            return real(plan, *rest)
        Path(plan.artifact.ref).mkdir(parents=True, exist_ok=True)
        integrity.close(Path(plan.artifact.ref), {"fingerprint": plan.fingerprint})
        return True

    def run(*words: str) -> Done:
        capsys.readouterr()
        with pytest.raises((SystemExit, ReplacedError)) as ended:
            cli.main([*words])
        out, err = capsys.readouterr()
        if isinstance(ended.value, ReplacedError):
            return Done(0, out, err, ended.value.args[0])
        return Done(int(str(ended.value.code or 0)), out, err, [])

    def replaced(argv: Any, env: Any) -> None:
        raise ReplacedError(list(argv))

    made = World(folder, engine, server, run)
    real = execute.execute
    monkeypatch.setattr(execute, "execute", execute_plan)
    monkeypatch.setattr(assemble, "Assembly", Assembly)
    monkeypatch.setattr(process, "exec_program", replaced)
    monkeypatch.setattr(process, "which", lambda program: f"/usr/bin/{program}")
    monkeypatch.setattr(probe, "host", lambda *args, **options: PLAIN)
    monkeypatch.setattr(interpreters, "find", lambda *args, **options: PYTHON)
    monkeypatch.setattr(contents, "locked_files", lambda *args: [])
    monkeypatch.setattr(contents, "of_envbuilder", lambda *args: [])
    monkeypatch.setattr(contents, "dataset", lambda *args: [])
    monkeypatch.setattr(contents, "bases", lambda bases, *args: ([], [str(b) for b in bases]))
    for module, name in (
        (store, "require_space"), (base, "require_python"),
        (deb, "require_clean"), (wheel_conflicts, "require_compatible"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, lambda *args: None)
    monkeypatch.setattr(fetch, "fetch", lambda *args: 0)
    (folder / "host.json").write_text(made.start("detect", "--json").out)
    return made


Check = Callable[[World, Done], None]


def newest(tag: str = "latest", environment: str = "", **labels: str) -> Check:
    """The name means the image of the present lock, with these labels."""

    def check(world: World, done: Done) -> None:
        image = world.named(tag, environment)
        expected = {"torch": world.torch(environment or "default"), **labels}
        expected = {key: value.format(folder=world.folder) for key, value in expected.items()}
        assert {key: image.labels[key] for key in expected} == expected

    return check


def tagged(world: World, done: Done) -> None:
    newest()(world, done)
    assert world.engine.images["me/x:1"].id == world.named("latest").id
    assert world.engine.images["me/x:1"].labels["torch"] == world.torch()


def saved(world: World, done: Done) -> None:
    place = world.folder / ("out.tar" if (world.folder / "out.tar").exists() else "layout")
    (held,) = archive.held(
        place, lambda config: config["config"]["Labels"]["torch"] == world.torch()
    )
    assert "docker.io/me/x:1" in held.names
    assert any(name.endswith("/cpu:latest") for name in held.names)


def pushed(world: World, done: Done) -> None:
    (_, manifest) = world.server.manifests["a", "t"]
    config = world.server.blobs["a", json.loads(manifest)["config"]["digest"]]
    assert json.loads(config)["config"]["Labels"]["torch"] == world.torch()


def planned(world: World, done: Done) -> None:
    (torch,) = (f["sha256"] for f in json.loads(done.out)["files"] if f["name"] == "torch")
    assert torch == world.torch()
    assert world.executed == [], "nothing is built"


def rebuilt(world: World, done: Done) -> None:
    newest()(world, done)
    assert len(world.executed) == 1


def reported(world: World, done: Done) -> None:
    newest()(world, done)
    data = json.loads(done.out)
    assert data["status"] == ("built" if world.executed else "reused")
    assert data["fingerprint"] == world.named("latest").labels[f"{LABEL}fingerprint"]


def native(world: World, done: Done) -> None:
    plan = json.loads(world.start("build", "--backend", "venv", "--dry-run").out)
    assert [f["sha256"] for f in plan["files"] if f["name"] == "torch"] == [world.torch()]
    prefix = Path(done.out.partition(" (")[0])
    assert str(prefix) == plan["artifact"]["ref"]
    assert integrity.marker(prefix)["fingerprint"] == plan["fingerprint"]


def refused(world: World, done: Done) -> None:
    assert (done.code, world.executed) == (5, [])


def started(*words: str, environment: str = "", **labels: str) -> Check:
    """The command runs in the image of the present lock, with these words."""

    def check(world: World, done: Done) -> None:
        assert world.named("latest", environment).id in done.argv
        newest("latest", environment, **labels)(world, done)
        assert {*words} <= {*done.argv}

    return check


def rendered(name: str, environment: str = "default", text: str = "") -> Check:
    """The file is that of the present lock."""

    def check(world: World, done: Done) -> None:
        content = (world.folder / "out" / name).read_text()
        assert world.torch(environment) in content
        assert text in content

    return check


def bundled(environment: str = "default", /, text: str = "", **stated: Any) -> Check:
    """The bundle has the present lock, and the manifest says what it is for."""

    def check(world: World, done: Done) -> None:
        with tarfile.open(world.folder / "out.bundle") as bundle:
            texts = {m.name: bundle.extractfile(m).read() for m in bundle if m.isreg()}  # type: ignore[union-attr]
        (lock,) = (t for n, t in texts.items() if n.endswith(f"/{environment}.cpu.json"))
        assert world.torch(environment).encode() in lock
        manifest = json.loads(next(iter(texts.values())))
        assert {key: manifest[key] for key in stated} == stated
        assert text in str(manifest["lacks"]) + done.out

    return check


PLAIN_OF = {
    "build": ("--profile", "cpu", "--backend", "docker"),
    "run": ("--profile", "cpu", "--backend", "docker"),
    "render": ("--profile", "cpu", "-o", "out"),
    "bundle": ("--profile", "cpu", "--platform", "linux/amd64", "-o", "out.bundle"),
}
"""How each command makes what exists before."""
TEST_312 = ("--environment", "test", "--python-version", "3.12")
PLACES = ("--tag", "me/x:1", "--output")
ROWS: tuple[tuple[str, str, tuple[str, ...], Check], ...] = (
    ("build", "--profile", ("--profile", "cpu"), newest(**{f"{LABEL}profile": "cpu"})),
    ("build", "--environment", ("--environment", "test"), newest("latest", "test", A="b")),
    ("build", "--backend", ("--backend", "docker"), newest()),
    ("build", "--backend", ("--backend", "venv"), native),
    ("build", "--python-version", TEST_312, newest("latest", "test", python="3.12")),
    ("build", "--base-image", ("--base-image", "oci:other"), newest(base="{folder}/other")),
    ("build", "--builder", ("--builder", "layers"), newest()),
    ("build", "--output", (*PLACES, "out.tar"), saved),
    ("build", "--output", (*PLACES, "oci:layout"), saved),
    ("build", "--push", ("--push", "{host}/a:t"), pushed),
    ("build", "--dry-run", ("--dry-run",), planned),
    ("build", "--rebuild", ("--rebuild",), rebuilt),
    ("build", "--tag", ("--tag", "me/x:1"), tagged),
    ("build", "--target-host", ("--target-host", "host.json"), newest()),
    ("build", "--require-signature", ("--require-signature", "key.pub"), refused),
    ("build", "--json", ("--json",), reported),
    ("run", "--profile", ("--profile", "cpu", "true"), started("true")),
    ("run", "--environment", ("--environment", "test", "true"), started(environment="test", A="b")),
    ("run", "--backend", ("--backend", "docker", "true"), started()),
    ("run", "--publish", ("-p", "8765", "true"), started("--publish=127.0.0.1:8765:8765")),
    (
        "run",
        "--volume",
        ("-v", "models:/m", "true"),
        started("type=volume,source=models,target=/m"),
    ),
    ("run", "--env", ("-e", "A=1", "true"), started("--env=A=1")),
    ("run", "--locked", ("--locked", "true"), started()),
    ("run", "argv", ("python", "x.py"), started("python", "x.py")),
    ("render", "--profile", ("--profile", "cpu"), rendered("requirements.txt")),
    ("render", "--environment", ("--environment", "test"), rendered("requirements.txt", "test")),
    ("render", "--target", ("--target", "requirements"), rendered("requirements.txt")),
    (
        "render",
        "--python-version",
        ("--python-version", "3.12"),
        rendered("requirements.txt", text="3.12"),
    ),
    ("render", "--output", ("-o", "out"), rendered("requirements.txt")),
    ("render", "--target-host", ("--target-host", "host.json"), rendered("requirements.txt")),
    ("bundle", "--profile", ("--profile", "cpu"), bundled(profiles=["cpu"])),
    ("bundle", "--environment", ("--environment", "test"), bundled("test", environment="test")),
    (
        "bundle",
        "--platform",
        ("--platform", "linux/amd64,macos/arm64"),
        bundled(platforms=["linux/amd64"]),
    ),
    ("bundle", "--python-version", ("--python-version", "3.12"), bundled(pythons=["3.12"])),
    ("bundle", "--base-image", ("--base-image", "oci:other"), bundled(text="/other")),
    ("bundle", "--output", ("-o", "out.bundle"), bundled()),
    ("bundle", "--json", ("--json",), bundled(text='"profiles":["cpu"]')),
)


def test_each_option_of_the_commands_has_a_row() -> None:
    options = {
        (name, parameter.opts[-1])
        for name in COMMANDS
        for parameter in cli.cli.get_command(click.Context(cli.cli), name).params  # type: ignore[union-attr]
        if parameter.opts[-1] not in COMMON
    }
    assert options == {(command, option) for command, option, *_ in ROWS}


BACK = (1, 2, 1)
FIRST = {row[0]: row for row in reversed(ROWS)}


@pytest.mark.parametrize(
    ("row", "locks"),
    [
        *((row, BACK) for row in ROWS),
        *((row, locks) for row in FIRST.values() for locks in ((1, 1), (1, 2))),
    ],
    ids=lambda value: f"{value[0]} {' '.join(value[2])}" if len(value) == 4 else str(value),
)
def test_what_an_option_promises_is_there(
    world: World, row: tuple[str, str, tuple[str, ...], Check], locks: tuple[int, ...]
) -> None:
    command, _, words, check = row
    usual = (command, *PLAIN_OF[command])
    stated = (*usual, *(word.format(host=world.server.host) for word in words))
    for edition in locks[:-1]:
        world.lock(edition)
        assert world.start(*usual, *(("true",) if command == "run" else ())).code == 0
        if len(locks) > 2:
            world.start(*stated)
    world.lock(locks[-1])
    world.executed.clear()
    done = world.start(*stated)
    assert done.code == (5 if check is refused else 0), done.err
    check(world, done)


@pytest.mark.parametrize(
    "command",
    [
        ("build",),
        ("bundle", "--platform", "linux/amd64", "-o", "all.tar"),
        ("render",),
        ("render", "--target", "bake"),
        ("sbom",),
    ],
)
def test_hardware_means_the_profile_of_the_projects_framework(
    command: tuple[str, ...], envbuilder: Command
) -> None:
    FILE.write_text("framework: jax\n")
    printed = envbuilder(*command, "--profile", "cpu", code=2).err
    assert "profile 'jax-cpu' has no lock" in printed
