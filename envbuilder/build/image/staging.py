"""Install wheels from the store for an image with uv, on a machine that cannot run the image.

uv installs for the interpreter that it queries. Here it queries a program that answers as the
image's Python would: its version, machine and path, all taken from the base image. The files are
therefore those that uv would leave in the image, whatever Python, platform and architecture this
machine has, without emulation, without root and without an engine.
"""

from __future__ import annotations

import csv
import json
import posixpath
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from envbuilder.build.plan import RunUv
from envbuilder.core import types
from envbuilder.core.errors import BuildError
from envbuilder.core.files import file_sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from envbuilder.profiles.lock import File

# This machine's Python runs uv's query script, so that the answer has every key that this version
# of uv expects; the image's facts then replace this machine's.
_ANSWER = """\
import json, subprocess, sys
with open(sys.argv[1], encoding="utf-8") as stream:
    facts = json.load(stream)
done = subprocess.run([sys.executable, *sys.argv[2:]], stdout=subprocess.PIPE)
try:
    answer = json.loads(done.stdout)
except ValueError:
    sys.stdout.buffer.write(done.stdout)
else:
    print(json.dumps({**answer, **facts}))
raise SystemExit(done.returncode)
"""
_GLIBC = (2, 28)
"""The glibc version reported to uv; the lock, not this, decides which wheels are used."""


class Python(Struct, frozen=True, kw_only=True):
    """The image's interpreter."""

    path: str
    version: str
    """X.Y.Z"""
    platform: types.Platform

    @property
    def site(self) -> str:
        """Return the site-packages folder of its environments, relative to their prefix."""
        return f"lib/python{self.version.rpartition('.')[0]}/site-packages"


class Stage:
    """A folder in which an environment for an image is installed."""

    def __init__(
        self, folder: Path, uv: Path, python: Python, run: Callable[[RunUv], None]
    ) -> None:
        self.env = folder / "env"
        self._folder, self._uv, self._python, self._run = folder, uv, python, run

    def make(self) -> None:
        """Make an empty environment, whose files belong to the interpreter and not to a package."""
        interpreter = self._folder / "python"
        self._answer(interpreter, virtual=False)
        self._run(
            RunUv(
                what="make an environment for the image",
                argv=(
                    *(str(self._uv), "venv", "--quiet", "--no-config", "--no-project"),
                    *("--relocatable", "--python", str(interpreter), str(self.env)),
                ),
                env=self._variables(),
            )
        )

    def install(self, wheels: Sequence[File], folder: Path) -> None:
        """Install wheels, which `folder` holds under their file names, into the environment."""
        lines = [
            f"{w.name}=={w.version} --hash=sha256:{file_sha256(folder / w.basename)}\n"
            for w in wheels
        ]
        requirements = self._folder / "requirements.txt"
        requirements.write_text("".join(lines))
        interpreter = self.env / "bin" / "python"
        interpreter.unlink()
        self._answer(interpreter, virtual=True)
        self._run(
            RunUv(
                what=f"install {len(wheels)} packages for the image",
                argv=(
                    *(str(self._uv), "pip", "install", "--quiet", "--no-config"),
                    *("--offline", "--no-index", "--find-links", str(folder)),
                    *("--no-deps", "--require-hashes", "--no-installer-metadata"),
                    *("--link-mode", "hardlink", "--python", str(interpreter)),
                    *("--requirements", str(requirements)),
                ),
                env=self._variables(),
            )
        )

    def record_of(self, wheel: File) -> str:
        """Return the path of an installed wheel's RECORD, relative to the environment."""
        from packaging.utils import canonicalize_name

        site = self.env / self._python.site
        name = canonicalize_name(wheel.name)
        for record in sorted(site.glob("*.dist-info/RECORD")):
            if canonicalize_name(record.parent.name.partition("-")[0]) == name:
                return record.relative_to(self.env).as_posix()
        raise BuildError(f"{wheel.basename}: installed, but left no RECORD")

    def files_of(self, wheel: File, record: str) -> tuple[str, ...]:
        """Return the sorted paths in a wheel's RECORD, relative to the environment."""
        return tuple(sorted({*self._recorded(self.env / record, wheel)}))

    def _recorded(self, record: Path, wheel: File) -> Iterator[str]:
        site = self.env / self._python.site
        with record.open(newline="", encoding="utf-8") as stream:
            for row in csv.reader(stream):
                # Lexically: RECORD reaches the environment's bin and share with `..`.
                path = posixpath.normpath(f"{self._python.site}/{row[0]}") if row else ""
                if not path or path.startswith(("..", "/")):
                    raise BuildError(f"{wheel.basename}: RECORD: {row!r} leads out of {site}")
                yield path

    def _variables(self) -> dict[str, str]:
        return {"UV_CACHE_DIR": str(self._folder / "cache"), "UV_OFFLINE": "1"}

    def _answer(self, program: Path, *, virtual: bool) -> None:
        """Write a program that answers uv as the image's interpreter would."""
        script = self._folder / "answer.py"
        facts = self._folder / f"{'virtual' if virtual else 'real'}.json"
        script.write_text(_ANSWER)
        facts.write_text(json.dumps(self._facts(virtual=virtual)))
        argv = [sys.executable, "-I", "-B", str(script), str(facts)]
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f'#!/bin/sh\nexec {shlex.join(argv)} "$@"\n')
        program.chmod(0o755)

    def _facts(self, *, virtual: bool) -> dict[str, Any]:
        python = self._python
        minor = python.version.rpartition(".")[0]
        base = Path(python.path).parent.parent.as_posix()
        prefix = str(self.env) if virtual else base
        machine = types.machine(python.platform)
        scheme = {
            "purelib": python.site,
            "platlib": python.site,
            "include": f"include/site/python{minor}",
            "scripts": "bin",
            "data": "",
        }
        return {
            "markers": {
                "implementation_name": "cpython",
                "implementation_version": python.version,
                "os_name": "posix",
                "platform_machine": machine,
                "platform_python_implementation": "CPython",
                "platform_release": "",
                "platform_system": "Linux",
                "platform_version": "",
                "python_full_version": python.version,
                "python_version": minor,
                "sys_platform": "linux",
            },
            "sys_base_prefix": base,
            "sys_base_exec_prefix": base,
            "sys_prefix": prefix,
            "sys_base_executable": python.path,
            "sys_executable": f"{prefix}/bin/python" if virtual else python.path,
            "sys_path": [],
            "site_packages": [f"{prefix}/{python.site}"],
            "stdlib": f"{base}/lib/python{minor}",
            "standalone": False,
            "scheme": {k: f"{prefix}/{v}".rstrip("/") for k, v in scheme.items()},
            "virtualenv": scheme,
            "os": {"name": "manylinux", "major": _GLIBC[0], "minor": _GLIBC[1]},
            "arch": machine,
            "manylinux_compatible": True,
            "gil_disabled": False,
            "debug_enabled": False,
            "pointer_size": "64",
        }
