"""A site that fleets are verified on: a real Slurm, a store that all nodes see, a user's folder.

Nodes start envbuilder through `launcher.py`, which behaves as the node's name says, so that one run
meets nodes that are right, wrong, dead, hung and lying. What it does not imitate is real.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

import envbuilder
from tests.support.slurm import USER, SlurmCluster, identity

REPOSITORY = Path(envbuilder.__file__).parents[1]
IMPORTS = {
    # The interpreter of this environment may be below root's home folder.
    "PYTHONPATH": f"{REPOSITORY}:{Path(msgspec.__file__).parents[1]}",
    "PYTHONDONTWRITEBYTECODE": "1",
}
_STORE = ("store", "datasets")


class Site:
    """One cluster's site; `python` can be run by the cluster's user."""

    def __init__(self, cluster: SlurmCluster, python: str, cache: Path) -> None:
        self.cluster = cluster
        self.home = cluster.work / "home"
        self._python = python
        self._store = cluster.folder / "store"
        self.home.mkdir()
        shutil.chown(self.home, USER)
        self._fill(cache)

    def _fill(self, cache: Path) -> None:
        """Lay the store that an administrator has filled, as hard links where that is possible."""
        self._store.mkdir()
        for name in _STORE:
            link = ("cp", "--recursive", "--link", cache / name, self._store)
            if subprocess.run(link, capture_output=True, check=False).returncode:
                shutil.copytree(cache / name, self._store / name, dirs_exist_ok=True)
        subprocess.run(["chmod", "-R", "a+rX", self._store], check=True)

    @property
    def environment(self) -> dict[str, str]:
        """The user's variables. There is no network: the package index is a closed port."""
        folders = {n: str(self.home / n.lower()) for n in ("CACHE", "DATA", "CONFIG")}
        return {
            **self.cluster.environment,
            "HOME": str(self.home),
            **IMPORTS,
            "ENVBUILDER_SHARED_STORE": str(self._store),
            **{f"ENVBUILDER_{name}_DIR": folder for name, folder in folders.items()},
        }

    def settings(self, **keys: Any) -> Path:
        """Write `fleet.yaml`, with the launcher as the nodes' envbuilder."""
        launcher = Path(__file__).with_name("fleet_launcher.py")
        variables = [f"export {name}={value}" for name, value in IMPORTS.items()]
        content = {"command": [self._python, str(launcher)], "setup": variables, **keys}
        path = self.cluster.work / "fleet.yaml"
        path.write_text(json.dumps(content))  # which is YAML
        return path

    def argv(self, *arguments: str) -> list[str]:
        """Return a command of the user's envbuilder."""
        return [self._python, "-m", "envbuilder", "fleet", *arguments]

    def run(self, *arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return self.cluster.run(
            self.argv(*arguments), environment=self.environment, timeout=timeout
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command."""
        return subprocess.Popen(
            self.argv(*arguments),
            env=self.environment,
            cwd=self.cluster.work,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **identity(USER),
        )

    def entries(self, folder: str) -> Mapping[str, Any]:
        """Return the rows of a run's table by node."""
        content = (self.cluster.work / folder / "summary.json").read_text()
        return {entry["node"]: entry for entry in json.loads(content)["entries"]}


def usable_python() -> str | None:
    """Return an interpreter with which the cluster's user can run envbuilder; None without one."""
    for python in (sys.executable, "/usr/bin/python3"):
        argv = [python, "-c", "import envbuilder.cli, msgspec, tests.support.fleets"]
        try:
            done = subprocess.run(
                argv,
                env=IMPORTS,
                cwd="/",
                capture_output=True,
                check=False,
                **identity(USER),
            )
        except OSError:
            continue
        if done.returncode == 0:
            return python
    return None
