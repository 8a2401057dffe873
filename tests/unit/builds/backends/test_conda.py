"""The conda backend: plans are pure and complete; hosts and scripts are judged."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from envbuilder.builds import attestations, plan, sbom
from envbuilder.builds.backends import conda, integrity
from envbuilder.builds.request import Request
from envbuilder.core import process, resources
from envbuilder.core.errors import BuildError, HostError, InvalidError, ToolError
from envbuilder.core.settings import Settings
from envbuilder.host.model import Cpu, Gpu, Host
from envbuilder.packages.conda import lock, lock as conda_lockfile, prefixes
from envbuilder.profiles import lock as lockfile, profile as profiles
from tests.support.conda_locks import package
from tests.support.pipeline import a_build
from tests.support.repositories import lay
from tests.support.shipped import shipped_lock, shipped_profile

CPU = shipped_profile("cpu")
WHEELS = shipped_lock("cpu")
CHANNELS = {"conda-forge": "https://conda.anaconda.org/conda-forge", "own": "https://own.invalid"}
HOST = Host(
    os="linux",
    kernel="6.1.0-25-amd64",
    machine="x86_64",
    platform="linux/amd64",
    libc="glibc 2.36",
    cpu=Cpu(flags=("avx", "avx2", "f16c", "fma")),
)


PYTHON = package("python", "3.11.9")
LIBRARY = package("tiny-lib", subdir="noarch", noarch="python", depends=("python >=3.10",))


def locked(
    *packages: conda_lockfile.Package, profile: profiles.Profile = CPU, **virtual: str
) -> conda_lockfile.Lock:
    return conda_lockfile.Lock(
        schema=1,
        profile=profile.name,
        inputs=conda_lockfile.inputs_digest(profile),
        channels=profile.conda.channels,
        targets=(
            conda_lockfile.Target(
                platform="linux/amd64",
                python="3.11",
                virtual_packages=virtual,
                packages=(PYTHON, *packages),
            ),
        ),
    )


ARM = conda_lockfile.Target(
    platform="linux/arm64",
    python="3.11",
    virtual_packages={},
    packages=(replace(PYTHON, subdir="linux-aarch64"),),
)


def planned(
    found: Settings,
    *packages: conda_lockfile.Package,
    profile: profiles.Profile = CPU,
    rattler: str = "0.28.0",
    wheels: lockfile.Lock = WHEELS,
) -> plan.Plan:
    own = locked(*packages, profile=profile)
    return conda.plan(
        a_build(found, profile, wheels),
        lockfile.select(WHEELS, "linux/amd64", "3.11"),
        own,
        own.targets[0],
        rattler=rattler,
        channels=CHANNELS,
    )


def all_steps(made: plan.Plan) -> list[plan.Step]:
    """The steps, each after those in it."""
    steps: list[plan.Step] = []
    for each in made.steps:
        if isinstance(each, plan.ShareWheels):
            steps += (each.unpack_uv, each.make_venv, each.install)
        steps.append(each)
    return steps


def step(made: plan.Plan, kind: type[Any]) -> Any:
    return next(s for s in all_steps(made) if isinstance(s, kind))


def commands(made: plan.Plan) -> list[tuple[str, ...]]:
    return [s.argv for s in all_steps(made) if isinstance(s, plan.Run)]


# --- plans


def test_every_file_is_checked_and_packages_of_one_name_lie_apart(found: Settings) -> None:
    twin = package("twin", channel="own", file="python-3.11.9-0.conda", sha256="a" * 64)
    made = planned(found, LIBRARY, twin)
    linked = [s for s in made.steps if isinstance(s, plan.LinkFiles)]
    unpacked = {step(made, plan.UnpackTool).file, *step(made, plan.UnpackLibraries).files}
    unpacked |= {*step(made, plan.UnpackWheels).files}
    assert {f for s in linked for f in s.files} | unpacked == set(made.files)
    installed = step(made, lock.InstallConda)
    assert {prefixes.archive(installed, p) for p in installed.packages} == {
        Path(s.folder) / f.basename for s in linked for f in s.files if f.kind == "conda"
    }
    assert made.steps.index(linked[0]) < made.steps.index(installed)


def test_wheels_go_into_a_venv_and_never_into_the_prefix(found: Settings) -> None:
    made = planned(found)
    env = step(made, lock.InstallConda).env
    venv, pip = commands(made)
    shared = step(made, plan.ShareWheels)
    assert (shared.env, shared.venv) == (env, f"{env}/venv")
    assert venv[-1] == shared.scratch
    assert venv[venv.index("--python") + 1] == f"{env}/bin/python3.11"
    assert pip[pip.index("--python") + 1] == f"{shared.scratch}/bin/python"
    assert {"--offline", "--no-index", "--require-hashes", "--no-deps"} <= set(pip)
    home = step(made, lock.Rehome)
    assert home.settings["home"] == f"{made.artifact.ref}/bin"
    assert home.settings["version_info"] == "3.11.9"
    assert home.python == "../../bin/python3.11"


def test_it_is_made_beside_and_put_in_place_at_the_end(found: Settings) -> None:
    made = planned(found)
    installed = step(made, lock.InstallConda)
    moved = made.steps[-1]
    assert isinstance(moved, plan.Move)
    assert isinstance(made.steps[-2], plan.Seal)
    assert made.steps[-2].base_python == "", "its interpreter is one of its files"
    assert (moved.source, moved.target) == (installed.env, installed.prefix)
    assert installed.prefix == made.artifact.ref
    for folder in (installed.env, installed.cache, installed.folder):
        assert folder.startswith(f"{made.workdir}/")


@pytest.mark.parametrize(
    ("packages", "seen"),
    [
        ((), False),
        ((package("pip", depends=("python >=3.9",)), package("zlib")), False),
        ((LIBRARY,), True),
        (
            (package("tiny-lib", depends=("", "python_abi 3.11.* *_cp311", "python-dateutil>=2")),),
            False,
        ),
    ],
)
def test_the_venv_sees_the_libraries_that_conda_brings(
    found: Settings, packages: tuple[conda_lockfile.Package, ...], seen: bool
) -> None:
    made = planned(found, *packages)
    assert ("--system-site-packages" in commands(made)[0]) is seen
    stated = step(made, lock.Rehome).settings["include-system-site-packages"]
    assert stated == str(seen).lower()


def test_everything_that_decides_changes_the_fingerprint(
    found: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = planned(found)
    other = [
        planned(found, LIBRARY),
        planned(found, rattler="0.28.1"),
        planned(found, profile=replace(CPU, environment={"A": "1"})),
    ]
    monkeypatch.setattr(prefixes, "templates_sha256", lambda: "changed")
    other.append(planned(found))
    assert len({base.fingerprint, *(p.fingerprint for p in other)}) == len(other) + 1


def test_documents_name_both_locks_and_every_package(found: Settings) -> None:
    made = planned(found, LIBRARY)
    uris = [d["uri"] for d in attestations.dependencies(made)]
    assert {"urn:envbuilder:lock:cpu", "urn:envbuilder:conda-lock:cpu"} <= set(uris)
    wanted = "pkg:conda/tiny-lib@1.0?build=0&channel=conda-forge&subdir=noarch&type=conda"
    assert wanted in uris
    older = package("a_b", file="a_b-1.0-py311_1.tar.bz2").as_file
    assert "build=py311_1" in sbom.file_purl(older)
    assert "type=tar.bz2" in sbom.file_purl(older)


# --- what is needed before anything is downloaded


def prepared(
    found: Settings, lock: conda_lockfile.Lock | None, host: Host = HOST, **asked: Any
) -> conda.CondaEnvironment:
    if lock is not None:
        lay(found.config_dir, {"profiles/locks/cpu.conda.json": conda_lockfile.dump(lock)})
    running = asked.pop("running", False)
    build = a_build(found, CPU, WHEELS, host=host, running=running, request=Request(**asked))
    return conda.prepare(build)


def test_a_prepared_environment_runs_in_an_activated_bash(found: Settings) -> None:
    made = prepared(found, locked(__glibc="2.28"))
    argv = made.command(["python", "-c", "a 'b'; c"])
    set_values = {n: each.value for n, each in made.variables({"OMP_NUM_THREADS": "3"}).items()}
    assert argv[0].endswith("/bash")
    assert argv[3] == f"{made.prefix}/lib/envbuilder/activate.sh"
    assert argv[4:] == ["python", "-c", "a 'b'; c"]
    assert set_values == {"PATH": f"{made.prefix}/lib/envbuilder/refused:{os.defpath}"}
    assert made.python == "venv/bin/python"


AGAIN = "envbuilder lock --backend conda --profile cpu"


@pytest.mark.parametrize(
    ("change", "said", "hint"),
    [
        (lambda lock: None, "has no conda lock", AGAIN),
        (lambda lock: replace(lock, inputs="0" * 64), "is stale", AGAIN),
        (lambda lock: replace(lock, targets=(ARM,)), "has no packages for linux", "It covers: "),
    ],
)
def test_without_a_lock_that_may_be_used_it_is_2(
    found: Settings, change: Callable[[conda_lockfile.Lock], Any], said: str, hint: str
) -> None:
    with pytest.raises(InvalidError, match=said) as caught:
        prepared(found, change(locked()))
    assert hint in caught.value.hint


def test_a_python_that_the_conda_lock_does_not_have_is_2(found: Settings) -> None:
    with pytest.raises(InvalidError, match=r"with Python 3\.12"):
        prepared(found, locked(), python="3.12")


@pytest.mark.parametrize("name", ["a:b", "it's", 'a"b', "$HOME", "`id`", "a\\b", "a\nb"])
def test_a_place_that_scripts_would_misread_is_2(found: Settings, name: str) -> None:
    with pytest.raises(InvalidError, match="would misinterpret this path"):
        prepared(replace(found, data_dir=found.data_dir / name), locked())


def test_without_py_rattler_it_is_4(found: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(ToolError, match="py-rattler, which is not installed") as caught:
        prepared(found, locked())
    assert caught.value.hint == "Run: pip install 'envbuilder-ml[conda]'"


def test_without_bash_it_is_4(found: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "which", lambda program: None)
    with pytest.raises(ToolError, match="bash is not on PATH"):
        prepared(found, locked())


@pytest.mark.parametrize(
    ("packages", "fails"), [((), True), ((package("gxx"),), False), ((package("zlib"),), True)]
)
def test_a_compiler_of_conda_will_do(
    found: Settings,
    monkeypatch: pytest.MonkeyPatch,
    packages: tuple[conda_lockfile.Package, ...],
    fails: bool,
) -> None:
    monkeypatch.setattr(process, "which", lambda program: "/bash" if program == "bash" else None)
    monkeypatch.setattr(conda, "check_tools", _no_compiler)
    if fails:
        with pytest.raises(ToolError, match="no compiler"):
            prepared(found, locked(*packages))
    else:
        prepared(found, locked(*packages))


def _no_compiler(profile: profiles.Profile) -> None:
    raise ToolError(f"no compiler for {profile.name}")


GPU = Gpu(vendor="nvidia", name="NVIDIA L4", state="usable", driver_version="550.54.15")


@pytest.mark.parametrize(
    ("virtual", "change", "level", "said"),
    [
        ({"__glibc": "2.37"}, {}, "impossible", "glibc 2.36 is older than 2.37"),
        ({"__glibc": "2.28"}, {"libc": "musl"}, "impossible", "the C library is musl"),
        ({"__glibc": "2.28"}, {"libc": None}, "warning", "could not be read"),
        ({"__linux": "6.2"}, {}, "impossible", "the Linux kernel 6.1.0 is older than 6.2"),
        ({"__osx": "14.0"}, {"os": "macos", "os_version": "14.5"}, "", ""),
        ({"__osx": "14.0"}, {"os": "macos", "os_version": "13.6"}, "impossible", "macOS 13.6"),
        ({"__unix": "0"}, {"os": "other"}, "impossible", "are for a Unix"),
        ({"__archspec": "1=x86_64_v3"}, {}, "", ""),
        ({"__archspec": "1=x86_64_v4"}, {}, "no", "the conda packages are locked for x86_64_v4"),
        ({"__archspec": "1=x86_64_v3"}, {"cpu": Cpu()}, "warning", "it is unknown whether"),
        ({"__cuda": "12.4"}, {}, "no", "no NVIDIA GPU was found"),
        ({"__cuda": "12.4"}, {"gpus": (GPU,)}, "", ""),
        ({"__cuda": "13.0"}, {"gpus": (GPU,)}, "no", "driver 550.54.15 is older than 580"),
        ({"__cuda": "12.4"}, {"gpus": (replace(GPU, driver_version=None),)}, "warning", "not"),
        ({"__other": "1"}, {}, "warning", "it is unknown whether this machine has __other 1"),
    ],
)
def test_a_host_is_held_against_what_the_solver_was_told(
    virtual: dict[str, str], change: dict[str, Any], level: str, said: str
) -> None:
    target = locked(**virtual).targets[0]
    found = list(lock.findings(target, replace(HOST, **change)))
    assert [f.level for f in found] == [level] * bool(level)
    for f in found:
        assert said in f.text


@pytest.mark.parametrize(
    ("virtual", "asked", "refused"),
    [
        ({"__glibc": "99.0"}, {"force": True}, False),
        ({"__cuda": "12.4"}, {}, False),
        ({"__cuda": "12.4"}, {"running": True}, True),
        ({"__archspec": "1=zen4"}, {"running": True}, False),
    ],
)
def test_what_cannot_run_may_be_built_and_what_is_unknown_is_noted(
    found: Settings,
    capsys: pytest.CaptureFixture[str],
    virtual: dict[str, str],
    asked: dict[str, Any],
    refused: bool,
) -> None:
    if refused:
        with pytest.raises(HostError, match="does not fit this host"):
            prepared(found, locked(**virtual), **asked)
    else:
        prepared(found, locked(**virtual), **asked)
        assert "warning: " in capsys.readouterr().err


# --- environments


def test_an_environment_that_was_moved_is_none(found: Settings) -> None:
    made = prepared(found, locked())
    (made.prefix / resources.OWN).mkdir(parents=True)
    marks = step(made.plan, plan.Seal).facts
    integrity.close(made.prefix, marks)
    assert made.existing() is not None
    integrity.close(made.prefix, {**marks, "prefix": "/elsewhere"})
    assert made.existing() is None


# --- activation


def test_scripts_hold_what_packages_want_and_are_bound_to_their_place(tmp_path: Path) -> None:
    files = {"a.json": '{"A": "1", "B": "it\'s"}', "b.json": '{"A": "2"}'}
    lay(tmp_path / "etc/conda/env_vars.d", files)
    scripts = prefixes.write_activation(
        lock.WriteActivation(
            what="",
            env=str(tmp_path),
            prefix="/final",
            venv="/final/venv",
            variables={"OWN": "3"},
            preload=("/final/lib/x.so",),
        )
    )
    assert prefixes.package_variables(tmp_path) == {"A": "2", "B": "it's"}
    own = (tmp_path / prefixes.SCRIPT).read_text()
    assert "A=2\n" in own
    assert str(tmp_path) not in own
    assert """B='it'"'"'s'\n""" in own
    script = (tmp_path / "etc/conda/activate.d/envbuilder.sh").read_text()
    for value in ("/final/venv/bin", "/final/lib/x.so", "OWN=3"):
        assert value in script
    for path in scripts:
        assert "/final" in (tmp_path / path).read_text()


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"A B": "1"}', '{"A": 1}', '{"A": "\\u0000"}', '{"$(id)": "1"}']
)
def test_variables_of_packages_are_checked(tmp_path: Path, text: str) -> None:
    lay(tmp_path / "etc/conda/env_vars.d", {"evil.json": text})
    with pytest.raises(BuildError, match=r"evil\.json"):
        prefixes.package_variables(tmp_path)
