"""JupyterLab, its kernels' specifications, and what a connection file may say."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from envbuilder.builds import jupyter, pipeline
from envbuilder.builds.backends import venv
from envbuilder.builds.request import Request
from envbuilder.containers.engine.container import LOOPBACK
from envbuilder.core import types
from envbuilder.core.console import PlainProgress
from envbuilder.core.errors import InvalidError
from envbuilder.core.settings import Configuration, Definition, Settings, Signatures
from envbuilder.locks import compare
from envbuilder.profiles import lock as profile_lock, profile as profiles
from tests.support.folders import read_json
from tests.support.projects import LOCK
from tools import refresh_requirements


def choice(project: str = "/home/ann/My Project", **request: str) -> jupyter.Choice:
    return jupyter.Choice(project=Path(project), environment="default", request=Request(**request))


def test_a_kernel_is_started_by_this_envbuilder_wherever_the_notebook_is() -> None:
    spec = jupyter.spec(choice(backend="docker", base_image="mine:1"), "7.4.0", {})
    assert spec.argv == (
        sys.executable,
        "-P",
        "-m",
        "envbuilder",
        "jupyter",
        "--environment",
        "default",
        "--backend",
        "docker",
        "--quiet",
        "--project",
        "/home/ann/My Project",
        "--connection-file",
        "{connection_file}",
    )
    assert spec.env == {"ENVBUILDER_BASE_IMAGE": "mine:1"}
    assert (spec.display_name, spec.interrupt_mode) == ("My Project (default)", "message")


def test_folders_set_in_this_shell_are_those_of_the_kernel() -> None:
    environ = {"ENVBUILDER_DATA_DIR": "/big/data", "ENVBUILDER_CACHE_DIR": "", "HF_TOKEN": "t"}
    assert jupyter.spec(choice(), "7.4.0", environ).env == {"ENVBUILDER_DATA_DIR": "/big/data"}
    # JupyterLab starts kernels in the notebook's folder.
    relative = jupyter.spec(choice(), "7.4.0", {"ENVBUILDER_DATA_DIR": "data"}).env
    assert relative == {"ENVBUILDER_DATA_DIR": str(Path.cwd() / "data")}


@pytest.mark.parametrize(
    ("version", "encrypts"),
    [("6.29.5", False), ("7.2.0", False), ("7.3.0", True), ("7.10.0a1", True), ("8.0", True)],
)
def test_connections_are_encrypted_if_the_locked_ipykernel_can(
    version: str, encrypts: bool
) -> None:
    metadata = jupyter.spec(choice(), version, {}).metadata
    assert ("supported_encryption" in metadata) is encrypts


@pytest.mark.parametrize(
    ("environ", "system", "expected"),
    [
        ({}, "linux", "/home/ann/.local/share/jupyter"),
        ({"XDG_DATA_HOME": "/data"}, "linux", "/data/jupyter"),
        ({}, "darwin", "/home/ann/Library/Jupyter"),
        ({"JUPYTER_DATA_DIR": "/mine", "XDG_DATA_HOME": "/data"}, "darwin", "/mine"),
    ],
)
def test_kernels_are_where_jupyter_looks(
    environ: dict[str, str], system: str, expected: str
) -> None:
    assert jupyter.data_folder(environ, Path("/home/ann"), system) == Path(expected)


def install(chosen: jupyter.Choice, data: Path) -> Path:
    return jupyter.install(chosen, jupyter.spec(chosen, "7.4.0", {}), data)


def test_a_kernel_is_installed_once_and_removed_again(tmp_path: Path) -> None:
    folder = install(choice(), tmp_path)
    assert folder == tmp_path / "kernels/envbuilder-my-project-default"
    assert read_json(folder / "kernel.json")["language"] == "python"
    assert install(choice(backend="venv"), tmp_path) == folder
    assert "--backend" in (folder / "kernel.json").read_text()
    assert jupyter.remove(choice(), tmp_path) == folder
    assert jupyter.remove(choice(), tmp_path) is None
    assert list((tmp_path / "kernels").iterdir()) == []


def test_another_clone_gets_a_name_of_its_own(tmp_path: Path) -> None:
    clone = choice("/home/ann/work/My Project")
    first = install(choice(), tmp_path)
    second = install(clone, tmp_path)
    assert second.name.startswith(f"{first.name}-")
    assert install(choice(), tmp_path) == first
    assert install(clone, tmp_path) == second
    assert jupyter.remove(clone, tmp_path) == second
    assert first.is_dir()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"metadata": {"envbuilder": 1}}', "\xff"])
def test_a_kernel_of_others_is_left_alone(tmp_path: Path, text: str) -> None:
    theirs = tmp_path / "kernels/envbuilder-my-project-default/kernel.json"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(text.encode("latin-1"))
    assert jupyter.remove(choice(), tmp_path) is None
    assert install(choice(), tmp_path) != theirs.parent
    assert theirs.read_bytes() == text.encode("latin-1")


def test_a_name_of_odd_characters_is_a_kernels_name(tmp_path: Path) -> None:
    folder = install(choice("/home/ann/Ünï$(x)/…{prefix}"), tmp_path)
    assert folder.name == "envbuilder-prefix-default"


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "kernels").write_text("a file")
    with pytest.raises(InvalidError, match="cannot be written"):
        install(choice(), tmp_path)


PORTS = {
    "shell_port": 50001, "iopub_port": 50002, "stdin_port": 50003, "control_port": 50004,
    "hb_port": 50005,
}  # fmt: skip
STATED: dict[str, Any] = {
    **PORTS,
    "ip": "127.0.0.1",
    "transport": "tcp",
    "key": "secret",
    "signature_scheme": "hmac-sha256",
    "kernel_name": "python3",
    "curve_publickey": "][{W#",
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernel") / "kernel.json"


def test_the_ports_are_this_machines_and_lead_to_the_same_inside(path: Path) -> None:
    path.write_text(json.dumps(STATED))
    read = jupyter.read_connection(path)
    assert {(p.host, p.outside) for p in read.ports} == {(LOOPBACK, n) for n in PORTS.values()}
    for p in read.ports:
        assert p.outside == p.inside


def test_the_kernel_gets_all_else_and_listens_in_its_container(path: Path) -> None:
    path.write_text(json.dumps(STATED, indent=2))
    text = jupyter.read_connection(path).text
    assert json.loads(text) == {**STATED, "ip": "0.0.0.0"}
    assert "\n" not in text


@pytest.mark.parametrize(
    "changed",
    [
        {"shell_port": 0},
        {"shell_port": 65536},
        {"shell_port": "50001"},
        {"shell_port": PORTS["hb_port"]},
        {"ip": "0.0.0.0"},
        {"ip": "10.0.0.1"},
        {"transport": "ipc"},
        {"transport": None},
    ],
)
def test_what_no_container_can_have_is_refused(path: Path, changed: dict[str, Any]) -> None:
    path.write_text(json.dumps({**STATED, **changed}))
    with pytest.raises(InvalidError, match="not a connection file of a local kernel"):
        jupyter.read_connection(path)


def test_a_file_that_is_missing_too_large_or_of_another_kind_is_refused(tmp_path: Path) -> None:
    large = tmp_path / "large.json"
    large.write_text(json.dumps({**STATED, "key": "k" * 20_000}))
    for path in (tmp_path / "none.json", tmp_path, large):
        with pytest.raises(InvalidError):
            jupyter.read_connection(path)


@given(content=st.binary(max_size=200) | st.text().map(str.encode))
def test_any_bytes_are_refused_or_read(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(InvalidError):
        jupyter.read_connection(path)


@given(
    stated=st.dictionaries(
        st.sampled_from([*STATED, "other"]),
        st.integers() | st.text(max_size=20) | st.none() | st.lists(st.integers(), max_size=2),
    )
)
def test_five_different_ports_or_none(path: Path, stated: dict[str, Any]) -> None:
    path.write_text(json.dumps({**STATED, **stated}))
    try:
        read = jupyter.read_connection(path)
    except InvalidError:
        return
    assert len({port.outside for port in read.ports}) == 5
    assert {port.host for port in read.ports} == {LOOPBACK}


CHOICE = jupyter.Choice(project=Path("/project"), environment="default", request=Request())


def test_jupyterlab_runs_isolated_with_folders_of_envbuilders(found: Settings) -> None:
    served = jupyter.Server(
        folder="/project",
        browser=False,
        kernel=jupyter.spec(CHOICE, "7.4.0", {}),
        shell=CHOICE.command("shell"),
    )
    argv, variables = jupyter.server_command(Path("/lab"), served, ["--ip", "::1"], found)
    assert argv[:2] == ("/lab/bin/python", "-I")
    assert Path(argv[2]).is_file()
    assert argv[4:] == ("--ip", "::1")
    started = json.loads(argv[3])
    assert started["kernel"]["argv"][-1] == "{connection_file}"
    assert started["shell"][-3:] == ["shell", "--environment", "default"]
    assert {Path(value).parent for value in variables.values() if value} == {
        found.config_dir,
        found.data_dir,
    }


def test_extensions_that_others_can_write_are_refused(found: Settings) -> None:
    """The configuration folder was judged as a whole when the settings were read."""
    served = jupyter.Server(
        folder="/", browser=False, kernel=jupyter.spec(CHOICE, "7", {}), shell=()
    )
    extensions = found.data_dir / "jupyter/nbextensions"
    extensions.mkdir(parents=True)
    jupyter.server_command(Path("/lab"), served, [], found)
    extensions.chmod(0o777)
    with pytest.raises(InvalidError, match="nbextensions is writable by every user"):
        jupyter.server_command(Path("/lab"), served, [], found)


@pytest.mark.parametrize(
    ("environ", "system", "expected"),
    [
        ({}, "linux", False),
        ({"DISPLAY": ""}, "linux", False),
        ({"DISPLAY": ":0"}, "linux", True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, "linux", True),
        ({}, "darwin", True),
    ],
)
def test_a_browser_opens_where_there_is_a_display(
    environ: dict[str, str], system: str, expected: bool
) -> None:
    assert jupyter.has_display(environ, system) is expected


def whole_lock(name: str) -> profile_lock.Lock:
    """The shipped lock of this name, which lacks nothing and is up to date."""
    library = jupyter.library()
    profile = library.profile(name)
    lock = library.usable_lock(profile)
    assert compare.check(profile, lock) == ()
    assert lock.state == "locked"
    assert lock.missing == {}
    return lock


def test_it_is_whole_for_every_platform_and_python_of_envbuilders(repository: Path) -> None:
    lock = whole_lock(jupyter.NAME)
    project = tomllib.loads((repository / "pyproject.toml").read_text())
    pythons = refresh_requirements.pythons(project)
    pairs = {(target.platform, target.python) for target in lock.targets}
    assert pairs == {(p, v) for p in types.PLATFORMS for v in pythons}
    for target in lock.targets:
        assert {"jupyterlab", "ipykernel"} <= {file.name for file in target.files}


def test_kernels_are_there_for_every_python_of_environments() -> None:
    lock = whole_lock(jupyter.KERNEL)
    pythons = [f"3.{minor}" for minor in range(8, 15)]
    assert [(t.platform, t.python) for t in lock.targets] == [
        (platform, python) for platform in types.PLATFORMS for python in pythons
    ]


WHEEL = LOCK.targets[0].of_kind("wheel")[0]


def wheels(*names: str) -> Any:
    return replace(LOCK.targets[0], files=tuple(replace(WHEEL, name=name) for name in names))


@pytest.mark.parametrize(
    ("own", "python", "platform", "expected"),
    [
        (("torch", "ipykernel"), "3.7", "linux/arm64", (None, WHEEL.version)),
        (("torch",), "3.11", "linux/amd64", ("/k/lib/python3.11/site-packages", "7.4.0")),
        (("torch",), "3.7", "linux/amd64", "no files for linux/amd64 with Python 3.7"),
        (("torch",), "3.11", "linux/arm64", "cannot install ipykernel for linux/arm64"),
    ],
)
def test_what_a_kernel_needs_is_beside_the_environment(
    monkeypatch: pytest.MonkeyPatch, own: Any, python: str, platform: str, expected: Any
) -> None:
    monkeypatch.setattr(jupyter, "prefix", lambda build, name, version: Path("/k"))
    build: Any = SimpleNamespace(
        plan=SimpleNamespace(platform=platform, python=python),
        host=SimpleNamespace(platform="linux/amd64"),
        environment=SimpleNamespace(target=wheels(*own)),
    )
    if isinstance(expected, str):
        with pytest.raises(InvalidError, match=expected) as refused:
            jupyter.beside(build)
        assert refused.value.hint.endswith("envbuilder add ipykernel")
        return
    folder, version = jupyter.beside(build)
    assert (folder and str(folder), version) == expected


@pytest.mark.parametrize("name", [jupyter.NAME, jupyter.KERNEL])
def test_it_names_no_place(name: str) -> None:
    path = profile_lock.path_for(name, jupyter.library().folders)
    text = path.read_text()
    assert "://" not in text
    assert '"/' not in text
    assert profile_lock.dump(profile_lock.load(path)) == text


def test_it_is_no_profile_to_choose() -> None:
    folders = jupyter.library().folders
    assert jupyter.NAME not in profiles.names(folders[1:])


def test_it_is_built_apart_from_the_project(
    found: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def prepare(build: Any) -> Any:
        seen.append(build.profile.name)
        return SimpleNamespace(plan=None, stay_in_use=lambda: seen.append("in use"))

    def finish(build: Any) -> Any:
        seen.append(build.settings)
        return SimpleNamespace(
            result=SimpleNamespace(artifact=SimpleNamespace(ref="/envs/jupyter"))
        )

    monkeypatch.setattr(venv, "prepare", prepare)
    monkeypatch.setattr(pipeline, "finish", finish)
    # Locks that the user signs are the user's: this one comes with envbuilder, as its code does.
    signed = replace(
        found, configuration=Configuration(signatures=Signatures(locks=("/team.pub",)))
    )
    settings = replace(
        signed, project=Path("/project"), definition=Definition(), environment="notebooks"
    )
    progress = PlainProgress(seen.append)
    project: Any = SimpleNamespace(settings=settings, host=None, progress=progress)
    assert jupyter.prefix(project) == Path("/envs/jupyter")
    assert seen == [jupyter.NAME, signed, "in use"]
