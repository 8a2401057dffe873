"""Environments with old releases of the frameworks, from the package index, for the CPU.

The index has torch for Linux as a build for CUDA that is linked with 3 GB of NVIDIA's libraries.
Nothing of them runs without a GPU, so stubs take their place: libraries with the symbols that torch
asks for, whose functions all answer "no device".
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from envbuilder.core.errors import ToolError
from envbuilder.host import interpreters
from tests.conftest import missing

NEEDED_BY_TORCH = ("filelock", "fsspec", "jinja2", "networkx", "sympy", "typing-extensions")
"""All but NVIDIA's libraries and triton, which only compiled code needs."""

OLD = ("numpy<2", "setuptools<81")
"""What torch up to 2.1 needs and does not say."""

NVIDIA = re.compile(r"lib(cu|nv|nccl)")
NO_DEVICE = 100
"""CUDA's error of this name."""

_NEEDED = re.compile(r"  NEEDED +(\S+)")
_REQUIRED = re.compile(r"  required from (\S+):|    0x\S+ 0x\S+ \d+ (\S+)")
_SYMBOL = re.compile(r"[0-9a-f]{16} .{7} (\S+)\s[0-9a-f]{16} +(?:\(?([^()\s]+)\)? +)?(\S+)")
"""Section, version and name, as `objdump -T` prints them."""


@dataclass(frozen=True)
class Release:
    """A release of a framework, a Python that it has wheels for, and what it needs besides.

    What torch needs is named here; of others, all that they require is installed.
    """

    framework: str
    version: str
    python: str
    also: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.framework} {self.version}"

    def install(self, folder: Path, uv: Callable[..., None]) -> Path:
        """Make an environment of it in a folder and return its interpreter."""
        try:
            base = interpreters.find(self.python, (self.python,), platform.machine()).path
        except ToolError as error:
            missing(f"python{self.python.replace('.', '')}", error.message)
        uv("venv", "--quiet", "--no-project", "--python", str(base), str(folder))
        python = folder / "bin/python"
        release = f"{self.framework}=={self.version}"
        install = ("pip", "install", "--quiet", "--python", str(python))
        if self.framework != "torch":
            uv(*install, release, *self.also)
            return python
        uv(*install, "--no-deps", release)
        uv(*install, *NEEDED_BY_TORCH, *self.also)
        stub(next(folder.glob("lib/python3.*/site-packages/torch/lib")))
        return python


def stub(folder: Path) -> None:
    """Put a stub of each of NVIDIA's libraries that is missing beside torch's libraries."""
    if shutil.which("gcc") is None or shutil.which("objdump") is None:
        missing("compiler", "stubs of libraries take a C compiler: apt-get install gcc libc6-dev")
    asked: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    plain = set[str]()
    defined = set[str]()
    needed = set[str]()
    libraries = sorted(folder.glob("*.so*"))
    for library in libraries:
        command = ("objdump", "-pT", str(library))
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        needed.update(filter(NVIDIA.match, _NEEDED.findall(text)))
        file = ""
        of = dict[str, str]()
        for name, version in _REQUIRED.findall(text):
            file = name or file
            of[version] = file
        for section, version, symbol in _SYMBOL.findall(text):
            if section != "*UND*":
                defined.add(symbol)
            elif version in {"", "Base"}:
                plain.add(symbol)
            elif NVIDIA.match(of[version]):
                asked[of[version]][version].add(symbol)
    rest = {symbol for symbol in plain - defined if re.match(r"_*(cu|nv|nccl)", symbol)}
    for name in sorted(needed - {library.name for library in libraries}):
        compile_stub(folder / name, asked[name], rest)


def compile_stub(library: Path, versions: dict[str, set[str]], rest: set[str]) -> None:
    """Compile a library with symbols of these versions, and with others that have none."""
    source = "".join(map(_function, sorted(rest.union(*versions.values()))))
    script = "".join(
        f"{version} {{ global: {'; '.join(sorted(symbols))}; }};\n"
        for version, symbols in versions.items()
    )
    with TemporaryDirectory() as folder:
        code = Path(folder) / "stub.c"
        exports = Path(folder) / "exports"
        code.write_text(source)
        exports.write_text(script)
        words = ["gcc", "-shared", "-fPIC", f"-Wl,-soname,{library.name}", "-o", library, code]
        words += [f"-Wl,--version-script={exports}"] if script else []
        subprocess.run(words, check=True)


def _function(symbol: str) -> str:
    if "String" in symbol:
        return f'const char *{symbol}(void) {{ return "a stub"; }}\n'
    return f"long {symbol}(void) {{ return {NO_DEVICE}; }}\n"
