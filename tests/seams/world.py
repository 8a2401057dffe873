"""A small machine for the real command line: a project, an index, a user's own configuration.

All of it lies below one folder, so that two worlds never meet. The command line is any that is
given by its path, so that the same steps can be tried with an earlier commit.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from tests.seams.index import Index
from tests.support import make_wheels

PROGRAM = "ENVBUILDER_SEAMS_PROGRAM"
"""The variable with the path of another `envbuilder` to try."""
LIMIT_SECONDS = 300
CAME = 1_782_864_000
"""When the newest releases came: on the first of July 2026; each older one 300 days before."""
STRANGERS = frozenset({"utils", "common", "helper", "mpi", "gromacs", "sklearn"})
"""Distributions of the index that only a wrong guess would want."""
SECRET = "hf_planted0secret0of0this0machine0abcde"
"""A value that no file or line of ours may repeat."""
TORCH = ("2.11.0", "2.12.1")
TORCH_NEEDS = ("filelock", "fsspec", "jinja2", "networkx", "setuptools", "sympy")
PACKAGES = {
    "filelock": ("3.19", "3.20.3"),
    "fsspec": ("2025.9",),
    "jinja2": ("3.1.6",),
    "networkx": ("3.5",),
    "setuptools": ("80.9",),
    "sympy": ("1.14",),
    "typing-extensions": ("4.14", "4.15"),
    "six": ("1.15", "1.16", "1.17"),
    "einops": ("0.8.0", "0.8.1", "0.8.2"),
    "attrs": ("24.1", "25.1"),
    "idna": ("3.9", "3.10"),
    "rich": ("14.0",),
}
"""Distributions of the public index that have a Python module and nothing else."""
OWN_NEEDS = {
    "click": "8.3",
    "cyclonedx-python-lib": "11.12",
    "docker": "7.1",
    "isal": "1.7",
    "msgspec": "0.20",
    "numpy": "2.4",
    "nvidia-ml-py": "13.0",
    "packageurl-python": "0.17",
    "platformdirs": "4.5",
    "python-debian": "1.0",
    "pyyaml": "6.0.3",
    "requests": "2.32",
    "zstandard": "0.25",
}
"""What envbuilder itself requires, which a bundle packs."""


class Ended(Struct, frozen=True):
    """A command that ended."""

    argv: tuple[str, ...]
    code: int
    out: str
    err: str
    seconds: float


class World:
    """Folders, index and variables; `history` is what was done, as a shell would be told."""

    def __init__(self, folder: Path, index: Index, program: Path | None = None) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.project = self.home / "project"
        self.index = index
        self.program = program or Path(
            os.environ.get(PROGRAM) or Path(sys.executable).with_name("envbuilder")
        )
        self.history: list[str] = []
        self.project.mkdir(parents=True, exist_ok=True)
        self.variables = {
            "HOME": str(self.home),
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "TMPDIR": str(folder / "tmp"),
            "ENVBUILDER_CACHE_DIR": str(self.home / "cache"),
            "ENVBUILDER_DATA_DIR": str(self.home / "data"),
            "ENVBUILDER_CONFIG_DIR": str(self.home / "config"),
            "ENVBUILDER_INDEX_PYTORCH_CPU": index.page_url("torch"),
            "UV_DEFAULT_INDEX": index.page_url("default"),
            "PIP_INDEX_URL": index.page_url("default"),
            "PIP_CONFIG_FILE": os.devnull,
        }
        (folder / "tmp").mkdir(exist_ok=True)

    def write(self, name: str, text: str | bytes) -> None:
        """Write a file of the project, or of the home folder if the name begins with ~/."""
        content = text.encode() if isinstance(text, str) else text
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        shown = shlex.quote(content.decode(errors="backslashreplace"))
        self.history.append(f"printf %s {shown} > {shlex.quote(name)}")

    def remove(self, name: str) -> None:
        """Remove a file or folder, if it is there."""
        path = self.path(name)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        self.history.append(f"rm -rf {shlex.quote(name)}")

    def path(self, name: str) -> Path:
        """Return the path of a file of the project, or of the home folder (~/…)."""
        if name.startswith("~/"):
            return self.home / name[2:]
        return self.project / name

    def envbuilder(self, *arguments: str, **options: object) -> Ended:
        """Run the command line in the project; options are those of `run`."""
        return self.run((str(self.program), *arguments), **options)  # type: ignore[arg-type]

    def run(
        self,
        argv: Sequence[str],
        *,
        cwd: Path | None = None,
        variables: Mapping[str, str] | None = None,
        stdin: str | None = None,
        kill_after: float | None = None,
        user: int | None = None,
    ) -> Ended:
        """Run a program to its end in this world.

        `kill_after`: send SIGKILL to its process group after so many seconds, if it still runs.
        `user`: the uid that it runs as.
        """
        words = ["envbuilder" if word == str(self.program) else word for word in argv]
        prefix = [f"{k}={shlex.quote(v)}" for k, v in (variables or {}).items()]
        timed = [] if kill_after is None else ["timeout", "-s", "KILL", str(kill_after)]
        self.history.append(" ".join([*prefix, *timed, shlex.join(words)]))
        began = time.monotonic()
        child = subprocess.Popen(
            argv,
            cwd=cwd or self.project,
            env={**self.variables, **(variables or {})},
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            user=user,
        )
        try:
            text = None if stdin is None else stdin.encode()
            out, err = child.communicate(text, timeout=kill_after or LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            out, err = child.communicate()
        return Ended(
            argv=tuple(argv),
            code=child.returncode if child.returncode >= 0 else 128 - child.returncode,
            out=out.decode(errors="surrogateescape"),
            err=err.decode(errors="surrogateescape"),
            seconds=time.monotonic() - began,
        )


def fill(index: Index, uv_wheel: Path) -> None:
    """Put small wheels into the index, and the real uv, which installs them."""
    default = index.wheels("default")
    torch = index.wheels("torch")
    default.mkdir(parents=True)
    torch.mkdir(parents=True)
    shutil.copy(uv_wheel, default)
    for name, versions in PACKAGES.items():
        for age, version in enumerate(reversed(versions)):
            came = CAME - age * 86400 * 300
            os.utime(package(default, name, version), (came, came))
    for name, version in OWN_NEEDS.items():
        package(default, name, version)
    for name in STRANGERS:
        package(default, name, "1.0", text="raise SystemExit('a stranger')\n")
    for machine in ("manylinux_2_28_aarch64", "macosx_11_0_arm64"):
        make_wheels.write(
            default, "uv", {}, version=uv_wheel.name.split("-")[1], tag=f"py3-none-{machine}"
        )
    for version in ("0.12.0.1", "0.11.0"):
        package(default, "jax", version, needs=(f"jaxlib=={version}",))
        package(default, "jaxlib", version)
    package(default, "zentorch", "2.13.0.2", tag="cp311-cp311-manylinux_2_28_x86_64")
    package(default, "extras-of", "1.0", needs=("six; extra == 'more'",))
    for version in TORCH:
        for python in ("311", "312"):
            tag = f"cp{python}-cp{python}-macosx_14_0_arm64"
            package(default, "torch", version, needs=TORCH_NEEDS, tag=tag)
        for python, machine in itertools.product(("311", "312"), ("x86_64", "aarch64")):
            tag = f"cp{python}-cp{python}-manylinux_2_28_{machine}"
            package(torch, "torch", f"{version}+cpu", needs=TORCH_NEEDS, tag=tag)
            for other in ("torchaudio", "torchvision"):
                needs = (f"torch=={version}",)
                package(torch, other, f"{version}+cpu", needs=needs, tag=tag)


def package(
    folder: Path,
    name: str,
    version: str,
    *,
    needs: Sequence[str] = (),
    tag: str = "py3-none-any",
    text: str = "",
) -> Path:
    """Write a wheel with one module, which knows its version."""
    module = name.replace("-", "_")
    files = {f"{module}/__init__.py": f"__version__ = {version!r}\n{text}".encode()}
    return make_wheels.write(folder, module, files, version=version, needs=needs, tag=tag)
