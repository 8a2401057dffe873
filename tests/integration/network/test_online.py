"""What upstream still has, asked by the command line at an index of tiny wheels on loopback."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from envbuilder.packages.python import static_index, upstream
from tests.integration.conftest import start
from tests.integration.network.test_lock import wheel
from tests.support import index_server

if TYPE_CHECKING:
    from pathlib import Path


PROFILE = """\
description: Two tiny wheels
accelerator: cpu
platforms: [linux/amd64]
backends: [venv]
python: {default: "3.11", supported: ["3.11"]}
tools: {uv: 0.13.8}
requirements: [top==1.0]
expects: {device: cpu, version: 2.13.0}
"""


class Project:
    """A project whose only index is the one that a test serves."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.wheels = folder, folder / "wheels"
        self.wheels.mkdir()
        wheel(self.wheels, "top", "1.0", "leaf")
        self.leaf = wheel(self.wheels, "leaf", "1.0")
        wheel(self.wheels, "uv", "0.13.8")
        (folder / "envbuilder.yaml").write_text("")
        (folder / "profiles").mkdir()
        (folder / "profiles" / "tiny.yaml").write_text(PROFILE)

    def offers(self) -> list[static_index.Offer]:
        return [upstream.read_wheel(p) for p in sorted(self.wheels.glob("*.whl"))]

    def run(self, index: str, *arguments: str) -> Any:
        environment = {
            "UV_DEFAULT_INDEX": index,
            "UV_HTTP_RETRIES": "0",
            "NO_PROXY": "127.0.0.1",
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_FIND_LINKS": "",
            "XDG_CONFIG_HOME": str(self.folder),
            **{f"ENVBUILDER_{n}_DIR": str(self.folder / n) for n in ("CACHE", "DATA", "CONFIG")},
        }
        return start(("lock", "--profile", "tiny", *arguments), environment, cwd=self.folder)

    def check(self, index: str, code: int, *arguments: str) -> dict[str, tuple[str, list[str]]]:
        """File → status and where else it is, for what is not fine."""
        done = self.run(index, "--check", "--online", "--json", *arguments)
        assert done.returncode == code, done.stdout + done.stderr
        told = json.loads(done.stdout)["online"]
        assert told["checked"] == 3
        return {f["name"]: (f["status"], f["elsewhere"]) for f in told["findings"]}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path)
    with index_server.serve(made.offers()) as url:
        done = made.run(url)
        assert done.returncode == 0, done.stderr
    return made


def test_everything_is_where_it_was(project: Project) -> None:
    with index_server.serve(project.offers()) as url:
        assert project.check(url, 0) == {}


def test_what_vanished_is_found_in_a_folder_of_wheels(project: Project, tmp_path: Path) -> None:
    offers = [o for o in project.offers() if o.distribution != "leaf"]
    with index_server.serve(offers) as url:
        assert project.check(url, 2) == {"leaf": ("vanished", [])}
        kept = tmp_path / "kept"
        kept.mkdir()
        (tmp_path / "uv").mkdir()
        (tmp_path / "uv" / "uv.toml").write_text(f"find-links = ['{kept}']\n")
        (kept / project.leaf.name).write_bytes(project.leaf.read_bytes())
        # What uv would take from there is where the lock says: with the user's own packages.
        assert project.check(url, 0) == {}


def test_what_changed_is_told(project: Project) -> None:
    changed = [
        msgspec.structs.replace(o, sha256="e" * 64) if o.distribution == "leaf" else o
        for o in project.offers()
    ]
    with index_server.serve(changed) as url:
        assert project.check(url, 2) == {"leaf": ("changed", [])}


def test_another_size_is_another_file(project: Project) -> None:
    with index_server.serve(project.offers()) as url:
        project.leaf.write_bytes(project.leaf.read_bytes() + b"x")
        assert project.check(url, 2) == {"leaf": ("changed", [])}


def test_an_index_out_of_reach_is_unknown(project: Project) -> None:
    found = project.check("http://127.0.0.1:9/simple", 4)
    assert {status for status, _ in found.values()} == {"unknown"}
    assert len(found) == 3
