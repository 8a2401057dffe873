"""Images that envbuilder built, as files of a real Apptainer: what clusters have instead of docker.

Apptainer is run by a user without rights, and installs nothing that has any. GPUs cannot be had
here, nor mounting an image file: it is unpacked for each start.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import exited, missing, ran, succeeded
from tests.integration.conftest import Cli
from tests.support import slurm
from tests.support.fleet_site import IMPORTS, Site, usable_python
from tests.support.folders import read_json
from tests.support.slurm_configuration import Node

NODE = "n-cpu"
HOSTILE = {
    "APPTAINER_BIND": "/etc:/opt/env",
    "APPTAINERENV_PYTHONPATH": "/etc",
    "APPTAINERENV_LD_PRELOAD": "/etc/hosts",
    "PYTHONSTARTUP": "/etc/hosts",
}
"""Variables by which a user changes what runs in every container."""


class Image(NamedTuple):
    """An image file, and what `build` said of the image."""

    path: Path
    built: Mapping[str, Any]


class Person:
    """A user without rights, with a folder of their own."""

    def __init__(self, folder: Path, python: str) -> None:
        self.folder = folder
        self.python = python

    def run(self, *argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a program to its end."""
        folders = {n: str(self.folder / n.lower()) for n in ("CACHE", "DATA", "CONFIG")}
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder),
            **IMPORTS,
            **{f"ENVBUILDER_{name}_DIR": path for name, path in folders.items()},
            **variables,
        }
        return ran(
            argv,
            env=environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            **(slurm.identity(slurm.USER) if os.geteuid() == 0 else {}),
        )

    def verify(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run `envbuilder verify`."""
        return self.run(self.python, "-m", "envbuilder", "verify", *arguments, **variables)


@pytest.fixture(scope="module")
def person() -> Iterator[Person]:
    if shutil.which("apptainer") is None:
        missing("apptainer", "it is not installed")
    python = usable_python() if os.geteuid() == 0 else shutil.which("python3")
    if python is None:
        missing("apptainer", "its user may not read this checkout or any fitting Python")
    # pytest's own folders are closed to other users.
    with tempfile.TemporaryDirectory(prefix="envbuilder-apptainer-") as folder:
        if os.geteuid() == 0:
            shutil.chown(folder, slurm.USER)
        yield Person(Path(folder), python)


@pytest.fixture
def image(person: Person, cli: Cli, base_image: str) -> Image:
    """The profile `cpu` in a file, made once."""
    path = person.folder / "cpu.sif"
    stated = person.folder / "built.json"
    layout = person.folder / "layout"
    if not stated.exists():
        build = ("build", "--profile", "cpu", "--backend", "docker", "--base-image", base_image)
        done = succeeded(cli(*build, "--output", f"oci:{layout}", "--json"))
        subprocess.run(["chmod", "-R", "a+rX", layout], check=True)
        digest = json.loads(done.stdout)["artifact"]["manifest_digest"]
        # Compressing it takes a minute, and shows nothing.
        arguments = ("--mksquashfs-args", "-noI -noD -noF -noX")
        succeeded(person.run("apptainer", "build", *arguments, str(path), f"oci:{layout}@{digest}"))
        shutil.rmtree(layout)
        stated.write_text(done.stdout)
    return Image(path, read_json(stated))


@pytest.mark.slow
def test_another_image_is_refused_and_says_what_to_do(person: Person, image: Image) -> None:
    other = exited(
        2, person.verify("--profile", "zendnn", "--sif", str(image.path), "--quick", "--force")
    )
    assert "the image is for profile cpu, not zendnn" in other.stderr
    assert "envbuilder build --profile zendnn --backend docker" in other.stderr
    text = exited(2, person.verify("--profile", "cpu", "--sif", "/etc/hosts", "--quick"))
    assert "/etc/hosts: Apptainer cannot read this image" in text.stderr
    without = person.verify("--profile", "cpu", "--sif", str(image.path), PATH="/usr/bin:/bin")
    if shutil.which("apptainer", path="/usr/bin:/bin") is None:
        assert without.returncode == 4, without.stderr
        assert "apptainer not found" in without.stderr


@pytest.mark.soak
def test_a_node_of_a_fleet_proves_its_profile_in_an_image(
    image: Image, mnist_dir: Path, test_cache: Path
) -> None:
    """Slurm, Apptainer and training are real; the user's variables meddle, and do not matter."""
    why = slurm.unsupported()
    if why:
        missing("slurm", why)
    program = shutil.which("apptainer")
    variables = {**IMPORTS, **HOSTILE, "PATH": f"{Path(program).parent}:$PATH"}
    with slurm.SlurmCluster((Node(NODE, ("cpu",)),)) as cluster:
        site = Site(cluster, usable_python() or "", test_cache)
        site.settings(
            profiles=[{"feature": "cpu", "profile": "cpu"}],
            sif={"cpu": str(image.path)},
            setup=[f"export {name}={value}" for name, value in variables.items()],
        )
        succeeded(site.run("verify", "--quick", "--folder", "inside", timeout=900))
        entry = site.entries("inside")[NODE]
        (result,) = (cluster.work / "inside/results").iterdir()
        report = read_json(result)["report"]
    assert entry["outcome"] in {"verified", "busy"}
    assert entry["backend"] == "apptainer"
    assert report["status"] == "passed"
    assert report["fingerprint"] == image.built["fingerprint"]
    assert report["artifact"]["ref"] == str(image.path)
    assert report["origins"]["prefix"] == "/opt/env"
    # What an image starts with is the profile's, and nothing of the caller's.
    checks = {check["name"]: check["status"] for check in report["checks"]}
    assert (checks["isolation"], checks["origins"]) == ("passed", "passed")
