"""`jupyter` starts or installs a kernel of a project, which stays as it is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from envbuilder.builds import jupyter, pipeline
from envbuilder.builds.access import Access
from envbuilder.builds.request import Planned, advance
from envbuilder.commands import jupyter as module
from envbuilder.core import process
from envbuilder.core.settings import Settings
from tests.support.command_line import Command, run
from tests.support.pipeline import a_build
from tests.unit.commands.test_add import PROFILE

TEXT = """\
profiles: [small]
requirements: [leaf]
python_path: [.]
ports: [8000]
environments: {notebooks: {}}
"""


class FakeEnvironment:
    """What is planned."""

    def __init__(self, backend: str) -> None:
        kind = "image" if backend == "docker" else "venv"
        self.plan = SimpleNamespace(
            profile="small", backend=backend, artifact=SimpleNamespace(kind=kind)
        )
        self.ran: list[str] = []

    def become(self, argv: Sequence[str], environ: Any, access: Access) -> None:
        self.ran += [*argv, str(Path.cwd()), *map(str, access.python_path)]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project, whose environments need no building."""
    folder = tmp_path / "mine"
    (folder / "profiles").mkdir(parents=True)
    (folder / "envbuilder.yaml").write_text(TEXT)
    (folder / "profiles/small.yaml").write_text(f"name: small\n{PROFILE}")
    monkeypatch.setattr(pipeline, "finish", lambda build: build)
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[FakeEnvironment]:
    """The environments that were planned."""
    environments: list[FakeEnvironment] = []

    def prepare(request: Any, settings: Settings, progress: Any, **options: Any) -> Any:
        assert options in ({"running": True}, {})
        environments.append(FakeEnvironment(request.backend or "venv"))
        build = a_build(settings, SimpleNamespace(name="small"), progress=progress)
        product: Any = environments[-1]
        return advance(replace(build, backend=product.plan.backend), Planned, product=product)

    monkeypatch.setattr(pipeline, "prepare", prepare)
    monkeypatch.setattr(module, "prepare_locked", prepare)
    monkeypatch.setattr(jupyter, "beside", lambda _: (Path("/kernel"), "7.4.0"))
    return environments


def test_outside_of_a_project_it_says_how_to_begin(envbuilder: Command) -> None:
    assert "envbuilder init" in envbuilder("jupyter", code=125).err


def test_a_kernel_is_installed_for_editors_and_removed(
    project: Path, planned: list[FakeEnvironment], envbuilder: Command
) -> None:
    out = envbuilder("jupyter", "--install-kernel", "--backend", "venv").out.splitlines()[-1]
    assert out.startswith("kernel 'mine (default)' → ")
    folder = Path(out.partition("→ ")[2])
    argv = json.loads((folder / "kernel.json").read_text())["argv"]
    assert argv[argv.index("--backend") + 1] == "venv"
    assert "--profile" not in argv
    assert envbuilder("jupyter", "--remove-kernel").out == f"removed {folder}\n"
    assert envbuilder("jupyter", "--remove-kernel").out == "nothing to remove\n"


def test_the_server_gets_what_was_decided(
    project: Path, planned: list[FakeEnvironment], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(jupyter, "prefix", lambda *_: Path("/lab"))
    monkeypatch.setattr(process, "exec_program", lambda argv, env: seen.append(argv))
    monkeypatch.setenv("DISPLAY", ":0")
    run("jupyter", "--", "--ServerApp.base_url=/x/")
    ((_, _, _, text, *more),) = seen
    given = json.loads(text)
    assert more == ["--ServerApp.base_url=/x/"]
    assert (given["browser"], given["folder"]) == (True, str(project))
    argv = given["kernel"]["argv"]
    assert argv[argv.index("--profile") + 1 :][:3] == ["small", "--backend", "venv"]
    run("jupyter", "--backend", "venv", "--no-browser", "--port", "9000", "notes.ipynb")
    assert seen[1][4:] == ("--no-browser", "--port", "9000", "notes.ipynb")


def test_a_native_kernel_runs_where_the_notebook_is(
    project: Path, planned: list[FakeEnvironment], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("jupyter", "--install-kernel") == 0
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "kernel.json"
    run("jupyter", "--project", str(project), "--connection-file", str(file))
    command = jupyter.kernel_command(str(file), "/kernel")
    assert planned[-1].ran == [*command, str(tmp_path), str(project)]
    assert (project / "envbuilder.yaml").read_text() == TEXT
    assert not (project / "envbuilder.lock").exists()


def test_one_in_a_container_is_held(
    project: Path, planned: list[FakeEnvironment], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("jupyter", "--install-kernel") == 0
    monkeypatch.chdir("/")
    held: list[Any] = []
    monkeypatch.setattr(jupyter, "run_kernel", lambda *each: held.append(each) or 7)
    file = Path("kernel.json")
    given = ("--project", str(project), "--connection-file", str(file), "--backend", "docker")
    assert run("jupyter", *given) == 7
    ((environment, path, access, beside),) = held
    assert (environment, path, access.ports) == (planned[-1], file, ())
    assert beside == Path("/kernel")
    assert access.python_path == (project,)
    assert Path.cwd() == project, "a container does not see another folder"
