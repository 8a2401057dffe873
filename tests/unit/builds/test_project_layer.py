"""The project's own code as the last layer of its image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from envbuilder.builds import conventions, project_layer
from envbuilder.builds.image.base import image_config
from envbuilder.builds.project_layer import ProjectLayer
from envbuilder.containers.oci import layer
from envbuilder.core.errors import BuildError
from tests.support.projects import project_settings
from tests.support.repositories import lay

TEXT = """\
files: [train.py, src]
command: [python, train.py]
ports: [8000, 8000]
python_path: [src, .]
environments:
  plain: {}
  more:
    files: [tests]
"""
EPOCH = 1_790_000_000


def planned(folder: Path, environment: str = "default", text: str = TEXT) -> ProjectLayer | None:
    lay(folder, dict.fromkeys(("train.py", "src/pkg/a.py", "src/.env", "tests/t.py"), "x"))
    (folder / "train.py").chmod(0o700)
    settings = project_settings(folder, text)
    return project_layer.planned(replace(settings, environment=environment))


@pytest.fixture
def project(tmp_path: Path) -> ProjectLayer:
    return planned(tmp_path)


def test_a_project_that_is_installed_is_in_its_image(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        "[project]\nname = 'pkg'\nversion = '1'\nscripts = {ask = 'a:main'}\n"
        "[tool.pdm.build]\npackage-dir = 'src'\n"
    )
    made = planned(tmp_path, text="install_project: true\n")
    info = ".envbuilder/project/pkg-1.dist-info"
    assert {file.path: file.executable for file in made.files} == {
        ".envbuilder/project/bin/ask": True,
        f"{info}/METADATA": False,
        f"{info}/entry_points.txt": False,
        "src/pkg/a.py": False,
    }
    assert made.path == "/opt/env/bin:/work/.envbuilder/project/bin"
    assert made.variables({}) == {"PYTHONPATH": "/work/src:/work/.envbuilder/project"}
    assert made.facts["programs"]
    assert [member.path for member in project_layer.members(made)][-1] == "work/src/pkg/a.py"


def test_what_is_stated_is_planned(
    project: ProjectLayer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [file.path for file in project.files] == ["src/pkg/a.py", "train.py"]
    assert (project.command, project.ports) == (("python", "train.py"), (8000,))
    more = planned(tmp_path, "more")
    assert [file.path for file in more.files] == ["src/pkg/a.py", "tests/t.py", "train.py"]
    assert (
        capsys.readouterr().err
        == "note: not copied into the image, since they may hold secrets or belong to one"
        " machine: src/.env\n"
    )
    assert planned(tmp_path, text="command: [python]\n") is None
    assert planned(tmp_path, text="profile: cpu\n") is None
    bare = planned(tmp_path, text="files: [train.py]\n")
    assert bare.command == conventions.COMMAND


def test_the_machines_folder_decides_nothing(project: ProjectLayer) -> None:
    assert replace(project, folder="/elsewhere").facts == project.facts
    assert set(project.facts) == {"digest", "command", "ports", "python_path"}


def test_its_variables_lead_python_to_the_code(project: ProjectLayer) -> None:
    assert project.variables({"A": "1"}) == {"A": "1", "PYTHONPATH": "/work/src:/work"}
    own = project.variables({"PYTHONPATH": "/opt/x"})
    assert own == {"PYTHONPATH": "/work/src:/work:/opt/x"}
    assert replace(project, python_path=()).variables({"A": "1"}) == {"A": "1"}


def test_its_layer_has_plain_modes_and_the_images_user(project: ProjectLayer) -> None:
    members = {m.path: m for m in project_layer.members(project)}
    assert {path: (m.kind, m.mode) for path, m in members.items()} == {
        "work": ("folder", 0o755),
        "work/src": ("folder", 0o755),
        "work/src/pkg": ("folder", 0o755),
        "work/src/pkg/a.py": ("file", 0o644),
        "work/train.py": ("file", 0o755),
    }
    assert {(m.uid, m.gid) for m in members.values()} == {(conventions.ID, conventions.ID)}


def test_a_file_that_changes_meanwhile_ends_the_build(
    project: ProjectLayer, tmp_path: Path
) -> None:
    written = layer.write(project_layer.members(project), tmp_path / "layer", EPOCH)
    assert written == layer.write(project_layer.members(project), tmp_path / "again", EPOCH)
    project_layer.copy(project, tmp_path / "context/files")
    copied = tmp_path / "context/files/train.py"
    assert (copied.read_text(), copied.stat().st_mode & 0o777) == ("x", 0o755)
    (tmp_path / "train.py").write_text("y")
    with pytest.raises(BuildError, match=r"train\.py changed while the image was being built"):
        layer.write(project_layer.members(project), tmp_path / "third", EPOCH)
    with pytest.raises(BuildError, match="changed while"):
        project_layer.copy(project, tmp_path / "other")


def test_an_image_is_started_as_the_project_states(project: ProjectLayer) -> None:
    base: dict[str, Any] = {
        "rootfs": {"diff_ids": []},
        "config": {"ExposedPorts": {"1/udp": {}}},
    }
    run = image_config(base, (), {}, {}, EPOCH, project)["config"]
    assert run["Cmd"] == ["python", "train.py"]
    assert run["ExposedPorts"] == {"1/udp": {}, "8000/tcp": {}}
    assert run["WorkingDir"] == "/work"
    plain = image_config(base, (), {}, {}, EPOCH)["config"]
    assert plain["Cmd"] == [*conventions.COMMAND]
    assert plain["ExposedPorts"] == {"1/udp": {}}
