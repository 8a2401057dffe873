"""The conda backend for real, from a local channel: built, activated, tampered with and killed."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from envbuilder.conda import install
from envbuilder.conda.lockfile import Package
from envbuilder.errors import BuildError
from envbuilder.plan import InstallConda
from tests.conftest import missing
from tests.integration import conda_channel as conda
from tests.integration import conda_packages as packages
from tests.integration.conda_server import serve
from tests.integration.conftest import start

if TYPE_CHECKING:
    from tests.integration.conftest import Cli

PLAIN = ("tiny-lib", "placed", "activated", "scripted")
VIRTUAL = {"__unix": "0", "__linux": "4.18", "__glibc": "2.36", "__archspec": "1=x86_64"}
CHANNEL = "ENVBUILDER_INDEX_CONDA_FORGE"
KILLS = 3
"""Moments at which a build is killed; 20 in a soak."""


def lay(project: Path, *wanted: str, torch: str = "wheels", virtual: Any = VIRTUAL) -> None:
    """A project with the profile `little`: one small wheel on top of conda's Python."""
    stated = {
        "description": "Conda packages and one small wheel",
        "accelerator": "cpu",
        "backends": ["venv", "conda"],
        "platforms": ["linux/amd64"],
        "python": {"default": "3.11", "supported": ["3.11"]},
        "tools": {"uv": "0.13.8"},
        "requirements": ["setuptools==80.9.0"],
        "environment": {"LITTLE": "of the profile"},
        "expects": {"device": "cpu", "torch": "2.13.0"},
        "conda": {
            "packages": list(wanted),
            "torch": torch,
            "virtual_packages": {"linux/amd64": virtual},
        },
    }
    (project / "profiles" / "locks").mkdir(parents=True, exist_ok=True)
    (project / "envbuilder.yaml").write_text("")
    (project / "profiles" / "little.yaml").write_text(json.dumps(stated))


@pytest.fixture(scope="session")
def wheels_lock(
    session_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> str:
    """The lock of the small wheel, made from the user's package index."""
    folder = tmp_path_factory.mktemp("little")
    lay(folder)
    done = start(("lock", "--profile", "little"), session_environment, cwd=folder)
    if done.returncode != 0:
        missing("network", f"the package index cannot be asked: {done.stderr[-400:]}")
    return (folder / "profiles" / "locks" / "little.json").read_text()


class Project:
    """A project with `little`, whose data is its own."""

    def __init__(self, cli: Cli, folder: Path, wheels_lock: str) -> None:
        self.folder, self._cli, self._wheels_lock = folder, cli, wheels_lock
        self.envs = folder / "data" / "envs"
        self.environment = {"ENVBUILDER_DATA_DIR": str(folder / "data")}

    def lay(self, *wanted: str, **options: Any) -> None:
        lay(self.folder, *wanted, **options)
        (self.folder / "profiles" / "locks" / "little.json").write_text(self._wheels_lock)

    def run(self, url: str, *arguments: str, **variables: str) -> Any:
        return self._cli(*arguments, environment={**self.environment, CHANNEL: url, **variables})

    def lock(self, url: str) -> None:
        done = self.run(url, "lock", "--backend", "conda", "--profile", "little")
        assert done.returncode == 0, done.stderr

    def build(self, url: str, *options: str, **variables: str) -> Any:
        arguments = ("build", "--profile", "little", "--backend", "conda", *options, "--json")
        return self.run(url, *arguments, **variables)

    def built(self, url: str, *options: str, **variables: str) -> Any:
        done = self.build(url, *options, **variables)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def started(self, url: str) -> subprocess.Popen[str]:
        """A build that goes on; `environment` must be complete."""
        command = ["build", "--profile", "little", "--backend", "conda", "--rebuild"]
        return subprocess.Popen(
            [sys.executable, "-m", "envbuilder", *command],
            cwd=self.folder,
            env={**os.environ, **self.environment, CHANNEL: url},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def within(self, *command: str) -> Any:
        """A command by `run`; the channel is not needed any more."""
        start = ("run", "--profile", "little", "--backend", "conda", "--")
        return self.run("http://127.0.0.1:1/gone", *start, *command)

    def left(self) -> list[str]:
        """What is where environments are, but locks."""
        found = sorted(self.envs.iterdir()) if self.envs.is_dir() else []
        return [p.name for p in found if not p.name.endswith(".lock")]


@pytest.fixture
def project(cli: Cli, tmp_path: Path, wheels_lock: str) -> Project:
    made = Project(cli, tmp_path, wheels_lock)
    made.lay(*PLAIN)
    return made


def prefix_of(result: Any) -> Path:
    return Path(result["artifact"]["ref"])


def tree_of(result: Any) -> str:
    """The digest of everything in the prefix, what names its place included."""
    return str(json.loads((prefix_of(result) / "envbuilder.json").read_text())["tree"])


def contents(prefix: Path) -> dict[str, bytes]:
    files = (p for p in prefix.rglob("*") if p.is_file() and not p.is_symlink())
    return {str(p.relative_to(prefix)): p.read_bytes() for p in files}


@pytest.mark.parametrize("over", ["http", "file"])
def test_from_nothing_to_a_command_and_again_the_same(
    project: Project, conda_channel: Path, over: str
) -> None:
    with serve(conda_channel) as served:
        url = served.url if over == "http" else conda_channel.as_uri()
        project.lock(url)
        first = project.built(url)
        prefix = prefix_of(first)
        assert (first["status"], first["artifact"]["kind"]) == ("built", "conda")
        before, tree = contents(prefix), tree_of(first)
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
    done = project.within("python", "-c", code)
    assert done.returncode == 7, done.stderr
    assert done.stdout.split("|") == [
        *(f"{prefix}/venv", str(prefix)),
        f"{prefix}/venv/lib/python3.11/site-packages/setuptools/__init__.py",
        *(f"by {prefix}", "of a package, with spaces", "of the profile\n"),
    ]
    assert (prefix / "venv/bin/python").resolve() == prefix / "bin/python3.11"
    assert project.within("tiny").stdout == f"tiny-lib 1.0 of {prefix}\n"
    assert project.within("no-such-program").returncode == 125


@pytest.mark.parametrize("torch", ["wheels", "conda"])
def test_what_lies_in_a_home_is_not_seen(project: Project, conda_channel: Path, torch: str) -> None:
    url = conda_channel.as_uri()
    project.lay("tiny-lib", torch=torch)
    project.lock(url)
    project.built(url)
    local = project.folder / ".local/lib/python3.11/site-packages"
    local.mkdir(parents=True)
    (local / "tiny_lib.py").write_text("raise SystemExit('of somebody else')\n")
    project.environment["HOME"] = str(project.folder)
    done = project.within("python", "-c", "import tiny_lib")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_records_are_what_conda_reads(project: Project, conda_channel: Path) -> None:
    import rattler

    url = conda_channel.as_uri()
    project.lock(url)
    prefix = prefix_of(project.built(url))
    found = [rattler.PrefixRecord.from_path(p) for p in (prefix / "conda-meta").glob("*.json")]
    assert {r.name.normalized for r in found} == {"python", *PLAIN}
    assert {r.channel for r in found} == {"https://conda.anaconda.org/conda-forge/"}
    assert all(r.url.startswith("https://conda.anaconda.org/conda-forge/") for r in found)
    assert (prefix / "conda-meta" / "history").is_file()
    # Other users of this machine may read what is there.
    modes = {p.stat().st_mode & 0o777 for p in (prefix / "conda-meta").iterdir()}
    assert modes == {0o644}


def test_a_blank_in_its_path(project: Project, conda_channel: Path) -> None:
    """As in the folder that macOS has for programs' data."""
    url = conda_channel.as_uri()
    project.lock(url)
    project.environment["ENVBUILDER_DATA_DIR"] = str(project.folder / "with blank")
    prefix = prefix_of(project.built(url))
    assert project.within("tiny").stdout == f"tiny-lib 1.0 of {prefix}\n"
    script = str(prefix / "lib/envbuilder/activate.sh")
    (found,) = within("bash", '. "$1"; command -v python', script)
    assert found == f"{prefix}/venv/bin/python"


def test_a_path_longer_than_packages_take_is_told(
    project: Project, conda_channel: Path, tmp_path: Path
) -> None:
    url = conda_channel.as_uri()
    project.lock(url)
    long = tmp_path / "/".join(["x" * 60] * 5)
    done = project.build(url, ENVBUILDER_DATA_DIR=str(long))
    assert done.returncode == 1
    assert "placed-1.0-0.tar.bz2: cannot be installed in" in done.stderr
    assert "ENVBUILDER_DATA_DIR" in done.stderr


def test_elsewhere_it_has_the_same_digest(project: Project, conda_channel: Path) -> None:
    url = conda_channel.as_uri()
    project.lock(url)
    done = project.run(url, "reproduce", "--profile", "little", "--backend", "conda", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["status"] == "equal"


def test_documents_name_conda_packages_and_clean_removes_all(
    project: Project, conda_channel: Path
) -> None:
    url = conda_channel.as_uri()
    project.lock(url)
    result = project.built(url)
    bill = json.loads(Path(result["documents"]["sbom"]).read_text())
    known = {c["purl"]: c for c in bill["components"]}
    placed = "pkg:conda/placed@1.0?build=0&channel=conda-forge&subdir=linux-64&type=tar.bz2"
    assert known[placed]["licenses"][0]["license"]["id"] == "Apache-2.0"
    names = {p["name"] for p in bill["metadata"]["properties"]}
    assert {"envbuilder:lock", "envbuilder:conda-lock"} <= names
    assert "pkg:pypi/setuptools@80.9.0" in known
    statement = json.loads(Path(result["documents"]["provenance"]).read_text())
    used = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert "urn:envbuilder:conda-lock:little" in {d["uri"] for d in used}
    assert project.run(url, "clean", "--profile", "little").returncode == 0
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
    done = subprocess.run(
        [program, *SHELLS[shell], script, shell, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


_STATE = 'state() { command -v python || true; env -0 | sort -z | tr "\\0" "|"; echo; }\n'


@pytest.mark.parametrize("shell", SHELLS)
def test_activation_and_back(project: Project, conda_channel: Path, shell: str) -> None:
    url = conda_channel.as_uri()
    project.lock(url)
    prefix = prefix_of(project.built(url))
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


def test_activation_in_fish_and_back(project: Project, conda_channel: Path) -> None:
    fish = shutil.which("fish")
    if fish is None:
        pytest.skip("no fish")
    url = conda_channel.as_uri()
    project.lock(url)
    prefix = prefix_of(project.built(url))
    script = """
    function state; command -v python; env -0 | sort -z | tr "\\0" "|"; echo; end
    state; source $argv[1]; state; source $argv[1]; state; deactivate; state
    """
    done = subprocess.run(
        [fish, "-N", "-c", script, str(prefix / "lib/envbuilder/activate.fish")],
        env={"PATH": "/usr/bin:/bin", "HOME": str(project.folder), "VIRTUAL_ENV": "/else"},
        capture_output=True,
        text=True,
        check=True,
    )
    before, python, once, again, twice, after = done.stdout.splitlines()
    assert python == again == f"{prefix}/venv/bin/python"
    assert (twice, after) == (once, before)
    assert f"PATH={prefix}/venv/bin:{prefix}/bin:/usr/bin:/bin|" in once
    assert "ACTIVATED_VARIABLE=of a package, with spaces|" in once


def test_activation_by_conda(project: Project, conda_channel: Path) -> None:
    """What `conda activate PREFIX` does, as its documentation has it: PATH, then activate.d."""
    url = conda_channel.as_uri()
    project.lock(url)
    prefix = prefix_of(project.built(url))
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


# --- what hurts


@pytest.mark.parametrize("over", ["http", "file"])
@pytest.mark.parametrize("package", [packages.TINY_LIB, packages.PLACED], ids=lambda p: p.kind)
def test_a_tampered_archive_is_refused(
    project: Project, conda_channel: Path, tmp_path: Path, over: str, package: conda.Package
) -> None:
    hurt = conda.copy(conda_channel, tmp_path / "hurt")
    with serve(hurt) as served:
        url = served.url if over == "http" else hurt.as_uri()
        project.lock(url)
        conda.tamper(hurt, package)
        fresh = {"ENVBUILDER_CACHE_DIR": str(tmp_path / "cache")}
        done = project.build(url, **fresh)
        assert done.returncode == 1
        assert f"{package.file} from" in done.stderr
        assert "wrong hash" in done.stderr
        assert project.left() == []
        shutil.rmtree(hurt)
        conda.copy(conda_channel, hurt)
        assert project.built(url, **fresh)["status"] == "built"


def test_two_owners_of_one_path_are_refused(project: Project, conda_channel: Path) -> None:
    url = conda_channel.as_uri()
    project.lay("owner-a", "owner-b")
    project.lock(url)
    done = project.build(url)
    assert done.returncode == 1
    assert "owner-a and owner-b both install share/owned.txt" in done.stderr
    assert project.left() == []


def test_the_same_content_twice_is_no_quarrel(
    project: Project, conda_channel: Path, tmp_path: Path
) -> None:
    shared = {"share/same.txt": conda.Entry(b"the same\n" * 30)}
    own = conda.copy(conda_channel, tmp_path / "own")
    for name in ("one", "other"):
        conda.write(conda.Package(name=name, files=shared), own)
    conda.index(own)
    project.lay("one", "other")
    project.lock(own.as_uri())
    first = project.built(own.as_uri())
    assert (prefix_of(first) / "share/same.txt").read_bytes() == b"the same\n" * 30
    assert tree_of(project.built(own.as_uri(), "--rebuild")) == tree_of(first)


@pytest.mark.parametrize("path", ["../escaped.txt", "share/../../escaped.txt", "/escaped.txt"])
def test_a_path_that_leads_out_is_refused(
    project: Project, conda_channel: Path, tmp_path: Path, path: str
) -> None:
    own = conda.copy(conda_channel, tmp_path / "own")
    conda.write(conda.Package(name="evil", files={path: conda.Entry(b"evil\n" * 30)}), own)
    conda.index(own)
    project.lay("evil")
    project.lock(own.as_uri())
    done = project.build(own.as_uri())
    assert done.returncode == 1
    assert "evil-1.0-0.conda: leads out of its environment" in done.stderr
    assert project.left() == []
    assert not list(tmp_path.rglob("escaped.txt"))


def installing(folder: Path, package: conda.Package, subdir: str = "linux-64") -> InstallConda:
    """A step that installs one package from `folder`, which is a channel."""
    made = Package(
        name=package.name,
        version=package.version,
        build=package.build,
        build_number=0,
        subdir=package.subdir,
        file=package.file,
        channel="channel",
        sha256="0" * 64,
        size=None,
    )
    return InstallConda(
        what="install",
        packages=(made,),
        subdir=subdir,
        folder=str(folder),
        channels={"channel": "https://channel.invalid"},
        env=str(folder / "env"),
        prefix="/final",
        cache=str(folder / "cache"),
    )


def test_what_is_no_package_or_of_another_platform_is_a_short_failure(tmp_path: Path) -> None:
    package = packages.OWNER_A
    place = conda.write(package, tmp_path / "channel")
    with pytest.raises(BuildError, match=r"is a package for linux-64, not for osx-arm64"):
        install.install(installing(tmp_path, package, "osx-arm64"), print)
    place.write_bytes(b"no archive")
    with pytest.raises(BuildError, match=r"owner-a-1\.0-0\.conda: states no paths"):
        install.install(installing(tmp_path, package), print)
    assert not (tmp_path / "env").exists()


def members(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_a_failure_of_the_library_is_told_in_one_line_without_folders(
    project: Project, conda_channel: Path, tmp_path: Path
) -> None:
    """The package's list has a file that its archive lacks."""
    own = conda.copy(conda_channel, tmp_path / "own")
    package = replace(packages.OWNER_A, name="lacking")
    whole = members(conda.write(package, own))
    place = conda.write(replace(package, files={}), own)
    lacking = members(place)
    place.unlink()
    with zipfile.ZipFile(place, "w") as archive:
        for name in whole:
            archive.writestr(name, (whole if name.startswith("info") else lacking)[name])
    conda.index(own)
    project.lay("lacking")
    project.lock(own.as_uri())
    done = project.build(own.as_uri())
    assert done.returncode == 1
    (said,) = (line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert "conda packages cannot be installed: " in said
    assert "share/owned.txt" in said
    assert str(tmp_path) not in said
    assert "profile's conda.packages" in done.stderr
    assert project.left() == []


def test_scripts_are_not_run_and_that_is_said(project: Project, conda_channel: Path) -> None:
    url = conda_channel.as_uri()
    project.lock(url)
    done = project.build(url)
    assert "post-link scripts are not run" in done.stderr
    assert "scripted" in done.stderr
    prefix = prefix_of(json.loads(done.stdout))
    assert (prefix / "share/scripted.txt").is_file()
    assert not list(prefix.glob("*-ran"))


def test_a_channel_that_vanishes_is_told_and_the_next_build_works(
    project: Project, conda_channel: Path, tmp_path: Path
) -> None:
    fresh = {"ENVBUILDER_CACHE_DIR": str(tmp_path / "cache")}
    with serve(conda_channel) as served:
        project.lock(served.url)
        served.vanish_after = 1 << 20
        done = project.build(served.url, **fresh)
    assert done.returncode == 1
    assert "cannot be fetched" in done.stderr
    assert "Traceback" not in done.stderr
    assert project.left() == []
    with serve(conda_channel) as served:
        assert project.built(served.url, **fresh)["status"] == "built"


@pytest.mark.parametrize("secret", ["token", "password"])
def test_what_opens_a_channel_is_nowhere_told(
    project: Project, conda_channel: Path, tmp_path: Path, secret: str
) -> None:
    fresh = {"ENVBUILDER_CACHE_DIR": str(tmp_path / "cache")}
    closed = {"token": "very-secret-token"} if secret == "token" else {"password": True}
    with serve(conda_channel, **closed) as served:  # type: ignore[arg-type]
        project.lock(served.secret_url)
        done = project.build(served.secret_url, **fresh)
        assert done.returncode == 0, done.stderr
        wrong = served.secret_url.replace("very-secret", "very-secret-and-wrong")
        other = {"ENVBUILDER_CACHE_DIR": str(tmp_path / "other")}
        refused = project.build(wrong, "--rebuild", **other)
    assert refused.returncode == 1
    said = done.stdout + done.stderr + refused.stderr
    assert "very-secret" not in said
    shutil.rmtree(tmp_path / "cache" / "store")
    for path, content in contents(tmp_path).items():
        assert b"very-secret" not in content, path


def test_a_channel_gone_altogether_is_told(
    project: Project, conda_channel: Path, tmp_path: Path
) -> None:
    project.lock(conda_channel.as_uri())
    done = project.build("http://127.0.0.1:1/gone", ENVBUILDER_CACHE_DIR=str(tmp_path / "cache"))
    assert done.returncode == 1
    assert "cannot be fetched" in done.stderr
    assert project.left() == []


def test_an_edited_file_is_named_and_reaches_no_other_environment(
    project: Project, conda_channel: Path, tmp_path: Path
) -> None:
    url = conda_channel.as_uri()
    project.lock(url)
    first = prefix_of(project.built(url))
    (first / "share/placed.txt").write_text("edited")
    (first / "lib/python3.11/site-packages/tiny_lib/__init__.py").write_text("edited")
    second = prefix_of(project.built(url, ENVBUILDER_DATA_DIR=str(tmp_path / "second")))
    assert (second / "share/placed.txt").read_bytes() == packages.PLACED.files[
        "share/placed.txt"
    ].content
    verify = ("verify", "--profile", "little", "--backend", "conda", "--quick")
    done = project.run(url, *verify)
    assert done.returncode == 5
    assert "share/placed.txt (changed, of placed)" in done.stderr + done.stdout
    assert "tiny_lib/__init__.py (changed, of tiny-lib)" in done.stderr + done.stdout


def test_a_moved_environment_is_built_anew(project: Project, conda_channel: Path) -> None:
    """Its files name their place."""
    url = conda_channel.as_uri()
    project.lock(url)
    project.built(url)
    (project.folder / "data").rename(project.folder / "moved")
    moved = {"ENVBUILDER_DATA_DIR": str(project.folder / "moved")}
    assert project.built(url, **moved)["status"] == "built"


# --- hosts


def test_a_lock_that_the_host_does_not_fit_is_3(project: Project, conda_channel: Path) -> None:
    url = conda_channel.as_uri()
    project.lay(*PLAIN, virtual={"__glibc": "99.0"})
    project.lock(url)
    done = project.build(url, "--dry-run")
    assert done.returncode == 3
    assert "older than 99.0" in done.stderr


def test_without_a_gpu_it_can_be_built_and_not_run(project: Project, conda_channel: Path) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has an NVIDIA GPU")
    url = conda_channel.as_uri()
    project.lay("gpu-only", virtual={**VIRTUAL, "__cuda": "12.4"})
    project.lock(url)
    done = project.build(url)
    assert done.returncode == 0, done.stderr
    assert "warning: no NVIDIA GPU was found" in done.stderr
    assert project.within("true").returncode == 125
    assert "locked for CUDA 12.4" in project.within("true").stderr


def test_torch_from_conda_takes_no_wheel(project: Project, conda_channel: Path) -> None:
    """A library stands in for torch."""
    url = conda_channel.as_uri()
    project.lay("tiny-lib", torch="conda")
    (project.folder / "profiles" / "locks" / "little.json").unlink()
    project.lock(url)
    prefix = prefix_of(project.built(url))
    assert not (prefix / "venv").exists()
    done = project.within("python", "-c", "import sys, tiny_lib; print(sys.prefix)")
    assert done.stdout == f"{prefix}\n", done.stderr


# --- killed


def killed_at(project: Project, url: str, seconds: float) -> int:
    """Start a build, kill it after a while; its exit code."""
    child = project.started(url)
    time.sleep(seconds)
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=60)
    return child.returncode


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_build_that_is_stopped_takes_its_folder_away(
    project: Project,
    conda_channel: Path,
    session_environment: dict[str, str],
    number: signal.Signals,
) -> None:
    url = conda_channel.as_uri()
    project.environment = {**session_environment, **project.environment}
    project.lock(url)
    child = project.started(url)
    end = time.monotonic() + 60
    while not list(project.envs.glob(".*.partial/env")):
        assert time.monotonic() < end, "it did not begin to install"
        time.sleep(0.005)
    child.send_signal(number)
    _, said = child.communicate(timeout=60)
    assert child.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143}[number], said
    assert "Traceback" not in said
    assert project.left() == []


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_a_killed_build_leaves_nothing_half_made(
    project: Project,
    conda_channel: Path,
    session_environment: dict[str, str],
    seed: int,
) -> None:
    url = conda_channel.as_uri()
    project.environment = {**session_environment, **project.environment}
    project.lock(url)
    started = time.monotonic()
    first = project.built(url)
    whole = time.monotonic() - started
    sound, tree = contents(prefix_of(first)), tree_of(first)
    chance, killed = random.Random(seed), 0
    for _ in range(20 if seed else KILLS):
        if chance.random() < 0.5:
            shutil.rmtree(prefix_of(first))
        killed += killed_at(project, url, chance.uniform(0.1, 1) * whole) == -signal.SIGKILL
        if prefix_of(first).exists():
            assert contents(prefix_of(first)) == sound
        again = project.built(url)
        assert (again["artifact"], tree_of(again)) == (first["artifact"], tree)
    assert killed
    assert project.built(url, "--rebuild")["artifact"] == first["artifact"]
    assert not list(project.envs.glob(".*.partial"))


# --- the whole of it


def stub(version: str, subdir: str) -> conda.Package:
    """A Python that can be locked and is never installed."""
    files = {"bin/python": conda.Entry(b"a stand-in\n" * 20)}
    return conda.Package(
        name="python", version=version, build="0_cpython", subdir=subdir, files=files
    )


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
        done = cli("lock", *chosen, environment=environment)
        assert done.returncode == 0, done.stderr
        report = tmp_path / "report.json"
        done = cli("verify", *chosen, "--quick", "--output", str(report), environment=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "VERIFIED: cpu did the work" in done.stdout
    found = json.loads(report.read_text())
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
    done = cli("verify", *chosen, "--quick")
    assert done.returncode == 5
    assert "lib/python3.11/random.py (changed, of python)" in done.stdout + done.stderr
