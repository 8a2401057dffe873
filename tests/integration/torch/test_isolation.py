"""Code from outside an environment: it has no effect on its verification, or it is named with 5.

Every foreign piece leaves a file in `canaries` when the payload or a child of it runs it. A piece
that could end the payload in place of the verification prints a recorded, passing report.
"""

from __future__ import annotations

import json
import marshal
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import MAGIC_NUMBER, cache_from_source
from pathlib import Path
from typing import Any

import pytest

from envbuilder.core import resources
from envbuilder.payload.start import Start
from tests.conftest import exited, missing, ran, succeeded
from tests.support.conda_project import Project
from tests.support.overlays import Verdict
from tests.support.reports import measured

QUICK = ("--quick", "--epochs", "1", "--json")

FORGER = """
import os, sys
if any(a.endswith("payload.pyz") for a in sys.orig_argv):
    open({canary!r}, "w").close()
    if "--run-id" in sys.orig_argv:
        run_id = sys.orig_argv[sys.orig_argv.index("--run-id") + 1]
        os.write(1, {line!r}.replace("RUN-ID", run_id).encode())
        os._exit(0)
"""
"""A module that speaks for the payload."""

LIBRARY = """
#include <stdio.h>
#include <string.h>
__attribute__((constructor)) static void loaded(void) {{
    char line[65536];
    FILE *stream = fopen("/proc/self/cmdline", "r");
    size_t size = stream ? fread(line, 1, sizeof line - 1, stream) : 0;
    if (stream) fclose(stream);
    for (size_t i = 0; i + 11 < size; i++)
        if (!memcmp(line + i, "payload.pyz", 11)) {{
            FILE *canary = fopen("{canary}", "w");
            if (canary) fclose(canary);
            return;
        }}
}}
"""


@dataclass
class Outside:
    """Foreign code, and the files that it leaves where it ran."""

    folder: Path

    @property
    def touched(self) -> list[str]:
        return sorted(path.name for path in self.canaries.iterdir())

    @property
    def canaries(self) -> Path:
        made = self.folder / "canaries"
        made.mkdir(exist_ok=True)
        return made

    def forger(self, place: Path, *names: str) -> Path:
        """Modules of these names that print a recorded report with the id of the run."""
        place.mkdir(parents=True, exist_ok=True)
        event = {"event": "report", "run_id": "RUN-ID", "report": measured(quick=True)}
        for name in names:
            canary = str(self.canaries / f"{name}-of-{place.name}")
            (place / f"{name}.py").write_text(FORGER.format(canary=canary, line=json.dumps(event)))
        return place

    def library(self, place: Path, name: str) -> Path:
        """A shared library that does nothing but say that the payload has loaded it."""
        compiler = shutil.which("cc")
        if compiler is None:
            missing("compiler", "a foreign library takes one: apt-get install gcc libc6-dev")
        place.mkdir(parents=True, exist_ok=True)
        source = place / f"{name}.c"
        source.write_text(LIBRARY.format(canary=self.canaries / name))
        # A name without a version stands for what `-soname` says in the real one.
        command = [compiler, "-shared", "-fPIC", "-o", place / name, source]
        subprocess.run(command, check=True)
        source.unlink()
        return place / name


@pytest.fixture
def outside(tmp_path: Path) -> Outside:
    return Outside(tmp_path)


@pytest.fixture
def verify(tmp_path: Path, session_environment: dict[str, str]) -> Any:
    """`verify(*arguments, environment={…})`; the variables do not reach the command line itself."""

    def run(*arguments: str | Path, environment: dict[str, str] | None = None) -> Verdict:
        # The machine may be anybody's; these decide how long a quick training takes.
        threads = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"}
        done = ran(
            [sys.executable, "-I", "-m", "envbuilder", "verify", *map(str, arguments)],
            env={**os.environ, **threads, **session_environment, **(environment or {})},
            cwd=tmp_path,
        )
        report = json.loads(done.stdout) if done.stdout.startswith("{") else {}
        return Verdict(done.returncode, report, done.stderr)

    return run


def hostile(outside: Outside) -> dict[str, str]:
    """Variables of a caller that bring other code in every way that a shell knows."""
    folder = outside.folder
    modules = outside.forger(folder / "modules", "sitecustomize", "usercustomize", "torch", "json")
    home = folder / "home"
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    outside.forger(home / ".local/lib" / version / "site-packages", "usercustomize", "torch")
    outside.forger(folder, "sitecustomize", "torch", "numpy")
    startup = outside.forger(folder / "startup", "startup") / "startup.py"
    preload = outside.library(folder / "preload", "libforeign.so")
    libraries = outside.library(folder / "libraries", "libgomp.so.1").parent
    return {
        "PYTHONPATH": str(modules),
        "PYTHONHOME": str(folder / "nowhere"),
        "PYTHONSTARTUP": str(startup),
        "PYTHONUSERBASE": str(home / ".local"),
        "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
        "HOME": str(home),
        "LD_PRELOAD": str(preload),
        "LD_LIBRARY_PATH": str(libraries),
    }


@pytest.mark.slow
def test_nothing_of_the_caller_has_a_part_in_it(
    verify: Any, outside: Outside, torch_prefix: Path
) -> None:
    ended = verify("--profile", "cpu", "--backend", "venv", *QUICK, environment=hostile(outside))
    assert (ended.code, ended.report["status"]) == (0, "passed"), ended.stderr
    assert outside.touched == []
    origins = ended.report["origins"]
    assert origins["prefix"] == str(torch_prefix)
    assert Path(origins["framework"]).is_relative_to(torch_prefix)
    assert (origins["as_found"], origins["outside"]) == (False, [])
    assert not (outside.folder / "bytecode").exists()
    assert (
        "note: variables not passed to the verification: LD_LIBRARY_PATH, LD_PRELOAD"
        in ended.stderr
    )


# An interpreter of the user's.


def bare(folder: Path) -> Path:
    """A virtual environment without anything in it; its site-packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return next(folder.glob("lib/python3.*/site-packages"))


def packages(prefix: Path) -> Path:
    return next(prefix.glob("lib/python3.*/site-packages"))


def copied(prefix: Path, folder: Path) -> Path:
    """A copy of an environment, by links."""
    shutil.copytree(prefix, folder, copy_function=os.link, symlinks=True)
    return folder


def wrapper(outside: Outside, text: str) -> Path:
    """A program `python` that sets a variable of its own and then does something else."""
    folder = outside.folder / "wrapped/bin"
    folder.mkdir(parents=True)
    modules = outside.forger(outside.folder / "modules", "sitecustomize")
    (folder / "python").write_text(f"#!/bin/bash\nexport PYTHONPATH={modules}\n{text}\n")
    (folder / "python").chmod(0o755)
    return folder.parent


def mine(folder: Path) -> tuple[str | Path, ...]:
    return ("--python", folder / "bin/python", "--profile", "cpu", *QUICK)


@pytest.mark.parametrize("name", ["", 'exec -a "$0" '])
def test_a_wrapper_named_python_is_not_the_interpreter(
    verify: Any, outside: Outside, torch_python: Path, name: str
) -> None:
    start = f"{name or 'exec '}{shlex.quote(str(torch_python))}"
    folder = wrapper(outside, f'{start} "$@"')
    detail = verify(*mine(folder)).require_failed("isolation")
    assert f"{folder}/bin/python is not the interpreter that ran" in detail
    assert outside.touched == []


def test_a_wrapper_that_drops_the_options_is_found_out(
    verify: Any, outside: Outside, torch_python: Path
) -> None:
    ended = verify(*mine(wrapper(outside, f'shift 3\nexec {torch_python} "$@"')))
    assert "cannot be trusted" in ended.require_failed("run")
    assert outside.touched == ["sitecustomize-of-modules"]


@pytest.mark.slow
def test_packages_of_another_environment_are_foreign(
    verify: Any, tmp_path: Path, torch_prefix: Path
) -> None:
    (bare(tmp_path / "mine") / "other.pth").write_text(f"{packages(torch_prefix)}\n")
    detail = verify(*mine(tmp_path / "mine")).require_failed("origins")
    assert f"torch was imported from {packages(torch_prefix)}/torch/__init__.py" in detail


@pytest.mark.slow
def test_packages_that_are_a_link_to_another_environments_are_foreign(
    verify: Any, tmp_path: Path, torch_prefix: Path
) -> None:
    site = bare(tmp_path / "mine")
    site.rename(site.with_name("own"))
    site.symlink_to(packages(torch_prefix))
    detail = verify(*mine(tmp_path / "mine")).require_failed("origins")
    assert f"torch is that of another environment, {torch_prefix}" in detail


@pytest.mark.slow
def test_what_startup_lines_bring_from_outside_is_foreign(
    verify: Any, outside: Outside, torch_prefix: Path
) -> None:
    folder = copied(torch_prefix, outside.folder / "mine")
    elsewhere = outside.folder / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "harmless.py").write_text("")
    (packages(folder) / "other.pth").write_text(f"{elsewhere}\nimport harmless\n")
    library = outside.library(outside.folder / "libraries", "libgomp.so.1")
    (packages(folder) / "early.py").write_text(f"import ctypes; ctypes.CDLL({str(library)!r})\n")
    (packages(folder) / "early.pth").write_text("import early\n")
    detail = verify(*mine(folder)).require_failed("origins")
    assert f"harmless was imported from {elsewhere}/harmless.py" in detail
    assert f"{library}: loaded in place of the environment's own libgomp.so.1" in detail


@pytest.mark.slow
def test_torch_by_a_variable_takes_the_option_that_says_so(
    verify: Any, tmp_path: Path, torch_prefix: Path
) -> None:
    bare(tmp_path / "mine")
    given = {"PYTHONPATH": str(packages(torch_prefix))}
    refused = verify(*mine(tmp_path / "mine"), environment=given)
    assert "No module named 'torch'" in refused.require_failed("import")
    assert "PYTHONPATH" in refused.stderr
    assert "--inherit-environment" in refused.stderr
    inherit = ("--inherit-environment", "--profile", "cuda", "--force")
    ended = verify(*mine(tmp_path / "mine"), *inherit, environment=given)
    ended.require_failed("build", "is a cpu build")
    assert ended.check("import")["status"] == "passed"


@pytest.mark.soak
def test_torch_by_a_variable_can_pass(verify: Any, tmp_path: Path, torch_prefix: Path) -> None:
    bare(tmp_path / "mine")
    given = {"PYTHONPATH": str(packages(torch_prefix))}
    ended = verify(*mine(tmp_path / "mine"), "--inherit-environment", environment=given)
    assert (ended.code, ended.report["status"]) == (0, "passed"), ended.stderr
    assert ended.report["origins"]["as_found"] is True
    assert ended.report["origins"]["variables"]["PYTHONPATH"] == str(packages(torch_prefix))
    assert any("as found" in warning for warning in ended.report["warnings"])


def test_the_option_is_for_an_interpreter_alone(verify: Any) -> None:
    ended = verify("--profile", "cpu", "--backend", "venv", "--inherit-environment")
    assert (ended.code, ended.report) == (2, {})
    assert "Add --python." in ended.stderr


# Children of the payload.


def doctored(prefix: Path, outside: Outside) -> None:
    """Bytecode in an environment that is not its source's, and that no interpreter compares."""
    source = packages(prefix) / "torch/version.py"
    canary = str(outside.canaries / "bytecode")
    text = source.read_text() + f"\nopen({canary!r}, 'w').close()\n"
    compiled = compile(text, str(source), "exec")
    place = Path(cache_from_source(str(source)))
    place.parent.mkdir(exist_ok=True)
    place.unlink(missing_ok=True)  # the same file as in the environment that was copied by links
    # PEP 552: bit 0 says that a hash follows, bit 1 that it is to be compared.
    place.write_bytes(MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8) + marshal.dumps(compiled))


RANKS = ("parallel", "--device", "cpu", "--devices", "2", "--steps", "5", "--quick")


@pytest.mark.soak
def test_children_are_isolated_too(outside: Outside, torch_prefix: Path, pyz: Path) -> None:
    prefix = copied(torch_prefix, outside.folder / "mine")
    doctored(prefix, outside)
    work = outside.folder / "work"
    outside.forger(work, "sitecustomize", "usercustomize", "torch")
    python = str(prefix / "bin/python")
    bytecode = str(outside.folder / "cache")
    start = Start(as_found=False, prefix=str(prefix), executable=python, bytecode=bytecode)
    isolated = [python, "-I", "-X", f"pycache_prefix={bytecode}", pyz, "--promise", start.text()]
    succeeded(
        ran(
            [*isolated, *RANKS, "--data", resources.mnist_subset_dir()],
            env={
                "PATH": os.environ["PATH"],
                "PYTHONDONTWRITEBYTECODE": "1",
                "OMP_WAIT_POLICY": "PASSIVE",
            },
            cwd=work,
        )
    )
    assert outside.touched == []


@pytest.mark.slow
def test_the_bytecode_would_have_been_used(outside: Outside, torch_prefix: Path) -> None:
    """What the test above shows the absence of."""
    prefix = copied(torch_prefix, outside.folder / "mine")
    doctored(prefix, outside)
    subprocess.run([prefix / "bin/python", "-I", "-c", "import torch.version"], check=True)
    assert outside.touched == ["bytecode"]


# Conda, images, and what `run` leaves alone.


@pytest.mark.slow
def test_the_shell_that_activates_is_nobody_elses(
    project: Project, source: str, outside: Outside
) -> None:
    project.built(source)
    other = outside.folder / "other/etc/conda/activate.d"
    other.mkdir(parents=True)
    (other / "other.sh").write_text(f"touch {outside.canaries}/activated\n")
    hook = outside.folder / "hook.sh"
    hook.write_text(f"touch {outside.canaries}/hook; . {other}/other.sh\n")
    function = f"() {{ touch {outside.canaries}/function; }}"
    done = exited(
        5,
        project.run(
            source,
            "verify",
            "--profile",
            "little",
            "--backend",
            "conda",
            *QUICK,
            BASH_ENV=str(hook),
            ENV=str(hook),
            CONDA_PREFIX=str(outside.folder / "other"),
            **{"BASH_FUNC_unset%%": function, "BASH_FUNC__activate%%": function},
        ),
    )
    assert "No module named 'torch'" in json.loads(done.stdout)["reasons"][0]
    assert outside.touched == []


@pytest.mark.soak
@pytest.mark.engine
def test_variables_of_a_base_image_bring_no_code(
    verify: Any, outside: Outside, docker_client: Any, base_image: str
) -> None:
    context = outside.folder / "context"
    ref = "local/envbuilder-test-isolation:base"
    outside.forger(context / "foreign", "sitecustomize", "torch")
    outside.library(context / "foreign", "libgomp.so.1")
    outside.library(context / "foreign", "libforeign.so")
    (context / "Dockerfile").write_text(
        f"FROM {base_image}\nCOPY foreign /foreign\nENV PYTHONPATH=/foreign"
        " LD_LIBRARY_PATH=/foreign LD_AUDIT=/foreign/libforeign.so"
        " LD_PRELOAD=/foreign/libforeign.so\n"
    )
    build = ["docker", "build", "--quiet", "--network", "none", "--tag", ref, str(context)]
    subprocess.run(build, check=True, capture_output=True)
    try:
        image = ("--backend", "docker", "--base-image", ref)
        ended = verify("--profile", "cpu", *image, *QUICK)
    finally:
        docker_client.images.remove(ref, force=True)
    assert (ended.code, ended.report["status"]) == (0, "passed"), ended.stderr
    assert (ended.report["backend"], ended.report["device"]["used"]) == ("docker", "cpu")
    origins = ended.report["origins"]
    assert (origins["prefix"], origins["isolated"]) == ("/opt/env", True)
    assert ended.report["training"]["epochs"][0]["seconds"] != 20.0, "the recorded report's"


def test_run_keeps_what_the_user_has_set_and_says_what_it_shadows(
    outside: Outside, torch_prefix: Path, session_environment: dict[str, str]
) -> None:
    modules = outside.folder / "modules"
    (modules / "torch").mkdir(parents=True)
    (modules / "torch/__init__.py").write_text("")
    code = "import torch; print(torch.__file__)"
    command = ("run", "--profile", "cpu", "--backend", "venv", "--", "python", "-c", code)
    done = ran(
        [sys.executable, "-I", "-m", "envbuilder", *command],
        env={**os.environ, **session_environment, "PYTHONPATH": str(modules)},
    )
    assert done.stdout == f"{modules}/torch/__init__.py\n"
    (line,) = [line for line in done.stderr.splitlines() if "warning" in line]
    assert f"PYTHONPATH: {modules} contains torch" in line
