"""A project whose profile `little` is one small wheel on conda's Python, and what it builds."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envbuilder.builds.shared import SHARED
from tests.conftest import succeeded
from tests.support.projects import lay_profile

if TYPE_CHECKING:
    from tests.integration.conftest import Cli

PLAIN = ("tiny-lib", "placed", "activated", "scripted")
VIRTUAL = {"__unix": "0", "__linux": "4.18", "__glibc": "2.36", "__archspec": "1=x86_64"}
PLATFORMS: dict[str, dict[str, str]] = {
    "linux/amd64": VIRTUAL,
    "linux/arm64": {"__glibc": "2.28"},
    "macos/arm64": {"__osx": "14.0"},
}
CHANNEL = "ENVBUILDER_INDEX_CONDA_FORGE"
_LITTLE = {
    "description": "One small wheel",
    "accelerator": "cpu",
    "backends": ["venv", "conda"],
    "python": {"default": "3.11", "supported": ["3.11"]},
    "tools": {"uv": "0.13.8"},
    "requirements": ["setuptools==80.9.0"],
    "expects": {"device": "cpu", "version": "2.13.0"},
}
"""A profile, but for what it takes from conda."""


def lay_little(project: Path, *wanted: str, virtual: Any = VIRTUAL) -> None:
    """A project with the profile `little`: one small wheel on top of conda's Python."""
    stated = {
        **_LITTLE,
        "platforms": ["linux/amd64"],
        "environment": {"LITTLE": "of the profile"},
        "conda": {
            "packages": list(wanted),
            "virtual_packages": {"linux/amd64": virtual},
        },
    }
    lay_profile(project, "little", json.dumps(stated))


def _exclude(listed: tuple[str, ...]) -> str:
    """The key that takes packages from conda alone: the package index has none of them."""
    names = (re.split("[ =<>]", each)[0] for each in listed)
    only = [n for n in names if n != "python" and not n.startswith("pytorch")]
    return f"exclude: [{', '.join(only)}]\n"


def lay_listed(folder: Path, *listed: str, channels: str = "conda-forge", **changes: Any) -> None:
    """A project whose environment.yml lists packages, on a profile with one small wheel."""
    profile = {
        **_LITTLE,
        "platforms": list(PLATFORMS),
        "conda": {"virtual_packages": PLATFORMS, "packages": changes.pop("of_profile", [])},
    }
    (folder / "profiles").mkdir(exist_ok=True)
    (folder / "profiles/little.yaml").write_text(json.dumps(profile | changes))
    (folder / "envbuilder.yaml").write_text(
        f"profiles: [little]\nrequirements_from: [environment.yml]\n{_exclude(listed)}"
    )
    lines = [f"  - {each}\n" for each in listed]
    text = f"channels: [{channels}]\ndependencies:\n{''.join(lines)}"
    (folder / "environment.yml").write_text(text)


class Project:
    """A project with `little`, whose data is its own."""

    def __init__(self, cli: Cli, folder: Path, wheels_lock: str) -> None:
        self.folder = folder
        self._cli = cli
        self._wheels_lock = wheels_lock
        self.envs = folder / "data/envs"
        self.environment = {"ENVBUILDER_DATA_DIR": str(folder / "data")}

    def lay(self, *wanted: str, **options: Any) -> None:
        lay_little(self.folder, *wanted, **options)
        (self.folder / "profiles/locks/little.json").write_text(self._wheels_lock)

    def run(self, url: str, *arguments: str, **variables: str) -> Any:
        return self._cli(*arguments, environment={**self.environment, CHANNEL: url, **variables})

    def lock(self, url: str) -> None:
        succeeded(self.run(url, "lock", "--backend", "conda", "--profile", "little"))

    def build(self, url: str, *options: str, **variables: str) -> Any:
        arguments = ("build", "--profile", "little", "--backend", "conda", *options, "--json")
        return self.run(url, *arguments, **variables)

    def built(self, url: str, *options: str, **variables: str) -> Any:
        return json.loads(succeeded(self.build(url, *options, **variables)).stdout)

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


def prefix_of(result: Any) -> Path:
    return Path(result["artifact"]["ref"])


def tree_of(result: Any) -> str:
    """The digest of everything in the prefix, what names its place included."""
    return str(json.loads((prefix_of(result) / "envbuilder.json").read_text())["tree"])


def contents(prefix: Path) -> dict[str, bytes]:
    """What its files contain, but for the record of their times and inodes."""
    files = (p for p in prefix.rglob("*") if p.is_file() and not p.is_symlink())
    files = (p for p in files if p != prefix / SHARED)
    return {str(p.relative_to(prefix)): p.read_bytes() for p in files}
