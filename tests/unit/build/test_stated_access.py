"""What a project's file gives the commands of its environments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from envbuilder.build import access
from envbuilder.build.access import NOTHING
from envbuilder.containers.engine.container import Port, Volume
from envbuilder.core.errors import InvalidError
from envbuilder.core.settings import load as load_settings

if TYPE_CHECKING:
    from pathlib import Path

    from envbuilder.build.access import Access
    from envbuilder.core.settings import Settings

TEXT = """\
python_path: [src]
environments:
  test:
    python_path:
      - src
      - tests/lib
  wrong:
    python_path:
      - no/such
"""


def of(folder: Path, text: str, environment: str) -> Settings:
    (folder / "envbuilder.yaml").write_text(text)
    settings = load_settings({"ENVBUILDER_CONFIG_DIR": str(folder / "c")}, folder)
    return replace(settings, environment=environment)


def stated(folder: Path, text: str = TEXT, environment: str = "default") -> Access:
    return access.stated(of(folder, text, environment))


def test_python_imports_from_folders_of_the_project(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "tests" / "lib").mkdir(parents=True)
    assert stated(tmp_path).python_path == (tmp_path / "src",)
    both = (tmp_path / "src", tmp_path / "tests" / "lib")
    assert stated(tmp_path, environment="test").python_path == both
    with pytest.raises(InvalidError, match=r"envbuilder.yaml:9: python_path: 'no/such' is not"):
        stated(tmp_path, environment="wrong")


VOLUMES = """\
command: [python, serve.py]
ports: [8000, 80, 8000]
volumes: {models: /models, ./data: /data}
environments:
  test:
    ports: [1]
    command: [pytest, -q]
    volumes:
      cache: /models
"""


def test_ports_and_volumes_are_the_projects(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    default, test = (stated(tmp_path, VOLUMES, name) for name in ("default", "test"))
    assert default.ports == (Port(outside=8000, inside=8000), Port(outside=80, inside=80))
    models, data = default.volumes
    assert models.source == access.volume_name(tmp_path, "models")
    assert models.source != access.volume_name(tmp_path / "other", "models")
    assert not models.is_folder
    assert data == Volume(source=str(tmp_path / "data"), target="/data")
    assert {port.inside for port in test.ports} == {8000, 80, 1}
    cache = access.volume_name(tmp_path, "cache")
    assert Volume(source=cache, target="/models") in test.volumes
    assert len(test.volumes) == 2, "one for each path"


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("./none: /data", r"yaml:3: volumes: './none' is not a folder of the project"),
        ("./file: /data", r"yaml:3: volumes: './file' is not a folder"),
        ("./link: /data", r"yaml:3: volumes: './link' leads out of the project"),
        ("models: /opt/env", r"yaml:3: volumes: '/opt/env' would cover /opt/env of the image"),
        ("models: /etc", r"yaml:3: volumes: '/etc' would cover /etc"),
    ],
)
def test_volumes_that_a_project_may_not_have(entry: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("/")
    with pytest.raises(InvalidError, match=words):
        stated(tmp_path, f"volumes:\n  fine: /fine\n  {entry}\n")


def test_a_project_has_a_command_or_says_how_to_state_one(tmp_path: Path) -> None:
    for name, expected in (("default", ("python", "serve.py")), ("test", ("pytest", "-q"))):
        assert access.stated_command(of(tmp_path, VOLUMES, name)) == expected
    with pytest.raises(InvalidError, match="there is no command to run") as caught:
        access.stated_command(of(tmp_path, TEXT, "default"))
    assert "command: [python, train.py]" in caught.value.hint


def test_a_folder_without_a_project_gives_nothing(tmp_path: Path) -> None:
    assert stated(tmp_path, "profile: cpu\n") is NOTHING
