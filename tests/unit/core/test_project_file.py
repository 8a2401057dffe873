"""Mistakes in `envbuilder.yaml`: each is refused with file, line, key and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from envbuilder.core import decoding, settings
from tests.support.command_line import Command
from tests.support.folders import names_in


class Mistake(NamedTuple):
    """A wrong file, and what must be said of it."""

    text: str
    key: str
    advice: str
    line: int = 1


BOMB = "a: &a [x, x]\n" + "".join(
    f"{b}: &{b} [*{a}, *{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
LIST_IT = "one item a line, each after a hyphen"
NO_VALUE = "Write a value, or remove the key."

WRONG_KEYS = {
    "dependencies": Mistake("dependencies: [rich]\n", "dependencies", "mean 'requirements'?"),
    "misspelt": Mistake("requirments: [rich]\n", "requirments", "mean 'requirements'?"),
    "requirements.txt": Mistake(
        "requirements.txt: true\n", "requirements.txt", "mean 'requirements_from'?"
    ),
    "hyphen": Mistake("requirements-from: [r.txt]\n", "requirements-from", "requirements_from"),
    "name": Mistake("name: mine\n", "name", "identifies a project by its folder"),
    "version": Mistake("version: 2\n", "version", "this file has no version"),
    "channels": Mistake("channels: [conda-forge]\n", "channels", "[environment.yml]"),
    "conda": Mistake("conda: [ffmpeg]\n", "conda", "requirements_from: [environment.yml]"),
    "extras": Mistake("extras: [dev]\n", "extras", "{file: pyproject.toml, extras: [NAME]}"),
    "accelerator": Mistake("accelerator: cuda\n", "accelerator", "profiles: [cpu, cuda]"),
    "base_image": Mistake("base_image: python:3.11\n", "base_image", "ENVBUILDER_BASE_IMAGE"),
    "backend": Mistake("backend: venv\n", "backend", "pass --backend"),
    "platforms": Mistake("platforms: [linux/amd64]\n", "platforms", "every profile lists"),
    "index": Mistake("index_url: https://h/s\n", "index_url", "in pip or uv"),
    "torch": Mistake("torch: 2.13.0\n", "torch", "the framework comes from the profile"),
    "extends": Mistake("extends: cpu\n", "extends", "A project lists `profiles`"),
    "env": Mistake("env: {A: b}\n", "env", "Did you mean 'environment'?"),
    "enviroments": Mistake("enviroments: {}\n", "enviroments", "mean 'environments'?"),
    "python_version": Mistake("python_version: '3.11'\n", "python_version", "mean 'python'?"),
    "copy": Mistake("copy: [src]\n", "copy", "Did you mean 'files'?"),
    "PYTHONPATH": Mistake("PYTHONPATH: src\n", "PYTHONPATH", "Did you mean 'python_path'?"),
    "wrong place": Mistake(
        "environments:\n  train:\n    profiles: [cpu]\n",
        "environments.train.profiles", "'profiles' belongs at the top level.", line=3,
    ),
    "below": Mistake(
        "environments:\n  a: {}\n  b:\n    deps: [rich]\n",
        "environments.b.deps", "Did you mean 'requirements'?", line=4,
    ),
    "an environment's name": Mistake(
        "environments:\n  a:\n    name: b\n", "environments.a.name", "the key above it", line=3
    ),
    "path of a file": Mistake(
        "requirements_from:\n  - path: r.txt\n", "requirements_from.0.path", "mean 'file'?", line=2
    ),
    "groups of a file": Mistake(
        "requirements_from: [{file: pyproject.toml, group: [dev]}]\n",
        "requirements_from.0.group", "Did you mean 'groups'?",
    ),
    "no file": Mistake(
        "requirements_from:\n  - extras: [a]\n", "requirements_from.0", "'file' is missing", line=2
    ),
}  # fmt: skip
WRONG_TYPES = {
    "text for a list": Mistake("requirements: rich\n", "requirements", "a list: [rich]"),
    "a build": Mistake(
        "framework_version: 2.7+cu118\n", "framework_version", "the hardware determines it"
    ),
    "an override": Mistake("overrides:\n  a: a==2.x\n", "overrides.a", "name==version", line=2),
    "a range": Mistake("framework_version: 2.7.x\n", "framework_version", '"2.7" or "2.7.1"'),
    "a profile for a list": Mistake("profiles: cpu\n", "profiles", "Write a list: [cpu]"),
    "lines for a list": Mistake(
        "requirements: |\n  rich\n  click\n", "requirements", "in brackets, or one item a line"
    ),
    "a mapping for a list": Mistake(
        "requirements:\n  rich: '>=13'\n", "requirements", LIST_IT
    ),
    "a list for a mapping": Mistake(
        "environment:\n  - A=b\n", "environment", "Write keys instead of items"
    ),
    "a list for an environment": Mistake(
        "environments:\n  train: [rich]\n",
        "environments.train", "Write keys instead of items", line=2,
    ),
    "text for a mapping": Mistake(
        "environments: train\n", "environments", "Write keys below it"
    ),
    "a nested list": Mistake(
        "requirements:\n  - rich\n  - [click]\n", "requirements.1", "instead of a list", line=3
    ),
    "a mapping in a list": Mistake(
        "requirements:\n  - rich: 13\n", "requirements.0", "in quotes if", line=2
    ),
    "Python as a number": Mistake(
        "profiles: [cpu]\npython: 3.10\n", "python", 'Put it in quotes: "3.10"', line=2
    ),
    "a number for text": Mistake(
        "environment:\n  A: x\n  B: 0x10\n", "environment.B", "Put it in quotes.", line=3
    ),
    "true for text": Mistake("environment: {A: yes}\n", "environment.A", "Put it in quotes."),
    "true for a list": Mistake("requirements: true\n", "requirements", LIST_IT),
    "no value": Mistake("python:\nprofiles: [cpu]\n", "python", NO_VALUE),
    "an empty key": Mistake("requirements:\n", "requirements", NO_VALUE),
    "an empty environment": Mistake(
        "environments:\n  train:\n", "environments.train", NO_VALUE, line=2
    ),
    "an empty key below": Mistake(
        "environments:\n  a:\n    python:\n", "environments.a.python", NO_VALUE, line=3
    ),
    "an empty item": Mistake("requirements:\n  -\n", "requirements.0", NO_VALUE, line=2),
    "a port for a list": Mistake("ports: 8000\n", "ports", LIST_IT),
    "a port as text": Mistake("ports: ['80:80']\n", "ports.0", "as in ports: [8000]"),
    "no port": Mistake("ports:\n  - 80\n  - 65536\n", "ports.1", "as in ports: [8000]", line=3),
    "a command as text": Mistake(
        "command: python serve.py\n", "command", "Write a list: [python, serve.py]"
    ),
    "a number in a command": Mistake(
        "command: [serve, 80]\n", "command.1", 'Put it in quotes: "80"'
    ),
    "no command": Mistake("command: []\n", "command", NO_VALUE),
    "a list of volumes": Mistake(
        "volumes: ['./a:/b']\n", "volumes", "Write keys instead of items"
    ),
    "no profile": Mistake("profiles: []\n", "profiles", NO_VALUE),
}  # fmt: skip
WRONG_VALUES = {
    "a variable in a command": Mistake(
        "command: [python, $HOME/x.py]\n", "command.1", "without backquotes, dollar signs"
    ),
    "a folder elsewhere": Mistake(
        "volumes:\n  /srv/data: /data\n", "volumes", "envbuilder run -v FOLDER:PATH", line=2
    ),
    "a volume outside": Mistake("volumes: {./../a: /d}\n", "volumes", "run -v FOLDER:PATH"),
    "a path in a container": Mistake(
        "volumes:\n  a: /a\n  models: models\n", "volumes.models", "an absolute path", line=3
    ),
    "a relative PYTHONPATH": Mistake(
        "environment:\n  A: b\n  PYTHONPATH: src\n", "environment.PYTHONPATH",
        "python_path: [src]", line=3,
    ),
    "a relative PYTHONPATH below": Mistake(
        "environments:\n  a:\n    environment: {PYTHONPATH: '/x:'}\n",
        "environments.a.environment.PYTHONPATH", "python_path: [src]", line=3,
    ),
    "a file outside": Mistake("files:\n  - ../x\n", "files.0", "without `..`", line=2),
    "all files by a pattern": Mistake("files: ['*.py']\n", "files.0", "found '*.py'"),
    "a module outside": Mistake("python_path: [../x]\n", "python_path.0", "without `..`"),
    "Python 3": Mistake("python: '3'\n", "python", "such as \"3.12\""),
    "a patch release": Mistake("python: 3.11.4\n", "python", "its first two numbers only"),
    "a range of Pythons": Mistake("python: '>=3.10'\n", "python", "found '>=3.10'"),
    "nvidia": Mistake("profiles:\n  - nvidia\n", "profiles.0", "Did you mean 'cuda'?", line=2),
    "a base of profiles": Mistake("profiles: [_cpu]\n", "profiles.0", "mean 'cpu'?"),
    "twice": Mistake("profiles:\n  - cpu\n  - cpu\n", "profiles.1", "Remove one of them.", line=3),
    "default": Mistake(
        "environments:\n  default: {}\n", "environments.default", "to the top level", line=2
    ),
    "an absolute path": Mistake(
        "requirements_from: [/etc/passwd]\n", "requirements_from.0", "relative to envbuilder.yaml"
    ),
    "a path outside": Mistake(
        "requirements_from: [../r.txt]\n", "requirements_from.0", "without `..`"
    ),
    "a path outside below": Mistake(
        "requirements_from:\n  - file: a/../../r.txt\n",
        "requirements_from.0.file", "Copy files from elsewhere", line=2,
    ),
    "a missing file": Mistake("requirements_from: [no.txt]\n", "no.txt", "Write the path"),
    "another kind of file": Mistake(
        "requirements_from:\n  - r.txt\n  - poetry.lock\n", "poetry.lock", "poetry export", line=3
    ),
    "extras of a text file": Mistake(
        "requirements_from:\n  - {file: r.txt, extras: [a]}\n", "r.txt", "Remove extras: a.", line=2
    ),
    "an option": Mistake(
        "requirements: [-r r.txt]\n", "requirements.0", "under requirements_from:"
    ),
    "the project": Mistake("requirements: [.]\n", "requirements.0", "needs no entry"),
    "a repository": Mistake(
        "requirements:\n  - git+https://h/x\n", "git+https://h/x", "Name a released version", line=2
    ),
    "one equals sign": Mistake("requirements: [rich=13]\n", "rich=13", "rich>=13"),
    "another PyTorch": Mistake(
        "requirements: [torch==1.0]\n", "torch==1.0", "Allow one of the versions"
    ),
    "a Debian version": Mistake(
        "system_packages: [git=1.2]\n", "system_packages.0", "without a version"
    ),
    "a relative store": Mistake("shared_store: store\n", "shared_store", "Begin the path with /"),
}  # fmt: skip
WRONG_YAML = {
    "twice": Mistake("python: '3.11'\npython: '3.12'\n", "python", "keep one of them", line=2),
    "a tab": Mistake("requirements:\n\t- rich\n", "", "Indent with spaces", line=2),
    "indentation": Mistake(
        "requirements:\n - a\n  - b\n- c\n", "", "Check the indentation", line=4
    ),
    "no bracket": Mistake("requirements: [a\npython: '3.11'\n", "", "brackets", line=2),
    "a bomb": Mistake(BOMB, "", "write the value out"),
    "a merge": Mistake("<<: {python: '3.11'}\n", "<<", "write the keys out"),
    "an object": Mistake("requirements: !!python/object:os.system [a]\n", "", "plain data"),
    "two documents": Mistake("python: '3.11'\n---\n{}\n", "", "contain only one document", line=2),
    "a list": Mistake("- rich\n", "", "Begin with a key and a colon."),
    "text": Mistake("rich\n", "", "Begin with a key and a colon."),
    "a key that is true": Mistake("on: [cpu]\n", "on", "quote it"),
    "control characters": Mistake("python: '\x1b[2J'\n", "", "U+001B is not allowed"),
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


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_with_its_line_its_key_and_what_to_do(
    name: str, project: Path, envbuilder: Command
) -> None:
    """And leaves no trace."""
    mistake = MISTAKES[name]
    (project / "envbuilder.yaml").write_bytes(mistake.text.encode())
    printed = envbuilder("check", code=2)
    assert printed.out == ""
    lines = printed.err.splitlines()
    assert len(lines) <= 10
    for line in lines:
        assert line.isprintable(), lines
        assert len(line) < 600, lines
    assert names_in(project) == {"envbuilder.yaml", "r.txt"}
    assert names_in(project.parent) == {"project"}
    assert f"envbuilder.yaml:{mistake.line}: " in lines[0]
    assert mistake.key in lines[0].partition(f"envbuilder.yaml:{mistake.line}: ")[2]
    assert mistake.advice in printed.err


def test_no_hint_hides_a_key() -> None:
    """A key of the file that is among the wrong ones would be refused with advice against it."""
    for struct, hints in settings.HINTS.items():
        assert not set(hints) & {name for name, _ in decoding.fields(struct)}
