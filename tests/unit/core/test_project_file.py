"""Mistakes in `envbuilder.yaml`: each is refused with file, line, key and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from envbuilder import cli
from envbuilder.core import decoding, settings
from tests.support.folders import names_in


class Mistake(NamedTuple):
    """A wrong file, and what must be said of it."""

    text: str
    line: int
    key: str
    advice: str


BOMB = "a: &a [x, x]\n" + "".join(
    f"{b}: &{b} [*{a}, *{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
LIST_IT = "one item a line, each after a hyphen"
NO_VALUE = "Write a value, or remove the key."

WRONG_KEYS = {
    "dependencies": Mistake("dependencies: [rich]\n", 1, "dependencies", "mean 'requirements'?"),
    "misspelt": Mistake("requirments: [rich]\n", 1, "requirments", "mean 'requirements'?"),
    "requirements.txt": Mistake(
        "requirements.txt: true\n", 1, "requirements.txt", "mean 'requirements_from'?"
    ),
    "hyphen": Mistake("requirements-from: [r.txt]\n", 1, "requirements-from", "requirements_from"),
    "name": Mistake("name: mine\n", 1, "name", "a project is known by its folder"),
    "version": Mistake("version: 2\n", 1, "version", "the file has no version"),
    "channels": Mistake("channels: [conda-forge]\n", 1, "channels", "[environment.yml]"),
    "conda": Mistake("conda: [ffmpeg]\n", 1, "conda", "requirements_from: [environment.yml]"),
    "extras": Mistake("extras: [dev]\n", 1, "extras", "{file: pyproject.toml, extras: [NAME]}"),
    "accelerator": Mistake("accelerator: cuda\n", 1, "accelerator", "profiles: [cpu, cuda]"),
    "base_image": Mistake("base_image: python:3.11\n", 1, "base_image", "ENVBUILDER_BASE_IMAGE"),
    "backend": Mistake("backend: venv\n", 1, "backend", "--backend chooses it"),
    "platforms": Mistake("platforms: [linux/amd64]\n", 1, "platforms", "every profile states"),
    "index": Mistake("index_url: https://h/s\n", 1, "index_url", "for pip or uv"),
    "torch": Mistake("torch: 2.13.0\n", 1, "torch", "the framework comes from the profile"),
    "extends": Mistake("extends: cpu\n", 1, "extends", "a project names `profiles`"),
    "env": Mistake("env: {A: b}\n", 1, "env", "Did you mean 'environment'?"),
    "enviroments": Mistake("enviroments: {}\n", 1, "enviroments", "mean 'environments'?"),
    "python_version": Mistake("python_version: '3.11'\n", 1, "python_version", "mean 'python'?"),
    "copy": Mistake("copy: [src]\n", 1, "copy", "Did you mean 'files'?"),
    "PYTHONPATH": Mistake("PYTHONPATH: src\n", 1, "PYTHONPATH", "Did you mean 'python_path'?"),
    "wrong place": Mistake(
        "environments:\n  train:\n    profiles: [cpu]\n",
        3, "environments.train.profiles", "'profiles' belongs at the top level.",
    ),
    "below": Mistake(
        "environments:\n  a: {}\n  b:\n    deps: [rich]\n",
        4, "environments.b.deps", "Did you mean 'requirements'?",
    ),
    "an environment's name": Mistake(
        "environments:\n  a:\n    name: b\n", 3, "environments.a.name", "is the key above it"
    ),
    "path of a file": Mistake(
        "requirements_from:\n  - path: r.txt\n", 2, "requirements_from.0.path", "mean 'file'?"
    ),
    "groups of a file": Mistake(
        "requirements_from: [{file: pyproject.toml, group: [dev]}]\n",
        1, "requirements_from.0.group", "Did you mean 'groups'?",
    ),
    "no file": Mistake(
        "requirements_from:\n  - extras: [a]\n", 2, "requirements_from.0", "'file' is missing"
    ),
}  # fmt: skip
WRONG_TYPES = {
    "text for a list": Mistake("requirements: rich\n", 1, "requirements", "a list: [rich]"),
    "a build": Mistake(
        "framework_version: 2.7+cu118\n", 1, "framework_version", "the hardware decides it"
    ),
    "an override": Mistake("overrides:\n  a: a==2.x\n", 2, "overrides.a", "name==version"),
    "a range": Mistake("framework_version: 2.7.x\n", 1, "framework_version", '"2.7" or "2.7.1"'),
    "a profile for a list": Mistake("profiles: cpu\n", 1, "profiles", "Write a list: [cpu]"),
    "lines for a list": Mistake(
        "requirements: |\n  rich\n  click\n", 1, "requirements", "in brackets, or one item a line"
    ),
    "a mapping for a list": Mistake(
        "requirements:\n  rich: '>=13'\n", 1, "requirements", LIST_IT
    ),
    "a list for a mapping": Mistake(
        "environment:\n  - A=b\n", 1, "environment", "Write keys instead of items"
    ),
    "a list for an environment": Mistake(
        "environments:\n  train: [rich]\n", 2, "environments.train", "Write keys instead of items"
    ),
    "text for a mapping": Mistake(
        "environments: train\n", 1, "environments", "Write keys below it"
    ),
    "a nested list": Mistake(
        "requirements:\n  - rich\n  - [click]\n", 3, "requirements.1", "instead of a list"
    ),
    "a mapping in a list": Mistake(
        "requirements:\n  - rich: 13\n", 2, "requirements.0", "put it in quotes"
    ),
    "Python as a number": Mistake(
        "profiles: [cpu]\npython: 3.10\n", 2, "python", 'Put it in quotes: "3.10"'
    ),
    "a number for text": Mistake(
        "environment:\n  A: x\n  B: 0x10\n", 3, "environment.B", "Put it in quotes."
    ),
    "true for text": Mistake("environment: {A: yes}\n", 1, "environment.A", "Put it in quotes."),
    "true for a list": Mistake("requirements: true\n", 1, "requirements", LIST_IT),
    "no value": Mistake("python:\nprofiles: [cpu]\n", 1, "python", NO_VALUE),
    "an empty key": Mistake("requirements:\n", 1, "requirements", NO_VALUE),
    "an empty environment": Mistake(
        "environments:\n  train:\n", 2, "environments.train", NO_VALUE
    ),
    "an empty key below": Mistake(
        "environments:\n  a:\n    python:\n", 3, "environments.a.python", NO_VALUE
    ),
    "an empty item": Mistake("requirements:\n  -\n", 2, "requirements.0", NO_VALUE),
    "a port for a list": Mistake("ports: 8000\n", 1, "ports", LIST_IT),
    "a port as text": Mistake("ports: ['80:80']\n", 1, "ports.0", "as in ports: [8000]"),
    "no port": Mistake("ports:\n  - 80\n  - 65536\n", 3, "ports.1", "as in ports: [8000]"),
    "a command as text": Mistake(
        "command: python serve.py\n", 1, "command", "Write a list: [python, serve.py]"
    ),
    "a number in a command": Mistake(
        "command: [serve, 80]\n", 1, "command.1", 'Put it in quotes: "80"'
    ),
    "no command": Mistake("command: []\n", 1, "command", NO_VALUE),
    "a list of volumes": Mistake(
        "volumes: ['./a:/b']\n", 1, "volumes", "Write keys instead of items"
    ),
    "no profile": Mistake("profiles: []\n", 1, "profiles", NO_VALUE),
}  # fmt: skip
WRONG_VALUES = {
    "a variable in a command": Mistake(
        "command: [python, $HOME/x.py]\n", 1, "command.1", "without backquotes, dollar signs"
    ),
    "a folder elsewhere": Mistake(
        "volumes:\n  /srv/data: /data\n", 2, "volumes", "envbuilder run -v FOLDER:PATH"
    ),
    "a volume outside": Mistake("volumes: {./../a: /d}\n", 1, "volumes", "run -v FOLDER:PATH"),
    "a path in a container": Mistake(
        "volumes:\n  a: /a\n  models: models\n", 3, "volumes.models", "an absolute path"
    ),
    "a relative PYTHONPATH": Mistake(
        "environment:\n  A: b\n  PYTHONPATH: src\n", 3, "environment.PYTHONPATH",
        "python_path: [src]",
    ),
    "a relative PYTHONPATH below": Mistake(
        "environments:\n  a:\n    environment: {PYTHONPATH: '/x:'}\n",
        3, "environments.a.environment.PYTHONPATH", "python_path: [src]",
    ),
    "a file outside": Mistake("files:\n  - ../x\n", 2, "files.0", "without `..`"),
    "all files by a pattern": Mistake("files: ['*.py']\n", 1, "files.0", "found '*.py'"),
    "a module outside": Mistake("python_path: [../x]\n", 1, "python_path.0", "without `..`"),
    "Python 3": Mistake("python: '3'\n", 1, "python", "such as \"3.12\""),
    "a patch release": Mistake("python: 3.11.4\n", 1, "python", "its first two numbers only"),
    "a range of Pythons": Mistake("python: '>=3.10'\n", 1, "python", "found '>=3.10'"),
    "nvidia": Mistake("profiles:\n  - nvidia\n", 2, "profiles.0", "Did you mean 'cuda'?"),
    "a base of profiles": Mistake("profiles: [_cpu]\n", 1, "profiles.0", "mean 'cpu'?"),
    "twice": Mistake("profiles:\n  - cpu\n  - cpu\n", 3, "profiles.1", "Remove one of them."),
    "default": Mistake(
        "environments:\n  default: {}\n", 2, "environments.default", "to the top level"
    ),
    "an absolute path": Mistake(
        "requirements_from: [/etc/passwd]\n", 1, "requirements_from.0", "folder of envbuilder.yaml"
    ),
    "a path outside": Mistake(
        "requirements_from: [../r.txt]\n", 1, "requirements_from.0", "without `..`"
    ),
    "a path outside below": Mistake(
        "requirements_from:\n  - file: a/../../r.txt\n",
        2, "requirements_from.0.file", "copy files from elsewhere",
    ),
    "a missing file": Mistake("requirements_from: [no.txt]\n", 1, "no.txt", "Write its path"),
    "another kind of file": Mistake(
        "requirements_from:\n  - r.txt\n  - poetry.lock\n", 3, "poetry.lock", "poetry export"
    ),
    "extras of a text file": Mistake(
        "requirements_from:\n  - {file: r.txt, extras: [a]}\n", 2, "r.txt", "Remove extras: a."
    ),
    "an option": Mistake(
        "requirements: [-r r.txt]\n", 1, "requirements.0", "under requirements_from:"
    ),
    "the project": Mistake("requirements: [.]\n", 1, "requirements.0", "needs no requirement"),
    "a repository": Mistake(
        "requirements:\n  - git+https://h/x\n", 2, "git+https://h/x", "Name a released version"
    ),
    "one equals sign": Mistake("requirements: [rich=13]\n", 1, "rich=13", "rich>=13"),
    "another PyTorch": Mistake(
        "requirements: [torch==1.0]\n", 1, "torch==1.0", "Allow what it has"
    ),
    "a Debian version": Mistake(
        "system_packages: [git=1.2]\n", 1, "system_packages.0", "without a version"
    ),
    "a relative store": Mistake("shared_store: store\n", 1, "shared_store", "begin it with /"),
}  # fmt: skip
WRONG_YAML = {
    "twice": Mistake("python: '3.11'\npython: '3.12'\n", 2, "python", "keep one of them"),
    "a tab": Mistake("requirements:\n\t- rich\n", 2, "", "Indent with spaces"),
    "indentation": Mistake(
        "requirements:\n - a\n  - b\n- c\n", 4, "", "Check the indentation"
    ),
    "no bracket": Mistake("requirements: [a\npython: '3.11'\n", 2, "", "brackets"),
    "a bomb": Mistake(BOMB, 1, "", "write the value out"),
    "a merge": Mistake("<<: {python: '3.11'}\n", 1, "<<", "write the keys out"),
    "an object": Mistake("requirements: !!python/object:os.system [a]\n", 1, "", "plain data"),
    "two documents": Mistake("python: '3.11'\n---\n{}\n", 2, "", "one document only"),
    "a list": Mistake("- rich\n", 1, "", "Begin with a key and a colon."),
    "text": Mistake("rich\n", 1, "", "Begin with a key and a colon."),
    "a key that is true": Mistake("on: [cpu]\n", 1, "on", "quote it"),
    "control characters": Mistake("python: '\x1b[2J'\n", 1, "", "U+001B is not allowed"),
}  # fmt: skip
GROUPS = {"key": WRONG_KEYS, "type": WRONG_TYPES, "value": WRONG_VALUES, "YAML": WRONG_YAML}
MISTAKES = {f"{kind}: {name}": m for kind, group in GROUPS.items() for name, m in group.items()}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "r.txt").write_text("rich\n")
    monkeypatch.chdir(folder)
    for name in ("CONFIG", "CACHE", "DATA"):
        monkeypatch.setenv(f"ENVBUILDER_{name}_DIR", str(tmp_path / name))
    return folder


def refused(folder: Path, text: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What is printed about a file, which must be refused without a trace."""
    (folder / "envbuilder.yaml").write_bytes(text.encode())
    with pytest.raises(SystemExit) as ended:
        cli.main(["check"])
    printed = capsys.readouterr()
    assert (ended.value.code, printed.out) == (2, "")
    lines = printed.err.splitlines()
    assert len(lines) <= 10
    for line in lines:
        assert line.isprintable(), lines
        assert len(line) < 600, lines
    assert names_in(folder) == {"envbuilder.yaml", "r.txt"}
    assert names_in(folder.parent) == {"project"}
    return printed.err


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_with_its_line_its_key_and_what_to_do(
    name: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mistake = MISTAKES[name]
    printed = refused(project, mistake.text, capsys)
    first = printed.splitlines()[0]
    assert f"envbuilder.yaml:{mistake.line}: " in first
    assert mistake.key in first.partition(f"envbuilder.yaml:{mistake.line}: ")[2]
    assert mistake.advice in printed


def test_no_hint_hides_a_key() -> None:
    """A key of the file that is among the wrong ones would be refused with advice against it."""
    for struct, hints in settings.HINTS.items():
        assert not set(hints) & {name for name, _ in decoding.fields(struct)}


def test_there_are_forty() -> None:
    assert len(MISTAKES) >= 40
