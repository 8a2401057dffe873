"""What is rendered for compose and for dev containers, started by the real ones.

The engine of the tests builds with the host's network, as there may be no other; containers have
none. Device nodes are /dev/null under the names of GPUs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import missing, ran
from tests.integration.conftest import locked
from tests.support.projects import lay_profile

GUIDE = "docs/guides/devcontainer.md"
GOLDEN = Path(__file__).parents[2] / "golden"
PROFILE = """\
extends: _rocm
description: A small environment without torch, for tests
platforms: [linux/amd64]
backends: [docker, venv]
python: {default: "3.11", supported: ["3.11"]}
requirements: [setuptools==80.9.0]
system_packages: []
expects: {version: 2.13.0}
"""
TRAIN = """\
import json, os, sys
from pathlib import Path
fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
written = []
for node in ("kfd", "dri/renderD128", "nvidiactl"):
    try:
        Path("/dev", node).write_text("x")
        written.append(node)
    except OSError:
        pass
Path("written").touch()
print(json.dumps({
    "prefix": sys.prefix, "folder": os.getcwd(), "user": os.getuid(), "groups": os.getgroups(),
    "capabilities": fields["CapBnd"].strip(), "new_privileges": fields["NoNewPrivs"].strip(),
    "written": written, "by_path": Path("/dev/dri/by-path").is_dir(),
    "proof": os.environ.get("PROOF"),
}))
"""
OWNER = 1000
"""Whom the project belongs to, and whom the image's user is."""
PLAIN = {
    "prefix": "/opt/env", "folder": "/work", "user": OWNER, "groups": [OWNER],
    "capabilities": "0" * 16, "new_privileges": "1", "written": [], "by_path": False,
    "proof": None,
}  # fmt: skip


class Project:
    """A project of somebody who is not root, with commands as this one types them."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.environment = environment

    def run(self, *command: str) -> str:
        """Run a command; return what it prints."""
        done = ran(
            command, cwd=self.folder, env=self.environment,
             timeout=300)  # fmt: skip
        assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-4000:])
        if command[0] == "envbuilder":
            self._without_network()
        return done.stdout

    def render(self, target: str) -> None:
        self.run("envbuilder", "render", "--profile", "rocm", "--target", target, "-o", ".")

    def train_with_compose(self, profile: str, root: Path) -> dict[str, Any]:
        """What `train.py` sees of a device for which the script is: nothing else differs."""
        self.render("compose")
        shutil.copy(GOLDEN / profile / "compose/compose-override.sh", self.folder)
        self.run("sh", "compose-override.sh", str(root))
        return printed_by_train(
            self.run("docker", "compose", "run", "--rm", "env", "python", "train.py")
        )

    def _without_network(self) -> None:
        for path in (self.folder / "compose.yaml", self.folder / ".devcontainer/compose.yaml"):
            text = path.read_text() if path.exists() else ""
            if text and "network_mode" not in text:
                assert text.count("    build:\n") == 1
                lines = "    network_mode: none\n    build:\n      network: host\n"
                path.write_text(text.replace("    build:\n", lines))

    def tree(self, *nodes: str) -> Path:
        """A root with these device nodes, each of a group of its own."""
        root = self.folder / "the root"
        shutil.rmtree(root, ignore_errors=True)
        for number, node in enumerate(nodes):
            path = root / "dev" / node
            path.parent.mkdir(parents=True, exist_ok=True)
            os.mknod(path, stat.S_IFCHR | 0o660, os.makedev(1, 3))
            path.chmod(0o660)
            os.chown(path, 0, 4240 + number)
        return root

    def look_at(self, root: Path) -> None:
        """Make the dev container's script look at this root."""
        path = self.folder / ".devcontainer/devcontainer.json"
        command = 'compose-override.sh"]'
        text = path.read_text()
        assert text.count(command) == 1
        path.write_text(text.replace(command, f'compose-override.sh", {json.dumps(str(root))}]'))

    def remove(self) -> None:
        """Remove containers, images and volumes."""
        name = self.folder.name
        for project in (name, f"{name}_devcontainer"):
            subprocess.run(
                ["docker", "compose", "--project-name", project, "down", "--volumes", "-t", "0"],
                check=False, capture_output=True,
            )  # fmt: skip
        listed = self.run("docker", "image", "ls", "--format", "{{.Repository}}").split()
        images = [i for i in listed if i.startswith((f"{name}-", f"{name}_", f"vsc-{name}-"))]
        if images:
            self.run("docker", "image", "rm", "--force", *images)


@pytest.fixture(scope="module", name="project")
def laid_project(
    base_image: str,
    docker_client: Any,
    session_environment: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Project]:
    del docker_client  # compose's own engine is Docker
    if os.getuid() != 0:
        missing("root", "only root makes device nodes")
    folder = tmp_path_factory.mktemp("envbuilder-test-compose")
    lay_profile(folder, "rocm", PROFILE)  # hides the shipped one, which has 6 GB
    (folder / "train.py").write_text(TRAIN)
    os.chown(folder, OWNER, OWNER)
    (folder / "bin").mkdir()
    program = folder / "bin/envbuilder"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m envbuilder "$@"\n')
    program.chmod(0o755)
    environment = {
        **session_environment,
        "ENVBUILDER_TRUSTED_FOLDERS": str(folder),
        "BASE_IMAGE": base_image,
        "PYTHONPATH": str(Path(__file__).parents[3]),
    }
    locked(folder, "rocm", environment)
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    project = Project(folder, {**os.environ, **environment, "PATH": path})
    yield project
    project.remove()


def need_compose() -> None:
    done = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
    if done.returncode != 0:
        missing("compose", "the docker client has no compose plugin")


def need_devcontainer() -> None:
    need_compose()
    if shutil.which("devcontainer") is None:
        missing("devcontainer", "@devcontainers/cli is not installed")


def printed_by_train(output: str) -> dict[str, Any]:
    """What `train.py` printed."""
    report: dict[str, Any] = json.loads(output.splitlines()[-1])
    return report


@pytest.mark.slow
def test_the_guides_commands_run(project: Project, repository: Path) -> None:
    need_devcontainer()
    blocks = re.findall(
        r"^```\n(.*?)^```$", (repository / GUIDE).read_text(), re.MULTILINE | re.DOTALL
    )
    lines = [line for block in blocks for line in block.splitlines()]
    printed = []
    for line in lines:
        output = project.run(*line.split())
        if line.endswith("train.py"):
            printed.append(printed_by_train(output))
            written = (project.folder / "written").stat()
            assert (written.st_uid, written.st_gid) == (OWNER, OWNER)
            (project.folder / "written").unlink()
    assert printed == [PLAIN, PLAIN]
    assert {line.split()[0] for line in lines} == {"envbuilder", "sh", "docker", "devcontainer"}


AMD = ("kfd", "dri/card0", "dri/renderD128")


def test_compose_passes_amds_nodes_on(project: Project) -> None:
    need_compose()
    expected = {"groups": [OWNER, 4240, 4242], "written": ["kfd", "dri/renderD128"]}
    assert project.train_with_compose("rocm", project.tree(*AMD)) == PLAIN | expected


def test_a_dev_container_is_given_amds_nodes(project: Project) -> None:
    need_devcontainer()
    project.render("devcontainer")
    project.look_at(project.tree(*AMD))
    project.run("devcontainer", "up", "--workspace-folder", ".", "--remove-existing-container")
    train = ("devcontainer", "exec", "--workspace-folder", ".", "python", "train.py")
    expected = {"groups": [OWNER, 4240, 4242], "written": ["kfd", "dri/renderD128"]}
    assert printed_by_train(project.run(*train)) == PLAIN | expected


def test_compose_passes_intels_nodes_on(project: Project) -> None:
    need_compose()
    root = project.tree("dri/card0", "dri/renderD128", "dri/by-path/pci-0000:00:02.0-render")
    vendor = root / "sys/class/drm/renderD128/device/vendor"
    vendor.parent.mkdir(parents=True)
    vendor.write_text("0x8086\n")
    expected = {"groups": [OWNER, 4241], "written": ["dri/renderD128"], "by_path": True}
    assert project.train_with_compose("xpu", root) == PLAIN | expected


def test_compose_passes_nvidias_on_through_cdi(project: Project) -> None:
    need_compose()
    folder = os.environ.get("ENVBUILDER_TEST_CDI_DIR", "")
    info = json.loads(project.run("docker", "info", "--format", "{{json .}}"))
    if not folder or folder not in (info.get("CDISpecDirs") or ()):
        missing("cdi", "the engine reads no CDI files from ENVBUILDER_TEST_CDI_DIR")
    root = project.tree("nvidiactl")
    node = {"path": "/dev/nvidiactl", "hostPath": f"{root}/dev/nvidiactl", "type": "c",
            "major": 1, "minor": 3, "fileMode": 0o666}  # fmt: skip
    edits = {"env": ["PROOF=cdi"], "deviceNodes": [node]}
    devices = [{"name": "all", "containerEdits": edits}]
    text = json.dumps({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices})
    file = Path(folder) / "nvidia.json"
    (root / "etc/cdi").mkdir(parents=True)
    (root / "etc/cdi/nvidia.json").write_text(text)
    expected = {"written": ["nvidiactl"], "proof": "cdi"}
    try:
        file.write_text(text)
        assert project.train_with_compose("cuda", root) == PLAIN | expected
    finally:
        file.unlink(missing_ok=True)


def test_the_shipped_profiles_files_are_accepted(tmp_path: Path) -> None:
    need_devcontainer()
    for name in ("cpu", "cuda", "rocm", "xpu"):  # those of others differ in names alone
        folder = tmp_path / name
        for target in ("devcontainer", "compose"):
            shutil.copytree(GOLDEN / name / target, folder, dirs_exist_ok=True)
        done = subprocess.run(
            ["devcontainer", "read-configuration", "--workspace-folder", folder],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        read = json.loads(done.stdout)
        assert read["configuration"]["service"] == "env"
        assert read["workspace"]["workspaceFolder"] == "/work"
        for compose in ("compose.yaml", ".devcontainer/compose.yaml"):
            subprocess.run(
                ["docker", "compose", "--file", folder / compose, "config", "--quiet"],
                check=True, capture_output=True,
            )  # fmt: skip
