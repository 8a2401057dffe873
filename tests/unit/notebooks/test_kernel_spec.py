"""Kernel specifications name this envbuilder and the project, and are found where Jupyter looks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from envbuilder.build.request import Request
from envbuilder.core.errors import InvalidError
from envbuilder.notebooks import kernel_spec
from envbuilder.notebooks.kernel_spec import Choice


def choice(project: str = "/home/ann/My Project", **request: str) -> Choice:
    return Choice(project=Path(project), environment="default", request=Request(**request))


def test_a_kernel_is_started_by_this_envbuilder_wherever_the_notebook_is() -> None:
    spec = kernel_spec.spec(choice(backend="docker", base_image="mine:1"), "7.4.0", {})
    assert spec.argv == (
        *(sys.executable, "-P", "-m", "envbuilder", "jupyter", "--environment", "default"),
        *("--backend", "docker", "--base-image", "mine:1"),
        *("--quiet", "--project", "/home/ann/My Project", "--connection-file", "{connection_file}"),
    )
    assert (spec.display_name, spec.interrupt_mode) == ("My Project (default)", "message")


def test_folders_set_in_this_shell_are_those_of_the_kernel() -> None:
    environ = {"ENVBUILDER_DATA_DIR": "/big/data", "ENVBUILDER_CACHE_DIR": "", "HF_TOKEN": "t"}
    assert kernel_spec.spec(choice(), "7.4.0", environ).env == {"ENVBUILDER_DATA_DIR": "/big/data"}


@pytest.mark.parametrize(
    ("version", "encrypts"),
    [("6.29.5", False), ("7.2.0", False), ("7.3.0", True), ("7.10.0a1", True), ("8.0", True)],
)
def test_connections_are_encrypted_if_the_locked_ipykernel_can(
    version: str, encrypts: bool
) -> None:
    metadata = kernel_spec.spec(choice(), version, {}).metadata
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
    assert kernel_spec.data_folder(environ, Path("/home/ann"), system) == Path(expected)


def install(chosen: Choice, data: Path) -> Path:
    return kernel_spec.install(chosen, kernel_spec.spec(chosen, "7.4.0", {}), data)


def test_a_kernel_is_installed_once_and_removed_again(tmp_path: Path) -> None:
    folder = install(choice(), tmp_path)
    assert folder == tmp_path / "kernels" / "envbuilder-my-project-default"
    assert json.loads((folder / "kernel.json").read_text())["language"] == "python"
    assert install(choice(backend="venv"), tmp_path) == folder
    assert "--backend" in (folder / "kernel.json").read_text()
    assert kernel_spec.remove(choice(), tmp_path) == folder
    assert kernel_spec.remove(choice(), tmp_path) is None
    assert list((tmp_path / "kernels").iterdir()) == []


def test_another_clone_gets_a_name_of_its_own(tmp_path: Path) -> None:
    clone = choice("/home/ann/work/My Project")
    first, second = install(choice(), tmp_path), install(clone, tmp_path)
    assert second.name.startswith(f"{first.name}-")
    assert install(choice(), tmp_path) == first
    assert install(clone, tmp_path) == second
    assert kernel_spec.remove(clone, tmp_path) == second
    assert first.is_dir()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"metadata": {"envbuilder": 1}}', "\xff"])
def test_a_kernel_of_others_is_left_alone(tmp_path: Path, text: str) -> None:
    theirs = tmp_path / "kernels" / "envbuilder-my-project-default" / "kernel.json"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(text.encode("latin-1"))
    assert kernel_spec.remove(choice(), tmp_path) is None
    assert install(choice(), tmp_path) != theirs.parent
    assert theirs.read_bytes() == text.encode("latin-1")


def test_a_name_of_odd_characters_is_a_kernels_name(tmp_path: Path) -> None:
    folder = install(choice("/home/ann/Ünï$(x)/…{prefix}"), tmp_path)
    assert folder.name == "envbuilder-prefix-default"


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "kernels").write_text("a file")
    with pytest.raises(InvalidError, match="cannot be written"):
        install(choice(), tmp_path)
