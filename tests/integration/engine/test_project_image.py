"""A project's own files in its image, with each builder; `run` takes them from where they are."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envbuilder.watch import model
from tests.conftest import missing, ran, succeeded
from tests.integration.conftest import TINY, start
from tests.support.projects import lay_profile

OWNER = 4321
TEXT = """\
profiles: [tiny]
files: [ask.py, src]
command: [python, ask.py, "it's: a"]
python_path: [src]
ports: [8000]
"""
ASK = """\
import json, os, sys, pkg
paths = sorted(os.path.join(f, n) for f, _, names in os.walk("/work") for n in names)
print(json.dumps({
    "here": os.getcwd(), "words": sys.argv[1:], "pkg": pkg.__file__, "uid": os.getuid(),
    "files": {p: [oct(os.stat(p).st_mode & 0o777), os.stat(p).st_uid] for p in paths},
    "times": sorted({int(os.stat(p).st_mtime) for p in paths}),
}))
"""


class Bench:
    """A project, whose image each builder makes."""

    def __init__(self, folder: Path, base: str, variables: dict[str, str]) -> None:
        self.folder = folder
        self.variables = {**variables, "ENVBUILDER_BASE_IMAGE": base}
        self.images: list[str] = []

    def start(self, *words: str) -> subprocess.CompletedProcess[str]:
        return start(words, self.variables, cwd=self.folder)

    def build(self, builder: str, *options: str) -> dict[str, Any]:
        base = ("--backend", "docker", "--builder", builder)
        done = succeeded(self.start("build", "--profile", "tiny", "--json", *base, *options))
        assert (
            "not copied into the image, since they may hold secrets or belong to one"
            " machine: src/.env, src/__pycache__\n" in done.stderr
        )
        read: dict[str, Any] = json.loads(done.stdout)
        self.images.append(read["artifact"]["ref"])
        return read


@pytest.fixture
def bench(base_image: str, session_environment: dict[str, str], tmp_path: Path) -> Iterator[Bench]:
    lay_profile(tmp_path, "tiny", TINY)
    files = {"envbuilder.yaml": TEXT, "ask.py": ASK, "src/pkg/__init__.py": "", "src/.env": "A=1"}
    for name, text in (*files.items(), ("src/__pycache__/x.pyc", ""), ("src/tool", "#!/bin/sh\n")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "ask.py").chmod(0o600)
    (tmp_path / "src/tool").chmod(0o755)
    done = start(("lock", "--profile", "tiny"), session_environment, cwd=tmp_path)
    if done.returncode != 0:
        missing("network", f"the package index cannot be asked: {done.stderr[-400:]}")
    laid = Bench(tmp_path, base_image, session_environment)
    yield laid
    newest = {f"{image.rpartition(':')[0]}:project" for image in laid.images}
    for image in (*laid.images, *newest):
        subprocess.run(["docker", "rmi", image], capture_output=True, check=False)


@pytest.mark.parametrize("builder", ["layers", pytest.param("buildkit", marks=pytest.mark.soak)])
def test_an_image_with_the_projects_files_runs_alone(
    bench: Bench, builder: str, docker_client: Any
) -> None:
    first = bench.build(builder)
    ref = first["artifact"]["ref"]
    done = succeeded(ran(["docker", "run", "--rm", "--network=none", "--read-only", ref]))
    answer = json.loads(done.stdout)
    assert answer["here"] == "/work"
    assert answer["words"] == ["it's: a"]
    assert answer["pkg"] == "/work/src/pkg/__init__.py"
    assert answer["files"] == {
        "/work/ask.py": ["0o644", 1000],
        "/work/src/pkg/__init__.py": ["0o644", 1000],
        "/work/src/tool": ["0o755", 1000],
    }
    assert len(answer["times"]) == 1
    inspected = docker_client.api.inspect_image(ref)["Config"]
    assert inspected["ExposedPorts"] == {"8000/tcp": {}}

    # The same files have the same digest, whatever their times and modes here.
    (bench.folder / "ask.py").chmod(0o644)
    (bench.folder / "ask.py").write_text(ASK)
    again = bench.build(builder, "--rebuild")
    assert again["artifact"] == first["artifact"]
    assert again["status"] == "built"

    # A changed file changes one layer; BuildKit puts an empty one for WORKDIR on top of it.
    (bench.folder / "ask.py").write_text(ASK + "# changed\n")
    changed = bench.build(builder)
    before, after = (
        docker_client.api.inspect_image(result["artifact"]["ref"])["RootFS"]["Layers"]
        for result in (first, changed)
    )
    differing = [pair for pair in zip(before, after, strict=True) if pair[0] != pair[1]]
    assert len(differing) == 1
    assert differing[0][0] in before[-2:]


def test_run_uses_the_files_where_they_are(bench: Bench) -> None:
    base = ("--backend", "docker")
    done = succeeded(bench.start("run", "--profile", "tiny", *base))
    answer = json.loads(done.stdout)
    assert answer["here"] == str(bench.folder)
    assert answer["pkg"] == f"{bench.folder}/src/pkg/__init__.py"
    assert answer["files"] == {}
    assert "not copied" not in done.stderr


@pytest.mark.slow
def test_reproduce_makes_the_same_image_as_build(bench: Bench) -> None:
    built = bench.build("layers")
    base = ("--backend", "docker", "--builder", "layers")
    done = bench.start("reproduce", "--profile", "tiny", "--json", *base)
    assert done.returncode == 0, done.stderr + done.stdout
    outcome = json.loads(done.stdout)
    assert (outcome["status"], outcome["fingerprint"]) == ("equal", built["fingerprint"])
    digest = built["artifact"]["digest"]
    assert outcome["digests"] == [digest, digest]


@pytest.mark.parametrize("builder", ["layers", pytest.param("buildkit", marks=pytest.mark.soak)])
def test_a_project_that_is_installed_has_its_commands(bench: Bench, builder: str) -> None:
    description = "[project]\nname = 'pkg'\nversion = '1.5'\nscripts = {ask = 'pkg.cli:main'}\n"
    (bench.folder / "pyproject.toml").write_text(description)
    (bench.folder / "src/pkg/cli.py").write_text(
        "from importlib.metadata import version\ndef main(): print(version('pkg'), __file__)\n"
    )
    (bench.folder / "envbuilder.yaml").write_text("profiles: [tiny]\ninstall_project: true\n")
    start(("lock", "--profile", "tiny"), bench.variables, cwd=bench.folder)
    ref = bench.build(builder)["artifact"]["ref"]
    command = ["docker", "run", "--rm", "--network=none", "--read-only", "--workdir=/", ref, "ask"]
    done = ran(command)
    assert done.stdout == "1.5 /work/src/pkg/cli.py\n", done.stderr

    base = ("run", "--profile", "tiny", "--backend", "docker", "--")
    done = bench.start(*base, "ask")
    assert done.stdout == f"1.5 {bench.folder}/src/pkg/cli.py\n", done.stderr
    done = bench.start(*base, "python", "-c", "import nosuch")
    assert done.returncode == 1
    assert done.stderr.endswith(
        "nosuch is in no requirement, and no table says which package brings it\n"
    )


TRAINED = """\
import json, os
out = os.path.join(os.path.dirname(os.environ["PYTHONPATH"].split(":")[0]), "out")
part = {"framework": "torch", "version": "2", "pid": 1, "seconds": 1.0, "steps": 3}
open(os.path.join(out, "1-torch.json"), "w").write(json.dumps(part))
print(os.getuid())
"""


def test_a_training_in_another_users_folder_is_seen(bench: Bench, tmp_path: Path) -> None:
    """As root: the container has the folder's owner, who writes beside the hook."""
    if os.getuid() != 0:
        pytest.skip("only root can give folders away")
    (tmp_path / "train.py").write_text(TRAINED)
    for path in (tmp_path, *tmp_path.rglob("*")):
        os.chown(path, OWNER, OWNER)
    bench.variables = {**bench.variables, "ENVBUILDER_TRUSTED_FOLDERS": str(tmp_path)}
    base = ("--profile", "tiny", "--backend", "docker")
    report = tmp_path.with_suffix(".json")
    done = bench.start("watch", *base, "--output", str(report), "--", "python", "train.py")
    assert (done.returncode, done.stdout) == (0, f"{OWNER}\n"), done.stderr
    (trained,) = model.read(report).processes
    assert trained.steps == 3
    assert {path.stat().st_uid for path in tmp_path.rglob("*")} == {OWNER}
