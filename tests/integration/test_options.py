"""Options that no other test gives the real command: what only a command with them says."""

from __future__ import annotations

import json
import os
import re
import zipfile
from functools import partial
from pathlib import Path

import pytest

from envbuilder.core import files, settings
from envbuilder.core.settings import LOCKS
from envbuilder.host.record import plant
from tests.conftest import exited, succeeded
from tests.integration.conftest import Cli
from tests.support import bundles, cleaning, examples, host_trees, signing
from tests.support.reports import epoch, written
from tests.support.tuning import SURVEY

NO_ENGINE = {"DOCKER_HOST": "unix:///nonexistent"}
RUNS = ("jupyter", "run", "shell", "watch")
DOWNLOAD = ("datasets", "mnist/t10k-labels-idx1-ubyte")
RADEON = f"--target-host={host_trees.FOLDER / 'rx7900.json'}"

# A command, the option, and what the command prints only with it.
CASES: list[tuple[str, str, str]] = [
    ("detect --verbose", "--full", r"\+ .*docker buildx"),
    ("detect", RADEON, "rocm fits: AMD Radeon RX 7900"),
    ("detect", "--root=tree", "system .*Ubuntu 24.04"),
    ("detect", "--record=tree2", "tree2"),
    ("detect", "--framework=jax", "jax-cpu"),
    ("detect", "--model=70B", "70B as q4"),
    ("detect --model=70B", "--quant=q8", "70B as q8"),
    ("doctor", RADEON, "allows 1.5 of 2 CPUs"),
    ("doctor", "--root=tree", "allows 1.5 of 2 CPUs"),
    ("sbom --profile=cpu", "--platform=linux/arm64", "torch-2.13.0.cpu-cp311-.*_aarch64.whl"),
    ("sbom", "--profile=mps", "torch-.*macosx"),
    ("profiles rocm", RADEON, "fits here +yes"),
    ("lock --profile=cpu", "--as-of=2001-01-01", "cannot be locked: envbuilder.yaml: torch<="),
    ("clean --dry-run", "--json", r'^{"schema":1,"removed"'),
    ("clean --dry-run --profile=cpu", "--volumes", "volumes belong to no profile"),
    ("reproduce --profile=cpu", "--python-version=3.8", "has no Python 3.8"),
    ("doctor --root=tree", "--profile=cuda", "cuda: no NVIDIA GPU was found"),
    ("doctor --root=tree", "--json", r'^{"schema":2,"problems"'),
    ("init --offline", "--json", r'^{"schema":2,"file"'),
    ("ci --provider=github", "--json", r'^{"schema":1,"matrix"'),
    ("ci --provider=github --json --profile=cpu", "--backend=docker", "-py3.11-docker"),
    ("ci --provider=github --json --profile=cpu", "--python-version=3.8", r'"matrix":\[\]'),
    ("ci --provider=github --json --profile=cuda", "--runner=cuda=gpu", '"runner":"gpu"'),
    ("ci --provider=github --json --profile=cpu", "--platform=linux/arm64", r'\[{"id":"[^"]+arm64'),
    ("build --profile=cpu --dry-run --output=x.tar", "--builder=buildkit", "not buildkit"),
    # Without their options, these fail as early: nothing is fetched.
    ("jupyter --profile=mps", "--backend=docker", "has no docker backend"),
    ("reproduce --profile=mps", "--backend=docker", "has no docker backend"),
    ("shell --profile=mps", "--backend=docker", "has no docker backend"),
    ("shell --backend=docker", "--profile=mps", "has no docker backend"),
    ("tune --profile=mps", "--backend=docker", "has no docker backend"),
    ("watch --profile=mps true", "--backend=docker", "has no docker backend"),
    ("watch --backend=docker true", "--profile=mps", "has no docker backend"),
    ("bundle -o=x --profile=mps", "--platform=linux/amd64,linux/arm64", "linux/amd64, linux/arm64"),
    ("bundle -o=x --profile=cpu,mps", "--python-version=3.8", "no files for .* with Python 3.8"),
    ("bundle -o=x --profile=mps", "--base-image=oci:none", "none does not exist"),
]


def named(case: tuple[str, str, str]) -> str:
    return f"{case[0]} {case[1].partition('=')[0]}"


@pytest.mark.parametrize("case", CASES, ids=named)
def test_an_option_has_its_effect(case: tuple[str, str, str], cli: Cli, tmp_path: Path) -> None:
    command, option, expected = case
    examples.copy(examples.LOCKED, tmp_path)
    plant(tmp_path / "tree", host_trees.load("rx7900"))
    name, *others = command.split()
    done = cli(name, option, *others, environment=NO_ENGINE)
    assert re.search(expected, done.stdout + done.stderr), done.stderr


OF_ENVIRONMENTS = (
    "add six",
    "remove six",
    "build",
    "bundle --output=x.tar",
    "jupyter",
    "render",
    "reproduce",
    "run true",
    "sbom",
    "shell",
    "tune",
    "verify",
    "watch true",
)


@pytest.mark.parametrize("command", OF_ENVIRONMENTS)
def test_an_environment_that_the_project_lacks_is_refused(
    command: str, cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / settings.PROJECT_FILE).write_text("requirements: []\n")
    name, *others = command.split()
    done = cli(name, "--environment=other", *others, environment=NO_ENGINE)
    assert "has no environment 'other'" in exited(125 if name in RUNS else 2, done).stderr


def test_add_exact_takes_a_name_as_it_is(cli: Cli, tmp_path: Path) -> None:
    """No index is asked: there is no such release of PyTorch."""
    (tmp_path / settings.PROJECT_FILE).write_text("profiles: [cpu]\nframework_version: '0.1'\n")
    done = exited(2, cli("add", "tensroflow", "--exact"))
    assert "cannot be locked: envbuilder.yaml:2" in done.stderr


@pytest.mark.parametrize("command", ["sbom", "render --target=requirements"])
def test_the_files_are_those_of_the_python(command: str, cli: Cli) -> None:
    done = succeeded(cli(*command.split(), "--profile=cpu", "--python-version=3.12"))
    assert re.search(r"-cp312-|\(Python 3\.12\)", done.stdout)


@pytest.mark.parametrize("command", ["watch --locked true", "shell --locked", "jupyter --locked"])
def test_locked_locks_nothing(command: str, cli: Cli, tmp_path: Path) -> None:
    examples.copy(examples.LOCKED, tmp_path)
    (tmp_path / LOCKS).rename(tmp_path / "away")
    assert "has no lock" in exited(125, cli(*command.split(), environment=NO_ENGINE)).stderr
    assert not (tmp_path / LOCKS).exists()


def test_ci_check_compares_and_writes_nothing(cli: Cli, tmp_path: Path) -> None:
    examples.copy(examples.LOCKED, tmp_path)
    name = "envbuilder_ml-0.1.0-py3-none-any.whl"
    words = ("ci", "--provider=gitlab", "--profile=cpu", f"--wheel={name}", "--output=ci.yml")
    (tmp_path / name).touch()
    assert f"{name} is not a wheel" in exited(2, cli(*words)).stderr
    with zipfile.ZipFile(tmp_path / name, "w") as wheel:
        wheel.writestr("x.dist-info/METADATA", "Name: x\n")
    succeeded(cli(*words))
    assert "cuda" not in (tmp_path / "ci.yml").read_text()
    before = sorted(tmp_path.iterdir())
    succeeded(cli(*words, "--check"))
    (tmp_path / "ci.yml").write_text("x: 1\n")
    assert "ci.yml is stale" in exited(2, cli(*words, "--check")).stderr
    assert (tmp_path / "ci.yml").read_text() == "x: 1\n"
    assert sorted(tmp_path.iterdir()) == before
    succeeded(cli(*words[:-1], "--output=quick.yml", "--quick"))
    assert "--quick" in (tmp_path / "quick.yml").read_text()


def test_init_offline_asks_no_index(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("envbuilder-has-no-such-package==1\n")
    succeeded(cli("init", "--offline"))
    assert not (tmp_path / LOCKS).exists()


def test_compare_has_formats(cli: Cli, tmp_path: Path) -> None:
    written(tmp_path / "a.json")
    assert succeeded(cli("compare", "a.json", "--format=csv")).stdout.startswith("file,date,")
    assert succeeded(cli("compare", "a.json", "--json")).stdout.startswith('{"schema":')
    written(tmp_path / "before/a.json", training__epochs=[epoch(seconds=10.0)])
    assert "slower" in exited(5, cli("compare", "a.json", "--against=before")).stdout


def test_clean_removes_downloads_and_what_is_nobodys_only_if_asked(
    cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / settings.PROJECT_FILE).touch()
    places = {f"ENVBUILDER_{name}_DIR": str(tmp_path / name) for name in ("CACHE", "DATA")}
    own = settings.load(places)
    download = cleaning.store(own, *DOWNLOAD) / DOWNLOAD[1]
    environment = cleaning.ours(own)
    files.mark_folder(environment.parent)
    for option, path in (("--store", download), ("--all", environment)):
        assert path.exists()
        succeeded(cli("clean", "--yes", option, environment={**NO_ENGINE, **places}))
        assert not path.exists()


def test_a_bundle_that_is_signed_is_unpacked_and_replaces_if_asked(
    cli: Cli, tmp_path: Path
) -> None:
    def places(name: str) -> dict[str, str]:
        folders = ("CACHE", "CONFIG", "DATA")
        return {f"ENVBUILDER_{each}_DIR": str(tmp_path / name / each) for each in folders}

    bundles.small(settings.load(places("here")), tmp_path / "tiny.tar")
    unbundle = partial(cli, "unbundle", "tiny.tar", environment={**NO_ENGINE, **places("there")})
    signing.lay_key(tmp_path / "team.pem")
    assert "no signature" in exited(5, unbundle("--require-signature=team.pub")).stderr
    done = json.loads(succeeded(cli("sign", "--key=team.pem", "--json", "tiny.tar")).stdout)
    assert done["signed"][0]["kind"] == "bundle"
    unpacked = succeeded(unbundle("--require-signature=team.pub", "--json")).stdout
    assert json.loads(unpacked)["signed"]["keyid"] == done["keyid"]
    profile = tmp_path / "there/CONFIG/profiles/tiny.yaml"
    content = profile.read_bytes()
    profile.write_text("mine")
    assert "differ" in exited(2, unbundle()).stderr
    succeeded(unbundle("--force"))
    assert profile.read_bytes() == content


# What an option adds to what is printed, written, or given to an interpreter that trains nothing.
OF_INTERPRETERS = [
    ("verify --epochs=7", "--epochs 7 .*--quick"),
    ("verify --profile=cuda --force", "--device cuda"),
    ("verify --inherit-environment", "MINE=1"),
    ("verify --json", r'\A{"schema":2,'),
    ("verify --output=x.json", r'{\n "schema": 2,'),
    ("verify --html=x.html", "(?i)<!doctype html>"),
    ("verify --against=nowhere.json", "nowhere.json"),
    ("verify --data=.", "neither train-images-idx3-ubyte nor"),
    ("verify --devices=2", "several devices +skipped"),
    ("verify --sif=python", "--sif runs an existing image"),
    ("verify --backend=venv", "cannot be combined with build options"),
    ("verify --base-image=x", "cannot be combined with build options"),
    ("verify --python-version=3.12", "cannot be combined with build options"),
    ("tune --json", r'(?s)\A{"schema":1,.*--steps 60'),
    ("tune --profile=jax-cpu", "profile 'jax-cpu' has JAX"),
    ("tune --inherit-environment", "MINE=1"),
]
INTERPRETER = """\
#!/bin/sh
echo "$@ MINE=$MINE" >>{0}/given
case "$*" in *--survey*) cat {0}/survey.json;; *trial*) cat {0}/trial.json;; *) exit 9;; esac
"""


@pytest.mark.parametrize(
    ("command", "expected"), OF_INTERPRETERS, ids=[command for command, _ in OF_INTERPRETERS]
)
def test_an_option_for_an_interpreter_has_its_effect(
    command: str, expected: str, cli: Cli, tmp_path: Path
) -> None:
    trial = {"samples_per_second": 100.0, "accuracy": 0.9}
    for name, report in (("survey", SURVEY), ("trial", trial)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"event": "report", "report": report}))
    files.write(tmp_path / "python", INTERPRETER.format(tmp_path).encode(), 0o755)
    # A project without locks: nothing is built without --python.
    (tmp_path / settings.PROJECT_FILE).write_text("requirements: []\n")
    places = {**NO_ENGINE, "MINE": "1", "ENVBUILDER_DATA_DIR": str(tmp_path / "data")}
    done = cli(*command.split(), "--python=./python", "--quick", environment=places)
    texts = [path.read_text() for path in tmp_path.iterdir() if path.is_file()]
    assert re.search(expected, "".join([done.stdout, done.stderr, *texts])), done.stderr


# An option of `fleet verify --dry-run`, and what only with it is printed, or in the run's files.
OF_FLEETS = [
    ("--profile=cpu", "--profile cpu"),
    ("--partition=gpu", "n3.sbatch"),
    ("--nodes=n1", r"\A\S*n1.sbatch\n#!"),
    ("--quick", "--quick"),
    ("--python=/opt/python", "--python /opt/python"),
    ("--limit=20m", "--time=22\n"),
]
PROGRAMS = {
    "sinfo": 'case "$*" in *gpu*) set n3;; *) set n1 n2;; esac; printf "%s|idle|||\n" $@',
    "sbatch": "echo Invalid account >&2; exit 1",
    "squeue": "",
}


@pytest.fixture
def slurm(tmp_path: Path) -> dict[str, str]:
    """The variables with which a Slurm of three nodes is found that refuses all jobs."""
    for name, script in PROGRAMS.items():
        files.write(tmp_path / name, f"#!/bin/sh\n{script}\n".encode(), 0o755)
    return {"PATH": f"{tmp_path}:{os.environ['PATH']}"}


@pytest.mark.parametrize(("option", "expected"), OF_FLEETS)
def test_an_option_of_fleets_has_its_effect(
    option: str, expected: str, slurm: dict[str, str], cli: Cli, tmp_path: Path
) -> None:
    done = succeeded(cli("fleet", "verify", "--folder=run", "--dry-run", option, environment=slurm))
    scripts = "".join(path.read_text() for path in tmp_path.glob("run/scripts/*"))
    assert re.search(expected, done.stdout + scripts)


def test_a_fleet_is_verified(slurm: dict[str, str], cli: Cli, tmp_path: Path) -> None:
    def verify(*options: str) -> str:
        return exited(5, cli("fleet", "verify", *options, environment=slurm)).stdout

    assert "2 refused" in verify("--folder=run")
    assert "Invalid account" in (tmp_path / "run/summary.json").read_text()
    assert not [*tmp_path.glob("fleet-*")]
    assert verify("--folder=more", "--json").startswith('{"schema":')


@pytest.mark.network
def test_options_where_there_is_no_container(tiny: Path, cli: Cli, tmp_path: Path) -> None:
    """-p has nothing to open; -v has nothing to show a folder in."""
    places = {**NO_ENGINE, "JUPYTER_DATA_DIR": str(tmp_path / "jupyter"), "SHELL": "/bin/true"}
    natively = ("--profile=tiny", "--backend=venv")
    for command in (("run", "true"), ("shell",), ("watch", "true")):
        words = (command[0], *natively, "--publish=8000", *command[1:])
        assert "-p 8000 is ignored" in succeeded(cli(*words, environment=places)).stderr
        words = (command[0], *natively, "--volume=/tmp:/data", *command[1:])
        assert (
            "--volume applies only to images" in exited(125, cli(*words, environment=places)).stderr
        )
    kernels = tmp_path / "jupyter/kernels"
    succeeded(cli("jupyter", *natively, "--install-kernel", environment=places))
    assert len(list(kernels.glob("*/kernel.json"))) == 1
    succeeded(cli("jupyter", *natively, "--remove-kernel", environment=places))
    assert not list(kernels.glob("*"))


@pytest.mark.network
def test_options_of_commands_on_this_machine(tiny: Path, cli: Cli, tmp_path: Path) -> None:
    files.write(tmp_path / "sh", b"#!/bin/sh\nprintenv MINE\n", 0o755)
    places = {**NO_ENGINE, "SHELL": str(tmp_path / "sh")}
    written_to = ("--output=x.json", "--html=x.html")
    for command in (
        ("shell",),
        ("run", "printenv", "MINE"),
        ("watch", "--device=cuda", *written_to, "printenv", "MINE"),
    ):
        words = ("--profile=tiny", "--backend=venv", "--env=MINE=1")
        done = succeeded(cli(command[0], *words, *command[1:], environment=places))
        assert done.stdout == "1\n"
    assert json.loads((tmp_path / "x.json").read_text())["requested"] == "cuda"
    assert "printenv" in (tmp_path / "x.html").read_text()
    succeeded(cli("lock", "--profile=tiny", "--output-dir=out"))
    assert (tmp_path / "out/tiny.json").exists()
