"""What a process can do in our containers, asked inside, with Docker and with podman."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from envbuilder.builds import conventions, pipeline
from envbuilder.builds.request import Request
from envbuilder.containers.engine.container import Container, Limits
from envbuilder.core import console
from envbuilder.core.settings import load as load_settings
from tests.integration.conftest import start
from tests.support.confinement import PROBE

QUIET = console.PlainProgress(lambda line: None)
CAPABILITIES = dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), 0)
TRIED = ("mknod", "chown", "mount", "chroot")
ODD = 'a,b:"c'
"""A folder's name that neither ends a mount's source nor its line of CSV."""
OWNER = 4321


class Bench:
    """The image `tiny` in an engine, and what a process finds in containers of it."""

    def __init__(self, base: str, variables: dict[str, str], folder: Path) -> None:
        self.base = base
        self.variables = variables
        self.folder = folder
        self.project = folder / ODD
        self.project.mkdir()

    def as_verified(self) -> dict[str, Any]:
        """In a container as `verify` starts it, but for the program."""
        request = Request(profile="tiny", backend="docker", base_image=self.base)
        settings = load_settings(os.environ)
        build = pipeline.prepare(request, settings, QUIET, running=True)
        environment = pipeline.finish(build).environment
        engine = environment._engine
        run = engine.run
        program = (f"{conventions.PREFIX}/bin/python", "-I", "-c", PROBE)

        def ask(container: Container, *arguments: Any) -> Any:
            asking = msgspec.structs.replace(
                container,
                entrypoint=program,
                arguments=(),
                variables={**container.variables, "HOME": conventions.HOME},
            )
            return run(asking, *arguments)

        engine.run = ask  # type: ignore[method-assign]
        lines: list[str] = []
        folders = {"data": self.project, "questions": self.folder}
        done = environment.run_payload(lambda paths: (), folders, lines.append)
        assert done.returncode == 0, done.stderr
        return inside("\n".join(lines), engine.limits)

    def as_run(
        self, *options: str, programs: Sequence[str] = (), notes: int = 1
    ) -> tuple[dict[str, Any], str]:
        """In a container as `run` starts it; and the line about what it drops."""
        asked = (*options, "run", "--profile", "tiny", "--backend", "docker")
        command = ("--", "python", "-c", PROBE, *programs)
        variables = {**self.variables, "ENVBUILDER_BASE_IMAGE": self.base}
        done = start((*asked, *command), variables, cwd=self.project)
        assert done.returncode == 0, done.stderr
        said = [line for line in done.stderr.splitlines() if line.startswith("container: ")]
        assert len(said) == notes, done.stderr
        return inside(done.stdout, None), "".join(said)


def inside(text: str, limits: Limits | None) -> dict[str, Any]:
    """What holds in every container of ours is asserted here; the rest is returned."""
    found: dict[str, Any] = json.loads(text)
    assert found["capabilities"] == CAPABILITIES
    assert found["no_new_privileges"] == 1
    assert found["seccomp"] == 2, "the engine's filter"
    assert found["core"] == [0, 0]
    assert "/" in found["read_only"]
    assert found["written"] == []
    assert found["sockets"] == []
    assert (found["home"], found["here"], found["temporary"]) == ("done",) * 3
    assert {name: found[name] for name in TRIED} == dict.fromkeys(TRIED, "EPERM")
    processes = int(found["processes"])
    memory = int(found["memory"])
    if limits:
        assert processes == limits.processes
        assert 0 <= limits.memory - memory < 65536, "whole pages"
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert processes >= 4096
    assert total // 2 <= memory < total
    return found


@pytest.fixture
def bench(
    each_engine: tuple[str, str, dict[str, str]],
    session_environment: dict[str, str],
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Bench:
    _, base, variables = each_engine
    monkeypatch.chdir(tmp_path)
    variables = {**session_environment, **variables}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return Bench(base, variables, tmp_path)


def test_a_verification_can_do_nothing_but_compute(bench: Bench) -> None:
    found = bench.as_verified()
    assert (found["uids"], found["gids"]) == ([conventions.ID] * 4, [conventions.ID] * 4)
    assert set(found["groups"]) <= {conventions.ID}
    assert found["setuid"] == "EPERM"
    assert found["interfaces"] == ["lo"]
    assert {"/data", "/questions"} <= set(found["read_only"])


def test_a_command_can_write_its_project_and_is_no_one_else(bench: Bench) -> None:
    own = os.getuid()
    found, note = bench.as_run()
    assert found["uids"] == [own] * 4
    assert not {str(bench.folder), str(bench.project)} & {*found["read_only"]}
    assert found["interfaces"] != ["lo"]
    assert note.startswith(f"container: user {own}:{os.getgid()}, without capabilities")
    _, silence = bench.as_run("--quiet", notes=0)
    assert silence == ""

    if own:
        return
    # Another user's project: root's command is that user's, whom no setuid program makes root.
    program = bench.project / "id"
    shutil.copy("/usr/bin/id", program)
    program.chmod(0o4755)
    for folder in (bench.folder, bench.project):
        os.chown(folder, OWNER, OWNER)
    bench.variables["ENVBUILDER_TRUSTED_FOLDERS"] = str(bench.folder)
    found, note = bench.as_run(programs=["./id"])
    assert found["uids"] == [OWNER] * 4
    assert found["groups"] in ([], [OWNER])
    assert found["setuid"] == "EPERM"
    assert found["setuid_programs"] == [OWNER]
    assert f"user {OWNER}:{OWNER}" in note
