"""What users may give a command in addition, and what is refused."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from envbuilder.builds import access
from envbuilder.builds.access import NOTHING, Access
from envbuilder.containers.engine.container import Port, Volume
from envbuilder.core.errors import InvalidError
from envbuilder.core.settings import Settings
from tests.support.projects import project_settings

ENVIRON = {"HF_TOKEN": "secret", "EMPTY": ""}


@pytest.mark.parametrize(
    ("text", "port"),
    [
        ("8000", Port(outside=8000, inside=8000)),
        ("0.0.0.0:1:65535", Port(host="0.0.0.0", outside=1, inside=65535)),
        ("192.168.1.5:8000", Port(host="192.168.1.5", outside=8000, inside=8000)),
        ("[::1]:8000:80", Port(host="::1", outside=8000, inside=80)),
        ("[2001:DB8::0:1]:80", Port(host="2001:db8::1", outside=80, inside=80)),
    ],
)
def test_ports_are_for_this_machine_alone_unless_stated(text: str, port: Port) -> None:
    assert access.port(text) == port
    assert access.port(f"{port.address}:{port.inside}") == port


@pytest.mark.parametrize(
    "text",
    ["", "0", "65536", "0:80", "8000/udp", "80:", "80\n", "٨٠", "localhost:80", "300.0.0.1:80:80",
     "::1:80:80", "[::g]:80", "1.2.3.4:1:2:3"],
)  # fmt: skip
def test_other_ports_are_refused(text: str) -> None:
    with pytest.raises(InvalidError) as caught:
        access.port(text)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "source", "target", "writable"),
    [
        ("./data:/data", "{here}/data", "/data", True),
        ("../here/data:/data:ro", "{here}/data", "/data", False),
        ("{here}/data:/a/b/:rw", "{here}/data", "/a/b", True),
        ("./link:/data", "{here}/data", "/data", True),
        ("~/models:/models", "{here}/models", "/models", True),
        ("models:/models", "models", "/models", True),
        ("my-data_1.0:/work/data:ro", "my-data_1.0", "/work/data", False),
    ],
)
def test_a_volume_is_a_folder_or_a_name(
    text: str,
    source: str,
    target: str,
    writable: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = tmp_path / "here"
    for name in ("data", "models"):
        (here / name).mkdir(parents=True)
    (here / "link").symlink_to("data")
    monkeypatch.setenv("HOME", str(here))
    read = access.volume(text.format(here=here), here)
    assert read == Volume(source=source.format(here=here), target=target, writable=writable)
    assert read.is_folder == ("{here}" in source)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not a valid volume"),
        ("./data", "is not a valid volume"),
        ("./data:/data:z", "is not a valid volume"),
        ("./none:/data", "no such folder"),
        ("./\0:/data", "no such folder"),
        ("./file:/data", "is not a folder"),
        ("data/x:/data", "neither a folder nor"),
        ("./data:./data", "not an absolute path"),
        ("./data:/a/../b", "not an absolute path"),
        ("./data:/a\nb", "printable"),
        ("./data:/", "would cover /opt/env "),
        ("./data:/opt/env/lib", "would cover /opt/env "),
        ("./data:/opt/envbuilder/", "would cover /opt/envbuilder "),
        ("./data:/dev/shm", "would cover /dev "),
        ("./data:/tmp", "would cover /tmp "),
        ("./data:/usr/local/lib/python3.11", "would cover /usr "),
        ("./data:/home", "would cover /home/user "),
    ],
)
def test_other_volumes_are_refused(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(InvalidError, match=words):
        access.volume(text, tmp_path)


def somewhere(text: str) -> Volume:
    return access.volume(text, Path("/nowhere"))


@given(st.text("0189.:[]/~-ab \n\0é", max_size=30), st.sampled_from([access.port, somewhere]))
def test_any_text_is_read_or_refused(text: str, read: Callable[[str], object]) -> None:
    with contextlib.suppress(InvalidError):
        assert read(text)


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("A=1", ("A", "1")),
        ("A=", ("A", "")),
        ("A=b=c $x\n", ("A", "b=c $x\n")),
        ("HF_TOKEN", ("HF_TOKEN", None)),
        ("EMPTY", ("EMPTY", None)),
    ],
)
def test_a_variable_has_a_value_or_is_the_callers(text: str, pair: tuple[str, str | None]) -> None:
    assert access.variable(text, ENVIRON) == pair


@pytest.mark.parametrize(
    "text", ["", "=1", "1A=1", "A B=1", "A*", "-e", "MISSING", "PATH", "PATH=x"]
)
def test_other_variables_are_refused(text: str) -> None:
    with pytest.raises(InvalidError) as caught:
        access.variable(text, {**ENVIRON, "PATH": "/bin", "A*": "1"})
    assert caught.value.hint


def test_nothing_is_stated_twice() -> None:
    same = Volume(source="a", target="/a"), Volume(source="b", target="/a")
    ports = Port(outside=1, inside=2), Port(outside=1, inside=3)
    for twice in (Access(volumes=same), Access(ports=ports)):
        with pytest.raises(InvalidError, match="is given twice"):
            access.require_distinct(twice)
    access.require_distinct(Access(ports=(ports[0], Port(host="::1", outside=1, inside=2))))


def test_what_a_user_gives_one_command_takes_precedence() -> None:
    stated = Access(
        ports=tuple(Port(outside=n, inside=n) for n in (1, 2, 3)),
        volumes=(Volume(source="a", target="/a"), Volume(source="b", target="/b")),
        python_path=(Path("/p/src"),),
    )
    mine = Access(
        ports=(Port(outside=9, inside=1), Port(outside=2, inside=8)),
        volumes=(Volume(source="c", target="/b"),),
        variables={"A": "1"},
    )
    both = access.combined(stated, mine)
    assert [(p.outside, p.inside) for p in both.ports] == [(3, 3), (9, 1), (2, 8)]
    assert [v.source for v in both.volumes] == ["a", "c"]
    assert (both.python_path, both.variables) == (stated.python_path, mine.variables)


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
    return replace(project_settings(folder, text), environment=environment)


def stated(folder: Path, text: str = TEXT, environment: str = "default") -> Access:
    return access.of_project(of(folder, text, environment))


def test_python_imports_from_folders_of_the_project(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "tests/lib").mkdir(parents=True)
    assert stated(tmp_path).python_path == (tmp_path / "src",)
    both = (tmp_path / "src", tmp_path / "tests/lib")
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
        ("./none: /data", r"yaml:3: volumes: './none' is not a folder in the project"),
        ("./file: /data", r"yaml:3: volumes: './file' is not a folder"),
        ("./link: /data", r"yaml:3: volumes: './link' is outside the project"),
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
        assert access.project_command(of(tmp_path, VOLUMES, name)) == expected
    with pytest.raises(InvalidError, match="no command was given, and") as caught:
        access.project_command(of(tmp_path, TEXT, "default"), "watch")
    assert "command: [python, train.py]" in caught.value.hint
    assert "envbuilder watch -- python FILE" in caught.value.hint


def test_a_folder_without_a_project_gives_nothing(tmp_path: Path) -> None:
    assert stated(tmp_path, "profile: cpu\n") is NOTHING
