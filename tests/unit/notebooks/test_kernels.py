"""Kernels: their specifications, and what a connection file may say."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from envbuilder.builds.request import Request
from envbuilder.containers.engine.container import LOOPBACK
from envbuilder.core.errors import InvalidError
from envbuilder.notebooks import kernels


def choice(project: str = "/home/ann/My Project", **request: str) -> kernels.Choice:
    return kernels.Choice(project=Path(project), environment="default", request=Request(**request))


def test_a_kernel_is_started_by_this_envbuilder_wherever_the_notebook_is() -> None:
    spec = kernels.spec(choice(backend="docker", base_image="mine:1"), "7.4.0", {})
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
    assert kernels.spec(choice(), "7.4.0", environ).env == {"ENVBUILDER_DATA_DIR": "/big/data"}
    # JupyterLab starts kernels in the notebook's folder.
    relative = kernels.spec(choice(), "7.4.0", {"ENVBUILDER_DATA_DIR": "data"}).env
    assert relative == {"ENVBUILDER_DATA_DIR": str(Path.cwd() / "data")}


@pytest.mark.parametrize(
    ("version", "encrypts"),
    [("6.29.5", False), ("7.2.0", False), ("7.3.0", True), ("7.10.0a1", True), ("8.0", True)],
)
def test_connections_are_encrypted_if_the_locked_ipykernel_can(
    version: str, encrypts: bool
) -> None:
    metadata = kernels.spec(choice(), version, {}).metadata
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
    assert kernels.data_folder(environ, Path("/home/ann"), system) == Path(expected)


def install(chosen: kernels.Choice, data: Path) -> Path:
    return kernels.install(chosen, kernels.spec(chosen, "7.4.0", {}), data)


def test_a_kernel_is_installed_once_and_removed_again(tmp_path: Path) -> None:
    folder = install(choice(), tmp_path)
    assert folder == tmp_path / "kernels/envbuilder-my-project-default"
    assert json.loads((folder / "kernel.json").read_text())["language"] == "python"
    assert install(choice(backend="venv"), tmp_path) == folder
    assert "--backend" in (folder / "kernel.json").read_text()
    assert kernels.remove(choice(), tmp_path) == folder
    assert kernels.remove(choice(), tmp_path) is None
    assert list((tmp_path / "kernels").iterdir()) == []


def test_another_clone_gets_a_name_of_its_own(tmp_path: Path) -> None:
    clone = choice("/home/ann/work/My Project")
    first = install(choice(), tmp_path)
    second = install(clone, tmp_path)
    assert second.name.startswith(f"{first.name}-")
    assert install(choice(), tmp_path) == first
    assert install(clone, tmp_path) == second
    assert kernels.remove(clone, tmp_path) == second
    assert first.is_dir()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"metadata": {"envbuilder": 1}}', "\xff"])
def test_a_kernel_of_others_is_left_alone(tmp_path: Path, text: str) -> None:
    theirs = tmp_path / "kernels/envbuilder-my-project-default/kernel.json"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(text.encode("latin-1"))
    assert kernels.remove(choice(), tmp_path) is None
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
    read = kernels.read_connection(path)
    assert {(p.host, p.outside) for p in read.ports} == {(LOOPBACK, n) for n in PORTS.values()}
    for p in read.ports:
        assert p.outside == p.inside


def test_the_kernel_gets_all_else_and_listens_in_its_container(path: Path) -> None:
    path.write_text(json.dumps(STATED, indent=2))
    text = kernels.read_connection(path).text
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
    with pytest.raises(InvalidError, match="not a connection file of a kernel here"):
        kernels.read_connection(path)


def test_a_file_that_is_missing_too_large_or_of_another_kind_is_refused(tmp_path: Path) -> None:
    large = tmp_path / "large.json"
    large.write_text(json.dumps({**STATED, "key": "k" * 20_000}))
    for path in (tmp_path / "none.json", tmp_path, large):
        with pytest.raises(InvalidError):
            kernels.read_connection(path)


@given(content=st.binary(max_size=200) | st.text().map(str.encode))
def test_any_bytes_are_refused_or_read(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(InvalidError):
        kernels.read_connection(path)


@given(
    stated=st.dictionaries(
        st.sampled_from([*STATED, "other"]),
        st.integers() | st.text(max_size=20) | st.none() | st.lists(st.integers(), max_size=2),
    )
)
def test_five_different_ports_or_none(path: Path, stated: dict[str, Any]) -> None:
    path.write_text(json.dumps({**STATED, **stated}))
    try:
        read = kernels.read_connection(path)
    except InvalidError:
        return
    assert len({port.outside for port in read.ports}) == 5
    assert {port.host for port in read.ports} == {LOOPBACK}
