"""The conda backend for real, from a local channel: built, run, activated, verified."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.conftest import exited, ran, succeeded
from tests.integration.conftest import Cli
from tests.support import conda_channel as conda
from tests.support.conda_project import (
    CHANNEL,
    PLAIN,
    VIRTUAL,
    Project,
    contents,
    prefix_of,
    tree_of,
)
from tests.support.conda_server import serve
from tests.support.folders import read_json


@pytest.mark.slow
@pytest.mark.parametrize("over", ["http", pytest.param("file", marks=pytest.mark.soak)])
def test_from_nothing_to_a_command_and_again_the_same(
    project: Project, conda_channel: Path, over: str
) -> None:
    with serve(conda_channel) as served:
        url = served.url if over == "http" else conda_channel.as_uri()
        project.lock(url)
        first = project.built(url)
        prefix = prefix_of(first)
        assert (first["status"], first["artifact"]["kind"]) == ("built", "conda")
        before = contents(prefix)
        tree = tree_of(first)
        assert project.built(url)["status"] == "reused"
        second = project.built(url, "--rebuild")
    assert (second["artifact"], tree_of(second)) == (first["artifact"], tree)
    assert contents(prefix) == before
    assert first["made_by"].keys() == {"uv", "py-rattler"}
    # Nothing says where it was made, or from where its packages came.
    told = [p for p, c in before.items() if b".partial/" in c or url.encode() in c]
    assert told == []
    # It shares no file with a cache or another environment.
    assert {p.stat().st_nlink for p in prefix.rglob("*") if p.is_file()} == {1}
    code = (
        "import os, setuptools, sys, tiny_lib\n"
        "print(sys.prefix, sys.base_prefix, setuptools.__file__, os.environ['ACTIVATED'],"
        " os.environ['ACTIVATED_VARIABLE'], os.environ['LITTLE'], sep='|')\n"
        "sys.exit(7)"
    )
    done = exited(7, project.within("python", "-c", code))
    assert done.stdout.split("|") == [
        f"{prefix}/venv",
        str(prefix),
        f"{prefix}/venv/lib/python3.11/site-packages/setuptools/__init__.py",
        f"by {prefix}",
        "of a package, with spaces",
        "of the profile\n",
    ]
    assert (prefix / "venv/bin/python").resolve() == prefix / "bin/python3.11"
    assert project.within("tiny").stdout == f"tiny-lib 1.0 of {prefix}\n"
    assert project.within("no-such-program").returncode == 127


@pytest.mark.slow
def test_what_lies_in_a_home_is_not_seen(project: Project, conda_channel: Path) -> None:
    url = conda_channel.as_uri()
    project.lay("tiny-lib")
    project.lock(url)
    project.built(url)
    local = project.folder / ".local/lib/python3.11/site-packages"
    local.mkdir(parents=True)
    (local / "tiny_lib.py").write_text("raise SystemExit('of somebody else')\n")
    project.environment["HOME"] = str(project.folder)
    done = project.within("python", "-c", "import tiny_lib")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_the_records_are_what_conda_reads(prefix: Path) -> None:
    import rattler

    found = [rattler.PrefixRecord.from_path(p) for p in (prefix / "conda-meta").glob("*.json")]
    assert {r.name.normalized for r in found} == {"python", *PLAIN}
    assert {r.channel for r in found} == {"https://conda.anaconda.org/conda-forge/"}
    for r in found:
        assert r.url.startswith("https://conda.anaconda.org/conda-forge/")
    assert (prefix / "conda-meta/history").is_file()
    # Other users of this machine may read what is there.
    modes = {p.stat().st_mode & 0o777 for p in (prefix / "conda-meta").iterdir()}
    assert modes == {0o644}


@pytest.mark.slow
def test_a_blank_in_its_path(project: Project, source: str) -> None:
    """As in the folder that macOS has for programs' data."""
    project.environment["ENVBUILDER_DATA_DIR"] = str(project.folder / "with blank")
    prefix = prefix_of(project.built(source))
    assert project.within("tiny").stdout == f"tiny-lib 1.0 of {prefix}\n"
    script = str(prefix / "lib/envbuilder/activate.sh")
    (found,) = within("bash", '. "$1"; command -v python', script)
    assert found == f"{prefix}/venv/bin/python"


@pytest.mark.slow
def test_a_path_longer_than_packages_take_is_told(
    project: Project, source: str, tmp_path: Path
) -> None:
    long = tmp_path / "/".join(["x" * 60] * 5)
    done = exited(1, project.build(source, ENVBUILDER_DATA_DIR=str(long)))
    assert "placed-1.0-0.tar.bz2: cannot be installed in" in done.stderr
    assert "ENVBUILDER_DATA_DIR" in done.stderr


@pytest.mark.slow
def test_elsewhere_it_has_the_same_digest(project: Project, source: str) -> None:
    done = succeeded(
        project.run(source, "reproduce", "--profile", "little", "--backend", "conda", "--json")
    )
    assert json.loads(done.stdout)["status"] == "equal"


def test_documents_name_conda_packages_and_clean_removes_all(project: Project, source: str) -> None:
    result = project.built(source)
    bill = read_json(Path(result["documents"]["sbom"]))
    known = {c["purl"]: c for c in bill["components"]}
    placed = "pkg:conda/placed@1.0?build=0&channel=conda-forge&subdir=linux-64&type=tar.bz2"
    assert known[placed]["licenses"][0]["license"]["id"] == "Apache-2.0"
    names = {p["name"] for p in bill["metadata"]["properties"]}
    assert {"envbuilder:lock", "envbuilder:conda-lock"} <= names
    assert "pkg:pypi/setuptools@80.9.0" in known
    statement = read_json(Path(result["documents"]["provenance"]))
    used = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert "urn:envbuilder:conda-lock:little" in {d["uri"] for d in used}
    assert project.run(source, "clean", "--all", "--yes", "--profile", "little").returncode == 0
    assert project.left() == []


# --- activation


SHELLS = {
    "bash": ("--norc", "--noprofile", "-euc"),
    "dash": ("-euc",),
    "zsh": ("-feuc",),
}


def within(shell: str, script: str, *arguments: str) -> list[str]:
    """What a script prints in a shell that is strict about unset variables."""
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"no {shell}")
    # zsh sets some of these itself.
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/", "LOGNAME": "me", "LITTLE": "mine"}
    environment["VIRTUAL_ENV"] = "/else"
    done = ran([program, *SHELLS[shell], script, shell, *arguments], env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


_STATE = 'state() { command -v python || true; env -0 | sort -z | tr "\\0" "|"; echo; }\n'


@pytest.mark.parametrize(
    "shell", [s if s == "bash" else pytest.param(s, marks=pytest.mark.slow) for s in SHELLS]
)
def test_activation_and_back(prefix: Path, shell: str) -> None:
    script = str(prefix / "lib/envbuilder/activate.sh")
    steps = 'state; . "$1"; state; . "$1"; state; deactivate; state; command -v deactivate || :'
    before, python, once, again, twice, after = within(shell, _STATE + steps, script)
    assert python == again == f"{prefix}/venv/bin/python"
    assert twice == once
    assert after == before
    variables = dict(v.split("=", 1) for v in once.split("|") if v)
    assert variables["PATH"] == f"{prefix}/venv/bin:{prefix}/bin:/usr/bin:/bin"
    assert variables["CONDA_PREFIX"] == str(prefix)
    assert variables["LITTLE"] == "of the profile"
    assert variables["ACTIVATED"] == f"by {prefix}"


def test_activation_by_conda(prefix: Path) -> None:
    """What `conda activate PREFIX` does, as its documentation has it: PATH, then activate.d."""
    conda_activate = """
    activate() {
        export CONDA_PREFIX="$1" PATH="$1/bin:$PATH"
        for s in "$1"/etc/conda/activate.d/*.sh; do . "$s"; done
    }
    deactivate() {
        PATH="${PATH/"$1/bin:"/}"
        for s in $(printf '%s\\n' "$1"/etc/conda/deactivate.d/*.sh | sort -r); do . "$s"; done
        unset CONDA_PREFIX
    }
    """
    script = f'{_STATE}{conda_activate}state; activate "$1"; state; deactivate "$1"; state'
    before, python, inside, after = within("bash", script, str(prefix))
    assert python == f"{prefix}/venv/bin/python"
    assert f"PATH={prefix}/venv/bin:{prefix}/bin:/usr/bin:/bin|" in inside
    assert after == before


# --- hosts


@pytest.mark.slow
def test_without_a_gpu_it_can_be_built_and_not_run(project: Project, conda_channel: Path) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has an NVIDIA GPU")
    url = conda_channel.as_uri()
    project.lay("gpu-only", virtual={**VIRTUAL, "__cuda": "12.4"})
    project.lock(url)
    assert "warning: no NVIDIA GPU was found" in succeeded(project.build(url)).stderr
    assert project.within("true").returncode == 125
    assert "locked for CUDA 12.4" in project.within("true").stderr


# --- the whole of it


def stub(version: str, subdir: str) -> conda.Package:
    """A Python that can be locked and is never installed."""
    files = {"bin/python": conda.Entry(b"a stand-in\n" * 20)}
    return conda.Package(
        name="python", version=version, build="0_cpython", subdir=subdir, files=files
    )


@pytest.mark.soak
@pytest.mark.torch
def test_the_cpu_profile_trains_inside(
    cli: Cli, torch_prefix: Path, conda_python: conda.Package, tmp_path: Path
) -> None:
    """The shipped profile and lock of wheels, on a Python that came as a conda package."""
    channel = tmp_path / "channel"
    # Debian's Python needs the glibc of this machine, and the profile declares an older one.
    conda.write(replace(conda_python, depends=()), channel)
    for other in (("3.12.1", "linux-64"), ("3.11.2", "linux-aarch64"), ("3.12.1", "linux-aarch64")):
        conda.write(stub(*other), channel)
    conda.index(channel)
    (tmp_path / "envbuilder.yaml").write_text("")
    chosen = ("--profile", "cpu", "--backend", "conda")
    with serve(channel) as served:
        environment = {CHANNEL: served.url}
        done = succeeded(cli("lock", *chosen, environment=environment))
        report = tmp_path / "report.json"
        quick = ("--quick", "--epochs", "1", "--output", str(report))
        done = cli("verify", *chosen, *quick, environment=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "VERIFIED: cpu did the work" in done.stdout
    found = read_json(report)
    assert found["backend"] == "conda"
    assert found["training"]["epochs"][0]["seconds"] > 0
    assert "libtcmalloc" in found["threads"]["allocator"]
    prefix = Path(found["artifact"]["ref"])
    assert prefix != torch_prefix
    code = "import sys, torch; print(torch.__version__, torch.__file__, sys.base_prefix)"
    done = cli("run", *chosen, "--", "python", "-c", code)
    place = f"{prefix}/venv/lib/python3.11/site-packages/torch/__init__.py"
    assert done.stdout.split() == ["2.13.0+cpu", place, str(prefix)], done.stderr
    edited = prefix / "lib/python3.11/random.py"
    edited.write_bytes(edited.read_bytes() + b"\n")
    done = exited(5, cli("verify", *chosen, "--quick"))
    assert "lib/python3.11/random.py (changed)" in done.stdout + done.stderr
